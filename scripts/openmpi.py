"""Make the Open MPI of a virtual environment work on a bare machine."""

from __future__ import annotations

import sys
from pathlib import Path

# A Python that no mpirun started must be told where Open MPI was put, or dies in MPI_Init; every Python of the
# environment reads this line when it starts.
PREFIX = 'import os, sys; os.environ.setdefault("OPAL_PREFIX", sys.prefix)\n'

# Without an ssh client mpirun refuses to start even if every worker is local. It asks this file to be there, and runs
# it for other hosts only.
REMOTE_SHELL = """#!/bin/sh
command -v ssh >/dev/null && exec ssh -x "$@"
echo "mpirun needs an ssh client to reach other hosts: install one (Debian, Ubuntu: apt install openssh-client)." >&2
exit 1
"""


def settle(venv: Path) -> None:
    """Write both into the environment; nothing of it overrides what a user sets."""
    (site_packages,) = (venv / "lib").glob("python3.*/site-packages")
    (site_packages / "openmpi_prefix.pth").write_text(PREFIX, encoding="utf-8")
    # Open MPI looks for it from wherever mpirun is started.
    remote_shell = venv.resolve() / "bin" / "mpirun-remote-shell"
    remote_shell.write_text(REMOTE_SHELL, encoding="utf-8")
    remote_shell.chmod(0o755)
    parameters = venv / "etc" / "openmpi-mca-params.conf"
    setting = f"plm_rsh_agent = {remote_shell}\n"
    lines = parameters.read_text(encoding="utf-8").splitlines(keepends=True)
    others = [line for line in lines if not line.startswith("plm_rsh_agent")]
    parameters.write_text("".join([*others, setting]), encoding="utf-8")


if __name__ == "__main__":
    settle(Path(sys.argv[1]))
