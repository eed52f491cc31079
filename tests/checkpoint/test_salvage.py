"""All leaves of damaged files whose bytes are whole are had, whatever else is damaged.

Bytes are flipped and sectors zeroed, and the index of the undamaged file tells which leaves are
expected: those whose checksums cover no byte that has changed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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

    With `is_exact`, all leaves have checksums.
    """

    options: dict[str, Any]
    size: int
    is_exact: bool


FORMS = {
    "plain": Form({}, 70, True),
    "sharded": Form({"sharded": True}, 70, True),
    "gzip": Form({"compress": True}, 70, False),
    "numbers": Form({"compress": "numbers"}, 70, False),
    "gzip, blocks": Form({"compress": True}, 100_000, True),
    "numbers, blocks": Form({"compress": "numbers"}, 100_000, True),
}


def _tree(size: int) -> Any:
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
        if content.is_compressed():
            places[path] = [(10, len(data)) if indexed is None else indexed.stored(begin, end)]
        else:
            checksum = len(data) - 24 - 4 * (len(leaves) + 1) + 4 * number
            places[path] = [(begin, end), (checksum, checksum + 4)]
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
    with treepack.open(path, salvage=True) as file:
        return file.damage is not None or not treepack.verify(path).ok


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


def _opened(path: Path, names: Iterable[str], _: bool) -> dict[str, Any]:
    found = {}
    with treepack.open(path, salvage=True) as file:
        for name in names:
            with contextlib.suppress(KeyError, ValueError):
                found[name] = _read(file[name])
    return found


def _listed(path: Path, _: Iterable[str], __: bool) -> dict[str, Any]:
    found = {}
    with treepack.open(path, salvage=True) as file:
        for name, leaf in file.leaves():
            with contextlib.suppress(ValueError):  # a compressed array is checked when it is read
                found[name] = _read(leaf)
    return found


def _read(leaf: Any) -> Any:
    return leaf[...] if isinstance(leaf, treepack.LazyArray) else leaf


def _skipped(path: Path, _: Iterable[str], __: bool) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _flat(treepack.load(path, on_corrupt="skip"))


def _by_command(path: Path, _: Iterable[str], is_damaged: bool) -> dict[str, Any]:
    new = path.with_name("salvaged.treepack")
    call("salvage", str(path), str(new), status=int(is_damaged))
    assert treepack.verify(new).ok
    return _flat(treepack.load(new))


WAYS: list[Callable[[Path, Iterable[str], bool], dict[str, Any]]] = [
    _opened,
    _listed,
    _skipped,
    _by_command,
]


def _is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
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
    path, form, leaves = case.checkpoint, case.form, case.leaves
    changed = np.flatnonzero(np.frombuffer(case.data, np.uint8) != np.frombuffer(data, np.uint8))
    hit = {
        name
        for name, ranges in case.places.items()
        if any(np.any((changed >= first) & (changed < last)) for first, last in ranges)
    }
    expected = leaves.keys() - hit
    # Without the end of its footer, or its index of blocks, the checksums of a file are lost.
    summed = max(stop for ranges in case.places.values() for _, stop in ranges)
    is_exact = form.is_exact and changed[-1] < summed
    case.file.write_bytes(data)
    compress = form.options.get("compress")
    is_whole = {
        None: lambda: False,
        True: lambda: _has_content(data, gzip.decompress(case.data)),
        "numbers": lambda: _has_leaves(path, leaves),
    }
    is_damaged = _is_damaged(path)
    assert is_damaged or is_whole[compress](), changed
    for way in WAYS if expected else []:
        found = way(path, leaves, is_damaged)
        wrong = {name for name, leaf in found.items() if not _is_same(leaf, leaves.get(name))}
        assert expected <= found.keys() - wrong, (way, changed, expected - found.keys(), wrong)
        assert not is_exact or not wrong, (way, changed, wrong)
    case.file.write_bytes(case.data)


def _cases(folder: Path, name: str) -> list[Case]:
    """Saves a tree in a form; returns a case for each of its files with leaves."""
    form = FORMS[name]
    tree = _tree(form.size)
    path = folder / "saved"
    treepack.save(path, tree, **form.options)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [
        Case(path, file, data := file.read_bytes(), form, _flat(tree), _places(data))
        for file in files
        if file.name != MANIFEST
    ]


@pytest.mark.parametrize("name", FORMS)
def test_leaves_without_damage_are_salvaged(in_memory: Path, name: str) -> None:
    for case in _cases(in_memory, name):
        size = len(case.data)
        flips = [0, 2, 3, 20, size // 3, *range(size - 100, size, 17), size - 13, size - 1]
        zeros = [0, size // 2, (size - 20) // SECTOR * SECTOR, max(0, size - SECTOR - 100)]
        for damaged in _damages(case.data, flips, zeros):
            _check(case, damaged)


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_an_open_file_loads_what_is_whole_into_a_template(in_memory: Path, name: str) -> None:
    [(path, file, data, _, leaves, _)] = _cases(in_memory, name)
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
