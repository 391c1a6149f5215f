"""Streams of a GPU: in which order, and whose memory; with stand-ins where there is none, and for real with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress import TopK
from hvd_compress.exchange import receive, send
from hvd_compress.ops import streams
from tests.cases import SITE, LoopbackCollective, ops_of
from tests.devices import device


class Stream:
    """Notes what is asked of it."""

    def __init__(self, name: str, log: list[Any]) -> None:
        self.name, self._log = name, log

    def wait_event(self, event: Any) -> None:
        self._log.append((self.name, "waits for", event.name))

    def wait_stream(self, other: Stream) -> None:
        self._log.append((self.name, "waits for", other.name))


class Event:
    name = "event of nothing"

    def record(self, stream: Stream) -> None:
        self.name = f"event of {stream.name}"


class Tensor:
    """As much of a tensor of a GPU as is asked for."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def record_stream(self, stream: Stream) -> None:
        self._log.append(("memory", "waits for", stream.name))


class Gpu:
    """Two streams, of which one is current, and what was asked of them."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.default, self.side = Stream("default", self.log), Stream("side", self.log)
        self.current = self.default
        self.tensor: Any = Tensor(self.log)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: found.default)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return found


def test_a_stream_goes_on_after_the_one_that_was_current_when_it_was_marked(gpu: Gpu) -> None:
    gpu.current = gpu.side
    event = streams.mark(gpu.tensor)
    gpu.current = gpu.default
    streams.continue_after(event, gpu.tensor)
    assert gpu.log == [("default", "waits for", "event of side")]


def test_memory_is_kept_for_the_current_stream(gpu: Gpu) -> None:
    gpu.current = gpu.side
    streams.used_here(gpu.tensor, torch.zeros(3), gpu.tensor)
    assert gpu.log == [("memory", "waits for", "side")] * 2


def test_what_horovod_has_the_default_stream_wait_for_another_stream_waits_for_too(gpu: Gpu) -> None:
    streams.arrived(gpu.tensor)
    gpu.current = gpu.side
    streams.arrived(gpu.tensor)
    assert gpu.log == [
        ("memory", "waits for", "default"),
        ("side", "waits for", "default"),
        ("memory", "waits for", "side"),
    ]


def test_in_a_host_s_memory_nothing_is_done(gpu: Gpu) -> None:
    tensor = torch.zeros(3)
    assert streams.mark(tensor) is None
    streams.continue_after(None, tensor)
    streams.used_here(tensor)
    streams.arrived(tensor)
    assert gpu.log == []


class ClosedGate:
    """A gate at which everything waits until it is opened."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def enter(self, step: int, start: Any, buffer: Any) -> Any:
        from hvd_compress.torch.gate import Passage

        self.waiting.append(Passage(start, buffer))
        return self.waiting[-1]

    def through(self, passage: Any) -> Any:
        passage.pass_through()
        return passage.handle


@pytest.mark.skipif(device() != "cpu", reason="Horovod is not needed for --device cuda")
def test_a_payload_that_waited_at_the_gate_is_sent_after_it_was_encoded(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F101: encoded in a thread whose current stream is the side stream, sent from one with the default stream."""
    import horovod.torch as hvd

    from hvd_compress.torch.collective import HorovodCollective

    class World:
        rank, size = staticmethod(lambda: 0), staticmethod(lambda: 1)

    sent = Tensor(gpu.log)
    monkeypatch.setattr(HorovodCollective, "_count", lambda self, buffer: buffer)
    monkeypatch.setattr(hvd, "allgather_async", lambda *_, **__: gpu.log.append("horovod reads") or 1)
    monkeypatch.setattr(hvd, "synchronize", lambda handle: Tensor(gpu.log))
    collective = HorovodCollective(World(), False, ClosedGate(), 0)
    gpu.current = gpu.side
    handle = collective.allgather(sent, "w")
    gpu.current = gpu.default
    collective.wait(handle)
    assert gpu.log[:2] == [("default", "waits for", "event of side"), "horovod reads"]
    # The gathered rows' memory, and the payload's.
    assert gpu.log[2:] == [("memory", "waits for", "default")] * 2


@pytest.mark.skipif(device() == "cpu", reason="needs a GPU: --device cuda")
def test_gradients_of_a_busy_side_stream_are_exchanged_whole() -> None:
    """F101, without a network: what is encoded on one stream and decoded on another equals a replay on the CPU."""
    gpu, cpu, codec = ops_of("device"), ops_of("numpy"), TopK(density=0.1)
    side = torch.cuda.Stream()
    for seed in range(200):
        values = torch.randn(20_000, generator=torch.Generator().manual_seed(seed))
        rows = LoopbackCollective()
        with torch.cuda.stream(side):
            # The host is far ahead of the stream.
            torch.cuda._sleep(200_000)
            gradient = values.cuda(non_blocking=True) * 2.0
            reduced, pending, _ = send(codec, gpu, gradient, {}, SITE, rows)
            ready = streams.mark(rows.buffers[SITE.name][0])
        del gradient
        streams.continue_after(ready, reduced)
        streams.used_here(reduced, *rows.buffers[SITE.name])
        result = receive(gpu, reduced, pending, {}, rows)[0]
        replay = LoopbackCollective()
        reduced, pending, _ = send(codec, cpu, (values * 2.0).numpy(), {}, SITE, replay)
        assert torch.equal(result.cpu(), torch.from_numpy(receive(cpu, reduced, pending, {}, replay)[0]))
