"""Types of arguments, for checkers of types: a keyword that is no option, and a word where an array is wanted, do not
pass."""

from __future__ import annotations

from typing import Any, Optional, Protocol, Sequence, Tuple, TypedDict, TypeVar, Union

from ._abi import Arithmetic, MropeLayout, RopePairing, RopeType
from ._targets import Target


class AnyArray(Protocol):
    """NumPy's, PyTorch's, and others with DLPack."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


A = TypeVar('A', bound=AnyArray)
Numbers = Union[AnyArray, Sequence[float]]
Integers = Union[AnyArray, Sequence[int]]
TargetName = Union[str, Target, None]
ArithmeticName = Union[str, Arithmetic]  # of attention and what is made of it 'auto', too
Pairing = Union[str, RopePairing]


class CommonOptions(TypedDict, total=False):
    """What ScoringOptions and OperatorOptions share."""

    scale: Optional[float]
    softcap: Optional[float]
    offset: Optional[int]
    offsets: Optional[Integers]
    window_left: Optional[int]
    window_right: Optional[int]
    chunk: Optional[int]
    prefix_end: Optional[Integers]
    kv_start: Optional[Integers]
    kv_length: Optional[Integers]
    bias: Optional[AnyArray]
    bias_scale: Optional[Numbers]
    mask: Optional[AnyArray]
    alibi_slopes: Optional[Numbers]
    sinks: Optional[Numbers]


class ScoringOptions(CommonOptions, total=False):
    """Scoring but for `causal`, which has another default in attend()."""

    packed_mask: Optional[Tuple[AnyArray, int]]


class PlanOptions(ScoringOptions, total=False):
    """Of attention(), but for `causal`, `return_lse` and what says how to run."""

    out: Union[AnyArray, bool, None]
    lse: Optional[AnyArray]
    cu_q: Optional[Integers]
    cu_k: Optional[Integers]
    acc: Optional[AnyArray]
    max: Optional[AnyArray]
    sum: Optional[AnyArray]
    lists: Optional[AnyArray]
    list_block: int
    arithmetic: ArithmeticName
    target: TargetName


class OperatorOptions(CommonOptions, total=False):
    """Of attend() of simdattn.torch, but for `causal` and `return_lse`."""

    arithmetic: ArithmeticName
    target: TargetName


class SequenceOptions(OperatorOptions, total=False):
    """Of attention() of simdattn.torch."""

    cu_q: Optional[Integers]
    cu_k: Optional[Integers]


class TableOptions(TypedDict, total=False):
    """Of rope_table(): the names of model configuration files."""

    rope_theta: Optional[float]
    rope_type: Union[str, RopeType, None]
    type: Optional[str]
    factor: Optional[float]
    original_max_position_embeddings: Optional[int]
    max_position_embeddings: Optional[int]
    seq_len: Optional[int]
    attention_factor: Optional[float]
    beta_fast: Optional[float]
    beta_slow: Optional[float]
    mscale: Optional[float]
    mscale_all_dim: Optional[float]
    truncate: Optional[bool]
    low_freq_factor: Optional[float]
    high_freq_factor: Optional[float]
    short_factor: Optional[Numbers]
    long_factor: Optional[Numbers]
    freq_factors: Optional[Numbers]
    inv_freq: Optional[Numbers]
    partial_rotary_factor: Optional[float]
    mrope_section: Optional[Sequence[int]]
    mrope_layout: Union[str, MropeLayout, None]
    mrope_interleaved: Optional[bool]
    f32_angles: Optional[bool]


# Names that other libraries have: what to write here.
_MASKS = 'say mask, where true attends, or bias, which is added'
_ALONG = 'it runs along the last dimension'
_OTHER_NAMES = {
    'attn_mask': _MASKS, 'attention_mask': _MASKS, 'axis': _ALONG, 'dim': _ALONG,
    'is_causal': 'say causal; the last row stands at the last key then, unless offset=0', 'softmax_scale': 'say scale',
    'sliding_window': 'say window_left = sliding_window - 1', 'window_size': 'say window_left and window_right', 'scaling': 'say scale',
    's_aux': 'say sinks', 'cu_seqlens_q': 'say cu_q', 'cu_seqlens_k': 'say cu_k', 'cache_seqlens': 'say kv_length',
    'enable_gqa': 'key heads may always be fewer', 'dropout_p': 'this is for inference', 'return_softmax_lse': 'say return_lse',
}


def refuse_unknown(function: str, names: Sequence[str], options: Sequence[str]) -> None:
    """TypeError for the first of the names that is no option, and what the option is called here."""
    for name in names:
        if name not in options:
            hint = f': {_OTHER_NAMES[name]}' if name in _OTHER_NAMES else ''
            raise TypeError(f'{function}() has no option {name!r}{hint}; there are {", ".join(sorted(options))}')
