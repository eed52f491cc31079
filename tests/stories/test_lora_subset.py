"""Only the adapters are saved, and loaded over the base model."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import treepack


def new_params(value: float) -> dict:
    layer = {
        "kernel": jnp.zeros((64, 64)),
        "lora_a": jnp.full((64, 2), value),
        "lora_b": jnp.full((2, 64), value),
    }
    return {"layers": [dict(layer), dict(layer)], "head": {"kernel": jnp.ones((64, 4))}}


def test_adapters_over_a_base_model(tmp_path: Path) -> None:
    tuned = new_params(3.0)
    treepack.save(tmp_path / "lora.treepack", tuned, select="**/lora_*")
    assert (tmp_path / "lora.treepack").stat().st_size < 16_000

    base = new_params(0.0)
    loaded, report = treepack.load(
        tmp_path / "lora.treepack", base, missing="target", return_report=True
    )
    jax.tree.map(np.testing.assert_array_equal, loaded, tuned)
    assert "head/kernel" in report.kept
    assert report.loaded == [f"layers/{i}/lora_{name}" for i in range(2) for name in ("a", "b")]


def test_adapters_alone(tmp_path: Path) -> None:
    treepack.save(tmp_path / "lora.treepack", new_params(3.0), select=["**/lora_a", "**/lora_b"])
    with treepack.open(tmp_path / "lora.treepack") as file:
        assert file["layers/0/lora_a"].shape == (64, 2)
        assert "head" not in file
