#!/usr/bin/env bash
# Trains on two hosts with two ranks each, which horovodrun starts over ssh: PyTorch and TensorFlow, MPI and Gloo, dense
# and compressed: bash scripts/test_cluster.sh. The hosts are those of scripts/cluster.sh. Fails unless all ranks of a
# run end with the same parameters, bit for bit, and compressed runs put less on the hosts' links; prints a table.
# Needs root, iproute2 and an ssh server (apt install iproute2 openssh-server).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
port=12345

fail() {
    echo "test_cluster.sh: $1" >&2
    exit "${2:-1}"
}

case "$#${1:-}" in
0) ;;
*-h | *--help)
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) fail "there are no arguments, got $*; see --help" 2 ;;
esac
((EUID == 0)) || fail 'hosts on one machine need root: run this as root, for example with sudo'
PATH=$PATH:/usr/sbin
type -P ip ssh sshd >/dev/null || fail 'ip, ssh or sshd is missing: apt install iproute2 openssh-server'
# Mounts of a namespace of our own end with it: nobody's ~/.ssh is touched.
[[ ${HVD_COMPRESS_OWN_MOUNTS:-} ]] || HVD_COMPRESS_OWN_MOUNTS=1 exec unshare --mount bash "${BASH_SOURCE[0]}"

cd "$root"
bash scripts/setup.sh
source .venv/bin/activate
export OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3
work=$(mktemp -d)
cleanup() {
    [[ ! $up ]] || bash scripts/cluster.sh down
    umount ~/.ssh 2>/dev/null || true
    [[ ! $made ]] || rmdir ~/.ssh
    rm -rf "$work"
}
up=''
made=$([[ -d ~/.ssh ]] || { mkdir -m 700 ~/.ssh && echo yes; })
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

ssh-keygen -q -t ed25519 -N '' -f "$work/id_ed25519"
cp "$work/id_ed25519.pub" "$work/authorized_keys"
mount --bind "$work" ~/.ssh

bash scripts/cluster.sh up --hosts 2 --rate 1gbit
up=yes
for host in 1 2; do bash scripts/cluster.sh on $host bash scripts/sshd.sh $port >"$work/sshd$host.log" 2>&1 & done

link_bytes() { for host in 1 2; do ip netns exec "hvdc$host" cat /sys/class/net/eth0/statistics/tx_bytes; done | xargs; }

folders=()
for framework in torch tensorflow; do
    script=scripts/train_lm.py
    [[ $framework == torch ]] || script=scripts/train_lm_tf.py
    for launcher in mpi gloo; do
        for compression in none topk:density=0.01; do
            run="$framework $launcher ${compression%%:*}" begin=$SECONDS before=$(link_bytes)
            folders+=("$work/$run")
            echo "[${#folders[@]}/8] $run"
            bash scripts/cluster.sh on 1 horovodrun --disable-cache -p $port -np 4 -H hvdc1:2,hvdc2:2 --$launcher \
                python $script --compression $compression --data README.md --steps 10 --batch-size 8 \
                --sequence-length 12 --out "$work/$run" >"$work/log" 2>&1 || {
                cat "$work"/sshd*.log "$work/log" >&2
                fail "$run failed; what was said is above"
            }
            echo "$before $(link_bytes)" >"$work/$run/link_bytes"
            echo "      done in $((SECONDS - begin)) s"
        done
    done
done
python scripts/equal_ranks.py --ranks 4 "${folders[@]}"
