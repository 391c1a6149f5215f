"""What is special about JointSQ: published payload and errors, laws, and what a decoder refuses."""

from __future__ import annotations

import itertools
import struct
from functools import cache
from typing import Any

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, JointSQ, Site, TensorSpec
from hvd_compress.codecs._budget import WIDTHS, WireBudget, used_nbytes
from hvd_compress.codecs._groups import Group, read_groups, write_groups
from hvd_compress.exchange import spec_of
from hvd_compress.generator import ROUNDING, generator_key
from hvd_compress.payload import EMPTY, NORMAL
from hvd_compress.wire import pack, seal, tag_of, unpack, unseal
from tests.cases import backends, ops_of, to_backend, to_numpy

Floats = np.ndarray[Any, Any]

SITE = Site("fc.weight", step=7)
PAYLOAD = (
    "01000000080000000900000010000000dc208830b4d3bc309144c1316426b430d94595325b804531"
    "97cac6b72f4adfbcf5044a522500e1c3bd188d849caacc66092c590f01ac088f80629dd191ff0ba6737fb0238f80c000"
)
SETS = {
    2: [7, 9, 10, 12, 22, 76, 87, 123],
    4: [15, 19, 35, 54, 67, 75, 85, 95, 108],
    8: [17, 20, 23, 33, 44, 51, 63, 69, 80, 83, 100, 102, 104, 105, 121, 124],
}


def published_input() -> Floats:
    ops = ops_of("numpy")
    z = ops.uniform(ops.arange(128), generator_key(1234, SITE, ROUNDING)) - np.float32(0.5)
    x = np.ones(128, np.float32)
    for _ in range(21):
        x = x * z
    return x


def encoded(codec: JointSQ, x: Floats, backend: str = "numpy", site: Site = SITE) -> tuple[Floats, Floats]:
    """Payload bytes, and what a receiver makes of them."""
    ops, spec = ops_of(backend), TensorSpec(x.shape, "float32")
    payload, _ = codec.encode(ops, to_backend(backend, x), {}, site)
    packed = pack(ops, payload)
    decoded = codec.decode(ops, unpack(ops, packed, codec, spec), spec, site)
    return to_numpy(packed), to_numpy(decoded)


def kept_of(packed: Floats) -> list[int]:
    return list(struct.unpack_from("<3I", packed.tobytes(), 4))


def relative_error(x: Floats, decoded: Floats) -> float:
    wide = x.astype(np.float64)
    return float(np.sum((wide - decoded) ** 2) / np.sum(wide**2))


@backends
def test_published_payload(backend: str) -> None:
    x = published_input()
    packed, decoded = encoded(JointSQ(bits_per_entry=0.172 * 32), x, backend)
    assert packed.tobytes().hex() == PAYLOAD
    assert kept_of(packed) == [len(indices) for indices in SETS.values()]
    assert used_nbytes(128, kept_of(packed)) == 87
    assert np.flatnonzero(decoded).tolist() == sorted(itertools.chain(*SETS.values()))
    thresholds = 6.830947474e-10 * np.array([1, 4, 21.9518189])
    for width, low, high in zip(WIDTHS, thresholds, [*thresholds[1:], np.inf], strict=True):
        inside = (np.abs(x) >= low * (1 - 1e-9)) & (np.abs(x) < high * (1 - 1e-9))
        assert np.flatnonzero(inside).tolist() == SETS[width]
    lines = struct.unpack_from("<6f", packed.tobytes(), 16)
    expected = (9.904641551e-10, 1.373896996e-9, 5.624834376e-9, 1.310763498e-9, 1.737764599e-8, 2.874023464e-9)
    assert lines == pytest.approx(expected, rel=1e-6)
    assert x[7] == pytest.approx(2.415712519e-9, rel=1e-6)
    assert decoded[[7, 12]].tolist() == pytest.approx([2.364361151e-9, 9.904641551e-10], rel=1e-6)
    assert relative_error(x, decoded) == pytest.approx(1.45748e-5, rel=1e-5)


@cache
def published_data() -> dict[str, Floats]:
    draws, n = np.random.default_rng(0), 1_000_000
    return {
        "normal": draws.standard_normal(n).astype(np.float32),
        "laplace": draws.laplace(size=n).astype(np.float32),
        "student 3": draws.standard_t(3, n).astype(np.float32),
        "student 2": draws.standard_t(2, n).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("data", "ratio", "error", "kept"),
    [
        ("normal", 0.001, 0.9724, [2524, 0, 0]),
        ("normal", 0.01, 0.7766, None),
        ("normal", 0.032, 0.4441, [154736, 0, 0]),
        ("laplace", 0.001, 0.9379, [2524, 0, 0]),
        ("laplace", 0.01, 0.6512, None),
        ("laplace", 0.032, 0.3144, [152932, 535, 0]),
        ("student 3", 0.001, 0.7669, [2436, 47, 0]),
        ("student 3", 0.01, 0.4779, None),
        ("student 3", 0.032, 0.2381, [142504, 4365, 38]),
        ("student 2", 0.001, 0.1160, [2232, 164, 6]),
        ("student 2", 0.01, 0.0536, None),
        ("student 2", 0.032, 0.0244, [127056, 10423, 381]),
    ],
)
def test_published_errors(data: str, ratio: float, error: float, kept: list[int] | None) -> None:
    x = published_data()[data]
    packed, decoded = encoded(JointSQ(bits_per_entry=32 * ratio), x)
    assert packed.size == 4_000_000 * ratio
    assert relative_error(x, decoded) == pytest.approx(error, abs=0.00006)
    assert kept is None or kept_of(packed) == kept


def test_counting_values_only_is_200_times_where_the_paper_says_1000() -> None:
    x = published_data()["normal"]
    packed, _ = encoded(JointSQ(bits_per_entry=0.032, accounting="values"), x)
    assert kept_of(packed) == [16000, 0, 0]
    assert packed.size == 40 + 4000 + 15907


@pytest.mark.parametrize(
    ("bits_per_entry", "n", "nbytes"),
    [(0.32, 25_600_000, 1_024_000), (0.032, 25_600_000, 102_400), (0.172 * 32, 128, 88), (0.32, 1000, 64), (8, 0, 64)],
)
def test_published_sizes(bits_per_entry: float, n: int, nbytes: int) -> None:
    assert JointSQ(bits_per_entry=bits_per_entry).payload_nbytes(TensorSpec((n,), "float32")) == nbytes


@pytest.mark.parametrize("kind", ["standard_normal", "laplace", "standard_cauchy", "standard_exponential"])
@pytest.mark.parametrize("n", [1, 7, 100, 5000])
def test_error_is_at_most_9_16_of_what_is_kept(kind: str, n: int) -> None:
    for bits_per_entry in (0.1, 0.32, 1, 3, 8):
        x = getattr(np.random.default_rng(n), kind)(size=n).astype(np.float32)
        packed, decoded = encoded(JointSQ(bits_per_entry=bits_per_entry), x)
        kept = kept_of(packed)
        assert kept[2] <= 36864
        assert relative_error(x, decoded) <= 1 - 7 * sum(kept) / (16 * n)


@pytest.mark.parametrize("data", ["normal", "laplace", "student 3"])
def test_error_falls_with_the_budget(data: str) -> None:
    x = published_data()[data][:20_000]
    errors = [relative_error(x, encoded(JointSQ(bits_per_entry=2.0**-e), x)[1]) for e in range(5, -4, -1)]
    assert all(later <= earlier * 1.001 for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < 0.01 * errors[0]


@pytest.mark.parametrize("factor", [-1.0, 2.0**-30, 2.0**40])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_scaling_by_a_power_of_two_and_the_sign_commute(factor: float, rounding: str) -> None:
    x = np.random.default_rng(2).standard_t(2, 3000).astype(np.float32)
    for bits_per_entry in (0.32, 4):
        codec = JointSQ(bits_per_entry=bits_per_entry, rounding=rounding)
        np.testing.assert_array_equal(encoded(codec, x * np.float32(factor))[1], encoded(codec, x)[1] * factor)


@backends
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_equal_magnitudes_are_exact_and_kept_in_order(backend: str, rounding: str) -> None:
    signs = np.where(np.random.default_rng(3).random(1000) < 0.5, -1, 1)
    x = (np.float32(0.7) * signs).astype(np.float32)
    packed, decoded = encoded(JointSQ(bits_per_entry=1, rounding=rounding), x, backend)
    kept = sum(kept_of(packed))
    assert 0 < kept < 1000
    assert decoded.tolist() == x[:kept].tolist() + [0] * (1000 - kept)


@backends
def test_a_single_entry_is_exact(backend: str) -> None:
    for value in (3.7, -1e-30, 3.4e38, -(2.0**-126)):
        x = np.array([value], np.float32)
        assert encoded(JointSQ(), x, backend)[1].tobytes() == x.tobytes()


def test_denormals_are_never_selected_and_alone_are_nothing() -> None:
    ops, spec = ops_of("numpy"), TensorSpec((3,), "float32")
    payload, _ = JointSQ(bits_per_entry=8).encode(ops, np.array([1e-39, 1e-38, -1e-45], np.float32), {}, SITE)
    assert int(payload.flag) == EMPTY
    x = np.array([1e-39, 1, -1e-39], np.float32)
    payload, _ = JointSQ(bits_per_entry=8).encode(ops, x, {}, SITE)
    assert int(payload.flag) == NORMAL
    assert JointSQ(bits_per_entry=8).decode(ops, payload, spec, SITE).tolist() == [0, 1, 0]


def test_a_budget_of_one_bit_by_the_paper_s_counting_sends_no_entry() -> None:
    packed, decoded = encoded(JointSQ(accounting="values"), np.ones(2, np.float32))
    assert packed.tobytes() == bytes([1]) + bytes(39)
    assert decoded.tolist() == [0, 0]


def test_stochastic_rounding_is_unbiased_on_the_kept_entries() -> None:
    x = np.random.default_rng(4).standard_t(2, 300).astype(np.float32)
    codec, repeats = JointSQ(bits_per_entry=4, rounding="stochastic"), 400
    draws = np.array([encoded(codec, x, site=Site("w", step))[1] for step in range(repeats)], np.float64)
    kept = draws[0] != 0
    assert (kept == (draws != 0)).all()
    deviation = draws.std(axis=0) / np.sqrt(repeats)
    assert (np.abs(draws.mean(axis=0) - x)[kept] <= 6 * deviation[kept] + 1e-6 * np.abs(x)[kept]).all()
    assert not np.array_equal(draws[0], draws[1])


def test_nearest_rounding_is_closer_than_stochastic_and_fitting_helps() -> None:
    x = published_data()["student 3"][:100_000]
    errors = [
        relative_error(x, encoded(codec, x)[1])
        for codec in (JointSQ(), JointSQ(fit_iters=0), JointSQ(rounding="stochastic"))
    ]
    assert errors == sorted(errors)
    assert errors[0] < errors[1] < errors[2]


@backends
def test_what_was_sent_and_the_last_residual_add_up_over_20_steps(backend: str) -> None:
    codec, ops, draws = ErrorFeedback(JointSQ()), ops_of(backend), np.random.default_rng(5)
    sent, came, size = np.zeros(3000), np.zeros(3000), np.zeros(3000)
    state: Any = codec.init(ops, TensorSpec((3000,), "float32"))
    for step in range(20):
        gradient = draws.standard_normal(3000).astype(np.float32)
        x = to_backend(backend, gradient)
        site = SITE._replace(step=step)
        payload, state = codec.encode(ops, x, state, site)
        sent += to_numpy(codec.decode(ops, payload._replace(kept=None), spec_of(ops, x), site))
        came, size = came + gradient, size + np.abs(gradient)
    assert (np.abs(sent + to_numpy(state["residual"]) - came) <= 1e-5 * size).all()


def test_bad_parameters_are_refused_with_the_reason() -> None:
    for parameters, message in (
        ({"bits_per_entry": 0}, r"bits_per_entry must be a number in \(0, 8\], got 0"),
        ({"bits_per_entry": 8.5}, r"bits_per_entry must be a number in \(0, 8\], got 8.5"),
        ({"bits_per_entry": float("nan")}, r"bits_per_entry must be a number in \(0, 8\], got nan"),
        ({"accounting": "bits"}, "accounting must be one of 'wire', 'values', got 'bits'"),
        ({"index_cost_bits": 31}, r"index_cost_bits must be a number in \[0, 30\], got 31"),
        ({"index_cost_bits": -1}, r"index_cost_bits must be a number in \[0, 30\], got -1"),
        ({"rounding": "up"}, "rounding must be one of 'nearest', 'stochastic', got 'up'"),
        ({"fit_iters": 9}, r"fit_iters must be an integer in \[0, 8\], got 9"),
    ):
        with pytest.raises(ValueError, match=f"JointSQ: {message}"):
            JointSQ(**parameters)
    with pytest.raises(TypeError, match="bits_per_entry must be a number"):
        JointSQ(bits_per_entry=True)


def changed(change: dict[int, int]) -> Floats:
    packed = np.frombuffer(bytes.fromhex(PAYLOAD), np.uint8).copy()
    for position, value in change.items():
        packed[position] = value
    return packed


@backends
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 2}, "unknown version"),
        ({1: 3}, "flags must be 0, 1 or 2"),
        ({1: 2}, None),
        ({2: 1}, "header does not fit"),
        ({4: 129}, "counts .* for 128 entries"),
        ({7: 0x80}, "counts .* for 128 entries"),
        ({12: 100}, "counts .* stand for .* bytes, but there are 88"),
        ({18: 0x80, 19: 0x7F}, "a level is not finite"),
        ({23: 0xB0}, "a step is negative"),
        ({44: 0x2E}, "index bitmap does not hold 8 ones"),
        ({44: 0xFD}, "index bitmap does not hold 8 ones"),
        ({40: 0x97 ^ 0x10}, None),
        ({87: 1}, "the filling is not zero"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(backend: str, change: dict[int, int], message: str | None) -> None:
    """Without the seal; where the bytes are another valid payload they decode to finite values."""
    ops, codec, spec = ops_of(backend), JointSQ(bits_per_entry=0.172 * 32), TensorSpec((128,), "float32")
    packed = to_backend(backend, changed(change))
    if message is None:
        decoded = codec.decode(ops, unpack(ops, packed, codec, spec), spec, SITE)
        assert np.isfinite(to_numpy(decoded)).all()
        return
    with pytest.raises(ValueError, match=message):
        codec.decode(ops, unpack(ops, packed, codec, spec), spec, SITE)


def group(indices: list[int], base: float = 1.0) -> Group:
    """A group of equal values."""
    places = np.array(indices, np.int64)
    return Group(places, np.array([base, 0], np.float32), places * 0)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([group([1, 2]), group([5, 2]), group([], 0)], "indices do not rise"),
        ([group([1, 2]), group([2, 5]), group([], 0)], "an index occurs twice"),
        ([group([1]), group([], 0), group([1])], "an index occurs twice"),
        ([group([1, 2]), group([], 3), group([], 0)], "levels without entries"),
        ([group([101]), group([], 0), group([], 0)], "an index is not below 100"),
        ([group([1]), group([2], np.inf), group([], 0)], "a level is not finite"),
    ],
)
def test_groups_that_no_encoder_makes_are_refused(groups: list[Group], message: str) -> None:
    ops, budget = ops_of("numpy"), WireBudget(100, 80)
    with pytest.raises(ValueError, match=message):
        read_groups(ops, write_groups(ops, groups, budget), budget)


@pytest.mark.parametrize("length", [4, 39, 40, 60, 86, 89, 1000])
@pytest.mark.parametrize("accounting", ["wire", "values"])
def test_payloads_of_another_length_are_refused(length: int, accounting: str) -> None:
    ops, spec = ops_of("numpy"), TensorSpec((128,), "float32")
    codec = JointSQ(bits_per_entry=0.172 * 32, accounting=accounting)
    packed = np.resize(changed({}), length)
    with pytest.raises(ValueError, match=r"payload: .*bytes"):
        codec.decode(ops, unpack(ops, packed, codec, spec), spec, SITE)


@pytest.mark.parametrize("codec", [JointSQ(bits_per_entry=2), JointSQ(bits_per_entry=1, accounting="values")], ids=repr)
def test_random_damage_is_found_by_the_seal_and_without_it_gives_an_error_or_numbers(codec: JointSQ) -> None:
    ops, draws = ops_of("numpy"), np.random.default_rng(6)
    x = draws.standard_t(2, 300).astype(np.float32)
    spec, tag = TensorSpec(x.shape, "float32"), tag_of(codec, SITE)
    packed, _ = encoded(codec, x)
    row = seal(ops, [packed], tag, codec.fixed_size)
    refused = 0
    for _ in range(400):
        damaged = row.copy()
        for position in draws.integers(0, row.size, draws.integers(1, 4)):
            damaged[position] ^= draws.integers(1, 256)
        if (damaged == row).all():
            continue
        with pytest.raises(ValueError, match="payload"):
            unpack(ops, unseal(ops, damaged, codec, spec, tag), codec, spec)
        bare = packed.copy()
        bare[draws.integers(0, packed.size)] ^= draws.integers(1, 256)
        try:
            decoded = codec.decode(ops, unpack(ops, bare, codec, spec), spec, SITE)
        except ValueError:
            refused += 1
        else:
            assert decoded.shape == x.shape
            assert np.isfinite(decoded).all()
    assert 100 < refused < 400
