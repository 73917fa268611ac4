#!/bin/bash
# A C program that links the shared library of Windows by its import library runs, and the library exports the functions of
# simdattn_c.h and nothing else.
#
#   tests/packaging/dll_test.sh SOURCE_DIR DLL IMPORT_LIBRARY OBJDUMP COMPILER [ARGUMENT ...]
set -euo pipefail
export LC_ALL=C

source=$1
dll=$2
import=$3
objdump=$4
shift 4
read -r -a wrapper <<<"${MESON_EXE_WRAPPER:-}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$objdump" -p "$dll" | sed -n '/\[Ordinal\/Name Pointer\] Table/,/^$/s/.*\] //p' | sed 's/.* //; /^$/d' | grep -v '^Table$' \
  | sort >"$work/exported"
grep -oh 'simdattn_[a-z_]*(' "$source/include/simdattn/simdattn_c.h" "$source/include/simdattn/extras.h" | tr -d '(' | sort -u | diff - "$work/exported" || {
  echo "$dll does not export the functions of simdattn_c.h and extras.h and those alone"
  exit 1
}

cp "$dll" "$work"
"$@" -x c -std=c99 -DSIMDATTN_SHARED_LIBRARY=1 -I"$source/include" "$source/tests/packaging/consumers/c99.c" -x none "$import" \
  -o "$work/c99.exe"
"${wrapper[@]}" "$work/c99.exe" | tr -d '\r' | tee "$work/output"
tail -n +2 "$work/output" | diff "$source/tests/packaging/consumers/expected.txt" -
"$objdump" -p "$work/c99.exe" | grep -F "DLL Name: $(basename "$dll")"
"$objdump" -p "$dll" | grep 'DLL Name' >"$work/needs"
if grep -iE 'libgcc|libstdc|winpthread' "$work/needs"; then
  echo "$dll needs more than Windows"
  exit 1
fi
