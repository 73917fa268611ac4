"""A cache of keys and values: it owns the memory, converts on the way in, and attends where it lies."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from . import _abi
from ._abi import Code, KvLayout, KvType
from ._arrays import Array, NDArray, as_view, numbers, operand
from ._attention import Plan, Store, attention
from ._library import Error, Record, check, enumerator, initial_bytes, library
from ._rope import RopeTable, put_rope_options
from ._scoring import integer, put_numbers, put_view
from ._targets import execution

_ALIGNMENT = 64


def _memory(size: int) -> NDArray:
    """Zeroed bytes that begin at a cache line."""
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start:start + size]


class KVCache:
    """Keys and values of one layer, for `batch` sequences.

    batch, kv_heads, capacity (tokens of a sequence), head_dim; value_dim: head_dim unless given
    dtype: how keys and values are stored: any name of the library's storage types, 'bf16' ('bfloat16', torch.bfloat16), 'f16',
        'f32', ...; value_dtype: of the values, if theirs is another
    layout: of the keys: 'panels' (faster) or 'rows'; the results are the same bits
    ring: > 0: memory for the last `ring` tokens only (sliding windows); with panels a multiple of 32
    page_size, n_pages, block_table: > 0: memory of n_pages pages of page_size tokens (with panels a multiple of 32), which
        sequences share; block_table, int32 [batch, ceil(capacity / page_size)], is the caller's and says which page holds which
        tokens. The caller may change its entries at any time.

    lengths: int32 [batch], the tokens that each sequence has. append() raises them; write to them to forget the newest tokens.
    keys, values: what attention() takes in the place of arrays. nbytes: memory in use.
    """

    def __init__(self, batch: int, kv_heads: int, capacity: int, head_dim: int, *, value_dim: Optional[int] = None,
                 dtype: Any = 'bf16', value_dtype: Any = None, layout: Any = 'panels', ring: int = 0, page_size: int = 0,
                 n_pages: int = 0, block_table: Optional[NDArray] = None) -> None:
        self.lengths = np.zeros(integer(batch, 'batch', 1, 2**31 - 1), np.int32)
        self._block_table = block_table
        if page_size:
            table = operand(block_table, 'block_table')
            wanted = (batch, -(-capacity // page_size))
            if table.dtype != _abi.DType.I32 or table.shape != wanted or (table.strides[1] != 1):
                raise Error(Code.SHAPE, f'block_table: an int32 array of shape {wanted} is wanted, with contiguous rows')
        key_type = enumerator(KvType, dtype, 'dtype')
        value_type = key_type if value_dtype is None else enumerator(KvType, value_dtype, 'value_dtype')
        self.keys = self._store(key_type, enumerator(KvLayout, layout, 'layout'), kv_heads, capacity, head_dim, ring, page_size,
                                n_pages)
        self.values = self._store(value_type, KvLayout.ROWS, kv_heads, capacity, head_dim if value_dim is None else value_dim,
                                  ring, page_size, n_pages)

    def _store(self, kind: KvType, layout: KvLayout, heads: int, capacity: int, dim: int, ring: int, page_size: int,
               n_pages: int) -> Store:
        batch = len(self.lengths)
        for n, argument in ((heads, 'kv_heads'), (capacity, 'capacity'), (dim, 'head_dim')):
            integer(n, argument, 1, 2**40)
        units, tokens = (integer(n_pages, 'n_pages', 1), page_size) if page_size else (batch, ring or capacity)
        memory = _memory(library.simdattn_kv_bytes(kind, layout, units, heads, tokens, dim))
        struct = library.simdattn_contiguous_kv(memory.ctypes.data, kind, layout, units, heads, tokens, dim)
        blocks, table_memory = [memory], None
        if library.simdattn_has_scales(kind):  # numbers are multiplied by scales that stand apart
            scales = _memory(4 * units * heads * tokens)
            scales.view(np.float32)[:] = 1  # of types whose scales are the caller's; append() writes those of the others
            struct = library.simdattn_contiguous_scales(struct, scales.ctypes.data)
            blocks.append(scales)
        struct.batch, struct.tokens, struct.ring = batch, capacity, ring
        if page_size:
            table = operand(self._block_table, 'block_table')
            struct.page_size, struct.n_pages = page_size, n_pages
            struct.block_table, struct.block_table_stride = table.pointer, table.strides[0]
            table_memory = table.owner
        return Store(struct, blocks, table_memory)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can have."""
        return self.keys.struct.tokens  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(x.nbytes for store in (self.keys, self.values) for x in store.memory)

    def append(self, k: Array, v: Array, *, rope: Optional[RopeTable] = None, pairing: str = 'half_split', first_dim: int = 0,
               counts: Optional[Any] = None, target: Optional[str] = None) -> None:
        """Stores new tokens behind those of each sequence, and raises `lengths`.

        k: [batch, kv_heads, rows, head_dim], v: [batch, kv_heads, rows, value_dim]; float32, bfloat16 or float16.
        counts: int32 [batch], rows of each sequence that count; the others are padding.
        rope: a RopeTable that rotates the keys, each by its position; pairing, first_dim: as in rope().
        """
        keys, values = operand(k, 'k'), operand(v, 'v')
        rows = keys.shape[2] if len(keys.shape) == 4 else 0
        if len(values.shape) == 4 and values.shape[2] != rows:
            raise Error(Code.SHAPE, f'v: has {values.shape[2]} rows, k {rows}')
        added = np.full_like(self.lengths, rows) if counts is None else numbers(counts, np.int32, len(self.lengths), 'counts',
                                                                                  'sequence')
        how = execution.with_target(target)
        options = Record(_abi.AppendOptions)
        put_numbers(options, 'starts', self.lengths)
        key_view = as_view(keys, 4, 'k', '[batch, kv_heads, rows, head_dim]')
        value_view = as_view(values, 4, 'v', '[batch, kv_heads, rows, value_dim]')
        reference = options.reference()

        def store(view: Any, into: Store, counts: NDArray) -> None:
            options.put('counts', counts.ctypes.data)
            check(library.simdattn_kv_append(ctypes.byref(view), None, ctypes.byref(into.struct), reference, how))

        store(value_view, self.values, np.zeros_like(added))  # refuses what is wrong with v before k is written
        if rope is not None:
            _put_rotation(options, 'rope.', rope, pairing, first_dim)
        store(key_view, self.keys, added)
        if rope is not None:
            options.put_struct('rope', initial_bytes(_abi.KeyRotation))
        store(value_view, self.values, added)
        self.lengths += added

    def attend(self, q: Array, *, causal: bool = True, **options: Any) -> Any:
        """attention(q, keys, values) over the tokens that each sequence has; the last row stands at the newest token.

        q: [batch, heads, rows, head_dim], rotated already. options: all of attention()'s.
        """
        options.setdefault('kv_length', self.lengths)
        return attention(q, self.keys, self.values, causal=causal, **options)

    def plan(self, q: Array, *, causal: bool = True, **options: Any) -> Plan:
        """attend() as a Plan, for the lengths of this moment."""
        options.setdefault('kv_length', self.lengths.copy())
        return Plan(q, self.keys, self.values, causal=causal, **options)

    def shift(self, first: int, last: int, delta: int, *, rope: Optional[RopeTable] = None, pairing: str = 'half_split',
              first_dim: int = 0, target: Optional[str] = None) -> None:
        """Moves tokens first .. last-1 of every sequence by `delta` positions; `lengths` stay as they are.

        To forget the first n of 500 tokens: shift(n, 500, -n, rope=table), then `lengths -= n`. rope: the table that the keys were
        rotated with, its attention factor 1.
        """
        how = execution.with_target(target)
        rotation = Record(_abi.KeyRotation)
        if rope is not None:
            _put_rotation(rotation, '', rope, pairing, first_dim)
        tokens = [integer(n, argument) for n, argument in ((first, 'first'), (last, 'last'), (delta, 'delta'))]
        check(library.simdattn_kv_shift(ctypes.byref(self.keys.struct), *tokens, rotation.reference(), how))
        check(library.simdattn_kv_shift(ctypes.byref(self.values.struct), *tokens, None, how))

    def __repr__(self) -> str:
        struct = self.keys.struct
        return (f'KVCache(batch={struct.batch}, kv_heads={struct.heads}, capacity={struct.tokens}, head_dim={struct.dim}, '
                f'dtype={KvType(struct.type).name.lower()!r}, layout={KvLayout(struct.layout).name.lower()!r})')


def _put_rotation(record: Record, prefix: str, table: RopeTable, pairing: Any, first_dim: int) -> None:
    """Fills the simdattn_key_rotation at `prefix` of a record."""
    for name, array in zip(('cos', 'sin'), table):
        put_view(record, prefix + name, operand(array, f'rope.{name}'), 2, f'rope.{name}', '[positions, pairs]')
    put_rope_options(record, prefix + 'options.', pairing, False, first_dim, 0)
