"""Arrays of other libraries, where they are: the DLPack protocol, read with ctypes.

NumPy's own reader knows neither bfloat16 nor, before version 2.1, read-only arrays.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Tuple

_CPU = 1
_READ_ONLY = 1  # a flag of versioned tensors


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ('data', ctypes.c_void_p),
        ('device_type', ctypes.c_int32),
        ('device_id', ctypes.c_int32),
        ('ndim', ctypes.c_int32),
        ('code', ctypes.c_uint8),
        ('bits', ctypes.c_uint8),
        ('lanes', ctypes.c_uint16),
        ('shape', ctypes.POINTER(ctypes.c_int64)),
        ('strides', ctypes.POINTER(ctypes.c_int64)),
        ('byte_offset', ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ('major', ctypes.c_uint32),
        ('minor', ctypes.c_uint32),
        ('manager', ctypes.c_void_p),
        ('deleter', ctypes.c_void_p),
        ('flags', ctypes.c_uint64),
        ('tensor', _Tensor),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]

_NAMES = {(2, 32): 'float32', (2, 16): 'float16', (2, 64): 'float64', (4, 16): 'bfloat16', (6, 8): 'bool', (1, 8): 'uint8',
          (0, 32): 'int32', (0, 64): 'int64', (0, 8): 'int8', (0, 16): 'int16', (1, 16): 'uint16', (1, 32): 'uint32'}


_takes_version: Dict[type, bool] = {}  # types whose __dlpack__ has max_version


class Imported(NamedTuple):
    """Where a DLPack tensor is; the memory is its producer's, who keeps it while `owner` lives."""

    pointer: int
    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]  # in elements
    writable: bool
    owner: object


def import_tensor(x: Any) -> Imported:
    """What x.__dlpack__() describes. BufferError for what is not on the CPU."""
    kind = type(x)
    if _takes_version.get(kind, True):
        try:
            capsule = x.__dlpack__(max_version=(1, 0))
        except TypeError:
            _takes_version[kind] = False
    if not _takes_version.setdefault(kind, True):
        capsule = x.__dlpack__()
    # The capsule is not marked as used: then its own destructor gives the tensor back to the producer, when `owner`
    # goes.
    if _is_valid(capsule, b'dltensor_versioned'):
        versioned = _Versioned.from_address(_pointer_of(capsule, b'dltensor_versioned'))
        if versioned.major != 1:
            raise BufferError(f'speaks DLPack {versioned.major}.{versioned.minor}; 1.x and older are understood')
        tensor, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    else:
        tensor, writable = _Tensor.from_address(_pointer_of(capsule, b'dltensor')), True
    if tensor.device_type != _CPU:
        raise BufferError(f'is on DLPack device {tensor.device_type}; the CPU is {_CPU}')
    rank = tensor.ndim
    shape = tuple(tensor.shape[:rank])
    if tensor.strides:
        strides = tuple(tensor.strides[:rank])
    else:
        strides, step = (), 1
        for size in reversed(shape):
            strides = (step, *strides)
            step *= size
    element = (tensor.code, tensor.bits)
    name = _NAMES.get(element, f'DLPack type {element}') if tensor.lanes == 1 else f'vectors of {tensor.lanes}'
    return Imported((tensor.data or 0) + tensor.byte_offset, name, shape, strides, writable, capsule)
