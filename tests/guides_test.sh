#!/bin/bash
# The C++ of every guide must compile: what stands between ```cpp and ``` in a page, in order, is one file.
#
#   tests/guides_test.sh SOURCE_ROOT COMPILER [ARGUMENT ...]
set -euo pipefail

root=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pages=0
for page in "$root"/docs/guide-*.md; do
  source=$scratch/$(basename "$page" .md).cc
  sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$page" > "$source"
  if ! [ -s "$source" ]; then
    echo "$page: no C++ in it"
    exit 1
  fi
  "$@" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I"$root/include" "$source"
  echo "pass $(basename "$page"): $(wc -l < "$source") lines"
  pages=$((pages + 1))
done
[ "$pages" -gt 0 ]
