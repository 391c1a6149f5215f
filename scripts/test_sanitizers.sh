#!/usr/bin/env bash
# Runs the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer: their tests and the corruption tests, then
# libFuzzer on every decoder for so many seconds: bash scripts/test_sanitizers.sh [SECONDS], 600 unless given.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
seconds=${1:-600}

case "$seconds" in
-h | --help)
    sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*[!0-9]* | '')
    echo "test_sanitizers.sh: SECONDS must be a whole number, got '$seconds'; see --help" >&2
    exit 2
    ;;
esac
if ! command -v clang++ >/dev/null; then
    echo 'test_sanitizers.sh: clang++ with libFuzzer is needed (Debian, Ubuntu: apt install clang)' >&2
    exit 1
fi
[[ -x $root/.venv/bin/python ]] || bash "$root/scripts/setup.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# No part of the standard library may be trusted to have checked what we have not.
flags='-g1 -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -DHVD_COMPRESS_SANITIZED'

printf '== the kernels\n'
cp -r "$root"/{hvd_compress,tests,setup.py,pyproject.toml,README.md} "$work"
find "$work" -name '*.so' -delete
cd "$work"
CC=clang CXX=clang++ CFLAGS="$flags -shared-libasan" LDFLAGS="-fsanitize=address,undefined -shared-libasan" \
    "$root/.venv/bin/python" setup.py -q build_ext --inplace >build.log 2>&1 || true
if ! compgen -G 'hvd_compress/native/_kernels*.so' >/dev/null; then
    cat build.log >&2
    exit 1
fi

# Python itself leaks at its end; torch's allocator is not what is looked at.
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 UBSAN_OPTIONS=print_stacktrace=1
export HVD_COMPRESS_TEST_BACKENDS=native
runtime=$(clang++ -print-file-name="libclang_rt.asan-$(uname -m).so")
best=$(cd "$root" && .venv/bin/python -c 'from hvd_compress.native import kernels; print(kernels.isa())')
for isa in portable "$best"; do
    printf '== their tests, %s\n' "$isa"
    HVD_COMPRESS_ISA=$isa LD_PRELOAD=$runtime "$root/.venv/bin/python" -m pytest -q -p no:cacheprovider \
        -k 'not instruction_set and not without_the_extension' tests/single/test_native.py tests/single/test_corruption.py
done

printf '== libFuzzer, %s s\n' "$seconds"
for source in "$root"/hvd_compress/native/*.cc; do
    case "$source" in *bind*) continue ;; esac
    extra=''
    case "$source" in
    */avx2.cc) extra='-mavx2 -mbmi2 -mf16c' ;;
    */avx512.cc) extra='-mavx512f -mavx512bw -mavx512dq -mavx512vl -mbmi2 -mf16c' ;;
    esac
    # shellcheck disable=SC2086
    clang++ -std=c++17 -ffp-contract=off $flags -fsanitize=fuzzer-no-link $extra -I"$root/hvd_compress/native" -c "$source" \
        -o "$work/$(basename "$source" .cc).o"
done
# shellcheck disable=SC2086
clang++ -std=c++17 $flags -fsanitize=fuzzer -I"$root/hvd_compress/native" "$root/tests/fuzz/decoders.cc" "$work"/*.o -pthread \
    -o "$work/decoders"
mkdir "$work/corpus"
"$work/decoders" -max_total_time="$seconds" -max_len=8192 -print_final_stats=1 "$work/corpus" 2>&1 | tail -n 12
