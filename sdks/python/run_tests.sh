#!/bin/sh
# All tests of the library; those of sdks/conformance need POSTHOUSE_STUB, which ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 exec python3 -W error -m unittest discover -s tests
