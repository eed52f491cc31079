"""GPT-2: kernels lie as in JAX, and q|k|v are one tensor."""

import treepack

WEIGHTS = ("layers/attn/q/weight", "layers/attn/k/weight", "layers/attn/v/weight")
BIASES = ("layers/attn/q/bias", "layers/attn/k/bias", "layers/attn/v/bias")

gpt2 = treepack.Mapping(
    {
        "embed": ("wte.weight", "v m"),
        "positions": ("wpe.weight", "n m"),
        WEIGHTS: ("h.{l}.attn.c_attn.weight", "m (n h d) -> l m h d", {"along": "n"}),
        BIASES: ("h.{l}.attn.c_attn.bias", "(n h d) -> l h d", {"along": "n"}),
        "layers/attn/out/weight": ("h.{l}.attn.c_proj.weight", "(h d) m -> l h d m"),
        "layers/attn/out/bias": ("h.{l}.attn.c_proj.bias", "m -> l m"),
        "layers/mlp/up/weight": ("h.{l}.mlp.c_fc.weight", "m f -> l m f"),
        "layers/mlp/up/bias": ("h.{l}.mlp.c_fc.bias", "f -> l f"),
        "layers/mlp/down/weight": ("h.{l}.mlp.c_proj.weight", "f m -> l f m"),
        "layers/mlp/down/bias": ("h.{l}.mlp.c_proj.bias", "m -> l m"),
        "layers/attn/norm/{kind}": ("h.{l}.ln_1.{kind}", "m -> l m"),
        "layers/mlp/norm/{kind}": ("h.{l}.ln_2.{kind}", "m -> l m"),
        "norm": "ln_f",
    },
    h=12,
)
