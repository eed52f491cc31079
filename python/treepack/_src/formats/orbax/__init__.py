from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from treepack._src.formats import Format, Look
from treepack._src.formats.orbax.finding import item_in, items_in, step_item
from treepack._src.formats.orbax.reading import OrbaxReader
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address


class Orbax(Format):
    """Local directories, whose arrays TensorStore reads."""

    name = library = directories = "Orbax"
    rank = 1  # it looks into subdirectories

    def find(
        self, path: Address, names: Sequence[str], has_checkpoint: Callable[[], bool]
    ) -> Callable[..., Any] | None:
        """Finds the only item of a directory; in a step, also one of `treepack.orbax`."""
        is_ours = has_checkpoint()
        item = step_item(path, names) if is_ours else item_in(path)
        reader = ShardedReader if is_ours else OrbaxReader
        return None if item is None else functools.partial(reader, item)

    def describe(self, path: Address, look: Look) -> str | None:
        if items_in(path, look) is None:
            return None
        return (
            "it looks like a checkpoint of Orbax, which is read from local directories: download "
            "it; see docs/orbax.md. treepack.orbax saves with Orbax's managers"
        )

    def is_run(self, path: Address) -> bool:
        return items_in(path) == []


FORMAT = Orbax()
