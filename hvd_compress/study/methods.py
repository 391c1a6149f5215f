"""The methods of the studies and the settings of each, as data, and the config strings that they come to."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_compress.codec import Codec
from hvd_compress.payload import TensorSpec
from hvd_compress.policy import compose_config, wrapper_parameters
from hvd_compress.registry import codec_class, parse_config

__all__ = [
    "EQUAL_BYTES",
    "METHODS",
    "codec_of",
    "compression_of",
    "matched_density",
    "payload_nbytes",
    "searches_momentum",
]

DENSITY_UNITS = 10**7
"""A density that is looked for is a whole number of these."""

JOINTSQ = "jointsq:bits_per_entry={bits_per_entry}"


METHODS = {
    "topk": "topk:density={density}",
    "dgc": "dgc:density={density}",
    "qsgd": "qsgd:{levels}",
    "randomk": "randomk:density={density}",
    "randomk-no-residual": "randomk:density={density},mode=unbiased,error_feedback=false",
    "jointsq": JOINTSQ,
    "jointsq-values": f"{JOINTSQ},accounting=values",
    "topk_qsgd": "topk_qsgd:density={density},bits=4",
}
"""Config strings by the name that records have, with a field for what a preset's setting decides.

``jointsq-values`` counts as its paper does: the codes alone. Other settings are parameters of the codec that the method
is named after: "powersgd" at "rank=2", or at "", which is its default.
"""

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
        A name of `METHODS`, and a density, one of `QSGD_LEVELS` or one of `EQUAL_BYTES`; or a codec and its parameters.
    parameters : mapping
        Hyper-parameters, of which codecs that `searches_momentum` is true of need ``momentum``.
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
    config = _of_codec(method, setting) if _is_of_codec(setting) else _of_preset(METHODS[method], setting, specs)
    if not searches_momentum(method, setting):
        return config
    return f"{config}{',' if ':' in config else ':'}momentum={parameters['momentum']}"


def codec_of(method: str, setting: str) -> Codec:
    """The codec of a method, with the wrappers around it; that of a preset's method with defaults for its parameters.

    Raises
    ------
    TypeError, ValueError
        As from `compose_config`, for a config string.
    """
    if _is_of_codec(setting):
        return compose_config(_of_codec(method, setting)).codec
    return codec_class(METHODS[method].partition(":")[0])()


def searches_momentum(method: str, setting: str) -> bool:
    """Whether momentum is a hyper-parameter: the codec applies it, and the setting leaves open how much.

    >>> [searches_momentum("dgc", setting) for setting in ("0.01", "", "density=0.01", "momentum=0.9")]
    [True, True, True, False]
    """
    if not codec_of(method, setting).has_momentum:
        return False
    config = parse_config(_of_codec(method, setting), wrapper_parameters()) if _is_of_codec(setting) else {}
    return "momentum" not in config


def _is_of_codec(setting: str) -> bool:
    return not setting or "=" in setting


def _of_codec(method: str, setting: str) -> str:
    return f"{method}:{setting}" if setting else method


def _of_preset(template: str, setting: str, specs: Mapping[str, TensorSpec]) -> str:
    if not setting.endswith("x"):
        return template.format(density=setting, levels=QSGD_LEVELS.get(setting))
    if template.startswith(JOINTSQ):
        return template.format(bits_per_entry=32 / float(setting[:-1]))
    target = payload_nbytes(_of_preset(JOINTSQ, setting, specs), specs)
    return template.format(density=matched_density(template, target, specs))


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
        compression = template.format(density=middle / DENSITY_UNITS)
        if payload_nbytes(compression, specs) <= nbytes:
            low = middle
        else:
            high = middle - 1
    return low / DENSITY_UNITS
