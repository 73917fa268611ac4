"""simdattn in the place of the kernel that PyTorch's own scaled_dot_product_attention ends in on a CPU."""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from typing import Dict, NamedTuple, Optional, Tuple

import torch

from ._abi import Code
from ._attention import attention
from ._library import Error
from ._types import TargetName

_NAME = '_scaled_dot_product_flash_attention_for_cpu'
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Calls(NamedTuple):
    """taken: calls that simdattn made since install(); others: those that it gave to PyTorch's kernel, by their reasons."""

    taken: int
    others: Dict[str, int]


class _Installed:
    """The library of overrides, and what its calls came to."""

    def __init__(self, target: TargetName, threads: Optional[int]) -> None:
        self.target, self.threads = target, threads
        self.taken, self.others = 0, Counter[str]()
        self.theirs = torch.library.get_kernel('aten::' + _NAME, 'CPU')
        self.library = torch.library.Library('aten', 'IMPL', 'CPU')
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # that a kernel of PyTorch's is replaced
            self.library.impl(_NAME, self.kernel)

    def kernel(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
               attn_mask: Optional[torch.Tensor] = None, scale: Optional[float] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        reason = _reason_against(query, key, value, dropout_p)
        if reason is None:
            try:
                result = _attend(query, key, value, is_causal, attn_mask, scale, self.target, self.threads)
                self.taken += 1
                return result
            except Error as e:
                reason = e.detail
        self.others[reason] += 1
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        found: Tuple[torch.Tensor, torch.Tensor] = self.theirs.call_boxed(keys, query, key, value, dropout_p, is_causal,
                                                                          attn_mask=attn_mask, scale=scale)
        return found


def _reason_against(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float) -> Optional[str]:
    """Why PyTorch's kernel takes the call; None: simdattn does."""
    for x in (query, key, value):
        if x.dtype not in _TYPES:
            return f'{x.dtype}'
    if dropout_p:
        return 'dropout'
    if not all(x.numel() for x in (query, key, value)):
        return 'empty tensors'
    return None


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, attn_mask: Optional[torch.Tensor],
            scale: Optional[float], target: TargetName, threads: Optional[int]) -> Tuple[torch.Tensor, torch.Tensor]:
    """The result, in the layout of PyTorch's kernel, and the log-sum-exp that its backward reads."""
    # Autograd stands above a kernel: it knows of the result, and these tensors are its inputs' memory alone.
    tensors = [x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in (query, key, value)]
    mask = None if attn_mask is None else attn_mask.detach()
    if mask is not None and mask.shape[-1] > 1 and mask.stride(-1) != 1:
        mask = mask.contiguous()
    boolean = mask is not None and mask.dtype == torch.bool
    batch, heads, rows, _ = query.shape
    out = torch.empty((batch, rows, heads, value.shape[-1]), dtype=query.dtype).transpose(1, 2)
    lse = torch.empty((batch, heads, rows))
    attention(*tensors, out=out, lse=lse, scale=scale, causal=is_causal, offset=0 if is_causal else None, mask=mask if boolean else None,
              bias=None if boolean else mask, target=target, threads=threads)
    if query.requires_grad or key.requires_grad or value.requires_grad:
        # The backward takes exp(score - lse): of a row that sees no key it would be NaN, and is 0 like this.
        lse.masked_fill_(lse == -math.inf, 0.0)
    return out, lse


_installed: Optional[_Installed] = None
_lock = threading.Lock()


def install(*, target: TargetName = None, threads: Optional[int] = None) -> None:
    """Lets simdattn make what PyTorch's scaled_dot_product_attention computes on CPUs, wherever it is called from.

    It overrides the kernel, aten::_scaled_dot_product_flash_attention_for_cpu: functions that were imported by name, torch.jit,
    torch.compile, torch.export, vmap, autocast and nn.TransformerDecoder reach it. Gradients are by PyTorch's own backward. What PyTorch
    sends to another kernel stays there: dropout, the fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer, a mask that needs
    a gradient. float64 and empty tensors are given to the kernel that was there. calls() counts. For PyTorch with torch.library.get_kernel.

    target, threads: as in sdpa(). Called again, it takes these options.
    """
    global _installed
    if not hasattr(torch.library, 'get_kernel') or not hasattr(torch.ops.aten, _NAME):
        raise Error(Code.RANGE, f'install: PyTorch {torch.__version__} has no torch.library.get_kernel to keep its own kernel by; '
                                'replace_sdpa() needs none')
    with _lock:
        if _installed is None:
            _installed = _Installed(target, threads)
        else:
            _installed.target, _installed.threads = target, threads


def uninstall() -> None:
    """PyTorch's own kernel again."""
    global _installed
    with _lock:
        if _installed is not None:
            _installed.library._destroy()
            _installed = None


def calls() -> Calls:
    """How many calls install()'s kernel has made, and why it gave others to PyTorch's."""
    return Calls(0, {}) if _installed is None else Calls(_installed.taken, dict(_installed.others))


__all__ = ['Calls', 'calls', 'install', 'uninstall']
