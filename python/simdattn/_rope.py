"""Rotary position embedding."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _abi
from ._abi import Code, DType, MropeLayout, RopePairing, RopeType
from ._arrays import Array, NDArray, as_view, doubles, new_like, operand, padded
from ._library import Error, Record, check, enumerator, library
from ._scoring import integer
from ._targets import execution


class RopeTable(NamedTuple):
    """cos and sin, float32 [positions, pairs]: rope(x, *table)."""

    cos: Array
    sin: Array


_ROWS = '[batch, heads, rows, dim]'
_TABLE = '[positions, pairs]'
_ENUMS = {'rope_type': RopeType, 'mrope_layout': MropeLayout}
_INTEGERS = {'original_max_position_embeddings', 'max_position_embeddings', 'seq_len'}
_BOOLS = {'truncate', 'f32_angles'}
_ARRAYS = {'short_factor', 'long_factor', 'freq_factors', 'inv_freq'}
_FLOATS = {'rope_theta', 'factor', 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim', 'low_freq_factor', 'high_freq_factor',
           'partial_rotary_factor'}


def _table_options(options: Dict[str, Any]) -> Record:
    record = Record(_abi.RopeTableOptions)
    for name, value in options.items():
        argument = f'options.{name}'
        if value is None:
            continue
        if name in _ENUMS:
            record.put(name, enumerator(_ENUMS[name], value, argument))
        elif name in _INTEGERS:
            record.put(name, integer(value, argument))
        elif name in _BOOLS:
            record.put(name, bool(value))
        elif name in _FLOATS:
            record.put(name, value)
        elif name == 'attention_factor':
            record.put('attention_factor.value', value)
            record.put('attention_factor.given', 1)
        elif name in _ARRAYS:
            array = doubles(value, argument)
            record.put(name + '.data', array.ctypes.data)
            record.put(name + '.size', array.shape[0])
            record.alive.append(array)
        elif name == 'mrope_section':
            if len(value) > 4:
                raise Error(Code.SHAPE, f'{argument}: has {len(value)} numbers; up to 4 are wanted')
            sections = [integer(n, argument) for n in value]
            record.put(name, *sections, *[0] * (4 - len(sections)))
        else:
            raise TypeError(f'{name!r} is no option of a table')
    return record


def rope_frequencies(pairs: int, **options: Any) -> Tuple[NDArray, float]:
    """The inverse frequencies, float64 [pairs], and the number that multiplies cos and sin. options: as in rope_table()."""
    record = _table_options(options)
    frequencies = np.empty(max(integer(pairs, 'pairs'), 0))
    factor = ctypes.c_double()
    check(library.simdattn_rope_frequencies(frequencies.ctypes.data, pairs, ctypes.byref(factor), record.reference()))
    return frequencies, factor.value


def rope_table(positions: Union[int, Array], dim: int, *, first: int = 0, out: Optional[RopeTable] = None,
               **options: Any) -> RopeTable:
    """cos and sin of every position and pair, within 0.51 ulp, float32 [positions, dim / 2].

    positions: how many, from `first` on; or the positions themselves, int32 or int64 [n], or [axes, n] with mrope_section.
    dim: rotated dimensions, two for each pair.
    options: the names of model configuration files, so that rope_table(n, dim, rope_theta=config.rope_theta, **config.rope_scaling)
    will do: rope_theta (10000), rope_type ('default', 'linear', 'proportional', 'dynamic', 'yarn', 'llama3', 'longrope'),
    factor, original_max_position_embeddings, max_position_embeddings, seq_len, attention_factor, beta_fast, beta_slow, mscale,
    mscale_all_dim, truncate, low_freq_factor, high_freq_factor, short_factor, long_factor, freq_factors, inv_freq,
    partial_rotary_factor, mrope_section, mrope_layout ('contiguous', 'interleaved', 'axial'), f32_angles.
    """
    pairs, odd = divmod(integer(dim, 'dim'), 2)
    if odd or pairs < 0:
        raise Error(Code.SHAPE, f'dim: is {dim}; an even number is wanted, two for each pair')
    record = _table_options(options)
    if isinstance(positions, (int, np.integer)):
        n, where = integer(positions, 'positions', 0), None
    else:
        where = operand(positions, 'positions')
        if len(where.shape) == 1:
            where = padded(where, 2, 'positions')
        n = where.shape[-1] if where.shape else 0
    if out is None:
        out = RopeTable(new_like(positions, (n, pairs), DType.F32), new_like(positions, (n, pairs), DType.F32))
    cos, sin = operand(out[0], 'cos', writable=True), operand(out[1], 'sin', writable=True)
    check(library.simdattn_rope_table(
        ctypes.byref(as_view(cos, 2, 'cos', '[n, pairs]')), ctypes.byref(as_view(sin, 2, 'sin', '[n, pairs]')),
        record.reference(), where and ctypes.byref(as_view(where, 2, 'positions', '[axes, n]')), integer(first, 'first')))
    return RopeTable(*out)


def put_rope_options(record: Record, prefix: str, pairing: Any, inverse: bool, first_dim: int, start: int) -> None:
    """Fills the simdattn_rope_options at `prefix` of a record."""
    record.put(prefix + 'pairing', enumerator(RopePairing, pairing, 'pairing'))
    record.put(prefix + 'inverse', bool(inverse))
    record.put(prefix + 'first_dim', integer(first_dim, 'first_dim'))
    record.put(prefix + 'start', integer(start, 'start'))


def rope(x: Array, cos: Array, sin: Array, positions: Optional[Array] = None, *, out: Optional[Array] = None, start: int = 0,
         pairing: str = 'half_split', inverse: bool = False, first_dim: int = 0, target: Optional[str] = None) -> Any:
    """Rotates pairs of dimensions: y0 = x0 c - x1 s, y1 = x0 s + x1 c.

    x: [batch, heads, rows, dim]; cos, sin: float32 [positions, pairs], a RopeTable: rope(x, *table).
    positions: int32 or int64 [batch, rows]; without them row i stands at start + i.
    out: as x; may be x itself.
    pairing: 'half_split' (i, i + pairs), as Hugging Face; 'interleaved' (2i, 2i + 1), as Meta's Llama code.
    first_dim: the first rotated dimension; those that are not rotated are copied. inverse: by the negative angle.
    """
    rows, c, s = operand(x, 'x'), operand(cos, 'cos'), operand(sin, 'sin')
    where = None if positions is None else operand(positions, 'positions')
    if out is None:
        out = new_like(x, rows.shape, rows.dtype)
    result = operand(out, 'out', writable=True)
    options = Record(_abi.RopeOptions)
    put_rope_options(options, '', pairing, inverse, first_dim, start)
    check(library.simdattn_rope(
        ctypes.byref(as_view(rows, 4, 'x', _ROWS)), ctypes.byref(as_view(c, 2, 'cos', _TABLE)),
        ctypes.byref(as_view(s, 2, 'sin', _TABLE)), where and ctypes.byref(as_view(where, 2, 'positions', '[batch, rows]')),
        ctypes.byref(as_view(result, 4, 'out', _ROWS)), options.reference(), execution.with_target(target)))
    return out
