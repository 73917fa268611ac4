"""Fused attention: one call, and plans whose tasks threads share."""

from __future__ import annotations

import ctypes
import itertools
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Tuple, Union, overload

import numpy as np

from . import _abi
from ._abi import Arithmetic, Code, DType, KvLayout, KvType
from ._arrays import KV_TYPES, NAMES, SIZES, Array, NDArray, maker_like, numbers, operand
from ._library import Error, Record, check, enumerator, initial, library
from ._run import Function, Templates, prepare, remember, replay, run
from ._scoring import OPTIONS, boolean, integer, put_numbers, put_scoring, put_sequences, put_view, refuse_unread, sequences_of
from ._targets import arithmetic_for, execution, word_of
from ._tensors import causal_offset, is_torch, mark_written
from ._types import A, AnyArray, ArithmeticName, PlanOptions, TargetName, refuse_unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ROWS = '[batch, heads, rows, dim]'


class Store:
    """Keys or values of a KVCache: what attention() takes in the place of an array. It ends at the tokens that were
    written.

    struct: the C description, a simdattn_kv; shape: (batch, kv_heads, capacity, dim); memory: what it points to;
    lengths: int32 [batch], the tokens of each sequence; address: of struct.
    """

    def __init__(self, struct: _abi.Kv, memory: Sequence[NDArray], lengths: NDArray, table: object = None) -> None:
        self.struct = struct
        self.address = ctypes.addressof(struct)
        self.shape: Tuple[int, int, int, int] = (struct.batch, struct.heads, struct.capacity, struct.dim)
        self.memory = memory
        self.lengths = lengths
        self.table = table

    def __repr__(self) -> str:
        return (f'Store(shape={self.shape}, dtype={KvType(self.struct.type).name.lower()!r}, '
                f'layout={KvLayout(self.struct.layout).name.lower()!r}, lengths={self.lengths.tolist()})')

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f'a Store has no {name!r}: it is the memory of a KVCache and no tensor. A model of Transformers that '
                             'changes keys after its cache takes a DynamicCache')

    def first(self, n: int) -> Store:
        """The same store as one of n tokens: what a mask of n columns is for."""
        struct = type(self.struct).from_buffer_copy(self.struct)
        struct.length = integer(n, 'n', 0, struct.capacity)
        view = Store(struct, self.memory, self.lengths, self.table)
        view.shape = (*self.shape[:2], n, self.shape[3])
        return view

    def __reduce__(self) -> Any:
        raise TypeError('a Store is a view of its KVCache, which can be copied and pickled')


prepare(Store)


# ---- The problem -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def tensor_bytes(kind: DType, shape: Tuple[int, ...], strides: Tuple[int, ...]) -> bytes:
    """The description of a plain tensor, but for its address."""
    kv = initial(_abi.ConstKv)
    size = SIZES[kind]
    kv.type = KV_TYPES.get(kind, -1)  # -1: refused by the library
    kv.batch, kv.heads, kv.capacity, kv.dim = shape
    kv.batch_stride, kv.head_stride, kv.token_stride = (size * s for s in strides[:3])
    return bytes(kv)


def _put_kv(record: Record, member: str, x: Union[Array, Store]) -> Tuple[int, int]:
    """Writes the description of keys or values; how many tokens they have, and their dim."""
    if isinstance(x, Store):
        record.put_struct(member, bytes(x.struct))
        record.alive.append(x)
        return x.shape[2:]
    pointer, kind, shape, strides, owner = operand(x, member)
    if kind not in KV_TYPES:
        raise Error(Code.DTYPE, f'{member}: is {NAMES[kind]}; float32, bfloat16 or float16 is wanted')
    if len(shape) != 4:
        raise Error(Code.SHAPE, f'{member}: has {len(shape)} dimensions; 4 are wanted, [batch, kv_heads, tokens, dim]')
    if strides[3] != 1:
        raise Error(Code.STRIDE, f'{member}: the last dimension is not contiguous')
    record.put_struct(member, tensor_bytes(kind, shape, strides))
    record.put(member + '.data', pointer)
    record.alive.append(owner)
    return shape[2:]  # type: ignore[return-value]


def put_keys(record: Record, k: Union[Array, Store]) -> int:
    """Fills a simdattn_const_kv; how many tokens there are."""
    if isinstance(k, Store):
        record.memory[:] = bytes(k.struct)
        record.alive.append(k)
        return k.shape[2]
    pointer, kind, shape, strides, owner = operand(k, 'k')
    if len(shape) != 4 or strides[3] != 1:
        raise Error(Code.SHAPE, 'k: [batch, 1, tokens, dim] is wanted, the last dimension contiguous')
    record.memory[:] = tensor_bytes(kind, shape, strides)
    record.put('data', pointer)
    record.alive.append(owner)
    return shape[2]


def _put_written(scoring: Dict[str, Any], stores: Sequence[Any], cu_k: Any, batch: int) -> None:
    """A KVCache's store is read as far as it was written. batch: of q."""
    for x in stores:
        if isinstance(x, Store) and x.shape[0] != batch and cu_k is None:
            raise Error(Code.SHAPE, f'q: has {batch} sequences, the cache has {x.shape[0]}')
    lengths = [x.lengths for x in stores if isinstance(x, Store)]
    written = lengths[0] if lengths[-1] is lengths[0] else np.minimum(*lengths)
    if cu_k is not None:
        ends = numbers(cu_k, np.int32, sequences_of(batch, cu_k, 'cu_k') + 1, 'cu_k', 'sequence, and the end')
        if ends.size and ends[-1] > written[0]:
            raise Error(Code.RANGE, f'cu_k: ends at token {ends[-1]}; the cache has {written[0]}')
    elif scoring.get('kv_length') is None:
        scoring['kv_length'] = written.copy()
    else:
        wanted = numbers(scoring['kv_length'], np.int32, written.size, 'kv_length', 'sequence')
        if (wanted > written).any():
            raise Error(Code.RANGE, f'kv_length: is {wanted.tolist()}; the cache has {written.tolist()} tokens')


def _put_causal_bias(scoring: Dict[str, Any], rows: int, keys: int) -> None:
    """PyTorch's CausalBias in the place of a bias: it has no memory, and means `causal` and an offset."""
    offset = causal_offset(scoring.get('bias'), rows, keys, 'bias')
    if offset is not None:
        if any(scoring.get(name) is not None for name in ('causal', 'offset', 'offsets', 'bias_scale')):
            raise Error(Code.RANGE, 'bias: is a CausalBias, which says what causal, offset and offsets do; leave them and bias_scale out')
        scoring.update(bias=None, causal=True, offset=offset)


def _put_lists(record: Record, lists: Any, block: int, shape: Sequence[int]) -> None:
    """Which keys each row attends to: int32 [batch, 1 or kv_heads, rows, length]; the lengths are checked here."""
    x = operand(lists, 'lists')
    if x.dtype != DType.I32:
        raise Error(Code.DTYPE, 'lists: int32 is wanted')
    if len(x.shape) != 4 or x.shape[0] not in (1, shape[0]) or x.shape[2] not in (1, shape[2]):
        raise Error(Code.SHAPE, f'lists: has shape {list(x.shape)}; [batch, 1 or kv_heads, rows, length] is wanted')
    if x.shape[3] > 1 and x.strides[3] != 1:
        raise Error(Code.STRIDE, 'lists: the last dimension is not contiguous')
    record.put('lists.data', x.pointer if x.shape[3] else 0)
    record.put('lists.heads', x.shape[1])
    record.put('lists.length', x.shape[3])
    record.put('lists.block_size', integer(block, 'list_block'))
    record.put('lists.stride', *(0 if n == 1 else step for n, step in zip(x.shape[:3], x.strides)))  # sizes of 1 broadcast
    record.alive.append(x.owner)


# Where the addresses of arguments stand in the struct.
_ADDRESSES = {**{name: name + '.data' for name in ('q', 'k', 'v', 'out', 'lse', 'acc', 'max', 'sum', 'lists')},
              'cu_q': 'cu_q', 'cu_k': 'cu_k', 'bias': 'scoring.bias.data', 'mask': 'scoring.mask.data',
              **{name: 'scoring.' + name for name in ('offsets', 'prefix_end', 'kv_start', 'kv_length', 'bias_scale', 'alibi_slopes',
                                                      'sinks')}}
# Options of attention() beside those of scores.
_OPTIONS = ('out', 'lse', 'return_lse', 'acc', 'max', 'sum', 'arithmetic', 'cu_q', 'cu_k', 'lists', 'list_block', 'target',
            'threads', 'pool')


class Problem:
    """The C struct of one attention problem, and what comes out."""

    __slots__ = ('record', 'reference', 'out', 'lse', 'written', 'arguments', 'makes')

    def __init__(self, q: Array, k: Union[Array, Store], v: Union[Array, Store], *, out: Any = None, lse: Any = None,
                 return_lse: bool = False, acc: Any = None, max: Any = None, sum: Any = None, arithmetic: Any = 'f32',
                 cu_q: Any = None, cu_k: Any = None, lists: Any = None, list_block: int = 1, target: TargetName = None,
                 **scoring: Any) -> None:
        if not scoring.keys() <= OPTIONS:
            refuse_unknown('attention', list(scoring), [*OPTIONS, *_OPTIONS])
        record = self.record = Record(_abi.AttentionProblem)
        rows = operand(q, 'q')
        put_view(record, 'q', rows, 4, 'q', _ROWS)
        keys, _ = _put_kv(record, 'k', k)
        _, dim = _put_kv(record, 'v', v)
        batch, heads, n, _ = rows.shape
        if isinstance(k, Store) or isinstance(v, Store):
            _put_written(scoring, (k, v), cu_k, sequences_of(batch, cu_q))
        if scoring.get('bias') is not None:
            _put_causal_bias(scoring, n, keys)
        self.written: List[Any] = [x for x in (out, lse, acc, max, sum) if x is not None and x is not False]

        self.makes: Dict[str, Any] = {}  # results that nobody gave an array for
        if out is None:
            self.makes['out'] = maker_like(q, (batch, heads, n, dim), rows.dtype)
            out = self.makes['out']()
        if out is not False:
            put_view(record, 'out', operand(out, 'out', True), 4, 'out', _ROWS)
        if boolean(return_lse, 'return_lse') and lse is None:
            self.makes['lse'] = maker_like(q, (batch, heads, n), DType.F32)
            lse = self.makes['lse']()
        for member, array in (('lse', lse), ('max', max), ('sum', sum)):
            if array is not None:
                put_view(record, member, operand(array, member, True), 3, member, '[batch, heads, rows]')
        if acc is not None:
            put_view(record, 'acc', operand(acc, 'acc', True), 4, 'acc', _ROWS)
        if isinstance(arithmetic, str) and arithmetic == 'auto':
            record.put('arithmetic', arithmetic_for(rows.dtype, record.get('k.type'), record.get('v.type'), target))
        elif not isinstance(arithmetic, str) or arithmetic != 'f32':
            record.put('arithmetic', enumerator(Arithmetic, arithmetic, 'arithmetic'))

        sequences = put_sequences(record, batch, cu_q, cu_k)
        refuse_unread(lists is None, 'lists', list_block=(list_block, 1))
        if lists is not None:
            _put_lists(record, lists, list_block, rows.shape)
        put_scoring(record, 'scoring.', scoring, rows.shape, sequences)
        self.arguments = (rows, k, v, out, lse, acc, max, sum, cu_q, cu_k, n, keys), scoring
        self.reference = record.reference()
        self.out = None if out is False else out
        self.lse = lse if return_lse else None

    def given(self) -> Dict[str, Any]:
        """The arguments by their names in the library's sentences."""
        arrays, scoring = self.arguments
        return dict(zip(('q', 'k', 'v', 'out', 'lse', 'acc', 'max', 'sum', 'cu_q', 'cu_k', 'n_q', 'n_kv'), arrays), **scoring)

    def result(self) -> Any:
        return self.out if self.lse is None else (self.out, self.lse)

    def run(self, target: TargetName, threads: Optional[int] = None) -> None:
        """On this thread, and on others if the problem is large."""
        status = run(Function.ATTENTION, self.record, target, threads, is_torch(self.arguments[0][0].owner))
        if status.code:
            check(status, **self.given())
        if self.written:
            mark_written(self.written)

    def remember(self, templates: Templates, arguments: Tuple[Any, ...], names: Sequence[str], target: TargetName) -> None:
        """Keeps the call for replay(). names: of the arguments, as those of attention()."""
        sources = {_ADDRESSES[name]: i for i, name in enumerate(names) if name in _ADDRESSES}
        sources.update({_ADDRESSES[name]: -1 - i for i, name in enumerate(self.makes)})
        results = [name for name, x in (('out', self.out), ('lse', self.lse)) if x is not None and _ADDRESSES[name] in sources]
        remember(templates, arguments, Function.ATTENTION, self.record, target, sources, makes=tuple(self.makes.values()),
                 results=tuple(sources[_ADDRESSES[name]] for name in results), threads=names.index('threads'),
                 stores={name: i for i, name in enumerate(names[:3]) if type(arguments[i]) is Store})


# ---- One call --------------------------------------------------------------------------------------------------------


@overload
def attention(q: A, k: Union[AnyArray, Store], v: Union[AnyArray, Store], *, causal: bool = ..., return_lse: Literal[False] = ...,
              threads: Optional[int] = ..., pool: Optional[Executor] = ..., **options: Unpack[PlanOptions]) -> A: ...


@overload
def attention(q: A, k: Union[AnyArray, Store], v: Union[AnyArray, Store], *, causal: bool = ..., return_lse: Literal[True],
              threads: Optional[int] = ..., pool: Optional[Executor] = ..., **options: Unpack[PlanOptions]) -> Tuple[A, A]: ...


def attention(q: Array, k: Union[Array, Store], v: Union[Array, Store], *, out: Union[Array, bool, None] = None,
              lse: Optional[Array] = None, return_lse: bool = False, scale: Optional[float] = None,
              softcap: Optional[float] = None, causal: bool = False, offset: Optional[int] = None,
              offsets: Optional[Any] = None, window_left: Optional[int] = None, window_right: Optional[int] = None,
              chunk: Optional[int] = None, prefix_end: Optional[Any] = None, kv_start: Optional[Any] = None,
              kv_length: Optional[Any] = None, bias: Optional[Array] = None, bias_scale: Optional[Any] = None,
              mask: Optional[Array] = None, packed_mask: Optional[Tuple[Array, int]] = None,
              alibi_slopes: Optional[Any] = None, sinks: Optional[Any] = None, cu_q: Optional[Any] = None,
              cu_k: Optional[Any] = None, acc: Optional[Array] = None, max: Optional[Array] = None,
              sum: Optional[Array] = None, lists: Optional[Array] = None, list_block: int = 1, arithmetic: ArithmeticName = 'f32',
              target: TargetName = None, threads: Optional[int] = None, pool: Optional[Executor] = None, **unknown: Any) -> Any:
    """softmax(scoring(q k^T)) v.

    Shapes:
        q: [batch, heads, rows, d_qk], float32, bfloat16 or float16
        k: [batch, kv_heads, tokens, d_qk], v: [batch, kv_heads, tokens, d_v], any mixture of types, or a KVCache's
            `keys` and `values`, as far as they were written; query head h reads key head h // (heads / kv_heads)
        out: [batch, heads, rows, d_v]; a new array of q's kind and type unless given; False: none
        lse: float32 [batch, heads, rows], the log-sum-exp; return_lse: returned, (out, lse)

    Any strides, as long as the last dimension is contiguous; nothing is copied.

    What happens to score s of row i and key j, with p = i + offset:
        scale: multiplies; default 1/sqrt(d_qk)
        softcap: softcap * tanh(s / softcap)
        alibi_slopes: [heads]; adds -slope * |p - j|
        bias, bias_scale: adds bias_scale[h] * bias, [batch, heads, rows, tokens] or what broadcasts to it; -inf masks
        sinks: [heads]; one logit more in the denominator

    Which keys a row sees; all of them compose:
        causal: j <= p
        offset: position of row 0; default: the last row stands at the last key. 0 is PyTorch's is_causal
        offsets: [batch], the same for each sequence
        window_left, window_right: p - window_left <= j <= p + window_right; "sliding_window = W" is window_left = W - 1
        chunk: floor(j / chunk) == floor(p / chunk)
        prefix_end: [batch]; j <= max(p, prefix_end - 1), in the place of causal
        kv_start, kv_length: [batch]; kv_start <= j < kv_length
        mask: bool or uint8, broadcast like bias; true attends
        packed_mask: (bytes [batch, heads, rows, ceil(columns / 8)], columns): a mask of bits, little-endian, 1 attends,
            of the last `columns` keys

        lists: int32 [batch, 1 or kv_heads, rows, length] (sizes of 1 broadcast over batch and rows): the keys of each
            row, or its blocks of list_block keys, as top_k() gives them; -1 is skipped

    Many sequences in one array: cu_q [n + 1], and q, out and lse are [1, heads, total, ...]; cu_k: k and v likewise.

    acc (as out, float32), max, sum (as lse): the state before the division is written there.
    arithmetic: what multiplies, 'f32', 'bf16' or 'int8'; part of the result's definition. 'auto': 'bf16' if q, k and v
        are bfloat16 and this CPU multiplies it faster than float32 (AMX after request_amx(), AVX512-BF16 of AMD), else
        'f32'; for prompt and tokens alike, but not on every CPU.
    target: a name from targets(); default: the best that this CPU can run.
    threads: how many share a large call, at most. Default: torch.get_num_threads() for tensors, else the environment
        variable SIMDATTN_NUM_THREADS, else the CPUs of this process. Small calls stay on this thread. The bits are the
        same.
    pool: a concurrent.futures executor whose threads share the work instead.

    A row that sees no key gives zeros and lse -inf. Error (a ValueError) with a sentence for what is refused; nothing
    is written then.
    """
    short = pool is None and not unknown
    if type(k) is Store or type(v) is Store:  # the lengths of others are looked at on the long way alone
        short = short and type(k) is type(v) and v.lengths is k.lengths and kv_length is None and cu_k is None
        kv_length = k.lengths if short else kv_length
    arguments = (q, k, v, out, lse, return_lse, scale, softcap, causal, offset, offsets, window_left, window_right, chunk,
                 prefix_end, kv_start, kv_length, bias, bias_scale, mask, packed_mask, alibi_slopes, sinks, cu_q, cu_k, acc,
                 max, sum, lists, list_block, word_of(arithmetic), target, threads)
    found = None
    if short:
        found = replay(_TEMPLATES, arguments)
        if found is not None and type(found) is not bool:
            return found
    given = dict(zip(_ARGUMENTS, arguments), causal=boolean(causal, 'causal') or None, arithmetic=arithmetic)
    del given['threads']
    problem = Problem(**given, **unknown)
    if pool is None:
        problem.run(target, threads_wanted(threads))
    else:
        _Tasks(problem, target).run(pool)
    if found is True and out is not False and not any(is_torch(x) for x in (lse, acc, max, sum)):
        problem.remember(_TEMPLATES, arguments, _ARGUMENTS, target)
    return problem.result()


_TEMPLATES: Templates = {}
# In the order of the tuple in attention().
_ARGUMENTS = ('q', 'k', 'v', 'out', 'lse', 'return_lse', 'scale', 'softcap', 'causal', 'offset', 'offsets', 'window_left',
              'window_right', 'chunk', 'prefix_end', 'kv_start', 'kv_length', 'bias', 'bias_scale', 'mask', 'packed_mask',
              'alibi_slopes', 'sinks', 'cu_q', 'cu_k', 'acc', 'max', 'sum', 'lists', 'list_block', 'arithmetic', 'target', 'threads')


def threads_wanted(threads: Any) -> Optional[int]:
    """`threads` as a number that makes sense."""
    return None if threads is None else integer(threads, 'threads', 1, 2**31 - 1)


def pool_wanted(pool: Any) -> Any:
    """`pool`, if its threads can share work."""
    if pool is not None and (not isinstance(pool, Executor) or isinstance(pool, ProcessPoolExecutor)):
        raise TypeError(f'pool: a concurrent.futures.ThreadPoolExecutor is wanted, not {pool!r}')
    return pool


# ---- Plans -----------------------------------------------------------------------------------------------------------


class _Tasks:
    """A planned problem, and its tasks on threads. A run keeps the plan and the problem that it began with: bind() puts
    others in their place and writes into none that may be running.
    """

    def __init__(self, problem: Problem, target: TargetName) -> None:
        self.target = target
        struct = initial(_abi.Plan)
        check(library.simdattn_attention_plan(problem.reference, ctypes.byref(struct), execution.with_target(target)), **problem.given())
        self.bound = (struct, problem)
        self.partials: List[Any] = []  # that no run uses now

    @property
    def struct(self) -> Any:
        return self.bound[0]

    def bind(self, problem: Problem) -> None:
        struct = _abi.Plan.from_buffer_copy(self.struct)
        check(library.simdattn_attention_bind(problem.reference, ctypes.byref(struct)))
        self.bound = (struct, problem)

    def run(self, pool: Optional[Executor]) -> Any:
        pool_wanted(pool)
        struct, problem = self.bound
        try:
            partial = self.partials.pop()
        except IndexError:
            partial = ctypes.create_string_buffer(struct.partial_bytes or 1)
        for function, tasks in ((library.simdattn_attention_range, struct.tasks),
                                (library.simdattn_attention_reduce, struct.reduce_tasks)):
            if pool is not None:
                self._share(pool, function, tasks, struct, partial)
            elif tasks:
                how = execution.with_target(self.target)
                execution.grow(struct.workspace_bytes)
                check(function(ctypes.byref(struct), 0, tasks, partial, struct.partial_bytes, how))
        self.partials.append(partial)
        mark_written(problem.written)
        return problem.result()

    def _share(self, pool: Executor, function: Any, tasks: int, struct: Any, partial: Any) -> None:
        threads = getattr(pool, '_max_workers', os.cpu_count() or 1)
        # Small enough that nobody waits long for the last piece, large enough that a piece is worth its call.
        piece = max(1, tasks // (4 * threads))
        starts = itertools.count(0, piece)  # next() is one step for all threads

        def work() -> None:
            how = execution.with_target(self.target)
            execution.grow(struct.workspace_bytes)
            while (first := next(starts)) < tasks:
                check(function(ctypes.byref(struct), first, min(first + piece, tasks), partial, struct.partial_bytes, how))

        helpers = [pool.submit(work) for _ in range(min(threads, tasks) - 1)]
        try:
            work()
        finally:
            # Those that have not begun are not needed: this thread did their work. So a busy pool cannot stop a call.
            running = [f for f in helpers if not f.cancel()]
            failures = [e for e in (f.exception() for f in running) if e is not None]
        if failures:
            raise failures[0]


class Plan:
    """An attention problem that was checked once, to be run often and by several threads.

    Plan(q, k, v, **options): the arguments of attention(), but for `pool`. The arrays are those that it reads and
    writes in every run; what is in them may change, lengths (kv_length, kv_start, prefix_end, offsets, cu_q, cu_k) may
    not: Error STALE_PLAN. One run at a time, as runs write the same results; bind() may be called beside one, which
    ends with the arrays that it began with.

    tasks, reduce_tasks, workspace_bytes, partial_bytes: how it divides; the same on every machine.
    """

    def __init__(self, q: AnyArray, k: Union[AnyArray, Store], v: Union[AnyArray, Store], *, causal: bool = False,
                 return_lse: bool = False, **options: Unpack[PlanOptions]) -> None:
        given: Dict[str, Any] = dict(options)
        target = given.get('target')
        problem = Problem(q, k, v, causal=boolean(causal, 'causal') or None, return_lse=return_lse, **given)
        self._tasks = _Tasks(problem, target)

    def __repr__(self) -> str:
        given = self._tasks.bound[1].given()
        shapes = ', '.join(f'{name}={tuple(given[name].shape)}' for name in 'qkv')
        return f'Plan({shapes}, tasks={self.tasks}, reduce_tasks={self.reduce_tasks})'

    def __reduce__(self) -> Any:
        raise TypeError('a Plan holds the addresses of its arrays: make another one instead of copying or pickling it')

    @property
    def tasks(self) -> int:
        """Tasks: each of 0 .. tasks - 1 is run once, in any order, on any threads."""
        return self._tasks.struct.tasks  # type: ignore[no-any-return]

    @property
    def reduce_tasks(self) -> int:
        """Reduction tasks, run after all others; 0: nothing to reduce."""
        return self._tasks.struct.reduce_tasks  # type: ignore[no-any-return]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace that each thread needs."""
        return self._tasks.struct.workspace_bytes  # type: ignore[no-any-return]

    @property
    def partial_bytes(self) -> int:
        """Bytes of the buffer that all tasks share; 0 if nothing is reduced."""
        return self._tasks.struct.partial_bytes  # type: ignore[no-any-return]

    def bind(self, q: AnyArray, k: Union[AnyArray, Store], v: Union[AnyArray, Store], *, causal: bool = False,
             return_lse: bool = False, **options: Unpack[PlanOptions]) -> Plan:
        """The same problem with other arrays: another layer of a model. Error STALE_PLAN if anything else differs."""
        given: Dict[str, Any] = dict(options, target=self._tasks.target)
        problem = Problem(q, k, v, causal=boolean(causal, 'causal') or None, return_lse=return_lse, **given)
        self._tasks.bind(problem)
        return self

    def run(self, pool: Optional[Executor] = None) -> Any:
        """Runs it, on this thread and those of a concurrent.futures.ThreadPoolExecutor; returns what attention() does.

        The GIL is released during the work. A pool of n threads: n at work, this one among them.
        """
        return self._tasks.run(pool)
