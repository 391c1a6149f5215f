#!/usr/bin/env bash
# Sets up .venv and trains a language model on two workers, dense and compressed; options: see --help once it is set up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Whoever asks for help has not asked for ten minutes of set-up.
if [[ " $* " == *" -h "* || " $* " == *" --help "* ]] && [[ ! -x .venv/bin/python ]]; then
    sed -n '2s/^# //p' scripts/quickstart.sh
    exit 0
fi

bash scripts/setup.sh
exec .venv/bin/python scripts/quickstart.py "$@"
