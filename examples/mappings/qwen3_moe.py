"""Qwen3-30B-A3B: layers of experts, whose gate and up are one array of the tree."""

import treepack

LAYER = "model.layers.{l}"
EXPERT = LAYER + ".mlp.experts.{e}"
GATE_UP = (EXPERT + ".gate_proj.weight", EXPERT + ".up_proj.weight")

qwen3_moe = treepack.Mapping(
    {
        "embed": ("model.embed_tokens.weight", "v m"),
        "layers/attn/q": (LAYER + ".self_attn.q_proj.weight", "(h d) m -> l m h d"),
        "layers/attn/k": (LAYER + ".self_attn.k_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/v": (LAYER + ".self_attn.v_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/out": (LAYER + ".self_attn.o_proj.weight", "m (h d) -> l h d m"),
        "layers/attn/q_norm": (LAYER + ".self_attn.q_norm.weight", "d -> l d"),
        "layers/attn/k_norm": (LAYER + ".self_attn.k_norm.weight", "d -> l d"),
        "layers/moe/router": (LAYER + ".mlp.gate.weight", "e m -> l m e"),
        "layers/moe/up": (GATE_UP, "f m -> l e m (n f)", {"along": "n"}),
        "layers/moe/down": (EXPERT + ".down_proj.weight", "m f -> l e f m"),
        "layers/attn/norm": (LAYER + ".input_layernorm.weight", "m -> l m"),
        "layers/moe/norm": (LAYER + ".post_attention_layernorm.weight", "m -> l m"),
        "norm": ("model.norm.weight", "m"),
        "head": ("lm_head.weight", "v m -> m v"),
    },
    h=32,
    k=4,
)
