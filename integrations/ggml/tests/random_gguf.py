#!/usr/bin/env python3
"""A model of the Llama architecture with random weights, heads of 128, as a GGUF file: greedy text and speed, not meaning.

    random_gguf.py OUT LAYERS WIDTH HIDDEN HEADS KV_HEADS [VOCABULARY [TYPE]]

TYPE: of the weights, Q4_0 or F32. Products with Q4_0 round what they multiply to eight bits, so that the last bits of attention
reach the text much enlarged.

Two layers of an 8B model: random_gguf.py OUT 2 4096 14336 32 8 32000; all of it: with 32. Needs gguf (Debian: python3-gguf).
"""
import sys

import gguf
import numpy as np
from gguf import quants

D = 128


def main():
    out, layers, width, hidden, heads, kv_heads = sys.argv[1], *map(int, sys.argv[2:7])
    vocab = int(sys.argv[7]) if len(sys.argv) > 7 else 1000
    kinds = gguf.GGMLQuantizationType
    weights = kinds[sys.argv[8]] if len(sys.argv) > 8 else kinds.Q4_0
    embedding = kinds.F32 if weights == kinds.F32 else kinds.Q8_0
    random = np.random.default_rng(1)
    w = gguf.GGUFWriter(out, 'llama')
    w.add_name('random')
    w.add_context_length(32768)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(500000.0)
    w.add_rope_dimension_count(D)
    w.add_key_length(D)
    w.add_value_length(D)
    w.add_vocab_size(vocab)
    words = vocab - 259
    w.add_tokenizer_model('llama')
    w.add_token_list([b'<unk>', b'<s>', b'</s>'] + [b'<0x%02X>' % i for i in range(256)] +
                     ['\u2581w{}'.format(i).encode() for i in range(words)])
    w.add_token_scores([0.0] * 259 + [-float(i) for i in range(words)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * words)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)

    made = {}

    def add(name, rows, columns, deviation, kind=weights):
        # Making 32 layers takes minutes, and no figure of speed depends on their being different: from the fifth on
        # they are those before, at places of their own in the file.
        layer, _, part = name.removeprefix('blk.').partition('.')
        key = (part, int(layer) % 4) if part else name
        if key not in made:
            x = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)
            made[key] = quants.quantize(x, kind)
        w.add_tensor(name + '.weight', made[key], raw_dtype=kind)

    def ones(name):
        w.add_tensor(name + '.weight', np.ones(width, np.float32))

    add('token_embd', vocab, width, 1.0, embedding)
    add('output', vocab, width, 2 / width**0.5, embedding)
    ones('output_norm')
    for i in range(layers):
        block = f'blk.{i}.'
        ones(block + 'attn_norm')
        ones(block + 'ffn_norm')
        # Scores of a few units, so that attention looks at some keys more than at others.
        add(block + 'attn_q', heads * D, width, 1.5 / width**0.5)
        add(block + 'attn_k', kv_heads * D, width, 1.5 / width**0.5)
        add(block + 'attn_v', kv_heads * D, width, 1 / width**0.5)
        add(block + 'attn_output', width, heads * D, 1 / (heads * D)**0.5)
        add(block + 'ffn_gate', hidden, width, 1 / width**0.5)
        add(block + 'ffn_up', hidden, width, 1 / width**0.5)
        add(block + 'ffn_down', width, hidden, 1 / hidden**0.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
