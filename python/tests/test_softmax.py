"""softmax() against the formula."""
import numpy as np
import pytest
import reference
from conftest import exact_targets
from test_arrays import refused

import simdattn
from simdattn._abi import Code


@pytest.mark.parametrize('shape', [(1,), (17,), (5, 257), (2, 3, 40), (2, 3, 4, 1025), (2, 0), (3, 0, 4)])
def test_ranks(random, shape):
    x = 5 * random.standard_normal(shape).astype(np.float32)
    out, lse = simdattn.softmax(x, return_lse=True)
    assert out.shape == shape and lse.shape == shape[:-1]
    if x.size:
        np.testing.assert_allclose(out, reference.softmax(x), rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(lse, np.log(np.exp(x.astype(float)).sum(-1)), rtol=1e-6, atol=1e-6)
    elif shape[-1] == 0:
        assert np.isneginf(lse).all()


def test_in_place_and_strided(random):
    x = random.standard_normal((4, 8, 30)).astype(np.float32)
    wanted = simdattn.softmax(x)
    view = x[::2, ::-1, 3:20]
    np.testing.assert_array_equal(simdattn.softmax(view), simdattn.softmax(view.copy()))
    assert simdattn.softmax(x, out=x) is x
    assert x.tobytes() == wanted.tobytes()


def test_scoring(random):
    x = random.standard_normal((2, 3, 4, 20)).astype(np.float32)
    out = simdattn.softmax(x, causal=True, scale=0.5, sinks=[0, 1, 2])
    seen = np.arange(20) <= np.arange(4)[:, None] + 16
    e = np.where(seen, np.exp(0.5 * x.astype(float)), 0)
    wanted = e / (e.sum(-1, keepdims=True) + np.exp([0, 1, 2])[:, None, None])
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    assert not out[np.broadcast_to(~seen, out.shape)].any()


def test_rows_of_nothing():
    out, lse = simdattn.softmax(np.full((2, 5), -np.inf, np.float32), return_lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_targets_have_the_same_bits(random):
    x = 9 * random.standard_normal((7, 1000)).astype(np.float32)
    assert len({simdattn.softmax(x, target=name).tobytes() for name in exact_targets()}) == 1


def test_bad_calls(random):
    x = random.standard_normal((2, 3, 4, 20)).astype(np.float32)
    out = np.full_like(x, 7)
    refused(Code.SHAPE, 'x: has 5 dimensions, more than 4', lambda: simdattn.softmax(x[None], out=out), out)
    refused(Code.SHAPE, 'x: has no dimension', lambda: simdattn.softmax(np.array(3, np.float32)))
    refused(Code.SHAPE, 'out', lambda: simdattn.softmax(x[:, :, :3], out=out), out)
    refused(Code.DTYPE, 'x', lambda: simdattn.softmax(x.astype(np.float16), out=out), out)
    refused(Code.OVERLAP, 'out', lambda: simdattn.softmax(x[:, :, :, 1:], out=x[:, :, :, :-1]), x)
    refused(Code.RANGE, 'softcap', lambda: simdattn.softmax(x, out=out, softcap=-2), out)
    with pytest.raises(TypeError, match=r"softmax\(\) has no option 'axis': it runs along the last dimension"):
        simdattn.softmax(x, axis=0)
