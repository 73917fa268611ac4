#!/bin/bash
# The port of vcpkg and the recipe of Conan, each run by its own steps, and programs linked as their users link them. vcpkg and Conan
# themselves, and what they download, are not asked: tests/packaging/recipes/ stands in for them. The scalar target alone; what the
# kernels need is tests/packaging/cmake_test.sh's.
#
#   tests/packaging/recipes_test.sh SOURCE_DIR COMPILER [COMPILER_ARGUMENT ...]
set -euo pipefail
source=$1
shift
command -v cmake >/dev/null || { echo "skipped: cmake is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
consumers=$source/tests/packaging/consumers
export CXX="$source/tests/packaging/quick.sh $*" CONFIGURE=-DSIMDATTN_BACKENDS=
same() { "$1" | tail -n +2 | diff "$consumers/expected.txt" -; }

echo "== vcpkg"
port=$source/packaging/vcpkg/simdattn
python3 - "$port/vcpkg.json" "$source/meson.build" <<'PYTHON'
import json, re, sys
manifest = json.load(open(sys.argv[1]))
version = re.search(r"version: '([0-9.]+)'", open(sys.argv[2]).read()).group(1)
assert manifest['version'] == version, f'vcpkg.json is of {manifest["version"]}, the library of {version}'
PYTHON
cmake -DPORTFILE="$port/portfile.cmake" -DPACKAGES="$work/vcpkg" "-DCONFIGURE=$CONFIGURE" -P "$source/tests/packaging/recipes/vcpkg.cmake" \
  >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
(cd "$work/vcpkg" && find . -type f | sort) >"$work/files"
diff - "$work/files" <<'FILES'
./include/simdattn/extras.h
./include/simdattn/simdattn.h
./include/simdattn/simdattn_c.h
./include/simdattn/types.h
./lib/libsimdattn.a
./share/simdattn/copyright
./share/simdattn/simdattnConfig.cmake
./share/simdattn/simdattnConfigVersion.cmake
./share/simdattn/usage
FILES
mv "$work/vcpkg" "$work/installed"  # from packages/ to installed/
cmake -S "$consumers/cmake" -B "$work/user" -DKIND=static -DVERSION=0.3 "-DCMAKE_PREFIX_PATH=$work/installed" >"$work/log" 2>&1 \
  && cmake --build "$work/user" >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
same "$work/user/cpp17"

echo "== Conan, shared"
read -r reference flags < <(python3 "$source/tests/packaging/recipes/run_conan.py" "$source/packaging/conan/conanfile.py" \
  "$work/conan" shared 2>"$work/log") || { tail -n 20 "$work/log"; exit 1; }
# shellcheck disable=SC2086
"$@" -std=c++17 "$consumers/cpp17.cc" $flags -o "$work/conan/program"
same "$work/conan/program"
echo "$reference"
