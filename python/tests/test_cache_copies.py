"""KVCache: its lengths are checked, its views end at what was written, and copies stand alone."""
import copy
import pickle
import re

import numpy as np
import pytest
from test_arrays import refused
from test_cache import TYPES, queries, tokens

import simdattn
from simdattn._abi import Code

KINDS = {'panels': {}, 'rows': {'layout': 'rows'}, 'ring': {'ring': 64},
         'pages': {'page_size': 32, 'n_pages': 8, 'block_table': np.array([[5, 0, 3, 7], [1, 4, 2, 6]], np.int32)}}


def filled(random, rows=50, counts=None, **options):
    cache = simdattn.KVCache(2, 2, 100, 32, **{'dtype': 'f32', **options})
    k, v = tokens(random, rows)
    cache.append(k, v, counts=counts)
    return cache, k, v


def test_lengths_are_checked(random):
    cache, k, v = filled(random)
    q = queries(random, 1)
    wanted = simdattn.attention(q, k[:, :, :30], v[:, :, :30]).tobytes()
    for given in (np.array([30, 30]), [30, 30], np.array([30, 7, 30, 7], np.int32)[::2], np.array([30, 30], np.uint8)):
        cache.lengths = given
        assert cache.lengths.tolist() == [30, 30] and cache.attend(q, causal=False).tobytes() == wanted
    given = np.array([30, 30], np.int32)
    cache.lengths = given
    given[:] = 99  # copied
    cache.lengths -= 3
    assert cache.lengths.dtype == np.int32 and cache.lengths.tolist() == [27, 27]
    cache.lengths += [0, 3]

    def assign(value):
        cache.lengths = value

    for code, match, value in ((Code.SHAPE, r'lengths: has shape \(1,\); 2 numbers', [3]),
                               (Code.RANGE, r'lengths: is \[101, 0\]; 0 .. 100', [101, 0]),
                               (Code.RANGE, r'lengths: is \[-1, 0\]', [-1, 0]), (Code.RANGE, 'lengths: holds what is no int32', [2**32, 0]),
                               (Code.RANGE, 'lengths: holds what is no int32', [0.5, 0]),
                               (Code.RANGE, r'lengths: is \[-3, 0\]', cache.lengths - 30)):
        refused(code, match, lambda value=value: assign(value), cache._lengths)
    with pytest.raises(TypeError, match='lengths: numbers are wanted'):
        cache.lengths = ['a', 'b']
    with pytest.raises(ValueError, match='read-only'):
        cache.lengths[0] = 2**20
    assert type(cache.lengths + 1) is np.ndarray
    with pytest.raises(simdattn.Error, match=r'lengths: is \[-73'):
        cache.lengths -= 100
    assert cache.lengths.tolist() == [27, 30]


def test_views_end_at_what_was_written(random):
    cache, k, v = filled(random, counts=[50, 21])
    cache.keys.memory[0].view(np.float32)[cache.keys.memory[0].view(np.float32) == 0] = np.nan  # what was never written
    q = queries(random, 3)
    wanted = simdattn.attention(q, k, v, causal=True, kv_length=[50, 21])
    assert simdattn.attention(q, cache.keys, cache.values, causal=True).tobytes() == wanted.tobytes()
    assert simdattn.Plan(q, cache.keys, cache.values, causal=True).run().tobytes() == wanted.tobytes()
    shorter = simdattn.attention(q, cache.keys, cache.values, kv_length=[9, 21])
    assert shorter.tobytes() == simdattn.attention(q, k, v, kv_length=[9, 21]).tobytes()
    refused(Code.RANGE, r'kv_length: is \[50, 22\]; the cache has \[50, 21\] tokens',
            lambda: simdattn.attention(q, cache.keys, cache.values, kv_length=[50, 22]))
    refused(Code.RANGE, 'kv_length: is', lambda: cache.attend(q, kv_length=[51, 0]))
    one = simdattn.KVCache(1, 2, 100, 32, dtype='f32', layout='rows')
    one.append(k[:1], v[:1])
    refused(Code.RANGE, 'cu_k: ends at token 100; the cache has 50',
            lambda: simdattn.attention(q[:1], one.keys, one.values, cu_q=[0, 1, 3], cu_k=[0, 40, 100]))


@pytest.mark.parametrize('sizes', [(1, 2**11, 2**30, 2**23), (2**30, 2**30, 64, 64), (1, 1, 2**31 - 1, 2**31 - 1)])
def test_sizes_that_overflow(sizes):
    with pytest.raises((simdattn.Error, MemoryError)) as caught:
        simdattn.KVCache(*sizes)
    if isinstance(caught.value, simdattn.Error):
        assert re.search('more than there can be memory for|must be in', caught.value.detail)
    refused(Code.RANGE, 'more than there can be memory for', lambda: simdattn.KVCache(1, 2**11, 2**30, 2**23))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('made', [simdattn.KVCache.clone, copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_stand_alone(random, kind, made):
    cache, k, v = filled(random, counts=[50, 21], dtype='int8', **KINDS[kind])
    q = queries(random, 1)
    before = cache.attend(q).tobytes()
    other = made(cache)
    assert repr(other) == repr(cache) and other.nbytes == cache.nbytes
    cache.append(-k, -v)
    assert other.lengths.tolist() == [50, 21] and other.attend(q).tobytes() == before
    other.append(-k, -v)
    assert other.attend(q).tobytes() == cache.attend(q).tobytes() != before


@pytest.mark.parametrize('dtype', TYPES)
def test_beams(random, dtype):
    """fork and reorder give what appending the same tokens to the sequences would have given."""
    cache, k, v = filled(random, counts=[50, 21], dtype=dtype)
    source = [0, 0, 0, 1, 1, 1]
    wide = simdattn.KVCache(6, 2, 100, 32, dtype=dtype)
    wide.append(k[source], v[source], counts=[50, 50, 50, 21, 21, 21])
    q = queries(random, 1, batch=6)
    beams = cache.fork(3)
    assert beams.attend(q).tobytes() == wide.attend(q).tobytes()
    k2, v2 = tokens(random, 1, batch=6)
    order = [2, 0, 0, 5, 4, 3]
    beams.append(k2, v2)
    beams.reorder(order)
    wide.append(k2, v2)
    lengths = wide.lengths[order]
    other = simdattn.KVCache(6, 2, 100, 32, dtype=dtype)
    other.append(k[source][order], v[source][order], counts=lengths - 1)
    other.append(k2[order], v2[order])
    assert beams.lengths.tolist() == lengths.tolist() == [51, 51, 51, 22, 22, 22]
    assert beams.attend(q).tobytes() == other.attend(q).tobytes()


def test_bad_beams(random):
    cache, *_ = filled(random)
    refused(Code.RANGE, r'indices: is \[0, 2\]; 0 .. 1 is wanted', lambda: cache.reorder([0, 2]), cache._lengths)
    refused(Code.SHAPE, r'indices: has shape \(3,\)', lambda: cache.reorder([0, 1, 1]))
    refused(Code.RANGE, 'n: 0 is not in', lambda: cache.fork(0))
    paged, *_ = filled(random, **KINDS['pages'])
    for call in (lambda: paged.fork(2), lambda: paged.reorder([1, 0])):
        refused(Code.RANGE, 'sequences of this cache share pages; change the block table', call, *paged.keys.memory)


def test_reset_and_len(random):
    cache, *_ = filled(random, counts=[50, 21])
    assert len(cache) == 50
    cache.reset([0])
    assert cache.lengths.tolist() == [0, 21] and len(cache) == 21
    with pytest.raises(simdattn.Error, match='sequences: 2 is not in 0 .. 1'):
        cache.reset([2])
    cache.reset()
    assert len(cache) == 0 and cache


def test_what_a_cache_says(random):
    cache, *_ = filled(random, counts=[50, 21])
    assert repr(cache) == "KVCache(batch=2, kv_heads=2, capacity=100, head_dim=32, dtype='f32', layout='panels', lengths=[50, 21])"
    assert repr(cache.values) == "Store(shape=(2, 2, 100, 32), dtype='f32', layout='rows', lengths=[50, 21])"
    plan = cache.plan(queries(random, 1))
    assert repr(plan) == 'Plan(q=(2, 4, 1, 32), k=(2, 2, 100, 32), v=(2, 2, 100, 32), tasks=4, reduce_tasks=0)'
    for x in (plan, cache.keys):
        for copied in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match='a Plan holds the addresses|a Store is a view of its KVCache'):
                copied(x)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('dtype', ['f32', 'int8', 'q8_0'])
def test_a_pickle_holds_what_was_written(random, kind, dtype):
    options = dict(KINDS[kind], dtype=dtype, capacity=128)
    if kind == 'ring':
        options['ring'] = 4096
        options['capacity'] = 8192
    elif kind != 'pages':
        options['capacity'] = 8192
    cache = simdattn.KVCache(2, 2, head_dim=32, **options)
    assert len(pickle.dumps(cache)) < 4000 < cache.nbytes
    k, v = tokens(random, 41)
    cache.append(k, v, counts=[41, 7])
    text = pickle.dumps(cache)
    assert len(text) < (0.02 if kind != 'pages' else 0.9) * cache.nbytes
    q = queries(random, 1)
    again = pickle.loads(text)
    assert again.attend(q).tobytes() == cache.attend(q).tobytes()
    for x in (cache, again):
        x.append(k[:, :, :9], v[:, :, :9])
    assert again.attend(q).tobytes() == cache.attend(q).tobytes()


@pytest.mark.parametrize('sizes, words', [
    (dict(head_dim=16, dtype='q8_0'), 'head_dim: must be a multiple of 32, the block of the type; head_dim is 16'),
    (dict(head_dim=80, dtype='q4_0'), 'head_dim: must be a multiple of 32, the block of the type; head_dim is 80'),
    (dict(head_dim=32, value_dim=40, value_dtype='q8_0'), 'value_dim: must be a multiple of 32, .*; value_dim is 40'),
    (dict(head_dim=16, ring=33), 'ring: .* for panels a multiple of 32; ring is 33'),
    (dict(head_dim=16, page_size=33, n_pages=4, block_table=np.zeros((1, 2), np.int32)), 'page_size.*; page_size is 33'),
    (dict(head_dim=16, ring=32, page_size=32, n_pages=4, block_table=np.zeros((1, 2), np.int32)), '.*pages and a ring exclude'),
    (dict(head_dim=9000, dtype='int8'), 'head_dim: .* at most 8192 numbers a row; head_dim is 9000'),
    (dict(head_dim=32, dtype='q4_1'), 'dtype: can be read only'),
    (dict(head_dim=16, block_table=np.zeros((1, 2), np.int32)), 'block_table: is of pages; page_size'),
    (dict(head_dim=16, n_pages=4), 'n_pages: is of pages; page_size'),
])
def test_what_no_token_could_be_appended_to(sizes, words):
    with pytest.raises(simdattn.Error, match='^' + words):
        simdattn.KVCache(1, 1, 64, **sizes)


def test_a_batch_that_is_not_the_cache_s(random):
    cache, *_ = filled(random)
    q = queries(random, 1, batch=3)
    for options in ({}, {'kv_length': [1, 2, 3]}):
        refused(Code.SHAPE, '^q: has 3 sequences, the cache has 2', lambda options=options: cache.attend(q, **options))


def test_a_store_is_no_tensor(random):
    cache, *_ = filled(random)
    with pytest.raises(AttributeError, match="a Store has no 'reshape': it is the memory of a KVCache and no tensor"):
        cache.keys.reshape(-1)
    with pytest.raises(TypeError, match='Store is no array'):
        simdattn.softmax(cache.keys)
