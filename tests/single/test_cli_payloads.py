"""encode and decode: single tensors to the bytes that workers send, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_compress import QSGD, Cast, Codec, RandomK, Reduction, Site, TensorSpec, TopK
from hvd_compress.cli.payloads import decode_bytes, encode_array, handled_by
from hvd_compress.exchange import send
from hvd_compress.generator import ROUNDING, generator_key
from hvd_compress.relay import alone
from hvd_compress.wire import row_nbytes
from tests.cases import (
    ARRAYS,
    SITE,
    LoopbackCollective,
    advance,
    backends,
    codecs,
    label,
    ops_of,
    required_backends,
    to_backend,
)

ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).standard_normal((25, 40)).astype(np.float32)
PUBLISHED = (
    "01000000080000000900000010000000dc208830b4d3bc309144c1316426b430d94595325b804531"
    "97cac6b72f4adfbcf5044a522500e1c3bd188d849caacc66092c590f01ac088f80629dd191ff0ba6737fb0238f80c000"
)
"""JointSQ's payload in section 1.6 of the specification."""


def run(command: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    given = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    argv = [sys.executable, "-m", "hvd_compress", command, *given, *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def succeed(command: str, *arguments: str, **options: Any) -> str:
    done = run(command, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(status: int, command: str, *arguments: str, **options: Any) -> str:
    """The one sentence that a failing command says."""
    done = run(command, *arguments, **options)
    assert (done.returncode, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture
def tensor(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def published_input() -> np.ndarray[Any, Any]:
    """x = 1, then 21 times x = x * (u - 0.5), in float32."""
    ops = ops_of("numpy")
    z = ops.uniform(ops.arange(128), generator_key(1234, Site("fc.weight", 7), ROUNDING)) - np.float32(0.5)
    x = np.ones(128, np.float32)
    for _ in range(21):
        x = x * z
    return x


# The command has these three; NumPy's arrays are numpy with the C++ kernels, too.
@pytest.mark.parametrize("backend", [name for name in required_backends() if name in ("numpy", "torch", "tensorflow")])
def test_encode_raw_writes_the_published_payload_of_jointsq(backend: str, tmp_path: Path) -> None:
    source, payload = tmp_path / "x.npy", tmp_path / "p.bin"
    np.save(source, published_input())
    place = {"name": "fc.weight", "step": 7, "rank": 0, "seed": 1234}
    options = {"codec": "jointsq:bits_per_entry=5.504", "input": source, "output": payload, "backend": backend}
    told = json.loads(succeed("encode", "--raw", "--json", **options, **place))
    assert payload.read_bytes().hex() == PUBLISHED
    assert (told["nbytes"], told["dense_nbytes"], told["backend"]) == (88, 512, backend)
    assert told["compression_ratio"] == 512 / 88
    assert told["codec"]["seed"] == 1234


@pytest.mark.parametrize("raw", [False, True], ids=["sealed", "raw"])
@codecs
@backends
def test_what_is_decoded_is_what_the_codec_makes_of_the_tensor(codec: Codec, backend: str, raw: bool) -> None:
    array = ARRAYS["matrix"]
    spec, site = TensorSpec(array.shape, "float32"), SITE._replace(rank=3)
    data = encode_array(codec, to_backend(backend, array), site, raw=raw)
    decoded = decode_bytes(codec, data, spec, site, raw=raw)
    ops, own = ops_of("numpy"), handled_by(codec, spec, site)
    state = own.init(ops, spec)
    payload, _ = own.encode(ops, array.reshape(-1), state, site)
    payload = alone(own, ops, payload, spec, site)
    expected, _ = own.absorb(ops, own.decode(ops, payload._replace(kept=None), spec, site), state, site)
    assert (decoded.shape, decoded.dtype) == (array.shape, np.float32)
    np.testing.assert_array_equal(decoded.reshape(-1), expected)
    if own.fixed_size:
        sealed = own.reduction is Reduction.GATHER and not raw
        assert len(data) == (row_nbytes(own, spec) if sealed else own.payload_nbytes(spec))


@pytest.mark.parametrize("array", list(ARRAYS.values()), ids=list(ARRAYS))
@pytest.mark.parametrize("codec", [TopK(density=1.0), RandomK(density=1.0), QSGD(packing="elias")], ids=label)
def test_every_kind_of_array_keeps_shape_and_dtype(codec: Codec, array: np.ndarray[Any, Any]) -> None:
    spec = TensorSpec(array.shape, str(array.dtype))
    decoded = decode_bytes(codec, encode_array(codec, array, SITE), spec, SITE)
    assert (decoded.shape, decoded.dtype) == (array.shape, array.dtype)
    if codec.name != "qsgd":
        np.testing.assert_array_equal(decoded, array.astype(np.float32).astype(array.dtype))


@codecs
def test_the_bytes_are_those_that_a_worker_hands_to_horovod(codec: Codec) -> None:
    ops, wire = ops_of("numpy"), LoopbackCollective()
    spec = TensorSpec(X.shape, "float32")
    sent, pending, _ = send(codec, ops, X, codec.init(ops, spec), SITE, wire)
    advance([pending])
    handed = [arrays[0] for arrays in (*wire.buffers.values(), *wire.addends.values())] or [sent]
    assert encode_array(codec, X, SITE) == b"".join(array.tobytes() for array in handed)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@codecs
def test_a_tensor_that_is_not_finite_decodes_to_one_that_is_not(codec: Codec, bad: float) -> None:
    array = X.copy()
    array[3, 4] = bad
    decoded = decode_bytes(codec, encode_array(codec, array, SITE), TensorSpec(X.shape, "float32"), SITE)
    assert not np.isfinite(decoded).all()


@pytest.mark.parametrize(
    ("config", "codec", "draws"),
    [
        ("topk:density=0.1", TopK(density=0.1), {}),
        ("randomk:density=0.1", RandomK(density=0.1, seed=1234), {"seed": 1234}),
        ("qsgd:bits=3,packing=elias", QSGD(bits=3, packing="elias", seed=1234), {"rank": 2, "seed": 1234}),
        ("cast", Cast(), {}),
    ],
    ids=["topk", "randomk", "qsgd", "cast"],
)
@pytest.mark.parametrize("flags", [[], ["--raw"]], ids=["sealed", "raw"])
def test_files_go_through_both_commands(
    tensor: Path, config: str, codec: Codec, draws: dict[str, Any], flags: list[str]
) -> None:
    payload, result = tensor.with_name("p.bin"), tensor.with_name("y.npy")
    place = {"name": "fc.weight", "step": 7, **draws}
    text = succeed("encode", *flags, codec=config, input=tensor, output=payload, **place)
    assert f"{payload.stat().st_size:,} bytes for 4,000" in text
    told = json.loads(
        succeed("decode", "--json", *flags, codec=config, shape="25,40", input=payload, output=result, **place)
    )
    assert (told["nbytes"], told["shape"], told["dtype"]) == (payload.stat().st_size, [25, 40], "float32")
    site, spec = Site("fc.weight", 7, draws.get("rank", 0)), TensorSpec(X.shape, "float32")
    expected = decode_bytes(codec, encode_array(codec, X, site), spec, site)
    np.testing.assert_array_equal(np.load(result), expected, strict=True)


def test_seed_is_ignored_by_codecs_that_draw_nothing_and_may_not_be_given_twice(tensor: Path) -> None:
    payload, other = tensor.with_name("p.bin"), tensor.with_name("q.bin")
    succeed("encode", codec="topk", input=tensor, output=payload)
    succeed("encode", codec="topk", input=tensor, output=other, seed=5)
    assert payload.read_bytes() == other.read_bytes()
    assert "--seed" in fail(2, "encode", codec="qsgd:seed=4", input=tensor, output=other, seed=5)


def test_a_file_in_the_other_byte_order_gives_the_same_payload(tensor: Path) -> None:
    swapped = tensor.with_name("swapped.npy")
    np.save(swapped, X.astype(">f4"))
    payloads = [tensor.with_name("p.bin"), tensor.with_name("q.bin")]
    for source, payload in zip([tensor, swapped], payloads, strict=True):
        succeed("encode", codec="topk", input=source, output=payload)
    assert payloads[0].read_bytes() == payloads[1].read_bytes()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda data: data[:-1], {}, "487 bytes, expected 488"),
        (lambda data: b"", {}, "0 bytes"),
        (lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:], {}, "damaged"),
        (lambda data: data, {"name": "other"}, "another step, tensor or codec"),
        (lambda data: data, {"step": 8}, "another step, tensor or codec"),
        (lambda data: data, {"shape": "25,80"}, "expected"),
    ],
    ids=["truncated", "empty", "damaged", "other name", "other step", "other shape"],
)
def test_a_payload_that_is_not_right_is_refused_with_a_sentence(
    tensor: Path, change: Any, options: dict[str, Any], words: str
) -> None:
    payload, result = tensor.with_name("p.bin"), tensor.with_name("y.npy")
    succeed("encode", codec="topk:density=0.1", input=tensor, output=payload)
    payload.write_bytes(change(payload.read_bytes()))
    given = {"codec": "topk:density=0.1", "shape": "25,40", "input": payload, "output": result, **options}
    sentence = fail(1, "decode", **given)
    assert words in sentence
    assert str(payload) in sentence
    assert "--name" in sentence
    assert not result.exists()


@pytest.mark.parametrize(
    ("command", "options", "word"),
    [
        ("encode", {"codec": "nosuch"}, "nosuch"),
        ("encode", {"codec": "topk:density=2"}, "(0, 1]"),
        ("encode", {"codec": "topk:denisty=0.1"}, "denisty"),
        ("encode", {"codec": "topk:error_feedback=true"}, "error_feedback"),
        ("encode", {"codec": "topk:min_elements=1"}, "min_elements"),
        ("encode", {"codec": 'error_feedback:inner={"name":"topk"}'}, "wraps"),
        ("encode", {"step": "-1"}, "--step"),
        ("encode", {"rank": 2**32}, "2**32"),
        ("encode", {"backend": "jax"}, "jax"),
        ("decode", {"shape": "3,x"}, "3,x"),
        ("decode", {"dtype": "int8"}, "int8"),
    ],
)
def test_wrong_usage_exits_2_with_a_sentence_that_names_it(
    tensor: Path, command: str, options: dict[str, Any], word: str
) -> None:
    given = {"codec": "topk", "input": tensor, "output": tensor.with_name("out")}
    given |= {"shape": "25,40"} if command == "decode" else {}
    assert word in fail(2, command, **{**given, **options})


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "No such file"), (b"", ".npy"), (b"no array", ".npy"), (np.arange(5), "int64"), (np.array(["a"]), "<U1")],
    ids=["missing", "empty", "no array", "integers", "strings"],
)
def test_an_input_that_is_no_tensor_is_refused_with_a_sentence(tmp_path: Path, content: Any, word: str) -> None:
    source = tmp_path / "x.npy"
    if isinstance(content, bytes):
        source.write_bytes(content)
    elif content is not None:
        np.save(source, content)
    sentence = fail(1, "encode", codec="topk", input=source, output=tmp_path / "p.bin")
    assert word in sentence
    assert str(source) in sentence


def test_an_output_that_cannot_be_written_is_told(tensor: Path) -> None:
    nowhere = tensor.parent / "none" / "p.bin"
    assert str(nowhere) in fail(1, "encode", codec="topk", input=tensor, output=nowhere)


def test_a_framework_that_is_not_there_is_named_with_the_way_to_install_it(tensor: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from hvd_compress.cli.commands import main; sys.exit(main())"
    options = ["--codec", "topk", "--input", str(tensor), "--output", os.devnull, "--backend", "torch"]
    done = subprocess.run(
        [sys.executable, "-c", code, "encode", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "python -m hvd_compress encode: error: torch is not installed: pip install 'hvd_compress[torch]'"
    ]
