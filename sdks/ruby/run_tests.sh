#!/bin/sh
# All tests of the library; those of sdks/conformance need POSTHOUSE_STUB, which ../conformance/stub.py sets.
set -e
cd "$(dirname "$0")"
exec ruby -w -I lib -I test -e 'Dir.glob("test/test_*.rb").sort.each { |file| require "./#{file}" }'
