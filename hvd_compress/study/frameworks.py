"""The frameworks that a job can train in. A process imports one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from hvd_compress.study.learner import Learner

Framework = Literal["torch", "tensorflow"]


def learner_of(framework: Framework) -> type[Learner]:
    """Import a framework and Horovod's front end for it, and return its learner.

    Raises
    ------
    ImportError
        One of them is not installed.
    """
    if framework == "torch":
        from hvd_compress.study.torch_learner import TorchLearner

        return TorchLearner
    # As many as torch takes; by itself TensorFlow starts a thread for every core, on each rank.
    for threads in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(threads, os.environ.get("OMP_NUM_THREADS", "0"))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _no_standard_error():
        from hvd_compress.study.tf_learner import TensorFlowLearner
    return TensorFlowLearner


@contextmanager
def _no_standard_error() -> Iterator[None]:
    """TensorFlow writes some lines while it is imported that none of its settings turns off."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
