"""PyTorch: scaled_dot_product_attention for inference on the CPU.

    import simdattn.torch
    out = simdattn.torch.sdpa(q, k, v, is_causal=True)

    with simdattn.torch.replace_sdpa():     # for code that calls torch.nn.functional's
        model(tokens)
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from concurrent.futures import Executor
from typing import Any, Callable, Iterator, Optional

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from ._abi import Code
from ._library import Error
from ._sdpa import attend, leading_shapes, masking
from ._targets import Target
from ._tensors import is_causal_bias, refuse_gradient

# ---- The operator --------------------------------------------------------------------------------------------------------
# What torch.jit.trace, torch.compile, torch.export and torch.func see in the place of ctypes. Written with the Library that
# PyTorch 1.13 has; 2.4 and later have torch.library.custom_op besides.

_operators = torch.library.Library('simdattn', 'DEF')
_operators.define('sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, int? offset, float? scale, bool enable_gqa, '
                  'str? target) -> Tensor')


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where the last dimension is not contiguous."""
    return x if x.dim() == 0 or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _on_cpu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor], offset: Optional[int],
            scale: Optional[float], enable_gqa: bool, target: Optional[str], pool: Optional[Executor] = None) -> torch.Tensor:
    mask = None if attn_mask is None else _contiguous(attn_mask)
    result: torch.Tensor = attend(_contiguous(query), _contiguous(key), _contiguous(value), mask, offset, scale, enable_gqa, None,
                                  target, pool)
    return result


def _shapes_alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor],
                  offset: Optional[int], scale: Optional[float], enable_gqa: bool, target: Optional[str]) -> torch.Tensor:
    full, _ = leading_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape), enable_gqa)
    return query.new_empty((*full, query.shape[-2], value.shape[-1]))


_operators.impl('sdpa', _on_cpu, 'CPU')
_operators.impl('sdpa', _shapes_alone, 'Meta')


# ---- The function --------------------------------------------------------------------------------------------------------


def _autocast_dtype() -> Optional[torch.dtype]:
    """The type that torch.autocast asks for on the CPU; None: it is off."""
    if hasattr(torch, 'get_autocast_dtype'):  # 2.4 and later
        return torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def _compiling() -> bool:
    compiler = getattr(torch, 'compiler', None)  # 2.1 and later
    return compiler is not None and hasattr(compiler, 'is_compiling') and compiler.is_compiling()


def _check(x: Any, argument: str, device: str) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f'{argument}: a torch.Tensor is wanted, not {type(x).__name__}; '
                        'simdattn.scaled_dot_product_attention takes every kind of array')
    refuse_gradient(x, argument)
    if x.device.type != device or x.layout is not torch.strided:
        raise Error(Code.DTYPE, f'{argument}: is on {x.device}, {x.layout}; a plain tensor on the CPU is wanted')


def _sdpa(public: Callable[..., Any], query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool,
          scale: Optional[float], enable_gqa: bool, target: Any, pool: Optional[Executor]) -> Any:
    """public: the function that was called, which subclasses of tensors are asked about."""
    tensors = (query, key, value) if attn_mask is None or is_causal_bias(attn_mask) else (query, key, value, attn_mask)
    if has_torch_function(tensors):
        own = {'target': target, 'pool': pool} if public is sdpa else {}  # others bring them along
        return handle_torch_function(public, tensors, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, **own)
    device = 'meta' if getattr(query, 'is_meta', False) else 'cpu'
    for x, argument in ((query, 'query'), (key, 'key'), (value, 'value')):
        _check(x, argument, device)
    mask, offset = masking(attn_mask, dropout_p, is_causal, (query, key))
    if mask is not None:
        _check(mask, 'attn_mask', device)
    dtype = _autocast_dtype()
    if dtype is not None:
        query, key, value, mask = (x.to(dtype) if x is not None and x.is_floating_point() and x.dtype is not torch.float64 else x
                                   for x in (query, key, value, mask))
    if device == 'meta':
        return _shapes_alone(query, key, value, mask, offset, scale, enable_gqa, target)
    if pool is not None:
        if _compiling():
            raise Error(Code.RANGE, 'pool: threads are no argument of an operator: call without pool where torch.compile looks')
        return _on_cpu(query, key, value, mask, offset, scale, enable_gqa, target, pool)
    name = target.name if isinstance(target, Target) else target
    return torch.ops.simdattn.sdpa(query, key, value, mask, offset, scale, enable_gqa, name)


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
         dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False, *,
         target: Optional[str] = None, pool: Optional[Executor] = None) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention for inference on the CPU.

    query: [..., L, E], key: [..., S, E], value: [..., S, Ev]; attn_mask: bool or float, broadcast to [..., L, S], or a CausalBias
    of torch.nn.attention.bias; result: [..., L, Ev].
    Error, and no silent way around, for tensors that need gradients (where gradients are on), for dropout, and for other devices
    and types than float32, bfloat16 and float16. pool: threads that share the work.
    Other subclasses of Tensor are asked by their __torch_function__. torch.autocast is followed. torch.jit.trace, torch.compile,
    torch.export and torch.func.vmap see one operator, torch.ops.simdattn.sdpa; with `pool` they see none, and are refused.
    """
    result: torch.Tensor = _sdpa(sdpa, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, target, pool)
    return result


# ---- In the place of PyTorch's -------------------------------------------------------------------------------------------

# What modules call that do not ask torch.nn.functional: the fast path of MultiheadAttention and TransformerEncoderLayer.
_FAST_PATHS = ('_native_multi_head_attention', '_transformer_encoder_layer_fwd')


def _warn_of_copies(name: str, theirs: Any) -> None:
    """Names the modules that have taken PyTorch's function with `from torch.nn.functional import ...`."""
    holders = sorted(module for module, found in list(sys.modules.items())
                     if module.split('.')[0] != 'torch' and getattr(found, '__dict__', {}).get(name) is theirs)
    if holders:
        warnings.warn(f'replace_sdpa() does not reach {", ".join(holders)}: imported by name, {name} is still PyTorch\'s there',
                      stacklevel=4)


def _warning_path(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs, updated=())
    def fast_path(*args: Any, **options: Any) -> Any:
        warnings.warn('replace_sdpa() does not reach the fast path of MultiheadAttention and TransformerEncoderLayer; '
                      'torch.backends.mha.set_fastpath_enabled(False) switches it off (PyTorch 2.1 and later)', stacklevel=2)
        return theirs(*args, **options)

    return fast_path


@contextlib.contextmanager
def replace_sdpa(*, target: Optional[str] = None, pool: Optional[Executor] = None) -> Iterator[None]:
    """Puts sdpa in the place of torch.nn.functional.scaled_dot_product_attention for the time of a `with` block.

    It reaches calls of torch.nn.functional.scaled_dot_product_attention, in all threads. It does not reach code that took the
    function with `from torch.nn.functional import ...` nor the fast path of MultiheadAttention and TransformerEncoderLayer: a
    warning says so.

    PyTorch 1.13 has _scaled_dot_product_attention instead, which nn.MultiheadAttention calls; it returns weights too, which are not
    computed here: need_weights must be False.
    """

    def new(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Any:
        return _sdpa(new, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, target, pool)

    def old(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, need_attn_weights: bool = False, is_causal: bool = False) -> Any:
        if need_attn_weights:
            raise Error(Code.RANGE, 'need_attn_weights: weights are not computed; call with need_weights=False')
        return sdpa(query, key, value, attn_mask, dropout_p, is_causal, target=target, pool=pool), None

    name, ours = (('scaled_dot_product_attention', new) if hasattr(functional, 'scaled_dot_product_attention')
                  else ('_scaled_dot_product_attention', old))
    _warn_of_copies(name, getattr(functional, name))
    replaced = [(functional, name, ours)]
    replaced += [(torch, path, _warning_path(getattr(torch, path))) for path in _FAST_PATHS if hasattr(torch, path)]
    originals = [getattr(module, place) for module, place, _ in replaced]
    for module, place, function in replaced:
        setattr(module, place, function)
    try:
        yield
    finally:
        for (module, place, _), original in zip(replaced, originals):
            setattr(module, place, original)
