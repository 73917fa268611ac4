"""Hugging Face Transformers (5 and later): attn_implementation='simdattn', and a cache for generate().

    import simdattn.transformers
    simdattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation='simdattn')
    model.generate(**inputs, past_key_values=simdattn.transformers.Cache(dtype='q8_0'))
"""

from __future__ import annotations

import functools
from typing import Any, Optional, Tuple

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from ._abi import Code
from ._attention import Store, attention
from ._cache import KVCache
from ._library import Error

NAME = 'simdattn'


# ---- The attention ---------------------------------------------------------------------------------------------------------


def _forward(module: torch.nn.Module, query: torch.Tensor, key: Any, value: Any, attention_mask: Optional[torch.Tensor],
             dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None, softcap: Optional[float] = None,
             s_aux: Optional[torch.Tensor] = None, position_bias: Optional[torch.Tensor] = None,
             **unread: Any) -> Tuple[torch.Tensor, None]:
    """query: [batch, heads, rows, dim]; key, value: [batch, kv_heads, tokens, dim], or the stores of a Cache.

    unread: among them `sliding_window`, which is in the mask, as of sdpa.
    """
    if dropout:
        raise Error(Code.RANGE, f'dropout: is {dropout}; this is for inference: model.eval()')
    if unread.get('output_attentions'):
        raise Error(Code.RANGE, "output_attentions: weights are not computed; attn_implementation='eager' does")
    causal = getattr(module, 'is_causal', True) if is_causal is None else is_causal
    options = dict(scale=scaling, softcap=softcap, sinks=s_aux, bias=position_bias)
    if attention_mask is None:  # the last row stands at the last key
        options['causal'] = bool(causal) and query.shape[2] > 1
    else:
        if isinstance(key, Store):
            key, value = key.first(attention_mask.shape[-1]), value.first(attention_mask.shape[-1])
        mask = attention_mask[..., :key.shape[2]]
        if mask.dtype == torch.bool:
            options['mask'] = mask
        else:
            options['bias'] = mask if position_bias is None else mask + position_bias
    batch, heads, rows, _ = query.shape
    out = torch.empty((batch, rows, heads, value.shape[-1]), dtype=query.dtype)
    attention(query, key, value, out=out.transpose(1, 2), **options)
    return out, None


# Masks are those of sdpa: none where causality is all, else true and false for every row and key. What a mask hides costs nothing.
_mask = functools.partial(sdpa_mask, allow_torch_fix=False)


def _checked(usual: Any) -> Any:
    """A model that does not ask the interface would run its own attention under our name."""

    @functools.wraps(usual)
    def checked(self: Any, requested: Any, *args: Any, **options: Any) -> Any:
        name = requested.get('') if isinstance(requested, dict) else requested
        if name == NAME and not self._supports_attention_backend:
            raise ValueError(f"{type(self).__name__} does not ask Transformers' attention interface, so that attn_implementation="
                             f'{NAME!r} would change nothing; simdattn.torch.install() reaches models that call '
                             'scaled_dot_product_attention')
        return usual(self, requested, *args, **options)

    return checked


def register() -> None:
    """Makes attn_implementation='simdattn' known: in from_pretrained(), from_config() and model.set_attn_implementation().

    Masks, left padding, sliding windows, softcap, sinks, grouped heads, static and dynamic caches, beams and chunked prefill are followed.
    ValueError for models that do not ask the interface (`_supports_attention_backend`).
    """
    if int(transformers.__version__.split('.')[0]) < 5:
        raise Error(Code.RANGE, f'register: Transformers 5 or later is wanted, not {transformers.__version__}')
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, _mask)
    for name in ('get_correct_attn_implementation', 'set_attn_implementation'):
        usual = getattr(PreTrainedModel, name)
        if not hasattr(usual, '_simdattn'):  # registered before
            checked = _checked(usual)
            checked._simdattn = True
            setattr(PreTrainedModel, name, checked)


# ---- The cache -------------------------------------------------------------------------------------------------------------


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """The cache of one layer: its attention takes the stores where others take tensors."""

    is_sliding = False

    def __init__(self, dtype: Any = None, capacity: int = 256) -> None:
        super().__init__()
        self.dtype_wanted, self.capacity, self.cache = dtype, capacity, None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, dim = key_states.shape
        self.cache = KVCache(batch, heads, self.capacity, dim, value_dim=value_states.shape[3], dtype=self.dtype_wanted or key_states.dtype)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any) -> Tuple[Store, Store]:
        if self.cache is None:
            self.lazy_initialization(key_states, value_states)
        tokens = len(self.cache) + key_states.shape[2]
        if tokens > self.cache.capacity:
            self.cache = self.cache.resized(max(tokens, 2 * self.cache.capacity))
        self.cache.append(key_states, value_states)
        return self.cache.keys, self.cache.values

    def get_seq_length(self) -> int:
        return 0 if self.cache is None else len(self.cache)

    def get_mask_sizes(self, query_length: int) -> Tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_cache_shape(self) -> int:
        return -1  # it grows

    def reset(self) -> None:
        if self.cache is not None:
            self.cache.reset()

    def crop(self, max_length: int) -> None:
        if self.cache is not None:
            length = max_length if max_length >= 0 else max(len(self.cache) + max_length, 0)
            self.cache.lengths = [min(length, n) for n in self.cache.lengths]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.cache is not None:
            self.cache = self.cache.fork(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.cache is not None:
            chosen = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
            self.cache = self.cache.select(chosen.tolist())


class Cache(transformers.Cache):  # type: ignore[misc]
    """Keys and values of all layers, for generate(past_key_values=...) of models with attn_implementation='simdattn'.

    dtype: how they are stored: 'q8_0', 'bf16', ... (KVCache has all); default: the type of the model. capacity: tokens that there
    is room for at first; it doubles when they are used. The size of a head must be one that the type takes. Models that change keys
    after their cache (Doge, JetMoE), or have caches of their own, take a DynamicCache.
    """

    def __init__(self, *, dtype: Any = None, capacity: int = 256) -> None:
        super().__init__(layer_class_to_replicate=functools.partial(_Layer, dtype, capacity))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.cache.nbytes for layer in self.layers if layer.cache is not None)


__all__ = ['Cache', 'register']
