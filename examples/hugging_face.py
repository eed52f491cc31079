"""Loads a model of Hugging Face as a scanned, sharded flax model, and saves it back.

    python examples/hugging_face.py

The example makes a repository with random weights under the names of Llama, so that it runs
offline: pass the directory of a downloaded Llama in its place. PyTorch stores each projection of
each layer as an array [out, in]; a scanned model has one array [layers, in, out] for all layers,
which is split over four devices. Each device reads its part from the files.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import treepack

# The shapes of Llama 3 8B, divided by 64.
CONFIG = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 224,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "vocab_size": 2004,
    "rms_norm_eps": 1e-5,
}


class Layer(nn.Module):
    """A layer of Llama: attention with shared keys, and a gated MLP."""

    config: dict[str, Any]

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Returns activations [tokens, hidden] of the next layer; `_` is for `nn.scan`."""
        c = self.config
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        size = c["hidden_size"] // heads

        def dense(width: int, name: str) -> nn.Dense:
            return nn.Dense(width, use_bias=False, name=name)

        y = nn.RMSNorm(c["rms_norm_eps"], name="input_layernorm")(x)
        q = dense(heads * size, "q_proj")(y).reshape(-1, groups, heads // groups, size)
        k = dense(groups * size, "k_proj")(y).reshape(-1, groups, size)
        v = dense(groups * size, "v_proj")(y).reshape(-1, groups, size)
        scores = jnp.einsum("tghd,sgd->ghts", q, k) / size**0.5
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        weights = nn.softmax(jnp.where(mask, scores, -jnp.inf))
        y = jnp.einsum("ghts,sgd->tghd", weights, v).reshape(len(x), -1)
        x = x + dense(c["hidden_size"], "o_proj")(y)
        y = nn.RMSNorm(c["rms_norm_eps"], name="post_attention_layernorm")(x)
        gate = nn.silu(dense(c["intermediate_size"], "gate_proj")(y))
        up = dense(c["intermediate_size"], "up_proj")(y)
        return x + dense(c["hidden_size"], "down_proj")(gate * up), None


class Llama(nn.Module):
    """The architecture, without rotary embeddings, with one array for all layers."""

    config: dict[str, Any]

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits [tokens, vocabulary]."""
        c = self.config
        x = nn.Embed(c["vocab_size"], c["hidden_size"], name="embed")(tokens)
        layers = nn.scan(
            Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=c["num_hidden_layers"],
        )
        x, _ = layers(c, name="layers")(x, None)
        x = nn.RMSNorm(c["rms_norm_eps"], name="norm")(x)
        return nn.Dense(c["vocab_size"], use_bias=False, name="lm_head")(x)


PROJECTIONS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}

# The parameters in the tree and in the file, with their axes: for `load` and `save`.
RULES = {
    f"layers/{name}/kernel": (f"model.layers.{{l}}.{part}.{name}.weight", "o i -> l i o")
    for part, names in PROJECTIONS.items()
    for name in names
} | {
    "layers/input_layernorm/scale": ("model.layers.{l}.input_layernorm.weight", "m -> l m"),
    "layers/post_attention_layernorm/scale": (
        "model.layers.{l}.post_attention_layernorm.weight",
        "m -> l m",
    ),
    "lm_head/kernel": ("lm_head.weight", "v m -> m v"),
    "embed/embedding": "model.embed_tokens.weight",
    "norm/scale": "model.norm.weight",
}


def write_repository(folder: Path) -> None:
    """Writes random weights in bfloat16, as PyTorch names them, in several files."""
    rng = np.random.default_rng(0)
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shared = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]

    def array(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(jnp.bfloat16)

    outputs = {"k_proj": shared, "v_proj": shared, "gate_proj": inner, "up_proj": inner}
    layer = {
        part: {
            name: {"weight": (outputs.get(name, hidden), inner if name == "down_proj" else hidden)}
            for name in names
        }
        for part, names in PROJECTIONS.items()
    }
    norms = {
        name: {"weight": (hidden,)} for name in ("input_layernorm", "post_attention_layernorm")
    }
    shapes = {
        "model": {
            "embed_tokens": {"weight": (CONFIG["vocab_size"], hidden)},
            "layers": {str(at): layer | norms for at in range(CONFIG["num_hidden_layers"])},
            "norm": {"weight": (hidden,)},
        },
        "lm_head": {"weight": (CONFIG["vocab_size"], hidden)},
    }
    weights = jax.tree.map(
        lambda shape: array(*shape), shapes, is_leaf=lambda node: isinstance(node, tuple)
    )
    treepack.save(
        folder, weights, format="safetensors", max_shard_size="300KB", metadata={"format": "pt"}
    )
    (folder / "config.json").write_text(json.dumps(CONFIG))


def template_of(model: Llama) -> Any:
    """Returns the shapes of the parameters in bfloat16, each split over all devices."""
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros(8, jnp.int32))["params"]

    def split(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_even = leaf.shape[-1] % mesh.size == 0
        spec = PartitionSpec(*[None] * (len(leaf.shape) - 1), "x" if is_even else None)
        where = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=where)

    return jax.tree.map(split, shapes)


def main(given: str | None = None) -> None:
    """Loads a repository, runs the model, and writes it back."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(given or f"{folder}/llama")
        if given is None:
            write_repository(source)
        model = Llama(json.loads((source / "config.json").read_text()))
        params = treepack.load(source, template_of(model), mapping=RULES)
        kernel = params["layers"]["up_proj"]["kernel"]
        print(f"up_proj of all layers: {kernel.shape}, {kernel.sharding.spec}")

        tokens = jnp.arange(8)
        print(f"logits: {jax.jit(model.apply)({'params': params}, tokens).shape}")

        treepack.save(
            f"{folder}/back", params, format="safetensors", max_shard_size="300KB", mapping=RULES
        )
        old, new = treepack.load(source), treepack.load(f"{folder}/back")
        same = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), old, new)
        print(f"{len(jax.tree.leaves(same))} tensors are back, bit by bit: {jax.tree.all(same)}")
        assert jax.tree.all(same)


if __name__ == "__main__":
    main(*sys.argv[1:])
