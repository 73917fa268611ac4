"""flash_attn.bert_padding: sequences with padding as one array without it, and back. PyTorch alone, with gradients."""

from __future__ import annotations

from typing import Optional, Tuple

import torch

Unpadded = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """x[indices]."""
    return x[indices]


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """[first_axis_dim, ...]: values at the indices, zeros elsewhere."""
    zeros = torch.zeros((first_axis_dim, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return zeros.index_put((indices, ), values)


class IndexFirstAxis:
    """index_first_axis, which is an autograd.Function in flash-attn."""

    apply = staticmethod(index_first_axis)


class IndexPutFirstAxis:
    """index_put_first_axis, likewise."""

    apply = staticmethod(index_put_first_axis)


def index_first_axis_residual(x: torch.Tensor, indices: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """x[indices], and x."""
    return x[indices], x.detach()


def _taken(x: torch.Tensor, indices: torch.Tensor,
           lengths: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Rows of x, where each sequence of them begins, and the longest."""
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.flatten(0, 1)[indices], indices, ends, int(lengths.max())


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor,
                unused_mask: Optional[torch.Tensor] = None) -> Unpadded:
    """The rows of hidden_states, [batch, rows, ...], where attention_mask, [batch, rows], is 1.

    unused_mask: rows that are kept, and do not count. The result: the rows, [total, ...]; their indices in [batch *
    rows]; cu_seqlens, int32 [batch + 1]; the longest sequence; how many rows of each sequence count, int32 [batch].
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    indices = kept.flatten().nonzero().flatten()
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_taken(hidden_states, indices, kept.sum(-1, dtype=torch.int32)), used)


def unpad_input_for_concatenated_sequences(
        hidden_states: torch.Tensor,
        attention_mask_in_length: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The rows of several sequences one behind the other in each batch entry: attention_mask_in_length, [batch, rows],
    begins with
    their lengths, and is 0 behind them. The first four results of unpad_input."""
    total = attention_mask_in_length.sum(-1)
    indices = (torch.arange(hidden_states.shape[1], device=total.device) < total[:, None]).flatten().nonzero().flatten()
    lengths = attention_mask_in_length.flatten()
    return _taken(hidden_states, indices, lengths[lengths > 0])


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """[batch, seqlen, ...]: the rows of unpad_input at their indices, zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


__all__ = [
    'IndexFirstAxis', 'IndexPutFirstAxis', 'index_first_axis', 'index_first_axis_residual', 'index_put_first_axis',
    'pad_input', 'unpad_input', 'unpad_input_for_concatenated_sequences'
]
