"""flash_attn.layers.rotary's apply_rotary_emb, for inference on the CPU."""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch

from ._abi import Code
from ._library import Error
from ._rope import rope


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, places: torch.Tensor, interleaved: bool,
            out: Optional[torch.Tensor]) -> torch.Tensor:
    """x: [batch, rows, heads, dim], its rows standing at places, [batch, rows]."""
    if cos.dim() != 2 or cos.shape != sin.shape:
        raise Error(
            Code.SHAPE,
            f'rotary_cos: has shape {tuple(cos.shape)}, rotary_sin {tuple(sin.shape)}; [positions, pairs] is wanted')
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < len(cos):
        raise Error(
            Code.RANGE,
            f'rotary_cos: has {len(cos)} positions; the rows stand at {int(places.min())} .. {int(places.max())}')
    # Tables are of the type of x in flash-attn. Angles are float32 here: only the rows of the table that are read
    # become that.
    rows = [t.index_select(0, places.flatten()).float() for t in (cos, sin)]
    where = torch.arange(places.numel()).view(places.shape)
    return rope(x.transpose(1, 2), *rows, where, out=None if out is None else out.transpose(1, 2),
                pairing='interleaved' if interleaved else 'half_split').transpose(1, 2)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: Optional[torch.Tensor], first: torch.Tensor, interleaved: bool,
           along: bool = True) -> torch.Tensor:
    """x: [batch, rows, heads, dim], row i rotated by position first[b] + i or, unless `along`, by first[b]."""
    if sin is None:
        raise Error(Code.RANGE, 'rotary_sin: is wanted with rotary_cos')
    steps = torch.arange(x.shape[1]) if along else torch.zeros(x.shape[1], dtype=torch.int64)
    return _turned(x, cos, sin, first.long()[:, None] + steps, interleaved, None)


def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False,
                     inplace: bool = False, seqlen_offsets: Union[int, torch.Tensor] = 0,
                     cu_seqlens: Optional[torch.Tensor] = None, max_seqlen: Optional[int] = None) -> torch.Tensor:
    """Rotates the first 2 * pairs dimensions of x by tables cos and sin, [positions, pairs].

    x: [batch, rows, heads, dim], or [all rows, heads, dim] with cu_seqlens, int32 [sequences + 1]; row i of a sequence
    stands at seqlen_offsets + i, an int or [sequences]. interleaved: pairs are (2i, 2i + 1), else (i, i + pairs).
    inplace: x is written. max_seqlen is not read.
    """
    offsets = torch.as_tensor(seqlen_offsets, dtype=torch.int64)
    if cu_seqlens is None:
        places = offsets.expand(len(x))[:, None] + torch.arange(x.shape[1])
        return _turned(x, cos, sin, places, interleaved, x if inplace else None)
    lengths = cu_seqlens.diff().long()
    firsts = offsets.expand(len(lengths)) - cu_seqlens[:-1]
    places = (torch.arange(len(x)) + firsts.repeat_interleave(lengths))[None]
    return _turned(x[None], cos, sin, places, interleaved, x[None] if inplace else None)[0]


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_kv_(kv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False,
                         seqlen_offsets: Union[int, torch.Tensor] = 0) -> torch.Tensor:
    """Rotates the keys of kv, [batch, rows, 2, heads, dim], in place."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


def apply_rotary_emb_qkv_(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cos_k: Optional[torch.Tensor] = None,
                          sin_k: Optional[torch.Tensor] = None, interleaved: bool = False,
                          seqlen_offsets: Union[int, torch.Tensor] = 0,
                          num_heads_q: Optional[int] = None) -> torch.Tensor:
    """Rotates queries and keys of qkv in place: [batch, rows, 3, heads, dim] or, with num_heads_q, [batch, rows,
    num_heads_q + 2 * kv_heads, dim]. cos_k, sin_k: other tables for keys."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        if num_heads_q is None:
            raise Error(Code.RANGE, 'num_heads_q: is wanted for a qkv of 4 dimensions')
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:(num_heads_q + qkv.shape[2]) // 2]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True,
                     seqlen_offsets)
    return qkv


class RotaryEmbedding(torch.nn.Module):
    """Rotates queries and keys in place, by tables that grow with the positions. xPos (scale_base) is not there.

    dim: rotated dimensions; base: of the frequencies base^(-2i / dim); interleaved: as of apply_rotary_emb.
    """
    inv_freq: torch.Tensor

    def __init__(self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: Optional[float] = None,
                 device: Optional[torch.device] = None) -> None:
        super().__init__()
        if scale_base is not None:
            raise Error(Code.RANGE, 'scale_base: xPos is not there; None is wanted')
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer('inv_freq', 1.0 / self.base**steps, persistent=False)
        self._tables: Optional[Tuple[torch.Tensor, torch.Tensor]] = None

    def tables(self, positions: int, dtype: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [at least positions, dim / 2]."""
        if self._tables is None or len(self._tables[0]) < positions or self._tables[0].dtype != dtype:
            angles = torch.outer(torch.arange(positions, dtype=torch.float32), self.inv_freq)
            self._tables = angles.cos().to(dtype), angles.sin().to(dtype)
        return self._tables

    def forward(self, qkv: torch.Tensor, kv: Optional[torch.Tensor] = None, seqlen_offset: Union[int, torch.Tensor] = 0,
                max_seqlen: Optional[int] = None,
                num_heads_q: Optional[int] = None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """qkv as in apply_rotary_emb_qkv_(); with kv, [batch, rows, 2, heads, dim], it is q, [batch, rows, heads, dim],
        and both come back. Row i stands at seqlen_offset + i. max_seqlen: that of the offsets, where they are a tensor.
        """
        last = max_seqlen or qkv.shape[1] + (seqlen_offset if isinstance(seqlen_offset, int) else int(seqlen_offset.max()))
        cos, sin = self.tables(last, qkv.dtype)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, None, None, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)


__all__ = [
    'RotaryEmbedding', 'apply_rotary_emb', 'apply_rotary_emb_func', 'apply_rotary_emb_kv_', 'apply_rotary_emb_qkv_'
]
