"""Whether a file is what was written: `verify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from treepack._open import File, Status
from treepack._options import Progress, telling

if TYPE_CHECKING:
    from treepack._content import Openable


class Verification(NamedTuple):
    """What `verify` found.

    Attributes:
      leaves: By path: `"ok"`, `"corrupt"`, or `"unchecked"`.
      damage: What is wrong apart from leaves, in words, or `None`: the file ends early, its record
        is damaged, or what lies between leaves and record.
    """

    leaves: dict[str, Status]
    damage: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, as far as that can be told."""
        return self.damage is None and not self.corrupt

    @property
    def corrupt(self) -> list[str]:
        """The paths of the leaves that are damaged."""
        return [path for path, status in self.leaves.items() if status == "corrupt"]

    @property
    def unchecked(self) -> list[str]:
        """The paths of the leaves that cannot be checked."""
        return [path for path, status in self.leaves.items() if status == "unchecked"]


def verify(
    source: Openable | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: Progress = None,
) -> Verification:
    """Compares a file with its checksums.

    Files of `save` have one for each leaf, sharded checkpoints those of their files, gzip files of
    treepack one for each block, those of others one in all. In all else, such as flax's files and
    what `dumps` makes, only the headers are read, and the leaves are `unchecked`.

    Args:
      source: See `open`.
      threads: How many threads read and sum, at most.
      progress: See `save`.

    Returns:
      What is known of each leaf. Damage is no error here.

    Raises:
      OSError: If the file cannot be read.

    Example:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"w": np.zeros(1000), "b": np.zeros(10)})
      >>> treepack.verify(path).leaves
      {'w': 'ok', 'b': 'ok'}
      >>> with open(path, "r+b") as file:
      ...     _ = file.seek(5000), file.write(b"?")
      >>> treepack.verify(path).corrupt
      ['w']
    """
    with File(source, salvage=True) as file, telling(progress, "verify") as tell:
        statuses, damage = file._verified(threads=threads, progress=tell)
        leaves = {path: statuses[value] for path, value in file._catalog().leaves(0)}
    return Verification(leaves, damage)
