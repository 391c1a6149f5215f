"""What README.md says is so: its tables, its commands, its code, run as a reader would run them."""

from __future__ import annotations

import ast
import doctest
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress import TensorSpec
from hvd_compress.cli.list import FEEDBACK
from hvd_compress.codec import Codec, Reduction
from hvd_compress.codecs._sparse import kept_count
from hvd_compress.indices import index_nbytes
from hvd_compress.launch import run_workers
from hvd_compress.parameters import parameters_of
from hvd_compress.policy import BySize, compose_config, wrapper_parameters
from hvd_compress.registry import codec_from_config, parse_config
from hvd_compress.wire import row_nbytes

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

PROGRAM = """
import json, sys, zlib
from pathlib import Path
import horovod.torch as hvd
import torch

hvd.init()
diff, *blocks = json.loads(sys.argv[1])


def crc32(model):
    return zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))


def fresh():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    generator = torch.Generator().manual_seed(hvd.rank())
    inputs = torch.randn(8, 64, generator=generator)
    return {
        "hvd": hvd,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_of": lambda model: torch.nn.functional.mse_loss(model(inputs).float(), inputs),
        "tensor": torch.randn(100, 100, generator=generator),
        "device": torch.device("cpu"),
        "folder": Path(sys.argv[2]),
    }


for block in blocks:
    names = fresh()
    before = crc32(names["model"])
    if "DistributedOptimizer" in block:
        exec("from hvd_compress.torch import Compression", names)
    else:
        exec(diff, names)
        names["compression"] = names["optimizer"]._compression
        names["loss_of"](names["model"]).backward()
        names["optimizer"].step()
    exec(block, names)
    after = crc32(names["model"])
    assert after != before, block
    assert len(set(hvd.allgather_object(after))) == 1, block
    if "mean" in names:
        assert len(set(hvd.allgather_object(names["mean"].numpy().tobytes()))) == 1, block
(Path(sys.argv[2]) / f"ran-{hvd.rank()}").write_text(str(len(blocks)))
"""


TENSORFLOW_PROGRAM = """
import json, os, sys, zlib
from pathlib import Path
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import horovod.tensorflow as hvd
import keras, numpy as np, tensorflow as tf

hvd.init()
diff, *blocks = json.loads(sys.argv[1])


def crc32(model):
    return zlib.crc32(b"".join(np.asarray(v).tobytes() for v in model.trainable_variables))


def fresh():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(64)])
    inputs = np.random.default_rng(hvd.rank()).standard_normal((64, 64)).astype(np.float32)
    return {"hvd": hvd, "tf": tf, "keras": keras, "model": model, "inputs": inputs, "targets": inputs,
            "folder": Path(sys.argv[2]) / "backup"}


class Weights:
    # Horovod's tape takes tf.Variables, which those of Keras 3 are not.
    def __init__(self):
        self.trainable_variables = [tf.Variable(tf.zeros((64, 64))), tf.Variable(tf.zeros(64))]


names = {**fresh(), "model": Weights()}
weight, bias = names["model"].trainable_variables
names["loss_of"] = lambda model, inputs, targets: tf.reduce_mean((inputs @ weight + bias - targets) ** 2)
names["optimizer"] = type("SGD", (), {"apply_gradients": staticmethod(
    lambda pairs: [variable.assign_sub(0.1 * gradient) for gradient, variable in pairs])})
exec(diff, names)
names["step"](tf.constant(names["inputs"]), tf.constant(names["targets"]))
assert names["compression"].stats().steps == 1
assert weight.numpy().any()
assert len(set(hvd.allgather_object(crc32(names["model"])))) == 1
for block in blocks:
    names = fresh()
    before = crc32(names["model"])
    exec(block, names)
    assert crc32(names["model"]) != before, block
    assert len(set(hvd.allgather_object(crc32(names["model"])))) == 1, block
(Path(sys.argv[2]) / f"ran-{hvd.rank()}").write_text(str(len(blocks)))
"""


def fenced(language: str) -> list[str]:
    """Blocks of code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def rows_below(header: str) -> list[list[str]]:
    """Cells of the table whose first line begins with `header`."""
    _, _, rest = TEXT.partition(f"\n| {header} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


CODECS = {row[0].strip("`"): row[1:] for row in rows_below("config")}


def codec_of(config: str) -> Codec:
    return codec_from_config(parse_config(config))


def resnet50() -> list[tuple[int, ...]]:
    """Shapes of ResNet-50's parameters (He et al. 2016)."""

    def convolution(into: int, out: int, size: int) -> list[tuple[int, ...]]:
        return [(out, into, size, size), (out,), (out,)]

    shapes, channels = convolution(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(channels, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            shapes += [] if block else convolution(channels, 4 * width, 1)
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def handed_over(config: str) -> int:
    """Bytes that one worker hands to Horovod for a step of ResNet-50, as the mean of two steps."""
    total, policy = 0, compose_config(config)
    for step, shape in itertools.product((0, 1), resnet50()):
        spec = TensorSpec(shape, "float32")
        codec = policy.for_tensor("w", spec).at_step(step)
        gathers = codec.reduction is Reduction.GATHER
        total += row_nbytes(codec, spec) if gathers else codec.payload_nbytes(spec)
        # A payload that Horovod's own allreduce does not carry goes with one float32 that it does.
        total += 0 if codec.reduction is Reduction.SUM else 4
    return total // 2


def test_resnet_50_is_the_one_that_everybody_means() -> None:
    assert len(resnet50()) == 161
    assert sum(TensorSpec(shape, "float32").numel for shape in resnet50()) == 25_557_032


@pytest.mark.parametrize("config", CODECS)
@pytest.mark.parametrize("n", [1024, 100_000, 25_600_000])
def test_the_formulas_are_right(config: str, n: int) -> None:
    codec = codec_of(config)
    names = {"n": n, "n0": 32, "idx": index_nbytes, "kept": kept_count}
    names |= {"ceil": math.ceil, "floor": math.floor, "max": max}
    if hasattr(codec, "density"):
        names["k"] = kept_count(codec.density, n)
    assert eval(CODECS[config][2].strip("`"), names) == codec.payload_nbytes(TensorSpec((32, n // 32), "float32"))


@pytest.mark.parametrize(("number", "changes"), [(0, "++"), (1, "++-+")])
def test_the_users_change_is_a_few_lines(number: int, changes: str) -> None:
    lines = fenced("diff")[number].splitlines()
    assert "".join(line[0] for line in lines if line and line[0] != " ") == changes


MODES = {row[0]: row[2] for row in rows_below("mode")}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_tensorflow_has_its_test(mode: str) -> None:
    tests = re.findall(r"`([\w/.]+)::(\w+)`", MODES[mode])
    assert len(tests) > 0
    for file, name in tests:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("config", CODECS)
def test_the_table_says_of_a_codec_what_the_code_says(config: str) -> None:
    codec = codec_of(config)
    assert CODECS[config] == [
        codec.paper,
        codec.reduction.name.lower(),
        CODECS[config][2],
        f"{handed_over(config) / 1e6:.3f}",
        "yes" if codec.unbiased else "no",
        FEEDBACK[codec.feedback.name.lower()],
    ]


def test_the_wrappers_parameters_are_all_there_with_their_defaults() -> None:
    rows = {row[0].strip("`"): row[1] for row in rows_below("parameter")}
    sizes = {name: str(field.default) for name, (_, field) in parameters_of(BySize).items() if name != "codec"}
    assert rows.keys() == {*wrapper_parameters(), "named_parameters", "grad_scaler"}
    assert {name: rows[name] for name in sizes} == sizes


@pytest.mark.parametrize("number", range(len(fenced("pycon"))))
def test_interpreter_sessions_print_what_is_written(number: int) -> None:
    session = doctest.DocTestParser().get_doctest(fenced("pycon")[number], {}, "README.md", None, None)
    said: list[str] = []
    result = doctest.DocTestRunner().run(session, out=said.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def patched(diff: str) -> str:
    """A file after a change."""
    return "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if line[0] != "-")


OF_TENSORFLOW = [block for block in fenced("python") if "keras" in block]
OF_TORCH = [block for block in fenced("python") if block not in OF_TENSORFLOW]


@pytest.mark.parametrize(
    ("number", "program", "blocks"),
    [(0, PROGRAM, OF_TORCH), (1, TENSORFLOW_PROGRAM, OF_TENSORFLOW)],
    ids=["torch", "tensorflow"],
)
def test_the_code_trains_two_workers_to_equal_parameters(
    number: int, program: str, blocks: list[str], tmp_path: Path
) -> None:
    """F116."""
    assert len(blocks) > 0
    assert all(ast.parse(block).body for block in blocks)
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    argv = [sys.executable, str(file), json.dumps([patched(fenced("diff")[number]), *blocks]), str(tmp_path)]
    done = run_workers(argv, workers=2, timeout=240, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    assert [(tmp_path / f"ran-{rank}").read_text() for rank in range(2)] == [str(len(blocks))] * 2


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:scripts|tests)/[\w./-]*\w", TEXT)) | {"LICENSE"}))
def test_files_that_are_named_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_cell_of_horovods_options_is_backed_by_a_test() -> None:
    section = TEXT.partition("## Horovod's options")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("|")][2:]
    assert len(rows) > 20
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests/parallel").glob("test_*.py")}
    for row in rows:
        *_, tests, _ = row.split("|")
        names = re.findall(r"`(test_\w+(?:\.py)?)`", tests)
        assert names, row
        for name in names:
            assert name in files or any(f"def {name}(" in text for text in files.values()), name
