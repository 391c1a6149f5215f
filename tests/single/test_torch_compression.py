"""``Compression`` for torch as users call it: errors, copies, and a Horovod that is missing or another."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import horovod.torch as hvd
import pytest
import torch

from hvd_compress.advice import say_if_idle
from hvd_compress.registry import codec_class, codec_names
from hvd_compress.torch import Compression, Compressor
from tests.parallel.models import CODECS, compressor

METHODS = sorted({config.partition(":")[0] for config in CODECS.values()} - {"none"})


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"density": 0}, ValueError, ["density", "0", "(0, 1]"]),
        ({"density": 1.5}, ValueError, ["density", "1.5", "(0, 1]"]),
        ({"density": True}, TypeError, ["density", "True", "(0, 1]"]),
        ({"density": "a lot"}, TypeError, ["density", "'a lot'", "(0, 1]"]),
        ({"denisty": 0.1}, TypeError, ["denisty", "0.1", "density, value_dtype"]),
        ({"min_elements": -1}, ValueError, ["min_elements", "-1", ">= 0"]),
        ({"error_feedback": "yes"}, TypeError, ["error_feedback", "'yes'", "true or false"]),
        ({"value_dtype": "float8"}, ValueError, ["value_dtype", "'float8'", "'float16'"]),
    ],
    ids=str,
)
def test_wrong_parameter_is_refused_with_name_value_and_what_is_allowed(
    parameters: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    """F005."""
    with pytest.raises(error) as caught:
        Compression.topk(**parameters)
    assert type(caught.value) is error
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ("topk:density=abc", ValueError, ["density", "'abc'", "(0, 1]"]),
        ("nosuch", ValueError, ["nosuch", "topk", "randomk", "fp16"]),
        ("topk:denisty=0.1", TypeError, ["denisty", "0.1", "density"]),
        ({"name": "topk", "density": "a lot"}, TypeError, ["density", "'a lot'", "(0, 1]"]),
        ({"name": "nosuch"}, ValueError, ["nosuch", "topk"]),
        ({"density": 0.1}, ValueError, ["name", "0.1"]),
        ("none:density=0.1", TypeError, ["none", "0.1", "no parameters"]),
        (17, TypeError, ["config", "17", "mapping or a string"]),
    ],
    ids=str,
)
def test_wrong_config_is_refused_with_name_value_and_what_is_allowed(
    config: Any, error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        Compression.from_config(config)
    assert type(caught.value) is error
    assert [word for word in words if word not in str(caught.value)] == []


def test_none_and_fp16_stay_horovods_own() -> None:
    assert issubclass(Compression, hvd.Compression)
    for name in ("none", "fp16"):
        assert getattr(Compression, name) is getattr(hvd.Compression, name)
        assert Compression.from_config(name) is getattr(hvd.Compression, name)
        assert Compression.from_config({"name": name}) is getattr(hvd.Compression, name)


def test_every_codec_has_a_method_and_stands_among_the_codecs_that_run_on_several_ranks() -> None:
    registered = {name for name in codec_names() if not codec_class(name).wrapper}
    assert {config.partition(":")[0] for config in CODECS.values()} == registered
    assert set(METHODS) == registered - {"none"}


@pytest.mark.parametrize("name", METHODS)
def test_method_makes_what_the_config_makes_and_shows_its_parameters(name: str) -> None:
    made, read = getattr(Compression, name)(), Compression.from_config(name)
    assert isinstance(made, hvd.compression.Compressor)
    assert made.policy == read.policy == Compression.from_config({"name": name}).policy
    parameters = inspect.signature(getattr(Compression, name)).parameters
    assert {"error_feedback", "min_elements", "min_ndim", "named_parameters", "grad_scaler"} <= set(parameters)
    assert parameters["min_elements"].default == 1024
    assert all(key in inspect.getdoc(getattr(Compression, name)) for key in parameters)


@pytest.mark.parametrize("config", list(CODECS.values()), ids=list(CODECS))
@pytest.mark.parametrize("module", [pickle, cloudpickle], ids=lambda module: module.__name__)
def test_compressor_can_be_pickled_before_horovod_starts(config: str, module: Any) -> None:
    """F117."""
    original = compressor(config)
    restored = module.loads(module.dumps(original))
    assert type(restored) is Compressor
    assert restored.policy == original.policy
    assert restored.state_dict() == {"tensors": {}, "rank": 0, "world_size": 1}


@pytest.mark.parametrize("config", list(CODECS.values()), ids=list(CODECS))
def test_compressor_is_true_and_hashed_and_compared_by_identity(config: str) -> None:
    """F117."""
    one, other = compressor(config), compressor(config)
    assert bool(one)
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2
    copied = copy.deepcopy(one)
    assert copied != one
    assert copied.policy == one.policy


def test_pickle_of_a_used_compressor_starts_with_empty_state() -> None:
    """F117."""
    used = compressor("topk")
    used.load_state_dict({"tensors": {"w": {"step": 3, "loss_scale": None}}, "rank": 0, "world_size": 1})
    assert used.state_dict()["tensors"]
    assert pickle.loads(pickle.dumps(used)).state_dict() == {"tensors": {}, "rank": 0, "world_size": 1}
    assert copy.deepcopy(used).state_dict() == {"tensors": {}, "rank": 0, "world_size": 1}


def test_compressor_with_a_loss_scaler_cannot_be_copied() -> None:
    # Without its scaler a copy would take up gradients of steps that are skipped, and nobody would notice.
    original = compressor("topk", grad_scaler=torch.amp.GradScaler("cpu"))
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="grad_scaler"):
            copying(original)


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("version", ["0.27.0", "0.29.1", "1.0.0"])
def test_another_horovod_is_warned_of_once(version: str) -> None:
    done = python(
        f"import horovod, warnings\nhorovod.__version__ = {version!r}\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import hvd_compress.torch\n"
        "    from hvd_compress.torch import Compression\n"
        "print(*[str(w.message) for w in caught if 'hvd_compress' in str(w.message)], sep='\\n')"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert "0.28.1" in lines[0]
    assert version in lines[0]


def test_the_tested_horovod_is_not_warned_of() -> None:
    done = python("import warnings\nwarnings.simplefilter('error', UserWarning)\nimport hvd_compress.torch")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["horovod", "horovod.torch"])
def test_missing_horovod_is_one_sentence_that_names_the_set_up(missing: str) -> None:
    done = python(f"import sys\nsys.modules[{missing!r}] = None\nimport hvd_compress.torch")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "scripts/setup.sh" in last


class Job:
    """A front end of Horovod's, in a job of so many ranks; None before it is initialised."""

    def __init__(self, ranks: int | None) -> None:
        self._ranks = ranks

    def is_initialized(self) -> bool:
        return self._ranks is not None

    def size(self) -> int:
        if self._ranks is None:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self._ranks


@pytest.mark.parametrize(("ranks", "elastic", "lines"), [(None, "0", 0), (2, "0", 0), (1, "1", 0), (1, "0", 1)])
def test_only_where_compression_is_idle_a_line_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ranks: int | None, elastic: str, lines: int
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", elastic)
    with caplog.at_level("INFO", logger="hvd_compress"):
        say_if_idle(Job(ranks))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["compression is idle"] * lines
