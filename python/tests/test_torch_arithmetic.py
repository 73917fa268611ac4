"""arithmetic= of everything that takes tensors: by default what the library chooses, else what it was asked for."""
import pytest
import torch
from test_torch import tensors
from torch.nn import functional

import simdattn
import simdattn.flash_attn
import simdattn.torch

ARITHMETICS = ['f32', 'bf16', 'int8']


def chosen(dtype):
    """What the page says of a default target, by its name."""
    name = simdattn.default_target()
    intel = 'GenuineIntel' in open('/proc/cpuinfo').read()
    fast = name == 'intrinsics/amx' or (name == 'intrinsics/avx512_bf16' and not intel)
    return 'bf16' if fast and dtype is torch.bfloat16 else 'f32'


def ways(q, k, v, **how):
    """The result of each integration, [batch, heads, rows, dim]."""
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    yield simdattn.torch.sdpa(q, k, v, is_causal=True, **how)
    if hasattr(functional, 'scaled_dot_product_attention'):  # PyTorch 2.0 and later
        with simdattn.torch.replace_sdpa(**how):
            yield functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    yield simdattn.flash_attn.flash_attn_func(*turned, causal=True, **how).transpose(1, 2)
    yield simdattn.flash_attn.flash_attn_kvpacked_func(turned[0], torch.stack(turned[1:], 2), causal=True, **how).transpose(1, 2)
    yield simdattn.flash_attn.flash_attn_qkvpacked_func(torch.stack(turned, 2), causal=True, **how).transpose(1, 2)
    rows, ends = [x[0] for x in turned], torch.tensor([0, q.shape[2]], dtype=torch.int32)
    yield simdattn.flash_attn.flash_attn_varlen_func(*rows, ends, ends, 1, 1, causal=True, **how)[None].transpose(1, 2)
    yield simdattn.flash_attn.flash_attn_varlen_qkvpacked_func(torch.stack(rows, 1), ends, 1, causal=True, **how)[None].transpose(1, 2)
    yield simdattn.flash_attn.flash_attn_varlen_kvpacked_func(rows[0], torch.stack(rows[1:], 1), ends, ends, 1, 1, causal=True,
                                                              **how)[None].transpose(1, 2)
    yield simdattn.flash_attn.flash_attn_with_kvcache(*turned, causal=True, **how).transpose(1, 2)
    if hasattr(torch.library, 'get_kernel'):
        simdattn.torch.install(always=True, **how)
        yield functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        simdattn.torch.uninstall()


@pytest.mark.parametrize('arithmetic', [*ARITHMETICS, None])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32])
def test_every_way_takes_it(arithmetic, dtype):
    q, k, v = tensors((1, 4, 40, 64), (1, 4, 40, 64), (1, 4, 40, 64), dtype=dtype)
    results = {kind: simdattn.attention(q, k, v, causal=True, arithmetic=kind) for kind in ARITHMETICS}
    assert len({x.float().sum().item() for x in results.values()}) == 3, 'the arithmetics have the same numbers'
    wanted = results[arithmetic or chosen(dtype)]
    for turn in range(4):  # calls that come again are made by the extension
        for i, found in enumerate(ways(q, k, v, **({} if arithmetic is None else {'arithmetic': arithmetic}))):
            assert torch.equal(found, wanted), (turn, i)


def test_stores_plans_and_operators_take_it():
    q, k, v = tensors((1, 4, 40, 64), (1, 4, 40, 64), (1, 4, 40, 64), dtype=torch.bfloat16)
    cache = simdattn.KVCache(1, 4, 64, 64, dtype='bf16')
    cache.append(k, v)
    for kind in [*ARITHMETICS, 'auto']:
        wanted = simdattn.attention(q, k, v, causal=True, arithmetic=chosen(torch.bfloat16) if kind == 'auto' else kind)
        assert torch.equal(cache.attend(q, arithmetic=kind), wanted)
        plan = simdattn.Plan(q, k, v, causal=True, arithmetic=kind)
        assert torch.equal(plan.run(), wanted)
        assert torch.equal(plan.bind(q, k, v, causal=True, arithmetic=kind).run(), wanted)
        assert torch.equal(simdattn.torch.attention(q, k, v, causal=True, arithmetic=kind), wanted)
        assert torch.equal(simdattn.torch.attend(cache, q, arithmetic=kind), wanted)
        assert torch.equal(simdattn.scaled_dot_product_attention(q, k, v, is_causal=True, arithmetic=kind), wanted)
    assert torch.equal(simdattn.attention(q, k, v), simdattn.attention(q, k, v, arithmetic='f32'))
    assert torch.equal(simdattn.attention(q, k, v, arithmetic='auto', target='scalar'), simdattn.attention(q, k, v))


def test_a_row_has_the_bits_of_the_prompt():
    q, k, v = tensors((1, 4, 40, 64), (1, 2, 40, 64), (1, 2, 40, 64), dtype=torch.bfloat16)
    prompt = simdattn.torch.sdpa(q, k, v, is_causal=True, enable_gqa=True)
    for n in (1, 2, 17, 40):
        row = simdattn.torch.sdpa(q[:, :, n - 1:n], k[:, :, :n], v[:, :, :n], enable_gqa=True)
        assert torch.equal(row, prompt[:, :, n - 1:n])


def test_an_unknown_arithmetic():
    q, = tensors((1, 1, 2, 16))
    for call in (lambda: simdattn.torch.sdpa(q, q, q, arithmetic='f64'), lambda: simdattn.attention(q, q, q, arithmetic='f64'),
                 lambda: simdattn.torch.attention(q, q, q, arithmetic='f64'), lambda: simdattn.torch.install(arithmetic='f64')):
        with pytest.raises(simdattn.Error, match="arithmetic: there is no 'f64'|get_kernel"):
            call()


def test_request_amx():
    amx = [t for t in simdattn.targets() if t.name == 'intrinsics/amx']
    if amx and amx[0].runnable:
        simdattn.request_amx()
    else:  # importing simdattn.torch has asked in silence
        with pytest.raises(simdattn.Error, match='request_amx: '):
            simdattn.request_amx()


def test_transformers():
    ours = pytest.importorskip('simdattn.transformers', reason='Transformers is not installed')
    q, k, v = tensors((1, 4, 40, 64), (1, 2, 40, 64), (1, 2, 40, 64), dtype=torch.bfloat16)

    class Module:
        is_causal = True

    def forward(**cache):
        keys, values = ours.Cache(**cache).update(k, v, 0) if cache else (k, v)
        return ours._forward(Module, q, keys, values, None, scaling=0.125)[0].transpose(1, 2)

    wanted = {kind: simdattn.attention(q, k, v, causal=True, arithmetic=kind) for kind in ARITHMETICS}
    wanted['auto'] = wanted[chosen(torch.bfloat16)]
    try:
        for kind in [*ARITHMETICS, 'auto']:
            ours.register(arithmetic=kind)
            assert torch.equal(forward(), wanted[kind]) and torch.equal(forward(capacity=64), wanted[kind])
            assert torch.equal(forward(arithmetic='int8'), wanted['int8']), 'that of the cache counts'
        with pytest.raises(simdattn.Error, match='arithmetic: there is no'):
            ours.register(arithmetic='f64')
    finally:
        ours.register()
