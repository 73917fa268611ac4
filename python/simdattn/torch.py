"""PyTorch: scaled_dot_product_attention for inference on the CPU, and operators that torch.compile(fullgraph=True)
sees.

    import simdattn.torch
    out = simdattn.torch.sdpa(q, k, v, is_causal=True)

    simdattn.torch.install()                # for all that reaches PyTorch's kernel, with gradients
    with simdattn.torch.replace_sdpa():     # for code that calls torch.nn.functional's
        model(tokens)
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from concurrent.futures import Executor
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple, overload

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

try:
    from torch.nn.attention import bias as biases
except ImportError:  # PyTorch before 2.3
    biases = None  # type: ignore[assignment]

from ._abi import Arithmetic, Code
from ._aten import Calls, calls, install, uninstall
from ._library import Error
from ._operators import append, attend, attention, rope
from ._operators import library as _library
from ._attention import pool_wanted, threads_wanted
from ._run import Templates, prepare_torch, replay
from ._scoring import boolean
from ._sdpa import How, leading_shapes, masking
from ._sdpa import attend as attend_with
from ._targets import Target, arithmetic_name, ask_for_amx, pointer_of, word_of
from ._tensors import is_causal_bias, refuse_gradient, refuse_layout
from ._types import ArithmeticName, TargetName

prepare_torch()
ask_for_amx()  # PyTorch does so too, before its first product of bfloat16

# ---- The operator ----------------------------------------------------------------------------------------------------
# What torch.jit.trace, torch.compile, torch.export and torch.func see in the place of ctypes.

_ARGUMENTS = ('(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, int? offset, float? scale, bool enable_gqa, '
              'str? target, str? arithmetic=None)')
_library.define(f'sdpa{_ARGUMENTS} -> Tensor')
_library.define(f'sdpa_with_lse{_ARGUMENTS} -> (Tensor, Tensor)')


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy where the last dimension is not contiguous."""
    return x if x.dim() == 0 or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _on_cpu(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor], offset: Optional[int],
            scale: Optional[float], enable_gqa: bool, target: TargetName, arithmetic: Optional[ArithmeticName] = None,
            how: Optional[How] = None) -> Any:
    how = How(target, arithmetic=arithmetic or 'f32') if how is None else how
    mask = None if attn_mask is None else _contiguous(attn_mask)
    return attend_with(_contiguous(query), _contiguous(key), _contiguous(value), mask, offset, scale, enable_gqa, None, how)


def _on_cpu_with_lse(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor], offset: Optional[int],
                     scale: Optional[float], enable_gqa: bool, target: TargetName, arithmetic: Optional[ArithmeticName] = None) -> Any:
    how = How(target, return_lse=True, arithmetic=arithmetic or 'f32')
    return _on_cpu(query, key, value, attn_mask, offset, scale, enable_gqa, target, arithmetic, how)


def _shapes_alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor],
                  offset: Optional[int], scale: Optional[float], enable_gqa: bool, target: Optional[str],
                  arithmetic: Optional[str] = None) -> torch.Tensor:
    full, _ = leading_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape), enable_gqa)
    return query.new_empty((*full, query.shape[-2], value.shape[-1]))


def _shapes_with_lse(query: torch.Tensor, *rest: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    out = _shapes_alone(query, *rest)
    return out, query.new_empty(out.shape[:-1], dtype=torch.float32)


def _no_derivative(operator: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   attn_mask: Optional[torch.Tensor], *rest: Any) -> Any:
    """Where the operator is called itself, by transformations of torch.func too, a derivative would be lost in
    silence."""
    for x, argument in ((query, 'query'), (key, 'key'), (value, 'value'), (attn_mask, 'attn_mask')):
        if x is not None:
            refuse_gradient(x, argument)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(query, key, value, attn_mask, *rest)


for _name, _kernel, _shapes in (('sdpa', _on_cpu, _shapes_alone), ('sdpa_with_lse', _on_cpu_with_lse, _shapes_with_lse)):
    _library.impl(_name, _kernel, 'CPU')
    _library.impl(_name, _shapes, 'Meta')
    if hasattr(torch._C._AutoDispatchBelowAutograd, '__enter__'):  # PyTorch 2.1 and later
        _library.impl(_name, functools.partial(_no_derivative, getattr(torch.ops.simdattn, _name)), 'Autograd')


# ---- The function ----------------------------------------------------------------------------------------------------


if hasattr(torch, 'get_autocast_dtype'):  # 2.4 and later
    _autocast_enabled = functools.partial(torch.is_autocast_enabled, 'cpu')
    _autocast_type = functools.partial(torch.get_autocast_dtype, 'cpu')
else:
    _autocast_enabled, _autocast_type = torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype


def _autocast_dtype() -> Optional[torch.dtype]:
    """The type that torch.autocast asks for on the CPU; None: it is off."""
    return _autocast_type() if _autocast_enabled() else None


# Whether torch.compile or torch.export looks: 2.1 and later.
_compiling: Callable[[], bool] = getattr(getattr(torch, 'compiler', None), 'is_compiling', lambda: False)


def _check(x: Any, argument: str, device: str) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f'{argument}: a torch.Tensor is wanted, not {type(x).__name__}; '
                        'simdattn.scaled_dot_product_attention takes every kind of array')
    refuse_gradient(x, argument)
    refuse_layout(x, argument, device)


def _sdpa(public: Callable[..., Any], query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool,
          scale: Optional[float], enable_gqa: bool, target: Any, threads: Optional[int], pool: Optional[Executor],
          arithmetic: ArithmeticName, return_lse: bool = False) -> Any:
    """public: the function that was called, which subclasses of tensors are asked about."""
    arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, None, target, threads, return_lse,
                 word_of(arithmetic))
    compiling = _compiling()
    found = None if compiling or pool is not None or _autocast_enabled() else replay(_TEMPLATES, arguments)
    if found is not None and type(found) is not bool:
        return found
    tensors = (query, key, value) if attn_mask is None or is_causal_bias(attn_mask) else (query, key, value, attn_mask)
    if has_torch_function(tensors):
        own: Dict[str, Any] = {}
        if public is sdpa:
            own = {'target': target, 'threads': threads, 'pool': pool, 'arithmetic': arithmetic, 'return_lse': return_lse}  # others bring them
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
        shapes = _shapes_with_lse if return_lse else _shapes_alone
        return shapes(query, key, value, mask, offset, scale, enable_gqa, target, None)
    if compiling and (pool is not None or threads is not None):
        raise Error(Code.RANGE, 'pool, threads: are no arguments of an operator: call without them where torch.compile looks')
    if pool is not None or threads is not None or found is True:  # plain tensors: nobody looks for the operator
        how = How(target, threads_wanted(threads), pool, (_TEMPLATES, arguments) if found is True else None,
                  boolean(return_lse, 'return_lse'), arithmetic)
        return _on_cpu(query, key, value, mask, offset, scale, enable_gqa, target, arithmetic, how)
    name = target.name if isinstance(target, Target) else target
    kind = arithmetic.name.lower() if isinstance(arithmetic, Arithmetic) else arithmetic
    operator = torch.ops.simdattn.sdpa_with_lse if boolean(return_lse, 'return_lse') else torch.ops.simdattn.sdpa
    return operator(query, key, value, mask, offset, scale, enable_gqa, name, kind)


_TEMPLATES: Templates = {}


@overload
def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = ...,
         dropout_p: float = ..., is_causal: bool = ..., scale: Optional[float] = ..., enable_gqa: bool = ..., *,
         return_lse: Literal[False] = ..., arithmetic: ArithmeticName = ..., target: TargetName = ..., threads: Optional[int] = ...,
         pool: Optional[Executor] = ...) -> torch.Tensor: ...


@overload
def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = ...,
         dropout_p: float = ..., is_causal: bool = ..., scale: Optional[float] = ..., enable_gqa: bool = ..., *,
         return_lse: Literal[True], arithmetic: ArithmeticName = ..., target: TargetName = ..., threads: Optional[int] = ...,
         pool: Optional[Executor] = ...) -> Tuple[torch.Tensor, torch.Tensor]: ...


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
         dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False, *,
         return_lse: bool = False, arithmetic: ArithmeticName = 'auto', target: TargetName = None, threads: Optional[int] = None,
         pool: Optional[Executor] = None) -> Any:
    """torch.nn.functional.scaled_dot_product_attention for inference on the CPU.

    query: [..., L, E], key: [..., S, E], value: [..., S, Ev]; attn_mask: bool or float, broadcast to [..., L, S], or a
        CausalBias of torch.nn.attention.bias; result: [..., L, Ev]. return_lse: (result, lse), lse float32 [..., L],
        the log-sum-exp. Error, and no silent way around, for tensors that need gradients (where gradients are on), for
        dropout, and for other devices and types than float32, bfloat16 and float16. threads: as many share a large
        call, at most; default: torch.get_num_threads().
    pool: threads that share the work instead. arithmetic: as in attention(), but what is fastest here by default:
        bfloat16 is multiplied as such where the CPU is faster then.
    Other subclasses of Tensor are asked by their __torch_function__. torch.autocast is followed. torch.jit.trace,
    torch.compile, torch.export and torch.func.vmap see one operator, torch.ops.simdattn.sdpa; with `pool` or `threads`
    they see none, and are refused.
    """
    return _sdpa(sdpa, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, target, threads, pool, arithmetic,
                 return_lse)


# ---- In the place of PyTorch's ---------------------------------------------------------------------------------------

# What modules call that do not ask torch.nn.functional: the fast path of MultiheadAttention and
# TransformerEncoderLayer.
_FAST_PATHS = ('_native_multi_head_attention', '_transformer_encoder_layer_fwd')


def _warn_of_copies(name: str, theirs: Any) -> None:
    """Names the modules that have taken PyTorch's function with `from torch.nn.functional import ...`."""
    holders = sorted(module for module, found in list(sys.modules.items())
                     if module.split('.')[0] != 'torch' and getattr(found, '__dict__', {}).get(name) is theirs)
    if holders:
        warnings.warn(f'replace_sdpa() does not reach {", ".join(holders)}: imported by name, {name} is still PyTorch\'s there',
                      stacklevel=5)


def _warning_path(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs, updated=())
    def fast_path(*args: Any, **options: Any) -> Any:
        warnings.warn('replace_sdpa() does not reach the fast path of MultiheadAttention and TransformerEncoderLayer; '
                      'torch.backends.mha.set_fastpath_enabled(False) switches it off (PyTorch 2.1 and later)', stacklevel=2)
        return theirs(*args, **options)

    return fast_path


class _Replaced:
    """What is replaced in PyTorch, by how many blocks: blocks of several threads begin and end in any order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: List[replace_sdpa] = []  # the newest last; its options count
        self.restore: List[Callable[[], None]] = []

    def put(self, place: Any, name: str, function: Any) -> None:
        original = vars(place)[name]
        setattr(place, name, function)

        def restore() -> None:
            if vars(place)[name] is function:  # unless somebody has wrapped it since
                setattr(place, name, original)

        self.restore.append(restore)

    def enter(self, block: replace_sdpa) -> None:
        with self.lock:
            self.blocks.append(block)
            if len(self.blocks) == 1:
                _replace_all(self)

    def leave(self, block: replace_sdpa) -> None:
        with self.lock:
            self.blocks.remove(block)
            while not self.blocks and self.restore:
                self.restore.pop()()

    def options(self) -> Optional[Tuple[Any, Any, Any, Any]]:
        """Target, threads, pool and arithmetic of the newest block; None: all have ended, and who wrapped the function
        calls it still."""
        blocks = list(self.blocks)
        return (blocks[-1].target, blocks[-1].threads, blocks[-1].pool, blocks[-1].arithmetic) if blocks else None


_replaced = _Replaced()


def _replace_all(replaced: _Replaced) -> None:
    name = 'scaled_dot_product_attention' if hasattr(functional, 'scaled_dot_product_attention') else '_scaled_dot_product_attention'
    theirs = getattr(functional, name)

    def new(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> Any:
        options = replaced.options()
        if options is None:
            more = {'enable_gqa': True} if enable_gqa else {}  # PyTorch 2.5 and later
            return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        return _sdpa(new, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, *options)

    def old(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, need_attn_weights: bool = False, is_causal: bool = False) -> Any:
        options = replaced.options()
        if options is None:
            return theirs(query, key, value, attn_mask, dropout_p, need_attn_weights, is_causal)
        if need_attn_weights:
            raise Error(Code.RANGE, 'need_attn_weights: weights are not computed; call with need_weights=False')
        return _sdpa(sdpa, query, key, value, attn_mask, dropout_p, is_causal, None, False, *options), None

    ours = new if name == 'scaled_dot_product_attention' else old
    _warn_of_copies(name, theirs)
    replaced.put(functional, name, ours)
    for path in _FAST_PATHS:
        if hasattr(torch, path):
            replaced.put(torch, path, _warning_path(getattr(torch, path)))
    if biases is not None:
        replaced.put(biases.CausalBias, '__torch_function__', _bias_that_knows(theirs, ours))


def _bias_that_knows(theirs: Any, ours: Callable[..., Any]) -> Any:
    """CausalBias knows the function by what torch.nn.functional holds, and has no memory. Where PyTorch's own was
    imported by name, it would be read as a mask of garbage: there too, the call is ours."""
    usual = biases.CausalBias.__torch_function__.__func__

    def asked(cls: type, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        if func is theirs:
            return ours(*args, **(kwargs or {}))
        return usual(cls, func, types, args, kwargs)

    return classmethod(asked)


class replace_sdpa(contextlib.ContextDecorator):
    """Puts sdpa in the place of torch.nn.functional.scaled_dot_product_attention for the time of a `with` block.

    It reaches calls of torch.nn.functional.scaled_dot_product_attention, in all threads. Blocks may overlap: PyTorch's
    function comes back when the last of them ends, and the options of the one that began last count. It does not reach
    code that took the function with `from torch.nn.functional import ...` nor the fast path of MultiheadAttention and
    TransformerEncoderLayer: a warning says so.

    PyTorch 1.13 has _scaled_dot_product_attention instead, which nn.MultiheadAttention calls; it returns weights too,
    which are not computed here: need_weights must be False.
    """

    def __init__(self, *, target: TargetName = None, threads: Optional[int] = None, pool: Optional[Executor] = None,
                 arithmetic: ArithmeticName = 'auto') -> None:
        self._used = True  # it warns of what was never used, and not of what was refused
        pointer_of(target)
        self.target, self.threads, self.pool = target, threads_wanted(threads), pool_wanted(pool)
        self.arithmetic = arithmetic_name(arithmetic)
        self._used = False

    def __enter__(self) -> None:
        self._used = True
        _replaced.enter(self)

    def __exit__(self, *error: Any) -> None:
        _replaced.leave(self)

    def __call__(self, function: Any) -> Any:  # as a decorator
        self._used = True
        return super().__call__(function)

    def __del__(self) -> None:
        if not getattr(self, '_used', True):
            warnings.warn('replace_sdpa() alone replaces nothing: write `with simdattn.torch.replace_sdpa():`', stacklevel=2)


__all__ = ['Calls', 'append', 'attend', 'attention', 'calls', 'install', 'replace_sdpa', 'rope', 'sdpa', 'uninstall']
