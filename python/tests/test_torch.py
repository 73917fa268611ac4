"""simdattn.torch in the place of PyTorch's own function: the same numbers, and the same tokens from a small
transformer."""
import math

import numpy as np
import pytest
import reference
import torch
from conftest import TOLERANCE
from test_arrays import refused
from torch.nn import functional

import simdattn
import simdattn.torch
from simdattn._abi import Code


def theirs(q, k, v, attn_mask=None, is_causal=False, scale=None):
    """PyTorch's own, or its formula where this version has no such function."""
    if hasattr(functional, 'scaled_dot_product_attention') and scale is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal)
    return formula(q, k, v, attn_mask, 0.0, is_causal, scale)


def formula(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """What the documentation of PyTorch 2 gives as the meaning."""
    t = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(t.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        t = t.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else t + attn_mask
    return torch.softmax(t, -1) @ v


def tensors(*shapes, dtype=torch.float32):
    torch.manual_seed(20)
    return [torch.randn(s).to(dtype) for s in shapes]


@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, TOLERANCE['f32']), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
def test_numbers(dtype, tolerance):
    q, k, v = tensors((2, 3, 5, 16), (2, 3, 9, 16), (2, 3, 9, 8), dtype=dtype)
    wide = [x.float() for x in (q, k, v)]
    for options in ({}, {'is_causal': True}, {'attn_mask': torch.rand(5, 9) < 2}, {'attn_mask': torch.rand(2, 1, 5, 9)}, {'scale': 0.3}):
        out = simdattn.torch.sdpa(q, k, v, **options)
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), theirs(*wide, **options), rtol=0, atol=tolerance)


def test_tensors_are_read_and_written_in_place():
    q, k, v = tensors((1, 4, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype=torch.bfloat16)
    out = torch.full((1, 5, 4, 16), 7.0, dtype=torch.bfloat16).transpose(1, 2)
    assert simdattn.attention(q, k, v, out=out) is out
    bits = [x.view(torch.int16).numpy().view(np.uint16).view(simdattn.BF16) for x in (q, k, v)]
    assert out.contiguous().view(torch.int16).numpy().tobytes() == simdattn.attention(*bits).tobytes()
    new = simdattn.attention(q, k, v)
    assert isinstance(new, torch.Tensor) and new.dtype == torch.bfloat16 and torch.equal(new, out)


def test_mixtures_with_numpy():
    q, k, v = tensors((1, 4, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    out = simdattn.attention(q.numpy(), k, v)
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(out, reference.attention(q, k, v)[0], rtol=0, atol=TOLERANCE['f32'])
    cache = simdattn.KVCache(1, 2, 40, 16, dtype=torch.float32)
    cache.append(k, v)
    assert torch.equal(cache.attend(q, causal=False), torch.from_numpy(out))


def test_numbers_per_head_and_sequence():
    """Model parameters as they are: bfloat16, and with gradients where those are off."""
    q, k, v = tensors((2, 4, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    sinks = torch.nn.Parameter(torch.tensor([0.5, 1, -3, 9], dtype=torch.bfloat16))
    lengths = torch.tensor([9, 4])
    wanted = simdattn.attention(q, k, v, sinks=[0.5, 1, -3, 9], kv_length=[9, 4])
    with torch.no_grad():
        assert torch.equal(simdattn.attention(q, k, v, sinks=sinks, kv_length=lengths), wanted)
    refused(Code.RANGE, 'sinks: requires a gradient', lambda: simdattn.attention(q, k, v, sinks=sinks))


def test_last_dimension_of_any_stride():
    q, k, v = tensors((2, 3, 16, 5), (2, 3, 16, 9), (2, 3, 16, 9))
    q, k, v = (x.transpose(-1, -2) for x in (q, k, v))
    torch.testing.assert_close(simdattn.torch.sdpa(q, k, v), theirs(q, k, v), rtol=0, atol=TOLERANCE['f32'])


def test_grouped_heads():
    q, k, v = tensors((2, 6, 5, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    wide = [x.repeat_interleave(3, dim=1) for x in (k, v)]
    torch.testing.assert_close(simdattn.torch.sdpa(q, k, v, enable_gqa=True), theirs(q, *wide), rtol=0, atol=TOLERANCE['f32'])


def test_what_is_not_inference_is_refused():
    q, k, v = tensors((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    leaf = q.clone().requires_grad_()
    refused(Code.RANGE, 'query: requires a gradient', lambda: simdattn.torch.sdpa(leaf, k, v))
    refused(Code.RANGE, 'attn_mask: requires a gradient', lambda: simdattn.torch.sdpa(q, k, v, torch.zeros(5, 9, requires_grad=True)))
    with torch.no_grad():
        assert torch.equal(simdattn.torch.sdpa(leaf, k, v), simdattn.torch.sdpa(q, k, v))
    refused(Code.RANGE, 'dropout_p: is 0.5', lambda: simdattn.torch.sdpa(q, k, v, dropout_p=0.5))
    refused(Code.DTYPE, 'query: torch.float64 is not an element type', lambda: simdattn.torch.sdpa(q.double(), k, v))
    refused(Code.DTYPE, 'key: is on meta', lambda: simdattn.torch.sdpa(q, k.to('meta'), v))
    refused(Code.DTYPE, 'value: is on cpu, torch.sparse_coo', lambda: simdattn.torch.sdpa(q, k, v[0, 0].to_sparse()))
    refused(Code.RANGE, 'q: requires a gradient', lambda: simdattn.attention(leaf, k, v))
    # Its memory holds q, and a bit says that -q is meant.
    refused(Code.DTYPE, 'q: ', lambda: simdattn.attention(torch._neg_view(q), k, v))
    assert torch.equal(simdattn.torch.sdpa(torch._neg_view(q), k, v), simdattn.torch.sdpa(-q, k, v))


# ---- A small transformer, as people write one ------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
        self.up, self.down = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(functional, 'scaled_dot_product_attention'):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y, _ = functional._scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(torch.nn.Module):
    def __init__(self, vocabulary=101, dim=64, heads=4, layers=3, longest=64):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, dim), torch.nn.Embedding(longest, dim)
        self.blocks = torch.nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(dim), torch.nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def generate(model, tokens, n):
    with torch.inference_mode():
        for _ in range(n):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens


@pytest.mark.parametrize('version', ['of this PyTorch', 'of PyTorch 2'])
def test_a_transformer_says_the_same(version, monkeypatch):
    if version == 'of PyTorch 2' and not hasattr(functional, 'scaled_dot_product_attention'):
        monkeypatch.setattr(functional, 'scaled_dot_product_attention', formula, raising=False)
    torch.manual_seed(7)
    model = Transformer().eval()
    prompt = torch.randint(0, 101, (2, 9))
    wanted = generate(model, prompt, 40)
    name = 'scaled_dot_product_attention' if hasattr(functional, 'scaled_dot_product_attention') else '_scaled_dot_product_attention'
    original, calls = getattr(functional, name), []
    ours = simdattn.torch._sdpa
    try:
        simdattn.torch._sdpa = lambda *a, **o: (calls.append(1), ours(*a, **o))[1]
        with simdattn.torch.replace_sdpa():
            assert getattr(functional, name) is not original
            tokens = generate(model, prompt, 40)
    finally:
        simdattn.torch._sdpa = ours
    assert getattr(functional, name) is original
    assert len(calls) == 40 * 3
    assert torch.equal(tokens, wanted)
    assert len(set(wanted[0].tolist())) > 3  # words, not one word


def test_replacing_ends_with_an_error_too():
    name = 'scaled_dot_product_attention' if hasattr(functional, 'scaled_dot_product_attention') else '_scaled_dot_product_attention'
    original = getattr(functional, name)
    q, = tensors((1, 2, 5, 16))
    with pytest.raises(simdattn.Error, match='dropout_p'):
        with simdattn.torch.replace_sdpa():
            getattr(functional, name)(q, q, q, dropout_p=0.5)
    assert getattr(functional, name) is original


@pytest.mark.skipif(hasattr(functional, 'scaled_dot_product_attention'), reason='the older function is gone')
def test_weights_are_refused():
    q, = tensors((1, 2, 5, 16))
    with simdattn.torch.replace_sdpa():
        refused(Code.RANGE, 'need_attn_weights', lambda: functional._scaled_dot_product_attention(q, q, q, need_attn_weights=True))


def test_multihead_attention():
    """The module's own path through the function that was replaced."""
    torch.manual_seed(3)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True)  # in training mode it takes no short way
    for p in module.parameters():
        p.requires_grad_(False)
    x, = tensors((2, 7, 32))
    wanted, _ = module(x, x, x, need_weights=False)
    with simdattn.torch.replace_sdpa():
        found, _ = module(x, x, x, need_weights=False)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_the_log_sum_exp(dtype):
    for shapes in (((2, 4, 5, 16), (2, 4, 9, 16), (2, 4, 9, 24)), ((5, 16), (9, 16), (9, 24)), ((3, 2, 4, 5, 16), (3, 1, 4, 9, 16), (9, 24))):
        q, k, v = tensors(*shapes, dtype=dtype)
        for given in ({}, {'is_causal': True}, {'attn_mask': torch.rand(5, 9) < 0.8}):
            logits = q.double() @ k.double().transpose(-1, -2) / 4
            seen = torch.ones(5, 9, dtype=torch.bool).tril() if 'is_causal' in given else given.get('attn_mask', torch.ones(5, 9, dtype=torch.bool))
            wanted = torch.logsumexp(logits.masked_fill(~seen, -torch.inf), -1)
            for _ in range(4):  # the last ones by a remembered call
                out, lse = simdattn.torch.sdpa(q, k, v, return_lse=True, arithmetic='f32', **given)
                assert torch.equal(out, simdattn.torch.sdpa(q, k, v, arithmetic='f32', **given)) and lse.dtype == torch.float32
                torch.testing.assert_close(lse.double(), wanted.expand(lse.shape), rtol=0, atol=1e-5)
                again = simdattn.scaled_dot_product_attention(q, k, v, return_lse=True, **given)
                assert torch.equal(again[0], out) and torch.equal(again[1], lse)
