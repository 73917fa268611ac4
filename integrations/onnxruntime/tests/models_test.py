"""Small whole models with and without the provider: the same tokens, and nearly the same numbers."""
import os
import pathlib

import models
import numpy as np
import onnxruntime as ort
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

SHARED = pathlib.Path(os.environ.get('STORIES') or pathlib.Path(os.environ.get('SIMDATTN_SHARED', '../shared')) / 'data' / 'tinyllamas')
MS = {'domain': 'com.microsoft'}


class Graph:
    """Nodes, weights, inputs and outputs as they come."""

    def __init__(self):
        self.nodes, self.weights, self.inputs, self.outputs, self.n = [], [], [], [], 0

    def weight(self, array):
        self.n += 1
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f'w{self.n}'))
        return f'w{self.n}'

    def node(self, op, inputs, outputs=1, **attributes):
        self.n += 1
        names = outputs if isinstance(outputs, list) else [f'v{self.n}']
        self.nodes.append(helper.make_node(op, inputs, names, name=f'{op}.{self.n}', **attributes))
        return names[0]

    def input(self, name, element, shape):
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def output(self, name, shape, element=TensorProto.FLOAT):
        self.outputs.append(helper.make_tensor_value_info(name, element, shape))

    def matmul(self, x, array):
        return self.node('MatMul', [x, self.weight(array)])

    def norm(self, x, weight, bias=None):
        if bias is None:
            return self.node('SimplifiedLayerNormalization', [x, self.weight(weight)], axis=-1, epsilon=1e-5)
        return self.node('LayerNormalization', [x, self.weight(weight), self.weight(bias)], axis=-1, epsilon=1e-5)

    def heads(self, x, heads):
        """[B,n,H*d] as [B,H,n,d]."""
        split = self.node('Reshape', [x, self.weight(np.array([0, 0, heads, -1]))])
        return self.node('Transpose', [split], perm=[0, 2, 1, 3])

    def model(self, opset=17):
        sets = [helper.make_opsetid('', opset), helper.make_opsetid('com.microsoft', 1)]
        graph = helper.make_graph(self.nodes, 'graph', self.inputs, self.outputs, self.weights)
        return helper.make_model(graph, opset_imports=sets, ir_version=11).SerializeToString()


# ---- A Llama --------------------------------------------------------------------------------------------------------


class Stories:
    """A checkpoint of llama2.c; without the file, one of random numbers."""

    def __init__(self):
        path = SHARED / 'stories260K.bin'
        self.real = path.exists()
        if self.real:
            data = path.read_bytes()
            header = np.frombuffer(data, np.int32, 7)
            floats = np.frombuffer(data, np.float32, offset=28)
        else:
            header = np.array([64, 172, 5, 8, 4, 512, 512])
            floats = np.random.default_rng(5).standard_normal(1 << 19, np.float32) * 0.1
        self.dim, self.hidden, self.layers, self.heads, self.kv_heads, self.vocabulary, self.length = (int(abs(x)) for x in header)
        self.d, at = self.dim // self.heads, 0
        kv = self.d * self.kv_heads

        def take(*shape):
            nonlocal at
            at += int(np.prod(shape))
            return floats[at - int(np.prod(shape)):at].reshape(shape)

        self.embedding = take(self.vocabulary, self.dim)
        shapes = {'attention_norm': (self.dim,), 'q': (self.dim, self.dim), 'k': (kv, self.dim), 'v': (kv, self.dim), 'o': (self.dim, self.dim),
                  'norm': (self.dim,), 'gate': (self.hidden, self.dim), 'down': (self.dim, self.hidden), 'up': (self.hidden, self.dim)}
        self.w = {name: take(self.layers, *shape) for name, shape in shapes.items()}
        self.last = take(self.dim)

    def model(self, onnx, element=TensorProto.FLOAT):
        """With GroupQueryAttention, or with the operators of ONNX itself (opset 23)."""
        g, d, t = Graph(), self.d, helper.tensor_dtype_to_np_dtype(element)
        angles = np.arange(self.length)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        cos, sin = g.weight(np.cos(angles).astype(t)), g.weight(np.sin(angles).astype(t))
        x = g.node('Gather', [g.weight(self.embedding), g.input('tokens', TensorProto.INT64, ['b', 'n'])])
        ids = g.input('positions', TensorProto.INT64, ['b', 'n'])
        if not onnx:
            lengths = [g.input('seqlens_k', TensorProto.INT32, ['b']), g.input('total', TensorProto.INT32, [])]
        for layer in range(self.layers):
            w = {name: array[layer].T for name, array in self.w.items()}
            y = g.norm(x, w['attention_norm'])
            q, k, v = (g.matmul(y, w[name]) for name in 'qkv')
            if element != TensorProto.FLOAT:
                q, k, v = (g.node('Cast', [a], to=element) for a in (q, k, v))
            cache = [g.input(f'past_{a}{layer}', element, ['b', self.kv_heads, 'past', d]) for a in 'kv']
            present = [f'present_{a}{layer}' for a in 'kv']
            for name in present:
                g.output(name, ['b', self.kv_heads, 'total', d], element)
            if onnx:
                q, k, v = (g.heads(a, h) for a, h in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads)))
                q, k = (g.node('RotaryEmbedding', [a, cos, sin, ids], interleaved=1) for a in (q, k))
                y = g.node('Attention', [q, k, v, '', *cache], [f'attended{layer}', *present], is_causal=1)
                y = g.node('Reshape', [g.node('Transpose', [y], perm=[0, 2, 1, 3]), g.weight(np.array([0, 0, -1]))])
            else:  # heads of 8 numbers are too short for ONNX Runtime's do_rotary
                q, k = (g.node('RotaryEmbedding', [a, ids, cos, sin], interleaved=1, num_heads=h, **MS)
                        for a, h in ((q, self.heads), (k, self.kv_heads)))
                y = g.node('GroupQueryAttention', [q, k, v, *cache, *lengths], [f'attended{layer}', *present], num_heads=self.heads,
                           kv_num_heads=self.kv_heads, **MS)
            if element != TensorProto.FLOAT:
                y = g.node('Cast', [y], to=TensorProto.FLOAT)
            x = g.node('Add', [x, g.matmul(y, w['o'])])
            y = g.norm(x, w['norm'])
            gate = g.matmul(y, w['gate'])
            y = g.node('Mul', [g.node('Mul', [gate, g.node('Sigmoid', [gate])]), g.matmul(y, w['up'])])
            x = g.node('Add', [x, g.matmul(y, w['down'])])
        x = g.node('MatMul', [g.norm(x, self.last), g.weight(self.embedding.T)], ['logits'])
        g.output('logits', ['b', 'n', self.vocabulary])
        return g.model(23 if onnx else 17)

    def write(self, session, onnx, count, t=np.float32):
        """The most likely tokens after the first, and the logits of each step."""
        past = {f'past_{a}{layer}': np.zeros((1, self.kv_heads, 0, self.d), t) for a in 'kv' for layer in range(self.layers)}
        tokens, logits, new = [1], [], [1]
        names = [o.name for o in session.get_outputs()]
        while len(tokens) < count:
            end = len(tokens)
            feed = {'tokens': np.array([new]), 'positions': np.arange(end - len(new), end)[None], **past}
            if not onnx:
                feed.update(seqlens_k=np.array([end - 1], np.int32), total=np.array(end, np.int32))
            out = dict(zip(names, session.run(None, feed)))
            past = {name.replace('present', 'past'): x for name, x in out.items() if name.startswith('present')}
            logits.append(out['logits'][0, -1])
            new = [int(logits[-1].argmax())]
            tokens += new
        return tokens, np.array(logits)


@pytest.mark.parametrize('onnx', [False, True])
def test_stories(onnx, capfd):
    stories = Stories()
    model, count = stories.model(onnx), min(stories.length, 257)
    session = models.session(model, True, 2, log='1')
    said = capfd.readouterr().err
    assert f'took {3 * stories.layers} nodes, left 0' in said, said
    ours, theirs = stories.write(session, onnx, count), stories.write(models.session(model, False, 2), onnx, count)
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(ours[1], theirs[1], atol=2e-3)
    if stories.real:
        assert len(set(ours[0])) > 50, ours[0]  # it is text


def test_stories_f16():
    stories = Stories()
    model = stories.model(False, TensorProto.FLOAT16)
    ours, theirs = (stories.write(models.session(model, ours, 1), False, 120, np.float16) for ours in (True, False))
    assert ours[0] == theirs[0]


# ---- BERT, and a decoder like Whisper's -----------------------------------------------------------------------------


def layer_norm(g, rng, x, e):
    return g.norm(x, 1 + 0.1 * rng.standard_normal(e).astype(np.float32), 0.1 * rng.standard_normal(e).astype(np.float32))


def test_bert(capfd):
    """Biases in the node, padded sequences."""
    rng, e, heads, vocabulary, layers = np.random.default_rng(7), 96, 6, 300, 3
    g = Graph()
    tokens, mask = g.input('tokens', TensorProto.INT64, ['b', 'n']), g.input('mask', TensorProto.INT32, ['b', 'n'])

    def w(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    x = layer_norm(g, rng, g.node('Gather', [g.weight(w(vocabulary, e)), tokens]), e)
    for _ in range(layers):
        q, k, v = (g.matmul(x, w(e, e)) for _ in range(3))
        y = g.node('MultiHeadAttention', [q, k, v, g.weight(w(3 * e)), mask], num_heads=heads, **MS)
        x = layer_norm(g, rng, g.node('Add', [x, g.matmul(y, w(e, e))]), e)
        y = g.matmul(g.node('Gelu', [g.matmul(x, w(e, 4 * e))], **MS), w(4 * e, e))
        x = layer_norm(g, rng, g.node('Add', [x, y]), e)
    g.node('MatMul', [x, g.weight(w(e, vocabulary))], ['scores'])
    g.output('scores', ['b', 'n', vocabulary])
    model = g.model()
    session = models.session(model, True, 2, log='1')
    assert f'took {layers} nodes, left 0' in capfd.readouterr().err
    feed = {'tokens': rng.integers(0, vocabulary, (3, 50)), 'mask': (np.arange(50) < np.array([[50], [31], [8]])).astype(np.int32)}
    ours, theirs = session.run(None, feed)[0], models.session(model, False).run(None, feed)[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


def test_whisper(capfd):
    """A decoder with its own past and keys of an encoder in four dimensions."""
    rng, e, heads, vocabulary, layers, frames = np.random.default_rng(8), 64, 4, 200, 2, 150
    g = Graph()
    tokens = g.input('tokens', TensorProto.INT64, ['b', 'n'])

    def w(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    x = g.node('Gather', [g.weight(3 * w(vocabulary, e)), tokens])
    for layer in range(layers):
        past = [g.input(f'past_{a}{layer}', TensorProto.FLOAT, ['b', heads, 'past', e // heads]) for a in 'kv']
        cross = [g.input(f'cross_{a}{layer}', TensorProto.FLOAT, ['b', heads, 'frames', e // heads]) for a in 'kv']
        present = [f'present_{a}{layer}' for a in 'kv']
        for name in present:
            g.output(name, ['b', heads, 'total', e // heads])
        y = layer_norm(g, rng, x, e)
        y = g.node('MultiHeadAttention', [*(g.matmul(y, w(e, e)) for _ in range(3)), g.weight(w(3 * e)), '', '', *past],
                   [f'own{layer}', *present], num_heads=heads, unidirectional=1, **MS)
        x = g.node('Add', [x, g.matmul(y, w(e, e))])
        y = g.node('MultiHeadAttention', [g.matmul(layer_norm(g, rng, x, e), w(e, e)), *cross], num_heads=heads, **MS)
        x = g.node('Add', [x, g.matmul(y, w(e, e))])
    g.node('MatMul', [x, g.weight(w(e, vocabulary))], ['logits'])
    g.output('logits', ['b', 'n', vocabulary])
    model = g.model()
    encoded = {f'cross_{a}{layer}': rng.standard_normal((1, heads, frames, e // heads), np.float32) for a in 'kv' for layer in range(layers)}

    def write(session):
        names = [o.name for o in session.get_outputs()]
        past = {f'past_{a}{layer}': np.zeros((1, heads, 0, e // heads), np.float32) for a in 'kv' for layer in range(layers)}
        said, new = [], [1, 2, 3, 4]
        for _ in range(60):
            out = dict(zip(names, session.run(None, {'tokens': np.array([new]), **past, **encoded})))
            past = {name.replace('present', 'past'): x for name, x in out.items() if name.startswith('present')}
            new = [int(out['logits'][0, -1].argmax())]
            said += new
        return said

    session = models.session(model, True, 2, log='1')
    assert f'took {layers} nodes, left {layers}' in capfd.readouterr().err  # those of the encoder see all keys
    assert write(session) == write(models.session(model, False, 2))


# ---- bf16, and attention that ONNX Runtime joins itself -------------------------------------------------------------


def rounded(x):
    """f32 numbers as bf16 has them, to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize('mask', [False, True])
def test_bf16(mask, capfd):
    """Attention of ONNX, for which ONNX Runtime has no kernel of bf16: against float64 of the numbers that bf16 has."""
    g, rng, heads, d = Graph(), np.random.default_rng(9), 4, 32
    names = ['Q', 'K', 'V'] + (['mask'] if mask else [])
    feed = {name: rng.standard_normal((2, heads, 20, d), np.float32) for name in names[:3]}
    if mask:
        feed['mask'] = rng.standard_normal((20, 20), np.float32)
    inputs = [g.node('Cast', [g.input(name, TensorProto.FLOAT, list(feed[name].shape))], to=TensorProto.BFLOAT16) for name in names]
    y = g.node('Attention', inputs, softcap=0.0, is_causal=int(not mask))
    g.node('Cast', [y], ['out'], to=TensorProto.FLOAT)
    g.output('out', [2, heads, 20, d])
    session = models.session(g.model(23), True, 2, log='1')
    assert 'took 1 nodes, left 0' in capfd.readouterr().err
    q, k, v = (rounded(feed[name]) for name in names[:3])
    visible = None if mask else np.tri(20, dtype=bool)
    wanted = reference.attention(q, k, v, visible=visible, bias=rounded(feed['mask']) if mask else None)
    got = session.run(None, feed)[0]
    np.testing.assert_allclose(got, wanted, atol=2e-2)
    assert np.abs(got - wanted).max() > 0 and (rounded(got) == got).all()


def test_attention_that_is_joined_later(tmp_path, capfd):
    """MatMul and Softmax of a BERT, which ONNX Runtime makes an Attention of after providers have chosen: it is not taken, runs as
    without the provider, and the optimised model can be saved because it has no node of a provider."""
    g, rng, e, heads, n = Graph(), np.random.default_rng(10), 32, 2, 6
    d = e // heads
    x = layer_norm(g, rng, g.input('x', TensorProto.FLOAT, ['b', 'n', e]), e)

    def projected(perm):
        w = (rng.standard_normal((e, e)) / np.sqrt(e)).astype(np.float32)
        y = g.node('Add', [g.matmul(x, w), g.weight(rng.standard_normal(e).astype(np.float32))])
        return g.node('Transpose', [g.node('Reshape', [y, g.weight(np.array([0, 0, heads, d]))])], perm=perm)

    q, k, v = projected([0, 2, 1, 3]), projected([0, 2, 3, 1]), projected([0, 2, 1, 3])
    t = g.node('Div', [g.node('MatMul', [q, k]), g.weight(np.array(np.sqrt(d), np.float32))])
    mask = g.input('mask', TensorProto.INT64, ['b', 'n'])
    mask = g.node('Unsqueeze', [g.node('Unsqueeze', [mask], axes=[1])], axes=[2])
    mask = g.node('Sub', [g.weight(np.array(1, np.float32)), g.node('Cast', [mask], to=TensorProto.FLOAT)])
    mask = g.node('Mul', [mask, g.weight(np.array(-10000, np.float32))])
    y = g.node('MatMul', [g.node('Softmax', [g.node('Add', [t, mask])], axis=3), v])
    y = g.node('Reshape', [g.node('Transpose', [y], perm=[0, 2, 1, 3]), g.weight(np.array([0, 0, e]))])
    y = g.node('Add', [g.matmul(y, (rng.standard_normal((e, e)) / np.sqrt(e)).astype(np.float32)), g.weight(np.zeros(e, np.float32))])
    y = g.node('Add', [y, x])
    g.node('LayerNormalization', [y, g.weight(np.ones(e, np.float32)), g.weight(np.zeros(e, np.float32))], ['out'], axis=-1)
    g.output('out', ['b', 'n', e])
    options = models.add(ort.SessionOptions(), log='1')
    options.optimized_model_filepath = str(tmp_path / 'optimised.onnx')
    session = ort.InferenceSession(g.model(12), options)
    assert 'takes ' not in capfd.readouterr().err
    assert 'Attention' in {node.op_type for node in models.load(tmp_path / 'optimised.onnx').graph.node}
    feed = {'x': rng.standard_normal((2, n, e), np.float32), 'mask': np.array([[1] * n, [1] * 4 + [0] * 2])}
    np.testing.assert_allclose(session.run(None, feed)[0], models.session(g.model(12), False).run(None, feed)[0], atol=1e-5)
