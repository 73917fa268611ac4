"""This library's attention in ONNX Runtime, from version 1.23 on.

    options = onnxruntime.SessionOptions()
    simdattn.onnxruntime.add(options)
    session = onnxruntime.InferenceSession('model.onnx', options)   # without providers=

The model stays as it is. docs/onnxruntime.md says which nodes are taken, and what else there is to set.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
import threading
from typing import Dict, Optional, Union

import onnxruntime

from ._abi import Code
from ._library import Error
from ._scoring import boolean

PROVIDER = 'SimdattnExecutionProvider'
_ARITHMETIC = ('auto', 'f32', 'bf16', 'int8')
_registering = threading.Lock()


def _library() -> str:
    """SIMDATTN_ONNXRUNTIME_LIBRARY, the file beside this one, or the one that is installed."""
    named = os.environ.get('SIMDATTN_ONNXRUNTIME_LIBRARY')
    if named:
        return named
    beside = os.path.join(os.path.dirname(__file__), 'libonnxruntime-simdattn.so')
    if os.path.exists(beside):
        return beside
    installed = ctypes.util.find_library('onnxruntime-simdattn')
    if installed is None:
        raise ImportError('libonnxruntime-simdattn.so is neither in this package nor installed; '
                          'SIMDATTN_ONNXRUNTIME_LIBRARY names a file')
    return installed


def register(library: Union[str, os.PathLike[str], None] = None) -> None:
    """Makes the provider known to ONNX Runtime, once in a process; more calls do nothing.

    library: the file libonnxruntime-simdattn.so; default: SIMDATTN_ONNXRUNTIME_LIBRARY, else the one that is installed.
    """
    if library is not None and not isinstance(library, (str, os.PathLike)):
        raise TypeError(f'library: the name of a file is wanted, not {library!r}')
    if not hasattr(onnxruntime, 'register_execution_provider_library'):
        raise ImportError(f'simdattn.onnxruntime needs ONNX Runtime 1.23 or later; this is {onnxruntime.__version__}')
    with _registering:  # ONNX Runtime refuses a name that it has
        if not any(device.ep_name == PROVIDER for device in onnxruntime.get_ep_devices()):
            onnxruntime.register_execution_provider_library('simdattn', os.fspath(library or _library()))


def add(options: onnxruntime.SessionOptions, *, arithmetic: Optional[str] = None, log: Optional[bool] = None,
        library: Union[str, os.PathLike[str], None] = None) -> onnxruntime.SessionOptions:
    """Has sessions of these options compute attention by this library. Returns the options.

    arithmetic: what multiplies, 'auto', 'f32', 'bf16' or 'int8'; default: SIMDATTN_ONNXRUNTIME_ARITHMETIC, else 'auto'.
    log: lines on stderr that say which nodes are taken; default: SIMDATTN_ONNXRUNTIME_LOG.
    library: as for register().
    A session that is made with providers= has those providers and no others: leave it out.
    """
    if not isinstance(options, onnxruntime.SessionOptions):
        raise TypeError(f'options: onnxruntime.SessionOptions are wanted, not {type(options).__name__}')
    if arithmetic is not None and not (isinstance(arithmetic, str) and arithmetic in _ARITHMETIC):
        raise Error(Code.RANGE, f'arithmetic: is {arithmetic!r}; it is one of {", ".join(_ARITHMETIC)}')
    settings: Dict[str, str] = {}
    if arithmetic is not None:
        settings['arithmetic'] = arithmetic
    if log is not None:
        settings['log'] = str(int(boolean(log, 'log')))
    register(library)
    options.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDER], settings)
    if log or (log is None and os.environ.get('SIMDATTN_ONNXRUNTIME_LOG') == '1'):
        print('simdattn: added to the options; a session that is made with providers= does not use it', file=sys.stderr)
    return options


__all__ = ['add', 'register']
