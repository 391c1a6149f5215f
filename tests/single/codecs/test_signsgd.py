"""What is special about signSGD and Signum: the vote."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_compress import ErrorFeedback, Site, TensorSpec
from hvd_compress.chunks import Chunked
from hvd_compress.codec import CompressionError
from hvd_compress.codecs import DenseSign, SignSGD
from hvd_compress.exchange import receive, send
from hvd_compress.policy import BySize, compose_config
from hvd_compress.rules import policy_of
from tests.cases import SITE, LoopbackCollective, OneRank, backends, ops_of, to_backend, to_numpy
from tests.single.codecs.payloads import X, wire

WIRE = {
    "signsgd": "0100000040000000ffffffff00000000",
    "signsgd momentum=0.9": "0100000040000000ffffffff00000000",
    "dense_sign": (
        "c02f74bf40a95dbfc09048bf40da34bfc07922bf406311bfc08a01bf80c8e5be80c7cabe80fab1be80499bbe809c86be"
        "00b767be00dd45be007b27be00610cbe00bee8bd008abebd00c699bd002474bd001c3ebd00b410bd0058d6bc008899bc"
        "00f052bc005009bc0060a6bb004036bb0080abba0000fab90000d8b8000080b6000080360000d8380000fa390080ab3a"
        "0040363b0060a63b0050093c00f0523c0088993c0058d63c00b4103d001c3e3d0024743d00c6993d008abe3d00bee83d"
        "00610c3e007b273e00dd453e00b7673e809c863e80499b3e80fab13e80c7ca3e80c8e53ec08a013f4063113fc079223f"
        "40da343fc090483f40a95d3fc02f743f"
    ),
    "dense_sign momentum=0.5": (
        "c02f74bf40a95dbfc09048bf40da34bfc07922bf406311bfc08a01bf80c8e5be80c7cabe80fab1be80499bbe809c86be"
        "00b767be00dd45be007b27be00610cbe00bee8bd008abebd00c699bd002474bd001c3ebd00b410bd0058d6bc008899bc"
        "00f052bc005009bc0060a6bb004036bb0080abba0000fab90000d8b8000080b6000080360000d8380000fa390080ab3a"
        "0040363b0060a63b0050093c00f0523c0088993c0058d63c00b4103d001c3e3d0024743d00c6993d008abe3d00bee83d"
        "00610c3e007b273e00dd453e00b7673e809c863e80499b3e80fab13e80c7ca3e80c8e53ec08a013f4063113fc079223f"
        "40da343fc090483f40a95d3fc02f743f"
    ),
}


def vote(gradients: list[list[float]], scaling: float = 1.0, backend: str = "numpy", step: int = 0) -> list[float]:
    """Return the result of an exchange; `scaling` is what the stock reduction makes of a 1.0."""
    ops, codec, collective = ops_of(backend), SignSGD(), LoopbackCollective()
    for rank, gradient in enumerate(gradients):
        site = Site("w", step, rank, len(gradients))
        x = to_backend(backend, np.array(gradient, np.float32))
        one, pending, state = send(codec, ops, x, {}, site, collective)
    return to_numpy(receive(ops, one * scaling, pending, state, collective)[0]).tolist()


def test_published_payload_and_size() -> None:
    assert wire(SignSGD(), X) == "0100000008000000aa"
    assert SignSGD().payload_nbytes(TensorSpec((25_600_000,), "float32")) == 3_200_008


@backends
def test_the_majority_wins_whatever_the_magnitudes(backend: str) -> None:
    gradients = [[9.0, 0.1, -1.0], [-0.1, 0.1, 1e-40], [-0.1, 9.0, 2.0]]
    assert vote(gradients, backend=backend) == [-1.0, 1.0, 1.0]


@backends
def test_equal_votes_are_zero(backend: str) -> None:
    assert vote([[5.0, -1.0], [-0.1, -1.0]], backend=backend) == [0.0, -1.0]


@pytest.mark.parametrize("scaling", [1.0, 2.0, 0.25, 1e-3])
def test_a_sum_and_scale_factors_give_the_same_vote(scaling: float) -> None:
    """With op=hvd.Sum the 1.0 comes back as the number of ranks."""
    assert vote([[1.0, -1.0, 2.0], [1.0, -3.0, -2.0]], scaling) == [1.0, -1.0, 0.0]


def test_a_rank_whose_tensor_is_zero_does_not_vote() -> None:
    assert vote([[0.0, 0.0], [1.0, -1.0]]) == [1.0, -1.0]
    assert vote([[0.0, 0.0], [0.0, 0.0]]) == [0.0, 0.0]


def test_entries_that_are_zero_vote_in_turn() -> None:
    """By step, so that one rank takes back what it did; by rank, so that two ranks do nothing."""
    assert [vote([[0.0, 1.0]], step=step)[0] for step in range(4)] == [1.0, -1.0, 1.0, -1.0]
    assert vote([[0.0, 1.0], [-0.0, 1.0]]) == [0.0, 1.0]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_that_is_not_finite_is_seen_by_all(bad: float) -> None:
    assert not np.isfinite(vote([[1.0, bad], [1.0, 1.0]])).any()


def test_signum_sends_the_signs_of_the_momentum() -> None:
    """m = 0.9 m + 0.1 g: three steps of 1 outweigh one of -2, not two."""
    ops, codec, spec = ops_of("numpy"), SignSGD(momentum=0.9), TensorSpec((1,), "float32")
    state, signs = codec.init(ops, spec), []
    for step, value in enumerate([1, 1, 1, -2, -2]):
        site = Site("w", step)
        payload, state = codec.encode(ops, np.array([value], np.float32), state, site)
        signs.append(codec.decode(ops, payload, spec, site).item())
    assert signs == [1, 1, 1, 1, -1]
    assert state["momentum"].item() == pytest.approx(0.9 * (0.9 * 0.271 - 0.2) - 0.2, rel=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_small_tensors_give_the_signs_of_their_average(momentum: float) -> None:
    codec = compose_config(f"signsgd:momentum={momentum}").for_tensor("b", TensorSpec((10,), "float32"))
    assert codec == DenseSign(momentum)
    ops, spec = ops_of("numpy"), TensorSpec((3,), "float32")
    state = codec.init(ops, spec)
    result, state = codec.absorb(ops, np.array([0.1, -2, 0], np.float32), state, SITE)
    assert result.tolist() == [1.0, -1.0, 0.0]
    result, after = codec.absorb(ops, np.array([np.nan, -2, 0], np.float32), state, SITE)
    assert not np.isfinite(result).all()
    assert after is state


def test_momentum_belongs_to_the_codec_or_to_the_optimizer() -> None:
    assert not SignSGD().has_momentum
    assert SignSGD(momentum=0.5).has_momentum
    assert SignSGD(momentum=0.5).companion.has_momentum
    with pytest.raises(ValueError, match="momentum"):
        policy_of({"rules": [{"name": "w", "codec": "signsgd:momentum=0.9"}], "default": "none"})


def test_momentum_before_the_vote_is_each_ranks_own_and_after_a_reduction_that_of_all() -> None:
    ops, spec = ops_of("numpy"), TensorSpec((30,), "float32")
    for codec, own in ((SignSGD(momentum=0.9), True), (SignSGD(), False), (DenseSign(momentum=0.9), False)):
        for wrapped in (codec, Chunked(codec, size=20)):
            names = {name.rpartition("/")[2] for name in wrapped.init(ops, spec)}
            assert bool(names - set(wrapped.common_states)) is own


def test_error_feedback_is_refused() -> None:
    with pytest.raises(ValueError, match="inner must be a codec that loses something and does not scale up"):
        ErrorFeedback(SignSGD())


def test_a_loss_scaler_is_refused_before_anything_is_sent() -> None:
    rank = OneRank(BySize(SignSGD(), min_elements=0, min_ndim=0), loss_scale=lambda: 1024.0)
    with pytest.raises(CompressionError, match=r"w \(2, 2\) float32: a loss scaler .* SignSGD"):
        rank.step({"w": np.ones((2, 2), np.float32)})
    assert rank.stats.total.sent_bytes == 0
