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
paged = simdattn.TensorCache(q, q, block_table=np.zeros((1, 1), np.int32), lengths=[2])
last: np.ndarray = paged.attend(q, window_left=4)
product: np.ndarray = simdattn.scores(q, q, scale=0.5)
weighted: np.ndarray = simdattn.weighted_values(product, q, dtype='f32')
joined: tuple[np.ndarray, np.ndarray] = simdattn.attention_merge([q, q], [q[..., 0], q[..., 0]], return_lse=True)
both: tuple[np.ndarray, np.ndarray] = simdattn.scaled_dot_product_attention(q, q, q, return_lse=True)
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
    'simdattn.TensorCache(q, q, page_table=q)': 'page_table',
    'simdattn.scores(q, q, causal=True)': 'causal',
    'simdattn.weighted_values(q, q, types=1)': 'types',
    'simdattn.attention_merge([q], [q], sink=[1.0])': 'attention_merge',
    'simdattn.scaled_dot_product_attention(q, q, q, return_les=True)': 'scaled_dot_product_attention',
}

# With PyTorch, whose own types are read where it is installed.
TORCH = '''
import torch
import simdattn
import simdattn.flash_attn
import simdattn.torch
x = torch.ones(1, 2, 3, 16)
a: torch.Tensor = simdattn.torch.sdpa(x, x, x, is_causal=True)
b: tuple[torch.Tensor, torch.Tensor] = simdattn.torch.attention(x, x, x, causal=True, return_lse=True, window_left=3)
c: torch.Tensor = simdattn.torch.attend(simdattn.KVCache(1, 2, 8, 16), x, softcap=2.0)
d: torch.Tensor = simdattn.torch.rope(x, x, x, start=3)
e = simdattn.flash_attn.flash_attn_func(x, x, x, causal=True, window_size=(3, 0))
'''
BAD_TORCH = {
    'simdattn.torch.sdpa(x, x, x, causal=True)': 'sdpa',
    'simdattn.torch.attention(x, x, x, windw_left=3)': 'attention',
    'simdattn.torch.attend(x, x)': 'attend',
    'simdattn.torch.rope(x, x, x, begin=3)': 'begin',
    'simdattn.flash_attn.flash_attn_func(x, x, x, window=3)': 'window',
}


def mypy(file, cache):
    import mypy.version
    old = tuple(int(n) for n in re.findall(r'\d+', mypy.version.__version__)[:2]) < (1, 7)
    found = subprocess.run([sys.executable, '-m', 'mypy', '--strict', '--ignore-missing-imports', '--follow-imports=silent',
                            f'--cache-dir={cache}', '--disable-error-code=type-arg',
                            *(['--enable-incomplete-feature=Unpack'] if old else []), str(file)], stdout=subprocess.PIPE, text=True).stdout
    return [line for line in found.splitlines() if f'{file.name}:' in line and ' error: ' in line]


@pytest.mark.parametrize('good, lines', [(GOOD, BAD), (TORCH, BAD_TORCH)], ids=['numpy', 'torch'])
def test_errors_where_they_are_and_nowhere_else(tmp_path, tmp_path_factory, good, lines):
    if good is TORCH:
        pytest.importorskip('torch', minversion='2.0')  # has types
    file = tmp_path / 'lines.py'
    file.write_text(good + '\n'.join(lines))
    found = mypy(file, tmp_path_factory.getbasetemp())
    first = good.count('\n') + 1
    for number, (line, word) in enumerate(lines.items(), first):
        assert any(re.search(rf'lines.py:{number}: error: .*({word})', f) for f in found), (line, found)
    assert not [f for f in found if int(f.split(':')[1]) < first]
