"""One tensor as the bytes that a worker would send of it, and back: no network, no state from earlier steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvd_compress.codec import Array, Codec, Reduction
from hvd_compress.exchange import Pending, receive, send, spec_of
from hvd_compress.generator import Site
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.payload import NORMAL, Payload, TensorSpec
from hvd_compress.policy import BySize
from hvd_compress.wire import row_nbytes, seal, tag_of, unseal

__all__ = ["decode_bytes", "encode_array", "handled_by"]


class _Arrived(NamedTuple):
    """An exchange of two phases whose sums are there."""

    payload: Payload

    def finish(self) -> Payload:
        return self.payload


class _Alone:
    """The collective of one worker: it receives what it sends."""

    def allgather(self, buffer: Array, name: str) -> Any:
        return buffer

    def allreduce(self, array: Array, name: str) -> Any:
        return array

    def wait(self, handle: Any) -> Array:
        return handle


def handled_by(codec: Codec, spec: TensorSpec, site: Site) -> Codec:
    """Return what compresses this tensor at this step: schedules apply, and very large tensors go in pieces."""
    return BySize(codec, min_elements=0, min_ndim=0).for_tensor(site.name, spec).at_step(site.step)


def encode_array(codec: Codec, x: Array, site: Site, *, raw: bool = False) -> bytes:
    """Compress an array as at the first step of a training.

    Parameters
    ----------
    codec : Codec
        What compresses.
    x : array
        Floating-point, of any shape, in the memory of the CPU; of NumPy, torch or TensorFlow.
    site : Site
        Name, step and rank, of which random draws and the seal depend.
    raw : bool
        Leave out the seal and the filling before it. Payloads that are summed have neither.

    Returns
    -------
    bytes
        What one worker hands to Horovod.

    Raises
    ------
    TypeError
        If `x` is no floating-point array.
    """
    ops = ops_for(x)
    spec = spec_of(ops, x)
    codec = handled_by(codec, spec, site)
    sent, pending, _ = send(codec, ops, x, codec.init(ops, spec), site, _Alone())
    if codec.reduction is not Reduction.GATHER:
        parts = (sent,) if codec.reduction is Reduction.SUM else pending.handle.finish().parts
        return b"".join(np.asarray(ops.to_bytes(part)).tobytes() for part in parts)
    row = unseal(ops, pending.handle, codec, spec, tag_of(codec, site)) if raw else pending.handle
    return np.asarray(row).tobytes()


def decode_bytes(codec: Codec, data: bytes, spec: TensorSpec, site: Site, *, raw: bool = False) -> NDArray[Any]:
    """Undo `encode_array`, in NumPy.

    Parameters
    ----------
    codec, site, raw
        As for `encode_array`.
    data : bytes
        What it returned.
    spec : TensorSpec
        Shape and dtype of the tensor.

    Returns
    -------
    array
        All NaN if the tensor was not finite.

    Raises
    ------
    ValueError
        If the bytes are damaged, truncated, or of another tensor, step or codec. Only the length of raw payloads and
        of those that are summed can show that.
    """
    ops = ops_for(np.zeros(0, np.float32))
    codec = handled_by(codec, spec, site)
    expected = _expected_nbytes(codec, data, spec, raw)
    if expected is not None and len(data) != expected:
        raise ValueError(f"payload: {len(data)} bytes, expected {expected}: truncated, or of another tensor or codec")
    # A copy, because decoding may write into it.
    buffer, tag = np.frombuffer(data, np.uint8).copy(), tag_of(codec, site)
    reduced = ops.constant((1.0,), "float32")
    row: Any = None
    if codec.reduction is Reduction.SUM:
        reduced = ops.from_bytes(buffer, _sum_dtype(ops, codec, spec, site))
    elif codec.reduction is Reduction.TWO_PHASE:
        length, _ = codec.part_nbytes(spec)
        dtypes = _sum_dtype(ops, codec, spec, site), "float32"
        parts = zip((buffer[:length], buffer[length:]), dtypes, strict=True)
        sums = tuple(ops.from_bytes(part, dtype) for part, dtype in parts)
        # The state, in which what was sent would be missing, is of no interest.
        row = _Arrived(Payload(sums, NORMAL, source=ops.zeros(spec.numel)))
    else:
        row = seal(ops, [buffer], tag, codec.fixed_size) if raw else buffer
    result, _ = receive(ops, reduced, Pending(codec, spec, site, row, tag), codec.init(ops, spec), _Alone())
    return np.asarray(result)


def _expected_nbytes(codec: Codec, data: bytes, spec: TensorSpec, raw: bool) -> int | None:
    """Bytes that there must be; None where nothing but the content tells."""
    if codec.reduction is not Reduction.GATHER or (raw and codec.fixed_size):
        return codec.payload_nbytes(spec)
    if codec.fixed_size:
        return row_nbytes(codec, spec)
    if raw:
        return None
    # Rows of varying size begin with the payload's length; the seal ends them.
    return 16 + -(-int.from_bytes(data[:8], "little") // 8) * 8


def _sum_dtype(ops: Kernels, codec: Codec, spec: TensorSpec, site: Site) -> str:
    """dtype of a payload that is summed; that of one entry is that of all."""
    one = TensorSpec((1,), spec.dtype)
    payload, _ = codec.encode(ops, ops.zeros(1, spec.dtype), codec.init(ops, one), site)
    return ops.dtype(payload.parts[0])
