"""Tensors of PyTorch, which is not imported here: where their numbers are, and which are more than their memory."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Callable, Iterable, NamedTuple, Optional, Tuple

from ._abi import Code
from ._library import Error


def is_torch(x: Any) -> bool:
    torch = sys.modules.get('torch')
    return torch is not None and isinstance(x, torch.Tensor)


def refuse_gradient(x: Any, argument: str) -> None:
    """Error for what a gradient is asked of, backward or forward; a result without one would be silently wrong."""
    if x.requires_grad and sys.modules['torch'].is_grad_enabled():
        raise Error(Code.RANGE, f'{argument}: requires a gradient; this is for inference: use torch.no_grad() or detach()')
    forward = sys.modules.get('torch.autograd.forward_ad')
    if forward is not None and forward._current_level >= 0 and forward.unpack_dual(x).tangent is not None:
        raise Error(Code.RANGE, f'{argument}: has a tangent; this is for inference, and forward-mode differentiation '
                                '(torch.func.jvp, jacfwd) needs its derivative')


@lru_cache(maxsize=None)
def _overrides(kind: type) -> Tuple[bool, bool]:
    """Whether a class of tensors has a __torch_function__ and a __torch_dispatch__ of its own."""
    torch = sys.modules['torch']
    function = getattr(kind.__torch_function__, '__func__', kind.__torch_function__)  # type: ignore[attr-defined]
    usual = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
    return function not in usual, kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def _refuse_meaning(x: Any, argument: str) -> None:
    """Subclasses whose numbers are not their memory alone: masks without memory, fake, nested and distributed
    tensors."""
    function, dispatch = _overrides(type(x))
    # Where PyTorch has switched __torch_function__ off, the class itself has asked for the memory.
    if dispatch or is_causal_bias(x) or function and sys.modules['torch']._C._is_torch_function_enabled():
        name = '__torch_dispatch__' if dispatch else '__torch_function__'
        raise Error(Code.DTYPE, f'{argument}: is a {type(x).__name__}, which says by {name} what it means; its memory is not read')


def refuse_layout(x: Any, argument: str, device: str = 'cpu') -> None:
    """Error for tensors without one plain memory on the device."""
    kind = 'nested' if x.is_nested else 'quantized' if x.is_quantized else x.layout
    if x.device.type != device or kind is not sys.modules['torch'].strided:
        cure = {'nested': '; torch.nested.to_padded_tensor(x, 0) is one', 'quantized': '; x.dequantize() is one'}.get(kind, '')
        raise Error(Code.DTYPE, f'{argument}: is on {x.device}, {kind}; a plain tensor on the CPU is wanted{cure}')


@lru_cache(maxsize=None)
def _proxy_mode() -> Optional[Tuple[Any, Any]]:
    """How PyTorch 2.1 and later tell whether make_fx records."""
    internals = sys.modules['torch']._C
    get, keys = getattr(internals, '_get_dispatch_mode', None), getattr(internals, '_TorchDispatchModeKey', None)
    return None if get is None or keys is None else (get, keys.PROXY)


def _proxies_record() -> bool:
    """Whether make_fx records what is called here: memory of its proxies is that of the example."""
    found = _proxy_mode()
    return found is not None and found[0](found[1]) is not None


def is_plain() -> Callable[[], bool]:
    """A function that says whether PyTorch neither records, transforms nor differentiates forward what this thread
    calls."""
    torch = sys.modules['torch']
    internals = torch._C
    tracing = internals._get_tracing_state
    names = ('_len_torch_dispatch_stack', '_len_torch_function_stack', '_get_torch_dispatch_mode')  # the last: of 1.13
    dispatch, function = [getattr(internals, name) for name in names if hasattr(internals, name)][:2]
    forward = torch.autograd.forward_ad

    def plain() -> bool:
        return tracing() is None and forward._current_level < 0 and not dispatch() and not function()

    return plain


class Memory(NamedTuple):
    """Where the numbers of a plain tensor are."""

    dtype: Any
    pointer: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]


def memory_of(x: Any, argument: str) -> Memory:
    """As its __dlpack__, in a tenth of the time, and with bool in old versions too. Error for what is no plain
    memory."""
    torch = sys.modules['torch']
    if type(x) is not torch.Tensor:
        _refuse_meaning(x, argument)
    refuse_gradient(x, argument)
    refuse_layout(x, argument)
    if x.is_neg():
        raise Error(Code.DTYPE, f'{argument}: is a view of the negative of its memory; x.resolve_neg() has memory of its own')
    tracer = 'torch.jit.trace' if torch._C._get_tracing_state() is not None else 'make_fx' if _proxies_record() else None
    if tracer is not None:
        raise Error(Code.RANGE, f'{argument}: {tracer} does not see this function; it sees those of simdattn.torch: sdpa, '
                                'attention, rope, attend and append')
    try:
        return Memory(x.dtype, x.data_ptr(), tuple(x.shape), x.stride())
    except RuntimeError as e:  # inside of vmap and other transformations
        raise Error(Code.DTYPE, f'{argument}: has no memory of its own ({str(e).splitlines()[0]})') from e


@lru_cache(maxsize=None)
def _raise_version() -> Callable[[Any], Any]:
    """PyTorch's function for it; without one (before 2.0) a write of no element does it, in ten times as long."""
    graph = sys.modules['torch'].autograd.graph
    return getattr(graph, 'increment_version', lambda x: x.detach().narrow(0, 0, 0).zero_())


def mark_written(arrays: Iterable[Any]) -> None:
    """Tells autograd that these were written, as PyTorch's own functions do: a backward that needs what they held is
    refused."""
    for x in arrays:
        if is_torch(x) and not x.is_inference():
            _raise_version()(x)


# ---- torch.nn.attention.bias.CausalBias (PyTorch 2.3 and later) ------------------------------------------------------


def is_causal_bias(x: Any) -> bool:
    biases = sys.modules.get('torch.nn.attention.bias')
    return biases is not None and isinstance(x, biases.CausalBias)


def causal_offset(x: Any, rows: int, keys: int, argument: str) -> Optional[int]:
    """The position of row 0 on the axis of keys that a CausalBias means; None if x is none."""
    if not is_causal_bias(x):
        return None
    if (x.seq_len_q, x.seq_len_kv) != (rows, keys):
        raise Error(Code.SHAPE, f'{argument}: is a CausalBias of {x.seq_len_q} rows and {x.seq_len_kv} keys; here are {rows} and {keys}')
    return keys - rows if x.variant.name == 'LOWER_RIGHT' else 0
