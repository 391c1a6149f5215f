"""Wire codes for k distinct rising indices in [0, n). Sizes depend on n and k only.

==========  ==============================================  ===================
code        bytes                                           best for
==========  ==============================================  ===================
ef          ceil(k*l/8) + ceil((k + ((n-1)>>l) + 1)/8)      k < n/4 (Elias-Fano, 1974/1971)
bitmap      ceil(n/8)                                       k >= n/4
u16         4*ceil(n/65536) + 2k                            other programs
u32         4k                                              other programs
auto        the smaller of ef and bitmap, by k < n/4        always
==========  ==============================================  ===================
"""

from __future__ import annotations

from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["INDEX_CODECS", "decode_indices", "encode_indices", "index_nbytes"]

INDEX_CODECS = ("auto", "ef", "bitmap", "u16", "u32")
_BLOCK = 65536


def _resolve(code: str, n: int, k: int) -> str:
    if code != "auto":
        return code
    return "bitmap" if 4 * k >= n else "ef"


def _low_bits(n: int, k: int) -> int:
    return max(0, (n // k).bit_length() - 1)


def index_nbytes(n: int, k: int, code: str = "auto") -> int:
    """Bytes that `encode_indices` returns for k indices below n."""
    if k == 0:
        return 0
    code = _resolve(code, n, k)
    if code == "bitmap":
        return -(-n // 8)
    if code == "u16":
        return 4 * -(-n // _BLOCK) + 2 * k
    if code == "u32":
        return 4 * k
    low = _low_bits(n, k)
    return -(-k * low // 8) + -(-(k + ((n - 1) >> low) + 1) // 8)


def encode_indices(ops: Kernels, indices: Array, n: int, k: int, code: str = "auto") -> Array:
    """Encode k rising distinct int64 indices below n to uint8."""
    if k == 0:
        return ops.zeros(0, "uint8")
    code = _resolve(code, n, k)
    if code == "bitmap":
        return ops.pack_positions(indices, n)
    if code == "u16":
        blocks = ops.arange(-(-n // _BLOCK))
        owner = ops.reshape(ops.shift_right(indices, 16), (1, -1))
        counts = ops.sum(ops.cast(ops.equal(owner, ops.reshape(blocks, (-1, 1))), "int64"))
        return ops.concat(
            [ops.to_bytes(ops.cast(counts, "int32")), ops.to_bytes(ops.cast(ops.bit_and(indices, _BLOCK - 1), "int16"))]
        )
    if code == "u32":
        return ops.to_bytes(ops.cast(indices, "int32"))
    low = _low_bits(n, k)
    return ops.pack_rising(indices, low, k + ((n - 1) >> low) + 1)


def decode_indices(ops: Kernels, packed: Array, n: int, k: int, code: str = "auto") -> Array:
    """Undo `encode_indices`.

    Raises
    ------
    ValueError
        If the bytes do not hold k rising indices below n.
    """
    if k == 0:
        return ops.arange(0)
    code = _resolve(code, n, k)
    if code == "ef":
        return ops.unpack_rising(packed, n, k, _low_bits(n, k))
    if code == "bitmap":
        indices = ops.find_ones(packed, k)
    elif code == "u16":
        indices = _decode_u16(ops, packed, n, k)
    else:
        indices = ops.bit_and(ops.cast(ops.from_bytes(packed, "int32"), "int64"), 0xFFFFFFFF)
    return ops.require_rising(indices, n)


def _decode_u16(ops: Kernels, packed: Array, n: int, k: int) -> Array:
    blocks = -(-n // _BLOCK)
    counts = ops.cast(ops.from_bytes(packed[: 4 * blocks], "int32"), "int64")
    complete = ops.all(counts >= 0) & ops.equal(ops.sum(counts), k)
    ops.require(complete, f"payload: block counts do not add up to {k}")
    ends = ops.sum(
        ops.where(ops.reshape(ops.arange(blocks), (1, -1)) <= ops.reshape(ops.arange(blocks), (-1, 1)), counts, 0)
    )
    owner = ops.sum(ops.cast(ops.reshape(ends, (1, -1)) <= ops.reshape(ops.arange(k), (-1, 1)), "int64"))
    offsets = ops.bit_and(ops.cast(ops.from_bytes(packed[4 * blocks :], "int16"), "int64"), _BLOCK - 1)
    return owner * _BLOCK + offsets
