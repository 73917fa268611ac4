"""Every architecture of the installed Transformers that a small random model can be made of: the logits of 'eager', or
a refusal."""
import importlib
import inspect
import os

import pytest
import torch

transformers = pytest.importorskip('transformers', minversion='5.0')
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED  # noqa: E402

import simdattn.transformers  # noqa: E402

simdattn.transformers.register()
torch.set_num_threads(1)
transformers.logging.set_verbosity(60)
# The names that configurations have for the same sizes, as small as they go.
SMALL = dict(vocab_size=300, hidden_size=64, d_model=64, n_embd=64, dim=64, intermediate_size=96, ffn_dim=96, d_ff=96, n_inner=96, hidden_dim=96,
             num_hidden_layers=2, num_layers=2, n_layer=2, n_layers=2, decoder_layers=2, encoder_layers=2, num_attention_heads=4, n_head=4,
             n_heads=4, num_heads=4, decoder_attention_heads=4, encoder_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=256, n_positions=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_experts=4, num_local_experts=4,
             n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32, moe_num_experts=4,
             n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16, index_head_dim=16,
             index_n_heads=2, index_topk=8, embedding_size=64, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
             linear_value_head_dim=16, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, decoder_ffn_dim=96, encoder_ffn_dim=96,
             cross_attention_hidden_size=64, word_embed_proj_dim=64, vocab_size_per_layer_input=300, hidden_size_per_layer_input=16)
# Experts or layers that random numbers steer: eager itself gives other logits when a sum is rounded otherwise.
TOLERANCE = 2e-3


def model_of(name, auto, **more):
    """A small random model, on the CPU; None where the sizes do not fit or it is large in spite of them."""
    torch.manual_seed(7)
    try:
        known = vars(transformers.AutoConfig.for_model(name)).keys()
        config = transformers.AutoConfig.for_model(name, **{**{key: x for key, x in SMALL.items() if key in known}, **more})
        with torch.device('meta'):
            size = sum(p.numel() for p in auto.from_config(config, attn_implementation='eager').parameters())
        if size > 3e7:
            return None
        model = auto.from_config(config, attn_implementation='eager').eval()
    except Exception:  # whatever a model says of sizes or packages that it does not take
        return None
    for p in model.parameters():
        if p.dim() > 1:
            p.data.normal_(0, 0.05)
    return model


def logits_of(model, ids):
    with torch.no_grad():
        found = model(input_ids=ids)
    return found.logits if hasattr(found, 'logits') else found[0]


@pytest.mark.parametrize('names, auto, least', [(CAUSAL, 'AutoModelForCausalLM', 60), (MASKED, 'AutoModelForMaskedLM', 15)])
def test_the_logits_of_eager(names, auto, least):
    compared, refused, wrong = [], [], []
    for name in names:
        model = model_of(name, getattr(transformers, auto))
        if model is None:
            continue
        torch.manual_seed(1)
        ids = torch.randint(3, 300, (2, 24))
        try:
            wanted = logits_of(model, ids)
            again = logits_of(model, ids)
        except Exception:  # it wants more than tokens, or sizes that fit better
            continue
        if not torch.equal(wanted, again) or not wanted.isfinite().all():
            continue
        try:
            model.set_attn_implementation('simdattn')
            found = logits_of(model, ids)
        except ValueError as e:  # Error is one
            refused.append(f'{name}: {str(e)[:90]}')
            continue
        error = ((found - wanted).abs().max() / wanted.abs().max()).item()
        compared.append(name)
        if not error < TOLERANCE:
            wrong.append(f'{name}: {error:.1e}')
    print(f'{len(compared)} compared, {len(refused)} refused', *refused, sep='\n')
    assert not wrong and len(compared) >= least


# What layers of other types than attention want beside.
DELTA = dict(layer_types=['linear_attention', 'full_attention'])
CONV = dict(layer_types=['conv', 'full_attention'])
LAYERS = dict(
    bamba=dict(attn_layer_indices=[1]), deepseek_v32=dict(num_key_value_heads=4), glm_moe_dsa=dict(num_key_value_heads=4),
    falcon_h1=dict(mamba_d_ssm=128, mamba_n_groups=1, mamba_chunk_size=8), granitemoehybrid=dict(layer_types=['mamba', 'attention']),
    jamba=dict(attn_layer_period=2, attn_layer_offset=1), lfm2=CONV, lfm2_moe=CONV, minimax=DELTA, qwen3_next=DELTA, qwen3_5_text=DELTA,
    qwen3_5_moe_text=DELTA, olmo_hybrid=DELTA,
    nemotron_h=dict(layers_block_type=['mamba', 'attention'], mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=16, n_groups=2, chunk_size=8),
    zamba=dict(num_hidden_layers=6, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, attention_head_dim=32,
               attention_hidden_size=128),
    zamba2=dict(layers_block_type=['mamba', 'hybrid'], use_mamba_kernels=False, n_mamba_heads=8, mamba_headdim=16, attention_head_dim=32,
                kv_channels=16, adapter_rank=8, chunk_size=8, num_mem_blocks=1))


def other_layers(name):
    """Types of layers but attention to all keys or a window of them."""
    try:
        config = transformers.AutoConfig.for_model(name).get_text_config(decoder=True)
    except Exception:  # a package that is not installed
        return set()
    return set(getattr(config, 'layer_types', None) or ()) - {'full_attention', 'attention', 'sliding_attention', 'chunked_attention'}


def tokens_of(model, **options):
    torch.manual_seed(1)
    ids = torch.randint(3, 300, (2, 24))
    return model.generate(input_ids=ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, **options)


def test_caches_of_layers_with_more_than_keys():
    compared, refused, wrong = [], [], []
    for name in filter(other_layers, CAUSAL):
        model = model_of(name, transformers.AutoModelForCausalLM, **LAYERS.get(name, {}))
        if model is None:
            continue
        wanted = tokens_of(model)
        try:
            model.set_attn_implementation('simdattn')
        except ValueError:  # a model without attention
            continue
        assert torch.equal(tokens_of(model), wanted), name
        try:
            found = tokens_of(model, past_key_values=simdattn.transformers.Cache(config=model.config))
        except simdattn.Error as e:
            refused.append(name)
            assert 'takes a cache of its own alone' in str(e) and 'past_key_values' in str(e)
        else:
            compared.append(name)
            wrong += [] if torch.equal(found, wanted) else [name]
        if name not in refused:
            with pytest.raises(simdattn.Error, match=r'Cache\(config=model.config\)'):
                tokens_of(model, past_key_values=simdattn.transformers.Cache())
    assert not wrong and refused == ['minimax', 'olmo_hybrid'] and len(compared) >= 12, (compared, refused, wrong)


def classes():
    """What every model of Transformers inherits from."""
    for name in sorted(os.listdir(os.path.dirname(transformers.models.__file__))):
        try:
            module = importlib.import_module(f'transformers.models.{name}.modeling_{name}')
        except Exception:  # a folder without a model, or a package that is not installed
            continue
        for x in vars(module).values():
            if inspect.isclass(x) and issubclass(x, transformers.PreTrainedModel) and x.__module__ == module.__name__:
                yield module, x


def test_what_eager_alone_can_is_refused():
    refused = 0
    for module, model in classes():
        asks = hasattr(module, 'ALL_ATTENTION_FUNCTIONS')
        if model._supports_sdpa or model._supports_attention_backend:
            continue
        refused += 1
        with pytest.raises(ValueError, match='supports neither sdpa' if asks else "does not ask Transformers' attention interface"):
            model.get_correct_attn_implementation(object.__new__(model), 'simdattn')
    assert refused >= 20
