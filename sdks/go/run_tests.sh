#!/bin/sh
# All tests of the library; those of sdks/conformance need POSTHOUSE_STUB, which ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
export GOTOOLCHAIN=local GOPROXY=off
if [ -n "$BUILD" ]; then export GOCACHE="$BUILD/cache"; fi
unformatted="$("$(go env GOROOT)/bin/gofmt" -l .)"
if [ -n "$unformatted" ]; then echo "gofmt: $unformatted" >&2; exit 1; fi
go vet ./...
exec go test -vet=off -count=1 ./...
