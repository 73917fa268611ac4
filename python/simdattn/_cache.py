"""A cache of keys and values: it owns the memory, converts on the way in, and attends where it lies."""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
import weakref
from concurrent.futures import Executor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi
from ._abi import Code, KvLayout, KvType
from ._arrays import Array, NDArray, as_view, numbers, operand
from ._attention import Plan, Store, attention
from ._library import Error, Record, check, enumerator, library
from ._rope import RopeTable, put_norm, put_rope_options
from ._run import AppendCall, Function, Templates, remember, replay
from ._scoring import integer, put_numbers, put_view, refuse_unread
from ._targets import execution
from ._types import A, AnyArray, Pairing, PlanOptions, TargetName

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ALIGNMENT = 64
_ADDRESS = _ALIGNMENT  # of what is only described


def _memory(size: int) -> NDArray:
    """Zeroed bytes that begin at a cache line."""
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start:start + size]


def check_store(struct: _abi.Kv, batch: int, ring: int, page_size: int, value: str) -> None:
    """Error if the library would not append to such a store, in the words of the constructor; `value`: 'value_' or
    ''."""
    struct.batch, struct.ring, struct.page_size = batch, ring, page_size
    struct.block_table = _ADDRESS if page_size else None
    if library.simdattn_has_scales(struct.type):
        struct = library.simdattn_contiguous_scales(struct, 2**62)  # apart from the numbers
    nothing = _abi.View4(_ADDRESS, 0, (struct.batch, struct.heads, 0, struct.dim), (0, 0, 0, 1))
    status = library.simdattn_kv_append(ctypes.byref(nothing), None, ctypes.byref(struct), None, execution.with_target(None))
    if status.code:
        names = {'kv.dim': (value or 'head_') + 'dim', 'kv.type': value + 'dtype'}
        detail = re.sub(r'kv\.\w+', lambda m: names.get(m[0], m[0]), status.detail.decode())
        status.detail = detail.encode()
        check(status, **{names['kv.dim']: struct.dim, names['kv.type']: KvType(struct.type).name.lower(), 'ring': ring or None,
                         'page_size': page_size or None})


@lru_cache(maxsize=256)
def _described(kind: KvType, layout: KvLayout, batch: int, units: int, heads: int, tokens: int, dim: int, ring: int, page_size: int,
               value: str) -> Tuple[bytes, int]:
    """A store that was checked, and the bytes of its memory: each layer of a model has the same."""
    size = library.simdattn_kv_bytes(kind, layout, units, heads, tokens, dim)
    too_large = 4 * units * heads * (tokens + _abi.PANEL_WIDTH) * dim >= 2**62
    if not too_large:
        described = library.simdattn_contiguous_kv(_ADDRESS, kind, layout, units, heads, tokens, dim)
        check_store(described, batch, ring, page_size, value)
    if size == 0 or too_large:
        raise Error(Code.RANGE, f'capacity: {units} * {heads} heads * {tokens} tokens * {dim} dimensions are more than there can '
                                'be memory for')
    return bytes(described), size


_APPENDS: Templates = {}


class _Lengths(np.ndarray):  # type: ignore[type-arg]
    """Read-only. Its arithmetic gives plain arrays, in place too: so `cache.lengths -= n` is an assignment, which is
    checked."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [x.view(np.ndarray) if isinstance(x, _Lengths) else x for x in inputs]
        if out is not None and not any(isinstance(x, _Lengths) for x in out):
            options['out'] = out
        return getattr(ufunc, method)(*plain, **options)


living: weakref.WeakValueDictionary[str, KVCache] = weakref.WeakValueDictionary()  # by handles
_serials = itertools.count()


class KVCache:
    """Keys and values of one layer, for `batch` sequences.

    batch, kv_heads, capacity (tokens of a sequence), head_dim; value_dim: head_dim unless given
    dtype: how keys and values are stored: any name of the library's storage types, 'bf16' ('bfloat16', torch.bfloat16),
        'f16', 'f32', ...; value_dtype: of the values, if theirs is another
    layout: of the keys: 'panels' (faster) or 'rows'; the results are the same bits
    ring: > 0: memory for the last `ring` tokens only (sliding windows); with panels a multiple of 32
    page_size, n_pages, block_table: > 0: memory of n_pages pages of page_size tokens (with panels a multiple of 32),
        which sequences share; block_table, int32 [batch, ceil(capacity / page_size)], is the caller's and says which
        page holds which tokens. The caller may change its entries at any time.

    lengths: int32 [batch], the tokens that each sequence has, read-only. append() raises them. Assigned, any integers
        in 0 .. capacity (`cache.lengths -= n` forgets the newest tokens, `cache.lengths = [5, 0]` too).
    keys, values: what attention() takes in the place of arrays; it reads them as far as they were written.
    nbytes: memory in use. len(cache): the tokens of the longest sequence. A cache can be copied (clone, copy.copy) and
        pickled.
    """

    def __init__(self, batch: int, kv_heads: int, capacity: int, head_dim: int, *, value_dim: Optional[int] = None,
                 dtype: Any = 'bf16', value_dtype: Any = None, layout: Any = 'panels', ring: int = 0, page_size: int = 0,
                 n_pages: int = 0, block_table: Optional[NDArray] = None) -> None:
        self._begin(integer(batch, 'batch', 1, 2**31 - 1))
        sizes = [integer(n, name, 1, 2**31 - 1) for n, name in ((kv_heads, 'kv_heads'), (capacity, 'capacity'), (head_dim, 'head_dim'))]
        value_dim = sizes[2] if value_dim is None else integer(value_dim, 'value_dim', 1, 2**31 - 1)
        ring, page_size = integer(ring, 'ring', 0, 2**31 - 1), integer(page_size, 'page_size', 0, 2**31 - 1)
        n_pages = integer(n_pages, 'n_pages', 1 if page_size else 0, 2**31 - 1)
        self._block_table = block_table
        if not page_size:
            for given, name in ((block_table, 'block_table'), (n_pages or None, 'n_pages')):
                if given is not None:
                    raise Error(Code.RANGE, f'{name}: is of pages; page_size, the tokens of one, is wanted too')
        if page_size:
            table = operand(block_table, 'block_table')
            wanted = (batch, -(-capacity // page_size))
            if table.dtype != _abi.DType.I32 or table.shape != wanted or (table.strides[1] != 1):
                raise Error(Code.SHAPE, f'block_table: an int32 array of shape {wanted} is wanted, with contiguous rows')
        key_type = enumerator(KvType, dtype, 'dtype')
        value_type = key_type if value_dtype is None else enumerator(KvType, value_dtype, 'value_dtype')
        key_layout = enumerator(KvLayout, layout, 'layout')
        # All that makes another one like it.
        self._options: Dict[str, Any] = dict(zip(('batch', 'kv_heads', 'capacity', 'head_dim'), (int(batch), *sizes)), dtype=key_type,
                                             value_dim=value_dim, value_dtype=value_type, layout=key_layout, ring=ring,
                                             page_size=page_size, n_pages=n_pages)
        self.keys = self._store(key_type, key_layout, *sizes, ring, page_size, n_pages, '')
        self.values = self._store(value_type, KvLayout.ROWS, *sizes[:2], value_dim, ring, page_size, n_pages, 'value_')

    def _begin(self, batch: int) -> None:
        self._lengths = np.zeros(batch, np.int32)
        self._shown = self._lengths.view(_Lengths)
        self._shown.flags.writeable = False
        # What an operator of PyTorch takes: a name for the cache, and the lengths as a tensor.
        self.handle = f'cache {next(_serials)}'
        torch = sys.modules.get('torch')
        self.tensor_of_lengths: Any = None if torch is None else torch.from_numpy(self._lengths)
        living[self.handle] = self

    @property
    def lengths(self) -> NDArray:
        """int32 [batch], the tokens that each sequence has."""
        return self._shown

    @lengths.setter
    def lengths(self, value: Any) -> None:
        new = numbers(value, np.int32, len(self._lengths), 'lengths', 'sequence')
        if ((new < 0) | (new > self.capacity)).any():
            raise Error(Code.RANGE, f'lengths: is {new.tolist()}; 0 .. {self.capacity} is wanted, the capacity')
        self._lengths[:] = new

    def _store(self, kind: KvType, layout: KvLayout, heads: int, capacity: int, dim: int, ring: int, page_size: int,
               n_pages: int, value: str) -> Store:
        batch = len(self._lengths)
        units, tokens = (n_pages, page_size) if page_size else (batch, ring or capacity)
        description, size = _described(kind, layout, batch, units, heads, tokens, dim, ring, page_size, value)
        memory = _memory(size)
        struct = _abi.Kv.from_buffer_copy(description)
        struct.data = memory.ctypes.data
        blocks, table_memory = [memory], None
        if library.simdattn_has_scales(kind):  # numbers are multiplied by scales that stand apart
            scales = _memory(4 * units * heads * tokens)
            scales.view(np.float32)[:] = 1  # of types whose scales are the caller's; append() writes those of the others
            struct = library.simdattn_contiguous_scales(struct, scales.ctypes.data)
            blocks.append(scales)
        struct.capacity = capacity
        if page_size:
            table = operand(self._block_table, 'block_table')
            struct.n_pages = n_pages
            struct.block_table, struct.block_table_stride = table.pointer, table.strides[0]
            table_memory = table.owner
        return Store(struct, blocks, self._lengths, table_memory)

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can have."""
        return self.keys.shape[2]

    @property
    def ring(self) -> int:
        """Tokens that there is memory for, the newest ones; 0: for all."""
        return self._options.get('ring', 0)  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(x.nbytes for store in (self.keys, self.values) for x in store.memory)

    def append(self, k: Array, v: Array, *, rope: Optional[RopeTable] = None, pairing: Pairing = 'half_split', first_dim: int = 0,
               norm: Union[str, _abi.RowNorm] = 'none', norm_epsilon: float = 0.0, norm_weight: Optional[Any] = None,
               counts: Optional[Any] = None, target: TargetName = None) -> None:
        """Stores new tokens behind those of each sequence, and raises `lengths`.

        k: [batch, kv_heads, rows, head_dim], v: [batch, kv_heads, rows, value_dim]; float32, bfloat16 or float16.
        counts: int32 [batch], rows of each sequence that count; the others are padding.
        rope: a RopeTable that rotates the keys, each by its position; pairing, first_dim, norm: as in rope().
        """
        if rope is not None and (not isinstance(rope, (tuple, list)) or len(rope) != 2):
            raise TypeError(f'rope: a pair of arrays is wanted, (cos, sin), not {rope!r}')
        arguments = (k, v, self._lengths, *((None, None) if rope is None else rope), pairing, first_dim, norm, norm_epsilon, norm_weight,
                     target, self.keys, self.values)
        found = replay(_APPENDS, arguments) if counts is None else None
        if found is NotImplemented:
            return
        keys, values = operand(k, 'k'), operand(v, 'v')
        rows = keys.shape[2] if len(keys.shape) == 4 else 0
        for x, store, argument in ((keys, self.keys, 'k'), (values, self.values, 'v')):
            batch, heads, _, dim = store.shape
            if x.shape != (batch, heads, rows, dim):
                raise Error(Code.SHAPE, f'{argument}: has shape {x.shape}; {(batch, heads, rows or "rows", dim)} is wanted')
        added = np.full_like(self._lengths, rows)
        if counts is not None:
            added = numbers(counts, np.int32, len(self._lengths), 'counts', 'sequence')
            if ((added < 0) | (added > rows)).any():
                raise Error(Code.RANGE, f'counts: is {added.tolist()}; 0 .. {rows} is wanted, the rows of k')
        self._check_room(added, rope)
        refuse_unread(rope is None, 'rope', pairing=(pairing, 'half_split'), first_dim=(first_dim, 0))

        record, nothing = Record(AppendCall), np.zeros_like(added)
        put_view(record, 'k', keys, 4, 'k', '[batch, kv_heads, rows, head_dim]')
        put_view(record, 'v', values, 4, 'v', '[batch, kv_heads, rows, value_dim]')
        record.put_struct('keys', bytes(self.keys.struct))
        record.put_struct('values', bytes(self.values.struct))
        for options, counted in (('checked', nothing), ('of_keys', added), ('of_values', added)):
            put_numbers(record, options + '.starts', self._lengths)
            put_numbers(record, options + '.counts', counted)
        if rope is not None:
            _put_rotation(record, 'of_keys.rope.', rope, pairing, first_dim)
        put_norm(record, 'of_keys.rope.options.', norm, norm_epsilon, norm_weight, keys.shape[3])
        how, base = execution.with_target(target), ctypes.addressof(record.reference())

        def store(x: str, into: str, options: str) -> None:
            view, kv, chosen = (base + getattr(AppendCall, name).offset for name in (x, into, options))
            check(library.simdattn_kv_append(view, None, kv, chosen, how), x)

        store('v', 'values', 'checked')  # refuses what is wrong with v before k is written
        store('k', 'keys', 'of_keys')
        store('v', 'values', 'of_values')
        self._lengths += added
        if found is True:
            sources = {'k.data': 0, 'v.data': 1, 'of_keys.rope.cos.data': 3, 'of_keys.rope.sin.data': 4,
                       'of_keys.rope.options.norm_weight': 9,
                       **{options + '.starts': 2 for options in ('checked', 'of_keys', 'of_values')}}
            counted = tuple(options + '.counts' for options in ('checked', 'of_keys', 'of_values'))
            remember(_APPENDS, arguments, Function.APPEND, record, target, sources, lengths=2, added=rows,
                     stores={'keys': 11, 'values': 12}, constants=counted, keep=(nothing, added))

    def _check_room(self, added: NDArray, rope: Optional[RopeTable]) -> None:
        """Error if a sequence's new tokens are more than there is room for, or than a table of angles has rows."""
        positions, capacity = None if rope is None else operand(rope[0], 'rope.cos').shape[0], self.capacity
        for b, (n, more) in enumerate(zip(self._lengths.tolist(), added.tolist())):
            if more and n + more > capacity:
                raise Error(Code.RANGE, f'k: has {more} rows for sequence {b}, which has {n} of {capacity} tokens already')
            if more and positions is not None and n + more > positions:
                raise Error(Code.RANGE, f'rope: has {positions} positions; the tokens of sequence {b} stand at {n} .. {n + more - 1}')

    @overload
    def attend(self, q: A, *, causal: bool = ..., return_lse: Literal[False] = ..., threads: Optional[int] = ...,
               pool: Optional[Executor] = ..., **options: Unpack[PlanOptions]) -> A: ...

    @overload
    def attend(self, q: A, *, causal: bool = ..., return_lse: Literal[True], threads: Optional[int] = ...,
               pool: Optional[Executor] = ..., **options: Unpack[PlanOptions]) -> Tuple[A, A]: ...

    def attend(self, q: Any, *, causal: bool = True, **options: Any) -> Any:
        """attention(q, keys, values) over the tokens that each sequence has; the last row stands at the newest token.

        q: [batch, heads, rows, head_dim], rotated already. options: all of attention()'s.
        """
        return attention(q, self.keys, self.values, causal=causal, **options)

    def plan(self, q: AnyArray, *, causal: bool = True, return_lse: bool = False, **options: Unpack[PlanOptions]) -> Plan:
        """attend() as a Plan, for the lengths of this moment."""
        return Plan(q, self.keys, self.values, causal=causal, return_lse=return_lse, **options)

    def read(self, first: int = 0) -> Tuple[NDArray, NDArray]:
        """Keys and values of tokens first .. len(self) - 1 as float32 numbers, [batch, kv_heads, tokens, dim] each.

        What a shorter sequence has behind its end is unspecified.
        """
        start = integer(first, 'first', 0, len(self))
        found = []
        for store in (self.keys, self.values):
            batch, heads, _, dim = store.shape
            rows = np.empty((batch, heads, len(self) - start, dim), np.float32)
            if rows.size:
                view = as_view(operand(rows, 'out'), 4, 'out', '')
                check(library.simdattn_kv_read(ctypes.byref(store.struct), start, ctypes.byref(view), execution.with_target(None)))
            found.append(rows)
        return found[0], found[1]

    def shift(self, first: int, last: int, delta: int, *, rope: Optional[RopeTable] = None, pairing: Pairing = 'half_split',
              first_dim: int = 0, target: TargetName = None) -> None:
        """Moves tokens first .. last-1 of every sequence by `delta` positions; `lengths` stay as they are.

        To forget the first n of 500 tokens: shift(n, 500, -n, rope=table), then `lengths -= n`. rope: the table that
        the keys were rotated with, its attention factor 1.
        """
        refuse_unread(rope is None, 'rope', pairing=(pairing, 'half_split'), first_dim=(first_dim, 0))
        how = execution.with_target(target)
        rotation = Record(_abi.KeyRotation)
        if rope is not None:
            _put_rotation(rotation, '', rope, pairing, first_dim)
        tokens = [integer(n, argument) for n, argument in ((first, 'first'), (last, 'last'), (delta, 'delta'))]
        given = dict(zip(('first', 'last', 'delta'), tokens), capacity=self.capacity)
        check(library.simdattn_kv_shift(ctypes.byref(self.keys.struct), *tokens, rotation.reference(), how), **given)
        check(library.simdattn_kv_shift(ctypes.byref(self.values.struct), *tokens, None, how), **given)

    # ---- Copies ------------------------------------------------------------------------------------------------------

    def _blocks(self) -> List[NDArray]:
        """All memory, of keys and of values."""
        return [*self.keys.memory, *self.values.memory]

    def _written(self) -> List[Tuple[NDArray, Any]]:
        """All memory as [units, heads, bytes], and an index of what holds tokens: units are sequences or pages."""
        page_size, heads = self._options['page_size'], self.keys.shape[1]
        units, tokens, places = len(self._lengths), self._options['ring'] or self.capacity, slice(None)
        longest = min(len(self), tokens)
        if page_size:
            used = [row[:-(-n // page_size)] for row, n in zip(np.asarray(self._block_table), self._lengths.tolist())]
            units, tokens, longest, places = self._options['n_pages'], page_size, page_size, np.unique(np.concatenate(used))
        found = []
        for store in (self.keys, self.values):
            for i, block in enumerate(store.memory):
                step = _abi.PANEL_WIDTH if i == 0 and store.struct.layout == KvLayout.PANELS else 1
                view = block.reshape(units, heads, -1)
                found.append((view, (places, slice(None), slice(-(-longest // step) * (view.shape[2] // -(-tokens // step))))))
        return found

    def _sequences(self, what: str) -> List[NDArray]:
        """The memory, a row for each sequence."""
        if self._options['page_size']:
            raise Error(Code.RANGE, f'{what}: sequences of this cache share pages; change the block table')
        return [x.reshape(len(self._lengths), -1) for x in self._blocks()]

    def clone(self) -> KVCache:
        """Another cache with the same tokens, in memory of its own; with pages, with a block table of its own too."""
        table = None if self._block_table is None else np.array(self._block_table, np.int32)
        return _restore(self._options, self._blocks(), self._lengths, table)

    def fork(self, n: int) -> KVCache:
        """A cache of n * batch sequences: n copies of the first, n of the second, and so on. Not with pages."""
        return self._selected(np.repeat(np.arange(len(self._lengths)), integer(n, 'n', 1, 2**31 - 1)), 'fork')

    def select(self, indices: Any) -> KVCache:
        """A cache of these sequences, of any number and order. Not with pages."""
        source = numbers(indices, np.int64, len(indices), 'indices', 'sequence')
        if ((source < 0) | (source >= len(self._lengths))).any() or not len(source):
            raise Error(Code.RANGE, f'indices: is {source.tolist()}; one or more of 0 .. {len(self._lengths) - 1} are wanted')
        return self._selected(source, 'select')

    def _selected(self, source: NDArray, what: str) -> KVCache:
        blocks = self._sequences(what)
        return _restore({**self._options, 'batch': len(source)}, [x[source] for x in blocks], self._lengths[source], None)

    def resized(self, capacity: int) -> KVCache:
        """A cache with the same tokens, and room for `capacity` of each sequence. Not with pages."""
        self._sequences('resized')
        if integer(capacity, 'capacity', 1, 2**31 - 1) < len(self):
            raise Error(Code.RANGE, f'capacity: is {capacity}; there are {len(self)} tokens')
        larger = KVCache(**{**self._options, 'capacity': int(capacity)})
        larger._lengths[:] = self._lengths
        for (ours, there), (theirs, here) in zip(larger._written(), self._written()):
            ours[there] = theirs[here]
        return larger

    def reorder(self, indices: Any) -> None:
        """Sequence i becomes what indices[i] was: the beams of a search. indices: [batch], integers. Not with pages."""
        batch = len(self._lengths)
        source = numbers(indices, np.int32, batch, 'indices', 'sequence')
        if ((source < 0) | (source >= batch)).any():
            raise Error(Code.RANGE, f'indices: is {source.tolist()}; 0 .. {batch - 1} is wanted')
        moved = np.flatnonzero(source != np.arange(batch))
        for block in self._sequences('reorder'):
            block[moved] = block[source[moved]]
        self._lengths[:] = self._lengths[source]

    def reset(self, sequences: Optional[Sequence[int]] = None) -> None:
        """Forgets all tokens, of these sequences or of all."""
        lengths = np.array(self._lengths)
        lengths[slice(None) if sequences is None else [integer(i, 'sequences', 0, len(lengths) - 1) for i in sequences]] = 0
        self._lengths[:] = lengths

    def __len__(self) -> int:
        return int(max(self._lengths.tolist()))  # of few sequences NumPy's takes ten times as long

    def __bool__(self) -> bool:
        return True  # an empty cache is one, too

    def __copy__(self) -> KVCache:
        return self.clone()

    def __deepcopy__(self, memo: Any) -> KVCache:
        return self.clone()

    def __reduce__(self) -> Any:
        table = None if self._block_table is None else np.array(self._block_table, np.int32)
        parts = [view[index].copy() for view, index in self._written()]  # what was never written is not carried along
        return _unpickle, (self._options, parts, np.array(self._lengths), table)

    def __repr__(self) -> str:
        struct = self.keys.struct
        return (f'{type(self).__name__}(batch={struct.batch}, kv_heads={struct.heads}, capacity={struct.capacity}, head_dim={struct.dim}, '
                f'dtype={KvType(struct.type).name.lower()!r}, layout={KvLayout(struct.layout).name.lower()!r}, '
                f'lengths={self._lengths.tolist()})')


def _restore(options: Dict[str, Any], blocks: Sequence[NDArray], lengths: NDArray, table: Optional[NDArray]) -> KVCache:
    """The cache of these options with this memory; the memory is copied."""
    cache = KVCache(**options, block_table=table)
    for ours, theirs in zip(cache._blocks(), blocks):
        ours[:] = theirs.reshape(-1).view(ours.dtype)
    cache._lengths[:] = lengths
    return cache


def _unpickle(options: Dict[str, Any], parts: Sequence[NDArray], lengths: NDArray, table: Optional[NDArray]) -> KVCache:
    cache = KVCache(**options, block_table=table)
    cache._lengths[:] = lengths
    for (view, index), part in zip(cache._written(), parts):
        view[index] = part
    return cache


def _put_rotation(record: Record, prefix: str, table: RopeTable, pairing: Any, first_dim: int) -> None:
    """Fills the simdattn_key_rotation at `prefix` of a record."""
    for name, array in zip(('cos', 'sin'), table):
        put_view(record, prefix + name, operand(array, f'rope.{name}'), 2, f'rope.{name}', '[positions, pairs]')
    put_rope_options(record, prefix + 'options.', pairing, False, first_dim)
