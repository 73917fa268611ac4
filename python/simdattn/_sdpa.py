"""PyTorch's scaled_dot_product_attention, with its own signature and meaning."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Executor
from typing import Any, Dict, Literal, NamedTuple, Optional, Sequence, Tuple, overload

import numpy as np

from ._abi import Code, DType
from ._arrays import SIZES, Array, Operand, maker_like, operand, padded
from ._attention import Problem, _Tasks, threads_wanted
from ._library import Error
from ._run import Templates, replay
from ._scoring import as_double, boolean
from ._tensors import causal_offset, is_causal_bias, mark_written
from ._targets import word_of
from ._types import A, AnyArray, ArithmeticName, TargetName

Shape = Tuple[int, ...]


def _broadcast(x: Operand, leading: Sequence[int], argument: str, trailing: int = 2) -> Operand:
    """x with these leading dimensions: those of one element have steps of 0 already."""
    cut = len(x.shape) - trailing
    own, rest = x.shape[:cut], x.shape[cut:]
    missing = len(leading) - len(own)
    strides = (0,) * missing + x.strides[:cut]
    own = (1,) * max(missing, 0) + own
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(own, leading)):
        raise Error(Code.SHAPE, f'{argument}: shape {x.shape} does not broadcast to {(*leading, *rest)}')
    return x._replace(shape=(*leading, *rest), strides=(*strides, *x.strides[cut:]))


def _common(shapes: Sequence[Shape]) -> Shape:
    """The shape that all of these broadcast to, or that of the first where there is none: _broadcast() then says so."""
    rank = max(len(s) for s in shapes)
    columns = zip(*((1,) * (rank - len(s)) + s for s in shapes))
    return tuple(next((n for n in column if n != 1), 1) for column in columns)


def leading_shapes(q: Shape, k: Shape, v: Shape, enable_gqa: bool) -> Tuple[Shape, Shape]:
    """What stands before the last two dimensions of the result, and of key and value after broadcasting. Error for
    other shapes."""
    for shape, argument in ((q, 'query'), (k, 'key'), (v, 'value')):
        if len(shape) < 2:
            raise Error(Code.SHAPE, f'{argument}: has {len(shape)} dimensions; at least 2 are wanted')
    if k[-1] != q[-1]:
        raise Error(Code.SHAPE, f'key: its last dimension is {k[-1]}, that of query {q[-1]}')
    if v[-2] != k[-2]:
        raise Error(Code.SHAPE, f'value: has {v[-2]} rows, key {k[-2]}')
    leading = [q[:-2], k[:-2], v[:-2]]
    if leading[0] == leading[1] == leading[2]:
        return leading[0], leading[0]
    if not enable_gqa:
        full = _common(leading)
        return full, full
    if any(len(s) < 1 for s in leading):
        raise Error(Code.SHAPE, 'enable_gqa: needs a dimension of heads')
    heads, kv_heads = leading[0][-1], leading[1][-1]
    if leading[2][-1] != kv_heads or kv_heads == 0 or heads % kv_heads:
        raise Error(Code.SHAPE, f'enable_gqa: {heads} heads of query do not divide among {kv_heads} of key and '
                                f'{leading[2][-1]} of value')
    batches = _common([s[:-1] for s in leading])
    return (*batches, heads), (*batches, kv_heads)


@overload
def scaled_dot_product_attention(query: A, key: AnyArray, value: AnyArray, attn_mask: Optional[AnyArray] = ...,
                                 dropout_p: float = ..., is_causal: bool = ..., scale: Optional[float] = ...,
                                 enable_gqa: bool = ..., *, return_lse: Literal[False] = ..., out: Optional[AnyArray] = ...,
                                 arithmetic: ArithmeticName = ..., target: TargetName = ..., threads: Optional[int] = ..., pool: Optional[Executor] = ...) -> A: ...


@overload
def scaled_dot_product_attention(query: A, key: AnyArray, value: AnyArray, attn_mask: Optional[AnyArray] = ...,
                                 dropout_p: float = ..., is_causal: bool = ..., scale: Optional[float] = ...,
                                 enable_gqa: bool = ..., *, return_lse: Literal[True], out: Optional[AnyArray] = ...,
                                 arithmetic: ArithmeticName = ..., target: TargetName = ..., threads: Optional[int] = ..., pool: Optional[Executor] = ...
                                 ) -> Tuple[A, A]: ...


def scaled_dot_product_attention(query: A, key: AnyArray, value: AnyArray, attn_mask: Optional[AnyArray] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False, *, return_lse: bool = False, out: Optional[AnyArray] = None,
                                 arithmetic: ArithmeticName = 'f32', target: TargetName = None, threads: Optional[int] = None,
                                 pool: Optional[Executor] = None) -> Any:
    """As torch.nn.functional.scaled_dot_product_attention, for inference on the CPU.

    query: [..., L, E], key: [..., S, E], value: [..., S, Ev]; leading dimensions broadcast; the last of them are heads.
    attn_mask: bool (true attends) or a float type (added), broadcast to [..., L, S], or a
        torch.nn.attention.bias.CausalBias.
    dropout_p: must be 0. is_causal: row i sees keys 0 .. i (the corner at the top left), without attn_mask.
    scale: default 1/sqrt(E). enable_gqa: key and value have fewer heads; query head h reads head h // (heads /
        kv_heads).
    return_lse: (out, lse), lse float32 [..., L], the natural log-sum-exp, which attention_merge() takes.
    out: [..., L, Ev], as query unless given. arithmetic, target, threads, pool: as in attention().

    E and Ev may be 0: without dimensions every score is 0. Where PyTorch gives NaN for a row that sees no key (before
    2.5), this gives zeros.
    """
    arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, out, target, threads, return_lse,
                 word_of(arithmetic))
    found = None if pool is not None else replay(_TEMPLATES, arguments)
    if found is not None and type(found) is not bool:
        return found
    mask, offset = masking(attn_mask, dropout_p, is_causal, (query, key))
    written = [] if out is None else [out]
    how = How(target, threads_wanted(threads), pool, (_TEMPLATES, arguments) if found is True else None,
              boolean(return_lse, 'return_lse'), arithmetic)
    result = attend(query, key, value, mask, offset, scale, boolean(enable_gqa, 'enable_gqa'), out, how)
    mark_written(written)
    return result


_TEMPLATES: Templates = {}
# The arguments of the tuple above, by the names of attention().
_NAMES = ('q', 'k', 'v', '', '', '', '', '', 'out', 'target', 'threads', '', '')


class How(NamedTuple):
    """How a call runs. remember: where replay() finds it the next time, and its arguments."""

    target: TargetName = None
    threads: Optional[int] = None
    pool: Optional[Executor] = None
    remember: Optional[Tuple[Templates, Tuple[Any, ...]]] = None
    return_lse: bool = False
    arithmetic: ArithmeticName = 'f32'


def masking(attn_mask: Any, dropout_p: float, is_causal: bool, arrays: Sequence[Any]) -> Tuple[Any, Optional[int]]:
    """The mask that is an array, and the position of row 0 on the axis of keys where causality is asked for."""
    if as_double(dropout_p, 'dropout_p') != 0:
        raise Error(Code.RANGE, f'dropout_p: is {dropout_p}; this is for inference, it must be 0')
    if boolean(is_causal, 'is_causal'):
        if attn_mask is not None:
            raise Error(Code.RANGE, 'attn_mask: must not be given with is_causal')
        return None, 0
    if attn_mask is not None and is_causal_bias(attn_mask):
        rows, keys = (x.shape[-2] for x in arrays)
        return None, causal_offset(attn_mask, rows, keys, 'attn_mask')
    return attn_mask, None


def attend(query: Array, key: Array, value: Array, attn_mask: Optional[Array], offset: Optional[int], scale: Optional[float],
           enable_gqa: bool, out: Optional[Array], how: How) -> Any:
    """scaled_dot_product_attention behind its rules on masks."""
    q, k, v = operand(query, 'query'), operand(key, 'key'), operand(value, 'value')
    full, kv_full = leading_shapes(q.shape, k.shape, v.shape, enable_gqa)
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] == full:
        q, k, v = _broadcast(q, full, 'query'), _broadcast(k, kv_full, 'key'), _broadcast(v, kv_full, 'value')
    rows, keys = q.shape[-2], k.shape[-2]

    options: Dict[str, Any] = {'scale': scale, 'arithmetic': how.arithmetic, 'target': how.target}
    if offset is not None:
        options.update(causal=True, offset=offset)
    mask = None
    if attn_mask is not None:
        mask = operand(attn_mask, 'attn_mask')
        mask = mask if mask.shape else padded(mask, 1, 'attn_mask')
        if mask.shape[-1] not in (1, keys):
            raise Error(Code.SHAPE, f'attn_mask: shape {mask.shape} does not broadcast to {(*full, rows, keys)}')
        mask = _broadcast(mask, (*full, rows), 'attn_mask', trailing=1)  # the library repeats a last dimension of 1
        if mask.dtype in (DType.I32, DType.I64):
            raise Error(Code.DTYPE, 'attn_mask: holds integers; bool (true attends) or a float type (added) is wanted')

    shape = (*full, rows, v.shape[-1])
    make = None if out is not None else maker_like(query, shape, q.dtype)
    out = out if make is None else make()
    result = operand(out, 'out', writable=True)
    if result.shape != shape:
        raise Error(Code.SHAPE, f'out: has shape {result.shape}; {shape} is wanted')
    if shape[-1] == 0:
        if how.return_lse:
            raise Error(Code.SHAPE, 'return_lse: value has no dimension; without a result there is no log-sum-exp')
        return out  # nothing to write
    make_lse = maker_like(query, shape[:-1], DType.F32) if how.return_lse else None
    lse = None if make_lse is None else make_lse()
    sums = None if lse is None else _as_column(operand(lse, 'lse', writable=True))
    if q.shape[-1] == 0:
        q, k = _one_zero(q), _one_zero(k)
        options['scale'] = 1.0 if scale is None or math.isinf(scale) else scale
    # Four dimensions are one call. What stands before them is walked here: it need not be one stride.
    outer = full[:-2] if len(full) > 2 else ()
    for place in itertools.product(*(range(n) for n in outer)):
        if mask is not None:
            name = 'mask' if mask.dtype == DType.U8 else 'bias'
            options[name] = _four(mask, place)
        if sums is not None:
            options['lse'] = _row_of(_four(sums, place))
        problem = Problem(_four(q, place), _four(k, place), _four(v, place), out=_four(result, place), **options)
        if how.pool is None:
            problem.run(how.target, how.threads)
        else:
            _Tasks(problem, how.target).run(how.pool)
    if how.remember is not None and not outer:
        makes = {'out': make, 'lse': make_lse}
        problem.out, problem.lse = out, lse
        problem.makes = {name: found for name, found in makes.items() if found is not None}
        mask_name = 'mask' if mask is not None and mask.dtype == DType.U8 else 'bias'
        problem.remember(*how.remember, [mask_name if i == 3 else name for i, name in enumerate(_NAMES)], how.target)
    return out if lse is None else (out, lse)


def _as_column(x: Operand) -> Operand:
    """[..., L] as [..., L, 1]."""
    return x._replace(shape=(*x.shape, 1), strides=(*x.strides, 1))


def _row_of(x: Operand) -> Operand:
    return x._replace(shape=x.shape[:-1], strides=x.strides[:-1])


_ZERO = np.zeros(1)  # 0 in every type


def _one_zero(x: Operand) -> Operand:
    """Rows without dimensions as rows of one that is 0: the products are the same."""
    return Operand(_ZERO.ctypes.data, x.dtype, (*x.shape[:-1], 1), (*(0,) * (len(x.shape) - 1), 1), _ZERO)


def _four(x: Operand, place: Tuple[int, ...]) -> Operand:
    """The last four dimensions at a place in those before."""
    if len(x.shape) == 4 and not place:
        return x
    outer = len(place)
    step = sum(i * s for i, s in zip(place, x.strides))
    return padded(x._replace(pointer=x.pointer + step * SIZES[x.dtype], shape=x.shape[outer:], strides=x.strides[outer:]), 4, '')
