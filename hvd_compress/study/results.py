"""What a training run found, as data that is written to and read from JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT_FILE = "result.json"


@dataclass(frozen=True)
class CurvePoint:
    """One look at the model while it trains.

    Parameters
    ----------
    step : int
        Optimizer steps done.
    sent_bytes : int
        Gradient bytes that this worker has handed to Horovod so far.
    train_loss : float
        Mean cross-entropy since the last point, in nats per word, over all ranks.
    validation_perplexity : float
        On the whole validation part.
    """

    step: int
    sent_bytes: int
    train_loss: float
    validation_perplexity: float


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step and worker, as handed to Horovod.

    Parameters
    ----------
    dense_bytes, sent_bytes : int
        All gradients uncompressed, and what was handed over in their place.
    compressed_dense_bytes, compressed_sent_bytes : int
        The same for those gradients alone that were compressed.
    gathered_bytes : int
        The part of ``sent_bytes`` that every other worker receives as it is; the rest is all-reduced.
    """

    dense_bytes: int
    sent_bytes: int
    compressed_dense_bytes: int
    compressed_sent_bytes: int
    gathered_bytes: int

    @property
    def compression_ratio(self) -> float:
        """Dense bytes over sent bytes, all gradients; 1 when nothing was sent."""
        return self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0

    @property
    def compressed_ratio(self) -> float:
        """Dense bytes over sent bytes of the compressed gradients; 1 when none was compressed."""
        return self.compressed_dense_bytes / self.compressed_sent_bytes if self.compressed_sent_bytes else 1.0

    def wire_bytes(self, workers: int) -> float:
        """Bytes that one worker puts on its link in a step.

        A ring all-reduce moves 2(W-1)/W times the buffer, an all-gather (W-1) times the payload.
        """
        reduced = self.sent_bytes - self.gathered_bytes
        return 2 * (workers - 1) / workers * reduced + (workers - 1) * self.gathered_bytes


@dataclass(frozen=True)
class StepTime:
    """Mean milliseconds of a step on rank 0, without the first few steps.

    ``wait`` is the time inside Horovod's ``synchronize`` less ``decode``: what the step waits for the other workers
    and for the exchange after its own gradients are done.
    """

    step: float
    encode: float
    wait: float
    decode: float

    def at_bandwidth(self, wire_bytes: float, bits_per_second: float = 1e9) -> float:
        """Milliseconds of a step if a link limited the exchange: the step without waiting, plus the transfer."""
        return self.step - self.wait + wire_bytes * 8 / bits_per_second * 1e3


@dataclass(frozen=True)
class RunResult:
    """All that a run reports; ``config`` holds the settings as plain JSON values."""

    config: dict[str, Any]
    workers: int
    parameters: int
    curve: tuple[CurvePoint, ...]
    test_perplexity: float
    traffic: Traffic
    milliseconds: StepTime
    seconds: float
    parameter_crc32: tuple[int, ...]

    @property
    def parameters_equal(self) -> bool:
        """Whether all ranks ended with the same parameters, bit for bit."""
        return len(set(self.parameter_crc32)) == 1

    def as_dict(self) -> dict[str, Any]:
        """JSON values, with the derived figures that a reader of the file wants."""
        values = dataclasses.asdict(self)
        values["parameters_equal"] = self.parameters_equal
        values["traffic"]["compression_ratio"] = self.traffic.compression_ratio
        values["traffic"]["compressed_ratio"] = self.traffic.compressed_ratio
        return values

    def save(self, directory: Path) -> Path:
        """Write ``result.json`` in one go, so that a reader never sees half of it."""
        path = directory / RESULT_FILE
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
        return path

    @classmethod
    def load(cls, directory: Path) -> RunResult:
        """Read what `save` wrote."""
        values = json.loads((directory / RESULT_FILE).read_text(encoding="utf-8"))
        own = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        traffic = {field.name: values["traffic"][field.name] for field in dataclasses.fields(Traffic)}
        return cls(
            **own
            | {
                "curve": tuple(CurvePoint(**point) for point in values["curve"]),
                "traffic": Traffic(**traffic),
                "milliseconds": StepTime(**values["milliseconds"]),
                "parameter_crc32": tuple(values["parameter_crc32"]),
            }
        )
