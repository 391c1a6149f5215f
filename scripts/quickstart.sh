#!/usr/bin/env bash
# Sets up .venv and trains a language model on two workers, dense and compressed: --help lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
exec .venv/bin/python scripts/quickstart.py "$@"
