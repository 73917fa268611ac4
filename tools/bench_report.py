#!/usr/bin/env python3
"""Makes pages of the JSON files of simdattn-bench.

index.html is self-contained and has every library and every target; RESULTS.md has the fastest of them, and pictures.

  bench_report.py --out FOLDER [--beside RESULTS.md] FILE...

Files of one CPU and compiler are joined, those of several stand one after another; so do, in Markdown, the machines of an
older RESULTS.md that are not among them.
"""
import argparse
import html
import re
import sys
from pathlib import Path

from report_pictures import COLOURS, against_best, growth, peer_bars, roofline, shares, speedups, threads
from report_rows import LIBRARIES, cell, compared, digits, library, name_of, own, peers, read, share

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
