"""Index codes and bit packing: the published vectors, sizes, round trips, and damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_compress.indices import INDEX_CODECS, decode_indices, encode_indices, index_nbytes
from tests.cases import backends, ops_of, to_numpy

PACKED = [
    ([1, 2, 3, 4, 5], 3, "d158"),
    ([1, 2, 31, 0, 17], 5, "417c1001"),
    ([1, 2, 127], 7, "01c11f"),
    ([0, 1, 2, 3, 3], 2, "e403"),
    ([1, 15, 8], 4, "f108"),
]


@backends
@pytest.mark.parametrize(("codes", "bits", "packed"), PACKED)
def test_known_bit_packings(backend: str, codes: list[int], bits: int, packed: str) -> None:
    ops = ops_of(backend)
    result = ops.pack_bits(ops.constant(codes, "int64"), bits)
    assert to_numpy(result).tobytes().hex() == packed
    assert to_numpy(ops.unpack_bits(result, bits, len(codes))).tolist() == codes


@backends
@pytest.mark.parametrize("n", [1, 7, 8, 9, 1001])
@pytest.mark.parametrize("bits", [0, 1, 2, 4, 13, 30])
def test_bit_packing_round_trips_in_the_declared_length(backend: str, n: int, bits: int) -> None:
    """F110, packed lengths."""
    ops = ops_of(backend)
    codes = np.random.default_rng(n).integers(0, 1 << bits, n)
    packed = ops.pack_bits(ops.constant(codes.tolist(), "int64"), bits)
    assert to_numpy(packed).shape == (-(-n * bits // 8),)
    assert to_numpy(ops.unpack_bits(packed, bits, n)).tolist() == codes.tolist()


@backends
@pytest.mark.parametrize(
    ("n", "indices", "encoded"), [(32, [3, 4, 7, 13, 14, 15, 21], "731ecd09"), (12, [0, 3, 11], "0908")]
)
def test_known_index_codes(backend: str, n: int, indices: list[int], encoded: str) -> None:
    ops = ops_of(backend)
    result = encode_indices(ops, ops.constant(indices, "int64"), n, len(indices))
    assert to_numpy(result).tobytes().hex() == encoded
    assert to_numpy(decode_indices(ops, result, n, len(indices))).tolist() == indices


@pytest.mark.parametrize(
    ("n", "k", "nbytes"),
    [
        (25_600_000, 25_600, 38_250),
        (25_600_000, 256_000, 274_000),
        (1_000_000, 1000, 1495),
        (1_000_000, 10_000, 10_704),
        (65_536, 655, 702),
        (100, 0, 0),
        (100, 25, 13),
    ],
)
def test_known_sizes(n: int, k: int, nbytes: int) -> None:
    assert index_nbytes(n, k) == nbytes


@backends
@pytest.mark.parametrize("code", INDEX_CODECS)
@pytest.mark.parametrize("n", [1, 2, 9, 32_767, 32_768, 65_535, 65_536, 65_537, 200_000])
def test_first_and_last_index_survive_around_integer_limits(backend: str, code: str, n: int) -> None:
    """F059: an index type that follows the value type, or is one too narrow, would wrap."""
    ops = ops_of(backend)
    for indices in ([n - 1], sorted({0, n - 1})):
        encoded = encode_indices(ops, ops.constant(indices, "int64"), n, len(indices), code)
        assert to_numpy(encoded).shape == (index_nbytes(n, len(indices), code),)
        assert to_numpy(decode_indices(ops, encoded, n, len(indices), code)).tolist() == indices


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_index_set_round_trips_in_the_declared_length(data: st.DataObject) -> None:
    ops = ops_of("numpy")
    n = data.draw(st.integers(1, 3000))
    chosen = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    code = data.draw(st.sampled_from(INDEX_CODECS))
    indices = np.array(sorted(chosen), np.int64)
    encoded = encode_indices(ops, indices, n, len(chosen), code)
    assert encoded.shape == (index_nbytes(n, len(chosen), code),)
    assert decode_indices(ops, encoded, n, len(chosen), code).tolist() == indices.tolist()


@backends
@pytest.mark.parametrize(
    ("code", "damaged", "message"),
    [
        ("bitmap", "0308", "does not hold 2 ones"),
        ("bitmap", "0180", "an index is not below 12"),
        ("u32", "0500000005000000", "do not rise"),
        ("u32", "050000000c000000", "not below 12"),
        ("u32", "05000000ffffffff", "not below 12"),
        ("u16", "0300000005000600", "block counts do not add up"),
        ("u16", "0200000006000500", "do not rise"),
        ("ef", "0000", "does not hold 2 ones"),
        ("ef", "0011", "not below 12"),
        ("ef", "0041", "not below 12"),
        ("ef", "0006", "do not rise"),
    ],
)
def test_damaged_indices_are_refused(backend: str, code: str, damaged: str, message: str) -> None:
    ops = ops_of(backend)
    assert len(damaged) == 2 * index_nbytes(12, 2, code)
    with pytest.raises(ValueError, match=message):
        decode_indices(ops, ops.constant(bytes.fromhex(damaged), "uint8"), 12, 2, code)
