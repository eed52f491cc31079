"""Removes checkpoints of a series that a later complete one replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import treepack._core as core
from treepack._src.checkpoint.shards import MANIFEST
from treepack._src.interop.modules import error_class
from treepack._src.printable import warn
from treepack._src.saving.directory import remove_unfinished, warn_of_kept
from treepack._src.series.keep import spaced
from treepack._src.series.names import MP_ARRAY_POSTFIX, OWN_TEMPORARY, TEMPORARY, Folder, Listing
from treepack._src.storage.entries import remove, remove_file
from treepack._src.storage.place import joined, shown
from treepack._src.storage.store import Entry
from treepack.errors import InvalidCheckpointError, TreepackError


def check_newest(folder: Folder, name: str) -> None:
    """Checks that a checkpoint would be the newest of its series.

    Raises:
      InvalidCheckpointError: If there is one of this step, or of a later one.
    """
    others = folder.listing().like(name, earlier=False)
    if others and (name in others or folder.key(others[-1]) > folder.key(name)):
        error = error_class(InvalidCheckpointError, "flax.errors", "InvalidCheckpointError")
        raise error(
            f"cannot save {shown(folder.path(name))}: {shown(folder.path(others[-1]))} exists: "
            "save a later step, or pass overwrite=True to replace this one and remove later ones"
        )


def tidy(
    folder: Folder, saved: str, keep: int, overwrite: bool, keep_every_n_steps: int | None
) -> None:
    """Removes checkpoints as `flax.training.checkpoints` does.

    Args:
      folder: The series.
      saved: The name of the new one.
      keep: The number of last checkpoints that stay.
      overwrite: Whether later ones are removed.
      keep_every_n_steps: The minimum distance between older checkpoints that also stay.

    Warns:
      UserWarning: If some cannot be removed: the save is complete.
    """
    try:
        _tidy(folder, saved, keep, overwrite, keep_every_n_steps)
    except (OSError, TreepackError) as error:
        warn(f"the save is complete, but older checkpoints could not be removed: {error}")


def _tidy(
    folder: Folder, saved: str, keep: int, overwrite: bool, keep_every_n_steps: int | None
) -> None:
    listing = folder.listing()
    names = listing.like(saved)
    gone: list[str] = []
    if overwrite and saved in names:
        end = names.index(saved) + 1
        gone = names[end:]
        names = names[:end]
    older = names[:-keep] if len(names) > keep else []
    kept: set[str] = set()
    if keep_every_n_steps:
        steps = ((name, numbers[-2]) for name in older if len(numbers := folder.key(name)) > 1)
        kept = {*spaced(((name, step) for name, step in steps if step), keep_every_n_steps)}
    gone += [name for name in older if name not in kept]
    there = {entry.name for entry in listing.entries}
    gone = [each for name in gone for each in (name, name + MP_ARRAY_POSTFIX) if each in there]
    key = folder.key(saved)
    sweep(listing, gone, [name for name in listing.unfinished() if folder.key(name) < key])
    temporary = folder.name(TEMPORARY)
    if folder.is_local and Entry(temporary, is_directory=False) in listing.entries:  # of flax
        with contextlib.suppress(OSError):
            remove_file(folder.path(temporary))


def sweep(listing: Listing, gone: Iterable[str], unfinished: Iterable[str]) -> None:
    """Removes checkpoints from a listed directory, in order, and leftovers of killed saves.

    Args:
      listing: The content of the directory.
      gone: The names of the checkpoints.
      unfinished: The names of directories of saves that have not ended. These, and temporary files,
        are removed as far as possible.

    Raises:
      OSError: If checkpoints cannot be removed for another reason than permission; of a local
        directory, the others are removed before.

    Warns:
      UserWarning: If permission to remove checkpoints is denied.
    """
    folder = listing.folder
    kept, failed = [], list[OSError]()
    for name in gone:
        path = folder.path(name)
        try:
            if Entry(name, is_directory=True) in listing.entries:
                remove_file(joined(path, MANIFEST))  # from here on it is no checkpoint
                remove(path)
            else:
                remove_file(path)
        except PermissionError:
            kept.append(path)
        except OSError as error:
            failed.append(error)
            if not folder.is_local:  # the store may not answer: each request takes long
                break
    if kept:
        warn_of_kept(kept)
    for name in unfinished:
        remove_unfinished(folder.path(name))
    for entry in listing.entries if folder.is_local else ():
        if entry.name.startswith(f".{folder.begin}") and OWN_TEMPORARY.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                core.remove_if_dead(Path(folder.path(entry.name)))
    if failed:
        raise failed[0]
