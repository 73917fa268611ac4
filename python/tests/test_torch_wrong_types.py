"""An argument of a type that makes no sense raises TypeError or Error, whichever function it is given to; never what
Python says of None."""
import importlib.util
import inspect

import numpy as np
import pytest
import torch
from test_torch_install import HAS

import simdattn
import simdattn.flash_attn
import simdattn.torch

MODULES = [simdattn, simdattn.torch, simdattn.flash_attn]
if importlib.util.find_spec('transformers') is not None:
    import simdattn.transformers

    MODULES.append(simdattn.transformers)

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
    yield 'replace_sdpa', ours.replace_sdpa, dict(target=None, threads=1, pool=None, arithmetic='auto')
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
    state = x(1, 2, 8, 8)
    yield 'index_scores', simdattn.index_scores, dict(q=q, k=k[:, :1], weights=x(1, 3, 2), scale=0.5, relu=True, combine='sum', causal=True, kv_length=[4])
    yield 'linear_attention', simdattn.linear_attention, dict(q=q, k=q, v=q, state=state, rule='gated_delta', decay=x(1, 2, 3, 1), beta=x(1, 2, 3, 1), scale=0.5)
    yield 'causal_conv', simdattn.causal_conv, dict(x=q[0], weight=x(3, 4), bias=x(3), silu=True, channels_last=False)
    yield 'to_bf16', simdattn.to_bf16, dict(x=np.ones(3))
    yield 'from_bf16', simdattn.from_bf16, dict(x=np.ones(3, np.uint16))
    yield 'flash_attn.install', flash.install, dict(arithmetic='auto')
    if len(MODULES) == 4:
        config = simdattn.transformers.transformers.LlamaConfig(num_hidden_layers=2)
        yield 'Cache', simdattn.transformers.Cache, dict(dtype='bf16', capacity=64, config=config, arithmetic='auto')
        yield 'register', simdattn.transformers.register, dict(arithmetic='auto')
        yield 'linear_layers', simdattn.transformers.linear_layers, dict(model=torch.nn.Linear(2, 2))
    yield 'rope_frequencies', simdattn.rope_frequencies, dict(pairs=4, rope_theta=1e4)
    yield 'flash_attn_with_kvcache', flash.flash_attn_with_kvcache, dict(
        q=rows, k_cache=x(1, 8, 2, 8), v_cache=x(1, 8, 2, 8), k=rows, v=rows, rotary_cos=x(8, 4), rotary_sin=x(8, 4), cache_seqlens=lengths, cache_batch_idx=None,
        cache_leftpad=None, block_table=None, softmax_scale=0.5, causal=True, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None,
        return_softmax_lse=False)


# Types of the library: what they hold is made by its functions.
TYPES = {'BF16', 'Calls', 'Code', 'Error', 'RopeTable', 'Store', 'Target', '__version__'}


def test_every_public_function_is_tried():
    tried = [function for _, function, _ in calls()]
    missing = [f'{module.__name__}.{name}' for module in MODULES for name in module.__all__
               if name not in TYPES and inspect.signature(getattr(module, name)).parameters and getattr(module, name) not in tried]
    assert missing == ([] if HAS else ['simdattn.torch.install'])


def arguments_of(function, good):
    """Those that the function has beside those of the good call, too."""
    known = inspect.signature(function).parameters.values()
    return dict.fromkeys([*good, *(x.name for x in known if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY))])


@pytest.mark.filterwarnings('ignore:replace_sdpa')
@pytest.mark.parametrize('name', [name for name, _, _ in calls()])
def test_wrong_types(name):
    _, function, good = next(call for call in calls() if call[0] == name)
    function(**good)
    simdattn.torch.uninstall()
    bad = []
    for argument in arguments_of(function, good):
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
    simdattn.flash_attn.uninstall()
    assert not bad, '\n'.join(['', *bad])
