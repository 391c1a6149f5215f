"""Array operations: every override against the default body, selection against a sort, backends against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_compress.generator import Key
from hvd_compress.ops import Kernels, ops_for
from hvd_compress.ops.codes import TERMS, Codes
from hvd_compress.ops.levels import Levels
from hvd_compress.ops.packing import Packing
from hvd_compress.ops.products import Products
from hvd_compress.ops.rows import Rows
from tests.cases import ARRAYS, backends, ops_of, required_backends, to_backend, to_numpy

BITS = np.random.default_rng(0).integers(0, 2, 77)
WORDS = np.random.default_rng(1).integers(-(2**31), 2**31, 99).astype(np.int32)
CODES = np.random.default_rng(3).integers(0, 512, 99)
PACKED = np.random.default_rng(4).integers(0, 256, 99).astype(np.uint8)
FLOATS = np.concatenate(
    [
        np.random.default_rng(2).standard_normal(500).astype(np.float32)
        * np.float32(10.0) ** np.arange(-25, 25).repeat(10),
        np.array(
            [0, -0.0, 1e-45, -1e-40, 65504, 65519, 65520, 7e4, -1e5, 3.3895314e38, 1.00390625, 1.01171875], np.float32
        ),
    ]
).astype(np.float32)

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "bits_to_bytes": [(BITS,), (BITS[:8],), (BITS[:0],)],
    "bytes_to_bits": [(np.arange(256, dtype=np.uint8),), (np.zeros(0, np.uint8),)],
    "check_word": [(WORDS,), (WORDS[:1],), (WORDS[:0],)],
    "find_ones": [(np.packbits(BITS, bitorder="little"), int(BITS.sum()))],
    "first_nonzero": [(BITS, int(BITS.sum())), (BITS, 60), (BITS, 3), (BITS[:0], 2), (BITS > 0, 7)],
    "magnitude_bits": [(FLOATS,)],
    "magnitude_sums": [(FLOATS, size, TERMS) for size in (1, 7, 8, 100, 512, 1000)] + [(FLOATS[:0], 1, TERMS)],
    "pack_bits": [(CODES >> (9 - bits), bits) for bits in (1, 2, 3, 5, 7, 8, 9)] + [(CODES[:8], 0), (CODES[:0], 3)],
    "pack_negative": [(FLOATS,), (FLOATS, 1), (FLOATS[:0],)],
    "pack_trits": [(PACKED & 0x55, count) for count in (0, 1, 5, 396)],
    "power_codes": [(FLOATS, 18, Key(5, 6)), (FLOATS, 100, Key(1, 2)), (FLOATS[:0], 18, Key(1, 2))],
    "require_rising": [(np.flatnonzero(BITS), 77)],
    "round_floats": [(FLOATS, "float32"), (FLOATS, "float16"), (FLOATS[:-3], "bfloat16")],
    "signs": [(FLOATS,), (np.float32([np.inf, -np.inf, -0.0, 0.0]),)],
    "unpack_bits": [(PACKED, bits, count) for bits in (1, 2, 3, 5, 7, 8, 9) for count in (0, 1, 8, 17)],
    "unpack_trits": [(PACKED % 243, count) for count in (0, 1, 5, 494)],
    "quiet": [],
}


def overrides(backend: str) -> list[str]:
    """Kernels that a backend has a body of its own for."""
    kernels = {
        name
        for kind in (Packing, Levels, Codes, Rows, Products, Kernels)
        for name in vars(kind)
        if not name.startswith("_")
    }
    return sorted(kernels & vars(type(ops_of(backend))).keys())


# The kernels in C++ and Triton have files of their own.
READABLE = [backend for backend in required_backends() if backend not in ("native", "triton")]


@pytest.mark.parametrize(("backend", "name"), [(backend, name) for backend in READABLE for name in overrides(backend)])
def test_overrides_equal_the_default_body(backend: str, name: str) -> None:
    ops = ops_of(backend)
    if name == "rows_fit":
        # Whole payloads are needed: what arrives is compared in test_device.py and, traced, in test_traced.py.
        return
    assert CALLS.get(name), f"{name} is overridden by {backend}: add calls to CALLS"
    for array, *rest in CALLS[name]:
        x = to_backend(backend, array)
        ours, default = getattr(ops, name)(x, *rest), getattr(Kernels, name)(ops, x, *rest)
        if name == "round_floats" and backend == "numpy" and rest == ["bfloat16"]:
            # NumPy has no 2-byte bfloat16, so its default body cannot run: torch's is the reference.
            import torch

            default = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint8)
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(default))
        assert to_numpy(ours).dtype == to_numpy(default).dtype


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name]])
@backends
def test_backends_agree(backend: str, name: str) -> None:
    for array, *rest in CALLS[name]:
        expected = getattr(ops_of("numpy"), name)(array, *rest)
        ours = getattr(ops_of(backend), name)(to_backend(backend, array), *rest)
        np.testing.assert_array_equal(to_numpy(ours), expected)


@backends
@pytest.mark.parametrize("k", [0, 1, 2, 5, 16, 63, 64])
def test_largest_is_a_stable_sort_by_magnitude(backend: str, k: int) -> None:
    draws = np.random.default_rng(k)
    for x in (
        draws.integers(-3, 4, 64).astype(np.float32),
        draws.standard_normal(64).astype(np.float32),
        np.zeros(64, np.float32),
        np.where(draws.random(64) < 0.1, np.nan, draws.standard_normal(64)).astype(np.float32),
        draws.integers(-3, 4, 64).astype(np.float32) * np.float32(1e-45),
    ):
        magnitude = x.view(np.int32) & 0x7FFFFFFF
        expected = np.sort(np.argsort(-magnitude.astype(np.int64), kind="stable")[:k])
        assert to_numpy(ops_of(backend).largest(to_backend(backend, x), k)).tolist() == expected.tolist()


@backends
def test_ties_go_to_the_smaller_index(backend: str) -> None:
    x = np.array([1, -1, 1, 1], np.float32)
    assert to_numpy(ops_of(backend).largest(to_backend(backend, x), 2)).tolist() == [0, 1]


@backends
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_floats_survive_within_half_a_unit(backend: str, dtype: str, tolerance: float) -> None:
    ops = ops_of(backend)
    x = FLOATS[(np.abs(FLOATS) < 65504) & (np.abs(FLOATS) > 6.2e-5)]
    packed = ops.round_floats(to_backend(backend, x), dtype)
    assert to_numpy(packed).size == x.size * (4 if dtype == "float32" else 2)
    assert (np.abs(to_numpy(ops.read_floats(packed, dtype)) - x) <= tolerance * np.abs(x)).all()


@backends
def test_half_precision_values_are_limited_before_they_are_rounded(backend: str) -> None:
    ops = ops_of(backend)
    packed = ops.round_floats(to_backend(backend, np.array([65519, 65520, 1e9, -3e38], np.float32)), "float16")
    assert to_numpy(ops.read_floats(packed, "float16")).tolist() == [65504, 65504, 65504, -65504]


@backends
def test_check_word_is_the_sum_of_odd_multiples(backend: str) -> None:
    expected = sum((2 * i + 1) * (int(word) & 0xFFFFFFFF) for i, word in enumerate(WORDS)) % 2**32
    assert int(ops_of(backend).check_word(to_backend(backend, WORDS))) == expected


@backends
@pytest.mark.parametrize("decay", [1.0, 0.3])
def test_scale_add_rounds_the_product_and_the_sum(backend: str, decay: float) -> None:
    ops, x, y = ops_of(backend), ARRAYS["odd"], ARRAYS["odd"][::-1].copy() * np.float32(1.7)
    expected = x + (y if decay == 1.0 else (y * np.float32(decay)).astype(np.float32))
    assert (
        to_numpy(ops.scale_add(to_backend(backend, x), to_backend(backend, y), decay)).tobytes() == expected.tobytes()
    )


ROOM_CALLS: dict[str, tuple[Any, ...]] = {"scale_add": (2.0,), "subtract": (), "scale": ()}


@pytest.mark.parametrize("name", ROOM_CALLS)
@backends
def test_results_go_into_the_room_that_is_given_where_arrays_can_change(backend: str, name: str) -> None:
    ops, x, y = ops_of(backend), ARRAYS["odd"], ARRAYS["odd"][::-1].copy()
    arguments = (to_backend(backend, x), to_backend(backend, y), *ROOM_CALLS[name])
    plain, room = getattr(ops, name)(*arguments), ops.zeros(x.size)
    result = getattr(ops, name)(*arguments, room)
    assert to_numpy(result).tobytes() == to_numpy(plain).tobytes()
    np.testing.assert_array_equal(to_numpy(arguments[0]), x)
    if backend == "tensorflow":
        # Its tensors never change.
        assert not to_numpy(room).any()
    else:
        assert result is room


SMALL = (np.arange(-300, 300) * np.float32(1e-40)).astype(np.float32)
OTHERS = {
    "denormals": SMALL[::-1] * np.float32(1.7),
    "all sizes": (np.geomspace(1e-44, 1e30, 600) * np.where(np.arange(600) % 3, 1, -1)).astype(np.float32),
    "zeros": SMALL * 0,
}


@backends
@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_denormal_numbers_are_kept(backend: str, other: np.ndarray[Any, Any]) -> None:
    """TensorFlow's own sums, products and comparisons take them for zero."""
    ops, x, y = ops_of(backend), to_backend(backend, SMALL), to_backend(backend, other)
    wide = other.astype(np.float64) * 0.7
    with np.errstate(under="ignore"):
        expected = {
            "scale_add": (ops.scale_add(x, y, 0.7), SMALL + other * np.float32(0.7)),
            "subtract": (ops.subtract(x, y), SMALL - other),
            "scale": (ops.scale(y, 1.0 / 3), other * np.float32(1.0 / 3)),
            "product": (ops.scale(x, y), SMALL * other),
            "clip": (ops.clip(x, -1.0, 1.0), SMALL),
            "cast": (ops.cast(to_backend(backend, wide), "float32"), wide.astype(np.float32)),
            "negative": (ops.negative(y), (other < 0).astype(np.int64)),
            "scatter_add": (ops.scatter_add(to_backend(backend, SMALL.copy()), ops.arange(600), y), SMALL + other),
        }
    for name, (ours, theirs) in expected.items():
        assert to_numpy(ours).tobytes() == theirs.tobytes(), name


@backends
@pytest.mark.parametrize("divisor", [1, 3, 255, 2**20 - 1])
def test_quotients_are_rounded_once(backend: str, divisor: int) -> None:
    """Frameworks like to multiply by the reciprocal of a constant; TensorFlow's graphs are asked elsewhere."""
    expected = FLOATS / np.float32(divisor)
    assert to_numpy(ops_of(backend).divide(to_backend(backend, FLOATS), divisor)).tobytes() == expected.tobytes()


@backends
@pytest.mark.parametrize("s", [3, 7, 127])
def test_levels_are_numpy_s_for_many_entries_and_scales(backend: str, s: int) -> None:
    """One entry in millions changes its level where a scale is divided by as its reciprocal."""
    x = np.random.default_rng(s).standard_normal(1 << 20).astype(np.float32)
    ops, numpy, key = ops_of(backend), ops_of("numpy"), Key(12345, s)
    for size, seed in ((7, key), (512, key), (512, None)):
        ours = to_backend(backend, x)
        packed = ops.pack_rounded(ours, ops.bucket_maxima(ours, size), size, s, seed)
        assert (
            to_numpy(packed).tobytes() == numpy.pack_rounded(x, numpy.bucket_maxima(x, size), size, s, seed).tobytes()
        )


@backends
@pytest.mark.parametrize("bits", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 5, 64, 700])
def test_codes_stand_for_what_a_table_holds(backend: str, bits: int, size: int) -> None:
    """The expected values by NumPy's own indexing."""
    ops, n, draws = ops_of(backend), FLOATS.size, np.random.default_rng(bits)
    expected, rows = np.zeros(n, np.float32), []
    for _ in range(2):
        codes = draws.integers(0, 2**bits, n)
        table = draws.standard_normal((-(-n // size), 2**bits)).astype(np.float32)
        packed = np.packbits(codes[:, None] >> np.arange(bits) & 1, bitorder="little")
        values = table[np.arange(n) // size, codes]
        row = to_backend(backend, packed), to_backend(backend, table.reshape(-1))
        restored = ops.restore_codes(row[0], bits, row[1], size, n)
        assert to_numpy(restored).tobytes() == values.tobytes()
        rest = ops.subtract_codes(to_backend(backend, FLOATS.copy()), row[0], bits, row[1], size)
        assert to_numpy(rest).tobytes() == (FLOATS - values).tobytes()
        expected += values
        rows.append(row)
    factor, total = (to_backend(backend, np.float32(x)) for x in ([0.5], np.ones(n)))
    assert to_numpy(ops.sum_codes(rows, bits, size, factor, total)).tobytes() == (expected * np.float32(0.5)).tobytes()


@backends
def test_bytes_that_hold_no_five_trits_are_refused(backend: str) -> None:
    for byte in (243, 255):
        with pytest.raises(ValueError, match="a word is no radix number"):
            ops_of(backend).unpack_trits(to_backend(backend, np.array([1, byte], np.uint8)), 10)


@backends
def test_bytes_wrap(backend: str) -> None:
    """As codecs turn the codes of integers into two's complement."""
    ops, x = ops_of(backend), to_backend(backend, PACKED)
    ours = ops.bit_xor(x, ops.shift_right(x, 7) * 127) + x
    expected = (PACKED.astype(int) ^ (PACKED >> 7).astype(int) * 127) + PACKED
    assert to_numpy(ours).dtype == np.uint8
    np.testing.assert_array_equal(to_numpy(ours), expected % 256)


def test_arrays_of_no_known_framework_are_refused() -> None:
    message = r"expected a NumPy array, a torch tensor or a TensorFlow tensor, got builtins\.list"
    with pytest.raises(TypeError, match=message):
        ops_for([1.0])


def test_numpy_reads_and_returns_ml_dtypes_bfloat16() -> None:
    import ml_dtypes

    x = np.linspace(-3, 3, 9).astype(ml_dtypes.bfloat16)
    ops = ops_for(x)
    assert ops.dtype(x) == "bfloat16"
    back = ops.cast(ops.float32(x), "bfloat16")
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back.view(np.uint16), x.view(np.uint16))


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of many magnitudes."""
    draws = np.random.default_rng([seed, rows, columns]).standard_normal((2, rows, columns))
    return (draws[0] * 10 ** draws[1]).astype(np.float32)


FACTORS = {
    "tall": (matrix(700, 3), matrix(3, 5)),
    "deep": (matrix(2, 9000), matrix(9000, 3)),
    "large": (matrix(600, 500), matrix(500, 4)),
    "one": (matrix(1, 1), matrix(1, 1, 1)),
    "empty": (np.zeros((0, 1), np.float32), np.zeros((1, 0), np.float32)),
    "nothing to add": (np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)),
    "zeros": (np.zeros((4, 4), np.float32), -matrix(4, 4)),
    "huge": (matrix(9, 9) * np.float32(1e30), matrix(9, 9) * np.float32(1e-30)),
    "denormals": (np.full((3, 3), 1e-40, np.float32), matrix(3, 3)),
    "cancelling": (np.array([[1, -1]], np.float32), np.array([[3], [3]], np.float32)),
}


@pytest.mark.parametrize("factors", list(FACTORS.values()), ids=list(FACTORS))
@backends
def test_products_have_the_same_bits_whatever_the_order_of_sums(backend: str, factors: Any) -> None:
    ours = to_numpy(ops_of(backend).product(*(to_backend(backend, factor) for factor in factors)))
    order = np.random.default_rng(5).permutation(factors[1].shape[0])
    turned = to_numpy(
        ops_of(backend).product(*(to_backend(backend, f) for f in (factors[0][:, order], factors[1][order])))
    )
    default = Kernels.product(ops_of("numpy"), *factors)
    room = to_backend(backend, np.full(default.size, 7, np.float32))
    in_place = ops_of(backend).product(*(to_backend(backend, factor) for factor in factors), room)
    assert to_numpy(in_place).tobytes() == default.tobytes()
    assert ours.dtype == np.float32
    assert ours.tobytes() == turned.tobytes() == default.tobytes()
    exact = factors[0].astype(np.float64) @ factors[1]
    largest = np.prod([np.abs(factor).max(initial=0) for factor in factors], dtype=np.float64)
    assert (np.abs(ours - exact) <= factors[1].shape[0] * largest * 2.0**-18 + 1e-37).all()


@backends
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_products_show_what_is_not_finite(backend: str, bad: float) -> None:
    x = matrix(6, 7)
    x[2, 3] = bad
    with ops_of(backend).quiet():
        ours = to_numpy(ops_of(backend).product(to_backend(backend, x), to_backend(backend, matrix(7, 2))))
    assert not np.isfinite(ours[2]).any()


@backends
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("turned", [False, True])
def test_products_show_what_is_not_finite_where_the_other_factor_is_zero(
    backend: str, bad: float, turned: bool
) -> None:
    x, y = matrix(60, 70), np.zeros((70, 2), np.float32)
    x[2, 3] = bad
    factors = [to_backend(backend, factor) for factor in ((y.T, x.T) if turned else (x, y))]
    with ops_of(backend).quiet():
        ours = to_numpy(ops_of(backend).product(*factors))
    assert not np.isfinite(ours.T[2] if turned else ours[2]).any()


@backends
def test_orthonormal_columns_span_what_the_columns_did(backend: str) -> None:
    x = np.random.default_rng(1).standard_normal((80, 6)).astype(np.float32)
    x[:, 3] = 2 * x[:, 0] - x[:, 1]
    x[:, 4] *= 1e-15
    ours = to_numpy(ops_of(backend).orthonormal(to_backend(backend, x)))
    assert ours.tobytes() == ops_of("numpy").orthonormal(x).tobytes()
    np.testing.assert_allclose(ours.T @ ours, np.diag([1, 1, 1, 0, 0, 1]), atol=1e-6)
    kept = x[:, [0, 1, 2, 5]].astype(np.float64)
    np.testing.assert_allclose(ours.astype(np.float64) @ (ours.T @ kept), kept, atol=2e-5)
    # In their order: the first is the first column itself.
    np.testing.assert_allclose(ours[:, 0], x[:, 0] / np.linalg.norm(x[:, 0]), atol=1e-6)


@backends
def test_gaussian_draws_are_those_of_the_specification(backend: str) -> None:
    """Box and Muller's formula on the generator's published draws."""
    key = Key(0x0080CC42, 0x20B88581)
    u = [0.5919755101203918, 0.7401434779167175, 0.6462445259094238, 0.48822319507598877]
    expected = [np.sqrt(-2 * np.log(u[i] + 2.0**-25)) * np.cos(2 * np.pi * u[i + 1]) for i in (0, 2)]
    np.testing.assert_allclose(to_numpy(ops_of(backend).gaussian(2, key)), expected, rtol=1e-6)
    many = ops_of("numpy").gaussian(200_000, key)
    assert abs(many.mean()) < 0.01
    assert abs(many.std() - 1) < 0.01
