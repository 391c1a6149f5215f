"""Wire bytes that must never change: the published payloads, and the bytes of every case."""

from __future__ import annotations

import importlib
import json
import pkgutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from hvd_compress import Codec, RandomK, Reduction, Site, TensorSpec, TopK
from hvd_compress.ops import Kernels
from hvd_compress.wire import pack, row_nbytes, seal, tag_of
from tests.cases import CODECS, SITE, backends, codecs, label, ops_of, to_backend, to_numpy
from tests.single import codecs as tests_of_codecs

G1 = np.array([0.5, -2, 0, 1.5, -0.1, 3], np.float32)
GOLDEN = Path(__file__).parent.parent / "golden" / "wire.json"


def golden_bytes() -> dict[str, str]:
    """Hex of each case, by its label: from the file, and from ``WIRE`` of the codecs' own tests."""
    found: dict[str, str] = json.loads(GOLDEN.read_text())
    for module in pkgutil.iter_modules(tests_of_codecs.__path__, f"{tests_of_codecs.__name__}."):
        own = getattr(importlib.import_module(module.name), "WIRE", {})
        assert not found.keys() & own.keys()
        found |= {case: wire.replace(" ", "") for case, wire in own.items()}
    return found


WIRE = golden_bytes()


@backends
@pytest.mark.parametrize(
    ("value_dtype", "payload"),
    [("float32", "0100000002000000 000000c000004040 22"), ("float16", "0100000002000000 00c00042 22")],
)
def test_published_top_k_payloads(backend: str, value_dtype: str, payload: str) -> None:
    """F035."""
    ops = ops_of(backend)
    codec = TopK(density=1 / 3, value_dtype=value_dtype)
    encoded, _ = codec.encode(ops, to_backend(backend, G1), {}, SITE)
    assert to_numpy(pack(ops, encoded)).tobytes().hex() == payload.replace(" ", "")


@pytest.mark.parametrize(
    ("codec", "n", "nbytes"),
    [
        (TopK(density=0.01), 25_600_000, 1_298_008),
        (TopK(density=0.001), 25_600_000, 140_658),
        (TopK(density=0.0001), 25_600_000, 15_119),
        (TopK(density=0.001, value_dtype="float16"), 25_600_000, 89_458),
        (TopK(density=0.01, index_codec="u32"), 25_600_000, 8 + 8 * 256_000),
        (RandomK(density=0.01), 25_600_000, 1_024_000),
        (RandomK(density=0.001), 25_600_000, 102_400),
        (RandomK(density=0.1), 2048, 205 * 4),
    ],
)
def test_published_sizes(codec: Codec, n: int, nbytes: int) -> None:
    assert codec.payload_nbytes(TensorSpec((n,), "float32")) == nbytes


@backends
@pytest.mark.parametrize(
    ("selection", "step", "indices"),
    [
        ("stratified", 7, [2, 4, 9, 12]),
        ("stratified", 8, [2, 6, 8, 12]),
        ("stratified", 9, [2, 7, 8, 13]),
        ("uniform", 7, [3, 8, 12, 13]),
        ("block", 7, [9, 10, 11, 12]),
    ],
)
@pytest.mark.parametrize("rank", [0, 3])
def test_published_random_k_selections(backend: str, selection: str, step: int, indices: list[int], rank: int) -> None:
    ops = ops_of(backend)
    codec = RandomK(density=0.25, selection=selection, seed=1234)
    x = to_backend(backend, np.arange(16, dtype=np.float32))
    payload, _ = codec.encode(ops, x, {}, Site("fc.weight", step, rank, 4))
    assert to_numpy(payload.parts[0]).tolist() == indices


@backends
def test_seal_is_the_check_word_and_the_crc_of_codec_name_and_step(backend: str) -> None:
    """Computed here word by word, as the format says."""
    ops, codec = ops_of(backend), TopK(density=1 / 3)
    encoded, _ = codec.encode(ops, to_backend(backend, G1), {}, SITE)
    row = to_numpy(seal(ops, [pack(ops, encoded)], tag_of(codec, SITE)))
    body = row[:-8]
    assert body.size == 24
    assert body[17:].tolist() == [0] * 7
    words = [int.from_bytes(body[i : i + 4].tobytes(), "little") for i in range(0, body.size, 4)]
    check = sum((2 * i + 1) * word for i, word in enumerate(words)) % 2**32
    text = (
        '[{"density": 0.3333333333333333, "index_codec": "auto", "name": "topk", "rebudget_steps": 100, '
        '"scope": "tensor", "value_dtype": "float32"}, "fc.weight"]'
    )
    tag = zlib.crc32(text.encode() + (7).to_bytes(8, "little"))
    assert row[-8:].tobytes() == check.to_bytes(4, "little") + tag.to_bytes(4, "little")
    assert row.size == row_nbytes(codec, TensorSpec((6,), "float32")) == 32


def wire_of_case(codec: Codec, ops: Kernels, backend: str) -> str:
    """Hex of what a codec sends of a fixed tensor at its second step."""
    # All of them are exact, on every processor.
    root = (np.arange(64, dtype=np.float32) - 31.5) / 32
    x = root * root * root
    spec = TensorSpec(x.shape, "float32")
    _, state = codec.encode(ops, to_backend(backend, x), codec.init(ops, spec), SITE)
    payload, _ = codec.encode(ops, to_backend(backend, x), state, SITE._replace(step=8))
    wire = ops.to_bytes(payload.parts[0]) if codec.reduction is Reduction.SUM else pack(ops, payload)
    return to_numpy(wire).tobytes().hex()


@backends
@codecs
def test_wire_bytes_are_those_of_the_first_version(backend: str, codec: Codec) -> None:
    """A new case goes into ``WIRE`` of its codec's tests as this test prints it; an old one never changes."""
    wire = wire_of_case(codec, ops_of(backend), backend)
    assert label(codec) in WIRE, f"add to WIRE: {json.dumps({label(codec): wire})}"
    assert WIRE[label(codec)] == wire


def test_no_golden_bytes_without_a_case() -> None:
    assert set(WIRE) == {label(codec) for codec in CODECS}
