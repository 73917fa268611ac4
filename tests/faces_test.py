#!/usr/bin/env python3
"""The C header and the C++ header describe one library.

  tests/faces_test.py SOURCE_DIR LIBSIMDATTN CC CXX [CXX_ARGUMENT ...]

The names come out of the headers, so that nothing has to be added here for a new option:

1. One program is written from the C header as the C compiler sees it, and compiled as C99 and as C++17. It prints size and
   place of every struct and member, the bytes of every SIMDATTN_..._INIT (C) or of the default-constructed struct (C++),
   and every enumerator. The outputs must be the same. An INIT with too few numbers is a warning, and so an error.
2. The members that a struct of its own for each language has (BasicKv, BasicView, Optional, Doubles, Status) have the same
   names in the same order in both.
3. Every function of one header is in the other, in the library, and in the tests that go through all of them: what
   null pointers do, the heap, the floating-point environment.
"""
import re
import subprocess
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
    'simdattn_status': 'Status',
}

source, library, cc, cxx = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
include = source / 'include'
types_h = (include / 'simdattn/types.h').read_text()
c_h = (include / 'simdattn/simdattn_c.h').read_text()
cpp_h = (include / 'simdattn/simdattn.h').read_text()
failures = []


def run(command, text=None):
    result = subprocess.run([str(c) for c in command], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True)
    if result.returncode != 0:
        sys.exit(f'{" ".join(str(c) for c in command)}\n{result.stdout}{result.stderr}')
    return result.stdout


def expect(condition, sentence):
    if not condition:
        failures.append(sentence)


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*', ' ', text, flags=re.S)


# ---- What the C header says ------------------------------------------------------------------------------------------

header = '#include "simdattn/simdattn_c.h"\n'
seen_by_c = run([cc, '-std=c99', '-I', include, '-E', '-P', '-x', 'c', '-'], header)
macros = run([cc, '-std=c99', '-I', include, '-E', '-dM', '-x', 'c', '-'], header)
seen_by_c = re.sub(r'\s+', ' ', seen_by_c)

structs = {}  # name -> [(type, member, count or '')]
for tag, body, alias in re.findall(r'struct (simdattn_\w+)? ?\{ ?([^{}]*?) ?\} ?(simdattn_\w+)? ?;', seen_by_c):
    members = []
    for declaration in filter(None, (d.strip() for d in body.split(';'))):
        kind, name, count = re.fullmatch(r'(.*?[ *])(\w+)(?:\[(\d+)\])?', declaration).groups()
        members.append((kind.strip(), name, count or ''))
    structs[alias or tag] = members
enumerators = re.findall(r'SIMDATTN_VALUE\((SIMDATTN_\w+),\s*(k\w+)\)', without_comments(types_h))
enums = re.findall(r'SIMDATTN_ENUM\((simdattn_\w+), (\w+)\)\{(.*?)\};', without_comments(types_h), flags=re.S)
inits = {name: macro for macro in re.findall(r'^#define (SIMDATTN_\w+)_INIT ', macros, flags=re.M)
         for name in [macro.lower()]}

expect(len(structs) >= 20 and len(enums) >= 8, f'only {len(structs)} structs and {len(enums)} enums were found')
expect(sum(len(re.findall('SIMDATTN_VALUE', e[2])) for e in enums) == len(enumerators),
       'an enumerator stands outside of an enum')
for name, members in structs.items():
    if members[0][1] == 'struct_size' and name != 'simdattn_const_kv':
        expect(name in inits, f'{name} begins with its size and has no {name.upper()}_INIT')
for name in inits:
    expect(name in structs, f'{name.upper()}_INIT has no struct')
inits['simdattn_const_kv'] = 'SIMDATTN_KV'

# ---- 1. Sizes, places, bytes -----------------------------------------------------------------------------------------


def leaves(name, prefix=''):
    """Paths of the members that hold no struct."""
    for kind, member, count in structs[name]:
        if kind in structs:
            yield from leaves(kind, f'{prefix}{member}.')
        else:
            yield prefix + member


facts = ['#include <stddef.h>', '#include <stdio.h>', '#include <string.h>', '#ifdef __cplusplus',
         '#include "simdattn/simdattn.h"', '#define VALUE(c_name, type, cpp_name) ((int)simdattn::type::cpp_name)',
         '#define CONSTANT(c_name, cpp_name) ((long long)simdattn::cpp_name)', '#else',
         '#include "simdattn/simdattn_c.h"', '#define VALUE(c_name, type, cpp_name) ((int)c_name)',
         '#define CONSTANT(c_name, cpp_name) ((long long)(c_name))', '#endif',
         'static void bytes(const char* what, const void* at, size_t size) {',
         '  size_t i;', '  printf("%s =", what);',
         '  for (i = 0; i < size; ++i) printf(" %02x", (unsigned)((const unsigned char*)at)[i]);',
         '  printf("\\n");', '}', 'int main(void) {']
for name, members in structs.items():
    facts.append(f'  printf("{name}: %zu bytes\\n", sizeof({name}));')
    for _, member, _ in members:
        facts.append(f'  printf("{name}.{member}: at %zu, %zu bytes\\n", offsetof({name}, {member}), '
                     f'sizeof((({name}*)0)->{member}));')
for name, macro in inits.items():
    facts += ['  {', '#ifdef __cplusplus', f'    static const {name} x{{}};', '#else',
              f'    static const {name} x = {macro}_INIT;', '#endif']
    facts += [f'    bytes("{name}.{path}", &x.{path}, sizeof x.{path});' for path in leaves(name)]
    facts.append('  }')
for c_enum, cpp_enum, body in enums:
    facts.append(f'  printf("{c_enum}: %zu bytes\\n", sizeof({c_enum}));')
    for c_name, cpp_name in re.findall(r'SIMDATTN_VALUE\((\w+),\s*(\w+)\)', body):
        facts.append(f'  printf("{c_name} = %d\\n", VALUE({c_name}, {cpp_enum}, {cpp_name}));')
for cpp_name in re.findall(r'inline constexpr \w+ (k\w+) = [^;]*;', types_h):
    if cpp_name != 'kDTypeOf':
        c_name = 'SIMDATTN' + re.sub(r'[A-Z]', lambda letter: '_' + letter.group(), cpp_name[1:]).upper()
        facts.append(f'  printf("{c_name} = %lld\\n", CONSTANT({c_name}, {cpp_name}));')
facts += ['  return 0;', '}', '']

with tempfile.TemporaryDirectory() as work:
    outputs = []
    for compiler, suffix, options in [([cc], 'c', ['-std=c99', *WARNINGS]),
                                      (cxx, 'cc', ['-std=c++17', '-Wall', '-Wextra', '-Werror', '-Wno-invalid-offsetof'])]:
        path = Path(work) / f'facts.{suffix}'
        path.write_text('\n'.join(facts))
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
                 if d and not re.search(r'\b(using|static|constexpr|template)\b', d)]
        wanted = [member for _, member, _ in structs[c_name]]
        expect(found == wanted, f'{c_name} has {wanted}\n  {cpp_name} has {found}')

    # ---- 3. Functions -------------------------------------------------------------------------------------------------

    c_functions = set(re.findall(r'\b(simdattn_\w+) ?\(', seen_by_c))
    declared = set(re.findall(r'SIMDATTN_API [^;(]*?\b(simdattn_\w+)\(', without_comments(c_h)))
    expect(c_functions == declared, f'without SIMDATTN_API: {sorted(c_functions - declared)}')
    # Of namespaces, not of structs: at the beginning of a line.
    cpp_functions = set()
    for text in (types_h, cpp_h):
        text = re.sub(r'namespace detail \{.*?\n\}', '', without_comments(text), flags=re.S)
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

    no_results = {'simdattn_version', 'simdattn_targets', 'simdattn_name', 'simdattn_runnable', 'simdattn_missing',
                  'simdattn_exact', 'simdattn_native', 'simdattn_find_target', 'simdattn_default_target',
                  'simdattn_request_amx',
                  *(f for f in c_functions if f.endswith(('_bytes', '_workspace', '_contiguous_kv', '_scales')))}
    memory = (source / 'tests/memory_test.cc').read_text()
    memory = memory[memory.index('NoAllocation'):memory.index('\n}\n', memory.index('NoAllocation'))]
    for what, text, called in [
            ('null pointers', (source / 'tests/entry_test.cc').read_text(), c_functions - no_results),
            ('NoAllocation', memory, c_functions),
            ('environment', (source / 'tests/environment_test.cc').read_text(), c_functions - no_results)]:
        missing = [name for name in sorted(called)
                   if not re.search(r'\b(simdattn_)?' + name[9:] + r'\b[(,]', text)]
        expect(not missing, f'the test of {what} does not call {missing}')

    path = Path(work) / 'functions.c'
    path.write_text('\n'.join(['#include "simdattn/simdattn_c.h"', 'typedef void (*function)(void);',
                               'int main(void) {', '  static const function all[] = {',
                               *(f'      (function){name},' for name in sorted(c_functions)), '  };', '  size_t i;',
                               '  for (i = 0; i < sizeof all / sizeof *all; ++i) {',
                               '    if (all[i] == NULL) return 1;', '  }', '  return 0;', '}', '']))
    run([cc, '-std=c99', '-I', include, '-c', path, '-o', path.with_suffix('.o')])
    # Linked by the C++ compiler: sanitizers of the build are its arguments.
    run([*cxx, path.with_suffix('.o'), library, '-o', path.with_suffix('.program')])
    run([path.with_suffix('.program')])

for sentence in failures:
    print(sentence)
if failures:
    sys.exit(f'{len(failures)} differences')
print(f'{len(of_c)} facts of {len(structs)} structs and {len(enumerators)} enumerators, {len(c_functions)} functions')
