"""Phi-3-medium: q|k|v have unequal sizes in one tensor, and gate|up are another."""

import treepack

LAYER = "model.layers.{l}"
QKV = ("layers/attn/q", "layers/attn/k", "layers/attn/v")
GATE_UP = ("layers/mlp/gate", "layers/mlp/up")

phi3 = treepack.Mapping(
    {
        "embed": ("model.embed_tokens.weight", "v m"),
        QKV: (LAYER + ".self_attn.qkv_proj.weight", "(n d) m -> l m n d", {"along": "n"}),
        "layers/attn/out": (LAYER + ".self_attn.o_proj.weight", "m (h d) -> l h d m"),
        GATE_UP: (LAYER + ".mlp.gate_up_proj.weight", "(two f) m -> l m f", {"along": "two"}),
        "layers/mlp/down": (LAYER + ".mlp.down_proj.weight", "m f -> l f m"),
        "layers/attn/norm": (LAYER + ".input_layernorm.weight", "m -> l m"),
        "layers/mlp/norm": (LAYER + ".post_attention_layernorm.weight", "m -> l m"),
        "norm": ("model.norm.weight", "m"),
        "head": ("lm_head.weight", "v m -> m v"),
    },
    n=(40, 10, 10),
    h=40,
)
