"""simdattn in the place of the kernel that PyTorch's own scaled_dot_product_attention ends in on a CPU."""

from __future__ import annotations

import ctypes
import threading
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
_NAMES = {**{name: ('aoti_torch_' + name,) for name in _SHIMS}, 'place': ('_ZN2at6native22flash_attention_kernelE',),
          'get_num_threads': ('torch_get_num_threads',), 'delete_value': ('torch_delete_stable_ivalue', '_ZdlPv'),
          'formula': ('_ZN2at6native34_scaled_dot_product_attention_mathERKNS_6TensorES3_S3_RKSt8optionalIS1_EdbS7_S4_IdEb',),
          'any_tangents': ('_ZN5torch8autograd14ForwardADLevel13has_any_levelEv',),
          'any_modes': ('_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb',), 'requires_grad': ('_ZNK3c1010TensorImpl13requires_gradEv',)}
# Without one of these the formula stays as it is.
_OPTIONAL = ('formula', 'any_tangents', 'any_modes', 'requires_grad', 'grad_mode_is_enabled', 'new_uninitialized_tensor')
# A variable that points to PyTorch's kernel for an instruction set. The name has the types of the kernel's arguments.
_KERNEL = ('_ZN2at6native12DispatchStubIPFvRKNS_6TensorES4_S4_S4_S4_dbSt8optionalIS2_ES5_IdEE'
           'NS0_44flash_attention_kernel_DECLARE_DISPATCH_typeEE{}E')


class Calls(NamedTuple):
    """taken: calls that simdattn made since install(); others: those that it gave to PyTorch's, by their reasons."""

    taken: int
    others: Dict[str, int]


def _addresses() -> Dict[str, int]:
    """Where libtorch's functions are. Error where one is missing."""
    loaded = ctypes.CDLL(torch._C.__file__)  # a look-up goes through all libraries that it is linked with
    found: Dict[str, int] = {}

    def find(name: str, *spellings: str) -> None:
        there = [spelling for spelling in spellings if hasattr(loaded, spelling)]
        if there:
            found[name] = ctypes.cast(getattr(loaded, there[0]), ctypes.c_void_p).value or 0
        elif name not in _OPTIONAL:
            raise Error(Code.RANGE, f'install: PyTorch {torch.__version__} has no {spellings[0]}, which 2.10 and later have; '
                                    'replace_sdpa() needs none')

    for name, spellings in _NAMES.items():
        find(name, *spellings)
    find('theirs', *(_KERNEL.format(f'{len(kind)}{kind}') for kind in (torch.backends.cpu.get_cpu_capability(), 'DEFAULT')))
    found['theirs'] = ctypes.c_void_p.from_address(found['theirs']).value or 0
    return found


def _try(found: Dict[str, int]) -> None:
    """Error, unless PyTorch calls what is put in the place of its kernel."""
    x = torch.zeros(1, 1, 1, 1, dtype=torch.float32, device='cpu')
    _core.install_kernel(found, 0, 0, 0, True)
    try:
        getattr(torch.ops.aten, _NAME)(x, x, x)
        reached = _core.kernel_calls()[0] == 1
    finally:
        _core.uninstall_kernel()
    if not reached or not found['theirs']:
        raise Error(Code.RANGE, f'install: PyTorch {torch.__version__} does not call its kernel as 2.10 - 2.14 do; replace_sdpa() '
                                'needs none')


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
            _try(found)
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
