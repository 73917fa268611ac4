"""simdattn: the CPU kernels inside transformer attention.

    import numpy as np, simdattn
    out = simdattn.attention(q, k, v, causal=True)   # [batch, heads, rows, dim] each

Arrays are NumPy's, ml_dtypes' bfloat16, simdattn.BF16, or anything with DLPack (PyTorch tensors on the CPU). None is
copied. The result is one bit pattern on every CPU with fused multiply-add, for any number of threads.

simdattn.torch.sdpa stands in for torch.nn.functional.scaled_dot_product_attention.
"""

from __future__ import annotations

from typing import Any

from ._abi import Code
from ._arrays import BF16, from_bf16, to_bf16
from ._attention import Plan, Store, attention
from ._cache import KVCache
from ._library import Error
from ._linear import causal_conv, linear_attention
from ._rope import RopeTable, rope, rope_frequencies, rope_table
from ._sdpa import scaled_dot_product_attention
from ._selection import index_scores, top_k
from ._softmax import softmax
from ._targets import Target, default_target, info, request_amx, targets, version
from ._tensor_cache import TensorCache
from ._unfused import attention_merge, scores, weighted_values

__version__ = version()

__all__ = ['BF16', 'Code', 'Error', 'KVCache', 'Plan', 'RopeTable', 'Store', 'Target', 'TensorCache', 'attention',
           'attention_merge', 'causal_conv', 'default_target', 'from_bf16', 'index_scores', 'info', 'linear_attention',
           'request_amx', 'rope', 'rope_frequencies', 'rope_table', 'scaled_dot_product_attention', 'scores', 'softmax', 'targets',
           'to_bf16', 'top_k', 'version', 'weighted_values']


_NEEDS = {'torch': 'PyTorch', 'flash_attn': 'PyTorch', 'transformers': 'Transformers and PyTorch',
          'onnxruntime': 'ONNX Runtime'}


def __getattr__(name: str) -> Any:
    """The modules that need another package, when they are first asked for."""
    if name in _NEEDS:
        import importlib
        try:
            return importlib.import_module('.' + name, __name__)
        except ModuleNotFoundError as e:
            raise AttributeError(f'simdattn.{name} needs {_NEEDS[name]} ({e})') from e
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
