#!/usr/bin/env bash
# Sets up .venv and runs every check and test; with paths, only these tests: bash scripts/test.sh [PATH...]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
-h | --help)
    sed -n '2s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
-*)
    echo "test.sh: there is no option $1; give paths of tests, or nothing for all" >&2
    exit 2
    ;;
esac

# Here a backend that cannot be imported fails its tests instead of skipping them.
export HVD_COMPRESS_TEST_BACKENDS=numpy,torch,tensorflow,device HVD_COMPRESS_TEST_TRITON=1
[[ ${HVD_COMPRESS_NATIVE:-} == 0 ]] || HVD_COMPRESS_TEST_BACKENDS+=,native
summary=''
failed=0

group() {
    local name=$1 begin=$SECONDS result=passed
    shift
    printf '\n== %s\n' "$name"
    "$@" || {
        result=FAILED
        failed=1
    }
    summary+=$(printf '%-12s %-7s %2d min %02d s' "$name" $result $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)))$'\n'
}

group set-up bash scripts/setup.sh
# Nothing below can run without it.
((failed == 0)) || exit 1
group ruff .venv/bin/ruff check .
group mypy .venv/bin/mypy --strict hvd_compress
# One call, so that its last line counts every test; the plugin tells the time of tests/single and tests/parallel apart.
group pytest .venv/bin/python -m pytest -p scripts.group_times "$@"

printf '\n%s' "$summary"
exit $failed
