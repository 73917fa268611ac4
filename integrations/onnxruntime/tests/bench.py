#!/usr/bin/env python3
"""Milliseconds of one node by ONNX Runtime's own kernel and by the provider: lower quartiles of runs in turns.

    bench.py [--threads N] [--seconds S] [WORD ...]     rows whose names have one of the words

32 query heads and 8 of keys, of 128 numbers; IOBinding, so that past and present share a buffer where a row says nothing else.
"""
import argparse
import time

import models
import numpy as np
import onnxruntime as ort

HQ, HK, D = 32, 8, 128
rng = np.random.default_rng(1)
F32, F16 = np.float32, np.float16
NAMES = {F32: 'f32', F16: 'f16'}


def numbers(*shape, t=F32):
    return rng.standard_normal(shape, F32).astype(t)


def gqa(t, n, past, capacity=16384, shared=True, rotary=False):
    total = past + n
    capacity = capacity if shared else past
    inputs = [('query', numbers(1, n, HQ * D, t=t)), ('key', numbers(1, n, HK * D, t=t)), ('value', numbers(1, n, HK * D, t=t)),
              ('past_key', numbers(1, HK, capacity, D, t=t)), ('past_value', numbers(1, HK, capacity, D, t=t)),
              ('seqlens_k', np.array([total - 1], np.int32)), ('total', np.array(total, np.int32))]
    if rotary:
        inputs += [('cos', numbers(16384, D // 2, t=t)), ('sin', numbers(16384, D // 2, t=t))]
    model = models.of_one_node('GroupQueryAttention', inputs, [('out', t, 3), ('pk', t, 4), ('pv', t, 4)], 17, 'com.microsoft',
                               num_heads=HQ, kv_num_heads=HK, do_rotary=int(rotary))
    present = [1, HK, max(capacity, total), D]
    return model, inputs, {'out': ([1, n, HQ * D], t), 'pk': (present, t), 'pv': (present, t)}, shared


def attention(t, n, tokens, causal=False, past=0, mask=None):
    inputs = [('Q', numbers(1, HQ, n, D, t=t)), ('K', numbers(1, HK, tokens - past, D, t=t)), ('V', numbers(1, HK, tokens - past, D, t=t)),
              ('mask', None), ('past_key', numbers(1, HK, past, D, t=t) if past else None),
              ('past_value', numbers(1, HK, past, D, t=t) if past else None)]
    outputs = [('out', t, 4)] + ([('pk', t, 4), ('pv', t, 4)] if past else [])
    model = models.of_one_node('Attention', inputs, outputs, 23, is_causal=int(causal))
    present = ([1, HK, tokens, D], t)
    return model, inputs, {'out': ([1, HQ, n, D], t), **({'pk': present, 'pv': present} if past else {})}, False


def mha(n, tokens, causal=False, mask=False, heads=HQ, d=D, batch=1, fixed=False):
    inputs = [('query', numbers(batch, n, heads * d)), ('key', numbers(batch, tokens, heads * d)), ('value', numbers(batch, tokens, heads * d)),
              ('bias', None), ('mask', np.ones((batch, tokens), np.int32) if mask else None)]
    model = models.of_one_node('MultiHeadAttention', inputs, [('out', F32, 3)], 17, 'com.microsoft', fixed=fixed, num_heads=heads,
                               unidirectional=int(causal))
    return model, inputs, {'out': ([batch, n, heads * d], F32)}, False


def rotary(t, n, interleaved=False, onnx=False):
    x, ids = ('X', numbers(1, HQ, n, D, t=t)), ('ids', np.arange(n, dtype=np.int64)[None])
    tables = [('cos', numbers(4096, D // 2, t=t)), ('sin', numbers(4096, D // 2, t=t))]
    inputs = [x, *tables, ids] if onnx else [x, ids, *tables]
    model = models.of_one_node('RotaryEmbedding', inputs, [('out', t, 4)], 23, '' if onnx else 'com.microsoft', interleaved=int(interleaved))
    return model, inputs, {'out': ([1, HQ, n, D], t)}, False


def rows():
    for t in (F32, F16):
        for n in (512, 4096, 16384):
            yield f'GroupQueryAttention {NAMES[t]}, a token over {n}', lambda t=t, n=n: gqa(t, 1, n - 1)
        for n in (128, 512, 2048):
            yield f'GroupQueryAttention {NAMES[t]}, a prompt of {n}', lambda t=t, n=n: gqa(t, n, 0)
    yield 'GroupQueryAttention f32, a token over 4096, rotated', lambda: gqa(F32, 1, 4095, rotary=True)
    yield 'GroupQueryAttention f16, a token over 4096, rotated', lambda: gqa(F16, 1, 4095, rotary=True)
    yield 'GroupQueryAttention f32, a prompt of 512, rotated', lambda: gqa(F32, 512, 0, rotary=True)
    yield 'GroupQueryAttention f32, a token over 4096, two buffers', lambda: gqa(F32, 1, 4095, shared=False)
    for n in (16, 128, 512, 2048):
        yield f'Attention f32, {n} rows, causal', lambda n=n: attention(F32, n, n, True)
    yield 'Attention f32, 64 rows, a mask', lambda: attention(F32, 64, 64, mask=np.tril(np.ones((64, 64), bool)))
    yield 'Attention f32, 512 rows, all keys', lambda: attention(F32, 512, 512)
    yield 'Attention f32, a token over 4096', lambda: attention(F32, 1, 4096)
    yield 'Attention f32, a token over 4096, past and present', lambda: attention(F32, 1, 4096, past=4095)
    yield 'Attention f16, 128 rows, causal', lambda: attention(F16, 128, 128, True)
    yield 'Attention f16, a token over 512, past and present', lambda: attention(F16, 1, 512, past=511)
    for n in (128, 512, 2048):
        yield f'MultiHeadAttention f32, {n} rows, all keys', lambda n=n: mha(n, n)
    yield 'MultiHeadAttention f32, 12 heads of 64, 128 rows, padding, batch of 4', lambda: mha(128, 128, mask=True, heads=12, d=64, batch=4)
    yield 'MultiHeadAttention f32, 12 heads of 64, 512 rows, padding', lambda: mha(512, 512, mask=True, heads=12, d=64)
    yield 'MultiHeadAttention f32, 512 rows, causal', lambda: mha(512, 512, causal=True)
    yield 'MultiHeadAttention f32, a token over 4096', lambda: mha(1, 4096, fixed=True)
    for t in (F32, F16):
        for n in (1, 128, 1024):
            yield f'RotaryEmbedding {NAMES[t]}, {n} rows', lambda t=t, n=n: rotary(t, n)
    yield 'RotaryEmbedding f32, 1024 rows, interleaved', lambda: rotary(F32, 1024, True)
    yield 'RotaryEmbedding of ONNX f32, 1024 rows', lambda: rotary(F32, 1024, onnx=True)


def at_page(array):
    """A copy that begins at a page, so that both sessions have arrays that lie alike."""
    room = np.empty(array.nbytes + 4096, np.uint8)
    begin = -room.ctypes.data % 4096
    copy = room[begin:begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def runner(model, inputs, outputs, shared, ours, threads):
    """A function that runs the node, and its first output."""
    session = models.session(model, ours, threads)
    binding, values = session.io_binding(), {}
    for name, array in inputs:
        if array is not None:
            values[name] = ort.OrtValue.ortvalue_from_numpy(at_page(array))  # which keeps the array's memory
            binding.bind_ortvalue_input(name, values[name])
    for name, (shape, t) in outputs.items():
        past = {'pk': 'past_key', 'pv': 'past_value'}.get(name)
        values[name] = values[past] if shared and past else ort.OrtValue.ortvalue_from_numpy(at_page(np.zeros(shape, t)))
        binding.bind_ortvalue_output(name, values[name])
    return (lambda: session.run_with_iobinding(binding)), values['out'], values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--seconds', type=float, default=1.5)
    parser.add_argument('words', nargs='*')
    given = parser.parse_args()
    clock = time.thread_time if given.threads == 1 else time.perf_counter  # other programs do not lengthen a thread's own time
    print('| milliseconds | ONNX Runtime | simdattn | times | runs |\n|---|---|---|---|---|')
    for name, make in rows():
        if given.words and not any(word in name for word in given.words):
            continue
        made = make()
        runs = [runner(*made, ours, given.threads) for ours in (False, True)]
        for run, *_ in runs:
            run()
        difference = np.abs(runs[0][1].numpy().astype(np.float64) - runs[1][1].numpy()).max()
        times, end = ([], []), time.perf_counter() + given.seconds
        while time.perf_counter() < end or len(times[0]) < 3:
            for (run, *_), taken in zip(runs, times):
                if given.threads > 1:  # threads of the other session spin for a while after its run
                    time.sleep(0.05)
                    run()
                begin = clock()
                run()
                taken.append(clock() - begin)
        stock, ours = (1e3 * float(np.quantile(t, 0.25)) for t in times)
        doubt = '' if difference < 2e-2 else f' differs by {difference:.1e}'
        print(f'| {name} | {stock:.3g} | {ours:.3g} | {stock / ours:.2f} | {len(times[0])} |{doubt}', flush=True)


main()
