"""Qwen3-8B: queries and keys have norms."""

import treepack

LAYER = "model.layers.{l}"

qwen3 = treepack.Mapping(
    {
        "embed": ("model.embed_tokens.weight", "v m"),
        "layers/attn/q": (LAYER + ".self_attn.q_proj.weight", "(h d) m -> l m h d"),
        "layers/attn/k": (LAYER + ".self_attn.k_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/v": (LAYER + ".self_attn.v_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/out": (LAYER + ".self_attn.o_proj.weight", "m (h d) -> l h d m"),
        "layers/attn/q_norm": (LAYER + ".self_attn.q_norm.weight", "d -> l d"),
        "layers/attn/k_norm": (LAYER + ".self_attn.k_norm.weight", "d -> l d"),
        "layers/mlp/gate": (LAYER + ".mlp.gate_proj.weight", "f m -> l m f"),
        "layers/mlp/up": (LAYER + ".mlp.up_proj.weight", "f m -> l m f"),
        "layers/mlp/down": (LAYER + ".mlp.down_proj.weight", "m f -> l f m"),
        "layers/attn/norm": (LAYER + ".input_layernorm.weight", "m -> l m"),
        "layers/mlp/norm": (LAYER + ".post_attention_layernorm.weight", "m -> l m"),
        "norm": ("model.norm.weight", "m"),
        "head": ("lm_head.weight", "v m -> m v"),
    },
    h=32,
    k=8,
)
