"""Large calls on several threads give the bits of one; small calls stay on theirs; signals, forks and busy teams stop
nothing."""
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import simdattn
from simdattn import _run

pytestmark = pytest.mark.skipif(_run._core is None, reason='the extension module is not built')


@pytest.fixture
def eager_team():
    """Every call is worth its threads."""
    former = _run._core.set_work_of_a_thread(1)
    yield
    _run._core.set_work_of_a_thread(former)


def arrays(random, rows=70, keys=300, heads=6):
    shapes = (2, heads, rows, 32), (2, 2, keys, 32), (2, 2, keys, 40)
    return [random.standard_normal(s, dtype=np.float32) for s in shapes]


def threads_of_this_process():
    return len(os.listdir('/proc/self/task'))


@pytest.mark.parametrize('options', [{}, {'causal': True}, {'window_left': 20, 'softcap': 3.0}, {'return_lse': True}, {'kv_length': [7, 300]}])
def test_bits_do_not_change(random, eager_team, options):
    q, k, v = arrays(random)
    lengths = np.array(options.pop('kv_length', [300, 300]), np.int32)
    wanted = simdattn.attention(q, k, v, threads=1, kv_length=lengths, **options)
    for n in (2, 3, 7, 300):
        for _ in range(3):  # new, learned, replayed
            found = simdattn.attention(q, k, v, threads=n, kv_length=lengths, **options)
            for x, y in zip(found if isinstance(found, tuple) else (found,), wanted if isinstance(wanted, tuple) else (wanted,)):
                assert x.tobytes() == y.tobytes()
    one_row = simdattn.attention(q[:, :, :1], k, v, threads=1)  # splits of keys, and their reduction
    long = np.concatenate([k] * 20, axis=2), np.concatenate([v] * 20, axis=2)
    assert simdattn.attention(q[:, :, :1], *long, threads=1).tobytes() == simdattn.attention(q[:, :, :1], *long, threads=3).tobytes()
    assert one_row.shape == (2, 6, 1, 40)


def test_a_team_is_there_for_large_calls_alone(random):
    """In a process of its own: threads stay."""
    program = '''
import os, numpy as np, simdattn
def threads(): return len(os.listdir('/proc/self/task'))
x, y = np.ones((1, 2, 4, 32), np.float32), np.ones((1, 8, 700, 64), np.float32)
before = threads()
for _ in range(4): simdattn.attention(x, x, x, threads=4)
assert threads() == before, 'a small call'
simdattn.attention(y, y, y, threads=1)
assert threads() == before, 'one thread was asked for'
out = simdattn.attention(y, y, y)
assert threads() == before + 3, (threads(), before)
cache = simdattn.KVCache(1, 8, 700, 64)
cache.append(y, y)
cache.attend(y); cache.attend(y, threads=6)
assert threads() == before + 5, (threads(), before)
'''
    subprocess.run([sys.executable, '-c', program], check=True, env={**os.environ, 'SIMDATTN_NUM_THREADS': '4'})


def test_wrong_numbers_of_threads(random):
    q, k, v = arrays(random, rows=2)
    for _ in range(3):
        with pytest.raises(simdattn.Error, match='threads: 0 is not in 1'):
            simdattn.attention(q, k, v, threads=0)
        with pytest.raises(TypeError, match="threads: an integer is wanted, not 'all'"):
            simdattn.attention(q, k, v, threads='all')


def test_calls_of_several_threads(random, eager_team):
    """The team works for one of them; the others do not wait for it."""
    q, k, v = arrays(random)
    wanted = simdattn.attention(q, k, v, threads=1).tobytes()
    wrong = []

    def work():
        for _ in range(20):
            if simdattn.attention(q, k, v, threads=3).tobytes() != wanted:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork here')
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_after_a_fork(random, eager_team):
    q, k, v = arrays(random)
    wanted = simdattn.attention(q, k, v, threads=3).tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for threads that are not there ends by this
        os._exit(0 if simdattn.attention(q, k, v, threads=3).tobytes() == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_handler_of_signals_makes_a_call(random, eager_team):
    """Its working memory is not that of the call that it interrupts."""
    q, k, v = [np.repeat(x, 20, axis=1) for x in arrays(random, rows=100, keys=3000)]
    others = arrays(random, keys=9000)
    wanted, others_wanted = [simdattn.attention(*x, threads=1).tobytes() for x in ((q, k, v), others)]
    handled = []
    former = signal.signal(signal.SIGALRM, lambda *_: handled.append(simdattn.attention(*others, threads=2).tobytes()))
    try:
        deadline = time.monotonic() + 20
        while len(handled) < 3 and time.monotonic() < deadline:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            assert simdattn.attention(q, k, v, threads=2).tobytes() == wanted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert len(handled) >= 3 and set(handled) == {others_wanted}


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork here')
@pytest.mark.parametrize('before, after', [('import simdattn.torch', ''), ('', 'import simdattn.torch')])
def test_a_fork_of_a_process_whose_pytorch_has_threads(before, after):
    pytest.importorskip('torch')
    program = f'''
import os, signal, torch
{before}
torch.set_num_threads(3)
x = torch.ones(2000, 2000) @ torch.ones(2000, 2000)
y = torch.ones(1, 8, 500, 64)
child = os.fork()
if child == 0:
    signal.alarm(20)  # a child that waits for threads that are not there ends by this
    {after or 'pass'}
    simdattn.attention(y, y, y, threads=3)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
'''
    subprocess.run([sys.executable, '-W', 'ignore', '-c', program], check=True)


@pytest.mark.parametrize('threads', [1, 2])
def test_ctrl_c_ends_a_call(threads):
    program = f'''
import signal, sys, threading, time, numpy as np, os, simdattn
x = np.ones((1, 64, 6000, 128), np.float32)  # half a minute
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore for jobs in the background
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try: simdattn.attention(x, x, x, threads={threads})
except KeyboardInterrupt: sys.exit(7)
'''
    start = time.monotonic()
    assert subprocess.run([sys.executable, '-c', program]).returncode == 7
    assert time.monotonic() - start < 20


def test_the_environment_says_how_many():
    program = 'from simdattn import _run; print(_run.threads_of_process())'
    for value, wanted in (('3', '3'), ('0', None), ('x', None), ('', None)):
        found = subprocess.run([sys.executable, '-c', program], env={**os.environ, 'SIMDATTN_NUM_THREADS': value}, check=True,
                               stdout=subprocess.PIPE, text=True).stdout.strip()
        assert found == (wanted or str(len(os.sched_getaffinity(0))))
