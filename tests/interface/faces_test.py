#!/usr/bin/env python3
"""The C header and the C++ header describe one library.

  tests/interface/faces_test.py [--write] SOURCE_DIR LIBSIMDATTN CC CXX [CXX_ARGUMENT ...]

The names come out of the headers, so that nothing has to be added here for a new option:

1. One program is written from the C header as the C compiler sees it, and compiled as C99 and as C++17. It prints size and
   place of every struct and member, the bytes of every SIMDATTN_..._INIT (C) or of the default-constructed struct (C++),
   and every enumerator. The outputs must be the same. An INIT with too few numbers is a warning, and so an error.
2. The members that a struct of its own for each language has (BasicKv, BasicView, Optional, Doubles, Status) have the same
   names in the same order in both.
3. Every function of one header is in the other, in the library, and in the tests that go through all of them: what
   null pointers do, the heap, the floating-point environment.
4. tests/interface/interface.txt holds the functions, places of members and numbers of enumerators of the last release. None of them
   may go or change as long as the soversion stays; new ones may come, and a struct that begins with its size may grow.
   --write writes the list anew: when a release is made, or before the first one of a soversion.
"""
import re
import sys
import tempfile
from pathlib import Path

# C++ alone: what makes views and stores from a pointer's type.
CPP_ONLY = {'view', 'key_panels', 'dtype_of', 'kv_type_of'}
WARNINGS = ['-Wall', '-Wextra', '-Wpedantic', '-Wconversion', '-Wsign-conversion', '-Werror']
# Structs that are written once for each language, and the C++ one.
TWINS = {
    'simdattn_view4': 'BasicView',
    'simdattn_kv': 'BasicKv',
    'simdattn_optional_float': 'Optional',
    'simdattn_doubles': 'Doubles',
    'simdattn_positions': 'Positions',
    'simdattn_status': 'Status',
}

write = '--write' in sys.argv
if write:
    sys.argv.remove('--write')
source, library, cc, cxx = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
sys.path.insert(0, str(source / 'tools'))
sys.dont_write_bytecode = True
from c_headers import Headers, facts_program, run, without_comments  # noqa: E402  (it stands in tools/)

include = source / 'include'
types_h = (include / 'simdattn/types.h').read_text()
extras_h = (include / 'simdattn/extras.h').read_text()
c_h = (include / 'simdattn/simdattn_c.h').read_text() + extras_h
cpp_h = (include / 'simdattn/simdattn.h').read_text() + extras_h
failures = []


def expect(condition, sentence):
    if not condition:
        failures.append(sentence)


# ---- What the C header says ------------------------------------------------------------------------------------------

headers = Headers(include, [cc])
structs, enumerators = headers.structs, headers.enumerators
expect(len(structs) >= 20 and len(headers.enums) >= 8, f'only {len(structs)} structs and {len(headers.enums)} enums were found')
for name, members in structs.items():
    if members[0][1] == 'struct_size' and name != 'simdattn_const_kv':
        expect(name in headers.inits, f'{name} begins with its size and has no {name.upper()}_INIT')
for name in headers.inits:
    expect(name in structs, f'{name.upper()}_INIT has no struct')

# ---- 1. Sizes, places, bytes -----------------------------------------------------------------------------------------

with tempfile.TemporaryDirectory() as work:
    outputs = []
    for compiler, suffix, options in [([cc], 'c', ['-std=c99', *WARNINGS]),
                                      (cxx, 'cc', ['-std=c++17', '-Wall', '-Wextra', '-Werror', '-Wno-invalid-offsetof'])]:
        path = Path(work) / f'facts.{suffix}'
        path.write_text(facts_program(headers))
        run([*compiler, *options, '-I', include, path, '-o', path.with_suffix('.' + suffix + '.program')])
        outputs.append(run([path.with_suffix('.' + suffix + '.program')]).splitlines())
    of_c, of_cpp = outputs
    expect(len(of_c) == len(of_cpp), f'{len(of_c)} facts in C, {len(of_cpp)} in C++')
    for a, b in zip(of_c, of_cpp):
        expect(a == b, f'C: {a}\n  C++: {b}')

    # ---- 2. Members of twins ------------------------------------------------------------------------------------------

    for c_name, cpp_name in TWINS.items():
        body = re.search(r'struct (?:\[\[nodiscard\]\] )?' + cpp_name + r' \{(.*?)\n\};', types_h, flags=re.S).group(1)
        body = without_comments(body).split('private:')[0]
        while '{' in body:
            body = re.sub(r'\{[^{}]*\}', ';', body)
        declarations = (d.split('=')[0].strip() for d in body.split(';'))
        found = [d.split()[-1] for d in declarations
                 if re.search(r'\w$', d) and not re.search(r'\b(using|static|constexpr|template)\b', d)]
        wanted = [member for _, member, _ in structs[c_name]]
        expect(found == wanted, f'{c_name} has {wanted}\n  {cpp_name} has {found}')

    # ---- 3. Functions -------------------------------------------------------------------------------------------------

    c_functions = set(re.findall(r'\b(simdattn_\w+) ?\(', headers.seen))
    expect(c_functions == set(headers.functions), f'not read: {sorted(c_functions ^ set(headers.functions))}')
    declared = set(re.findall(r'SIMDATTN_API [^;(]*?\b(simdattn_\w+)\(', without_comments(c_h)))
    expect(c_functions == declared, f'without SIMDATTN_API: {sorted(c_functions - declared)}')
    # Of namespaces, not of structs: at the beginning of a line.
    cpp_functions = set()
    for text in (types_h, cpp_h):
        text = without_comments(re.sub(r'^namespace detail \{.*?^\}  // namespace detail$', '', text, flags=re.M | re.S))
        cpp_functions |= set(re.findall(r'^(?:inline|constexpr|static)\b[^;={]*?\b(\w+)\(', text, flags=re.M))
    expect(CPP_ONLY <= cpp_functions, f'not in C++: {sorted(CPP_ONLY - cpp_functions)}')
    ours = {f'simdattn_{name}' for name in cpp_functions - CPP_ONLY}
    expect(not ours - c_functions, f'in C++ alone: {sorted(ours - c_functions)}')
    expect(not c_functions - ours, f'in C alone: {sorted(c_functions - ours)}')
    bodies = re.findall(r'^inline [^;={]*?\b(\w+)\([^{]*\) \{(.*?)\}\n', without_comments(cpp_h).replace(' = {}', ''),
                        flags=re.M | re.S)
    for name, body in bodies:
        expect(f'simdattn_{name}(' in body, f'simdattn::{name} calls something else: {body.strip()}')
    expect(len(bodies) >= len(ours) - 7, f'only {len(bodies)} bodies of {len(ours)} functions were found')

    no_results = {'simdattn_version', 'simdattn_code_name', 'simdattn_targets', 'simdattn_target_name', 'simdattn_target_runnable', 'simdattn_target_missing',
                  'simdattn_target_exact', 'simdattn_target_native', 'simdattn_find_target', 'simdattn_default_target',
                  'simdattn_request_amx', 'simdattn_arithmetic_for',
                  *(f for f in c_functions if f.endswith(('_bytes', '_workspace', '_attention_tasks', '_contiguous_kv', '_scales')))}
    heap = (source / 'tests/interface/heap_test.cc').read_text()
    heap = heap[heap.index('NoAllocation'):heap.index('\n}\n', heap.index('NoAllocation'))]
    for what, text, called in [
            ('null pointers', (source / 'tests/interface/entry_test.cc').read_text(), c_functions - no_results),
            ('NoAllocation', heap, c_functions),
            ('environment', (source / 'tests/interface/environment_scene.h').read_text(), c_functions - no_results)]:
        missing = [name for name in sorted(called)
                   if not re.search(r'\b(simdattn_)?' + name[9:] + r'\b[(,]', text)]
        expect(not missing, f'the test of {what} does not call {missing}')

    path = Path(work) / 'functions.c'
    path.write_text('\n'.join(['#include "simdattn/extras.h"', '#include <string.h>', 'typedef void (*function)(void);',
                               'int main(void) {', '  static const function all[] = {',
                               *(f'      (function){name},' for name in sorted(c_functions)), '  };', '  size_t i;',
                               '  for (i = 0; i < sizeof all / sizeof *all; ++i) {',
                               '    if (all[i] == NULL) return 1;', '  }',
                               *(f'  if (strcmp(simdattn_code_name({c}), "{c[15:] if c != "SIMDATTN_OK" else "OK"}") != 0) return 2;'
                                 for c, _ in headers.enums[0][2]),
                               '  if (strcmp(simdattn_code_name(-1), "UNKNOWN") != 0 || strcmp(simdattn_code_name(99), "UNKNOWN") != 0) return 3;',
                               '  return 0;', '}', '']))
    run([cc, '-std=c99', '-I', include, '-c', path, '-o', path.with_suffix('.o')])
    # Linked by the C++ compiler: sanitizers of the build are its arguments.
    run([*cxx, path.with_suffix('.o'), library, '-o', path.with_suffix('.program')])
    run([path.with_suffix('.program')])

# ---- 4. The last release -------------------------------------------------------------------------------------------------

major, minor = re.search(r"^  version: '(\d+)\.(\d+)", (source / 'meson.build').read_text(), flags=re.M).groups()
soversion = f'0.{minor}' if major == '0' else major
sizes = r'simdattn_\w+(\.\w+: at \d+, \d+|: \d+) bytes|SIMDATTN_\w+ = -?\d+'
interface = [f'soversion {soversion}', *(fact for fact in of_c if re.fullmatch(sizes, fact))]
interface += sorted(f'{kind.strip()} {name}({arguments})' for kind, name, arguments in
                    re.findall(r'([\w *]+?)\b(simdattn_\w+) ?\(([^;{}]*)\) ?;', headers.seen))
expect(len(interface) > len(c_functions) + len(enumerators) + len(structs), f'only {len(interface)} lines of an interface')
path = source / 'tests/interface/interface.txt'
if write:
    path.write_text('\n'.join(interface) + '\n')
grown = {f'{name}: {n} bytes' for name, members in structs.items() if members[0][1] == 'struct_size'
         for size in re.findall(rf'^{name}: (\d+) bytes$', '\n'.join(interface), flags=re.M) for n in range(int(size))}
for line in path.read_text().splitlines():
    expect(line in interface or line in grown,
           f'the last release had: {line}\n  a new soversion, or --write before its first release')

for sentence in failures:
    print(sentence)
if failures:
    sys.exit(f'{len(failures)} differences')
print(f'{len(of_c)} facts of {len(structs)} structs and {len(enumerators)} enumerators, {len(c_functions)} functions')
