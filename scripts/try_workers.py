"""Let two workers add up a tensor, with PyTorch and TensorFlow over MPI and PyTorch over Gloo; a failure raises.

The last step of the set-up. A machine on which Gloo cannot work is worth a note, not a failure: MPI is the default.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from checks import wants_gpu

from hvd_compress.launch import Launcher, LaunchError, run_workers

SECONDS = 180


def work(framework: str) -> None:
    """Be one of two workers."""
    # The same names in both frameworks; only the one asked for is imported, for TensorFlow takes seconds.
    ones = importlib.import_module(framework).ones
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    total = hvd.allreduce(ones(3), op=hvd.Sum, name="ones")
    if total.numpy().tolist() != [2.0, 2.0, 2.0]:
        raise SystemExit(f"two workers' ones add up to {total}")
    if not (hvd.mpi_built() and hvd.gloo_built()):
        raise SystemExit("Horovod was not built with MPI and Gloo")
    if not wants_gpu() == bool(hvd.cuda_built()) == bool(hvd.nccl_built()):
        raise SystemExit(f"Horovod was {'not ' if wants_gpu() else ''}built with CUDA and NCCL")


def start(framework: str, launcher: Launcher) -> None:
    """Start the two workers and wait for them."""
    argv = [sys.executable, str(Path(__file__).resolve()), framework]
    if run_workers(argv, workers=2, launcher=launcher, timeout=SECONDS).returncode != 0:
        raise SystemExit(f"two workers with {framework} over {launcher} failed")


def main() -> None:
    """Start the workers, one framework and launcher after the other."""
    start("torch", "mpi")
    start("tensorflow", "mpi")
    try:
        start("torch", "gloo")
    except LaunchError as error:
        print(f"note: {error}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        main()
