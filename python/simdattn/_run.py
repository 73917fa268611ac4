"""Runs calls of the library: by the extension module where this Python can load it, else by ctypes.

The extension remembers calls: replay() makes one whose arguments came before in a few microseconds, without the checks
and structs of the long way, which are the same for equal shapes, strides, types and options. The library checks each
call in both ways.
"""

from __future__ import annotations

import ctypes
import os
import sys
from enum import IntEnum
from functools import lru_cache
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _abi
from ._abi import Code
from ._arrays import BF16
from ._library import Record, check, initial, library
from ._targets import execution, pointer_of
from ._tensors import is_plain, mark_written

try:
    from . import _core  # type: ignore[attr-defined,unused-ignore]
except ImportError:  # a Python without the stable ABI: PyPy, free-threaded builds
    _core = None


class Function(IntEnum):
    ATTENTION = 0
    ROPE = 1
    SOFTMAX = 2
    APPEND = 3


# ---- The structs of a call, one behind the other ---------------------------------------------------------------------


class RopeCall(ctypes.Structure):
    _fields_ = [('x', _abi.ConstView4), ('cos', _abi.ConstView2), ('sin', _abi.ConstView2), ('positions', _abi.Positions),
                ('out', _abi.View4), ('options', _abi.RopeOptions)]


class SoftmaxCall(ctypes.Structure):
    _fields_ = [('x', _abi.ConstView4), ('out', _abi.View4), ('scoring', _abi.Scoring), ('lse', _abi.View3)]


class AppendCall(ctypes.Structure):
    _fields_ = [('k', _abi.ConstView4), ('v', _abi.ConstView4), ('keys', _abi.Kv), ('values', _abi.Kv), ('checked', _abi.AppendOptions),
                ('of_keys', _abi.AppendOptions), ('of_values', _abi.AppendOptions)]


for _call in (RopeCall, SoftmaxCall, AppendCall):
    _abi.INIT[_call] = {name: _abi.INIT[kind] for name, kind in _call._fields_ if kind in _abi.INIT}  # type: ignore[misc,index]


class Outcome(NamedTuple):
    """As the library's Status."""

    code: int
    detail: bytes


def _parts(record: Record) -> Tuple[int, ...]:
    """Where the arguments of a function lie. Only `lse` may be absent."""
    if record.kind is _abi.AttentionProblem:
        return (0,)
    parts = [getattr(record.kind, name).offset for name, _ in record.kind._fields_]  # type: ignore[misc]
    if record.kind is SoftmaxCall and not record.get('lse.data'):
        parts[-1] = -1
    return tuple(parts)


def threads_of_process() -> int:
    """What takes part in a large call where no framework says how many: SIMDATTN_NUM_THREADS, or the CPUs of this
    process."""
    named = os.environ.get('SIMDATTN_NUM_THREADS', '')
    if named.isdigit() and int(named):
        return min(int(named), 256)
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def run(function: Function, record: Record, target: Any, threads: Optional[int] = None, tensor: bool = False) -> Outcome:
    """The call on this thread, and attention that is large on several. `threads`: how many at most; `tensor`: else as
    many as PyTorch's."""
    if _core is None:
        return _run_by_ctypes(function, record, target)
    code, detail = _core.run(function, record.memory, _parts(record), pointer_of(target), threads, tensor)
    return Outcome(code, detail.encode())


def _run_by_ctypes(function: Function, record: Record, target: Any) -> Outcome:
    how = execution.with_target(target)
    held = record.reference()
    arguments = [None if at < 0 else ctypes.c_void_p(ctypes.addressof(held) + at) for at in _parts(record)]
    name = {Function.ATTENTION: 'attention', Function.ROPE: 'rope', Function.SOFTMAX: 'masked_softmax'}[function]
    call = getattr(library, 'simdattn_' + name)
    status = call(*arguments, how)
    if function == Function.ATTENTION and status.code == Code.WORKSPACE:
        # The working memory of this thread is too small for such a problem; nothing was written.
        plan = initial(_abi.Plan)
        status = library.simdattn_attention_plan(*arguments, ctypes.byref(plan), how)
        if not status.code:
            execution.grow(plan.workspace_bytes)
            status = call(*arguments, how)
    return Outcome(status.code, status.detail)


# ---- Calls that come again -------------------------------------------------------------------------------------------

Templates = Dict[bytes, Any]


def _never(templates: Templates, arguments: Tuple[Any, ...]) -> Any:
    return None


# replay(templates, arguments): the result, or NotImplemented where there is none; False: these arguments are new; True:
# they came before, so remember() them this time; None: the long way.
replay: Callable[[Templates, Tuple[Any, ...]], Any] = _never if _core is None else _core.replay


@lru_cache(maxsize=None)
def _addresses(kind: Any) -> Dict[str, int]:
    """The members that are addresses, and where they are."""
    found: Dict[str, int] = {}
    for name, member in kind._fields_:
        at = getattr(kind, name).offset
        if issubclass(member, ctypes.Structure):
            found.update({f'{name}.{inner}': at + offset for inner, offset in _addresses(member).items()})
        elif member is ctypes.c_void_p:
            found[name] = at
    return found


def remember(templates: Templates, arguments: Tuple[Any, ...], function: Function, record: Record, target: Any, sources: Dict[str, int], *,
             makes: Tuple[Callable[[], Any], ...] = (), results: Tuple[int, ...] = (), threads: int = -1, lengths: int = -1, added: int = 0,
             stores: Optional[Dict[str, int]] = None, constants: Tuple[str, ...] = (), keep: Any = None) -> None:
    """Keeps the call for replay(), unless an address in its structs is not that of an argument, such as of a copy.

    sources: for members that are addresses, the argument that they come from; -1, -2: what makes[0] or makes[1] makes.
        results: what is returned, likewise. stores: for members that are structs, the Store that they come from.
        constants: members that stay as they are, and what they point to is kept by `keep`.
    threads: which argument limits them. lengths, added: which argument holds numbers that rise, and by how much.
    """
    stores = stores or {}
    patches: List[int] = [n for name, i in stores.items() for n in (record.places[name][0], i)]
    known = True
    for member, offset in _addresses(record.kind).items():
        if record.get(member) and member.partition('.')[0] not in stores and member not in constants:
            known = known and member in sources
            patches += [offset, sources.get(member, 0)]
    description = (int(function), bytes(record.memory), _parts(record), pointer_of(target), tuple(patches), makes, results, threads, lengths,
                   added, keep)
    _core.learn(templates, arguments, description if known else None)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def _is_forked() -> bool:
    """Whether this process is a copy of its parent, and has started no program since (Linux: PF_FORKNOEXEC)."""
    with open('/proc/self/stat', 'rb') as stat:
        return bool(int(stat.read().rpartition(b')')[2].split()[6]) & 0x40)


def _openmp_of_torch(torch: Any) -> int:
    """The address of GOMP_parallel in the OpenMP that PyTorch is linked with, GNU's or LLVM's; 0: PyTorch has other
    threads."""
    try:
        if _is_forked():  # its parent may have used PyTorch, whose OpenMP would wait here for threads of the parent
            return 0
        if 'backend: OpenMP' not in torch.__config__.parallel_info():
            return 0
        with open('/proc/self/maps') as maps:
            path = next(line.split(maxsplit=5)[5].strip() for line in maps if 'libtorch_cpu' in line)
        linked = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(linked.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, StopIteration):
        return 0


@lru_cache(maxsize=None)
def prepare_torch() -> bool:
    """Tells the extension of PyTorch, once it is there; whether DLPack's C interface is."""
    torch = sys.modules['torch']
    if _core is None:
        return False
    found: bool = _core.setup_torch(torch.Tensor, torch.nn.Parameter, is_plain(), torch.get_num_threads, _openmp_of_torch(torch))
    return found


def prepare(store: type) -> None:
    """Tells the extension where the library is, and what arrays are."""
    if _core is not None:
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _abi.FUNCTIONS}
        types = {'ndarray': np.ndarray, 'bf16': BF16, 'store': store, 'mark_written': mark_written}
        _core.setup(addresses, types, threads_of_process())


__all__ = ['AppendCall', 'Function', 'RopeCall', 'SoftmaxCall', 'check', 'prepare', 'prepare_torch', 'remember', 'replay', 'run']
