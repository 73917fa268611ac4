"""flash_attn's functions against their definition in float64, every option in f32, bf16, f16; `import flash_attn`."""
import itertools
import math
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from flash_reference import TYPES, CacheCall, close, definition, of_sequence, paged, rotated
from test_arrays import refused

import simdattn
import simdattn.flash_attn as flash
from simdattn._abi import Code

BATCH, HEADS, DIM = 3, 4, 32
WINDOWS = [(-1, -1), (5, 0), (7, 3), (-1, 4), (3, -1)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the definition's operations are small
    yield
    torch.set_num_threads(threads)


def tensors(dtype, rows, tokens, kv_heads):
    return [torch.randn(BATCH, n, h, DIM).to(dtype) for n, h in ((rows, HEADS), (tokens, kv_heads), (tokens, kv_heads))]


def options():
    """Every option with every other, in turn over sizes: (causal, window, softcap, slopes, rows, tokens, kv_heads)."""
    sizes = itertools.cycle([(7, 7, 2), (3, 40, 4), (33, 20, 1)])
    return [(*chosen, *next(sizes)) for chosen in itertools.product((False, True), WINDOWS, (0.0, 15.0), (0, 1, 2))]


def slopes_of(kind):
    """None, of each head, of each sequence and head."""
    return (None, torch.rand(HEADS) * 0.3, torch.rand(BATCH, HEADS) * 0.3)[kind]


@pytest.mark.parametrize('dtype', TYPES)
def test_every_option(dtype):
    for causal, window, softcap, kind, rows, tokens, kv_heads in options():
        q, k, v = tensors(dtype, rows, tokens, kv_heads)
        slopes = slopes_of(kind)
        given = dict(causal=causal, window_size=window, softcap=softcap, alibi_slopes=slopes,
                     softmax_scale=0.3 if kind == 1 else None)
        out, lse, probabilities = flash.flash_attn_func(q, k, v, return_attn_probs=True, **given)
        assert out.dtype == dtype and lse.dtype == torch.float32 and probabilities is None
        assert torch.equal(flash.flash_attn_func(q, k, v, **given), out)
        # The same sequences, shorter by 0, 1 and 2, one behind the other, and in pages.
        lengths = [(rows - b, tokens - b) for b in range(BATCH)]
        ends = [torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in zip(*lengths)]
        flat = [torch.cat([x[b, :n[i]] for b, n in enumerate(lengths)]) for i, x in ((0, q), (1, k), (1, v))]
        packed, packed_lse, _ = flash.flash_attn_varlen_func(*flat, *ends, rows, tokens, return_attn_probs=True,
                                                             **given)
        table, pages = paged(k, v, 8)
        in_pages, pages_lse, _ = flash.flash_attn_varlen_func(flat[0], *pages, *ends, rows, tokens,
                                                              return_attn_probs=True, block_table=table, **given)
        assert torch.equal(in_pages, packed) and torch.equal(pages_lse, packed_lse)
        for b, (n, m) in enumerate(lengths):
            scoring = dict(scale=given['softmax_scale'], causal=causal, window=window, softcap=softcap,
                           slopes=of_sequence(slopes, b))
            close(out[b],
                  definition(q[b], k[b], v[b], **scoring)[0], dtype, lse[b],
                  definition(q[b], k[b], v[b], **scoring)[1])
            wanted, wanted_lse = definition(q[b, :n], k[b, :m], v[b, :m], **scoring)
            part = slice(int(ends[0][b]), int(ends[0][b + 1]))
            close(packed[part], wanted, dtype, packed_lse[:, part], wanted_lse)


def test_packed():
    q, k, v = tensors(torch.float32, 9, 9, HEADS)
    ends = torch.tensor([0, 9, 14], dtype=torch.int32)
    wanted = flash.flash_attn_func(q, k, v, causal=True, window_size=(3, 0))
    assert torch.equal(flash.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2), causal=True, window_size=(3, 0)),
                       wanted)
    assert torch.equal(flash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), causal=True, window_size=(3, 0)),
                       wanted)
    flat = [x.flatten(0, 1)[:14] for x in (q, k, v)]
    wanted = flash.flash_attn_varlen_func(*flat, ends, ends, 9, 9, softcap=3.0)
    assert torch.equal(flash.flash_attn_varlen_qkvpacked_func(torch.stack(flat, 1), ends, 9, softcap=3.0), wanted)
    assert torch.equal(
        flash.flash_attn_varlen_kvpacked_func(flat[0], torch.stack(flat[1:], 1), ends, ends, 9, 9, softcap=3.0), wanted)


@pytest.mark.parametrize('dtype', TYPES)
@pytest.mark.parametrize('where', ['rows', 'index', 'pages'])
def test_a_cache(dtype, where):
    for causal, window, new, rotary, interleaved, left, kind in itertools.product(
        (False, True), ((-1, -1), (9, 0)), (0, 3), (False, True), (False, True), (False, True), (0, 2)):
        if rotary and not new or interleaved and not rotary:
            continue
        angles = DIM // 4 if rotary else 0
        call = CacheCall(dtype, where, 2, HEADS, 2, DIM, 48, [20, 5, 40], new, causal, window, slopes_of(kind), angles,
                         interleaved, [3, 0, 7] if left else None, 16)
        call.compare()


def test_lengths_of_a_cache():
    q, k, v = tensors(torch.float32, 2, 20, 2)
    assert torch.equal(flash.flash_attn_with_kvcache(q, k, v), flash.flash_attn_func(q, k, v))
    assert torch.equal(flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, causal=True),
                       flash.flash_attn_func(q, k[:, :7], v[:, :7], causal=True))


@pytest.mark.parametrize('paging', [False, True])
def test_a_cache_that_comes_again(paging):
    """Later calls with the same memory are quick ones: they see its new tokens, other tables and lengths, and nothing
    lives longer."""
    keys, values = torch.randn(2, 8, 16, 2, DIM) if paging else torch.randn(2, 2, 64, 2, DIM)
    for turn in range(6):
        q, k, v = torch.randn(2, 1, HEADS, DIM), torch.randn(2, 1, 2, DIM), torch.randn(2, 1, 2, DIM)
        lengths = torch.tensor([5 + turn, 30 - turn], dtype=torch.int32)
        table = torch.randperm(8).reshape(2, 4).int() if paging else None
        lines = [x.clone()[table.long()].reshape(2, 64, 2, DIM) if paging else x.clone() for x in (keys, values)]
        versions = keys._version, values._version
        found = flash.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=lengths, block_table=table, causal=True)
        assert keys._version > versions[0] and values._version > versions[1]
        for line, new in zip(lines, (k, v)):
            for b, n in enumerate(lengths.tolist()):
                line[b, n] = new[b, 0]
        wanted = torch.cat([flash.flash_attn_func(q[b:b + 1], *(x[b:b + 1, :n + 1] for x in lines)) for b, n in enumerate(lengths.tolist())])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
        assert torch.equal(found, flash.flash_attn_with_kvcache(q, keys, values, cache_seqlens=lengths + 1, block_table=table, causal=True))
    for wrong in (torch.tensor([5, 64], dtype=torch.int32), torch.tensor([-1, 5], dtype=torch.int32)):
        with pytest.raises(simdattn.Error, match='cache_seqlens|k: has'):
            flash.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=wrong, block_table=table)
    keys.requires_grad_()
    with pytest.raises(simdattn.Error, match='gradient'):
        flash.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=lengths, block_table=table)
    gone = weakref.ref(keys)
    del keys
    assert gone() is None


def test_threads_with_one_cache():
    keys, values, q = torch.randn(1, 64, 2, DIM), torch.randn(1, 64, 2, DIM), torch.randn(1, 1, HEADS, DIM)
    index = torch.zeros(1, dtype=torch.int32)
    wanted = [flash.flash_attn_with_kvcache(q, keys, values, cache_seqlens=n, cache_batch_idx=index) for n in range(1, 9)]
    wrong = []

    def work(n):
        for _ in range(50):
            if not torch.equal(flash.flash_attn_with_kvcache(q, keys, values, cache_seqlens=n, cache_batch_idx=index), wanted[n - 1]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_rotary():
    angles = torch.arange(40)[:, None] / 100**(torch.arange(8) / 8)
    cos, sin, ends = angles.cos(), angles.sin(), torch.tensor([0, 9, 14], dtype=torch.int32)
    from simdattn._flash_rotary import apply_rotary_emb
    for dtype, interleaved, offsets in itertools.product(TYPES, (False, True), (0, 5, torch.tensor([3, 0, 30]))):
        x = torch.randn(BATCH, 9, HEADS, DIM).to(dtype)
        found = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
        first = [offsets] * BATCH if isinstance(offsets, int) else offsets.tolist()
        for b in range(BATCH):
            close(found[b], rotated(x[b], cos, sin, first[b] + torch.arange(9), interleaved), dtype)
        flat = x.flatten(0, 1)[:14].clone()
        packed = apply_rotary_emb(flat, cos, sin, interleaved, True, torch.tensor(first[:2]), ends)
        assert torch.equal(packed[:9], found[0]) and torch.equal(packed[9:], found[1, :5]) and torch.equal(flat, packed)


def test_padding():
    from simdattn import _flash_padding as padding
    x, mask, unused = torch.randn(3, 5, 2, 4), torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 0],
                                                             [1, 1, 1, 1, 1]]), torch.zeros(3, 5, dtype=torch.int64)
    rows, indices, ends, longest, used = padding.unpad_input(x, mask)
    assert torch.equal(rows, x[mask.bool()]) and ends.tolist() == [0, 3, 5, 10] and ends.dtype == torch.int32
    assert longest == 5 and used.tolist() == [3, 2, 5] and torch.equal(
        padding.index_first_axis(x.flatten(0, 1), indices), rows)
    assert torch.equal(padding.pad_input(rows, indices, 3, 5), x * mask[..., None, None])
    unused[1, 4] = 1
    rows, _, ends, _, used = padding.unpad_input(x, mask, unused)
    assert ends.tolist() == [0, 3, 6, 11] and used.tolist() == [3, 2, 5] and torch.equal(rows[5], x[1, 4])
    found = padding.unpad_input_for_concatenated_sequences(
        x, torch.tensor([[2, 1, 0, 0, 0], [4, 0, 0, 0, 0], [1, 1, 3, 0, 0]]))
    assert found[2].tolist() == [0, 2, 3, 7, 8, 9, 12] and found[3] == 4 and torch.equal(found[0][3:7], x[1, :4])


def test_what_is_refused():
    q, k, v = tensors(torch.float32, 2, 20, 2)
    unchanged = k.clone(), v.clone()
    ends, n = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([3, 3, 3], dtype=torch.int32)
    func, cached = flash.flash_attn_func, flash.flash_attn_with_kvcache
    new, table, angles = k[:, :1], torch.zeros(3, 2, dtype=torch.int32), torch.ones(4, 8)
    for code, match, call in (
        (Code.RANGE, 'dropout_p: is 0.1; this is for inference',
         lambda: func(q, k, v, 0.1)), (Code.RANGE, 'dropout_p: is 0.1',
                                       lambda: flash.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 2, 2, 0.1)),
        (Code.RANGE, 'q: requires a gradient', lambda: func(q.clone().requires_grad_(), k, v)),
        (Code.SHAPE, r'q: has shape \(2, 4, 32\); \[batch, rows, heads, dim\] is wanted',
         lambda: func(q[0], k, v)), (Code.SHAPE, r'qkv: has shape \(3, 2, 2, 4, 32\); 3 is wanted before the heads',
                                     lambda: flash.flash_attn_qkvpacked_func(torch.stack([q, q], 2))),
        (Code.SHAPE, r'alibi_slopes: has shape \(3,\); \(4,\) or \(3, 4\) is wanted',
         lambda: func(q, k, v, alibi_slopes=torch.ones(3))),
        (Code.DTYPE, r'cu_seqlens_q: is torch.int64 of shape \(2,\); int32',
         lambda: flash.flash_attn_varlen_func(q[0], k[0], v[0], ends.long(), ends, 2, 2)),
        (Code.SHAPE, 'cu_seqlens_k: has 3 numbers, cu_seqlens_q 2',
         lambda: flash.flash_attn_varlen_func(q[0], k[0], v[0], ends, torch.tensor([0, 1, 2], dtype=torch.int32), 2, 2)
         ), (Code.RANGE, 'v: is wanted too', lambda: cached(q, k, v, new, cache_seqlens=n)),
        (Code.RANGE, 'cache_seqlens: is wanted with k',
         lambda: cached(q, k, v, new, new)), (Code.RANGE, 'rotary_cos: is given without k',
                                              lambda: cached(q, k, v, rotary_cos=angles, rotary_sin=angles)),
        (Code.RANGE, 'rotary_sin: is wanted with rotary_cos',
         lambda: cached(q, k, v, new, new, angles, cache_seqlens=n)),
        (Code.RANGE, 'rotary_cos: has 4 positions; the rows stand at 3 .. 4',
         lambda: cached(q, k, v, new, new, angles, angles, cache_seqlens=n, causal=True)),
        (Code.RANGE, r'cache_seqlens: sequences of \[21, 21, 21\] tokens; 0 .. 20 is wanted',
         lambda: cached(q, k, v, cache_seqlens=21)), (Code.RANGE, 'k: has 1 rows for sequence 0, which has 20 of 20',
                                                      lambda: cached(q, k, v, new, new, cache_seqlens=20)),
        (Code.RANGE, 'cache_batch_idx: is given with block_table',
         lambda: cached(q, k, v, cache_batch_idx=n, block_table=table)),
        (Code.SHAPE, r'block_table: has shape \(2, 2\); int32 \[3, pages',
         lambda: cached(q, k, v, cache_seqlens=n, block_table=table[:2])),
        (Code.SHAPE, 'k_cache: has 2 sequences, q 3',
         lambda: cached(q, k[:2], v[:2], cache_seqlens=torch.tensor([1, 1, 1])))):
        refused(code, match, call)
    assert torch.equal(k, unchanged[0]) and torch.equal(v, unchanged[1])
    with pytest.raises(TypeError, match='k: a torch.Tensor is wanted, not list'):
        func(q, [1], v)


INSTALL = '''
import importlib.metadata, importlib.util, sys
import simdattn.flash_attn
from simdattn.flash_attn import install, uninstall
absent = importlib.util.find_spec('flash_attn') is None
assert absent and install() and install()
import flash_attn
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import flash_attn_qkvpacked_func
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.layers.rotary import apply_rotary_emb
assert flash_attn_func is simdattn.flash_attn.flash_attn_func and not hasattr(flash_attn, 'install')
assert importlib.metadata.version('flash_attn') == importlib.metadata.version('flash-attn') == flash_attn.__version__
assert importlib.metadata.version('numpy')
try:
    import flash_attn.losses
except ImportError as e:
    assert 'flash_attn.losses' in str(e)
uninstall(), uninstall()
assert importlib.util.find_spec('flash_attn') is None and 'flash_attn' not in sys.modules
'''

ANOTHER = '''
import sys
sys.path.insert(0, sys.argv[1])
from simdattn.flash_attn import install
assert not install()
import flash_attn
assert flash_attn.theirs
'''


@pytest.mark.parametrize('program', [INSTALL, ANOTHER], ids=['none', 'another'])
def test_the_import(tmp_path, program):
    (tmp_path / 'flash_attn.py').write_text('theirs = True\n')
    subprocess.run([sys.executable, '-c', program, str(tmp_path)], check=True)


MODEL = '''
import torch
from flash_attn import flash_attn_func
from flash_attn.bert_padding import pad_input
from transformers import PretrainedConfig, PreTrainedModel

class Config(PretrainedConfig):
    model_type = 'needs_flash_attn'

class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.project = torch.nn.Linear(64, 192)
        self.post_init()

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 16)).unbind(-3)
        return flash_attn_func(q, k, v, causal=True)
'''

LOADS = '''
import sys, torch, transformers
import simdattn.flash_attn
load = lambda: transformers.AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
try:
    load()
    sys.exit('loaded without flash_attn')
except ImportError as e:
    assert 'flash_attn' in str(e)
simdattn.flash_attn.install()
model = load().eval()
x = torch.ones(1, 5, 64)
with torch.no_grad():
    wanted = model.project(x).unflatten(-1, (3, 4, 16)).unbind(-3)[2][:, :1].expand(1, 5, 4, 16)  # all rows alike
    torch.testing.assert_close(model(x), wanted)
'''


def test_a_model_that_needs_it(tmp_path):
    pytest.importorskip('transformers', minversion='5.0')
    pytest.importorskip('safetensors')
    import safetensors.torch
    (tmp_path / 'code.py').write_text(MODEL)
    (tmp_path / 'config.json').write_text(
        '{"model_type": "needs_flash_attn", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}')
    safetensors.torch.save_file({'project.weight': torch.randn(192, 64), 'project.bias': torch.zeros(192)},
                                tmp_path / 'model.safetensors', metadata={'format': 'pt'})
    home = {'HF_HOME': str(tmp_path / 'home'), 'HF_HUB_OFFLINE': '1'}
    subprocess.run([sys.executable, '-c', LOADS, str(tmp_path)], check=True, env={**os.environ, **home})
