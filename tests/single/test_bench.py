"""bench: what is measured and shown, and what is advised. Never how fast something is."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hvd_compress import TensorSpec
from hvd_compress.bench.advise import advise
from hvd_compress.bench.arguments import config_list
from hvd_compress.bench.arrays import GRADIENTS, Gradients
from hvd_compress.bench.bench_report import environment, missing
from hvd_compress.bench.clocks import DeviceClock
from hvd_compress.bench.encode import CODECS, default_configs
from hvd_compress.bench.estimate import Cost, Estimate, dense_cost, estimate
from hvd_compress.bench.landmarks import parse_selection, selector
from hvd_compress.bench.link import Line, Link, link_at, rate_of
from hvd_compress.bench.machine import Timing, limited_to, timed, usable_cores
from hvd_compress.bench.training import WARM_UP_STEPS, Measured, measure
from hvd_compress.cli.commands import main
from hvd_compress.native import kernels
from hvd_compress.policy import compose_config
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.wire import row_nbytes
from tests.cases import required_backends

ROOT = Path(__file__).parents[2]
QUICK = ("--seconds", "0.01")
KEYS = (
    "codec",
    "n",
    "threads",
    "device",
    "copy_ms",
    "encode_ms",
    "encode_x_copy",
    "decode_ms",
    "decode_x_copy",
    "payload_bytes",
)
RESNET_50 = 25_557_032
WITHOUT_KERNELS = "The C++ kernels are not built: the frameworks' own operations are measured.\n"
NOTE = "" if "native" in required_backends() else WITHOUT_KERNELS


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["bench", *QUICK, *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ("" if "--advise" in arguments else NOTE)
    return said.out


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "hvd_compress", "bench", *QUICK, "--n", "2e3,5000", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == NOTE
    return list(json.loads(done.stdout))


def test_there_is_a_row_for_each_size_and_each_codec_and_landmark(rows: list[dict[str, Any]]) -> None:
    configs = [*CODECS, *(f"select:{name},density=0.01" for name in ("largest", "torch.topk", "numpy.partition"))]
    assert default_configs() == configs
    assert [(row["n"], row["codec"]) for row in rows] == [(n, config) for n in (2000, 5000) for config in configs]


def test_rows_have_the_documented_keys_and_kinds(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert tuple(row) == KEYS
        assert (row["threads"], row["device"]) == (1, "cpu")
        assert row["copy_ms"] > 0 < row["encode_ms"]
        assert row["encode_x_copy"] == pytest.approx(row["encode_ms"] / row["copy_ms"])


def test_codecs_have_payloads_and_landmarks_have_none(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        own = {row[key] for key in ("decode_ms", "decode_x_copy", "payload_bytes")}
        if row["codec"].startswith("select:"):
            assert own == {None}
            continue
        assert row["decode_x_copy"] == pytest.approx(row["decode_ms"] / row["copy_ms"])
        codec, spec = compose_config(row["codec"]).codec, TensorSpec((row["n"],), "float32")
        summed = row["codec"].startswith("randomk")
        assert row["payload_bytes"] == (codec.payload_nbytes(spec) if summed else row_nbytes(codec, spec))


def test_threads_multiply_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    counts = [1, len(usable_cores())]
    said = bench(capsys, "--n", "1e3", "--threads", f"1,{counts[1]}", "--codecs", "topk", "--json")
    assert [row["threads"] for row in json.loads(said)] == counts


def test_cores_and_threads_are_as_before_afterwards() -> None:
    def state() -> tuple[object, ...]:
        return os.sched_getaffinity(0), torch.get_num_threads(), kernels and kernels.threads()

    before = state()
    with limited_to(1):
        assert state() == ({usable_cores()[0]}, 1, kernels and 1)
    assert state() == before


@pytest.mark.parametrize(("seconds", "runs"), [(0.1, 3), (0.5, 5), (7.0, 7), (1e4, 1000)])
def test_a_call_is_repeated_for_some_time(seconds: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, calls = itertools.count(), list[int]()
    monkeypatch.setattr("hvd_compress.bench.clocks.perf_counter", lambda: float(next(ticks)))
    assert timed(calls.append, seconds) == Timing((1.0,) * runs)
    assert calls == list(range(runs))


class Gpu:
    """Notes what is asked of it; an event falls on the second that its number says."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._events = 0

    def synchronize(self) -> None:
        self.log.append("wait for all")

    def Event(self, *, enable_timing: bool) -> GpuEvent:
        assert enable_timing
        self._events += 1
        return GpuEvent(self, self._events)


class GpuEvent:
    def __init__(self, gpu: Gpu, number: int) -> None:
        self._gpu, self.number = gpu, number

    def record(self) -> None:
        self._gpu.log.append(f"event {self.number}")

    def synchronize(self) -> None:
        self._gpu.log.append(f"wait for event {self.number}")

    def elapsed_time(self, later: GpuEvent) -> float:
        return 1e3 * (later.number - self.number)


def test_a_device_is_timed_by_events_around_the_call_alone() -> None:
    gpu = Gpu()
    found = timed(lambda i: gpu.log.append(f"call {i}"), 1e-9, DeviceClock(gpu))
    assert found == Timing((1.0,) * len(found.samples))
    assert gpu.log[:5] == ["wait for all", "event 1", "call 0", "event 2", "wait for event 2"]
    assert gpu.log == [line.replace("call 0", f"call {i}") for i in range(len(found.samples)) for line in gpu.log[:5]]


def test_the_spread_is_between_the_quartiles() -> None:
    timing = Timing((4.0, 1.0, 2.0, 3.0, 9.0))
    assert (timing.median, timing.spread) == (3.0, pytest.approx(2 / 3))


def test_gradients_are_seeded_and_differ() -> None:
    first, second = Gradients(1000), Gradients(1000)
    assert all(np.array_equal(first[i], second[i + GRADIENTS]) for i in range(GRADIENTS))
    assert len({float(first[i][0]) for i in range(GRADIENTS)}) == GRADIENTS


@pytest.mark.parametrize("config", ["topk:density=1.0", "randomk:density=1.0"])
def test_what_is_decoded_is_what_the_last_steps_sent(config: str) -> None:
    gradients = Gradients(100)
    measured = measure(config, gradients, 2, 0.01)
    assert measured.warm_up == WARM_UP_STEPS
    if measured.collective == "allgather":
        pairs = [(gradients[i] + gradients[i + 1]) / 2 for i in range(GRADIENTS)]
        assert any(np.allclose(gradients.result, pair) for pair in pairs)
    else:
        assert measured.collective == "allreduce"


def test_more_ranks_than_steps_can_be_decoded() -> None:
    assert measure("topk:density=0.5", Gradients(100), 200, 1e-9).collective == "allgather"


@pytest.mark.parametrize("density", [0.001, 0.01, 1.0])
def test_landmarks_select_the_same_entries(density: float) -> None:
    """F090."""
    gradients = Gradients(3000)
    names = ("largest", "torch.topk", "numpy.partition")
    ours, topk, partition = (
        selector(parse_selection(f"select:{name},density={density}"), gradients)(1) for name in names
    )
    assert len(ours) == round(3000 * density)
    assert sorted(ours.tolist()) == sorted(topk.indices.tolist()) == sorted(partition.tolist())


def test_a_table_has_what_was_asked_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F036."""
    monkeypatch.delenv("COLUMNS", raising=False)
    codecs = "topk:density=0.01", "topk_qsgd:density=0.01,bits=8", "select:torch.topk"
    said = bench(capsys, "--n", "1e4,1e5", "--codecs", *codecs, "--workers", "2", "--plot", str(tmp_path / "p.png"))
    assert max(map(len, said.splitlines())) <= 80
    assert said.isascii()
    for words in (
        "100,000 entries, 1 thread",
        "copy",
        "+-",
        "GB/s",
        "topk:density=0.01",
        "select:torch.topk",
        "2 ranks",
    ):
        assert words in said
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_every_codec_can_be_measured_with_several_workers(capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in codec_names() if not codec_class(name).wrapper]
    rows = json.loads(bench(capsys, "--n", "3e3", "--codecs", *names, "--workers", "2", "--json"))
    assert [row["codec"] for row in rows] == names
    sent = {row["codec"]: row["payload_bytes"] for row in rows}
    # Both factors of a matrix of 50 by 60 entries; a vector would go densely.
    assert sent["powersgd"] == 4 * 4 * (50 + 60)
    assert {name for name in names if sent[name] >= 4 * 3000} == {"none"}


def test_codecs_may_have_commas_or_spaces_between_them() -> None:
    configs = ["topk:density=0.01,value_dtype=float16", "dgc", "select:largest,density=0.1", "qsgd:bits=4"]
    assert config_list(",".join(configs)) == configs


WRONG = [
    (("--n", "0"), "'0'"),
    (("--n", "1e3,1.5"), "'1.5'"),
    (("--codecs", "nosuch"), "nosuch"),
    (("--codecs", "topk:density=2"), "density"),
    (("--codecs", "topk:densty=1"), "densty"),
    (("--codecs", "select:nosuch"), "nosuch"),
    (("--codecs", "select:largest,density=0"), "density=0"),
    (("--threads", "0"), "'0'"),
    (("--threads", "1,9999"), "9999"),
    (("--workers", "x"), "'x'"),
    (("--device", "tpu"), "'tpu'"),
    (("--seconds", "0"), "'0'"),
    (("--plot", "p.nosuch"), "p.nosuch"),
    (("--link", "1gbit"), "--link"),
    (("--compute-ms", "5"), "--compute-ms"),
    (("--advise",), "--workers W"),
    (("--advise", "--link", "fast", "--workers", "2"), "'fast'"),
    (("--advise", "--link", "1gbit", "--workers", "1"), "--workers"),
    (("--advise", "--threads", "1"), "--threads"),
    (("--advise", "--codecs", "select:largest"), "select"),
    (("--advise", "--compute-ms", "-1"), "'-1'"),
]


@pytest.mark.parametrize(("arguments", "word"), WRONG)
def test_wrong_usage_exits_2_with_one_sentence_that_names_it(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["bench", *arguments])
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert word in said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cuda"]) == 2
    assert "cuda" in capsys.readouterr().err


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_it_says_whether_triton_s_kernels_are_measured(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setenv("HVD_COMPRESS_TRITON", wanted)
    # After TensorFlow it would not be imported any more.
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    used = wanted == "1" and importlib.util.find_spec("triton") is not None
    kernels = "Triton's kernels" if used else "no kernels of Triton's"
    assert (
        environment("cuda")
        == f"torch {torch.__version__} tensors, a GPU; {kernels}; float32, seeded Gaussian gradients"
    )
    assert [note for note in missing("cuda") if "Triton" in note] == ([] if used else missing("cuda"))


def test_it_works_without_torch_and_the_kernels_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')")
    env = {**os.environ, "HVD_COMPRESS_NATIVE": "0", "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "hvd_compress", "bench", *QUICK, "--n", "1e3", "--json"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=True)
    configs = [row["codec"] for row in json.loads(done.stdout)]
    assert configs == [config for config in default_configs() if "torch" not in config]
    assert "kernels are not built" in done.stderr
    assert "torch is not installed" in done.stderr


NBYTES = 4 * RESNET_50
# Times as multiples of a copy of 7 ms, as they are to be; casts as torch does them.
TIMES = {"topk:density=0.01": (0.035, 0.011), "qsgd:bits=8": (0.056, 0.035), "fp16": (0.015, 0.015)}


def verdicts(link: Link, compute: float = 0.0) -> dict[str, str]:
    """What is said of each codec on two workers."""
    wires = {
        "topk:density=0.01": (NBYTES // 79, link.allgather),
        "qsgd:bits=8": (NBYTES // 4, link.allgather),
        "fp16": (NBYTES // 2, link.allreduce_fp16),
    }
    costs = [
        Cost(name, wires[name][0], encode, wires[name][1].seconds(wires[name][0]), decode)
        for name, (encode, decode) in TIMES.items()
    ]
    return {found.cost.codec: found.verdict for found in estimate([dense_cost(link, NBYTES), *costs], compute)}


def test_everything_pays_on_a_slow_link_and_nothing_on_a_very_fast_one() -> None:
    """F095."""
    slow, fast = verdicts(link_at(rate_of("100mbit"), 2)), verdicts(link_at(rate_of("200gbit"), 2))
    assert slow == {"dense": "baseline", **dict.fromkeys(TIMES, "faster")}
    assert fast == {"dense": "baseline", **dict.fromkeys(TIMES, "slower")}


def test_a_link_that_needs_time_to_add_makes_small_payloads_pay() -> None:
    """F095: what shared memory of one host was measured to do with two ranks."""
    loopback = Link(Line(1e-3, 1.4e-9), Line(1e-3, 2e-9), Line(1e-3, 0.5e-9))
    assert verdicts(loopback) == {
        "dense": "baseline",
        "topk:density=0.01": "faster",
        "qsgd:bits=8": "faster",
        "fp16": "faster",
    }


def test_it_depends_where_the_network_is_hidden_behind_computing() -> None:
    link = link_at(rate_of("1gbit"), 2)
    assert verdicts(link, compute=2.0) == {"dense": "baseline", **dict.fromkeys(TIMES, "depends")}


def test_steps_are_the_sum_or_the_longer_of_computing_and_the_wire() -> None:
    dense, found = estimate([Cost("dense", 8, 0.0, 5.0, 0.0), Cost("topk", 2, 1.0, 2.0, 0.5)], 4.0)
    assert dense == Estimate(Cost("dense", 8, 0.0, 5.0, 0.0), 9.0, 5.0, "baseline")
    assert (found.step, found.step_overlapped, found.verdict) == (7.5, 5.5, "depends")


@pytest.mark.parametrize(("text", "rate"), [("100mbit", 12.5e6), ("1gbit", 125e6), ("2.5Gbit", 312.5e6)])
def test_rates_are_read(text: str, rate: float) -> None:
    assert rate_of(text) == rate


def test_a_ring_of_four_sends_what_it_must() -> None:
    link = link_at(1e6, 4)
    assert link.allreduce.per_byte == pytest.approx(1.5e-6)
    assert link.allgather.per_byte == pytest.approx(3e-6)


def test_advice_outside_of_a_job_is_for_a_link_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    codecs = "topk:density=0.01", "randomk:density=0.1"
    options = "--link", "1mbit", "--workers", "2", "--entries", "1e5,2e5,1e5", "--compute-ms", "30", "--codecs", *codecs
    told = json.loads(bench(capsys, "--advise", *options, "--json"))
    assert {key: told[key] for key in ("workers", "tensors", "compute_ms")} == {
        "workers": 2,
        "tensors": [100_000, 200_000, 100_000],
        "compute_ms": 30.0,
    }
    assert told["link"]["measured"] is False
    assert told["link"]["allgather"]["bytes_per_second"] == pytest.approx(125_000)
    assert [(row["codec"], row["verdict"]) for row in told["codecs"]] == [
        ("dense", "baseline"),
        ("fp16", "faster"),
        ("topk:density=0.01", "faster"),
        ("randomk:density=0.1", "faster"),
    ]
    assert [row["payload_bytes"] for row in told["codecs"][::3]] == [1_600_000, 160_000]
    for row in told["codecs"]:
        exchange = row["encode_ms"] + row["wire_ms"] + row["decode_ms"]
        assert row["exchange_ms"] == pytest.approx(exchange)
        assert row["step_ms"] == pytest.approx(30 + exchange)


def test_advice_is_also_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    said = bench(capsys, "--advise", "--link", "1mbit", "--workers", "9", "--n", "2e4", "--codecs", "topk,qsgd")
    assert max(map(len, said.splitlines())) <= 80
    assert all(word in said for word in ("dense", "fp16", "topk", "faster", "baseline", "9 workers"))


def test_beyond_eight_ranks_decoding_goes_on_in_a_straight_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def canned(config: str, gradients: Gradients, workers: int, seconds: float) -> Measured:
        return Measured(Timing((1.0,)), Timing((0.5 + workers,)), 100, WARM_UP_STEPS, "allgather")

    monkeypatch.setattr("hvd_compress.bench.advise.measure", canned)
    for workers in (2, 8, 64):
        advice = advise(["topk"], [10, 10], link_at(1e6, workers), workers, compute=0.0, seconds=0.01)
        cost = advice.estimates[-1].cost
        assert (cost.encode, cost.decode, cost.payload_bytes) == (2.0, 2 * (0.5 + workers), 200)


def test_arrays_of_numpy_are_measured_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    gradients = Gradients(100)
    assert isinstance(gradients.result, np.ndarray)
    assert measure("topk:density=1.0", gradients, 1, 0.01).payload_bytes > 400
