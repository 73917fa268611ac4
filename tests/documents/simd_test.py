#!/usr/bin/env python3
"""Who implements the operations of the vocabulary: a library, instructions of native/, or the compiler's vectors.

  tests/documents/simd_test.py [--write] SOURCE_DIR

The headers of lib/simd are read as the preprocessor would read them for each target. An operation whose text calls a library is that
library's; else one with an intrinsic or assembly is made of instructions; the others are made of operators and shuffles of the compiler
and of other operations. The two tables of docs/targets.md must say the same; --write writes them.
"""
import re
import sys
from pathlib import Path

write = '--write' in sys.argv
if write:
    sys.argv.remove('--write')
source = Path(sys.argv[1])
simd = source / 'lib/simd'
page = source / 'docs/targets.md'
BEGIN, END = '<!-- simd_test.py: begin -->', '<!-- simd_test.py: end -->'

HIGHWAY = {'HWY_RVV': 100}
AVX2 = {'HWY_ARCH_X86': 1, '__SSE2__': 1, '__SSSE3__': 1, '__SSE4_1__': 1, '__AVX2__': 1}
NEON = {'__aarch64__': 1, 'HWY_TARGET_IS_NEON': 1, 'XSIMD_WITH_NEON64': 1}
SVE = {'__aarch64__': 1, '__ARM_FEATURE_SVE': 1, 'HWY_TARGET_IS_SVE': 1, 'HWY_HAVE_SCALABLE': 1, 'XSIMD_WITH_NEON64': 1, 'XSIMD_WITH_SVE': 1}
DOTPROD = {'__ARM_FEATURE_DOTPROD': 1}
RVV = {'__riscv': 1, 'HWY_TARGET': 100, 'HWY_HAVE_SCALABLE': 1}
TARGETS = {
    'highway/avx3': AVX2 | {'__AVX512F__': 1}, 'highway/avx2': AVX2, 'highway/sse4': {k: 1 for k in AVX2 if k != '__AVX2__'},
    'highway/neon': NEON, 'highway/sve_256': SVE | DOTPROD, 'highway/ppc9': {}, 'highway/rvv_128': RVV, 'highway/wasm': {'__wasm__': 1},
    'xsimd/avx512bw': AVX2 | {'__AVX512F__': 1}, 'xsimd/avx2': AVX2, 'xsimd/sse4_2': {k: 1 for k in AVX2 if k != '__AVX2__'},
    'xsimd/neon64': NEON, 'xsimd/sve256': SVE | DOTPROD,
}
INTRINSIC = re.compile(r'\b(_mm\d*_\w+|_bzhi\w+|sv[a-z0-9]+_\w+|v[a-z]+[0-9]*q?_\w+|vec_\w+)\(|\basm\b')


def true(condition, macros):
    text = re.sub(r'defined\s*\(?\s*(\w+)\s*\)?', lambda m: str(int(m[1] in macros)), condition)
    text = re.sub(r'[A-Za-z_]\w*', lambda m: str(macros.get(m[0], 0)), text)
    return bool(eval(text.replace('&&', ' and ').replace('||', ' or ').replace('!=', '≠').replace('!', ' not ').replace('≠', '!=')))


def read(path, macros, seen):
    """The lines that this target has, of a header and of what it includes."""
    if path in seen or not path.exists():
        return
    seen.add(path)
    taken = []  # of each #if: this branch, an earlier one
    operators = ''
    for line in re.sub(r'//[^\n]*', '', path.read_text()).replace('\\\n', ' ').splitlines():
        directive = re.match(r'#\s*(if|ifdef|ifndef|elif|else|endif|include|define|undef)\b\s*(.*)', line)
        what, rest = directive.groups() if directive else ('', '')
        if what in ('if', 'ifdef', 'ifndef'):
            rest = {'if': '', 'ifdef': 'defined ', 'ifndef': '!defined '}[what] + rest
            here = all(now for now, _ in taken) and true(rest, macros)
            taken.append((here, here))
        elif what in ('elif', 'else'):
            done = taken.pop()[1]
            here = all(now for now, _ in taken) and not done and (what == 'else' or true(rest, macros))
            taken.append((here, here or done))
        elif what == 'endif':
            taken.pop()
        elif all(now for now, _ in taken):
            if what == 'include':
                name = rest.replace('SIMDATTN_ADAPTER', macros['SIMDATTN_ADAPTER']).strip('"')
                yield from read(source / name, macros, seen) if name.startswith('lib/simd/') else ()
            elif what == 'define' and re.fullmatch(r'\w+(\s+\d+)?', rest):
                macros[rest.split()[0]] = int((rest.split() + ['1'])[1])
            elif what == 'define' and rest.startswith('SIMDATTN_OPERATOR('):
                operators = rest.partition(')')[2]
            elif line.startswith('SIMDATTN_OPERATOR('):
                operator, *called = line.strip()[len('SIMDATTN_OPERATOR('):-1].split(', ')
                yield re.sub(r'\boperator op\b', 'operator' + operator, operators).replace('Function', (called + [''])[0])
            elif not what:
                yield line


def functions(text):
    """Names of functions, and their text."""
    for start in re.finditer(r'SIMDATTN_(?:INLINE|SHARED)\b', text):
        name = re.compile(r'(operator\W{1,2}|\w+)\s*\(').search(text, start.end())
        open_brace = text.find('{', name.end())
        depth, at = 1, open_brace + 1
        while depth:
            depth += {'{': 1, '}': -1}.get(text[at], 0)
            at += 1
        yield name[1], text[open_brace:at]


def operations():
    """First column of the tables of the vocabulary, from "Lanes and parts" on."""
    text = (simd / 'vocabulary.md').read_text().partition('## Lanes and parts')[2].partition('## How to write an adapter')[0]
    names = set()
    for row in re.findall(r'^\| ([^|]*(?:\\\|[^|]*)*) \|', text, re.M):
        for code in re.findall(r'`([^`]+)`', row):
            code = code.replace('\\', '')
            names.add('operator' + code if re.fullmatch(r'\W+', code) else re.match(r'\w+', code)[0])
    return names


def shares():
    wanted = operations()
    rows = []
    for target, macros in TARGETS.items():
        library = target.split('/')[0]
        macros = HIGHWAY | macros | {'SIMDATTN_ADAPTER': f'lib/simd/{library}.h'}
        seen = set()
        text = '\n'.join(line for name in ('machine', 'native', 'memory', 'math', 'blocks')
                         for line in read(simd / f'{name}.h', macros, seen))
        calls = re.compile({'highway': r'\bhn::|\blib_as<', 'xsimd': r'\bxsimd::|\blib\('}[library])
        who = {}
        for name, body in functions(text):
            if name in wanted:
                kind = 0 if calls.search(body) else 1 if INTRINSIC.search(body) else 2
                who[name] = min(kind, who.get(name, 2))
        kinds = [list(who.values()).count(kind) for kind in range(3)]
        rows.append(f'| `{target}` | {" | ".join(map(str, kinds))} |')
    return rows


def native():
    rows = []
    for path in sorted((simd / 'native').iterdir()):
        text = path.read_text()
        calls = len(INTRINSIC.findall(re.sub(r'//[^\n]*', '', text)))
        rows.append(f'| `{path.name}` | {len(text.splitlines())} | {calls} |')
    lines = sum(len(p.read_text().splitlines()) for p in (simd / 'native').iterdir())
    return rows + [f'| all | {lines} | |']


tables = '\n'.join(['', '| target | operations by its library | by instructions | by the compiler and other operations |',
                    '|---|---:|---:|---:|', *shares(), '',
                    '| `lib/simd/native/` | lines | intrinsics and assembly |', '|---|---:|---:|', *native(), ''])
before, begin, rest = page.read_text().partition(BEGIN)
old, end, after = rest.partition(END)
if not (begin and end):
    sys.exit(f'{page} lacks the comments between which the tables stand')
if write:
    page.write_text(before + begin + '\n' + tables + '\n' + end + after)
elif old.strip() != tables.strip():
    sys.exit(f'docs/targets.md says\n{old}\nthe source says\n{tables}\ntests/documents/simd_test.py --write . writes that')
