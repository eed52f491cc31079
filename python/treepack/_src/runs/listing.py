from __future__ import annotations

from typing import NamedTuple

from treepack._src import formats
from treepack._src.claims.directory import Names
from treepack._src.printable import utc
from treepack._src.runs.contents import Contents, read
from treepack._src.runs.steps import CheckpointEntry, Folder
from treepack._src.storage.address import Address
from treepack.errors import CorruptionError

# The prefixes of `treepack.Series`, flax's checkpoints and Orbax's managers.
_PREFIXES = ("step_", "checkpoint_", "")


class Checkpoint(NamedTuple):
    """A checkpoint of a run.

    Attributes:
      nbytes: Its size; `None`, like the next ones, if it cannot be read.
      added: The bytes of its files except links to files of checkpoints before it.
      pinned: Whether the rules of the run keep it.
      damage: Why it cannot be read.
    """

    step: int
    name: str
    nbytes: int | None
    added: int | None
    saved: str | None
    metrics: dict[str, float]
    pinned: bool
    damage: str | None


class Run:
    def __init__(self, path: Address, folder: Folder):
        self._listing = folder.listing()
        numbered = self._listing.numbered().items()
        self.steps = {step: path / entry.name for step, entry in numbered}
        self.paths = [*self.steps.values()]

    def checkpoints(self) -> list[Checkpoint]:
        """Reads and checks only records."""
        pins = self._listing.pinned()
        rows = self._listing.numbered().items()
        seen: set[str] = set()
        return [self._described(step, entry, seen, is_pinned=step in pins) for step, entry in rows]

    def _described(
        self, step: int, entry: CheckpointEntry, seen: set[str], *, is_pinned: bool
    ) -> Checkpoint:
        row = Checkpoint(step, entry.name, None, None, None, {}, is_pinned, None)

        def described(contents: Contents) -> Checkpoint:
            summary = contents.summary()
            saved = None if summary.time is None else utc(summary.time)
            linked = sum(nbytes for name, nbytes in contents.files if name in seen)
            seen.update(name for name, _ in contents.files)
            return row._replace(
                nbytes=contents.nbytes,
                added=contents.nbytes - linked,
                saved=saved,
                metrics={**summary.metrics},
            )

        try:
            if not entry.is_complete:
                raise CorruptionError("its save has not ended")
            return read(entry.path, step, described)
        except Exception as error:
            if not Contents.is_damage(error):
                raise
            return row._replace(damage=getattr(error, "reason", None) or str(error))


def run_at(path: str, prefix: str | None = None) -> Run | None:
    """Returns `None` for a checkpoint; the default prefix is any of the libraries'."""
    place = Address.of(path)
    begins = _PREFIXES if prefix is None else (prefix,)
    folders = {begin: Folder.of(place, begin) for begin in begins}
    # A prefix may name a directory inside; prefixes of libraries do not.
    try:
        names = Names([entry.name for entry in folders[begins[0]].directory.entries()])
    except NotADirectoryError:
        return None
    if names.are_sharded:
        return None
    for begin, folder in folders.items():
        is_run = any(folder.step(name) is not None for name in names)
        if is_run and (begin or prefix is not None or formats.is_run(place)):
            return Run(place, folder)
    return None
