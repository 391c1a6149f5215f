"""The methods of both studies and the settings of each, as data, and the config strings that they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_compress.payload import TensorSpec
from hvd_compress.policy import compose_config

__all__ = ["EQUAL_BYTES", "METHODS", "Method", "compression_of", "matched_density", "payload_nbytes"]

DENSITY_UNITS = 10**7
"""A density that is looked for is a whole number of these."""

JOINTSQ = "jointsq:bits_per_entry={bits_per_entry}"


@dataclass(frozen=True)
class Method:
    """A codec as the studies use it.

    Parameters
    ----------
    template : str
        Config string with fields for what the setting and the hyper-parameters decide.
    momentum : bool
        Whether the codec applies momentum, and not the optimizer.
    """

    template: str
    momentum: bool = False


METHODS = {
    "none": Method("none"),
    "topk": Method("topk:density={density}"),
    "dgc": Method("dgc:density={density},momentum={momentum}", momentum=True),
    "qsgd": Method("qsgd:{levels}"),
    "randomk": Method("randomk:density={density}"),
    "randomk-no-residual": Method("randomk:density={density},mode=unbiased,error_feedback=false"),
    "jointsq": Method(JOINTSQ),
    "jointsq-values": Method(f"{JOINTSQ},accounting=values"),
    "topk_qsgd": Method("topk_qsgd:density={density},bits=4"),
}
"""By the name that records have. ``jointsq-values`` counts as its paper does: the codes alone."""

QSGD_LEVELS = {
    "7bit": "bits=7",
    "5bit": "bits=5",
    "3bit": "bits=3",
    "smallest": "bits=2",
}
"""The bits that the first study counted for 64, 16 and 4 levels: zero is one of the levels, and a bit is the sign's."""

EQUAL_BYTES = ("31x", "100x", "1000x")
"""Settings at which each method sends as many bytes as JointSQ at that compression ratio."""


def compression_of(method: str, setting: str, parameters: Mapping[str, float], specs: Mapping[str, TensorSpec]) -> str:
    """Config string of a method at a setting.

    Parameters
    ----------
    method, setting : str
        A name of `METHODS`; a density, one of `QSGD_LEVELS` or one of `EQUAL_BYTES`.
    parameters : mapping
        Hyper-parameters, of which ``momentum`` is needed for DGC.
    specs : mapping
        Parameters of the model by name, on which the density at equal bytes depends.

    Examples
    --------
    >>> compression_of("dgc", "0.01", {"momentum": 0.3}, {})
    'dgc:density=0.01,momentum=0.3'
    >>> specs = {"weight": TensorSpec((1000, 1000), "float32")}
    >>> compression_of("topk", "100x", {}, specs), compression_of("jointsq", "100x", {}, specs)
    ('topk:density=0.0078034', 'jointsq:bits_per_entry=0.32')
    """
    template = METHODS[method].template
    momentum = parameters.get("momentum", 0.0)
    if not setting.endswith("x") or method.startswith("jointsq"):
        bits_per_entry = 32 / float(setting[:-1]) if setting.endswith("x") else 0.0
        return template.format(
            density=setting, levels=QSGD_LEVELS.get(setting), bits_per_entry=bits_per_entry, momentum=momentum
        )
    target = payload_nbytes(compression_of("jointsq", setting, {}, specs), specs)
    return template.format(density=matched_density(template, target, specs), momentum=momentum)


def payload_nbytes(compression: str, specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of a step's payloads of all tensors that a compressor compresses, without their seals."""
    policy = compose_config(compression)
    codecs = {name: policy.for_tensor(name, spec) for name, spec in specs.items()}
    usual = type(policy.codec)
    return sum(codec.payload_nbytes(specs[name]) for name, codec in codecs.items() if isinstance(codec, usual))


def matched_density(template: str, nbytes: int, specs: Mapping[str, TensorSpec]) -> float:
    """The largest density with which payloads take at most `nbytes`."""
    low, high = 1, DENSITY_UNITS
    while low < high:
        middle = (low + high + 1) // 2
        compression = template.format(density=middle / DENSITY_UNITS, momentum=0.0)
        if payload_nbytes(compression, specs) <= nbytes:
            low = middle
        else:
            high = middle - 1
    return low / DENSITY_UNITS
