#!/usr/bin/env python3
"""Two builds of simdattn-bench in turns, and which rows moved; `tools/bench --compare BASE` builds them.

  bench_compare.py BASE_PROGRAM PROGRAM [--rounds N] [--seconds S] [--filter REGEX] [--target NAME ...]

A round runs both programs, in turned order each time. A row is suspected if every figure of one program is beyond every
figure of the other and the medians differ by more than 3 %. Suspects are measured again by themselves, with twice the time,
and have moved if that says the same: two programs of the same code pass the first by luck in one row of a hundred, both in
one of ten thousand. Ends with status 1 if a row got slower, 2 if nothing could be compared.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BOUND = 0.03


def measure(program, seconds, pattern, targets):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / 'out.json'
        command = [program, '--json', str(out), '--seconds', str(seconds)]
        if pattern:
            command += ['--filter', pattern]
        for target in targets:
            command += ['--target', target]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not out.exists() or not out.read_text().strip():
            sys.exit(f'{program} failed:\n{run.stderr[-2000:]}')
        report = json.loads(out.read_text())
    unit = {'ns': 1, 'us': 1e3, 'ms': 1e6, 's': 1e9}
    rows = {}
    for b in report['benchmarks']:
        if b.get('error_occurred') or '/scalar/' in b['name'] or '/peer/' in b['name'] or '/loop/' in b['name']:
            continue
        name = re.sub(r'/iterations:1|/manual_time', '', b['name'])
        rows[name] = b['real_time'] * unit[b['time_unit']]
    return rows


def rounds(programs, count, *how):
    figures = [{}, {}]
    for i in range(count):
        for side in (0, 1) if i % 2 == 0 else (1, 0):
            for name, ns in measure(programs[side], *how).items():
                figures[side].setdefault(name, []).append(ns)
        print(f'round {i + 1} of {count}', file=sys.stderr, flush=True)
    common = [name for name in figures[0] if name in figures[1]]
    return {name: (figures[0][name], figures[1][name]) for name in common}


def ratio(base, new):
    return statistics.median(new) / statistics.median(base)


def apart(base, new):
    """+1: slower, -1: faster, 0: neither is certain."""
    r = ratio(base, new)
    if min(new) > max(base) and r > 1 + BOUND:
        return 1
    if max(new) < min(base) and r < 1 - BOUND:
        return -1
    return 0


def text(ns):
    for unit, factor in ('ns', 1), ('us', 1e3), ('ms', 1e6):
        if ns < 999.5 * factor:
            return f'{ns / factor:.3g} {unit}'
    return f'{ns / 1e9:.3g} s'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('base')
    parser.add_argument('new')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=30)
    parser.add_argument('--filter', default='')
    parser.add_argument('--target', action='append', default=[])
    o = parser.parse_args()
    programs = o.base, o.new
    rows = rounds(programs, o.rounds, o.seconds, o.filter, o.target)
    if not rows:
        print('no row is in both', file=sys.stderr)
        sys.exit(2)
    suspects = {name: apart(*figures) for name, figures in rows.items() if apart(*figures) != 0}
    moved = {}
    if suspects:
        print(f'{len(suspects)} suspects are measured again', file=sys.stderr)
        cases = {'/'.join(name.split('/')[:3]) for name in suspects}
        pattern = '^(' + '|'.join(re.escape(c) for c in sorted(cases)) + ')$'
        share = max(2.0, 2 * o.seconds * len(cases) / len({'/'.join(n.split('/')[:3]) for n in rows}))
        again = rounds(programs, o.rounds, share, pattern, o.target)
        moved = {name: again[name] for name, side in suspects.items() if name in again and apart(*again[name]) == side}
    slower = 0
    for name, (base, new) in sorted(moved.items(), key=lambda item: -ratio(*item[1])):
        r = ratio(base, new)
        slower += r > 1
        print(f'{name:70} {text(statistics.median(base)):>9} -> {text(statistics.median(new)):>9}  {100 * (r - 1):+6.1f} % '
              f'{"SLOWER" if r > 1 else "faster"}')
    all_ratios = sorted(ratio(*figures) for figures in rows.values())
    print(f'{len(rows)} rows in {o.rounds} rounds: {slower} slower, {len(moved) - slower} faster, '
          f'{len(suspects) - len(moved)} suspects not confirmed; median of all ratios {statistics.median(all_ratios):.3f}')
    sys.exit(1 if slower else 0)


main()
