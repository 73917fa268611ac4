"""The shapes of flash-attn 2's own tests (tests/test_flash_attn.py) against the definition: some, drawn from all of
them.

Every size, and more of them by SIMDATTN_TEST_EFFORT: with 1 ten times as many as with 0.1, the default, and the
longest, of up to 131072 tokens.
"""
import itertools
import os
import random

import pytest
import torch
from flash_reference import CacheCall, close, definition, of_sequence

import simdattn.flash_attn as flash

EFFORT = float(os.environ.get('SIMDATTN_TEST_EFFORT', '0.1'))
HALVES, HEADS = (torch.float16, torch.bfloat16), 6
KV_HEADS = {'mha': 6, 'mqa': 1, 'gqa': 3}
DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
SIZES = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (1024, 1024), (1023, 1024), (1, 239),
         (3, 799), (127, 512), (127, 513))
CACHES = ((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (128, 128))
LONG = ((1024, 1023), (2048, 2048))
LONG_CACHES = ((16, 20000), (1, 128 * 1024), (16, 128 * 1024))


def drawn(count, *options):
    """That many of the product, with every size at least once: what has few values is drawn alone, so that flags are
    not coupled."""
    choose = random.Random(11)
    shuffled = [choose.sample(values, len(values)) for values in options]
    count = max(count, *map(len, options))
    return [
        tuple(values[i % len(values)] if len(values) > 4 else choose.choice(values) for values in shuffled)
        for i in range(count)
    ]


FLAGS = (False, True)
DENSE = drawn(round(120 * EFFORT), SIZES + (LONG if EFFORT >= 1 else ()), DIMS, tuple(KV_HEADS), HALVES, FLAGS, FLAGS,
              FLAGS, (0.0, 50.0))
CACHED = drawn(round(120 * EFFORT), CACHES + (LONG_CACHES if EFFORT >= 1 else ()), (32, 59, 64, 80, 128, 256),
               tuple(KV_HEADS), HALVES, ('rows', 'index', 16, 256), FLAGS, FLAGS, FLAGS, FLAGS, FLAGS, (0, 0.5, 1))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def name(case):
    return '-'.join(str(x).replace('torch.', '') for x in case)


@pytest.mark.parametrize('case', DENSE, ids=name)
def test_sequences(case):
    """flash_attn_func, and flash_attn_varlen_func on sequences that are shorter by some."""
    (rows, tokens), dim, mha_type, dtype, causal, local, alibi, softcap = case
    q, k, v = (torch.randn(2, n, heads, dim).to(dtype)
               for n, heads in ((rows, HEADS), *[(tokens, KV_HEADS[mha_type])] * 2))
    window = tuple(torch.randint(0, tokens, (2, )).tolist()) if local else (-1, -1)
    slopes = torch.rand(2, HEADS) * 0.3 if alibi else None
    scoring = dict(causal=causal, softcap=softcap)
    out, lse, _ = flash.flash_attn_func(q,
                                        k,
                                        v,
                                        window_size=window,
                                        alibi_slopes=slopes,
                                        return_attn_probs=True,
                                        **scoring)
    for b in range(2):
        close(out[b], *_wanted(q[b], k[b], v[b], dtype, lse[b], window=window, slopes=of_sequence(slopes, b),
                               **scoring))
    lengths = [[n, n - min(n - 1, 17)] for n in (rows, tokens)]
    ends = [torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in lengths]
    flat = [torch.cat([x[b, :n[b]] for b in range(2)]) for x, n in zip((q, k, v), (lengths[0], lengths[1], lengths[1]))]
    packed = flash.flash_attn_varlen_func(*flat,
                                          *ends,
                                          rows,
                                          tokens,
                                          window_size=window,
                                          alibi_slopes=slopes,
                                          **scoring)
    assert torch.equal(packed[:rows], out[0])
    n, m = lengths[0][1], lengths[1][1]
    close(packed[rows:],
          definition(q[1, :n], k[1, :m], v[1, :m], window=window, slopes=of_sequence(slopes, 1), **scoring)[0], dtype)


def _wanted(q, k, v, dtype, lse, **scoring):
    wanted, wanted_lse = definition(q, k, v, **scoring)
    return wanted, dtype, lse, wanted_lse


@pytest.mark.parametrize('case', CACHED, ids=name)
def test_caches(case):
    """flash_attn_with_kvcache."""
    (rows, capacity), dim, mha_type, dtype, where, causal, local, alibi, fresh, left, rotary = case
    new = (rows if torch.rand(1) < 0.5 else int(torch.randint(1, rows + 1, (1, )))) if fresh else 0
    angles = int(dim * rotary) // 16 * 8 if fresh else 0  # theirs are of a multiple of 16 dimensions
    reach = rows if angles and (causal or local) else new  # the angles of q, too, are of the table
    lengths = torch.randint(0 if fresh else 1, capacity - reach + 1, (2, )).tolist()
    pads = [int(torch.randint(0, max(n, 1), (1, ))) for n in lengths] if left else None
    window = tuple(torch.randint(0, capacity, (2, )).tolist()) if local else (-1, -1)
    place, page = ('pages', where) if isinstance(where, int) else (where, 0)
    CacheCall(dtype, place, rows, HEADS, KV_HEADS[mha_type], dim, capacity, lengths, new, causal, window,
              torch.rand(2, HEADS) * 0.3 if alibi else None, angles,
              torch.rand(1).item() < 0.5, pads, page).compare()
