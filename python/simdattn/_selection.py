"""Which keys a row attends to: scores of an indexer, and the places of the largest."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from . import _abi
from ._abi import Arithmetic, Code, DType, IndexCombine
from ._arrays import NDArray, as_view, new_like, numbers, operand
from ._attention import Store, put_keys
from ._library import Error, Record, check, enumerator, library
from ._scoring import as_float, boolean, integer, put_numbers
from ._targets import execution
from ._tensors import mark_written
from ._types import A, AnyArray, ArithmeticName, Integers, TargetName


def _put_positions(record: Record, batch: int, keys: Optional[int], kv_length: Any, offset: Optional[int], offsets: Any) -> None:
    for name, value in (('keys', keys), ('offset', offset)):
        if value is not None:
            record.put(name, integer(value, name))
    for name, array in (('kv_length', kv_length), ('offsets', offsets)):
        if array is not None:
            put_numbers(record, name, numbers(array, np.int32, batch, name, 'sequence'))


def index_scores(q: A, k: Union[AnyArray, Store], weights: Optional[AnyArray] = None, *, out: Optional[AnyArray] = None,
                 scale: Optional[float] = None, relu: bool = False, combine: Union[str, IndexCombine] = 'sum', causal: bool = False,
                 block_size: int = 1, keys_per_row: int = 1, keys: Optional[int] = None, kv_length: Optional[Integers] = None,
                 offset: Optional[int] = None, offsets: Optional[Integers] = None, arithmetic: ArithmeticName = 'f32',
                 target: TargetName = None) -> A:
    """How much each row wants each key, or block of block_size keys: float32 [batch, 1, rows, candidates].

    q: [batch, heads, rows, dim]; k: [batch, 1, tokens, dim], or a KVCache's keys; weights: float32 [batch, rows,
        heads].
    combine: 'sum' of weight times score over the heads, 'max', or 'each': [batch, heads, rows, candidates]. relu:
        max(score, 0) first.
    keys_per_row: keys that a row of k stands for. keys, kv_length [batch]: lengths. causal, offset, offsets: as in
        attention(). A candidate that a row does not see has -inf.
    """
    rows = operand(q, 'q')
    if len(rows.shape) != 4:
        raise Error(Code.SHAPE, f'q: has {len(rows.shape)} dimensions; 4 are wanted, [batch, heads, rows, dim]')
    batch, heads, n, dim = rows.shape
    store = Record(_abi.ConstKv)
    tokens = put_keys(store, k)
    if isinstance(k, Store) and kv_length is None and keys is None:
        kv_length = k.lengths * keys_per_row
    options = Record(_abi.IndexOptions)
    if scale is not None:
        options.put('scale.value', as_float(scale, 'scale'))
        options.put('scale.given', 1)
    join = enumerator(IndexCombine, combine, 'combine')
    options.put('combine', join)
    options.put('relu', boolean(relu, 'relu'))
    options.put('causal', boolean(causal, 'causal'))
    options.put('arithmetic', enumerator(Arithmetic, arithmetic, 'arithmetic'))
    options.put('block_size', integer(block_size, 'block_size', 1))
    options.put('keys_per_row', integer(keys_per_row, 'keys_per_row', 1))
    _put_positions(options, batch, keys, kv_length, offset, offsets)
    per = max(block_size // keys_per_row, 1)
    written = [] if out is None else [out]
    if out is None:
        out = new_like(q, (batch, heads if join == IndexCombine.EACH else 1, n, -(-tokens // per)), DType.F32)
    result = operand(out, 'out', writable=True)
    w = None if weights is None else operand(weights, 'weights')
    how = execution.with_target(target)
    execution.grow(library.simdattn_index_scores_workspace(enumerator(Arithmetic, arithmetic, 'arithmetic'), heads, dim))
    check(library.simdattn_index_scores(
        ctypes.byref(as_view(rows, 4, 'q', '')), store.reference(), w and ctypes.byref(as_view(w, 3, 'weights', '[batch, rows, heads]')),
        ctypes.byref(as_view(result, 4, 'out', '')), options.reference(), how), q=rows, weights=w, scores=result)
    mark_written(written)
    return out  # type: ignore[return-value]


def top_k(scores: AnyArray, k: int, *, out: Optional[AnyArray] = None, block_size: int = 1, local_blocks: int = 0, tail: bool = False,
          keys: Optional[int] = None, kv_length: Optional[Integers] = None, offset: Optional[int] = None,
          offsets: Optional[Integers] = None, target: TargetName = None) -> NDArray:
    """The places of the k largest scores of each row, int32 [batch, heads, rows, k], ascending, then -1.

    scores: float32 [batch, heads, rows, candidates]. Equal scores: the lowest place first; -inf and NaN are never
        taken.
    local_blocks: the block of the row's own position and those before it are taken first. tail: the block of the
        position is taken besides, unless it ends there; lists are then k + 1 long.
    """
    x = operand(scores, 'scores')
    if len(x.shape) != 4:
        raise Error(Code.SHAPE, f'scores: has {len(x.shape)} dimensions; 4 are wanted, [batch, heads, rows, candidates]')
    options = Record(_abi.TopKOptions)
    options.put('block_size', integer(block_size, 'block_size', 1))
    options.put('local_blocks', integer(local_blocks, 'local_blocks', 0))
    options.put('tail', boolean(tail, 'tail'))
    _put_positions(options, x.shape[0], keys, kv_length, offset, offsets)
    k = integer(k, 'k', 0)
    written = [] if out is None else [out]
    lists = np.empty((*x.shape[:3], k + bool(tail)), np.int32) if out is None else out
    result = operand(lists, 'out', writable=True)
    how = execution.with_target(target)
    execution.grow(library.simdattn_top_k_workspace(k))
    check(library.simdattn_top_k(ctypes.byref(as_view(x, 4, 'scores', '')), k, ctypes.byref(as_view(result, 4, 'out', '')),
                                 options.reference(), how), scores=x, lists=result, k=k)
    mark_written(written)
    return lists  # type: ignore[return-value]
