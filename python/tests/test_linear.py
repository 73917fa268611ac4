"""linear_attention() and causal_conv() against the formula."""
import numpy as np
import pytest
from conftest import exact_targets
from test_arrays import refused

import simdattn
from simdattn._abi import Code


def formula(q, k, v, state, rule, decay, beta, scale, repeated=False):
    """float64; the state is changed."""
    batch, heads, n, d_v = v.shape
    out_heads = max(q.shape[1], heads)
    pick = lambda h, of, among: h % of if repeated else h // (among // of)
    out = np.zeros((batch, out_heads, n, d_v))
    for b in range(batch):
        for h in range(heads):
            s = state[b, h]
            for t in range(n):
                key = k[b, pick(h, k.shape[1], heads), t].astype(float)
                if 'gated' in rule:
                    s *= np.exp(decay[b, h, t].astype(float))[:, None]
                u = v[b, h, t].astype(float)
                if 'delta' in rule:
                    u = beta[b, h if beta.shape[1] > 1 else 0, t] * (u - key @ s)
                s += np.outer(key, u)
                for o in range(out_heads):
                    if pick(o, heads, out_heads) == h:
                        out[b, o, t] = scale * (q[b, pick(o, q.shape[1], out_heads), t].astype(float) @ s)
    return out


def problem(random, n=7, d_k=24, d_v=40, heads=(2, 2, 4), channels=False):
    make = lambda *shape: random.standard_normal(shape).astype(np.float32)
    q, k, v = make(2, heads[0], n, d_k), 0.2 * make(2, heads[1], n, d_k), make(2, heads[2], n, d_v)
    decay = -np.abs(make(2, heads[2], n, d_k if channels else 1))
    return q, k, v, decay, random.random((2, heads[2], n, 1), np.float32), make(2, heads[2], d_k, d_v)


@pytest.mark.parametrize('rule', ['linear', 'gated', 'delta', 'gated_delta'])
@pytest.mark.parametrize('order', ['neighbours', 'repeated'])
def test_rules(random, rule, order):
    q, k, v, decay, beta, state = problem(random, channels=order == 'repeated')
    wanted_state = state.astype(float)
    wanted = formula(q, k, v, wanted_state, rule, decay, beta, 0.3, order == 'repeated')
    out = simdattn.linear_attention(q, k, v, state, rule=rule, decay=decay if 'gated' in rule else None,
                                    beta=beta if 'delta' in rule else None, scale=0.3, head_order=order)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state, wanted_state, rtol=1e-4, atol=1e-4)


def test_pieces_pools_and_targets(random):
    q, k, v, decay, beta, state = problem(random)
    results = set()
    for name in exact_targets():
        whole, kept = state.copy(), np.zeros((2, 3, 4, 24, 40), np.float32)
        out = simdattn.linear_attention(q, k, v, whole, decay=decay, beta=beta, states=kept, target=name)
        assert kept[:, 2].tobytes() == whole.tobytes()
        pool = np.zeros((5, 4, 40, 24), np.float32)
        pool[[3, 1]] = state.transpose(0, 1, 3, 2)
        pieces = np.empty_like(out)
        for t in range(q.shape[2]):
            one = slice(t, t + 1)
            simdattn.linear_attention(q[:, :, one], k[:, :, one], v[:, :, one], pool, decay=decay[:, :, one], beta=beta[:, :, one],
                                      out=pieces[:, :, one], transposed=True, state_index=[3, 1], target=name)
        assert pieces.tobytes() == out.tobytes()
        assert np.array_equal(pool[[3, 1]].transpose(0, 1, 3, 2), whole) and not pool[[0, 2, 4]].any()
        results.add(out.tobytes())
    assert len(results) == 1


def test_varlen_and_types(random):
    q, k, v, decay, beta, state = problem(random)
    packed = lambda x: np.ascontiguousarray(x.transpose(1, 0, 2, 3).reshape(1, x.shape[1], -1, x.shape[3]))
    again = state.copy()
    out = simdattn.linear_attention(q, k, v, state, decay=decay, beta=beta)
    other = simdattn.linear_attention(packed(q), packed(k), packed(v), again, decay=packed(decay), beta=packed(beta), cu_q=[0, 7, 14])
    assert np.array_equal(packed(out), other) and state.tobytes() == again.tobytes()
    half = simdattn.linear_attention(simdattn.to_bf16(q), k.astype(np.float16), v, state, decay=decay)
    assert isinstance(half, simdattn.BF16)


@pytest.mark.parametrize('channels_last', [False, True])
@pytest.mark.parametrize('width', [1, 4])
def test_causal_conv(random, width, channels_last):
    x = random.standard_normal((2, 37, 11)).astype(np.float32)
    weight, bias = random.standard_normal((37, width)).astype(np.float32), random.standard_normal(37).astype(np.float32)
    past = random.standard_normal((2, 37, width - 1)).astype(np.float32)
    z = np.concatenate([past, x], 2).astype(float)
    c = bias[:, None] + sum(weight[:, j:j + 1] * z[:, :, j:j + 11] for j in range(width))
    order = (lambda a: np.ascontiguousarray(a.transpose(0, 2, 1))) if channels_last else (lambda a: a)
    state = order(past).copy()
    y = simdattn.causal_conv(order(x), weight, bias=bias, state=state if width > 1 else None, silu=True, channels_last=channels_last)
    np.testing.assert_allclose(order(y) if channels_last else y, c / (1 + np.exp(-c)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(order(state) if channels_last else state, z[:, :, 11:])
    same = order(x).copy()
    assert simdattn.causal_conv(same, weight, out=same, channels_last=channels_last) is same


def test_states_elsewhere(random):
    q, k, v, decay, beta, state = problem(random)
    gates = {'decay': decay, 'beta': beta}
    kept = state.copy()
    out = simdattn.linear_attention(q, k, v, kept, **gates)
    for other in (np.full_like(state, 9), None):
        before = state.copy()
        same = simdattn.linear_attention(q, k, v, other, state_in=before, **gates)
        assert same.tobytes() == out.tobytes() and before.tobytes() == state.tobytes()
        assert other is None or other.tobytes() == kept.tobytes()
    # All sequences begin with one state.
    shared = simdattn.linear_attention(q, k, v, None, state_in=np.broadcast_to(state[:1], state.shape), **gates)
    assert np.array_equal(shared[0], out[0]) and not np.array_equal(shared[1], out[1])
    refused(Code.OVERLAP, 'state', lambda: simdattn.linear_attention(q, k, v, kept, state_in=kept[::-1], **gates), kept)
    with pytest.raises(TypeError, match='^state: '):
        simdattn.linear_attention(q, k, v, None, **gates)


@pytest.mark.parametrize('channels_last', [False, True])
@pytest.mark.parametrize('transposed', [False, True])
def test_conv_past_in_front(random, channels_last, transposed):
    turned = (lambda a: np.ascontiguousarray(a.transpose(0, 2, 1)))
    order = turned if channels_last else (lambda a: a)
    z = random.standard_normal((2, 37, 14)).astype(np.float32)
    weight = random.standard_normal((37, 4)).astype(np.float32)
    wanted = simdattn.causal_conv(z[:, :, 3:], weight, state=z[:, :, :3].copy())
    array = order(z)
    past, x = (array[:, :3], array[:, 3:]) if channels_last else (array[:, :, :3], array[:, :, 3:])
    kept = np.empty_like(np.ascontiguousarray(past))
    for state in (None, kept):
        y = simdattn.causal_conv(x, weight, state=state, state_in=past, channels_last=channels_last, out_transposed=transposed)
        assert (y if channels_last == transposed else turned(y)).tobytes() == wanted.tobytes()
    assert order(kept).tobytes() == z[:, :, 11:].tobytes() and array.tobytes() == order(z).tobytes()


def test_bad_calls(random):
    q, k, v, decay, beta, state = problem(random)
    call = lambda **options: simdattn.linear_attention(q, k, v, state, **{'decay': decay, 'beta': beta, **options})
    refused(Code.RANGE, "rule: there is no 'loop'", lambda: call(rule='loop'), state)
    refused(Code.RANGE, 'decay', lambda: call(rule='delta'), state)
    refused(Code.SHAPE, 'state_index: has shape', lambda: call(state_index=[0]), state)
    refused(Code.RANGE, 'state_index', lambda: call(state_index=[1, 1]), state)
    refused(Code.SHAPE, 'state', lambda: simdattn.linear_attention(q, k, v, state[:, :, 1:], decay=decay), state)
    refused(Code.SHAPE, 'weight', lambda: simdattn.causal_conv(v[0], np.ones((3, 4), np.float32)))
