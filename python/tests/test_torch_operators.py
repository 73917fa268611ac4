"""attention, rope, attend and append as operators: what compiles and traces programs sees them, with the bits of the
calls."""
import numpy as np
import pytest
import torch
from test_arrays import refused
from test_torch import tensors

import simdattn
import simdattn.torch
from simdattn._abi import Code

ours = simdattn.torch
compiles = pytest.mark.skipif(not hasattr(torch, 'compile'), reason='torch.compile: PyTorch 2.0 and later')
SHAPES = ((2, 4, 5, 32), (2, 2, 9, 32), (2, 2, 9, 16))
OPTIONS = [dict(causal=True), dict(window_left=3, softcap=2.0, scale=0.4), dict(alibi_slopes=[0.1, 0.2, 0.3, 0.4], sinks=[1.0, 2.0, 3.0, 4.0]),
           dict(kv_length=[4, 9], kv_start=torch.tensor([1, 0]), target='scalar'), dict(causal=True, offset=2, prefix_end=[3, 0]),
           dict(offsets=[3, 4], causal=True, window_right=1), dict(chunk=4, causal=True), dict(mask=torch.rand(2, 1, 5, 9) < 0.7),
           dict(bias=torch.randn(4, 5, 9), bias_scale=[1.0, 2.0, 0.5, 0.0])]


@pytest.mark.parametrize('given', OPTIONS, ids=lambda given: '-'.join(given))
def test_attention(given):
    q, k, v = tensors(*SHAPES)
    wanted = simdattn.attention(q, k, v, return_lse=True, **given)
    assert torch.equal(ours.attention(q, k, v, **given), wanted[0])
    assert all(torch.equal(x, y) for x, y in zip(ours.attention(q, k, v, return_lse=True, **given), wanted))
    if hasattr(torch, 'compile'):
        torch._dynamo.reset()
        with torch.no_grad():
            found = torch.compile(lambda *x: ours.attention(x[0] * 2, *x[1:], **given), fullgraph=True, backend='aot_eager')(q, k, v)
        assert torch.equal(found, simdattn.attention(q * 2, k, v, **given))


def test_sequences():
    q, k, v = tensors((1, 4, 9, 32), (1, 2, 12, 32), (1, 2, 12, 16))
    given = dict(cu_q=torch.tensor([0, 4, 9], dtype=torch.int32), cu_k=[0, 7, 12], causal=True)
    assert torch.equal(ours.attention(q, k, v, **given), simdattn.attention(q, k, v, **given))


def test_rope_in_a_trace():
    x, = tensors((2, 4, 5, 32))
    table = [torch.from_numpy(np.asarray(t)) for t in simdattn.rope_table(64, 16)]
    positions = torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])

    def model(x):
        y = ours.rope(x + 1, *table, start=3, pairing='interleaved', first_dim=8)
        return ours.rope(y, *table, positions, inverse=True)

    wanted = simdattn.rope(simdattn.rope(x + 1, *table, start=3, pairing='interleaved', first_dim=8), *table, positions, inverse=True)
    assert torch.equal(torch.jit.trace(model, (x,))(x), wanted)
    if hasattr(torch, 'compile'):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, fullgraph=True, backend='aot_eager')(x), wanted)


@compiles
@pytest.mark.parametrize('backend', ['eager', 'aot_eager'])
def test_a_decode_step_is_one_graph(backend):
    table = [torch.from_numpy(np.asarray(t)) for t in simdattn.rope_table(64, 32)]
    caches = [simdattn.KVCache(2, 2, 64, 32, value_dim=16, dtype='f32') for _ in range(4)]

    def step(layers, q, k, v, position):
        for cache in layers:
            ours.append(cache, k, v, rope=table)
            q = ours.rope(q, *table, start=position)
            q = q + ours.attend(cache, q, window_left=20).repeat(1, 1, 1, 2)
        return q

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    with torch.no_grad():
        for n in (5, 1, 1, 1):
            x = [torch.randn(shape) for shape in ((2, 4, n, 32), (2, 2, n, 32), (2, 2, n, 16))]
            position = len(caches[2])
            wanted = x[0]
            for cache in caches[2:]:
                cache.append(x[1], x[2], rope=simdattn.RopeTable(*table))
                wanted = simdattn.rope(wanted, *table, start=position)
                wanted = wanted + cache.attend(wanted, window_left=20).repeat(1, 1, 1, 2)
            assert torch.equal(compiled(caches[:2], *x, position), wanted)
            assert caches[0].lengths.tolist() == caches[1].lengths.tolist() == caches[2].lengths.tolist()


@pytest.mark.skipif(not hasattr(torch, 'export'), reason='torch.export: PyTorch 2.1 and later')
def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return ours.attention(q, k, v, causal=True) * 2

    q, k, v = tensors(*SHAPES)
    program = torch.export.export(Model(), (q, k, v))
    assert 'simdattn.attention' in str(program.graph) and torch.equal(program.module()(q, k, v), simdattn.attention(q, k, v, causal=True) * 2)


@pytest.mark.skipif(not hasattr(torch.library, 'opcheck'), reason='torch.library.opcheck: PyTorch 2.4 and later')
def test_the_operators_are_what_pytorch_expects():
    q, k, v = tensors(*SHAPES)
    known = ours.attention.__globals__
    options = known['_operands']('attention', dict(causal=True), {**known['_SCORING'], **known['_ENDS']})
    torch.library.opcheck(torch.ops.simdattn.attention.default, (q, k, v, *options))
    table = [torch.from_numpy(np.asarray(t)) for t in simdattn.rope_table(64, 16)]
    torch.library.opcheck(torch.ops.simdattn.rope.default, (q, *table, None, 3, False, 'half_split', 0))
    torch.library.opcheck(torch.ops.simdattn.sdpa_with_lse.default, (q, k, v, torch.randn(q.shape[2], k.shape[2]), None, None, True, None, 'f32'))
    cache = simdattn.KVCache(2, 2, 64, 16)
    new, = tensors((2, 2, 3, 16))
    # It writes what no argument shows, so a run cannot be compared with a second one, as the test of AOT autograd does.
    shows = ('test_schema', 'test_autograd_registration', 'test_faketensor')
    torch.library.opcheck(torch.ops.simdattn.append.default, (new, new, cache.tensor_of_lengths, cache.handle, *table, 'half_split', 0),
                          test_utils=shows)
    scoring = known['_operands']('attend', dict(causal=True), known['_SCORING'])
    torch.library.opcheck(torch.ops.simdattn.attend.default, (tensors((2, 4, 1, 16))[0], cache.tensor_of_lengths, cache.handle, 16, *scoring))
    names = {name.split('::')[1] for name in torch._C._dispatch_get_registrations_for_dispatch_key('CPU') if name.startswith('simdattn::')}
    assert names == {'append', 'attend', 'attention', 'rope', 'sdpa', 'sdpa_with_lse'}  # all that there are


def test_what_is_refused():
    q, k, v = tensors(*SHAPES)
    if hasattr(torch._C._AutoDispatchBelowAutograd, '__enter__'):
        refused(Code.RANGE, 'q: requires a gradient', lambda: ours.attention(q.clone().requires_grad_(), k, v))
    with pytest.raises(TypeError, match="attention.. has no option 'windw_left'; there are alibi_slopes, arithmetic, bias"):
        ours.attention(q, k, v, windw_left=3)
    cache = simdattn.KVCache(2, 2, 64, 32, value_dim=16)
    cache.tensor_of_lengths = None
    refused(Code.RANGE, 'cache: was made before PyTorch was imported', lambda: ours.attend(cache, q))
