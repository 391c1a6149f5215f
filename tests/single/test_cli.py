"""The command line, run as users run it: in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

import hvd_compress
from hvd_compress.cli.commands import COMMANDS
from hvd_compress.cli.list import FEEDBACK
from hvd_compress.codec import Feedback
from hvd_compress.parameters import parameters_of
from hvd_compress.registry import codec_class, codec_names
from tests.cases import required_backends

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))
BACKENDS = {path.stem[1:] for path in Path(hvd_compress.ops.__file__).parent.glob("_[a-z]*.py")}
CODECS = [name for name in codec_names() if not codec_class(name).wrapper]


def run(*arguments: str, python: str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "hvd_compress", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def succeed(*arguments: str, python: str = sys.executable, **env: str) -> str:
    done = run(*arguments, python=python, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    return dict(json.loads(succeed("list", "--json")))


@pytest.fixture(scope="module")
def info() -> dict[str, Any]:
    return dict(json.loads(succeed("info", "--json")))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has NumPy and this package, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for path in SITE.glob("numpy*"):
        (packages / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def add_horovod(folder: Path, library: bytes | None) -> str:
    """Make something that looks like an installed Horovod and torch; return the folder for PYTHONPATH."""
    for name in ("horovod", "torch", "horovod/torch"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    if library is not None:
        (folder / "horovod" / "torch" / f"mpi_lib_v2{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(library)
    (folder / "horovod-0.28.1.dist-info").mkdir()
    (folder / "horovod-0.28.1.dist-info" / "METADATA").write_text("Name: horovod\nVersion: 0.28.1\n")
    return str(folder)


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"], ["list", "--help"]])
def test_help_is_there_for_the_program_and_each_command(arguments: list[str]) -> None:
    assert "usage: python -m hvd_compress" in succeed(*arguments)


def test_each_command_has_a_line_in_the_help() -> None:
    text = succeed("--help")
    assert all(f"    {name} " in text for name in COMMANDS)


def test_version_is_the_packages() -> None:
    assert succeed("--version") == f"hvd_compress {hvd_compress.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nosuch"], "'nosuch'"),
        ([], "COMMAND"),
        (["list", "--jason"], "--jason"),
        (["list", "--js"], "--js"),
        (["info", "more"], "more"),
    ],
)
def test_wrong_usage_exits_2_with_one_sentence_that_names_it(arguments: list[str], word: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert word in done.stderr
    assert "--help" in done.stderr


def test_list_has_every_codec_and_no_wrapper(listed: dict[str, Any]) -> None:
    assert [codec["name"] for codec in listed["codecs"]] == CODECS


@pytest.mark.parametrize("name", CODECS)
def test_list_tells_a_codecs_parameters(listed: dict[str, Any], name: str) -> None:
    (codec,) = (codec for codec in listed["codecs"] if codec["name"] == name)
    instance = codec_class(name)()
    defaults = {key: getattr(instance, key) for key in parameters_of(instance)}
    assert {p["name"]: p["default"] for p in codec["parameters"]} == json.loads(json.dumps(defaults))
    assert all(p["kind"] and p["allowed"] and p["meaning"] for p in codec["parameters"])


@pytest.mark.parametrize("name", CODECS)
def test_list_tells_how_a_codec_with_default_parameters_behaves(listed: dict[str, Any], name: str) -> None:
    (codec,) = (codec for codec in listed["codecs"] if codec["name"] == name)
    instance = codec_class(name)()
    assert codec["with_defaults"] == {
        "reduction": instance.reduction.name.lower(),
        "fixed_size": instance.fixed_size,
        "unbiased": instance.unbiased,
        "error_feedback": instance.feedback.name.lower(),
    }
    assert codec["summary"].endswith(".")
    assert codec["paper"] == instance.paper


def test_list_has_the_wrappers_parameters_in_a_section_of_their_own(listed: dict[str, Any]) -> None:
    assert {p["name"]: p["default"] for p in listed["wrappers"]} == {
        "error_feedback": None,
        "feedback": "ef",
        "eta": 1.0,
        "low_pass": 1.0,
        "min_elements": 1024,
        "min_ndim": 2,
    }


def test_listed_defaults_build_the_codec_that_no_parameters_build(listed: dict[str, Any]) -> None:
    for codec in listed["codecs"]:
        config = {"name": codec["name"], **{p["name"]: p["default"] for p in codec["parameters"]}}
        assert hvd_compress.codec_from_config(config) == codec_class(codec["name"])()


def test_list_in_a_pipe_fits_80_columns_and_is_plain_ascii() -> None:
    text = succeed("list", COLUMNS="")
    assert all(name in text for name in CODECS)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.isascii()


def test_list_has_words_for_everything_that_error_feedback_may_be() -> None:
    assert set(FEEDBACK) == {feedback.name.lower() for feedback in Feedback}


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "hvd_compress", "list", "--json"]
    done = subprocess.run(argv, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_info_finds_this_environment_complete(info: dict[str, Any]) -> None:
    assert info["python"]["executable"] == sys.executable
    assert info["backends"].keys() == BACKENDS
    assert all(state == {"error": None} for state in info["backends"].values())
    assert info["skins"] == {name: {"error": None} for name in ("torch", "tensorflow", "keras")}
    assert info["packages"]["horovod"] == "0.28.1"
    if "native" in required_backends():
        assert info["native_kernels"]["instruction_set"] in ("portable", "avx2", "avx512")
        assert info["native_kernels"]["threads"] >= 1
    else:
        assert info["native_kernels"] is None


def test_info_finds_the_launchers_of_this_environment(info: dict[str, Any]) -> None:
    programs = {"mpi": "mpirun", "gloo": "horovodrun"}
    for name, program in programs.items():
        assert info["launchers"][name]["path"] == str(Path(sys.prefix, "bin", program))
    assert "4.1.8" in info["launchers"]["mpi"]["version"]


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_build_flags_are_those_that_horovod_tells_itself(info: dict[str, Any], framework: str) -> None:
    flags = dict(info["horovod"]["frameworks"][framework])
    assert flags.pop("error") is None
    asked = ", ".join(f"'{flag}': bool(hvd.{flag}_built())" for flag in flags)
    code = f"import horovod.{framework} as hvd; print({{{asked}}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert repr(flags) == done.stdout.splitlines()[-1]
    assert flags["mpi"]
    assert flags["gloo"]
    assert flags["cuda"] == (os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL")


def test_info_in_words_names_what_is_there() -> None:
    text = succeed("info", COLUMNS="")
    assert max(len(line) for line in text.splitlines()) <= 80
    kernels = " threads" if "native" in required_backends() else "not built"
    for words in ("built with MPI, Gloo", kernels, "horovodrun --gloo", hvd_compress.__version__):
        assert words in text


def test_info_works_where_numpy_is_all_there_is(bare_python: str) -> None:
    facts = json.loads(succeed("info", "--json", python=bare_python))
    others = {name: {"error": f"{name} is not installed"} for name in BACKENDS - {"numpy"}}
    assert facts["backends"] == {"numpy": {"error": None}, **others}
    assert facts["packages"]["numpy"]
    assert [facts["packages"][name] for name in ("torch", "tensorflow", "horovod", "rich")] == [None] * 4
    assert facts["horovod"] is None
    assert "scripts/setup.sh" in facts["launchers"]["mpi"]["error"]


def test_info_in_words_works_where_only_rich_is_added(bare_python: str, tmp_path: Path) -> None:
    for name in ("rich", "pygments", "markdown_it", "mdurl"):
        (tmp_path / name).symlink_to(SITE / name)
    text = succeed("info", python=bare_python, PYTHONPATH=str(tmp_path))
    assert "torch is not installed" in text
    assert "scripts/setup.sh" in text


@pytest.mark.parametrize("command", ["info", "list"])
def test_without_rich_one_sentence_says_how_to_install_it(bare_python: str, command: str) -> None:
    done = run(command, python=bare_python)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'hvd_compress[cli]'" in done.stderr
    assert "--json" in done.stderr


def test_list_as_json_needs_no_rich(bare_python: str, listed: dict[str, Any]) -> None:
    assert json.loads(succeed("list", "--json", python=bare_python)) == listed


def test_a_broken_horovod_is_reported_in_one_line(bare_python: str, tmp_path: Path) -> None:
    path = add_horovod(tmp_path, b"not a library")
    horovod = json.loads(succeed("info", "--json", python=bare_python, PYTHONPATH=path))["horovod"]
    assert horovod["version"] == "0.28.1"
    assert "mpi_lib_v2" in horovod["frameworks"]["torch"]["error"]
    assert "\n" not in horovod["frameworks"]["torch"]["error"]
    assert horovod["frameworks"]["tensorflow"] is None


def test_a_library_that_ends_the_process_does_not_end_info(bare_python: str, tmp_path: Path) -> None:
    path = add_horovod(tmp_path, b"not a library")
    (tmp_path / "torch" / "__init__.py").write_text("import os; os.abort()")
    facts = json.loads(succeed("info", "--json", python=bare_python, PYTHONPATH=path))
    assert "SIGABRT" in facts["horovod"]["frameworks"]["torch"]["error"]
    assert "SIGABRT" in facts["backends"]["torch"]["error"]


def test_a_horovod_without_a_library_for_the_framework_is_not_built_for_it(bare_python: str, tmp_path: Path) -> None:
    path = add_horovod(tmp_path, None)
    facts = json.loads(succeed("info", "--json", python=bare_python, PYTHONPATH=path))
    assert facts["horovod"]["frameworks"] == {"torch": None, "tensorflow": None, "mxnet": None}
    assert facts["skins"]["torch"]["error"]
