#!/bin/sh
# Runs the program in the given file with the library as it lies here.
set -e
PYTHONPATH="$(cd "$(dirname "$0")" && pwd)/src" PYTHONDONTWRITEBYTECODE=1 exec python3 -W error "$1"
