"""Makes `families/`: tiny models with seeded weights and what transformers makes of them.

For development only: it needs torch and transformers, which nothing else here does.

    python tests/golden/make_families.py [NAME ...]
"""

# ruff: noqa: C408 - keyword arguments of config classes
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

COMMON = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=None,
)  # fmt: skip
FALCON = dict(
    model_type="falcon", vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    ffn_hidden_size=48, bos_token_id=1, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
CONFIGS = {
    "mistral": dict(COMMON, model_type="mistral", sliding_window=8, tie_word_embeddings=False),
    "qwen2_sliding": dict(
        COMMON, model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2
    ),
    "gemma3": dict(
        COMMON, model_type="gemma3_text", head_dim=8, sliding_window=8, query_pre_attn_scalar=12,
        num_hidden_layers=6, rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    ),
    "olmo2": dict(COMMON, model_type="olmo2", num_hidden_layers=2),
    "cohere2": dict(
        COMMON, model_type="cohere2", head_dim=8, sliding_window=8, logit_scale=0.25,
        layer_norm_eps=1e-5,
    ),
    "glm4": dict(
        COMMON, model_type="glm4", head_dim=8, partial_rotary_factor=0.5, attention_bias=True,
        num_hidden_layers=2,
    ),
    "stablelm": dict(COMMON, model_type="stablelm", use_qkv_bias=True, num_hidden_layers=2),
    "stablelm_parallel": dict(
        COMMON, model_type="stablelm", use_parallel_residual=True, qk_layernorm=True,
        num_hidden_layers=2,
    ),
    "smollm3_sliding": dict(
        COMMON, model_type="smollm3", use_sliding_window=True, sliding_window=8,
        no_rope_layers=[1, 1, 1, 0], tie_word_embeddings=True,
    ),
    "opt_narrow": dict(
        model_type="opt", vocab_size=97, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=16,
        do_layer_norm_before=False, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    ),
    "gpt_neox_sequential": dict(
        COMMON, model_type="gpt_neox", use_parallel_residual=False, hidden_size=64,
        rotary_pct=0.25, num_hidden_layers=2,
    ),
    "falcon_grouped": dict(FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon_one_norm": dict(
        FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "falcon_alibi": dict(
        FALCON, alibi=True, parallel_attn=False, multi_query=False, bias=True,
    ),
    "llama_biased": dict(
        COMMON, model_type="llama", attention_bias=True, mlp_bias=True, num_hidden_layers=2
    ),
    "deepseek_v3_plain_queries": dict(
        model_type="deepseek_v3", vocab_size=97, hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
        kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12,
        first_k_dense_replace=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
        eos_token_id=None,
    ),
    "gpt_oss": dict(
        COMMON, model_type="gpt_oss", head_dim=8, num_local_experts=1, num_experts_per_tok=1,
        sliding_window=8, swiglu_limit=1.5,
        rope_parameters={
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 16, "rope_theta": 150000.0,
        },
    ),
}  # fmt: skip


del CONFIGS["gpt_neox_sequential"]["num_key_value_heads"]  # not a key of that family


def make(name: str, where: Path) -> None:
    fields = dict(CONFIGS[name])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    # Eager and sdpa differ for Falcon with ALiBi, where sdpa is right.
    how = "sdpa" if name == "falcon_alibi" else "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=how).eval()
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=generator)
            small = value.ndim < 2
            value.copy_(value + 0.2 * noise if small else noise * 1.5 / value.shape[-1] ** 0.5)
    ids = torch.randint(2, 97, (2, 12), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :4], ids[1, :4] = 0, 0
    long = torch.randint(2, 97, (1, 40), generator=generator)
    takes_positions = model.config.model_type != "opt" and not getattr(config, "alibi", False)
    positions = {"position_ids": (mask.cumsum(-1) - 1).clamp(0)} if takes_positions else {}
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, **positions).logits
        long_logits = model(input_ids=long).logits
    directory = where / name
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        directory / "io.npz",
        input_ids=ids.numpy().astype(np.int32),
        attention_mask=mask.numpy().astype(np.int32),
        logits=logits.numpy(),
        long_input_ids=long.numpy().astype(np.int32),
        long_logits=long_logits.numpy(),
    )
    print(name, tuple(logits.shape), float(logits.abs().max()))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CONFIGS:
        make(chosen, Path(__file__).parent / "families")
