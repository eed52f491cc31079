"""Of damaged files, exactly the leaves whose bytes are whole are had, whatever else is damaged.

Bytes are flipped and sectors zeroed, and the index of the undamaged file tells which leaves are
expected: those whose checksums cover no byte that has changed. Other values are only had of leaves
that are named as not verified.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import random
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import tiers
import treepack
import treepack._core as core
from commands import call
from treepack import serialization
from treepack._src.checkpoint.shards import MANIFEST

SECTOR = 512


class Form(NamedTuple):
    """A form of files: how they are saved, and the size of the arrays in them.

    With `is_split`, one array has shards on several devices; with `is_step`, it is one of a run;
    with `is_patch`, a base is beside it, and none of its leaves is expected of damaged files.
    """

    options: dict[str, Any]
    size: int = 70
    is_split: bool = False
    is_step: bool = False
    is_patch: bool = False


FORMS = {
    "plain": Form({}),
    "sharded": Form({"sharded": True}),
    "gzip": Form({"compress": True}),
    "numbers": Form({"compress": "numbers"}),
    "gzip, blocks": Form({"compress": True}, 100_000),
    "numbers, blocks": Form({"compress": "numbers"}, 100_000),
    "split": Form({"sharded": True}, is_split=True),
    "split, gzip": Form({"sharded": True, "compress": True}, is_split=True),
    "step": Form({}, is_step=True),
    "step, sharded": Form({"sharded": True}, is_step=True),
    "patch": Form({}, 300, is_patch=True),
    "patch, gzip": Form({"compress": True}, 300, is_patch=True),
}


def _tree(size: int, *, is_split: bool = False) -> Any:
    if is_split:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), "x")
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        return {**_tree(size), "split": jax.device_put(np.arange(800, dtype=np.int32), split)}
    noise = np.random.default_rng(0).integers(0, 256, (6, size), np.uint8)
    layers = {f"l{at}": {"w": row, "b": np.arange(3.0) + at} for at, row in enumerate(noise)}
    return {"layers": layers, "step": 7, "list": [1, (2.5, None, "x")], "end": np.arange(90)}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    nodes = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = {}
    for key, node in nodes:
        if isinstance(node, (dict, list, tuple)):
            found |= _flat(node, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = node
    return found


def _places(data: bytes) -> dict[str, list[tuple[int, int]]]:
    """Returns the ranges of a file that each leaf and its checksum have."""
    content = core.Content.lent(data)
    indexed = content.indexed()
    with treepack.open(data) as file:
        catalog = file._catalog
        leaves = {path: catalog.leaf(value) for path, value in catalog.leaves(0)}
    places = {}
    for path, (number, _, _, end, begin) in leaves.items():
        name = path.split("/[")[0]  # of a shard
        if core.is_compressed(content):
            found = [(10, len(data)) if indexed is None else indexed.stored(begin, end)]
        else:
            checksum = len(data) - 24 - 4 * (len(leaves) + 1) + 4 * number
            found = [(begin, end), (checksum, checksum + 4)]
        places[name] = places.get(name, []) + found
    return places


def _changed(data: bytes, start: int, stop: int, how: str) -> bytes:
    damaged = bytearray(data)
    for at in range(start, min(stop, len(data))):
        damaged[at] = 0 if how == "zero" else damaged[at] ^ (1 << at % 8)
    return bytes(damaged)


def _damages(data: bytes, flips: Iterable[int], zeros: Iterable[int]) -> Iterator[bytes]:
    for at in flips:
        yield _changed(data, at, at + 1, "flip")
    for at in zeros:
        yield _changed(data, at, at + SECTOR, "zero")
    yield _changed(data, 0, 8 * SECTOR if len(data) > 9 * SECTOR else 10, "zero")


def _is_damaged(path: Path) -> bool:
    try:
        with treepack.open(path, salvage=True) as file:
            return file.damage is not None or not treepack.verify(path).ok
    except treepack.TreepackError:
        return True


def _has_content(data: bytes, content: bytes) -> bool:
    """Returns whether stock gzip reads this content, as where only the time stamp changed."""
    try:
        return gzip.decompress(data) == content
    except (OSError, EOFError, zlib.error):
        return False


def _has_leaves(path: Path, leaves: dict[str, Any]) -> bool:
    """Returns whether all leaves load, as where a bit changed that pads a block of deflate."""
    try:
        found = _flat(treepack.load(path))
    except treepack.TreepackError:
        return False
    return found.keys() == leaves.keys() and all(_is_same(found[it], leaves[it]) for it in leaves)


class Had(NamedTuple):
    """The leaves that a way has of a file.

    Of those that cannot be verified, some are had and named, others are left out.
    """

    leaves: dict[str, Any]
    unverified: Collection[str] = ()
    left_out: Collection[str] = ()


def _opened(path: Path, names: Iterable[str], _: bool) -> Had:
    found = {}
    with treepack.open(path, salvage=True) as file:
        for name in names:
            with contextlib.suppress(KeyError, ValueError):
                found[name] = _read(file[name])
        return Had(found, _unverified(file))


def _listed(path: Path, _: Iterable[str], __: bool) -> Had:
    found = {}
    with treepack.open(path, salvage=True) as file:
        for name, leaf in file.leaves():
            with contextlib.suppress(ValueError):  # a compressed array is checked when it is read
                found[name] = _read(leaf)
        return Had(found, _unverified(file))


def _unverified(file: treepack.File) -> list[str]:
    """Returns the leaves that a file names as not verified, as `verify` does."""
    reader = file._place.reader
    found = [reader.catalog.path_of(value, 0) for value in reader.unverified()]
    verified = treepack.verify(file.path)
    assert verified.unchecked == [path for path in found if path not in verified.corrupt]
    assert not found or found[0] in (file.damage or "")
    return found


def _read(leaf: Any) -> Any:
    return leaf[...] if isinstance(leaf, treepack.LazyArray) else leaf


def _skipped(path: Path, _: Iterable[str], __: bool) -> Had:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, report = treepack.load(path, on_corrupt="skip", return_report=True)
    return Had(_flat(found), report.unverified)


def _verified(path: Path, _: Iterable[str], __: bool) -> Had:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _flat(treepack.load(path, on_corrupt="skip", verify=True))
    with treepack.open(path, salvage=True) as file:
        return Had(found, left_out=_unverified(file))


def _by_command(path: Path, _: Iterable[str], is_damaged: bool) -> Had:
    with treepack.open(path, salvage=True) as file:
        unverified = _unverified(file)
    new = path.with_name("salvaged.treepack")
    new.unlink(missing_ok=True)
    told = call("salvage", str(path), str(new), status=int(is_damaged))
    if not new.exists():
        return Had({})
    assert treepack.verify(new).ok
    assert not unverified or "not verified" in told
    return Had(_flat(treepack.load(new)), unverified)


WAYS: list[Callable[[Path, Iterable[str], bool], Had]] = [
    _opened,
    _listed,
    _skipped,
    _verified,
    _by_command,
]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, jax.Array) or isinstance(other, jax.Array):
        one, other = np.asarray(one), np.asarray(other)
    if not isinstance(one, np.ndarray) or other is None:
        return type(one) is type(other) and bool(one == other)
    is_same_kind = (one.dtype, one.shape) == (other.dtype, other.shape)
    return is_same_kind and one.tobytes() == other.tobytes()


class Case(NamedTuple):
    """A file of a checkpoint, which is damaged in many ways."""

    checkpoint: Path
    file: Path
    data: bytes
    form: Form
    leaves: dict[str, Any]
    places: dict[str, list[tuple[int, int]]]


def _check(case: Case, data: bytes) -> None:
    """Compares the leaves that are had of a damaged file with the ones that are expected."""
    if case.data == data:
        return
    path, leaves = case.checkpoint, case.leaves
    changed = np.flatnonzero(np.frombuffer(case.data, np.uint8) != np.frombuffer(data, np.uint8))
    hit = {
        name
        for name, ranges in case.places.items()
        if any(np.any((changed >= first) & (changed < last)) for first, last in ranges)
    }
    expected = leaves.keys() - hit  # other files have some
    case.file.write_bytes(data)
    compress = "numbers" if case.form.is_patch else case.form.options.get("compress")
    is_whole = {
        None: lambda: False,
        True: lambda: _has_content(data, gzip.decompress(case.data)),
        "numbers": lambda: _has_leaves(path, leaves),
    }
    is_damaged = _is_damaged(path)
    assert is_damaged or is_whole[compress](), changed
    for way in WAYS:
        try:
            found, unverified, left_out = way(path, leaves, is_damaged)
        except treepack.TreepackError:
            if expected:
                raise
            continue
        wrong = {name for name, leaf in found.items() if not _is_same(leaf, leaves.get(name))}
        lost = expected - (found.keys() - wrong) - {*left_out}
        assert not lost, (way, changed, lost, wrong)
        above = tuple(f"{name}/" for name in unverified)  # of lists
        named = {name for name in wrong if f"{name}/".startswith(above)}
        assert wrong <= named, (way, changed, wrong - named)
    case.file.write_bytes(case.data)


def _cases(folder: Path, name: str) -> list[Case]:
    """Saves a tree in a form; returns a case for each of its files."""
    form = FORMS[name]
    tree = _tree(form.size, is_split=form.is_split)
    path = folder / "saved"
    if form.is_step:
        treepack.Series(folder, sharded=form.options.get("sharded")).save(3, tree)
        path = folder / "step_3"
    elif form.is_patch:
        base = folder / "base"
        treepack.save(base, tree)
        tree = {**tree, "layers": {**tree["layers"], "l0": tree["layers"]["l1"]}}
        treepack.save(path, tree, base=base, **form.options)
        found = {file: file.read_bytes() for file in (path, base)}
        return [
            Case(
                path,
                file,
                data,
                form,
                _flat(tree),
                {name: [(0, len(data))] for name in _flat(tree)},
            )
            for file, data in found.items()
        ]
    else:
        treepack.save(path, tree, **form.options)
    leaves = _flat(tree)
    files = {it: it.read_bytes() for it in (sorted(path.iterdir()) if path.is_dir() else [path])}
    places = {file: _places(data) for file, data in files.items() if file.name != MANIFEST}
    for file in files.keys() - places.keys():  # the leaves in the manifest have one checksum
        shards = {name for each in places.values() for name in each}
        places[file] = {name: [(0, len(files[file]))] for name in leaves.keys() - shards}
    return [Case(path, file, data, form, leaves, places[file]) for file, data in files.items()]


@pytest.mark.parametrize("name", FORMS)
def test_leaves_without_damage_are_salvaged(in_memory: Path, name: str) -> None:
    for case in _cases(in_memory, name):
        size = len(case.data)
        some = random.Random(name).sample(range(size), 10)
        flips = [0, 2, 3, 20, *some, *range(size - 100, size, 17), size - 13, size - 1]
        zeros = [0, size // 2, (size - 20) // SECTOR * SECTOR, max(0, size - SECTOR - 100)]
        for damaged in _damages(case.data, flips, zeros):
            _check(case, damaged)


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_an_open_file_loads_what_is_whole_into_a_template(in_memory: Path, name: str) -> None:
    path, file, data, _, leaves, _ = _cases(in_memory, name)[0]
    key = data.index(b"l0")
    file.write_bytes(_changed(data, key, key + 1, "flip"))
    zeros = _tree(FORMS[name].size)
    zeros["layers"] = {
        key: {"w": it["w"] * 0, "b": it["b"] * 0} for key, it in zeros["layers"].items()
    }
    with treepack.open(path) as opened:
        found, report = opened.load(zeros, on_corrupt="skip", return_report=True)
        assert report.corrupt == treepack.verify(path).corrupt == ["layers/l0/w"]
        for path, leaf in _flat(found).items():
            assert _is_same(leaf, 0 * leaves[path] if path in report.corrupt else leaves[path])
        # Its key is in the index, too.
        assert _is_same(opened["layers"].load()["l0"]["w"], leaves["layers/l0/w"])


def test_an_open_file_object_loads_what_is_whole(tmp_path: Path) -> None:
    [(_, _, data, _, _, _)] = _cases(tmp_path, "plain")
    with treepack.open(io.BytesIO(data)) as opened:
        assert opened.load(on_corrupt="skip")["step"] == 7


@pytest.mark.campaign
@pytest.mark.parametrize("name", FORMS)
def test_leaves_without_damage_are_salvaged_wherever_it_is(in_memory: Path, name: str) -> None:
    for case in _cases(in_memory, name):
        size = len(case.data)
        few = range(0, size, tiers.either(1, 5, nightly=1) if size < 1 << 14 else 4001)
        flips = sorted({*few, *range(20), *range(size - 200, size)})
        zeros = range(0, size, SECTOR if size < 1 << 14 else 21 * SECTOR)
        for damaged in _damages(case.data, flips, zeros):
            _check(case, damaged)


@pytest.mark.parametrize("nbytes", [8, 1 << 18, 1 << 20])
@pytest.mark.parametrize("name", ["", "model.msgpack"])
def test_headers_of_other_writers_are_no_damage(tmp_path: Path, nbytes: int, name: str) -> None:
    """A time stamp and a name are in most streams; the content may be of more than a block."""
    tree = {"w": np.zeros(nbytes, np.uint8)}
    path = tmp_path / "model.gz"
    data = serialization.to_bytes(tree)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(name, "wb", fileobj=raw, mtime=1_700_000_000) as file,
    ):
        file.write(data)
    found = treepack.verify(path)
    assert found.ok, found.damage
    with treepack.open(path, salvage=True) as opened:
        np.testing.assert_array_equal(opened["w"][...], tree["w"])


def test_leaves_after_a_damaged_record_are_not_misread(tmp_path: Path) -> None:
    """The last four bytes of the record stand as two pairs of numbers after it."""
    treepack.save(tmp_path / "model", {"a": 1})
    data = (tmp_path / "model").read_bytes()
    at = data.index(b"__treepack__") + len(b"__treepack__")
    length = data[at + 1] - 4  # of a bin 8
    damaged = bytearray(b"\x82\xa1b\x83" + data[1 : at + 1] + bytes([length]) + data[at + 2 :])
    damaged[at + 30] ^= 1  # in the record, which is not believed then
    for salvage in (False, True):
        with treepack.open(bytes(damaged), salvage=salvage) as file:
            assert [path for path, _ in file.leaves()] == ["b/a", "b/__treepack__", "b/101", "107"]
