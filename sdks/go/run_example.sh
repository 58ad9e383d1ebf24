#!/bin/sh
# Runs the program in the given file with the library as it lies here.
set -e
file="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
cd "$(dirname "$0")"
export GOTOOLCHAIN=local GOPROXY=off
if [ -n "$BUILD" ]; then export GOCACHE="$BUILD/cache"; fi
exec go run "$file"
