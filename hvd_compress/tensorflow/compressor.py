"""The object that goes into ``compression=`` of ``horovod.tensorflow`` and of its Keras optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.compression import Compressor as HorovodCompressor

from hvd_compress.advice import refuse_momentum_twice, say_if_idle
from hvd_compress.codec import Array, Codec, Reduction
from hvd_compress.codecs.none import Dense
from hvd_compress.ops.denormals import host_thread
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import BySize
from hvd_compress.rules import ByStep
from hvd_compress.stats import Counts, Stats
from hvd_compress.tensorflow.bridge import call
from hvd_compress.tensorflow.caller import Caller, find_caller, refuse_keras_3, refuse_xla
from hvd_compress.tensorflow.dtypes import scale_tensor, sum_dtype
from hvd_compress.tensorflow.host import Host
from hvd_compress.tensorflow.keys import Keys, Place
from hvd_compress.tensorflow.phases import sum_if_any, sum_twice
from hvd_compress.tensorflow.saving import dumps, loads, saved_tensors

__all__ = ["Compressor"]

_ordinals = itertools.count()


class _Context(NamedTuple):
    """What `decompress` needs of `compress`; of a tensor that goes dense only the spec."""

    spec: TensorSpec
    place: Place | None = None
    number: tf.Tensor | None = None
    gathered: tf.Tensor | None = None
    totals: tf.Tensor | None = None
    reduced: tf.Tensor | None = None


class Compressor(HorovodCompressor, tf.train.experimental.PythonState):  # type: ignore[misc]
    """Compresses the gradients of one model; one instance on each rank.

    It can be given to ``tf.train.Checkpoint``; every rank has its own state, and must save its own.

    Parameters
    ----------
    policy : BySize
        From :func:`hvd_compress.compose`.
    loss_scale : LossScaleOptimizer, tf.Variable or callable, optional
        Where the current loss scale is read, if gradients are exchanged scaled. A step with an overflow on any rank
        then leaves every residual as it was, and residuals follow the scale. Takes twice the memory for state. A
        LossScaleOptimizer of Keras is found by itself; may be set until the first step.
    """

    def __init__(self, policy: BySize, *, loss_scale: Any = None) -> None:
        if isinstance(policy, ByStep):
            raise ValueError(
                "steps: TensorFlow's graphs keep the collectives that they were traced with; use one codec"
            )
        self.policy = policy
        self.loss_scale = loss_scale
        self._keys = Keys()
        self._host = Host(policy)
        self._ordinal: int | None = None
        # Not started by one of TensorFlow's threads, from which it would take their arithmetic.
        host_thread()
        say_if_idle(hvd)

    def __repr__(self) -> str:
        return f"Compressor({self.policy!r})"

    def __hash__(self) -> int:
        """Identity; Horovod asks for it when it wraps an optimizer, which is the time to refuse one of Keras 3."""
        refuse_keras_3()
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles start afresh: state belongs to one rank's training run."""
        if self.loss_scale is not None:
            raise TypeError("a compressor with loss_scale cannot be copied: the copy would not know the optimizer")
        return Compressor, (self.policy,)

    def clone(self) -> Compressor:
        """Return a new compressor of the same policy for another model."""
        return Compressor(self.policy)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Encode a gradient and start its exchange; called by Horovod, in a graph once for each trace.

        Parameters
        ----------
        tensor : tf.Tensor
            The gradient. Integers and booleans pass through.

        Returns
        -------
        tensor : tf.Tensor
            What Horovod is to reduce.
        context
            For `decompress`.

        Raises
        ------
        TypeError
            If the gradient is complex, or no tensor of TensorFlow's.
        ValueError
            If Horovod is not calling, the operation has no name, its reduction cannot be compressed, or the gradients
            are not those of the first trace.
        """
        if not isinstance(tensor, tf.Tensor | tf.Variable):
            kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
            raise TypeError(
                f"hvd_compress.tensorflow compresses tensors of TensorFlow, got {kind}: for torch use "
                "hvd_compress.torch.Compression"
            )
        if tensor.dtype.is_complex:
            raise TypeError(f"gradient's dtype must be a real one, got {tensor.dtype.name}")
        if not tensor.dtype.is_floating:
            return tensor, None
        refuse_xla()
        caller = find_caller(tensor)
        place = self._keys.locate(tensor, caller)
        codec = self.policy.for_tensor(place.name, place.spec)
        refuse_momentum_twice(codec, caller.settings)
        if self._ordinal is None:
            self._ordinal = next(_ordinals)
            self.loss_scale = caller.scaler if self.loss_scale is None else self.loss_scale
            self._host.commits_late = self.loss_scale is not None
        # Variables are exchanged together, in every step; how often a call by name runs is known to none but the graph.
        if type(codec) is Dense and self.loss_scale is None and caller.variables is not None:
            sent = tf.cast(tensor, sum_dtype(codec, place.spec))
            counts = Counts(place.spec.nbytes, place.spec.numel * sent.dtype.size, place.spec.numel)
            self._host.worker.beside[place.key] = counts
            return sent, _Context(place.spec)
        self._host.check_loaded(codec, place)
        with tf.name_scope("hvd_compress"):
            return self._send(codec, tensor, place, caller)

    def _send(self, codec: Codec, tensor: tf.Tensor, place: Place, caller: Caller) -> tuple[tf.Tensor, _Context]:
        sums = codec.reduction is Reduction.SUM
        # A group must have one dtype, that of its tensors that go dense.
        shared = sum_dtype(Dense(), place.spec) if caller.grouped else tf.float32
        dtype = sum_dtype(codec, place.spec) if sums else shared

        def encode(gradient: Array, scale: Array) -> Sequence[Array]:
            return self._host.encode(place, caller.process_set, gradient, scale, dtype.name)

        twice = codec.reduction is Reduction.TWO_PHASE
        row_dtype = sum_dtype(codec, place.spec).name if twice else "uint8"

        def advance(*arrays: Array) -> Sequence[Array]:
            return (self._host.advance(place, *arrays),)

        arguments, dtypes = [tensor, scale_tensor(self.loss_scale)], [dtype.name, row_dtype, "int64", "int64"]
        reduced, row, magnitudes, number = call(encode, arguments, dtypes)
        name = f"hvd_compress_{self._ordinal}_{place.operation}"
        options = {"process_set": caller.process_set, "ignore_name_scope": True}
        context = _Context(place.spec, place, number)
        if twice:
            context = context._replace(gathered=sum_twice(row, advance, number, name, options))
        elif not sums:
            context = context._replace(gathered=hvd.allgather(row, name=name, **options))
        if codec.shared_every:
            context = context._replace(totals=sum_if_any(magnitudes, f"{name}_magnitudes", options))
        if caller.grouped and dtype != shared:
            own = hvd.allreduce(reduced, name=f"{name}_sum", **caller.scaling, **options)
            # What is left for the group to reduce is not looked at.
            context, reduced = context._replace(reduced=own), tf.cast(own[:1] * 0, shared)
        return tf.identity(reduced, name=name), context

    def decompress(self, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Finish the exchange of a gradient; called by Horovod.

        Parameters
        ----------
        tensor : tf.Tensor
            What Horovod made of the tensor that `compress` returned.
        ctx
            From `compress`; None for a tensor that passed through.

        Returns
        -------
        tf.Tensor
            The combined gradient; not finite on every rank if it was not on one.

        Raises
        ------
        CompressionError
            If a payload was damaged or the ranks are out of step; from a graph, an error of TensorFlow's that holds
            its message.
        """
        if ctx is None:
            return tensor
        spec, place = ctx.spec, ctx.place
        if place is None:
            return tf.cast(tensor, spec.dtype)
        reduced = tensor if ctx.reduced is None else ctx.reduced
        gathered = tf.zeros(0, tf.uint8) if ctx.gathered is None else ctx.gathered
        totals = tf.zeros(0, tf.int64) if ctx.totals is None else ctx.totals

        def decode(*arrays: Array) -> Sequence[Array]:
            return (self._host.decode(place, *arrays),)

        with tf.name_scope("hvd_compress"):
            (result,) = call(decode, [reduced, gathered, totals, ctx.number], [spec.dtype], in_order=False)
            return tf.ensure_shape(result, spec.shape)

    def stats(self) -> Stats:
        """Return what was sent, how long it took and what the state takes on this rank: a snapshot."""
        return self._host.stats()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's residuals and step numbers, as NumPy arrays.

        Call it between steps. Every rank has its own: save one for each.
        """
        return {"tensors": self._host.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned on this rank.

        Raises
        ------
        ValueError
            If it is no such dictionary, or for other shapes than the gradients so far. Where there were none yet, it
            is compared when the function is traced that exchanges them.
        """
        loaded = saved_tensors(state_dict)
        self._keys.compare_shapes({key: tuple(value["shape"]) for key, value in loaded.items()})
        self._host.load(loaded)

    def serialize(self) -> bytes:
        """Return the state for ``tf.train.Checkpoint``."""
        return dumps(self.state_dict())

    def deserialize(self, string_value: bytes) -> None:
        """Go on from what `serialize` returned; errors as `load_state_dict`."""
        self.load_state_dict(loads(string_value))
