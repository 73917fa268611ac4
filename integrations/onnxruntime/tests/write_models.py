#!/usr/bin/env python3
"""Writes models of one node for host.cc, whose dimensions have the names that it knows: write_models.py FOLDER

NAME.onnx is in float; NAME.f16.onnx and NAME.bf16.onnx differ from it in types alone. States of LinearAttention are float in each."""
import pathlib
import sys

from onnx import TensorProto, helper

F, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
HQ, HK, D = 4, 2, 32
CACHE = ['b', HK, 'past', D]
GQA = [('query', F, ['b', 'n', HQ * D]), ('key', F, ['b', 'n', HK * D]), ('value', F, ['b', 'n', HK * D]), ('past_key', F, CACHE),
       ('past_value', F, CACHE), ('seqlens_k', I32, ['b']), ('total', I32, [])]
TABLES = [('cos', F, [32, D // 2]), ('sin', F, [32, D // 2])]
ATTENTION = [('Q', F, ['b', HQ, 'n', D]), ('K', F, ['b', HK, 'n', D]), ('V', F, ['b', HK, 'n', D])]
PAST = [('past_key', F, CACHE), ('past_value', F, CACHE)]
MHA = [('query', F, ['b', 'n', HQ * D]), ('key', F, ['b', 'n', HQ * D]), ('value', F, ['b', 'n', HQ * D])]
LINEAR = [('query', F, ['b', 'n', HK * 8]), ('key', F, ['b', 'n', HK * 8]), ('value', F, ['b', 'n', HQ * D]),
          ('past_state', F, ['b', HQ, 8, D]), ('decay', F, ['b', 'n', HQ]), ('beta', F, ['b', 'n', HQ])]
TOKEN = [(name, t, ['t' if d == 'n' else d for d in shape]) for name, t, shape in LINEAR]  # host.cc: 't' is 1
CHANNELS = [('decay', F, ['b', 'n', HQ * 8])]
CONV = [('input', F, ['b', 200, 'n']), ('weight', F, [200, 1, 4]), ('bias', F, [200]), ('past_state', F, ['b', 200, 3])]
CONV_LAST = [('input', F, ['b', 'n', 200]), CONV[1], CONV[2], ('past_state', F, ['b', 3, 200])]
PRESENT = ['present_key', 'present_value']
TYPES = {'': F, '.f16': TensorProto.FLOAT16, '.bf16': TensorProto.BFLOAT16}

MODELS = {  # operator, domain, opset, inputs (None: absent), outputs, attributes
    'gqa': ('GroupQueryAttention', 'com.microsoft', 17, GQA, ['out', *PRESENT], {}),
    'gqa_window': ('GroupQueryAttention', 'com.microsoft', 17, GQA, ['out', *PRESENT], {'local_window_size': 6}),
    'gqa_rotary': ('GroupQueryAttention', 'com.microsoft', 17, GQA + TABLES, ['out', *PRESENT], {'do_rotary': 1, 'softcap': 2.0}),
    'attention_23': ('Attention', '', 23, ATTENTION + [None] + PAST, ['out', *PRESENT], {'is_causal': 1}),
    'attention_24': ('Attention', '', 24, ATTENTION + [('mask', F, ['n', 'n'])], ['out'], {}),
    'attention_23_softcap_mask': ('Attention', '', 23, ATTENTION + [('mask', F, ['n', 'n'])], ['out'], {'softcap': 1.0}),
    'attention_23_softcap_causal': ('Attention', '', 23, ATTENTION, ['out'], {'softcap': 1.0, 'is_causal': 1}),
    'attention_24_softcap_mask': ('Attention', '', 24, ATTENTION + [('mask', F, ['n', 'n'])], ['out'], {'softcap': 1.0}),
    'attention_24_softcap_causal': ('Attention', '', 24, ATTENTION, ['out'], {'softcap': 1.0, 'is_causal': 1}),
    'linear_gated_delta': ('LinearAttention', 'com.microsoft', 17, LINEAR, ['out', 'present_state'], {'update_rule': 'gated_delta'}),
    'linear_delta': ('LinearAttention', 'com.microsoft', 17, LINEAR, ['out', 'present_state'], {'update_rule': 'delta', 'scale': 0.5}),
    'linear_token': ('LinearAttention', 'com.microsoft', 17, TOKEN, ['out', 'present_state'], {'update_rule': 'gated_delta'}),
    'linear_gated': ('LinearAttention', 'com.microsoft', 17, LINEAR[:4] + CHANNELS, ['out', 'present_state'], {'update_rule': 'gated'}),
    'linear': ('LinearAttention', 'com.microsoft', 17, LINEAR[:3], ['out', 'present_state'], {'update_rule': 'linear'}),
    'conv': ('CausalConvWithState', 'com.microsoft', 17, CONV, ['out', 'present_state'], {'activation': 'silu'}),
    'conv_without_past': ('CausalConvWithState', 'com.microsoft', 17, CONV[:2], ['out', 'present_state'], {}),
    'conv_last': ('CausalConvWithState', 'com.microsoft', 17, CONV_LAST, ['out', 'present_state'], {'activation': 'silu', 'channels_last': 1}),
    'mha': ('MultiHeadAttention', 'com.microsoft', 17, MHA, ['out'], {'unidirectional': 1}),
    'rotary': ('RotaryEmbedding', '', 23, [('X', F, ['b', HQ, 'n', D]), *TABLES, ('ids', I64, ['b', 'n'])], ['out'], {'interleaved': 1}),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, (op, domain, opset, inputs, outputs, attributes) in MODELS.items():
        attributes = dict(attributes)
        if op == 'GroupQueryAttention':
            attributes.update(num_heads=HQ, kv_num_heads=HK)
        elif op == 'MultiHeadAttention':
            attributes.update(num_heads=HQ)
        elif op == 'LinearAttention':
            attributes.update(q_num_heads=HK, kv_num_heads=HQ)
        node = helper.make_node(op, [i[0] if i else '' for i in inputs], outputs, domain=domain, name=name, **attributes)
        sets = [helper.make_opsetid('', opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
        for suffix, narrow in TYPES.items():
            if suffix and name == 'linear':  # whose state would be narrow as well, so that the provider leaves it
                continue

            def of(value, t, shape, op=op, narrow=narrow):
                state = op == 'LinearAttention' and value.endswith('_state')
                return helper.make_tensor_value_info(value, narrow if t == F and not state else t, shape)
            graph = helper.make_graph([node], name, [of(*i) for i in inputs if i], [of(o, F, None) for o in outputs])
            model = helper.make_model(graph, opset_imports=sets, ir_version=10)
            (folder / f'{name}{suffix}.onnx').write_bytes(model.SerializeToString())


main()
