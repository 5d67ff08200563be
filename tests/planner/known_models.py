"""Configurations of well-known models, as far as memory depends on them, with what their authors publish of their size; and their
shapes, as the models say them, built without weights.

Facts only, from the config.json and the model card or report of each model at its publisher. ``parameters`` is the published count (the
exact one where the card's weight index states it); ``active`` that of one token; ``kv`` bytes of 16-bit cache a token, by the heads given.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.planner.model.shape import ModelShape


@dataclass(frozen=True)
class Known:
    """``kv_bytes``: of one more token in 16 bits, or None where it is not one number."""

    config: dict[str, Any]
    parameters: float
    attention: str
    kv_bytes: int | None = None
    active: float | None = None


def _decoder(
    family: str, layers: int, heads: int, kv: int, hidden: int, wide: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        **more,
    }


_V3 = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_GPT_OSS = {"head_dim": 64, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True}
TIED = {"tie_word_embeddings": True}

# fmt: off
KNOWN: dict[str, Known] = {
    # Touvron and others 2023; weight index of the published checkpoint
    "Llama 2 7B": Known(_decoder("llama", 32, 32, 32, 4096, 11008, 32000), 6_738_415_616, "MHA", 512 * 1024),
    "Llama 2 13B": Known(_decoder("llama", 40, 40, 40, 5120, 13824, 32000), 13_015_864_320, "MHA", 800 * 1024),
    "Llama 2 70B": Known(_decoder("llama", 80, 64, 8, 8192, 28672, 32000), 68_976_648_192, "GQA", 320 * 1024),
    # Llama 3 and 3.2 model cards
    "Llama 3 8B": Known(_decoder("llama", 32, 32, 8, 4096, 14336, 128256), 8_030_261_248, "GQA", 128 * 1024),
    "Llama 3.1 70B": Known(_decoder("llama", 80, 64, 8, 8192, 28672, 128256), 70_553_706_496, "GQA", 320 * 1024),
    "Llama 3.1 405B": Known(_decoder("llama", 126, 128, 8, 16384, 53248, 128256), 405.85e9, "GQA", 504 * 1024),
    "Llama 3.2 1B": Known(_decoder("llama", 16, 32, 8, 2048, 8192, 128256, head_dim=64, **TIED), 1_235_814_400, "GQA", 32 * 1024),
    "Llama 3.2 3B": Known(_decoder("llama", 28, 24, 8, 3072, 8192, 128256, head_dim=128, **TIED), 3_212_749_824, "GQA", 112 * 1024),
    "TinyLlama 1.1B": Known(_decoder("llama", 22, 32, 4, 2048, 5632, 32000), 1_100_048_384, "GQA", 22 * 1024),
    "SmolLM2 135M": Known(_decoder("llama", 30, 9, 3, 576, 1536, 49152, **TIED), 134_515_008, "GQA", 23_040),
    "Yi 34B": Known(_decoder("llama", 60, 56, 8, 7168, 20480, 64000), 34_388_917_248, "GQA", 240 * 1024),
    # Jiang and others 2023, 2024
    "Mistral 7B": Known(_decoder("mistral", 32, 32, 8, 4096, 14336, 32000, sliding_window=4096), 7_241_732_096, "GQA", 128 * 1024),
    "Mixtral 8x7B": Known(
        _decoder("mixtral", 32, 32, 8, 4096, 14336, 32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
        46_702_792_704, "GQA", 128 * 1024, active=12.9e9,
    ),
    # Qwen2.5 and Qwen3 technical reports
    "Qwen2.5 0.5B": Known(_decoder("qwen2", 24, 14, 2, 896, 4864, 151936, use_sliding_window=False, **TIED), 494_032_768, "GQA", 12 * 1024),
    "Qwen2.5 7B": Known(
        _decoder("qwen2", 28, 28, 4, 3584, 18944, 152064, use_sliding_window=False, sliding_window=131072), 7_615_616_512, "GQA", 56 * 1024
    ),
    "Qwen2.5 72B": Known(_decoder("qwen2", 80, 64, 8, 8192, 29568, 152064, use_sliding_window=False), 72.7e9, "GQA", 320 * 1024),
    "Qwen3 8B": Known(
        _decoder("qwen3", 36, 32, 8, 4096, 12288, 151936, head_dim=128, use_sliding_window=False), 8_190_735_360, "GQA", 144 * 1024
    ),
    "Qwen3 30B-A3B": Known(
        _decoder("qwen3_moe", 48, 32, 4, 2048, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
                 moe_intermediate_size=768),
        30.5e9, "GQA", 96 * 1024, active=3.3e9,
    ),
    # Gemma 2 and 3 reports; a window of 4,096 or 1,024 in most layers
    "Gemma 2 9B": Known(
        _decoder("gemma2", 42, 16, 8, 3584, 14336, 256000, head_dim=256, sliding_window=4096, **TIED), 9_241_705_984, "GQA", 336 * 1024
    ),
    "Gemma 2 27B": Known(
        _decoder("gemma2", 46, 32, 16, 4608, 36864, 256000, head_dim=128, sliding_window=4096, **TIED), 27_227_128_320, "GQA", 368 * 1024
    ),
    "Gemma 3 1B": Known(
        _decoder("gemma3_text", 26, 4, 1, 1152, 6912, 262144, head_dim=256, sliding_window=512, **TIED), 999_885_952, "MQA", 26 * 1024
    ),
    "Gemma 3 4B": Known(
        {
            "model_type": "gemma3",
            "text_config": _decoder("gemma3_text", 34, 8, 4, 2560, 10240, 262208, head_dim=256, sliding_window=1024),
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
                "num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": False,
            },
        },
        4_300_079_472, "GQA", 136 * 1024,
    ),
    # DeepSeek-AI 2024: 671 billion, 37 of them active; 15.7 and 2.4 (2.7 with the tables) of V2 Lite
    "DeepSeek V3": Known(
        _decoder(
            "deepseek_v3", 61, 128, 128, 7168, 18432, 129280, **_V3, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8,
            moe_intermediate_size=2048, first_k_dense_replace=3,
        ),
        671e9, "MLA", 61 * (512 + 64) * 2, active=37.5e9,
    ),
    "DeepSeek V2 Lite": Known(
        _decoder(
            "deepseek_v2", 27, 16, 16, 2048, 10944, 102400, **{**_V3, "q_lora_rank": None}, n_routed_experts=64, n_shared_experts=2,
            num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
        ),
        15.7e9, "MLA", 27 * (512 + 64) * 2,
    ),
    # Microsoft 2023, 2024
    "Phi-2": Known(_decoder("phi", 32, 32, 32, 2560, 10240, 51200), 2_779_683_840, "MHA", 320 * 1024),
    "Phi-3 mini": Known(_decoder("phi3", 32, 32, 32, 3072, 8192, 32064, sliding_window=2047), 3_821_079_552, "MHA", 384 * 1024),
    "Phi-4": Known(_decoder("phi3", 40, 40, 10, 5120, 17920, 100352, sliding_window=None), 14_659_507_200, "GQA", 200 * 1024),
    # OpenAI 2025, table 1 of the model card: 20.91 and 116.83 billion, 3.61 and 5.13 active
    "gpt-oss 20B": Known(
        _decoder("gpt_oss", 24, 64, 8, 2880, 2880, 201088, num_local_experts=32, **_GPT_OSS), 20.91e9, "GQA", 48 * 1024
    ),
    "gpt-oss 120B": Known(
        _decoder("gpt_oss", 36, 64, 8, 2880, 2880, 201088, num_local_experts=128, **_GPT_OSS), 116.83e9, "GQA", 72 * 1024
    ),
    # Radford and others 2019; Black and others 2022; Zhang and others 2022; BigScience 2022; Almazrouei and others 2023
    "GPT-2": Known(
        {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257, "n_positions": 1024},
        124_439_808, "MHA", 36_864
    ),
    "GPT-NeoX 20B": Known(
        {**_decoder("gpt_neox", 44, 64, 64, 6144, 24576, 50432), "attention_bias": True}, 20_554_567_680, "MHA", 1056 * 1024
    ),
    "OPT 6.7B": Known(
        {
            "model_type": "opt", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "ffn_dim": 16384,
            "vocab_size": 50272, "max_position_embeddings": 2048, "enable_bias": True,
        },
        6_658_473_984, "MHA", 512 * 1024,
    ),
    "BLOOM 176B": Known(
        {"model_type": "bloom", "n_layer": 70, "n_head": 112, "hidden_size": 14336, "vocab_size": 250880},
        176_247_271_424, "MHA", 3920 * 1024
    ),
    "Falcon 7B": Known(
        {
            "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "vocab_size": 65024,
            "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True, "bias": False,
        },
        6_921_720_704, "MQA", 8 * 1024,
    ),
    # Gu and Dao 2023
    "Mamba 2.8B": Known(
        {
            "model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "intermediate_size": 5120, "vocab_size": 50280,
            "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 160,
        },
        2_768_345_600, "no attention", 0,
    ),
    # OLMo 2 (2025), OLMoE (2024: 6.9 billion, 1.3 active), StarCoder 2 (2024), Command R (2024)
    "OLMo 2 7B": Known(_decoder("olmo2", 32, 32, 32, 4096, 11008, 100352), 7_298_617_344, "MHA", 512 * 1024),
    "OLMoE 1B-7B": Known(
        _decoder("olmoe", 16, 16, 16, 2048, 1024, 50304, num_experts=64, num_experts_per_tok=8), 6.92e9, "MHA", 128 * 1024, active=1.28e9
    ),
    "StarCoder2 3B": Known(
        _decoder("starcoder2", 30, 24, 2, 3072, 12288, 49152, use_bias=True, sliding_window=4096), 3_030_371_328, "GQA", 30 * 1024
    ),
    "Command R 35B": Known(_decoder("cohere", 40, 64, 64, 8192, 22528, 256000), 34_980_831_232, "MHA", 1280 * 1024),
    # Jamba (2024): 52 billion, 12 active; one layer in eight attends
    "Jamba 52B": Known(
        _decoder(
            "jamba", 32, 32, 8, 4096, 14336, 65536, num_experts=16, num_experts_per_tok=2, attn_layer_period=8, attn_layer_offset=4,
            expert_layer_period=2, expert_layer_offset=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=256,
        ),
        51.57e9, "GQA", 16 * 1024, active=12.1e9,
    ),
}
# fmt: on
# One of each way of keeping tokens and weights: what holds for any shape is tried on these.
VARIED = (
    "Llama 2 7B",
    "Llama 3 8B",
    "Mixtral 8x7B",
    "Gemma 2 9B",
    "DeepSeek V2 Lite",
    "gpt-oss 20B",
    "GPT-2",
    "Falcon 7B",
    "Mamba 2.8B",
    "Jamba 52B",
)


@functools.cache
def known_shape(name: str) -> ModelShape:
    """Of one of ``KNOWN``, asked once in a session."""
    return shape_of(KNOWN[name].config)


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Of a configuration as published, in a fifth of a second and more."""
    from transformers import AutoConfig

    from pipeline.config import ModelConfig
    from pipeline.engine.model.meta_shape import meta_shape

    keys = dict(config)
    return meta_shape(AutoConfig.for_model(keys.pop("model_type"), **keys), ModelConfig(id="known"))
