"""The shared library, its functions, and what a status becomes."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import struct
from enum import IntEnum
from functools import lru_cache
from typing import Any, Dict, List, Optional, Tuple, Type, TypeVar, Union

from . import _abi
from ._abi import Code

S = TypeVar('S', bound=ctypes.Structure)


class Error(ValueError, RuntimeError):
    """A call that was refused; nothing was written. A RuntimeError too: what PyTorch's functions raise.

    code: what kind of rule it was; detail: the sentence, "argument: rule".
    """

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f'{detail} ({code.name})')
        self.code = code
        self.detail = detail

    def __reduce__(self) -> Any:
        return Error, (self.code, self.detail)


def _path() -> str:
    """SIMDATTN_LIBRARY, the library beside this file, or the one that is installed."""
    named = os.environ.get('SIMDATTN_LIBRARY')
    if named:
        return named
    for suffix in ('.abi3.so', '.dylib', '.dll'):
        beside = os.path.join(os.path.dirname(__file__), 'libsimdattn' + suffix)
        if os.path.exists(beside):
            return beside
    installed = ctypes.util.find_library('simdattn')
    if installed is None:
        raise ImportError('libsimdattn is neither in this package nor installed; SIMDATTN_LIBRARY names a file')
    return installed


def _load(path: str) -> ctypes.CDLL:
    # CDLL releases the GIL during a call.
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f'{path} has no {name}: it is not version {version_of_package()}') from None
        function.restype = result
        function.argtypes = arguments
    found = library.simdattn_version().decode()
    if found.split('.')[:2] != version_of_package().split('.')[:2]:
        raise ImportError(f'{path} is version {found}, this package is for {version_of_package()}')
    return library


def version_of_package() -> str:
    return f'{_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}.{_abi.VERSION_PATCH}'


path = _path()
library = _load(path)


def check(status: Any, rows: str = 'rows', **given: Any) -> None:
    """Raises what is not OK. given: the arguments; the sentence ends with those that it names. rows: what is `rows` in
    the library."""
    if status.code:
        raise Error(Code(status.code), _sentence(re.sub(r'\brows(?=[:.])', rows, status.detail.decode()), given))


def _names() -> Dict[str, str]:
    """'kyarn' -> "'yarn'": how C++ spells an enumerator, in lower case, and how Python does."""
    enums = [e for e in vars(_abi).values() if isinstance(e, type) and issubclass(e, IntEnum) and e not in (IntEnum, Code)]
    return {**{('k' + m.name.replace('_', '')).lower(): repr(m.name.lower()) for e in enums for m in e},
            'kbottomright': 'None', 'kpanelwidth': '32'}


def _sentence(detail: str, given: Dict[str, Any]) -> str:
    """The library's sentence in the words of Python, and with numbers."""
    detail = re.sub(r'\b(scoring|options|exec|kv|positions(?=\.start))\.', '', detail)
    detail = re.sub(r'\bk[A-Z]\w*', lambda m: _names().get(m[0].lower(), m[0]), detail)
    dtype = re.fullmatch(r'(\w+)\.dtype: not a type accepted here', detail)
    if dtype is not None and given.get(dtype[1]) is not None:
        return f'{dtype[1]}: is {_dtype_name(given[dtype[1]])}; {_WANTED_TYPES.get(dtype[1], _ELEMENTS)} is wanted'
    detail = re.sub(r'^(\w+)(\.data)?: null although', r'\1: is not given, although', detail)
    named = [name for name in given if given[name] is not None and re.search(rf'\b{name}\b', detail)]
    return '; '.join([detail, *(_shown(name, given[name]) for name in named)])


_ELEMENTS = 'float32, bfloat16 or float16'
# What the library takes for arguments of these names, where it is not an element type.
_WANTED_TYPES = {'mask': 'bool or uint8 (true attends)', 'positions': 'int32 or int64', 'lists': 'int32',
                 **dict.fromkeys(('cos', 'sin', 'lse', 'acc', 'max', 'sum', 'weights', 'scores', 'state', 'states'), 'float32')}


def _dtype_name(x: Any) -> str:
    name = getattr(x.dtype, 'name', str(x.dtype))
    return name if not isinstance(x.dtype, IntEnum) else {'U8': 'bool or uint8', 'F16': 'float16', 'BF16': 'bfloat16'}.get(
        name, name.replace('F', 'float').replace('I', 'int'))


def _shown(name: str, value: Any) -> str:
    shape = getattr(value, 'shape', ())
    return f'{name} has shape {tuple(shape)}' if len(shape) > 1 else f'{name} is {value!r}'


def _made(kind: Type[S], members: Dict[str, Any]) -> S:
    made = kind()
    for name, value in members.items():
        setattr(made, name, _made(dict(kind._fields_)[name], value) if isinstance(value, dict) else value)  # type: ignore[misc]
    return made


@lru_cache(maxsize=None)
def initial_bytes(kind: Type[ctypes.Structure]) -> bytes:
    return bytes(_made(kind, _abi.INIT[kind]))


def initial(kind: Type[S]) -> S:
    """A struct that begins as its SIMDATTN_..._INIT says."""
    return kind.from_buffer_copy(initial_bytes(kind))


def _code(kind: Any) -> str:
    """The letter of the module struct for what holds no struct."""
    if issubclass(kind, ctypes.Array):
        return f'{kind._length_}{_code(kind._type_)}'
    return kind._type_.replace('z', 'P')  # type: ignore[no-any-return]


@lru_cache(maxsize=None)
def places(kind: Type[ctypes.Structure]) -> Dict[str, Tuple[int, Any]]:
    """Where every member is and what packs it: 'scoring.offset' -> (offset, struct.Struct). Members that are structs:
    their size."""
    found: Dict[str, Tuple[int, Any]] = {}
    for name, member in kind._fields_:  # type: ignore[misc]
        at = getattr(kind, name).offset
        if issubclass(member, ctypes.Structure):
            found[name] = at, ctypes.sizeof(member)
            found.update({f'{name}.{inner}': (at + offset, packer) for inner, (offset, packer) in places(member).items()})
        else:
            found[name] = at, struct.Struct('@' + _code(member))
    return found


class Record:
    """A C struct as bytes: writing a member takes a tenth of what it takes through ctypes.

    alive: what the struct points to.
    """

    __slots__ = ('kind', 'memory', 'places', 'alive')

    def __init__(self, kind: Type[ctypes.Structure]) -> None:
        self.kind = kind
        self.memory = bytearray(initial_bytes(kind))
        self.places = places(kind)
        self.alive: List[object] = []

    def put(self, member: str, *value: Any) -> None:
        at, packer = self.places[member]
        packer.pack_into(self.memory, at, *value)

    def get(self, member: str) -> Any:
        at, packer = self.places[member]
        return packer.unpack_from(self.memory, at)[0]

    def put_struct(self, member: str, value: bytes) -> None:
        at, size = self.places[member]
        self.memory[at:at + size] = value  # of the same size, or what refers to the memory would raise

    def reference(self) -> Any:
        """What a function takes as the address; it keeps the memory where it is."""
        return (ctypes.c_char * len(self.memory)).from_buffer(self.memory)


E = TypeVar('E', bound=IntEnum)
_ALIASES = {'float32': 'f32', 'float': 'f32', 'fp32': 'f32', 'float16': 'f16', 'half': 'f16', 'fp16': 'f16', 'bfloat16': 'bf16',
            'float8_e4m3fn': 'fp8_e4m3', 'fp8_e4m3fn': 'fp8_e4m3', 'fp8': 'fp8_e4m3', 'float8_e5m2': 'fp8_e5m2'}


@lru_cache(maxsize=None)
def _by_name(kind: Any, name: str) -> Any:
    name = name.lower().rsplit('.', 1)[-1]  # torch.bfloat16, numpy.float32
    name = _ALIASES.get(name, name)
    plain = re.sub('[-_]', '', name)
    for member in kind:
        if member.name.lower().replace('_', '') == plain:
            return member
    return None


def enumerator(kind: Type[E], value: Union[str, int, Any], argument: str) -> E:
    """A member by its name in any spelling ('half_split', 'longrope'), by a dtype, or itself."""
    if isinstance(value, kind):
        return value
    name = value if isinstance(value, str) else getattr(value, 'name', None) or getattr(value, '__name__', None) or str(value)
    member: Optional[E] = _by_name(kind, name)
    if member is None:
        names = ', '.join(m.name.lower() for m in kind)
        raise Error(Code.RANGE, f'{argument}: there is no {value!r}; there are {names}')
    return member


