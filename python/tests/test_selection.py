"""index_scores, top_k, attention over lists, and the norm before the rotation."""
import numpy as np
import pytest

import simdattn

random = np.random.default_rng(3)


def rows(*shape):
    return random.standard_normal(shape).astype(np.float32)


def test_index_and_select():
    q, k, w = rows(2, 4, 3, 32), rows(2, 1, 50, 32), rows(2, 3, 4)
    scores = simdattn.index_scores(q, k, w, relu=True, causal=True)
    want = np.einsum('bih,bhij->bij', w, np.maximum(np.einsum('bhid,bjd->bhij', q, k[:, 0]) / np.sqrt(32), 0))
    for i in range(3):
        seen = 50 - 3 + i + 1
        np.testing.assert_allclose(scores[:, 0, i, :seen], want[:, i, :seen], rtol=1e-4, atol=1e-5)
        assert np.all(scores[:, 0, i, seen:] == -np.inf)
    lists = simdattn.top_k(scores, 8)
    for b in range(2):
        for i in range(3):
            best = np.sort(np.argsort(-scores[b, 0, i], kind='stable')[:8])
            assert lists[b, 0, i].tolist() == best.tolist()
    assert simdattn.index_scores(q, k, combine='each', block_size=8).shape == (2, 4, 3, 7)


def test_lists():
    q, k, v = rows(1, 4, 2, 16), rows(1, 2, 60, 16), rows(1, 2, 60, 16)
    lists = np.array([[[[3, 9, 40, -1], [0, 7, 8, 59]]]], np.int32)
    out = simdattn.attention(q, k, v, lists=lists)
    for i in range(2):
        keys = [j for j in lists[0, 0, i] if j >= 0]
        one = simdattn.attention(q[:, :, i:i + 1], k[:, :, keys], v[:, :, keys])
        assert np.array_equal(out[:, :, i:i + 1], one)
    assert np.array_equal(simdattn.attention(q, k, v, lists=np.array([[[[1]]]], np.int32), list_block=20),
                          simdattn.attention(q, k[:, :, 20:40], v[:, :, 20:40]))
    with pytest.raises(ValueError, match='lists'):
        simdattn.attention(q, k, v, lists=np.array([[[[60]]]], np.int32))
    with pytest.raises(ValueError, match='lists'):
        simdattn.attention(q, k, v, lists=np.zeros((1, 1, 3, 4), np.int32))


def test_norm():
    x, w = rows(1, 2, 3, 32), rows(32)
    table = simdattn.rope_table(8, 32)
    before = (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 + w)).astype(np.float32)
    np.testing.assert_allclose(simdattn.rope(x, *table, norm='rms_plus_one', norm_epsilon=1e-6, norm_weight=w),
                               simdattn.rope(before, *table), rtol=1e-5, atol=1e-5)
