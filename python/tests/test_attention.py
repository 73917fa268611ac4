"""attention() against the formula, every option; the bits of the targets; bad calls."""
import numpy as np
import pytest
import reference
from conftest import TOLERANCE, exact_targets
from test_arrays import refused

import simdattn
from simdattn._abi import Code

STORED = {
    'f32': (lambda x: x.astype(np.float32), lambda x: x.astype(float)),
    'f16': (lambda x: x.astype(np.float16), lambda x: x.astype(float)),
    'bf16': (simdattn.to_bf16, lambda x: simdattn.from_bf16(x).astype(float)),
}


def problem(random, batch=2, heads=4, kv_heads=2, rows=7, keys=40, dim=16, value_dim=24):
    return (random.standard_normal((batch, heads, rows, dim)), random.standard_normal((batch, kv_heads, keys, dim)),
            random.standard_normal((batch, kv_heads, keys, value_dim)))


# Numbers on both sides of what the library cuts by: panels of 32, blocks of 256, splits of 1024 keys.
@pytest.mark.parametrize('keys', [1, 31, 32, 33, 255, 257, 1023, 1025])
@pytest.mark.parametrize('kind', STORED)
def test_sizes_and_types(random, keys, kind):
    store, number = STORED[kind]
    q, k, v = (store(x) for x in problem(random, keys=keys))
    out, lse = simdattn.attention(q, k, v, causal=True, return_lse=True)
    wanted, wanted_lse = reference.attention(number(q), number(k), number(v), causal=True)
    assert type(out) is type(q) and out.dtype == q.dtype and lse.dtype == np.float32
    np.testing.assert_allclose(number(out), wanted, rtol=0, atol=TOLERANCE[kind] * max(1, np.abs(wanted).max()))
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-5)


def options(random):
    heads, rows, keys = 4, 7, 40
    bias = random.standard_normal((2, heads, rows, keys)).astype(np.float32)
    bias[random.random(bias.shape) < 0.2] = -np.inf
    keep = random.random((2, heads, rows, keys)) < 0.6
    return [
        {}, {'scale': -0.3}, {'softcap': 1.5}, {'causal': True}, {'causal': True, 'offset': 0}, {'causal': True, 'offset': 30},
        {'causal': True, 'offsets': [3, 33]}, {'window_left': 4}, {'window_right': 0, 'window_left': 9}, {'chunk': 8},
        {'prefix_end': [3, 39], 'causal': True}, {'kv_start': [0, 11]}, {'kv_length': [13, 40]},
        {'kv_length': np.array([0, 27]), 'causal': True}, {'bias': bias}, {'bias': bias[0, :, :1], 'bias_scale': [1, 0.5, -2, 0]},
        {'bias': bias.astype(np.float16)}, {'mask': keep}, {'mask': keep[0, 0, 0]}, {'mask': keep.astype(np.uint8)[:, :1]},
        {'alibi_slopes': [0.5, 0.25, 0.125, 1]}, {'sinks': [0, 1, -3, 9]},
        {'causal': True, 'window_left': 20, 'softcap': 3, 'sinks': [1, 2, 3, 4], 'mask': keep, 'bias': bias, 'scale': 0.2,
         'alibi_slopes': [0.1, 0.2, 0.3, 0.4], 'kv_start': [2, 0], 'kv_length': [40, 31]},
    ]


def test_every_option(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    seen = set()
    for given in options(random):
        out, lse = simdattn.attention(q, k, v, return_lse=True, **given)
        wanted, wanted_lse = reference.attention(q, k, v, **given)
        np.testing.assert_allclose(out, wanted, rtol=0, atol=TOLERANCE['f32'], err_msg=str(given))
        np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=2e-5, err_msg=str(given))
        seen |= set(given)
    from simdattn import _abi
    from test_abi import members
    assert seen == members(_abi.Scoring) - {'packed_mask'}


@pytest.mark.parametrize('columns', [1, 8, 9, 40])
def test_bits(random, columns):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    keep = np.ones((2, 4, 7, 40), bool)
    keep[..., 40 - columns:] = random.random((2, 4, 7, columns)) < 0.5
    packed = np.packbits(keep[..., 40 - columns:], axis=-1, bitorder='little')
    assert simdattn.attention(q, k, v, packed_mask=(packed, columns)).tobytes() == simdattn.attention(q, k, v, mask=keep).tobytes()
    one = simdattn.attention(q, k, v, packed_mask=(packed[0, 0], columns))
    assert one.tobytes() == simdattn.attention(q, k, v, mask=keep[0, 0]).tobytes()


@pytest.mark.parametrize('kind', STORED)
def test_targets_have_the_same_bits(random, kind):
    q, k, v = (STORED[kind][0](x) for x in problem(random, keys=300))
    names = exact_targets()
    assert 'scalar' in names
    results = {name: simdattn.attention(q, k, v, causal=True, softcap=5, target=name).tobytes() for name in names}
    assert len(set(results.values())) == 1, [name for name in names if results[name] != results['scalar']]


def test_sequences_in_one_array(random):
    lengths_q, lengths_k = [3, 0, 5], [20, 4, 33]
    cu_q, cu_k = np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k], dtype=np.int32)
    q, k, v = (x.astype(np.float32) for x in problem(random, batch=1, rows=8, keys=57))
    out = simdattn.attention(q, k, v, cu_q=cu_q, cu_k=cu_k, causal=True)
    for s in range(3):
        a, b = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        alone = simdattn.attention(q[:, :, a], k[:, :, b], v[:, :, b], causal=True)
        assert out[:, :, a].tobytes() == alone.tobytes()
    caches = [x.astype(np.float32) for x in problem(random, batch=3)[1:]]
    out = simdattn.attention(q, *caches, cu_q=cu_q, causal=True, kv_length=[20, 4, 33])
    for s in range(3):
        alone = simdattn.attention(q[:, :, cu_q[s]:cu_q[s + 1]], *(x[s:s + 1, :, :lengths_k[s]] for x in caches), causal=True)
        assert out[:, :, cu_q[s]:cu_q[s + 1]].tobytes() == alone.tobytes()


def test_state_before_the_division(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    acc, m, s = np.empty((2, 4, 7, 24), np.float32), np.empty((2, 4, 7), np.float32), np.empty((2, 4, 7), np.float32)
    out, lse = simdattn.attention(q, k, v, acc=acc, max=m, sum=s, return_lse=True)
    np.testing.assert_allclose(acc / s[..., None], out, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(m + np.log(s), lse, rtol=1e-5)
    lse[:] = 0
    assert simdattn.attention(q, k, v, out=False, lse=lse) is None
    np.testing.assert_allclose(m + np.log(s), lse, rtol=1e-5)


def test_out_is_returned_and_written(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    whole = np.full((2, 7, 4, 24), 5, np.float16)
    out = whole.transpose(0, 2, 1, 3)
    assert simdattn.attention(q, k, v, out=out) is out
    np.testing.assert_allclose(out, reference.attention(q, k, v)[0], atol=TOLERANCE['f16'])


def test_numbers_of_any_kind(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    wanted = simdattn.attention(q, k, v, sinks=[0.5, 1, -3, 9], scale=0.25, softcap=2, chunk=8, kv_length=[30, 40]).tobytes()
    for kind in (np.float16, np.float32, np.float64, simdattn.to_bf16):
        sinks = kind([0.5, 1, -3, 9]) if kind is simdattn.to_bf16 else np.array([0.5, 1, -3, 9], kind)
        assert simdattn.attention(q, k, v, sinks=sinks, scale=np.float32(0.25), softcap=np.float64(2), chunk=np.int16(8),
                                  kv_length=np.array([30, 40], np.uint8)).tobytes() == wanted
    with pytest.raises(TypeError):
        simdattn.attention(q, k, v, chunk=8.5)


def test_no_rows_and_no_keys(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    assert simdattn.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 24)
    out, lse = simdattn.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_a_window_of_any_size(random):
    """Work is estimated before a rule looks at the numbers."""
    q, k, v = (x.astype(np.float32) for x in problem(random, rows=70, keys=700))
    for options in ({}, {'causal': True}):
        assert simdattn.attention(q, k, v, window_left=2**63 - 1, **options).tobytes() == simdattn.attention(q, k, v, **options).tobytes()


def test_bad_calls(random):
    q, k, v = (x.astype(np.float32) for x in problem(random))
    out = np.full((2, 4, 7, 24), 7, np.float32)

    def bad(code, match, *arrays, **given):
        refused(code, match, lambda: simdattn.attention(*(arrays or (q, k, v)), out=out, **given), out)

    bad(Code.SHAPE, r'q: has 3 dimensions; 4 are wanted', q[0], k, v)
    bad(Code.SHAPE, r'k: has 2 dimensions', q, k[0, 0], v)
    bad(Code.SHAPE, r'k', q, k[..., :15], v)
    bad(Code.SHAPE, r'heads', q[:, :3], k, v)
    bad(Code.RANGE, r'scale', scale=np.inf)
    bad(Code.RANGE, r'softcap', softcap=-1)
    bad(Code.RANGE, r'window_left', window_left=-2)
    bad(Code.RANGE, r'chunk: 18446744073709551616 is not in', chunk=2**64)
    bad(Code.SHAPE, r'kv_length: has shape \(3,\); 2 numbers are wanted, one for each sequence', kv_length=[1, 2, 3])
    bad(Code.RANGE, r'kv_length', kv_length=[1, 41])
    bad(Code.RANGE, r'offsets: holds what is no int32', offsets=[0, 2**40])
    bad(Code.RANGE, r'kv_start: holds what is no int32', kv_start=[0, 1.5])
    bad(Code.SHAPE, r'sinks: has shape \(3,\); 4 numbers .* query head', sinks=[1, 2, 3])
    bad(Code.SHAPE, r'bias', bias=np.zeros((2, 4, 7, 39), np.float32))
    bad(Code.SHAPE, r'bias: has 5 dimensions, more than 4', bias=np.zeros((1, 2, 4, 7, 40), np.float32))
    bad(Code.DTYPE, r'mask', mask=np.zeros((7, 40), np.float32))
    bad(Code.SHAPE, r'packed_mask: has shape \(1, 1, 7, 4\)', packed_mask=(np.zeros((7, 4), np.uint8), 40))
    bad(Code.SHAPE, r'packed_mask: has shape \(1, 1, 6, 5\)', packed_mask=(np.zeros((6, 5), np.uint8), 40))
    bad(Code.SHAPE, r'packed_mask: has shape \(3, 1, 7, 5\)', packed_mask=(np.zeros((3, 1, 7, 5), np.uint8), 40))
    bad(Code.SHAPE, r'cu_k: has shape', cu_q=[0, 7], cu_k=[0, 7, 8])
    bad(Code.RANGE, r"arithmetic: there is no 'f64'", arithmetic='f64')
    bad(Code.TARGET, r"target: 'nothing': no target of this name can run here; these can: .*scalar", target='nothing')
    bad(Code.OVERLAP, r'out', q, k[:, :, :7], out[:, :2])
    with pytest.raises(TypeError, match='has no option'):
        simdattn.attention(q, k, v, windows=3)
    refused(Code.SHAPE, 'out', lambda: simdattn.attention(q, k, v, out=out[:, :, :6]), out)
    refused(Code.DTYPE, 'lse', lambda: simdattn.attention(q, k, v, out=out, lse=np.zeros((2, 4, 7), np.float16)), out)


def test_an_error_survives_pickling():
    import pickle
    error = pickle.loads(pickle.dumps(simdattn.Error(Code.SHAPE, 'q: the rule')))
    assert (error.code, error.detail, str(error)) == (Code.SHAPE, 'q: the rule', 'q: the rule (SHAPE)')
