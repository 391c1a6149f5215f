#!/usr/bin/env bash
# What both images need below .venv: Debian's packages, a user, and ssh as Horovod's recipe for several hosts has it.
# Runs as root while an image is built.
set -euo pipefail

apt-get update
apt-get install -y --no-install-recommends ca-certificates g++ openssh-client openssh-server python3-dev python3-venv
rm -rf /var/lib/apt/lists/*
# Keys made here would be those of every container; scripts/sshd.sh makes its own at each start.
rm -f /etc/ssh/ssh_host_*

useradd --create-home --uid 1000 horovod
install -d -o horovod -g horovod -m 700 /home/horovod/.ssh

# Containers are new at each start, and so are their keys: nothing to remember. The user's key says who may log in.
cat >/etc/ssh/ssh_config.d/horovod.conf <<'END'
Host *
    Port 12345
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
END
