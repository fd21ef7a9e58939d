"""Tiny random models for tools/capture and tools/perplexity, and their attention as a loop over queries."""

import contextlib
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

RUNS = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "tokenizers", "safetensors"))
needs_transformers = pytest.mark.skipif(not RUNS, reason="torch and transformers are not installed")

WINDOW = 8
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "bos_token_id": 2, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3 = {"layer_types": KINDS, "sliding_window": WINDOW, "query_pre_attn_scalar": 24}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
# of each: what its configuration says beyond SIZES, what the metadata of its dumps say among other things
MODELS = {
    "Gemma3Text": (GEMMA3, {"sliding_window": "8", "global_layers": "1", "logit_scale": repr(24**-0.5)}),
    "Gemma2": (GEMMA3 | {"attn_logit_softcapping": None}, {"sliding_window": "8", "global_layers": "1"}),
    "Llama": ({"rope_parameters": LINEAR}, {"rope_bases": "10000,10000,10000", "rope_scales": "4,4,4"}),
    "Llama 3": ({"rope_parameters": LLAMA3}, {"rope_bases": "0,0,0", "rope_layout": "halves"}),
    "Mistral": ({"sliding_window": WINDOW}, {"sliding_window": "8", "global_layers": ""}),
    "Qwen2": ({}, {"logit_scale": "0.25", "rope_dims": "16,16,16"}),
    "Qwen3": ({"num_attention_heads": 8}, {"q_heads": "8", "kv_heads": "2", "head_dim": "16"}),
    "Cohere": ({}, {"rope_layout": "interleaved"}),
}


class Numbers:
    """A tokenizer: w17 is 17. For the random models, whatever tokenizer their kind wants."""

    bos_token_id = 2

    def __call__(self, body, **_options):
        return SimpleNamespace(input_ids=[int(word[1:]) for word in body.split()])


def write_words(path, count=100, seed=3):
    """A text of random words, as that tokenizer knows them."""
    path.write_text(" ".join(f"w{n}" for n in np.random.default_rng(seed).integers(4, 64, count)))
    return path


def save_model(name, folder, **more):
    """A model of MODELS with random weights, in a directory of Hugging Face's."""
    import torch
    import transformers

    kind = name.split()[0]
    config = getattr(transformers, f"{kind}Config")(**(SIZES | MODELS[name][0] | more))
    causal = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")
    torch.manual_seed(1)
    model = causal(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn_like(weights) * 0.3)
    model.save_pretrained(folder)
    return folder


def load(folder):
    """The model of a directory, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@contextlib.contextmanager
def looped_attention(model, see):
    """Attention of `model` one query after the other. see: (layer, K, V) -> (K and V as near queries see them, K and V
    as far ones do, tokens that are near), all (heads, tokens, dim).
    """
    import torch
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(module, q, k, v, _mask, scaling, softcap=None, **_options):
        number, group = module.layer_idx, q.shape[1] // k.shape[1]
        kinds = getattr(model.config, "layer_types", None)
        slides = kinds[number] == "sliding_attention" if kinds else model.config.model_type == "mistral"
        own, other, near_tokens = see(number, k[0], v[0])
        rows = []
        for at in range(q.shape[2]):
            first = max(0, at - WINDOW + 1) if slides else 0
            near = max(first, at + 1 - near_tokens)
            keys, values = (
                torch.cat([far[:, first:near], rows_near[:, near : at + 1]], 1).repeat_interleave(group, 0)
                for far, rows_near in zip(other, own, strict=True)
            )
            logits = (keys @ q[0, :, at, :, None])[..., 0] * scaling
            logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            rows.append((logits.softmax(-1)[:, None] @ values)[:, 0])
        return torch.stack(rows)[None], None

    ALL_ATTENTION_FUNCTIONS["looped"] = attention
    before, model.config._attn_implementation = model.config._attn_implementation, "looped"
    try:
        yield
    finally:
        model.config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS["looped"]
