#!/usr/bin/env bash
# What mpirun calls for its remote shell in scripts/cluster.sh: a host's address, then words for that host's shell.
set -euo pipefail
number=${1##*.}
read -ra cores <<<"$HVD_COMPRESS_CLUSTER_CORES"

# Each host has as many cores of its own as there are for each; where hosts are more than cores, they take turns.
each=$((${#cores[@]} / HVD_COMPRESS_CLUSTER_HOSTS))
if ((each > 0)); then
    cores=("${cores[@]:(number - 1) * each:each}")
else
    cores=("${cores[(number - 1) % ${#cores[@]}]}")
fi

exec nsenter --net="/run/netns/hvdc$number" unshare --uts taskset -c "$(IFS=, && echo "${cores[*]}")" \
    bash -c "hostname hvdc$number; ${*:2}"
