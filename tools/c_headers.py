"""Reads the C header as the C compiler sees it: structs, enumerators, initialisers, functions.

What checks the headers (tests/interface/faces_test.py) and what is made of them (python/generate_abi.py) read them here, so that nothing
has to be added anywhere for a new option.
"""
import re
import subprocess
import sys


def run(command, text=None):
    result = subprocess.run([str(c) for c in command], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True)
    if result.returncode != 0:
        sys.exit(f'{" ".join(str(c) for c in command)}\n{result.stdout}{result.stderr}')
    return result.stdout


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*', ' ', text, flags=re.S)


class Headers:
    """structs: name -> [(type, member, count or '')]; enums: [(C name, C++ name, [(C enumerator, C++ enumerator)])];
    inits: struct -> what SIMDATTN_..._INIT stands before; functions: name -> (result, [argument type])."""

    def __init__(self, include, cc):
        """cc: a command that compiles C, or C++ (then as C)."""
        self.include = include
        self.cc = [*cc, '-std=c99', '-I', include, '-x', 'c']
        header = '#include "simdattn/extras.h"\n'
        self.seen = re.sub(r'\s+', ' ', self.preprocess(header))
        self.types_h = (include / 'simdattn/types.h').read_text()
        types_h = without_comments(self.types_h)

        self.structs = {}
        for tag, body, alias in re.findall(r'struct (simdattn_\w+)? ?\{ ?([^{}]*?) ?\} ?(simdattn_\w+)? ?;', self.seen):
            members = []
            for declaration in filter(None, (d.strip() for d in body.split(';'))):
                kind, name, count = re.fullmatch(r'(.*?[ *])(\w+)(?:\[(\d+)\])?', declaration).groups()
                members.append((kind.strip(), name, count or ''))
            self.structs[alias or tag] = members

        # C's enumerators are those of C++ behind a prefix: kNullPointer is SIMDATTN_ERROR_NULL_POINTER.
        in_cpp = {name: re.findall(r'\bk\w+', body) for name, body in
                  re.findall(r'enum class (\w+) : int32_t \{(.*?)\};', types_h, flags=re.S)}
        self.enums = []
        self.numbers = {}  # of C's enumerators, which count from 0
        for c_type, body in re.findall(r'typedef int32_t (simdattn_\w+);\s*enum \{(.*?)\};', types_h, flags=re.S):
            cpp_type = re.search(rf'typedef simdattn::(\w+) {c_type};', types_h).group(1)
            self.numbers.update({c: i for i, c in enumerate(re.findall(r'\bSIMDATTN_\w+', body))})
            words = {c.replace('_', '').lower(): c for c in re.findall(r'\bSIMDATTN_\w+', body)}
            prefix = c_type.replace('simdattn_code', 'simdattn_error').replace('_', '')
            pairs = [(words.pop(prefix + k[1:].replace('_', '').lower(), None) or words.pop('simdattnok'), k) for k in in_cpp.pop(cpp_type)]
            assert not words, f'not in {cpp_type}: {sorted(words.values())}'
            self.enums.append((c_type, cpp_type, pairs))
        assert not in_cpp, f'not in C: {sorted(in_cpp)}'
        self.enumerators = [pair for _, _, pairs in self.enums for pair in pairs]

        macros = self.preprocess(header, '-dM')
        self.inits = {macro.lower(): macro
                      for macro in re.findall(r'^#define (SIMDATTN_\w+)_INIT ', macros, flags=re.M)}

        self.functions = {}
        for result, name, arguments in re.findall(r'([\w* ]*?)\b(simdattn_\w+) ?\(([^()]*)\) ?;', self.seen):
            if not result.strip().startswith('typedef'):
                names = [re.sub(r'\w+$', '', a.strip()).strip() for a in arguments.split(',')]
                self.functions[name] = (result.strip(), [a for a in names if a])

    def preprocess(self, text, *options):
        return run([*self.cc, '-E', '-P', *options, '-'], text)


def facts_program(headers):
    """C99 and C++17 that print size and place of every struct and member, the bytes of every SIMDATTN_..._INIT (C) or of the
    default-constructed struct (C++), and every enumerator."""
    structs = headers.structs
    inits = {**headers.inits, 'simdattn_const_kv': 'SIMDATTN_KV'}

    def leaves(name, prefix=''):
        """Paths of the members that hold no struct."""
        for kind, member, _ in structs[name]:
            if kind in structs:
                yield from leaves(kind, f'{prefix}{member}.')
            else:
                yield prefix + member

    facts = ['#include <stddef.h>', '#include <stdio.h>', '#include <string.h>', '#ifdef __cplusplus',
             '#include "simdattn/extras.h"', '#define VALUE(c_name, type, cpp_name) ((int)simdattn::type::cpp_name)',
             '#define CONSTANT(c_name, cpp_name) ((long long)simdattn::cpp_name)', '#else',
             '#include "simdattn/extras.h"', '#define VALUE(c_name, type, cpp_name) ((int)c_name)',
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
    for c_enum, cpp_enum, enumerators in headers.enums:
        facts.append(f'  printf("{c_enum}: %zu bytes\\n", sizeof({c_enum}));')
        for c_name, cpp_name in enumerators:
            facts.append(f'  printf("{c_name} = %d\\n", VALUE({c_name}, {cpp_enum}, {cpp_name}));')
    for cpp_name in re.findall(r'inline constexpr \w+ (k\w+) = [^;]*;', headers.types_h):
        if cpp_name != 'kDTypeOf':
            c_name = 'SIMDATTN' + re.sub(r'[A-Z]', lambda letter: '_' + letter.group(), cpp_name[1:]).upper()
            facts.append(f'  printf("{c_name} = %lld\\n", CONSTANT({c_name}, {cpp_name}));')
    facts += ['  return 0;', '}', '']
    return '\n'.join(facts)
