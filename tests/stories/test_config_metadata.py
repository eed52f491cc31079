"""A checkpoint tells the configuration of its model, before anything is loaded."""

import argparse
import dataclasses
import enum
import types
from pathlib import Path
from typing import Any, NamedTuple

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


class Mode(enum.Enum):
    FAST = "fast"
    ODD = object()


class ConfigDict:
    """A configuration as ml_collections has them."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def to_dict(self) -> dict[str, Any]:
        return self._items


class Point(NamedTuple):
    x: int


class Arguments(argparse.Namespace):
    """Like `argparse.Namespace`, which another test may have registered."""


@dataclasses.dataclass
class Unregistered:
    mode: Mode = Mode.FAST
    nested: Any = None


def test_configurations_of_unregistered_types_are_plain(tmp_path: Path) -> None:
    nested = [
        *(Mode.ODD, Point(1), Arguments(a=Mode.FAST), ConfigDict({"b": {"c": 2}})),
        types.SimpleNamespace(d=Unregistered()),
    ]
    plain = {
        "mode": "fast",
        "nested": [
            *("ODD", {"x": 1}, {"a": "fast"}, {"b": {"c": 2}}),
            {"d": {"mode": "fast", "nested": None}},
        ],
    }
    metadata = {"config": Unregistered(nested=nested), "kept": types.SimpleNamespace(e=1)}
    treepack.save(tmp_path / "model.treepack", {}, metadata=metadata)
    found = treepack.read_metadata(tmp_path / "model.treepack")
    assert found == {"config": plain, "kept": types.SimpleNamespace(e=1)}
    assert metadata["config"].nested[2].a is Mode.FAST  # the program's stays


def test_an_unregistered_type_below_a_registered_one_is_an_error() -> None:
    treepack.register_auxdata(Config)
    with pytest.raises(TypeError, match=r"at metadata/0: .*register_auxdata"):
        treepack.dumps({}, metadata=[Config(activation=Mode.FAST)])  # type: ignore[arg-type]


def test_values_that_cannot_be_stored_are_reported_with_their_path(tmp_path: Path) -> None:
    for value in (object(), Unregistered(nested=object())):
        place = "config/nested" if isinstance(value, Unregistered) else "config"
        with pytest.raises(TypeError, match=rf"at metadata/{place}: .*register_auxdata"):
            treepack.save(tmp_path / "model.treepack", {}, metadata={"config": value})
    with pytest.raises(TypeError, match="at metadata/a: "):
        treepack.dumps({}, metadata={"a": {object(): 1}})


def test_a_plain_dict_of_it(tmp_path: Path) -> None:
    config = {"width": 16, "layers": [4, 4], "nested": {"rate": 0.1, "name": None}}
    treepack.save(tmp_path / "model.treepack", {"w": jnp.ones(3)}, metadata=config)
    assert treepack.read_metadata(tmp_path / "model.treepack") == config
    with treepack.open(tmp_path / "model.treepack") as file:
        assert file.metadata == config
