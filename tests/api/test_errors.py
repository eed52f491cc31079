"""The exceptions: all can be caught by public names, are documented, and survive pickling."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import decimal
import enum
import functools
import gzip
import io
import pickle
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from flax import linen

import node_types
import treepack
from commands import invoke as run
from treepack import checkpoints, errors, serialization

DOCUMENT = Path(__file__).parents[2] / "docs" / "guarantees.md"

EXCEPTIONS = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, Exception)
]

ARGUMENTS = {
    "BaseMismatchError": ("text", ["a/b"]),
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
    assert len(EXCEPTIONS) == 22
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
        (lambda: load(deeper), r"one level higher: pass template\['params'\]", [
            lambda: load(deeper["params"])]),
        (lambda: load(cast=True), "or pass dtype=", [
            lambda: load(tree, cast=True), lambda: load(dtype="float16")]),
        (lambda: load(tree, dtype="float16"), "cast=True", [lambda: load(tree, cast=True)]),
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
        (lambda: treepack.load(manifest), "directory", [
            lambda: treepack.load(manifest.parent)]),
        (lambda: treepack.loads((folder / "a.npz").read_bytes()), r"treepack\.load", [
            lambda: treepack.load(folder / "a.npz")]),
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
        (lambda: treepack.save(path, tree, level=3), "requires compress=True", [
            lambda: treepack.save(path, tree, level=3, compress=True)]),
        (lambda: treepack.packed_size(tree, metadata=1), "described=True", [
            lambda: treepack.packed_size(tree, metadata=1, described=True)]),
        (lambda: treepack.save(path, iter([]), select="a"), "iterator", [
            lambda: treepack.save(path, iter([("a", np.ones(3))]))]),
        (lambda: treepack.loads(data)["a"].__setitem__(0, 1), "read-only", [
            lambda: treepack.loads(data, copy=True)["a"].__setitem__(0, 1)]),
    ]  # fmt: skip


def of_arrays(folder: Path) -> list[tuple[Any, str, list[Any]]]:
    """Returns rows about dtypes, devices, shardings and placeholders."""
    path = folder / "of 64 bits"
    treepack.save(path, {"w": np.ones(3), "n": np.arange(3)})
    load = functools.partial(treepack.load, path)
    spec = jax.ShapeDtypeStruct((3,), np.float32)
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    big = folder / "large integer"
    treepack.save(big, {"n": np.array([2**40]), "i": 2**40})
    abstract = {"w": jax.ShapeDtypeStruct((3,), np.float64)}
    masked = np.ma.masked_array([1, 2], [True, False])
    fields = np.zeros(2, [("a", "i4"), ("b", "f8")])
    color = enum.Enum("Color", "RED").RED  # type: ignore[attr-defined]
    arguments = argparse.Namespace(a=1)
    variables = linen.Dense(3).init(jax.random.key(0), np.ones((1, 2)))
    return [
        (lambda: load(arrays="jax"), "arrays='numpy'", [lambda: load(arrays="numpy")]),
        (lambda: load(device="cpu"), r"jax\.devices\(\)\[0\]", [
            lambda: load({"w": spec, "n": 1}, device=device, strict=False)]),
        (lambda: load(sharding=3), r"jax\.devices\(\)\[0\]", [
            lambda: load(select="w", sharding=sharding, dtype="float32")]),
        (lambda: load(device=device, arrays="numpy"), "arrays='numpy'", [
            lambda: load(device=device, dtype="float32", select="w")]),
        (lambda: treepack.load(big, {"n": np.zeros(1, np.int8), "i": 0}, cast=True),
            "use a template|dtype", [
                lambda: treepack.load(big, {"n": np.zeros(1, np.int64), "i": 0})]),
        (lambda: treepack.dumps({"w": spec}), "metadata=", [
            lambda: treepack.dumps({}, metadata={"w": spec})]),
        (lambda: treepack.dumps({"m": masked}), "mask", [
            lambda: treepack.dumps({"m": masked.data, "mask": masked.mask})]),
        (lambda: treepack.dumps({"s": range(3)}), r"save list\(\.\.\.\).*metadata=", [
            lambda: treepack.dumps({"s": list(range(3))}),
            lambda: treepack.dumps({}, metadata={"s": range(3)})]),
        (lambda: treepack.dumps({"a": fields}), r"\.tolist\(\).*for name in", [
            lambda: treepack.dumps({"a": fields.tolist()}),
            lambda: treepack.dumps({"a": {name: fields[name] for name in fields.dtype.names}})]),
        (lambda: treepack.dumps({"a": np.array(["a"])}), r"save its \.tolist\(\)$", [
            lambda: treepack.dumps({"a": np.array(["a"]).tolist()})]),
        (lambda: treepack.dumps({"k": color}), r"save its \.value", [
            lambda: treepack.dumps({"k": color.value})]),
        (lambda: treepack.dumps({"a": arguments}), r"save vars\(\.\.\.\)", [
            lambda: treepack.dumps({"a": vars(arguments)})]),
        (lambda: treepack.dumps({"f": functools.partial(len, [1])}), 'static="skip"', [
            lambda: treepack.dumps({"f": functools.partial(len, [1])}, static="skip")]),
        (lambda: jax.jit(lambda it: treepack.dumps({"a": it}))(1.0), "outside of jit", [
            lambda: treepack.dumps({"a": 1.0})]),
        (lambda: treepack.dumps({"t": datetime.date(2020, 1, 1)}), "isoformat", [
            lambda: treepack.dumps({"t": datetime.date(2020, 1, 1).isoformat()})]),
        (lambda: treepack.dumps({"t": datetime.timedelta(1)}), "total_seconds", [
            lambda: treepack.dumps({"t": datetime.timedelta(1).total_seconds()})]),
        (lambda: treepack.dumps({"d": np.dtype("int8")}), "save its name", [
            lambda: treepack.dumps({"d": np.dtype("int8").name})]),
        (lambda: treepack.dumps({"d": decimal.Decimal(1)}), "save str|metadata=", [
            lambda: treepack.dumps({"d": str(decimal.Decimal(1))}),
            lambda: treepack.dumps({}, metadata=decimal.Decimal(1))]),
        (lambda: treepack.dumps({"m": linen.Dense(3)}, static="error"), "save its variables", [
            lambda: treepack.dumps({"m": variables})]),
        (lambda: load(linen.Dense), "pass", [
            lambda: treepack.load(path, jax.eval_shape(lambda: {"w": np.ones(3, np.float32),
                                                                "n": np.arange(3)}))]),
        (lambda: treepack.save(folder / "m.npz", {}), "treepack convert", [
            lambda: convert(path, folder / "m.npz", load=False)]),
        (lambda: treepack.load(path, abstract | {"n": 0}), "strict=False|arrays=", [
            lambda: treepack.load(path, abstract | {"n": 0}, strict=False, arrays="numpy")]),
    ]  # fmt: skip


def of_files(folder: Path) -> list[tuple[Any, str, list[Any]]]:
    """Returns rows about files of others, streams, archives, exports and the command line."""
    tree = {"w": np.ones((2, 3), np.float32), "a.b": np.ones(1), "a": {"b": np.zeros(1)}}
    path = folder / "tree"
    treepack.save(path, tree)
    zipped = folder / "foreign.gz"
    noise = np.random.default_rng(0).bytes(2 << 20)
    zipped.write_bytes(gzip.compress(serialization.to_bytes({"a": noise}), 1))
    series = folder / "in it"
    checkpoints.save_checkpoint(series, tree, 5)
    flat = {"w": np.ones(2)}
    np.savez(folder / "a.npz", **flat)
    half = folder / "half"
    treepack.save(half, {"w": jnp.ones(2, jnp.bfloat16)})
    odd = folder / "complex"
    treepack.save(odd, {"w": np.ones(2, complex)})
    small = folder / "small"
    treepack.save(small, {"w": np.ones(2, jnp.int4)})
    text = io.StringIO("text")
    lost = MadeHere(jnp.ones(2))
    return [
        (lambda: treepack.open(zipped), "load it whole|treepack convert", [
            lambda: treepack.load(zipped), lambda: convert(zipped, folder / "foreign.treepack"),
            lambda: treepack.open(gzip.decompress(zipped.read_bytes()))]),
        (lambda: treepack.load(series), "load '.*checkpoint_5'", [
            lambda: treepack.load(series / "checkpoint_5")]),
        (lambda: treepack.open(text), "mode 'rb'", [
            lambda: treepack.open(io.BytesIO(path.read_bytes()))]),
        (lambda: treepack.loads(str(path)), "treepack.load", [
            lambda: treepack.load(path)]),
        (lambda: treepack.open(path)["a.b/b"], "nothing at", [lambda: treepack.open(path)["a/b"]]),
        (lambda: run("convert", path, folder / "sep.npz", "--sep", "."), "choose another", [
            lambda: run("convert", path, folder / "sep.npz", "--sep", "|")]),
        (lambda: run("convert", path, folder / "sep.safetensors"), "separator=", [
            lambda: run("convert", path, folder / "sep.safetensors", "--sep", "|")]),
        (lambda: run("convert", half, folder / "half.npz"), "dtype=", [
            lambda: run("convert", half, folder / "half.npz", "--dtype", "float32")]),
        (lambda: run("convert", odd, folder / "odd.safetensors"), r"\.real and \.imag", [
            lambda: treepack.save(odd, {"re": np.ones(2, complex).real, "im": np.zeros(2)}),
            lambda: run("convert", odd, folder / "odd.safetensors")]),
        (lambda: run("convert", small, folder / "small.npz"), r"astype", [
            lambda: treepack.save(small, {"w": np.ones(2, jnp.int4).astype(np.int8)}),
            lambda: run("convert", small, folder / "small.npz")]),
        (lambda: run("get", path, "v", folder / "v"), "nothing at v|is nothing", [
            lambda: run("get", path, "w", folder / "v")]),
        (lambda: run("show", path, "v"), "nothing at v", [lambda: run("show", path, "w")]),
        (lambda: treepack.save(folder / "m.npz", flat), "treepack convert", [
            lambda: run("convert", path, folder / "m.npz", "--sep", "|")]),
        (lambda: treepack.register_node(Pair2, serialized_name="errors.Pair2"),
            "register_namedtuple", [
                lambda: treepack.register_namedtuple(Pair2, serialized_name="errors.Pair2")]),
        (lambda: treepack.register_namedtuple(Node, serialized_name="errors.Node"),
            "register_node", [
                lambda: treepack.register_node(Node, serialized_name="errors.Node")]),
        (lambda: treepack.loads(treepack.dumps({"a": lost}), {"b": lost}), "mapping=|missing=", [
            lambda: treepack.loads(treepack.dumps({"a": lost}), {"a": lost})]),
        (lambda: treepack.load(path, select=("w", "a")), "pass a list", [
            lambda: treepack.load(path, select=["w", "a"])]),
        (lambda: treepack.open(path)["w"].sort(), r"array\[\.\.\.\]\.sort", [
            lambda: treepack.open(path)["w"][...].sort()]),
    ]  # fmt: skip


class Pair2(NamedTuple):
    """A namedtuple that is not registered."""

    a: int


@jax.tree_util.register_pytree_node_class
class Node:
    """A node of JAX that is not registered."""

    def tree_flatten(self) -> Any:
        """Returns no children."""
        return (), None

    @classmethod
    def tree_unflatten(cls, *_: Any) -> Any:
        """Makes another one."""
        return cls()


@dataclasses.dataclass
class MadeHere:
    """A dataclass that is not registered."""

    w: Any


def convert(source: Path, target: Path, *, load: bool = True) -> Any:
    run("convert", source, target)
    return treepack.load(target) if load else None


@pytest.mark.parametrize("rows", [advice, of_arrays, of_files])
def test_what_errors_say_to_do_succeeds(tmp_path: Path, rows: Any) -> None:
    for call, message, follow in rows(tmp_path):
        with pytest.raises((ValueError, TypeError, OSError, KeyError, AttributeError)) as caught:
            call()
        assert re.search(message, str(caught.value), re.S), caught.value
        for other in follow:
            other()


@pytest.mark.skipif(sys.maxsize < 2**33, reason="such objects do not exist")
def test_bytes_of_4_gib_are_named() -> None:
    tree = {"a": {"b": bytes(2**32)}}  # zeros: the system maps no memory for them
    for call in (treepack.packed_size, serialization.to_bytes):
        with pytest.raises(
            errors.TreepackError, match=r"at a/b: byte string of 4294967296 .* an array"
        ):
            call(tree)
