"""PyTorch: scaled_dot_product_attention for inference on the CPU.

    import simdattn.torch
    out = simdattn.torch.sdpa(q, k, v, is_causal=True)

    with simdattn.torch.replace_sdpa():     # for code that calls torch.nn.functional's
        model(tokens)
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor
from typing import Any, Iterator, Optional

import torch
from torch.nn import functional

from ._abi import Code
from ._library import Error
from ._sdpa import scaled_dot_product_attention


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where the last dimension is not contiguous."""
    return x if x.dim() == 0 or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
         dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False, *,
         target: Optional[str] = None, pool: Optional[Executor] = None) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention for inference on the CPU.

    query: [..., L, E], key: [..., S, E], value: [..., S, Ev]; attn_mask: bool or float, broadcast to [..., L, S]; result: [..., L, Ev].
    Error, and no silent way around, for tensors that need gradients (where gradients are on), for dropout, and for other devices
    and types than float32, bfloat16 and float16. pool: threads that share the work.
    """
    mask = None if attn_mask is None else _contiguous(attn_mask)
    result: torch.Tensor = scaled_dot_product_attention(
        _contiguous(query), _contiguous(key), _contiguous(value), mask, dropout_p, is_causal, scale, enable_gqa,
        target=target, pool=pool)
    return result


@contextlib.contextmanager
def replace_sdpa(*, target: Optional[str] = None, pool: Optional[Executor] = None) -> Iterator[None]:
    """Puts sdpa in the place of torch.nn.functional.scaled_dot_product_attention for the time of a `with` block.

    PyTorch 1.13 has _scaled_dot_product_attention instead, which nn.MultiheadAttention calls; it returns weights too, which are not
    computed here: need_weights must be False.
    """

    def new(*args: Any, **options: Any) -> torch.Tensor:
        return sdpa(*args, target=target, pool=pool, **options)

    def old(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, need_attn_weights: bool = False, is_causal: bool = False) -> Any:
        if need_attn_weights:
            raise Error(Code.RANGE, 'need_attn_weights: weights are not computed; call with need_weights=False')
        return sdpa(query, key, value, attn_mask, dropout_p, is_causal, target=target, pool=pool), None

    name, ours = (('scaled_dot_product_attention', new) if hasattr(functional, 'scaled_dot_product_attention')
                  else ('_scaled_dot_product_attention', old))
    theirs = getattr(functional, name)
    setattr(functional, name, ours)
    try:
        yield
    finally:
        setattr(functional, name, theirs)
