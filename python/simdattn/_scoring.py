"""The options between the dot product and the exponential: keywords into the C struct."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ._abi import Code, DType
from ._arrays import NDArray, Operand, bytes_of_view, numbers, operand, padded
from ._library import Error, Record

_FLOATS = {'softcap'}
_INTEGERS = {'offset', 'window_left', 'window_right', 'chunk'}
_PER_SEQUENCE = {'offsets', 'prefix_end', 'kv_start', 'kv_length'}
_PER_HEAD = {'bias_scale', 'alibi_slopes', 'sinks'}
_VIEWS = {'bias', 'mask'}
OPTIONS = {'causal', 'scale', 'packed_mask', *_FLOATS, *_INTEGERS, *_PER_SEQUENCE, *_PER_HEAD, *_VIEWS}


def integer(value: Any, argument: str, low: int = -2**63, high: int = 2**63 - 1) -> int:
    """value as a whole number of the C type; ctypes alone would cut bits off."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f'{argument}: an integer is wanted, not {value!r}') from None
    if not low <= number <= high:
        raise Error(Code.RANGE, f'{argument}: {number} is not in {low} .. {high}')
    return number


def boolean(value: Any, argument: str) -> bool:
    """value as true or false; a word like 'no' is neither."""
    if isinstance(value, (bool, np.bool_)) or isinstance(value, (int, np.integer)) and value in (0, 1):
        return bool(value)
    raise TypeError(f'{argument}: True or False is wanted, not {value!r}')


def refuse_unread(unread: bool, needed: str, **given: Any) -> None:
    """Error for an argument that differs from its default although nothing reads it. given: NAME=(value, default)."""
    for name, (value, default) in given.items():
        if unread and value is not default and not (default is not None and np.array_equal(value, default)):
            raise Error(Code.RANGE, f'{name}: is given without {needed}, and would not be read')


def put_view(record: Record, member: str, x: Operand, rank: int, argument: str, shape: str) -> None:
    """Writes a view of x into a record."""
    record.put_struct(member, bytes_of_view(x, rank, argument, shape))
    record.alive.append(x.owner)


def put_numbers(record: Record, member: str, x: NDArray) -> None:
    """Writes the address of an array's numbers."""
    record.put(member, x.ctypes.data)
    record.alive.append(x)


def sequences_of(batch: int, cu_q: Optional[Any], argument: str = 'cu_q') -> int:
    """How many sequences there are: those of the batch, or those whose ends cu_q has."""
    if cu_q is None:
        return batch
    try:
        ends = len(cu_q)
    except TypeError:
        raise TypeError(f'{argument}: integers are wanted, where sequences begin and end, not {cu_q!r}') from None
    if ends == 0:
        raise Error(Code.SHAPE, f'{argument}: is empty; one number more than there are sequences is wanted')
    return ends - 1


def put_sequences(record: Record, batch: int, cu_q: Optional[Any], cu_k: Optional[Any] = None) -> int:
    """Where the sequences of one array begin and end; how many sequences there are."""
    sequences = sequences_of(batch, cu_q)
    if cu_q is not None:
        record.put('n_sequences', sequences)
    for member, ends in (('cu_q', cu_q), ('cu_k', cu_k)):
        if ends is not None:
            put_numbers(record, member, numbers(ends, np.int32, sequences + 1, member, 'sequence, and the end'))
    return sequences


def put_scoring(record: Record, prefix: str, options: Dict[str, Any], shape: Tuple[int, ...], sequences: int) -> None:
    """Fills the simdattn_scoring at `prefix` of a record; None: not given. Sizes of arrays are checked here: the
    library sees addresses alone.

    shape: of q (or of the scores).
    """
    refuse_unread(options.get('bias') is None, 'bias', bias_scale=(options.get('bias_scale'), None))
    for name, value in options.items():
        if value is None:
            continue
        argument, member = name, prefix + name
        if name == 'causal':
            record.put(member, boolean(value, argument))
        elif name in _INTEGERS:
            record.put(member, integer(value, argument))
        elif name == 'scale':
            record.put(member + '.value', as_float(value, argument))
            record.put(member + '.given', 1)
        elif name in _PER_SEQUENCE:
            put_numbers(record, member, numbers(value, np.int32, sequences, argument, 'sequence'))
        elif name in _PER_HEAD:
            put_numbers(record, member, numbers(value, np.float32, shape[1], argument, 'query head'))
        elif name in _VIEWS:
            put_view(record, member, padded(operand(value, argument), 4, argument), 4, argument, '')
        elif name in _FLOATS:
            record.put(member, as_float(value, argument))
        elif name == 'packed_mask':
            _put_packed_mask(record, member, value, shape)
        else:
            raise TypeError(f'{name!r} is no option; there are {", ".join(sorted(OPTIONS))}')


def as_double(value: Any, argument: str) -> float:
    """value as a number; words are none."""
    if isinstance(value, (int, float)):  # compilers of PyTorch's do not look into ctypes
        return float(value)
    try:
        return ctypes.c_double(value).value
    except TypeError:
        raise TypeError(f'{argument}: a number is wanted, not {value!r}') from None


def as_float(value: Any, argument: str) -> float:
    """The f32 nearest to value; infinity beyond the range, which the library refuses."""
    return ctypes.c_float(as_double(value, argument)).value


def _put_packed_mask(record: Record, member: str, value: Any, shape: Tuple[int, ...]) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError('packed_mask: a pair is wanted, (bytes, columns)')
    data, columns = value
    x = padded(operand(data, 'packed_mask'), 4, 'packed_mask')
    if x.dtype != DType.U8:
        raise Error(Code.DTYPE, 'packed_mask: bytes (uint8) are wanted')
    columns = integer(columns, 'packed_mask.columns', 0)
    if any(n not in (1, wanted) for n, wanted in zip(x.shape, shape[:3])) or 8 * x.shape[3] < columns:
        raise Error(Code.SHAPE, f'packed_mask: has shape {x.shape}; [batch, heads, rows, ceil(columns / 8)] is wanted, here '
                                f'{(*shape[:3], (columns + 7) // 8)}, or 1 in the place of the first three')
    if x.strides[3] != 1:
        raise Error(Code.STRIDE, 'packed_mask: the last dimension is not contiguous')
    record.put(member + '.data', x.pointer)
    record.put(member + '.columns', columns)
    record.put(member + '.stride', *x.strides[:3])
    record.alive.append(x.owner)
