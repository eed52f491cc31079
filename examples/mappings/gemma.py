"""Gemma-7B: norms are stored less one, and the tree has scaled embeddings."""

import treepack

LAYER = "model.layers.{l}"
NORM = {"add": 1.0, "inexact": True}  # bfloat16 rounds the sum, and the way back

gemma = treepack.Mapping(
    {
        "embed": ("model.embed_tokens.weight", "v m", {"scale": 3072**0.5, "inexact": True}),
        "layers/attn/q": (LAYER + ".self_attn.q_proj.weight", "(h d) m -> l m h d"),
        "layers/attn/k": (LAYER + ".self_attn.k_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/v": (LAYER + ".self_attn.v_proj.weight", "(k d) m -> l m k d"),
        "layers/attn/out": (LAYER + ".self_attn.o_proj.weight", "m (h d) -> l h d m"),
        "layers/mlp/gate": (LAYER + ".mlp.gate_proj.weight", "f m -> l m f"),
        "layers/mlp/up": (LAYER + ".mlp.up_proj.weight", "f m -> l m f"),
        "layers/mlp/down": (LAYER + ".mlp.down_proj.weight", "m f -> l f m"),
        "layers/attn/norm": (LAYER + ".input_layernorm.weight", "m -> l m", NORM),
        "layers/mlp/norm": (LAYER + ".post_attention_layernorm.weight", "m -> l m", NORM),
        "norm": ("model.norm.weight", "m", NORM),
    },
    h=16,
    k=16,
)
