"""scores, weighted_values and attention_merge against their formulas in float64, and against fused attention."""
import numpy as np
import pytest
import reference
from conftest import F32, TOLERANCE, exact_targets
from test_arrays import refused

import simdattn
from simdattn._abi import Code

TYPES = {'f32': np.float32, 'f16': np.float16, 'bf16': None}


def stored(x, name):
    return simdattn.to_bf16(x) if name == 'bf16' else x.astype(TYPES[name])


def wide(x):
    return simdattn.from_bf16(x).astype(np.float64) if isinstance(x, simdattn.BF16) else np.asarray(x, np.float64)


def arrays(random, *shapes):
    return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize('name', TYPES)
def test_scores(random, name):
    q, k = (stored(x, name) for x in arrays(random, (2, 6, 5, 40), (2, 2, 70, 40)))
    wanted = np.einsum('bhid,bhjd->bhij', wide(q), wide(k).repeat(3, 1))
    for target in exact_targets():
        found = simdattn.scores(q, k, target=target)
        assert type(found) is np.ndarray and found.dtype == np.float32
        np.testing.assert_allclose(found, wanted / np.sqrt(40), rtol=0, atol=1e-5)
    out = np.empty((2, 6, 5, 70), np.float32)
    assert simdattn.scores(q, k, scale=0.5, out=out) is out
    np.testing.assert_allclose(out, wanted / 2, rtol=0, atol=3e-5)
    np.testing.assert_allclose(simdattn.scores(q, k, scale=1.0, arithmetic='bf16'), wanted, rtol=0, atol=0.3)


@pytest.mark.parametrize('name', TYPES)
def test_values(random, name):
    p, v = arrays(random, (2, 6, 5, 70), (2, 2, 70, 24))
    p, v = simdattn.softmax(p), stored(v, name)
    wanted = np.einsum('bhij,bhjd->bhid', p.astype(np.float64), wide(v).repeat(3, 1))
    found = simdattn.weighted_values(p, v)
    assert found.dtype == v.dtype and isinstance(found, type(v))
    np.testing.assert_allclose(wide(found), wanted, rtol=0, atol=TOLERANCE[name])
    np.testing.assert_allclose(simdattn.weighted_values(p, v, dtype='float32'), wanted, rtol=0, atol=F32)
    out = np.empty((2, 6, 5, 24), np.float16)
    assert simdattn.weighted_values(p, v, out=out) is out
    np.testing.assert_allclose(out, wanted, rtol=0, atol=TOLERANCE['f16'])


def test_a_key_of_weight_zero():
    p, v = np.zeros((1, 1, 1, 3), np.float32), np.full((1, 1, 3, 2), np.nan, np.float32)
    p[..., 1], v[:, :, 1] = 1, 5
    assert (simdattn.weighted_values(p, v) == 5).all()


def test_the_parts_make_attention(random):
    q, k, v = arrays(random, (2, 6, 5, 40), (2, 2, 70, 40), (2, 2, 70, 24))
    p = simdattn.softmax(simdattn.scores(q, k), scale=1.0, causal=True, window_left=20)
    np.testing.assert_allclose(simdattn.weighted_values(p, v), simdattn.attention(q, k, v, causal=True, window_left=20), rtol=0, atol=F32)


@pytest.mark.parametrize('name', TYPES)
def test_merge(random, name):
    q, k, v = (stored(x, name) for x in arrays(random, (2, 6, 5, 40), (2, 2, 70, 40), (2, 2, 70, 24)))
    cuts = [(0, 10), (10, 64), (64, 70)]
    parts = [simdattn.attention(q, k[:, :, i:j], v[:, :, i:j], return_lse=True) for i, j in cuts]
    wanted, wanted_lse = reference.attention(wide(q), wide(k), wide(v))
    out, lse = simdattn.attention_merge([x for x, _ in parts], [x for _, x in parts], return_lse=True)
    assert out.dtype == q.dtype and isinstance(out, type(q)) and lse.dtype == np.float32
    np.testing.assert_allclose(wide(out), wanted, rtol=0, atol=2 * TOLERANCE[name])
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-4)
    sinks = random.standard_normal(6, dtype=np.float32)
    wanted, wanted_lse = reference.attention(wide(q), wide(k), wide(v), sinks=sinks)
    stacked = np.stack([np.asarray(x) for x, _ in parts]).view(type(q))
    there = np.empty((2, 6, 5, 24), np.float32), np.empty((2, 6, 5), np.float32)
    assert simdattn.attention_merge(stacked, np.stack([x for _, x in parts]), sinks=sinks, out=there[0], lse=there[1]) is there[0]
    np.testing.assert_allclose(there[0], wanted, rtol=0, atol=2 * TOLERANCE[name])
    np.testing.assert_allclose(there[1], wanted_lse, rtol=1e-5, atol=1e-4)


def test_a_part_without_keys(random):
    x, lse = arrays(random, (1, 2, 3, 8), (1, 2, 3))
    nothing = np.full_like(x, np.nan), np.full_like(lse, -np.inf)
    assert np.array_equal(simdattn.attention_merge([nothing[0], x], [nothing[1], lse]), x)


def test_what_is_refused(random):
    q, k, v, p = arrays(random, (2, 6, 5, 40), (2, 4, 70, 40), (2, 2, 70, 24), (2, 6, 5, 69))
    out = np.empty((2, 6, 5, 70), np.float32)
    refused(Code.SHAPE, 'q: has 3 dimensions; 4 are wanted', lambda: simdattn.scores(q[0], k))
    refused(Code.SHAPE, 'k', lambda: simdattn.scores(q, k, out=out), out)
    refused(Code.DTYPE, 'k: is int32; float32, bfloat16 or float16 is wanted', lambda: simdattn.scores(q, k[:, :2].astype(np.int32)))
    refused(Code.SHAPE, 'v', lambda: simdattn.weighted_values(p, v))
    refused(Code.DTYPE, 'dtype: is int32', lambda: simdattn.weighted_values(p, v[:, :, :69], dtype='i32'))
    refused(Code.SHAPE, 'parts: is an empty list', lambda: simdattn.attention_merge([], []))
    refused(Code.SHAPE, 'parts: have shapes', lambda: simdattn.attention_merge([q, k], [q[..., 0]]))
    refused(Code.SHAPE, 'part_lse', lambda: simdattn.attention_merge([q, q], [q[..., 0]]))
    refused(Code.SHAPE, 'sinks: has shape', lambda: simdattn.attention_merge([q], [np.ascontiguousarray(q[..., 0])], sinks=[1.0]))
