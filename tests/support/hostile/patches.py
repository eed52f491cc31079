"""Patches with other content or another base, of every form that a base may have."""

from __future__ import annotations

import encodings.cp437  # noqa: F401  # of zipfile, which imports it late
import gzip
import io
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import treepack
from hostile import directories, frames
from hostile.changes import packed, unpacked, with_change, with_changed_bytes, with_other_bytes
from hostile.files import Source, file_of, hostile_file
from treepack import serialization

MARK = b"\x93treepd\n"
BEGIN = b"\x93\xc4\x08" + MARK

# Trees whose arrays change by one.
_NAMES = ["params", "jax", "node", "aligned", "many", "leaf", "named", "odd", "large"]

Base = bytes | dict[str, bytes]
"""A file, or the files of a directory by their names."""


class Patch(NamedTuple):
    """A patch of a file `base` beside it.

    Attributes:
      name: The name of its tree.
      template: Its tree.
      data: The patch.
    """

    name: str
    template: Any
    data: bytes


def _more(leaf: Any) -> Any:
    is_array = isinstance(leaf, (np.ndarray, jax.Array)) and leaf.dtype.kind in "fiu"
    return leaf + 1 if is_array else leaf


class Patches:
    """Makes cases of patches."""

    def __init__(self, sources: dict[str, Source]):
        self._sources = sources
        self._patches = []
        for name in _NAMES:
            tree = jax.tree.map(_more, sources[name].tree)
            self._patches.append(Patch(name, tree, _patch_of(file_of(sources[name].parts), tree)))
        self._directory = directories.made(False)
        arrays = {"w": np.ones((6, 4), np.float32), "b": np.ones(4)}
        with tempfile.TemporaryDirectory() as folder:
            treepack.save(folder, arrays, format="safetensors", max_shard_size=200)
            self._repository = {it.name: it.read_bytes() for it in Path(folder).iterdir()}
            path = Path(folder, "x.safetensors")
            treepack.save(path, arrays)
            self._safetensors = path.read_bytes()
        npz = io.BytesIO()
        np.savez_compressed(npz, **arrays)
        self._npz = npz.getvalue()

    def case(self, rng: random.Random) -> tuple[Patch, Base]:
        """Returns a patch and its base, of which at least one is hostile, or of another form."""
        patch = rng.choice(self._patches)
        source = self._sources[patch.name]
        base: Base = file_of(source.parts)
        choice = rng.random()
        if choice < 0.4:
            return patch._replace(data=_changed(patch.data, rng)), base
        if choice < 0.55:
            base = hostile_file(source.parts, rng)
            try:  # the right patch of a hostile base
                return patch._replace(data=_patch_of(base, patch.template)), base
            except (treepack.TreepackError, OSError):
                return patch, base
        forms: list[Callable[[], Base]] = [
            lambda: with_other_bytes(file_of(source.parts), rng),
            lambda: hostile_file(source.parts, rng),
            lambda: gzip.compress(hostile_file(source.parts, rng), 1),
            lambda: _framed(source, rng, is_gzip=True),
            lambda: _framed(source, rng, is_gzip=False),
            lambda: source.flax,
            lambda: serialization.compress_bytes(bytes(1 << 21)),
            lambda: patch.data,
            lambda: rng.choice(self._patches).data,
            lambda: with_other_bytes(self._npz, rng),
            lambda: with_other_bytes(self._safetensors, rng),
            lambda: directories.hostile(self._directory, rng),
            lambda: {
                name: with_other_bytes(data, rng) if rng.random() < 0.3 else data
                for name, data in self._repository.items()
            },
            lambda: b"",
        ]
        return patch, rng.choice(forms)()


def _patch_of(base: bytes, tree: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "base").write_bytes(base)
        path = Path(folder, "patch")
        treepack.save(path, tree, base=Path(folder, "base"), durable=False)
        return path.read_bytes()


def _framed(source: Source, rng: random.Random, *, is_gzip: bool) -> bytes:
    content = file_of(source.parts)
    block = frames.block_size(rng, len(content))
    if is_gzip:
        return frames.with_change(frames.gzip_of(content, block), rng)
    return frames.with_change(frames.numbers_of(content, block, frames.widths(rng)), rng)


def _changed(patch: bytes, rng: random.Random) -> bytes:
    """Returns another patch, whose checksum is right, at most times."""
    if rng.random() < 0.2:
        return with_other_bytes(patch, rng)
    tree, record = taken(patch)
    if rng.random() < 0.5:
        tree = with_changed_bytes(tree, rng)
    else:
        record = packed(with_change(unpacked(record), rng))
    return sealed(tree, record)


def taken(patch: bytes) -> tuple[bytes, bytes]:
    """Returns the tree and the record of a patch."""
    (length,) = struct.unpack("<I", patch[-12:-8])
    record = patch[-16 - length : -16]
    return patch[len(BEGIN) : -16 - length - len(_header(length))], record


def _header(length: int) -> bytes:
    """Returns the header of the bytes with a record of a length."""
    length += 16
    return b"\xc4" + bytes([length]) if length < 256 else b"\xc5" + length.to_bytes(2, "big")


def sealed(tree: bytes, record: bytes) -> bytes:
    """Returns a patch with the right checksum."""
    body = BEGIN + tree + _header(len(record)) + record
    return body + struct.pack("<II", zlib.crc32(body), len(record)) + MARK
