"""What pages of the benchmark are made of: rows of its JSON files by machine, and numbers as text."""
import json
import re
import sys
from pathlib import Path

LIBRARIES = ['simdattn', 'loops', 'eigen', 'openblas', 'onednn', 'onednn_graph', 'xnnpack', 'ggml', 'ggml_flash', 'onnxruntime',
             'pytorch']
NAMES = {'loops': 'compiled loops', 'eigen': 'Eigen', 'openblas': 'OpenBLAS', 'onednn': 'oneDNN',
         'onednn_graph': 'oneDNN graph', 'xnnpack': 'XNNPACK', 'ggml_flash': 'ggml flash', 'onnxruntime': 'ONNX Runtime',
         'pytorch': 'PyTorch'}

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
