"""Of damaged files, exactly the leaves whose bytes are whole are had, whatever else is damaged.

Bytes are flipped and sectors zeroed, and the index of the undamaged file tells which leaves are
expected: those whose checksums cover no byte that has changed. Other values are only had of leaves
that are named as not verified, or that lie in a format without checksums.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import msgpack
import numpy as np
import pytest

import tiers
import treepack
import treepack._core as core
from commands import call
from treepack import serialization
from treepack._src.formats.safetensors.header import INDEX
from treepack._src.readers.reader import Reader
from treepack._src.saving import sharded
from treepack._src.sharded.files import MANIFEST
from trees import altered, assert_same

SECTOR = 512


class Form(NamedTuple):
    """A form of files.

    Attributes:
      options: The options of the save.
      size: The size of the arrays.
      is_split: Whether one array has shards on several devices.
      is_step: Whether it is one of a run.
      is_patch: Whether a base is beside it.
      suffix: The suffix of a format of arrays.
      is_summed: Whether it has checksums.
      each: Of the bytes beside leaves, each so many-th is flipped in `make test-all`; fewer in
        forms whose parts other forms have, too.
    """

    options: dict[str, Any]
    size: int = 70
    is_split: bool = False
    is_step: bool = False
    is_patch: bool = False
    suffix: str = ""

    is_summed: bool = True
    each: int = 3


FORMS = {
    "plain": Form({}),
    "sharded": Form({"sharded": True}, each=9),
    "gzip": Form({"compress": True}),
    "numbers": Form({"compress": "numbers"}),
    "gzip, blocks": Form({"compress": True}, 100_000),
    "numbers, blocks": Form({"compress": "numbers"}, 100_000),
    "split": Form({"sharded": True}, is_split=True, each=5),
    "split, gzip": Form({"sharded": True, "compress": True}, is_split=True, each=9),
    "step": Form({}, is_step=True, each=9),
    "step, sharded": Form({"sharded": True}, is_step=True, each=9),
    "step, linked": Form({"unchanged": "link"}, is_step=True, each=9),
    "patch": Form({}, 300, is_patch=True),
    "patch, gzip": Form({"compress": True}, 300, is_patch=True, each=9),
    "safetensors": Form({}, suffix=".safetensors", is_summed=False),
    "safetensors, several": Form({"format": "safetensors", "max_shard_size": 700}, is_summed=False),
    "npz": Form({}, suffix=".npz"),
    "npz, compressed": Form({"compress": True}, suffix=".npz", each=9),
}


def _tree(size: int, *, is_split: bool = False, are_arrays: bool = False) -> Any:
    if is_split:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), "x")
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        return {**_tree(size), "split": jax.device_put(np.arange(800, dtype=np.int32), split)}
    noise = np.random.default_rng(0).integers(0, 256, (6, size), np.uint8)
    layers = {f"l{at}": {"w": row, "b": np.arange(3.0) + at} for at, row in enumerate(noise)}
    tree = {"layers": layers, "end": np.arange(90)}
    return tree if are_arrays else {**tree, "step": 7, "list": [1, (2.5, None, "x")]}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    nodes = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = {}
    for key, node in nodes:
        if isinstance(node, (dict, list, tuple)):
            found |= _flat(node, f"{prefix}{key}/")
        else:
            found[f"{prefix}{key}"] = node
    return found


Ranges = dict[str, list[tuple[int, int]]]


class Case(NamedTuple):
    """A file of a checkpoint, which is damaged in many ways.

    Attributes:
      checkpoint: The path of the checkpoint.
      file: The file.
      data: Its bytes.
      form: Its form.
      leaves: The leaves of the checkpoint.
      places: The ranges of the file that each leaf in it needs.
      values: The ranges of the leaves' own bytes, as far as the file is not compressed.
    """

    checkpoint: Path
    file: Path
    data: bytes
    form: Form
    leaves: dict[str, Any]
    places: Ranges
    values: Ranges = {}  # noqa: RUF012


def _places(data: bytes) -> tuple[Ranges, Ranges]:
    """Returns the ranges of a file that each leaf and its checksum have, and those of leaves."""
    content = core.Content.lent(data)
    indexed = content.indexed()
    with treepack.open(data) as file:
        catalog = file._catalog
        leaves = {path: catalog.leaf(value) for path, value in catalog.leaves(0)}
    places: Ranges = {}
    values: Ranges = {}
    for path, (number, _, _, end, begin) in leaves.items():
        name = path.split("/[")[0]  # of a shard
        if core.is_compressed(content):
            found = [(10, len(data)) if indexed is None else indexed.stored(begin, end)]
        else:
            checksum = len(data) - 24 - 4 * (len(leaves) + 1) + 4 * number
            found = [(begin, end), (checksum, checksum + 4)]
            values.setdefault(name, []).append((begin, end))
        places.setdefault(name, []).extend(found)
    return places, values


def _places_of_patch(patch: bytes, encoding: bytes) -> Ranges:
    """Returns the ranges of a patch that each leaf and its checksum have.

    A leaf needs the differences that make its bytes, and the record, which names the base.
    """
    record = len(patch) - 16 - int.from_bytes(patch[-12:-8], "little")
    lengths = msgpack.unpackb(patch[record:-16])["lengths"]
    pieces, at, place = [], 11, 0
    for before, length, replaced in [*lengths, [len(patch), 0, 0]]:
        pieces += [(place, place + before, at, 0)]
        place, at = place + before, at + before
        pieces += [(place, place + replaced, at, length)]
        place, at = place + replaced, at + length
    return {
        name: [
            (record, len(patch)),
            *(
                (at, at + length)
                if length
                else (at + max(first - start, 0), at + min(last, stop) - start)
                for first, last in ranges
                for start, stop, at, length in pieces
                if start < last and first < stop
            ),
        ]
        for name, ranges in _places(encoding)[0].items()
    }


def _places_of_safetensors(data: bytes, names: Iterable[str]) -> tuple[Ranges, Ranges]:
    """A directory is opened by the headers of all its files."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    values = {
        name.replace(".", "/"): [(start + first, start + last)]
        for name, entry in header.items()
        for first, last in [entry["data_offsets"]]
    }
    return {name: [(0, start), *values.get(name, [])] for name in names}, values


def _places_of_npz(data: bytes) -> tuple[Ranges, Ranges]:
    """Each array has a member, and an entry in the directory of the archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        begins = [member.header_offset for member in members]
        ends = [*begins[1:], archive.start_dir]
        entries = [46 + len(member.filename) + len(member.extra) for member in members]
    names = [member.filename.removesuffix(".npy").replace(".", "/") for member in members]
    values = {
        name: [place] for name, *place in zip(names, begins, ends, strict=True) for place in [place]
    }
    found = {name: [(first, last)] for name, [[first, last]] in values.items()}
    starts = itertools.accumulate(entries, initial=ends[-1])
    places = {
        name: [*ranges, (start, start + length)]
        for (name, ranges), start, length in zip(found.items(), starts, entries, strict=False)
    }
    return places, found


def _changed(data: bytes, start: int, stop: int, how: str) -> bytes:
    damaged = bytearray(data)
    for at in range(start, min(stop, len(data))):
        damaged[at] = 0 if how == "zero" else damaged[at] ^ (1 << at % 8)
    return bytes(damaged)


def _structure(case: Case) -> set[int]:
    """Returns bytes of each kind.

    All of the ends of the file, of each leaf the first and last byte and one between, and some of
    the rest.
    """
    size = len(case.data)
    inside = {at for ranges in case.values.values() for pair in ranges for at in range(*pair)}
    some = range(0, size, case.form.each if size < 1 << 14 else 40_009)
    found = {*range(20), *range(size - 24, size)} | {at for at in some if at not in inside}
    if size >= 1 << 14:
        found |= {*range(size - 200, size, 5)}
    for ranges in case.places.values():
        found |= {at for first, last in ranges for at in (first, (first + last) // 2, last - 1)}
    return found


def _is_same_content(data: bytes, other: bytes) -> bool:
    """Returns whether stock gzip reads the same, as where only the time stamp changed."""
    try:
        return gzip.decompress(data) == gzip.decompress(other)
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

    way: str
    leaves: dict[str, Any]
    unverified: Collection[str] = ()
    left_out: Collection[str] = ()


def _opened(
    case: Case, verified: treepack.Verification, *, by_names: bool
) -> tuple[bool, list[str], list[Had]]:
    """Returns whether the file is damaged, its leaves that are not verified, and what is had."""
    named, listed = {}, {}
    with treepack.open(case.checkpoint, salvage=True) as file:
        for name in case.leaves if by_names else ():
            with contextlib.suppress(KeyError, ValueError):
                if not isinstance(node := file[name], treepack.Tree):  # by a damaged name
                    named[name] = _read(node)
        for name, leaf in file.leaves():
            with contextlib.suppress(ValueError):  # a compressed array is checked when it is read
                listed[name] = _read(leaf)
        loaded = _flat(file.load())
        unverified = file.unverified
        if file.damage is not None and case.form.is_summed:
            assert verified.unchecked == [it for it in unverified if it not in verified.corrupt]
        assert not unverified or unverified[0] in (file.damage or "")
        is_damaged = file.damage is not None or not verified.ok
    had = [Had("list", listed, unverified), Had("open", loaded, unverified)]
    named_too = [Had("names", named, unverified)] if by_names else []
    return is_damaged, unverified, had + named_too


def _read(leaf: Any) -> Any:
    return leaf[...] if isinstance(leaf, treepack.LazyArray) else leaf


def _loaded(case: Case, unverified: list[str]) -> list[Had]:
    if not case.form.is_summed:
        return [Had("load", _flat(treepack.load(case.checkpoint)))]
    found, report = treepack.load(case.checkpoint, on_corrupt="skip", return_report=True)
    had = Had("skip", _flat(found), report.unverified)
    found = treepack.load(case.checkpoint, on_corrupt="skip", verify=True)
    return [had, Had("verify", _flat(found), left_out=unverified)]


def _by_command(case: Case, unverified: list[str], is_damaged: bool) -> list[Had]:
    new = case.checkpoint.with_name("salvaged.treepack")
    new.unlink(missing_ok=True)
    told = call("salvage", str(case.checkpoint), str(new), status=int(is_damaged))
    if not new.exists():
        return [Had("command", {})]
    assert treepack.verify(new).ok
    assert not unverified or "not verified" in told
    return [Had("command", _flat(treepack.load(new)), unverified)]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, jax.Array) or isinstance(other, jax.Array):
        one, other = np.asarray(one), np.asarray(other)
    if not isinstance(one, np.ndarray) or other is None:
        return type(one) is type(other) and bool(one == other)
    is_same_kind = (one.dtype, one.shape) == (other.dtype, other.shape)
    return is_same_kind and one.tobytes() == other.tobytes()


def _hit(changed: np.ndarray, places: Ranges) -> set[str]:
    """Returns the leaves with one of the changed bytes."""

    def has(first: int, last: int) -> bool:
        return bool(np.searchsorted(changed, first) < np.searchsorted(changed, last))

    return {name for name, ranges in places.items() if any(has(*pair) for pair in ranges)}


def _check(case: Case, start: int, stop: int, how: str, *, by_all_ways: bool) -> None:
    """Compares the leaves that are had of a damaged file with the ones that are expected."""
    data = _changed(case.data, start, stop, how)
    if case.data == data:
        return
    both = (np.frombuffer(each, np.uint8)[start:stop] for each in (case.data, data))
    changed = start + np.flatnonzero(np.not_equal(*both))
    leaves, form = case.leaves, case.form
    expected = leaves.keys() - _hit(changed, case.places)  # other files have some
    case.file.write_bytes(data)
    verified = treepack.verify(case.checkpoint)
    had: list[Had] = []
    try:
        is_damaged, unverified, had = _opened(case, verified, by_names=by_all_ways)
        had += _loaded(case, unverified)
        if by_all_ways:
            had += _by_command(case, unverified, is_damaged)
    except treepack.TreepackError:
        if expected:
            raise
        is_damaged = True
    is_noticed = is_damaged or bool(verified.unchecked)
    if not is_noticed and form.options.get("compress") is True and not form.is_patch:
        is_noticed = _is_same_content(data, case.data) or bool(form.suffix)
    assert is_noticed or _has_leaves(case.checkpoint, leaves), changed
    # Without checksums, changed bytes are changed values, and changed names other names.
    may_differ = set() if form.is_summed else _hit(changed, case.values)
    for way, found, not_verified, left_out in had:
        wrong = {name for name, leaf in found.items() if not _is_same(leaf, leaves.get(name))}
        lost = expected - (found.keys() - wrong) - {*left_out}
        assert not lost, (way, changed, lost, wrong)
        above = tuple(f"{name}/" for name in not_verified)  # of lists
        wrong = {name for name in wrong - may_differ if not f"{name}/".startswith(above)}
        if not form.is_summed:
            wrong &= leaves.keys()
        assert not wrong, (way, changed, wrong)
    case.file.write_bytes(case.data)


def _campaign(case: Case, flips: Iterable[int], zeros: Iterable[int]) -> None:
    """Flips a bit of each of some bytes, and zeroes sectors; the shell salvages some, too."""
    for number, at in enumerate(sorted({*flips})):
        _check(case, at, at + 1, "flip", by_all_ways=number % 16 == 0)
    for at in zeros:
        _check(case, at, at + SECTOR, "zero", by_all_ways=True)
    first = 8 * SECTOR if len(case.data) > 9 * SECTOR else 10
    _check(case, 0, first, "zero", by_all_ways=True)


def _cases(folder: Path, name: str) -> list[Case]:
    """Saves a tree in a form; returns a case for each of its files."""
    form = FORMS[name]
    are_arrays = not form.is_summed or form.suffix == ".npz"
    tree = _tree(form.size, is_split=form.is_split, are_arrays=are_arrays)
    path = folder / f"saved{form.suffix}"
    places_of: Callable[[bytes], tuple[Ranges, Ranges]] = _places
    if form.is_step:
        run = treepack.Series(folder, **form.options)
        with mock.patch.object(sharded, "BLOCK_BYTES", 300):  # arrays are in several blocks
            if form.options.get("unchanged") == "link":
                run.save(2, {**tree, "end": tree["end"] + 1})
            run.save(3, tree)
        path = folder / "step_3"
    elif form.is_patch:
        treepack.save(folder / "base", tree)
        tree = {**tree, "layers": {**tree["layers"], "l0": tree["layers"]["l1"]}}
        treepack.save(path, tree, base=folder / "base", **form.options)
        base, patch = (folder / "base").read_bytes(), path.read_bytes()
        if form.options:
            places = _everywhere(_flat(tree), patch)  # of one block
        else:
            treepack.save(folder / "whole", tree)
            places = _places_of_patch(patch, (folder / "whole").read_bytes())
        return [
            Case(path, path, patch, form, _flat(tree), places),
            Case(path, folder / "base", base, form, _flat(tree), *_places(base)),
        ]
    elif form.suffix == ".npz":
        places_of = _places_of_npz
        arrays = {name.replace("/", "."): leaf for name, leaf in _flat(tree).items()}
        (np.savez_compressed if form.options else np.savez)(path, **arrays)
    else:
        treepack.save(path, tree, **form.options)
    leaves = _flat(tree)
    if not form.is_summed:
        places_of = functools.partial(_places_of_safetensors, names=leaves)
    files = {it: it.read_bytes() for it in (sorted(path.iterdir()) if path.is_dir() else [path])}
    joining = [file for file in files if file.name in (MANIFEST, INDEX)]
    found = {file: places_of(data) for file, data in files.items() if file not in joining}
    for file in joining:  # the leaves in the manifest have one checksum
        shards = {name for places, _ in found.values() for name in places if form.is_summed}
        found[file] = _everywhere(leaves.keys() - shards, files[file]), {}
    return [Case(path, file, data, form, leaves, *found[file]) for file, data in files.items()]


def _everywhere(names: Iterable[str], data: bytes) -> Ranges:
    return {name: [(0, len(data))] for name in names}


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", FORMS)
def test_leaves_without_damage_are_salvaged(in_memory: Path, name: str) -> None:
    for case in _cases(in_memory, name):
        size = len(case.data)
        some = random.Random(name).sample(range(size), 10)
        flips = [0, 2, 3, 20, *some, *range(size - 100, size, 17), size - 13, size - 1]
        zeros = [0, size // 2, (size - 20) // SECTOR * SECTOR, max(0, size - SECTOR - 100)]
        _campaign(case, flips, zeros)


@pytest.mark.campaign
@pytest.mark.parametrize("name", tiers.some(FORMS))
def test_leaves_without_damage_are_salvaged_wherever_it_is(in_memory: Path, name: str) -> None:
    """All sectors are zeroed, and at night all bytes of small files flipped."""
    for case in _cases(in_memory, name):
        size = len(case.data)
        is_small = size < 1 << 14
        every = range(size) if is_small else range(0, size, 4001)
        flips = tiers.either([], _structure(case), nightly=every)
        apart = (1 if is_small else 128) * tiers.either(1, 3, nightly=1)
        _campaign(case, flips, range(0, size, apart * SECTOR))


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_an_open_file_loads_what_is_whole_into_a_template(in_memory: Path, name: str) -> None:
    path, file, data, _, leaves, *_ = _cases(in_memory, name)[0]
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


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_a_file_that_is_open_for_salvage_loads_no_damaged_leaf(in_memory: Path, name: str) -> None:
    tree = {"layers": [{"w": np.full(600, float(i))} for i in range(3)], "b": np.ones(3)}
    path = in_memory / "model"
    treepack.save(path, tree, sharded=name == "sharded")
    [file] = [it for it in path.iterdir() if it.name != MANIFEST] if path.is_dir() else [path]
    data = file.read_bytes()
    at = data.index(tree["layers"][1]["w"].tobytes())
    file.write_bytes(_changed(data, at, at + 9, "flip"))
    zeros = jax.tree.map(np.zeros_like, tree)
    with treepack.open(path, salvage=True) as opened:
        for found in (opened.load(), opened.to_dict(), opened.load(select=["layers", "b"])):
            assert list(found["layers"]) == ["0", "2"]
            assert_same(found["layers"]["2"], tree["layers"][2])
        assert_same(opened["layers"].load(), found["layers"])
        with pytest.raises(
            treepack.CorruptionError, match='layers/1/w is damaged: pass missing="ta'
        ):
            opened.load(zeros)
        kept, report = opened.load(zeros, missing="target", return_report=True)
        assert report.corrupt == report.kept == ["layers/1/w"]
        assert_same(kept["layers"], [tree["layers"][0], zeros["layers"][1], tree["layers"][2]])
        with pytest.raises(treepack.CorruptionError):
            opened.load(verify=True)
        new = opened.load({"v": zeros["b"]}, mapping={"v": "b"})
        assert_same(new, {"v": tree["b"]})
        with pytest.raises(treepack.CorruptionError, match="v is damaged"):
            opened.load({"v": zeros["layers"][0]["w"]}, mapping={"v": "layers/1/w"})


def test_an_open_file_object_loads_what_is_whole(tmp_path: Path) -> None:
    [case] = _cases(tmp_path, "plain")
    data = case.data
    with treepack.open(io.BytesIO(data)) as opened:
        assert opened.load(on_corrupt="skip")["step"] == 7


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


@pytest.mark.parametrize("compress", [False, True, "numbers"])
def test_a_patch_without_its_record_is_read_with_the_base(in_memory: Path, compress: Any) -> None:
    """Headers show the differences; leaves of undamaged compressed blocks are loaded."""
    rng = np.random.default_rng(0)
    base = {f"w{at}": rng.integers(0, 1 << 30, 120_000, np.int32) for at in range(8)}
    tree = {name: row + rng.integers(0, 256, len(row), np.int32) for name, row in base.items()}
    tree["new"] = rng.integers(0, 256, 9000, np.uint8)
    treepack.save(in_memory / "base", base)
    path = in_memory / "patch"
    treepack.save(path, tree, base=base, compress=compress)
    whole = path.read_bytes()
    for start, stop, least in ((len(whole) - 40, len(whole), 6), (200_000, 200_001, 5)):
        path.write_bytes(_changed(whole, start, stop, "zero"))
        with pytest.raises(treepack.TreepackError):
            treepack.load(path, base=base)
        found = treepack.load(path, base=base, on_corrupt="skip")
        assert len(found) >= least, found.keys()
        for name, row in found.items():
            np.testing.assert_array_equal(row, tree[name])


def test_the_error_for_a_patch_without_its_record_has_the_way(in_memory: Path) -> None:
    tree = {"w": np.arange(300.0)}
    treepack.save(in_memory / "base", tree)
    path = in_memory / "patch"
    treepack.save(path, tree, base=in_memory / "base")
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    cure = "pass base= to load, with on_corrupt='skip'"
    with pytest.raises(treepack.DecodeError, match=cure):
        treepack.open(path, salvage=True)
    with pytest.raises(treepack.DecodeError, match=cure):
        treepack.load(path, on_corrupt="skip")
    found = treepack.load(path, base=in_memory / "base", on_corrupt="skip")
    np.testing.assert_array_equal(found["w"], tree["w"])


def test_another_base_is_no_damage(in_memory: Path) -> None:
    tree = {"w": np.arange(300.0), "b": np.arange(400.0)}
    treepack.save(in_memory / "base", tree)
    treepack.save(in_memory / "patch", {**tree, "b": tree["b"] + 1}, base=in_memory / "base")
    other = {name: leaf + 7 for name, leaf in tree.items()}
    for base in (other, {"x": tree["w"]}):
        with pytest.raises(treepack.BaseMismatchError):
            treepack.load(in_memory / "patch", base=base, on_corrupt="skip")


@pytest.mark.parametrize("at", [-8, -1])
def test_damage_at_the_end_of_a_compressed_base_is_found(in_memory: Path, at: int) -> None:
    """In the checksum and the size of the gzip, which no array needs."""
    tree, base = {"w": np.arange(300.0)}, in_memory / "base"
    treepack.save(base, tree, compress=True)
    treepack.save(in_memory / "patch", {"w": tree["w"] + 1}, base=base)
    data = bytearray(base.read_bytes())
    data[at] ^= 1
    base.write_bytes(data)
    with pytest.raises(treepack.BaseMismatchError, match="the base cannot be used"):
        treepack.load(in_memory / "patch")
    found = treepack.verify(in_memory / "patch")
    assert not found.ok
    assert "the base cannot be used" in str(found.damage)
    with treepack.open(in_memory / "patch", salvage=True) as file:
        assert "the base cannot be used" in str(file.damage)
        np.testing.assert_array_equal(file["w"], tree["w"] + 1)


@pytest.mark.parametrize("suffix", [".treepack", ".safetensors"])
def test_damaged_metadata_are_left_out(tmp_path: Path, suffix: str) -> None:
    tree = {"v": np.arange(4.0), "w": np.ones(3)}
    data = treepack.dumps(tree, metadata={"z": 1 + 2j})
    parts = struct.pack(">BdBd", 0xCB, 1, 0xCB, 2)
    text = b"\x91\xd9\x10" + b"x" * 16
    (tmp_path / "damaged").write_bytes(altered(data, b"\x92" + parts, text))
    target = tmp_path / f"rest{suffix}"
    printed = call("salvage", str(tmp_path / "damaged"), str(target), status=1)
    assert "left out the metadata: " in printed
    assert_same(treepack.load(target), tree)
    with treepack.open(target) as file:
        assert not file.metadata


def test_a_leaf_that_is_left_out_is_not_also_unverified(tmp_path: Path) -> None:
    """As of an array with shards in two files, each damaged in its way."""
    path = tmp_path / "saved"
    treepack.save(path, {"a": np.arange(100), "b": np.arange(100)})
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(100).tobytes()) + 9] ^= 1
    path.write_bytes(data)
    unverified = mock.patch.object(Reader, "unverified", lambda self: self.catalog.leaf_values(0))
    with unverified:
        text = call("salvage", str(path), str(tmp_path / "copy"), status=1)
    assert "left out a damaged leaf: a" in text
    assert "\nb is not verified" in text


def test_arrays_of_which_a_manifest_has_no_shards_are_corrupt(tmp_path: Path) -> None:
    """As one has whose record is forged: its checksum is right."""
    tree = {"a": np.arange(600.0), "small": np.arange(6.0), "b": np.ones(600)}
    treepack.save(tmp_path / "model", tree, sharded=True)
    manifest = tmp_path / "model" / MANIFEST
    data = manifest.read_bytes()
    body = data[:-12].replace(b"\xa6before\x17", b"\xa6before\x16", 1)
    assert body != data[:-12]
    manifest.write_bytes(body + struct.pack("<I", zlib.crc32(body)) + data[-8:])
    assert treepack.verify(tmp_path / "model").corrupt == ["a", "b"]
    call("salvage", str(tmp_path / "model"), str(tmp_path / "rest.treepack"), status=1)
    assert_same(treepack.load(tmp_path / "rest.treepack"), {"small": tree["small"]})
    loaded = treepack.load(tmp_path / "model", on_corrupt="skip")
    assert_same(loaded, {"small": tree["small"]})
