#!/bin/bash
# What a shared object that links the library shows of it, and what the library needs beside itself.
#
#   tests/packaging/archive_test.sh LIBSIMDATTN NM CC [ARGUMENT ...]
#
# 1. A shared object made of one C function and the whole archive exports that function and nothing else: other objects of
#    the same process may hold another version of the library.
# 2. A C program links the whole archive with the C compiler, that is without a C++ library, and runs.
set -euo pipefail
export LC_ALL=C

library=$1
nm=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
whole=(-Wl,--whole-archive "$library" -Wl,--no-whole-archive -lm)

cat >"$work/plugin.c" <<'C'
const char* simdattn_version(void);
const char* plugin(void) { return simdattn_version(); }
C
"$@" -std=c99 -fPIC -shared "$work/plugin.c" "${whole[@]}" -o "$work/plugin.so"
"$nm" -D --defined-only "$work/plugin.so" | awk '{ print $NF }' | grep -vE '^(plugin|_init|_fini|_edata|_end|__bss_start)$' \
  >"$work/leaks" || true
if [ -s "$work/leaks" ]; then
  echo "a shared object that links the library exports $(wc -l <"$work/leaks") of its symbols:"
  head -n 20 "$work/leaks" | c++filt
  exit 1
fi

cat >"$work/program.c" <<'C'
#include <stdio.h>
const char* simdattn_version(void);
int main(void) { return puts(simdattn_version()) < 0; }
C
"$@" -std=c99 "$work/program.c" "${whole[@]}" -o "$work/program"
"$work/program"
echo "one symbol is exported, and the C library and libm are enough"
