"""Which checkpoints of a series stay when another one has been saved."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import treepack._core as core
from treepack._src.checkpoint.shards import MANIFEST
from treepack._src.interop.modules import error_class
from treepack._src.saving.directory import remove_unfinished, warn_of_kept
from treepack._src.series.names import MP_ARRAY_POSTFIX, OWN_TEMPORARY, TEMPORARY, Listing, Series
from treepack._src.storage.entries import remove, remove_file
from treepack._src.storage.place import joined, local, shown
from treepack._src.storage.store import Entry
from treepack._src.storage.stores import store_of
from treepack.errors import InvalidCheckpointError


def check_newest(series: Series, name: str) -> None:
    """Checks that a checkpoint would be the newest of its series.

    Raises:
      InvalidCheckpointError: If there is one of this step, or of a later one.
    """
    others = series.like(name, earlier=False)
    if others and (name in others or series.key(others[-1]) > series.key(name)):
        error = error_class(InvalidCheckpointError, "flax.errors", "InvalidCheckpointError")
        raise error(
            f"{shown(series.path(name))} cannot be saved, since {shown(series.path(others[-1]))} "
            "is there: save a later step, or pass overwrite=True to replace this one and remove "
            "later ones"
        )


def tidy(
    series: Series, saved: str, keep: int, overwrite: bool, keep_every_n_steps: int | None
) -> None:
    """Removes the checkpoints that a new one, which is complete, leaves without use.

    Args:
      series: The series.
      saved: The name of the new one.
      keep: How many of the last ones stay.
      overwrite: Whether later ones are removed.
      keep_every_n_steps: The least distance between older ones that stay as well.

    Warns:
      UserWarning: If there is no permission to remove some.
    """
    listing = series.listing()
    names = series.like(saved, listing=listing)
    gone: list[str] = []
    if overwrite and saved in names:
        end = names.index(saved) + 1
        gone = names[end:]
        names = names[:end]
    last_kept = -math.inf
    for name in names[:-keep] if len(names) > keep else ():
        _, *numbers = series.key(name)
        step = numbers[-2] if numbers else 0
        if keep_every_n_steps and step and step - last_kept >= keep_every_n_steps:
            last_kept = step
        else:
            gone.append(name)
    kept = []
    for name in gone:
        try:
            _remove(series, name, listing)
        except PermissionError:
            kept.append(series.path(name))
    if kept:
        warn_of_kept(kept)
    _remove_leftovers(series, saved, listing)


def _remove(series: Series, name: str, listing: Listing) -> None:
    path = series.path(name)
    if Entry(name, is_directory=True) in listing.entries:
        remove_file(joined(path, MANIFEST))  # from here on it is no checkpoint
        remove(path)
    else:
        remove_file(path)
    if Entry(name + MP_ARRAY_POSTFIX, is_directory=True) in listing.entries:
        remove(path + MP_ARRAY_POSTFIX)


def _remove_leftovers(series: Series, saved: str, listing: Listing) -> None:
    """Removes the leftovers of killed saves, as far as possible."""
    for name in series.unfinished(listing):
        if series.key(name) < series.key(saved):
            remove_unfinished(series.path(name))
    if not store_of(series.directory)[0].is_local:
        return
    for entry in listing.entries:
        file = Path(local(series.path(entry.name)))
        with contextlib.suppress(OSError):
            if entry == (series.name(TEMPORARY), False):
                file.unlink()  # of flax
            elif entry.name.startswith(f".{series.begin}") and OWN_TEMPORARY.fullmatch(entry.name):
                core.remove_if_dead(file)
