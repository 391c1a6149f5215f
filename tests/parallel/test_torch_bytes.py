"""What is counted as sent is what was sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import horovod.torch
import horovod.torch.optimizer
import pytest
import torch

from hvd_compress import Reduction, TensorSpec
from hvd_compress.budget import BINS
from hvd_compress.wire import row_nbytes
from tests.parallel import own_launch
from tests.parallel.models import (
    Tensors,
    codec_of,
    compressor,
    every_codec,
    noise,
    without_advice,
    wrap,
)

pytestmark = [pytest.mark.launches(("mpi", 2)), *without_advice]

SHAPES = {"w": (40, 50), "v": (64, 32), "b": (50,)}


class Counted:
    """Counts what is handed to Horovod's collectives, by the name that they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()
        for module, function in (
            (horovod.torch, "allgather_async"),
            (horovod.torch, "allreduce_async"),
            (horovod.torch.optimizer, "allreduce_async_"),
        ):
            monkeypatch.setattr(module, function, self._counting(getattr(module, function)))

    def _counting(self, collective: Any) -> Any:
        def counting(tensor: torch.Tensor, *args: Any, name: str, **settings: Any) -> Any:
            # Ranks are counted, and compare their settings, for themselves.
            if not name.endswith((".ranks", ".agreement")):
                self.calls[name] += 1
                self.nbytes[name] += tensor.numel() * tensor.element_size()
            return collective(tensor, *args, name=name, **settings)

        return counting


@every_codec
def test_statistics_count_the_bytes_that_are_handed_to_horovod(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    """F097."""
    compression = compressor(config)
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compression)
    counted = Counted(monkeypatch)
    handed = []
    for step in range(3):
        optimizer.zero_grad()
        model.push({name: noise(shape, step, rank) for name, shape in SHAPES.items()})
        optimizer.step()
        handed.append(counted.nbytes.total() - sum(handed))
        assert compression.stats().step.sent_bytes == handed[-1]
    stats = compression.stats()
    assert stats.total.sent_bytes == sum(handed)
    assert stats.steps == 3
    for name in SHAPES:
        own = (name, *(f"hvd_compress.{name}{phase}" for phase in ("", ".first", ".second")))
        mine = sum(counted.nbytes[key] for key in own)
        assert stats.tensors[name].sent_bytes >= mine > 0
        assert stats.tensors[name].sent_bytes == mine or ("scope=model" in config and name != "b")
        dense_entries = stats.tensors[name].dense_bytes // 4
        assert 0 < stats.tensors[name].kept_entries <= dense_entries
        assert stats.tensors[name].kept_entries == dense_entries or name != "b"
    assert stats.total.kept_entries == sum(counts.kept_entries for counts in stats.tensors.values())
    large = stats.tensors["w"].dense_bytes + stats.tensors["v"].dense_bytes
    assert stats.compressed.dense_bytes == (0 if config == "none" else large)
    assert stats.compressed.sent_bytes == (0 if config == "none" else sum(handed) - counted.nbytes["b"])
    dense = sum(torch.Size(shape).numel() * 4 for shape in SHAPES.values())
    assert stats.step.dense_bytes == dense
    assert stats.total.dense_bytes == 3 * dense
    assert stats.total.compression_ratio == stats.total.dense_bytes / stats.total.sent_bytes


@every_codec
def test_sent_bytes_follow_from_codec_and_shape(hvd: Any, rank: int, config: str) -> None:
    compression = compressor(config)
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compression)
    model.push({name: noise(shape, rank) for name, shape in SHAPES.items()})
    optimizer.step()
    tensors = compression.stats().tensors
    codec = codec_of(config).at_step(0)
    # At the first step a model's budget is shared by counts of 8 bytes, sent with one of the two tensors.
    shared = 2 * 8 * BINS if "scope=model" in config else 0
    sent = sum(tensors[name].sent_bytes for name in ("w", "v")) - shared
    specs = [TensorSpec(SHAPES[name], "float32") for name in ("w", "v")]
    if codec.reduction is not Reduction.GATHER:
        placeholder = 4 if codec.reduction is Reduction.TWO_PHASE else 0
        assert sent == sum(codec.payload_nbytes(spec) + placeholder for spec in specs)
    else:
        # Horovod's own one-element reduction of each tensor is counted, too.
        most = sum(row_nbytes(codec, spec) + 4 for spec in specs)
        assert sent == most if codec.fixed_size else 0 < sent < most
    assert tensors["b"].sent_bytes == tensors["b"].dense_bytes == 200


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ("topk:density=0.1", [""]),
        ("qsgd", [""]),
        ("randomk:density=0.1", []),
        ("cast", []),
        ("powersgd", [".first", ".second"]),
    ],
)
def test_tensor_takes_one_gather_or_two_sums_at_most_and_one_reduction(
    hvd: Any, rank: int, monkeypatch: pytest.MonkeyPatch, config: str, own: list[str]
) -> None:
    """F096."""
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compressor(config))
    counted = Counted(monkeypatch)
    model.push({name: noise(shape, rank) for name, shape in SHAPES.items()})
    optimizer.step()
    assert dict(counted.calls) == dict.fromkeys(
        [*SHAPES, *(f"hvd_compress.{name}{end}" for name in "wv" for end in own)], 1
    )


def test_compressed_tensors_are_summed_apart_from_dense_ones(hvd: Any, rank: int) -> None:
    compression = compressor("topk:density=0.1")
    model = Tensors(SHAPES)
    optimizer = wrap(hvd, model, compression)
    model.push({name: noise(shape, rank) for name, shape in SHAPES.items()})
    optimizer.step()
    stats = compression.stats()
    assert stats.compressed.dense_bytes == 4 * (40 * 50 + 64 * 32)
    assert stats.compressed.sent_bytes == stats.tensors["w"].sent_bytes + stats.tensors["v"].sent_bytes
    assert stats.compressed.compression_ratio > 5
    assert stats.total.dense_bytes == stats.compressed.dense_bytes + 200


def test_times_are_counted_and_statistics_are_plain_data(hvd: Any, rank: int) -> None:
    """F097."""
    import json

    compression = compressor("topk:density=0.1")
    model = Tensors({"w": (400, 400)})
    optimizer = wrap(hvd, model, compression)
    for step in range(3):
        optimizer.zero_grad()
        model.push({"w": noise((400, 400), step, rank)})
        optimizer.step()
    stats = compression.stats()
    for seconds in ("encode_seconds", "wait_seconds", "decode_seconds"):
        assert 0 < getattr(stats.step, seconds) < getattr(stats.total, seconds)
        assert getattr(stats.total, seconds) == pytest.approx(getattr(stats.tensors["w"], seconds))
    plain = json.loads(json.dumps(stats.as_dict()))
    assert plain["total"]["sent_bytes"] == stats.total.sent_bytes
    assert plain["tensors"]["w"]["kept_entries"] == stats.total.kept_entries == 3 * 16_000
    assert plain["state_nbytes"] == 4 * 160_000
    # A snapshot: later steps leave it alone.
    optimizer.zero_grad()
    model.push({"w": noise((400, 400), rank)})
    optimizer.step()
    assert (stats.steps, compression.stats().steps) == (3, 4)


def loopback_bytes() -> int:
    """Return how many bytes the loopback interface has carried."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def train_over_tcp(steps: int) -> tuple[int, int]:
    """Return what a rank's statistics and the network interface count while both ranks make the steps."""
    import horovod.torch as hvd

    hvd.init()
    rank, shape = hvd.rank(), (512, 1024)
    compression = compressor("topk:density=0.25")
    model = Tensors({"w": shape})
    optimizer = wrap(hvd, model, compression)
    gradient = noise(shape, rank)

    def step() -> None:
        optimizer.zero_grad()
        model.w.grad = gradient.clone()
        # Horovod takes a gradient that no hook has sent at synchronisation.
        optimizer.step()

    step()
    hvd.allreduce(torch.ones(1), name="tests.begin")
    sent, carried = compression.stats().total.sent_bytes, loopback_bytes()
    for _ in range(steps):
        step()
    hvd.allreduce(torch.ones(1), name="tests.end")
    return compression.stats().total.sent_bytes - sent, loopback_bytes() - carried


@pytest.mark.own_launch
def test_network_interface_carries_what_the_statistics_say() -> None:
    """F098."""
    # Shared memory excluded, all that one rank sends to the other passes the interface. Of two ranks each hands its
    # row to the other once.
    tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
    results = own_launch.run(train_over_tcp, 100, env=tcp, seconds=300)
    sent = sum(rank_sent for rank_sent, _ in results)
    assert sent > 100 * 2**20
    for _, carried in results:
        assert carried == pytest.approx(sent, rel=0.1)
