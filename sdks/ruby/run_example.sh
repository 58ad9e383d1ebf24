#!/bin/sh
# Runs the program in the given file with the library as it lies here.
set -e
exec ruby -w -I "$(cd "$(dirname "$0")" && pwd)/lib" "$1"
