#!/bin/sh
# All tests of the library; those of sdks/conformance need POSTHOUSE_STUB, which ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
exec php -d zend.assertions=1 -d zend.exception_ignore_args=0 tests/run.php
