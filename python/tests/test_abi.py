"""The structs of ctypes are those of the compiler, and every option of the header is a keyword."""
import ctypes
import inspect
import os
import subprocess
import sys

import pytest
from conftest import source

import simdattn
from simdattn import _abi, _arrays, _library


def headers():
    include = source('include')
    sys.path.insert(0, str(source('tools')))
    import c_headers
    compiler = os.environ.get('SIMDATTN_CC') or 'cc'
    return c_headers, c_headers.Headers(include, [compiler]), compiler


def python_name(c_name):
    return ''.join(word.capitalize() for word in c_name[len('simdattn_'):].split('_'))


def test_the_compiler_says_the_same(tmp_path):
    """Size and place of every member, the bytes of every INIT, every enumerator: C's facts against those of ctypes."""
    c_headers, header, compiler = headers()
    program = tmp_path / 'facts.c'
    program.write_text(c_headers.facts_program(header))
    subprocess.run([compiler, '-std=c99', '-I', source('include'), program, '-o', tmp_path / 'facts'], check=True)
    facts = subprocess.run([tmp_path / 'facts'], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    enumerators = {c: (python_name(e), i) for e, _, names in header.enums for i, (c, _) in enumerate(names)}
    sizes = {'simdattn_' + e for e in ()} | {e for e, _, _ in header.enums}
    compared = 0
    for fact in facts:
        if ' bytes' in fact and ': at ' not in fact and '=' not in fact:
            name, size = fact[:-len(' bytes')].split(': ')
            expected = 4 if name in sizes else ctypes.sizeof(getattr(_abi, python_name(name)))
            assert int(size) == expected, fact
        elif ': at ' in fact:
            path, place = fact.split(': at ')
            name, member = path.split('.')
            at, size = (int(n.split()[0]) for n in place.split(', '))
            field = getattr(getattr(_abi, python_name(name)), member)
            assert (field.offset, field.size) == (at, size), fact
        elif fact.startswith('simdattn_'):
            path, text = fact.split(' =')
            name, *members = path.split('.')
            struct, offset = getattr(_abi, python_name(name)), 0
            block = bytes(_library.initial(struct))
            for member in members:
                field = getattr(struct, member)
                offset += field.offset
                struct = dict(struct._fields_)[member]
            assert block[offset:offset + field.size] == bytes.fromhex(text), fact
        else:
            name, value = fact.split(' = ')
            if name in enumerators:
                enum, place = enumerators[name]
                members = list({'Code': _abi.Code}.get(enum, getattr(_abi, enum if hasattr(_abi, enum) else 'DType')))
                assert members[place] == int(value), fact
            else:
                assert getattr(_abi, name[len('SIMDATTN_'):]) == int(value), fact
        compared += 1
    assert compared == len(facts) > 400


def test_every_function_is_there():
    _, header, _ = headers()
    assert set(_abi.FUNCTIONS) == set(header.functions)
    for name, (_, arguments) in header.functions.items():
        assert len(_abi.FUNCTIONS[name][1]) == len([a for a in arguments if a != 'void']), name


def members(struct):
    return {name for name, _ in struct._fields_} - {'struct_size', 'reserved'}


def test_every_option_is_a_keyword():
    options = set(inspect.signature(simdattn.attention).parameters)
    assert members(_abi.Scoring) <= options
    # cu_q has n_sequences + 1 entries.
    assert members(_abi.AttentionProblem) - {'scoring', 'n_sequences'} <= options
    assert members(_abi.RopeOptions) <= set(inspect.signature(simdattn.rope).parameters)
    from simdattn import _rope
    assert members(_abi.RopeTableOptions) == {*_rope._ENUMS, *_rope._INTEGERS, *_rope._BOOLS, *_rope._ARRAYS, *_rope._FLOATS,
                                              'attention_factor', 'mrope_section'}
    for name in members(_abi.RopeTableOptions):
        assert name in simdattn.rope_table.__doc__, name
    for name in members(_abi.Scoring):
        assert name in simdattn.attention.__doc__, name


def test_packed_views_are_the_structs():
    for rank, packed in _arrays._PACKED.items():
        assert packed.size == ctypes.sizeof(_arrays._VIEWS[rank])
        struct = _arrays._VIEWS[rank].from_buffer_copy(packed.pack(4096, 2, *range(10, 10 + rank), *range(20, 20 + rank)))
        assert (struct.data, struct.dtype) == (4096, 2)
        assert list(struct.shape) == list(range(10, 10 + rank)) and list(struct.stride) == list(range(20, 20 + rank))


def test_types_of_elements():
    names = {'float32': 'F32', 'bfloat16': 'BF16', 'float16': 'F16', 'uint8': 'U8', 'bool': 'U8', 'int32': 'I32', 'int64': 'I64'}
    assert {name: t.name for name, t in _arrays.DTYPES.items()} == names


def test_names_of_enumerators():
    find = _library.enumerator
    for name in ('half_split', 'HALF_SPLIT', 'half-split', 'halfsplit'):
        assert find(_abi.RopePairing, name, 'pairing') is _abi.RopePairing.HALF_SPLIT
    assert find(_abi.RopeType, 'longrope', 'rope_type') is _abi.RopeType.LONG_ROPE
    assert find(_abi.KvType, 'torch.bfloat16', 'dtype') is _abi.KvType.BF16
    with pytest.raises(simdattn.Error, match="pairing: there is no 'halves'; there are interleaved, half_split"):
        find(_abi.RopePairing, 'halves', 'pairing')


def test_info():
    found = simdattn.info()
    assert found['version'] == simdattn.__version__ == f'{_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}.{_abi.VERSION_PATCH}'
    assert found['targets'][-1].name == 'scalar' and found['targets'][-1].runnable
    assert found['default'] in [t.name for t in found['targets'] if t.runnable]
    text = subprocess.run([sys.executable, '-m', 'simdattn'], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert found['default'] in text and 'scalar' in text


def test_another_library_is_refused(tmp_path):
    result = subprocess.run([sys.executable, '-c', 'import simdattn'], env={**os.environ, 'SIMDATTN_LIBRARY': 'libc.so.6'},
                            stderr=subprocess.PIPE, text=True)
    assert result.returncode != 0 and 'libc.so.6 has no simdattn_' in result.stderr
