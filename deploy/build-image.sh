#!/usr/bin/env bash
# Builds the image with buildah, as root, without a container engine: deploy/build-image.sh [--own-base] [TAG]
# With --own-base no registry is used: mmdebstrap makes the base from Debian packages.
# BUILD_FLAGS are more arguments of `buildah build`.
set -euo pipefail
cd "$(dirname "$0")/.."

own_base=
[ "${1:-}" != --own-base ] || { own_base=yes; shift; }
tag=${1:-localhost/posthouse:$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
base=docker.io/library/debian:trixie-slim
# Needs neither a container runtime nor user namespaces.
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

for needed in buildah ${own_base:+mmdebstrap}; do
  command -v "$needed" >/dev/null || { echo "$needed is missing: apt-get install buildah mmdebstrap" >&2; exit 1; }
done

if [ -n "$own_base" ]; then
  base=localhost/debian:trixie-slim
  if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    archive=$(mktemp --suffix .tar)
    trap 'rm -f "$archive"' EXIT
    # What Debian's slim image leaves out.
    mmdebstrap --quiet --variant=minbase \
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      --dpkgopt='path-exclude=/usr/share/info/*' \
      trixie "$archive"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$archive" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
  fi
fi

# The health check is part of Docker's format only.
# shellcheck disable=SC2086 # BUILD_FLAGS are several words
buildah build --quiet --format docker --build-arg BASE="$base" ${BUILD_FLAGS:-} \
  --file deploy/Containerfile --tag "$tag" . >/dev/null
echo "$tag"
