"""What flash-attn's public functions call, and libraries that divide sequences among machines call too."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from ._abi import Code
from ._library import Error
from .flash_attn import flash_attn_func, flash_attn_varlen_func

Forward = Tuple[torch.Tensor, torch.Tensor, None, None]


def _flash_attn_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, softmax_scale: float, causal: bool,
                        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[torch.Tensor],
                        return_softmax: bool = False) -> Forward:
    """flash_attn_func as (out, lse, None, None): without dropout there are no probabilities and no state of a
    generator."""
    window = window_size_left, window_size_right
    out, lse, _ = flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, return_attn_probs=True)
    return out, lse, None, None


def _flash_attn_varlen_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
                               max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
                               window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                               alibi_slopes: Optional[torch.Tensor] = None, return_softmax: bool = False,
                               block_table: Optional[torch.Tensor] = None, leftpad_k: Any = None, seqused_k: Any = None,
                               zero_tensors: bool = False) -> Forward:
    """flash_attn_varlen_func likewise. leftpad_k, seqused_k: are not there."""
    for x, argument in ((leftpad_k, 'leftpad_k'), (seqused_k, 'seqused_k')):
        if x is not None:
            raise Error(Code.RANGE, f'{argument}: is not there; cu_seqlens_k says where sequences end')
    window = window_size_left, window_size_right
    out, lse, _ = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                                         window, softcap, alibi_slopes, return_attn_probs=True, block_table=block_table)
    return out, lse, None, None


_wrapped_flash_attn_forward, _wrapped_flash_attn_varlen_forward = _flash_attn_forward, _flash_attn_varlen_forward

__all__ = ['_flash_attn_forward', '_flash_attn_varlen_forward', '_wrapped_flash_attn_forward', '_wrapped_flash_attn_varlen_forward']
