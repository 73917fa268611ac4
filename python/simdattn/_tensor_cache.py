"""A cache in the memory of the caller's tensors and pages."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

import numpy as np

from . import _abi
from ._abi import Code
from ._arrays import KV_TYPES, NAMES, SIZES, Operand, operand
from ._attention import Store, tensor_bytes
from ._cache import KVCache, check_store
from ._library import Error
from ._tensors import mark_written
from ._types import AnyArray, Integers


class TensorCache(KVCache):
    """A KVCache whose memory is the caller's: append() writes into these tensors, attend() reads them where they lie.

    keys: [batch, kv_heads, capacity, head_dim], values: [batch, kv_heads, capacity, value_dim]; float32, bfloat16 or
        float16, any strides but of the last dimension, which is contiguous: x.transpose(1, 2) of a model's
        [batch, capacity, kv_heads, head_dim]
    block_table: int32 [batch, n]: keys and values are pages then, [pages, kv_heads, page_size, head_dim], and token t
        of sequence s is t % page_size of page block_table[s][t // page_size]. Entries may change at any time; those
        beyond the lengths are not read.
    lengths: the tokens that each sequence has already; default: none

    All of KVCache but for its copies (clone, fork, select, resized, reorder, pickle): the tensors are the
    caller's to copy.
    """

    def __init__(self, keys: AnyArray, values: AnyArray, *, block_table: Optional[AnyArray] = None,
                 lengths: Optional[Integers] = None) -> None:
        self._tensors: Any = (keys, values)
        found = [_of_caller(x, name) for x, name in ((keys, 'keys'), (values, 'values'))]
        if found[0].shape[:3] != found[1].shape[:3]:
            raise Error(
                Code.SHAPE,
                f'values: has shape {found[1].shape}, keys {found[0].shape}; all but the last dimension are the same')
        self._block_table: Any = block_table
        table = None if block_table is None else operand(block_table, 'block_table')
        if table is not None and (table.dtype != _abi.DType.I32 or len(table.shape) != 2 or table.strides[1] != 1):
            raise Error(
                Code.SHAPE,
                f'block_table: is {NAMES[table.dtype]} of shape {table.shape}; int32 [batch, pages of a sequence] is '
                'wanted, with contiguous rows')
        batch = found[0].shape[0] if table is None else table.shape[0]
        self._begin(batch)
        self._options = {'page_size': 0 if table is None else found[0].shape[2]}
        self.keys, self.values = (self._store_over(x, table, name) for x, name in zip(found, ('', 'value_')))
        self._nbytes = sum(SIZES[x.dtype] * int(np.prod(x.shape)) for x in found)
        if lengths is not None:
            self.lengths = lengths

    def _store_over(self, x: Operand, table: Optional[Operand], value: str) -> Store:
        struct = _abi.Kv.from_buffer_copy(tensor_bytes(x.dtype, x.shape, x.strides))
        struct.data, struct.batch = x.pointer, len(self._lengths)
        if table is not None:
            struct.n_pages, struct.page_size, struct.capacity = x.shape[0], x.shape[2], table.shape[1] * x.shape[2]
            struct.block_table, struct.block_table_stride = table.pointer, table.strides[0]
        check_store(_abi.Kv.from_buffer_copy(struct), struct.batch, 0, struct.page_size, value)
        return Store(struct, [], self._lengths, (x.owner, table))

    def forget_owners(self) -> None:
        """Lets the tensors go: whoever calls append() or attend() afterwards has them."""
        self._tensors = ()
        self.keys.table = self.values.table = None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._nbytes

    def append(self, k: Any, v: Any, **options: Any) -> None:
        super().append(k, v, **options)
        mark_written(self._tensors)

    append.__doc__ = KVCache.append.__doc__

    def _sequences(self, what: str) -> NoReturn:
        raise Error(
            Code.RANGE,
            f'{what}: this cache lies in tensors of the caller; copy those, and make a TensorCache of the copies')

    def clone(self) -> NoReturn:
        self._sequences('clone')

    def __reduce__(self) -> NoReturn:
        self._sequences('pickle')


def _of_caller(x: Any, argument: str) -> Operand:
    found = operand(x, argument, writable=True)
    if found.dtype not in KV_TYPES:
        raise Error(Code.DTYPE, f'{argument}: is {NAMES[found.dtype]}; float32, bfloat16 or float16 is wanted')
    if len(found.shape) != 4:
        raise Error(Code.SHAPE,
                    f'{argument}: has {len(found.shape)} dimensions; 4 are wanted, [batch, kv_heads, tokens, dim]')
    if found.strides[3] != 1:
        raise Error(Code.STRIDE, f'{argument}: the last dimension is not contiguous')
    return found
