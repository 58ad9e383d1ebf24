#!/usr/bin/env bash
# Runs what CI runs on Debian 13, with its Python 3.13 and PostgreSQL 17, as in the image: as root, in a root directory
# that mmdebstrap makes. CI itself runs on Debian 12 with Python 3.11, the oldest that is supported.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v mmdebstrap >/dev/null || { echo "mmdebstrap is missing: apt-get install mmdebstrap" >&2; exit 1; }
# Not in /tmp, which may be small, or mounted without programs.
root=$(mktemp -d /var/tmp/debian-13-XXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
mmdebstrap --quiet --variant=minbase --include=ca-certificates,git,procps trixie "$root"
git clone --quiet . "$root/posthouse"
# Where this machine gets its packages from.
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/npmrc /usr/local/share/ca-certificates; do
  [ ! -e "$file" ] || cp -rL --parents "$file" "$root"
done
# The mounts end with the shell.
unshare --mount bash -euo pipefail -s "$root" <<'SHELL'
for directory in dev proc sys; do mount --rbind "/$directory" "$1/$directory"; done
mount -t tmpfs tmpfs "$1/dev/shm"
chroot "$1" update-ca-certificates >/dev/null
chroot "$1" /posthouse/.ci/run
SHELL
