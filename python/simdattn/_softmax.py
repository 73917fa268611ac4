"""Softmax of rows of scores."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from . import _abi
from ._abi import Code, DType
from ._arrays import Array, as_view, new_like, operand, padded
from ._library import Error, Record, check, library
from ._scoring import OPTIONS, boolean, put_scoring
from ._targets import execution
from ._tensors import mark_written


def softmax(x: Array, *, out: Optional[Array] = None, lse: Optional[Array] = None, return_lse: bool = False,
            target: Optional[str] = None, **scoring: Any) -> Any:
    """exp(x - max) / sum(exp(x - max)) along the last dimension.

    x: float32, up to 4 dimensions; with scoring options [batch, heads, rows, tokens] (leading dimensions of 1 may be left out).
    out: as x; may be x itself. lse: x's shape without the last dimension; return_lse: returned, (out, lse).
    scoring: what attention() explains, applied to the scores first (scale: default 1); masked entries are 0.
    A row that sees nothing, or -inf alone, is zeros, and its lse -inf.
    """
    unknown = set(scoring) - OPTIONS
    if unknown:
        raise TypeError(f'softmax() has no option {sorted(unknown)[0]!r}: it runs along the last dimension; there are '
                        f'{", ".join(sorted(OPTIONS))}')
    scores = operand(x, 'x')
    if not scores.shape:
        raise Error(Code.SHAPE, 'x: has no dimension')
    written = [a for a in (out, lse) if a is not None]
    if out is None:
        out = new_like(x, scores.shape, DType.F32)
    if boolean(return_lse, 'return_lse') and lse is None:
        lse = new_like(x, scores.shape[:-1], DType.F32)
    rows = padded(scores, 4, 'x')
    result = padded(operand(out, 'out', writable=True), 4, 'out')
    sums = None if lse is None else padded(operand(lse, 'lse', writable=True), 3, 'lse')
    record = Record(_abi.Scoring)
    put_scoring(record, '', scoring, rows.shape, rows.shape[0])
    check(library.simdattn_masked_softmax(
        ctypes.byref(as_view(rows, 4, 'x', '')), ctypes.byref(as_view(result, 4, 'out', '')), record.reference(),
        None if sums is None else ctypes.byref(as_view(sums, 3, 'lse', '')), execution.with_target(target)),
        x=rows, out=result, lse=sums, n_kv=rows.shape[3], **scoring)
    mark_written(written)
    return (out, lse) if return_lse else out
