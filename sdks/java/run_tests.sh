#!/bin/sh
# All tests of the library, with javac and java alone; those of sdks/conformance need POSTHOUSE_STUB, which
# ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
classes="${BUILD:-target}/classes"
rm -rf "$classes"
mkdir -p "$classes"
# The first compiler of the JVM is enough for programs this short, and several times as fast to start.
javac -J-XX:TieredStopAtLevel=1 --release 17 -encoding UTF-8 -Xlint:all -Xdoclint:all,-missing -Werror -d "$classes" \
    $(find src/main/java src/test/java -name '*.java')
exec java -XX:TieredStopAtLevel=1 -cp "$classes" example.posthouse.Harness
