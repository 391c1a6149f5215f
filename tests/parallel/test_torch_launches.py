"""What needs processes of its own: process sets, and Horovod's files before and after."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hvd_compress.stats import Stats
from tests.parallel import own_launch
from tests.parallel.configs import CODECS
from tests.parallel.models import Tensors, compressor, network, noise, parameters_of, residuals, train, wrap

pytestmark = pytest.mark.own_launch


CONFIGS = ["topk:density=1.0", "topk:density=0.1", "randomk:density=0.1"]


def train_in_a_process_set() -> list[dict[str, Any]]:
    """Train with each config on ranks 0 and 2 only; ranks 1 and 3 do the same, each for itself."""
    import horovod.torch as hvd

    some = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[some])
    rank, results = hvd.rank(), []
    for config in CONFIGS:
        model, compression = Tensors({"w": (40, 40), "b": (5,)}), compressor(config)
        optimizer = wrap(hvd, model, compression, process_set=some)
        model.push({"w": torch.full((40, 40), 1.0 + rank), "b": torch.full((5,), 1.0 + rank)})
        optimizer.synchronize()
        first = sorted(set(model.w.grad.reshape(-1).tolist() + model.b.grad.tolist()))
        for step in range(10):
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
            model.push({"w": noise((40, 40), step, rank), "b": noise((5,), step, rank)})
            optimizer.synchronize()
        results.append({"first": first, "end": parameters_of(model), "names": sorted(residuals(compression))})
    # All four must come here: nobody waits for the others' training.
    hvd.barrier()
    return results


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_ranks_outside_of_the_process_set_take_no_part(launcher: str) -> None:
    """F077."""
    ranks = own_launch.run(train_in_a_process_set, launcher=launcher, workers=4)
    assert ranks[0] == ranks[2]
    # Where all is sent, it is the average of two ranks, and what the others had themselves.
    assert [results[0]["first"] for results in ranks] == [[2.0], [2.0], [2.0], [4.0]]
    for i in range(len(CONFIGS)):
        assert ranks[0][i]["names"] == ["set1/w"]
        assert ranks[1][i]["names"] == ranks[3][i]["names"] == []
        assert ranks[1][i]["end"] != ranks[3][i]["end"]


def train_in_two_process_sets() -> list[dict[str, bytes]]:
    """Train with every codec, even ranks and odd ranks at the same time, each among themselves."""
    import horovod.torch as hvd

    even, odd = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
    hvd.init(process_sets=[even, odd])
    results = []
    for config in CODECS.values():
        model = network()
        optimizer = wrap(hvd, model, compressor(config), process_set=odd if hvd.rank() % 2 else even)
        train(model, optimizer, hvd.rank(), range(4))
        results.append(parameters_of(model))
    hvd.barrier()
    return results


def test_disjoint_process_sets_train_at_the_same_time_with_every_codec() -> None:
    ranks = own_launch.run(train_in_two_process_sets, workers=4)
    assert ranks[0] == ranks[2]
    assert ranks[1] == ranks[3]
    assert all(even != odd for even, odd in zip(ranks[0], ranks[1], strict=True))


def train_after_unnamed_calls_of_one_rank() -> tuple[dict[str, bytes], list[str]]:
    """Put one rank's counter of unnamed operations ahead of the others', then train."""
    import horovod.torch as hvd

    alone = hvd.ProcessSet([0])
    hvd.init(process_sets=[alone])
    if hvd.rank() == 0:
        for _ in range(6):
            hvd.allgather(torch.ones(3), process_set=alone)
    names = []
    start = hvd.allgather_async

    def noting(tensor: torch.Tensor, *args: Any, name: str, **settings: Any) -> int:
        names.append(name)
        handle: int = start(tensor, *args, name=name, **settings)
        return handle

    hvd.allgather_async = noting
    model = network()
    train(model, wrap(hvd, model, compressor("topk:density=0.1")), hvd.rank(), range(10))
    return parameters_of(model), sorted(set(names))


def test_names_of_collectives_come_from_parameters_and_no_counter() -> None:
    """F069."""
    ranks = own_launch.run(train_after_unnamed_calls_of_one_rank)
    assert ranks[0] == ranks[1]
    assert ranks[0][1] == ["hvd_compress.0.weight", "hvd_compress.2.weight", "hvd_compress.hvd_compress.agreement"]


def train_in_an_elastic_job_without_a_state() -> None:
    """Train with a compressor of which no elastic state knows."""
    import horovod.torch as hvd

    hvd.init()
    model = network()
    train(model, wrap(hvd, model, compressor("topk:density=0.1")), hvd.rank(), range(1))


def test_an_elastic_job_must_have_the_compressor_in_its_state() -> None:
    with pytest.raises(own_launch.LaunchFailed) as caught:
        own_launch.run(train_in_an_elastic_job_without_a_state, env={"HOROVOD_ELASTIC": "1"})
    sentence = "in an elastic job the compressor must be part of the state: hvd.elastic.TorchState(..., compression="
    assert str(caught.value).count(sentence) >= 2


def checksums() -> dict[str, str]:
    """Return the checksum of every file of the installed Horovod, except Python's own caches."""
    spec = importlib.util.find_spec("horovod")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    files = [file for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return {str(file.relative_to(package)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def train_alone(config: str) -> tuple[dict[str, bytes], list[str], Stats | None, dict[str, Any]]:
    """Train with compression, or without for no config; return parameters, what was logged, and what was kept."""
    import horovod.torch as hvd

    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("hvd_compress")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    hvd.init()
    model = network()
    compression = compressor(config) if config else hvd.Compression.none
    train(model, wrap(hvd, model, compression), hvd.rank(), range(20))
    if not config:
        return parameters_of(model), logged, None, {}
    return parameters_of(model), logged, compression.stats(), compression.state_dict()["tensors"]


@pytest.mark.parametrize("config", ["topk:density=0.01", "qsgd", "dgc:density=0.01"])
def test_one_rank_trains_as_without_compression_and_is_told_so(config: str) -> None:
    """F093."""
    ((dense, *_),) = own_launch.run(train_alone, "", workers=1)
    ((ours, logged, stats, tensors),) = own_launch.run(train_alone, config, workers=1)
    assert ours == dense
    assert logged == ["INFO compression is idle: this job has one rank, which sends nothing"]
    assert stats == Stats()
    assert tensors == {}


def train_a_little() -> float:
    """Return the last loss of a short training."""
    import horovod.torch as hvd

    hvd.init()
    model = network()
    return train(model, wrap(hvd, model, compressor("topk:density=0.1")), hvd.rank(), range(3))[-1]


def test_files_of_horovod_are_unchanged_by_import_and_training() -> None:
    """F113."""
    before = checksums()
    assert any(name.endswith(".so") for name in before)
    for order in ("horovod.torch, hvd_compress.torch", "hvd_compress.torch, horovod.torch"):
        subprocess.run([sys.executable, "-c", f"import {order}"], check=True, timeout=120)
    own_launch.run(train_a_little)
    assert checksums() == before
