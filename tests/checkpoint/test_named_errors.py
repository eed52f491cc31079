"""Every error in reading names the file, once: all verbs, with all that may be wrong."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from upath import UPath

import treepack
from treepack import checkpoints, orbax, serialization
from treepack._src.api.anything import open_anything
from treepack._src.layouts.copying import Copy
from trees import record_of, sealed

TREE = {"w": np.arange(3000.0), "b": {"c": np.zeros(7), "step": 3}}

OTHER = {"w": np.zeros(2), "b": {"d": 1}}

Bytes = Callable[[], bytes]


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def saved(**options: Any) -> bytes:
    treepack.save("memory://named-errors/seed", TREE, metadata={"a": 1}, **options)
    found: bytes = fsspec.filesystem("memory").cat("/named-errors/seed")
    return found


def newer(data: bytes) -> bytes:
    record = {**msgpack.unpackb(record_of(data)), "version": 2}
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    return plain + msgpack.packb(sealed(msgpack.packb(record)))


NOISE = np.random.default_rng(1).bytes(3 << 20)

# What a file has in it.
CONTENTS: dict[str, Bytes] = {
    "whole": lambda: saved(),
    "compressed": lambda: saved(compress=True),
    "empty": lambda: b"",
    "text": lambda: b"import numpy as np\n",
    "pickle": lambda: pickle.dumps(TREE),
    "hdf5": lambda: b"\x89HDF\r\n\x1a\n" + bytes(100),
    "a number": lambda: b"\x07",
    "of flax": lambda: serialization.to_bytes(TREE),
    "cut": lambda: saved()[:400],
    "cut at the end": lambda: saved()[:-5],
    "a changed leaf": lambda: changed(saved(), 9000),  # of which only checksums tell
    "a changed header": lambda: changed(saved(), 0),
    "a changed record": lambda: changed(saved(), -60),
    "newer": lambda: newer(treepack.dumps(TREE)),
    "cut gzip": lambda: saved(compress=True)[:300],
    "changed gzip": lambda: changed(saved(compress=True), 300),
    "gzip of others": lambda: gzip.compress(serialization.to_bytes({"w": NOISE})),
    "cut gzip of others": lambda: gzip.compress(serialization.to_bytes({"w": NOISE}))[:-1000],
    "gzip of nothing": lambda: gzip.compress(b"what is this"),
}


def leaves(source: Any, **options: Any) -> Any:
    with treepack.open(source, **options) as file:
        return {path: np.asarray(leaf) for path, leaf in file.leaves()}


def slices(source: Any) -> Any:
    with treepack.open(source) as file:
        return file["w"][5:7], file["w"][::-7], file["w"].flat_range(0, 9), file["b/c"] * 2


# All that reads, of sources that are paths, URLs, bytes or file objects.
READS: dict[str, Callable[[Any], Any]] = {
    "load": treepack.load,
    "load whole": lambda source: treepack.load(source, mmap=False, threads=1),
    "load target": lambda source: treepack.load(source, TREE),
    "load other": lambda source: treepack.load(source, OTHER),
    "load exact": lambda source: treepack.load(source, OTHER, strict="exact"),
    "load select": lambda source: treepack.load(source, select="w"),
    "load select nothing": lambda source: treepack.load(source, select="none/such"),
    "load into": lambda source: treepack.load(source, OTHER, select="w"),
    "load rename": lambda source: treepack.load(source, TREE, mapping={"such": "none"}),
    "load renamed twice": lambda source: treepack.load(source, TREE, mapping=lambda _: "x"),
    "load bools": lambda source: treepack.load(source, select={"w": True}),
    "load report": lambda source: treepack.load(source, OTHER, return_report=True),
    "load verify": lambda source: treepack.load(source, verify=True),
    "load undamaged": lambda source: treepack.load(source, TREE, on_corrupt="skip"),
    "load dtype": lambda source: treepack.load(source, dtype=jnp.bfloat16),
    "load little": lambda source: treepack.load(source, max_size=100),
    "open": treepack.open,
    "open leaves": leaves,
    "open slices": slices,
    "open little": lambda source: leaves(source, max_size=100),
    "salvage": lambda source: leaves(source, salvage=True),
    "open load": lambda source: treepack.open(source).load(OTHER),
    "open part": lambda source: treepack.open(source)["b"].load(OTHER),
    "open abstract": lambda source: treepack.open(source)["b"].abstract(),
    "verify": treepack.verify,
    "abstract": treepack.abstract,
    "metadata": treepack.read_metadata,
    "is_checkpoint": treepack.is_checkpoint,
    "exported": treepack.load_exported,
}

# And those of paths alone.
READS_PATHS: dict[str, Callable[[Any], Any]] = {
    "drop-in": lambda path: serialization.load_from_file(TREE, path),
    "drop-in other": lambda path: serialization.load_from_file(OTHER, path),
    "drop-in exact": lambda path: serialization.load_from_file(OTHER, path, strict="exact"),
    "drop-in little": lambda path: serialization.load_from_file(None, path, max_size=100),
    "checkpoints": lambda path: checkpoints.restore_checkpoint(path, TREE),
    "checkpoints other": lambda path: checkpoints.restore_checkpoint(path, OTHER, strict=True),
    "stream": lambda path: list(treepack.read_stream(path)),
    "aggregate": orbax.load_aggregate,
    "command ls": lambda path: open_anything(os.fspath(path)).metadata,
    "command convert": lambda path: Copy.of(open_anything(os.fspath(path))),
}


@contextlib.contextmanager
def names(name: str | None) -> Iterator[list[str]]:
    """Checks that an error, if there is one, is documented and tells a name once."""
    texts: list[str] = []
    caught: list[Exception] = []
    try:
        yield texts
    except (treepack.TreepackError, treepack.MissingPathError, OSError) as error:
        caught.append(error)
    for error in caught:
        texts.append(str(error))
        for same in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (str(same), same.args) == (texts[0], error.args)
        assert getattr(error, "filename", None) == name
        if name is not None:
            assert texts[0].count(repr(name)) == 1, texts[0]
            assert name not in texts[0].replace(repr(name), ""), texts[0]


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("content", CONTENTS)
def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.chdir(tmp_path)
    data = CONTENTS[content]()
    Path("a file").write_bytes(data)
    texts = {}
    for verb, read in {**READS, **READS_PATHS}.items():
        with names("a file") as texts[verb]:
            read("a file")
        with names(str(tmp_path / "a file")):
            read(tmp_path / "a file")
    for verb, read in READS.items():
        with names(None) as bare:
            read(data)
        with names(None):
            read(io.BytesIO(data))
        if content != "empty":  # whose message is about a file
            assert [f"'a file': {text}" for text in bare] == texts[verb], verb
        with open("a file", "rb") as file, names("a file") as others:  # noqa: PTH123
            read(file)
        # In parts of file objects, headers are read only where they are needed.
        assert others == texts[verb] or content in ("empty", "a changed header"), verb
    if content in (
        "whole",
        "compressed",
        "a number",
        "of flax",
        "gzip of others",
        "a changed leaf",
    ):
        assert texts["load other"]
        assert texts["load select nothing"]
    else:
        assert texts["load"]


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("content", CONTENTS)
def test_urls(content: str) -> None:
    url = "memory://named-errors/file"
    fsspec.filesystem("memory").pipe("/named-errors/file", CONTENTS[content]())
    for read in READS.values():
        with names(url):
            read(url)
        with names(url):
            read(UPath(url))


def test_what_is_not_there(tmp_path: Path) -> None:
    for place in (str(tmp_path / "none"), "memory://named-errors/none"):
        for verb, read in {**READS, **READS_PATHS}.items():
            with names(place) as texts:
                read(place)
            assert texts or verb in ("is_checkpoint", "checkpoints", "checkpoints other"), verb


@pytest.fixture(params=["", "compressed"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    array = jax.device_put(jnp.arange(3000.0), NamedSharding(mesh, PartitionSpec("x")))
    path = tmp_path / "a directory"
    compress = request.param == "compressed"
    treepack.save(path, {**TREE, "w": array}, sharded=True, compress=compress, metadata={"a": 1})
    return path


def shard(path: Path) -> Path:
    return next(it for it in path.iterdir() if "-00000" in it.name)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def change(path: Path, at: int) -> None:
    path.write_bytes(changed(path.read_bytes(), at))


# What is wrong with a sharded checkpoint, and which file is at fault.
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "whole": (lambda path: None, ""),
    "no manifest": (lambda path: (path / "manifest.treepack").unlink(), "manifest.treepack"),
    "cut manifest": (lambda path: cut(path / "manifest.treepack"), "manifest"),
    "changed manifest": (lambda path: change(path / "manifest.treepack", 30), "manifest"),
    "no shard": (lambda path: shard(path).unlink(), "-00000"),
    "cut shard": (lambda path: cut(shard(path)), "-00000"),
    "changed shard": (lambda path: change(shard(path), 40), "-00000"),
    "changed record": (lambda path: change(shard(path), -60), "-00000"),
    "of Orbax": (lambda path: (path / "manifest.treepack").rename(path / "_METADATA"), "Orbax"),
}


# Other parts of messages: the selection, or the leaf.
OTHERS = ("template", "max_size", "nothing", "bools", "the same path", "w is damaged: pass")


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("fault", FAULTS)
def test_directories(directory: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The directory and the file in it that is at fault are named once each."""
    monkeypatch.chdir(directory.parent)
    harm, culprit = FAULTS[fault]
    harm(directory)
    series = fault != "of Orbax"  # which Orbax would restore
    paths = {it: read for it, read in READS_PATHS.items() if series and "checkpoints" in it}
    for verb, read in {**READS, **paths}.items():
        if verb == "exported":
            continue
        with names("a directory") as texts:
            read("a directory")
        for text in texts:
            assert text.count(culprit) <= 1 or not culprit.startswith("-"), verb
            assert culprit in text or any(other in text for other in OTHERS), verb


def test_what_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    large = np.random.default_rng(1).standard_normal(1 << 18)
    treepack.save("file.gz", {"w": large, "b": 1}, level=0)
    Path("file.gz").write_bytes(changed(Path("file.gz").read_bytes(), 1 << 20))
    with treepack.open("file.gz") as file:
        array = file["w"]
        again = pickle.loads(pickle.dumps(array))
        monkeypatch.chdir("/")  # the file is named as it was opened
        for lazy in (array, again):
            for use in (
                *(np.asarray, jnp.asarray, lambda it: it + 1, lambda it: it[131_000:131_080]),
                *(lambda it: it[()], lambda it: it.flat_range(0, 1 << 18)),
            ):
                with names("file.gz") as texts:
                    use(lazy)
                assert texts
    with pytest.raises(ValueError, match=r"the file 'file\.gz' is closed"):
        np.asarray(array)
    with pytest.raises(ValueError, match=r"the file 'file\.gz' is closed"):
        file["b"]


class Handled:
    """A node whose handler refuses all states."""


def test_errors_of_handlers_get_a_note(tmp_path: Path) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("not this one")

    serialization.register_serialization_state(Handled, lambda _: {"a": 1}, refuse)
    path = tmp_path / "file"
    serialization.save_to_file({"x": Handled()}, path)
    for read in (
        lambda: serialization.load_from_file({"x": Handled()}, path),
        lambda: treepack.load(path, {"x": Handled()}),
        lambda: treepack.open(path).load({"x": Handled()}),
    ):
        with pytest.raises(RuntimeError, match="not this one") as caught:
            read()
        assert str(caught.value) == "not this one"
        assert caught.value.__notes__.count(f"treepack: while reading {str(path)!r}") == 1
