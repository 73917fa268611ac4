"""The provider among others: options, errors, threads, processes, and what ONNX Runtime does with providers."""
import inspect
import os
import subprocess
import sys
import threading

import models
import numpy as np
import onnxruntime as ort
import pytest

RNG = np.random.default_rng(3)
HQ, HK, D = 4, 2, 32


def numbers(*shape, t=np.float32):
    return RNG.standard_normal(shape).astype(t)


def gqa(n=5, past=9, capacity=32, **changes):
    total = past + n
    inputs = [('query', numbers(1, n, HQ * D)), ('key', numbers(1, n, HK * D)), ('value', numbers(1, n, HK * D)),
              ('past_key', numbers(1, HK, capacity, D)), ('past_value', numbers(1, HK, capacity, D)),
              ('seqlens_k', np.array([total - 1], np.int32)), ('total', np.array(total, np.int32))]
    inputs = [(name, changes.get(name, x)) for name, x in inputs]
    model = models.of_one_node('GroupQueryAttention', inputs, [('out', np.float32, 3), ('pk', np.float32, 4), ('pv', np.float32, 4)], 17,
                               'com.microsoft', num_heads=HQ, kv_num_heads=HK)
    return model, dict(inputs)


def python(program, **environment):
    return subprocess.run([sys.executable, '-c', program], cwd=os.path.dirname(__file__), capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})


def test_helper_may_be_called_twice():
    simdattn = pytest.importorskip('simdattn')
    model, feed = gqa()
    for _ in range(2):
        options = simdattn.onnxruntime.add(ort.SessionOptions(), library=models.LIBRARY)
        session = ort.InferenceSession(model.SerializeToString(), options)
        assert session.get_providers()[0] == models.PROVIDER
        session.run(None, feed)
    with pytest.raises(ValueError, match='arithmetic'):
        simdattn.onnxruntime.add(ort.SessionOptions(), arithmetic='f64')
    with pytest.raises(TypeError):
        simdattn.onnxruntime.add(ort.SessionOptions(), arithmetics='f32')


def test_wrong_types():
    """They raise TypeError or Error and name the argument, as python/tests/test_torch_wrong_types.py asks of other modules."""
    ours = pytest.importorskip('simdattn.onnxruntime')
    good = {'add': {'options': ort.SessionOptions(), 'arithmetic': 'f32', 'log': False}, 'register': {}}
    assert sorted(good) == sorted(ours.__all__)
    for name, options in good.items():
        function = getattr(ours, name)
        function(**options, library=models.LIBRARY)
        for argument in inspect.signature(function).parameters:
            for wrong in (object(), 2.5, [1, 'two'], {}, np.array(['a', 'b'])):
                with pytest.raises((TypeError, ours.Error), match=argument):
                    function(**{**options, argument: wrong})


def test_policy_chooses_it():
    models.add(ort.SessionOptions())
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    assert models.PROVIDER in ort.InferenceSession(gqa()[0].SerializeToString(), options).get_providers()


def test_providers_of_the_session_turn_it_off():
    options = models.add(ort.SessionOptions())
    session = ort.InferenceSession(gqa()[0].SerializeToString(), options, providers=['CPUExecutionProvider'])
    assert session.get_providers() == ['CPUExecutionProvider']


@pytest.mark.parametrize('settings, says', [({'arithmetic': 'f64'}, 'neither auto, f32, bf16 nor int8'), ({'log': 'yes'}, 'neither 0 nor 1'),
                                            ({'speed': '2'}, 'is no option')])
def test_bad_options(settings, says, capfd):
    """ONNX Runtime for Python prints what a provider says, and goes on without it."""
    session = models.session(gqa()[0], True, **settings)
    assert session.get_providers() == ['CPUExecutionProvider']
    assert says in capfd.readouterr().out


def test_environment():
    program = 'import provider_test as t, models; m, f = t.gqa(); models.session(m, True).run(None, f)'
    told = python(program, SIMDATTN_ONNXRUNTIME_LOG='1')
    assert "takes GroupQueryAttention 'node'" in told.stderr and 'took 1 nodes, left 0' in told.stderr, told.stderr
    assert 'took 1 nodes' not in python(program).stderr
    assert 'SIMDATTN_TARGET names a target' in python(program, SIMDATTN_TARGET='nothing').stdout
    assert 'SIMDATTN_ONNXRUNTIME_ARITHMETIC is neither' in python(program, SIMDATTN_ONNXRUNTIME_ARITHMETIC='f8').stdout
    scalar = python(program, SIMDATTN_TARGET='scalar', SIMDATTN_ONNXRUNTIME_LOG='1')
    assert scalar.returncode == 0 and ', scalar' in scalar.stderr, scalar.stderr


BAD = [
    ('key', numbers(1, 5, HK * D + 1), 'key has shape'),
    ('value', numbers(1, 4, HK * D), 'value has shape'),
    ('past_key', numbers(1, HK, 32, D + 1), 'past_key has shape'),
    ('past_value', numbers(1, HK, 31, D), 'past_value has shape'),
    ('query', numbers(1, 5, HQ * D + 1), 'query cannot be divided'),
    ('seqlens_k', np.array([14], np.int32), 'seqlens_k has 14'),
    ('seqlens_k', np.array([-1], np.int32), 'seqlens_k has -1'),
    ('seqlens_k', np.array([2], np.int32), 'seqlens_k has 2'),
    ('seqlens_k', np.array([13, 13], np.int32), 'seqlens_k has another number'),
    ('total', np.array(-3, np.int32), 'total_sequence_length is negative'),
]


@pytest.mark.parametrize('name, value, says', BAD)
def test_bad_inputs_are_named_and_nothing_is_written(name, value, says):
    model, feed = gqa()
    feed[name] = value
    session = models.session(model, True)
    binding = session.io_binding()
    out = ort.OrtValue.ortvalue_from_numpy(np.full((1, 5, HQ * D), 7, np.float32))
    kept = {n: ort.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feed.items()}
    for n, x in kept.items():
        binding.bind_ortvalue_input(n, x)
    binding.bind_ortvalue_output('out', out)
    for n, past in (('pk', 'past_key'), ('pv', 'past_value')):
        binding.bind_ortvalue_output(n, kept[past])
    with pytest.raises(Exception, match=f"GroupQueryAttention 'node': input .*{says}"):
        session.run_with_iobinding(binding)
    assert (out.numpy() == 7).all()
    for past in ('past_key', 'past_value'):
        assert kept[past].numpy().tobytes() == feed[past].tobytes()
    session.run(None, gqa()[1])  # and the session is as good as before


def test_a_cache_in_place_is_not_copied():
    model, feed = gqa(n=1, past=20)
    session = models.session(model, True, 2)
    binding = session.io_binding()
    kept = {n: ort.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feed.items()}
    for n, x in kept.items():
        binding.bind_ortvalue_input(n, x)
    out = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, HQ * D), np.float32))
    binding.bind_ortvalue_output('out', out)
    binding.bind_ortvalue_output('pk', kept['past_key'])
    binding.bind_ortvalue_output('pv', kept['past_value'])
    session.run_with_iobinding(binding)
    wanted = models.session(model, False).run(None, feed)
    np.testing.assert_allclose(out.numpy(), wanted[0], atol=1e-5)
    for past, new in (('past_key', 'key'), ('past_value', 'value')):
        got = kept[past].numpy()
        assert got[0, :, 20].tobytes() == feed[new].tobytes()
        assert np.delete(got, 20, 2).tobytes() == np.delete(feed[past], 20, 2).tobytes()  # behind the new token too


def test_one_value_for_several_inputs():
    x = numbers(1, HQ, 6, D)
    inputs = [('x', x), ('x', x), ('x', x)]
    model = models.of_one_node('Attention', inputs, [('out', np.float32, 4)], 23, is_causal=1)
    got = models.session(model, True).run(None, {'x': x})[0]
    np.testing.assert_allclose(got, models.session(model, False).run(None, {'x': x})[0], atol=1e-5)


def test_many_sessions_and_threads():
    model, feed = gqa()
    sessions = [models.session(model, True, threads) for threads in (1, 2, 3)]
    wanted = [x.tobytes() for x in sessions[0].run(None, feed)]
    wrong = []

    def work(session):
        for _ in range(50):
            if [x.tobytes() for x in session.run(None, feed)] != wanted:
                wrong.append(session)

    threads = [threading.Thread(target=work, args=(s,)) for s in sessions for _ in range(3)]
    for t in threads:
        t.start()
    del sessions[1]  # a session ends before the others
    for t in threads:
        t.join()
    assert not wrong
    del sessions[0]
    sessions[0].run(None, feed)


def test_ends_in_any_order_and_forks():
    program = '''
import os, provider_test as t, models, onnxruntime as ort
m, f = t.gqa()
a = models.session(m, True, 2)
want = [x.tobytes() for x in a.run(None, f)]
pid = os.fork()
b = models.session(m, True, 1)
assert [x.tobytes() for x in b.run(None, f)] == want
if pid == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
del a
b.run(None, f)
del b
ort.unregister_execution_provider_library('simdattn')
c = models.session(m, True)
assert [x.tobytes() for x in c.run(None, f)] == want
print('well')
'''
    r = python(program)
    assert r.returncode == 0 and 'well' in r.stdout, r.stderr[-2000:]


def test_optimised_model_is_refused_with_a_word(tmp_path):
    options = models.add(ort.SessionOptions())
    options.optimized_model_filepath = str(tmp_path / 'optimised.onnx')
    with pytest.raises(Exception, match='compiled nodes'):
        ort.InferenceSession(gqa()[0].SerializeToString(), options)


def test_what_is_left_is_named(capfd):
    x = numbers(1, HQ, 6, D)
    model = models.of_one_node('Attention', [('Q', x), ('K', x), ('V', x)], [('out', np.float32, 4)], 23, is_causal=1, softcap=2.0)
    session = models.session(model, True, log='1')
    assert "leaves Attention 'node' to ONNX Runtime: softcap with masked keys" in capfd.readouterr().err
    session.run(None, {'Q': x, 'K': x, 'V': x})


@pytest.mark.parametrize('rank, mask, causal', [(3, None, 1), (4, None, 1), (4, None, 0), (4, bool, 0), (3, np.float32, 0)])
def test_few_rows_are_given_back(rank, mask, causal, capfd):
    """Where a model does not say how many rows come, ONNX Runtime's kernel has those that it runs as fast: to the bit."""
    def feed_of(n):
        q, k = ([n, HQ * D], [n, HK * D]) if rank == 3 else ([HQ, n, D], [HK, n, D])
        feed = {'Q': numbers(2, *q), 'K': numbers(2, *k), 'V': numbers(2, *k)}
        return feed | ({'mask': np.tril(np.ones((n, n))).astype(mask)} if mask else {})

    heads = {'q_num_heads': HQ, 'kv_num_heads': HK} if rank == 3 else {}
    model = models.of_one_node('Attention', list(feed_of(2).items()), [('out', np.float32, rank)], is_causal=causal, **heads)
    ours, theirs = models.session(model, True, 2, log='1'), models.session(model, False, 2)
    assert "gives Attention 'node' back where few rows or keys come" in capfd.readouterr().err
    same = {}
    for n in (16, 32, 33, 64, 330):
        feed = feed_of(n)
        got, wanted = ours.run(None, feed)[0], theirs.run(None, feed)[0]
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        same[n] = got.tobytes() == wanted.tobytes()
    assert same == {16: True, 32: True, 33: not causal, 64: not causal, 330: False}
    if mask is bool:  # where ONNX Runtime's kernel has another answer
        feed = feed_of(16)
        feed['mask'][3] = False
        assert (ours.run(None, feed)[0][:, :, 3] == 0).all()
    with pytest.raises(Exception, match="Attention 'node': input V has other numbers"):
        ours.run(None, feed_of(4) | {'V': feed_of(5)['V']})


@pytest.mark.parametrize('stated', [False, True])
@pytest.mark.parametrize('rank', [3, 4])
@pytest.mark.parametrize('heads, rows, keys, back', [
    (HQ, 4, 8, False), (HQ, 5, 64, True), (HQ, 5, 65, False), (HQ, 24, 96, True), (HQ, 24, 97, False), (HQ, 197, 197, True),
    (HQ, 1024, 320, True), (HQ, 1025, 320, False), (HQ, 128, 321, False), (HK, 5, 32, True), (HK, 5, 33, False),
    (HK, 64, 128, True), (HK, 64, 129, False)])
def test_rows_that_see_all_keys_are_given_back(heads, rows, keys, back, rank, stated, capfd):
    q, k = ([rows, HQ * D], [keys, heads * D]) if rank == 3 else ([HQ, rows, D], [heads, keys, D])
    feed = {'Q': numbers(1, *q), 'K': numbers(1, *k), 'V': numbers(1, *k)}
    counts = {'q_num_heads': HQ, 'kv_num_heads': heads} if rank == 3 else {}
    model = models.of_one_node('Attention', list(feed.items()), [('out', np.float32, rank)], fixed=stated, **counts)
    ours, theirs = models.session(model, True, log='1'), models.session(model, False)
    assert ('left 1' in capfd.readouterr().err) == (stated and back)
    got, wanted = ours.run(None, feed)[0], theirs.run(None, feed)[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    assert (got.tobytes() == wanted.tobytes()) == back


@pytest.mark.parametrize('rank', [3, 4])
@pytest.mark.parametrize('heads, n', [(5, 8), (5, 64), (3, 256), (32, 4)])
def test_rotation_in_parts(heads, n, rank):
    """Heads that threads divide, some into parts that are not alike."""
    t, d = np.float16, 64
    x = numbers(2, heads, n, d, t=t) if rank == 4 else numbers(2, n, heads * d, t=t)
    ids, table = np.stack([np.arange(n), np.arange(n)[::-1]]), numbers(2, 300, d // 2, t=t)
    inputs = [('X', x), ('ids', ids), ('cos', table[0]), ('sin', table[1])]
    model = models.of_one_node('RotaryEmbedding', inputs, [('out', t, rank)], 17, 'com.microsoft', num_heads=heads)
    got, wanted = (models.session(model, ours, 2).run(None, dict(inputs))[0] for ours in (True, False))
    np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize('t', [np.float16, np.float32])
def test_rows_that_a_model_states_are_left(t):
    x = numbers(1, HQ, 1, D, t=t)
    table = numbers(8, D // 2, t=t)
    inputs = [('X', x), ('ids', np.zeros((1, 1), np.int64)), ('cos', table), ('sin', table)]
    model = models.of_one_node('RotaryEmbedding', inputs, [('out', t, 4)], 17, 'com.microsoft', fixed=True)
    taken, told = models.taken(model)
    assert not taken and 'for which ONNX Runtime is as fast' in told, told
