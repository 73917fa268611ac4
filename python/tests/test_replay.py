"""A call whose arguments came before takes the short way, and gives what the long way gives; everything else takes the
long one."""
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import simdattn
from simdattn import _attention, _cache, _rope, _run, _sdpa, _softmax
from test_arrays import refused
from simdattn._abi import Code

pytestmark = pytest.mark.skipif(_run._core is None, reason='the extension module is not built')


@pytest.fixture(autouse=True)
def nothing_learned():
    for module in (_attention, _rope, _sdpa, _softmax):
        module._TEMPLATES.clear()
    _cache._APPENDS.clear()


def learned(templates):
    return [x for x in templates.values() if type(x).__name__ == 'PyCapsule']


def arrays(random, rows=5, keys=9, dtype=np.float32):
    return [random.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((1, 4, rows, 16), (1, 2, keys, 16), (1, 2, keys, 16))]


def same(x, y):
    x, y = (a if isinstance(a, tuple) else (a,) for a in (x, y))
    return len(x) == len(y) and all(type(a) is type(b) and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(x, y))


CALLS = {
    'plain': {}, 'causal': {'causal': True, 'offset': 0}, 'scale': {'scale': 0.5, 'softcap': 2.0, 'window_left': 3}, 'lse': {'return_lse': True},
    'mask': {'mask': np.tri(5, 9, dtype=bool)}, 'bias': {'bias': np.linspace(0, 1, 45, dtype=np.float32).reshape(5, 9)},
    'numbers': {'sinks': np.ones(4, np.float32), 'kv_length': np.array([7], np.int32)}, 'arithmetic': {'arithmetic': 'bf16'},
    'target': {'target': 'scalar'}, 'lists': {'lists': np.array([[[[0, 3, 4]]]], np.int32)},
}


@pytest.mark.parametrize('name', CALLS)
def test_attention(random, name):
    q, k, v = arrays(random)
    for _ in range(2):
        simdattn.attention(q, k, v, **CALLS[name])
    assert len(learned(_attention._TEMPLATES)) == 1
    for _ in range(3):  # other numbers at other addresses
        q, k, v = arrays(random)
        options = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in CALLS[name].items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_attention, 'Problem', None)  # what the long way begins with
            found = simdattn.attention(q, k, v, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_attention, 'replay', _run._never)
            assert same(found, simdattn.attention(q, k, v, **options))
    assert len(learned(_attention._TEMPLATES)) == 1


def test_arrays_that_were_one_are_not_later(random):
    """Addresses that happened to be equal when the call was learned."""
    x = random.standard_normal((1, 2, 7, 16), dtype=np.float32)
    for _ in range(3):
        simdattn.attention(x, x, x)
    q, k, v = (random.standard_normal(x.shape, dtype=np.float32) for _ in range(3))
    found = simdattn.attention(q, k, v)
    assert len(learned(_attention._TEMPLATES)) == 1
    _attention._TEMPLATES.clear()
    assert same(found, simdattn.attention(q, k, v))


def test_what_makes_another_call(random):
    """Everything that a struct depends on is in the key."""
    q, k, v = arrays(random)
    half, bits = [x.astype(np.float16) for x in (q, k, v)], [simdattn.to_bf16(x) for x in (q, k, v)]
    wide = [np.repeat(x, 2, axis=3)[..., ::1][..., :16] for x in (q, k, v)]  # other strides
    calls = [lambda a=a, o=o: simdattn.attention(*a, **o) for a in ((q, k, v), half, bits, wide, (q, half[1], bits[2]))
             for o in ({}, {'causal': True}, {'causal': True, 'offset': 0}, {'scale': 1.0}, {'scale': 1}, {'window_left': 1}, {'window_right': 1})]
    wanted = [call() for call in calls]
    for _ in range(2):
        for call in calls:
            call()
    assert len(learned(_attention._TEMPLATES)) == len(calls)
    assert all(same(call(), w) for call, w in zip(calls, wanted))


def test_the_others(random):
    x, table = random.standard_normal((1, 2, 5, 16), dtype=np.float32), simdattn.rope_table(40, 16)
    out = np.empty_like(x)
    weight = np.linspace(1, 2, 16, dtype=np.float32)
    where = np.array([[3, 1, 4, 1, 5]], np.int64)
    calls = {
        _rope: [lambda: simdattn.rope(x, *table), lambda: simdattn.rope(x, *table, start=3, pairing='interleaved'),
                lambda: simdattn.rope(x, *table, where, inverse=True), lambda: simdattn.rope(x, *table, out=out),
                lambda: simdattn.rope(x, *table, norm='rms', norm_epsilon=1e-5, norm_weight=weight)],
        _softmax: [lambda: simdattn.softmax(x), lambda: simdattn.softmax(x, return_lse=True, causal=True), lambda: simdattn.softmax(x, out=out),
                   lambda: simdattn.softmax(x, scale=2.0, softcap=1.0), lambda: simdattn.softmax(x, softcap=2.0, scale=1.0),
                   lambda: simdattn.softmax(x, sinks=np.ones(2, np.float32))],
        _sdpa: [lambda: simdattn.scaled_dot_product_attention(x, x, x, is_causal=True), lambda: simdattn.scaled_dot_product_attention(x[0], x[0], x[0]),
                lambda: simdattn.scaled_dot_product_attention(x[0, 0], x[0, 0], x[0, 0], out=out[0, 0]),
                lambda: simdattn.scaled_dot_product_attention(x, x, x, np.tri(5, dtype=bool), scale=0.3)],
    }
    for module, some in calls.items():
        wanted = [call() for call in some]
        wanted = [tuple(a.copy() for a in w) if isinstance(w, tuple) else w.copy() for w in wanted]
        for call in some:
            call()
        assert len(learned(module._TEMPLATES)) == len(some), module
        x += 0.0
        for call, w in itertools.product(some, [None]):
            assert same(call(), wanted[some.index(call)])
    assert simdattn.scaled_dot_product_attention(x[0, 0], x[0, 0], x[0, 0], out=out[0, 0]).base is out


def test_a_cache(random):
    table = simdattn.rope_table(90, 16)
    _, k, v = arrays(random, keys=1)
    caches = [simdattn.KVCache(1, 2, 90, 16) for _ in range(2)]
    rows = [[random.standard_normal((1, 2, 1, 16), dtype=np.float32) for _ in range(2)] for _ in range(80)]
    for k, v in rows:
        caches[0].append(k, v, rope=table)
        caches[1].append(k, v, rope=table, counts=[1])  # never the short way
    assert len(learned(_cache._APPENDS)) == 1
    assert caches[0].lengths.tolist() == [80] and caches[0].keys.memory[0].tobytes() == caches[1].keys.memory[0].tobytes()
    assert caches[0].values.memory[0].tobytes() == caches[1].values.memory[0].tobytes()
    for n in (1, 17, 80):
        q = random.standard_normal((1, 4, 1, 16), dtype=np.float32)
        for cache in caches:
            cache.lengths = [n]
        found = [cache.attend(q) for cache in caches]
        assert same(*found) and same(found[0], simdattn.attention(q, caches[0].keys, caches[0].values, kv_length=[n], causal=True))
    assert len(learned(_attention._TEMPLATES)) == 1
    caches[0].lengths = [90]
    refused(Code.RANGE, 'k: has 1 rows for sequence 0, which has 90 of 90 tokens', lambda: caches[0].append(*rows[0], rope=table), caches[0]._lengths)


# One template serves the caches of all layers, but none of another form. Pages and scales have addresses of their own.
@pytest.mark.parametrize('options', [dict(dtype='f32'), dict(dtype='int8'), dict(dtype='q8_0'), dict(dtype='bf16', page_size=32, n_pages=4)])
def test_caches_of_layers(random, options, monkeypatch):
    def made(capacity=128):
        table = {'block_table': np.array([random.permutation(4)[:capacity // 32]], np.int32)} if 'page_size' in options else {}
        return simdattn.KVCache(1, 2, capacity, 32, **options, **table)

    rows, q = random.standard_normal((9, 1, 2, 20, 32), dtype=np.float32), random.standard_normal((1, 4, 1, 32), dtype=np.float32)
    layers = [made() for _ in range(5)]
    for i, cache in enumerate(layers[:2]):
        cache.append(rows[i], rows[i + 1])
        cache.attend(q)
    monkeypatch.setattr(_cache, 'put_view', None)  # what the long ways begin with
    monkeypatch.setattr(_attention, 'Problem', None)
    for i, cache in enumerate(layers[2:], 2):
        cache.append(rows[i], rows[i + 1])
    found = [cache.attend(q) for cache in layers[2:]]
    with pytest.raises(TypeError):
        made(64).attend(q)
    monkeypatch.undo()
    assert len(learned(_cache._APPENDS)) == len(learned(_attention._TEMPLATES)) == 1
    monkeypatch.setattr(_cache, 'replay', _run._never)
    monkeypatch.setattr(_attention, 'replay', _run._never)
    for i, x in enumerate(found, 2):
        alone = made()
        alone.append(rows[i], rows[i + 1])
        assert same(x, alone.attend(q)) and layers[i].lengths.tolist() == [20]


# The lengths of both stores bound what is read, by whatever way.
def test_stores_of_two_caches(random):
    caches, q = [simdattn.KVCache(1, 2, 64, 16, dtype='f32') for _ in range(2)], random.standard_normal((1, 4, 1, 16), dtype=np.float32)
    for cache, n in zip(caches, (30, 20)):
        x = random.standard_normal((1, 2, n, 16), dtype=np.float32)
        cache.append(x, x)
    for _ in range(3):
        found = simdattn.attention(q, caches[0].keys, caches[1].values)
        assert same(found, simdattn.attention(q, caches[0].keys, caches[1].values, kv_length=[20]))
        refused(Code.RANGE, r'kv_length: is \[30\]; the cache has \[20\] tokens',
                lambda: simdattn.attention(q, caches[0].keys, caches[1].values, kv_length=caches[0].keys.lengths))


def test_refusals_are_those_of_the_long_way(random):
    q, k, v = arrays(random)
    out = np.empty_like(q)
    for _ in range(3):
        simdattn.attention(q, k, v, out=out)
    refused(Code.OVERLAP, 'out', lambda: simdattn.attention(out, k, v, out=out), out)
    out.flags.writeable = False
    refused(Code.OVERLAP, 'out: is read-only', lambda: simdattn.attention(q, k, v, out=out), out)
    lengths = np.array([9], np.int32)
    for _ in range(3):
        simdattn.attention(q, k, v, kv_length=lengths)
    lengths[0] = 10
    refused(Code.RANGE, r'kv_length.*\[10\]|kv_length: .*n_kv', lambda: simdattn.attention(q, k, v, kv_length=lengths))
    for _ in range(3):
        with pytest.raises(simdattn.Error, match='is a masked array'):
            simdattn.attention(np.ma.masked_less(q, 0), k, v)


def test_memory_stays_bounded(random):
    for n in range(1, 1500):
        k = np.ones((1, 1, n, 8), np.float32)
        simdattn.attention(k[:, :, :1], k, k)
        simdattn.attention(k[:, :, :1], k, k)
    assert len(_attention._TEMPLATES) <= 1024


@pytest.mark.skipif(not os.path.exists('/proc/self/statm'), reason='only Linux says how much memory a process has')
def test_what_is_forgotten_is_given_back(random):
    q, k, v = arrays(random)

    def pages_after(calls):
        for scale in calls:
            for _ in range(2):
                simdattn.attention(q, k, v, scale=float(scale))
        with open('/proc/self/statm', encoding='ascii') as file:
            return int(file.read().split()[1])

    before = pages_after(range(1, 3000))
    assert pages_after(range(3000, 9000)) < before + 2000  # each call that is kept is more than a page


def test_the_target_is_the_named_one():
    """Targets have the same bits, but here a call of the default target is refused."""
    program = '''
import numpy as np, simdattn
from simdattn import _attention
x = [np.ones((1, 2, 5, 16), np.float32) for _ in range(3)]
for _ in range(2): simdattn.attention(*x, target='scalar')
_attention.Problem = None  # what the long way begins with
simdattn.attention(*x, target='scalar')
'''
    subprocess.run([sys.executable, '-c', program], check=True, env={**os.environ, 'SIMDATTN_TARGET': 'nothing'})


def test_without_the_extension():
    """PyPy and free-threaded builds do not load it: ctypes makes the same calls."""
    program = '''
import sys
sys.modules['simdattn._core'] = None
import numpy as np, simdattn
from simdattn import _run
assert _run._core is None
random = np.random.default_rng(20)
x = random.standard_normal((1, 2, 50, 16), dtype=np.float32)
table = simdattn.rope_table(60, 16)
cache = simdattn.KVCache(1, 2, 60, 16)
cache.append(x, x, rope=table)
print(hash((simdattn.attention(x, x, x, causal=True).tobytes(), simdattn.rope(x, *table).tobytes(), cache.attend(x).tobytes(),
      b''.join(a.tobytes() for a in simdattn.softmax(x, return_lse=True)), simdattn.scaled_dot_product_attention(x, x, x).tobytes())))
'''
    found = [subprocess.run([sys.executable, '-c', text], check=True, stdout=subprocess.PIPE, env={**os.environ, 'PYTHONHASHSEED': '0'}).stdout
             for text in (program, program.replace("sys.modules['simdattn._core'] = None", '').replace('assert _run._core is None', ''))]
    assert found[0] == found[1]
