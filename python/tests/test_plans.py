"""Plans and threads: the same bits however the tasks are shared."""
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_arrays import refused
from test_attention import problem

import simdattn
from simdattn._abi import Code


def floats(random, **shape):
    return [x.astype(np.float32) for x in problem(random, **shape)]


@pytest.mark.parametrize('keys', [1, 300, 5000])
@pytest.mark.parametrize('threads', [1, 2, 5])
def test_pools_have_the_same_bits(random, keys, threads):
    q, k, v = floats(random, keys=keys)
    wanted, wanted_lse = simdattn.attention(q, k, v, causal=True, return_lse=True)
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            out, lse = simdattn.attention(q, k, v, causal=True, return_lse=True, pool=pool)
            assert (out.tobytes(), lse.tobytes()) == (wanted.tobytes(), wanted_lse.tobytes())


def test_a_plan_runs_again_with_new_numbers(random):
    q, k, v = floats(random, keys=3000)
    plan = simdattn.Plan(q, k, v, causal=True)
    assert plan.tasks > 1 and plan.workspace_bytes > 0
    assert plan.reduce_tasks > 0 and plan.partial_bytes > 0
    with ThreadPoolExecutor(3) as pool:
        for x in (0.5, 2):
            q *= x
            k += x
            assert plan.run(pool).tobytes() == simdattn.attention(q, k, v, causal=True).tobytes()
    assert plan.run().tobytes() == simdattn.attention(q, k, v, causal=True).tobytes()


def test_bind(random):
    q, k, v = floats(random)
    others = floats(random)
    plan = simdattn.Plan(q, k, v, causal=True, return_lse=True)
    first = [x.tobytes() for x in plan.run()]
    out, lse = plan.bind(*others, causal=True, return_lse=True).run()
    wanted = simdattn.attention(*others, causal=True, return_lse=True)
    assert [out.tobytes(), lse.tobytes()] == [x.tobytes() for x in wanted] != first
    refused(Code.STALE_PLAN, '', lambda: plan.bind(*others, causal=False, return_lse=True))
    refused(Code.STALE_PLAN, '', lambda: plan.bind(others[0][:, :, :5], *others[1:], causal=True, return_lse=True))
    assert plan.run()[0].tobytes() == wanted[0].tobytes()  # as it was


def test_bind_beside_runs(random):
    """A run ends with the arrays that it began with; a process of its own, as this once crashed."""
    program = '''
import threading, time, numpy as np, simdattn
random = np.random.default_rng(0)
problems = [[random.standard_normal((1, 4, n, 64), dtype=np.float32) for n in (8, 3000, 3000)] for _ in range(2)]
wanted = {simdattn.attention(*x).tobytes() for x in problems}
plan, wrong, stop = simdattn.Plan(*problems[0]), [], []

def run():
    while not stop:
        if plan.run().tobytes() not in wanted: wrong.append(1)

runner = threading.Thread(target=run)
runner.start()
start, n = time.monotonic(), 0
while time.monotonic() - start < 2 or n <= 10: plan.bind(*(x.copy() for x in problems[n % 2])); n += 1
stop.append(1)
runner.join()
assert not wrong, (wrong, n)
'''
    subprocess.run([sys.executable, '-c', program], check=True)


def test_what_is_bound_runs(random):
    """Each option is there when a plan is made, or comes with bind, or goes: what is bound runs, or is refused by
    name."""
    q, k, v = floats(random, keys=300)
    batch, heads, rows, keys = *q.shape[:3], k.shape[2]
    options = dict(
        mask=random.random((batch, 1, rows, keys)) < 0.7,
        bias=random.standard_normal((1, heads, rows, keys)).astype(np.float32),
        packed_mask=(random.integers(0, 256, (batch, heads, rows, (keys - 3 + 7) // 8), dtype=np.uint8), keys - 3),
        alibi_slopes=np.linspace(0.1, 1, heads, dtype=np.float32),
        sinks=np.linspace(-1, 1, heads, dtype=np.float32),
        kv_length=np.full(batch, keys - 3, np.int32),
        kv_start=np.full(batch, 2, np.int32))
    ways = [{}] + [{name: value} for name, value in options.items()] + [options]
    ran = 0
    for planned in ways:
        for bound in ways:
            plan = simdattn.Plan(q, k, v, **planned)
            others = [x[..., ::-1].copy() for x in (q, k, v)]
            try:
                out = plan.bind(*others, **bound).run()
            except simdattn.Error as error:
                assert error.code == Code.STALE_PLAN
                assert any(name in str(error) for name in planned.keys() ^ bound.keys()), (str(error), planned.keys(), bound.keys())
            else:
                ran += 1
                assert out.tobytes() == simdattn.attention(*others, **bound).tobytes(), (planned.keys(), bound.keys())
    assert ran >= len(ways)


def test_changed_lengths_are_refused(random):
    q, k, v = floats(random)
    lengths = np.array([40, 20], np.int32)
    plan = simdattn.Plan(q, k, v, kv_length=lengths)
    plan.run()
    lengths[1] = 21
    with ThreadPoolExecutor(2) as pool:
        for p in (None, pool):
            refused(Code.STALE_PLAN, '', lambda p=p: plan.run(p))


def test_a_busy_pool_stops_nothing(random):
    """All of the pool's threads wait for the call: it does its work alone."""
    q, k, v = floats(random, keys=3000)
    wanted = simdattn.attention(q, k, v).tobytes()
    done = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(done.wait, 60) for _ in range(2)]
        assert simdattn.attention(q, k, v, pool=pool).tobytes() == wanted
        done.set()
        assert all(w.result() for w in waiting)
        # A call from inside of the pool.
        inside = [pool.submit(lambda: simdattn.attention(q, k, v, pool=pool).tobytes()) for _ in range(4)]
        assert {f.result(timeout=60) for f in inside} == {wanted}


def test_calls_of_many_threads(random):
    problems = [floats(random, keys=n) for n in (1, 40, 300, 1100)]
    wanted = [simdattn.attention(*p, causal=True).tobytes() for p in problems]

    def work(i):
        return [simdattn.attention(*problems[(i + j) % 4], causal=True).tobytes() == wanted[(i + j) % 4] for j in range(40)]

    with ThreadPoolExecutor(8) as pool:
        assert all(all(results) for results in pool.map(work, range(16)))


def test_the_gil_is_released(random):
    """Another thread of Python runs during one long call."""
    q, k, v = floats(random, batch=4, rows=600, keys=2000, dim=64)
    simdattn.attention(q, k, v)
    stop, steps = threading.Event(), []

    def count():
        while not stop.is_set():
            steps.append(time.perf_counter())
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    try:
        start = time.perf_counter()
        simdattn.attention(q, k, v, target='scalar')
        end = time.perf_counter()
    finally:
        stop.set()
        other.join()
    during = sum(start < t < end for t in steps)
    assert during >= 3, f'{during} steps in {end - start:.3f} s'


@pytest.mark.parametrize('how', ['attention', 'pool', 'plan'])
def test_a_daemon_thread_at_exit(how):
    """The interpreter leaves while a thread is in a call, whose working memory stays."""
    program = f'''
import threading, time, numpy as np, simdattn
from concurrent.futures import ThreadPoolExecutor
x = np.ones((1, 16, 1024, 128), np.float32)
plan = simdattn.Plan(x, x, x)
pool = ThreadPoolExecutor(1)
calls = dict(attention=lambda: simdattn.attention(x, x, x), pool=lambda: simdattn.attention(x, x, x, pool=pool), plan=plan.run)
started = threading.Event()
def work():
    started.set()
    while True: calls[{how!r}]()
threading.Thread(target=work, daemon=True).start()
started.wait(); time.sleep(0.2)
'''
    for _ in range(3):
        assert subprocess.run([sys.executable, '-c', program], stderr=subprocess.PIPE).returncode == 0
