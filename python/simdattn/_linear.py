"""Attention with a state, and the convolution before it."""

from __future__ import annotations

from typing import Any, Dict, Optional, Union

import numpy as np

from . import _abi
from ._abi import DType, HeadOrder, LinearRule
from ._arrays import new_like, numbers, operand
from ._library import Record, check, enumerator, library
from ._scoring import as_float, boolean, put_numbers, put_sequences, put_view, sequences_of
from ._targets import execution
from ._tensors import mark_written
from ._types import A, AnyArray, Integers, TargetName


def _put_sequences(record: Record, batch: int, cu_q: Optional[Any], state_index: Optional[Any]) -> None:
    """Where sequences begin, and which states they have."""
    sequences = put_sequences(record, batch, cu_q)
    if state_index is not None:
        put_numbers(record, 'state_index', numbers(state_index, np.int32, sequences, 'state_index', 'sequence'))


def linear_attention(q: A, k: AnyArray, v: AnyArray, state: Optional[AnyArray], *, rule: Union[str, LinearRule] = 'gated_delta',
                     decay: Optional[AnyArray] = None, beta: Optional[AnyArray] = None, scale: Optional[float] = None,
                     out: Optional[AnyArray] = None, transposed: bool = False, head_order: Union[str, HeadOrder] = 'neighbours',
                     state_index: Optional[Integers] = None, states: Optional[AnyArray] = None, state_in: Optional[AnyArray] = None,
                     cu_q: Optional[Integers] = None, target: TargetName = None) -> A:
    """Attention whose past is a state S in place of keys and values; S is updated in place. For every token, in this
    order:

        S *= exp(decay)             rules 'gated', 'gated_delta'
        u = v                       rules 'linear', 'gated'
        u = beta * (v - k^T S)      rules 'delta', 'gated_delta'
        S += k u^T
        out = scale * q^T S

    Shapes:
        q: [batch, heads_q, tokens, d_k], k: [batch, heads_k, tokens, d_k], v: [batch, heads_v, tokens, d_v]
        out: [batch, max(heads_q, heads_v), tokens, d_v]; a new array of q's kind and type unless given
        state: float32 [states, heads_v, d_k, d_v]; transposed: [states, heads_v, d_v, d_k]. Zeros where nothing is past
        decay: [batch, heads_v, tokens, 1], or [.., d_k] for each channel of the key: logarithms; -inf clears
        beta: [batch, heads_v, tokens, 1], or [batch, 1, tokens, 1]; default 1
        states: float32 [sequences, W, heads_v, d_k, d_v]: filled with the states after each of the last W tokens
        state_in: of the shape of state: what is past, read in its place; state is then only written, or None

    float32, bfloat16 and float16 in any mixture, any strides, as long as the last dimension is contiguous.

    head_order: 'neighbours' share a head of k and q; 'repeated': as ggml has them, head h has h % heads_k.
    state_index: [sequences] which state a sequence has; negative: the sequence is skipped.
    cu_q: [sequences + 1] where sequences begin and end among the tokens of a batch of 1.
    A prompt in one call, in chunks or token by token gives the same bits.
    """
    record = Record(_abi.LinearAttentionProblem)
    record.put('rule', enumerator(LinearRule, rule, 'rule'))
    record.put('head_order', enumerator(HeadOrder, head_order, 'head_order'))
    record.put('transposed', boolean(transposed, 'transposed'))
    rows, values = operand(q, 'q'), operand(v, 'v')
    put_view(record, 'q', rows, 4, 'q', '[batch, heads_q, tokens, d_k]')
    put_view(record, 'k', operand(k, 'k'), 4, 'k', '[batch, heads_k, tokens, d_k]')
    put_view(record, 'v', values, 4, 'v', '[batch, heads_v, tokens, d_v]')
    for member, gate in (('decay', decay), ('beta', beta)):
        if gate is not None:
            put_view(record, member, operand(gate, member), 4, member, '[batch, heads_v, tokens, 1]')
    shape = '[states, heads_v, d_k, d_v]'
    if state is not None or state_in is None:
        put_view(record, 'state', operand(state, 'state', True), 4, 'state', shape)  # type: ignore[arg-type]
    if state_in is not None:
        put_view(record, 'state_in', operand(state_in, 'state_in'), 4, 'state_in', shape)
    written = [x for x in (state, out, states) if x is not None]
    if out is None:
        heads = max(rows.shape[1], values.shape[1])
        out = new_like(q, (rows.shape[0], heads, rows.shape[2], values.shape[3]), rows.dtype)
    put_view(record, 'out', operand(out, 'out', True), 4, 'out', '[batch, heads, tokens, d_v]')
    if states is not None:
        put_view(record, 'states', operand(states, 'states', True), 5, 'states', '[sequences, tokens, heads_v, d_k, d_v]')
    if scale is not None:
        record.put('scale.value', as_float(scale, 'scale'))
        record.put('scale.given', 1)
    _put_sequences(record, rows.shape[0], cu_q, state_index)
    how, reference = execution.with_target(target), record.reference()
    execution.grow(library.simdattn_linear_attention_workspace(reference))
    check(library.simdattn_linear_attention(reference, how), q=rows, k=k, v=values, decay=decay, beta=beta, state=state, out=out,
          states=states, state_in=state_in, cu_q=cu_q, state_index=state_index, scale=scale)
    mark_written(written)
    return out  # type: ignore[return-value]


def causal_conv(x: A, weight: AnyArray, *, bias: Optional[AnyArray] = None, state: Optional[AnyArray] = None, silu: bool = False,
                channels_last: bool = False, out: Optional[AnyArray] = None, state_index: Optional[Integers] = None,
                cu_q: Optional[Integers] = None, state_in: Optional[AnyArray] = None, out_transposed: bool = False,
                target: TargetName = None) -> A:
    """y[t] = bias + sum over j of weight[j] * z[t + j] for each channel; z is the state, the last width - 1 inputs, and
    then x.

    x: [batch, channels, tokens]; channels_last: [batch, tokens, channels]. weight: [channels, width], bias: [channels].
    state: [states, channels, width - 1], or [states, width - 1, channels], of x's type; updated in place. Without one
        the past is zeros, and nothing is kept. state_in: of the shape of state, read in its place; state is then only
        written, or None. It may be a part of the array that x is the rest of. silu: y / (1 + exp(-y)). out: as x; may
        be x itself. out_transposed: out is [batch, tokens, channels], with channels_last [batch, channels, tokens].
        state_index, cu_q: as in linear_attention().
    """
    record = Record(_abi.CausalConvProblem)
    inputs, taps = operand(x, 'x'), operand(weight, 'weight')
    shapes = '[batch, channels, tokens]', '[batch, tokens, channels]'
    last, transposed = boolean(channels_last, 'channels_last'), boolean(out_transposed, 'out_transposed')
    put_view(record, 'x', inputs, 3, 'x', shapes[last])
    put_view(record, 'weight', taps, 2, 'weight', '[channels, width]')
    record.put('channels_last', last)
    record.put('out_transposed', transposed)
    record.put('silu', boolean(silu, 'silu'))
    if bias is not None:
        put_view(record, 'bias', operand(bias, 'bias'), 1, 'bias', '[channels]')
    written = [a for a in (state, out) if a is not None]
    if state is None and state_in is None and taps.shape[1] > 1:
        sequences = sequences_of(inputs.shape[0], cu_q)
        channels, past = inputs.shape[2 if channels_last else 1], taps.shape[1] - 1
        state = new_like(x, (sequences, past, channels) if channels_last else (sequences, channels, past), inputs.dtype)
        state[...] = 0  # type: ignore[index]
    for member, array in (('state', state), ('state_in', state_in)):
        if array is not None:
            put_view(record, member, operand(array, member, member == 'state'), 3, member, '[states, channels, width - 1]')
    if out is None:
        batch, rows, columns = inputs.shape
        out = new_like(x, (batch, columns, rows) if transposed else inputs.shape, inputs.dtype)
    put_view(record, 'out', operand(out, 'out', True), 3, 'out', shapes[last != transposed])
    _put_sequences(record, inputs.shape[0], cu_q, state_index)
    given: Dict[str, Any] = {'x': inputs, 'weight': taps, 'bias': bias, 'state': state, 'out': out, 'cu_q': cu_q,
                             'state_index': state_index, 'state_in': state_in}
    check(library.simdattn_causal_conv(record.reference(), execution.with_target(target)), **given)
    mark_written(written)
    return out  # type: ignore[return-value]
