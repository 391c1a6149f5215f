#!/usr/bin/env bash
# Makes .venv with everything that the package, its examples and its tests need, Horovod included: see --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

# The interpreter below an active virtual environment, which may be the .venv that is about to be made anew.
probe='import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13): sys.exit(1)
print(sys._base_executable)'

seen=''
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if python=$("$candidate" -c "$probe" 2>/dev/null); then
        exec "$python" "$here/environment.py" "$@"
    fi
    seen+=", $candidate: $("$candidate" --version 2>/dev/null || echo 'not there')"
done
echo "setup: Python 3.11, 3.12 or 3.13 is needed (${seen#, }): install one, or name it as in" \
    "PYTHON=/path/to/python3.12 bash scripts/setup.sh" >&2
exit 1
