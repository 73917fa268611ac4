"""A cache over the caller's memory: the bits of a KVCache's, written in place."""
import copy
import pickle

import numpy as np
import pytest
from test_arrays import refused

import simdattn
from simdattn._abi import Code

BATCH, HEADS, CAPACITY, DIM, PAGE = 3, 2, 48, 32, 8


def rows(random, n, heads=HEADS):
    return random.standard_normal((BATCH, heads, n, DIM), dtype=np.float32)


def memory(kind, dtype):
    """Keys and values of a model's own layout or of pages, and the table."""
    shape = (BATCH, CAPACITY, HEADS, DIM) if kind == 'rows' else (20, PAGE, HEADS, DIM)
    keys, values = (np.full(shape, 7, dtype).transpose(0, 2, 1, 3) for _ in 'kv')
    table = None if kind == 'rows' else np.random.default_rng(1).permutation(20)[:18].astype(np.int32).reshape(3, 6)
    return keys, values, table


def token(keys, table, sequence, t):
    return keys[sequence, :, t] if table is None else keys[table[sequence, t // PAGE], :, t % PAGE]


@pytest.mark.parametrize('kind', ['rows', 'pages'])
@pytest.mark.parametrize('dtype, name', [(np.float32, 'f32'), (np.float16, 'f16')])
def test_as_a_cache_of_its_own(random, kind, dtype, name):
    keys, values, table = memory(kind, dtype)
    ours = simdattn.TensorCache(keys, values, block_table=table)
    theirs = simdattn.KVCache(BATCH, HEADS, CAPACITY, DIM, dtype=name)
    angles = simdattn.rope_table(CAPACITY, DIM)
    for n, counts in ((20, None), (1, None), (5, [5, 0, 3]), (1, None), (1, None),
                      (1, None)):  # from the third on by a remembered call
        k, v, q = rows(random, n), rows(random, n), rows(random, n, 4)
        before = list(ours.lengths)
        for cache in (ours, theirs):
            cache.append(k, v, rope=angles, counts=counts)
        assert list(ours.lengths) == list(theirs.lengths) and len(ours) == len(theirs)
        assert np.array_equal(ours.attend(q), theirs.attend(q))
        assert np.array_equal(ours.attend(q, window_left=5), theirs.attend(q, window_left=5))
        for b in range(BATCH):
            for i in range(n if counts is None else counts[b]):
                assert np.array_equal(token(values, table, b, before[b] + i), v[b, :, i].astype(dtype))
                turned = simdattn.rope(k[b:b + 1, :, i:i + 1], *angles, start=before[b] + i)
                assert np.array_equal(token(keys, table, b, before[b] + i), turned[0, :, 0].astype(dtype))
    written = int(ours.lengths.sum()) * HEADS * DIM
    assert (values != 7).sum() == written, 'nothing beside the new tokens is written'
    assert ours.nbytes == keys.nbytes + values.nbytes


def test_tokens_that_are_there_already(random):
    k, v, q = rows(random, 20), rows(random, 20), rows(random, 1, 4)
    cache = simdattn.TensorCache(k, v, lengths=[20, 7, 1])
    for b, n in enumerate((20, 7, 1)):
        assert np.array_equal(
            cache.attend(q)[b],
            simdattn.attention(q[b:b + 1], k[b:b + 1, :, :n], v[b:b + 1, :, :n])[0])
    cache.lengths = [3, 3, 3]
    assert np.array_equal(cache.attend(q), simdattn.attention(q, k[:, :, :3], v[:, :, :3]))
    assert repr(cache).startswith('TensorCache(batch=3, kv_heads=2, capacity=20, head_dim=32')


def test_a_table_that_changes(random):
    keys, values, table = memory('pages', np.float32)
    keys[:], values[:] = random.standard_normal(keys.shape), random.standard_normal(values.shape)
    cache, q = simdattn.TensorCache(keys, values, block_table=table, lengths=[16, 9, 2]), rows(random, 1, 4)
    table[:, 2:] = -1  # beyond the lengths: not read
    first = cache.attend(q)
    table[0, 0], table[0, 1] = table[0, 1], table[0, 0]
    second = cache.attend(q)  # without causality the order of pages means nothing
    np.testing.assert_allclose(first, second, atol=1e-5)
    table[1] = table[0]
    assert not np.array_equal(cache.attend(q)[1], second[1])


def test_what_is_refused(random):
    k, v = rows(random, 20), rows(random, 20)
    new = rows(random, 1)
    refused(Code.SHAPE, r'values: has shape \(3, 2, 19, 32\), keys \(3, 2, 20, 32\)',
            lambda: simdattn.TensorCache(k, v[:, :, :19]))
    refused(Code.SHAPE, 'keys: has 3 dimensions; 4 are wanted', lambda: simdattn.TensorCache(k[0], v[0]))
    refused(Code.DTYPE, 'keys: is int32; float32, bfloat16 or float16 is wanted',
            lambda: simdattn.TensorCache(k.astype(np.int32), v))
    refused(Code.STRIDE, 'values: the last dimension is not contiguous', lambda: simdattn.TensorCache(k, v[..., ::2]))
    refused(Code.SHAPE, r'block_table: is int64 of shape \(3, 2\); int32 \[batch, pages of a sequence\]',
            lambda: simdattn.TensorCache(k, v, block_table=np.zeros((3, 2), np.int64)))
    refused(Code.RANGE, r'lengths: is \[21, 0, 0\]; 0 .. 20 is wanted',
            lambda: simdattn.TensorCache(k, v, lengths=[21, 0, 0]))
    fixed = k.copy()
    fixed.flags.writeable = False
    refused(Code.OVERLAP, 'keys: is read-only', lambda: simdattn.TensorCache(fixed, v))
    full = simdattn.TensorCache(k, v, lengths=[20, 3, 3])
    refused(Code.RANGE, 'k: has 1 rows for sequence 0, which has 20 of 20 tokens already',
            lambda: full.append(new, new), k, v)
    paged = simdattn.TensorCache(k, v, block_table=np.array([[0], [9]], np.int32))
    refused(Code.RANGE, 'block_table', lambda: paged.append(new[:2], new[:2]), k, v)
    for copied in (full.clone, lambda: full.fork(2), lambda: full.select([0]), lambda: full.reorder([0, 1, 2]),
                   lambda: full.resized(30), lambda: pickle.dumps(full), lambda: copy.copy(full)):
        refused(Code.RANGE, 'this cache lies in tensors of the caller; copy those', copied)
