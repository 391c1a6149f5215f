#!/usr/bin/env bash
# Tests and measures the package on a GPU within six minutes, and writes the results to one JSON file: see --help. Needs
# a Python (the variable PYTHON, else python3) with PyTorch, NumPy, pytest and rich; no Horovod, compiler or network.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
exec "${PYTHON:-python3}" "$here/gpu_check.py" "$@"
