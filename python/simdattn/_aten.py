"""simdattn in the place of the kernel that PyTorch's own scaled_dot_product_attention ends in on a CPU."""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections import Counter
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch

from ._abi import Code
from ._attention import Problem, threads_wanted
from ._library import Error
from ._run import Templates, replay
from ._scoring import boolean
from ._targets import arithmetic_name, auto_word, pointer_of
from ._types import ArithmeticName, TargetName

_NAME = '_scaled_dot_product_flash_attention_for_cpu'
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Products of float32 with so few scores for each head go to PyTorch's kernel, unless heads share keys. It makes them by the BLAS without
# the way through Python, so it takes 0.6 - 0.9 of the time for them. Narrower types are slower there at every size.
_SMALL = 2500
_FASTER = "float32, few scores: PyTorch's kernel is faster"


class Calls(NamedTuple):
    """taken: calls that simdattn made since install(); others: those that it gave to PyTorch's kernel, by their reasons."""

    taken: int
    others: Dict[str, int]


class _Options(NamedTuple):
    """Of install()."""

    target: TargetName
    threads: Optional[int]
    arithmetic: ArithmeticName
    always: bool


class _Installed:
    """The library of overrides, and what its calls came to."""

    def __init__(self, options: _Options) -> None:
        self.options = options
        self.taken, self.others = 0, Counter[str]()
        self.templates: Templates = {}
        theirs = torch.library.get_kernel('aten::' + _NAME, 'CPU')
        self.call_theirs: Callable[..., Tuple[torch.Tensor, torch.Tensor]] = functools.partial(
            theirs.call_boxed, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
        self.library = torch.library.Library('aten', 'IMPL', 'CPU')
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # that a kernel of PyTorch's is replaced
            self.library.impl(_NAME, self.kernel)

    def kernel(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
               attn_mask: Optional[torch.Tensor] = None, scale: Optional[float] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        target, threads, arithmetic, always = self.options
        if not always and query.dtype is torch.float32 and query.size(1) == key.size(1) and query.size(2) * key.size(2) <= _SMALL:
            self.others[_FASTER] += 1
            return self.call_theirs(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, target, threads,
                     auto_word() if arithmetic == 'auto' else arithmetic)
        found = replay(self.templates, arguments)
        if type(found) is tuple:
            self.taken += 1
            return found[0], _as_promised(found[1])
        reason = _reason_against(query, key, value, dropout_p)
        if reason is None:
            try:
                result = _attend(query, key, value, is_causal, attn_mask, scale, self.options,
                                 (self.templates, arguments) if found is True else None)
                self.taken += 1
                return result
            except Error as e:
                reason = e.detail
        self.others[reason] += 1
        return self.call_theirs(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)


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
            scale: Optional[float], how: _Options, known: Optional[Tuple[Templates, Tuple[Any, ...]]]) -> Tuple[torch.Tensor, torch.Tensor]:
    """The result, with the strides that PyTorch's own kernel promises to torch.compile, and the log-sum-exp that its backward reads.

    known: where replay() finds the call the next time, and its arguments.
    """
    # Autograd stands above a kernel: it knows of the result, and these tensors are its inputs' memory alone.
    tensors = [x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in (query, key, value)]
    mask = None if attn_mask is None else attn_mask.detach()
    if mask is not None and mask.shape[-1] > 1 and mask.stride(-1) != 1:
        mask = mask.contiguous()
    hides = mask is not None and mask.dtype == torch.bool
    batch, heads, rows, _ = query.shape
    out = torch.empty_like(query) if query.shape[-1] == value.shape[-1] else query.new_empty((*query.shape[:3], value.shape[-1]))
    promised = None if out.stride(-1) == 1 or out.shape[-1] == 1 else out
    if promised is not None:
        out, known = torch.empty(out.shape, dtype=out.dtype), None
    lse = torch.empty((batch, heads, rows))
    problem = Problem(*tensors, out=out, lse=lse, scale=scale, causal=is_causal or None, offset=0 if is_causal else None,
                      mask=mask if hides else None, bias=None if hides else mask, arithmetic=how.arithmetic, target=how.target)
    problem.run(how.target, how.threads)
    if query.requires_grad or key.requires_grad or value.requires_grad:
        # The backward takes exp(score - lse): of a row that sees no key it would be NaN, and is 0 like this.
        lse.masked_fill_(lse == -math.inf, 0.0)
    elif known is not None:
        problem.out, problem.lse = out, lse
        problem.makes = {'out': functools.partial(torch.empty_strided, out.shape, out.stride(), dtype=out.dtype),
                         'lse': functools.partial(torch.empty, lse.shape)}
        problem.remember(*known, ['q', 'k', 'v', 'mask' if hides else 'bias', *_OTHERS], how.target)
    return out if promised is None else promised.copy_(out), _as_promised(lse)


def _as_promised(lse: torch.Tensor) -> torch.Tensor:
    """The log-sum-exp with the strides that torch.compile expects: [batch, rows, heads] in memory."""
    _, heads, rows = lse.shape
    return lse if heads == 1 or rows == 1 else lse.transpose(1, 2).contiguous().transpose(1, 2)


# The arguments of the tuple in kernel() behind the tensors; attention() has none of these names but the one of threads.
_OTHERS = ('', '', '', 'target', 'threads', '')


_installed: Optional[_Installed] = None
_lock = threading.Lock()


def install(*, target: TargetName = None, threads: Optional[int] = None, arithmetic: ArithmeticName = 'auto',
            always: bool = False) -> None:
    """Lets simdattn make what PyTorch's scaled_dot_product_attention computes on CPUs, wherever it is called from.

    It overrides the kernel, aten::_scaled_dot_product_flash_attention_for_cpu: functions that were imported by name, torch.jit,
    torch.compile, torch.export, vmap, autocast and nn.TransformerDecoder reach it. Gradients are by PyTorch's own backward. What PyTorch
    sends to another kernel stays there: dropout, the fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer, a mask that needs
    a gradient. The kernel that was there gets float64, empty tensors, and few scores of float32, for which it is faster, unless `always`: then
    their bits are simdattn's too. calls() counts. For PyTorch with torch.library.get_kernel.

    target, threads, arithmetic: as in sdpa(). Called again, it takes these options.
    """
    global _installed
    if not hasattr(torch.library, 'get_kernel') or not hasattr(torch.ops.aten, _NAME):
        raise Error(Code.RANGE, f'install: PyTorch {torch.__version__} has no torch.library.get_kernel to keep its own kernel by; '
                                'replace_sdpa() needs none')
    options = _Options(target, threads_wanted(threads), arithmetic_name(arithmetic), boolean(always, 'always'))
    pointer_of(target)  # Error for a name that is no target
    with _lock:
        if _installed is None:
            _installed = _Installed(options)
        else:
            _installed.options = options


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
