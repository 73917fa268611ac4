"""A checker of types takes what is meant, and finds typing errors: mypy --strict over the lines below."""
import re
import subprocess
import sys

import pytest

pytest.importorskip('mypy')

GOOD = '''
import numpy as np
import simdattn
from simdattn import _abi
q = np.ones((1, 2, 3, 16), np.float32)
out: np.ndarray = simdattn.attention(q, q, q, causal=True, target=simdattn.targets()[0], arithmetic=_abi.Arithmetic.F32)
pair: tuple[np.ndarray, np.ndarray] = simdattn.attention(q, q, q, return_lse=True, window_left=3)
cache = simdattn.KVCache(1, 2, 64, 16, dtype='bf16')
step: np.ndarray = cache.attend(q, window_left=4, target='scalar')
table = simdattn.rope_table(64, 16, rope_theta=1e4, rope_type='default')
turned: np.ndarray = simdattn.rope(q, *table, pairing='interleaved')
rows: np.ndarray = simdattn.softmax(q, scale=0.5)
plan = simdattn.Plan(q, q, q, causal=True, target='scalar')
plan.bind(q, q, q, causal=True)
cache.plan(q, scale=1.0)
'''

# A line each, and a word of what is said about it.
BAD = {
    "simdattn.attention('q', q, q)": 'attention',
    'simdattn.attention(q, q, q, windwo_left=3)': 'attention',
    'simdattn.attention(q, q, q, target=3)': 'target|attention',
    'simdattn.Plan(q, q, q, casual=True)': 'casual',
    'cache.attend(q, window=3)': 'attend',
    'cache.plan(q, windows_left=3)': 'windows_left',
    'simdattn.rope_table(64, 16, theta=1e4)': 'theta',
    "simdattn.rope_table(64, 16, rope_theta='a')": 'rope_theta',
    'simdattn.softmax(q, axis=0)': 'softmax',
    'simdattn.rope(q, *table, pairng=1)': 'pairng',
    'text: str = simdattn.attention(q, q, q)': 'Incompatible types|attention',
    'simdattn.linear_attention(q, q, q, q, rule=3)': 'rule',
}


def mypy(file):
    import mypy.version
    old = tuple(int(n) for n in re.findall(r'\d+', mypy.version.__version__)[:2]) < (1, 7)
    found = subprocess.run([sys.executable, '-m', 'mypy', '--strict', '--ignore-missing-imports', '--follow-imports=silent',
                            f'--cache-dir={file.parent}', '--disable-error-code=type-arg',
                            *(['--enable-incomplete-feature=Unpack'] if old else []), str(file)], stdout=subprocess.PIPE, text=True).stdout
    return [line for line in found.splitlines() if f'{file.name}:' in line and ' error: ' in line]


def test_what_is_meant(tmp_path):
    file = tmp_path / 'good.py'
    file.write_text(GOOD)
    assert not mypy(file)


def test_typing_errors(tmp_path):
    file = tmp_path / 'bad.py'
    file.write_text(GOOD + '\n'.join(BAD))
    found = mypy(file)
    first = GOOD.count('\n') + 1
    for number, (line, word) in enumerate(BAD.items(), first):
        assert any(re.search(rf'bad.py:{number}: error: .*({word})', f) for f in found), (line, found)
