"""The encoder of one model begins another one, under other names."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack


def pretrained(path: Path) -> dict:
    encoder = {f"block_{i}": {"w": jnp.full((2, 2), i + 1.0), "b": jnp.ones(2)} for i in range(2)}
    params = {"encoder": encoder, "decoder": {"w": jnp.ones(2)}}
    treepack.save(path, {"params": params, "step": 100})
    return params


def new_model() -> dict:
    backbone = {f"layer_{i}": {"kernel": jnp.zeros((2, 2)), "b": jnp.zeros(2)} for i in range(2)}
    return {"params": {"backbone": backbone, "head": {"kernel": jnp.full(2, 7.0)}}}


def test_renamed_modules(tmp_path: Path) -> None:
    params = pretrained(tmp_path / "old.treepack")
    model, report = treepack.load(
        tmp_path / "old.treepack",
        new_model(),
        mapping={
            "params/backbone/layer_{i}/kernel": "params/encoder/block_{i}/w",
            "params/backbone/layer_{i}/b": "params/encoder/block_{i}/b",
        },
        missing="target",
        return_report=True,
    )
    for i in range(2):
        layer = model["params"]["backbone"][f"layer_{i}"]
        np.testing.assert_array_equal(layer["kernel"], params["encoder"][f"block_{i}"]["w"])
    assert model["params"]["head"]["kernel"].tolist() == [7, 7]
    assert report.kept == ["params/head/kernel"]
    assert "params/decoder/w" in report.unexpected


def test_what_is_not_in_the_file_is_an_error_by_default(tmp_path: Path) -> None:
    pretrained(tmp_path / "old.treepack")
    with pytest.raises(treepack.MismatchError, match="params/head"):
        treepack.load(
            tmp_path / "old.treepack",
            new_model(),
            mapping=lambda path: path.replace("backbone/layer", "encoder/block"),
        )


def test_shapes_do_as_the_part_that_is_loaded(tmp_path: Path) -> None:
    params = pretrained(tmp_path / "old.treepack")
    template = jax.eval_shape(lambda: {"backbone": params["encoder"]})
    model = treepack.load(
        tmp_path / "old.treepack", template, mapping={"backbone": "params/encoder"}
    )
    np.testing.assert_array_equal(
        model["backbone"]["block_1"]["w"], params["encoder"]["block_1"]["w"]
    )
