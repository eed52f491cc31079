"""Mapped files in a store: each byte is requested once, whichever device needs it."""

from __future__ import annotations

import io
import threading
from typing import Any

import jax
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from jax.sharding import NamedSharding, PartitionSpec

import treepack

RULES = {"q": ("l.{l}.q", "(h d) m -> l m h d")}
SHAPE = (4, 256, 16, 64)
NBYTES = 4 * 256 * 16 * 64 * 4


@pytest.fixture(params=["hub", "model.safetensors", "model.treepack"])
def url(request: pytest.FixtureRequest) -> str:
    tensors = {f"l.{at}.q": np.full((1024, 256), at, np.float32) for at in range(4)}
    place = f"memory://mapping/{request.param}"
    form = {"format": "safetensors", "max_shard_size": "3MB"} if request.param == "hub" else {}
    treepack.save(place, tensors, **form)
    return place


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of bytes of each request."""
    counts: list[int] = []
    cat = MemoryFileSystem.cat_file

    def counted(*args: Any, **options: Any) -> Any:
        data = cat(*args, **options)
        counts.append(len(data))
        return data

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    return counts


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_devices_share_the_bytes_that_they_read(
    url: str, read: list[int], axis: int, dtype: Any
) -> None:
    spec = PartitionSpec(*[None] * axis, "x")
    where = NamedSharding(jax.make_mesh((2,), ("x",)), spec)
    template = {"q": jax.ShapeDtypeStruct(SHAPE, dtype, sharding=where)}
    headers = sum(read)
    with treepack.open(url):
        headers = sum(read) - headers
    before = sum(read)
    array = treepack.load(url, template, mapping=RULES, cast=True)["q"]
    assert np.array_equal(np.asarray(array).max((1, 2, 3)), range(4))
    assert sum(read) - before <= 1.02 * NBYTES + headers


@pytest.mark.parametrize("url", ["model.safetensors", "model.treepack"], indirect=True)
def test_a_file_object_is_read_in_order(url: str) -> None:
    class Counted(io.BytesIO):
        count = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.count += len(data)
            return data

    file = Counted(MemoryFileSystem().cat_file(url))
    where = NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))
    template = {"q": jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=where)}
    array = treepack.load(file, template, mapping=RULES)["q"]
    assert np.array_equal(np.asarray(array).max((1, 2, 3)), range(4))
    assert file.count <= 2 * NBYTES


@pytest.mark.parametrize("url", ["hub"], indirect=True)
def test_renamed_arrays_are_fetched_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request waits for another, which comes only if several are made at once."""
    asked: list[str] = []
    are_two = threading.Event()
    cat = MemoryFileSystem.cat_file

    def waiting(self: Any, path: str, *args: Any, **options: Any) -> Any:
        asked.append(path)
        if len({*asked}) > 1:
            are_two.set()
        assert are_two.wait(60)
        return cat(self, path, *args, **options)

    names = {f"new.{at}": f"l.{at}.q" for at in range(4)}
    with treepack.open(url, mapping=names) as file:
        monkeypatch.setattr(MemoryFileSystem, "cat_file", waiting)
        loaded = file.load(arrays="numpy")
    assert [loaded[f"new.{at}"][0, 0] for at in range(4)] == [0, 1, 2, 3]


def test_a_box_does_not_read_the_array(url: str, read: list[int]) -> None:
    with treepack.open(url, mapping=treepack.Mapping(RULES, h=16)) as file:
        before = sum(read)
        assert file["q"][2, :, 3].mean() == 2
        assert sum(read) - before <= NBYTES / 3
