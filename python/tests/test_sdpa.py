"""scaled_dot_product_attention(): PyTorch's meaning, by a formula of its own."""
import numpy as np
import pytest
import reference
from conftest import TOLERANCE
from test_arrays import refused

import simdattn
from simdattn._abi import Code

sdpa = simdattn.scaled_dot_product_attention


def arrays(random, *shapes):
    return [random.standard_normal(s).astype(np.float32) for s in shapes]


def close(out, wanted):
    assert out.shape == wanted.shape
    np.testing.assert_allclose(out, wanted, rtol=0, atol=TOLERANCE['f32'])


@pytest.mark.parametrize('leading', [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3), (0, 3)])
@pytest.mark.parametrize('is_causal', [False, True])
def test_leading_dimensions(random, leading, is_causal):
    q, k, v = arrays(random, (*leading, 5, 8), (*leading, 9, 8), (*leading, 9, 6))
    close(sdpa(q, k, v, is_causal=is_causal), reference.sdpa(q, k, v, is_causal=is_causal))


def test_causal_begins_at_the_top_left(random):
    q, k, v = arrays(random, (1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8))
    out = sdpa(q, k, v, is_causal=True)
    np.testing.assert_allclose(out[:, :, 0], v[:, :, 0], rtol=1e-6)
    q = arrays(random, (1, 2, 12, 8))[0]
    close(sdpa(q, k, v, is_causal=True), reference.sdpa(q, k, v, is_causal=True))


@pytest.mark.parametrize('shapes', [
    ((2, 1, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8)), ((2, 3, 5, 8), (1, 1, 9, 8), (2, 3, 9, 8)), ((3, 5, 8), (2, 3, 9, 8), (1, 3, 9, 8)),
    ((2, 3, 5, 8), (9, 8), (9, 8)), ((4, 1, 3, 5, 8), (2, 1, 9, 8), (4, 1, 3, 9, 8))])
def test_broadcasting(random, shapes):
    q, k, v = arrays(random, *shapes)
    close(sdpa(q, k, v), reference.sdpa(q, k, v))


@pytest.mark.parametrize('shape', [(), (9,), (5, 9), (1, 9), (5, 1), (3, 5, 9), (2, 1, 5, 9), (2, 3, 1, 1), (2, 3, 5, 9)])
@pytest.mark.parametrize('kind', [bool, np.float32, np.float16])
def test_masks(random, shape, kind):
    q, k, v = arrays(random, (2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    mask = np.asarray(random.standard_normal(shape), kind) if kind is not bool else np.asarray(random.random(shape) < 0.7)
    if kind is bool:
        mask[... if mask.ndim == 0 else (..., 0)] = True  # of a row without keys PyTorch has no number
    close(sdpa(q, k, v, mask), reference.sdpa(q, k, v, mask))


def test_masks_of_five_dimensions(random):
    q, k, v = arrays(random, (2, 2, 3, 5, 8), (2, 2, 3, 9, 8), (2, 2, 3, 9, 8))
    mask = random.standard_normal((2, 1, 3, 5, 9)).astype(np.float32)
    close(sdpa(q, k, v, mask), reference.sdpa(q, k, v, mask))


def test_scale_and_grouped_heads(random):
    q, k, v = arrays(random, (2, 6, 5, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    wide = [np.repeat(x, 3, axis=1) for x in (k, v)]
    close(sdpa(q, k, v, scale=0.5, enable_gqa=True), reference.sdpa(q, *wide, scale=0.5))
    refused(Code.SHAPE, 'key: shape .* does not broadcast', lambda: sdpa(q, k, v))
    refused(Code.SHAPE, 'enable_gqa: 6 heads of query do not divide among 4', lambda: sdpa(q, *(
        np.repeat(x, 2, axis=1) for x in (k, v)), enable_gqa=True))


def test_a_row_without_keys_is_zeros(random):
    q, k, v = arrays(random, (2, 5, 8), (2, 9, 8), (2, 9, 8))
    mask = np.ones((5, 9), bool)
    mask[2] = False
    out = sdpa(q, k, v, mask)
    assert not out[:, 2].any() and out[:, 1].any()


def test_bad_calls(random):
    q, k, v = arrays(random, (2, 3, 5, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    out = np.full_like(q, 7)
    mask = np.ones((5, 9), bool)
    refused(Code.RANGE, 'dropout_p: is 0.1', lambda: sdpa(q, k, v, None, 0.1, out=out), out)
    refused(Code.RANGE, 'attn_mask: must not be given with is_causal', lambda: sdpa(q, k, v, mask, is_causal=True, out=out), out)
    refused(Code.SHAPE, 'key: its last dimension is 7, that of query 8', lambda: sdpa(q, k[..., :7], v, out=out), out)
    refused(Code.SHAPE, 'value: has 8 rows, key 9', lambda: sdpa(q, k, v[..., :8, :], out=out), out)
    refused(Code.SHAPE, r'attn_mask: shape \(5, 8\) does not broadcast', lambda: sdpa(q, k, v, mask[:, :8], out=out), out)
    refused(Code.SHAPE, 'attn_mask: shape', lambda: sdpa(q, k, v, np.ones((4, 2, 3, 5, 9), bool), out=out), out)
    refused(Code.SHAPE, 'query: has 1 dimensions', lambda: sdpa(q[0, 0, 0], k, v, out=out), out)
    refused(Code.SHAPE, 'out: has shape', lambda: sdpa(q[:, :, :4], k, v, out=out), out)
    refused(Code.DTYPE, 'attn_mask: holds integers', lambda: sdpa(q, k, v, np.zeros((5, 9), np.int32), out=out), out)
