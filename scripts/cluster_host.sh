#!/usr/bin/env bash
# Runs something on a host of scripts/cluster.sh, which calls it, as mpirun does for its remote shell: the host's
# address, then words for that host's shell.
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

# Hosts know each other by name. A mounted file is there without a name of its own: nothing of it is left.
names=$(mktemp)
cat /etc/hosts >"$names"
for ((other = 1; other <= HVD_COMPRESS_CLUSTER_HOSTS; other++)); do echo "${1%.*}.$other hvdc$other"; done >>"$names"

exec nsenter --net="/run/netns/hvdc$number" unshare --uts --mount taskset -c "$(IFS=, && echo "${cores[*]}")" \
    bash -c "hostname hvdc$number; mount --bind '$names' /etc/hosts; rm '$names'; ${*:2}"
