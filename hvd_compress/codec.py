"""What a codec is: a pure transform of one tensor, described by a frozen dataclass of hyper-parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hvd_compress.errors import CompressionError
from hvd_compress.parameters import check_parameters
from hvd_compress.payload import Addends, Payload, TensorSpec
from hvd_compress.traits import Feedback, Reduction

if TYPE_CHECKING:
    from hvd_compress.generator import Site
    from hvd_compress.ops.kernels import Kernels

__all__ = ["Array", "Codec", "CompressionError", "Feedback", "Reduction", "State"]

Array = Any
State = Mapping[str, Array]
"""What a codec keeps between steps: name -> float32 array of n entries. Empty when it keeps nothing."""


class Codec(ABC):
    """A compression algorithm, written once over the array operations of every framework.

    Subclasses are frozen dataclasses, registered with :func:`hvd_compress.registry.register`, whose fields are
    declared with :mod:`hvd_compress.parameters`. A codec holds hyper-parameters only: state goes in and comes out, and
    payload sizes depend on the codec and the tensor's spec alone. Nothing here branches in Python on the value of an
    array, so that a framework may trace it.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    """Where the algorithm was published."""
    wrapper: ClassVar[bool] = False
    """Whether it wraps another codec and is added by `compose` rather than chosen by name."""
    knobs: ClassVar[tuple[str, ...]] = ()
    """Parameters that set the size of a payload: the first one finely, the others in a few steps."""

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    @abstractmethod
    def reduction(self) -> Reduction:
        """How payloads are combined."""

    @property
    def unbiased(self) -> bool:
        """Whether the decoded tensor equals the input on average."""
        return False

    @property
    def fixed_size(self) -> bool:
        """Whether payload sizes are independent of the data."""
        return True

    @property
    def feedback(self) -> Feedback:
        """What error feedback does for this codec."""
        return Feedback.OPTIONAL

    @property
    def keeps_scale(self) -> bool:
        """Whether results grow with the gradients; if not, the learning rate alone sets how far a step goes."""
        return True

    @property
    def common_states(self) -> tuple[str, ...]:
        """Names of what is equal on all ranks in the state."""
        return ()

    @property
    def entangled(self) -> bool:
        """Whether the ranks' states mean something only together: other ranks must begin anew, from zeros."""
        return False

    @property
    def in_pieces(self) -> bool:
        """Whether a huge tensor may be compressed piece by piece."""
        return self.reduction is not Reduction.TWO_PHASE

    @property
    def companion(self) -> Codec | None:
        """The codec for tensors that are too small to compress; None for plain dense ones."""
        return None

    @property
    def has_momentum(self) -> bool:
        """Whether the codec applies momentum, so that the optimizer must not."""
        return False

    def at_step(self, step: int) -> Codec:
        """Return the codec of one step; schedules choose here, ranks agree without talking."""
        return self

    def for_tensor(self, name: str, spec: TensorSpec) -> Codec:
        """Return the codec that handles this tensor; policies choose here, ranks agree without talking."""
        return self

    @property
    def shared_every(self) -> int:
        """Steps between new shares of one budget for all tensors; 0: each tensor has a budget of its own."""
        return 0

    def cost(self, spec: TensorSpec) -> int:
        """What the codec spends on a tensor, in a unit of its own."""
        return self.payload_nbytes(spec)

    def cost_at(self, spec: TensorSpec, above: Array, lowest: int) -> int:
        """What it would spend if it sent every entry from bin `lowest` on; `above[j]` counts entries in bins >= j."""
        return self.cost(spec)

    def with_budget(self, budget: int) -> Codec:
        """Return the codec that spends so much on its tensor."""
        return self

    def init(self, ops: Kernels, spec: TensorSpec) -> State:
        """Return the state before the first step."""
        return {}

    @abstractmethod
    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        """Compress one gradient.

        Parameters
        ----------
        ops : ArrayOps
            Operations of the framework that `x` belongs to.
        x : array, shape (n,)
            The gradient; not modified.
        state : mapping
            From `init` or the last `encode`; not modified unless it is `out`.
        site : Site
            Tensor name, step, rank and number of ranks.
        out : mapping, optional
            A state of the same shape whose arrays may be overwritten with the new one; it may be `state` itself.

        Returns
        -------
        payload : Payload
        state : mapping
            The new state; the old one itself when the input was not finite.
        """

    def encode_sum(
        self, ops: Kernels, addends: Addends, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State, Array]:
        """`encode` what error feedback has summed up; return that sum, too."""
        total = ops.accumulate(*addends)
        return *self.encode(ops, total, state, site, out), total

    def encode_second(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        """Return what is summed in the second phase (TWO_PHASE only), 1-D float32.

        `payload` holds the sum of the first payloads, and in `source` what `encode` compressed on this rank.
        """
        raise TypeError(f"{self!r} has no second phase")

    def conclude(self, ops: Kernels, payload: Payload, state: State, spec: TensorSpec, site: Site) -> State:
        """Return the state once both sums are known (TWO_PHASE only).

        `payload` holds both, in `source` what `encode` compressed on this rank, and in `kept` what it decodes to.
        """
        return state

    @abstractmethod
    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        """Decompress one payload (SUM: the reduced one) to an array of shape (n,).

        A payload with both sums (TWO_PHASE) becomes the mean over the ranks.

        Raises
        ------
        ValueError
            If the payload cannot have come from `encode`.
        """

    def decode_into(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site, into: Array | None) -> Array:
        """`decode` that may overwrite float32 `into`, where it is given."""
        return self.decode(ops, payload, spec, site)

    def add_decoded(self, ops: Kernels, total: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        """Add the decoded payload to float32 `total`, which may be overwritten."""
        return ops.scale_add(total, self.decode(ops, payload, spec, site), 1.0, total)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        """`factor` (one entry) times the sum of decoded payloads, added in order; may overwrite float32 `into`."""
        total = ops.fill_zero(into)
        for payload in payloads:
            total = self.add_decoded(ops, total, payload, spec, site)
        return ops.scale(total, factor, total)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        """Return what `payload` failed to say of float32 `x`, which may be overwritten.

        TWO_PHASE: what both sums have not taken up; all of `x` where they are not finite.
        """
        return ops.subtract(x, self.decode(ops, payload, spec, site), x)

    def absorb(self, ops: Kernels, reduced: Array, state: State, site: Site) -> tuple[Array, State]:
        """Turn the combined gradient, shape (n,), into what the optimizer gets; return it and the new state.

        Both are as on every other rank. `reduced` may be overwritten, `state` not.
        """
        return reduced, state

    def unsent(self, ops: Kernels, state: State) -> Array | None:
        """What the state holds of gradients that were not sent yet, float32 of shape (n,); None if it holds nothing."""
        return None

    def holding(self, ops: Kernels, state: State, unsent: Array) -> State | None:
        """Return the state from `init` with that put into it; None if it has no place for it."""
        return None

    def release(self, ops: Kernels, x: Array, state: State, site: Site) -> tuple[Array, State]:
        """Return gradient `x` together with all that is unsent, float32, and the state once that has been sent."""
        return ops.float32(x), state

    def rescale(self, state: State, factor: float) -> State:
        """Return the state as if all gradients so far had been `factor` times as large (loss scaling)."""
        return {key: value * factor for key, value in state.items()}

    def counts(self, spec: TensorSpec) -> tuple[int, ...]:
        """Counts in the header of a normal payload (GATHER only), where they do not depend on the data."""
        return (spec.numel,)

    @abstractmethod
    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        """Bytes of each part of a payload; where sizes vary, the most that the last one can have."""

    def payload_nbytes(self, spec: TensorSpec) -> int:
        """Bytes of a payload, header included, without the seal that the wire layer adds.

        Exact where sizes are fixed, else the most that it can be.
        """
        header = 4 + 4 * len(self.counts(spec)) if self.reduction is Reduction.GATHER else 0
        return header + sum(self.part_nbytes(spec))
