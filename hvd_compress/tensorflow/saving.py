"""A compressor's state as bytes, for ``tf.train.Checkpoint`` and for files."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["dumps", "loads", "saved_tensors"]


def saved_tensors(state_dict: Any) -> dict[str, Any]:
    """Return what a state holds of each tensor; ``ValueError`` if it is no state."""
    if not isinstance(state_dict, Mapping) or "tensors" not in state_dict:
        raise ValueError(f"state_dict must come from a compressor's state_dict(), got {type(state_dict).__name__}")
    return dict(state_dict["tensors"])


def dumps(state_dict: Mapping[str, Any]) -> bytes:
    """Return a state as an archive of NumPy arrays."""
    tensors = saved_tensors(state_dict)
    arrays: dict[str, Any] = {}
    described = {}
    for number, (key, saved) in enumerate(tensors.items()):
        described[key] = {**saved, "state": list(saved["state"])}
        arrays |= {f"{number}/{name}": array for name, array in saved["state"].items()}
    file = io.BytesIO()
    np.savez(file, tensors=np.array(json.dumps(described)), **arrays)
    return file.getvalue()


def loads(content: bytes) -> dict[str, Any]:
    """Undo `dumps`; ``ValueError`` if these are other bytes."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            tensors = json.loads(str(archive["tensors"]))
            for number, saved in enumerate(tensors.values()):
                saved["state"] = {name: archive[f"{number}/{name}"] for name in saved["state"]}
    except Exception as error:
        raise ValueError(f"these are not the bytes of a compressor's state: {error}") from error
    return {"tensors": tensors}
