"""What importing the package loads, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "tensorflow", "keras", "horovod", "mpi4py", "rich", "matplotlib"}


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "hvd_compress",
        "hvd_compress.cli.commands",
        "hvd_compress.exchange",
        "hvd_compress.launch",
        "hvd_compress.session",
        "hvd_compress.stats",
    ],
)
def test_import_loads_no_framework_and_nothing_of_an_extra(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert "hvd_compress" in loaded
    assert not HEAVY & loaded


def test_compressing_a_numpy_array_loads_no_framework() -> None:
    loaded = loaded_by(
        "import numpy as np, hvd_compress as hc\n"
        "x = np.ones(10, np.float32)\n"
        "hc.TopK(density=0.5).encode(hc.ops_for(x), x, {}, hc.Site('w', step=0))"
    )
    assert not HEAVY & loaded


def test_the_torch_skin_loads_torch_and_horovod_but_not_tensorflow() -> None:
    loaded = loaded_by("import hvd_compress.torch")
    assert {"torch", "horovod"} <= loaded
    assert not {"tensorflow", "keras", "rich", "matplotlib"} & loaded


def test_what_training_shares_loads_no_framework() -> None:
    loaded = loaded_by("import hvd_compress.study.command, hvd_compress.study.training, hvd_compress.study.quickstart")
    assert not {"torch", "tensorflow", "keras", "horovod"} & loaded


def test_training_in_tensorflow_does_not_load_torch() -> None:
    loaded = loaded_by("from hvd_compress.study.frameworks import learner_of; learner_of('tensorflow')")
    assert {"tensorflow", "keras", "horovod"} <= loaded
    assert "torch" not in loaded
