#!/usr/bin/env python3
"""A checkpoint of llama2.c with its tokenizer as a GGUF file, which llama.cpp reads.

    stories_gguf.py CHECKPOINT TOKENIZER OUT

Needs gguf (Debian: python3-gguf).
"""
import pathlib
import struct
import sys

import gguf
import numpy as np


def read_tokens(path):
    """The pieces and scores of a tokenizer file: an i32, then a float, a length and the bytes of each."""
    data, at, pieces, scores = path.read_bytes(), 4, [], []
    while at < len(data):
        score, length = struct.unpack_from('<fi', data, at)
        pieces.append(data[at + 8:at + 8 + length])
        scores.append(score)
        at += 8 + length
    return pieces, scores


def main():
    checkpoint, tokenizer, out = sys.argv[1:]
    data = pathlib.Path(checkpoint).read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, length = struct.unpack_from('<7i', data)
    vocab = abs(vocab)
    floats, at = np.frombuffer(data, np.float32, offset=28), 0

    def take(*shape):
        nonlocal at
        n = int(np.prod(shape))
        at += n
        return floats[at - n:at].reshape(shape)

    kv_dim = dim // heads * kv_heads
    w = gguf.GGUFWriter(out, 'llama')
    w.add_name('stories')
    w.add_context_length(length)
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(dim // heads)
    w.add_vocab_size(vocab)
    pieces, scores = read_tokens(pathlib.Path(tokenizer))
    # llama.cpp has U+2581 where SentencePiece's pieces have it and llama2.c has a space; bytes are <0xNN> in both.
    w.add_tokenizer_model('llama')
    w.add_token_list([b'<unk>', b'<s>', b'</s>'] + [p.replace(b' ', '\u2581'.encode()) for p in pieces[3:]])
    w.add_token_scores(scores)
    w.add_token_types([2, 3, 3] + [6 if p.startswith(b'<0x') else 1 for p in pieces[3:]])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    embedding = take(vocab, dim)
    w.add_tensor('token_embd.weight', embedding)
    w.add_tensor('output.weight', embedding)
    # The order of the file: every kind of tensor for all layers.
    for name, shape in (('attn_norm', (dim,)), ('attn_q', (dim, dim)), ('attn_k', (kv_dim, dim)), ('attn_v', (kv_dim, dim)),
                        ('attn_output', (dim, dim)), ('ffn_norm', (dim,)), ('ffn_gate', (hidden, dim)), ('ffn_down', (dim, hidden)),
                        ('ffn_up', (hidden, dim))):
        for layer in range(layers):
            w.add_tensor(f'blk.{layer}.{name}.weight', take(*shape))
    w.add_tensor('output_norm.weight', take(dim))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
