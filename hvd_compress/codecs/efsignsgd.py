"""EF-signSGD: signs, scaled by the mean magnitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_compress.codec import Array, Codec, Feedback, Reduction, State
from hvd_compress.codecs._scales import flag_of_scales, read_scales, usable
from hvd_compress.codecs._signs import signs_nbytes
from hvd_compress.generator import Site
from hvd_compress.ops.kernels import Kernels
from hvd_compress.payload import Payload, TensorSpec
from hvd_compress.registry import register

__all__ = ["EFSignSGD"]


@register("efsignsgd")
@dataclass(frozen=True)
class EFSignSGD(Codec):
    """Send the sign of each entry, and the mean magnitude of all; results are averages of signs times means.

    References
    ----------
    S. P. Karimireddy et al., "Error feedback fixes signSGD and other gradient compression schemes", 2019 (EF-signSGD).

    Notes
    -----
    The sign of zero is plus. Entries that are always zero, such as rows of an embedding for padding, go to and fro by
    about a mean magnitude times the learning rate, since error feedback takes back what they got. To keep them where
    they are, set them back after each step.

    The paper multiplies gradients by the learning rate before they are compressed; here, as with all codecs, it is the
    optimizer's.

    Examples
    --------
    >>> import numpy as np
    >>> from hvd_compress import Site, TensorSpec, ops_for
    >>> from hvd_compress.codecs import EFSignSGD
    >>> x = np.array([1, -2, 3, -4], np.float32)
    >>> codec, ops, site = EFSignSGD(), ops_for(x), Site("w", step=0)
    >>> payload, _ = codec.encode(ops, x, {}, site)
    >>> codec.decode(ops, payload, TensorSpec((4,), "float32"), site).tolist()
    [2.5, -2.5, 2.5, -2.5]
    """

    paper = "Karimireddy et al. 2019"

    @property
    def reduction(self) -> Reduction:
        return Reduction.GATHER

    @property
    def feedback(self) -> Feedback:
        return Feedback.USUAL

    def encode(
        self, ops: Kernels, x: Array, state: State, site: Site, out: State | None = None
    ) -> tuple[Payload, State]:
        x = ops.float32(x)
        n = ops.shape(x)[0]
        # A product, because graphs of TensorFlow make one of a division by a number, too.
        mean = usable(ops, ops.float32(ops.magnitude_sums(x, max(1, n), ("all",))[0] * (1.0 / max(1, n))))
        return Payload((ops.to_bytes(mean), ops.pack_negative(x)), flag_of_scales(ops, mean), (n,)), state

    def decode(self, ops: Kernels, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        n = spec.numel
        return ops.restore_codes(payload.parts[1], 1, self._values(ops, payload), max(1, n), n)

    def combine(
        self, ops: Kernels, payloads: Sequence[Payload], spec: TensorSpec, site: Site, factor: Array, into: Array
    ) -> Array:
        rows = [(payload.parts[1], self._values(ops, payload)) for payload in payloads]
        return ops.sum_codes(rows, 1, max(1, spec.numel), factor, into)

    def error(self, ops: Kernels, x: Array, payload: Payload, spec: TensorSpec, site: Site) -> Array:
        return ops.subtract_codes(x, payload.parts[1], 1, self._values(ops, payload), max(1, spec.numel))

    def _values(self, ops: Kernels, payload: Payload) -> Array:
        """What the two signs stand for."""
        mean = read_scales(ops, payload.parts[0])
        return ops.concat([mean, -mean])

    def part_nbytes(self, spec: TensorSpec) -> tuple[int, ...]:
        return 4 * min(1, spec.numel), signs_nbytes(spec.numel)
