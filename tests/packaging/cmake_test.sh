#!/bin/bash
# CMake: the same options as Meson for every source; a project that takes the library by FetchContent, from an archive and from a
# git repository; one that finds what was installed, static and shared, also after the folder has moved.
#
#   tests/packaging/cmake_test.sh SOURCE_DIR BUILD_DIR BACKENDS TARGETS CC CXX [CXX_ARGUMENT ...]
#
# BACKENDS and TARGETS of the build, separated by commas.
set -euo pipefail

source=$1
build=$2
backends=${3//,/;}
targets=${4//,/;}
export CC=$5
shift 5
export CXX="$source/tests/packaging/quick.sh $*"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! command -v cmake >/dev/null; then
  echo "skipped: no cmake"
  exit 77
fi
cmake_version=$(cmake --version | sed -n '1s/.* //p')
if [ "$(printf '%s\n' 3.20 "$cmake_version" | sort -V | head -n 1)" != 3.20 ]; then
  echo "skipped: CMake $cmake_version, older than 3.20"
  exit 77
fi

quiet() { "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "failed: $*"; exit 1; }; }
run() {  # folder of programs
  for name in c99 cpp17 cpp20; do
    "$1/$name" >"$work/output" || { cat "$work/output"; exit 1; }
    tail -n +2 "$work/output" | diff "$source/tests/packaging/consumers/expected.txt" - || { echo "$name prints something else"; exit 1; }
  done
}

echo "== neither Highway nor a network"
if PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=/ https_proxy=http://127.0.0.1:1 cmake -S "$source" -B "$work/offline" \
    "-DCMAKE_IGNORE_PATH=/usr/include;/usr/local/include" -DSIMDATTN_BACKENDS=highway >"$work/output" 2>&1 \
    || ! grep -q 'libhwy-dev' "$work/output"; then
  cat "$work/output"
  exit 1
fi

echo "== the same options as Meson"
quiet cmake -S "$source" -B "$work/same" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  "-DSIMDATTN_BACKENDS=$backends" "-DSIMDATTN_TARGETS=$targets" -DSIMDATTN_DOWNLOAD=OFF
"$source/tests/packaging/compare_commands.py" "$source" "$build" "$work/same"
if [ -n "$targets" ]; then  # and of those that are built unless somebody asks
  echo "== the same targets as Meson"
  quiet meson setup "$work/meson" "$source" "-Dbackends=${backends//;/,}" -Dtests=disabled -Dbench=disabled -Dexamples=disabled -Dpython=disabled
  quiet cmake "$work/same" -DSIMDATTN_TARGETS=
  "$source/tests/packaging/compare_commands.py" "$source" "$work/meson" "$work/same"
fi
echo "== the same options as Meson, small"
quiet meson setup "$work/small" "$source" -Doptimization=s "-Dbackends=${backends//;/,}" "-Dtargets=${targets//;/,}" \
  -Dtests=disabled -Dbench=disabled -Dexamples=disabled -Dpython=disabled
quiet cmake "$work/same" -DCMAKE_BUILD_TYPE=MinSizeRel "-DSIMDATTN_TARGETS=$targets"
"$source/tests/packaging/compare_commands.py" "$source" "$work/small" "$work/same"
if grep -E -- ' -O[0-3g] ' "$work/small/compile_commands.json"; then echo "not all of it is small"; exit 1; fi

# From here on the scalar target alone: compiling the others once more would take minutes and show nothing new.
# What a release holds: the tree as it is now, without what git ignores.
consumer=$source/tests/packaging/consumers/cmake
mkdir "$work/simdattn"
if git -C "$source" rev-parse >/dev/null 2>&1; then
  (cd "$source" && git ls-files -coz --exclude-standard | tar --null -T - --ignore-failed-read -cf - 2>/dev/null) | tar -x -C "$work/simdattn"
else
  tar -C "$source" --exclude='./build*' --exclude=./.deps -cf - . | tar -x -C "$work/simdattn"
fi
tar -C "$work" -czf "$work/simdattn.tar.gz" simdattn
fetch() {  # shared?, arguments of FetchContent_Declare
  local FETCH
  printf -v FETCH '%s;' "${@:2}"
  echo "== FetchContent: $2"
  quiet cmake -S "$consumer" -B "$work/fetch" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DFETCH=$FETCH" \
    -DSIMDATTN_BACKENDS= -DSIMDATTN_INSTALL=ON "-DBUILD_SHARED_LIBS=$1" -DCMAKE_INSTALL_LIBDIR=lib/here
  [ -f "$work/fetch/_deps/simdattn-src/CMakeLists.txt" ] || { echo "nothing was fetched"; exit 1; }
  quiet cmake --build "$work/fetch" -j 2
  run "$work/fetch"
  quiet cmake --install "$work/fetch" --prefix "$work/installed"
  rm -rf "$work/fetch"
}
fetch OFF URL "$work/simdattn.tar.gz" URL_HASH "SHA256=$(sha256sum "$work/simdattn.tar.gz" | cut -d ' ' -f 1)"
if command -v git >/dev/null; then
  git=(git -C "$work/simdattn" -c user.name=test -c user.email=test@example.org -c init.defaultBranch=main)
  "${git[@]}" init -q
  "${git[@]}" add -f .
  "${git[@]}" commit -qm "all"
  fetch ON GIT_REPOSITORY "file://$work/simdattn" GIT_TAG "$("${git[@]}" rev-parse HEAD)"
else
  echo "skipped: no git to fetch with"
  fetch ON URL "$work/simdattn.tar.gz"
fi

echo "== find_package, in another place"
mv "$work/installed" "$work/moved"
version=$(sed -n "s/^  version: '\([0-9.]*\)',/\1/p" "$source/meson.build")
for kind in '' static shared; do
  rm -rf "$work/find"
  quiet cmake -S "$consumer" -B "$work/find" -G Ninja "-Dsimdattn_DIR=$work/moved/lib/here/cmake/simdattn" "-DVERSION=${version%.*}" "-DKIND=$kind"
  quiet cmake --build "$work/find" -j 2
  run "$work/find"
  if command -v readelf >/dev/null; then
    needed=$(readelf -d "$work/find/c99" | grep -c 'NEEDED.*libsimdattn' || true)
    [ "$needed" = "$([ "$kind" = static ] && echo 0 || echo 1)" ] || { echo "KIND='$kind' linked the other library"; exit 1; }
  fi
done
if command -v readelf >/dev/null && readelf -d "$work/moved/lib/here/libsimdattn.so" | grep -E 'NEEDED.*(stdc|c\+\+|gcc)'; then
  echo "libsimdattn.so needs a C++ library"
  exit 1
fi

echo "== what is refused"
refused() {  # words of the sentence, options
  local words=$1
  shift
  if cmake "$@" -G Ninja >"$work/log" 2>&1; then echo "not refused: $*"; exit 1; fi
  # CMake breaks lines and begins them with spaces.
  tr -s ' \n' ' ' <"$work/log" | grep -qF "$words" || { cat "$work/log"; echo "expected: $words"; exit 1; }
  rm -rf "$work/refused"
}
refused "version: $version" -S "$consumer" -B "$work/refused" "-Dsimdattn_DIR=$work/moved/lib/here/cmake/simdattn" -DVERSION=0.1
refused "version: $version" -S "$consumer" -B "$work/refused" "-Dsimdattn_DIR=$work/moved/lib/here/cmake/simdattn" -DVERSION="${version%.*}.99"
refused "version: $version" -S "$consumer" -B "$work/refused" "-Dsimdattn_DIR=$work/moved/lib/here/cmake/simdattn" -DVERSION=1.0
rm "$work/moved/lib/here/libsimdattn.a"
refused "not installed as static library" -S "$consumer" -B "$work/refused" "-Dsimdattn_DIR=$work/moved/lib/here/cmake/simdattn" -DKIND=static
refused "there is no avx99" -S "$source" -B "$work/refused" -DSIMDATTN_BACKENDS= "-DSIMDATTN_TARGETS=avx99"
echo "refused in a sentence"
