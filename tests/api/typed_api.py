"""Uses every public function, for the type checkers (`make lint`) and as a test of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from upath import UPath

import treepack
from treepack import checkpoints, errors, serialization


@treepack.register_dataclass(serialized_name="typed.Layer")
@dataclasses.dataclass
class Layer:
    w: jax.Array
    act: str = dataclasses.field(default="relu", metadata={"static": True})


@treepack.register_namedtuple(serialized_name="typed.Point")
class Point(NamedTuple):
    x: float
    y: float = 0.0


@treepack.register_auxdata(serialized_name="typed.Mode")
class Mode(enum.Enum):
    TRAIN = 1


@treepack.register_function(serialized_name="typed.double")
def double(x: float) -> float:
    return 2 * x


class Box:
    def __init__(self, value: float):
        self.value = value


def to_state(box: Box) -> dict[str, float]:
    return {"value": box.value}


def from_state(_: Box, state: dict[str, float]) -> Box:
    return Box(state["value"])


class Node:
    def __init__(self, value: float):
        self.value = value


def upgrade(
    static: dict[str, object], children: dict[str, object], version: int
) -> tuple[dict[str, object], dict[str, object]]:
    return static, children


def register() -> dict[str, type]:
    jax.tree_util.register_pytree_node(
        Node, lambda node: ((node.value,), None), lambda _, children: Node(*children)
    )
    treepack.register_node(Node, serialized_name="typed.Node")
    treepack.register_pytree_node_serialization(Node, serialized_name="typed.Node")
    layer: type[Layer] = treepack.register_dataclass(Layer, serialized_name="typed.Layer")
    # Decorators keep the type.
    made: Layer = layer(jnp.ones(2))
    twice: Callable[[float], float] = double
    assert made.act == "relu"
    assert twice(1.0) == 2.0
    treepack.register_tree([Point(1.0), {"a": Layer(jnp.ones(1))}])
    return treepack.registered_types()


def latest(path: treepack.Location, **options: Unpack[treepack.LoadOptions]) -> Any:
    return treepack.load(path, **options)


def keep(path: treepack.Location, tree: Any, **options: Unpack[treepack.SaveOptions]) -> None:
    treepack.save(path, tree, **options)


def files(folder: Path) -> None:
    path = folder / "model"
    tree: dict[str, Layer | Point] = {"layer": Layer(jnp.ones((4, 2))), "point": Point(1.0)}
    calls: list[int] = []
    progress: treepack.Progress = lambda done, total: calls.append(done)  # noqa: E731
    strict: treepack.Strict = "exact"
    arrays: treepack.Arrays = "numpy"
    sources = {
        "a": ("layers/{l}", "a b -> l b a"),
        "b": ("w", "a b -> b a"),
    }
    treepack.save(path, {"layers": [jnp.ones((3, 2))], "w": jnp.ones((2, 3))})
    made: dict[str, jax.Array] = treepack.load(
        path, {"a": jnp.ones((1, 2, 3)), "b": jnp.ones((3, 2))}, mapping=sources
    )
    assert made["a"].shape == (1, 2, 3)
    treepack.save(folder / "hub", made, format="safetensors", max_shard_size="5GB", mapping=sources)
    mapping = treepack.Mapping({"a": ("layers.{l}", "m n -> l n m")}, rest="same", m=3)
    again: dict[str, jax.Array] = treepack.load(path, {"a": made["a"]}, mapping=mapping)
    assert again["a"].shape == (1, 2, 3)
    mapping.check({"a": made["a"], "w": jnp.ones((2, 3))}, path)
    with treepack.open(path, mapping=mapping) as mapped:
        assert treepack.abstract(path, mapping=mapping)["a"].shape == mapped["a"].shape
    treepack.save(folder / "hub", again, format="safetensors", mapping=mapping)
    treepack.save(path, tree, select=["**"])
    storage_options: treepack.StorageOptions = None
    keep(path, made, durable=False, storage_options=storage_options)
    assert set(latest(path, select="a")) == {"a"}
    treepack.save(path, tree, metadata={"step": 1}, compress=True, level=1, progress=progress)
    # With a target the result has its type.
    found: dict[str, Layer | Point] = treepack.load(path, tree, strict=strict)
    assert isinstance(found["layer"], Layer)
    assert treepack.load(path, arrays=arrays)["point"] == Point(1.0)
    assert treepack.load(path, replicas="broadcast", timeout=60)["point"] == Point(1.0)
    assert treepack.abstract(path)["layer"].w.shape == (4, 2)
    assert treepack.read_metadata(path)["step"] == 1
    assert treepack.is_checkpoint(path)
    assert treepack.read_metadata(path, unknown="dict")["step"] == 1


def opened(folder: Path) -> None:
    path = folder / "opened"
    tree: dict[str, list[jax.Array]] = {"w": [jnp.ones((4, 2))], "more": []}
    saving: treepack.Saving = treepack.save(path, tree, background=True)
    done: tuple[int, int] = saving.progress
    error: BaseException | None = saving.exception(timeout=60.0)
    saving.result()
    print(saving.done(), done, error)
    treepack.save(folder / "checkpoint", tree, sharded=True, step=3)
    treepack.save(path, tree)
    file: treepack.File
    with treepack.open(path, salvage=False, mmap=True, unknown="dict") as file:
        lazy = file["w/0"]
        assert isinstance(lazy, treepack.LazyArray)
        assert lazy[1:].shape == (3, 2)
        assert file["w"].load(select="0")[0].shape == (4, 2)
        assert [name for name, _ in file.leaves()] == ["w/0"]
        treepack.save(folder / "copy.npz", file, exclude="more", separator="/", dtype="float16")
        about: tuple[str, int, bool, list[str]] = (
            *(file.format, file.stored_nbytes),
            *(file.has_checksums, file.others),
        )
        linked: dict[str, int] = file.linked
        assert linked == {}
        infos: list[treepack.Info] = [file.info("w"), *file.infos()]
        assert [str(info) for info in infos] == ["1 leaf", "float32[4,2]"]
        assert [(at, key) for at, key, _ in file.levels(depth=1)] == [(0, "w"), (0, "more")]
        numbers = lazy.statistics(bins=4)
        assert numbers is not None
        assert numbers.mean == 1.0
        assert about == ("treepack", path.stat().st_size, True, [])
    report: treepack.Report
    loaded, report = treepack.load(
        path,
        tree,
        select="w",
        mapping={"w": "w"},
        missing="target",
        unexpected="error",
        verify=True,
        on_corrupt="skip",
        return_report=True,
    )
    first: jax.Array = loaded["w"][0]
    assert first.shape == (4, 2)
    assert report.loaded == ["w/0"]
    treepack.write_stream(folder / "stream", [("a/b", np.ones(2)), (("c",), 3)])
    assert [key for key, _ in treepack.read_stream(folder / "stream")] == [("a", "b"), ("c",)]
    treepack.save(path, treepack.read_stream(folder / "stream"))
    found: treepack.Verification = treepack.verify(path, threads=1)
    assert [it.kind for it in treepack.diff(path, path, rtol=0.1, stats=True)] == []
    assert found.ok
    digest: treepack.Digest = treepack.digest(path, threads=1)
    assert sorted(digest.leaves) == ["a/b", "c"]
    assert treepack.load(path, expect=digest)["c"] == treepack.load(path, expect=str(digest))["c"]


def series(folder: Path) -> None:
    keep = treepack.Keep(last=2, every=100, seconds=60.0, best=("loss", 1, "max"))
    run = treepack.Series(folder / "run", keep=keep, prefix="a_", timeout=60)
    tree: dict[str, jax.Array] = {"w": jnp.ones(3)}
    run.save(1, tree, metrics={"loss": jnp.float32(1)}, local=[1], metadata="m", compress=True)
    saving: treepack.Saving = run.save(2, tree, background=True)
    saving.result()
    resumed = run.resume(tree, verify="manifest", strict="exact", mmap=False)
    assert resumed is not None
    step: int = resumed[0]
    found: dict[str, jax.Array] = resumed[1]
    skipped: list[tuple[int, BaseException]] = run.skipped
    metrics: dict[str, float] = run.metrics(step)
    steps: list[int] = run.steps()
    run.keep(step)
    run.wait()
    print(found, skipped, metrics, steps, run.local, run.metadata(step), run.path(step))
    with treepack.Series(folder / "waited") as waited:
        asyncio.run(wait(waited.save(1, tree, background=True)))


async def wait(saving: treepack.Saving) -> None:
    await saving


def published(folder: Path) -> None:
    publisher = treepack.Publisher(folder / "published", anchor_every=10, durable=False)
    tree: dict[str, jax.Array] = {"w": jnp.ones(3)}
    publisher.push(tree, version=1, static="skip")
    subscriber = treepack.Subscriber(folder / "published", max_size=1 << 20)
    version, found = subscriber.latest(tree, strict="exact")
    same: tuple[int, dict[str, jax.Array]] = version, found
    waited: tuple[int, Any] = subscriber.wait(newer_than=0, timeout=1, arrays="jax")
    print(same, waited)


def remote() -> None:
    place = UPath("memory://typed/file")
    tree = {"w": np.ones(3)}
    treepack.save(place, tree, storage_options={"asynchronous": False})
    same = treepack.load(place, tree)
    assert same["w"].shape == (3,)
    file: treepack.Tree = treepack.open(place)
    assert list(file) == ["w"]
    assert treepack.verify(place).ok
    assert treepack.is_checkpoint(place)
    assert treepack.read_metadata(place) is None
    assert treepack.abstract(place)["w"].shape == (3,)
    serialization.save_to_file(tree, place)
    again = serialization.load_from_file(tree, place, storage_options={})
    assert again["w"].shape == (3,)
    checkpoints.save_checkpoint(place.parent / "series", tree, 3)
    assert checkpoints.available_steps(place.parent / "series") == [3]


def data() -> None:
    tree = (Layer(jnp.ones(2)), [1, 2.0])
    encoded: bytes = treepack.dumps(tree, static="skip", select="**", align=16, threads=1)
    treepack.loads(encoded, dtype="float16")
    same: tuple[Layer, list[float]] = treepack.loads(encoded, tree)
    layer: Layer = treepack.loads(treepack.dumps(tree[0]), tree[0])
    assert layer.act == "relu"
    assert same[0].act == "relu"
    assert treepack.loads(encoded, cast=False, unknown="dict", static={})[1] == [1, 2.0]
    size: int = treepack.packed_size(tree, described=True)
    buffer = bytearray(size)
    assert treepack.pack_into(tree, buffer, described=True) == size
    pieces: list[memoryview] = treepack.buffers(tree)
    assert sum(piece.nbytes for piece in pieces) == treepack.packed_size(tree)
    patch: bytes = treepack.dumps(tree, base=tree)
    same = treepack.loads(patch, tree, base=tree)
    applied: int = treepack.apply_delta(b"".join(treepack.buffers(tree, base=buffer)), buffer)
    assert applied == treepack.packed_size(tree)


def exported(folder: Path) -> None:
    function = jax.export.export(jax.jit(jnp.sin))(jnp.ones(3))
    treepack.save_exported(folder / "function", function, {"w": jnp.ones(3)}, durable=False)
    loaded: treepack.LoadedExported = treepack.load_exported(folder / "function")
    assert loaded.params["w"].shape == (3,)


def drop_in(folder: Path) -> None:
    tree = {"a": np.ones(3), "b": [1, 2]}
    serialization.register_serialization_state(Box, to_state, from_state, override=True)
    encoded: bytes = serialization.to_bytes(tree)
    same = serialization.from_bytes(tree, encoded)
    assert list(same) == ["a", "b"]
    state = serialization.to_state_dict(Box(1.0))
    box: Box = serialization.from_state_dict(Box(0.0), state)
    assert box.value == 1.0
    assert serialization.msgpack_restore(serialization.msgpack_serialize(tree))["b"] == [1, 2]
    serialization.save_to_file(tree, folder / "file", compress=True, level=1)
    later: treepack.Saving = serialization.save_to_file(tree, folder / "file", background=True)
    later.result()
    loaded = serialization.load_from_file(tree, folder / "file")
    assert list(loaded) == ["a", "b"]
    packed: bytes = serialization.to_compressed_bytes(tree)
    assert list(serialization.from_compressed_bytes(tree, packed)) == ["a", "b"]
    assert serialization.decompress_bytes(serialization.compress_bytes(b"abc")) == b"abc"
    assert serialization.is_serializable(tree)
    valid, issues = serialization.validate_serializable(tree)
    assert valid
    assert not issues
    assert serialization.get_serialization_info(tree)["num_leaves"] == 3
    assert serialization.current_path() == ""
    assert serialization.MAX_CHUNK_SIZE == 2**30
    with serialization.patch():
        pass


def failures() -> None:
    kinds: list[type[Exception]] = [
        treepack.TreepackError,
        treepack.DecodeError,
        treepack.MismatchError,
        treepack.BaseMismatchError,
        treepack.CorruptionError,
        treepack.UnregisteredTypeError,
        treepack.UnserializableLeafError,
        treepack.GzipError,
        treepack.GzipTruncatedError,
        treepack.GzipCorruptionError,
        treepack.NoIndexError,
        treepack.NoManifestError,
        treepack.DamagedFileError,
        treepack.OthersError,
        treepack.UnsummedError,
        treepack.BusyError,
        treepack.PlaceholderError,
        treepack.MissingPathError,
        treepack.InvalidCheckpointError,
        treepack.MultiprocessArrayError,
        treepack.NewerVersionError,
        treepack.StateDictKeyError,
        errors.GzipError,
        errors.GzipTruncatedError,
        errors.StateDictKeyError,
    ]
    assert all(issubclass(kind, Exception) for kind in kinds)
    try:
        treepack.loads(treepack.dumps({"a": 1}), {"b": 1})
    except treepack.MismatchError as error:
        found: list[treepack.Mismatch] = error.mismatches
        assert found[0].path == "b"
        assert found[0].similar == ""


def main() -> None:
    assert treepack.__version__
    assert register()["typed.Layer"] is Layer
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder))
        opened(Path(folder))
        exported(Path(folder))
        drop_in(Path(folder))
        series(Path(folder))
        published(Path(folder))
    remote()
    data()
    failures()


if __name__ == "__main__":
    main()
