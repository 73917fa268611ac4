#!/bin/bash
# Installs into a temporary folder, then builds and runs programs as users would: those of tests/packaging/consumers in C99, C++17
# and C++20, and that of README.md, with one compiler line each; statically without exceptions; by clang with lld; beside another
# version of Highway. What is not installed is skipped by name.
#
#   [CC=C_COMPILER] tests/packaging/install_test.sh SOURCE_DIR BUILD_DIR COMPILER [COMPILER_ARGUMENT ...]
set -euo pipefail

source=$1
build=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first C++ block of the README that is a whole program.
awk '/^```cpp/ { block = ""; inside = 1; next }
     /^```/ { if (inside && block ~ /int main/) { printf "%s", block; exit } inside = 0; next }
     inside { block = block $0 "\n" }' "$source/README.md" >"$work/program.cc" 2>/dev/null || true
if [ ! -s "$work/program.cc" ]; then
  echo "README.md has no C++ program"
  exit 1
fi

echo "== install"
meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
pc=$(find "$work/root" -name simdattn.pc)
[ -n "$pc" ] || { echo "simdattn.pc was not installed"; exit 1; }
archive=$(find "$work/root" -name libsimdattn.a)
if [ "$(head -c 7 "$archive")" != "!<arch>" ]; then
  echo "libsimdattn.a only points at objects of the build folder"
  exit 1
fi

export PKG_CONFIG_PATH=${pc%/*}
export PKG_CONFIG_SYSROOT_DIR=$work/root

echo "== programs in C99, C++17 and C++20"
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Werror)
consumers=$source/tests/packaging/consumers
# What pkg-config calls a system folder would be looked at for warnings less closely.
include=(-I"$(dirname "$(dirname "$(find "$work/root" -name simdattn_c.h)")")")
run_consumer() {  # name
  "$work/$1" >"$work/$1.output" || { cat "$work/$1.output"; exit 1; }
  if ! head -n 1 "$work/$1.output" | grep -qE '^version [0-9.]+, last target scalar$' \
    || ! tail -n +2 "$work/$1.output" | diff "$consumers/expected.txt" -; then
    echo "the program $1 prints something else"
    exit 1
  fi
}
# shellcheck disable=SC2046
"${CC:-cc}" -std=c99 "${warnings[@]}" "${include[@]}" "$consumers/c99.c" \
  $(pkg-config --static --cflags --libs simdattn) -lm -o "$work/c99"
run_consumer c99
for standard in 17 20; do
  # shellcheck disable=SC2046
  "$@" "-std=c++$standard" "${warnings[@]}" -Wshadow -Wold-style-cast "${include[@]}" "$consumers/cpp$standard.cc" \
    $(pkg-config --static --cflags --libs simdattn) -o "$work/cpp$standard"
  run_consumer "cpp$standard"
done
# The other compilers and standards of this machine: the headers give no warning.
for c in "${CC:-cc}" gcc clang clang-19; do
  command -v "$c" >/dev/null || continue
  for standard in c99 c11; do
    "$c" "-std=$standard" "${warnings[@]}" "${include[@]}" -fsyntax-only "$consumers/c99.c"
  done
done
for c in "$1" g++ clang++ clang++-19; do
  # A clang may stand here without its C++ library.
  command -v "$c" >/dev/null && echo '#include <array>' | "$c" -x c++ -fsyntax-only - 2>/dev/null || continue
  for standard in 17 20 23; do
    echo 'int main() {}' | "$c" "-std=c++$standard" -x c++ -fsyntax-only - 2>/dev/null || continue
    "$c" "-std=c++$standard" "${warnings[@]}" -Wshadow -Wold-style-cast "${include[@]}" -fsyntax-only \
      "$consumers/cpp$((standard > 20 ? 20 : standard)).cc"
  done
done

echo "== one compiler line"
# shellcheck disable=SC2046
"$@" -std=c++20 "$work/program.cc" $(pkg-config --static --cflags --libs simdattn) -o "$work/program"
"$work/program"
unset PKG_CONFIG_SYSROOT_DIR
if command -v readelf >/dev/null && readelf -d "$work/program" | grep -E 'NEEDED.*(hwy|xsimd)'; then
  echo "the program needs a SIMD library at run time"
  exit 1
fi

echo "== from the build folder"
# shellcheck disable=SC2046
"$@" -std=c++20 "$work/program.cc" $(PKG_CONFIG_PATH=$build/meson-uninstalled pkg-config --static --cflags --libs simdattn) \
  -o "$work/uninstalled"
LD_LIBRARY_PATH=$build/lib "$work/uninstalled"

echo "== without exceptions and type information, linked statically"
# shellcheck disable=SC2046
"$@" -std=c++17 -fno-exceptions -fno-rtti -static "${include[@]}" "$consumers/cpp17.cc" \
  $(PKG_CONFIG_SYSROOT_DIR=$work/root pkg-config --static --cflags --libs simdattn) -o "$work/bare"
run_consumer bare

echo "== clang with lld"
clang=$(command -v clang++-19 || command -v clang++ || true)
if [ -n "$clang" ] && echo '#include <array>' | "$clang" -x c++ -fsyntax-only - 2>/dev/null \
  && echo 'int main() {}' | "$clang" -x c++ - -fuse-ld=lld -o "$work/lld" 2>/dev/null; then
  # shellcheck disable=SC2046
  "$clang" -std=c++17 -fuse-ld=lld "${include[@]}" "$consumers/cpp17.cc" \
    $(PKG_CONFIG_SYSROOT_DIR=$work/root pkg-config --static --cflags --libs simdattn) -o "$work/lld"
  run_consumer lld
else
  echo "skipped: no clang++ with lld"
fi

echo "== a program with another version of Highway"
# Debian 12's, which tools/setup --ci unpacks.
other=${SIMDATTN_OTHER_HIGHWAY:-$source/.deps/other-highway/usr/include}
if [ -f "$other/hwy/highway.h" ]; then
  # Not inlined: its functions become symbols that the linker may take for those of the library.
  # shellcheck disable=SC2046
  "$@" -std=c++17 -O1 -fno-inline "${include[@]}" -isystem "$other" "$consumers/other_highway.cc" \
    $(PKG_CONFIG_SYSROOT_DIR=$work/root pkg-config --static --cflags --libs simdattn) -o "$work/other_highway"
  "$work/other_highway"
else
  echo "skipped: no second version of Highway; SIMDATTN_OTHER_HIGHWAY names a folder of headers"
fi
