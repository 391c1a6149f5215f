"""The skin of TensorFlow in processes of its own: XLA by a variable, one rank, a rank that is done first, mix-ups."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest

from hvd_compress.launch import Launcher
from hvd_compress.stats import Stats
from tests.parallel import own_launch
from tests.parallel.own_launch import LaunchFailed
from tests.parallel.tf_ranks import SHAPES, expected_weights, gradients_of

pytestmark = pytest.mark.own_launch

TOPK = "topk:density=0.05"


def train(steps: int, config: str = TOPK) -> tuple[list[Any], Stats]:
    """Train with Horovod's tape; return the weights and what was counted."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from hvd_compress.tensorflow import Compression

    hvd.init()
    compression = Compression.from_config(config)
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]

    @tf.function
    def step(*gradients: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, gradients, strict=True)])
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.125 * gradient)

    for number in range(steps):
        step(*map(tf.constant, gradients_of(number, hvd.rank())))
    return [weight.numpy() for weight in weights], compression.stats()


def train_torch(steps: int, config: str) -> tuple[list[Any], Stats]:
    """As `train`, with Horovod's optimizer of torch and the names that the other one's tensors have."""
    import horovod.torch as hvd
    import torch

    from hvd_compress.torch import Compression

    hvd.init()
    compression = Compression.from_config(config)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    named = [(str(i), weight) for i, weight in enumerate(weights)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=0.125), named, compression=compression)
    for number in range(steps):
        for weight, gradient in zip(weights, gradients_of(number, hvd.rank()), strict=True):
            weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights], compression.stats()


def join_early() -> None:
    """Rank 1 has fewer batches and joins."""
    import horovod.tensorflow as hvd

    hvd.init()
    if hvd.rank() == 0:
        train(3)
    hvd.join()


def mixed_up() -> list[str]:
    """Give each front end the other one's compressor; return what is said."""
    # Triton, which torch's optimizers look for, ends the process when it is loaded after TensorFlow.
    importlib.import_module("torch._dynamo")

    import horovod.tensorflow
    import horovod.torch
    import tensorflow as tf
    import torch

    import hvd_compress.tensorflow
    import hvd_compress.torch

    said = []
    with pytest.raises(TypeError) as caught, tf.GradientTape() as tape:
        horovod.tensorflow.DistributedGradientTape(tape, compression=hvd_compress.torch.Compression.topk())
    said.append(str(caught.value))
    horovod.torch.init()
    weight = torch.nn.Parameter(torch.zeros(40, 40))
    optimizer = horovod.torch.DistributedOptimizer(
        torch.optim.SGD([weight], lr=0.1), [("w", weight)], compression=hvd_compress.tensorflow.Compression.topk()
    )
    with pytest.raises(TypeError) as caught:
        optimizer._compression.compress(torch.zeros(40, 40))
    said.append(str(caught.value))
    return said


BOTH = [TOPK, "dgc:density=0.1", "qsgd", "jointsq:bits_per_entry=1.0", "randomk:density=0.1", "cast:dtype=float16"]


def handed_over(framework: str) -> list[bytes]:
    """Exchange the same gradients by name; return what the skin hands to Horovod, payload after payload."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hvd = importlib.import_module(f"horovod.{framework}")
    skin = importlib.import_module(f"hvd_compress.{framework}")
    if framework == "torch":
        from torch import from_numpy as tensor_of

        from hvd_compress.torch.collective import HorovodCollective as Collective
    else:
        from tensorflow import constant as tensor_of

        from hvd_compress.tensorflow.collective import GraphCollective as Collective
    hvd.init()
    seen: list[bytes] = []
    allgather = Collective.allgather

    def watched(self: Any, buffer: Any, name: str) -> Any:
        # The torch skin's ranks compare their settings once.
        if not name.endswith(".agreement"):
            seen.append(np.asarray(buffer).tobytes())
        return allgather(self, buffer, name)

    Collective.allgather = watched
    for config in BOTH:
        compression = skin.Compression.from_config(config)
        compress = compression.compress

        def summed(tensor: Any, compress: Any = compress) -> Any:
            reduced, context = compress(tensor)
            seen.append(np.asarray(reduced).reshape(-1).tobytes())
            return reduced, context

        compression.compress = summed
        for step in range(3):
            gradient = tensor_of(gradients_of(step, hvd.rank())[0])
            hvd.allreduce(gradient, name="layer/w", compression=compression)
    return seen


def counted(framework: str, steps: int) -> dict[str, Any]:
    """Train with the same gradients; return what is counted of each tensor and of all, times left out."""
    counts = {}
    for config in BOTH:
        stats = (train if framework == "tensorflow" else train_torch)(steps, config)[1]
        assert stats.steps == steps
        for key in "02":
            tensor = stats.tensors[key]
            assert min(tensor.encode_seconds, tensor.wait_seconds, tensor.decode_seconds) > 0
        parts = {**stats.tensors, "total": stats.total, "compressed": stats.compressed, "step": stats.step}
        counts[config] = {key: (part.dense_bytes, part.sent_bytes, part.kept_entries) for key, part in parts.items()}
        counts[config]["state"] = stats.state_nbytes
    return counts


def test_both_skins_count_the_same() -> None:
    """F097."""
    ours, theirs = (own_launch.run(counted, framework, 10) for framework in ("tensorflow", "torch"))
    assert ours == theirs
    for config, kept in ((TOPK, 60), ("randomk:density=0.1", 120), ("qsgd", 1200)):
        parts = [ours[0][config][key][2] for key in ("0", "1", "2", "step")]
        assert parts == [10 * kept, 300, 10 * kept, 2 * kept + 30]
    assert [ours[0][config]["state"] for config in ("qsgd", TOPK)] == [0, 2 * 4800]


def test_both_skins_hand_the_same_bytes_to_horovod() -> None:
    ours, theirs = (own_launch.run(handed_over, framework) for framework in ("tensorflow", "torch"))
    gathered = sum(not config.startswith(("randomk", "cast")) for config in BOTH)
    assert len(ours[0]) == 3 * (len(BOTH) + gathered)
    assert ours == theirs
    assert ours[0] != ours[1]


def test_automatic_clustering_by_xla() -> None:
    """F085."""
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
    for weights, _ in own_launch.run(train, 20, env={"TF_XLA_FLAGS": flags}):
        for ours, theirs in zip(weights, expected_weights(TOPK, 2, 20), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_one_rank_sends_nothing() -> None:
    """F093: the traced branch that never runs keeps no state."""
    ((weights, stats),) = own_launch.run(train, 3, workers=1)
    assert stats == Stats()
    for i, ours in enumerate(weights):
        expected = -0.125 * np.sum([gradients_of(step, 0)[i] for step in range(3)], 0)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("launcher", ["mpi", "gloo"])
def test_a_rank_that_joins_early_ends_the_job_with_a_sentence(launcher: Launcher) -> None:
    """Horovod cannot gather while a rank has joined."""
    with pytest.raises(LaunchFailed, match=r"(?i)allgather is not supported with join"):
        own_launch.run(join_early, launcher=launcher)


def test_compressors_of_the_other_framework_are_refused() -> None:
    """F118: by TensorFlow's front end where it wraps, by torch's at the first gradient."""
    for wrapped, first in own_launch.run(mixed_up):
        assert "hvd_compress.tensorflow.Compression" in wrapped
        assert "for torch use hvd_compress.torch.Compression" in first
