#!/bin/bash
# What cannot be configured is refused at once, in a sentence that helps.
#
#   tests/packaging/options_test.sh SOURCE_DIR COMPILER [COMPILER_ARGUMENT ...]
set -euo pipefail

source=$1
shift
export CXX="$*"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

refused() {  # words of the sentence, options
  local words=$1
  shift
  if meson setup "$work/build" "$source" -Dtests=disabled -Dbench=disabled -Dexamples=disabled "$@" >"$work/log" 2>&1; then
    echo "not refused: $*"
    exit 1
  fi
  grep -F ERROR "$work/log"
  grep -qF "$words" "$work/log" || { echo "expected: $words"; exit 1; }
  if grep Downloading "$work/log"; then exit 1; fi
  rm -rf "$work/build"
}

refused "there is no avx99" -Dbackends= -Dtargets=avx99,scalar

# Without -Dtargets= each instruction set is built once, and none for CPUs before x86-64-v2.
targets() {  # options: the targets of that build
  meson setup "$work/build" "$source" -Dtests=disabled -Dbench=disabled -Dexamples=disabled "$@" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
  sed -nE 's,^ *(targets *:)? *((highway|xsimd|intrinsics|plain)/[a-z0-9_]+)$,\2,p' "$work/log"
  rm -rf "$work/build"
}
if [ "$(uname -m)" = x86_64 ] && pkg-config --exists libhwy xsimd; then
  targets >"$work/chosen"
  targets -Dtargets=all >"$work/all"
  targets -Dbackends=xsimd >"$work/xsimd"
  left_out=$(sort "$work/all" "$work/chosen" | uniq -u | tr '\n' ' ')
  [ "$left_out" = "highway/sse2 plain/f32x16 plain/f32x4 plain/f32x8 xsimd/avx2 xsimd/avx512bw xsimd/sse4_2 " ] || { echo "left out: $left_out"; exit 1; }
  [ "$(sort "$work/xsimd" | tr '\n' ' ')" = "xsimd/avx2 xsimd/avx512bw xsimd/sse4_2 " ] || { echo "xsimd alone:"; cat "$work/xsimd"; exit 1; }
  targets -Dtargets=default,xsimd/avx2,highway/sse2 >"$work/more"
  more=$(sort "$work/more" "$work/chosen" | uniq -u | tr '\n' ' ')
  [ "$more" = "highway/sse2 xsimd/avx2 " ] || { echo "beside the default: $more"; exit 1; }
  # What is not built need not be there.
  mkdir "$work/pc"
  cp "$(pkg-config --variable=pcfiledir libhwy)/libhwy.pc" "$work/pc"
  PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=$work/pc targets >"$work/highway"
  diff "$work/chosen" "$work/highway"
fi

# An empty search path hides what is installed; nothing may be downloaded.
export PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=$work
for backend in highway xsimd; do refused "tools/setup gets it" -Dbackends=$backend; done
