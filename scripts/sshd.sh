#!/usr/bin/env bash
# Lets mpirun and horovodrun on other hosts start ranks on this one: an ssh server for the user who starts it, who need
# not be root, until it is ended: bash scripts/sshd.sh [PORT], 12345 unless given.
#
# Who has a key of ~/.ssh/authorized_keys may log in; there are no passwords. The server's own key is new at each start.
# Ranks find the programs that are on the path here.
set -euo pipefail
port=${1:-12345}

case "$port" in
-h | --help)
    sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
*[!0-9]* | '')
    echo "sshd.sh: PORT must be a number from 1 to 65535, got '$port'; see --help" >&2
    exit 2
    ;;
esac
if (($# > 1)); then
    echo "sshd.sh: there is one argument, PORT, got $*; see --help" >&2
    exit 2
fi
# By its whole path, as sshd wants to be called.
if ! sshd=$(PATH=$PATH:/usr/sbin:/usr/local/sbin type -P sshd); then
    echo 'sshd.sh: there is no sshd: install one (Debian, Ubuntu: apt install openssh-server)' >&2
    exit 1
fi

key=$(mktemp -d)
trap 'rm -rf "$key"' EXIT
ssh-keygen -q -t ed25519 -N '' -f "$key/host"
# Where root's server hides what has not logged in yet.
((EUID != 0)) || mkdir -p /run/sshd

# Nothing of the machine's own settings. A folder of keys that is mounted may belong to another user: no StrictModes.
"$sshd" -D -e -f /dev/null -h "$key/host" -p "$port" -o PidFile=none -o StrictModes=no -o PasswordAuthentication=no \
    -o KbdInteractiveAuthentication=no -o AuthorizedKeysFile=.ssh/authorized_keys -o "SetEnv=PATH=$PATH" &
trap 'kill $!' INT TERM HUP
wait $!
