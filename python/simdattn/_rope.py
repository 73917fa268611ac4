"""Rotary position embedding."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _abi
from ._abi import Code, DType, MropeLayout, RopePairing, RopeType, RowNorm
from ._arrays import Array, NDArray, as_view, bytes_of_view, doubles, maker_like, new_like, numbers, operand, padded, positions_of
from ._library import Error, Record, check, enumerator, library
from ._run import Function, RopeCall, Templates, remember, replay, run
from ._scoring import as_double, as_float, boolean, integer, put_numbers, put_view, refuse_unread
from ._tensors import mark_written
from ._types import A, AnyArray, Integers, Numbers, Pairing, TableOptions, TargetName

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RopeTable(NamedTuple):
    """cos and sin, float32 [positions, pairs]: rope(x, *table)."""

    cos: Array
    sin: Array

    def __repr__(self) -> str:
        return f'RopeTable(positions={self.cos.shape[0]}, pairs={self.cos.shape[1]}, dtype={self.cos.dtype})'


_TEMPLATES: Templates = {}  # of calls of rope()
_ROWS = '[batch, heads, rows, dim]'
_TABLE = '[positions, pairs]'
_ENUMS = {'rope_type': RopeType, 'mrope_layout': MropeLayout}
_INTEGERS = {'original_max_position_embeddings', 'max_position_embeddings', 'seq_len'}
_BOOLS = {'truncate', 'f32_angles'}
_ARRAYS = {'short_factor', 'long_factor', 'freq_factors', 'inv_freq'}
_OLDER_TYPES = {'mrope': 'default', 'su': 'longrope'}
_FLOATS = {'rope_theta', 'factor', 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim', 'low_freq_factor', 'high_freq_factor',
           'partial_rotary_factor'}
_OPTIONS = {*_ENUMS, *_INTEGERS, *_BOOLS, *_ARRAYS, *_FLOATS, 'attention_factor', 'mrope_section'}


def _own_names(parameters: Mapping[str, Any]) -> Dict[str, Any]:
    """The keys of configuration files that are other names of ours."""
    options = {name: value for name, value in parameters.items() if value is not None}
    nested = [name for name, value in options.items() if isinstance(value, dict)]
    if nested:
        raise TypeError(f'rope_table(): {", ".join(nested)} are parameters of kinds of layers; give those of one: '
                        f'**config.rope_parameters[{nested[0]!r}]')
    older = options.pop('type', None)  # of files that do not have rope_type
    kind = options.get('rope_type', older)
    if kind is not None:
        options['rope_type'] = _OLDER_TYPES.get(kind, kind)
    if options.pop('mrope_interleaved', False):
        options.setdefault('mrope_layout', 'interleaved')
    if options.get('rope_type') in ('llama3', RopeType.LLAMA3):
        for name in ('factor', 'original_max_position_embeddings'):
            if name not in options:
                raise Error(Code.RANGE, f"{name}: 'llama3' needs it; configuration files have it beside rope_type (Llama 3.1: factor 8.0, "
                                        'original_max_position_embeddings 8192)')
    return options


def _table_options(options: Dict[str, Any]) -> Record:
    record = Record(_abi.RopeTableOptions)
    for name, value in options.items():
        argument = name
        if name in _ENUMS:
            record.put(name, enumerator(_ENUMS[name], value, argument))
        elif name in _INTEGERS:
            record.put(name, integer(value, argument))
        elif name in _BOOLS:
            record.put(name, boolean(value, argument))
        elif name in _FLOATS:
            record.put(name, as_double(value, argument))
        elif name == 'attention_factor':
            record.put('attention_factor.value', as_double(value, argument))
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
            raise TypeError(f'{name!r} is no option of a table; there are {", ".join(sorted(_OPTIONS))}')
    return record


def rope_frequencies(pairs: int, **parameters: Unpack[TableOptions]) -> Tuple[NDArray, float]:
    """The inverse frequencies, float64 [pairs], and the number that multiplies cos and sin. parameters: as in
    rope_table()."""
    options = _own_names(parameters)
    record = _table_options(options)
    frequencies = np.empty(max(integer(pairs, 'pairs'), 0))
    factor = ctypes.c_double()
    check(library.simdattn_rope_frequencies(frequencies.ctypes.data, pairs, ctypes.byref(factor), record.reference()),
          pairs=pairs, **options)
    return frequencies, factor.value


def rope_table(positions: Union[int, Integers], dim: int, *, first: int = 0, out: Optional[RopeTable] = None,
               **parameters: Unpack[TableOptions]) -> RopeTable:
    """cos and sin of every position and pair, within 0.51 ulp, float32 [positions, dim / 2].

    positions: how many, from `first` on; or the positions themselves, int32 or int64 [n], or [axes, n] with
        mrope_section; lists too.
    dim: rotated dimensions, two for each pair.
    parameters: the names of model configuration files, so that rope_table(n, dim, **config.rope_parameters) will do,
        with older ones rope_table(n, dim, rope_theta=config.rope_theta, **config.rope_scaling), where rope_type may be
        `type`: rope_theta (10000), rope_type ('default', 'linear', 'proportional', 'dynamic', 'yarn', 'llama3',
        'longrope'), factor, original_max_position_embeddings, max_position_embeddings, seq_len, attention_factor,
        beta_fast, beta_slow, mscale, mscale_all_dim, truncate, low_freq_factor, high_freq_factor, short_factor,
        long_factor, freq_factors, inv_freq, partial_rotary_factor, mrope_section, mrope_layout ('contiguous',
        'interleaved', 'axial'), f32_angles.
    """
    pairs, odd = divmod(integer(dim, 'dim'), 2)
    if odd or pairs < 0:
        raise Error(Code.SHAPE, f'dim: is {dim}; an even number is wanted, two for each pair')
    options = _own_names(parameters)
    record = _table_options(options)
    if isinstance(positions, (int, np.integer)):
        n, where = integer(positions, 'positions', 0), None
    else:
        where = positions_of(positions, 'positions')
        if len(where.shape) == 1:
            where = padded(where, 2, 'positions')
        n = where.shape[-1] if where.shape else 0
    written = [] if out is None else out
    if out is not None and not (isinstance(out, (tuple, list)) and len(out) == 2):
        raise TypeError(f'out: a RopeTable is wanted, or (cos, sin), not {out!r}')
    if out is None:
        out = RopeTable(new_like(positions, (n, pairs), DType.F32), new_like(positions, (n, pairs), DType.F32))
    cos, sin = operand(out[0], 'out: cos', writable=True), operand(out[1], 'out: sin', writable=True)
    check(library.simdattn_rope_table(
        ctypes.byref(as_view(cos, 2, 'cos', '[n, pairs]')), ctypes.byref(as_view(sin, 2, 'sin', '[n, pairs]')),
        record.reference(), where and ctypes.byref(as_view(where, 2, 'positions', '[axes, n]')), integer(first, 'first')),
        columns=pairs, first=first, positions=where, cos=cos, sin=sin, **options)
    mark_written(written)
    return RopeTable(*out)


def put_norm(record: Record, prefix: str, norm: Any, epsilon: float, weight: Any, dim: int) -> None:
    """The RMS norm of a simdattn_rope_options, if there is one."""
    kind = enumerator(RowNorm, norm, 'norm')
    refuse_unread(kind == RowNorm.NONE, 'norm', norm_epsilon=(epsilon, 0.0), norm_weight=(weight, None))
    if kind == RowNorm.NONE:
        return
    record.put(prefix + 'norm', kind)
    record.put(prefix + 'norm_epsilon', as_float(epsilon, 'norm_epsilon'))
    if weight is not None:
        put_numbers(record, prefix + 'norm_weight', numbers(weight, np.float32, dim, 'norm_weight', 'dimension'))


def put_rope_options(record: Record, prefix: str, pairing: Any, inverse: bool, first_dim: int) -> None:
    """Fills the simdattn_rope_options at `prefix` of a record."""
    record.put(prefix + 'pairing', enumerator(RopePairing, pairing, 'pairing'))
    record.put(prefix + 'inverse', boolean(inverse, 'inverse'))
    record.put(prefix + 'first_dim', integer(first_dim, 'first_dim'))


def rope(x: A, cos: AnyArray, sin: AnyArray, positions: Union[AnyArray, Sequence[Sequence[int]], None] = None, *,
         out: Optional[AnyArray] = None, start: int = 0, pairing: Pairing = 'half_split', inverse: bool = False, first_dim: int = 0,
         norm: Union[str, RowNorm] = 'none', norm_epsilon: float = 0.0, norm_weight: Optional[Numbers] = None,
         target: TargetName = None) -> A:
    """Rotates pairs of dimensions: y0 = x0 c - x1 s, y1 = x0 s + x1 c.

    x: [batch, heads, rows, dim]; cos, sin: float32 [positions, pairs], a RopeTable: rope(x, *table).
    positions: int32 or int64 [batch, rows], or lists; without them row i stands at start + i.
    out: as x; may be x itself.
    pairing: 'half_split' (i, i + pairs), as Hugging Face; 'interleaved' (2i, 2i + 1), as Meta's Llama code.
    first_dim: the first rotated dimension; those that are not rotated are copied. inverse: by the negative angle.
    norm: 'rms' or 'rms_plus_one': rows pass the RMS norm first, times norm_weight, float32 [dim], or 1 + norm_weight.
    """
    arguments = (x, cos, sin, positions, out, start, pairing, inverse, first_dim, norm, norm_epsilon, norm_weight, target)
    found = replay(_TEMPLATES, arguments)
    if found is not None and type(found) is not bool:
        return found  # type: ignore[no-any-return]
    rows = operand(x, 'x')
    given = {'x': rows, 'cos': operand(cos, 'cos'), 'sin': operand(sin, 'sin')}
    record = Record(RopeCall)
    put_rope_options(record, 'options.', pairing, inverse, first_dim)
    put_norm(record, 'options.', norm, norm_epsilon, norm_weight, rows.shape[-1] if rows.shape else 0)
    record.put('positions.start', integer(start, 'start'))
    if positions is not None:
        if start != 0:
            raise Error(Code.RANGE, f'start: is {start}, and positions say where every row stands; give one of them')
        given['positions'] = where = positions_of(positions, 'positions')
        bytes_of_view(where, 2, 'positions', '[batch, rows]')  # refuses other shapes, by what the caller gave
        put_view(record, 'positions.rows', padded(where, 3, 'positions'), 3, 'positions', '')
    make = None if out is not None else maker_like(x, rows.shape, rows.dtype)
    written = [] if out is None else [out]
    out = out if make is None else make()
    given['out'] = operand(out, 'out', writable=True)
    for name, rank, shape in (('x', 4, _ROWS), ('cos', 2, _TABLE), ('sin', 2, _TABLE), ('out', 4, _ROWS)):
        put_view(record, name, given[name], rank, name, shape)
    check(run(Function.ROPE, record, target), **given, start=start, first_dim=first_dim)
    mark_written(written)
    if found is True:
        sources = {'x.data': 0, 'cos.data': 1, 'sin.data': 2, 'positions.rows.data': 3, 'out.data': 4 if make is None else -1,
                   'options.norm_weight': 11}
        remember(_TEMPLATES, arguments, Function.ROPE, record, target, sources, makes=() if make is None else (make,),
                 results=(sources['out.data'],))
    return out  # type: ignore[return-value]
