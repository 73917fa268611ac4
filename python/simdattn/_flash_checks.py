"""Rules on the arguments of flash-attn's functions, in sentences that name them."""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Dict, Optional, Tuple, TypeVar

import torch

from ._abi import Code
from ._library import Error
from ._scoring import as_double, integer

F = TypeVar('F', bound=Callable[..., Any])


def called(**names: str) -> Callable[[F], F]:
    """Lets errors of a function name arguments as its callers do. names: what is there, and what they call it."""
    words = re.compile(rf'\b({"|".join(names)})\b')

    def translated(e: Exception) -> str:
        return words.sub(lambda m: names[m[0]], e.detail if isinstance(e, Error) else str(e))

    def around(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except Error as e:
                raise Error(e.code, translated(e)) from None
            except TypeError as e:
                raise TypeError(translated(e)) from None

        return call  # type: ignore[return-value]

    return around


class _Ranks(Dict[str, int]):
    """How many dimensions a layout has."""

    def __missing__(self, layout: str) -> int:
        self[layout] = layout.count(',') + 1
        return self[layout]


_RANKS = _Ranks()


def check(x: Any, argument: str, layout: str) -> None:
    """Error unless x is a tensor of these dimensions, by their names in flash-attn's order."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f'{argument}: a torch.Tensor is wanted, not {type(x).__name__}')
    if x.dim() != _RANKS[layout]:
        raise Error(Code.SHAPE, f'{argument}: has shape {tuple(x.shape)}; {layout} is wanted')


def refuse_dropout(dropout_p: Any) -> None:
    if as_double(dropout_p, 'dropout_p') != 0:
        raise Error(Code.RANGE, f'dropout_p: is {dropout_p}; this is for inference, it must be 0')


def window_of(x: Any) -> Tuple[int, int]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise TypeError(f'window_size: a pair is wanted, (left, right), not {x!r}')
    return integer(x[0], 'window_size'), integer(x[1], 'window_size')


def check_slopes(slopes: Any, batch: int, heads: int) -> None:
    if not isinstance(slopes, torch.Tensor):
        raise TypeError(f'alibi_slopes: a torch.Tensor is wanted, not {type(slopes).__name__}')
    if tuple(slopes.shape) not in ((heads, ), (batch, heads)):
        raise Error(Code.SHAPE,
                    f'alibi_slopes: has shape {tuple(slopes.shape)}; {(heads,)} or {(batch, heads)} is wanted')


def check_table(x: Any, sequences: Optional[int] = None) -> None:
    """A block table."""
    check(x, 'block_table', '[batch, pages of a sequence]')
    if sequences is not None and len(x) != sequences:
        raise Error(Code.SHAPE,
                    f'block_table: has shape {tuple(x.shape)}; int32 [{sequences}, pages of a sequence] is wanted')


def ends_of(cu: Any, argument: str) -> torch.Tensor:
    """Where sequences begin and end."""
    check(cu, argument, '[sequences + 1]')
    if cu.dtype != torch.int32 or not len(cu):
        raise Error(Code.DTYPE,
                    f'{argument}: is {cu.dtype} of shape {tuple(cu.shape)}; int32 [sequences + 1] is wanted')
    return cu  # type: ignore[no-any-return]


def check_ends(cu: torch.Tensor, total: Optional[int], argument: str) -> None:
    """As the library checks them where all sequences are one call. total: rows that they divide; None: not an
    array's."""
    numbers = cu.tolist()
    if numbers[0] != 0 or any(a > b for a, b in zip(numbers, numbers[1:])):
        raise Error(Code.RANGE, f'{argument}: is {numbers}; numbers from 0 on that do not fall are wanted')
    if total is not None and numbers[-1] > total:
        raise Error(Code.RANGE, f'{argument}: ends at row {numbers[-1]}; there are {total}')
