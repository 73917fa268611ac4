"""An argument of a type that makes no sense raises TypeError or Error, whichever function it is given to; never what
Python says of None."""
import numpy as np
import pytest
import torch
from test_torch_install import HAS

import simdattn
import simdattn.flash_attn
import simdattn.torch

WRONG = [object(), 'word', 2.5, [1, 'two'], {}, np.array(['a', 'b'])]


def x(*shape):
    return torch.ones(shape)


def calls():
    """A good call of every function: name, function, arguments."""
    q, k, rows = x(1, 2, 3, 8), x(1, 2, 5, 8), x(1, 3, 2, 8)
    ends, lengths = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    table, cache = simdattn.rope_table(16, 8), simdattn.KVCache(1, 2, 8, 8)
    cos, sin = map(torch.from_numpy, table)
    flash, ours = simdattn.flash_attn, simdattn.torch
    yield 'attention', simdattn.attention, dict(q=q, k=k, v=k, causal=True, softcap=2.0, window_left=3, offset=1, kv_length=[4], bias=x(3, 5), threads=1,
                                                arithmetic='f32', target=None, alibi_slopes=x(2), sinks=x(2), return_lse=False, chunk=4)
    yield 'Plan', simdattn.Plan, dict(q=q, k=k, v=k, causal=True)
    yield 'KVCache', simdattn.KVCache, dict(batch=1, kv_heads=2, capacity=8, head_dim=8, dtype='f32')
    yield 'TensorCache', simdattn.TensorCache, dict(keys=k.clone(), values=k.clone(), lengths=[1])
    yield 'append', cache.append, dict(k=q[:, :, :1], v=q[:, :, :1], rope=table)
    yield 'attend', cache.attend, dict(q=q[:, :, :1], causal=True, threads=1)
    yield 'rope', simdattn.rope, dict(x=q, cos=table[0], sin=table[1], positions=[[0, 1, 2]], pairing='half_split', inverse=False, first_dim=0)
    yield 'rope_table', simdattn.rope_table, dict(positions=4, dim=8, first=0, rope_theta=1e4)
    yield 'softmax', simdattn.softmax, dict(x=q, causal=True)
    yield 'scaled_dot_product_attention', simdattn.scaled_dot_product_attention, dict(query=q, key=k, value=k, attn_mask=None, dropout_p=0.0, is_causal=True,
                                                                                     scale=0.5, enable_gqa=False, threads=1)
    yield 'top_k', simdattn.top_k, dict(scores=x(1, 1, 3, 5), k=2)
    yield 'sdpa', ours.sdpa, dict(query=q, key=k, value=k, attn_mask=None, dropout_p=0.0, is_causal=True, scale=0.5, enable_gqa=False, threads=1, return_lse=False,
                                  arithmetic='auto', target=None)
    yield 'torch.attention', ours.attention, dict(q=q, k=k, v=k, causal=True, return_lse=False, softcap=2.0, window_left=3, kv_length=[4], bias=x(3, 5),
                                                  arithmetic='f32')
    yield 'torch.attend', ours.attend, dict(cache=cache, q=q[:, :, :1], causal=True, return_lse=False)
    yield 'torch.append', ours.append, dict(cache=cache, k=q[:, :, :1], v=q[:, :, :1], rope=(cos, sin), pairing='half_split', first_dim=0)
    yield 'torch.rope', ours.rope, dict(x=q, cos=cos, sin=sin, positions=None, start=0, pairing='half_split', inverse=False, first_dim=0)
    if HAS:
        yield 'install', ours.install, dict(target=None, threads=None, arithmetic='auto', always=False)
    usual = dict(dropout_p=0.0, softmax_scale=0.5, causal=True, window_size=(-1, -1), softcap=0.0, alibi_slopes=None)
    yield 'flash_attn_func', flash.flash_attn_func, dict(q=rows, k=rows, v=rows, return_attn_probs=False, arithmetic='f32', **usual)
    yield 'flash_attn_qkvpacked_func', flash.flash_attn_qkvpacked_func, dict(qkv=x(1, 3, 3, 2, 8), **usual)
    yield 'flash_attn_kvpacked_func', flash.flash_attn_kvpacked_func, dict(q=rows, kv=x(1, 3, 2, 2, 8), **usual)
    yield 'flash_attn_varlen_func', flash.flash_attn_varlen_func, dict(q=rows[0], k=rows[0], v=rows[0], cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=3,
                                                                      max_seqlen_k=3, block_table=None, **usual)
    yield 'flash_attn_varlen_qkvpacked_func', flash.flash_attn_varlen_qkvpacked_func, dict(
        qkv=x(3, 3, 2, 8), cu_seqlens=ends, max_seqlen=3, **usual)
    yield 'flash_attn_varlen_kvpacked_func', flash.flash_attn_varlen_kvpacked_func, dict(
        q=rows[0], kv=x(3, 2, 2, 8), cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=3, max_seqlen_k=3, **usual)
    yield 'scores', simdattn.scores, dict(q=q, k=k, scale=0.5, arithmetic='f32', target=None)
    yield 'weighted_values', simdattn.weighted_values, dict(p=x(1, 2, 3, 5), v=k, dtype='f32', arithmetic='f32', target=None)
    yield 'attention_merge', simdattn.attention_merge, dict(parts=[q, q], part_lse=[x(1, 2, 3), x(1, 2, 3)], sinks=x(2), return_lse=False, target=None)
    yield 'rope_frequencies', simdattn.rope_frequencies, dict(pairs=4, rope_theta=1e4)
    yield 'flash_attn_with_kvcache', flash.flash_attn_with_kvcache, dict(
        q=rows, k_cache=x(1, 8, 2, 8), v_cache=x(1, 8, 2, 8), k=rows, v=rows, rotary_cos=x(8, 4), rotary_sin=x(8, 4), cache_seqlens=lengths, cache_batch_idx=None,
        cache_leftpad=None, block_table=None, softmax_scale=0.5, causal=True, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None,
        return_softmax_lse=False)


@pytest.mark.parametrize('name', [name for name, _, _ in calls()])
def test_wrong_types(name):
    _, function, good = next(call for call in calls() if call[0] == name)
    function(**good)
    simdattn.torch.uninstall()
    bad = []
    for argument in good:
        for wrong in WRONG:
            _, function, again = next(call for call in calls() if call[0] == name)
            try:
                function(**{**again, argument: wrong})
            except (TypeError, simdattn.Error) as e:
                if argument not in str(e):
                    bad.append(f'{argument}={wrong!r}: {type(e).__name__}: {e}, which does not name it')
            except Exception as e:
                bad.append(f'{argument}={wrong!r}: {type(e).__name__}: {str(e).splitlines()[0]}')
    simdattn.torch.uninstall()
    assert not bad, '\n'.join(['', *bad])
