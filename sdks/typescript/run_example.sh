#!/bin/sh
# Checks the types of the program in the given file and runs it, with the library as it lies here.
set -e
here="$(cd "$(dirname "$0")" && pwd)"
place="${BUILD:-$here/dist}/run_example"
test -e "$here/dist/cjs/package.json" || sh "$here/build.sh"
mkdir -p "$place/node_modules"
ln -sfn "$here" "$place/node_modules/posthouse-sdk"
ln -sfn "$here/node_modules/@types" "$place/node_modules/@types"
cp "$1" "$place/example.ts"
cd "$place"
echo '{"type": "module"}' >package.json
"$here/node_modules/.bin/tsc" --strict --target es2022 --module nodenext --types node --skipLibCheck \
  --ignoreConfig example.ts
exec node example.js
