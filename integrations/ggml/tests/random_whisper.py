#!/usr/bin/env python3
"""A model of whisper.cpp with random weights, and a second of noise to transcribe: nodes and speed, not words.

    random_whisper.py MODEL WAV WIDTH HEADS LAYERS
"""
import struct
import sys
import wave

import numpy as np

VOCABULARY, AUDIO, TEXT, MELS = 51865, 1500, 448, 80


class Model:
    """Tensors in ggml's old format: dimensions, name, numbers."""

    def __init__(self, file):
        self.file = file
        self.random = np.random.default_rng(1)

    def tensor(self, name, *shape, deviation=None, value=None, half=None):
        if value is not None:
            x = np.full(shape, value, np.float32)
        else:
            deviation = deviation or 1 / np.prod(shape[1:]) ** 0.5
            x = self.random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        half = len(shape) > 1 if half is None else half
        self.file.write(struct.pack('3i', len(shape), len(name), int(half)))
        self.file.write(struct.pack(f'{len(shape)}i', *reversed(shape)) + name.encode())
        self.file.write(x.astype(np.float16 if half else np.float32).tobytes())

    def norm(self, name, width):
        self.tensor(name + '.weight', width, value=1)
        self.tensor(name + '.bias', width, value=0)

    def linear(self, name, rows, columns, bias=True, deviation=None):
        self.tensor(name + '.weight', rows, columns, deviation=deviation)
        if bias:
            self.tensor(name + '.bias', rows, deviation=0.02)

    def attention(self, name, width):
        self.linear(name + '.query', width, width, deviation=2 / width**0.5)
        self.linear(name + '.key', width, width, bias=False, deviation=2 / width**0.5)
        self.linear(name + '.value', width, width)
        self.linear(name + '.out', width, width)


def main():
    path, sound, width, heads, layers = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    with open(path, 'wb') as file:
        m = Model(file)
        file.write(struct.pack('i', 0x67676d6c))
        file.write(struct.pack('11i', VOCABULARY, AUDIO, width, heads, layers, TEXT, width, heads, layers, MELS, 1))
        file.write(struct.pack('2i', MELS, 201) + (m.random.random((MELS, 201)) * 0.01).astype(np.float32).tobytes())
        file.write(struct.pack('i', 50257))
        for i in range(50257):
            word = bytes([i]) if i < 256 else b'w%d' % i  # whisper.cpp looks for a space
            file.write(struct.pack('i', len(word)) + word)
        m.tensor('encoder.positional_embedding', AUDIO, width, half=False, deviation=0.5)
        for i, columns in ((1, MELS), (2, width)):
            m.tensor(f'encoder.conv{i}.weight', width, columns, 3)
            m.tensor(f'encoder.conv{i}.bias', width, 1, half=False, deviation=0.1)
        m.norm('encoder.ln_post', width)
        m.tensor('decoder.positional_embedding', TEXT, width, half=False, deviation=0.5)
        m.tensor('decoder.token_embedding.weight', VOCABULARY, width, deviation=0.5)
        m.norm('decoder.ln', width)
        for part in ('encoder', 'decoder'):
            for i in range(layers):
                name = f'{part}.blocks.{i}.'
                m.norm(name + 'attn_ln', width)
                m.attention(name + 'attn', width)
                m.norm(name + 'mlp_ln', width)
                m.linear(name + 'mlp.0', 4 * width, width)
                m.linear(name + 'mlp.2', width, 4 * width)
                if part == 'decoder':
                    m.norm(name + 'cross_attn_ln', width)
                    m.attention(name + 'cross_attn', width)
    with wave.open(sound, 'wb') as noise:
        noise.setparams((1, 2, 16000, 0, 'NONE', ''))
        noise.writeframes((m.random.standard_normal(16000) * 3000).astype(np.int16).tobytes())


main()
