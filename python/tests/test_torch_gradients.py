"""What asks for a derivative, or records calls in the place of making them, is refused: its result would be silently
wrong."""
import numpy as np
import pytest
import torch
from test_arrays import refused
from test_torch import tensors

import simdattn
import simdattn.torch
from simdattn._abi import Code

forward_ad = torch.autograd.forward_ad

CALLS = {
    'sdpa': lambda x: simdattn.torch.sdpa(x, x, x),
    'the operator': lambda x: torch.ops.simdattn.sdpa(x, x, x, None, None, None, False, None),
    'scaled_dot_product_attention': lambda x: simdattn.scaled_dot_product_attention(x, x, x),
    'attention': lambda x: simdattn.attention(x, x, x),
    'rope': lambda x: simdattn.rope(x, *simdattn.rope_table(8, 8)),
    'softmax': lambda x: simdattn.softmax(x),
    'sinks': lambda x: simdattn.attention(x.numpy(), x.numpy(), x.numpy(), sinks=x[0, :, 0, 0]),
    'cache': lambda x: simdattn.KVCache(1, 2, 32, 8).append(x, x),
}


@pytest.mark.parametrize('name', CALLS)
def test_tangents(name):
    x, = tensors((1, 2, 4, 8))
    with forward_ad.dual_level():
        if name != 'sinks':
            refused(Code.RANGE, 'has a tangent', lambda: CALLS[name](forward_ad.make_dual(x, x)))
        else:
            dual = forward_ad.make_dual(x[0, :, 0, 0], x[0, :, 0, 0])
            refused(Code.RANGE, 'sinks: has a tangent', lambda: simdattn.attention(*[x.numpy()] * 3, sinks=dual))
        CALLS[name](x)  # without a tangent


@pytest.mark.skipif(not hasattr(torch, 'func'), reason='torch.func: PyTorch 2.0 and later')
@pytest.mark.parametrize('name', ['sdpa', 'the operator', 'attention', 'rope'])
def test_transformations_that_differentiate_forward(name):
    x, = tensors((1, 2, 4, 8))
    for call in (lambda: torch.func.jvp(CALLS[name], (x,), (x,)), lambda: torch.func.jacfwd(CALLS[name])(x)):
        with pytest.raises(simdattn.Error, match='has a tangent|has no memory of its own'):
            call()


@pytest.mark.skipif(not hasattr(torch._C, '_get_dispatch_mode'), reason='modes of make_fx: PyTorch 2.1 and later')
@pytest.mark.parametrize('name', ['attention', 'rope', 'softmax', 'scaled_dot_product_attention'])
def test_make_fx(name):
    from torch.fx.experimental.proxy_tensor import make_fx
    x, = tensors((1, 2, 4, 8))
    refused(Code.RANGE, 'make_fx does not see this function', lambda: make_fx(CALLS[name])(x))
    graph = make_fx(CALLS['sdpa'])(x)
    assert torch.equal(graph(2 * x), CALLS['sdpa'](2 * x))


def test_tensors_that_are_more_than_their_memory():
    x, = tensors((1, 2, 4, 8))
    nested = torch.nested_tensor([x[0], x[0]]) if hasattr(torch, 'nested_tensor') else torch.nested.nested_tensor([x[0], x[0]])
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    for bad, cure in ((nested, 'nested; .*to_padded_tensor'), (quantized, r'quantized; .*x.dequantize\(\) is one')):
        for call in (lambda bad=bad: simdattn.torch.sdpa(bad, x, x), lambda bad=bad: simdattn.attention(bad, x, x)):
            with pytest.raises(simdattn.Error, match=f'^q(uery)?: is on cpu, {cure}'):
                call()
    refused(Code.DTYPE, r'q: .* x.resolve_neg\(\)', lambda: simdattn.attention(torch._neg_view(x), x, x))
    assert np.array_equal(simdattn.attention(torch._neg_view(x).resolve_neg(), x, x), simdattn.attention(-x, x, x))
