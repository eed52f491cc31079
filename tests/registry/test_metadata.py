"""Metadata of types that are not registered where they are read."""

from __future__ import annotations

import dataclasses
import enum
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack


@treepack.register_auxdata(serialized_name="tests.Act")
class Act(enum.Enum):
    GELU = 1


@treepack.register_auxdata(serialized_name="tests.Config")
@dataclasses.dataclass(frozen=True)
class Config:
    act: object
    width: int


CONFIG = Config(Act.GELU, 3)

METADATA = {"c": CONFIG, "list": [1, (Act.GELU,)], "keys": {Act.GELU: 1, CONFIG: 2}, "step": 7}

# Runs where nothing of it is registered.
ELSEWHERE = """
import pickle, sys, treepack
path = sys.argv[1]
found = []
for unknown in ("error", "dict"):
    for read in (
        lambda: treepack.read_metadata(path, unknown=unknown),
        lambda: treepack.open(path, unknown=unknown).metadata,
        lambda: pickle.loads(pickle.dumps(treepack.open(path, unknown=unknown))).metadata,
    ):
        try:
            found.append(read())
        except treepack.UnregisteredTypeError as error:
            found.append((error.name, error.path, str(error)))
sys.stdout.buffer.write(pickle.dumps(found))
"""


def elsewhere(path: Path) -> list[object]:
    command = [sys.executable, "-c", ELSEWHERE, str(path)]
    found: list[object] = pickle.loads(subprocess.run(command, stdout=-1, check=True).stdout)
    return found


def test_dicts_take_their_places(tmp_path: Path) -> None:
    path = tmp_path / "file"
    treepack.save(path, {}, metadata=METADATA)
    assert treepack.read_metadata(path, unknown="dict") == METADATA
    act = {"tests.Act": "GELU"}
    *errors, one, two, three = elsewhere(path)
    config = {"act": act, "width": 3}
    keys = {str(act): 1, str(config): 2}  # a dict cannot be a key
    assert one == two == three
    assert one == {"c": config, "list": [1, (act,)], "keys": keys, "step": 7}
    for error in errors:
        name, place, text = error  # type: ignore[misc]
        assert (name, place) == ("tests.Act", "metadata/c/act")
        assert "'tests.Act': " in text
        assert 'unknown="dict"' in text
        assert text.endswith("(at metadata/c/act)")


def test_what_cannot_be_made_any_more(tmp_path: Path) -> None:
    """A member that the enum has lost, and a type inside a known one."""
    data = treepack.dumps({}, metadata={"list": [Act.GELU, CONFIG]})
    data = data.replace(b"GELU", b"RELU")
    data = data[: -len(sealed_end(data))] + sealed_end(data)
    with pytest.raises(treepack.DecodeError, match=r"tests\.Act .*\(at metadata/list/0\)"):
        treepack.read_metadata(data)
    act = {"tests.Act": "RELU"}
    found = treepack.read_metadata(data, unknown="dict")
    assert found == {"list": [act, Config(act, 3)]}


def sealed_end(data: bytes) -> bytes:
    from trees import record_of, sealed

    return sealed(record_of(data))


def test_the_option_is_checked() -> None:
    for read in (treepack.read_metadata, treepack.open):
        with pytest.raises(ValueError, match="unknown must be "):
            read(treepack.dumps({}), unknown="dicts")  # type: ignore[operator]


@pytest.mark.campaign
def test_shardings_in_metadata_start_no_backends(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    place = NamedSharding(Mesh(np.array(jax.devices()[:1]), "x"), PartitionSpec("x"))
    treepack.save(path, {"a": 1}, metadata={"place": place})
    code = """if True:
        import sys, jax, treepack
        from jax._src import xla_bridge
        first = treepack.read_metadata(sys.argv[1])["place"]
        repr(treepack.open(sys.argv[1]))
        assert not xla_bridge.backends_are_initialized()
        jax.devices()
        found = treepack.read_metadata(sys.argv[1])["place"]
        assert first.spec == found.spec and first.mesh.shape == found.mesh.shape
        assert isinstance(found.mesh, jax.sharding.Mesh)
    """
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
