"""Signed level numbers -s..s to bytes and back: whole bits, radix words, Elias gamma codes."""

from __future__ import annotations

from hvd_compress.ops.base import Array
from hvd_compress.ops.kernels import Kernels

__all__ = ["PACKINGS", "pack_levels", "packed_nbytes", "unpack_levels"]

PACKINGS = ("bits", "radix", "elias")


def packed_nbytes(n: int, s: int, packing: str) -> int:
    """Bytes of n level numbers; for "elias" the most that they can take."""
    if packing == "radix":
        digits, word = _radix(s)
        return -(-n // digits) * word
    return -(-n * (_code_bits(s) if packing == "bits" else _longest_elias(s)) // 8)


def pack_levels(ops: Kernels, negative: Array, levels: Array, s: int, packing: str) -> Array:
    """Pack int64 `levels` in 0..s and their signs (int64, 1 for negative); uint8."""
    if packing == "bits":
        return ops.pack_bits(ops.shift_left(negative, _code_bits(s) - 1) + levels, _code_bits(s))
    signed = ops.where(levels > 0, negative, 0)
    if packing == "radix":
        return _pack_radix(ops, signed * s + levels, s)
    return _pack_elias(ops, signed, levels + 1, s)


def unpack_levels(ops: Kernels, packed: Array, n: int, s: int, packing: str) -> tuple[Array, Array]:
    """Undo `pack_levels`; the sign of level 0 is lost except with "bits".

    Raises
    ------
    ValueError
        If the bytes are no packed levels in 0..s.
    """
    if packing == "elias":
        return _unpack_elias(ops, packed, n, s)
    if packing == "bits":
        codes, top = ops.unpack_bits(packed, _code_bits(s), n), _code_bits(s) - 1
        negative, levels = ops.shift_right(codes, top), ops.bit_and(codes, (1 << top) - 1)
    else:
        symbols = _unpack_radix(ops, packed, n, s)
        negative = ops.cast(symbols > s, "int64")
        levels = symbols - negative * s
    ops.require(ops.all(levels <= s), f"payload: a code is above the top level {s}")
    return negative, levels


def _code_bits(s: int) -> int:
    return s.bit_length() + 1


def _radix(s: int) -> tuple[int, int]:
    """Symbols in a word, and bytes of a word."""
    base = 2 * s + 1
    if base == 3:
        return 5, 1
    digits = 1
    while base ** (digits + 1) <= 1 << 32:
        digits += 1
    return digits, 4


def _powers(ops: Kernels, s: int) -> Array:
    return ops.constant([(2 * s + 1) ** digit for digit in range(_radix(s)[0])], "int64")


def _pack_radix(ops: Kernels, symbols: Array, s: int) -> Array:
    digits, word = _radix(s)
    filled = ops.concat([symbols, ops.zeros(-ops.shape(symbols)[0] % digits, "int64")])
    words = ops.sum(ops.reshape(filled, (-1, digits)) * _powers(ops, s))
    return ops.cast(words, "uint8") if word == 1 else ops.to_bytes(ops.cast(words, "int32"))


def _unpack_radix(ops: Kernels, packed: Array, n: int, s: int) -> Array:
    digits, word = _radix(s)
    base = 2 * s + 1
    words = packed if word == 1 else ops.from_bytes(packed, "int32")
    words = ops.bit_and(ops.cast(words, "int64"), 0xFFFFFFFF)
    ops.require(ops.all(words < base**digits), "payload: a word is no radix number")
    quotients = ops.reshape(words, (-1, 1)) // _powers(ops, s)
    return ops.flatten(quotients - quotients // base * base)[:n]


def _longest_elias(s: int) -> int:
    return 2 * (s + 1).bit_length()


def _pack_elias(ops: Kernels, negative: Array, numbers: Array, s: int) -> Array:
    """Elias gamma code of each number >= 1, and a sign bit after those above 1 (Elias 1975)."""
    zeros = _floor_log2(ops, numbers, s)
    lengths = 2 * zeros + 1 + ops.cast(numbers > 1, "int64")
    ends = ops.cumsum(lengths)
    starts = ends - lengths
    ones = [ops.take(ends - 1, ops.nonzero(negative))]
    for place in range((s + 1).bit_length()):
        bit = ops.bit_and(ops.shift_right(numbers, ops.clip(zeros - place, 0, 62)), 1)
        chosen = ops.nonzero(ops.where(zeros >= place, bit, 0))
        ones.append(ops.take(starts + zeros + place, chosen))
    return ops.pack_positions(ops.concat(ones), ops.integer(ops.sum(lengths)))


def _floor_log2(ops: Kernels, numbers: Array, s: int) -> Array:
    result = numbers * 0
    for power in range(1, (s + 1).bit_length()):
        result = result + ops.cast(numbers >= 1 << power, "int64")
    return result


def _unpack_elias(ops: Kernels, packed: Array, n: int, s: int) -> tuple[Array, Array]:
    bits = ops.bytes_to_bits(packed)
    total, message = ops.length(bits), "payload: the codes do not fill the bytes"
    places = ops.arange(total)
    # The next one bit at or after each place: the code that starts there begins with that many zeros.
    following = ops.next_nonzero(bits)
    zeros = following - places
    after = ops.clip(following + zeros + 1 + ops.cast(zeros > 0, "int64"), 0, total)
    starts, end = _orbit(ops, ops.concat([after, ops.constant((0,), "int64") + total]), n)
    ops.require((end <= total) & (total - end < 8), message)
    zeros = ops.take(ops.concat([zeros, ops.zeros(1, "int64")]), starts)
    ops.require(ops.all(starts < total), message)
    ops.require(ops.all(zeros < (s + 1).bit_length()), f"payload: a code is above the top level {s}")
    padded = ops.concat([bits, ops.zeros(_longest_elias(s), "int64")])
    numbers = ops.take(padded, starts + zeros)
    for place in range(1, (s + 1).bit_length()):
        longer = numbers * 2 + ops.take(padded, starts + zeros + place)
        numbers = ops.where(zeros >= place, longer, numbers)
    ops.require(ops.all(numbers <= s + 1), f"payload: a code is above the top level {s}")
    negative = ops.where(zeros > 0, ops.take(padded, starts + 2 * zeros + 1), 0)
    ops.require(ops.equal(ops.sum(bits[end:]), 0), message)
    return negative, numbers - 1


def _orbit(ops: Kernels, following: Array, n: int) -> tuple[Array, Array]:
    """0, f(0), f(f(0)), ... of a map given as an array: the first n, and the one after; by doubling."""
    orbit = ops.zeros(1, "int64")
    jump = following
    while ops.shape(orbit)[0] < n + 1:
        orbit = ops.concat([orbit, ops.take(jump, orbit)])
        jump = ops.take(jump, jump)
    return orbit[:n], ops.integer(orbit[n : n + 1])
