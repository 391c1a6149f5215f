"""The laws of every codec, on every kind of array, on every backend; NumPy is the oracle."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

from hvd_compress import (
    Codec,
    ErrorFeedback,
    Reduction,
    TensorSpec,
    codec_from_config,
    codec_names,
    config_of,
)
from hvd_compress.codec import Feedback
from hvd_compress.exchange import spec_of
from hvd_compress.ops.native import NativeKernels
from hvd_compress.payload import EMPTY, NONFINITE, NORMAL
from hvd_compress.wire import pack, row_nbytes, seal, tag_of, unpack, unseal
from tests.cases import (
    ARRAYS,
    CODECS,
    SITE,
    arrays,
    assert_unchanged,
    backends,
    codecs,
    concluded,
    label,
    ops_of,
    required_backends,
    to_backend,
    to_numpy,
    wire_of,
)

STEPS = 3
UNBIASED = [codec for codec in CODECS if codec.unbiased]
GATHER = [codec for codec in CODECS if codec.reduction is Reduction.GATHER]


def keeps_what_is_unsent(codec: Codec) -> bool:
    """Whether what a codec does not send is kept, by itself or by the error feedback that it admits."""
    state = codec.init(ops_of("numpy"), TensorSpec((1,), "float32"))
    return codec.feedback is not Feedback.REFUSED or codec.unsent(ops_of("numpy"), state) is not None


CONTRACTIVE = [codec for codec in CODECS if not codec.unbiased and keeps_what_is_unsent(codec)]


def run(codec: Codec, backend: str, gradients: list[np.ndarray[Any, Any]]) -> tuple[list[bytes], list[Any], Any]:
    """Wire bytes, decoded tensors and final state of some steps."""
    ops = ops_of(backend)
    state: Any = None
    wires, decoded = [], []
    for step, gradient in enumerate(gradients):
        x = to_backend(backend, gradient)
        spec = spec_of(ops, x)
        state = codec.init(ops, spec) if state is None else state
        site, now = SITE._replace(step=step), codec.at_step(step)
        with ops.quiet():
            payload, state = now.encode(ops, ops.flatten(x), state, site)
            payload, state = concluded(now, ops, payload, state, spec, site)
        wires.append(to_numpy(wire_of(now, ops, payload)).tobytes())
        decoded.append(to_numpy(now.decode(ops, payload._replace(kept=None), spec, site)))
    return wires, decoded, {key: to_numpy(value) for key, value in (state or {}).items()}


def test_every_registered_codec_is_a_case() -> None:
    assert {codec.name for codec in CODECS} == set(codec_names())


def test_every_required_backend_is_there() -> None:
    frameworks = {backend: ops_of(backend).framework for backend in required_backends()}
    assert frameworks == {
        name: {"native": "numpy", "device": "torch", "triton": "torch"}.get(name, name) for name in frameworks
    }
    assert "native" not in frameworks or isinstance(ops_of("native"), NativeKernels)


@codecs
def test_config_and_repr_round_trip(codec: Codec) -> None:
    config = config_of(codec)
    assert codec_from_config(json.loads(json.dumps(config))) == codec
    assert hash(codec_from_config(config)) == hash(codec)
    names: dict[str, Any] = {type(case).__name__: type(case) for case in CODECS}
    assert eval(repr(codec), names) == codec
    assert pickle.loads(pickle.dumps(codec)) == copy.deepcopy(codec) == codec


@codecs
@arrays
def test_wire_has_the_declared_length_and_decodes_to_the_input_s_size(
    codec: Codec, array: np.ndarray[Any, Any]
) -> None:
    """With NumPy; what the other backends send and decode is compared with that below, bit for bit."""
    spec = TensorSpec(array.shape, str(array.dtype))
    wires, decoded, _ = run(codec, "numpy", [array])
    declared = codec.at_step(0).payload_nbytes(spec)
    assert len(wires[0]) == declared if codec.fixed_size else len(wires[0]) <= declared
    assert decoded[0].shape == (array.size,)
    assert np.isfinite(decoded[0]).all() or np.abs(array).max() > 65504


@codecs
@arrays
@pytest.mark.parametrize("backend", [backend for backend in required_backends() if backend != "tensorflow"])
def test_input_and_old_state_are_left_alone(codec: Codec, array: np.ndarray[Any, Any], backend: str) -> None:
    """TensorFlow's tensors cannot be changed."""
    ops, x = ops_of(backend), to_backend(backend, array)
    spec = spec_of(ops, x)
    first = codec.encode(ops, ops.flatten(x), codec.init(ops, spec), SITE)[1]
    kept = {key: to_numpy(value).copy() for key, value in first.items()}
    codec.encode(ops, ops.flatten(x), first, SITE._replace(step=8))
    np.testing.assert_array_equal(to_numpy(x), array)
    for key, value in first.items():
        np.testing.assert_array_equal(to_numpy(value), kept[key])


@codecs
@arrays
@pytest.mark.parametrize("backend", [backend for backend in required_backends() if backend != "numpy"])
def test_backends_give_numpy_s_bytes_and_residuals(codec: Codec, array: np.ndarray[Any, Any], backend: str) -> None:
    gradients = [array, np.asarray(-2 * array), np.asarray(array * 0)]
    wires, decoded, state = run(codec, backend, gradients)
    expected_wires, expected_decoded, expected_state = run(codec, "numpy", gradients)
    assert [wire.hex() for wire in wires] == [wire.hex() for wire in expected_wires]
    for ours, theirs in zip(decoded, expected_decoded, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert state.keys() == expected_state.keys()
    for key, value in state.items():
        assert value.tobytes() == expected_state[key].tobytes()


@codecs
@arrays
@pytest.mark.parametrize("backend", [name for name in required_backends() if name != "tensorflow"])
def test_state_overwritten_in_place_is_the_same(codec: Codec, array: np.ndarray[Any, Any], backend: str) -> None:
    ops, x = ops_of(backend), ops_of(backend).flatten(to_backend(backend, array))
    spec = spec_of(ops, x)
    fresh, own = codec.init(ops, spec), codec.init(ops, spec)
    with ops.quiet():
        for step in range(STEPS):
            site = SITE._replace(step=step)
            expected, fresh = codec.encode(ops, x, fresh, site)
            payload, own = codec.encode(ops, x, own, site, own)
            assert to_numpy(wire_of(codec, ops, payload)).tobytes() == to_numpy(wire_of(codec, ops, expected)).tobytes()
            bad = ops.concat([x[:-1], x[-1:] * float("nan")])
            before = {key: to_numpy(value).tobytes() for key, value in own.items()}
            _, own = codec.encode(ops, bad, own, site, own)
            if x.shape[0]:
                assert {key: to_numpy(value).tobytes() for key, value in own.items()} == before
    assert {key: to_numpy(value).tobytes() for key, value in own.items()} == {
        key: to_numpy(value).tobytes() for key, value in fresh.items()
    }


@codecs
def test_encoding_is_repeatable_and_touches_no_global_generator(codec: Codec) -> None:
    """F013, for the codecs by themselves."""
    import random

    np.random.seed(0)
    random.seed(0)
    before = (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
    first = run(codec, "numpy", [ARRAYS["odd"]] * STEPS)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # type: ignore[index]
    assert run(codec, "numpy", [ARRAYS["odd"]] * STEPS)[0] == first[0]


@codecs
def test_payload_size_does_not_depend_on_the_data(codec: Codec) -> None:
    lengths = {len(run(codec, "numpy", [array])[0][0]) for array in (ARRAYS["odd"], ARRAYS["odd"] ** 9 * 1e-3)}
    assert (len(lengths) == 1) is codec.fixed_size


@pytest.mark.parametrize("codec", CONTRACTIVE, ids=label)
@pytest.mark.parametrize("kind", ["normal", "laplace", "standard_cauchy"])
@pytest.mark.parametrize("n", [1, 2, 31, 1024])
def test_biased_codecs_whose_error_is_kept_contract(codec: Codec, kind: str, n: int) -> None:
    """||x - C(x)||^2 <= (1 - delta) ||x||^2 with delta > 0: on each draw, or on average over draws for random-k."""
    draws = np.random.default_rng(n)
    errors, norms = 0.0, 0.0
    for _ in range(60):
        x = getattr(draws, kind)(size=n).astype(np.float32).clip(-6e4, 6e4)
        decoded = run(codec, "numpy", [x])[1][0]
        error, norm = np.sum((x - decoded).astype(np.float64) ** 2), np.sum(x.astype(np.float64) ** 2)
        assert error <= norm
        errors, norms = errors + error, norms + norm
    assert errors < norms


@pytest.mark.parametrize("codec", UNBIASED, ids=label)
def test_unbiased_codecs_average_out(codec: Codec) -> None:
    """F012 and F110: the mean of many draws is within 5 standard errors of the input at every index."""
    x = np.random.default_rng(1).standard_normal(200).astype(np.float32)
    ops, spec, draws = ops_of("numpy"), TensorSpec(x.shape, "float32"), 2000
    decoded = np.empty((draws, x.size))
    for step in range(draws):
        site = SITE._replace(step=step)
        payload, _ = codec.encode(ops, x, {}, site)
        decoded[step] = codec.decode(ops, payload, spec, site)
    # One more draw at the largest distance seen: rare values may not have come up at some index.
    variance = decoded.var(axis=0) + np.max(np.abs(decoded - x)) ** 2 / draws
    assert (np.abs(decoded.mean(axis=0) - x) <= 5 * np.sqrt(variance / draws) + 1e-7).all()


@codecs
@backends
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_bad_entry_is_announced_and_leaves_the_state_alone(codec: Codec, backend: str, bad: float) -> None:
    ops, spec = ops_of(backend), TensorSpec((2000,), "float32")
    good = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    _, state = codec.encode(ops, to_backend(backend, good), codec.init(ops, spec), SITE)
    poisoned = good.copy()
    poisoned[1234] = bad
    with ops.quiet():
        payload, after = codec.encode(ops, to_backend(backend, poisoned), state, SITE._replace(step=8))
    assert_unchanged(ops, after, state)
    if payload.flag is None:
        assert not np.isfinite(to_numpy(payload.parts[0])).all()
        return
    assert int(payload.flag) == NONFINITE
    if codec.reduction is Reduction.GATHER:
        wire = to_numpy(pack(ops, payload)).tobytes()
        assert wire[:2] == bytes([1, NONFINITE])
        assert not any(wire[2:])


@pytest.mark.parametrize("codec", GATHER, ids=label)
@backends
def test_nothing_to_send_is_announced(codec: Codec, backend: str) -> None:
    """F037, for the codecs by themselves: zeros, negative zeros and empty tensors."""
    ops = ops_of(backend)
    for array in (ARRAYS["zeros"], ARRAYS["negative zeros"], ARRAYS["empty"]):
        spec = TensorSpec(array.shape, "float32")
        x = ops.flatten(to_backend(backend, array))
        payload, _ = codec.encode(ops, x, codec.init(ops, spec), SITE)
        wire = to_numpy(pack(ops, payload)).tobytes()
        assert wire[:2] == bytes([1, EMPTY])
        assert not any(wire[2:])


@pytest.mark.parametrize("codec", GATHER, ids=label)
@backends
def test_wire_round_trips_through_the_seal(codec: Codec, backend: str) -> None:
    ops, array = ops_of(backend), ARRAYS["odd"]
    x, spec, tag = to_backend(backend, array), TensorSpec(array.shape, "float32"), tag_of(codec, SITE)
    payload, _ = codec.encode(ops, x, codec.init(ops, spec), SITE)
    row = seal(ops, [pack(ops, payload)], tag, codec.fixed_size)
    assert (
        to_numpy(row).size == row_nbytes(codec, spec)
        if codec.fixed_size
        else to_numpy(row).size <= row_nbytes(codec, spec)
    )
    assert to_numpy(row).size % 8 == 0
    read = unpack(ops, unseal(ops, row, codec, spec, tag), codec, spec)
    assert int(read.flag) == NORMAL
    np.testing.assert_array_equal(
        to_numpy(codec.decode(ops, read, spec, SITE)), to_numpy(codec.decode(ops, payload, spec, SITE))
    )


@pytest.mark.parametrize("codec", [codec for codec in CODECS if isinstance(codec, ErrorFeedback)], ids=label)
@arrays
@backends
def test_what_was_sent_and_the_residual_add_up_to_what_came_in(
    codec: ErrorFeedback, array: np.ndarray[Any, Any], backend: str
) -> None:
    """The conservation law of error feedback, for one step; F015, F035 and the ledger of field cases."""
    _, decoded, state = run(codec, backend, [array])
    total = decoded[0].astype(np.float64) + state["residual"].astype(np.float64) / codec.low_pass
    expected = array.reshape(-1).astype(np.float64)
    rounding = 2.0**-23 * np.maximum(np.abs(decoded[0]), np.abs(expected)) + 1e-44 / codec.low_pass
    assert (np.abs(total - expected) <= rounding).all()
