"""Errors speak Python: its names and its numbers; wrong kinds of arguments are a TypeError; nothing of the caller's is
lost in silence."""
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from test_arrays import refused
from test_attention import problem

import simdattn
from simdattn._abi import Code, KvType


@pytest.fixture
def arrays(random):
    return [x.astype(np.float32) for x in problem(random)]


def wrong(match, call):
    with pytest.raises(TypeError, match=match):
        call()


def test_an_error_is_what_pytorch_raises_too():
    assert issubclass(simdattn.Error, ValueError) and issubclass(simdattn.Error, RuntimeError)


def test_arguments_of_another_kind(arrays):
    q, k, v = arrays
    wrong("pool: a concurrent.futures.ThreadPoolExecutor is wanted, not 2", lambda: simdattn.attention(q, k, v, pool=2))
    with ProcessPoolExecutor(1) as pool:
        wrong("pool: a concurrent.futures.ThreadPoolExecutor is wanted", lambda: simdattn.attention(q, k, v, pool=pool))
    wrong('target: a name is wanted, as targets.. lists them, not 3', lambda: simdattn.attention(q, k, v, target=3))
    best = simdattn.targets()[-1]
    assert simdattn.attention(q, k, v, target=best).tobytes() == simdattn.attention(q, k, v, target='scalar').tobytes()
    for word in ('no', 'yes', 2, None, [], 1.0):
        wrong('is_causal: True or False is wanted', lambda word=word: simdattn.scaled_dot_product_attention(q[:, :2], k, v, is_causal=word))
        wrong('causal: True or False is wanted', lambda word=word: simdattn.attention(q, k, v, causal=word))
        wrong('inverse: True or False is wanted', lambda word=word: simdattn.rope(q, *simdattn.rope_table(9, 16), inverse=word))
    for yes in (True, 1, np.True_, np.int8(1)):
        assert simdattn.attention(q, k, v, causal=yes).tobytes() == simdattn.attention(q, k, v, causal=True).tobytes()
    wrong("return_lse: True or False is wanted, not 'no'", lambda: simdattn.attention(q, k, v, return_lse='no'))
    wrong("scale: a number is wanted, not 'a'", lambda: simdattn.attention(q, k, v, scale='a'))
    wrong('chunk: an integer is wanted, not 8.5', lambda: simdattn.attention(q, k, v, chunk=8.5))
    wrong("sinks: numbers are wanted", lambda: simdattn.attention(q, k, v, sinks=['a'] * 4))
    wrong('packed_mask: a pair is wanted', lambda: simdattn.attention(q, k, v, packed_mask=q))
    wrong('query: NoneType is no array', lambda: simdattn.scaled_dot_product_attention(None, k, v))
    wrong("rope_theta: a number is wanted, not 'a'", lambda: simdattn.rope_table(4, 16, rope_theta='a'))
    wrong("attention_factor: a number is wanted, not 'a'", lambda: simdattn.rope_table(4, 16, attention_factor='a'))
    wrong("truncate: True or False is wanted, not 'no'", lambda: simdattn.rope_table(4, 16, truncate='no'))
    wrong("inv_freq: numbers are wanted, not 'a'", lambda: simdattn.rope_table(4, 16, inv_freq='a'))
    wrong(r"softmax\(\) has no option 'axis': it runs along the last dimension; there are alibi_slopes, ",
          lambda: simdattn.softmax(q, axis=0))
    wrong("'theta' is no option of a table; there are attention_factor, beta_fast, ", lambda: simdattn.rope_table(4, 16, theta=3))


def test_element_types_that_there_are(arrays):
    q, k, v = arrays
    refused(Code.DTYPE, 'q: float64 is not an element type of simdattn: float32, bfloat16 and float16 are, bool and uint8 of masks, int32 and '
                        'int64 of positions', lambda: simdattn.attention(q.astype(float), k, v))


def test_types_are_named_and_cured(arrays):
    q, k, v = arrays
    refused(Code.DTYPE, '^mask: is int64; bool or uint8 .true attends. is wanted', lambda: simdattn.attention(q, k, v, mask=np.ones((7, 40), np.int64)))
    refused(Code.DTYPE, '^bias: is bool; float32, bfloat16 or float16 is wanted',
            lambda: simdattn.attention(q, k, v, bias=np.ones((7, 40), bool)))
    refused(Code.DTYPE, '^k: is int32; float32', lambda: simdattn.attention(q, k.astype(np.int32), v))
    refused(Code.DTYPE, '^lse: is float16; float32 is wanted', lambda: simdattn.attention(q, k, v, lse=np.ones(q.shape[:3], np.float16)))
    refused(Code.DTYPE, '^x: is float16; float32 is wanted', lambda: simdattn.softmax(q.astype(np.float16)))
    refused(Code.DTYPE, '^cos: is float16; float32 is wanted', lambda: simdattn.rope(q, *(t.astype(np.float16) for t in simdattn.rope_table(9, 16))))
    refused(Code.DTYPE, r'^q: float64 .*; x.astype\(numpy.float32\) converts', lambda: simdattn.attention(q.astype(float), k, v))
    refused(Code.NULL_POINTER, '^decay: is not given, although the rule has a decay',
            lambda: simdattn.linear_attention(q, q, q, np.zeros((2, 4, 16, 16), np.float32)))
    for name, kind in {'fp32': 'F32', 'fp16': 'F16', 'fp8': 'FP8E4M3', 'fp8_e4m3fn': 'FP8E4M3', 'float8_e5m2': 'FP8E5M2'}.items():
        assert simdattn.KVCache(1, 1, 32, 32, dtype=name).keys.struct.type == KvType[kind]


def test_names_of_other_libraries(arrays):
    q, k, v = arrays
    for name, own in {'attn_mask': 'mask, where true attends, or bias', 'sliding_window': 'window_left = sliding_window - 1',
                      'softmax_scale': 'scale', 'is_causal': 'causal', 's_aux': 'sinks'}.items():
        for call in (lambda: simdattn.attention(q, k, v, **{name: 1}), lambda: simdattn.Plan(q, k, v, **{name: 1})):
            wrong(rf"attention\(\) has no option '{name}': say {own}.*; there are acc, alibi_slopes, ", call)
    wrong("attention.. has no option 'windwo'; there are acc", lambda: simdattn.attention(q, k, v, windwo=1))
    wrong('causal: True or False is wanted, not array', lambda: simdattn.attention(q, k, v, causal=np.ones(2)))
    wrong('causal: True or False is wanted, not array', lambda: simdattn.Plan(q, k, v, causal=np.ones(2)))


def test_what_would_not_be_read(arrays):
    """An argument that nothing reads is a mistake of the caller's."""
    q, k, v = arrays
    table = simdattn.rope_table(40, 16)
    cache = simdattn.KVCache(2, 2, 40, 16, value_dim=24)
    for name, call in {
        'list_block': lambda: simdattn.attention(q, k, v, list_block=4), 'bias_scale': lambda: simdattn.attention(q, k, v, bias_scale=[1.0] * 4),
        'norm_epsilon': lambda: simdattn.rope(q, *table, norm_epsilon=1e-5), 'norm_weight': lambda: simdattn.rope(q, *table, norm_weight=[1.0] * 16),
        'start': lambda: simdattn.rope(q, *table, np.zeros((2, 7), np.int32), start=3),
        'pairing': lambda: cache.append(k, v, pairing='interleaved'), 'first_dim': lambda: cache.append(k, v, first_dim=2),
        'norm': lambda: cache.append(k, v, norm_weight=[1.0] * 16), 'first': lambda: cache.shift(1, 2, 1, first_dim=2),
    }.items():
        refused(Code.RANGE, f'^{name}.*: is ', call, cache._lengths)
    for missing in ('factor', 'original_max_position_embeddings'):
        parameters = dict(rope_type='llama3', factor=8.0, original_max_position_embeddings=8192)
        del parameters[missing]
        refused(Code.RANGE, f"^{missing}: 'llama3' needs it", lambda: simdattn.rope_table(9, 16, **parameters))


def test_names_and_numbers(arrays):
    q, k, v = arrays
    refused(Code.RANGE, '^window_left, window_right: .*; window_left is -7', lambda: simdattn.attention(q, k, v, window_left=-7))
    refused(Code.RANGE, r'^kv_length: .*n_kv; kv_length is \[1, 41\]; n_kv is 40|kv_length.*n_kv is 40',
            lambda: simdattn.attention(q, k, v, kv_length=[1, 41]))
    refused(Code.SHAPE, r'^bias.shape: .*bias has shape \(2, 4, 7, 39\)',
            lambda: simdattn.attention(q, k, v, bias=np.zeros((2, 4, 7, 39), np.float32)))
    refused(Code.RANGE, "^factor: 'yarn' needs it", lambda: simdattn.rope_table(4, 16, rope_type='yarn'))
    refused(Code.RANGE, r"^rope_theta: must be in \[1, 1e15\]; rope_theta is 0.5", lambda: simdattn.rope_table(4, 16, rope_theta=0.5))
    refused(Code.RANGE, '^offset: must be None or within', lambda: simdattn.attention(q, k, v, causal=True, offset=2**40))
    cache = simdattn.KVCache(2, 2, 20, 16, value_dim=24)
    refused(Code.RANGE, 'k: has 40 rows for sequence 0, which has 0 of 20 tokens already', lambda: cache.append(k, v))


def test_no_sentence_speaks_c():
    """All that the library can say, read from its sources."""
    import re

    from conftest import source
    from simdattn._library import _sentence
    said = set()
    for file in (source('lib', 'rules', 'tables.cc'), source('lib', 'rules', 'scoring.cc'), source('lib', 'rules', 'positions.h')):
        said |= set(re.findall(r'"([a-z_.]+: [^"]+)"', file.read_text()))
    assert len(said) > 60
    for detail in said:
        sentence = _sentence(detail, {})
        assert not re.search(r'\bk[A-Z]|\b(scoring|options)\.', sentence), sentence


def test_masked_arrays_are_refused(arrays):
    q, k, v = arrays
    masked = np.ma.masked_less(q, 0)
    table = simdattn.rope_table(9, 16)
    for call in (lambda: simdattn.attention(masked, k, v), lambda: simdattn.softmax(masked), lambda: simdattn.rope(masked, *table),
                 lambda: simdattn.attention(q, k, v, kv_length=np.ma.array([3, 40], mask=[0, 1])),
                 lambda: simdattn.rope_table(np.ma.array([3, 4]), 16), lambda: simdattn.rope_frequencies(2, inv_freq=np.ma.array([3.0, 4])),
                 lambda: simdattn.to_bf16(masked), lambda: simdattn.from_bf16(np.ma.array([3], dtype=np.uint16))):
        refused(Code.DTYPE, 'is a masked array, whose mask is not read', call)


def test_lists_of_positions(arrays):
    x = arrays[0]
    table = simdattn.rope_table(range(20), 16)
    assert table.cos.tobytes() == simdattn.rope_table(20, 16).cos.tobytes()
    where = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]]
    assert simdattn.rope(x, *table, where).tobytes() == simdattn.rope(x, *table, np.array(where)).tobytes()
    wrong('positions: integers are wanted', lambda: simdattn.rope_table([0.5, 1], 16))
    wrong('positions: integers are wanted', lambda: simdattn.rope_table(['a'], 16))


def test_parameters_of_model_configurations():
    """rope_parameters as Transformers 5 has them, and rope_scaling of older files."""
    for parameters, same in [
        ({'rope_theta': 5e5, 'rope_type': 'default'}, {'rope_theta': 5e5}),
        ({'rope_theta': 1e4, 'rope_type': 'default', 'partial_rotary_factor': 0.5}, {}),
        ({'type': 'linear', 'factor': 4.0}, {'rope_type': 'linear', 'factor': 4.0}),
        ({'type': 'linear', 'rope_type': 'linear', 'factor': 4.0}, {'rope_type': 'linear', 'factor': 4.0}),
        ({'type': 'mrope', 'mrope_section': [2, 3, 3]}, {'mrope_section': [2, 3, 3]}),
        ({'rope_type': 'default', 'mrope_section': [2, 3, 3], 'mrope_interleaved': True},
         {'mrope_section': [2, 3, 3], 'mrope_layout': 'interleaved'}),
        ({'type': 'su', 'short_factor': [1.0] * 8, 'long_factor': [2.0] * 8, 'original_max_position_embeddings': 99},
         {'rope_type': 'longrope', 'short_factor': [1.0] * 8, 'long_factor': [2.0] * 8, 'original_max_position_embeddings': 99}),
        ({'rope_theta': 1e6, 'attention_factor': None}, {'rope_theta': 1e6}),
    ]:
        positions = np.arange(21).reshape(3, 7) if 'mrope_section' in same else 7
        found, wanted = simdattn.rope_table(positions, 16, **parameters), simdattn.rope_table(positions, 16, **same)
        assert (found.cos.tobytes(), found.sin.tobytes()) == (wanted.cos.tobytes(), wanted.sin.tobytes())
    layers = {'full_attention': {'rope_theta': 1e6}, 'sliding_attention': {'rope_theta': 1e4}}
    wrong("full_attention, sliding_attention are parameters of kinds of layers; give those of one: .*'full_attention'",
          lambda: simdattn.rope_table(4, 16, **layers))


def test_what_objects_say():
    assert repr(simdattn.rope_table(9, 16)) == 'RopeTable(positions=9, pairs=8, dtype=float32)'
    halves = simdattn.to_bf16([1, 0.5])
    assert (repr(halves), str(halves), repr(halves[0, ...])) == ('BF16([1. , 0.5])', '[1.  0.5]', 'BF16(1.)')
    assert repr(simdattn.targets()[-1]).startswith("Target(name='scalar', runnable=True")
    assert repr(simdattn.Error(Code.SHAPE, 'q: the rule')) == "Error('q: the rule (SHAPE)')"


def test_simdattn_torch_without_an_import():
    program = '''import sys, simdattn
if {missing}: sys.modules['torch'] = None
try: print(simdattn.torch.sdpa.__name__)
except AttributeError as e: print(e)
'''
    for missing, words in ((True, 'simdattn.torch needs PyTorch'), (False, '^sdpa|simdattn.torch needs PyTorch')):
        found = subprocess.run([sys.executable, '-c', program.format(missing=missing)], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert re.search(words, found)
    with pytest.raises(AttributeError, match='has no attribute .nothing'):
        simdattn.nothing
