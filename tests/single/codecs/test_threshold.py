"""What is special about a fixed threshold: what passes, with and without a cap."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, TensorSpec, TopK
from hvd_compress.codecs import Threshold
from tests.cases import backends, ops_of, to_backend, to_numpy
from tests.single.codecs.payloads import SITE, decoded, decoded_after, wire

WIRE = {
    "threshold": "0100000001000000c02f74bf0001",
    "error_feedback (threshold threshold=0.5 density=0.2)": (
        "010000000d000000c02f74bf40a95dbfc09048bf40da34bf80c865bf80c74abf80c74a3f80c8653fc08a813f40da343f"
        "c090483f40a95d3fc02f743fe4339103af00680f"
    ),
    "error_feedback (threshold threshold=0.5 capped=False)": (
        "0100000018000000c02f74bf40a95dbfc09048bf40da34bfc07922bf406311bfc08a01bf80c865bf80c74abf80fa31bf"
        "80491bbf809c06bf809c063f80491b3f80fa313f80c74a3f80c8653fc08a013f4063113fc079223f40da343fc090483f"
        "40a95d3fc02f743fff0f00000000f0ff"
    ),
}
G1 = np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32)


@backends
@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        # Room for three: the smallest of them does not pass.
        (
            Threshold(threshold=2, density=0.5),
            "0100000006000000".replace("06", "03", 1) + "000000c00000000000004040" + "2a",
        ),
        # Version and flags, two entries, their values, the bitmap of their indices.
        (Threshold(threshold=2, capped=False), "01000000" + "02000000" + "000000c000004040" + "22"),
    ],
)
def test_payloads_by_hand(backend: str, codec: Threshold, payload: str) -> None:
    assert wire(codec, G1, backend) == payload


@pytest.mark.parametrize("capped", [True, False])
def test_entries_that_reach_the_threshold_arrive_as_they_are(capped: bool) -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    arrived = decoded(Threshold(threshold=1.5, density=0.5, capped=capped), x)
    np.testing.assert_array_equal(arrived, np.where(np.abs(x) >= np.float32(1.5), x, 0))


def test_of_more_than_the_cap_the_largest_are_sent() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = decoded(TopK(density=0.01), x)
    np.testing.assert_array_equal(decoded(Threshold(threshold=0.1, density=0.01), x), expected)
    spec = TensorSpec((1000,), "float32")
    assert Threshold(density=0.01).payload_nbytes(spec) == TopK(density=0.01).payload_nbytes(spec)


@backends
@pytest.mark.parametrize("capped", [True, False])
def test_less_than_the_threshold_is_kept_back(backend: str, capped: bool) -> None:
    """Section 7: the residual stays below the threshold where the cap is not hit."""
    ops, spec = ops_of(backend), TensorSpec((1000,), "float32")
    codec = ErrorFeedback(Threshold(threshold=2.0, density=0.9, capped=capped))
    state, draws = codec.init(ops, spec), np.random.default_rng(0)
    for step in range(10):
        x = to_backend(backend, draws.standard_normal(1000).astype(np.float32))
        payload, state = codec.encode(ops, x, state, SITE._replace(step=step))
        residual = np.abs(to_numpy(state["residual"]))
        assert 1.0 < residual.max() < 2.0
        assert (
            0 < int(ops.integer(ops.reshape(ops.constant((0,), "int64") + payload.kept_entries(ops, 1000), (1,)))) < 900
        )


def test_sizes_vary_without_a_cap_only() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    sizes = {
        capped: {len(wire(Threshold(1.0, 0.5, capped), x * scale)) for scale in (1, 2)} for capped in (True, False)
    }
    assert (len(sizes[True]), len(sizes[False])) == (1, 2)
    assert Threshold().fixed_size
    assert not Threshold(capped=False).fixed_size


@pytest.mark.parametrize("threshold", [0, -1.0, float("nan"), 1e39])
def test_other_thresholds_are_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match=r"Threshold: threshold must be a number in \(0.*\], got"):
        Threshold(threshold=threshold)


@pytest.mark.parametrize(
    ("capped", "change", "message"),
    [
        (False, {4: 3}, "17 bytes for 3 entries, expected 21|13 bytes for 3 entries, expected 17"),
        (False, {4: 7}, "7 entries of 6"),
        (False, {15: 0x7F, 14: 0x80}, "a value is not finite"),
        (False, {16: 0x02}, "does not hold 2 ones"),
        (True, {11: 0x7F, 10: 0x80}, "a value is not finite"),
        (True, {20: 0x02}, "does not hold 3 ones"),
    ],
)
def test_payloads_that_cannot_be_ours_are_refused(capped: bool, change: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoded_after(Threshold(threshold=2, density=0.5, capped=capped), change, G1)
