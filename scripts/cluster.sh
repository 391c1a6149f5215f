#!/usr/bin/env bash
# Several hosts on one machine: network namespaces that share a bridge, each with a link of a given speed.
#
#   bash scripts/cluster.sh up --hosts 4 --rate 1gbit   make the hosts; --rate unlimited leaves the links as fast as
#                                                       they are; without options 2 hosts at 1gbit
#   bash scripts/cluster.sh run -np 4 COMMAND...        one rank on each of the first 4 hosts (without -np: on all), by
#                                                       mpirun over TCP, with this environment
#   bash scripts/cluster.sh on 1 COMMAND...             the command on host 1 alone, where hvdc1, hvdc2, ... are the
#                                                       hosts' names
#   bash scripts/cluster.sh down                        end what runs on the hosts and remove them, if there are any
#
# Needs root, iproute2 and a kernel that lets root make network namespaces. What exists while a cluster is up: the
# namespaces hvdc1, hvdc2, ... (10.77.0.1, 10.77.0.2, ... on their eth0) and hvdc-switch (the bridge, 10.77.0.254, where
# mpirun itself runs); nothing outside them. Each host's sending is limited by tbf. Hosts have cores of their own where
# there are enough.
set -euo pipefail
script=${BASH_SOURCE[0]}
[[ $script == */* ]] || script=./$script
script=$(cd "${script%/*}" && pwd -P)/${script##*/}
subnet=10.77.0
switch=hvdc-switch

fail() {
    echo "cluster.sh: $1" >&2
    exit "${2:-1}"
}

usage() { fail "$1; see --help" 2; }

require_root_and_iproute2() {
    ((EUID == 0)) || fail "network namespaces need root: run this as root, for example with sudo"
    [[ $(type -P ip) && $(type -P tc) ]] || fail "there is no ip or no tc on the path: apt install iproute2"
}

one_at_a_time() {
    exec 9</run # A folder that is always there: nothing of the lock is left.
    flock -w 20 9 || fail "another cluster.sh has been at work for 20 seconds"
}

try() {
    local said
    said=$("$@" 2>&1) || fail "this kernel does not let us do '$*': ${said//$'\n'/ }"
}

namespaces() { ip netns list | sed -nE 's/^(hvdc([0-9]+|-switch))( .*)?$/\1/p'; }

hosts_up() { namespaces | grep -c '^hvdc[0-9]' || true; }

# `up` sets it last of all: without it the cluster is not whole.
about() { ip -n "$switch" -details link show bridge 2>/dev/null | sed -n 's/^ *alias //p'; }

pids_on_hosts() { for name in $(namespaces); do ip netns pids "$name"; done; }

pids_of_run() { grep -lsz "^HVD_COMPRESS_CLUSTER_RUN=$$\$" /proc/[0-9]*/environ | cut -d/ -f3; }

# Ends the processes that a command lists: asks them, and after 5 seconds forces them.
end_all() {
    local signal=TERM pids deadline=$((SECONDS + 5))
    trap '' INT TERM HUP
    while pids=$("$@" || true) && [[ $pids ]]; do
        xargs kill -"$signal" <<<"$pids" 2>/dev/null || true
        ((SECONDS < deadline)) || signal=KILL
        sleep 0.05
    done
}

our_cores() {
    taskset -cp $$ | sed 's/.*: //; s/,/\n/g' | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done
}

require_cluster() {
    require_root_and_iproute2
    [[ $(about) ]] || fail "no cluster is up: bash scripts/cluster.sh up"
}

# In the background and waited for: bash looks at a signal only when a program in the foreground has ended.
start_and_wait() {
    trap 'end_all pids_of_run' EXIT
    HVD_COMPRESS_CLUSTER_RUN=$$ HVD_COMPRESS_CLUSTER_HOSTS=$(hosts_up) HVD_COMPRESS_CLUSTER_CORES=$(our_cores | xargs) \
        "$@" <&0 &
    wait $!
}

remove() {
    end_all pids_on_hosts
    for name in $(namespaces); do ip netns del "$name"; done
}

add_host() {
    local number=$1 rate=$2 name=hvdc$1
    try ip netns add "$name"
    try ip -n "$name" link add eth0 type veth peer name "port$number" netns "$switch"
    try ip -n "$name" addr add "$subnet.$number/24" dev eth0
    try ip -n "$name" link set lo up
    try ip -n "$name" link set eth0 up
    # Linux's default, where this machine has another: what dense takes depends on it.
    ip -n "$name" route change "$subnet.0/24" dev eth0 src "$subnet.$number" congctl cubic 2>/dev/null || true
    try ip -n "$switch" link set "port$number" master bridge up
    # The burst holds the largest packet that TCP hands over in one piece (64 KiB): smaller, and each would be cut up.
    [[ $rate == unlimited ]] || try tc -n "$name" qdisc add dev eth0 root tbf rate "$rate" burst 128kb latency 50ms
}

up() {
    local hosts=2 rate=1gbit number
    while (($#)); do
        [[ $1 =~ ^--(hosts|rate)$ ]] || usage "up: there is no option '$1'"
        (($# > 1)) || usage "up: $1 needs a value"
        local "${1#--}=$2"
        shift 2
    done
    [[ $hosts =~ ^[1-9][0-9]?$ ]] || usage "up: --hosts must be from 1 to 99, got '$hosts'"
    [[ $rate =~ ^([1-9][0-9]*(\.[0-9]+)?(kbit|mbit|gbit)|unlimited)$ ]] ||
        usage "up: --rate must be like 100mbit or 1gbit, or unlimited, got '$rate'"
    require_root_and_iproute2
    one_at_a_time
    [[ ! $(namespaces) ]] || fail "a cluster of $(hosts_up) hosts is up already: take it down first"
    trap remove EXIT
    try ip netns add "$switch"
    try ip -n "$switch" link add bridge type bridge
    try ip -n "$switch" addr add "$subnet.254/24" dev bridge
    try ip -n "$switch" link set bridge up
    for ((number = 1; number <= hosts; number++)); do add_host "$number" "$rate"; done
    try ip -n "$switch" link set bridge alias "hosts: $hosts, rate: $rate"
    about
    ((hosts <= $(our_cores | wc -l))) || echo "cluster.sh: these hosts share $(our_cores | wc -l) cores" >&2
    trap - EXIT
}

run() {
    local ranks='' prefix=${VIRTUAL_ENV:-${script%/*/*}/.venv}
    if [[ ${1:-} == -np ]]; then
        ranks=${2:-''}
        [[ $ranks =~ ^[1-9][0-9]?$ ]] || usage "run: -np must be from 1 to the number of hosts, got '$ranks'"
        shift 2
    fi
    [[ ${1:--} != -* ]] || usage "run: a command must come next, got '${1:-nothing}'"
    require_cluster
    ((${ranks:=$(hosts_up)} <= $(hosts_up))) || usage "run: -np must be from 1 to $(hosts_up), the number of hosts"
    [[ ! -x $prefix/bin/mpirun ]] || export PATH="$prefix/bin:$PATH" OPAL_PREFIX="${OPAL_PREFIX:-$prefix}"
    [[ $(type -P mpirun) ]] || fail "there is no mpirun: bash scripts/setup.sh"
    set -- mpirun --allow-run-as-root --bind-to none -np "$ranks" --host "$(seq -s, -f "$subnet.%g" "$ranks")" \
        --mca plm_rsh_agent "bash cluster_host.sh" --mca plm_rsh_no_tree_spawn 1 --mca pml ob1 --mca btl tcp,self \
        --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" --mca mpi_yield_when_idle 1 "$@"
    # The path is for the agent, whose own path mpirun would divide at spaces.
    PATH=$PATH:${script%/*} start_and_wait nsenter --net="/run/netns/$switch" "$@"
}

on() {
    local number=${1:-}
    [[ $number =~ ^[1-9][0-9]?$ ]] || usage "on: the number of a host must come first, got '${number:-nothing}'"
    shift
    (($#)) || usage "on: a command must come next"
    require_cluster
    ((number <= $(hosts_up))) || usage "on: the host must be from 1 to $(hosts_up), got '$number'"
    start_and_wait bash "${script%/*}/cluster_host.sh" "$subnet.$number" "exec ${*@Q}"
}

trap 'exit 130' INT
trap 'exit 143' TERM HUP
case ${1:-} in
up | run | on) "$@" ;;
down)
    (($# == 1)) || usage "down takes no arguments"
    require_root_and_iproute2
    one_at_a_time
    remove
    ;;
-h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$script" ;;
*) usage "the first argument must be up, run, on or down, got '${1:-}'" ;;
esac
