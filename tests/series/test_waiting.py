"""Waiting for saves in the background: `with Series(...)`, and `await` of a `Saving`."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack

STATE = {"w": np.arange(3.0)}


def refuse(done: int, total: int) -> None:
    """Ends a save."""
    raise OSError("the disk is full")


def test_the_end_of_a_block_waits_for_saves(tmp_path: Path) -> None:
    with treepack.Series(tmp_path / "run", fast=tmp_path / "fast") as run:
        saving = run.save(1, STATE, background=True)
    assert saving.done()
    assert treepack.Series(tmp_path / "run").steps() == [1]  # it is copied


def save_in_block(path: Path, error: Exception | None = None) -> None:
    """Begins a save that fails, in a block that may also raise an error."""
    with treepack.Series(path) as run:
        run.save(1, STATE, background=True, progress=refuse)
        if error is not None:
            raise error


def test_the_end_of_a_block_raises_the_error_of_the_last_save(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk is full"):
        save_in_block(tmp_path)


def test_an_error_in_a_block_is_not_replaced(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match=r"step_1 was not saved: .*disk is full"),
        pytest.raises(KeyError, match="mine"),
    ):
        save_in_block(tmp_path, KeyError("mine"))


def test_other_coroutines_go_on_while_one_awaits_a_save(tmp_path: Path) -> None:
    may_write = threading.Event()

    def hold(done: int, total: int) -> None:
        may_write.wait()

    async def save() -> list[str]:
        events = []

        async def release() -> None:
            events.append("other")
            may_write.set()

        saving = treepack.save(tmp_path / "a", STATE, background=True, progress=hold)
        other = asyncio.create_task(release())
        await saving
        events.append("saved")
        await other
        return events

    assert asyncio.run(save()) == ["other", "saved"]
    np.testing.assert_array_equal(treepack.load(tmp_path / "a")["w"], STATE["w"])


def test_an_awaited_save_raises_its_error_which_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def save() -> None:
        await treepack.save(tmp_path / "a", STATE, background=True, progress=refuse)

    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="disk is full"):
        asyncio.run(save())
    assert caplog.records == []


def test_a_cancelled_task_does_not_cancel_its_save(tmp_path: Path) -> None:
    may_write = threading.Event()

    async def save() -> Any:
        saving = treepack.save(
            tmp_path / "a", STATE, background=True, progress=lambda *_: may_write.wait()
        )

        async def wait() -> None:
            await saving

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_write.set()
        return saving

    asyncio.run(save()).result()
    np.testing.assert_array_equal(treepack.load(tmp_path / "a")["w"], STATE["w"])
