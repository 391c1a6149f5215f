"""Very large tensors, in pieces whose indices fit 32 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.parameters import check_parameters, integer, nested
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL, Payload, TensorSpec
from hvd_compress.registry import register
from hvd_compress.wire import add_payload, pack, unpack
from hvd_compress.wrapper import Wrapper

__all__ = ["CHUNK", "Chunked"]

CHUNK = 2**28
"""Entries of a piece."""


@register("chunked")
@dataclass(frozen=True)
class Chunked(Wrapper):
    """Apply a codec to pieces of the flat tensor, each as a tensor of its own with its own draws and state.

    Parameters
    ----------
    inner : Codec
        For the pieces.
    size : int
        Entries of a piece; the last one may be short.

    Examples
    --------
    >>> from hvd_compress import TensorSpec, TopK
    >>> Chunked(TopK(density=0.1), size=50).part_nbytes(TensorSpec((120,), "float32"))
    (32, 32, 18)
    """

    inner: Codec = nested(Codec, "for the pieces")
    size: int = integer(CHUNK, 1, "entries of a piece")

    paper = "none"

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.inner.reduction is Reduction.TWO_PHASE:
            raise ValueError(f"Chunked: inner must be a codec of one phase, got {self.inner!r}")

    @property
    def feedback(self) -> Feedback:
        return self.inner.feedback

    def _pieces(self, numel: int, dtype: str) -> Iterator[tuple[int, slice, TensorSpec]]:
        for number, start in enumerate(range(0, numel, self.size)):
            stop = min(start + self.size, numel)
            yield number, slice(start, stop), TensorSpec((stop - start,), dtype)

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        pieces = self._pieces(spec.numel, spec.dtype)
        return {
            f"{number}/{key}": value for number, _, part in pieces for key, value in self.inner.init(ops, part).items()
        }

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        payloads, new, entries = [], {}, 0
        for number, piece, part in self._pieces(ops.shape(x)[0], ops.dtype(x)):
            # A later piece that is not finite leaves the state of all pieces as it was.
            room = None if out is None or out is state else _of_piece(out, number)
            place = site._replace(chunk=number)
            payload, after = self.inner.encode(ops, x[piece], _of_piece(state, number), place, room)
            entries += payload.kept_entries(ops, part.numel)
            payloads.append(payload)
            new.update({f"{number}/{key}": value for key, value in after.items()})
        flag = _worst(ops, payloads)
        if self.reduction is Reduction.SUM:
            parts = (ops.concat([payload.parts[0] for payload in payloads]),) if payloads else (x,)
        else:
            parts = tuple(pack(ops, payload) for payload in payloads)
        kept = state if flag is None else ops.cond(ops.equal(flag, NONFINITE), lambda: state, lambda: new)
        return Payload(parts, flag, (ops.shape(x)[0],), entries=entries), kept

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        decoded, start = [], 0
        for number, _, part in self._pieces(spec.numel, spec.dtype):
            place = site._replace(chunk=number)
            if self.reduction is Reduction.SUM:
                stop = start + self.inner.payload_nbytes(part) // _item(ops, payload)
                decoded.append(self.inner.decode(ops, Payload((payload.parts[0][start:stop],)), part, place))
                start = stop
            else:
                piece = unpack(ops, payload.parts[number], self.inner, part)
                decoded.append(add_payload(ops, self.inner, ops.zeros(part.numel), piece, part, place))
        return ops.concat(decoded) if decoded else ops.zeros(0)

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        results, new = [ops.float32(reduced[:0])], {}
        for number, piece, _ in self._pieces(ops.shape(reduced)[0], ops.dtype(reduced)):
            result, after = self.inner.absorb(
                ops, reduced[piece], _of_piece(state, number), site._replace(chunk=number)
            )
            results.append(ops.float32(result))
            new.update({f"{number}/{key}": value for key, value in after.items()})
        kept = ops.cond(ops.all_finite(ops.float32(reduced)), lambda: new, lambda: state)
        return ops.concat(results), kept

    def unsent(self, ops: Kernels, state: State) -> Array | None:
        pieces: list[Array | None] = []
        while piece := _of_piece(state, len(pieces)):
            pieces.append(self.inner.unsent(ops, piece))
        held = [piece for piece in pieces if piece is not None]
        return ops.concat(held) if held else None

    def holding(self, ops: Kernels, state: State, unsent: Array) -> State | None:
        new: dict[str, Array] = {}
        for number, piece, _ in self._pieces(ops.shape(unsent)[0], "float32"):
            held = self.inner.holding(ops, _of_piece(state, number), unsent[piece])
            if held is None:
                return None
            new.update({f"{number}/{key}": value for key, value in held.items()})
        return new

    def release(self, ops: Kernels, x: Array, state: State, site: Site) -> tuple[Array, State]:
        totals, new = [], {}
        for number, piece, _ in self._pieces(ops.shape(x)[0], ops.dtype(x)):
            place = site._replace(chunk=number)
            total, after = self.inner.release(ops, x[piece], _of_piece(state, number), place)
            totals.append(total)
            new.update({f"{number}/{key}": value for key, value in after.items()})
        return ops.concat(totals), new

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        return (spec.numel,)

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return tuple(self.inner.payload_nbytes(part) for _, _, part in self._pieces(spec.numel, spec.dtype))


def _of_piece(state: State, number: int) -> State:
    prefix = f"{number}/"
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _item(ops: Kernels, payload: Payload) -> int:
    return {"float16": 2, "float32": 4, "float64": 8}[ops.dtype(payload.parts[0])]


def _worst(ops: Kernels, payloads: list[Payload]) -> Array | None:
    """Flag of the whole: not finite if any piece is, empty if all are; None where the pieces have none."""
    flags = [payload.flag for payload in payloads]
    if any(flag is None for flag in flags):
        return None
    codes = ops.concat([ops.constant((EMPTY,), "int64"), *(ops.cast(ops.reshape(f, (1,)), "int64") for f in flags)])
    worst = ops.where(ops.all(ops.equal(codes, EMPTY)), EMPTY, NORMAL)
    return ops.where(ops.all(~ops.equal(codes, NONFINITE)), worst, NONFINITE)
