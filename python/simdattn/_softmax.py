"""Softmax of rows of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Tuple, overload

from ._abi import Code, DType
from ._arrays import NAMES, Array, maker_like, operand, padded
from ._library import Error, Record, check
from ._run import Function, SoftmaxCall, Templates, remember, replay, run
from ._scoring import OPTIONS, boolean, put_scoring, put_view
from ._tensors import is_torch, mark_written
from ._types import A, AnyArray, ScoringOptions, TargetName, refuse_unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack


_TEMPLATES: Templates = {}


@overload
def softmax(x: A, *, out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ..., return_lse: Literal[False] = ...,
            target: TargetName = ..., causal: bool = ..., **scoring: Unpack[ScoringOptions]) -> A: ...


@overload
def softmax(x: A, *, out: Optional[AnyArray] = ..., lse: Optional[AnyArray] = ..., return_lse: Literal[True],
            target: TargetName = ..., causal: bool = ..., **scoring: Unpack[ScoringOptions]) -> Tuple[A, A]: ...


def softmax(x: Array, *, out: Optional[Array] = None, lse: Optional[Array] = None, return_lse: bool = False,
            target: TargetName = None, **scoring: Any) -> Any:
    """exp(x - max) / sum(exp(x - max)) along the last dimension.

    x: float32, up to 4 dimensions; with scoring options [batch, heads, rows, tokens] (leading dimensions of 1 may be
        left out).
    out: as x; may be x itself. lse: x's shape without the last dimension; return_lse: returned, (out, lse).
    scoring: what attention() explains, applied to the scores first (scale: default 1); masked entries are 0.
    A row that sees nothing, or -inf alone, is zeros, and its lse -inf.
    """
    # Names are in the key of the call because their order is that of the caller's.
    arguments = (x, out, lse, return_lse, target, *scoring.keys(), *scoring.values())
    found = replay(_TEMPLATES, arguments)
    if found is not None and type(found) is not bool:
        return found
    refuse_unknown('softmax', list(scoring), list(OPTIONS))
    scores = operand(x, 'x')
    if not scores.shape:
        raise Error(Code.SHAPE, 'x: has no dimension')
    written = [a for a in (out, lse) if a is not None]
    makes = {}
    if out is None:
        makes['out'] = maker_like(x, scores.shape, DType.F32)
        out = makes['out']()
    if boolean(return_lse, 'return_lse') and lse is None:
        makes['lse'] = maker_like(x, scores.shape[:-1], DType.F32)
        lse = makes['lse']()
    rows, result = padded(scores, 4, 'x'), padded(operand(out, 'out', writable=True), 4, 'out')
    for given, argument in ((rows, 'x'), (result, 'out')):
        if given.dtype != DType.F32:
            raise Error(Code.DTYPE, f'{argument}: is {NAMES[given.dtype]}; float32 is wanted')
    sums = None if lse is None else padded(operand(lse, 'lse', writable=True), 3, 'lse')
    record = Record(SoftmaxCall)
    put_view(record, 'x', rows, 4, 'x', '')
    put_view(record, 'out', result, 4, 'out', '')
    if sums is not None:
        put_view(record, 'lse', sums, 3, 'lse', '')
    put_scoring(record, 'scoring.', scoring, rows.shape, rows.shape[0])
    check(run(Function.SOFTMAX, record, target), x=rows, out=result, lse=sums, n_kv=rows.shape[3], **scoring)
    mark_written(written)
    if found is True and not (is_torch(lse) and 'lse' not in makes):
        first = len(arguments) - len(scoring)
        sources = {'x.data': 0, 'out.data': 1, 'lse.data': 2,
                   **{f'scoring.{name}{data}': first + i for i, name in enumerate(scoring) for data in ('', '.data')},
                   **{name + '.data': -1 - i for i, name in enumerate(makes)}}
        results = ('out.data', 'lse.data') if return_lse else ('out.data',)
        remember(_TEMPLATES, arguments, Function.SOFTMAX, record, target, sources, makes=tuple(makes.values()),
                 results=tuple(sources[name] for name in results))
    return (out, lse) if return_lse else out
