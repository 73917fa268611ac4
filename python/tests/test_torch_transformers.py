"""Models of Transformers with random weights: the tokens of 'eager', for every kind of mask and cache."""
import pytest
import torch

transformers = pytest.importorskip('transformers', minversion='5.0')
import simdattn  # noqa: E402
import simdattn.transformers  # noqa: E402
from simdattn._abi import Code  # noqa: E402
from test_arrays import refused  # noqa: E402

simdattn.transformers.register()
torch.set_num_threads(1)  # layers of this size have nothing to share
SIZES = dict(vocab_size=300, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=32, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=None)
# Softcap, sinks, sliding windows, norms of q and k, learned positions, partial rotation, no groups.
MODELS = ['llama', 'mistral', 'qwen2', 'qwen3', 'gemma2', 'gemma3_text', 'gpt_oss', 'phi3', 'olmo2', 'cohere', 'granite', 'starcoder2',
          'gpt_neox', 'gpt2', 'opt']


def model_of(name, **more):
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(name, **{**SIZES, **more})
    if getattr(config, 'sliding_window', None):
        config.sliding_window = 16
    return random_weights(config)


def random_weights(config):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation='eager').eval()
    for p in model.parameters():
        if p.dim() > 1:
            p.data.normal_(0, 0.08)
    return model


def inputs():
    torch.manual_seed(8)
    ids = torch.randint(2, 300, (3, 40))
    seen = torch.ones_like(ids)
    seen[1, :9], seen[2, :30] = 0, 0
    return {'one': dict(input_ids=ids[:1]), 'left padding': dict(input_ids=ids, attention_mask=seen), 'beams': dict(input_ids=ids[:1], num_beams=3),
            'static': dict(input_ids=ids[:1], cache_implementation='static'), 'chunks': dict(input_ids=ids[:1], prefill_chunk_size=16)}


@pytest.mark.parametrize('name', MODELS)
def test_the_tokens_of_eager(name, monkeypatch):
    model, calls = model_of(name), []
    inner = simdattn.transformers.attention
    monkeypatch.setattr(simdattn.transformers, 'attention', lambda *a, **o: (calls.append(1), inner(*a, **o))[1])
    for kind, given in inputs().items():
        model.set_attn_implementation('eager')
        wanted = model.generate(**given, max_new_tokens=6, do_sample=False)
        model.set_attn_implementation('simdattn')
        calls.clear()
        assert torch.equal(model.generate(**given, max_new_tokens=6, do_sample=False), wanted), kind
        assert len(calls) >= 2 * 6, kind
        if kind != 'static':
            cache = simdattn.transformers.Cache(capacity=32)  # grows
            assert torch.equal(model.generate(**given, max_new_tokens=6, do_sample=False, past_key_values=cache), wanted), kind


# Models that change keys behind their cache; a model that asks the interface without saying so; one whose layers keep
# more.
@pytest.mark.parametrize('name', ['doge', 'jetmoe', 'bart', 'deepseek_v32'])
def test_caches_of_other_models(name):
    more = dict(num_experts=4, num_local_experts=4, n_routed_experts=4, moe_intermediate_size=32, num_experts_per_tok=2)
    if name == 'bart':
        sizes = dict(vocab_size=300, d_model=128, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=192, is_decoder=True,
                     is_encoder_decoder=False, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None)
        model = random_weights(transformers.AutoConfig.for_model(name, **sizes))
    else:
        model = model_of(name, **more, **(dict(num_key_value_heads=4) if name == 'deepseek_v32' else {}))
    given = dict(inputs()['left padding'], max_new_tokens=6, do_sample=False)
    wanted = model.generate(**given)
    model.set_attn_implementation('simdattn')
    assert torch.equal(model.generate(**given), wanted)
    assert torch.equal(model.generate(**given, past_key_values=simdattn.transformers.Cache(config=model.config)), wanted)
    if name == 'deepseek_v32':
        with pytest.raises(simdattn.Error, match='a state or an indexer'):
            model.generate(**given, past_key_values=simdattn.transformers.Cache())
    else:
        assert torch.equal(model.generate(**given, past_key_values=simdattn.transformers.Cache()), wanted)


def test_states_are_tensors_to_others():
    cache, x = simdattn.transformers.Cache(dtype='bf16'), torch.randn(2, 3, 5, 16)
    keys, _ = cache.update(x, x, 0)
    keys, values = cache.update(x, x, 0)
    wanted = torch.cat([x, x], 2).bfloat16().float()
    assert keys.shape == wanted.shape and torch.equal(keys.tensor(), wanted) and torch.equal(values[:, 1:], wanted[:, 1:])
    assert torch.equal(torch.cat([keys, values], 1), torch.cat([wanted, wanted], 1)) and torch.equal(keys.repeat(1, 2, 1, 1), wanted.repeat(1, 2, 1, 1))
    with pytest.raises(AttributeError, match='store_compression_weights: is more than the keys and values'):
        cache.layers[0].store_compression_weights


def test_layers_with_a_state(monkeypatch):
    linear = dict(layer_types=['linear_attention', 'full_attention'], linear_num_value_heads=4, linear_num_key_heads=2,
                  linear_key_head_dim=16, linear_value_head_dim=16, num_experts=4, moe_intermediate_size=32,
                  shared_expert_intermediate_size=32, num_experts_per_tok=2)
    model = model_of('qwen3_next', **linear)
    assert simdattn.transformers.linear_layers(model_of('llama')) == 0
    calls = {'linear_attention': 0, 'causal_conv': 0}

    def counted(name, inner):
        def call(*args, **options):
            calls[name] += 1
            return inner(*args, **options)
        return call

    for name in calls:
        monkeypatch.setattr(simdattn.transformers, name, counted(name, getattr(simdattn.transformers, name)))
    given = [dict(inputs()[kind], max_new_tokens=6, do_sample=False) for kind in ('left padding', 'chunks')]
    wanted = [model.generate(**x) for x in given]
    model.set_attn_implementation('simdattn')
    assert simdattn.transformers.linear_layers(model) == 1
    for x, tokens in zip(given, wanted):
        assert torch.equal(model.generate(**x), tokens)
    cache = simdattn.transformers.Cache(config=model.config)
    assert torch.equal(model.generate(**given[0], past_key_values=cache), wanted[0])
    assert calls['linear_attention'] >= 18 and calls['causal_conv'] >= 18
    refused(Code.RANGE, 'past_key_values: this model has layers with a state',
            lambda: model.generate(**given[0], past_key_values=simdattn.transformers.Cache()))


def test_types_of_caches():
    model = model_of('llama', attn_implementation=None)
    given = inputs()['left padding']
    model.set_attn_implementation('simdattn')
    ids = given['input_ids']
    with torch.no_grad():
        wanted = model(ids).logits
    sizes = {}
    for dtype, tolerance in ((None, 1e-4), ('bf16', 0.05), ('q8_0', 0.1), ('int8', 0.1)):
        cache = simdattn.transformers.Cache(dtype=dtype)
        with torch.no_grad():
            model(ids[:, :30], past_key_values=cache)
            last = model(ids[:, 30:], past_key_values=cache).logits
        assert (last - wanted[:, 30:]).abs().max() < tolerance * wanted.abs().max()
        sizes[dtype] = cache.nbytes
    assert sizes['q8_0'] < 0.3 * sizes[None] and cache.get_seq_length() == 40
    cache.crop(-5)
    assert cache.get_seq_length() == 35


def test_models_without_the_interface():
    sizes = dict(vocab_size=300, hidden_size=128, n_layer=2, n_head=4)
    for make in (lambda: transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**sizes), attn_implementation='simdattn'),
                 lambda: transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**sizes)).set_attn_implementation('simdattn')):
        with pytest.raises(ValueError, match="Bloom.* does not ask Transformers' attention interface"):
            make()


def test_what_is_not_inference():
    model = model_of('llama')
    model.set_attn_implementation('simdattn')
    ids = inputs()['one']['input_ids']
    refused(Code.RANGE, 'q: requires a gradient', lambda: model(ids))
    model.train()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    refused(Code.RANGE, 'dropout: is 0.5', lambda: model(ids))


def test_caches_that_grow_and_choose():
    x = torch.randn(3, 2, 40, 32)
    for layout in ('panels', 'rows'):
        cache = simdattn.KVCache(3, 2, 40, 32, layout=layout)
        cache.append(x, x, counts=[40, 33, 7])
        larger, chosen = cache.resized(100), cache.select([2, 0])
        q = torch.randn(3, 4, 1, 32)
        assert torch.equal(larger.attend(q), cache.attend(q)) and larger.capacity == 100
        assert torch.equal(chosen.attend(q[[2, 0]]), cache.attend(q)[[2, 0]])
        refused(Code.RANGE, 'capacity: is 39; there are 40 tokens', lambda: cache.resized(39))
        refused(Code.RANGE, r'indices: is \[3\]; one or more of 0 .. 2', lambda: cache.select([3]))


# What a model's indexer selects is handed to attention functions beside Transformers' own two, which get it in the
# mask.
MLA = dict(num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
           index_head_dim=16, index_n_heads=2, index_topk=8, n_routed_experts=4, moe_intermediate_size=32, num_experts_per_tok=2, n_group=1,
           topk_group=1)
BLOCKS = dict(num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, index_topk_blocks=2, index_block_size=4,
              layer_types=['full_attention', 'minimax_m3_sparse'], index_local_blocks=1, index_head_dim=16, index_n_heads=2,
              dense_intermediate_size=96, shared_intermediate_size=32)


# MiniMax's indexer scores padding as well, whose rows are zeros here and a mean with 'eager': there is nothing to
# compare.
@pytest.mark.parametrize('name, more, padding', [('deepseek_v32', MLA, 0), ('deepseek_v32', MLA, 9), ('glm_moe_dsa', MLA, 0),
                                                 ('glm_moe_dsa', MLA, 9), ('minimax_m3_vl_text', BLOCKS, 0)])
def test_selected_keys(name, more, padding):
    model = model_of(name, **{**more, 'hidden_size': 64})
    ids = torch.randint(2, 300, (2, 40))
    seen = torch.ones_like(ids)
    seen[1, :padding] = 0
    found = {}
    for implementation in ('eager', 'simdattn'):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found[implementation] = model(ids, attention_mask=seen if padding else None, use_cache=False).logits[seen.bool()]
    assert (found['simdattn'] - found['eager']).abs().max() < 1e-5 * found['eager'].abs().max()


# Their decoders say is_causal=False and rely on a mask that only 'eager' is given; Transformers refuses sdpa for them,
# too.
@pytest.mark.parametrize('name, more', [('nllb-moe', dict(num_experts=4)), ('pegasus_x', {}), ('bigbird_pegasus', {})])
def test_models_of_eager_alone_are_refused(name, more):
    sizes = dict(vocab_size=300, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
                 encoder_ffn_dim=96, decoder_ffn_dim=96, max_position_embeddings=128, pad_token_id=0, bos_token_id=1)
    config = transformers.AutoConfig.for_model(name, **sizes, **more)
    with pytest.raises(ValueError, match='supports neither sdpa'):
        transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation='simdattn')
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation='eager')
    with pytest.raises(ValueError, match='supports neither sdpa'):
        model.set_attn_implementation('simdattn')


def test_keywords_that_are_not_known_are_refused():
    module, x = torch.nn.Module(), torch.ones(1, 2, 4, 8)
    simdattn.transformers._forward(module, x, x, x, None, later=None, position_ids=torch.arange(4), sliding_window=3)
    refused(Code.RANGE, 'later: a model gives it', lambda: simdattn.transformers._forward(module, x, x, x, None, later=torch.ones(1)))
    chosen = dict(indices=torch.zeros(1, 4, 1, dtype=torch.int64), block_indices=torch.zeros(1, 4, 1, dtype=torch.int64))
    refused(Code.RANGE, 'block_indices: is given', lambda: simdattn.transformers._forward(module, x, x, x, None, **chosen))


def test_a_model_whose_layers_share_no_keys():
    model = model_of('gemma4_text', layer_types=['sliding_attention', 'full_attention'], vocab_size_per_layer_input=300,
                     hidden_size_per_layer_input=16, num_kv_shared_layers=0)
    given = dict(inputs()['one'], max_new_tokens=4, do_sample=False)
    wanted = model.generate(**given)
    model.set_attn_implementation('simdattn')
    assert torch.equal(model.generate(**given, past_key_values=simdattn.transformers.Cache(config=model.config)), wanted)
