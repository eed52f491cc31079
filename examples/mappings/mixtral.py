"""Mixtral-8x7B: layers of experts."""

import treepack

LAYER = "model.layers.{l}"

mixtral = treepack.Mapping(
    {
        "embed": ("model.embed_tokens.weight", "v m"),
        "layers/attn/q": (LAYER + ".self_attn.q_proj.weight", "(h d) m -> l m h d"),
        "layers/attn/k": (LAYER + ".self_attn.k_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/v": (LAYER + ".self_attn.v_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/out": (LAYER + ".self_attn.o_proj.weight", "m (h d) -> l h d m"),
        "layers/moe/router": (LAYER + ".block_sparse_moe.gate.weight", "e m -> l m e"),
        "layers/moe/gate": (LAYER + ".block_sparse_moe.experts.{e}.w1.weight", "f m -> l e m f"),
        "layers/moe/up": (LAYER + ".block_sparse_moe.experts.{e}.w3.weight", "f m -> l e m f"),
        "layers/moe/down": (LAYER + ".block_sparse_moe.experts.{e}.w2.weight", "m f -> l e f m"),
        "layers/attn/norm": (LAYER + ".input_layernorm.weight", "m -> l m"),
        "layers/moe/norm": (LAYER + ".post_attention_layernorm.weight", "m -> l m"),
        "norm": ("model.norm.weight", "m"),
        "head": ("lm_head.weight", "v m -> m v"),
    },
    h=32,
    k=8,
)
