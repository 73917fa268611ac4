"""Hugging Face Transformers (5 and later): attn_implementation='simdattn', and a cache for generate().

    import simdattn.transformers
    simdattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation='simdattn')
    model.generate(**inputs, past_key_values=simdattn.transformers.Cache(dtype='q8_0'))
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from typing import Any, Dict, List, Optional, Tuple

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import eager_mask, sdpa_mask

from ._abi import Code, KvType
from ._attention import attention
from ._cache import KVCache
from ._library import Error, enumerator
from ._linear import causal_conv, linear_attention
from ._operators import attention as operator
from ._run import prepare_torch
from ._scoring import integer
from ._targets import arithmetic_name, ask_for_amx
from ._types import ArithmeticName

NAME = 'simdattn'

prepare_torch()
ask_for_amx()  # PyTorch does so too, before its first product of bfloat16
_arithmetic: ArithmeticName = 'auto'  # of register()


# ---- The attention ---------------------------------------------------------------------------------------------------


# Keywords that models hand to every attention function, and that change nothing of it: for the rest of the model, or in
# the mask already. `sliding_window` is in the mask, as of sdpa.
_UNREAD = frozenset((
    'cache_position', 'deterministic', 'inputs_embeds', 'logits_to_keep', 'max_length_k', 'max_length_q', 'mm_token_type_ids',
    'num_items_in_batch', 'output_attentions', 'output_hidden_states', 'output_router_logits', 'position_embeddings', 'position_ids',
    'return_dict', 'seq_idx', 'sliding_window', 'token_type_ids', 'use_cache'))


def _refuse_unknown(given: Dict[str, Any]) -> None:
    if given.get('output_attentions'):
        raise Error(Code.RANGE, "output_attentions: weights are not computed; attn_implementation='eager' does")
    for name, x in given.items():
        if x is not None and name not in _UNREAD:
            raise Error(Code.RANGE, f"{name}: a model gives it to its attention, and this one does not know it; attn_implementation='eager' "
                                    'or another that Transformers brings may')


def _lists(module: torch.nn.Module, indices: Optional[torch.Tensor], block_indices: Optional[torch.Tensor]) -> Dict[str, Any]:
    """The keys that each row selects, [batch, rows, n], or blocks of them, as attention() takes them; in ascending
    order, as they lie."""
    chosen = indices if block_indices is None else block_indices
    if chosen is None:
        return {}
    if indices is not None and block_indices is not None:
        raise Error(Code.RANGE, 'block_indices: is given with indices; one of them says which keys a row selects')
    block = 1 if block_indices is None else module.indexer.block_size
    return {'lists': chosen.to(torch.int32).sort(-1).values[:, None], 'list_block': block}


def _forward(module: torch.nn.Module, query: torch.Tensor, key: Any, value: Any, attention_mask: Optional[torch.Tensor],
             dropout: float = 0.0, scaling: Optional[float] = None, is_causal: Optional[bool] = None, softcap: Optional[float] = None,
             s_aux: Optional[torch.Tensor] = None, position_bias: Optional[torch.Tensor] = None, indices: Optional[torch.Tensor] = None,
             block_indices: Optional[torch.Tensor] = None, cu_seq_lens_q: Optional[torch.Tensor] = None,
             cu_seq_lens_k: Optional[torch.Tensor] = None, **others: Any) -> Tuple[torch.Tensor, None]:
    """query: [batch, heads, rows, dim]; key, value: [batch, kv_heads, tokens, dim], or the stores of a Cache."""
    if dropout:
        raise Error(Code.RANGE, f'dropout: is {dropout}; this is for inference: model.eval()')
    _refuse_unknown(others)
    causal = getattr(module, 'is_causal', True) if is_causal is None else is_causal
    arithmetic = getattr(key, 'arithmetic', None) if isinstance(key, _States) else None
    options = dict(_lists(module, indices, block_indices), scale=scaling, softcap=softcap, sinks=s_aux, bias=position_bias,
                   arithmetic=arithmetic or _arithmetic)
    if attention_mask is None:  # the last row stands at the last key
        options['causal'] = bool(causal and query.shape[2] > 1)
        if cu_seq_lens_q is not None:  # with a mask it says which sequences there are
            options.update(cu_q=cu_seq_lens_q, cu_k=cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k)
    if isinstance(key, _States):
        return _attend_stores(query, key, value, attention_mask, options), None
    _put_mask(options, attention_mask, key.shape[2])
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # what they see is an operator
        return operator(query, _contiguous(key), _contiguous(value), **options).transpose(1, 2), None
    return _attend(query, key, value, options), None


def _put_mask(options: Dict[str, Any], mask: Optional[torch.Tensor], keys: int) -> None:
    if mask is None:
        return
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        options['mask'] = mask
    else:
        options['bias'] = mask if options['bias'] is None else mask + options['bias']


def _attend(query: torch.Tensor, key: Any, value: Any, options: Dict[str, Any]) -> torch.Tensor:
    batch, heads, rows, _ = query.shape
    out = torch.empty((batch, rows, heads, value.shape[-1]), dtype=query.dtype)
    attention(query, key, value, out=out.transpose(1, 2), **options)
    return out


@torch.compiler.disable
def _attend_stores(query: torch.Tensor, key: Any, value: Any, mask: Optional[torch.Tensor], options: Dict[str, Any]) -> torch.Tensor:
    keys, values = key.store, value.store
    if mask is not None:
        keys, values = keys.first(mask.shape[-1]), values.first(mask.shape[-1])
    _put_mask(options, mask, keys.shape[2])
    return _attend(query, keys, values, options)


def _mask(*sizes: Any, config: Any = None, **options: Any) -> Optional[torch.Tensor]:
    """That of sdpa: none where causality is all, else true and false for every row and key. What a mask hides costs
    nothing.

    An indexer of keys adds it to its scores, so that there it has to hold numbers.
    """
    if getattr(config, 'keep_window_size', None) is not None:  # Doge adds it to a bias of its own, and is causal by it alone
        return eager_mask(*sizes, config=config, **options)
    found = sdpa_mask(*sizes, config=config, **{**options, 'allow_torch_fix': False})
    if found is None or getattr(config, 'index_topk', None) is None:
        return found
    return eager_mask(*sizes, config=config, **options)


def _asks(model: type) -> bool:
    """Whether the file of a model has the interface's table: some models ask it without saying so."""
    return hasattr(sys.modules[model.__module__], 'ALL_ATTENTION_FUNCTIONS')


def _checked(usual: Any) -> Any:
    """A model that does not ask the interface would run its own attention under our name."""

    @functools.wraps(usual)
    def checked(self: Any, requested: Any, *args: Any, **options: Any) -> Any:
        name = requested.get('') if isinstance(requested, dict) else requested
        if name == NAME and _asks(type(self)) and not (self._supports_attention_backend or self._supports_sdpa):
            raise ValueError(f'{type(self).__name__} supports neither sdpa nor other attention functions, as where a decoder relies on '
                             f"a mask that 'eager' alone gets: attn_implementation={NAME!r} could be wrong")
        if name == NAME and not (self._supports_attention_backend or _asks(type(self))):
            raise ValueError(f"{type(self).__name__} does not ask Transformers' attention interface, so that attn_implementation="
                             f'{NAME!r} would change nothing; simdattn.torch.install() reaches models that call '
                             'scaled_dot_product_attention')
        return usual(self, requested, *args, **options)

    return checked


def register(*, arithmetic: ArithmeticName = 'auto') -> None:
    """Makes attn_implementation='simdattn' known: in from_pretrained(), from_config() and
    model.set_attn_implementation().

    Masks, left padding, sliding windows, softcap, sinks, grouped heads, static and dynamic caches, beams and chunked
    prefill are followed. Keys that a model selects (DeepSeek V3.2, MiniMax M3) are attention()'s `lists`.
    torch.compile, torch.export and torch.jit.trace see operators. ValueError for models that do not ask the interface
    (`_supports_attention_backend`), and for those that Transformers refuses `sdpa` for and that name no other. Error
    for a keyword of a model's attention that is not known here.

    arithmetic: what multiplies, as in simdattn.attention(): by default what is fastest here for the model's type; 'f32'
        has the same bits on every CPU. Called again, it takes this one.
    """
    global _arithmetic
    if int(transformers.__version__.split('.')[0]) < 5:
        raise Error(Code.RANGE, f'register: Transformers 5 or later is wanted, not {transformers.__version__}')
    _arithmetic = arithmetic_name(arithmetic)
    AttentionInterface.register(NAME, _forward)
    AttentionMaskInterface.register(NAME, _mask)
    for name in ('get_correct_attn_implementation', 'set_attn_implementation'):
        usual = getattr(PreTrainedModel, name)
        if not hasattr(usual, '_simdattn'):  # registered before
            checked = _checked(usual)
            checked._simdattn = True
            setattr(PreTrainedModel, name, checked)


# ---- Layers with a state ---------------------------------------------------------------------------------------------


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _gated_delta_rule(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
                      initial_state: Optional[torch.Tensor] = None, output_final_state: bool = False,
                      use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Optional[torch.Tensor] = None,
                      **unread: Any) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """query, key, value: [batch, tokens, heads, dim]; g, the logarithms of the decay, and beta: [batch, tokens,
    heads]."""
    if use_qk_l2norm_in_kernel:
        query, key = _normed(query), _normed(key)
    sequences = query.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    state = torch.empty((sequences, value.shape[2], key.shape[3], value.shape[3]))
    past = torch.zeros_like(state) if initial_state is None else initial_state.float().contiguous()
    out = linear_attention(*(_contiguous(x).transpose(1, 2) for x in (query, key, value)), state, rule='gated_delta',
                           decay=g.transpose(1, 2)[..., None], beta=beta.transpose(1, 2)[..., None], state_in=past, cu_q=cu_seqlens)
    return out.transpose(1, 2), state if output_final_state else None


def _conv(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None, activation: Optional[str] = None,
          seq_idx: Any = None) -> torch.Tensor:
    """x: [batch, channels, tokens], weight: [channels, width]."""
    if seq_idx is not None:
        raise Error(Code.RANGE, 'seq_idx: packed sequences have no convolution here; pass them one by one')
    return causal_conv(_contiguous(x), weight, bias=bias, silu=activation in ('silu', 'swish'))


def _conv_update(x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None,
                 activation: Optional[str] = None) -> torch.Tensor:
    """state: [batch, channels, at least width - 1], the newest input last; it is written."""
    past = _contiguous(state[..., state.shape[-1] - weight.shape[1] + 1:])
    out = causal_conv(_contiguous(x), weight, bias=bias, silu=activation in ('silu', 'swish'), state_in=past)
    state.copy_(torch.cat([state, x], -1)[..., -state.shape[-1]:])
    return out


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


# The attributes by which models find what a layer calls.
_STATEFUL = {'chunk_gated_delta_rule': _gated_delta_rule, 'recurrent_gated_delta_rule': _gated_delta_rule, 'causal_conv1d_fn': _conv,
             'causal_conv1d_update': _conv_update}


def linear_layers(model: torch.nn.Module) -> int:
    """Lets linear_attention() and causal_conv() make the gated delta nets of a hybrid model (Qwen3-Next, Qwen3.5, OLMo
    hybrid); how many layers there were. 0: the model has none that are known here, and is as it was.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f'model: a torch.nn.Module is wanted, not {model!r}')
    found = [m for m in model.modules() if hasattr(m, 'chunk_gated_delta_rule') and hasattr(m, 'recurrent_gated_delta_rule')]
    for module in found:
        for name, ours in _STATEFUL.items():
            if hasattr(module, name):
                setattr(module, name, ours)
    return len(found)


# ---- The cache -------------------------------------------------------------------------------------------------------


class _States:
    """Keys or values of a layer, where others have a tensor. The attention takes the store; a model that changes them
    after its cache, as Doge and JetMoE do, gets a tensor of them, which costs a copy of all tokens at each step.
    """

    def __init__(self, cache: KVCache, which: int, dtype: torch.dtype, arithmetic: Optional[ArithmeticName] = None) -> None:
        self.arithmetic = arithmetic
        self.store = (cache.keys, cache.values)[which]
        self._cache, self._which, self.dtype = cache, which, dtype
        batch, heads, _, dim = self.store.shape
        tokens = len(cache)
        self._first = max(tokens - (cache.ring or tokens), 0)  # a ring has no tokens before
        self.shape = torch.Size((batch, heads, tokens, dim))

    def tensor(self) -> torch.Tensor:
        rows = torch.from_numpy(self._cache.read(self._first)[self._which]).to(self.dtype)
        return torch.nn.functional.pad(rows, (0, 0, self._first, 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor()[index]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        def plain(x: Any) -> Any:
            return type(x)(map(plain, x)) if isinstance(x, (list, tuple)) else x.tensor() if isinstance(x, _States) else x

        return function(*map(plain, args), **{name: plain(x) for name, x in (kwargs or {}).items()})


class _NotKept(Error, AttributeError):  # whether there is an attribute is asked, too
    pass


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """The cache of one layer: its attention takes the stores where others take tensors.

    Those of a prompt stay in its tensors until more follow, unless `dtype` or `arithmetic` is another: for few tokens a
    KVCache takes longer to make than attention does.
    """

    is_sliding = False

    def __init__(self, dtype: Any = None, capacity: int = 256, arithmetic: Optional[ArithmeticName] = None) -> None:
        super().__init__()
        self.arithmetic = arithmetic
        self.dtype_wanted, self.capacity = dtype, capacity
        self._cache: Any = None
        self._first: Any = None  # keys and values

    @property
    def cache(self) -> Any:
        """The KVCache with all tokens; None: there are none yet."""
        if self._first is not None:
            self.lazy_initialization(*self._first)
            first, self._first = self._first, None
            self._append(*first)
        return self._cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._cache = self._empty(key_states, value_states, self._room(key_states.shape[2] + 1), 0)

    def _room(self, tokens: int) -> int:
        """What so many tokens get memory for. To get that of all `capacity` takes longer than a short prompt."""
        return min(max(2 * tokens, 64), self.capacity if tokens <= self.capacity else 2 * tokens)

    def _empty(self, key_states: torch.Tensor, value_states: torch.Tensor, capacity: int, ring: int) -> KVCache:
        batch, heads, _, dim = key_states.shape
        return KVCache(batch, heads, capacity, dim, value_dim=value_states.shape[3], ring=ring,
                       dtype=key_states.dtype if self.dtype_wanted is None else self.dtype_wanted)

    def __getattr__(self, name: str) -> Any:
        raise _NotKept(Code.RANGE, f'{name}: is more than the keys and values that a layer of simdattn.transformers.Cache keeps; '
                             'Cache(config=model.config) has the layers that this model wants')

    @torch.compiler.disable
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any) -> Tuple[Any, Any]:
        same = self.arithmetic is None and self.dtype_wanted in (None, enumerator(KvType, key_states.dtype, 'dtype'))
        more, self.is_initialized = self.is_initialized, True
        if same and not more:
            self._first = key_states, value_states
            return self._first
        if self.cache is None:
            self.lazy_initialization(key_states, value_states)
        tokens = len(self.cache) + key_states.shape[2]
        if tokens > self.cache.capacity:
            self._cache = self.cache.resized(self._room(tokens))
        cache = self._append(key_states, value_states)
        return _States(cache, 0, key_states.dtype, self.arithmetic), _States(cache, 1, value_states.dtype, self.arithmetic)

    def _append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> KVCache:
        """Keeps new tokens; the cache that their attention reads."""
        self.cache.append(key_states, value_states)
        return self.cache

    def get_seq_length(self) -> int:
        return self._first[0].shape[2] if self._first is not None else 0 if self._cache is None else len(self._cache)

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
            self._cache = self.cache.fork(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.cache is not None:
            chosen = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
            self._cache = self.cache.select(chosen.tolist())


def _panels(tokens: int) -> int:
    return -(-tokens // 32) * 32


class _SlidingLayer(_Layer):
    """The cache of a layer with a sliding window: a ring that keeps the window alone. Masks are those of all tokens."""

    def __init__(self, window: int, *options: Any) -> None:
        super().__init__(*options)
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        ring = _panels(self.window)
        self._cache = self._empty(key_states, value_states, max(ring, self._room(key_states.shape[2] + 1)), ring)

    def _append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> KVCache:
        tokens, rows, ring = len(self.cache), key_states.shape[2], self.cache.ring
        if tokens + rows <= ring or self.window - 1 + rows <= ring:
            return super()._append(key_states, value_states)
        # The first of many rows see what the last ones overwrite: they attend to a longer ring, which goes afterwards.
        kept = min(tokens, self.window - 1)
        longer = _panels(kept + rows)
        whole = self._empty(key_states, value_states, max(longer, tokens + rows), longer)
        whole.lengths = [tokens - kept] * key_states.shape[0]
        if kept:
            whole.append(*self.cache.read(tokens - kept))
        whole.append(key_states, value_states)
        last = min(rows, ring)
        self.cache.lengths = [tokens + rows - last] * key_states.shape[0]
        self.cache.append(key_states[:, :, -last:], value_states[:, :, -last:])
        return whole

    def crop(self, max_length: int) -> None:
        if self.cache is not None:
            tokens = len(self.cache)
            length = max_length if max_length >= 0 else max(tokens + max_length, 0)
            if length < tokens and length - self.window + 1 < tokens - self.cache.ring:
                raise Error(Code.RANGE, f'max_length: {length} of {tokens} tokens need some that are out of the window of {self.window}')
        super().crop(max_length)


def _refuse_own(config: Any) -> None:
    """Error for a model whose file has a whole cache of its own: others lack what its layers ask for."""
    try:
        module = importlib.import_module(type(config).__module__.replace('.configuration_', '.modeling_'))
    except ImportError:  # of a program's own model
        return
    for name, x in vars(module).items():
        if name.endswith('Cache') and x.__module__ == module.__name__ and hasattr(x, 'get_seq_length') and not issubclass(x, CacheLayerMixin):
            raise Error(Code.RANGE, f'config: {config.model_type} takes a cache of its own alone, {name}, which generate() makes where '
                                    'past_key_values is left out')


def _layers_of(config: Any) -> List[Any]:
    """What DynamicCache has; also where none of the layers are shared, of which DynamicCache makes no layers at all."""
    if not hasattr(config, 'get_text_config'):
        raise TypeError(f'config: a configuration of Transformers is wanted, model.config, not {config!r}')
    text = config.get_text_config(decoder=True)
    _refuse_own(text)
    if getattr(text, 'num_kv_shared_layers', None) == 0:
        config = copy.copy(text)
        config.num_kv_shared_layers = -config.num_hidden_layers  # it takes the layers up to `-num_kv_shared_layers`
    return list(transformers.DynamicCache(config=config).layers)


def _layer_like(layer: Any, *options: Any) -> Any:
    if type(layer) is DynamicSlidingWindowLayer:
        return _SlidingLayer(layer.sliding_window, *options)
    return _Layer(*options) if type(layer) is DynamicLayer else layer


class Cache(transformers.Cache):  # type: ignore[misc]
    """Keys and values of all layers, for generate(past_key_values=...) of models with attn_implementation='simdattn'.

    dtype: how they are stored: 'q8_0', 'bf16', ... (KVCache has all); default: the type of the model. capacity: memory
        grows up to so many tokens as they come, and doubles beyond. The size of a head must be one that the type takes.
        config: of the model: layers with a sliding window then keep the window alone, and layers with a state or an
        indexer have Transformers' own caches. Error for models with a cache of their own, MiniMax and OLMo hybrid.
        arithmetic: as in register(), whose own it takes by default.
    """

    def __init__(self, *, dtype: Any = None, capacity: int = 256, config: Any = None,
                 arithmetic: Optional[ArithmeticName] = None) -> None:
        options = (None if dtype is None else enumerator(KvType, dtype, 'dtype'), integer(capacity, 'capacity', 1, 2**31 - 1),
                   None if arithmetic is None else arithmetic_name(arithmetic))
        layers = [] if config is None else [_layer_like(x, *options) for x in _layers_of(config)]
        if layers:
            super().__init__(layers=layers)
        else:
            super().__init__(layer_class_to_replicate=functools.partial(_Layer, *options))

    def _state(self, method: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except (IndexError, ValueError):
            raise Error(Code.RANGE, 'past_key_values: this model has layers with a state or an indexer, and a plain simdattn.transformers.Cache() has '
                                    'none; Cache(config=model.config) has the layers that it wants') from None

    def has_previous_state(self, *args: Any, **options: Any) -> Any:
        return self._state(super().has_previous_state, *args, **options)

    def update_conv_state(self, *args: Any, **options: Any) -> Any:
        return self._state(super().update_conv_state, *args, **options)

    def update_recurrent_state(self, *args: Any, **options: Any) -> Any:
        return self._state(super().update_recurrent_state, *args, **options)

    def update_indexer(self, *args: Any, **options: Any) -> Any:
        return self._state(super().update_indexer, *args, **options)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(x.cache.nbytes for x in self.layers if isinstance(x, _Layer) and x.cache is not None)


__all__ = ['Cache', 'linear_layers', 'register']
