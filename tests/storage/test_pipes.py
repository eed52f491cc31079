"""Pipes with names, which every reading verb reads once, as `open` of Python does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from commands import call

READS: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: treepack.load(path)["w"],
    "load a part": lambda path: treepack.load(path, select="w")["w"],
    "load without a map": lambda path: treepack.load(path, mmap=False)["w"],
    "open": lambda path: treepack.open(path)["w"],
    "salvage": lambda path: treepack.open(path, salvage=True)["w"],
    "abstract": lambda path: treepack.abstract(path)["w"].shape == (9999,),
    "read_metadata": lambda path: treepack.read_metadata(path) in (None, {"format": "flax"}),
    "is_checkpoint": treepack.is_checkpoint,
    "verify": lambda path: treepack.verify(path).ok,
    "diff": lambda path: treepack.diff(path, {"w": np.arange(9999.0)}) == [],
    "ls": lambda path: "w" in call("ls", f"{path}"),
    "info": lambda path: "checksums" in call("info", f"{path}"),
    "show": lambda path: "w" in call("show", f"{path}", "w"),
    "treepack verify": lambda path: call("verify", f"{path}") != "",
    "convert": lambda path: call("convert", f"{path}", "new") and treepack.load("new")["w"],
    "get": lambda path: call("get", f"{path}", "w", "new") and treepack.load("new"),
    "treepack salvage": lambda path: (
        call("salvage", f"{path}", "new") and treepack.load("new")["w"]
    ),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@tiers.parametrize("suffix", [".gz", ".treepack", ".npz", ".safetensors"])
@pytest.mark.parametrize("verb", READS)
def test_a_pipe_that_is_named_is_read_once(folder: Path, verb: str, suffix: str) -> None:
    if suffix == ".npz":
        np.savez("saved.npz", w=np.arange(9999.0))
    else:
        treepack.save(f"saved{suffix}", {"w": np.arange(9999.0)})
    pipe = Path(f"pipe{suffix}")
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb") as file:
            pipe.unlink()  # so that opening it again is an error instead of waiting
            file.write(Path(f"saved{suffix}").read_bytes())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    found = READS[verb](pipe)
    writer.join()
    if found is not True:
        np.testing.assert_array_equal(found, np.arange(9999.0))
