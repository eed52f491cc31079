"""`treepack ls` of a directory of checkpoints by steps: a line for each."""

from __future__ import annotations

from typing import Any

from treepack._cli import output
from treepack._src import formats
from treepack._src.checkpoint.info import size_text
from treepack._src.checkpoint.shards import MANIFEST
from treepack._src.printable import jsonable, printable
from treepack._src.saving.lease import utc
from treepack._src.series.contents import is_damage, opened
from treepack._src.series.names import CheckpointEntry, Folder, directory_of
from treepack._src.storage.entries import entries, is_directory
from treepack._src.storage.place import absolute, joined, shown
from treepack.errors import CorruptionError

# The prefixes of `treepack.Series`, flax's checkpoints and Orbax's managers.
_PREFIXES = ("step_", "checkpoint_", "")


def run_at(path: str, prefix: str | None) -> Folder | None:
    """Returns the series in a directory, unless it is a checkpoint or has none.

    Without a prefix, it finds those of the libraries.
    """
    if not is_directory(path):
        return None
    begins = _PREFIXES if prefix is None else (prefix,)
    folders = {begin: Folder(absolute(directory_of(path)), begin) for begin in begins}
    # A prefix may name a directory inside; prefixes of libraries do not.
    names = {entry.name for entry in entries(folders[begins[0]].directory)}
    if MANIFEST in names:
        return None
    for begin, folder in folders.items():
        is_run = any(folder.step(name) is not None for name in names)
        if is_run and (begin or prefix is not None or formats.is_run(path)):
            return folder
    return None


def files_of(path: str) -> list[str]:
    """Returns the paths of the checkpoints of a run, or the path itself."""
    run = run_at(path, None)
    return (
        [path] if run is None else [joined(path, entry.name) for entry in run.numbered().values()]
    )


def show(name: str, folder: Folder, *, as_json: bool) -> None:
    """Lists the checkpoints of a series. Only their records are read and checked."""
    listing = folder.listing()
    pins = listing.pinned()
    rows = listing.numbered().items()
    checkpoints = [_row(folder, step, entry, is_pinned=step in pins) for step, entry in rows]
    if as_json:
        output.json({"run": shown(name), "checkpoints": jsonable(checkpoints)})
        return
    complete = sum(row["damage"] is None for row in checkpoints)
    nbytes = sum(row["nbytes"] or 0 for row in checkpoints)
    summary = f"{complete} of {len(checkpoints)} checkpoints are complete, {size_text(nbytes)}"
    output.line(f"{shown(name)}: {summary} (leaves not verified)", "bold")
    output.rows((_cells(row) for row in checkpoints), frozenset({1}))


def _row(folder: Folder, step: int, entry: CheckpointEntry, *, is_pinned: bool) -> dict[str, Any]:
    """Describes a checkpoint: its size, time and metrics if it can be read, or its damage."""
    row: dict[str, Any] = {
        **{"step": step, "name": entry.name, "nbytes": None, "saved": None, "metrics": {}},
        **{"pinned": is_pinned, "damage": None},
    }
    try:
        if not entry.is_complete:
            raise CorruptionError("its save has not ended")
        with opened(folder.path(entry.name), step) as contents:
            summary = contents.summary()
            saved = None if summary.time is None else utc(summary.time)
            row |= {"nbytes": contents.nbytes, "saved": saved, "metrics": {**summary.metrics}}
    except Exception as error:
        if not is_damage(error):
            raise
        row["damage"] = getattr(error, "reason", None) or str(error)
    return row


def _cells(row: dict[str, Any]) -> output.Row:
    text = " ".join(f"{printable(name)}={value:.6g}" for name, value in row["metrics"].items())
    if row["damage"] is not None:
        text = f"not whole: {row['damage']}"
    size = "" if row["nbytes"] is None else size_text(row["nbytes"])
    cells = row["name"], size, row["saved"] or "", "pinned" if row["pinned"] else "", text
    return cells, ("bold", "green", "dim", "cyan", "" if row["damage"] is None else "red")
