"""flash-attn's functions, written from its documentation in float64: what simdattn.flash_attn is compared with."""
import math
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import torch

import simdattn.flash_attn as flash

TYPES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}  # of numbers below 4


def definition(q, k, v, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None, first=0):
    """One sequence, q [rows, heads, dim], k [tokens, kv_heads, dim]: out and lse."""
    rows, heads, dim = q.shape
    tokens = len(k)
    k, v = (x.double().repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
    s = torch.einsum('lhd,shd->hls', q.double(), k) * (dim**-0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i, j = torch.arange(rows)[:, None] + tokens - rows, torch.arange(tokens)[None]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (i - j).abs()
    seen = (j >= first).expand(rows, tokens)
    if causal:
        seen = seen & (j <= i)
    if window[0] >= 0:
        seen = seen & (j >= i - window[0])
    if window[1] >= 0:
        seen = seen & (j <= i + window[1])
    s = s.masked_fill(~seen, -math.inf)
    return torch.einsum('hls,shd->lhd', torch.softmax(s, -1).nan_to_num(0.0), v), torch.logsumexp(s, -1)


def rotated(x, cos, sin, places, interleaved):
    """x: [rows, heads, dim], row i by the angles of places[i]."""
    n = cos.shape[1]
    c, s, x = cos[places].double()[:, None], sin[places].double()[:, None], x.double()
    one, two = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(0, n), slice(n, 2 * n))
    y = x.clone()
    y[..., one], y[..., two] = x[..., one] * c - x[..., two] * s, x[..., one] * s + x[..., two] * c
    return y


def close(found, wanted, dtype, lse=None, wanted_lse=None):
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=TYPES[dtype])
    if lse is not None:
        torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 0.02)


def of_sequence(slopes, b):
    return slopes if slopes is None or slopes.dim() == 1 else slopes[b]


def paged(k, v, size):
    """Keys and values in pages of `size` tokens, in no order, and the table; pages that nobody has hold NaN."""
    batch, tokens, heads, dim = k.shape
    n = -(-tokens // size)
    table = torch.randperm(batch * n + 3)[:batch * n].view(batch, n).int()
    pages = [torch.full((batch * n + 3, size, heads, dim), math.nan, dtype=k.dtype) for _ in 'kv']
    for page, x in zip(pages, (k, v)):
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, n * size - tokens), value=math.nan)
        page[table.flatten().long()] = padded.view(batch * n, size, heads, dim)
    return table, pages


@dataclass
class CacheCall:
    """A call of flash_attn_with_kvcache(): its options, as numbers."""

    dtype: torch.dtype
    where: str  # 'rows': the cache's sequences are q's; 'index': by cache_batch_idx; 'pages': by block_table
    rows: int
    heads: int
    kv_heads: int
    dim: int
    capacity: int
    lengths: List[int]
    new: int
    causal: bool
    window: Tuple[int, int]
    slopes: Optional[torch.Tensor]
    angles: int  # of a row; 0: no rotation
    interleaved: bool
    left: Optional[List[int]]
    page: int = 256

    def compare(self) -> None:
        """With the definition: the result, and what is in the cache afterwards."""
        batch, given, index = len(self.lengths), {}, torch.arange(len(self.lengths))
        indexed = self.where == 'index'
        q = torch.randn(batch, self.rows, self.heads, self.dim).to(self.dtype)
        old = [torch.randn(batch + 2 * indexed, self.capacity, self.kv_heads, self.dim).to(self.dtype) for _ in 'kv']
        fresh = [
            torch.randn(batch, self.new, self.kv_heads, self.dim).to(self.dtype) if self.new else None for _ in 'kv'
        ]
        memory = [x.clone() for x in old]
        if indexed:
            index = torch.randperm(batch + 2)[:batch]
            given['cache_batch_idx'] = index.int()
        if self.where == 'pages':
            given['block_table'], memory = paged(*old, self.page)
        if self.left:
            given['cache_leftpad'] = torch.tensor(self.left, dtype=torch.int32)
        angles = torch.arange(self.capacity)[:, None] / 100**(torch.arange(self.angles) / 8)
        table = [angles.cos().to(self.dtype), angles.sin().to(self.dtype)] if self.angles else None
        if table:
            given.update(rotary_cos=table[0], rotary_sin=table[1], rotary_interleaved=self.interleaved)
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        out, lse = flash.flash_attn_with_kvcache(q,
                                                 *memory,
                                                 *fresh,
                                                 cache_seqlens=lengths,
                                                 causal=self.causal,
                                                 window_size=self.window,
                                                 alibi_slopes=self.slopes,
                                                 return_softmax_lse=True,
                                                 **given)
        assert lengths.tolist() == self.lengths
        for b in range(batch):
            kept = [x[index[b]].clone() for x in old]
            query = self._appended(kept, fresh, q, b, table)
            end = self.lengths[b] + self.new
            wanted, wanted_lse = definition(query,
                                            kept[0][:end],
                                            kept[1][:end],
                                            causal=self.causal,
                                            window=self.window,
                                            slopes=of_sequence(self.slopes, b),
                                            first=self.left[b] if self.left else 0)
            close(out[b], wanted, self.dtype, lse[b], wanted_lse)
            for there, wanted in zip(memory, kept):
                there = there[given['block_table'][b].long()].flatten(0,
                                                                      1) if self.where == 'pages' else there[index[b]]
                self._compare_memory(there[:self.capacity], wanted, self.lengths[b], end)
        if indexed:
            others = [i for i in range(batch + 2) if i not in index]
            assert all(torch.equal(x[others], y[others]) for x, y in zip(memory, old))

    def _appended(self, kept: List[torch.Tensor], fresh: List[Any], q: torch.Tensor, b: int,
                  table: Any) -> torch.Tensor:
        """Puts the new keys and values of sequence b into `kept`, and gives its query, both rotated."""
        n, query = self.lengths[b], q[b]
        for x, y in zip(kept, fresh if self.new else ()):
            x[n:n + self.new] = y[b]
        if table:
            local = self.causal or self.window != (-1, -1)
            query = rotated(query, *table, n + torch.arange(self.rows) * local, self.interleaved).to(self.dtype)
            kept[0][n:n + self.new] = rotated(fresh[0][b], *table, n + torch.arange(self.new),
                                              self.interleaved).to(self.dtype)
        return query

    def _compare_memory(self, there: torch.Tensor, wanted: torch.Tensor, start: int, end: int) -> None:
        """What was written, and nothing else."""
        assert torch.equal(there[:start], wanted[:start]) and torch.equal(there[end:], wanted[end:])
        torch.testing.assert_close(there[start:end],
                                   wanted[start:end],
                                   rtol=2 * TYPES[self.dtype],
                                   atol=TYPES[self.dtype])
