"""Uploads to file systems of fsspec that keep fewer bytes than they were sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

import treepack
from treepack import checkpoints, serialization

TREE = {"w": np.arange(3000.0), "n": 3}


class Lossy(MemoryFileSystem):  # type: ignore[misc]
    """Keeps half of each part."""

    protocol = "lossy"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    tells: ClassVar[bool] = True

    def _open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> MemoryFile:
        file = super()._open(path, mode, *args, **options)
        keep = file.write

        def write(data: bytes) -> int:
            count: int = keep(bytes(data)[: len(data) // 2])
            return count if self.tells else len(data)

        if mode == "wb":
            file.write = write
        return file


@pytest.fixture
def lossy() -> Iterator[type[Lossy]]:
    fsspec.register_implementation("lossy", Lossy, clobber=True)
    yield Lossy
    Lossy.store.clear()


SAVES: dict[str, Callable[[str], object]] = {
    "file": lambda url: treepack.save(url, TREE),
    "gzip": lambda url: treepack.save(url, TREE, compress=True),
    "background": lambda url: treepack.save(url, TREE, background=True).result(),
    "directory": lambda url: treepack.save(url, TREE, sharded=True),
    "iterator": lambda url: treepack.save(url, iter(TREE.items())),
    "state": lambda url: serialization.save_to_file(TREE, url),
    "series": lambda url: checkpoints.save_checkpoint(url, TREE, 1),
}


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("tells", [True, False])
def test_a_short_write_is_an_error(
    lossy: type[Lossy], monkeypatch: pytest.MonkeyPatch, kind: str, tells: bool
) -> None:
    monkeypatch.setattr(lossy, "tells", tells)
    url = f"lossy://{kind}/{tells}/model"
    with pytest.raises(OSError, match=f"{url}.*: short write: expected .* bytes, got "):
        SAVES[kind](url)
    if tells:  # before the file got its name
        assert not lossy.store
