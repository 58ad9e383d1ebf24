#!/bin/sh
# Writes fresh secrets for compose.yaml or the kustomization, one file each: deploy/make-secrets.sh DIRECTORY [HOST OF POSTGRESQL] [ADDRESSES OF NATS]
# Existing files are not overwritten. Keep a copy in a safe place: without these files stored keys can't be used.
set -eu
directory=${1:?name a directory, such as deploy/secrets}
postgres=${2:-postgres}
nats=${3:-nats-1:4222 nats-2:4222 nats-3:4222}

umask 077
mkdir -p "$directory"
cd "$directory"

fresh() { head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n'; }
# Only root and you can enter the directory; the containers' own user has to read the files that are mounted from it.
keep() { [ -e "$1" ] || { cat >"$1.new"; chmod 444 "$1.new"; mv "$1.new" "$1"; }; }

fresh | keep pepper
fresh | keep jwt_secret
printf '1:%s' "$(head -c 32 /dev/urandom | base64)" | keep seal_keys
fresh | keep postgres_password
printf 'postgresql://posthouse:%s@%s:5432/posthouse' "$(cat postgres_password)" "$postgres" | keep database_url
fresh | keep nats_password
printf 'authorization { user: posthouse, password: "%s" }\n' "$(cat nats_password)" | keep nats_authorization.conf
for server in $nats; do
  printf '%snats://posthouse:%s@%s' "${comma:-}" "$(cat nats_password)" "$server"
  comma=,
done | keep stream_servers
