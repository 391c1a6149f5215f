#!/usr/bin/env bash
# Trains on two processes, under mpirun and under horovodrun --gloo, while one of them dies, runs out of memory, receives
# damaged bytes, is interrupted or stopped: bash scripts/test_faults.sh [SECONDS]. Prints how long it took until all had
# ended, or until training went on. A process is stopped for SECONDS, 90 unless given; the tests themselves stop it for
# 5, or for what HVD_COMPRESS_TEST_STOP_SECONDS says.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
seconds=${1:-90}

case "$seconds" in
-h | --help)
    sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*[!0-9]* | '')
    echo "test_faults.sh: SECONDS must be a whole number, got '$seconds'; see --help" >&2
    exit 2
    ;;
esac
if (($# > 1)); then
    echo "test_faults.sh: there is one argument, SECONDS, got $*; see --help" >&2
    exit 2
fi

cd "$root"
bash scripts/setup.sh
export HVD_COMPRESS_TEST_STOP_SECONDS=$seconds
.venv/bin/python -m pytest -p scripts.fault_table tests/parallel/test_torch_faults.py
