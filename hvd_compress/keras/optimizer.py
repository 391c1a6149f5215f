"""An optimizer of Keras 3 that applies the combined gradients of all ranks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from hvd_compress.tensorflow.caller import refuse_xla

__all__ = ["DistributedOptimizer"]

_ordinals = itertools.count()


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    *,
    compression: Any = None,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    process_set: Any = hvd.global_process_set,
) -> keras.optimizers.Optimizer:
    """Return an optimizer of the same kind that combines the gradients of all ranks before it applies them.

    An optimizer with ``gradient_accumulation_steps`` adds gradients up on each rank and exchanges the sum once.
    Under the policy ``mixed_float16`` the loss scaler must be inside: one is put there if it is missing, because Keras
    would put it outside, where a rank that overflows leaves the others waiting.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        Left as it is. A saved model holds an optimizer of its kind: wrap that again after loading.
    compression
        One of :class:`hvd_compress.tensorflow.Compression` or of Horovod's own; None for none.
    op
        ``hvd.Average`` or ``hvd.Sum``.
    gradient_predivide_factor : float
        With Average: gradients are divided by it before the sum, and by ranks / factor after it.
    process_set : horovod.tensorflow.ProcessSet
        The ranks that train together.

    Raises
    ------
    TypeError
        If `optimizer` is none of Keras 3, or `compression` no compressor.
    ValueError
        If it is wrapped already, or `op` or `gradient_predivide_factor` is not allowed.
    """
    compression = hvd.Compression.none if compression is None else compression
    _check(optimizer, compression, op, gradient_predivide_factor)
    scaler = keras.optimizers.LossScaleOptimizer
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(optimizer, scaler):
        optimizer = scaler(optimizer)
    kind = optimizer.__class__
    # The same name and module: a saved model is then loaded with the plain kind.
    cls = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    wrapped: Any = cls.from_config(optimizer.get_config())  # type: ignore[attr-defined]
    factor = gradient_predivide_factor
    scaling = {"prescale_factor": 1.0 / factor, "postscale_factor": factor} if factor != 1.0 else {}
    wrapped._set_up(compression, {"op": op, "process_set": process_set, **scaling})
    return wrapped


class _Distributed:
    """Comes before the class of the optimizer that it makes a distributed one of."""

    _steps: int | None = None
    _trainable_variables: Sequence[Any]

    def _set_up(self, compression: Any, options: dict[str, Any]) -> None:
        self._compression = compression
        self._options = options
        self._steps = self._base.gradient_accumulation_steps
        if isinstance(self, keras.optimizers.LossScaleOptimizer) and hasattr(compression, "loss_scale"):
            compression.loss_scale = self

    @property
    def _base(self) -> Any:
        """The optimizer that makes the update: the inner one of a loss scaler."""
        return getattr(self, "inner_optimizer", self)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the variables, the sums of gradients among them."""
        super().build(variables)  # type: ignore[misc]
        # From here on the sums are ours: Keras would update from its own rank's.
        self._base.gradient_accumulation_steps = None

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Combine the ranks' gradients and apply them; arguments as of Keras' own optimizers."""
        refuse_xla()
        _refuse_outer_scaler(self)
        if not self.built:  # type: ignore[has-type]
            self.build(trainable_variables)  # type: ignore[arg-type]
            self.built = True
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self._steps:
            super().apply(self._combined(grads, variables), variables)  # type: ignore[misc]
            return
        sums = [self._base._accumulated_gradients[self._base._get_variable_index(v)] for v in variables]
        for total, gradient in zip(sums, grads, strict=True):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))
        due = (self._base.iterations + 1) % self._steps == 0

        def update() -> None:
            averages = [
                None if gradient is None else total / self._steps for total, gradient in zip(sums, grads, strict=True)
            ]
            passes = tf.identity(self._base.iterations.value)
            super(_Distributed, self).apply(self._combined(averages, variables), variables)  # type: ignore[misc]
            # A loss scaler that skips the update does not count the pass.
            self._base.iterations.assign(passes + 1)
            for total in sums:
                total.assign(tf.zeros_like(total))

        def wait() -> None:
            self._base.iterations.assign_add(1)

        tf.cond(due, update, wait)

    def _combined(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        process_set = self._options["process_set"]
        if not process_set.included() or process_set.size() == 1:
            return list(grads)
        if not hasattr(self, "_ordinal"):
            self._ordinal = next(_ordinals)
        # The compressor looks for these names on the stack.
        return [
            grad
            if grad is None
            else hvd.allreduce(
                grad,
                compression=self._compression,
                name=f"keras_{self._ordinal}_{i}",
                ignore_name_scope=True,
                **self._options,
            )
            for i, grad in enumerate(grads)
        ]

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the plain optimizer."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        if self._steps:
            base = config["inner_optimizer"]["config"] if "inner_optimizer" in config else config
            base["gradient_accumulation_steps"] = self._steps
        return config


def _check(optimizer: Any, compression: Any, op: Any, factor: float) -> None:
    if isinstance(optimizer, _Distributed):
        raise ValueError("optimizer must not be wrapped twice")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        raise TypeError(f"optimizer must be one of Keras 3, got {kind}")
    if type(compression).__module__.startswith("hvd_compress.torch") or not hasattr(compression, "compress"):
        raise TypeError(
            "compression must come from hvd_compress.tensorflow.Compression or be one of Horovod's own, got "
            f"{compression!r}"
        )
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, got {op}")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise ValueError(f"gradient_predivide_factor must be a number > 0, got {factor!r}")
    if factor != 1.0 and op != hvd.Average:
        raise ValueError(f"gradient_predivide_factor must be 1 with hvd.Sum, got {factor!r}")


def _refuse_outer_scaler(optimizer: Any) -> None:
    """Raise ``ValueError`` if a loss scaler is calling that decides on its own rank whether to."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(40):
        if frame is None:
            return
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.optimizers.LossScaleOptimizer) and owner.inner_optimizer is optimizer:
            raise ValueError(
                "LossScaleOptimizer must be inside: DistributedOptimizer(LossScaleOptimizer(optimizer)). Outside, a "
                "rank that overflows would leave the others waiting"
            )
        frame = frame.f_back
