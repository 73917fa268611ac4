"""simdattn in the place of the kernel that PyTorch's own scaled_dot_product_attention ends in on a CPU."""

from __future__ import annotations

import ctypes
import threading
import warnings
from typing import Any, Dict, NamedTuple, Optional

import torch

from ._abi import Code
from ._attention import threads_wanted
from ._library import Error
from ._run import _core
from ._scoring import boolean
from ._targets import arithmetic_name, pointer_of
from ._types import ArithmeticName, TargetName

_NAME = '_scaled_dot_product_flash_attention_for_cpu'
# libtorch's functions for the extension: those of its stable C interface, and some of C++.
_SHIMS = ('library_init_impl', 'library_impl', 'delete_library_object', 'delete_tensor_object', 'get_data_ptr', 'get_dim', 'get_sizes',
          'get_strides', 'get_dtype', 'empty_strided', 'copy_', 'grad_mode_is_enabled', 'new_uninitialized_tensor', 'dtype_float32', 'dtype_bfloat16', 'dtype_float16', 'dtype_float64',
          'dtype_bool')
_NAMES = {**{name: ('aoti_torch_' + name,) for name in _SHIMS}, 'theirs': ('aoti_torch_cpu_' + _NAME,),
          'get_num_threads': ('torch_get_num_threads',), 'delete_value': ('torch_delete_stable_ivalue', '_ZdlPv'),
          'formula': ('_ZN2at6native34_scaled_dot_product_attention_mathERKNS_6TensorES3_S3_RKSt8optionalIS1_EdbS7_S4_IdEb',),
          'any_tangents': ('_ZN5torch8autograd14ForwardADLevel13has_any_levelEv',),
          'any_modes': ('_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb',), 'requires_grad': ('_ZNK3c1010TensorImpl13requires_gradEv',),
          'what': ('torch_exception_get_what_without_backtrace',), 'check_fail': ('_ZN3c106detail14torchCheckFailEPKcS2_jS2_',)}
# `what` is of 2.13 and later; without one of the others the formula stays as it is.
_OPTIONAL = ('what', 'formula', 'any_tangents', 'any_modes', 'requires_grad', 'grad_mode_is_enabled', 'new_uninitialized_tensor')


class Calls(NamedTuple):
    """taken: calls that simdattn made since install(); others: those that it gave to PyTorch's, by their reasons."""

    taken: int
    others: Dict[str, int]


def _addresses() -> Dict[str, int]:
    """Where libtorch's functions are. Error where one is missing."""
    loaded = ctypes.CDLL(torch._C.__file__)  # a look-up goes through all libraries that it is linked with
    found: Dict[str, int] = {}
    for name, spellings in _NAMES.items():
        for spelling in spellings:
            if hasattr(loaded, spelling):
                found[name] = ctypes.cast(getattr(loaded, spelling), ctypes.c_void_p).value or 0
                break
        else:
            if name not in _OPTIONAL:
                raise Error(Code.RANGE, f'install: PyTorch {torch.__version__} has no {spellings[0]}, which 2.10 and later have; '
                                        'replace_sdpa() needs none')
    return found


def _let_it_warn_once() -> None:
    """PyTorch says once in a process that a kernel is replaced: here, where nobody hears it."""
    library = torch.library.Library('aten', 'IMPL', 'CPU')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        library.impl(_NAME, lambda *given, **named: None)
    library._destroy()


_installed = False
_lock = threading.Lock()


def install(*, target: TargetName = None, threads: Optional[int] = None, arithmetic: ArithmeticName = 'auto',
            always: bool = False) -> None:
    """Lets simdattn make what PyTorch's scaled_dot_product_attention computes on CPUs, wherever it is called from.

    It overrides the kernels that the function ends in, aten::_scaled_dot_product_flash_attention_for_cpu and, for other
    forms such as values of another dimension, aten::_scaled_dot_product_attention_math. Functions that were imported by
    name, torch.jit, torch.compile, torch.export, vmap, autocast and nn.TransformerDecoder reach them. Gradients are by
    PyTorch's own backward. PyTorch's kernels get gradients of other forms, dropout, float64, empty tensors, and float32
    of one row or few scores, for which they are faster, unless `always`: then their bits are simdattn's too. calls()
    counts. The fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer is not reached. For PyTorch 2.10 and
    later.

    target, threads, arithmetic: as in sdpa(). Called again, it takes these options.
    """
    global _installed
    kind: Any = arithmetic_name(arithmetic)
    options = pointer_of(target), threads_wanted(threads) or 0, -1 if kind == 'auto' else int(kind), boolean(always, 'always')
    if _core is None:
        raise Error(Code.RANGE, 'install: needs the extension module of this package, which this Python does not load; replace_sdpa() '
                                'needs none')
    with _lock:
        found = _addresses()
        if not _installed:
            _let_it_warn_once()
        _core.install_kernel(found, *options)
        _installed = True


def uninstall() -> None:
    """PyTorch's own kernel again."""
    global _installed
    with _lock:
        if _installed:
            _core.uninstall_kernel()
            _installed = False


def calls() -> Calls:
    """How many calls install()'s kernel has made, and why it gave others to PyTorch's."""
    return Calls(*_core.kernel_calls()) if _installed else Calls(0, {})


__all__ = ['Calls', 'calls', 'install', 'uninstall']
