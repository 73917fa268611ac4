#!/usr/bin/env python3
"""Which folder includes which: any arrow that the table of docs/design.md, "What may include what", does not have is an error.

usage: includes_test.py SOURCE_ROOT
"""
import pathlib
import re
import sys

ALLOWED = {  # folder: folders or single files that it may include, beside its own
    'include': [],
    'dispatch': ['include', 'lib/contract/kernel_table.h', 'lib/contract/ukernels.h'],
    'lib/api': ['include', 'lib/rules', 'lib/drivers/drivers.h', 'dispatch'],
    'lib/contract': ['include', 'dispatch/cpu.h'],
    'lib/rules': ['include', 'lib/contract'],
    'lib/drivers': ['include', 'lib/contract', 'lib/rules', 'dispatch', 'lib/definition/math.h'],
    'lib/definition': ['lib/contract'],
    'lib/simd': ['lib/contract'],
    'lib/kernels': ['lib/contract', 'lib/simd', 'lib/definition/flushed.h', 'lib/overlays/bf16_pairs.h',
                    'dispatch/environment.h'],
    'lib/overlays': ['lib/contract', 'lib/simd', 'lib/kernels/overlay.h', 'dispatch/environment.h'],
}


def folder_of(path):
    """The longest folder of ALLOWED that holds the file."""
    return max((f for f in ALLOWED if path.startswith(f + '/')), key=len, default=None)


def may_include(folder, target):
    for allowed in ALLOWED[folder] + [folder]:
        if target == allowed or folder_of(target) == allowed:
            return True
    return False


def main():
    root = pathlib.Path(sys.argv[1])
    files = [p for top in ('include', 'dispatch', 'lib') for p in sorted((root / top).rglob('*'))
             if p.suffix in ('.h', '.cc')]
    arrows = 0
    wrong = []
    for path in files:
        name = path.relative_to(root).as_posix()
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M):
            if not (root / target).is_file():
                continue  # a header of Highway or of xsimd, or of the system
            arrows += 1
            if not may_include(folder_of(name), target):
                wrong.append(f'{name} includes {target}: {folder_of(name)} may not')
    print(f'{len(files)} files, {arrows} includes')
    if arrows < len(files):
        wrong.append('so few includes: the pattern no longer finds them')
    for line in wrong:
        print(line)
    return 1 if wrong else 0


sys.exit(main())
