#!/bin/bash
# The C++ of every page must compile and do what the page says: what stands between ```cpp and ``` in docs/NAME.md, in
# order, is page.h of tests/documents/guides/NAME.cc, which calls it and compares results.
#
#   [LINK_ARGS=...] tests/documents/guides_test.sh SOURCE_ROOT LIBRARY COMPILER [ARGUMENT ...]
#
# LIBRARY: libsimdattn.a, or "none": the pages are compiled alone. MESON_EXE_WRAPPER: an emulator, in a cross build.
set -euo pipefail

root=$1
library=$2
shift 2
read -r -a wrapper <<< "${MESON_EXE_WRAPPER:-}"
read -r -a link_args <<< "${LINK_ARGS:-}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check_page() {
  local page=$1 name=$2
  shift 2
  mkdir "$scratch/$name"
  sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$page" > "$scratch/$name/page.h"
  if ! [ -f "$root/tests/documents/guides/$name.cc" ]; then
    echo "$page: tests/documents/guides/$name.cc does not exist"
    return 1
  fi
  local compile=("$@" -std=c++20 -O1 -Wall -Wextra -Werror -I"$root/include" -I"$root" -I"$scratch/$name"
                 "$root/tests/documents/guides/$name.cc")
  if [ "$library" = none ]; then
    "${compile[@]}" -fsyntax-only || return 1
  else
    "${compile[@]}" "$library" -pthread "${link_args[@]}" -o "$scratch/$name/program.exe" || return 1
    "${wrapper[@]}" "$scratch/$name/program.exe" || return 1
  fi
  echo "pass $name: $(wc -l < "$scratch/$name/page.h") lines"
}

pages=()
for page in "$root"/docs/*.md; do
  if grep -q '^```cpp$' "$page"; then pages+=("$page"); fi
done
[ ${#pages[@]} -gt 0 ]
jobs=()
for page in "${pages[@]}"; do
  check_page "$page" "$(basename "$page" .md)" "$@" &
  jobs+=($!)
done
failures=0
for job in "${jobs[@]}"; do
  wait "$job" || failures=$((failures + 1))
done
echo "${#pages[@]} pages, $failures failures"
[ "$failures" -eq 0 ]
