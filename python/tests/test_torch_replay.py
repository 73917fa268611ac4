"""The short way with tensors: it is taken by plain ones alone, and large calls run on PyTorch's own threads."""
import subprocess
import sys

import pytest
import torch
from test_arrays import refused
from test_torch import tensors

import simdattn
import simdattn.torch
from simdattn import _attention, _rope, _run
from simdattn._abi import Code

pytestmark = pytest.mark.skipif(_run._core is None, reason='the extension module is not built')


@pytest.fixture
def learned():
    """Arguments of a call that replay() makes, and its result."""
    simdattn.torch._TEMPLATES.clear()
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    for _ in range(3):
        out = simdattn.torch.sdpa(q, k, v)
    assert [type(x).__name__ for x in simdattn.torch._TEMPLATES.values()] == ['PyCapsule']
    return q, k, v, out


def test_equal_bits_in_both_ways(learned, monkeypatch):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype=torch.float32)
    calls = [lambda a=a, o=o: simdattn.torch.sdpa(*a, **o) for a in ((q, k, v), [x.bfloat16() for x in (q, k, v)], (q[0], k[0], v[0]))
             for o in ({}, {'is_causal': True}, {'scale': 0.3}, {'attn_mask': torch.ones(5, 9).tril().bool()}, {'attn_mask': torch.zeros(5, 9)})]
    found = [[call() for call in calls] for _ in range(3)][-1]
    monkeypatch.setattr(simdattn.torch, 'replay', _run._never)
    assert all(torch.equal(f, call()) and f.dtype == call().dtype for f, call in zip(found, calls))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_every_type_takes_the_short_way(dtype, monkeypatch):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype=dtype)
    table, mask, where = simdattn.rope_table(40, 16), torch.ones(5, 9).tril(), torch.tensor([[3, 1, 4, 1, 5]])
    lengths = torch.tensor([8], dtype=torch.int32)
    calls = [lambda m=m: simdattn.attention(q, k, v, mask=m, kv_length=lengths) for m in (mask.bool(), mask.to(torch.uint8))]
    calls += [lambda w=w: simdattn.rope(q, *table, w) for w in (where, where.int())]
    wanted = [[call() for call in calls] for _ in range(2)][-1]
    monkeypatch.setattr(_attention, 'Problem', None)  # what the long ways begin with
    monkeypatch.setattr(_rope, 'operand', None)
    assert all(torch.equal(call(), w) for call, w in zip(calls, wanted))


def test_what_is_not_plain_after_it_was(learned):
    q, k, v, out = learned
    leaf = q.clone().requires_grad_()
    refused(Code.RANGE, 'query: requires a gradient', lambda: simdattn.torch.sdpa(leaf, k, v))
    with torch.no_grad():
        assert torch.equal(simdattn.torch.sdpa(leaf, k, v), out)
    assert torch.equal(simdattn.torch.sdpa(torch._neg_view(q), k, v), simdattn.torch.sdpa(-q, k, v))
    with torch.autograd.forward_ad.dual_level():
        refused(Code.RANGE, 'has a tangent', lambda: simdattn.torch.sdpa(torch.autograd.forward_ad.make_dual(q, q), k, v))
    with torch.autocast('cpu', torch.bfloat16):
        assert simdattn.torch.sdpa(q, k, v).dtype == torch.bfloat16
    if hasattr(torch, 'vmap'):
        assert torch.vmap(simdattn.torch.sdpa)(q[None], k[None], v[None]).shape == (1, *out.shape)
    refused(Code.DTYPE, 'key: is on meta', lambda: simdattn.torch.sdpa(q, k.to('meta'), v))
    q *= 2
    assert torch.equal(simdattn.torch.sdpa(q, k, v), simdattn.torch.sdpa(q.clone(), k, v))


@pytest.mark.skipif(not hasattr(torch._C, '_len_torch_dispatch_stack'), reason='modes: PyTorch 2.0 and later')
def test_modes_see_the_operator(learned):
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Log():
        simdattn.torch.sdpa(*learned[:3])
    assert any('simdattn.sdpa' in name for name in seen)
    assert 'simdattn' in str(torch.jit.trace(lambda a: simdattn.torch.sdpa(a, a, a), learned[0]).graph)


def test_versions_of_what_is_written():
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    out = torch.empty_like(q)
    for n in range(1, 5):
        simdattn.attention(q, k, v, out=out)
        assert out._version == n and q._version == 0


def test_as_many_threads_as_pytorch():
    """In a process of its own: OpenMP's threads stay."""
    program = '''
import os, torch, simdattn.torch
def threads(): return len(os.listdir('/proc/self/task'))
x = torch.ones(1, 8, 700, 64)
torch.set_num_threads(1)
before = threads()
for _ in range(3): one = simdattn.torch.sdpa(x, x, x)
assert threads() == before, 'one thread is what PyTorch has'
torch.set_num_threads(4)  # starts threads for other purposes
before = threads()
s = x[:, :, :4]
for _ in range(3): simdattn.torch.sdpa(s, s, s)
assert threads() == before, 'a small call'
found = simdattn.torch.sdpa(x, x, x)
team = threads()
assert team > before
(torch.ones(2000, 2000) + 1).exp()
assert threads() == team, 'PyTorch had another team'
assert torch.equal(found, one)
for _ in range(3): simdattn.torch.sdpa(x, x, x)
assert threads() == team, 'a second team'
'''
    subprocess.run([sys.executable, '-c', program], check=True)
