#!/bin/sh
# Runs the program in the given file with the library as it lies here.
set -e
here="$(cd "$(dirname "$0")" && pwd)"
classes="${BUILD:-$here/target}/example-classes"
rm -rf "$classes"
mkdir -p "$classes"
javac -J-XX:TieredStopAtLevel=1 --release 17 -encoding UTF-8 -d "$classes" $(find "$here/src/main/java" -name '*.java')
exec java -XX:TieredStopAtLevel=1 -cp "$classes" "$1"
