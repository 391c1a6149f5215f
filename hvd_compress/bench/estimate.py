"""Whether a codec makes a step faster, from what a link, encoding and decoding cost."""

from __future__ import annotations

from typing import Any, NamedTuple

from hvd_compress.bench.link import Link

__all__ = ["Cost", "Estimate", "dense_cost", "estimate"]


class Cost(NamedTuple):
    """What exchanging a gradient once costs.

    Attributes
    ----------
    codec : str
        Its config, or "dense" or "fp16" for Horovod's own.
    payload_bytes : int
        Bytes that a rank hands over.
    encode, wire, decode : float
        Seconds.
    """

    codec: str
    payload_bytes: int
    encode: float
    wire: float
    decode: float

    @property
    def exchange(self) -> float:
        """Seconds from the gradient to the combined one."""
        return self.encode + self.wire + self.decode


class Estimate(NamedTuple):
    """How long a step takes with a codec, and whether that is faster than dense.

    Attributes
    ----------
    cost : Cost
    step, step_overlapped : float
        Seconds: where the exchange begins when all gradients are there; where the network works all the while that
        gradients are computed, but encoding and decoding need the time of the computing.
    verdict : str
        "faster" or "slower" than dense in both cases, else "depends"; "baseline" for dense itself.
    """

    cost: Cost
    step: float
    step_overlapped: float
    verdict: str

    def facts(self) -> dict[str, Any]:
        """JSON-ready form."""
        cost = self.cost
        return {
            "codec": cost.codec,
            "payload_bytes": cost.payload_bytes,
            "encode_ms": 1e3 * cost.encode,
            "wire_ms": 1e3 * cost.wire,
            "decode_ms": 1e3 * cost.decode,
            "exchange_ms": 1e3 * cost.exchange,
            "step_ms": 1e3 * self.step,
            "step_overlapped_ms": 1e3 * self.step_overlapped,
            "verdict": self.verdict,
        }


def dense_cost(link: Link, nbytes: int) -> Cost:
    """Cost of Horovod without compression."""
    return Cost("dense", nbytes, 0.0, link.allreduce.seconds(nbytes), 0.0)


def estimate(costs: list[Cost], compute: float) -> list[Estimate]:
    """Estimate steps in which computing takes `compute` seconds; the first cost is that of dense."""
    dense = _steps(costs[0], compute)
    estimates = []
    for cost in costs:
        steps = _steps(cost, compute)
        wins = [step < reference for step, reference in zip(steps, dense, strict=True)]
        verdict = "faster" if all(wins) else "depends" if any(wins) else "slower"
        estimates.append(Estimate(cost, *steps, "baseline" if cost is costs[0] else verdict))
    return estimates


def _steps(cost: Cost, compute: float) -> tuple[float, float]:
    return compute + cost.exchange, max(compute, cost.wire) + cost.encode + cost.decode
