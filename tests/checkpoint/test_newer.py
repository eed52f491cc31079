"""Files of newer versions of treepack: distinguished from damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import treepack
from hostile.directories import sealed_manifest
from trees import record_of, sealed

TREE = {"w": np.ones(3), "step": 7}


def with_record(data: bytes, **changes: Any) -> bytes:
    record = msgpack.unpackb(record_of(data))
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    return plain + msgpack.packb(sealed(msgpack.packb({**record, **changes})))


NEWER: dict[str, dict[str, Any]] = {
    "version": {"version": 2},
    "node": {"nodes": [["plain", []], ["of tomorrow", []]]},
    "value": {"metadata": msgpack.packb({"decimal": "1.5"})},
}

DATA = treepack.dumps(TREE, metadata={"a": 1})

UPGRADE = "it was written by a newer treepack; upgrade treepack"


@pytest.mark.parametrize("name", ["version", "node"])
def test_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(with_record(DATA, **NEWER[name]))
    for verb in (
        *(treepack.load, treepack.open, treepack.abstract, treepack.read_metadata),
        lambda path: treepack.load(path, TREE, select="w"),
        lambda path: treepack.load(path, verify=True),
    ):
        with pytest.raises(treepack.NewerVersionError, match=UPGRADE) as caught:
            verb(path)
        assert not isinstance(caught.value, treepack.CorruptionError)
    found = treepack.verify(path)
    assert not found.ok
    assert found.damage is None
    assert found.newer is not None
    assert UPGRADE in found.newer
    assert dict(found.leaves) == {"w": "unchecked", "step": "unchecked"}
    with treepack.open(path, salvage=True) as file:
        assert UPGRADE in (file.damage or "")
        np.testing.assert_array_equal(file["w"], TREE["w"])


def test_values() -> None:
    data = with_record(DATA, **NEWER["value"])
    with pytest.raises(treepack.NewerVersionError, match=f'unknown "decimal".*{UPGRADE}'):
        treepack.read_metadata(data)


def test_manifests(tmp_path: Path) -> None:
    treepack.save(tmp_path / "directory", TREE, sharded=True)
    manifest = tmp_path / "directory" / "manifest.treepack"
    record = msgpack.unpackb(manifest.read_bytes()[:-12])
    manifest.write_bytes(sealed_manifest(msgpack.packb({**record, "version": 2})))
    for verb in (treepack.load, treepack.open):
        with pytest.raises(treepack.NewerVersionError, match=f"has version 2.*{UPGRADE}"):
            verb(tmp_path / "directory")
    found = treepack.verify(tmp_path / "directory")
    assert (found.ok, found.damage) == (False, None)
    assert UPGRADE in (found.newer or "")


@pytest.mark.parametrize("version", [0, -1])
def test_versions_that_never_were_are_damage(version: int) -> None:
    data = with_record(DATA, version=version)
    found = treepack.verify(data)
    assert found.newer is None
    assert "damaged" in (found.damage or "")
    with pytest.raises(treepack.DecodeError, match="damaged") as caught:
        treepack.open(data)
    assert not isinstance(caught.value, treepack.NewerVersionError)
