"""The pictures of a machine, as SVG whose colours are CSS variables, so that one picture serves light and dark."""
import io
import math
import re
import statistics

import matplotlib

matplotlib.use('svg')
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: E402

from report_rows import LIBRARIES, own, peers, compared, digits, name_of, library  # noqa: E402

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
WIDTH = 5.2  # inches: as wide as a phone, so that text is as large there as beside other text
plt.rcParams.update({
    'svg.fonttype': 'none', 'svg.hashsalt': 'simdattn', 'font.family': 'sans-serif', 'font.size': 9, 'text.color': INK,
    'axes.edgecolor': MUTED, 'axes.labelcolor': INK, 'xtick.color': MUTED, 'ytick.color': INK, 'grid.color': GRID,
    'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False, 'legend.fontsize': 8,
    'figure.facecolor': 'none', 'axes.facecolor': 'none', 'savefig.facecolor': 'none', 'axes.axisbelow': True,
})


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
