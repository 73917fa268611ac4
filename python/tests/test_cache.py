"""KVCache: what goes in comes out, in every storage type, layout and kind of memory."""
import numpy as np
import pytest
import reference
from test_arrays import refused

import simdattn
from simdattn._abi import Code, KvLayout, KvType

LAYOUTS = [layout.name.lower() for layout in KvLayout]
# What a number of size 4 loses by being stored: half a unit in the last place; of 4-bit integers half of a 16th of the
# largest.
LOSS = {'f32': 0, 'bf16': 2**-7, 'f16': 2**-10, 'int8': 2**-6, 'fp8e4m3': 2**-3, 'fp8e5m2': 2**-2, 'q8_0': 2**-6, 'q4_0': 2**-2}
# Read, and never written: caches that others made.
READ_ONLY = {'q4_1', 'q5_0', 'q5_1', 'iq4_nl', 'iq4nl'}
TYPES = [t.name.lower() for t in KvType if t.name.lower() not in READ_ONLY]


def tokens(random, rows, batch=2, heads=2, dim=32):
    return [random.standard_normal((batch, heads, rows, dim)).astype(np.float32) for _ in range(2)]


def queries(random, rows, batch=2, heads=4, dim=32):
    return random.standard_normal((batch, heads, rows, dim)).astype(np.float32)


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('dtype', TYPES)
def test_every_type_and_layout(random, dtype, layout):
    cache = simdattn.KVCache(2, 2, 100, 32, dtype=dtype, layout=layout)
    k, v = tokens(random, 70)
    for first, last in [(0, 33), (33, 34), (34, 70)]:
        cache.append(k[:, :, first:last], v[:, :, first:last])
    assert cache.lengths.tolist() == [70, 70]
    q = queries(random, 5)
    wanted, _ = reference.attention(q, k, v, causal=True)
    tolerance = 2e-5 + 2 * LOSS[dtype]
    np.testing.assert_allclose(cache.attend(q), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize('dtype', TYPES)
def test_layouts_and_memory_have_the_same_bits(random, dtype):
    """Rows, panels, pages, and a ring that holds everything."""
    table = np.array([[5, 0, 3], [1, 4, 2]], np.int32)
    caches = [simdattn.KVCache(2, 2, 96, 32, dtype=dtype, **options) for options in (
        {'layout': 'rows'}, {'layout': 'panels'}, {'ring': 96},
        {'page_size': 32, 'n_pages': 6, 'block_table': table}, {'page_size': 32, 'n_pages': 6, 'block_table': table, 'layout': 'rows'})]
    k, v = tokens(random, 80)
    q = queries(random, 3)
    results = []
    for cache in caches:
        cache.append(k, v, counts=[80, 41])
        assert cache.lengths.tolist() == [80, 41]
        results.append(cache.attend(q).tobytes())
    assert len(set(results)) == 1


def test_a_ring_keeps_the_last_tokens(random):
    cache = simdattn.KVCache(2, 2, 500, 32, dtype='f32', ring=64)
    k, v = tokens(random, 200)
    for first in range(0, 200, 40):
        cache.append(k[:, :, first:first + 40], v[:, :, first:first + 40])
    q = queries(random, 1)
    wanted, _ = reference.attention(q, k, v, causal=True, window_left=63)
    np.testing.assert_allclose(cache.attend(q, window_left=63), wanted, rtol=0, atol=2e-5)
    assert cache.nbytes == 2 * 2 * 2 * 64 * 32 * 4


def test_value_type_and_dim(random):
    cache = simdattn.KVCache(1, 2, 40, 32, value_dim=24, dtype='f32', value_dtype='f16')
    k = random.standard_normal((1, 2, 9, 32)).astype(np.float32)
    v = random.standard_normal((1, 2, 9, 24)).astype(np.float32)
    cache.append(k, v)
    q = queries(random, 2, batch=1)
    np.testing.assert_allclose(cache.attend(q), reference.attention(q, k, v, causal=True)[0], rtol=0, atol=4e-3)
    assert 'dtype=\'f32\'' in repr(cache) and cache.capacity == 40


@pytest.mark.parametrize('pairing', ['half_split', 'interleaved'])
def test_keys_are_rotated_by_their_positions(random, pairing):
    table = simdattn.rope_table(100, 32)
    angles = np.arange(100)[:, None] * 10000.0 ** (-np.arange(16) / 16)
    cache = simdattn.KVCache(2, 2, 100, 32, dtype='f32')
    k, v = tokens(random, 50)
    cache.append(k[:, :, :20], v[:, :, :20], rope=table, pairing=pairing)
    cache.append(k[:, :, 20:], v[:, :, 20:], rope=table, pairing=pairing)
    q = queries(random, 4)
    rotated = simdattn.rope(q, *table, start=46, pairing=pairing)
    wanted, _ = reference.attention(reference.rope(q, angles[None, 46:50], pairing), reference.rope(k, angles[None, :50], pairing),
                                    v, causal=True)
    np.testing.assert_allclose(cache.attend(rotated), wanted, rtol=0, atol=3e-5)


def test_shift_and_forget(random):
    table = simdattn.rope_table(100, 32)
    k, v = tokens(random, 60)
    cache, other = (simdattn.KVCache(2, 2, 100, 32, dtype='f32') for _ in range(2))
    cache.append(k, v, rope=table)
    cache.shift(20, 60, -20, rope=table)
    cache.lengths -= 20
    other.append(k[:, :, 20:], v[:, :, 20:], rope=table)
    q = queries(random, 1)
    np.testing.assert_allclose(cache.attend(q), other.attend(q), rtol=0, atol=2e-5)
    # The newest tokens are forgotten by their number alone.
    cache.lengths -= 10
    other.lengths -= 10
    np.testing.assert_allclose(cache.attend(q), other.attend(q), rtol=0, atol=2e-5)


def test_a_plan_holds_for_its_lengths(random):
    cache = simdattn.KVCache(2, 2, 100, 32)
    k, v = tokens(random, 20)
    cache.append(k, v)
    q = queries(random, 1)
    plan = cache.plan(q)
    first = plan.run().copy()
    assert first.tobytes() == cache.attend(q).tobytes()
    cache.append(k, v)
    assert plan.run().tobytes() == first.tobytes()
    assert cache.attend(q).tobytes() != first.tobytes()


def test_bad_calls_change_nothing(random):
    for options in ({}, {'ring': 32}):
        cache = simdattn.KVCache(2, 2, 40, 32, dtype='f32', **options)
        k, v = tokens(random, 30)
        cache.append(k, v)
        state = (cache.keys.memory[0], cache.values.memory[0], cache.lengths)
        refused(Code.RANGE, 'k: has 30 rows for sequence 0, which has 30 of 40 tokens already', lambda: cache.append(k, v), *state)
        refused(Code.SHAPE, r'v: has shape \(2, 2, 2, 32\); \(2, 2, 3, 32\) is wanted',
                lambda: cache.append(k[:, :, :3], v[:, :, :2]), *state)
        refused(Code.SHAPE, r'v: has shape \(2, 2, 3, 31\)', lambda: cache.append(k[:, :, :3], v[:, :, :3, :31]), *state)
        refused(Code.SHAPE, r'k: has shape \(2, 2, 3, 31\)', lambda: cache.append(k[:, :, :3, :31], v[:, :, :3]), *state)
        refused(Code.DTYPE, 'v', lambda: cache.append(k[:, :, :3], v[:, :, :3].astype(np.int32)), *state)
        refused(Code.SHAPE, 'counts', lambda: cache.append(k[:, :, :3], v[:, :, :3], counts=[3]), *state)
        refused(Code.RANGE, r'counts: is \[3, 4\]; 0 .. 3 is wanted', lambda: cache.append(k[:, :, :3], v[:, :, :3], counts=[3, 4]), *state)
        refused(Code.RANGE, 'rope: has 31 positions; the tokens of sequence 0 stand at 30 .. 32',
                lambda: cache.append(k[:, :, :3], v[:, :, :3], rope=simdattn.rope_table(31, 32)), *state)
    refused(Code.RANGE, "dtype: there is no 'q1'; there are f32", lambda: simdattn.KVCache(1, 1, 8, 8, dtype='q1'))
    refused(Code.RANGE, "layout: there is no 'columns'", lambda: simdattn.KVCache(1, 1, 8, 8, layout='columns'))
    refused(Code.RANGE, 'kv_heads: 0 is not in 1', lambda: simdattn.KVCache(1, 0, 8, 8))
    refused(Code.SHAPE, r'block_table: an int32 array of shape \(2, 3\)',
            lambda: simdattn.KVCache(2, 1, 96, 8, page_size=32, n_pages=4, block_table=np.zeros((2, 2), np.int32)))
    with pytest.raises(TypeError, match='block_table'):
        simdattn.KVCache(2, 1, 96, 8, page_size=32, n_pages=4)


@pytest.mark.parametrize('name', ['f32', 'bf16', 'q8_0'])
def test_read(random, name):
    x = random.standard_normal((2, 3, 50, 32), dtype=np.float32)
    cache = simdattn.KVCache(2, 3, 64, 32, dtype=name)
    cache.append(x, -x, counts=[50, 7])
    keys, values = cache.read()
    assert keys.shape == values.shape == (2, 3, 50, 32) and keys.dtype == np.float32
    tolerance = {'f32': 0, 'bf16': 2.0**-7, 'q8_0': 0.05}[name]
    for b, n in ((0, 50), (1, 7)):
        np.testing.assert_allclose(keys[b, :, :n], x[b, :, :n], rtol=0, atol=tolerance)
        np.testing.assert_allclose(values[b, :, :n], -x[b, :, :n], rtol=0, atol=tolerance)
    assert np.array_equal(cache.read(48)[0][0], keys[0, :, 48:]) and simdattn.KVCache(2, 3, 64, 32).read()[0].shape == (2, 3, 0, 32)
    refused(Code.RANGE, 'first: 51 is not in 0 .. 50', lambda: cache.read(51))
