"""`treepack ls` of a directory of checkpoints by steps: a line for each."""

from __future__ import annotations

from typing import Any

from treepack._cli import output
from treepack._src.printable import jsonable, printable, size_text
from treepack._src.storage.urls import shown


def show(name: str, run: Any, *, as_json: bool) -> None:
    checkpoints = run.checkpoints()
    if as_json:
        rows = jsonable([checkpoint._asdict() for checkpoint in checkpoints])
        output.json({"run": shown(name), "checkpoints": rows})
        return
    complete = sum(checkpoint.damage is None for checkpoint in checkpoints)
    nbytes = sum(checkpoint.added or 0 for checkpoint in checkpoints)
    summary = f"{complete} of {len(checkpoints)} checkpoints are complete, {size_text(nbytes)}"
    output.line(f"{shown(name)}: {summary} (leaves not verified)", "bold")
    output.rows(map(_row, checkpoints), frozenset({1}))


def _row(checkpoint: Any) -> output.Row:
    _, name, nbytes, added, saved, metrics, pinned, damage = checkpoint
    text = " ".join(f"{printable(name)}={value:.6g}" for name, value in metrics.items())
    if damage is not None:
        text = f"not whole: {damage}"
    size = "" if nbytes is None else size_text(nbytes)
    if added != nbytes:
        size += f", {size_text(added)} added"
    cells = name, size, saved or "", "pinned" if pinned else "", text
    return cells, ("bold", "green", "dim", "cyan", "" if damage is None else "red")
