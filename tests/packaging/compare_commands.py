#!/usr/bin/env python3
"""CMake compiles the same sources with the same options as Meson.

  tests/packaging/compare_commands.py SOURCE_DIR MESON_BUILD_DIR CMAKE_BUILD_DIR

Compared is what can change the code: macros, -O, -std, -m..., -f...; for each source as often as it is compiled.
"""
import json
import os
import shlex
import sys
from collections import Counter
from pathlib import Path

source, meson, cmake = (Path(a).resolve() for a in sys.argv[1:])
LIBRARY = ('lib', 'dispatch')
# Meson's own: large files, the checks of the C++ library (taken back by the next), and CMake's -DNDEBUG, which no source asks for.
IGNORED = ('-D_FILE_OFFSET_BITS=64', '-D_GLIBCXX_ASSERTIONS', '-U_GLIBCXX_ASSERTIONS', '-DNDEBUG', '-fdiagnostics-color',
           '-fcolor-diagnostics', '-DHWY_SHARED_DEFINE')  # of Highway's own library, which is not linked


def commands(build, keep):
    found = Counter()
    for entry in json.loads((build / 'compile_commands.json').read_text()):
        path = Path(os.path.normpath(Path(entry['directory']) / entry['file']))
        if source not in path.parents or path.relative_to(source).parts[0] not in LIBRARY or not keep(entry):
            continue
        options = {}
        words = shlex.split(entry['command'])
        for i, word in enumerate(words):
            if word == '-mllvm':
                options[word + words[i + 1]] = word
            elif word.startswith(('-D', '-U', '-O', '-std', '-m', '-f', '-Wa,')) and not word.startswith(IGNORED):
                # The last of several holds.
                options[word[:2] if word.startswith('-O') else word] = word
        found[str(path.relative_to(source)), tuple(sorted(options.values()))] += 1
    return found


# With -Ddefault_library=both Meson compiles what is visible a second time; CMake builds one library. A test compiles some sources with
# counters (tests/dispatch/counted.h).
of_meson = commands(meson, lambda entry: 'SIMDATTN_BUILDING' not in entry['command'] and 'counted.h' not in entry['command'])
of_cmake = commands(cmake, lambda entry: True)
for what, left in ('Meson alone', of_meson - of_cmake), ('CMake alone', of_cmake - of_meson):
    for (name, options), _ in sorted(left.items()):
        print(f'{what}: {name}: {" ".join(options)}')
if of_meson != of_cmake or not of_meson:
    sys.exit(1)
print(f'{sum(of_meson.values())} objects are compiled with the same options')
