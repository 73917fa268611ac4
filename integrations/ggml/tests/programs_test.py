#!/usr/bin/env python3
"""ggml's own programs with the plug-in and without: the same text, results within rounding, and nodes that it takes.

    programs_test.py PLUGIN FOLDER [all|short]

FOLDER: for models; those that it has are taken. `all`: every case of test-backend-ops and every run; else a tenth; `short`: less. $STORIES: where
stories260K.bin and tok512.bin are; without it the story is left out. Programs that are not installed are left out, and
named. $EMULATOR: the command that runs them, where they are of another architecture; then there is less, too.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
PLUGIN, FOLDER = (os.path.abspath(p) for p in sys.argv[1:3])
ALL, SHORT = sys.argv[3:] == ['all'], sys.argv[3:] == ['short']
EMULATOR = os.environ.get('EMULATOR', '').split()
# Threads that wait without spinning: on a machine with other work the same runs take a fiftieth of the time.
ENVIRONMENT = {**os.environ, 'LC_ALL': 'C.UTF-8', 'OMP_WAIT_POLICY': 'passive'}
PLUGGED_IN = {'GGML_BACKEND_PATH': PLUGIN, 'SIMDATTN_GGML_LOG': '1'}
failures = []
left_out = []


def check(good, what):
    print('ok    ' if good else 'FAILED', what, flush=True)
    if not good:
        failures.append(what)


def check_equal(a, b, what):
    if a != b:
        at = len(os.path.commonprefix([a, b]))
        print(f'    differ from character {at} on:\n    {a[max(0, at - 40):]!r}\n    {b[max(0, at - 40):]!r}')
    check(a == b, what)


def run(*command, plugin=True, **variables):
    """Output, log, and how many nodes the plug-in took and left."""
    env = {**ENVIRONMENT, **variables}
    if plugin:
        env |= PLUGGED_IN
    command = [*EMULATOR, program(command[0]), *command[1:]]
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, cwd=FOLDER,
                          stdin=subprocess.DEVNULL, timeout=20000 if ALL else 3000)
    out, log = done.stdout.decode(errors='replace'), done.stderr.decode(errors='replace')
    counts = re.search(r'simdattn: took (\d+) nodes, left (\d+)', log)
    if done.returncode != 0:
        print(out[-2000:], log[-2000:])
        check(False, f'status {done.returncode} of {command}')
    return out, log, tuple(map(int, counts.groups())) if counts else (0, 0)


def program(name):
    """Its path, or None; the test of backends is no command of users."""
    found = shutil.which(name) or next(iter(pathlib.Path('/usr/libexec').glob(f'*/ggml/{name}')), None)
    if found is None and name not in left_out:
        left_out.append(name)
    return found


def backend_ops():
    tester = program('test-backend-ops')
    if tester is None:
        return
    # Of flash attention a tenth: heads of 64 with some shapes, and what the library leaves to ggml.
    few = ('hsk=(64|128),hsv=(64|128),nh=4,nr23=.4,1.,kv=(113|512),nb=(1|32),mask=1,.*softcap=0.0*,.*'
           'type_KV?=(f16|q8_0|q4_0)')
    if EMULATOR:
        few = few.replace('(64|128)', '64')
    for op, pattern, least in (('FLASH_ATTN_EXT', few, 0.9), ('GATED_DELTA_NET', 'head_size=64', 0.7), ('SSM_CONV', '', 0.9)):
        cases = [] if ALL or not pattern else ['-p', pattern]
        out, log, (taken, left) = run(tester, 'test', '-b', 'CPU', '-o', op, *cases)
        tests = re.search(r'(\d+)/(\d+) tests passed', out)
        if tests is None:
            check(False, f'test-backend-ops {op}: {out[-500:]}')
            continue
        passed, total = map(int, tests.groups())
        # Before ggml had snapshots of the state (K) in GATED_DELTA_NET, such nodes stay its own.
        if op == 'GATED_DELTA_NET' and 'K=' not in out:
            least = 0
        check(passed == total > 0 and taken >= least * total,
              f'test-backend-ops {op}: {passed} of {total} pass, took {taken} nodes, left {left}')


def complete(model, *options, tokens=48, threads=2, plugin=True, **variables):
    """Greedy text, log, and counts. llama-completion writes from a thread of its log, of which it does not wait for the
    last lines, with the plug-in or without: only a text with the blank line behind it is whole."""
    command = ['llama-completion', '-m', model, '-p', 'Once there was a cat', '-n', tokens, '--temp', 0, '-t', threads,
               '-no-cnv', '--no-warmup', '--ignore-eos', *options]
    for _ in range(20):
        out, log, counts = run(*command, plugin=plugin, **variables)
        if out.endswith('\n\n'):
            return out.strip(), log, counts
    check(False, f'a whole text of {command}')
    return out.strip(), log, counts


def greedy(name, model, types):
    """Text with and without; with 1, 2 and 3 threads. Stock differs from itself with and without flash attention, by
    rounding: how many words agree is said, not asked for. Where no two logits are close, as in the story, all must."""
    if program('llama-completion') is None:
        return
    for kind in types:
        cache = ['-ctk', kind, '-ctv', kind]
        ours, _, (taken, left) = complete(model, *cache)
        without = 'off' if kind in ('f16', 'bf16') else 'on'  # other values need flash attention
        stock, off = (complete(model, *cache, '-fa', fa, plugin=False)[0] for fa in ('on', without))
        same = len(os.path.commonprefix([ours.split(), stock.split()]))
        of_stock = len(os.path.commonprefix([off.split(), stock.split()]))
        check(taken > 0 and left == 0, f'{name}, {kind}: took {taken} nodes; words like stock: {same} of '
              f'{len(stock.split())}, stock with -fa {without}: {of_stock}')
        if name == 'story':
            check_equal(ours, stock, f'story, {kind}: text equal to stock')
        for threads in (1, 3) if ALL or kind == 'f16' else (3,):
            again = complete(model, *cache, threads=threads)[0]
            check_equal(again, ours, f'{name}, {kind}: the same text with {threads} threads')
    ours = complete(model)[0]
    device, _, (taken, _) = complete(model, '-fa', 'on', SIMDATTN_GGML='device')
    check_equal(device, ours, f'{name}: the same text by the device')
    check(taken > 0, f'{name}: the device took {taken} nodes')
    off, _, (taken, _) = complete(model, SIMDATTN_GGML='off')
    check_equal(off, complete(model, plugin=False)[0], f'{name}: stock with SIMDATTN_GGML=off')
    check(taken == 0, f'{name}: no node with SIMDATTN_GGML=off')


def made(name, script, *arguments):
    """The path of a model in the folder. None among the arguments stands for it."""
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        subprocess.run([sys.executable, HERE / script, *[path if a is None else a for a in arguments]], check=True)
    return path


def perplexity(name, model, stories):
    """Against ggml's attention without flash where there is that, as flash attention adds up values in f16. Of other
    caches ggml knows flash attention alone, and rounds queries to eight bits, which the library does not."""
    if program('llama-perplexity') is None:
        return
    text = os.path.join(FOLDER, 'text')
    with open(text, 'w') as file:
        file.write(''.join(p.read_text() for p in sorted(pathlib.Path(stories, 'expected').glob('*.txt'))))

    def estimate(kind, fa, **how):
        for _ in range(20):  # for the reason of complete()
            out, log, (taken, _) = run('llama-perplexity', '-m', model, '-f', text, '-c', 128, '-t', 2, '-fa', fa,
                                       '-ctk', kind, '-ctv', kind, **how)
            found = re.search(r'Final estimate: PPL = ([0-9.]+)', out + log)
            if found:
                return float(found[1]), taken
        return 0, taken

    for kind in ('f16', 'bf16') if name == 'story' else ('f16', 'q8_0', 'q4_0'):
        stock, _ = estimate(kind, 'off' if kind in ('f16', 'bf16') else 'on', plugin=False)
        ours, taken = estimate(kind, 'on')
        if name == 'story':  # the default is f32 but for bf16, whatever the CPU multiplies
            named = 'auto' if kind == 'bf16' else 'f32'
            check(ours == estimate(kind, 'on', SIMDATTN_GGML_ARITHMETIC=named)[0], f'story, {kind}: default as {named}')
        most = 1e-4 if kind == 'f16' else 1e-3
        check(taken > 0 and 0 < ours and abs(ours - stock) < most * stock,
              f'llama-perplexity, {name}, {kind}: {ours}, stock {stock}; took {taken} nodes')


def bench(model):
    if program('llama-bench') is None:
        return
    depths = '0,4096,16384' if ALL else '0,1024'
    for kind in ('f16', 'q8_0'):
        out, _, (taken, left) = run('llama-bench', '-m', model, '-p', 32, '-n', 4, '-r', 1, '-t', 2, '-fa', '1',
                                    '-d', depths, '-ctk', kind, '-ctv', kind, '-o', 'json')
        check(taken > 0 and left == 0 and len(json.loads(out)) == 2 * len(depths.split(',')),
              f'llama-bench, {kind} at {depths}: took {taken} nodes')


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {'Content-Type': 'application/json'})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def serve(model):
    """Four slots at once, each with its own prompt, and each prompt alone: the same text, as the library's bits do not
    depend on the batch."""
    if program('llama-server') is None:
        return
    port = 18080
    with open(os.path.join(FOLDER, 'server.log'), 'w+') as log:
        command = ['llama-server', '-m', model, '-np', '4', '-c', '2048', '-t', '2', '--port', str(port)]
        server = subprocess.Popen(command, env=ENVIRONMENT | PLUGGED_IN, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.2)

            def ask(prompt):
                body = {'prompt': prompt, 'n_predict': 16, 'temperature': 0, 'cache_prompt': False}
                return post(f'http://127.0.0.1:{port}/completion', body)['content']

            prompts = ['Once there was a cat', 'A dog ran', 'The sun is', 'Tom and Lily went']
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                together = list(pool.map(ask, prompts))
            alone = [ask(p) for p in prompts]
        finally:
            server.terminate()
            server.wait(60)
        log.seek(0)
        took = re.search(r'simdattn: took (\d+) nodes', log.read())
    check(together == alone, f'llama-server: four slots give the text that each prompt gives alone: {together} {alone}')
    check(took is not None and int(took[1]) > 0, f'llama-server: took {took[1] if took else 0} nodes')


def whisper():
    if program('whisper-cli') is None:
        return
    model, sound = os.path.join(FOLDER, 'whisper.bin'), os.path.join(FOLDER, 'noise.wav')
    subprocess.run([sys.executable, HERE / 'random_whisper.py', model, sound, '128', '2', '2'], check=True)
    texts = []
    for threads in (1, 2):
        out, _, (taken, left) = run('whisper-cli', '-m', model, '-f', sound, '-l', 'en', '-bs', 1, '-bo', 1,
                                    '-nf', '-nt', '-t', threads)
        texts.append(out)
        check(taken > 0 and left == 0, f'whisper-cli with {threads} threads: took {taken} nodes')
    check(texts[0] == texts[1], 'whisper-cli: the same text with 1 and 2 threads')


def beside_a_gpu(model):
    """What the GPU's backend computes is not touched, whatever it computes."""
    fake = pathlib.Path(PLUGIN).parent / 'tests/libfake-gpu.so'
    if program('llama-completion') is None or not fake.exists():
        return
    shutil.copy(fake, os.path.join(FOLDER, 'libggml-vulkan.so'))  # found in the working folder
    expected = complete(model, tokens=16)[0]
    for what in ('everything', 'no-attention'):
        for version in ('2', '3'):  # of the interface: one of them is this ggml's
            text, log, (taken, _) = complete(model, '-ngl', 99, '-fa', 'on', tokens=16, FAKE_GPU=what,
                                             FAKE_GPU_VERSION=version)
            of_gpu = re.search(r'fake GPU: (\d+) nodes of attention, (\d+) strange', log)
            computed, strange = map(int, of_gpu.groups()) if of_gpu else (0, 0)
            if (computed > 0) == (what == 'everything') and (taken > 0) != (computed > 0):
                break
        good = strange == 0 and (taken == 0 < computed if what == 'everything' else computed == 0 < taken)
        check(good, f'beside a GPU that computes {what}: it got {computed} nodes of attention, the library {taken}')
        check_equal(text[:40], expected[:40], f'beside a GPU that computes {what}: the text begins as without')
    os.remove(os.path.join(FOLDER, 'libggml-vulkan.so'))


def natively(small, story, stories):
    """What takes too long emulated."""
    if stories:
        perplexity('story', story, stories)
        perplexity('random', made('f32.gguf', 'random_gguf.py', None, '2', '512', '1024', '4', '2', '1000', 'F32'), stories)
    if not SHORT:
        greedy('random', small, ('f16', 'bf16', 'q8_0', 'q4_0') if ALL else ('f16', 'q8_0'))
        bench(small)
    serve(story)
    beside_a_gpu(story)
    whisper()


def main():
    os.makedirs(FOLDER, exist_ok=True)
    small = made('random.gguf', 'random_gguf.py', None, '2', '512', '1024', '4', '2')
    backend_ops()
    story, stories = small, os.environ.get('STORIES')
    if stories:
        story = made('stories.gguf', 'stories_gguf.py', f'{stories}/stories260K.bin', f'{stories}/tok512.bin', None)
        greedy('story', story, ('f16', 'bf16') if not SHORT else ('f16',))
    if not EMULATOR:
        natively(small, story, stories)
    for name in left_out:
        print('left out:', name)
    print(f'{len(failures)} failures')
    return 1 if failures else 0


sys.exit(main())
