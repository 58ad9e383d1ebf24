#!/bin/sh
# Runs the program in the given file with the library as it lies here, in the place where Composer would put it.
set -e
here="$(cd "$(dirname "$0")" && pwd)"
folder="$(cd "$(dirname "$1")" && pwd)"
mkdir -p "$folder/vendor"
printf "<?php\nrequire '%s/autoload.php';\n" "$here" > "$folder/vendor/autoload.php"
exec php -d error_reporting=-1 -d display_errors=1 "$1"
