"""The kernels inside attention, apart: scores, values times weights, and the joining of parts."""

from __future__ import annotations

import ctypes
from typing import Any, Literal, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi
from ._abi import Arithmetic, Code, DType
from ._arrays import NAMES, Operand, as_view, maker_like, new_like, numbers, operand
from ._library import Error, Record, check, enumerator, library
from ._scoring import as_float, boolean
from ._targets import execution
from ._tensors import is_torch, mark_written
from ._types import A, AnyArray, ArithmeticName, Numbers, TargetName


def _of_rank(x: Any, rank: int, argument: str, shape: str) -> Operand:
    found = operand(x, argument)
    if len(found.shape) != rank:
        raise Error(Code.SHAPE, f'{argument}: has {len(found.shape)} dimensions; {rank} are wanted, {shape}')
    return found


def _kind(dtype: Any, like: Operand) -> DType:
    """The element type of a result; None: that of `like`."""
    found = like.dtype if dtype is None else enumerator(DType, dtype, 'dtype')
    if found not in (DType.F32, DType.BF16, DType.F16):
        raise Error(Code.DTYPE, f'dtype: is {NAMES[found]}; float32, bfloat16 or float16 is wanted')
    return found


def scores(q: A, k: AnyArray, *, scale: Optional[float] = None, out: Optional[AnyArray] = None,
           arithmetic: ArithmeticName = 'f32', target: TargetName = None) -> A:
    """scale * q k^T: float32 [batch, heads, rows, tokens].

    q: [batch, heads, rows, dim], k: [batch, kv_heads, tokens, dim], float32, bfloat16 or float16, any mixture; query
    head h reads key head h // (heads / kv_heads). scale: default 1/sqrt(dim). arithmetic: as in attention().
    softmax() takes the result, with `causal`, masks and all other options of scores.
    """
    rows, keys = _of_rank(q, 4, 'q', '[batch, heads, rows, dim]'), _of_rank(k, 4, 'k', '[batch, kv_heads, tokens, dim]')
    written = [] if out is None else [out]
    if out is None:
        out = new_like(q, (*rows.shape[:3], keys.shape[2]), DType.F32)
    result = operand(out, 'out', writable=True)
    options = Record(_abi.ScoreOptions)
    if scale is not None:
        options.put('scale.value', as_float(scale, 'scale'))
        options.put('scale.given', 1)
    kind = enumerator(Arithmetic, arithmetic, 'arithmetic')
    options.put('arithmetic', kind)
    how = execution.with_target(target)
    execution.grow(library.simdattn_scores_workspace(kind, rows.shape[3]))
    check(library.simdattn_scores(ctypes.byref(as_view(rows, 4, 'q', '')), ctypes.byref(as_view(keys, 4, 'k', '')),
                                  ctypes.byref(as_view(result, 4, 'out', '[batch, heads, rows, tokens]')),
                                  options.reference(), how), q=rows, k=keys, out=result, scale=scale)
    mark_written(written)
    return out  # type: ignore[return-value]


def weighted_values(p: A, v: AnyArray, *, out: Optional[AnyArray] = None, dtype: Any = None,
                    arithmetic: ArithmeticName = 'f32', target: TargetName = None) -> A:
    """p v: [batch, heads, rows, dim], a new array of type dtype, default that of v, unless `out` is given.

    p: float32 [batch, heads, rows, tokens]; v: [batch, kv_heads, tokens, dim], float32, bfloat16 or float16. A key
        whose weight is exactly 0 has no influence, whatever its value holds. arithmetic: as in attention().
    """
    weights = _of_rank(p, 4, 'p', '[batch, heads, rows, tokens]')
    values = _of_rank(v, 4, 'v', '[batch, kv_heads, tokens, dim]')
    written = [] if out is None else [out]
    if out is None:
        out = new_like(p if is_torch(p) else v, (*weights.shape[:3], values.shape[3]), _kind(dtype, values))
    result = operand(out, 'out', writable=True)
    options = Record(_abi.ValueOptions)
    kind = enumerator(Arithmetic, arithmetic, 'arithmetic')
    options.put('arithmetic', kind)
    how = execution.with_target(target)
    execution.grow(library.simdattn_weighted_values_workspace(kind, values.shape[3]))
    check(library.simdattn_weighted_values(
        ctypes.byref(as_view(weights, 4, 'p', '')), ctypes.byref(as_view(values, 4, 'v', '')),
        ctypes.byref(as_view(result, 4, 'out', '[batch, heads, rows, dim]')), options.reference(), how),
          p=weights, v=values, out=result)
    mark_written(written)
    return out  # type: ignore[return-value]


def _stacked(parts: Any, argument: str) -> Any:
    """One array of those in a list; what is an array already is not copied."""
    if not isinstance(parts, (list, tuple)):
        return parts
    if not parts:
        raise Error(Code.SHAPE, f'{argument}: is an empty list; there is nothing to join')
    for x in parts:
        if not hasattr(x, 'shape'):
            raise TypeError(f'{argument}: arrays are wanted, not {type(x).__name__}')
    if len({tuple(x.shape) for x in parts}) > 1:
        raise Error(Code.SHAPE, f'{argument}: have shapes {[tuple(x.shape) for x in parts]}; one shape is wanted')
    if is_torch(parts[0]):
        import torch
        return torch.stack(list(parts))
    joined = np.stack([np.asarray(x) for x in parts])
    return joined.view(type(parts[0])) if isinstance(parts[0], np.ndarray) else joined


@overload
def attention_merge(parts: Union[A, Sequence[A]], part_lse: Union[AnyArray, Sequence[AnyArray]], *,
                    sinks: Optional[Numbers] = ..., out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ...,
                    return_lse: Literal[False] = ..., target: TargetName = ...) -> A: ...


@overload
def attention_merge(parts: Union[A, Sequence[A]], part_lse: Union[AnyArray, Sequence[AnyArray]], *,
                    sinks: Optional[Numbers] = ..., out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ...,
                    return_lse: Literal[True], target: TargetName = ...) -> Tuple[A, A]: ...


def attention_merge(parts: Any, part_lse: Any, *, sinks: Optional[Numbers] = None, out: Optional[AnyArray] = None,
                    lse: Optional[AnyArray] = None, return_lse: bool = False, target: TargetName = None) -> Any:
    """Joins results of attention() over disjoint keys by their log-sum-exp.

    parts: [parts, batch, heads, rows, dim], or a list of [batch, heads, rows, dim], which is copied into one array
    part_lse: float32 [parts, batch, heads, rows], or a list likewise; a part of -inf counts for nothing
    sinks: [heads], one logit more in the denominator; attention() is then called without them
    out: [batch, heads, rows, dim]; a new array of the parts' kind and type unless given; lse: float32 [batch, heads,
        rows]; return_lse: returned, (out, lse)
    """
    parts, part_lse = _stacked(parts, 'parts'), _stacked(part_lse, 'part_lse')
    rows = _of_rank(parts, 5, 'parts', '[parts, batch, heads, rows, dim]')
    sums = _of_rank(part_lse, 4, 'part_lse', '[parts, batch, heads, rows]')
    written = [x for x in (out, lse) if x is not None]
    if out is None:
        out = maker_like(parts, rows.shape[1:], rows.dtype)()
    if boolean(return_lse, 'return_lse') and lse is None:
        lse = maker_like(parts, rows.shape[1:4], DType.F32)()
    result = operand(out, 'out', writable=True)
    total = None if lse is None else operand(lse, 'lse', writable=True)
    logits = None if sinks is None else numbers(sinks, np.float32, rows.shape[2], 'sinks', 'query head')
    check(library.simdattn_attention_merge(
        ctypes.byref(as_view(rows, 5, 'parts', '')), ctypes.byref(as_view(sums, 4, 'part_lse', '')),
        ctypes.byref(as_view(result, 4, 'out', '[batch, heads, rows, dim]')),
        None if total is None else ctypes.byref(as_view(total, 3, 'lse', '[batch, heads, rows]')),
        None if logits is None else logits.ctypes.data, execution.with_target(target)),
          parts=rows, part_lse=sums, out=result, lse=total)
    mark_written(written)
    return (out, lse) if return_lse else out
