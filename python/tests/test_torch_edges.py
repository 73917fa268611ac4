"""Tensors that are more than their memory, autograd's versions, autocast, and what replace_sdpa does not reach."""
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from conftest import TOLERANCE
from test_arrays import refused
from test_torch import formula, tensors
from torch.nn import functional

import simdattn
import simdattn.torch
from simdattn._abi import Code

HAS_SDPA = hasattr(functional, 'scaled_dot_product_attention')
try:
    from torch.nn.attention import bias as biases
except ImportError:
    biases = None
causal_bias = pytest.mark.skipif(biases is None, reason='torch.nn.attention.bias: PyTorch 2.3 and later')


# ---- Subclasses ------------------------------------------------------------------------------------------------------


@causal_bias
@pytest.mark.parametrize('rows, keys', [(8, 8), (5, 9), (9, 5)])
@pytest.mark.parametrize('corner', ['upper_left', 'lower_right'])
def test_causal_biases(rows, keys, corner):
    q, k, v = tensors((2, 3, rows, 16), (2, 3, keys, 16), (2, 3, keys, 16))
    bias = getattr(biases, 'causal_' + corner)(rows, keys)
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(0 if corner == 'upper_left' else keys - rows)
    wanted = torch.nan_to_num(formula(q, k, v, mask))  # rows without keys are zeros
    with simdattn.torch.replace_sdpa():
        replaced = functional.scaled_dot_product_attention(q, k, v, bias)
    for found in (simdattn.torch.sdpa(q, k, v, bias), replaced, simdattn.scaled_dot_product_attention(q, k, v, bias),
                  simdattn.attention(q, k, v, bias=bias)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE['f32'])


@causal_bias
def test_causal_biases_that_do_not_fit():
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    bias = biases.causal_upper_left(5, 8)
    for call in (lambda: simdattn.torch.sdpa(q, k, v, bias), lambda: simdattn.attention(q, k, v, bias=bias)):
        refused(Code.SHAPE, 'is a CausalBias of 5 rows and 8 keys; here are 5 and 9', call)
    bias = biases.causal_upper_left(5, 9)
    refused(Code.RANGE, 'bias: is a CausalBias, which says what causal', lambda: simdattn.attention(q, k, v, bias=bias, causal=True))
    refused(Code.RANGE, 'attn_mask: must not be given with is_causal', lambda: simdattn.torch.sdpa(q, k, v, bias, is_causal=True))
    for call in (lambda: simdattn.softmax(bias), lambda: simdattn.attention(q, k, v, mask=bias)):
        refused(Code.DTYPE, 'is a CausalBias, which says by __torch_function__', call)


class Doubled(torch.Tensor):
    """Means twice what its memory holds, and answers for sdpa."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is simdattn.torch.sdpa or func is getattr(functional, 'scaled_dot_product_attention', None):
            return func(*(2 * x.as_subclass(torch.Tensor) if isinstance(x, cls) else x for x in args), **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_asked():
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    wanted = simdattn.torch.sdpa(2 * q, k, v, is_causal=True)
    assert torch.equal(simdattn.torch.sdpa(q.as_subclass(Doubled), k, v, is_causal=True), wanted)
    if HAS_SDPA:
        with simdattn.torch.replace_sdpa():
            assert torch.equal(functional.scaled_dot_product_attention(q.as_subclass(Doubled), k, v, is_causal=True), wanted)
    refused(Code.DTYPE, 'q: is a Doubled, which says by __torch_function__', lambda: simdattn.attention(q.as_subclass(Doubled), k, v))


def test_plain_subclasses_are_their_memory():
    class Named(torch.Tensor):
        pass

    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    wanted = simdattn.torch.sdpa(q, k, v)
    assert torch.equal(simdattn.torch.sdpa(q.as_subclass(Named), k, v).as_subclass(torch.Tensor), wanted)
    assert torch.equal(simdattn.attention(q.as_subclass(Named), k, v), wanted)
    with torch.no_grad():
        assert torch.equal(simdattn.attention(torch.nn.Parameter(q), k, v), wanted)


# ---- Autograd and autocast -------------------------------------------------------------------------------------------


@pytest.mark.parametrize('writes', [
    lambda q, k, v, out: simdattn.attention(q, k, v, out=out),
    lambda q, k, v, out: simdattn.Plan(q, k, v, out=out).run(),
    lambda q, k, v, out: simdattn.scaled_dot_product_attention(q, k, v, out=out),
    lambda q, k, v, out: simdattn.softmax(q, out=out),
    lambda q, k, v, out: simdattn.rope(q, *simdattn.rope_table(9, 16), out=out),
    lambda q, k, v, out: simdattn.attention(q, k, v, out=False, lse=out.view(-1)[:10].view(1, 2, 5)),
])
def test_what_is_written_is_known_to_autograd(writes):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    out = torch.ones_like(q)
    w = torch.ones_like(q, requires_grad=True)
    loss = (w * out).sum()  # backward needs `out` as it is now
    with torch.no_grad():
        writes(q, k, v, out)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        loss.backward()
    with torch.inference_mode():
        writes(q, k, v, torch.ones_like(q))


@pytest.mark.parametrize('dtype', [torch.bfloat16] + [torch.float16] * HAS_SDPA)
def test_autocast(dtype):
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    mask = torch.randn(5, 9)
    low = [x.to(dtype) for x in (q, k, v, mask)]
    with torch.autocast('cpu', dtype=dtype):
        found = simdattn.torch.sdpa(q, k, v, mask)
        if HAS_SDPA:
            assert functional.scaled_dot_product_attention(q, k, v, mask).dtype == dtype
        with torch.autocast('cpu', enabled=False):
            assert simdattn.torch.sdpa(q, k, v, mask).dtype == torch.float32
    assert found.dtype == dtype and torch.equal(found, simdattn.torch.sdpa(*low))


# ---- Arguments -------------------------------------------------------------------------------------------------------


def test_what_is_no_tensor():
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    for bad, argument in (((q.numpy(), k, v), 'query'), ((q, None, v), 'key'), ((q, k, [1.0]), 'value'),
                          ((q, k, v, np.ones((5, 9))), 'attn_mask')):
        with pytest.raises(TypeError, match=f'{argument}: a torch.Tensor is wanted, not .*; simdattn.scaled_dot'):
            simdattn.torch.sdpa(*bad)
    with pytest.raises(RuntimeError, match='key: its last dimension is 15, that of query 16'):  # what PyTorch's raises
        simdattn.torch.sdpa(q, k[..., :15], v)


def test_dimensions_of_nothing():
    """Without dimensions every score is 0, in every version of PyTorch and of its formula."""
    for rows, keys, e, ev in ((4, 5, 0, 3), (4, 5, 3, 0), (4, 5, 0, 0), (4, 0, 0, 3)):
        q, k, v = tensors((1, 2, rows, e), (1, 2, keys, e), (1, 2, keys, ev))
        mask = torch.randn(rows, keys)
        for options in ({}, {'is_causal': True}, {'attn_mask': mask}):
            scores = options.get('attn_mask', torch.zeros(rows, keys)).clone()
            if 'is_causal' in options:
                scores.masked_fill_(torch.ones(rows, keys, dtype=torch.bool).triu(1), -torch.inf)
            wanted = torch.softmax(scores, -1) @ v
            torch.testing.assert_close(simdattn.torch.sdpa(q, k, v, **options), wanted, rtol=0, atol=1e-6)
            if HAS_SDPA and keys:
                torch.testing.assert_close(functional.scaled_dot_product_attention(q, k, v, **options), wanted, rtol=0, atol=1e-6)
    q, k, v = tensors((1, 2, 4, 0), (1, 2, 5, 0), (1, 2, 5, 3))
    half = [x.half().numpy() for x in (q, k, v)]
    np.testing.assert_allclose(simdattn.scaled_dot_product_attention(*half, scale=0.5),
                               v.half().float().mean(-2, keepdim=True).expand(1, 2, 4, 3), rtol=0, atol=2e-3)


def test_tensors_without_numbers():
    q, k, v = (x.to('meta') for x in tensors((2, 6, 5, 16), (2, 2, 9, 16), (2, 2, 9, 24)))
    found = simdattn.torch.sdpa(q, k, v, enable_gqa=True)
    assert found.is_meta and found.shape == (2, 6, 5, 24) and found.dtype == q.dtype
    refused(Code.SHAPE, 'enable_gqa', lambda: simdattn.torch.sdpa(q[:, :5], k, v, enable_gqa=True))


# ---- What replace_sdpa does not reach --------------------------------------------------------------------------------


def test_functions_that_were_imported_by_name(monkeypatch):
    name = 'scaled_dot_product_attention' if HAS_SDPA else '_scaled_dot_product_attention'
    model = types.ModuleType('a_model')
    setattr(model, name, getattr(functional, name))
    monkeypatch.setitem(sys.modules, 'a_model', model)
    with pytest.warns(UserWarning, match='does not reach a_model: imported by name') as caught:
        with simdattn.torch.replace_sdpa():
            pass
    assert caught[0].filename == __file__
    monkeypatch.delitem(sys.modules, 'a_model')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        with simdattn.torch.replace_sdpa():
            pass


def test_the_fast_path():
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
    x, = tensors((2, 7, 32))
    with torch.no_grad(), simdattn.torch.replace_sdpa():
        with pytest.warns(UserWarning, match='does not reach the fast path of MultiheadAttention and TransformerEncoderLayer'):
            fast = layer(x)
    original = torch._transformer_encoder_layer_fwd
    with torch.no_grad():
        torch.testing.assert_close(fast, layer(x))
    assert torch._transformer_encoder_layer_fwd is original
    if hasattr(torch.backends, 'mha'):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with torch.no_grad(), simdattn.torch.replace_sdpa(), warnings.catch_warnings():
                warnings.simplefilter('error')
                torch.testing.assert_close(layer(x), fast, rtol=0, atol=1e-5)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
