"""The options between the dot product and the exponential: keywords into the C struct."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Dict, List, Tuple

import numpy as np

from . import _abi
from ._abi import Code, DType
from ._arrays import Operand, bytes_of_view, numbers, operand, padded
from ._library import Error

_FLOATS = {'softcap'}
_INTEGERS = {'offset', 'window_left', 'window_right', 'chunk'}
_PER_SEQUENCE = {'offsets', 'prefix_end', 'kv_start', 'kv_length'}
_PER_HEAD = {'bias_scale', 'alibi_slopes', 'sinks'}
_VIEWS = {'bias', 'keep'}


def integer(value: Any, argument: str, low: int = -2**63, high: int = 2**63 - 1) -> int:
    """value as a whole number of the C type; ctypes alone would cut bits off."""
    number = operator.index(value)
    if not low <= number <= high:
        raise Error(Code.RANGE, f'{argument}: {number} is not in {low} .. {high}')
    return number


def put_view(struct: Any, member: Any, x: Operand, rank: int, argument: str, shape: str, alive: List[object]) -> None:
    """Writes a view of x at a member of struct (a field of its ctypes class)."""
    ctypes.memmove(ctypes.addressof(struct) + member.offset, bytes_of_view(x, rank, argument, shape), member.size)
    alive.append(x.owner)


def put_numbers(struct: Any, member: str, x: np.ndarray, alive: List[object]) -> None:
    """Writes the address of an array's numbers."""
    setattr(struct, member, x.__array_interface__['data'][0])
    alive.append(x)


def set_scoring(struct: Any, options: Dict[str, Any], shape: Tuple[int, ...], sequences: int, alive: List[object]) -> None:
    """Fills simdattn_scoring; None: not given. Sizes of arrays are checked here: the library sees addresses alone.

    shape: of q (or of the scores). alive: what the struct points to.
    """
    for name, value in options.items():
        if value is None:
            continue
        if name == 'causal':
            struct.causal = bool(value)
        elif name in _INTEGERS:
            setattr(struct, name, integer(value, f'scoring.{name}'))
        elif name == 'scale':
            struct.scale.value = value
            struct.scale.given = 1
        elif name in _PER_SEQUENCE:
            put_numbers(struct, name, numbers(value, np.int32, sequences, f'scoring.{name}', 'sequence'), alive)
        elif name in _PER_HEAD:
            put_numbers(struct, name, numbers(value, np.float32, shape[1], f'scoring.{name}', 'query head'), alive)
        elif name in _VIEWS:
            x = padded(operand(value, f'scoring.{name}'), 4, f'scoring.{name}')
            put_view(struct, getattr(_abi.Scoring, name), x, 4, name, '[batch, heads, rows, keys]', alive)
        elif name in _FLOATS:
            setattr(struct, name, value)
        elif name == 'bits':
            _put_bits(struct.bits, value, shape, alive)
        else:
            raise TypeError(f'{name!r} is no option of attention')


def _put_bits(struct: Any, value: Any, shape: Tuple[int, ...], alive: List[object]) -> None:
    data, columns = value
    x = padded(operand(data, 'scoring.bits'), 4, 'scoring.bits')
    if x.dtype != DType.U8:
        raise Error(Code.DTYPE, 'scoring.bits: bytes (uint8) are wanted')
    struct.columns = integer(columns, 'scoring.bits.columns', 0)
    if any(n not in (1, wanted) for n, wanted in zip(x.shape, shape[:3])) or 8 * x.shape[3] < struct.columns:
        raise Error(Code.SHAPE, f'scoring.bits: has shape {x.shape}; [batch, heads, rows, ceil(columns / 8)] is wanted, here '
                                f'{(*shape[:3], (struct.columns + 7) // 8)}, or 1 in the place of the first three')
    if x.strides[3] != 1:
        raise Error(Code.STRIDE, 'scoring.bits: the last dimension is not contiguous')
    struct.data = x.pointer
    struct.stride[:] = x.strides[:3]
    alive.append(x.owner)
