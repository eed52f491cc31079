"""Pythia-6.9B: q|k|v are one tensor, interleaved by heads."""

import treepack

LAYER = "gpt_neox.layers.{l}"
WEIGHTS = ("layers/attn/q/weight", "layers/attn/k/weight", "layers/attn/v/weight")
BIASES = ("layers/attn/q/bias", "layers/attn/k/bias", "layers/attn/v/bias")

gpt_neox = treepack.Mapping(
    {
        "embed": ("gpt_neox.embed_in.weight", "v m"),
        WEIGHTS: (
            LAYER + ".attention.query_key_value.weight",
            "(h n d) m -> l m h d",
            {"along": "n"},
        ),
        BIASES: (LAYER + ".attention.query_key_value.bias", "(h n d) -> l h d", {"along": "n"}),
        "layers/attn/out/weight": (LAYER + ".attention.dense.weight", "m (h d) -> l h d m"),
        "layers/attn/out/bias": (LAYER + ".attention.dense.bias", "m -> l m"),
        "layers/mlp/up/weight": (LAYER + ".mlp.dense_h_to_4h.weight", "f m -> l m f"),
        "layers/mlp/up/bias": (LAYER + ".mlp.dense_h_to_4h.bias", "f -> l f"),
        "layers/mlp/down/weight": (LAYER + ".mlp.dense_4h_to_h.weight", "m f -> l f m"),
        "layers/mlp/down/bias": (LAYER + ".mlp.dense_4h_to_h.bias", "m -> l m"),
        "layers/attn/norm/{kind}": (LAYER + ".input_layernorm.{kind}", "m -> l m"),
        "layers/mlp/norm/{kind}": (LAYER + ".post_attention_layernorm.{kind}", "m -> l m"),
        "norm": "gpt_neox.final_layer_norm",
        "head": ("embed_out.weight", "v m -> m v"),
    },
    h=32,
)
