"""A Llama of Hugging Face becomes a scanned, sharded flax model, and goes back bit by bit."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.flax

import treepack

EXAMPLE = Path(__file__).parents[2] / "examples" / "hugging_face.py"


def tensors_in(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a repository, as safetensors reads them."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safetensors.flax.load_file(folder / name) for name in {*index.values()}}
    return {name: np.asarray(files[file][name]) for name, file in index.items()}


def test_a_llama_goes_there_and_back(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    example["write_repository"](tmp_path / "llama")
    tensors = tensors_in(tmp_path / "llama")
    count = example["CONFIG"]["num_hidden_layers"]
    assert len(tensors) == 9 * count + 3
    assert len([*(tmp_path / "llama").glob("*.safetensors")]) > 3

    model = example["Llama"](example["CONFIG"])
    template = example["template_of"](model)
    params = treepack.load(tmp_path / "llama", template, mapping=example["RULES"])

    def stacked(name: str) -> np.ndarray:
        return np.stack([tensors[f"model.layers.{at}.{name}.weight"] for at in range(count)])

    expected: dict[str, Any] = {
        "embed": {"embedding": tensors["model.embed_tokens.weight"]},
        "norm": {"scale": tensors["model.norm.weight"]},
        "lm_head": {"kernel": tensors["lm_head.weight"].T},
        "layers": {
            name: {"kernel": stacked(f"{part}.{name}").transpose(0, 2, 1)}
            for part, names in example["PROJECTIONS"].items()
            for name in names
        },
    }
    for name in ("input_layernorm", "post_attention_layernorm"):
        expected["layers"][name] = {"scale": stacked(name)}
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    places = jax.tree.map(lambda leaf: leaf.sharding, (params, template))
    assert places[0] == places[1]
    kernel = params["layers"]["up_proj"]["kernel"]
    assert kernel.sharding.num_devices > 1
    assert not kernel.is_fully_replicated
    logits = jax.jit(model.apply)({"params": params}, jnp.arange(8))
    assert jnp.isfinite(logits).all()

    options: dict[str, Any] = {"format": "safetensors", "max_shard_size": "300KB"}
    treepack.save(tmp_path / "back", params, mapping=example["RULES"], **options)
    again = tensors_in(tmp_path / "back")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].tobytes() == tensor.tobytes()
