#!/usr/bin/env python3
"""Counts instructions under callgrind and compares them with the table of a commit: 3 % more or less fails.

  instructions_test.py PROGRAM TABLE COMPILER [--update]

Counts depend on the compiler, so the table names one and nothing is compared with another (status 77: skipped). They do
not depend on the CPU: the targets are named, and callgrind's CPU has no AVX-512. A change is explained in the commit that
updates the table: meson test -C build instructions prints the command.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BOUND = 0.03


def counts(program):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'callgrind.out'
        run = subprocess.run(['valgrind', '--tool=callgrind', f'--callgrind-out-file={out}', program], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if run.returncode != 0:
            sys.exit(f'callgrind failed:\n{run.stdout}')
        text = subprocess.run(['callgrind_annotate', '--inclusive=yes', '--threshold=100', '--show=Ir', str(out)],
                              check=True, text=True, stdout=subprocess.PIPE).stdout
    found = {}
    for ir, case, target in re.findall(r'^\s*([\d,]+).*:count_(\w+?)__(\w+)(?: \[|$|\()', text, re.M):
        found[case, target] = int(ir.replace(',', ''))
    return found


def read(table):
    rows, compiler = {}, ''
    for line in table.read_text().splitlines():
        if line.startswith('# compiler: '):
            compiler = line.removeprefix('# compiler: ')
        elif line and not line.startswith('#'):
            case, target, count = line.split()
            rows[case, target] = int(count)
    return compiler, rows


def main():
    program, table, compiler = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    for needed in 'valgrind', 'callgrind_annotate':
        if shutil.which(needed) is None:
            print(f'skipped: {needed} is not here')
            sys.exit(77)
    if '--update' in sys.argv[4:]:
        found = counts(program)
        lines = ['# Instructions of a fixed small set, counted by callgrind (tests/measuring/instructions_test.py).', f'# compiler: {compiler}']
        lines += [f'{case:34} {target:14} {count:>10}' for (case, target), count in sorted(found.items())]
        table.write_text('\n'.join(lines) + '\n')
        return
    named, expected = read(table)
    if named != compiler:
        print(f'skipped: the table is of {named}, this is {compiler}')
        sys.exit(77)
    found = counts(program)
    failures = 0
    targets = {target for _, target in found}
    for key in sorted(expected.keys() | found.keys()):
        case, target = key
        if target not in targets:  # not built, or this CPU has no AVX2
            continue
        was, now = expected.get(key), found.get(key)
        bad = was is None or now is None or abs(now / was - 1) > BOUND
        failures += bad
        change = f'{100 * (now / was - 1):+6.2f} %' if was and now else '   new' if now else '  gone'
        print(f'{case:34} {target:14} {was or 0:>10} {now or 0:>10} {change}{"  CHANGED" if bad else ""}')
    if not found:
        sys.exit('nothing was counted')
    if failures:
        print(f'{failures} counts changed by more than {100 * BOUND:.0f} %. If that is meant, say why in the commit and update the table:\n'
              f'  {" ".join(sys.argv)} --update')
        sys.exit(1)


main()
