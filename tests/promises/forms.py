"""Files and directories that hold a tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import orbax.checkpoint as ocp

import treepack
from promises.leaves import Kind
from treepack import serialization
from treepack._src.saving import sharded

METADATA = {"step": 3}


class Form(NamedTuple):
    """A form of a saved tree.

    Attributes:
      write: Writes a tree to a path, over what is there.
      groups: The groups of leaves that it can hold.
      is_directory: Whether the path becomes a directory.
      has_metadata: Whether it holds `METADATA`.
      is_summed: Whether it holds checksums, so that each damaged leaf is noticed.
      suffix: The suffix of its path.
      is_bounded: Whether `max_size=` bounds it: what is decompressed, joined or assembled.
      arrays: Whether it can hold an array.
      is_ours: Whether treepack writes it.
      is_base: Whether a patch can be made of it.
      entry: Returns the file or directory that readers take, for a path.
    """

    write: Callable[[Any, Any], object]
    groups: frozenset[str] = frozenset({"array", "value", "typed", "name"})
    is_directory: bool = False
    has_metadata: bool = True
    is_summed: bool = True
    suffix: str = ""
    is_bounded: bool = False
    arrays: Callable[[Any], bool] = lambda _: True
    is_ours: bool = True
    is_base: bool = True
    entry: Callable[[Path], Path] = lambda path: path
    name: str = ""

    @property
    def is_one_file(self) -> bool:
        """Whether its bytes need no other file."""
        return not self.is_directory and self.name != "patch"

    def refuses(self, kind: Kind) -> str | None:
        """Returns why it cannot hold a kind of leaf, if it cannot."""
        if kind.group not in self.groups:
            return "holds no such leaf"
        if kind.group == "array" and not self.arrays(kind.make()):
            return "has no such arrays"
        return None


ARRAYS = frozenset({"array"})


def save(**options: Any) -> Callable[[Any, Any], object]:
    return lambda path, tree: treepack.save(path, tree, metadata=METADATA, **options)


def _patch(path: Any, tree: Any) -> None:
    base = Path(path).with_name("base")
    if not base.exists():
        treepack.save(base, {"a": {"w": np.ones((40, 50), np.float32)}, "z": np.arange(7)})
    treepack.save(path, tree, base=base, metadata=METADATA)


def _npz(path: Any, tree: Any) -> None:
    arrays = {"a/leaf": tree["a"]["leaf"], "a/w": tree["a"]["w"], "z": tree["z"]}
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})


def _orbax(path: Any, tree: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(path).absolute(), tree, force=True)
        checkpointer.wait_until_finished()


def _step(path: Any, tree: Any) -> None:
    treepack.Series(path).save(5, tree, metadata=METADATA)


def _linked_step(path: Any, tree: Any) -> None:
    run = treepack.Series(path, unchanged="link")
    with mock.patch.object(sharded, "BLOCK_BYTES", 1000):  # most arrays are in several blocks
        if not run.steps():
            run.save(4, tree)
        run.save(5, tree, metadata=METADATA)


def _publish(path: Any, tree: Any) -> None:
    has_any = (Path(path) / "head.json").exists()
    version = treepack.Subscriber(path).latest()[0] if has_any else 0
    treepack.Publisher(path).push(tree, version=version + 1)


def _is_of_safetensors(array: Any) -> bool:
    dtype = np.dtype(array.dtype)
    floats = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64")
    return dtype.name in ("bool", "complex64", *floats) or _is_integer(dtype)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" and dtype.isbuiltin == 1


def _is_of_numpy(array: Any) -> bool:
    dtype = np.dtype(array.dtype)
    return dtype.isbuiltin == 1 and dtype.kind in "biufcmM"


def _is_of_orbax(array: Any) -> bool:
    dtype = np.dtype(array.dtype)
    is_known = dtype.name in ("bool", "bfloat16") or (dtype.isbuiltin and dtype.kind in "iufc")
    return bool(is_known and array.size)


FORMS: dict[str, Form] = {
    "plain": Form(save()),
    "flax": Form(
        lambda path, tree: serialization.save_to_file(tree, path),
        groups=frozenset({"array", "value", "name"}),
        has_metadata=False,
        is_summed=False,
    ),
    "gzip": Form(save(compress=True), is_bounded=True),
    "numbers": Form(save(compress="numbers"), is_bounded=True),
    "sharded": Form(save(sharded=True), is_directory=True, is_base=False),
    "patch": Form(_patch, is_bounded=True, is_base=False),
    "safetensors": Form(
        lambda path, tree: treepack.save(path, tree),
        ARRAYS,
        has_metadata=False,
        is_summed=False,
        suffix=".safetensors",
        is_base=False,
        arrays=_is_of_safetensors,
    ),
    "repository": Form(
        lambda path, tree: treepack.save(path, tree, format="safetensors", max_shard_size=9000),
        ARRAYS,
        is_directory=True,
        is_base=False,
        has_metadata=False,
        is_summed=False,
        arrays=_is_of_safetensors,
    ),
    "npz": Form(
        _npz,
        ARRAYS,
        has_metadata=False,
        suffix=".npz",
        arrays=_is_of_numpy,
        is_ours=False,
        is_base=False,
    ),
    "Orbax directory": Form(
        _orbax,
        ARRAYS,
        is_directory=True,
        has_metadata=False,
        is_summed=False,
        is_bounded=True,
        arrays=_is_of_orbax,
        is_ours=False,
        is_base=False,
    ),
    "step": Form(_step, has_metadata=False, entry=lambda path: path / "step_5"),
    "linked step": Form(
        _linked_step,
        is_directory=True,
        has_metadata=False,
        is_base=False,
        entry=lambda path: path / "step_5",
    ),
    "version": Form(
        _publish,
        has_metadata=False,
        is_summed=False,
        entry=lambda path: next(path.glob("version_*.treepack")),
    ),
}

FORMS = {name: each._replace(name=name) for name, each in FORMS.items()}
