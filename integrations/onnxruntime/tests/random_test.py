"""Random problems of every operator: against float64 from its formula, and against ONNX Runtime's own kernels."""
import os

import models
import numpy as np
import pytest
import reference

EFFORT = float(os.environ.get('SIMDATTN_TEST_EFFORT', 1))
MOST = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 6e-3}
CONTRIB = {'opset': 17, 'domain': 'com.microsoft'}


class Draw:
    """What a problem is made of."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.t = np.dtype(np.float16 if self.chance(0.3) else np.float32)

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def among(self, *values):
        return values[self.rng.integers(len(values))]

    def number(self, first, last):
        return int(self.rng.integers(first, last + 1))

    def array(self, *shape, t=None):
        return self.rng.standard_normal(shape).astype(t or self.t)


def run(model, feed, capfd, threads):
    session = models.session(model, True, threads, log='1')
    said = capfd.readouterr().err
    return session.run(None, feed), 'took 1 nodes, left 0' in said, said


def compare(model, inputs, wanted, capfd, what, stock=True):
    """The provider's outputs against `wanted` (float64; None: not known), and against those of ONNX Runtime."""
    feed = {name: x for name, x in inputs if x is not None}
    ours, taken, said = run(model, feed, capfd, 1)
    assert taken, (what, said)
    again, *_ = run(model, feed, capfd, 3)
    for x, y in zip(ours, again):
        assert x.tobytes() == y.tobytes(), f'{what}: other bits by three threads'
    most = MOST[ours[0].dtype]
    for i, (x, w) in enumerate(zip(ours, wanted)):
        if w is not None:
            assert x.shape == w.shape, (what, i, x.shape, w.shape)
            difference = np.abs(x.astype(np.float64) - w).max(initial=0)
            assert difference <= most * max(1, np.abs(w).max(initial=0)), f'{what}: output {i} differs by {difference}'
    if not stock:
        return
    theirs = models.session(model, False).run(None, feed)
    for i, (x, y) in enumerate(zip(ours, theirs)):
        difference = np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0)
        # Of f16 ONNX Runtime rounds what lies between too, and its f16 operator of ONNX has no f32 sums.
        assert difference <= (3 * most if x.dtype == np.float32 else 3e-2) * max(1, np.abs(y).max(initial=0)), \
            f'{what}: output {i} is {difference} from that of ONNX Runtime'


# ---- GroupQueryAttention --------------------------------------------------------------------------------------------


def group_query(seed, capfd):
    r = Draw(seed)
    t, batch, hk, d = r.t, r.number(1, 3), r.number(1, 3), r.among(16, 32, 64, 80, 128)
    hq = hk * r.among(1, 1, 2, 4)
    kind = r.among('prompt', 'token', 'token', 'chunk')
    n = 1 if kind == 'token' else r.number(2, 40)
    before = 0 if kind == 'prompt' else r.number(1, 70)
    batch = 1 if kind == 'chunk' else batch
    starts = np.full(batch, before) if kind != 'token' else np.array([before] + [r.number(0, before) for _ in range(batch - 1)])
    lengths = starts + n
    if kind == 'prompt' and r.chance(0.3):
        lengths = np.array([n] + [r.number(1, n) for _ in range(batch - 1)])  # padded on the right
    total = before + n
    capacity = r.among(before, total + r.number(0, 20)) if kind != 'prompt' else r.among(0, n, n + r.number(0, 20))
    packed, rotary, interleaved = r.chance(0.4), r.chance(0.5), r.chance(0.4)
    window = r.among(-1, -1, r.number(1, 20), r.number(1, 60))
    softcap, scale = r.among(0.0, 0.0, 3.0), r.among(None, None, 0.2)
    sink, smooth = r.chance(0.25), r.chance(0.2)
    biased = r.chance(0.3) and kind != 'token'
    q, k, v = r.array(batch, n, hq * d), r.array(batch, n, hk * d), r.array(batch, n, hk * d)
    past_k, past_v = r.array(batch, hk, capacity, d), r.array(batch, hk, capacity, d)
    half = r.among(d // 2, d // 2, 8)
    cos, sin = r.array(total + 9, half), r.array(total + 9, half)
    ids = None
    if rotary and r.chance(0.3):  # ONNX Runtime reads one number of those of prompts, and counts from it
        ids = r.number(0, 9) + np.tile(np.arange(n), (batch, 1)) if kind == 'prompt' else r.rng.integers(0, total + 9, (batch, n))
    bias = r.array(r.among(1, batch), r.among(1, hq), n, total) if biased else None
    sinks = r.array(hq) if sink else None
    inputs = [('query', np.concatenate([q, k, v], -1) if packed else q), ('key', None if packed else k), ('value', None if packed else v),
              ('past_key', past_k), ('past_value', past_v), ('seqlens_k', (lengths - 1).astype(np.int32)), ('total', np.array(total, np.int32)),
              ('cos', cos if rotary else None), ('sin', sin if rotary else None), ('ids', ids), ('bias', bias), ('sink', sinks)]
    attributes = {'num_heads': hq, 'kv_num_heads': hk, 'do_rotary': int(rotary), 'rotary_interleaved': int(interleaved),
                  'local_window_size': window, 'softcap': softcap, 'smooth_softmax': int(smooth)}
    if scale is not None:
        attributes['scale'] = scale
    model = models.of_one_node('GroupQueryAttention', inputs, [('out', t, 3), ('pk', t, 4), ('pv', t, 4)], **CONTRIB, **attributes)

    q, k, v = (reference.heads_first(x, h) for x, h in ((q, hq), (k, hk), (v, hk)))
    if rotary:
        positions = starts[:, None] + np.arange(n) if ids is None else ids
        q, k = (reference.rotate(x, cos, sin, positions, interleaved).astype(t) for x in (q, k))
    size = max(capacity, total)
    present_k, present_v = np.zeros((batch, hk, size, d)), np.zeros((batch, hk, size, d))
    for present, past, new in ((present_k, past_k, k), (present_v, past_v, v)):
        for b in range(batch):
            present[b, :, :starts[b]] = past[b, :, :starts[b]]
            present[b, :, starts[b]:starts[b] + n] = new[b]
    j, p = np.arange(total), (starts[:, None] + np.arange(n))[:, None, :, None]
    visible = (j <= p) & (j < lengths[:, None, None, None])
    if window > 0:
        visible &= j >= p - (window - 1 if models.VERSION >= (1, 24) else window)
    out = reference.attention(q, present_k[:, :, :total], present_v[:, :, :total], scale, softcap, visible, bias,
                              sinks if sink else np.zeros(hq) if smooth else None)
    what = f'GroupQueryAttention {seed}: {kind}, {attributes}, {[(a, x.shape) for a, x in inputs if x is not None]}'
    # ONNX Runtime's own results of padding are what its memory holds.
    compare(model, inputs, [reference.heads_last(out), present_k, present_v], capfd, what,
            stock=kind != 'prompt' or bool((lengths == n).all()))


# ---- MultiHeadAttention ---------------------------------------------------------------------------------------------


def multi_head(seed, capfd):
    r = Draw(seed)
    t, batch, heads, d, n = r.t, r.number(1, 3), r.number(1, 5), r.among(8, 32, 64, 72), r.number(1, 40)
    before, causal = r.among(0, 0, r.number(1, 30)), r.chance(0.4)
    tokens = r.among(n, n, r.number(1, 60))
    cross = before == 0 and r.chance(0.25)
    dv = d if before or cross else r.among(d, d, 16)
    q = r.array(batch, n, heads * d)
    k, v = (r.array(batch, heads, tokens, w) if cross else r.array(batch, tokens, heads * w) for w in (d, dv))
    sums = r.array(2 * heads * d + heads * dv) if not cross and r.chance(0.3) else None
    m = before + tokens
    mask = None
    if r.chance(0.4):
        mask = (r.rng.random((batch, m) if r.chance() else (batch, n, m)) < 0.8).astype(np.int32)
        mask[..., 0] = 1  # a row of ONNX Runtime that sees no key is an average
    bias = r.array(r.among(1, batch), r.among(1, heads), n, m) if r.chance(0.4) else None
    past_k, past_v = (r.array(batch, heads, before, w) if before else None for w in (d, dv))
    inputs = [('query', q), ('key', k), ('value', v), ('bias', sums), ('mask', mask), ('add', bias), ('past_key', past_k), ('past_value', past_v)]
    attributes = {'num_heads': heads, 'unidirectional': int(causal), 'scale': r.among(0.0, 0.0, 0.3)}
    if all(x is None for x in (mask, bias, past_k)) and not causal and t == np.float32:
        return
    outputs = [('out', t, 3)] + ([('pk', t, 4), ('pv', t, 4)] if before else [])
    model = models.of_one_node('MultiHeadAttention', inputs, outputs, **CONTRIB, **attributes)
    add = np.zeros(2 * heads * d + heads * dv) if sums is None else sums
    qh = reference.heads_first((q + add[:heads * d]).astype(t), heads)
    if cross:
        kh, vh = k, v
    else:
        kh = reference.heads_first((k + add[heads * d:2 * heads * d]).astype(t), heads)
        vh = reference.heads_first((v + add[2 * heads * d:]).astype(t), heads)
    if before:
        kh, vh = np.concatenate([past_k, kh], 2), np.concatenate([past_v, vh], 2)
    visible = np.ones((1, 1, n, m), bool)
    if causal:
        visible = visible & (np.arange(m) <= before + np.arange(n)[:, None])
        if tokens != n:  # ONNX Runtime masks nothing of the last row
            visible[..., -1, :] = True
    if mask is not None:
        visible = visible & (mask[:, None] if mask.ndim == 3 else mask[:, None, None]).astype(bool)
    out = reference.attention(qh, kh, vh, attributes['scale'] or None, 0, visible, bias)
    what = f'MultiHeadAttention {seed}: {attributes}, {[(a, x.shape) for a, x in inputs if x is not None]}'
    # ONNX Runtime has no kernel for f16, and none for keys of four dimensions with a mask by row in every version.
    compare(model, inputs, [reference.heads_last(out), kh, vh], capfd, what, stock=t == np.float32)


# ---- Attention of ONNX ----------------------------------------------------------------------------------------------


def onnx_attention(seed, capfd):
    r = Draw(seed)
    t, batch, hk, d, dv = r.t, r.number(1, 3), r.number(1, 3), r.among(8, 32, 64), r.among(8, 32, 64)
    hq, n = hk * r.among(1, 2, 4), r.number(1, 24)
    tokens, before, three = r.among(n, r.number(1, 40)), r.among(0, 0, r.number(1, 30)), r.chance(0.4)
    opset = 24 if r.chance(0.4) and models.VERSION >= (1, 24) else 23
    q = r.array(batch, n, hq * d) if three else r.array(batch, hq, n, d)
    k, v = (r.array(batch, tokens, hk * w) if three else r.array(batch, hk, tokens, w) for w in (d, dv))
    m = before + tokens
    causal, softcap = r.chance(0.4), r.among(0.0, 0.0, 0.0, 2.0)
    mask = None
    if r.chance(0.5):
        shape = r.among((n, m), (1, n, m), (hq, n, m), (1, 1, n, m), (batch, hq, n, m), (batch, 1, n, m))
        mask = r.rng.random(shape) < 0.8 if r.chance() else r.array(*shape)
        if mask.dtype == bool:
            mask[..., 0] = True
    if softcap and (causal or mask is not None):
        causal, mask = False, None  # left to ONNX Runtime
    past_k, past_v = (r.array(batch, hk, before, w) if before else None for w in (d, dv))
    nonpad = None
    if opset == 24 and not before and not causal and not softcap and r.chance(0.4):
        nonpad = r.rng.integers(1, m + 1, batch)
    inputs = [('Q', q), ('K', k), ('V', v), ('mask', mask), ('past_key', past_k), ('past_value', past_v), ('nonpad', nonpad)]
    attributes = {'is_causal': int(causal), 'softcap': softcap}
    if three:
        attributes.update(q_num_heads=hq, kv_num_heads=hk)
    if r.chance(0.3):
        attributes['scale'] = 0.3
    outputs = [('out', t, 3 if three else 4)] + ([('pk', t, 4), ('pv', t, 4)] if before or r.chance(0.2) else [])
    model = models.of_one_node('Attention', inputs, outputs, opset, **attributes)
    qh, kh, vh = (reference.heads_first(x, h) if three else x for x, h in ((q, hq), (k, hk), (v, hk)))
    if before:
        kh, vh = np.concatenate([past_k, kh], 2), np.concatenate([past_v, vh], 2)
    visible = np.ones((1, 1, n, m), bool)
    if causal:
        visible = visible & (np.arange(m) <= before + np.arange(n)[:, None])
    if nonpad is not None:
        visible = visible & (np.arange(m) < nonpad[:, None, None, None])
    if mask is not None and mask.dtype == bool:
        visible = visible & mask
    out = reference.attention(qh, kh, vh, attributes.get('scale'), softcap, visible,
                              mask if mask is not None and mask.dtype != bool else None)
    what = f'Attention {seed}: opset {opset}, {attributes}, {[(a, x.shape, str(x.dtype)) for a, x in inputs if x is not None]}'
    # ONNX Runtime does not broadcast every mask, scales f16 before it multiplies, and masks nothing of one row.
    compare(model, inputs, [reference.heads_last(out) if three else out, kh, vh], capfd, what,
            stock=t == np.float32 and (mask is None or mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] in (1, hk)))
            and (len(outputs) == 1 or before > 0) and not (causal and n == 1 and tokens > 1))


# ---- RotaryEmbedding ------------------------------------------------------------------------------------------------


def rotary(seed, capfd):
    r = Draw(seed)
    onnx, four = r.chance(), r.chance()
    t = np.dtype(np.float16 if r.chance() else np.float32)
    interleaved = t == np.float32 or r.chance()
    batch, heads, n, d = r.number(1, 3), r.number(1, 5), r.number(1, 30), r.among(16, 64, 128)
    half = r.among(d // 2, d // 2, d // 4)
    x = r.array(batch, heads, n, d, t=t) if four else r.array(batch, n, heads * d, t=t)
    rows = 50
    cos, sin = r.array(rows, half, t=t), r.array(rows, half, t=t)
    positions = r.rng.integers(0, rows, (batch, n))
    attributes = {'interleaved': int(interleaved)}
    if half != d // 2:
        attributes.update(rotary_embedding_dim=2 * half, num_heads=heads)
    elif not four:
        attributes.update(num_heads=heads)
    ids, tables = positions, (cos, sin)
    if onnx and r.chance(0.3):
        ids, tables = None, (cos[positions], sin[positions])
    elif not onnx and r.chance(0.3):
        ids = np.array([r.number(0, rows - n)])
        positions = np.broadcast_to(ids + np.arange(n), (batch, n))
    inputs = [('X', x), ('cos', tables[0]), ('sin', tables[1]), ('ids', ids)] if onnx else [('X', x), ('ids', ids), ('cos', cos), ('sin', sin)]
    model = models.of_one_node('RotaryEmbedding', inputs, [('out', t, x.ndim)], 23 if onnx else 17, '' if onnx else 'com.microsoft', **attributes)
    out = reference.rotate(x if four else reference.heads_first(x, heads), cos, sin, positions, interleaved)
    what = f'RotaryEmbedding {seed}: {attributes}, onnx {onnx}, {[(a, y.shape) for a, y in inputs if y is not None]}'
    compare(model, inputs, [out if four else reference.heads_last(out)], capfd, what, stock=half == d // 2)


@pytest.mark.parametrize('problem, count', [(group_query, 1500), (multi_head, 1000), (onnx_attention, 1500), (rotary, 500)])
def test_random(problem, count, capfd):
    for seed in range(max(20, int(count * EFFORT))):
        problem(seed, capfd)
