"""A dataclass of eformer, saved by eformer and by treepack."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack

pytest.importorskip("eformer")
from eformer.pytree import auto_pytree, field


@auto_pytree
class Layer:
    kernel: Any
    bias: Any
    activation: str = field(default="relu", pytree_node=False)


def new_layer() -> Layer:
    return Layer(jnp.ones((3, 2)), jnp.arange(2.0), "gelu")


def same(found: Any) -> None:
    assert type(found) is Layer
    assert found.activation == "gelu"
    assert jax.tree.structure(found) == jax.tree.structure(new_layer())
    jax.tree.map(np.testing.assert_array_equal, found, new_layer())


def test_saved_without_a_registration(tmp_path: Path) -> None:
    treepack.save(tmp_path / "layer.treepack", {"layer": new_layer()})
    template = {"layer": jax.tree.map(jnp.zeros_like, new_layer())}
    same(treepack.load(tmp_path / "layer.treepack", template)["layer"])
    shapes = jax.eval_shape(lambda: {"layer": new_layer()})
    same(treepack.load(tmp_path / "layer.treepack", shapes)["layer"])
    as_dict = treepack.load(tmp_path / "layer.treepack", unknown="dict")["layer"]
    np.testing.assert_array_equal(as_dict["bias"], [0, 1])


def test_what_is_registered_needs_no_template(tmp_path: Path) -> None:
    treepack.save(tmp_path / "layer.treepack", new_layer())
    treepack.register_dataclass(Layer)
    same(treepack.load(tmp_path / "layer.treepack"))
