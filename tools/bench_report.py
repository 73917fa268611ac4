#!/usr/bin/env python3
"""Makes pages of the JSON files of simdattn-bench.

index.html is self-contained and has every library and every target; RESULTS.md has the fastest of them, and pictures.

  bench_report.py --out FOLDER [--beside RESULTS.md] FILE...

Files of one CPU and compiler are joined, those of several stand one after another; so do, in Markdown, the machines of an older RESULTS.md
that are not among them. Matplotlib draws; colours are CSS variables, so that
one picture serves light and dark.
"""
import argparse
import html
import io
import json
import math
import re
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use('svg')
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: E402

# Placeholders that the pictures are drawn with, their CSS variables, and what those are in light and dark.
COLOURS = {
    '#000001': ('ink', '#1d2126', '#e6e8eb'),
    '#000002': ('muted', '#5d656f', '#a4acb6'),
    '#000003': ('grid', '#dfe3e8', '#353b43'),
    '#000010': ('own', '#0b62c4', '#5ea9ff'),
    '#000011': ('s1', '#c4551a', '#f0935a'),
    '#000012': ('s2', '#2c8a57', '#5fc78f'),
    '#000013': ('s3', '#8a4fb8', '#c293ea'),
    '#000014': ('s4', '#a57c00', '#dcb53c'),
    '#000015': ('s5', '#b83a6b', '#f07fae'),
    '#000016': ('s6', '#3f7f8f', '#73c0d1'),
    '#000017': ('s7', '#7a6a58', '#bfae99'),
    '#000018': ('s8', '#6b7280', '#9aa3b0'),
}
INK, MUTED, GRID, OWN = '#000001', '#000002', '#000003', '#000010'
SERIES = [f'#00001{i}' for i in range(9)]
LIBRARIES = ['simdattn', 'loops', 'eigen', 'openblas', 'onednn', 'onednn_graph', 'xnnpack', 'ggml', 'ggml_flash', 'onnxruntime',
             'pytorch']
NAMES = {'loops': 'compiled loops', 'eigen': 'Eigen', 'openblas': 'OpenBLAS', 'onednn': 'oneDNN',
         'onednn_graph': 'oneDNN graph', 'xnnpack': 'XNNPACK', 'ggml_flash': 'ggml flash', 'onnxruntime': 'ONNX Runtime',
         'pytorch': 'PyTorch'}
WIDTH = 5.2  # inches: as wide as a phone, so that text is as large there as beside other text
plt.rcParams.update({
    'svg.fonttype': 'none', 'svg.hashsalt': 'simdattn', 'font.family': 'sans-serif', 'font.size': 9, 'text.color': INK,
    'axes.edgecolor': MUTED, 'axes.labelcolor': INK, 'xtick.color': MUTED, 'ytick.color': INK, 'grid.color': GRID,
    'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False, 'legend.fontsize': 8,
    'figure.facecolor': 'none', 'axes.facecolor': 'none', 'savefig.facecolor': 'none', 'axes.axisbelow': True,
})

# ---- Reading -----------------------------------------------------------------------------------------------------------


class Row:
    def __init__(self, b):
        parts = re.sub(r'/iterations:1|/manual_time', '', b['name']).split('/')
        self.kernel, self.shape, self.type, self.target = parts[0], parts[1], parts[2], '/'.join(parts[3:])
        self.case = tuple(parts[:3])
        self.error = b.get('error_message', '') if b.get('error_occurred') else ''
        self.ns = b['real_time'] * {'ns': 1, 'us': 1e3, 'ms': 1e6, 's': 1e9}[b['time_unit']]
        self.counters = {k: v for k, v in b.items() if isinstance(v, (int, float))}
        self.peer = self.target[5:] if self.target.startswith('peer/') else ''

    def get(self, name):
        return self.counters.get(name, 0)

    @property
    def noisy(self):
        return self.get('noisy') > 0


class Machine:
    """Of one CPU and one compiler: figures of two compilers are not mixed in one table."""

    def __init__(self, cpu, compiler):
        self.name = ', '.join(filter(None, [cpu, compiler]))
        self.slug = re.sub(r'[^a-z0-9]+', '-', self.name.lower()).strip('-')
        self.context = {}
        # Runs with --peers apart: what was not measured in the same turns does not stand in one row.
        self.plain, self.beside_others = {}, {}

    def add(self, report):
        for key, value in report['context'].items():
            # Bits that differed in one of several runs do differ.
            if isinstance(value, str) and not (key.startswith('bits ') and 'differ' in self.context.get(key, '')):
                self.context[key] = value
        rows = self.beside_others if any(key.startswith('peer ') for key in report['context']) else self.plain
        for b in report['benchmarks']:
            row = Row(b)
            rows[row.case + (row.target,)] = row  # the later file's

    @property
    def rows(self):
        plain = {row.case for row in self.plain.values()}
        return list(self.plain.values()) + [r for r in self.beside_others.values() if r.case not in plain]

    def cases(self, *kernels, rows=None):
        """Rows by case: kernels in the order of the files, then types, then sizes."""
        seen = {}
        for row in self.rows if rows is None else rows:
            if not kernels or row.kernel in kernels:
                seen.setdefault(row.case, []).append(row)
        first = list(dict.fromkeys(case[0] for case in seen))

        def key(case):
            shape = [int(p) if p.isdigit() else p for p in re.split(r'(\d+)', case[1])]
            return first.index(case[0]), ['f32', 'bf16', 'f16'].index(case[2]) if case[2] in ('f32', 'bf16', 'f16') else 3, \
                [str(p) if isinstance(p, str) else f'{p:012}' for p in shape]
        return {case: seen[case] for case in sorted(seen, key=key)}

    def targets(self):
        return list(dict.fromkeys(r.target for r in self.rows if not r.peer and r.target != 'scalar'))


def own(rows):
    """The best of this library's targets."""
    rows = [r for r in rows if not r.peer and not r.error and r.target != 'scalar']
    return min(rows, key=lambda r: r.ns, default=None)


def peers(rows):
    return sorted((r for r in rows if r.peer and not r.error), key=lambda r: LIBRARIES.index(r.peer) if r.peer in LIBRARIES else 99)


def compared(machine):
    """The cases of runs with --peers, each with those rows alone."""
    cases = machine.cases(rows=machine.beside_others.values())
    return {case: rows for case, rows in cases.items() if own(rows) and peers(rows)}


def read(files):
    machines = {}
    for f in files:
        try:
            report = json.loads(Path(f).read_text())
            report['context'], report['benchmarks']
        except (OSError, ValueError, KeyError, TypeError) as e:
            sys.exit(f'bench_report: {f} is not a report of simdattn-bench: {e!r}')
        key = report['context'].get('cpu', 'unknown CPU'), report['context'].get('compiler', '')
        machines.setdefault(key, Machine(*key)).add(report)
    return list(machines.values())


# ---- Text --------------------------------------------------------------------------------------------------------------


def digits(v):
    return f'{v:.2f}' if v < 9.995 else f'{v:.1f}' if v < 99.95 else f'{v:.0f}'


def time(ns):
    for unit, factor in ('ns', 1), ('µs', 1e3), ('ms', 1e6):
        if ns < 999.5 * factor:
            return f'{digits(ns / factor)} {unit}'
    return f'{digits(ns / 1e9)} s'


def cell(row):
    return '' if row is None else 'failed' if row.error else time(row.ns) + (' ~' if row.noisy else '')


def share(row):
    if row is None or not row.get('share'):
        return ''
    kind = 'copy' if row.get('limit_is_copy') else 'read' if row.get('limit_is_read') else 'fma'
    return f'{100 * row.get("share"):.0f} % {kind}'


def name_of(case):
    kernel, shape, kind = case
    shape = shape.replace('llama3-8b_', '').replace('1head_', '').replace('gpt2_', 'd64 ').replace('1q_', '')
    shape = shape.replace('heads', ' heads').replace('_', ' ')
    return f'{kernel.replace("_", " ")} {shape} {kind}'


def library(name):
    return NAMES.get(name, name)


# ---- Pictures ----------------------------------------------------------------------------------------------------------


def svg(figure):
    for _ in range(4):  # labels beside the axes count: all of it is to be as wide as a phone
        figure.canvas.draw()
        figure.set_figwidth(max(2.5, figure.get_figwidth() - (figure.get_tightbbox().width - WIDTH)))
    text = io.StringIO()
    figure.savefig(text, format='svg', bbox_inches='tight', pad_inches=0.05, metadata={'Date': None, 'Creator': None})
    plt.close(figure)
    text = text.getvalue()
    text = text[text.index('<svg'):]
    text = re.sub(r'<metadata>.*?</metadata>\s*', '', text, flags=re.S)
    for placeholder, (variable, _, _) in COLOURS.items():
        text = text.replace(placeholder, f'var(--{variable})')
    text = re.sub(r'\s(width|height)="[\d.]+pt"', '', text, count=2)
    text = re.sub(r'(\d+\.\d\d)\d+', r'\1', text)  # a hundredth of a point is enough
    text = re.sub(r'<!--.*?-->', '', text, flags=re.S)
    return re.sub(r'\s*\n\s*', '\n', text)


def axes(height, **more):
    figure, ax = plt.subplots(figsize=(WIDTH, height), **more)
    ax.tick_params(length=0)
    return figure, ax


def limits(machine):
    """Peak in GFLOP/s and bandwidths in GB/s of the widest instruction set."""
    found = []
    for key, value in machine.context.items():
        if key.startswith('limits '):
            numbers = [float(x) for x in re.findall(r'([\d.]+) G(?:FLOP|B)/s', value)]
            found.append((numbers[0], key.removeprefix('limits '), numbers[1:]))
    return max(found, default=None)


def roofline(machine):
    found = limits(machine)
    points = {}
    for case, rows in machine.cases().items():
        best = own(rows)
        if best and best.get('GFLOP_per_s') and best.get('GB_per_s') and case[0] not in ('growth', 'threads'):
            points.setdefault(case[0], []).append((best.get('GFLOP_per_s') / best.get('GB_per_s'), best.get('GFLOP_per_s')))
    if found is None or not points:
        return None
    peak, isa, bandwidths = found
    figure, ax = axes(3.6)
    low = min(x for p in points.values() for x, _ in p) / 2
    high = max(max(x for p in points.values() for x, _ in p) * 2, 4 * peak / bandwidths[-1])
    ax.set(xscale='log', yscale='log', xlim=(low, high), xlabel='operations per byte streamed', ylabel='GFLOP/s')
    tops = [peak] + [y for p in points.values() for _, y in p]
    ax.set_ylim(min([0.7 * low * bandwidths[-1]] + tops), 1.6 * max(tops))
    figure.canvas.draw()
    (x0, y0), (x1, y1) = ax.transData.transform([(1, 1), (10, 10)])
    slope = math.degrees(math.atan2(y1 - y0, x1 - x0))
    for level, bandwidth in zip(('L1', 'L2', 'L3', 'memory'), bandwidths):
        ax.plot([low, peak / bandwidth, high], [low * bandwidth, peak, peak], color=MUTED, linewidth=0.9, zorder=1)
        ax.text(low * 1.05, low * 1.12 * bandwidth, f'{level} {bandwidth:.0f} GB/s', fontsize=7, color=MUTED, rotation=slope,
                rotation_mode='anchor')
    ax.text(high * 0.97, peak * 1.05, f'f32 multiply-adds, {isa}: {peak:.0f} GFLOP/s', ha='right', fontsize=7, color=MUTED)
    for i, (kernel, p) in enumerate(sorted(points.items())):
        marker = 'osD^vP*X'[i % 8]
        ax.scatter(*zip(*p), s=20, marker=marker, color=SERIES[i % 9], label=kernel.replace('_', ' '), zorder=2, linewidths=0)
    ax.grid(True, which='major', linewidth=0.6)
    plain = FuncFormatter(lambda v, _: f'{v:g}')
    for axis in ax.xaxis, ax.yaxis:
        axis.set_major_formatter(plain)
        axis.set_minor_formatter(NullFormatter())
    ax.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16), ncol=3, handletextpad=0.2, columnspacing=1)
    return svg(figure)


def shares(machine):
    found = {}
    for case, rows in machine.cases().items():
        best = own(rows)
        if best and best.get('share'):
            found.setdefault(case[0], []).append(100 * best.get('share'))
    if not found:
        return None
    kernels = sorted(found, key=lambda k: statistics.median(found[k]))
    figure, ax = axes(0.24 * len(kernels) + 0.8)
    for y, kernel in enumerate(kernels):
        values = [min(v, 160) for v in found[kernel]]
        ax.plot([min(values), max(values)], [y, y], color=GRID, linewidth=5, solid_capstyle='round', zorder=1)
        ax.scatter(values, [y] * len(values), s=14, color=OWN, linewidths=0, alpha=0.75, zorder=3)
    ax.axvline(100, color=MUTED, linewidth=0.9)
    ax.set(yticks=range(len(kernels)), yticklabels=[k.replace('_', ' ') for k in kernels], xlim=(0, 165),
           xlabel='% of the machine\'s limit; one dot a row')
    ax.grid(True, axis='x', linewidth=0.6)
    return svg(figure)


def speedups(machine):
    found, targets = {}, []
    for row in machine.rows:
        if row.peer or row.error or row.target == 'scalar' or not row.get('speedup') or row.kernel in ('growth', 'threads', 'plan'):
            continue
        found.setdefault(row.kernel, {}).setdefault(row.target, []).append(row.get('speedup'))
        if row.target not in targets:
            targets.append(row.target)
    if len(targets) < 2:
        return None
    means = {k: {t: statistics.geometric_mean(v) for t, v in by.items()} for k, by in found.items()}
    kernels = sorted(means, key=lambda k: max(means[k].values()))
    figure, ax = axes(0.27 * len(kernels) + 1.2)
    for i, target in enumerate(targets):
        xy = [(means[k][target], y) for y, k in enumerate(kernels) if target in means[k]]
        ax.scatter(*zip(*xy), s=22, marker='osD^vP*X<'[i % 9], color=SERIES[i % 9], label=target, linewidths=0)
    ax.axvline(1, color=MUTED, linewidth=0.9)
    ax.set(xscale='log', yticks=range(len(kernels)), yticklabels=[k.replace('_', ' ') for k in kernels],
           xlabel='times as fast as scalar, geometric mean')
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f'{v:g}'))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(True, axis='x', linewidth=0.6)
    ax.legend(loc='lower center', bbox_to_anchor=(0.4, 1.0), ncol=3, handletextpad=0.2, columnspacing=1)
    return svg(figure)


def peer_bars(machine, kernel):
    """Each library's time over this one's, with the distance from the quoted quantile to the median."""
    cases = {c: rows for c, rows in compared(machine).items() if c[0] == kernel}
    if not cases:
        return None
    names = [n for n in LIBRARIES if n == 'simdattn' or any(r.peer == n for rows in cases.values() for r in rows)]
    bars, ticks, y = [], [], 0.0
    for case, rows in cases.items():
        mine = own(rows)
        start = y
        for row in [mine] + peers(rows):
            bars.append((y, row.ns / mine.ns, row.get('spread') * row.ns / mine.ns, row))
            y += 1
        ticks.append(((start + y - 1) / 2, name_of(case).removeprefix(kernel.replace('_', ' ') + ' ')))
        y += 0.9
    limit = 6
    figure, ax = axes(0.135 * y + 0.9)
    for y0, ratio, spread, row in bars:
        colour = SERIES[names.index(row.peer or 'simdattn') % 9]
        ax.barh(y0, min(ratio, limit), 0.86, color=colour, alpha=0.45 if row.noisy else 1)
        if ratio < limit:
            ax.plot([ratio, min(ratio + spread, limit)], [y0, y0], color=INK, linewidth=0.8)
        label = digits(ratio) + ('~' if row.noisy else '')
        ax.text(min(max(ratio + spread, ratio), limit) + 0.05, y0, label, va='center', fontsize=7, color=MUTED)
    ax.axvline(1, color=INK, linewidth=0.8)
    ax.set(yticks=[t for t, _ in ticks], yticklabels=[n for _, n in ticks], xlim=(0, limit + 0.5), ylim=(y, -1),
           xlabel=f'time over simdattn\'s, cut at {limit}; pale, ~: noisy')
    handles = [matplotlib.patches.Patch(color=SERIES[names.index(n) % 9], label=library(n)) for n in names]
    ax.legend(handles=handles, loc='lower center', bbox_to_anchor=(0.4, 1.0), ncol=4, handlelength=1, columnspacing=1)
    ax.grid(True, axis='x', linewidth=0.6)
    return svg(figure)


def against_best(machine):
    """One bar a row: the best other library's time over this one's."""
    rows = []
    for case, all_rows in compared(machine).items():
        mine, others = own(all_rows), peers(all_rows)
        best = min(others, key=lambda r: r.ns)
        rows.append((name_of(case), best.ns / mine.ns, best, mine.noisy or best.noisy))
    if not rows:
        return None
    figure, ax = axes(0.18 * len(rows) + 0.7)
    for y, (_, ratio, best, noisy) in enumerate(rows):
        ax.barh(y, min(ratio, 6), 0.8, color=OWN if ratio >= 1 else SERIES[1], alpha=0.45 if noisy else 1)
        ax.text(min(ratio, 6) + 0.06, y, f'{digits(ratio)}{"~" if noisy else ""} {library(best.peer)}', va='center', fontsize=7,
                color=MUTED)
    ax.axvline(1, color=INK, linewidth=0.8)
    ax.set(yticks=range(len(rows)), ylim=(len(rows) - 0.3, -0.7), xlim=(0, 8),
           xlabel='fastest other library\'s time over simdattn\'s')
    ax.set_yticklabels([r[0] for r in rows], fontsize=8)
    ax.grid(True, axis='x', linewidth=0.6)
    return svg(figure)


def growth(machine):
    lines = {}
    for case, rows in machine.cases('growth').items():
        best = own(rows)
        what, n = case[1].rsplit('_', 1)
        if best and best.get('relative'):
            lines.setdefault(f'{what} {case[2]}', []).append((int(n), best.get('relative')))
    lines = {k: sorted(v) for k, v in lines.items() if len(v) > 1}
    if not lines:
        return None
    figure, ax = axes(2.6)
    for i, (name, points) in enumerate(sorted(lines.items())):
        ax.plot(*zip(*points), marker='osD^'[i % 4], markersize=4, color=SERIES[i], label=name, linewidth=1.4)
    ax.set(xscale='log', xlabel='keys', ylabel='time per key seen', ylim=(0, max(1.6, 1.1 * max(y for p in lines.values() for _, y in p))))
    ticks = sorted({x for p in lines.values() for x, _ in p})
    ax.set_xticks(ticks, [f'{x // 1024}k' for x in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.axhline(1, color=MUTED, linewidth=0.9)
    ax.grid(True, linewidth=0.6)
    ax.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncol=4, columnspacing=1)
    return svg(figure)


def threads(machine):
    bars = []
    for case, rows in machine.cases('threads').items():
        best = own(rows)
        if best and best.get('relative'):
            shape, count = case[1].rsplit('_x', 1)
            bars.append((f'{shape.replace("_", " ")} {case[2]}', int(count), 1 / best.get('relative'), best.noisy))
    if not bars:
        return None
    figure, ax = axes(0.3 * len(bars) + 0.6)
    for y, (name, count, ratio, noisy) in enumerate(bars):
        ax.barh(y, count, 0.7, color=GRID)
        ax.barh(y, ratio, 0.7, color=OWN, alpha=0.45 if noisy else 1)
        ax.text(ratio - 0.04, y, digits(ratio) + ('~' if noisy else ''), va='center', ha='right', fontsize=8, color=INK)
    ax.set(yticks=range(len(bars)), yticklabels=[b[0] for b in bars], xlabel='times as fast as one thread; grey: threads')
    return svg(figure)


# ---- Page --------------------------------------------------------------------------------------------------------------

NOTES = [
    'All contestants of a row take turns in short samples within one process, in another order each time. A time is the 10 % '
    'quantile of the samples; the spread goes to the median.',
    '~ noisy: the median is more than 10 % above the quantile, or there are fewer than 3 samples. Read such a row with care.',
    'Shares are of this machine\'s own limits, measured in the same turns: reading the same bytes (read), f32 multiply-adds (fma), '
    'a copy of the output\'s size (copy; of half of it in place). More than 100 %: the plain probe is not the fastest way.',
    'Other libraries work on the same numbers, each at its best settings (below). Keys of simdattn are in panels where the row '
    'says so; others read them as rows. A case of "1head" is one head: heads are independent.',
    'Errors are the largest distance from the same formula in float64, over the largest exact number of the result.',
]


BITS = 'With two threads instead of one / alone instead of in a batch. "same" or "differ"; "one only": it takes one thread.'


def bits_table(machine):
    works, libraries = [], []
    for key in machine.context:
        if key.startswith('bits '):
            name, work = key[5:].split(' ', 1)
            works += [work] * (work not in works)
            libraries += [name] * (name not in libraries)
    if not works:
        return None
    libraries.sort(key=lambda n: LIBRARIES.index(n) if n in LIBRARIES else 99)
    rows = [['library'] + works]
    for name in libraries:
        row = [library(name)]
        for work in works:
            text = machine.context.get(f'bits {name} {work}', '')
            text = re.sub(r'threads: |alone: ', '', text)
            row.append(text.replace(', ', ' / '))
        rows.append(row)
    return rows


def peer_table(machine):
    cases = compared(machine)
    names = [n for n in LIBRARIES if any(r.peer == n for rows in cases.values() for r in rows)]
    table = [['row', 'simdattn', 'of limit', 'error'] + [library(n) for n in names] + ['best other / simdattn']]
    for case, rows in cases.items():
        mine, by = own(rows), {r.peer: r for r in rows if r.peer}
        best = min(peers(rows), key=lambda r: r.ns)
        line = [name_of(case), cell(mine), share(mine), f'{mine.get("error"):.0e}']
        for n in names:
            r = by.get(n)
            line.append('' if r is None else 'wrong' if r.error else f'{cell(r)} ({r.get("error"):.0e})')
        table.append(line + [digits(best.ns / mine.ns) + (' ~' if mine.noisy or best.noisy else '')])
    return table if len(table) > 1 else None


def short_peer_table(machine):
    table = [['row', 'simdattn', 'of limit', 'error', 'fastest other', 'its time', 'its error', 'other / simdattn']]
    for case, rows in compared(machine).items():
        mine, best = own(rows), min(peers(rows), key=lambda r: r.ns)
        table.append([name_of(case), cell(mine), share(mine), f'{mine.get("error"):.0e}', library(best.peer), cell(best),
                      f'{best.get("error"):.0e}', digits(best.ns / mine.ns) + (' ~' if mine.noisy or best.noisy else '')])
    return table if len(table) > 1 else None


def short_kernel_table(machine):
    table = [['row', 'scalar', 'fastest target', 'its time', 'over scalar', 'of limit']]
    for case, rows in machine.cases().items():
        best = own(rows)
        if best is not None:
            speed = best.get('speedup')
            table.append([name_of(case), cell({r.target: r for r in rows}.get('scalar')), best.target.removeprefix('highway/'), cell(best),
                          digits(speed) if speed else '', share(best)])
    return table if len(table) > 1 else None


def kernel_table(machine):
    targets = machine.targets()
    table = [['row', 'scalar'] + [t.removeprefix('highway/') for t in targets] + ['best over scalar', 'of limit']]
    for case, rows in machine.cases().items():
        by, best = {r.target: r for r in rows}, own(rows)
        if best is None:
            continue
        speed = best.get('speedup')
        table.append([name_of(case), cell(by.get('scalar'))] + [cell(by.get(t)) for t in targets]
                     + [f'{digits(speed)}' if speed else '', share(best)])
    return table if len(table) > 1 else None


def context_table(machine):
    keep = [(k, v) for k, v in machine.context.items()
            if k in ('cpu', 'clock', 'copy', 'read', 'version', 'commit', 'compiler', 'distribution', 'date', 'seed')
            or k.startswith('limits ')]
    return [['', '']] + [[k, v] for k, v in keep]


def settings_table(machine):
    rows = [[library(k[5:]), v] for k, v in machine.context.items() if k.startswith('peer ')]
    rows += [[library(k[8:]), 'not here: ' + v] for k, v in machine.context.items() if k.startswith('missing ')]
    return [['library', 'settings']] + rows if rows else None


def sections(machine, short):
    """Heading, sentence, pictures by name, table. Short: without every library and every target."""
    kernels = list(dict.fromkeys(c[0] for c in compared(machine)))
    yield ('Beside other libraries', 'The fastest other library of each row over simdattn. Blue: simdattn is ahead.',
           {'best-peer': against_best(machine)}, None)
    yield ('Roofline', 'Each dot is a row on its best target; products of bf16 and 8-bit numbers can be above the roof of f32. Kernels '
           'without a count of operations stand in the next picture.',
           {'roofline': roofline(machine)}, None)
    yield ('Share of the limit', 'Every kernel, against what the machine could do in the same moments.', {'shares': shares(machine)}, None)
    if short:
        yield ('Fastest other library, in figures', 'Times, and errors against float64.', {}, short_peer_table(machine))
        yield ('Do bits change?', BITS, {}, bits_table(machine))
        yield 'Settings of the libraries', '', {}, settings_table(machine)
        yield 'Every row, on its fastest target', '', {}, short_kernel_table(machine)
        yield 'Machine', '', {}, context_table(machine)
        return
    yield 'Speed-up over scalar, by target', '', {'speedup': speedups(machine)}, None
    yield ('Growth from 1k to 64k keys', '1 is the time per key of the reference: 8192 keys for decode, 2048 rows for prefill.',
           {'growth': growth(machine)}, None)
    yield 'Two threads', '', {'threads': threads(machine)}, None
    yield ('Every library', 'Thin lines reach from the quoted quantile to the median.',
           {f'peers-{k.replace("_", "-")}': peer_bars(machine, k) for k in kernels}, None)
    yield 'Every library, in figures', 'Times, and errors against float64.', {}, peer_table(machine)
    yield 'Do bits change?', BITS, {}, bits_table(machine)
    yield 'Settings of the libraries', '', {}, settings_table(machine)
    yield 'Every row', 'The best target is compared with scalar and with the limit.', {}, kernel_table(machine)
    yield 'Machine', '', {}, context_table(machine)


def variables(dark):
    return ''.join(f'--{name}:{d if dark else light};' for name, light, d in COLOURS.values())


STYLE = f'''
:root{{color-scheme:light dark;{variables(False)}--page:#fff;--stripe:#f5f7f9}}
@media (prefers-color-scheme:dark){{:root{{{variables(True)}--page:#15181c;--stripe:#1d2126}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}}
main{{max-width:1120px;margin:0 auto;padding:16px}}
h1{{font-size:1.6rem;line-height:1.2;margin:.4em 0}} h2{{font-size:1.25rem;margin:2em 0 .3em;overflow-wrap:anywhere}}
h3{{font-size:1rem;margin:0 0 .2em}}
p{{margin:.2em 0 .8em;color:var(--muted);max-width:46em;overflow-wrap:anywhere}}
.grid{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));gap:28px 36px;align-items:start}}
section{{min-width:0}} section.wide{{grid-column:1/-1}}
svg{{display:block;width:100%;height:auto;max-width:560px}}
.scroll{{overflow-x:auto}} table{{border-collapse:collapse;font-size:.82rem}}
th,td{{padding:3px 10px;text-align:left;vertical-align:top;white-space:nowrap;font-variant-numeric:tabular-nums}}
td.long{{white-space:normal;min-width:16em}} th{{border-bottom:1px solid var(--grid)}} tr:nth-child(even) td{{background:var(--stripe)}}
.noisy{{color:var(--muted);font-style:italic}} ul{{padding-left:1.2em;color:var(--muted);font-size:.9rem;max-width:52em}}
'''


def html_table(table):
    def td(text):
        kind = ' class="noisy"' if text.endswith('~') else ' class="long"' if len(text) > 60 else ''
        return f'<td{kind}>{html.escape(text)}</td>'
    head = ''.join(f'<th>{html.escape(c)}</th>' for c in table[0]) if any(table[0]) else ''
    body = '\n'.join('<tr>' + ''.join(td(c) for c in row) + '</tr>' for row in table[1:])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def unique_ids(picture, prefix):
    """Pictures of one page must not share names: clip paths and markers are found by them."""
    picture = re.sub(r'\bid="', f'id="{prefix}-', picture)
    return re.sub(r'(href="|url\()#', rf'\1#{prefix}-', picture)


def page(machines):
    parts = [f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
             f'<title>simdattn: measured</title><style>{STYLE}</style></head><body><main>\n<h1>simdattn: measured</h1>']
    parts.append('<ul>' + ''.join(f'<li>{html.escape(n)}</li>' for n in NOTES) + '</ul>')
    for number, m in enumerate(machines):
        c = m.context
        made = ', '.join(filter(None, [c.get('version'), c.get('commit'), c.get('distribution'), c.get('date', '')[:10]]))
        parts.append(f'<h2>{html.escape(m.name)}</h2><p>{html.escape(made)}</p><div class="grid">')
        for title, sentence, pictures, table in sections(m, short=False):
            drawn = {k: v for k, v in pictures.items() if v}
            if not drawn and not table:
                continue
            several = len(drawn) > 1
            wide = table or several
            parts.append(f'<section{" class=wide" if wide else ""}><h3>{html.escape(title)}</h3>'
                         + (f'<p>{html.escape(sentence)}</p>' if sentence else ''))
            if several:
                parts.append('<div class="grid">')
            for name, picture in drawn.items():
                caption = f'<h3>{html.escape(name.removeprefix("peers-").replace("-", " "))}</h3>' if several else ''
                parts.append(f'<section>{caption}{unique_ids(picture, f"m{number}-{name}")}</section>')
            if several:
                parts.append('</div>')
            if table:
                parts.append(html_table(table))
            parts.append('</section>')
        parts.append('</div>')
    parts.append('</main></body></html>\n')
    return '\n'.join(parts)


def standalone(picture):
    """With its own colours, for pages that show it as an image."""
    style = (f'<style>svg{{{variables(False)}}}@media (prefers-color-scheme:dark){{svg{{{variables(True)}}}}}' '</style>')
    return re.sub(r'(<svg[^>]*>)', lambda m: m.group(1) + style, picture, count=1)


def of_others(machines, older):
    """The lines of an older RESULTS.md about other machines, and the pictures that they show."""
    text = older.read_text()
    parts = re.split(r'^(?=## )', text, flags=re.M)[1:]
    if not text.startswith('# Measured') or not parts:
        sys.exit(f'bench_report: {older} is not a RESULTS.md of this program')
    names = {m.name for m in machines}
    kept = '\n'.join(p.strip() + '\n' for p in parts if p.splitlines()[0].removeprefix('## ') not in names)
    pictures = [older.parent / name for name in re.findall(r'\]\((pictures/[^)/]+\.svg)\)', kept)]
    return kept.splitlines(), {p.name: p.read_bytes() for p in pictures}


def markdown(machines, folder, older):
    kept, pictures = of_others(machines, older) if older else ([], {})
    lines = ['# Measured', '', 'Made by `tools/bench --report`; not edited by hand.', '']
    lines += [f'- {n}' for n in NOTES]
    pictures_folder = folder / 'pictures'
    pictures_folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (pictures_folder / name).write_bytes(picture)
    for m in machines:
        lines += ['', f'## {m.name}']
        for title, sentence, pictures, table in sections(m, short=True):
            drawn = {k: v for k, v in pictures.items() if v}
            if not drawn and not table:
                continue
            lines += ['', f'### {title}', '']
            if sentence:
                lines += [sentence, '']
            for name, picture in drawn.items():
                file = f'{m.slug}-{name}.svg'
                (pictures_folder / file).write_text(standalone(picture))
                lines += [f'![{title}](pictures/{file})', '']
            if table:
                escape = [[c.replace('|', '\\|') for c in row] for row in table]
                lines.append('| ' + ' | '.join(escape[0]) + ' |')
                lines.append('|' + '---|' * len(table[0]))
                lines += ['| ' + ' | '.join(row) + ' |' for row in escape[1:]]
    (folder / 'RESULTS.md').write_text('\n'.join(lines + ([''] + kept if kept else [])) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--beside', type=Path, metavar='RESULTS.md', help='keep its machines that the files do not speak of')
    parser.add_argument('files', nargs='+')
    o = parser.parse_args()
    machines = read(o.files)
    o.out.mkdir(parents=True, exist_ok=True)
    markdown(machines, o.out, o.beside)
    (o.out / 'index.html').write_text(page(machines))
    print(f'{o.out}/index.html, {o.out}/RESULTS.md')


main()
