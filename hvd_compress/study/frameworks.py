"""The frameworks that a job can train in. A process imports one of them."""

from __future__ import annotations

from typing import Literal

from hvd_compress.study.learner import Learner

Framework = Literal["torch"]


def learner_of(framework: Framework) -> type[Learner]:
    """Import a framework and Horovod's front end for it, and return its learner.

    Raises
    ------
    ImportError
        One of them is not installed.
    """
    from hvd_compress.study.torch_learner import TorchLearner

    return TorchLearner
