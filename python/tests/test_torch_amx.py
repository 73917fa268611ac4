"""AMX of the library and of PyTorch's oneDNN in one process. oneDNN configures the tiles of a thread and remembers that
it did: a call that left them otherwise would end the process by SIGILL, or change its products.
"""
import subprocess
import sys

import pytest
import torch

import simdattn

PROGRAM = '''
import sys
from concurrent.futures import ThreadPoolExecutor
import torch, simdattn
first, kind, target = sys.argv[1:]
target = target or None
torch.manual_seed(0)
torch.set_num_threads(2)
matrices = [torch.randn(n, 512).to(torch.bfloat16) for n in (96, 512)]  # other shapes: other kernels and tiles
q, k, v = (torch.randn(2, 8, n, 64).to(torch.bfloat16) for n in (80, 600, 600))
pool = ThreadPoolExecutor(2)

def of_torch():
    return [torch.nn.functional.linear(m, matrices[1]) for m in matrices]

def of_simdattn():
    how = dict(causal=True, arithmetic=kind, target=target)
    return [simdattn.attention(q, k, v, **how), simdattn.attention(q, k, v, pool=pool, **how)]

def product_is_right(products):
    for m, product in zip(matrices, products):
        torch.testing.assert_close(product.double(), m.double() @ matrices[1].double().T, rtol=2**-7, atol=2**-3)

once = {}
for turn in range(4):
    for call in (of_torch, of_simdattn) if first == 'torch' else (of_simdattn, of_torch):
        found = call()
        if call is of_torch: product_is_right(found)
        wanted = once.setdefault(call.__name__, found)
        assert all(torch.equal(x, y) for x, y in zip(found, wanted)), (call.__name__, turn)
attention, by_pool = once['of_simdattn']
assert torch.equal(attention, by_pool)
scores = q.double() @ k.double().transpose(-1, -2) / 8
hidden = torch.ones(80, 600).triu(521) > 0
wanted = (scores.masked_fill(hidden, float('-inf')).softmax(-1) @ v.double()).float()
torch.testing.assert_close(attention.float(), wanted, rtol=0, atol={'bf16': 2**-5, 'int8': 2**-3}[kind])
'''


def why_not():
    """Why there is no AMX; '' where there is."""
    if not torch.backends.mkldnn.is_available():
        return 'this PyTorch is built without oneDNN'
    amx = [target for target in simdattn.targets() if target.name == 'intrinsics/amx']
    if not amx:
        return 'the package is built without the target intrinsics/amx'
    try:
        simdattn.request_amx()
    except simdattn.Error as error:
        return str(error)
    return ''


def other_target():
    """The best one without AMX: the text of the test runs anywhere."""
    return next(t.name for t in simdattn.targets() if t.runnable and t.exact and t.name != 'intrinsics/amx')


@pytest.mark.parametrize('kind', ['bf16', 'int8'])
@pytest.mark.parametrize('first', ['torch', 'simdattn'])
@pytest.mark.parametrize('tiles', [True, False], ids=['AMX', 'vectors'])
def test_with_onednn(first, kind, tiles):
    if tiles and why_not():
        pytest.skip(why_not())
    subprocess.run([sys.executable, '-c', PROGRAM, first, kind, 'intrinsics/amx' if tiles else other_target()], check=True, timeout=300)
