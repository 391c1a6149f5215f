"""compare: all codecs at equal bytes.

One cell of the published table of JointSQ's errors is a test. This measures all twelve, and exits with an error if one
is off by more than a digit of the third decimal, or JointSQ loses 0.0005 more than the best fixed width::

    python -m tests.single.test_cli_compare
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_compress import JointSQ, Site, TensorSpec, TopK, TopKQSGD, codec_from_config, codec_names
from hvd_compress.cli.comparison import FIXED_WIDTH, compare
from hvd_compress.cli.payloads import decode_bytes, encode_array
from hvd_compress.fitting import fits, fitted
from hvd_compress.parameters import parameters_of
from hvd_compress.registry import codec_class

ROOT = Path(__file__).parents[2]
CLASSES = [codec_class(name) for name in codec_names() if not codec_class(name).wrapper]
N = 1_000_000
RATIOS = (0.001, 0.01, 0.032)
PUBLISHED = {
    "normal": ((0.9724, 0.7766, 0.4441), (0.9722, 0.7765, 0.4440)),
    "laplace": ((0.9379, 0.6512, 0.3144), (0.9375, 0.6524, 0.3363)),
    "t, 3 d.f.": ((0.7669, 0.4779, 0.2381), (0.7783, 0.5307, 0.3327)),
    "t, 2 d.f.": ((0.1160, 0.0536, 0.0244), (0.1246, 0.0722, 0.0437)),
}
"""Errors of JointSQ and of the best fixed width, section 1.5 of the specification."""


def distributions() -> dict[str, np.ndarray[Any, Any]]:
    """The data of that table, drawn in its order from one generator."""
    draw = np.random.default_rng(0)
    draws = draw.standard_normal(N), draw.laplace(size=N), draw.standard_t(3, N), draw.standard_t(2, N)
    return {name: x.astype(np.float32) for name, x in zip(PUBLISHED, draws, strict=True)}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hvd_compress", "compare", *map(str, arguments)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def measure(path: Path, bits: float) -> dict[str, Any]:
    """Facts of each method."""
    done = run("--input", path, "--bits-per-entry", str(bits), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["budget_nbytes"] == int(told["dense_nbytes"] / 4 * bits / 8)
    return {"budget": told["budget_nbytes"], **{method["method"]: method for method in told["methods"]}}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "x.npy"
    np.save(path, np.random.default_rng(0).standard_t(3, (50, 400)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def told(small: Path) -> dict[str, Any]:
    return measure(small, 0.5)


def test_the_published_errors_of_jointsq_and_of_the_best_fixed_width_are_met(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", distributions()["laplace"])
    told = measure(tmp_path / "x.npy", 0.32)
    assert told["jointsq"]["relative_error"] == pytest.approx(0.6512, abs=0.0005)
    assert told[FIXED_WIDTH]["relative_error"] == pytest.approx(0.6524, abs=0.0005)
    assert told[FIXED_WIDTH]["config"]["bits"] == 2


def test_every_codec_and_the_best_fixed_width_are_there(told: dict[str, Any]) -> None:
    assert told.keys() == {"budget", FIXED_WIDTH, *(cls.name for cls in CLASSES)}


def test_payloads_are_within_the_size_or_marked(told: dict[str, Any]) -> None:
    budget, methods = told["budget"], {name: told[name] for name in told if name != "budget"}
    assert budget == 1250
    for method in methods.values():
        assert method["within_budget"] is (method["nbytes"] <= budget)
        assert method["compression_ratio"] == 80_000 / method["nbytes"]
        assert method["encode_seconds"] > 0 < method["decode_seconds"]
    marked = {name for name, method in methods.items() if not method["within_budget"]}
    assert {"none", "cast", "qsgd"} <= marked
    assert not marked & {"topk", "dgc", "randomk", "topk_qsgd", "jointsq", FIXED_WIDTH}


@pytest.mark.parametrize("method", ["topk", "dgc", "jointsq", "randomk", "topk_qsgd", FIXED_WIDTH])
def test_payloads_come_as_close_to_the_size_as_one_entry_allows(told: dict[str, Any], method: str) -> None:
    assert 1250 - 8 < told[method]["nbytes"] <= 1250


def test_relative_error_is_that_of_what_is_decoded(told: dict[str, Any], small: Path) -> None:
    x = np.load(small).reshape(-1).astype(np.float64)
    codec = codec_from_config(told["topk"]["config"])
    assert isinstance(codec, TopK)
    left_out = np.sort(np.abs(x))[: x.size - codec.kept(x.size)]
    assert told["topk"]["relative_error"] == pytest.approx(np.sum(left_out**2) / np.sum(x**2), rel=1e-9)
    assert told["none"]["relative_error"] == 0.0


def test_of_several_settings_the_one_that_loses_least_is_told() -> None:
    """The bits of top-k followed by QSGD, which a size leaves open."""
    x = np.random.default_rng(0).standard_t(3, 5000).astype(np.float32)
    spec, errors = TensorSpec(x.shape, "float32"), {}
    for codec in fitted(TopKQSGD(), spec, 500):
        decoded = decode_bytes(codec, encode_array(codec, x, Site("tensor", 0)), spec, Site("tensor", 0))
        errors[codec] = float(np.sum((x - decoded).astype(np.float64) ** 2) / np.sum(x.astype(np.float64) ** 2))
    assert [getattr(codec, "bits", None) for codec in errors] == [2, 3, 4, 5, 6, 7, 8]
    (choices,) = compare(x, [500])
    (chosen,) = (choice for choice in choices if choice.method == "topk_qsgd")
    assert chosen.measured.relative_error == pytest.approx(min(errors.values()), rel=1e-6)
    assert errors[chosen.codec] == min(errors.values())


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("n", [1, 64, 5000])
def test_a_codec_is_fitted_to_any_size_or_is_at_its_smallest(cls: Any, n: int) -> None:
    spec = TensorSpec((n,), "float32")
    smallest = min(codec.payload_nbytes(spec) for codec in fitted(cls(), spec, 0))
    for nbytes in (0, 50, n // 4, n, 4 * n, 50 * n):
        found = fitted(cls(), spec, nbytes)
        assert [type(codec) for codec in found] == [cls] * len(found)
        assert all(fits(codec, spec, nbytes) for codec in found) or nbytes < smallest
        if nbytes < smallest:
            assert [codec.payload_nbytes(spec) for codec in found] == [smallest]


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.knobs], ids=lambda cls: cls.name)
def test_knobs_are_parameters_and_set_the_size(cls: Any) -> None:
    spec = TensorSpec((50, 100), "float32")
    assert set(cls.knobs) <= parameters_of(cls).keys()
    sizes = [fitted(cls(), spec, nbytes, [cls.knobs[0]])[0].payload_nbytes(spec) for nbytes in (0, 2500, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if "density" in parameters_of(cls)], ids=lambda cls: cls.name)
def test_what_has_a_density_is_fitted_by_it(cls: Any) -> None:
    assert cls.knobs[0] == "density"


def test_a_codec_of_a_later_version_appears_by_being_registered(small: Path) -> None:
    code = """
import sys
from dataclasses import dataclass
from hvd_compress.codecs import TopK
from hvd_compress.registry import register
from hvd_compress.cli.commands import main

@register("later")
@dataclass(frozen=True)
class Later(TopK):
    pass

sys.exit(main())
"""
    argv = [sys.executable, "-c", code, "compare", "--input", str(small), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    methods = {method["method"]: method for method in json.loads(done.stdout)["methods"]}
    assert methods["later"]["nbytes"] == methods["topk"]["nbytes"]


def test_the_table_fits_80_columns_and_marks_what_is_too_large(small: Path) -> None:
    done = run("--input", small)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines() if str(small) not in line) <= 80
    assert done.stdout.isascii()
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "*" in rows["none"]
    assert "*" not in rows["jointsq"]
    assert f"bits_per_entry={JointSQ.bits_per_entry}" in rows["jointsq"]


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_plot_is_drawn_beside_the_same_facts(small: Path, told: dict[str, Any], suffix: str, begin: bytes) -> None:
    plot = small.with_name(f"plot.{suffix}")
    done = run("--input", small, "--bits-per-entry", "0.5", "--plot", plot, "--json")
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(begin)
    errors = {method["method"]: method["relative_error"] for method in json.loads(done.stdout)["methods"]}
    assert errors == {name: told[name]["relative_error"] for name in errors}
    if suffix == "svg":
        assert all(f"<!-- {cls.name} -->" in plot.read_text() for cls in CLASSES)


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        (["--bits-per-entry", "0"], 2, "(0, 32]"),
        (["--bits-per-entry", "many"], 2, "'many'"),
        (["--plot", "curve.txt"], 2, ".png"),
        (["--plot", "none/curve.png"], 1, "none/curve.png"),
    ],
)
def test_wrong_options_are_answered_with_a_sentence(small: Path, options: list[str], status: int, word: str) -> None:
    done = run("--input", small, *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1
    assert word in done.stderr


@pytest.mark.parametrize(("missing", "options"), [("matplotlib", ["--plot", "curve.png", "--json"]), ("rich", [])])
def test_what_is_not_installed_is_named_with_the_way_to_install_it(
    small: Path, missing: str, options: list[str]
) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from hvd_compress.cli.commands import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "compare", "--input", str(small), *options]
    done = subprocess.run(argv, cwd=small.parent, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"need {missing}: pip install" in done.stderr


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (0.0, "zero")])
def test_a_tensor_without_a_relative_error_is_refused(tmp_path: Path, value: float, word: str) -> None:
    np.save(tmp_path / "x.npy", np.full(100, value, np.float32))
    done = run("--input", tmp_path / "x.npy")
    assert (done.returncode, done.stdout) == (1, "")
    assert word in done.stderr
    assert str(tmp_path / "x.npy") in done.stderr


def main() -> int:
    """Measure the published table; return 1 if a cell is off."""
    print("data        ratio   JointSQ (published)   best fixed width (published)   setting")
    off = 0
    for name, x in distributions().items():
        sizes = [int(x.size * 32 * ratio / 8) for ratio in RATIOS]
        for choices, ratio, ours, fixed in zip(compare(x, sizes), RATIOS, *PUBLISHED[name], strict=True):
            by_method = {choice.method: choice for choice in choices}
            errors = [by_method[method].measured.relative_error for method in ("jointsq", FIXED_WIDTH)]
            codec = by_method[FIXED_WIDTH].codec
            setting = getattr(codec, "bits", None) or getattr(codec, "value_dtype", None)
            wrong = abs(errors[0] - ours) > 0.0005 or errors[0] > errors[1] + 0.0005
            off += wrong
            print(
                f"{name:10}  {ratio:5}   {errors[0]:.4f}  ({ours:.4f})      {errors[1]:.4f}  ({fixed:.4f})"
                f"               {setting}{'   OFF' if wrong else ''}"
            )
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
