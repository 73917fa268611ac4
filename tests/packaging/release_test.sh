#!/bin/bash
# The release archive: the same bytes each time, also made of itself. From nothing but itself and a compiler it is a Meson subproject,
# and installs a shared library, which shows the public functions and nothing else. A change that is not committed is not in it.
#
#   [CC=C_COMPILER] tests/packaging/release_test.sh SOURCE_DIR COMPILER [COMPILER_ARGUMENT ...]
set -euo pipefail
source=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log

"$source/tools/release" "$work/first" >"$log"
name=$(basename "$work"/first/*.tar.gz .tar.gz)
[[ $name =~ ^simdattn-[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "an archive called $name"; exit 1; }
(cd "$work/first" && sha256sum -c "$name.tar.gz.sha256")
tar -xf "$work/first/$name.tar.gz" -C "$work"
# Without the history, and on another day.
(umask 077 && cp -r "$work/$name" "$work/copy" && touch "$work/copy/README.md")
"$work/copy/tools/release" "$work/second" >"$log"
cmp "$work/first/$name.tar.gz" "$work/second/$name.tar.gz"

echo "== a Meson subproject"
consumers=$work/$name/tests/packaging/consumers
mkdir -p "$work/user/subprojects"
ln -s "$work/$name" "$work/user/subprojects/simdattn"
cp "$consumers/cpp20.cc" "$work/user/program.cc"
cat >"$work/user/meson.build" <<'MESON'
project('user', 'cpp', default_options: ['cpp_std=c++20', 'buildtype=release', 'warning_level=3', 'werror=true'])
executable('program', 'program.cc', dependencies: dependency('simdattn', fallback: 'simdattn'))
MESON
# The definition alone takes no library, and little time to compile.
unset PKG_CONFIG_PATH SIMDATTN_SHARED
CXX="$source/tests/packaging/quick.sh $*" meson setup "$work/build" "$work/user" -Dsimdattn:backends= -Dsimdattn:default_library=both >"$log" 2>&1 \
  && ninja -C "$work/build" -j 2 >>"$log" 2>&1 || { tail -n 30 "$log"; exit 1; }
same() { "$1" | tail -n +2 | diff "$consumers/expected.txt" -; }
same "$work/build/program"

echo "== installed, a shared library"
meson install -C "$work/build" --no-rebuild --quiet --destdir "$work/root"
object=$(find "$work/root" -name 'libsimdattn.so')
[ -n "$object" ] || { echo "libsimdattn.so was not installed"; exit 1; }
include=$(find "$work/root" -name simdattn_c.h)
"${CC:-cc}" -std=c99 -I"${include%/simdattn/*}" "$consumers/c99.c" "$object" -lm -o "$work/c99"
export LD_LIBRARY_PATH=${object%/*}
same "$work/c99"
if command -v cmake >/dev/null; then
  cmake -S "$consumers/cmake" -B "$work/cmake" -DKIND=shared -DVERSION=0.3 \
    "-Dsimdattn_DIR=$(dirname "$(find "$work/root" -name simdattnConfig.cmake)")" >"$log" 2>&1 \
    && cmake --build "$work/cmake" -j 2 >>"$log" 2>&1 || { tail -n 20 "$log"; exit 1; }
  same "$work/cmake/cpp17"
else
  echo "skipped: no cmake to find the installed package with"
fi
if command -v nm >/dev/null; then
  nm -D --defined-only "$object" | awk '$2 != "A" { sub(/@.*/, "", $NF); print $NF }' | sort >"$work/exported"
  grep -oh 'simdattn_[a-z_]*(' "${include%/*}"/{simdattn_c,extras}.h | tr -d '(' | sort -u | diff - "$work/exported" || {
    echo "libsimdattn.so does not show the functions of simdattn_c.h and extras.h and those alone"
    exit 1
  }
fi
if command -v readelf >/dev/null && ! readelf -d "$object" | grep -q 'SONAME.*libsimdattn.so.0.3'; then
  echo "libsimdattn.so has no version in its name"
  exit 1
fi
if command -v readelf >/dev/null && readelf -d "$object" | grep -E 'NEEDED.*(stdc|c\+\+|gcc)'; then
  echo "libsimdattn.so needs a C++ library"
  exit 1
fi
