"""Constructor errors, config strings, the default stack of wrappers, the registry."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import hvd_compress.codecs
from hvd_compress import (
    BySize,
    Cast,
    Dense,
    ErrorFeedback,
    RandomK,
    TensorSpec,
    TopK,
    codec_from_config,
    codec_names,
    compose,
    config_of,
)
from hvd_compress.chunks import Chunked
from hvd_compress.policy import compose_config
from hvd_compress.registry import parse_config, register


@pytest.mark.parametrize(
    ("kind", "parameters", "error", "message"),
    [
        (TopK, {"density": 0}, ValueError, r"TopK: density must be a number in \(0, 1\], got 0$"),
        (TopK, {"density": 1.5}, ValueError, r"TopK: density must be a number in \(0, 1\], got 1.5"),
        (TopK, {"density": float("nan")}, ValueError, r"density must be a number in \(0, 1\], got nan"),
        (TopK, {"density": float("inf")}, ValueError, r"density must be a number in \(0, 1\], got inf"),
        (TopK, {"density": True}, TypeError, r"density must be a number in \(0, 1\], got True"),
        (TopK, {"density": "a lot"}, TypeError, r"density must be a number in \(0, 1\], got 'a lot'"),
        (TopK, {"density": None}, TypeError, r"density must be a number in \(0, 1\], got None"),
        (TopK, {"value_dtype": "int8"}, ValueError, "value_dtype must be one of 'float32', 'float16', 'bfloat16'"),
        (TopK, {"value_dtype": 16}, TypeError, "value_dtype must be one of .*, got 16"),
        (TopK, {"index_codec": "golomb"}, ValueError, "index_codec must be one of 'auto'"),
        (RandomK, {"seed": -1}, ValueError, r"RandomK: seed must be an integer in \[0, \d+\], got -1"),
        (RandomK, {"seed": 2**64}, ValueError, "seed must be an integer in"),
        (RandomK, {"seed": 1.0}, TypeError, "seed must be an integer"),
        (RandomK, {"mode": "biased"}, ValueError, "mode must be one of 'ef', 'unbiased', got 'biased'"),
        (Cast, {"dtype": "float32"}, ValueError, "Cast: dtype must be one of 'float16', 'bfloat16', got 'float32'"),
        (Cast, {"prescale": 1}, TypeError, "prescale must be true or false, got 1"),
        (ErrorFeedback, {"inner": "topk"}, TypeError, "ErrorFeedback: inner must be a codec, got 'topk'"),
        (BySize, {"codec": TopK(), "min_elements": -1}, ValueError, "BySize: min_elements must be an integer >= 0"),
        (BySize, {"codec": TopK(), "min_ndim": "2"}, TypeError, "BySize: min_ndim must be an integer >= 0, got '2'"),
    ],
)
def test_bad_parameters_are_refused_by_name(kind: Any, parameters: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kind(**parameters)


def test_numbers_of_other_types_become_plain_ones() -> None:
    import numpy as np

    assert TopK(density=np.float64(0.25)) == TopK(density=0.25)
    assert type(TopK(density=1).density) is float
    assert type(RandomK(seed=np.int64(3)).seed) is int


def test_every_codec_module_is_imported_and_registers_one_codec() -> None:
    modules = [module.name for module in pkgutil.iter_modules(hvd_compress.codecs.__path__)]
    names = {module for module in modules if not module.startswith("_")}
    assert names | {"error_feedback", "chunked"} == set(codec_names())
    for name in names:
        module = importlib.import_module(f"hvd_compress.codecs.{name}")
        assert [getattr(module, cls).name for cls in module.__all__] == [name]


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="codec name 'topk' is taken by TopK"):
        register("topk")(Dense)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({}, ValueError, "config must have a 'name', got {}"),
        (
            {"name": "nosuch"},
            ValueError,
            "name must be one of .*cast, .*, topk, .*got 'nosuch'",
        ),
        ({"name": 3}, TypeError, "name must be a codec's name, got 3"),
        ({"name": "topk", "denisty": 0.1}, TypeError, "TopK: no parameter 'denisty' .*; allowed: density, value_dtype"),
        ({"name": "none", "density": 0.1}, TypeError, "Dense: no parameter 'density' .*; allowed: none"),
        ({"name": "error_feedback"}, TypeError, "ErrorFeedback: inner must be a codec, but is missing"),
    ],
)
def test_bad_configs_are_refused(config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        codec_from_config(config)


def test_nested_configs_are_plain_data() -> None:
    codec = ErrorFeedback(TopK(density=0.5), decay=0.25)
    config = config_of(codec)
    assert config["inner"]["name"] == "topk"
    assert config["inner"]["density"] == 0.5
    assert codec_from_config(config) == codec


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("topk", {"name": "topk"}),
        ("topk:", {"name": "topk"}),
        ("topk:density=0.01", {"name": "topk", "density": 0.01}),
        (" topk : density = 1e-3 , error_feedback=false", {"name": "topk", "density": 1e-3, "error_feedback": False}),
        ('cast:dtype="float16"', {"name": "cast", "dtype": "float16"}),
        ("cast:dtype=bfloat16,min_ndim=1", {"name": "cast", "dtype": "bfloat16", "min_ndim": 1}),
    ],
)
def test_config_strings(text: str, config: dict[str, Any]) -> None:
    assert parse_config(text) == config


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("topk:density=abc", ValueError, r"topk: density must be a number in \(0, 1\], got 'abc'"),
        ("topk:density=", ValueError, r"topk: density must be a number in \(0, 1\], got ''"),
        ('topk:density="0.1"', TypeError, r"TopK: density must be a number in \(0, 1\], got '0.1'"),
        ("topk:density=0.1.2", ValueError, "config must have a comma between parameters"),
        ("topk:density", ValueError, "config must look like name:key=value,key=value, got 'topk:density'"),
        ("topk:density=0.1,density=0.2", ValueError, "config: density must be given once"),
        ("topk:denisty=0.1", TypeError, "TopK: no parameter 'denisty'"),
        ("topk:min_elements=few", ValueError, "topk: min_elements must be an integer >= 0, got 'few'"),
        ("topk:error_feedback=yes", ValueError, "topk: error_feedback must be true or false, got 'yes'"),
        ("cast:dtype=float8", ValueError, "Cast: dtype must be one of 'float16', 'bfloat16', got 'float8'"),
        ("nosuch", ValueError, "name must be one of .*, got 'nosuch'"),
        ("", ValueError, "name must be one of .*, got ''"),
        (3, TypeError, "config must be a mapping or a string, got 3"),
        ({"density": 0.1}, ValueError, "config must have a 'name'"),
    ],
)
def test_bad_config_strings_are_refused(text: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compose_config(text)


def test_default_stack() -> None:
    assert compose("topk", density=0.1) == BySize(ErrorFeedback(TopK(density=0.1)), min_elements=1024, min_ndim=2)
    assert compose("topk", error_feedback=False).codec == TopK()
    assert compose("cast").codec == Cast()
    assert compose("cast", error_feedback=True).codec == ErrorFeedback(Cast())
    assert compose("randomk").codec == ErrorFeedback(RandomK())
    assert compose("randomk", mode="unbiased").codec == RandomK(mode="unbiased")
    assert compose_config({"name": "topk", "density": 0.5, "min_ndim": 1}) == compose("topk", density=0.5, min_ndim=1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "unbiased", "error_feedback": True}, "inner must be a codec that loses something"),
        ({"mode": "ef", "error_feedback": False}, "RandomK: error_feedback must be true with .*shrinks every gradient"),
    ],
)
def test_random_k_scales_exactly_when_nothing_is_fed_back(parameters: dict[str, Any], message: str) -> None:
    """F012: without error feedback it must be rescaled, with it must not."""
    with pytest.raises(ValueError, match=message):
        compose("randomk", **parameters)


@pytest.mark.parametrize(
    ("shape", "compressed"),
    [((1024,), False), ((32, 32), True), ((31, 33), False), ((1024, 1), True), ((), False), ((0, 5), False)],
)
def test_small_and_flat_tensors_go_dense(shape: tuple[int, ...], compressed: bool) -> None:
    """F092, the default rule."""
    policy = compose("topk")
    assert policy.for_tensor("w", TensorSpec(shape, "float32")) == (policy.codec if compressed else Dense())


def test_the_smallest_tensors_can_be_chosen() -> None:
    policy = compose("topk", min_elements=1, min_ndim=0)
    assert policy.for_tensor("w", TensorSpec((), "float32")) == policy.codec


def test_tensors_too_large_for_32_bit_arithmetic_go_in_pieces() -> None:
    policy = compose("topk")
    assert policy.for_tensor("w", TensorSpec((2**31 - 1, 1), "float32")) == policy.codec
    assert policy.for_tensor("w", TensorSpec((2**30, 2), "float32")) == Chunked(policy.codec, size=2**28)
