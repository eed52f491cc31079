"""Files without an index: what is fetched to find their leaves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tiers
import treepack._core as core
from treepack import serialization
from treepack._src.storage import fetch
from treepack._src.storage.fetch import Blocks
from treepack._src.storage.foresight import Foresight


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def same() -> Any:
    return {f"w{at}": floats(512, 512) for at in range(150)}


def one() -> Any:
    return {"w": floats(512, 80 * 1024)}


def layers() -> Any:
    def dense(rows: int, columns: int) -> Any:
        return {"bias": floats(columns), "kernel": floats(rows, columns)}

    layer = {
        "attention": {name: dense(256, 256) for name in ("key", "out", "query", "value")},
        "mlp": {"down": dense(1024, 256), "up": dense(256, 1024)},
        "norm": {"bias": floats(256), "scale": floats(256)},
    }
    layers = {f"layer_{at}": layer for at in range(16)}
    return {"embedding": floats(20_000, 256), "layers": layers, "norm": floats(256)}


def widening() -> Any:
    def block(at: int) -> Any:
        width = 64 << at // 8
        return {"kernel": floats(3, 3, width, width), "scale": floats(width)}

    return {f"block_{at}": block(at) for at in range(32)}


def uneven() -> Any:
    sizes = random.Random(3)
    return {f"w{at}": floats(sizes.randrange(1 << 17, 1 << 19)) for at in range(60)}


def small() -> Any:
    return {f"w{at}": floats(500) for at in range(10_000)}


@pytest.mark.parametrize(
    ("make", "rounds", "most_bytes"),
    [
        (same, 10, 1 << 20),
        (one, 2, 1 << 20),
        (layers, 20, 2 << 20),
        (widening, 25, 2 << 20),
        (uneven, 30, 80 << 20),  # nothing can be foreseen
        (small, 10, 25 << 20),  # nothing can be left out
    ],
)
def test_listing_takes_few_rounds_and_bytes(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], rounds: int, most_bytes: int
) -> None:
    data = memoryview(serialization.to_bytes(make()))
    fetched: list[int] = []
    begun: list[int] = []
    started = fetch.started

    def fetches(start: int, stop: int) -> memoryview:
        fetched.append(stop - start)
        return data[start:stop]

    def counted(works: Any, threads: int) -> Any:
        begun.append(threads)
        return started(works, threads)

    monkeypatch.setattr(fetch, "started", counted)
    end = data[-Blocks.END :]
    blocks = Blocks(fetches, len(data), near=2 << 20, at_once=32, end=end)
    content = core.Content.elsewhere(blocks.read, len(data), blocks.near)
    found = core.Catalog.open(content, salvage=False)
    expected = core.Catalog.open(core.Content.lent(data), salvage=False)
    assert list(found.leaves(0)) == list(expected.leaves(0))
    assert len(begun) <= rounds, begun
    assert max(begun) <= 32
    assert sum(fetched) <= most_bytes


@pytest.mark.campaign
@tiers.parametrize("at_once", [1, 4, 32])
def test_wrong_or_failed_foresight_changes_nothing(at_once: int) -> None:
    random_ = random.Random(at_once)
    data = memoryview(random_.randbytes(20 << 20))
    position: list[int] = [0]

    def fetches(start: int, stop: int) -> memoryview:
        assert 0 <= start < stop <= len(data)
        if not start <= position[0] < stop and random_.random() < 0.3:
            raise OSError("it was not requested")
        return data[start:stop]

    for _ in range(30):
        blocks = Blocks(fetches, len(data), near=2 << 20, at_once=at_once)
        at, way = 0, random_.randrange(1 << 20)
        for _ in range(100):
            turn = random_.random()
            if turn < 0.1:
                at, way = random_.randrange(len(data)), random_.randrange(1 << 20)
            length = random_.choice([1, 512, 3000, 70_000, 1 << 20])
            at = (at + (length if turn < 0.4 else way)) % (len(data) - 1)
            position[0], length = at, min(length, len(data) - at)
            expected = data[at:][:length]
            found = blocks.read(at, length)
            assert 0 < len(found) <= length
            assert bytes(found) == expected[: len(found)]


def test_readers_in_many_threads() -> None:
    data = memoryview(random.Random(1).randbytes(4 << 20))
    blocks = Blocks(lambda a, b: data[a:b], len(data), near=1 << 20, at_once=8)
    wrong: list[int] = []

    def read(way: int) -> None:
        for at in range(0, len(data) - 512, way):
            if bytes(blocks.read(at, 512)) != data[at : at + 512]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(100_003 + 999 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_repeats_is_foreseen() -> None:
    foresight = Foresight(1000)
    assert foresight.ahead(3) == []
    at = 50_000
    ways = [20_000, 5000, 5000, 5000, 9000]
    for way in [700_000, *ways, *ways, *ways[:2]]:
        foresight.note(at, at + 100)
        at += way
    foresight.note(at, at + 100)
    expected = []
    for way in (*ways[2:], *ways[:2]):
        at += way
        expected.append(at)
    found = foresight.ahead(5)
    for (start, stop), at in zip(found, expected, strict=True):
        assert start <= at
        assert at + 100 <= stop
    assert all(stop - start < 5000 for start, stop in found)
    foresight.note(10, 20)  # who goes back begins anew
    assert foresight.ahead(3) == []
    for at in range(0, 1 << 30, 1 << 16):  # memory is bounded
        foresight.note(at, at + 1)
    assert len(foresight.ahead(40)) == 40
