"""Sharded checkpoints whose checksums are right, and whose manifests and files are not."""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import treepack
import treepack._core as core
from hostile.changes import (
    changed,
    packed,
    unpacked,
    with_change,
    with_changed_bytes,
    with_other_bytes,
)
from hostile.files import KEY
from treepack import serialization
from treepack._src import paths as _paths
from treepack._src.layouts.layout import Encoding
from treepack._src.options import Compress
from treepack._src.saving.sharded import _array_paths
from treepack._src.sharded.files import MANIFEST
from trees import record_of

MARK = b"\x93treepm\n"
GZIP = b"\x1f\x8b"
NUMBERS = b"\xc1t"

# Leaves that uses select.
NAMES = ["params/w", "host", "key", "none such", "."]

Files = dict[str, bytes]


class Directories:
    """Makes cases."""

    def __init__(self) -> None:
        ways: list[Compress] = [False, False, True, "numbers"]
        self._made = [made(compress) for compress in ways]
        self._template = loaded(self._made[0])

    def case(self, rng: random.Random) -> tuple[Any, Files]:
        """Returns a template, and the files of a hostile directory."""
        return self._template, hostile(rng.choice(self._made), rng)


def hostile_record(record: dict[str, Any], rng: random.Random) -> Any:
    """Returns another record of a structure, or one with another index."""
    if "index" in record and rng.random() < 0.6:
        index = unpacked(record["index"])
        if isinstance(index, dict) and "outline" in index and rng.random() < 0.3:
            index = {**index, "outline": with_changed_bytes(index["outline"], rng)}
        else:
            index = with_change(index, rng)
        return {**record, "index": packed(index)}
    return with_change(record, rng)


def hostile_file(data: bytes, rng: random.Random) -> bytes:
    """Returns a file with another record, whose checksum is right."""
    old = new = record_of(data)
    after = data[data.rindex(old) + len(old) : -24]
    while new == old:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            new = packed(hostile_record(unpacked(old), rng))
    sums = rng.choice([after, after, b"", after[4:], after + bytes(4)])
    footer = struct.pack("<QII", len(new), len(sums) // 4, zlib.crc32(new + sums))
    place = data.rindex(KEY) + len(KEY)
    return data[:place] + packed(new + sums + footer + b"\x93treepk\n")


def hostile_manifest(data: bytes, rng: random.Random) -> bytes:
    """Returns another manifest, whose checksum is right."""
    record = unpacked(data[: -len(MARK) - 4])
    if rng.random() < 0.6:
        return sealed_manifest(packed(with_change(record, rng)))
    skeleton = zlib.decompress(record["skeleton"])
    if rng.random() < 0.7:
        skeleton = hostile_file(skeleton, rng)
    else:
        found = changed(skeleton, rng)
        skeleton = found if isinstance(found, bytes) else packed(found)
    return sealed_manifest(packed({**record, "skeleton": zlib.compress(skeleton)}))


def sealed_manifest(record: bytes) -> bytes:
    """Returns a manifest with the checksum of its record."""
    return record + struct.pack("<I", zlib.crc32(record)) + MARK


def _inside(data: bytes) -> bytes:
    if data[:2] == GZIP:
        return gzip.decompress(data)
    return serialization.decompress_bytes(data) if data[:2] == NUMBERS else data


def resealed(files: Files) -> Files:
    """Lets a manifest expect the files that there are."""
    read = core.Manifest.decode(files[MANIFEST])
    found = []
    for name, _, _ in read.files:
        inside = _inside(files[name])
        length, sums, _ = struct.unpack("<QII", inside[-24:-8])
        found.append((name, len(files[name]), zlib.crc32(inside[-24 - 4 * sums - length :])))
    return {**files, MANIFEST: read.with_files(found)}


def hostile(files: Files, rng: random.Random) -> Files:
    """Changes a checkpoint."""
    choice = rng.random()
    if choice < 0.5:
        return {**files, MANIFEST: hostile_manifest(files[MANIFEST], rng)}
    name = rng.choice(sorted(files.keys() - {MANIFEST}))
    if choice < 0.55:
        return {it: data for it, data in files.items() if it != name}
    if choice < 0.65:
        name = rng.choice(sorted(files))
        return {**files, name: with_other_bytes(files[name], rng)}
    data = files[name]
    changed = hostile_file(_inside(data), rng)
    if data[:2] == GZIP:
        changed = gzip.compress(changed, 1, mtime=0)
    elif data[:2] == NUMBERS:
        changed = serialization.compress_bytes(changed, compress="numbers")
    return resealed({**files, name: changed})


def made(compress: Compress) -> Files:
    """Returns the files of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made")
        make(path, compress=compress)
        return {it.name: it.read_bytes() for it in sorted(path.iterdir())}


def loaded(files: Files) -> Any:
    """Returns the tree of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        return treepack.load(folder, mmap=False)


def make(path: Path, *, compress: Compress) -> None:
    """Saves a checkpoint of all kinds of leaves, as two processes do it that have half each."""
    array = jnp.arange(48.0).reshape(8, 6)
    tree = {
        "params": {"w": array, "b": (jnp.ones(6, jnp.bfloat16), array[0, 0])},
        "host": np.arange(500, dtype=np.int16),
        "key": jax.random.split(jax.random.key(7), 4),
        "layers": [array * k for k in range(3)],
        "rest": {"step": 3, "none": None, "text": "x" * 50, "empty": {}, "bytes": b"abc", "z": 2j},
    }
    whole = Encoding(align=1, index=True, gaps=True).tree(tree, {"step": 3})
    parts: list[Any] = [{}, {}]
    grids = []
    for leaf in whole.gaps:
        is_host = isinstance(leaf, np.ndarray)
        count = 1 if is_host or not leaf.shape or leaf.shape[0] % 2 else 2
        counts = [count, *[1] * leaf.ndim][: leaf.ndim]
        grids.append((counts, [*range(count)], is_host))
    splits = [(counts, at, 1, is_host) for at, (counts, _, is_host) in enumerate(grids)]
    holders = [[[number] for number in files] for _, files, _ in grids]
    draft = core.Manifest.planned(whole, core.ShardPlan(splits, holders))
    names = _array_paths(draft, len(grids))
    for keys, leaf, (counts, files, is_host) in zip(names, whole.gaps, grids, strict=True):
        cells = core.ShardGrid(leaf.shape, counts)
        for cell, number in enumerate(files):
            index = [slice(*ends) for ends in cells.bounds(cell)]
            name = [] if is_host else [cells.name(cell)]
            _paths.put(parts[number], [*keys, *name], np.asarray(leaf)[(*index, ...)])
    path.mkdir()
    (path / MANIFEST).write_bytes(draft.with_files(draft.files))
    for number, part in enumerate(parts):
        treepack.save(path / f"{number}.treepack", part, compress=compress, durable=False)
    files = [(f"{number}.treepack", 0, 0) for number in range(2)]
    (path / MANIFEST).write_bytes(draft.with_files(files))
    found = resealed({it.name: it.read_bytes() for it in path.iterdir()})
    (path / MANIFEST).write_bytes(found[MANIFEST])
