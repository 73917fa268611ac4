"""ONNX's own cases of its Attention operator, all of them, by the functions of this package."""
import numpy as np
import pytest

import simdattn

onnx = pytest.importorskip('onnx')
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

CASES = {case.name: case for case in collect_testcases('Attention') if '_expanded' not in case.name}
INPUTS = ('q', 'k', 'v', 'attn_mask', 'past_key', 'past_value', 'nonpad_kv_seqlen')
# The result of float16 is float16's numbers below 1 on both sides, the scores of up to 16 are rounded to it on ONNX's
# alone.
TOLERANCE = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2.0**-7}


def of_heads(x, heads):
    """[batch, tokens, heads * dim] as the view [batch, heads, tokens, dim]."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def added(mask, rows, tokens, past, causal, nonpad):
    """Everything that ONNX adds to scores, [.., rows, tokens]."""
    bias = np.zeros((rows, tokens), np.float32)
    if mask is not None:
        mask = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float32)
        bias = bias + np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, tokens - mask.shape[-1])], constant_values=-np.inf)
    if causal:
        bias = np.where(np.arange(tokens) <= np.arange(rows)[:, None] + past, bias, -np.inf)
    if nonpad is not None:
        bias = np.where(np.arange(tokens) < nonpad[:, None, None, None], bias, -np.inf)
    return bias.astype(np.float32)


def operator(q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, scale=None, is_causal=0, softcap=None,
             q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=0, softmax_precision=None):
    flat = q.ndim == 3
    q, k, v = of_heads(q, q_num_heads), of_heads(k, kv_num_heads), of_heads(v, kv_num_heads)
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None:
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    rows, tokens = q.shape[2], k.shape[2]
    bias = added(attn_mask, rows, tokens, past, is_causal, nonpad_kv_seqlen)
    scores = simdattn.scores(q, k, scale=scale)
    outputs = [scores, scores + bias]
    outputs.append(softcap * np.tanh(outputs[1] / softcap) if softcap else outputs[1])
    outputs.append(simdattn.softmax(outputs[2].astype(np.float32)))
    # ONNX adds masks before it caps, so that masked keys have a score of -softcap; there the kernels run one by one.
    if softcap and bias.any():
        y = simdattn.weighted_values(outputs[3], v, dtype='f32').astype(q.dtype)
    else:
        y = simdattn.attention(q, k, v, scale=scale, softcap=softcap, causal=bool(is_causal), offset=past if is_causal else None,
                               bias=bias if bias.any() else None)
    y = y.transpose(0, 2, 1, 3).reshape(q.shape[0], rows, -1) if flat else y
    return y, k, v, outputs[qk_matmul_output_mode].astype(q.dtype)


def test_all_are_here():
    assert len(CASES) >= 62


@pytest.mark.parametrize('name', CASES)
def test_node(name):
    case, = [CASES[name]]
    node, = case.model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for inputs, wanted in case.data_sets:
        given = iter(inputs)
        named = {argument: next(given) for argument, x in zip(INPUTS, node.input) if x}
        found = operator(**named, **attributes)
        for x, y in zip([f for f, output in zip(found, node.output) if output], wanted):
            assert x.shape == y.shape and x.dtype == y.dtype
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-5, atol=TOLERANCE[y.dtype])
