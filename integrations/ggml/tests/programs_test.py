#!/usr/bin/env python3
"""ggml's own programs with the plug-in and without: the same text, results within rounding, and nodes that it takes.

    programs_test.py PLUGIN FOLDER [all|short]

FOLDER: for models. `all`: every case of test-backend-ops and every run; else a tenth; `short`: less. $STORIES: where
stories260K.bin and tok512.bin are; without it the story is left out. Programs that are not installed are left out, and
named.
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
failures = []
left_out = []


def check(good, what):
    print('ok    ' if good else 'FAILED', what, flush=True)
    if not good:
        failures.append(what)


def run(*command, plugin=True, **variables):
    """Output, log, and how many nodes the plug-in took and left."""
    env = {**os.environ, 'LC_ALL': 'C.UTF-8', **variables}
    if plugin:
        env |= {'GGML_BACKEND_PATH': PLUGIN, 'SIMDATTN_GGML_LOG': '1'}
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, cwd=FOLDER,
                          stdin=subprocess.DEVNULL, timeout=3000)
    out, log = done.stdout.decode(errors='replace'), done.stderr.decode(errors='replace')
    counts = re.search(r'simdattn: took (\d+) nodes in \d+ graphs, left (\d+)', log)
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
    # ggml 0.9 has no snapshots in GATED_DELTA_NET, whose nodes then stay its own.
    few = ('hsk=(64|128),hsv=(64|128),nh=4,nr23=.4,1.,kv=(113|512),nb=(1|32),mask=1,.*softcap=0.0*,.*'
           'type_KV?=(f16|q8_0|q4_0)')
    for op, pattern, least in (('FLASH_ATTN_EXT', few, 0.9), ('GATED_DELTA_NET,SSM_CONV', 'head_size=64|ne_a', 0.1)):
        cases = [] if ALL else ['-p', pattern]
        out, log, (taken, left) = run(tester, 'test', '-b', 'CPU', '-o', op, *cases)
        tests = re.search(r'(\d+)/(\d+) tests passed', out)
        if tests is None:
            check(False, f'test-backend-ops {op}: {out[-500:]}')
            continue
        passed, total = map(int, tests.groups())
        check(passed == total > 0 and taken > least * total,
              f'test-backend-ops {op}: {passed} of {total} pass, took {taken} nodes, left {left}')


def complete(model, *options, tokens=48, threads=2, plugin=True, prompt='Once there was a cat', **variables):
    """Greedy text."""
    out, _, (taken, left) = run('llama-completion', '-m', model, '-p', prompt, '-n', tokens, '--temp', 0, '-t', threads,
                                '-no-cnv', '--no-warmup', '--ignore-eos', *options, plugin=plugin, **variables)
    return out.strip(), taken, left


def greedy(name, model, types):
    """Text with and without; with 1, 2 and 3 threads. Stock differs from itself with and without flash attention, by
    rounding: how many words agree is said, not asked for. Where no two logits are close, as in the story, all must."""
    if program('llama-completion') is None:
        return
    for kind in types:
        cache = ['-ctk', kind, '-ctv', kind]
        ours, taken, left = complete(model, *cache)
        without = 'off' if kind in ('f16', 'bf16') else 'on'  # other values need flash attention
        stock, off = (complete(model, *cache, '-fa', fa, plugin=False)[0] for fa in ('on', without))
        same = len(os.path.commonprefix([ours.split(), stock.split()]))
        of_stock = len(os.path.commonprefix([off.split(), stock.split()]))
        check(taken > 0 and left == 0, f'{name}, {kind}: took {taken} nodes; words like stock: {same} of '
              f'{len(stock.split())}, stock with -fa {without}: {of_stock}')
        if name == 'story':
            check(ours == stock, f'story, {kind}: text equal to stock')
        for threads in (1, 3) if ALL or kind == 'f16' else (3,):
            again = complete(model, *cache, threads=threads)[0]
            check(again == ours, f'{name}, {kind}: the same text with {threads} threads')
    device, taken, _ = complete(model, '-fa', 'on', SIMDATTN_GGML='device')
    check(taken > 0 and device == complete(model)[0], f'{name}: the same text by the device, which took {taken} nodes')
    off, taken, _ = complete(model, SIMDATTN_GGML='off')
    check(taken == 0 and off == complete(model, plugin=False)[0], f'{name}: stock with SIMDATTN_GGML=off')


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
    env = {**os.environ, 'GGML_BACKEND_PATH': PLUGIN, 'SIMDATTN_GGML_LOG': '1'}
    with open(os.path.join(FOLDER, 'server.log'), 'w+') as log:
        command = ['llama-server', '-m', model, '-np', '4', '-c', '2048', '-t', '2', '--port', str(port)]
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
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
            out, log, (taken, _) = run('llama-completion', '-m', model, '-p', 'Once there was a cat', '-n', 16,
                                       '--temp', 0, '-t', 2, '-no-cnv', '--no-warmup', '--ignore-eos',
                                       '-ngl', 99, '-fa', 'on', FAKE_GPU=what, FAKE_GPU_VERSION=version)
            of_gpu = re.search(r'fake GPU: (\d+) nodes of attention, (\d+) strange', log)
            computed, strange = map(int, of_gpu.groups()) if of_gpu else (0, 0)
            if (computed > 0) == (what == 'everything') and (taken > 0) != (computed > 0):
                break
        good = strange == 0 and (taken == 0 < computed if what == 'everything' else computed == 0 < taken)
        check(good, f'beside a GPU that computes {what}: it got {computed} nodes of attention, the library {taken}')
        check(out.strip()[:40] == expected[:40], f'beside a GPU that computes {what}: the text begins as without')
    os.remove(os.path.join(FOLDER, 'libggml-vulkan.so'))


def main():
    os.makedirs(FOLDER, exist_ok=True)
    small = os.path.join(FOLDER, 'random.gguf')
    subprocess.run([sys.executable, HERE / 'random_gguf.py', small, '2', '512', '1024', '4', '2'], check=True)
    backend_ops()
    stories = os.environ.get('STORIES')
    if stories:
        story = os.path.join(FOLDER, 'stories.gguf')
        subprocess.run([sys.executable, HERE / 'stories_gguf.py', f'{stories}/stories260K.bin', f'{stories}/tok512.bin',
                        story], check=True)
        greedy('story', story, ('f16', 'bf16') if not SHORT else ('f16',))
    if not SHORT:
        greedy('random', small, ('f16', 'bf16', 'q8_0', 'q4_0') if ALL else ('f16', 'q8_0'))
        bench(small)
    serve(story if stories else small)
    beside_a_gpu(story if stories else small)
    whisper()
    for name in left_out:
        print('left out:', name)
    print(f'{len(failures)} failures')
    return 1 if failures else 0


sys.exit(main())
