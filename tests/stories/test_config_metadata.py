"""A checkpoint tells the configuration of its model, before anything is loaded."""

import dataclasses
import enum
from pathlib import Path

import jax.numpy as jnp
import pytest

import treepack


class Activation(enum.Enum):
    RELU = "relu"
    GELU = "gelu"


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 8
    layers: tuple[int, ...] = (4, 4)
    activation: Activation = Activation.RELU
    dtype: str = "float32"


def test_a_dataclass_as_metadata(tmp_path: Path) -> None:
    treepack.register_auxdata(Config)
    treepack.register_auxdata(Activation)
    config = Config(width=16, activation=Activation.GELU)
    treepack.save(
        tmp_path / "model.treepack",
        {"w": jnp.ones((16, 16))},
        metadata={"step": 7, "config": config, "loss": 0.5},
    )
    found = treepack.read_metadata(tmp_path / "model.treepack")
    assert found == {"step": 7, "config": config, "loss": 0.5}


def test_what_has_no_name_is_told_with_its_place(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Unknown:
        width: int = 3

    with pytest.raises(TypeError, match=r"config.*register_auxdata"):
        treepack.save(tmp_path / "model.treepack", {}, metadata={"config": Unknown()})


def test_a_plain_dict_of_it(tmp_path: Path) -> None:
    config = {"width": 16, "layers": [4, 4], "nested": {"rate": 0.1, "name": None}}
    treepack.save(tmp_path / "model.treepack", {"w": jnp.ones(3)}, metadata=config)
    assert treepack.read_metadata(tmp_path / "model.treepack") == config
    with treepack.open(tmp_path / "model.treepack") as file:
        assert file.metadata == config
