"""ViT-Base: patches are projected by a convolution."""

import treepack

EMBED, LAYER = "vit.embeddings", "vit.encoder.layer.{l}"
ATTN = LAYER + ".attention.attention.{p}"

vit = treepack.Mapping(
    {
        "class": (EMBED + ".cls_token", "1 1 m -> m"),
        "positions": (EMBED + ".position_embeddings", "1 n m -> n m"),
        "patches/weight": (EMBED + ".patch_embeddings.projection.weight", "m c y x -> y x c m"),
        "patches/bias": (EMBED + ".patch_embeddings.projection.bias", "m"),
        "layers/qkv/{p}/weight": (ATTN + ".weight", "(h d) m -> l m h d"),
        "layers/qkv/{p}/bias": (ATTN + ".bias", "(h d) -> l h d"),
        "layers/attn/out/weight": (LAYER + ".attention.output.dense.weight", "m (h d) -> l h d m"),
        "layers/attn/out/bias": (LAYER + ".attention.output.dense.bias", "m -> l m"),
        "layers/mlp/up/weight": (LAYER + ".intermediate.dense.weight", "f m -> l m f"),
        "layers/mlp/up/bias": (LAYER + ".intermediate.dense.bias", "f -> l f"),
        "layers/mlp/down/weight": (LAYER + ".output.dense.weight", "m f -> l f m"),
        "layers/mlp/down/bias": (LAYER + ".output.dense.bias", "m -> l m"),
        "layers/attn/norm/{kind}": (LAYER + ".layernorm_before.{kind}", "m -> l m"),
        "layers/mlp/norm/{kind}": (LAYER + ".layernorm_after.{kind}", "m -> l m"),
        "norm": "vit.layernorm",
        "head/weight": ("classifier.weight", "c m -> m c"),
        "head/bias": ("classifier.bias", "c"),
    },
    h=12,
)
