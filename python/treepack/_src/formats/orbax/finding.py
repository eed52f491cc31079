from __future__ import annotations

import os
from collections.abc import Sequence

from treepack._src.formats import Look
from treepack._src.printable import printable
from treepack._src.sharded.files import MANIFEST
from treepack._src.storage.address import Address
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


def items_in(path: Address, look: Look = Address.names) -> list[str] | None:
    """Returns the items in a directory: `.` if it is one; `None` if it is not Orbax's.

    Both APIs of Orbax store a tree in a directory: the checkpoint itself, or a subdirectory.
    """
    names = look(path)
    if TREE in names:
        return ["."]
    inside = {name: set(look(path / name)) for name in names[:_MOST_LISTED]}
    items = [name for name, inner in inside.items() if TREE in inner]
    if items or not STEP.isdisjoint(names):
        return items
    # A manager's directory of steps.
    return [] if any(not STEP.isdisjoint(inner) for inner in inside.values()) else None


def item_in(path: Address) -> Address | None:
    items = items_in(path) if path.is_local else None
    if items is None:
        return None
    if _UNFINISHED in os.path.basename(os.path.normpath(path)):  # noqa: PTH119
        raise NoManifestError("the directory is from a save of Orbax that has not finished")
    items = [name for name in items if _UNFINISHED not in name]
    if len(items) == 1:
        return path if items[0] == "." else path / items[0]
    raise NoManifestError(_refused(path, sorted(items)))


def _refused(path: Address, items: list[str]) -> str:
    names = [
        entry.name
        for entry in path.entries()
        if entry.is_directory and _UNFINISHED not in entry.name
    ]
    for name in () if items else (".", *names):
        place = path if name == "." else path / name
        if not _DATA.isdisjoint(place.names()):
            return (
                f"{place.shown!r} has arrays of Orbax, but lacks {TREE}, which names their "
                "tree: restore it with a template, as by orbax.checkpoint.StandardCheckpointer()"
                ".restore(path, template), and save the result"
            )
    inside = items or sorted(names, key=lambda name: (len(name), name))  # the newest step last
    listed = ", ".join(map(printable, inside)) or "nothing"
    if not items and not STEP.isdisjoint(path.names()):
        return f"a checkpoint of Orbax without a tree: it contains {listed}"
    example = printable((path / (inside or ["STEP"])[-1]).shown)
    which = "its path," if len(inside) == 1 else "the path of one of them, such as"
    steps = "the step " if len(inside) == 1 and inside[0].isdigit() else ""
    return f"a directory of Orbax with {steps}{listed}: pass {which} {example}"


def step_item(path: Address, names: Sequence[str]) -> Address | None:
    if STEP.isdisjoint(names):
        return None
    paths = [path / name for name in names]
    items = [item for item in paths if (item / MANIFEST).exists()]
    return items[0] if len(items) == 1 else None
