"""Removes checkpoints that a later complete one replaces, by the rules of flax."""

from __future__ import annotations

import contextlib
from pathlib import Path

from treepack._src.interop import flax
from treepack._src.runs.checkpoints import Checkpoints
from treepack.checkpoints._names import MP_ARRAY_POSTFIX, TEMPORARY, Steps
from treepack.errors import InvalidCheckpointError


def check_newest(folder: Steps, name: str) -> None:
    others = folder.ordered().like(name, earlier=False)
    if others and (name in others or folder.key(others[-1]) > folder.key(name)):
        error = flax.error_type(InvalidCheckpointError, "InvalidCheckpointError")
        raise error(
            f"cannot save {folder.path(name).shown}: {folder.path(others[-1]).shown} exists: "
            "save a later step, or pass overwrite=True to replace this one and remove later ones"
        )


def tidy(
    folder: Steps, saved: str, keep: int, overwrite: bool, keep_every_n_steps: int | None
) -> None:
    with folder.tidying("the save is complete"):
        there = folder.ordered()
        names, listing = there.like(saved), there.listing
        gone: list[str] = []
        if overwrite and saved in names:
            end = names.index(saved) + 1
            gone = names[end:]
            names = names[:end]
        older = names[:-keep] if len(names) > keep else []
        kept: set[str] = set()
        if keep_every_n_steps:
            steps = ((name, numbers[-2]) for name in older if len(numbers := folder.key(name)) > 1)
            kept = {*Checkpoints.spaced((each for each in steps if each[1]), keep_every_n_steps)}
        gone += [name for name in older if name not in kept]
        all_names = {entry.name for entry in listing.entries}
        gone = [
            each for name in gone for each in (name, name + MP_ARRAY_POSTFIX) if each in all_names
        ]
        key = folder.key(saved)
        unfinished = (each.name for each in there.checkpoints if not each.is_complete)
        listing.remove(gone, [name for name in unfinished if folder.key(name) < key])
        temporary = folder.name(TEMPORARY)
        files = {entry.name for entry in listing.entries if not entry.is_directory}
        if folder.is_local and temporary in files:
            with contextlib.suppress(OSError):
                Path(folder.path(temporary)).unlink(missing_ok=True)
