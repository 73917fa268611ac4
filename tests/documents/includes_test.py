#!/usr/bin/env python3
"""Which folder includes which: any arrow that the table of CONTRIBUTING.md, "What may include what", does not have is an error,
and so are two folders that include each other.

usage: includes_test.py SOURCE_ROOT
"""
import pathlib
import re
import sys

TOP = ('include', 'dispatch', 'lib')


def table(design):
    """The folders or single files that a folder may include beside its own, by the table of CONTRIBUTING.md."""
    allowed = {}
    rows = re.search(r'^\| folder \| may include \|\n\|[-|]+\n((?:\|.*\n)+)', design, re.M)
    last = []
    for row in rows.group(1).splitlines() if rows else []:
        folders, targets = (re.findall('`([^`]+)`', cell) for cell in row.strip('|').split('|'))
        last = (last if 'the same' in row else []) + [in_tree(t) for t in targets]
        parent = folders[0].rpartition('/')[0] if len(folders) > 1 else ''
        for folder in folders:
            allowed[in_tree(f'{parent}/{folder}' if parent and '/' not in folder else folder)] = last
    return allowed


def in_tree(name):
    """The path of a folder or file, which the table names from `lib` on."""
    return name if name.split('/')[0] in TOP else f'lib/{name}'


def folder_of(path, allowed):
    """The longest name of the table that is the file or holds it."""
    return max((f for f in allowed if path == f or path.startswith(f + '/')), key=len, default=None)


def may_include(folder, target, allowed):
    own = [folder.rpartition('/')[0] if '.' in folder else folder]  # a file has what its folder has
    return any(target == a or target.startswith(a + '/') for a in allowed.get(folder, []) + own)


def main():
    root = pathlib.Path(sys.argv[1])
    allowed = table((root / 'CONTRIBUTING.md').read_text())
    files = [p for top in TOP for p in sorted((root / top).rglob('*'))
             if p.suffix in ('.h', '.cc')]
    arrows = 0
    folders = set()  # (folder, one that it includes)
    wrong = []
    for path in files:
        name = path.relative_to(root).as_posix()
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
            if not (root / target).is_file():
                continue  # a header of Highway or of xsimd, or of the system
            arrows += 1
            folders.add(tuple(folder_of(n, {f for f in allowed if '.' not in f}) or n for n in (name, target)))
            if not may_include(folder_of(name, allowed), target, allowed):
                wrong.append(f'{name} includes {target}: {folder_of(name, allowed)} may not')
    wrong += [f'{a} and {b} include each other' for a, b in sorted(folders) if a != b and (b, a) in folders and a < b]
    print(f'{len(files)} files, {arrows} includes')
    if len(allowed) < len(TOP):
        wrong.append('CONTRIBUTING.md: there is no table of what may include what')
    if arrows < len(files):
        wrong.append('so few includes: the pattern no longer finds them')
    for line in wrong:
        print(line)
    return 1 if wrong else 0


sys.exit(main())
