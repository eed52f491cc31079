"""Computes the identity of a save, which must be the same in all processes.

A process that missed a save would write rows of another step. So all compare everything that
requires no reading of shards.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.arrays.deferred import Deferred
from treepack._src.interop import jax as _jax
from treepack._src.options import Buffer, Saved, Writing
from treepack._src.storage.address import Address
from treepack._src.storage.urls import shown

# The maximum number of leaves, and of characters of their paths, that are compared one by one, to
# name the leaves that differ.
_NAMED = 1000

_NAMED_CHARS = 100_000

# The maximum number of differing leaves in a message.
_MOST_NAMED = 5

# The maximum size in bytes of replicated integers, such as a step counter, that count as host
# values.
_SMALL_BYTES = 1024


class Identity(NamedTuple):
    """Checksums of a save in one process.

    Attributes:
      paths: The path as the caller passed it, and absolute.
      tree: Of paths, shapes and dtypes of arrays, and of the plan of writers.
      all: Of everything outside of shards.
      leaves: Of the first leaves outside of shards, by path.
    """

    paths: list[str]
    step: int | None
    options: dict[str, Any]
    metadata: str
    tree: int
    all: str
    leaves: list[tuple[str, str]]

    @classmethod
    def of(
        cls,
        path: Address,
        saved: Saved,
        writing: Writing,
        tree: int,
        manifest: core.Manifest,
        arrays: Sequence[Any],
    ) -> Identity:
        sums = [_checksum(array) for array in arrays]
        options = {
            "compress": writing.compress
            if writing.compress == "numbers"
            else bool(writing.compress),
            "level": None if writing.level is None else operator.index(writing.level),
            "align": operator.index(writing.align),
            "durable": bool(writing.durable),
            "static": saved.static,
        }
        skeleton = manifest.with_files(manifest.files)
        return cls(
            path.spellings(),
            saved.step,
            options,
            "" if saved.metadata is None else _sum_of(core.encode_value(saved.metadata)),
            tree,
            _sum_of(skeleton, json.dumps(sums).encode()),
            _leaf_sums(manifest, sums),
        )

    def summary(self) -> dict[str, Any]:
        return {**self._asdict(), "leaves": []}

    def text(self) -> str:
        return json.dumps(self._asdict())

    def is_same(self, other: dict[str, Any]) -> bool:
        mine = {**self.summary(), "paths": None}
        return mine == {**other, "paths": None} and _is_one_place(self.paths, other["paths"])

    def differences(self, process: int, text: str) -> str:
        other = Identity(**json.loads(text))
        problems = []
        if self.step != other.step:
            problems.append(
                f"process {process} saves {_step(other.step)}, process 0 {_step(self.step)}"
            )
        if not _is_one_place(self.paths, other.paths):
            problems.append(
                f"process {process} saves to {shown(other.paths[0])!r}, process 0 to "
                f"{shown(self.paths[0])!r}: all processes must write to the same directory"
            )
        problems += [
            f"process {process} saves with {name}={other.options.get(name)!r}, process 0 with "
            f"{name}={value!r}"
            for name, value in self.options.items()
            if other.options.get(name) != value
        ]
        if self.metadata != other.metadata:
            problems.append(f"process {process} saves different metadata than process 0")
        if self.tree != other.tree:
            problems.append(_ANOTHER_TREE.format(process))
        else:
            problems += self._differing_leaves(process, other)
        return "; ".join(problems or [_ANOTHER_TREE.format(process)])

    def _differing_leaves(self, process: int, other: Identity) -> list[str]:
        mine, theirs = dict(self.leaves), dict(other.leaves)
        if mine.keys() != theirs.keys():
            return [_ANOTHER_TREE.format(process)]
        paths = [path for path in mine if mine[path] != theirs[path]]
        if not paths:
            return []
        names = ", ".join(paths[:_MOST_NAMED]) + (", ..." if len(paths) > _MOST_NAMED else "")
        return [
            f"process {process} has different values than process 0 at {names}: everything except "
            "sharded arrays must be the same in all processes"
        ]


_ANOTHER_TREE = (
    "process {} saved a different tree than process 0, or arrays that are only on its own devices"
)


def _leaf_sums(manifest: core.Manifest, sums: list[str | None]) -> list[tuple[str, str]]:
    content = manifest.content
    catalog = core.Catalog.open(content, salvage=False)
    leaf_sums = []
    chars = 0
    for path, value in catalog.leaves(0):
        _, _, start, stop, _ = catalog.leaf(value)
        array = manifest.array_of(catalog, value)
        checksum = _sum_of(content.read_range(start, stop)) if array is None else sums[array]
        if checksum is not None:
            leaf_sums.append((path, checksum))
            chars += len(path)
        if len(leaf_sums) == _NAMED or chars > _NAMED_CHARS:
            break
    return leaf_sums


def _checksum(array: Any) -> str | None:
    if isinstance(array, Deferred):
        return None  # it is read only when it is written
    if _jax.is_array(array) and not array.is_fully_addressable:
        is_counter = array.is_fully_replicated and array.dtype.kind in "iub"
        if not is_counter or array.nbytes > _SMALL_BYTES:
            return None
    return _sum_of(*core.lay_raw(b"", [array], snapshot=False).buffers())


def _sum_of(*parts: Buffer) -> str:
    """Not a CRC, which is constant for data that end with their own."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _is_one_place(mine: list[str], theirs: list[str]) -> bool:
    """Returns whether the paths of two processes may name the same directory.

    Equal relative paths may.
    """
    return mine[0] == theirs[0] or mine[1] == theirs[1]


def _step(step: int | None) -> str:
    return "no step" if step is None else f"step {step}"
