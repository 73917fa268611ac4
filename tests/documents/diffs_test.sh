#!/bin/bash
# The diffs of docs/how-to-add.md must be real: each section's, what stands between ```diff and ```, applies to the source behind
# those of the sections before, and what it changes of the library compiles. What stands behind ```diff -R is in the source: it is taken out,
# what is left compiles, and the page says how many files and lines that are.
#
#   tests/documents/diffs_test.sh SOURCE_ROOT COMPILER [ARGUMENT ...]
set -euo pipefail

root=$1
shift
page=$root/docs/how-to-add.md
command -v git >/dev/null || { echo "skipped: git is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for part in include lib dispatch tests CMakeLists.txt; do cp -r "$root/$part" "$work/"; done
cd "$work"
# Not a part of a repository that the folder for temporary files may lie in.
export GIT_CEILING_DIRECTORIES=${work%/*}
sections=$(grep -c '^## ' "$page")
for ((i = 1; i <= sections; ++i)); do
  awk -v section="$i" '/^## / { ++n } /^```$/ { inside = 0 } inside && n == section; /^```diff( -R)?$/ { inside = 1 }' "$page" >section.diff
  [ -s section.diff ] || { echo "$page: section $i has no diff"; exit 1; }
  direction=()
  if awk -v section="$i" '/^## / { ++n } n == section && /^```diff -R$/ { found = 1 } END { exit !found }' "$page"; then
    direction=(-R)
    cost="$(grep -c '^+++ ' section.diff) files, $(grep -cE '^\+([^+]|$)' section.diff) lines"
    grep -qF " $cost." "$page" || { echo "$page: section $i has $cost, and does not say so"; exit 1; }
  fi
  git apply "${direction[@]}" --whitespace=error section.diff
  while read -r file; do
    case $file in
      lib/kernels/*.h) touched=$work/lib/targets/table.cc ;;
      *.h) touched="$work/lib/definition/scalar.cc $work/lib/drivers/shared/modifiers.cc" ;;
      *.cc) touched="$work/$file" ;;
      *) continue ;;
    esac
    case $file in tests/*) continue ;; esac  # most need libraries
    for source in $touched; do echo "$source"; done
  done < <(sed -n 's/^+++ b\///p' section.diff) | sort -u >sources
  while read -r source; do
    kernels=()
    if [[ $source == */lib/targets/* ]]; then  # in vectors of the compiler, so that no library is needed
      kernels=('-DSIMDATTN_ADAPTER="lib/simd/plain.h"' -DSIMDATTN_PLAIN_LANES=4 -DSIMDATTN_TABLE=kTable -DSIMDATTN_OVERLAYS=)
    fi
    "$@" "${kernels[@]}" -std=c++20 -Wall -Wextra -Werror -Wno-unused-function -I"$work" -I"$work/include" -fsyntax-only "$source" \
      || { echo "section $i: $source does not compile"; exit 1; }
  done <sources
  if [ ${#direction[@]} -gt 0 ]; then git apply section.diff; fi
  echo "pass section $i: $(grep -c '^+++ ' section.diff) files, $(wc -l <sources) compiled"
done
