"""Inputs that break a rule, of every operator: the status names the node, the input and the rule, and nothing is written."""
import models
import numpy as np
import onnxruntime as ort
import pytest

RNG = np.random.default_rng(4)
CONTRIB = {'opset': 17, 'domain': 'com.microsoft'}
F = np.float32


def numbers(*shape, t=F):
    return RNG.standard_normal(shape).astype(t)


def ones(*shape):
    return np.ones(shape, np.int32)


def attention(**changes):
    """4 query heads, 2 of keys, of 16 numbers; 5 rows, 6 new keys behind 3 past ones."""
    inputs = {'Q': numbers(1, 4, 5, 16), 'K': numbers(1, 2, 6, 16), 'V': numbers(1, 2, 6, 16), 'attn_mask': numbers(5, 9),
              'past_key': numbers(1, 2, 3, 16), 'past_value': numbers(1, 2, 3, 16)}
    present = {'out': (1, 4, 5, 16), 'pk': (1, 2, 9, 16), 'pv': (1, 2, 9, 16)}
    return 'Attention', {'opset': 23}, {**inputs, **changes}, present, {}


def lengths(**changes):
    inputs = {'Q': numbers(2, 4, 5, 16), 'K': numbers(2, 2, 6, 16), 'V': numbers(2, 2, 6, 16), 'attn_mask': None, 'past_key': None,
              'past_value': None, 'nonpad_kv_seqlen': np.array([6, 2])}
    return 'Attention', {'opset': 24}, {**inputs, **changes}, {'out': (2, 4, 5, 16)}, {}


def multi_head(**changes):
    inputs = {'query': numbers(1, 5, 32), 'key': numbers(1, 6, 32), 'value': numbers(1, 6, 32), 'bias': numbers(96),
              'key_padding_mask': ones(1, 9), 'attention_bias': numbers(1, 2, 5, 9), 'past_key': numbers(1, 2, 3, 16),
              'past_value': numbers(1, 2, 3, 16)}
    present = {'out': (1, 5, 32), 'pk': (1, 2, 9, 16), 'pv': (1, 2, 9, 16)}
    return 'MultiHeadAttention', CONTRIB, {**inputs, **changes}, present, {'num_heads': 2}


def group_query(**changes):
    inputs = {'query': numbers(1, 5, 64), 'key': numbers(1, 5, 32), 'value': numbers(1, 5, 32), 'past_key': numbers(1, 2, 20, 16),
              'past_value': numbers(1, 2, 20, 16), 'seqlens_k': np.array([13], np.int32), 'total_sequence_length': np.array(14, np.int32),
              'cos_cache': numbers(30, 8), 'sin_cache': numbers(30, 8), 'position_ids': np.arange(9, 14)[None],
              'attention_bias': numbers(1, 1, 5, 14), 'head_sink': numbers(4)}
    present = {'out': (1, 5, 64), 'pk': (1, 2, 20, 16), 'pv': (1, 2, 20, 16)}
    return 'GroupQueryAttention', CONTRIB, {**inputs, **changes}, present, {'num_heads': 4, 'kv_num_heads': 2, 'do_rotary': 1}


def rotary(**changes):
    inputs = {'input': numbers(1, 4, 5, 16), 'position_ids': np.arange(5)[None], 'cos_cache': numbers(9, 8), 'sin_cache': numbers(9, 8)}
    return 'RotaryEmbedding', CONTRIB, {**inputs, **changes}, {'out': (1, 4, 5, 16)}, {'interleaved': 1}


BAD = [
    (attention, 'Q', numbers(2, 4, 5, 16), 'K has another batch size'),
    (attention, 'Q', numbers(1, 3, 5, 16), 'K has a number of heads that does not divide'),
    (attention, 'K', numbers(1, 2, 6, 8), 'K has heads of another size'),
    (attention, 'V', numbers(1, 2, 7, 16), 'V has other numbers of heads or tokens'),
    (attention, 'V', numbers(1, 1, 6, 16), 'V has other numbers of heads or tokens'),
    (attention, 'attn_mask', numbers(4, 9), 'attn_mask does not broadcast'),
    (attention, 'attn_mask', numbers(5, 10), 'attn_mask does not broadcast'),
    (attention, 'past_key', numbers(1, 2, 3, 8), 'past_key has shape'),
    (attention, 'past_value', numbers(1, 2, 4, 16), 'past_value has another number of tokens'),
    (lengths, 'nonpad_kv_seqlen', np.array([7, 1]), 'nonpad_kv_seqlen has 7'),
    (lengths, 'nonpad_kv_seqlen', np.array([1, -1]), 'nonpad_kv_seqlen has -1'),
    (lengths, 'nonpad_kv_seqlen', np.array([1, 1, 1]), 'nonpad_kv_seqlen has shape'),
    (multi_head, 'query', numbers(1, 5, 33), 'query cannot be divided'),
    (multi_head, 'key', numbers(2, 6, 32), 'key has another batch size'),
    (multi_head, 'key', numbers(1, 6, 64), 'key has heads of another size'),
    (multi_head, 'value', numbers(1, 5, 32), 'value has other numbers of heads or tokens'),
    (multi_head, 'bias', numbers(95), 'bias has shape'),
    (multi_head, 'key_padding_mask', ones(1, 8), 'key_padding_mask has shape'),
    (multi_head, 'attention_bias', numbers(1, 3, 5, 9), 'attention_bias does not broadcast'),
    (multi_head, 'past_key', numbers(1, 2, 3, 8), 'past_key has shape|attention_bias does not'),
    (multi_head, 'past_value', numbers(1, 1, 3, 16), 'past_value has shape'),
    (group_query, 'cos_cache', numbers(12, 8), 'cos_cache has 12 rows, and a token is at 12'),
    (group_query, 'sin_cache', numbers(29, 8), 'sin_cache has shape'),
    (group_query, 'position_ids', np.arange(4)[None], 'position_ids has shape'),
    (group_query, 'position_ids', np.arange(-1, 4)[None], 'cos_cache has 30 rows, and a token is at -1'),
    (group_query, 'attention_bias', numbers(1, 1, 5, 13), 'attention_bias has shape'),
    (group_query, 'attention_bias', numbers(1, 3, 5, 14), 'attention_bias has other numbers'),
    (group_query, 'head_sink', numbers(3), 'head_sink has shape'),
    (rotary, 'input', numbers(1, 4, 5, 14), 'cos_cache has another number of columns'),
    (rotary, 'position_ids', np.arange(5)[None] + 5, 'cos_cache has 9 rows, and a token is at 9'),
    (rotary, 'position_ids', np.arange(4)[None], 'position_ids has another shape'),
    (rotary, 'cos_cache', numbers(9, 9), 'cos_cache has another number of columns'),
    (rotary, 'sin_cache', numbers(8, 8), 'sin_cache has shape'),
]


def bound(session, inputs, outputs):
    """A binding of these inputs, outputs of sevens, and what both are."""
    binding = session.io_binding()
    kept = {name: ort.OrtValue.ortvalue_from_numpy(x.copy()) for name, x in inputs.items() if x is not None}
    made = {name: ort.OrtValue.ortvalue_from_numpy(np.full(shape, 7, F)) for name, shape in outputs.items()}
    for name, x in kept.items():
        binding.bind_ortvalue_input(name, x)
    for name, x in made.items():
        binding.bind_ortvalue_output(name, x)
    return binding, kept, made


@pytest.mark.parametrize('make, name, value, says', BAD, ids=[f'{b[0].__name__}-{b[1]}-{i}' for i, b in enumerate(BAD)])
def test_bad_input(make, name, value, says):
    op, domain, good, outputs, attributes = make()
    # The model has no numbers of its dimensions, so that ONNX Runtime does not see the mistake before.
    model = models.of_one_node(op, list(good.items()), [(o, F, None) for o in outputs], **domain, **attributes)
    session = models.session(model, True, log='1')
    binding, kept, made = bound(session, {**good, name: value}, outputs)
    with pytest.raises(Exception, match=f"{op} 'node': input .*({says})"):
        session.run_with_iobinding(binding)
    for x in made.values():
        assert (x.numpy() == 7).all()
    binding, kept, made = bound(session, good, outputs)
    session.run_with_iobinding(binding)  # the good one runs, in the same session
    assert not (made['out'].numpy() == 7).all()


@pytest.mark.parametrize('make, output, says', [(attention, 'qk', 'the output qk_matmul_output'), (multi_head, 'qk', 'the output qk'),
                                                (group_query, 'qk', 'the output output_qk')])
def test_scores_are_left(make, output, says, capfd):
    op, domain, inputs, outputs, attributes = make()
    if make is group_query:
        attributes['qk_output'] = 1
    model = models.of_one_node(op, list(inputs.items()), [(o, F, None) for o in [*outputs, output]], **domain, **attributes)
    session = models.session(model, True, log='1')
    assert f"leaves {op} 'node' to ONNX Runtime: {says}" in capfd.readouterr().err
    assert session.get_outputs()[3].name == output
