#!/bin/bash
# The release archive: the same bytes each time, also made of itself; and it builds, passes its digests, installs and is linked from
# nothing but itself and a compiler. A change that is not committed is not in it.
#
#   tests/packaging/release_test.sh SOURCE_DIR COMPILER [COMPILER_ARGUMENT ...]
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

# The definition alone takes no library, and little time to compile.
unset PKG_CONFIG_PATH SIMDATTN_SHARED
options=(-Dbackends= -Dtargets= -Dtests=disabled -Dbench=disabled -Dexamples=disabled -Dpython=disabled)
CXX="$*" meson setup "$work/build" "$work/$name" "${options[@]}" --prefix "$work/root" >"$log" 2>&1 \
  && ninja -C "$work/build" -j 2 >>"$log" 2>&1 && meson install -C "$work/build" --no-rebuild >>"$log" 2>&1 \
  || { tail -n 30 "$log"; exit 1; }
"$work/build/tools/simdattn-digest" --check "$work/$name/tests/digest.txt"
PKG_CONFIG_PATH=$(dirname "$(find "$work/root" -name simdattn.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"$@" -std=c++20 "$work/$name/tests/packaging/consumers/cpp20.cc" $(pkg-config --static --cflags --libs simdattn) -o "$work/program"
"$work/program" | tail -n +2 | diff "$work/$name/tests/packaging/consumers/expected.txt" -
