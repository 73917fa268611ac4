"""flash_attn.layers.rotary's apply_rotary_emb, for inference on the CPU."""

from __future__ import annotations

from typing import Optional, Union

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

__all__ = ['apply_rotary_emb', 'apply_rotary_emb_func']
