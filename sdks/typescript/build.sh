#!/bin/sh
# Installs the compiler if it isn't there, then builds the library into dist/: for import, and for require.
set -e
cd "$(dirname "$0")"
if [ ! -x node_modules/.bin/tsc ]; then
  # npm lies beside node; some packages of Node bring it without a command that works.
  npm="$(dirname "$(command -v node)")/../lib/node_modules/npm/bin/npm-cli.js"
  if [ -e "$npm" ]; then node "$npm" ci --no-audit --no-fund; else npm ci --no-audit --no-fund; fi
fi
rm -rf dist
node_modules/.bin/tsc -p tsconfig.json
node_modules/.bin/tsc -p tsconfig.cjs.json
echo '{"type": "commonjs"}' >dist/cjs/package.json
