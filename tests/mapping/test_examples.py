"""The mappings of examples/mappings/, on small models with the names of Hugging Face's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import treepack

FOLDER = Path(__file__).parents[2] / "examples" / "mappings"

Arrays = dict[str, np.ndarray]

LAYERS, WIDTH, HIDDEN, EXPERTS = 2, 8, 12, 3


class Model:
    """The tensors of a repository, and the tree that is expected of them.

    Attributes:
      tensors: The tensors by name.
      tree: The leaves by path; those of layers are stacked along the first axis.
      numbers: The numbers of the layers of a stacked leaf, by path.
    """

    def __init__(self, dtype: Any = ml_dtypes.bfloat16):
        self.dtype = dtype
        self.random = np.random.default_rng(0)
        self.tensors: Arrays = {}
        self.tree: Arrays = {}
        self.numbers: dict[str, range] = {}

    def draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Adds a tensor, of multiples of 1/64: in bfloat16 the sum with 1 is exact."""
        values = self.random.integers(-64, 65, shape) / 64
        return self.tensors.setdefault(name, values.astype(self.dtype))

    def leaf(
        self, path: str, name: str, shape: tuple[int, ...], move: Callable[..., Any] = np.asarray
    ) -> None:
        """Adds a tensor, and the leaf that `move` makes of it."""
        self.tree[path] = move(self.draw(name, shape))

    def layers(
        self,
        paths: str | tuple[str, ...],
        name: str,
        shape: tuple[int, ...],
        move: Callable[..., Any] = np.asarray,
        numbers: range = range(LAYERS),
    ) -> None:
        """Adds a tensor for each layer, and the leaves, or the several of one tensor."""
        moved = [move(self.draw(name.format(l=at), shape)) for at in numbers]
        for at, path in enumerate((paths,) if isinstance(paths, str) else paths):
            each = moved if isinstance(paths, str) else [leaves[at] for leaves in moved]
            self.tree[path], self.numbers[path] = np.stack(each), numbers


def transposed(array: np.ndarray) -> np.ndarray:
    return array.T


def from_rows(heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the move of a weight that has its heads in rows."""
    return lambda array: array.T.reshape(array.shape[1], heads, -1)


def to_rows(heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the move of a weight that has its heads in columns."""
    return lambda array: array.T.reshape(heads, -1, array.shape[0])


def add_attention(model: Model, heads: int, groups: int, size: int = 2) -> None:
    path, name = "layers/attn/", "model.layers.{l}.self_attn."
    model.layers(path + "q", name + "q_proj.weight", (heads * size, WIDTH), from_rows(heads))
    model.layers(path + "k", name + "k_proj.weight", (groups * size, WIDTH), from_rows(groups))
    model.layers(path + "v", name + "v_proj.weight", (groups * size, WIDTH), from_rows(groups))
    model.layers(path + "out", name + "o_proj.weight", (WIDTH, heads * size), to_rows(heads))


def add_mlp(model: Model) -> None:
    path, name = "layers/mlp/", "model.layers.{l}.mlp."
    model.layers(path + "gate", name + "gate_proj.weight", (HIDDEN, WIDTH), transposed)
    model.layers(path + "up", name + "up_proj.weight", (HIDDEN, WIDTH), transposed)
    model.layers(path + "down", name + "down_proj.weight", (WIDTH, HIDDEN), transposed)


def add_norms(model: Model, mlp: str = "mlp") -> None:
    model.layers("layers/attn/norm", "model.layers.{l}.input_layernorm.weight", (WIDTH,))
    name = "model.layers.{l}.post_attention_layernorm.weight"
    model.layers(f"layers/{mlp}/norm", name, (WIDTH,))
    model.leaf("norm", "model.norm.weight", (WIDTH,))


def add_ends(model: Model) -> None:
    model.leaf("embed", "model.embed_tokens.weight", (20, WIDTH))
    model.leaf("head", "lm_head.weight", (20, WIDTH), transposed)


def add_experts(model: Model, path: str, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Adds tensors of all experts; those with several names are joined in their rows."""
    layers = []
    for at in range(LAYERS):
        experts = []
        for expert in range(EXPERTS):
            parts = [model.draw(name.format(l=at, e=expert), shape) for name in names]
            experts.append(np.concatenate(parts).T)
        layers.append(np.stack(experts))
    model.tree[path], model.numbers[path] = np.stack(layers), range(LAYERS)


def llama() -> Model:
    model = Model()
    add_attention(model, 32, 8, size=4)
    for path, name, heads in (("q", "q_proj", 32), ("k", "k_proj", 8)):
        stacked = []
        for at in range(LAYERS):
            weight = model.tensors[f"model.layers.{at}.self_attn.{name}.weight"]
            first, second = weight[:, None].reshape(heads, 2, 2, WIDTH).swapaxes(0, 1)
            pairs = np.stack([first, second], axis=2).reshape(heads, 4, WIDTH)
            stacked.append(np.moveaxis(pairs, -1, 0))
        model.tree[f"layers/attn/{path}"] = np.stack(stacked)
    add_mlp(model)
    add_norms(model)
    add_ends(model)
    return model


def qwen3() -> Model:
    model = Model()
    add_attention(model, 32, 8)
    for name in ("q_norm", "k_norm"):
        model.layers(f"layers/attn/{name}", f"model.layers.{{l}}.self_attn.{name}.weight", (2,))
    add_mlp(model)
    add_norms(model)
    add_ends(model)
    return model


def gemma() -> Model:
    model = Model()
    add_attention(model, 16, 16)
    add_mlp(model)
    add_norms(model)
    for path in ("layers/attn/norm", "layers/mlp/norm", "norm"):
        model.tree[path] = (model.tree[path].astype(np.float32) + 1).astype(model.dtype)
    # Powers of two survive the rounding of both directions.
    powers = (2.0 ** model.random.integers(-9, 3, (20, WIDTH))).astype(model.dtype)
    model.tensors["model.embed_tokens.weight"] = powers
    model.tree["embed"] = (powers.astype(np.float32) * np.float32(3072**0.5)).astype(model.dtype)
    return model


def mixtral() -> Model:
    model = Model()
    add_attention(model, 32, 8)
    name = "model.layers.{l}.block_sparse_moe."
    model.layers("layers/moe/router", name + "gate.weight", (EXPERTS, WIDTH), transposed)
    name += "experts.{e}."
    add_experts(model, "layers/moe/gate", (name + "w1.weight",), (HIDDEN, WIDTH))
    add_experts(model, "layers/moe/up", (name + "w3.weight",), (HIDDEN, WIDTH))
    add_experts(model, "layers/moe/down", (name + "w2.weight",), (WIDTH, HIDDEN))
    add_norms(model, "moe")
    add_ends(model)
    return model


def qwen3_moe() -> Model:
    model = Model()
    add_attention(model, 32, 4)
    for name in ("q_norm", "k_norm"):
        model.layers(f"layers/attn/{name}", f"model.layers.{{l}}.self_attn.{name}.weight", (2,))
    name = "model.layers.{l}.mlp."
    model.layers("layers/moe/router", name + "gate.weight", (EXPERTS, WIDTH), transposed)
    name += "experts.{e}."
    up = (name + "gate_proj.weight", name + "up_proj.weight")
    add_experts(model, "layers/moe/up", up, (HIDDEN, WIDTH))
    add_experts(model, "layers/moe/down", (name + "down_proj.weight",), (WIDTH, HIDDEN))
    add_norms(model, "moe")
    add_ends(model)
    return model


def add_norm_pairs(model: Model, norms: dict[str, str], last: tuple[str, str]) -> None:
    for kind in ("weight", "bias"):
        for path, name in norms.items():
            model.layers(f"{path}/{kind}", f"{name}.{kind}", (WIDTH,))
        model.leaf(f"{last[0]}/{kind}", f"{last[1]}.{kind}", (WIDTH,))


def gpt2() -> Model:
    model = Model(np.float32)
    weights, biases = ([f"layers/attn/{n}/{kind}" for n in "qkv"] for kind in ("weight", "bias"))

    def thirds(array: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(*array.shape[:-1], 12, 2) for part in np.split(array, 3, axis=-1)]

    model.leaf("embed", "wte.weight", (20, WIDTH))
    model.leaf("positions", "wpe.weight", (16, WIDTH))
    model.layers(tuple(weights), "h.{l}.attn.c_attn.weight", (WIDTH, 72), thirds)
    model.layers(tuple(biases), "h.{l}.attn.c_attn.bias", (72,), thirds)
    out = "layers/attn/out/weight"
    model.layers(out, "h.{l}.attn.c_proj.weight", (24, WIDTH), lambda w: w.reshape(12, 2, WIDTH))
    model.layers("layers/attn/out/bias", "h.{l}.attn.c_proj.bias", (WIDTH,))
    model.layers("layers/mlp/up/weight", "h.{l}.mlp.c_fc.weight", (WIDTH, HIDDEN))
    model.layers("layers/mlp/up/bias", "h.{l}.mlp.c_fc.bias", (HIDDEN,))
    model.layers("layers/mlp/down/weight", "h.{l}.mlp.c_proj.weight", (HIDDEN, WIDTH))
    model.layers("layers/mlp/down/bias", "h.{l}.mlp.c_proj.bias", (WIDTH,))
    norms = {"layers/attn/norm": "h.{l}.ln_1", "layers/mlp/norm": "h.{l}.ln_2"}
    add_norm_pairs(model, norms, ("norm", "ln_f"))
    return model


def gpt_neox() -> Model:
    model = Model(np.float16)
    weights, biases = ([f"layers/attn/{n}/{kind}" for n in "qkv"] for kind in ("weight", "bias"))
    name = "gpt_neox.layers.{l}."

    def rows(array: np.ndarray) -> list[np.ndarray]:
        heads = [np.split(head, 3) for head in np.split(array, 32)]
        return [np.moveaxis(np.stack(each), -1, 0) for each in zip(*heads, strict=True)]

    def bias_rows(array: np.ndarray) -> list[np.ndarray]:
        return [array.reshape(32, 3, 2)[:, at] for at in range(3)]

    attention = name + "attention.query_key_value"
    model.leaf("embed", "gpt_neox.embed_in.weight", (20, WIDTH))
    model.layers(tuple(weights), attention + ".weight", (192, WIDTH), rows)
    model.layers(tuple(biases), attention + ".bias", (192,), bias_rows)
    dense = name + "attention.dense"
    model.layers("layers/attn/out/weight", dense + ".weight", (WIDTH, 64), to_rows(32))
    model.layers("layers/attn/out/bias", dense + ".bias", (WIDTH,))
    up, down = name + "mlp.dense_h_to_4h", name + "mlp.dense_4h_to_h"
    model.layers("layers/mlp/up/weight", up + ".weight", (HIDDEN, WIDTH), transposed)
    model.layers("layers/mlp/up/bias", up + ".bias", (HIDDEN,))
    model.layers("layers/mlp/down/weight", down + ".weight", (WIDTH, HIDDEN), transposed)
    model.layers("layers/mlp/down/bias", down + ".bias", (WIDTH,))
    norms = {
        "layers/attn/norm": name + "input_layernorm",
        "layers/mlp/norm": name + "post_attention_layernorm",
    }
    add_norm_pairs(model, norms, ("norm", "gpt_neox.final_layer_norm"))
    model.leaf("head", "embed_out.weight", (20, WIDTH), transposed)
    return model


def phi3() -> Model:
    model = Model()
    name = "model.layers.{l}."

    def unequal(array: np.ndarray) -> list[np.ndarray]:
        parts = np.split(array, [80, 100])
        return [from_rows(heads)(part) for part, heads in zip(parts, (40, 10, 10), strict=True)]

    paths = ("layers/attn/q", "layers/attn/k", "layers/attn/v")
    model.layers(paths, name + "self_attn.qkv_proj.weight", (120, WIDTH), unequal)
    out = name + "self_attn.o_proj.weight"
    model.layers("layers/attn/out", out, (WIDTH, 80), to_rows(40))
    model.layers(
        ("layers/mlp/gate", "layers/mlp/up"),
        name + "mlp.gate_up_proj.weight",
        (2 * HIDDEN, WIDTH),
        lambda array: [array[:HIDDEN].T, array[HIDDEN:].T],
    )
    down = name + "mlp.down_proj.weight"
    model.layers("layers/mlp/down", down, (WIDTH, HIDDEN), transposed)
    add_norms(model)
    add_ends(model)
    return model


def vit() -> Model:
    model = Model(np.float32)
    embed, layer = "vit.embeddings.", "vit.encoder.layer.{l}."
    model.leaf("class", embed + "cls_token", (1, 1, WIDTH), lambda array: array[0, 0])
    model.leaf("positions", embed + "position_embeddings", (1, 5, WIDTH), lambda array: array[0])
    patches = embed + "patch_embeddings.projection"
    kernel = (WIDTH, 3, 4, 4)
    model.leaf("patches/weight", patches + ".weight", kernel, lambda w: w.transpose(2, 3, 1, 0))
    model.leaf("patches/bias", patches + ".bias", (WIDTH,))
    for kind in ("query", "key", "value"):
        name, path = layer + f"attention.attention.{kind}", f"layers/qkv/{kind}"
        model.layers(path + "/weight", name + ".weight", (24, WIDTH), from_rows(12))
        model.layers(path + "/bias", name + ".bias", (24,), lambda bias: bias.reshape(12, 2))
    out = layer + "attention.output.dense"
    model.layers("layers/attn/out/weight", out + ".weight", (WIDTH, 24), to_rows(12))
    model.layers("layers/attn/out/bias", out + ".bias", (WIDTH,))
    up, down = layer + "intermediate.dense", layer + "output.dense"
    model.layers("layers/mlp/up/weight", up + ".weight", (HIDDEN, WIDTH), transposed)
    model.layers("layers/mlp/up/bias", up + ".bias", (HIDDEN,))
    model.layers("layers/mlp/down/weight", down + ".weight", (WIDTH, HIDDEN), transposed)
    model.layers("layers/mlp/down/bias", down + ".bias", (WIDTH,))
    norms = {
        "layers/attn/norm": layer + "layernorm_before",
        "layers/mlp/norm": layer + "layernorm_after",
    }
    add_norm_pairs(model, norms, ("norm", "vit.layernorm"))
    model.leaf("head/weight", "classifier.weight", (10, WIDTH), transposed)
    model.leaf("head/bias", "classifier.bias", (10,))
    return model


def deepseek_v3() -> Model:
    """Returns five layers instead of 61, and the one for predicting several tokens."""
    model = Model()
    width, rank, every, with_experts = 132, 136, range(5), range(3, 5)

    def scaled(name: str, shape: tuple[int, int]) -> np.ndarray:
        bits = model.random.integers(0, 127, shape, np.uint8)  # without NaN
        weight = model.tensors[name + ".weight"] = bits.view(ml_dtypes.float8_e4m3fn)
        blocks = [-(-size // 128) for size in shape]
        scales = model.random.random(blocks).astype(np.float32)
        model.tensors[name + ".weight_scale_inv"] = scales
        factors = scales.repeat(128, 0).repeat(128, 1)[: shape[0], : shape[1]]
        return (weight.astype(np.float32) * factors).astype(ml_dtypes.bfloat16)

    def add(path: str, name: str, shape: tuple[int, int], move: Any, numbers: range) -> None:
        each = [move(scaled(name.format(l=at), shape)) for at in numbers]
        model.tree[path], model.numbers[path] = np.stack(each), numbers

    name = "model.layers.{l}.self_attn."
    add("attn/q_a", name + "q_a_proj", (rank, width), transposed, every)
    add("attn/kv_a", name + "kv_a_proj_with_mqa", (rank + 4, width), transposed, every)
    add("attn/q_b", name + "q_b_proj", (256, rank), from_rows(128), every)
    add("attn/kv_b", name + "kv_b_proj", (256, rank), from_rows(128), every)
    add("attn/out", name + "o_proj", (width, 256), to_rows(128), every)
    for kind in ("q", "kv"):
        model.layers(
            f"attn/{kind}_norm", name + f"{kind}_a_layernorm.weight", (rank,), numbers=every
        )
    for at in ("input", "post_attention"):
        norm = "model.layers.{l}." + at + "_layernorm.weight"
        model.layers(f"norms/{at}", norm, (width,), numbers=every)
    mlp = "model.layers.{l}.mlp."
    model.layers("moe/router", mlp + "gate.weight", (EXPERTS, width), transposed, with_experts)
    bias = mlp + "gate.e_score_correction_bias"
    model.layers("moe/router_bias", bias, (EXPERTS,), numbers=with_experts)
    for kind, shape in (("gate", (140, width)), ("up", (140, width)), ("down", (width, 140))):
        proj = kind + "_proj"
        add(f"dense/{kind}", mlp + proj, shape, transposed, range(3))
        add(f"moe/shared/{kind}", mlp + "shared_experts." + proj, shape, transposed, with_experts)
        path = f"moe/experts/{kind}"
        model.numbers[path] = with_experts
        model.tree[path] = np.stack(
            [
                np.stack(
                    [
                        scaled(f"{mlp.format(l=at)}experts.{expert}.{proj}", shape).T
                        for expert in range(EXPERTS)
                    ]
                )
                for at in with_experts
            ]
        )
    model.leaf("embed", "model.embed_tokens.weight", (20, width))
    model.leaf("norm", "model.norm.weight", (width,))
    model.leaf("head", "lm_head.weight", (20, width), transposed)
    for name in [*model.tensors]:
        if name.startswith("model.layers.4."):
            model.tensors[name.replace(".4.", ".5.")] = model.tensors[name]
    return model


MODELS = {
    model.__name__: model
    for model in (
        *(llama, qwen3, gemma, mixtral, qwen3_moe, gpt2, gpt_neox, phi3, deepseek_v3, vit),
    )
}


def rules_of(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Returns the rules and sizes of an example; DeepSeek's with fewer layers."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8").replace("..61}", "..5}")
    names: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(treepack, "Mapping", lambda rules, **sizes: (rules, sizes))
        exec(text, names)
    return names[name]  # type: ignore[no-any-return]


def unstacked(rules: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields the rules for a tree that has each layer by itself."""
    for tree, rule in rules.items():
        index = re.search(r"\{l[^}]*\}", str(rule))
        if index is None:
            yield tree, rule
            continue
        file, axes, *options = rule
        paths = tuple(
            f"{path}/{index[0]}" for path in (tree if isinstance(tree, tuple) else [tree])
        )
        left, _, right = axes.rpartition("->")
        moved = f"{left or right} -> {re.sub(r'(^| )l( |$)', ' ', right).strip()}"
        yield paths if isinstance(tree, tuple) else paths[0], (file, moved, *options)


def nested(leaves: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *outer, last = path.split("/")
        inner = tree
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = leaf
    return tree


def on_four_devices(array: np.ndarray) -> Any:
    """Returns the template of an array that is split along its last axis that four divides."""
    axes = [axis for axis, size in enumerate(array.shape) if size % 4 == 0]
    spec = [None if axis not in axes[-1:] else "x" for axis in range(array.ndim)]
    mesh = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def write(folder: Path, tensors: Arrays) -> None:
    """Writes a repository of two files, as Hugging Face's library does."""
    folder.mkdir()
    names = [*tensors]
    shards = {"model-00001-of-00002.safetensors": names[::2]}
    shards["model-00002-of-00002.safetensors"] = names[1::2]
    for shard, its in shards.items():
        part = {name: np.ascontiguousarray(tensors[name]) for name in its}
        safetensors.numpy.save_file(part, folder / shard, {"format": "pt"})
    weights = {name: shard for shard, its in shards.items() for name in its}
    index = {"metadata": {}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read(path: Path) -> Arrays:
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return {
        name: array for file in files for name, array in safetensors.numpy.load_file(file).items()
    }


def are_placed_alike(leaf: Any, like: Any) -> bool:
    return bool(leaf.sharding == like.sharding)


def assert_same_bytes(actual: Any, expected: np.ndarray) -> None:
    actual = np.asarray(actual)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("is_stacked", [True, False], ids=["stacked", "unstacked"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_loaded_onto_devices_and_saved_back(
    name: str, is_stacked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    write(tmp_path / "hub", model.tensors)
    rules, sizes = rules_of(name, monkeypatch)
    leaves = model.tree
    if not is_stacked:
        rules = dict(unstacked(rules))
        leaves = {path: array for path, array in leaves.items() if path not in model.numbers}
        for path, numbers in model.numbers.items():
            leaves |= {
                f"{path}/{at}": part for at, part in zip(numbers, model.tree[path], strict=True)
            }
    mapping = treepack.Mapping(rules, **sizes)
    template = nested({path: on_four_devices(array) for path, array in leaves.items()})
    if name != "deepseek_v3":
        mapping.check(template, tmp_path / "hub")
    tree = treepack.load(tmp_path / "hub", template, mapping=mapping)
    assert all(jax.tree.leaves(jax.tree.map(are_placed_alike, tree, template)))
    jax.tree.map(assert_same_bytes, tree, nested(leaves))
    if name == "deepseek_v3":
        with pytest.raises(ValueError, match="scales= has no inverse"):
            treepack.save(tmp_path / "back", tree, format="safetensors", mapping=mapping)
        return
    treepack.save(tmp_path / "back", tree, format="safetensors", mapping=mapping)
    saved = read(tmp_path / "back")
    assert saved.keys() == model.tensors.keys()
    for tensor, array in saved.items():
        assert_same_bytes(array, model.tensors[tensor])


def test_examples_are_short_and_all_are_tested() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    assert lines.keys() == MODELS.keys()
    assert max(lines.values()) <= 30
