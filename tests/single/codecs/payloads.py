"""What codecs send and what arrives, as their own tests ask for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_compress import Site, TensorSpec
from hvd_compress.wire import pack, unpack
from tests.cases import ops_of, to_backend, to_numpy

SITE = Site("fc.weight", step=7)
X = np.array([0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8], np.float32)
"""The entries of the published payloads."""
Array = np.ndarray[Any, Any]


def wire(codec: Any, x: Array = X, backend: str = "numpy") -> str:
    """Return the hex of a first payload."""
    ops, spec = ops_of(backend), TensorSpec(x.shape, "float32")
    payload, _ = codec.encode(ops, to_backend(backend, x), codec.init(ops, spec), SITE)
    return to_numpy(pack(ops, payload)).tobytes().hex()


def decoded(codec: Any, x: Array, site: Site = SITE) -> Array:
    """Return what arrives of a first gradient."""
    ops, spec = ops_of("numpy"), TensorSpec(x.shape, "float32")
    with ops.quiet():
        payload, _ = codec.encode(ops, x.reshape(-1), codec.init(ops, spec), site)
    return np.asarray(codec.decode(ops, payload._replace(kept=None), spec, site))


def decoded_after(codec: Any, change: dict[int, int], x: Array = X) -> Array:
    """Return what is made of a payload of which some bytes were replaced."""
    ops, spec = ops_of("numpy"), TensorSpec(x.shape, "float32")
    packed = np.frombuffer(bytes.fromhex(wire(codec, x)), np.uint8).copy()
    for position, value in change.items():
        packed[position] = value
    return np.asarray(codec.decode(ops, unpack(ops, packed, codec, spec), spec, SITE))
