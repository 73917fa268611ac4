#!/usr/bin/env python3
"""Writes simdattn/_abi.py: the C header for ctypes. The header is the only place where a struct is described.

  generate_abi.py SOURCE_DIR OUTPUT COMPILER [ARGUMENT ...]
"""
import re
import sys
from pathlib import Path

source, output, compiler = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
sys.dont_write_bytecode = True
sys.path.insert(0, str(source / 'tools'))
from c_headers import Headers  # noqa: E402  (it stands in tools/)

headers = Headers(source / 'include', compiler)
SCALARS = {'size_t': 'size_t', 'float': 'float', 'double': 'double', '_Bool': 'bool', 'bool': 'bool', 'uint8_t': 'uint8',
           'int32_t': 'int32', 'uint32_t': 'uint32', 'int64_t': 'int64', 'uint64_t': 'uint64'}
ENUMS = {c_name for c_name, _, _ in headers.enums}


def plain(name):
    """simdattn_kv_type -> KvType, as in C++."""
    return ''.join(word.capitalize() for word in name[len('simdattn_'):].split('_'))


def c_type(kind):
    kind = re.sub(r'\bconst\b', '', kind).replace(' ', '')
    if kind == 'char*':
        return 'c_char_p'
    if kind.endswith('*'):
        # Addresses of structs are passed as byref(): argument types of their own would only cost time.
        return 'c_void_p'
    if kind in ENUMS:
        return 'c_int32'
    return plain(kind) if kind in headers.structs else 'c_' + SCALARS[kind]


def member_name(cpp_name):
    """kHalfSplit -> HALF_SPLIT, kBF16 -> BF16, kLlama3 -> LLAMA3."""
    return re.sub(r'(?<=[a-z])(?=[A-Z])', '_', cpp_name[1:]).upper()


numbers = headers.numbers


def initialiser(macro):
    """The macro's braces as dictionaries of members; sizes are those that ctypes finds."""
    text = headers.preprocess(f'#include "simdattn/extras.h"\nMARK {macro}_INIT')
    text = re.sub(r'\s+', ' ', text[text.index('MARK') + len('MARK'):]).strip()
    text = re.sub(r'\( ?\( ?void ?\* ?\) ?0 ?\)|\bNULL\b', 'None', text)
    text = re.sub(r'sizeof ?\( ?(simdattn_\w+) ?\)', lambda m: f'sizeof({plain(m.group(1))})', text)
    text = re.sub(r'\b(SIMDATTN_\w+)\b', lambda m: str(numbers[m.group(1)]), text)
    text = re.sub(r'\b(\d+)[uUlL]+\b', r'\1', text)
    text = re.sub(r'\bfalse\b', 'False', re.sub(r'\btrue\b', 'True', text))
    text = re.sub(r'\.(\w+) = ', r"'\1': ", text)
    return re.sub(r' ?\} ?', '}', re.sub(r' ?\{ ?', '{', text))


constants = {}
for name in re.findall(r'^#define SIMDATTN_(\w+) [\d(I-]', headers.types_h, flags=re.M):
    text = headers.preprocess(f'#include "simdattn/simdattn_c.h"\nMARK SIMDATTN_{name}')
    constants[name] = re.sub(r'\b(\d+)[uUlL]+\b', r'\1', text[text.index('MARK') + len('MARK'):].strip())

lines = ['"""The C header for ctypes. Made from simdattn_c.h and types.h by generate_abi.py; explained there."""', '',
         'from __future__ import annotations', '', 'from ctypes import (Structure, c_bool, c_char_p, c_double, c_float, '
         'c_int32, c_int64, c_size_t,', '                    c_uint8, c_uint32, c_uint64, c_void_p, sizeof)',
         'from enum import IntEnum', 'from typing import Any, Dict, List, Tuple, Type', '']
for name, value in constants.items():
    lines.append(f'{name} = {value}')
for c_name, cpp_name, enumerators in headers.enums:
    lines += ['', '', f'class {cpp_name}(IntEnum):']
    lines += [f'    {member_name(k)} = {numbers[c]}' for c, k in enumerators]
for name, members in headers.structs.items():
    lines += ['', '', f'class {plain(name)}(Structure):', '    _fields_ = [']
    for kind, member, count in members:
        lines.append(f"        ('{member}', {c_type(kind)}{f' * {count}' if count else ''}),")
    lines.append('    ]')
lines += ['', '', '# What a struct begins with.', 'INIT: Dict[Type[Structure], Dict[str, Any]] = {']
for name, macro in sorted({**headers.inits, 'simdattn_const_kv': 'SIMDATTN_KV'}.items()):
    lines.append(f'    {plain(name)}: {initialiser(macro)},')
lines += ['}', '', '# Result and arguments of every function.', 'FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {']
for name, (result, arguments) in sorted(headers.functions.items()):
    arguments = [c_type(a) for a in arguments if a != 'void']
    lines.append(f"    '{name}': ({c_type(result)}, [{', '.join(arguments)}]),")
lines += ['}', '']
output.write_text('\n'.join(lines))
