"""What was sent and how long it took, counted where buffers are handed to Horovod."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Counts", "Stats"]


@dataclass(slots=True)
class Counts:
    """Sums over some tensors and steps, on this rank.

    Attributes
    ----------
    dense_bytes : int
        Bytes of the gradients before compression.
    sent_bytes : int
        Bytes of the buffers handed to Horovod. Not counted: settings, compared once, and 4 bytes for each step that
        gathers, by which ranks are counted.
    kept_entries : int
        Entries of the gradients that were sent: all of them unless the codec chooses some.
    encode_seconds, wait_seconds, decode_seconds : float
        Wall-clock time in `compress`; between the last gradient handed over and its result; in decoding.
    """

    dense_bytes: int = 0
    sent_bytes: int = 0
    kept_entries: int = 0
    encode_seconds: float = 0.0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def compression_ratio(self) -> float:
        """Dense bytes / sent bytes; 1 when nothing was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0

    def add(self, other: Counts) -> None:
        """Add the sums of `other`."""
        self.dense_bytes += other.dense_bytes
        self.sent_bytes += other.sent_bytes
        self.kept_entries += other.kept_entries
        self.encode_seconds += other.encode_seconds
        self.wait_seconds += other.wait_seconds
        self.decode_seconds += other.decode_seconds

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "compression_ratio": self.compression_ratio}


@dataclass
class Stats:
    """Counts of the last step, of all steps, and of all steps by tensor.

    Attributes
    ----------
    steps : int
        Steps counted.
    step : Counts
        Of the last step.
    tensors : dict
        Tensor name -> Counts over all steps.
    compressed : Counts
        Over all steps, of the tensors that are compressed: without those that go dense.
    state_nbytes : int
        Bytes of all residuals and momenta that are held now, those included that wait for a loss scaler or make room.
    """

    steps: int = 0
    step: Counts = field(default_factory=Counts)
    compressed: Counts = field(default_factory=Counts)
    tensors: dict[str, Counts] = field(default_factory=dict)
    state_nbytes: int = 0

    @property
    def total(self) -> Counts:
        """Over all steps and tensors."""
        total = Counts()
        for counts in self.tensors.values():
            total.add(counts)
        return total

    def begin_step(self) -> None:
        """Start counting a new step."""
        self.steps += 1
        self.step = Counts()

    def add(self, tensor: str, counts: Counts, compressed: bool) -> None:
        """Count something that happened to a tensor in this step."""
        self.step.add(counts)
        if tensor not in self.tensors:
            self.tensors[tensor] = Counts()
        self.tensors[tensor].add(counts)
        if compressed:
            self.compressed.add(counts)

    def write_scalars(self, writer: Any, step: int, prefix: str = "compression/") -> None:
        """Write the last step's counts as scalars.

        Parameters
        ----------
        writer
            With the method ``add_scalar(tag, value, step)``, such as ``torch.utils.tensorboard.SummaryWriter``.
        step : int
            That they are written for.
        prefix : str
            Put before each name.
        """
        for name, value in {**self.step.as_dict(), "state_nbytes": self.state_nbytes}.items():
            writer.add_scalar(prefix + name, value, step)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "steps": self.steps,
            "step": self.step.as_dict(),
            "total": self.total.as_dict(),
            "compressed": self.compressed.as_dict(),
            "tensors": {name: counts.as_dict() for name, counts in self.tensors.items()},
            "state_nbytes": self.state_nbytes,
        }
