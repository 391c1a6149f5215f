"""The trace of what the compressor does, beside Horovod's timeline."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from hvd_compress.timeline import join
from tests.parallel import own_launch
from tests.parallel.models import Tensors, compressor, noise, wrap

pytestmark = pytest.mark.own_launch

SHAPES = {"layer": (60, 50), "head": (50, 40), "bias": (40,)}
STEPS = 5
WRITER_SECONDS = 2.0


def train(config: str, shapes: dict[str, tuple[int, ...]], steps: int) -> None:
    """Train with noise for gradients."""
    import horovod.torch as hvd

    hvd.init()
    model, compression = Tensors(shapes), compressor(config)
    optimizer = wrap(hvd, model, compression)
    gradients = {name: noise(shape, 0, hvd.rank()) for name, shape in shapes.items()}
    for _ in range(steps):
        optimizer.zero_grad()
        model.push(gradients)
        optimizer.step()
    # Horovod's shutdown drops what its timeline's writer, a thread that never pauses, has not come to.
    time.sleep(WRITER_SECONDS)
    hvd.shutdown()


@pytest.mark.parametrize("horovod", [True, False], ids=["beside Horovod's", "alone"])
def test_every_exchange_is_in_the_trace_under_its_parameter_s_name(tmp_path: Path, horovod: bool) -> None:
    """F098."""
    env = {"HVD_COMPRESS_TIMELINE": str(tmp_path / "new" / "ours.json")}
    if horovod:
        env["HOROVOD_TIMELINE"] = str(tmp_path / "horovod.json")
    own_launch.run(train, "topk:density=0.05", SHAPES, STEPS, env=env)
    for rank in range(2):
        ours = tmp_path / "new" / f"ours.{rank}.json"
        joined = join([tmp_path / "horovod.json", ours] if horovod else [ours])
        theirs = [event for event in joined if event["pid"] < 1_000_000]
        events = [event for event in joined if event["pid"] >= 1_000_000]
        names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert set(names.values()) == set(SHAPES)
        marks = [event for event in events if event["ph"] == "X"]
        assert all(mark["dur"] >= 0 for mark in marks)
        for row, name in names.items():
            of_tensor = sorted((mark["ts"], mark["name"]) for mark in marks if mark["tid"] == row)
            # After the first step, a tensor that goes as it is is handed on at once.
            once = ["encode", "exchange", "decode"]
            expected = once + ["exchange"] * (STEPS - 1) if name == "bias" else once * STEPS
            assert [what for _, what in of_tensor] == expected
            spans = [(mark["ts"], mark["ts"] + mark["dur"]) for mark in marks if mark["tid"] == row]
            assert all(end <= start + 1 for (_, end), (start, _) in pairwise(sorted(spans)))
        if horovod:
            (tensor,) = (e["pid"] for e in theirs if e.get("name") == "process_name" and "hvd_compress.head" in str(e))
            gathered = [event["ts"] for event in theirs if event["pid"] == tensor and event.get("name") == "ALLGATHER"]
            row = next(row for row, name in names.items() if name == "head")
            # Horovod may be at work before this rank's thread comes to note that it has handed over.
            starts = sorted(m["ts"] for m in marks if m["tid"] == row and m["name"] == "encode")
            ends = sorted(m["ts"] + m["dur"] for m in marks if m["tid"] == row and m["name"] == "exchange")
            assert len(gathered) == len(starts) == len(ends) == STEPS
            # One clock, but for the fraction of a millisecond after which Horovod looks at it.
            each = zip(starts, sorted(gathered), ends, strict=True)
            assert all(start <= at <= end + 500 for start, at, end in each)
