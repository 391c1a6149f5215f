"""Exchanges of two phases: all second phases are started before any is waited for; bytes, errors, forgotten ones."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import pytest

from hvd_compress import CompressionError, ErrorFeedback, TensorSpec
from hvd_compress.chunks import Chunked
from hvd_compress.codecs import PowerSGD, TopK
from hvd_compress.policy import BySize
from hvd_compress.session import Session
from hvd_compress.worker import Worker
from tests.cases import SITE, OneRankCollective, ops_of

OPS = ops_of("numpy")
NAMES = ("a", "b", "c")


class Noting(OneRankCollective):
    """Notes in a list that all tensors share what is started and waited for."""

    def __init__(self, log: list[tuple[str, str]]) -> None:
        super().__init__()
        self.log = log

    def allreduce(self, array: Any, name: str) -> str:
        self.log.append(("start", name))
        return super().allreduce(array, name)

    def wait(self, handle: str) -> Any:
        self.log.append(("wait", handle))
        return super().wait(handle)


class Rank:
    """A worker with some tensors."""

    def __init__(self) -> None:
        self.worker, self.session = Worker(BySize(ErrorFeedback(PowerSGD(rank=2)))), Session()
        self.log: list[tuple[str, str]] = []
        self.sent: dict[str, Any] = {}

    def send(self, name: str) -> None:
        gradient = np.random.default_rng(len(self.log)).standard_normal((40, 50)).astype(np.float32)
        collective = Noting(self.log)
        self.worker.begin(self.session, name)
        arguments = self.session, name, OPS, gradient, collective, perf_counter()
        self.sent[name] = *self.worker.send(*arguments), collective

    def receive(self, name: str) -> Any:
        reduced, sent, collective = self.sent.pop(name)
        return self.worker.receive(self.session, OPS, reduced, sent, collective)


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], ("b", "a", "c")], ids="".join)
def test_every_second_phase_is_started_before_one_is_waited_for(order: tuple[str, ...]) -> None:
    rank = Rank()
    for step in range(2):
        rank.log.clear()
        for name in NAMES:
            rank.send(name)
        assert rank.log == [("start", f"{name}.first") for name in NAMES]
        results = [rank.receive(name) for name in order]
        assert all(np.isfinite(result).all() and result.any() for result in results)
        seconds = [rank.log.index(("start", f"{name}.second")) for name in NAMES]
        waits = [rank.log.index(("wait", f"{name}.second")) for name in NAMES]
        assert max(seconds) < min(waits), step
        assert len(rank.log) == 4 * len(NAMES)


def test_bytes_of_both_phases_are_counted() -> None:
    rank = Rank()
    for name in NAMES:
        rank.send(name)
    for name in NAMES:
        rank.receive(name)
    payload = PowerSGD(rank=2).payload_nbytes(TensorSpec((40, 50), "float32"))
    assert payload == 4 * 2 * 90
    # Beside them goes the one float32 that shows how Horovod scales.
    assert {counts.sent_bytes for counts in rank.worker.stats.tensors.values()} == {payload + 4}
    assert rank.worker.stats.compressed.encode_seconds > 0


def test_what_was_given_up_is_started_anew() -> None:
    """As after an exception between a backward pass and the optimizer's step."""
    rank = Rank()
    rank.send("a")
    for name in NAMES:
        rank.send(name)
    assert np.isfinite(rank.receive("a")).all()
    assert rank.log.count(("start", "a.second")) == 1


def test_errors_of_a_second_phase_name_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("does not hold")

    monkeypatch.setattr(PowerSGD, "encode_second", refuse)
    rank = Rank()
    rank.send("a")
    with pytest.raises(CompressionError, match=r"^a \(40, 50\) float32: does not hold$"):
        rank.receive("a")


def test_codecs_of_one_phase_say_so() -> None:
    with pytest.raises(TypeError, match=r"TopK\(.*\) has no second phase"):
        TopK().encode_second(OPS, None, TensorSpec((1,), "float32"), SITE)  # type: ignore[arg-type]


def test_pieces_of_a_tensor_have_one_phase() -> None:
    with pytest.raises(ValueError, match="Chunked: inner must be a codec of one phase, got PowerSGD"):
        Chunked(PowerSGD())
