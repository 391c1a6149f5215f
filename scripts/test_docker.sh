#!/usr/bin/env bash
# Builds the CPU image and tries it: bash scripts/test_docker.sh. Trains on two workers in one container, and on two
# containers that are hosts to each other, over ssh, by MPI and by Gloo, and runs the unit tests; looks over docker/
# first. Takes Docker where an engine answers. Otherwise it builds with buildah, as root and without any
# engine, on a base image that debootstrap makes, and the containers are on hosts of scripts/cluster.sh
# (apt install buildah debootstrap iproute2 openssh-client python3-venv).
# The images hvd_compress:base and hvd_compress:test stay, and what pip fetched: the next time is quick.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
scripts=/opt/hvd_compress/scripts
image=hvd_compress:test

fail() {
    echo "test_docker.sh: $1" >&2
    exit "${2:-1}"
}

case "$#${1:-}" in
0) ;;
*-h | *--help)
    sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*) fail "there are no arguments, got $*; see --help" 2 ;;
esac

# Of each engine: build the image; run something in a new container, as a user; start a host, hvdc2, with an ssh server;
# run something on another host, hvdc1; remove the containers.
if docker info >/dev/null 2>&1; then
    build() { docker build -f docker/Dockerfile -t $image .; }
    in_container() { docker run --rm --user "$1" $image "${@:2}"; }
    start_host() {
        docker network create hvd_compress_test
        docker run -d --name hvdc2 --hostname hvdc2 --network hvd_compress_test "${keys[@]}" $image bash $scripts/sshd.sh
    }
    on_other_host() { docker run --rm --hostname hvdc1 --network hvd_compress_test "${keys[@]}" $image "$@"; }
    remove() {
        docker rm -f hvdc2
        docker network rm hvd_compress_test
    } >/dev/null 2>&1
else
    ((EUID == 0)) || fail 'no Docker engine answers, and buildah needs root here: run this as root, for example with sudo'
    type -P buildah debootstrap ip >/dev/null ||
        fail 'no Docker engine answers: start one, or apt install buildah debootstrap iproute2'
    make_base() {
        local container
        debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/base" \
            "$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' | head -n 1)"
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$work/base" /
        buildah commit --quiet --rm "$container" hvd_compress:base
        rm -rf "$work/base"
    }
    build() {
        buildah inspect --type image hvd_compress:base >/dev/null 2>&1 || make_base
        local options=() name
        # pip's settings of this machine hold in the build too; a file or folder that one names is mounted.
        for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT; do
            if [[ -e ${!name:-} ]]; then
                options+=(--volume "${!name}:/run/build/$name:ro" --build-arg "$name=/run/build/$name")
            elif [[ ${!name:-} ]]; then
                options+=(--build-arg "$name=${!name}")
            fi
        done
        buildah bud --isolation chroot --layers "${options[@]}" --build-arg BASE_IMAGE=localhost/hvd_compress:base \
            -f docker/Dockerfile -t $image .
    }
    # Docker has a container know its own name, which Gloo needs; here it gets one that it knows.
    in_container() {
        buildah from --name hvdc0 $image >/dev/null
        buildah run --isolation chroot --hostname localhost --user "$1" hvdc0 -- "${@:2}"
        buildah rm hvdc0 >/dev/null
    }
    start_host() {
        bash scripts/cluster.sh up --hosts 2 --rate unlimited
        up=yes
        buildah from --name hvdc1 $image
        buildah from --name hvdc2 $image
        bash scripts/cluster.sh on 2 buildah run --isolation chroot --hostname hvdc2 "${keys[@]}" hvdc2 -- \
            bash $scripts/sshd.sh &
    }
    on_other_host() {
        bash scripts/cluster.sh on 1 buildah run --isolation chroot --hostname hvdc1 "${keys[@]}" hvdc1 -- "$@"
    }
    remove() {
        [[ ! $up ]] || bash scripts/cluster.sh down
        buildah rm hvdc0
        buildah rm hvdc1 hvdc2
    } >/dev/null 2>&1
fi

cd "$root"
work=$(mktemp -d)
up=''
# A run that was killed has left its own behind.
remove || true
trap 'remove || true; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

step() { echo "== $1 ($((SECONDS / 60)) min $((SECONDS % 60)) s since the start)"; }

step 'looking over docker/'
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check -r docker/requirements.txt
"$work/venv/bin/python" scripts/check_docker.py

step 'building the image'
build

# The same for one container and for two; TensorFlow, which horovodrun imports, has nothing to say.
train() {
    echo "export TF_CPP_MIN_LOG_LEVEL=3
        horovodrun --disable-cache -np 2 $1 python $scripts/train_lm.py --compression topk:density=0.01 --out run \
            --data $scripts/../README.md --steps 10 --batch-size 8 --sequence-length 12 &&
        python $scripts/equal_ranks.py --ranks 2 run"
}
step 'two workers in one container'
in_container horovod bash -c "$(train '-H localhost:2')"

step 'two containers'
mkdir -m 755 "$work/keys"
ssh-keygen -q -t ed25519 -N '' -f "$work/keys/id_ed25519"
cp "$work/keys/id_ed25519.pub" "$work/keys/authorized_keys"
# The container's user must be able to read it; ssh minds that others can only where the key is one's own.
chmod 644 "$work/keys/id_ed25519"
keys=(--volume "$work/keys:/home/horovod/.ssh:ro")
chmod 711 "$work"
start_host >"$work/host.log" 2>&1
for launcher in mpi gloo; do
    on_other_host bash -c "$(train "-H hvdc1:1,hvdc2:1 --$launcher")" || {
        cat "$work/host.log" >&2
        fail "training on two containers by $launcher failed; what was said is above"
    }
done
step 'unit tests, as root: they write into the checkout'
in_container root bash -c "cd $scripts/.. && python -m pytest -q tests/single"

step 'all is well'
