"""flash_attn by its names: modules that models import, sentences with the caller's words, ends of sequences with slopes
of their own."""
import subprocess
import sys

import pytest
import torch
from test_arrays import refused

import simdattn
import simdattn.flash_attn as flash
from simdattn._abi import Code


def tensors(*shapes):
    torch.manual_seed(3)
    return [torch.randn(s) for s in shapes]


def test_ends_with_slopes_of_every_sequence():
    q, k = tensors((7, 2, 16), (9, 2, 16))
    good_q, good_k = [0, 3, 7], [0, 4, 9]
    for slopes in (None, torch.rand(2), torch.rand(2, 2)):
        for cu_q, cu_k, name in (([1, 3, 7], good_k, 'cu_seqlens_q'), ([0, 8, 7], good_k, 'cu_seqlens_q'), ([0, 3, 8], good_k, 'cu_seqlens_q'),
                                 (good_q, [0, 4, 10], 'cu_seqlens_k'), (good_q, [0, 5, 4], 'cu_seqlens_k'), (good_q, [-1, 4, 9], 'cu_seqlens_k')):
            ends = [torch.tensor(x, dtype=torch.int32) for x in (cu_q, cu_k)]
            with pytest.raises(simdattn.Error, match=f'^{name}'):
                flash.flash_attn_varlen_func(q, k, k, *ends, 4, 5, alibi_slopes=slopes)


def test_sentences_have_the_words_of_the_caller():
    q, cache = tensors((1, 3, 2, 16), (1, 8, 2, 16))
    refused(Code.RANGE, 'softmax_scale', lambda: flash.flash_attn_func(q, q, q, softmax_scale=float('nan')))
    refused(Code.DTYPE, 'k_cache', lambda: flash.flash_attn_with_kvcache(q, cache.double(), cache, cache_seqlens=3))
    refused(Code.DTYPE, 'v_cache', lambda: flash.flash_attn_with_kvcache(q, cache, cache.double(), cache_seqlens=3))
    refused(Code.DTYPE, 'qkv', lambda: flash.flash_attn_qkvpacked_func(torch.ones(1, 3, 3, 2, 16, dtype=torch.float64)))
    refused(Code.SHAPE, 'kv', lambda: flash.flash_attn_kvpacked_func(q, torch.ones(1, 3, 2, 2, 8)))
    ends = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(simdattn.Error, match='^cu_seqlens: '):
        flash.flash_attn_varlen_qkvpacked_func(torch.ones(3, 3, 2, 16), ends, 9)


PROGRAM = '''
import torch, simdattn.flash_attn
assert simdattn.flash_attn.install(arithmetic='f32') and simdattn.flash_attn.install(arithmetic='bf16')
from flash_attn.bert_padding import IndexFirstAxis, IndexPutFirstAxis, index_first_axis, index_first_axis_residual
from flash_attn.flash_attn_interface import _flash_attn_forward, _flash_attn_varlen_forward
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_kv_, apply_rotary_emb_qkv_
from flash_attn import flash_attn_func

q = torch.randn(2, 5, 3, 16).bfloat16()
assert torch.equal(flash_attn_func(q, q, q), flash_attn_func(q, q, q, arithmetic='bf16'))
simdattn.flash_attn.install(arithmetic='f32')
assert torch.equal(flash_attn_func(q, q, q), flash_attn_func(q, q, q, arithmetic='f32'))
out, lse, _, _ = _flash_attn_forward(q, q, q, 0.0, 0.25, True, -1, -1, 0.0, None, False)
wanted, sums, _ = flash_attn_func(q, q, q, causal=True, return_attn_probs=True)
assert torch.equal(out, wanted) and torch.equal(lse, sums)
ends = torch.tensor([0, 5, 10], dtype=torch.int32)
rows = q.flatten(0, 1)
assert torch.equal(_flash_attn_varlen_forward(rows, rows, rows, ends, ends, 5, 5, 0.0, 0.25, True)[0].view_as(q), wanted)

x = torch.randn(2, 5, 3, 16)
rotary = RotaryEmbedding(16, base=100.0, interleaved=True)
angles = torch.arange(2, 7)[:, None] / 100.0 ** (torch.arange(8) / 8)
turned = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (8, 2))) * torch.polar(torch.ones(5, 8), angles)[:, None]).flatten(-2)
kv = torch.stack([x, x], 2)
found, kv_found = rotary(x.clone(), kv, seqlen_offset=2)
torch.testing.assert_close(found, turned, rtol=0, atol=1e-5)
torch.testing.assert_close(kv_found, torch.stack([turned, x], 2), rtol=0, atol=1e-5)
for qkv, options in ((torch.stack([x, x, x], 2), {}), (torch.cat([x, x, x], 2), {'num_heads_q': 3})):
    found = rotary(qkv.clone(), seqlen_offset=2, **options)
    torch.testing.assert_close(found.reshape(2, 5, 3, 3, 16), torch.stack([turned, turned, x], 2), rtol=0, atol=1e-5)
picked = torch.tensor([3, 0])
flat = x.flatten(0, 1)
assert torch.equal(IndexFirstAxis.apply(flat, picked), flat[picked]) and torch.equal(index_first_axis_residual(flat, picked)[1], flat)
assert torch.equal(IndexPutFirstAxis.apply(flat[picked], picked, 10)[picked], flat[picked])
try:
    import flash_attn.ops.rms_norm
except ModuleNotFoundError as e:
    assert e.name == 'flash_attn.ops' and 'a part of simdattn, which has of its modules flash_attn, ' in str(e), e
else:
    raise AssertionError('flash_attn.ops is there')
'''


def test_modules_that_models_import():
    subprocess.run([sys.executable, '-c', PROGRAM], check=True)


def test_a_definition_agrees():
    """The private function that others divide sequences by, beside the formula."""
    from simdattn._flash_inner import _flash_attn_forward
    q, k, v = tensors((1, 4, 2, 16), (1, 6, 2, 16), (1, 6, 2, 16))
    out = _flash_attn_forward(q, k, v, 0.0, 0.25, False, -1, -1, 0.0, None)[0]
    scores = torch.einsum('bihd,bjhd->bhij', q, k) * 0.25
    torch.testing.assert_close(out, torch.einsum('bhij,bjhd->bihd', scores.softmax(-1), v), rtol=0, atol=1e-5)
