"""attention(), rope() and the calls of a KVCache as operators of PyTorch.

torch.compile(fullgraph=True), torch.export, torch.jit.trace and make_fx see them, where simdattn.attention itself is a
call that they cannot look into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Literal, Optional, Sequence, Tuple, overload

import torch

from ._abi import Arithmetic, Code, RopePairing
from ._attention import attention as _attention
from ._cache import KVCache, living
from ._library import Error, enumerator
from ._rope import rope as _rope
from ._scoring import as_double, boolean, integer
from ._targets import Target
from ._tensors import refuse_gradient
from ._types import OperatorOptions, Pairing, SequenceOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Sizes and positions that differ from call to call stay one graph where PyTorch has the type for it.
_INT = 'SymInt' if hasattr(torch, 'SymInt') and hasattr(torch._C._AutoDispatchBelowAutograd, '__enter__') else 'int'
# What happens to scores, in the order of the operators' arguments: name and type.
_SCORING = {'bias': 'Tensor?', 'mask': 'Tensor?', 'bias_scale': 'Tensor?', 'alibi_slopes': 'Tensor?', 'sinks': 'Tensor?',
            'kv_start': 'Tensor?', 'kv_length': 'Tensor?', 'offsets': 'Tensor?', 'prefix_end': 'Tensor?', 'causal': 'bool',
            'scale': 'float?', 'softcap': 'float?', 'offset': f'{_INT}?', 'window_left': f'{_INT}?',
            'window_right': f'{_INT}?', 'chunk': f'{_INT}?', 'target': 'str?', 'arithmetic': 'str?'}
_ENDS = {'cu_q': 'Tensor?', 'cu_k': 'Tensor?', 'lists': 'Tensor?', 'list_block': f'{_INT}?'}
_TURNS = {'pairing': 'str', 'first_dim': 'int'}

# PyTorch 1.13 has one Library for a name, so sdpa's operators are in it too; it lacks torch.library.custom_op.
library = torch.library.Library('simdattn', 'DEF')


def _parameters(options: Dict[str, str]) -> str:
    return ', '.join(f'{kind} {name}' for name, kind in options.items())


def _define(name: str, arguments: str, kernel: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    library.define(f'{name}({arguments}')
    operator = getattr(torch.ops.simdattn, name)

    def no_derivative(*given: Any) -> Any:
        for i, x in enumerate(given):
            if isinstance(x, torch.Tensor):
                refuse_gradient(x, ('q', 'k', 'v')[i] if i < 3 and name == 'attention' else f'{name}(): argument {i + 1}')
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*given)

    library.impl(name, kernel, 'CPU')
    library.impl(name, shapes, 'Meta')
    if hasattr(torch._C._AutoDispatchBelowAutograd, '__enter__'):  # PyTorch 2.1 and later
        library.impl(name, no_derivative, 'Autograd')
    return operator


def _given(names: Sequence[str], values: Sequence[Any]) -> Dict[str, Any]:
    return {name: x for name, x in zip(names, values) if x is not None}


def _results(q: torch.Tensor, dim: int) -> Tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty((*q.shape[:3], dim)), q.new_empty(q.shape[:3], dtype=torch.float32)


def _attention_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Any:
    return _attention(q, k, v, return_lse=True, **_given((*_SCORING, *_ENDS), options))


def _attention_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any) -> Any:
    return _results(q, v.shape[3])


def _attend_kernel(q: torch.Tensor, lengths: torch.Tensor, cache: str, dim: int, *options: Any) -> Any:
    return living[cache].attend(q, return_lse=True, **_given(list(_SCORING), options))


def _attend_shapes(q: torch.Tensor, lengths: torch.Tensor, cache: str, dim: int, *options: Any) -> Any:
    return _results(q, dim)


def _append_kernel(k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, cache: str, cos: Optional[torch.Tensor],
                   sin: Optional[torch.Tensor], *turns: Any) -> None:
    found = living[cache]
    options = {} if cos is None else dict(rope=(cos, sin), **_given(list(_TURNS), turns))
    found.append(k, v, **options)
    # The same memory, but where PyTorch has made the operator one that changes nothing.
    lengths.copy_(torch.from_numpy(found.lengths.copy()))


def _rope_kernel(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: Optional[torch.Tensor], start: int,
                 inverse: bool, *turns: Any) -> Any:
    return _rope(x, cos, sin, positions, start=start, inverse=inverse, **_given(list(_TURNS), turns))


_attention_operator = _define('attention', f'Tensor q, Tensor k, Tensor v, {_parameters({**_SCORING, **_ENDS})}) -> (Tensor, Tensor)',
                              _attention_kernel, _attention_shapes)
_attend_operator = _define('attend', f'Tensor q, Tensor lengths, str cache, int dim, {_parameters(_SCORING)}) -> (Tensor, Tensor)',
                           _attend_kernel, _attend_shapes)
_append_operator = _define('append', 'Tensor k, Tensor v, Tensor(a!) lengths, str cache, Tensor? cos, Tensor? sin, '
                           f'{_parameters(_TURNS)}) -> ()', _append_kernel, lambda *given: None)
_rope_operator = _define('rope', f'Tensor x, Tensor cos, Tensor sin, Tensor? positions, {_INT} start, bool inverse, '
                         f'{_parameters(_TURNS)}) -> Tensor', _rope_kernel, lambda x, *given: x.new_empty(x.shape))


# ---- What is called --------------------------------------------------------------------------------------------------


def tensor(x: Any, argument: str) -> torch.Tensor:
    """x, if it is a tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f'{argument}: a torch.Tensor is wanted, not {type(x).__name__}')
    return x


def _numbers(x: Any, argument: str) -> torch.Tensor:
    """A tensor, or a list as one."""
    if isinstance(x, torch.Tensor):
        return x
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f'{argument}: a torch.Tensor or a list of numbers is wanted, not {x!r}') from None


def _integer(x: Any, argument: str) -> Any:
    """x, which compilers may know by its name alone."""
    return x if isinstance(x, (int, getattr(torch, 'SymInt', int))) else integer(x, argument)


def _number(x: Any, argument: str) -> Any:
    return x if isinstance(x, (int, float)) else as_double(x, argument)


def _word(x: Any, argument: str) -> str:
    if not isinstance(x, str):
        raise TypeError(f'{argument}: a name is wanted, not {x!r}')
    return x


# What an argument of a schema's type has to be.
_CHECKS: Dict[str, Callable[[Any, str], Any]] = {'Tensor': _numbers, 'bool': boolean, 'float': _number, 'int': _integer, 'SymInt': _integer,
                                                 'str': _word}


def _pairing_name(x: Any) -> str:
    return x if isinstance(x, str) else enumerator(RopePairing, x, 'pairing').name.lower()


def _operands(function: str, options: Dict[str, Any], names: Dict[str, str]) -> Tuple[Any, ...]:
    """The options in the operator's order: lists become tensors."""
    unknown = [name for name in options if name not in names]
    if unknown:
        raise TypeError(f'{function}() has no option {unknown[0]!r}; there are {", ".join(sorted(names))}')
    found = []
    for name, kind in names.items():
        x = options.get(name)
        if isinstance(x, Target):
            x = x.name
        if isinstance(x, Arithmetic):
            x = x.name.lower()
        if x is not None:
            x = _CHECKS[kind.rstrip('?')](x, name)
        found.append(x)
    return tuple(found)


@overload
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = ..., return_lse: Literal[False] = ...,
              **options: Unpack[SequenceOptions]) -> torch.Tensor: ...


@overload
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = ..., return_lse: Literal[True],
              **options: Unpack[SequenceOptions]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, return_lse: bool = False,
              **options: Any) -> Any:
    """simdattn.attention() of tensors as an operator, torch.ops.simdattn.attention, which torch.compile(fullgraph=True)
    sees.

    options: bias, mask, bias_scale, alibi_slopes, sinks, kv_start, kv_length, offsets, prefix_end, scale, softcap,
    offset, window_left, window_right, chunk, cu_q, cu_k, lists, list_block, arithmetic, target, as there. return_lse:
    (out, lse).
    """
    q, k, v = tensor(q, 'q'), tensor(k, 'k'), tensor(v, 'v')
    found = _attention_operator(q, k, v, *_operands('attention', dict(options, causal=causal), {**_SCORING, **_ENDS}))
    return found if boolean(return_lse, 'return_lse') else found[0]


def _lengths_of(cache: KVCache) -> torch.Tensor:
    if not isinstance(cache, KVCache):
        raise TypeError(f'cache: a KVCache is wanted, not {type(cache).__name__}')
    if cache.tensor_of_lengths is None:
        raise Error(Code.RANGE, 'cache: was made before PyTorch was imported; import simdattn.torch first')
    return cache.tensor_of_lengths


@overload
def attend(cache: KVCache, q: torch.Tensor, *, causal: bool = ..., return_lse: Literal[False] = ...,
           **options: Unpack[OperatorOptions]) -> torch.Tensor: ...


@overload
def attend(cache: KVCache, q: torch.Tensor, *, causal: bool = ..., return_lse: Literal[True],
           **options: Unpack[OperatorOptions]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def attend(cache: KVCache, q: torch.Tensor, *, causal: bool = True, return_lse: bool = False, **options: Any) -> Any:
    """cache.attend(q) as an operator. options: as of attention() here, but for cu_q and cu_k."""
    operands = _operands('attend', dict(options, causal=causal), _SCORING)
    found = _attend_operator(tensor(q, 'q'), _lengths_of(cache), cache.handle, cache.values.shape[3], *operands)
    return found if boolean(return_lse, 'return_lse') else found[0]


def append(cache: KVCache, k: torch.Tensor, v: torch.Tensor, *, rope: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
           pairing: Pairing = 'half_split', first_dim: int = 0) -> None:
    """cache.append(k, v) as an operator. rope: cos and sin, float32 tensors [positions, pairs], as KVCache.append() has
    them."""
    if rope is not None and (not isinstance(rope, (tuple, list)) or len(rope) != 2):
        raise TypeError(f'rope: a pair of tensors is wanted, (cos, sin), not {rope!r}')
    cos, sin = (None, None) if rope is None else (tensor(rope[0], 'rope'), tensor(rope[1], 'rope'))
    _append_operator(tensor(k, 'k'), tensor(v, 'v'), _lengths_of(cache), cache.handle, cos, sin, _pairing_name(pairing),
                     integer(first_dim, 'first_dim'))


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: Optional[torch.Tensor] = None, *, start: int = 0,
         pairing: Pairing = 'half_split', inverse: bool = False, first_dim: int = 0) -> torch.Tensor:
    """simdattn.rope() as an operator, torch.ops.simdattn.rope; cos and sin are tensors."""
    positions = None if positions is None else _numbers(positions, 'positions')
    result: torch.Tensor = _rope_operator(tensor(x, 'x'), tensor(cos, 'cos'), tensor(sin, 'sin'), positions, _integer(start, 'start'),
                                          boolean(inverse, 'inverse'), _pairing_name(pairing), integer(first_dim, 'first_dim'))
    return result


__all__ = ['append', 'attend', 'attention', 'rope']
