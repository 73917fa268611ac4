#!/bin/bash
# Installs into a temporary folder, then builds and runs the program of README.md as a user would: with one compiler
# line, and as a Meson subproject.
#
#   tests/install_test.sh SOURCE_DIR BUILD_DIR COMPILER [COMPILER_ARGUMENT ...]
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

echo "== one compiler line"
export PKG_CONFIG_PATH=${pc%/*}
export PKG_CONFIG_SYSROOT_DIR=$work/root
# shellcheck disable=SC2046
"$@" -std=c++20 "$work/program.cc" $(pkg-config --static --cflags --libs simdattn) -o "$work/program"
"$work/program"
unset PKG_CONFIG_SYSROOT_DIR
if command -v readelf >/dev/null && readelf -d "$work/program" | grep -E 'NEEDED.*(hwy|xsimd)'; then
  echo "the program needs a SIMD library at run time"
  exit 1
fi

echo "== Meson subproject"
mkdir -p "$work/user/subprojects"
ln -s "$source" "$work/user/subprojects/simdattn"
cp "$work/program.cc" "$work/user/program.cc"
cat >"$work/user/meson.build" <<'MESON'
project('user', 'cpp', default_options: ['cpp_std=c++20', 'buildtype=release', 'warning_level=3', 'werror=true'])
executable('program', 'program.cc', dependencies: dependency('simdattn', fallback: 'simdattn'))
MESON
# The scalar target alone: compiling the other kernels once more would take minutes and show nothing new.
unset PKG_CONFIG_PATH
CXX="$*" meson setup "$work/user/build" "$work/user" -Dsimdattn:backends= >"$work/log" 2>&1 \
  && ninja -C "$work/user/build" -j 2 >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
"$work/user/build/program"
