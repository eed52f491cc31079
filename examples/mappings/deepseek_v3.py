"""DeepSeek-V3: float8 with a scale for each block; the first three layers have no experts."""

import treepack

ALL, MOE = "model.layers.{l:0..61}", "model.layers.{l:3..61}.mlp"
FP8 = {"block": (128, 128), "dtype": "bfloat16"}


def _scaled(path: str, axes: str) -> tuple[str, str, dict[str, object]]:
    return path + ".weight", axes, FP8 | {"scales": path + ".weight_scale_inv"}


RULES = {
    "embed": "model.embed_tokens.weight",
    "attn/q_a": _scaled(ALL + ".self_attn.q_a_proj", "r m -> l m r"),
    "attn/kv_a": _scaled(ALL + ".self_attn.kv_a_proj_with_mqa", "r m -> l m r"),
    "attn/{p}_b": _scaled(ALL + ".self_attn.{p}_b_proj", "(h d) r -> l r h d"),
    "attn/{p}_norm": (ALL + ".self_attn.{p}_a_layernorm.weight", "r -> l r"),
    "attn/out": _scaled(ALL + ".self_attn.o_proj", "m (h d) -> l h d m"),
    "norms/{at}": (ALL + ".{at}_layernorm.weight", "m -> l m"),
    "dense/{p}": _scaled("model.layers.{l:0..3}.mlp.{p}_proj", "o i -> l i o"),
    "moe/router": (MOE + ".gate.weight", "e m -> l m e"),
    "moe/router_bias": (MOE + ".gate.e_score_correction_bias", "e -> l e"),
    "moe/shared/{p}": _scaled(MOE + ".shared_experts.{p}_proj", "o i -> l i o"),
    "moe/experts/{p}": _scaled(MOE + ".experts.{e}.{p}_proj", "o i -> l e i o"),
    "norm": "model.norm.weight",
    "head": ("lm_head.weight", "v m -> m v"),
}
deepseek_v3 = treepack.Mapping(RULES, h=128)
