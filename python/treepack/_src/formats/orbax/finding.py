"""Finds the checkpoints of Orbax in directories."""

from __future__ import annotations

import os
from collections.abc import Sequence

from treepack._src.checkpoint.shards import MANIFEST
from treepack._src.formats import Look
from treepack._src.printable import printable
from treepack._src.storage.entries import entries, exists, is_local
from treepack._src.storage.foreign import names_in
from treepack._src.storage.place import joined, shown
from treepack.errors import NoManifestError

# Files that every item has: `PYTREE_METADATA_FILE` in `path/format_utils.py` of Orbax, and the
# manifest of OCDBT, the database in which TensorStore keeps its arrays. Folders in an item have
# one, too.
TREE = "_METADATA"
DATABASE = "manifest.ocdbt"

# Files of a step: `_STEP_METADATA_FILENAME` in `metadata/checkpoint.py`, and with version 1 of
# Orbax's API `ORBAX_CHECKPOINT_INDICATOR_FILE` in `layout/checkpoint_layout.py`.
ABOUT = "_CHECKPOINT_METADATA"
STEP = frozenset((ABOUT, "orbax.checkpoint", TREE, DATABASE))

# Files of arrays.
_DATA = frozenset((DATABASE, "_sharding"))

# A part of the names of directories whose save has not finished: `TMP_DIR_SUFFIX` in `path/step.py`
# of Orbax.
_UNFINISHED = ".orbax-checkpoint-tmp"

# The maximum number to search for a checkpoint of Orbax.
_MOST_LISTED = 100


def items_in(path: str | os.PathLike[str], look: Look = names_in) -> list[str] | None:
    """Returns the items of Orbax in a directory: `.` if it is one; `None` if it is not Orbax's.

    Both APIs of Orbax store an item, a tree, in a directory: the checkpoint itself, or one of its
    subdirectories. `look` returns the names in a directory.
    """
    names = look(path)
    if TREE in names:
        return ["."]
    inside = {name: set(look(joined(path, name))) for name in names[:_MOST_LISTED]}
    items = [name for name, inner in inside.items() if TREE in inner]
    if items or not STEP.isdisjoint(names):
        return items
    # A manager's directory of steps.
    return [] if any(not STEP.isdisjoint(inner) for inner in inside.values()) else None


def item_in(path: str | os.PathLike[str]) -> str | None:
    """Returns the only item of a local directory of Orbax, or the directory itself, or `None`.

    Raises:
      NoManifestError: If it has several items or none; the message names them.
    """
    items = items_in(path) if is_local(path) else None
    if items is None:
        return None
    if _UNFINISHED in os.path.basename(os.path.normpath(path)):  # noqa: PTH119
        raise NoManifestError("the directory is from a save of Orbax that has not finished")
    items = [name for name in items if _UNFINISHED not in name]
    if len(items) == 1:
        return os.fspath(path) if items[0] == "." else joined(path, items[0])
    raise NoManifestError(_refused(path, sorted(items)))


def _refused(path: str | os.PathLike[str], items: list[str]) -> str:
    """Returns why a directory of several items or none is refused, with a remedy."""
    names = [
        entry.name
        for entry in entries(path)
        if entry.is_directory and _UNFINISHED not in entry.name
    ]
    for name in () if items else (".", *names):
        place = os.fspath(path) if name == "." else joined(path, name)
        if not _DATA.isdisjoint(names_in(place)):
            return (
                f"{shown(place)!r} has arrays of Orbax, but lacks {TREE}, which names their "
                "tree: restore it with a template, as by orbax.checkpoint.StandardCheckpointer()"
                ".restore(path, template), and save the result"
            )
    inside = items or sorted(names, key=lambda name: (len(name), name))  # the newest step last
    listed = ", ".join(map(printable, inside)) or "nothing"
    if not items and not STEP.isdisjoint(names_in(path)):
        return f"a checkpoint of Orbax without a tree: it contains {listed}"
    example = printable(shown(joined(path, (inside or ["STEP"])[-1])))
    which = "its path," if len(inside) == 1 else "the path of one of them, such as"
    steps = "the step " if len(inside) == 1 and inside[0].isdigit() else ""
    return f"a directory of Orbax with {steps}{listed}: pass {which} {example}"


def step_item(path: str | os.PathLike[str], names: Sequence[str]) -> str | None:
    """Returns the item of `treepack.orbax` in a step of Orbax's manager, if it is the only one."""
    if STEP.isdisjoint(names):
        return None
    paths = [joined(path, name) for name in names]
    items = [item for item in paths if exists(joined(item, MANIFEST))]
    return items[0] if len(items) == 1 else None
