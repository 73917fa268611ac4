"""What a registered model of Transformers promises to tools, and its Cache to layers with a window."""
import pytest
import torch

transformers = pytest.importorskip('transformers', minversion='5.0')
import simdattn  # noqa: E402
import simdattn.transformers  # noqa: E402
from simdattn._abi import Code  # noqa: E402
from test_arrays import refused  # noqa: E402
from test_torch_transformers import model_of  # noqa: E402


def logits(model, implementation, *given, **options):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(*given, **options).logits


def test_packed_sequences():
    module, x = torch.nn.Module(), torch.randn(1, 2, 5, 16)
    ends = torch.tensor([0, 2, 5], dtype=torch.int32)
    out, _ = simdattn.transformers._forward(module, x, x, x, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    for first, last in ((0, 2), (2, 5)):
        part = x[:, :, first:last]
        assert torch.equal(out[:, first:last], simdattn.attention(part, part, part, causal=True).transpose(1, 2))


def test_a_prompt_takes_no_memory_but_its_own():
    cache, x = simdattn.transformers.Cache(capacity=4096), torch.randn(2, 3, 16, 32)
    assert cache.update(x, x, 0)[0] is x and cache.get_seq_length() == 16 and cache.is_initialized
    later = torch.randn(2, 3, 1, 32)
    keys, values = cache.update(later, later, 0)
    assert cache.nbytes < 80 * 2 * 3 * 32 * 4 * 2 and torch.equal(keys.tensor(), torch.cat([x, later], 2)) and cache.get_seq_length() == 17
    for tokens in (2400, 4096):
        more = torch.randn(2, 3, tokens - cache.get_seq_length(), 32)
        cache.update(more, more, 0)
        assert cache.layers[0].cache.capacity == 4096
    cache.update(later, later, 0)
    assert cache.layers[0].cache.capacity == 2 * 4097
    for change in (lambda c: c.crop(15), lambda c: c.reorder_cache(torch.tensor([0, 1])), lambda c: c.batch_repeat_interleave(1),
                   lambda c: c.batch_select_indices(torch.tensor([0, 1]))):
        cache = simdattn.transformers.Cache()
        cache.update(x, x, 0)
        change(cache)
        tokens = cache.get_seq_length()
        assert tokens in (15, 16) and torch.equal(cache.update(later, later, 0)[1].tensor(), torch.cat([x[:, :, :tokens], later], 2))
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.update(later, later, 0)[0].shape[2] == 1


@pytest.mark.parametrize('dtype', [None, 'q8_0'])
def test_a_sliding_layer_keeps_its_window(dtype):
    model = model_of('mistral')
    model.set_attn_implementation('simdattn')
    config = model.config
    ids = torch.randint(2, 300, (2, 150))
    whole, window = simdattn.transformers.Cache(dtype=dtype), simdattn.transformers.Cache(dtype=dtype, config=config)
    first = 0
    with torch.no_grad():
        for n in (40, 1, 1, 50, 3, 1, 54):
            given = ids[:, first:first + n]
            wanted, found = (model(given, past_key_values=cache).logits for cache in (whole, window))
            assert (found - wanted).abs().max() < (1e-5 if dtype is None else 0.02) * wanted.abs().max(), first
            first += n
    assert window.get_seq_length() == 150 and 4 * window.nbytes < whole.nbytes
    window.crop(149)
    refused(Code.RANGE, 'max_length: 30 of 149 tokens need some that are out of the window of 16', lambda: window.crop(30))


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def test_tools_see_a_registered_model():
    model, ids = model_of('llama'), torch.randint(2, 300, (1, 12))
    wanted = logits(model, 'simdattn', ids)
    with torch.no_grad():
        torch._dynamo.reset()
        compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, wanted, rtol=0, atol=1e-5)
        exported = torch.export.export(model, (ids,), {'use_cache': False}, strict=False)
        torch.testing.assert_close(exported.module()(ids, use_cache=False).logits, wanted, rtol=0, atol=1e-5)
        traced = torch.jit.trace(Logits(model), (ids,), check_trace=False)
        torch.testing.assert_close(traced(ids), wanted, rtol=0, atol=1e-5)
        assert 'simdattn' in str(exported.graph) and 'simdattn' in str(traced.inlined_graph)


def test_compile_with_a_cache():
    model, ids = model_of('llama'), torch.randint(2, 300, (1, 12))
    wanted = logits(model, 'simdattn', ids)
    torch._dynamo.reset()
    compiled, cache = torch.compile(model, backend='aot_eager'), simdattn.transformers.Cache()
    with torch.no_grad():
        first = compiled(ids[:, :10], past_key_values=cache).logits
        rest = [compiled(ids[:, i:i + 1], past_key_values=cache).logits for i in (10, 11)]
    torch.testing.assert_close(torch.cat([first, *rest], 1), wanted, rtol=0, atol=1e-5)
