"""flash-attn 2's functions for inference on the CPU, with its signatures and shapes.

    from simdattn.flash_attn import flash_attn_func
    out = flash_attn_func(q, k, v, causal=True)     # [batch, rows, heads, dim]

    simdattn.flash_attn.install()                   # `import flash_attn` finds this, where none is installed

arithmetic: what multiplies, which flash-attn does not have: as in simdattn.attention(), but by default that of
install(), which is 'auto' unless it is told: bfloat16 as such where the CPU is faster then.

Tensors are float32, bfloat16 or float16, and nothing of them is copied. The last row of q stands at the last key. A row
that sees no key gives zeros and a log-sum-exp of -inf. Dropout and gradients are refused. `deterministic`, `num_splits`
and the longest lengths change nothing: the bits are the same on every machine and for any number of threads.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch

from . import _flash_import
from ._abi import Code
from ._attention import attention
from ._flash_checks import called, check, check_ends, check_slopes, check_table, ends_of, refuse_dropout, window_of
from ._flash_import import VERSION as __version__
from ._flash_import import install, uninstall
from ._flash_rotary import rotate
from ._library import Error
from ._run import prepare_torch
from ._targets import ask_for_amx
from ._tensor_cache import TensorCache
from ._scoring import as_double, boolean
from ._tensors import refuse_gradient
from ._types import ArithmeticName

prepare_torch()
ask_for_amx()  # PyTorch does so too, before its first product of bfloat16

Window = Tuple[int, int]
SCORES = dict(scale='softmax_scale', window_left='window_size', window_right='window_size')

# ---- What the functions share ----------------------------------------------------------------------------------------


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """[batch, rows, heads, dim] as the view [batch, heads, rows, dim]."""
    return x.transpose(1, 2)


class _Scores(NamedTuple):
    """What happens to scores, by flash-attn's names."""

    scale: Optional[float]
    causal: bool
    window: Window
    softcap: float
    slopes: Optional[torch.Tensor]
    arithmetic: ArithmeticName

    def options(self, sequence: Optional[int] = None) -> Dict[str, Any]:
        """As options of attention(). sequence: whose slopes count, where every sequence has its own."""
        left, right = self.window
        slopes = self.slopes if sequence is None or self.slopes is None else self.slopes[sequence]
        return dict(scale=self.scale, causal=self.causal, softcap=self.softcap or None, alibi_slopes=slopes,
                    window_left=left if left >= 0 else None, window_right=right if right >= 0 else None,
                    arithmetic=self.arithmetic)


def _scores(softmax_scale: Optional[float], causal: bool, window_size: Window, softcap: float,
            alibi_slopes: Optional[torch.Tensor], arithmetic: Optional[ArithmeticName], batch: int,
            heads: int) -> Tuple[_Scores, bool]:
    """The options, and whether every sequence has slopes of its own, so that each is a call."""
    if alibi_slopes is not None:
        check_slopes(alibi_slopes, batch, heads)
    own = alibi_slopes is not None and alibi_slopes.dim() == 2
    softcap = as_double(softcap, 'softcap')
    return _Scores(softmax_scale, boolean(causal, 'causal'), window_of(window_size), softcap, alibi_slopes,
                   _flash_import.arithmetic if arithmetic is None else arithmetic), own


def _empty(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    shape = q.shape
    return torch.empty(shape if v.shape[-1] == shape[-1] else (*shape[:-1], v.shape[-1]), dtype=q.dtype)


# ---- Sequences of one length -----------------------------------------------------------------------------------------


@called(**SCORES)
def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
                    softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                    softcap: float = 0.0, alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                    return_attn_probs: bool = False,
                    *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """q: [batch, rows, heads, dim]; k, v: [batch, tokens, kv_heads, dim]; the result is like q.

    window_size: (left, right), keys beside the row's own that it sees; -1: all. softcap: softcap * tanh(score /
    softcap); 0: none.
    alibi_slopes: float32 [heads] or [batch, heads]; adds -slope * |row's place - key|.
    return_attn_probs: (out, lse float32 [batch, heads, rows], None); flash-attn gives probabilities with dropout alone.
    """
    refuse_dropout(dropout_p)
    for x, argument in ((q, 'q'), (k, 'k'), (v, 'v')):
        check(x, argument, '[batch, rows, heads, dim]')
    batch, rows, heads, _ = q.shape
    scores, own = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes, arithmetic, batch, heads)
    out = _empty(q, v)
    lse = torch.empty((batch, heads, rows)) if boolean(return_attn_probs, 'return_attn_probs') else None
    for b in range(batch) if own else [None]:
        part = slice(None) if b is None else slice(b, b + 1)
        attention(*(_heads_first(x[part]) for x in (q, k, v)), out=_heads_first(out[part]),
                  lse=None if lse is None else lse[part], **scores.options(b))
    return out if lse is None else (out, lse, None)


@called(q='qkv', k='qkv', v='qkv')
def flash_attn_qkvpacked_func(qkv: torch.Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                              causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                              return_attn_probs: bool = False,
                              *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """flash_attn_func with qkv: [batch, rows, 3, heads, dim]."""
    check(qkv, 'qkv', '[batch, rows, 3, heads, dim]')
    return flash_attn_func(*_unpacked(qkv, 'qkv', 3), dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, arithmetic=arithmetic)


@called(k='kv', v='kv')
def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, dropout_p: float = 0.0,
                             softmax_scale: Optional[float] = None, causal: bool = False,
                             window_size: Window = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                             return_attn_probs: bool = False,
                             *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """flash_attn_func with kv: [batch, tokens, 2, kv_heads, dim]."""
    check(kv, 'kv', '[batch, tokens, 2, kv_heads, dim]')
    return flash_attn_func(q, *_unpacked(kv, 'kv', 2), dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, arithmetic=arithmetic)


def _unpacked(x: torch.Tensor, argument: str, parts: int) -> Tuple[torch.Tensor, ...]:
    if x.shape[-3] != parts:
        raise Error(Code.SHAPE, f'{argument}: has shape {tuple(x.shape)}; {parts} is wanted before the heads')
    return x.unbind(-3)


# ---- Sequences one behind the other ----------------------------------------------------------------------------------


@called(cu_q='cu_seqlens_q', cu_k='cu_seqlens_k', **SCORES)
def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
                           cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Optional[torch.Tensor] = None,
                           deterministic: bool = False, return_attn_probs: bool = False,
                           block_table: Optional[torch.Tensor] = None,
                           *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """q: [all rows, heads, dim]; k, v: [all tokens, kv_heads, dim]; cu_seqlens_q, cu_seqlens_k: int32 [sequences + 1],
    where each begins, and the end. max_seqlen_q, max_seqlen_k are not read.

    block_table: int32 [sequences, n], where k and v are pages, [pages, page_size, kv_heads, dim]; cu_seqlens_k says how
    many tokens each sequence has. Other options and results: as of flash_attn_func; the lse is [heads, all rows].
    """
    refuse_dropout(dropout_p)
    check(q, 'q', '[all rows, heads, dim]')
    if block_table is not None:
        check_table(block_table)
    cu_q, cu_k = ends_of(cu_seqlens_q, 'cu_seqlens_q'), ends_of(cu_seqlens_k, 'cu_seqlens_k')
    for x, argument in ((k, 'k'), (v, 'v')):
        check(x, argument,
               '[all tokens, kv_heads, dim]' if block_table is None else '[pages, page_size, kv_heads, dim]')
    sequences, heads = len(cu_q) - 1, q.shape[1]
    if len(cu_k) != len(cu_q):
        raise Error(Code.SHAPE, f'cu_seqlens_k: has {len(cu_k)} numbers, cu_seqlens_q {len(cu_q)}')
    if block_table is not None:
        check_table(block_table, sequences)
        check_ends(cu_k, None, 'cu_seqlens_k')
    scores, own = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes, arithmetic,
                          sequences, heads)
    out = _empty(q, v)
    lse = torch.empty((heads, len(q))) if boolean(return_attn_probs, 'return_attn_probs') else None
    keys = _Varlen(k, v, cu_k, block_table)
    if own:
        check_ends(cu_q, len(q), 'cu_seqlens_q')
        check_ends(cu_k, len(k) if block_table is None else None, 'cu_seqlens_k')
        for b, (first, end) in enumerate(zip(cu_q.tolist(), cu_q.tolist()[1:])):
            rows = slice(first, end)
            keys.attend(q[rows], out[rows], None if lse is None else lse[:, rows], None, b, scores.options(b))
    else:
        keys.attend(q, out, lse, cu_q, None, scores.options())
    return out if lse is None else (out, lse, None)


class _Varlen(NamedTuple):
    """Keys and values of many sequences: one behind the other, or in pages."""

    k: torch.Tensor
    v: torch.Tensor
    ends: torch.Tensor
    table: Optional[torch.Tensor]

    def attend(self, q: torch.Tensor, out: torch.Tensor, lse: Optional[torch.Tensor], cu_q: Optional[torch.Tensor],
               sequence: Optional[int], options: Dict[str, Any]) -> None:
        """Rows of all sequences, which cu_q tells apart, or of one."""
        whole = sequence is None
        ends = self.ends if whole else self.ends[sequence:sequence + 2]
        rows = dict(out=_heads_first(out[None]), lse=None if lse is None else lse[None], cu_q=cu_q)
        if self.table is not None:
            table = self.table if whole else self.table[sequence:sequence + 1]
            with _Cache(self.k, self.v, table, ends.diff(), ('k', 'v', 'cu_seqlens_k')) as cache:
                attention(_heads_first(q[None]), cache.keys, cache.values, **rows, **options)
            return
        k, v = (self.k, self.v) if whole else (x[int(ends[0]):int(ends[1])] for x in (self.k, self.v))
        attention(*(_heads_first(x[None]) for x in (q, k, v)), cu_k=ends if whole else None, **rows, **options)


@called(q='qkv', k='qkv', v='qkv', cu_seqlens_q='cu_seqlens', cu_seqlens_k='cu_seqlens')
def flash_attn_varlen_qkvpacked_func(qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int,
                                     dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                     causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                     return_attn_probs: bool = False,
                                     *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """flash_attn_varlen_func with qkv: [all rows, 3, heads, dim]."""
    check(qkv, 'qkv', '[all rows, 3, heads, dim]')
    return flash_attn_varlen_func(*_unpacked(qkv, 'qkv', 3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, arithmetic=arithmetic)


@called(k='kv', v='kv')
def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, cu_seqlens_q: torch.Tensor,
                                    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
                                    dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: bool = False,
                                    window_size: Window = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Optional[torch.Tensor] = None, deterministic: bool = False,
                                    return_attn_probs: bool = False,
                                    *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """flash_attn_varlen_func with kv: [all tokens, 2, kv_heads, dim]."""
    check(kv, 'kv', '[all tokens, 2, kv_heads, dim]')
    return flash_attn_varlen_func(q, *_unpacked(kv, 'kv', 2), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, arithmetic=arithmetic)


# ---- A cache of the caller's -----------------------------------------------------------------------------------------


def _place(k: torch.Tensor, v: torch.Tensor, table: Optional[torch.Tensor], lengths: torch.Tensor) -> Any:
    """All that a TensorCache knows of these; None: they are not plain, and a new one says what is wrong with them."""
    for x in (k, v):
        if type(x) is not torch.Tensor or x.requires_grad or x.is_neg():
            return None
    try:
        return (k.data_ptr(), v.data_ptr(), k.shape, v.shape, k.stride(), v.stride(), k.dtype, v.dtype, lengths.shape,
                None if table is None else (table.shape, table.dtype, table.stride()))
    except RuntimeError:  # inside of vmap and other transformations
        return None


_MOST_CACHES = 256
_caches: Dict[Any, TensorCache] = {}  # those that no call uses, over memory that they do not keep alive


class _Cache(contextlib.AbstractContextManager):  # type: ignore[type-arg]
    """The caller's memory as it lies, for one call. names: of k, v and the lengths.

    A TensorCache takes 0.1 ms to make, and knows calls that come again. So it is kept for the next call with tensors
    that lie there, which has it alone. Its block table is a copy, since that of the next call lies elsewhere.
    """

    def __init__(self, k: torch.Tensor, v: torch.Tensor, table: Optional[torch.Tensor], lengths: torch.Tensor,
                 names: Tuple[str, str, str]) -> None:
        self.key = _place(k, v, table, lengths)
        found = _caches.pop(self.key, None)
        if found is None:
            if k.shape[:3] != v.shape[:3]:
                raise Error(
                    Code.SHAPE, f'{names[1]}: has shape {tuple(v.shape)}, {names[0]} {tuple(k.shape)}; all but the last '
                    'number are the same')
            if table is not None:
                check_table(table, len(lengths))
        self.capacity = k.shape[1] * (1 if table is None else table.shape[1])
        numbers = _check_lengths(lengths, self.capacity, names[2])
        if found is None:
            self.table = None if table is None else table.detach().clone()
            found = TensorCache(_heads_first(k), _heads_first(v), block_table=self.table, lengths=lengths)
            found.forget_owners()
        elif table is not None:
            found._block_table.copy_(table)
        found._tensors = k, v  # what append() marks as written
        found._lengths[:] = numbers
        self.cache = found

    def __enter__(self) -> TensorCache:
        return self.cache

    def __exit__(self, *error: Any) -> None:
        self.cache._tensors = ()
        if self.key is not None:
            if len(_caches) >= _MOST_CACHES:
                _caches.clear()
            _caches[self.key] = self.cache


def _check_lengths(lengths: torch.Tensor, capacity: int, name: str) -> List[int]:
    numbers: List[int] = lengths.tolist()
    if numbers and not 0 <= min(numbers) <= max(numbers) <= capacity:
        raise Error(Code.RANGE,
                    f'{name}: sequences of {numbers} tokens; 0 .. {capacity} is wanted, what the memory holds')
    return numbers


_CACHED = dict(k='k_cache', v='v_cache', kv_length='cache_seqlens', kv_start='cache_leftpad')


@called(**_CACHED)
def _attend_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
                    start: Optional[torch.Tensor], options: Dict[str, Any], return_lse: bool) -> Any:
    """A sequence each, of so many tokens, in [batch, capacity, kv_heads, dim]."""
    batch, rows, heads, _ = q.shape
    out = _empty(q, v)
    lse = torch.empty((batch, heads, rows)) if return_lse else None
    attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out=out.transpose(1, 2), lse=lse,
              kv_length=lengths, kv_start=start, **options)
    return out if lse is None else (out, lse)


def _lengths_of(cache_seqlens: Union[int, torch.Tensor, None], batch: int, default: int) -> torch.Tensor:
    if cache_seqlens is None or isinstance(cache_seqlens, int):
        return torch.full((batch, ), default if cache_seqlens is None else cache_seqlens, dtype=torch.int32)
    return _per_sequence(cache_seqlens, 'cache_seqlens', batch)


def _per_sequence(x: Any, argument: str, batch: int) -> torch.Tensor:
    check(x, argument, '[batch]')
    if x.dtype not in (torch.int32, torch.int64) or x.shape[0] != batch:
        raise Error(Code.SHAPE, f'{argument}: is {x.dtype} of shape {tuple(x.shape)}; int32 [{batch}] is wanted')
    return x


def _table_of(block_table: Optional[torch.Tensor], cache_batch_idx: Optional[torch.Tensor],
              batch: int) -> Optional[torch.Tensor]:
    """Which pages a sequence has. cache_batch_idx is a table too: of pages that hold a whole sequence."""
    if cache_batch_idx is None:
        return block_table
    if block_table is not None:
        raise Error(Code.RANGE, 'cache_batch_idx: is given with block_table, which says where every sequence is')
    return _per_sequence(cache_batch_idx, 'cache_batch_idx', batch).int()[:, None].contiguous()


_ROWS = '[batch, rows, heads, dim]'


def _check_cached(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: Optional[torch.Tensor],
                  v: Optional[torch.Tensor], pages: bool) -> None:
    """All that attention() would refuse of q, as new keys are written before."""
    check(q, 'q', _ROWS)
    for x, argument in ((k, 'k'), (v, 'v')):
        if x is not None:
            check(x, argument, _ROWS)
    for x, argument in ((k_cache, 'k_cache'), (v_cache, 'v_cache')):
        check(x, argument, '[pages, page_size, kv_heads, dim]' if pages else '[batch, capacity, kv_heads, dim]')
    if (k is None) != (v is None):
        raise Error(Code.RANGE, f'{"v" if v is None else "k"}: is wanted too: new keys and values come together')
    refuse_gradient(q, 'q')
    heads, kv_heads = q.shape[2], k_cache.shape[2]
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise Error(Code.DTYPE, f'q: is {q.dtype}; float32, bfloat16 or float16 is wanted')
    if not kv_heads or heads % kv_heads or q.shape[3] != k_cache.shape[3] or q.stride(3) != 1:
        raise Error(Code.SHAPE, f'q: has shape {tuple(q.shape)}, k_cache {tuple(k_cache.shape)}; the same dim is '
                    'wanted, the last dimension contiguous, and a number of heads that kv_heads divides')


@called(**SCORES)
def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
                            k: Optional[torch.Tensor] = None, v: Optional[torch.Tensor] = None,
                            rotary_cos: Optional[torch.Tensor] = None, rotary_sin: Optional[torch.Tensor] = None,
                            cache_seqlens: Union[int, torch.Tensor, None] = None,
                            cache_batch_idx: Optional[torch.Tensor] = None,
                            cache_leftpad: Optional[torch.Tensor] = None, block_table: Optional[torch.Tensor] = None,
                            softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                            softcap: float = 0.0, rotary_interleaved: bool = True,
                            alibi_slopes: Optional[torch.Tensor] = None, num_splits: int = 0,
                            return_softmax_lse: bool = False,
                            *, arithmetic: Optional[ArithmeticName] = None) -> Any:
    """Attention over a cache, behind whose tokens k and v are written first.

    q: [batch, rows, heads, dim]; k, v: [batch, new tokens, kv_heads, dim]
    k_cache, v_cache: [batch of the cache, capacity, kv_heads, dim], or [pages, page_size, kv_heads, dim] with
    block_table: int32 [batch, n]
    cache_seqlens: how many tokens the cache has, an int or int32 [batch]; default: all, without k
    cache_batch_idx: int32 [batch], which sequence of the cache each of q is; cache_leftpad: int32 [batch], the first
        token that counts
    rotary_cos, rotary_sin: [positions, pairs]: k is rotated by its places in the cache, q too with `causal` or a
        window, else all of its rows by cache_seqlens. rotary_interleaved: pairs are (2i, 2i + 1), else (i, i + pairs)
    Other options: as of flash_attn_func. return_softmax_lse: (out, lse float32 [batch, heads, rows]).
    """
    _check_cached(q, k_cache, v_cache, k, v, block_table is not None)
    if k is not None and cache_seqlens is None:
        raise Error(Code.RANGE, 'cache_seqlens: is wanted with k: it says behind which token k is written')
    if block_table is not None:
        check_table(block_table)
    if rotary_cos is not None or rotary_sin is not None:
        for x, argument in ((rotary_cos, 'rotary_cos'), (rotary_sin, 'rotary_sin')):
            if x is not None:
                check(x, argument, '[positions, pairs]')
        if rotary_cos is not None and k is None:
            raise Error(Code.RANGE, 'rotary_cos: is given without k; rotate q before the call')
    batch, rows, heads, _ = q.shape
    scores, own = _scores(softmax_scale, causal, window_size, softcap, alibi_slopes, arithmetic, batch, heads)
    lengths = _lengths_of(cache_seqlens, batch, k_cache.shape[1] * (1 if block_table is None else block_table.shape[1]))
    start = None if cache_leftpad is None else _per_sequence(cache_leftpad, 'cache_leftpad', batch)
    table = _table_of(block_table, cache_batch_idx, batch)
    if table is None and len(k_cache) != batch:
        raise Error(Code.SHAPE,
                    f'k_cache: has {len(k_cache)} sequences, q {batch}; cache_batch_idx says which of them they are')
    return_lse = boolean(return_softmax_lse, 'return_softmax_lse')
    if k is None and table is None and not own and k_cache.shape[:3] == v_cache.shape[:3]:  # plain tensors cost less
        _check_lengths(lengths, k_cache.shape[1], 'cache_seqlens')
        return _attend_tensors(q, k_cache, v_cache, lengths, start, scores.options(), return_lse)
    out = _empty(q, v_cache)
    lse = torch.empty((batch, heads, rows)) if return_lse else None
    with _Cache(k_cache, v_cache, table, lengths, ('k_cache', 'v_cache', 'cache_seqlens')) as cache:
        if k is not None and v is not None:
            if rotary_cos is not None:
                local = causal or scores.window != (-1, -1)
                pairs = boolean(rotary_interleaved, 'rotary_interleaved')
                q = rotate(q, rotary_cos, rotary_sin, lengths, pairs, along=local)
                k = rotate(k, rotary_cos, rotary_sin, lengths, pairs)
            cache.append(_heads_first(k), _heads_first(v))
        for b in range(batch) if own else [None]:
            part = slice(None) if b is None else slice(b, b + 1)
            one = cache if b is None else _one_of(k_cache, v_cache, table, cache, b)
            _attention_of_cache(_heads_first(q[part] if own else q), one.keys, one.values,
                                out=_heads_first(out[part] if own else out), lse=None if lse is None else lse[part],
                                kv_start=None if start is None else start[part], **scores.options(b))
    return out if lse is None else (out, lse)


_attention_of_cache = called(**_CACHED)(attention)


def _one_of(k: torch.Tensor, v: torch.Tensor, table: Optional[torch.Tensor], cache: TensorCache, b: int) -> TensorCache:
    """One sequence of the cache that _Cache makes of k, v and table."""
    k, v = (x if table is not None else x[b:b + 1] for x in (k, v))
    return TensorCache(_heads_first(k), _heads_first(v), block_table=None if table is None else table[b:b + 1],
                       lengths=cache.lengths[b:b + 1])


__all__ = [
    '__version__', 'flash_attn_func', 'flash_attn_kvpacked_func', 'flash_attn_qkvpacked_func', 'flash_attn_varlen_func',
    'flash_attn_varlen_kvpacked_func', 'flash_attn_varlen_qkvpacked_func', 'flash_attn_with_kvcache', 'install',
    'uninstall'
]
