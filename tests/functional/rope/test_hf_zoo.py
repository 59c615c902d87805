"""Real models: what their configs say, against frequencies computed here from the formulas.

One row for each model of a table of published position settings. `config` spells them as the
model's own file does; what it leaves out is a default of the model's class. `want` says, for each
kind of layer, the rotary width R, the base and the law, or None for no rotary embedding.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from flax_pos.functional.rope import RopeSpec, rope_layers

PHI = json.loads((Path(__file__).parents[2] / "golden" / "longrope_factors.json").read_text())


# The oracle ---------------------------------------------------------------------------------------


def plain(R, theta):
    return [theta ** (-2 * i / R) for i in range(R // 2)], 1.0


def linear(R, theta, s):
    return [w / s for w in plain(R, theta)[0]], 1.0


def ntk(R, theta, alpha):
    return plain(R, theta * alpha ** (R / (R - 2)))


def dynamic(R, theta, s, L, N):
    return ntk(R, theta, s * max(N, L) / L - (s - 1))


def proportional(R, theta, p):
    turning = int(p * R) // 2
    return [theta ** (-2 * i / R) if i < turning else 0.0 for i in range(R // 2)], 1.0


def llama3(R, theta, s, low, high, L0):
    out = []
    for w in plain(R, theta)[0]:
        wavelength = 2 * math.pi / w
        if wavelength < L0 / high:
            out.append(w)
        elif wavelength > L0 / low:
            out.append(w / s)
        else:
            t = (L0 / wavelength - low) / (high - low)
            out.append((1 - t) * w / s + t * w)
    return out, 1.0


def yarn(R, theta, s, L0, fast=32, slow=1, truncate=True, factor=None, mscale=None, all_dim=None):
    def pair(turns):
        return R * math.log(L0 / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, R - 1)
    high = high + 0.001 if low == high else high
    out = []
    for i, w in enumerate(plain(R, theta)[0]):
        ramp = min(max((i - low) / (high - low), 0), 1)
        out.append(w / s * ramp + w * (1 - ramp))
    g = lambda m: 0.1 * m * math.log(s) + 1
    if factor is None:
        factor = g(mscale) / g(all_dim) if mscale and all_dim else g(1)
    return out, factor


def longrope(R, theta, factors, factor):
    return [w / f for w, f in zip(plain(R, theta)[0], factors, strict=True)], factor


# The rows -----------------------------------------------------------------------------------------


class Row(NamedTuple):
    name: str
    config: dict
    want: dict
    layout: str = "half"
    softmax: float = 1.0


def sizes(d, heads, head_dim=None, **more):
    out = {"hidden_size": d, "num_attention_heads": heads, **more}
    return out if head_dim is None else {**out, "head_dim": head_dim}


def scaled(rope_type, factor, original=None, **more):
    out = {"rope_type": rope_type, "factor": factor, **more}
    return out if original is None else {**out, "original_max_position_embeddings": original}


def llama3_of(factor, low=1.0, high=4.0):
    return scaled("llama3", factor, 8192, low_freq_factor=low, high_freq_factor=high)


ALL, FULL, SLIDING = None, "full_attention", "sliding_attention"
OUT = "interleaved_in_half_out"
PHI_FACTOR = math.sqrt(1 + math.log(32) / math.log(4096))
G40 = 0.1 * math.log(40) + 1
PHI35 = PHI["phi-3.5-mini"]
PHI4 = PHI["phi-4-mini"]
KIMI_YARN = scaled("yarn", 32.0, 4096, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
GEMMA3 = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 512}

ROWS = [
    Row("llama-2-7b", {"model_type": "llama", **sizes(4096, 32)}, {ALL: plain(128, 1e4)}),
    Row("llama-3-8b", {"model_type": "llama", **sizes(4096, 32), "rope_theta": 5e5},
        {ALL: plain(128, 5e5)}),
    Row("llama-3.1-8b", {"model_type": "llama", **sizes(4096, 32), "rope_theta": 5e5,
        "max_position_embeddings": 131072, "rope_scaling": llama3_of(8.0)},
        {ALL: llama3(128, 5e5, 8, 1, 4, 8192)}),
    Row("llama-3.1-405b", {"model_type": "llama", **sizes(16384, 128), "rope_theta": 5e5,
        "max_position_embeddings": 131072, "rope_scaling": llama3_of(8.0)},
        {ALL: llama3(128, 5e5, 8, 1, 4, 8192)}),
    Row("llama-3.2-1b", {"model_type": "llama", **sizes(2048, 32, 64), "rope_theta": 5e5,
        "max_position_embeddings": 131072, "rope_scaling": llama3_of(32.0)},
        {ALL: llama3(64, 5e5, 32, 1, 4, 8192)}),
    Row("llama-3.2-3b", {"model_type": "llama", **sizes(3072, 24, 128), "rope_theta": 5e5,
        "max_position_embeddings": 131072, "rope_scaling": llama3_of(32.0)},
        {ALL: llama3(128, 5e5, 32, 1, 4, 8192)}),
    Row("llama-4-scout", {"model_type": "llama4", "text_config": {"model_type": "llama4_text",
        **sizes(5120, 40, 128), "rope_theta": 5e5, "max_position_embeddings": 10485760,
        "rope_scaling": llama3_of(16.0, 1.0, 1.0)}},
        {ALL: llama3(128, 5e5, 16, 1, 1, 8192)}, "interleaved"),
    Row("llama-4-maverick", {"model_type": "llama4", "text_config": {"model_type": "llama4_text",
        **sizes(5120, 40, 128), "rope_scaling": None}}, {ALL: plain(128, 5e5)}, "interleaved"),
    Row("qwen2.5-0.5b", {"model_type": "qwen2", **sizes(896, 14), "rope_theta": 1e6},
        {ALL: plain(64, 1e6)}),
    Row("qwen2.5-7b", {"model_type": "qwen2", **sizes(3584, 28), "rope_theta": 1e6},
        {ALL: plain(128, 1e6)}),
    Row("qwen2.5-7b-1m", {"model_type": "qwen2", **sizes(3584, 28), "rope_theta": 1e7,
        "dual_chunk_attention_config": {"chunk_size": 262144}}, {ALL: plain(128, 1e7)}),
    Row("qwen3-0.6b", {"model_type": "qwen3", **sizes(1024, 16, 128), "rope_theta": 1000000,
        "rope_scaling": None}, {ALL: plain(128, 1e6)}),
    Row("qwen3-8b-yarn", {"model_type": "qwen3", **sizes(4096, 32, 128), "rope_theta": 1e6,
        "max_position_embeddings": 40960, "rope_scaling": scaled("yarn", 4.0, 32768)},
        {ALL: yarn(128, 1e6, 4, 32768)}),
    Row("qwen3-4b-2507", {"model_type": "qwen3", **sizes(2560, 32, 128), "rope_theta": 5000000},
        {ALL: plain(128, 5e6)}),
    Row("qwen3-next-80b", {"model_type": "qwen3_next", **sizes(2048, 16, 256), "rope_theta": 1e7},
        {ALL: plain(64, 1e7)}),
    Row("qwen2-vl-7b", {"model_type": "qwen2_vl", **sizes(3584, 28), "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, {ALL: plain(128, 1e6)}),
    Row("qwen3-vl-4b", {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text",
        **sizes(2560, 32, 128), "rope_theta": 5000000, "rope_scaling": {"rope_type": "default",
        "mrope_interleaved": True, "mrope_section": [24, 20, 20]}}}, {ALL: plain(128, 5e6)}),
    Row("qwen3-omni-30b", {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": {
        "model_type": "qwen3_omni_moe_text", **sizes(2048, 32, 128), "rope_theta": 1000000,
        "rope_scaling": {"interleaved": True, "mrope_interleaved": True, "rope_type": "default",
        "mrope_section": [24, 20, 20]}}}}, {ALL: plain(128, 1e6)}),
    Row("qwen3.5-35b", {"model_type": "qwen3_5_moe", "text_config": {
        "model_type": "qwen3_5_moe_text", **sizes(2048, 16, 256), "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000000, "mrope_interleaved": True,
        "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25}}}, {ALL: plain(64, 1e7)}),
    Row("gemma-7b", {"model_type": "gemma", **sizes(3072, 16, 256)}, {ALL: plain(256, 1e4)}),
    Row("gemma-2-2b", {"model_type": "gemma2", **sizes(2304, 8, 256)}, {ALL: plain(256, 1e4)}),
    Row("gemma-2-27b", {"model_type": "gemma2", **sizes(4608, 32, 128)}, {ALL: plain(128, 1e4)}),
    Row("gemma-3-1b", {"model_type": "gemma3_text", **sizes(1152, 4, 256), **GEMMA3},
        {SLIDING: plain(256, 1e4), FULL: plain(256, 1e6)}),
    Row("gemma-3-4b", {"model_type": "gemma3", "text_config": {"hidden_size": 2560,
        "rope_scaling": scaled("linear", 8.0)}},
        {SLIDING: plain(256, 1e4), FULL: linear(256, 1e6, 8)}),
    Row("gemma-3-27b", {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
        **sizes(5376, 32, 128), "rope_scaling": scaled("linear", 8.0)}},
        {SLIDING: plain(128, 1e4), FULL: linear(128, 1e6, 8)}),
    Row("gemma-4-e2b", {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text",
        **sizes(1536, 8, 256), "global_head_dim": 512}},
        {SLIDING: plain(256, 1e4), FULL: proportional(512, 1e6, 0.25)}),
    Row("gemma-4-31b", {"model_type": "gemma4_text", **sizes(5376, 32, 256), "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}},
        {SLIDING: plain(256, 1e4), FULL: proportional(512, 1e6, 0.25)}),
    Row("phi-2", {"model_type": "phi", **sizes(2560, 32), "partial_rotary_factor": 0.4},
        {ALL: plain(32, 1e4)}),
    Row("phi-3-mini-4k", {"model_type": "phi3", **sizes(3072, 32), "rope_scaling": None},
        {ALL: plain(96, 1e4)}),
    Row("phi-3.5-mini", {"model_type": "phi3", **sizes(3072, 32),
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", **PHI35}},
        {ALL: longrope(96, 1e4, PHI35["short_factor"], PHI_FACTOR)}),
    Row("phi-4", {"model_type": "phi3", **sizes(5120, 40), "rope_theta": 250000},
        {ALL: plain(128, 2.5e5)}),
    Row("phi-4-mini", {"model_type": "phi3", **sizes(3072, 24), "partial_rotary_factor": 0.75,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", **PHI4}},
        {ALL: longrope(96, 1e4, PHI4["short_factor"], PHI_FACTOR)}),
    Row("deepseek-v2-lite", {"model_type": "deepseek_v2", **sizes(2048, 16),
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "max_position_embeddings": 163840,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}},
        {ALL: yarn(64, 1e4, 40, 4096, mscale=0.707, all_dim=0.707)}, "interleaved",
        (0.1 * 0.707 * math.log(40) + 1) ** 2),
    Row("deepseek-v3", {"model_type": "deepseek_v3", **sizes(7168, 128), "qk_rope_head_dim": 64,
        "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {"type": "yarn",
        "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}}, {ALL: yarn(64, 1e4, 40, 4096, factor=1)}, OUT,
        G40**2),
    Row("deepseek-v4", {"model_type": "deepseek_v4", **sizes(4096, 64, 512),
        "qk_rope_head_dim": 64, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
        "beta_fast": 32, "beta_slow": 1}},
        {"main": plain(64, 1e4), "compress": yarn(64, 1.6e5, 16, 65536, factor=1)},
        "interleaved"),
    Row("kimi-k2", {"model_type": "kimi_k2", **sizes(7168, 64), "qk_rope_head_dim": 64,
        "max_position_embeddings": 131072, "rope_theta": 50000.0, "rope_scaling": KIMI_YARN},
        {ALL: yarn(64, 5e4, 32, 4096, 1, 1, factor=1)}, "interleaved",
        (0.1 * math.log(32) + 1) ** 2),
    Row("kimi-linear", {"model_type": "kimi_linear", **sizes(2304, 32)}, {ALL: None}),
    Row("gpt-oss-20b", {"model_type": "gpt_oss", **sizes(2880, 64, 64), "rope_theta": 150000,
        "rope_scaling": scaled("yarn", 32.0, 4096, beta_fast=32.0, beta_slow=1.0,
        truncate=False)}, {ALL: yarn(64, 1.5e5, 32, 4096, truncate=False)}),
    Row("glm-4-9b-0414", {"model_type": "glm4", **sizes(4096, 32, 128)}, {ALL: plain(64, 1e4)},
        "interleaved"),
    Row("gpt-j-6b", {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64},
        {ALL: plain(64, 1e4)}, "interleaved"),
    Row("gpt-neox-20b", {"model_type": "gpt_neox", **sizes(6144, 64), "rotary_pct": 0.25,
        "rotary_emb_base": 10000}, {ALL: plain(24, 1e4)}),
    Row("pythia-160m", {"model_type": "gpt_neox", **sizes(768, 12), "rotary_pct": 0.25},
        {ALL: plain(16, 1e4)}),
    Row("pythia-6.9b", {"model_type": "gpt_neox", **sizes(4096, 32)}, {ALL: plain(32, 1e4)}),
    Row("gpt2", {"model_type": "gpt2", "n_embd": 768, "n_head": 12}, {ALL: None}),
    Row("opt-125m", {"model_type": "opt", **sizes(768, 12)}, {ALL: None}),
    Row("bloom-560m", {"model_type": "bloom", "n_embed": 1024, "n_head": 16}, {ALL: None}),
    Row("mpt-7b", {"model_type": "mpt", "d_model": 4096, "n_heads": 32}, {ALL: None}),
    Row("falcon-7b", {"model_type": "falcon", **sizes(4544, 71), "alibi": False},
        {ALL: plain(64, 1e4)}),
    Row("t5-small", {"model_type": "t5", "d_model": 512, "num_heads": 8}, {ALL: None}),
    Row("smollm2-135m", {"model_type": "llama", **sizes(576, 9), "rope_theta": 100000,
        "rope_interleaved": False}, {ALL: plain(64, 1e5)}),
    Row("smollm3-3b", {"model_type": "smollm3", **sizes(2048, 16), "rope_theta": 5000000.0},
        {ALL: plain(128, 5e6)}),
    Row("mistral-7b-v0.1", {"model_type": "mistral", **sizes(4096, 32), "sliding_window": 4096},
        {ALL: plain(128, 1e4)}),
    Row("mistral-7b-v0.3", {"model_type": "mistral", **sizes(4096, 32), "rope_theta": 1e6},
        {ALL: plain(128, 1e6)}),
    Row("mixtral-8x7b", {"model_type": "mixtral", **sizes(4096, 32), "head_dim": None},
        {ALL: plain(128, 1e6)}),
    Row("ministral-3-3b", {"model_type": "mistral3", "text_config": {"model_type": "ministral3",
        **sizes(3072, 32, 128), "max_position_embeddings": 262144, "rope_parameters": {
        "type": "yarn", "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
        "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}},
        {ALL: yarn(128, 1e6, 16, 16384, factor=1)}),
    Row("mistral-4", {"model_type": "mistral4", **sizes(4096, 32, 128), "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64, "rope_parameters": {"type": "yarn", "rope_theta": 1e4,
        "factor": 128.0, "original_max_position_embeddings": 8192, "mscale": 1.0,
        "max_position_embeddings": 1048576, "mscale_all_dim": 1.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5}},
        {ALL: yarn(64, 1e4, 128, 8192, factor=1)}, OUT, (0.1 * math.log(128) + 1) ** 2),
    Row("mistral-large-4", {"model_type": "mistral_large4_text", **sizes(6144, 64)},
        {ALL: yarn(64, 1e4, 2048, 512, factor=1)}, OUT),
    Row("minitron-4b", {"model_type": "nemotron", **sizes(3072, 24, 128),
        "partial_rotary_factor": 0.5}, {ALL: plain(64, 1e4)}),
    Row("olmo-2-7b", {"model_type": "olmo2", **sizes(4096, 32), "rope_theta": 500000},
        {ALL: plain(128, 5e5)}),
    Row("olmo-3-7b", {"model_type": "olmo3", **sizes(4096, 32), "rope_theta": 500000,
        "max_position_embeddings": 65536, "rope_scaling": scaled("yarn", 8.0, 8192,
        attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1)},
        {SLIDING: plain(128, 5e5), FULL: yarn(128, 5e5, 8, 8192, factor=1.2079441541679836)}),
    Row("granite-4", {"model_type": "granitemoehybrid", **sizes(2560, 40), "rope_theta": 1e7},
        {ALL: plain(64, 1e7)}),
    Row("aya-23-8b", {"model_type": "cohere", **sizes(4096, 32), "rope_theta": 10000},
        {ALL: plain(128, 1e4)}, "interleaved"),
    Row("command-r7b", {"model_type": "cohere2", **sizes(4096, 32), "rope_theta": 50000,
        "sliding_window": 4096}, {SLIDING: plain(128, 5e4), FULL: None}, "interleaved"),
    Row("stablelm-3b-4e1t", {"model_type": "stablelm", **sizes(2560, 32)}, {ALL: plain(20, 1e4)}),
    Row("modernbert-base", {"model_type": "modernbert", **sizes(768, 12),
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
        {FULL: plain(64, 1.6e5), SLIDING: plain(64, 1e4)}),
    Row("apertus-8b", {"model_type": "apertus", **sizes(4096, 32), "rope_theta": 12000000,
        "max_position_embeddings": 65536, "rope_scaling": llama3_of(8.0)},
        {ALL: llama3(128, 1.2e7, 8, 1, 4, 8192)}),
    Row("internlm2.5-7b", {"model_type": "internlm2", **sizes(4096, 32), "rope_theta": 1000000,
        "max_position_embeddings": 32768, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {ALL: dynamic(128, 1e6, 2, 32768, 1)}),
    Row("minicpm-2b-128k", {"model_type": "minicpm", **sizes(2304, 36), "rope_theta": 1e6,
        "max_position_embeddings": 65536, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        {ALL: dynamic(64, 1e6, 4, 65536, 1)}),
    Row("stablelm-2-1.6b", {"model_type": "stablelm", **sizes(2048, 32),
        "partial_rotary_factor": 0.25}, {ALL: plain(16, 1e4)}),
    Row("phi-3.5-vision", {"model_type": "phi3_v", **sizes(3072, 32),
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", **PHI35}},
        {ALL: longrope(96, 1e4, PHI35["short_factor"], PHI_FACTOR)}),
    Row("starcoder2-15b", {"model_type": "starcoder2", **sizes(4608, 36), "rope_theta": 1e6},
        {ALL: plain(128, 1e6)}),
    Row("minimax-m2", {"model_type": "minimax_m2", **sizes(3072, 48, 128), "rotary_dim": 64,
        "rope_theta": 5000000}, {ALL: plain(64, 5e6)}),
    Row("mimo-v2-flash", {"model_type": "mimo_v2_flash", **sizes(4096, 64, 192)},
        {FULL: plain(64, 5e6), SLIDING: plain(64, 1e4)}),
    Row("moonshine-tiny", {"model_type": "moonshine", **sizes(288, 8)}, {ALL: plain(32, 1e4)},
        "interleaved"),
    Row("nomic-bert", {"model_type": "nomic_bert", "n_embd": 768, "n_head": 12,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
        {ALL: plain(64, 1e3)}),
    Row("hunyuan-dense", {"model_type": "hunyuan_v1_dense", **sizes(4096, 32, 128),
        "rope_theta": 10000.0, "max_position_embeddings": 32768, "rope_scaling": {
        "type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}}, {ALL: ntk(128, 1e4, 1000)}),
    Row("inkling", {"model_type": "inkling_mm_model", "text_config": {
        "model_type": "inkling_text", **sizes(6144, 64, 128)}}, {ALL: None}),
]  # fmt: skip
KINDS = [
    pytest.param(row, kind, id=f"{row.name}{'' if kind is None else '-' + kind}")
    for row in ROWS
    for kind in row.want
]


def test_all_models_are_here():
    assert len(ROWS) == 77
    assert len({row.name for row in ROWS}) == 77


@pytest.mark.parametrize(("row", "kind"), KINDS)
def test_frequencies(row, kind):
    if row.want[kind] is None:
        with pytest.raises(ValueError, match="no rotary embedding"):
            RopeSpec.from_hf_config(row.config, kind)
        return
    spec = RopeSpec.from_hf_config(row.config, kind)
    want, factor = row.want[kind]
    inv_freq, got_factor, softmax = spec.frequencies()
    np.testing.assert_allclose(inv_freq, want, rtol=1e-12, atol=0)
    assert got_factor == pytest.approx(factor, rel=1e-12)
    assert softmax == pytest.approx(row.softmax, rel=1e-12)
    assert spec.layout == row.layout
    assert RopeSpec.from_hf_config(spec.to_hf_config()) == spec


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_layer_has_the_settings_of_its_kind(row):
    text = row.config.get("thinker_config", row.config).get("text_config", row.config)
    config = {**text, "model_type": text.get("model_type", row.config["model_type"])}
    layers = rope_layers({**config, "num_hidden_layers": 12})
    assert len(layers) == 12
    specs = {layer.spec for layer in layers}
    kinds = {
        None if want is None else RopeSpec.from_hf_config(row.config, kind)
        for kind, want in row.want.items()
    }
    # NoPE layers come by index in some models, by kind in others.
    assert specs - {None} <= kinds
    assert None in specs or None not in kinds


@pytest.mark.parametrize(
    ("name", "N", "want"),
    [
        ("internlm2.5-7b", 65536, dynamic(128, 1e6, 2, 32768, 65536)),
        ("minicpm-2b-128k", 131072, dynamic(64, 1e6, 4, 65536, 131072)),
        ("phi-3.5-mini", 4097, longrope(96, 1e4, PHI35["long_factor"], PHI_FACTOR)),
        ("phi-4-mini", 4096, longrope(96, 1e4, PHI4["short_factor"], PHI_FACTOR)),
        ("phi-4-mini", 131072, longrope(96, 1e4, PHI4["long_factor"], PHI_FACTOR)),
        ("phi-3.5-vision", 5000, longrope(96, 1e4, PHI35["long_factor"], PHI_FACTOR)),
    ],
)
def test_beyond_the_original_length(name, N, want):
    config = next(row.config for row in ROWS if row.name == name)
    inv_freq, factor, _ = RopeSpec.from_hf_config(config).frequencies(N)
    np.testing.assert_allclose(inv_freq, want[0], rtol=1e-12, atol=0)
    assert factor == pytest.approx(want[1], rel=1e-12)


def test_slices_and_sections_of_the_models_that_have_them():
    spec = lambda name, kind=None: RopeSpec.from_hf_config(
        next(row.config for row in ROWS if row.name == name), kind
    )
    v4 = spec("deepseek-v4", "main")
    assert (v4.rotary_slice, v4.head_dim, v4.rotary_dim_of()) == ("trailing", 512, 64)
    assert spec("mistral-large-4").learnable
    for name, sections, arrangement in (
        ("qwen2-vl-7b", (16, 24, 24), "contiguous"),
        ("qwen3-vl-4b", (24, 20, 20), "interleaved"),
        ("qwen3-omni-30b", (24, 20, 20), "interleaved"),
        ("qwen3.5-35b", (11, 11, 10), "interleaved"),
    ):
        axes = spec(name).axes
        assert (axes.sections, axes.arrangement) == (sections, arrangement)
    assert spec("llama-2-7b").axes is None
