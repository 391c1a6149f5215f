#!/usr/bin/env bash
# Runs docker/slurm.sbatch through a Slurm of its own, on two hosts of scripts/cluster.sh: bash scripts/test_slurm.sh.
# Fails unless both ranks end with the same parameters, bit for bit.
# Needs root, iproute2 and Slurm (apt install iproute2 munge slurm-client slurmctld slurmd).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

fail() {
    echo "test_slurm.sh: $1" >&2
    exit "${2:-1}"
}

case "$#${1:-}" in
0) ;;
*-h | *--help)
    sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) fail "there are no arguments, got $*; see --help" 2 ;;
esac
((EUID == 0)) || fail 'hosts on one machine need root: run this as root, for example with sudo'
PATH=$PATH:/usr/sbin
type -P ip munged sbatch slurmctld slurmd >/dev/null ||
    fail 'ip, munged, sbatch, slurmctld or slurmd is missing: apt install iproute2 munge slurm-client slurmctld slurmd'

cd "$root"
bash scripts/setup.sh
work=$(mktemp -d)
cleanup() {
    [[ ! $up ]] || bash scripts/cluster.sh down
    pkill --pidfile "$work/munged.pid" || true
    # It writes its seed last of all.
    while [[ -f $work/munged.pid ]]; do sleep 0.05; done
    rm -rf "$work"
}
up=''
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Slurm's daemons trust each other by this key.
(umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munged.log" --seed-file="$work/munged.seed"

export SLURM_CONF=$work/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=hvd_compress
SlurmctldHost=hvdc1
SlurmUser=root
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
NodeName=hvdc[1-2] CPUs=1
PartitionName=all Nodes=ALL Default=YES
END

bash scripts/cluster.sh up --hosts 2 --rate 1gbit
up=yes
bash scripts/cluster.sh on 1 slurmctld -D >"$work/slurmctld.log" 2>&1 &
for host in 1 2; do bash scripts/cluster.sh on $host slurmd -D >"$work/slurmd$host.log" 2>&1 & done

# Open MPI asks root twice.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
bash scripts/cluster.sh on 1 sbatch --wait --output="$work/log" docker/slurm.sbatch --data README.md --steps 10 \
    --batch-size 8 --sequence-length 12 --out "$work/run" || {
    tail -n 20 "$work"/*.log "$work/log" >&2
    fail 'the job failed; what was said is above'
}
.venv/bin/python scripts/equal_ranks.py --ranks 2 "$work/run"
