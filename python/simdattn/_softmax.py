"""Softmax of rows of scores."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Literal, Optional, Tuple, overload

from . import _abi
from ._abi import Code, DType
from ._arrays import NAMES, Array, as_view, new_like, operand, padded
from ._library import Error, Record, check, library
from ._scoring import OPTIONS, boolean, put_scoring
from ._targets import execution
from ._tensors import mark_written
from ._types import A, AnyArray, ScoringOptions, TargetName, refuse_unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def softmax(x: A, *, out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ..., return_lse: Literal[False] = ...,
            target: TargetName = ..., causal: bool = ..., **scoring: Unpack[ScoringOptions]) -> A: ...


@overload
def softmax(x: A, *, out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ..., return_lse: Literal[True],
            target: TargetName = ..., causal: bool = ..., **scoring: Unpack[ScoringOptions]) -> Tuple[A, A]: ...


def softmax(x: Array, *, out: Optional[Array] = None, lse: Optional[Array] = None, return_lse: bool = False,
            target: TargetName = None, **scoring: Any) -> Any:
    """exp(x - max) / sum(exp(x - max)) along the last dimension.

    x: float32, up to 4 dimensions; with scoring options [batch, heads, rows, tokens] (leading dimensions of 1 may be left out).
    out: as x; may be x itself. lse: x's shape without the last dimension; return_lse: returned, (out, lse).
    scoring: what attention() explains, applied to the scores first (scale: default 1); masked entries are 0.
    A row that sees nothing, or -inf alone, is zeros, and its lse -inf.
    """
    refuse_unknown('softmax', list(scoring), list(OPTIONS))
    scores = operand(x, 'x')
    if not scores.shape:
        raise Error(Code.SHAPE, 'x: has no dimension')
    written = [a for a in (out, lse) if a is not None]
    if out is None:
        out = new_like(x, scores.shape, DType.F32)
    if boolean(return_lse, 'return_lse') and lse is None:
        lse = new_like(x, scores.shape[:-1], DType.F32)
    rows, result = padded(scores, 4, 'x'), padded(operand(out, 'out', writable=True), 4, 'out')
    for given, argument in ((rows, 'x'), (result, 'out')):
        if given.dtype != DType.F32:
            raise Error(Code.DTYPE, f'{argument}: is {NAMES[given.dtype]}; float32 is wanted')
    sums = None if lse is None else padded(operand(lse, 'lse', writable=True), 3, 'lse')
    record = Record(_abi.Scoring)
    put_scoring(record, '', scoring, rows.shape, rows.shape[0])
    check(library.simdattn_masked_softmax(
        ctypes.byref(as_view(rows, 4, 'x', '')), ctypes.byref(as_view(result, 4, 'out', '')), record.reference(),
        None if sums is None else ctypes.byref(as_view(sums, 3, 'lse', '')), execution.with_target(target)),
        x=rows, out=result, lse=sums, n_kv=rows.shape[3], **scoring)
    mark_written(written)
    return (out, lse) if return_lse else out
