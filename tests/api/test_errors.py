"""The exceptions: all can be caught by public names, are documented, and survive pickling."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from typer.testing import CliRunner

import node_types
import treepack
from treepack import checkpoints, errors, serialization
from treepack._cli import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "guarantees.md"

EXCEPTIONS = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, Exception)
]

ARGUMENTS = {
    "MismatchError": ("text", [errors.Mismatch("a", "b", "c")]),
    "UnserializableLeafError": ("text", "a/b"),
    "UnregisteredTypeError": ("text", "name", "a/b"),
    "DecodeError": ("text", 3, "a/b"),
    "NewerVersionError": ("text", None, "a/b"),
}


def subclasses(of: type) -> set[type]:
    below = {it for it in of.__subclasses__() if it.__module__.startswith("treepack")}
    return below.union(*map(subclasses, below))


@pytest.mark.parametrize("ty", EXCEPTIONS, ids=lambda ty: ty.__name__)
def test_each_is_public_and_documented(ty: type[Exception]) -> None:
    assert getattr(treepack, ty.__name__) is ty
    assert ty.__name__ in treepack.__all__
    assert ty.__doc__
    rows = [
        line
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `{ty.__name__}` |")
    ]
    assert len(rows) == 1
    bases = rows[0].split("|")[2]
    assert set(bases.replace("`", "").replace(",", " ").split()) == {
        base.__name__ for base in ty.__bases__
    }
    error = ty(*ARGUMENTS.get(ty.__name__, ("text",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ty
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_there_are_no_others() -> None:
    """Whoever catches what is public catches all; others only tell treepack itself more."""
    assert len(EXCEPTIONS) == 16
    public = tuple(EXCEPTIONS)
    found = subclasses(Exception) - set(EXCEPTIONS)
    assert {it for it in found if not issubclass(it, public)} == set()


# What errors say to do. Each row: a call that fails, what its error tells, calls that follow it.


class Unknown:
    """A value that no type of static data has."""

    def __init__(self, x: int):
        self.x = x


def advice(folder: Path) -> list[tuple[Any, str, list[Any]]]:
    """Returns the rows."""
    tree = {"a": np.ones(3, np.float32), "b": np.arange(3)}
    data = treepack.dumps(tree)
    path = folder / "model.treepack"
    treepack.save(path, tree)
    load = functools.partial(treepack.load, path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(np.ones(3, np.float32).tobytes())] ^= 1
    damaged = bytes(damaged)
    half = {"a": np.ones(3, np.float16), "b": np.zeros(3, np.uint8)}
    more = tree | {"c": np.zeros(2)}
    deeper = {"params": tree}
    poor = dataclasses.make_dataclass("Poor", [("a", Any)])(tree["a"])
    lost = treepack.dumps({"a": poor})  # of a type that is not registered
    held = node_types.Struct(1, Unknown(2))
    code = treepack.dumps({"s": node_types.Struct(1, lambda: None)})
    treepack.save(folder / "sharded", tree, sharded=True)
    manifest = folder / "sharded" / "manifest.treepack"
    np.savez(folder / "a.npz", w=np.ones(3))
    stream = folder / "stream"
    items = [msgpack.packb([[name], serialization.to_bytes(np.ones(3))]) for name in "ab"]
    stream.write_bytes(b"".join(items))
    packed = serialization.to_compressed_bytes(tree)
    zipped = folder / "zipped"
    zipped.write_bytes(packed)
    series = folder / "series"
    checkpoints.save_checkpoint(series, tree, 5)
    return [
        (lambda: load({"a": np.ones(4), "b": 1}), "strict=False", [
            lambda: load({"a": np.ones(4), "b": 1}, strict=False)]),
        (lambda: load(half), "cast=True", [lambda: load(half, cast=True)]),
        (lambda: load(more), 'missing="target"', [lambda: load(more, missing="target")]),
        (lambda: load(poor), 'unexpected="ignore".*select=', [
            lambda: load(poor, unexpected="ignore"), lambda: load(poor, select="a")]),
        (lambda: load(deeper), r"rename=|function of paths|missing=", [
            lambda: load(deeper, rename=lambda it: f"params/{it}")]),
        (lambda: load(cast=True), "or pass dtype=", [
            lambda: load(tree, cast=True), lambda: load(dtype="float16")]),
        (lambda: load(tree, dtype="float16"), "cast=True", [lambda: load(tree, cast=True)]),
        (lambda: load(rename={"a": "x"}), "needs a target", [
            lambda: load({"x": tree["a"], "b": tree["b"]}, rename={"a": "x"})]),
        (lambda: treepack.loads(lost), 'target.*unknown="dict"|unknown="dict"', [
            lambda: treepack.loads(lost, unknown="dict"),
            lambda: treepack.loads(lost, {"a": poor})]),
        (lambda: treepack.dumps(held), 'static="skip"', [
            lambda: treepack.loads(treepack.dumps(held, static="skip"), held)]),
        (lambda: treepack.loads(code), r"target.*static=", [
            lambda: treepack.loads(code, {"s": node_types.Struct(0, len)}),
            lambda: treepack.loads(code, static={"s": node_types.Struct(0, len)}),
            lambda: treepack.loads(code, static={"s/name": len})]),
        (lambda: treepack.load(damaged, verify=True), "on_corrupt='skip'", [
            lambda: treepack.load(damaged, tree, on_corrupt="skip", missing="target")]),
        (lambda: treepack.load(manifest), "the directory that it is in", [
            lambda: treepack.load(manifest.parent)]),
        (lambda: treepack.load(folder / "a.npz"), "treepack convert", [
            lambda: convert(folder / "a.npz", folder / "a.treepack")]),
        (lambda: treepack.load(stream), "read_stream.*treepack convert", [
            lambda: dict(treepack.read_stream(stream)),
            lambda: convert(stream, folder / "stream.treepack")]),
        (lambda: serialization.from_bytes(tree, packed), "from_compressed_bytes.*load_from_file", [
            lambda: serialization.from_compressed_bytes(tree, packed),
            lambda: serialization.load_from_file(tree, zipped)]),
        (lambda: serialization.load_from_file(None, manifest.parent), "", [
            lambda: load(containers="plain")]),
        (lambda: checkpoints.save_checkpoint(series, tree, 4), "a later step.*overwrite=True", [
            lambda: checkpoints.save_checkpoint(series, tree, 6),
            lambda: checkpoints.save_checkpoint(series, tree, 4, overwrite=True)]),
        (lambda: treepack.save(path, tree, level=3), "needs compress=True", [
            lambda: treepack.save(path, tree, level=3, compress=True)]),
        (lambda: treepack.packed_size(tree, metadata=1), "described=True", [
            lambda: treepack.packed_size(tree, metadata=1, described=True)]),
        (lambda: treepack.save(path, iter([]), select="a"), "let the iterator yield only", [
            lambda: treepack.save(path, iter([("a", np.ones(3))]))]),
        (lambda: treepack.loads(data)["a"].__setitem__(0, 1), "read-only", [
            lambda: treepack.loads(data, copy=True)["a"].__setitem__(0, 1)]),
    ]  # fmt: skip


def convert(source: Path, target: Path) -> Any:
    assert CliRunner().invoke(app, ["convert", str(source), str(target)]).exit_code == 0
    return treepack.load(target)


def test_what_errors_say_to_do_succeeds(tmp_path: Path) -> None:
    for call, told, follow in advice(tmp_path):
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            call()
        assert re.search(told, str(caught.value), re.S), caught.value
        for other in follow:
            other()
