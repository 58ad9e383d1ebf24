#!/bin/sh
# All tests of the library; those of sdks/conformance need POSTHOUSE_STUB, which ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
sh build.sh
node_modules/.bin/tsc -p tests/tsconfig.json
exec node --test --test-reporter=spec dist/tests/client.test.js dist/tests/conformance.test.js
