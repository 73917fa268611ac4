#!/usr/bin/env python3
"""bench_compare.py on programs that stand in for simdattn-bench: their figures are known, so are the answers."""
import subprocess
import sys
import tempfile
from pathlib import Path

STAND_IN = '''#!{python}
import json, pathlib, random, re, sys
factor = {factor}
count = pathlib.Path(__file__ + '.runs')  # every run has noise of its own, every test the same
runs = len(count.read_text()) if count.exists() else 0
count.write_text('x' * (runs + 1))
random.seed(f'{{pathlib.Path(__file__).name}} {{runs}}')
args = sys.argv[1:]
pattern = args[args.index('--filter') + 1] if '--filter' in args else ''
rows = []
for i in range(60):
    case = 'decode/%d_panels/f32' % i
    if re.search(pattern, case):
        for target, ns in ('scalar', 1e6 * random.random()), ('highway/avx2', 1000 * (i + 1) * random.uniform(1, {noise})):
            rows.append(dict(name=case + '/' + target + '/iterations:1/manual_time', time_unit='us',
                             real_time=ns / 1000 * (factor if i == 17 and target != 'scalar' else 1)))
json.dump(dict(context={{}}, benchmarks=rows), open(args[args.index('--json') + 1], 'w'))
'''


def run(compare, base, new, noise=1.02):
    with tempfile.TemporaryDirectory() as folder:
        programs = []
        for name, factor in ('base', base), ('new', new):
            path = Path(folder) / name
            path.write_text(STAND_IN.format(python=sys.executable, factor=factor, noise=noise))
            path.chmod(0o755)
            programs.append(str(path))
        done = subprocess.run([sys.executable, compare, *programs, '--seconds', '1'], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        return done.returncode, done.stdout


def expect(what, got, status, text):
    if got[0] != status or text not in got[1]:
        sys.exit(f'{what}: status {got[0]} instead of {status}, or no "{text}" in\n{got[1]}')


compare = sys.argv[1]
expect('the same twice', run(compare, 1, 1), 0, '0 slower, 0 faster')
expect('a tenth slower', run(compare, 1, 1.1), 1, '1 slower, 0 faster')
expect('a tenth faster', run(compare, 1.1, 1), 0, '0 slower, 1 faster')
expect('less than the bound', run(compare, 1, 1.02, 1.001), 0, '0 slower, 0 faster')
expect('a tenth slower, in noise of a half', run(compare, 1, 1.1, 1.5), 0, '0 slower, 0 faster')
