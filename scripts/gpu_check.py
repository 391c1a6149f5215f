"""Test and measure the package on a GPU, within some minutes and without Horovod; write the results to one JSON file.

Exit status: 0 all is well, 1 a test failed or there was no time for all of them, 2 wrong usage, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("test_streams.py", "test_device.py", "test_triton.py", "test_ops.py", "test_contract.py")
NEEDED = ("numpy", "torch", "pytest", "rich")
SECONDS_TO_MEASURE, SECONDS_FOR_ONE = 110, 30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries this script where there is no GPU")
    add("--out", type=Path, default=Path("gpu_check.json"), metavar="FILE", help="default: gpu_check.json")
    add("--seconds", type=int, default=350, metavar="S", help="time for all of it (default: 350)")
    add("--select", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    add("--entries", default="1e6,25.6e6", metavar="SIZES", help="sizes that are measured (default: 1e6,25.6e6)")
    return parser.parse_args()


def main() -> int:
    """Run tests and benchmarks; return the exit status."""
    begin, asked = time.monotonic(), arguments()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu_check.sh: {sys.executable} lacks {', '.join(missing)}; name another in PYTHON", file=sys.stderr)
        return 2
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        print(f"gpu_check.sh: there is no GPU here that torch {torch.__version__} can use", file=sys.stderr)
        return 3
    env = surroundings(asked.device)
    print(f"Testing and measuring on {asked.device}: {asked.seconds} s at most", flush=True)
    found: dict[str, Any] = {"device": asked.device, "machine": machine(torch, asked.device)}
    found["tests"] = tested(asked, env, begin + asked.seconds - min(SECONDS_TO_MEASURE, asked.seconds / 3))
    found["bench"] = {
        name: measured(asked, {**env, "HVD_COMPRESS_TRITON": wanted}, begin + asked.seconds)
        for name, wanted in (("with_triton", "1"), ("without_triton", "0"))
        if asked.device == "cuda" or wanted == "0"
    }
    well = all(part["ok"] for part in (found["tests"], *found["bench"].values()))
    found.update(ok=well, seconds=round(time.monotonic() - begin, 1))
    asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(found)
    print(f"{'All is well' if well else 'NOT all is well'}; results: {asked.out}")
    return 0 if well else 1


def surroundings(device: str) -> dict[str, str]:
    """Environment of what is started: this checkout, and the backends of the device beside NumPy."""
    backends = ["numpy", "device"]
    if device == "cuda" and importlib.util.find_spec("triton"):
        backends.append("triton")
    chosen = {"HVD_COMPRESS_TEST_BACKENDS": ",".join(backends), "HVD_COMPRESS_NATIVE": "0"}
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **chosen}


def machine(torch: Any, device: str) -> dict[str, Any]:
    """What was tested and measured on."""
    versions = {}
    for name in (*NEEDED, "triton"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    facts: dict[str, Any] = {"python": platform.python_version(), "packages": versions}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        facts |= {"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "memory_bytes": gpu.total_memory}
        facts["cuda"] = torch.version.cuda
    return facts


def tested(asked: argparse.Namespace, env: dict[str, str], deadline: float) -> dict[str, Any]:
    """Run the tests until the deadline; counts, and what failed."""
    report = asked.out.with_suffix(".tests.json")
    report.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "scripts.deadline"]
    # With other versions of the packages than those of scripts/requirements.txt there may be other warnings.
    argv += ["-W", "default", "--device", asked.device, "-k", asked.select or "device or triton or stream or gpu"]
    argv += [f"tests/single/{name}" for name in TESTS]
    left = max(1.0, deadline - time.monotonic())
    limits = {"DEADLINE_SECONDS": f"{left:.0f}", "DEADLINE_REPORT": str(report.resolve())}
    try:
        # The last test that begins has some time, too.
        status = subprocess.run(argv, cwd=ROOT, env={**env, **limits}, timeout=left + SECONDS_FOR_ONE).returncode
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"the last test had not ended {SECONDS_FOR_ONE} s after its time"}
    if not report.exists():
        return {"ok": False, "error": f"pytest ended with status {status}"}
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return {"ok": status == 0 and found["complete"], **found}


def measured(asked: argparse.Namespace, env: dict[str, str], deadline: float) -> dict[str, Any]:
    """Measure all codecs; the rows of ``bench --json``."""
    argv = [sys.executable, "-m", "hvd_compress", "bench", "--device", asked.device, "--n", asked.entries]
    left = max(5.0, deadline - time.monotonic())
    try:
        done = subprocess.run(
            [*argv, "--seconds", "0.2", "--json"], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=left
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"not done within {left:.0f} s", "rows": []}
    if done.returncode != 0:
        return {"ok": False, "error": f"bench ended with status {done.returncode}", "rows": []}
    return {"ok": True, "rows": json.loads(done.stdout)}


def show(found: dict[str, Any]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    for name, part in found["bench"].items():
        table = Table(title=f"{name.replace('_', ' ')}: milliseconds", box=None)
        for column in ("entries", "codec", "encode", "x copy", "decode", "x copy"):
            table.add_column(column, justify="left" if column == "codec" else "right", no_wrap=True)
        for row in part["rows"]:
            figures = [row[key] for key in ("encode_ms", "encode_x_copy", "decode_ms", "decode_x_copy")]
            cells = ("" if figure is None else f"{figure:.3g}" for figure in figures)
            table.add_row(f"{row['n']:,}", row["codec"], *cells)
        Console().print(table)
    tests = found["tests"]
    if "error" in tests:
        print(f"tests: {tests['error']}")
        return
    ending = "" if tests["complete"] else f", then the time for tests was over; {tests['collected']} were to run"
    print("tests: {passed} passed, {failed} failed, {skipped} skipped".format(**tests) + ending)


if __name__ == "__main__":
    sys.exit(main())
