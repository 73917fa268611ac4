"""Arrays of the caller's as views: NumPy, ml_dtypes' bfloat16, BF16, and anything with DLPack. Nothing is copied."""

from __future__ import annotations

import ctypes
import math
import re
import struct
import sys
from functools import lru_cache, partial
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _abi
from ._abi import Code, DType, KvType
from ._dlpack import import_tensor
from ._library import Error, library
from ._tensors import is_torch, memory_of, refuse_gradient

NDArray = npt.NDArray[Any]
Array = Any  # numpy.ndarray, torch.Tensor, or another with __dlpack__ and __dlpack_device__


class BF16(np.ndarray):  # type: ignore[type-arg]
    """A uint16 array whose numbers are the upper halves of float32: bfloat16 for a NumPy that has none.

    x.view(simdattn.BF16) makes one of a uint16 array, to_bf16() rounds one; indexing, transposing and reshaping keep
    it. Arithmetic, comparisons and astype() take the float32 numbers, and give float32 arrays; view(numpy.uint16) shows
    the integers. Functions of NumPy that are no ufuncs (dot, sort, argmax) see integers: from_bf16() first.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if out is not None:
            if any(isinstance(x, BF16) for x in out):
                raise TypeError('a BF16 array is not written by arithmetic: x[...] = simdattn.to_bf16(result)')
            options['out'] = out
        return getattr(ufunc, method)(*(from_bf16(x) if isinstance(x, BF16) else x for x in inputs), **options)

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        return from_bf16(self).astype(dtype, *args, **options)

    def __repr__(self) -> str:
        return 'BF16' + repr(np.asarray(from_bf16(self)))[len('array'):].replace(', dtype=float32', '')

    def __str__(self) -> str:
        return str(from_bf16(self))


def to_bf16(x: Any) -> BF16:
    """x rounded to the nearest bfloat16, ties to even; NaN becomes the quiet NaN 0x7FC0. Shape: that of x."""
    refuse_masked(x, 'x')
    try:
        x = from_bf16(x) if isinstance(x, BF16) else np.asarray(x, np.float32)
    except (TypeError, ValueError):
        raise TypeError(f'x: numbers are wanted, not {x!r}') from None
    bits = x.view(np.uint32).astype(np.int64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded).view(BF16)


def from_bf16(x: NDArray) -> NDArray:
    """The float32 numbers of a BF16 array, of a uint16 array that holds the same bits, or of ml_dtypes' bfloat16,
    exactly."""
    refuse_masked(x, 'x')
    bits = np.asarray(x)
    if bits.dtype.name not in ('uint16', 'bfloat16'):
        raise Error(Code.DTYPE, f'x: is {bits.dtype}; BF16, uint16 or bfloat16 is wanted; simdattn.to_bf16() rounds other numbers')
    return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


# float32 -> F32, for every element type that NumPy, ml_dtypes and PyTorch have a name for; uint8 and bool hold masks.
_WORDS = {'F': 'float', 'BF': 'bfloat', 'U': 'uint', 'I': 'int'}
_SPELT = {t: re.fullmatch(r'([A-Z]+)(\d+)', t.name) for t in DType}
NAMES: Dict[DType, str] = {t: _WORDS[m.group(1)] + m.group(2) for t, m in _SPELT.items() if m}
DTYPES: Dict[str, DType] = {**{name: t for t, name in NAMES.items()}, 'bool': DType.U8}
SIZES: Dict[DType, int] = {t: library.simdattn_dtype_bytes(t) for t in DType}


_CURES = {'uint16': '; view(simdattn.BF16) says that they are bfloat16', 'float64': '; x.astype(numpy.float32) converts',
          'torch.float64': '; x.float() converts'}
_NOT_AN_ELEMENT = ('is not an element type of simdattn: float32, bfloat16 and float16 are, bool and uint8 of masks, int32 and int64 of '
                   'positions')


def refuse_masked(x: Any, argument: str) -> None:
    """NumPy's masked arrays, whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise Error(Code.DTYPE, f'{argument}: is a masked array, whose mask is not read; x.filled(number) has none')


class Operand(NamedTuple):
    """An array as the library sees it."""

    pointer: int
    dtype: DType
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    owner: object  # keeps the memory


@lru_cache(maxsize=1024)
def plain_strides(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> Tuple[int, ...]:
    """Steps that mean nothing, of dimensions of one element and of arrays without any, become those that no rule
    refuses."""
    if min(shape, default=1) > 1:
        return strides
    empty = 0 in shape
    steps = [step if n > 1 and not empty else 0 for n, step in zip(shape, strides)]
    if steps and (shape[-1] <= 1 or empty):
        steps[-1] = 1
    return tuple(steps)


@lru_cache(maxsize=1024)
def _layout(dtype: Any, shape: Tuple[int, ...], strides: Tuple[int, ...],
            bf16: bool) -> Union[Tuple[DType, Tuple[int, ...]], Error]:
    """Element type and strides in elements, or what is wrong with them."""
    name = 'bfloat16' if bf16 and dtype == np.uint16 else dtype.name
    kind = DTYPES.get(name)
    if kind is None:
        return Error(Code.DTYPE, f'{name} {_NOT_AN_ELEMENT}{_CURES.get(name, "")}')
    if not dtype.isnative:
        return Error(Code.DTYPE, 'bytes in the order of another machine')
    size = dtype.itemsize
    for n, step in zip(shape, strides):
        if n > 1 and step % size:
            return Error(Code.STRIDE, f'a stride of {step} bytes is no multiple of the element')
    return kind, plain_strides(shape, tuple(step // size for step in strides))


def operand(x: Array, argument: str, writable: bool = False) -> Operand:
    """Where x is. Error if it is nothing that can be used in place. What is an Operand already stays as it is."""
    if isinstance(x, np.ndarray):
        refuse_masked(x, argument)
        layout = _layout(x.dtype, x.shape, x.strides, isinstance(x, BF16))
        if isinstance(layout, Error):
            raise Error(layout.code, f'{argument}: {layout.detail}')
        kind, strides = layout
        owner: object = x
        pointer, shape, read_only = x.ctypes.data, x.shape, writable and not x.flags.writeable
    elif isinstance(x, Operand):
        return x
    elif is_torch(x):
        kind, pointer, shape, strides, owner, read_only = _of_torch(x, argument)
    elif hasattr(x, '__dlpack__'):
        kind, pointer, shape, strides, owner, read_only = _of_dlpack(x, argument)
    else:
        raise TypeError(f'{argument}: {type(x).__name__} is no array: NumPy\'s, PyTorch\'s or another with __dlpack__ is wanted')
    if writable and read_only:
        raise Error(Code.OVERLAP, f'{argument}: is read-only, and would be written')
    if pointer % SIZES[kind]:
        raise Error(Code.STRIDE, f'{argument}: its address is no multiple of the element')
    if not pointer and 0 in shape:
        pointer = ctypes.addressof(_EMPTY)
    return Operand(pointer, kind, shape, strides, owner)


def _of_dlpack(x: Any, argument: str) -> Tuple[DType, int, Tuple[int, ...], Tuple[int, ...], object, bool]:
    try:
        found = import_tensor(x)
    except (BufferError, RuntimeError) as e:
        raise Error(Code.DTYPE, f'{argument}: {e}') from e
    kind = DTYPES.get(found.dtype)
    if kind is None:
        raise Error(Code.DTYPE, f'{argument}: {found.dtype} {_NOT_AN_ELEMENT}{_CURES.get(str(found.dtype), "")}')
    return kind, found.pointer, found.shape, plain_strides(found.shape, found.strides), found.owner, not found.writable


def _of_torch(x: Any, argument: str) -> Tuple[DType, int, Tuple[int, ...], Tuple[int, ...], object, bool]:
    found = memory_of(x, argument)
    kind = _torch_types().get(found.dtype)
    if kind is None:
        raise Error(Code.DTYPE, f'{argument}: {found.dtype} {_NOT_AN_ELEMENT}{_CURES.get(str(found.dtype), "")}')
    return kind, found.pointer, found.shape, plain_strides(found.shape, found.strides), x, False


@lru_cache(maxsize=None)
def _torch_types() -> Dict[Any, DType]:
    return {getattr(sys.modules['torch'], name): t for name, t in DTYPES.items()}


_EMPTY = ctypes.create_string_buffer(64)  # an address for arrays without elements that have none

_VIEWS = {1: _abi.View1, 2: _abi.View2, 3: _abi.View3, 4: _abi.View4, 5: _abi.View5}
# Native alignment: the padding of the C struct.
_PACKED = {rank: struct.Struct(f'@Pi{rank}q{rank}q') for rank in _VIEWS}


def bytes_of_view(x: Operand, rank: int, argument: str, shape: str) -> bytes:
    """The view's struct. Dimensions that are wanted and missing are refused."""
    if len(x.shape) != rank:
        raise Error(Code.SHAPE, f'{argument}: has {len(x.shape)} dimensions; {rank} are wanted, {shape}')
    return _PACKED[rank].pack(x.pointer, x.dtype, *x.shape, *x.strides)


def as_view(x: Operand, rank: int, argument: str, shape: str) -> Any:
    """The view as a struct; x.owner must outlive it."""
    return _VIEWS[rank].from_buffer_copy(bytes_of_view(x, rank, argument, shape))


def padded(x: Operand, rank: int, argument: str) -> Operand:
    """Leading dimensions of 1, as NumPy's broadcasting adds them."""
    missing = rank - len(x.shape)
    if missing < 0:
        raise Error(Code.SHAPE, f'{argument}: has {len(x.shape)} dimensions, more than {rank}')
    return x._replace(shape=(1,) * missing + x.shape, strides=(0,) * missing + x.strides)


def numbers(x: Any, dtype: Any, size: int, argument: str, per: str) -> NDArray:
    """x as a contiguous array of `size` numbers; only what is one already is not copied. Numbers that do not fit are
    refused."""
    if isinstance(x, BF16):
        x = from_bf16(x)
    elif is_torch(x):
        refuse_gradient(x, argument)
        x = x.detach().float() if x.is_floating_point() else x
    refuse_masked(x, argument)
    given = np.asarray(x)
    if given.ndim != 1 or given.shape[0] != size:
        raise Error(Code.SHAPE, f'{argument}: has shape {given.shape}; {size} numbers are wanted, one for each {per}')
    if given.dtype.kind not in 'biuf':
        raise TypeError(f'{argument}: numbers are wanted, not {x!r}')
    result = np.ascontiguousarray(given, dtype)
    if given.dtype != result.dtype and np.issubdtype(dtype, np.integer) and not np.array_equal(result, given):
        raise Error(Code.RANGE, f'{argument}: holds what is no {np.dtype(dtype).name}')
    return result


def positions_of(x: Any, argument: str) -> Operand:
    """An array of integers, or a list of them."""
    if not isinstance(x, (list, tuple, range)):
        return operand(x, argument)
    given = np.asarray(x)
    if given.dtype.kind not in 'iu' and given.size:
        raise TypeError(f'{argument}: integers are wanted, not {x!r}')
    return operand(given.astype(np.int64), argument)


def doubles(x: Any, argument: str) -> NDArray:
    """x as contiguous float64 numbers."""
    refuse_masked(x, argument)
    try:
        result = np.ascontiguousarray(from_bf16(x) if isinstance(x, BF16) else x, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f'{argument}: numbers are wanted, not {x!r}') from None
    if result.ndim != 1:
        raise Error(Code.SHAPE, f'{argument}: has {result.ndim} dimensions; 1 is wanted')
    return result


def maker_like(x: Array, shape: Sequence[int], dtype: DType) -> Callable[[], Array]:
    """A function that makes arrays to write: tensors where x is PyTorch's, else NumPy's; bfloat16 as x has it, or as
    BF16."""
    if is_torch(x):
        torch = sys.modules['torch']
        strides = [math.prod(max(n, 1) for n in shape[i + 1:]) for i in range(len(shape))]  # empty() takes longer
        return partial(torch.empty_strided, tuple(shape), tuple(strides), dtype=getattr(torch, NAMES[dtype]))
    if dtype != DType.BF16:
        return partial(np.empty, tuple(shape), NAMES[dtype])
    if isinstance(x, np.ndarray) and x.dtype.name == 'bfloat16':
        return partial(np.empty, tuple(shape), x.dtype)
    return lambda: np.empty(shape, np.uint16).view(BF16)


def new_like(x: Array, shape: Sequence[int], dtype: DType) -> Array:
    """What maker_like()'s function makes."""
    return maker_like(x, shape, dtype)()


# Arrays that can be keys and values as they are: the storage type of the same name.
KV_TYPES: Dict[DType, KvType] = {t: KvType[t.name] for t in DType if t.name in KvType.__members__}
