"""Targets: one implementation of all kernels for one instruction set each."""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _abi
from ._abi import Code
from ._library import Error, check, enumerator, initial, library, path


class Target(NamedTuple):
    """An implementation for one instruction set, such as "highway/avx2".

    name: what `target=` takes and SIMDATTN_TARGET; runnable: this CPU and operating system can execute it; missing:
        what they lack ('' if nothing); exact: it returns the bits of the definition; native: arithmetics that it has
        instructions for (the others are emulated, with the same bits).
    """

    name: str
    runnable: bool
    missing: str
    exact: bool
    native: Tuple[str, ...]


def targets() -> List[Target]:
    """All targets of the library, best first; "scalar" is last and always runnable."""
    count = ctypes.c_size_t()
    pointers = ctypes.cast(library.simdattn_targets(ctypes.byref(count)), ctypes.POINTER(ctypes.c_void_p))
    return [Target(name=library.simdattn_target_name(t).decode(),
                   runnable=library.simdattn_target_runnable(t),
                   missing=library.simdattn_target_missing(t).decode(),
                   exact=library.simdattn_target_exact(t),
                   native=tuple(a.name.lower() for a in _abi.Arithmetic if library.simdattn_target_native(t, a)))
            for t in pointers[:count.value]]


def default_target() -> str:
    """The name of the target of calls that name none: SIMDATTN_TARGET or else the first runnable one."""
    found = ctypes.c_void_p()
    check(library.simdattn_default_target(ctypes.byref(found)))
    name: bytes = library.simdattn_target_name(found)
    return name.decode()


_auto = 'auto'


def word_of(arithmetic: Any) -> Any:
    """`arithmetic` in the key of a call that replay() knows: permission changes what 'auto' stands for."""
    return _auto if isinstance(arithmetic, str) and arithmetic == 'auto' else arithmetic


def request_amx() -> None:
    """Asks the operating system to let this process use AMX, which then is the default target. No result changes a bit,
    but that arithmetic='auto' of bfloat16 becomes 'bf16'. Threads and forked processes have the permission too; it is
    not given back. Error where there is no AMX. simdattn.torch, simdattn.transformers and simdattn.flash_attn ask when
    they are imported.
    """
    global _auto
    check(library.simdattn_request_amx())
    _auto = 'auto, with AMX'


def ask_for_amx() -> None:
    """request_amx() where nobody needs to know whether there is AMX: without it other instructions make the results."""
    try:
        request_amx()
    except Error:
        pass


def arithmetic_name(x: Any) -> Any:
    """x, if it is an arithmetic or 'auto'; else Error."""
    return x if isinstance(x, str) and x == 'auto' else enumerator(_abi.Arithmetic, x, 'arithmetic')


def arithmetic_for(q: int, k: int, v: int, target: Union[str, Target, None]) -> int:
    """The library's choice for the types of queries, keys and values, which are those of the C structs."""
    found: int = library.simdattn_arithmetic_for(q, k, v, execution.with_target(target))
    return found


def version() -> str:
    """The version of the library, "0.3.0"."""
    number: bytes = library.simdattn_version()
    return number.decode()


def info() -> Dict[str, Any]:
    """version, library (its file), default (target), targets. `python -m simdattn` prints it."""
    return {'version': version(), 'library': path, 'default': default_target(), 'targets': targets()}


@lru_cache(maxsize=None)
def _pointer(name: str) -> Optional[int]:
    found = ctypes.c_void_p()
    status = library.simdattn_find_target(name.encode(), ctypes.byref(found))
    if status.code:
        raise Error(Code(status.code), f'target: {name!r}: {status.detail.decode().partition(": ")[2]}')
    return found.value


def pointer_of(target: Union[str, Target, None]) -> int:
    """The address of a target; 0: the default."""
    name = target.name if isinstance(target, Target) else target
    if name is not None and not isinstance(name, str):
        raise TypeError(f'target: a name is wanted, as targets() lists them, not {target!r}')
    return 0 if name is None else _pointer(name) or 0


class Execution(threading.local):
    """How this thread executes: its exec struct, and working memory that grows when a call needs more."""

    def __init__(self) -> None:
        self.struct = initial(_abi.Exec)
        self.reference = ctypes.byref(self.struct)

    def with_target(self, target: Union[str, Target, None]) -> Any:
        """The struct by reference."""
        self.struct.target = pointer_of(target)
        return self.reference

    def grow(self, size: int) -> None:
        if size > self.struct.workspace_bytes:
            # Kept by the struct, which a running call holds: a daemon thread may be in one when the interpreter exits,
            # and this object goes then.
            self.struct.memory = ctypes.create_string_buffer(size)
            self.struct.workspace = ctypes.addressof(self.struct.memory)
            self.struct.workspace_bytes = size


execution = Execution()
