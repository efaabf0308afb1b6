"""Tiny models of many families of transformers, and where their norms stand, by their papers."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
PADDED = {**GROUPED, "pad_token_id": 0}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
PAIR = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 4, "num_heads": 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
NEO = {
    "vocab_size": 99, "hidden_size": 32, "num_layers": 4, "num_heads": 4,
    "max_position_embeddings": 64, "attention_types": [[["global", "local"], 2]],
}  # fmt: skip
MODERN = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
          "sep_token_id": 2}  # fmt: skip

# family: settings, placement
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "gpt2": (GPT, "pre"), "gpt_neo": (NEO, "pre"), "llama": (GROUPED, "pre"),
    "mistral": (GROUPED, "pre"), "mixtral": ({**GROUPED, "num_local_experts": 4}, "pre"),
    "qwen2": (GROUPED, "pre"), "qwen3": (HEADS, "pre"), "qwen3_moe": ({**HEADS, **EXPERTS}, "pre"),
    "qwen2_moe": ({**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 32}, "pre"),
    "gemma": (HEADS, "pre"), "vaultgemma": (HEADS, "pre"), "olmo": (GROUPED, "pre"),
    "olmoe": ({**GROUPED, **EXPERTS}, "pre"), "phi3": (PADDED, "pre"),
    "phimoe": ({**GROUPED, "num_local_experts": 4}, "pre"),
    "mpt": (
        {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 64}, "pre"
    ),
    "bloom": ({"vocab_size": 99, "hidden_size": 32, "n_layer": 4, "n_head": 4}, "pre"),
    "opt": ({**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}, "pre"),
    "xglm": ({"vocab_size": 99, "d_model": 32, "num_layers": 4, "attention_heads": 4,
              "ffn_dim": 64, "max_position_embeddings": 64}, "pre"),
    "biogpt": (SIZES, "pre"), "starcoder2": (GROUPED, "pre"), "nemotron": (HEADS, "pre"),
    "glm": ({**HEADS, "pad_token_id": 0}, "pre"), "granite": (GROUPED, "pre"),
    "persimmon": (SIZES, "pre"), "smollm3": (PADDED, "pre"), "helium": (HEADS, "pre"),
    "seed_oss": (HEADS, "pre"), "ernie4_5": (HEADS, "pre"), "arcee": (GROUPED, "pre"),
    "apertus": (PADDED, "pre"), "modernbert": ({**SIZES, **MODERN}, "pre"),
    "roberta-prelayernorm": ({**SIZES, "pad_token_id": 1}, "pre"), "t5": (T5, "pre"),
    "mt5": (T5, "pre"), "mbart": (PAIR, "pre"), "pegasus": (PAIR, "pre"),
    "phi": (SIZES, "pre, parallel"), "gptj": ({**GPT, "rotary_dim": 4}, "pre, parallel"),
    "gpt_neox": ({**SIZES, "use_parallel_residual": True}, "pre, parallel"),
    "falcon": ({"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4,
                "num_attention_heads": 4}, "pre, parallel"),
    "cohere": (GROUPED, "pre, parallel"), "cohere2": (GROUPED, "pre, parallel"),
    "stablelm": ({**SIZES, "use_parallel_residual": True, "num_key_value_heads": 4},
                 "pre, parallel"),
    "gemma2": (HEADS, "sandwich"), "gemma3_text": (HEADS, "sandwich"),
    "glm4": ({**HEADS, "pad_token_id": 0}, "sandwich"),
    "olmo2": (GROUPED, "output"), "olmo3": (GROUPED, "output"), "exaone4": (HEADS, "output"),
    "bert": (SIZES, "post"), "roberta": ({**SIZES, "pad_token_id": 1}, "post"),
    "albert": ({**SIZES, "embedding_size": 16}, "post"),
    "distilbert": ({"vocab_size": 99, "dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64,
                    "max_position_embeddings": 64}, "post"),
    "electra": ({**SIZES, "embedding_size": 16}, "post"), "deberta-v2": (SIZES, "post"),
    "mpnet": (SIZES, "post"), "bart": (PAIR, "post"),
    "marian": ({**PAIR, "pad_token_id": 0, "decoder_start_token_id": 1}, "post"),
}  # fmt: skip


def tiny(family: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of four layers with fresh weights, and a batch for it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family][0])
    try:
        model = AutoModel.from_config(config)
    except ValueError:  # families that have a language model alone
        model = AutoModelForCausalLM.from_config(config)
    tokens = torch.randint(3, 90, (2, 16))
    pair = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
    return model.eval(), {"input_ids": tokens, **pair}
