"""Removes checkpoints of a series that a later complete one replaces."""

from __future__ import annotations

from collections.abc import Iterable

from treepack._src.saving.checkpoints import remove_checkpoints
from treepack._src.series.names import OWN_TEMPORARY, Listing


def sweep(listing: Listing, gone: Iterable[str], unfinished: Iterable[str]) -> None:
    """Removes checkpoints from a listed directory, and leftovers of killed saves.

    See `remove_checkpoints` for errors and warnings.

    Args:
      listing: The content of the directory.
      gone: The names of the checkpoints, in order.
      unfinished: The names of directories of saves that have not ended.
    """
    folder = listing.folder
    directories = {entry.name for entry in listing.entries if entry.is_directory}
    temporary = (
        folder.path(entry.name)
        for entry in listing.entries
        if entry.name.startswith(f".{folder.begin}") and OWN_TEMPORARY.fullmatch(entry.name)
    )
    remove_checkpoints(
        ((folder.path(name), name in directories) for name in gone),
        unfinished=map(folder.path, unfinished),
        temporary=temporary,
    )
