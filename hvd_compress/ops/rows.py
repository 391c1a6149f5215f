"""Rows of bytes that end with a seal: a check word over the row, and a tag."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.generator import MASK
from hvd_compress.ops.base import Array
from hvd_compress.ops.codes import Codes

__all__ = ["SEAL_NBYTES", "Rows"]

SEAL_NBYTES = 8


class Rows(Codes):
    """Default bodies; overrides must return the same bits."""

    def check_word(self, words: Array) -> Array:
        """Sum of (2i+1) * words[i] mod 2**32 over int32 words taken as unsigned; 0-d int64."""
        odd = self.arange(self.length(words)) * 2 + 1
        return self.bit_and(self.sum(self.bit_and(self.cast(words, "int64"), MASK) * odd), MASK)

    def seal_row(self, sections: Sequence[Array], tag: int) -> Array:
        """Join uint8 `sections`, fill up to a multiple of 8 bytes with zeros, and add check word and 32-bit `tag`."""
        length = sum(self.length(section) for section in sections)
        row = self.concat([*sections, self.zeros(-length % 8 + SEAL_NBYTES, "uint8")])
        # In place, because a payload can be large.
        end = self.arange(SEAL_NBYTES) + (self.length(row) - SEAL_NBYTES)
        return self.put(row, end, self._seal_of(row[:-SEAL_NBYTES], tag))

    def seal_fits(self, row: Array, tag: int) -> tuple[Array, Array]:
        """Whether the check word, and whether the tag at the end of a row are those that `seal_row` would put there."""
        ours, theirs = self._seal_of(row[:-SEAL_NBYTES], tag), row[-SEAL_NBYTES:]
        return self.all(self.equal(ours[:4], theirs[:4])), self.all(self.equal(ours[4:], theirs[4:]))

    def rows_fit(self, rows: Array, count: int, nbytes: int, head: bytes, tag: int) -> bool:
        """Whether `rows` are `count` rows of `nbytes` that begin with `head` and end with the seal of `tag`.

        A look at all of them for what nothing traces; where something does, the answer is no.
        """
        if self.shape(rows)[0] != count * nbytes or nbytes < len(head) + SEAL_NBYTES or nbytes % 4:
            return False
        each = [rows[nbytes * number : nbytes * (number + 1)] for number in range(count)]
        begins = [self.all(self.equal(row[: len(head)], self.constant(head, "uint8"))) for row in each]
        seals = [fits for row in each for fits in self.seal_fits(row, tag)]
        return all(bool(fits) for fits in (*begins, *seals))

    def _seal_of(self, filled: Array, tag: int) -> Array:
        check = self.reshape(self.check_word(self.from_bytes(filled, "int32")), (1,))
        return self.to_bytes(self.cast(self.concat([check, self.constant((tag,), "int64")]), "int32"))
