"""Leaves that come one by one: trees larger than memory, streams of EasyLM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest

import treepack
from treepack import serialization

LEAVES: list[tuple[Any, Any]] = [
    (("params", "w"), np.arange(30_000.0).reshape(100, 300)),
    ("params/b", jnp.ones(40_000, jnp.bfloat16)),
    (("params", "f"), np.asfortranarray(np.arange(60_000, dtype=">i4").reshape(200, 300))),
    (("opt", "w"), np.zeros(3, ml_dtypes.bfloat16)),
    (("params", "late"), np.float32(2)),
    ((jax.tree_util.DictKey("a/b"), jax.tree_util.SequenceKey(0)), 7),
]


def check(found: Any) -> None:
    np.testing.assert_array_equal(found["params"]["w"], LEAVES[0][1])
    np.testing.assert_array_equal(np.asarray(found["params"]["b"]), np.asarray(LEAVES[1][1]))
    np.testing.assert_array_equal(found["params"]["f"], LEAVES[2][1])
    assert found["opt"]["w"].dtype == ml_dtypes.bfloat16
    assert found["params"]["late"] == 2
    assert found["a/b"]["0"] == 7


@pytest.mark.parametrize("compress", [False, True])
def test_an_iterator_becomes_a_tree(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "new" / "saved"
    treepack.save(path, iter(LEAVES), metadata={"step": 1}, compress=compress)
    check(treepack.load(path))
    assert treepack.read_metadata(path) == {"step": 1}
    assert treepack.verify(path).ok
    assert [it.name for it in path.parent.iterdir()] == ["saved"]
    if not compress:
        check(flax.serialization.msgpack_restore(path.read_bytes()))
    treepack.save(path, iter([((), np.arange(20_000))]))
    assert treepack.load(path)[7] == 7
    treepack.save("memory://streams/saved", iter(LEAVES))
    check(treepack.load("memory://streams/saved"))


@pytest.mark.parametrize("write", [treepack.save, treepack.write_stream])
def test_an_iterator_that_was_used_replaces_nothing(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "saved"
    path.write_bytes(b"before")
    used = iter(LEAVES)
    list(used)
    with pytest.raises(ValueError, match=r"yields nothing.*make a new one"):
        write(path, used)
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize("leaves", [{"w1": 1, "b1": 2}, {"weight": 1}, [3]])
def test_leaves_of_a_stream_are_pairs(tmp_path: Path, leaves: Any) -> None:
    with pytest.raises(TypeError, match=r"pairs of a path and a leaf.*iter\(tree\.items\(\)\)"):
        treepack.write_stream(tmp_path / "stream", leaves)
    assert not (tmp_path / "stream").exists()


def test_a_stream_is_written_to_a_url() -> None:
    for leaves in (LEAVES, []):
        treepack.write_stream("memory://streams/plain", leaves)
        found = [leaf for _, leaf in treepack.read_stream("memory://streams/plain")]
        assert len(found) == len(leaves)
    treepack.write_stream("memory://streams/plain", LEAVES, storage_options={})
    np.testing.assert_array_equal(
        dict(treepack.read_stream("memory://streams/plain"))["params", "w"], LEAVES[0][1]
    )


def test_an_iterator_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    treepack.save(path, {"old": 1})

    def leaves() -> Iterator[tuple[Any, Any]]:
        yield LEAVES[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        treepack.save(path, leaves())
    for wrong in ([("a", 1), ("a", 2)], [("a", 1), ("a/b", 2)], [("a/b", 1), ("a", 2)]):
        with pytest.raises(treepack.TreepackError, match=r"leaf|leaves"):
            treepack.save(path, iter(wrong))
    assert treepack.load(path) == {"old": 1}
    assert [it.name for it in tmp_path.iterdir()] == ["saved"]


LARGE = """
import sys, numpy as np, treepack
from pathlib import Path
def leaves():
    for index in range(40):
        yield f"layer_{index}/w", np.full(1 << 21, index, np.float64)  # 16 MiB
def memory(field):
    return int(Path("/proc/self/status").read_text().split(field)[1].split()[1])
treepack.save(sys.argv[1], {}, durable=False)
Path("/proc/self/clear_refs").write_text("5")  # what the process that started this one had
before = memory("VmRSS")
treepack.save(sys.argv[1], leaves(), durable=False)
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.parametrize("write", ["save", "write_stream"])
def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, write: str) -> None:
    path = tmp_path / ("t" * 240)
    code = f"""if True:
        import os, signal, sys, numpy as np, treepack
        def leaves():
            yield ("a",), np.ones(1_000_000)
            os.kill(os.getpid(), signal.SIGKILL)
            yield ("b",), 1
        args = [sys.argv[1], leaves()]
        treepack.{write}(*args)
    """
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert len([*tmp_path.iterdir()]) == 1
    treepack.save(path, {"a": 1})
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.campaign
def test_only_some_of_it_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large"
    command = [sys.executable, "-c", LARGE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200 << 10  # KiB, of 640 MiB
    with treepack.open(path) as file:
        assert len(list(file.leaves())) == 40
        assert file["layer_33/w"][5] == 33


def easylm(path: Path, tree: dict[tuple[str, ...], Any]) -> None:
    """Writes a stream as EasyLM does."""
    packer = msgpack.Packer()
    with path.open("wb") as file:
        for key, value in tree.items():
            file.write(packer.pack((key, flax.serialization.to_bytes(value))))


def read_easylm(path: Path) -> dict[tuple[str, ...], Any]:
    """Reads a stream as EasyLM does."""
    found = {}
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file, read_size=83886080, max_buffer_size=0)
        for key, value in unpacker:
            found[tuple(key)] = flax.serialization.from_bytes(None, value)
    return found


def test_streams_in_both_directions(tmp_path: Path) -> None:
    tree = {
        ("params", "w"): np.arange(12.0).reshape(3, 4),
        ("params", "b"): jnp.ones(3, jnp.bfloat16),
        ("step",): 7,
        ("none",): None,
    }
    easylm(tmp_path / "theirs", tree)
    found = dict(treepack.read_stream(tmp_path / "theirs"))
    assert list(found) == list(tree)
    for key, value in tree.items():
        np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(value))
    treepack.write_stream(tmp_path / "ours", tree.items())
    assert list(read_easylm(tmp_path / "ours")) == list(tree)
    treepack.write_stream(tmp_path / "again", treepack.read_stream(tmp_path / "theirs"))
    assert (tmp_path / "again").stat().st_size >= (tmp_path / "theirs").stat().st_size
    treepack.save(tmp_path / "saved", treepack.read_stream(tmp_path / "ours"))
    assert treepack.load(tmp_path / "saved")["step"] == 7


def test_files_other_than_streams(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    easylm(path, {("a",): np.arange(10)})
    good = path.read_bytes()
    for bad in (
        good[:-1],
        serialization.to_bytes({"a": 1}),
        msgpack.packb([["a"], "text"]),
        msgpack.packb([1, b""]),
        msgpack.packb([["a"], b"", 3]),
    ):
        path.write_bytes(bad)
        with pytest.raises(treepack.DecodeError):
            list(treepack.read_stream(path))
    path.write_bytes(b"")
    assert list(treepack.read_stream(path)) == []
