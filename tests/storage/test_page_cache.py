"""Which pages of a file are in the page cache of the system."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import treepack


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache of Linux")
def test_headers_leave_no_pages_in_the_cache(tmp_path: Path) -> None:
    """The system would read ahead in small blocks around them.

    It keeps pages that a processor has yet to add to its lists, as one may under load: so any of
    several files will do.
    """
    left = [headers_left(tmp_path / f"{attempt}") for attempt in range(5)]
    assert min(map(len, left)) <= 2, left  # of the last array


def headers_left(path: Path) -> list[int]:
    """Saves a file and loads it; returns the pages of headers that are in the cache then."""
    tree = {f"w{at}": np.full(1 << 19, at, np.float32) for at in range(6)}
    treepack.save(path, tree)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            if resident(memory).any():
                pytest.skip("the file system keeps files in memory")
            loaded = treepack.load(path)
            pages = resident(memory)
    assert all((loaded[name] == value).all() for name, value in tree.items())
    end = len(pages) * mmap.PAGESIZE - (64 << 10)
    return [at for at, is_there in enumerate(pages) if is_there and at * mmap.PAGESIZE < end]


def resident(memory: mmap.mmap) -> np.ndarray:
    """Returns which pages of a file are in the page cache."""
    whole = np.frombuffer(memory, np.uint8)
    found = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start, length = ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(len(memory))
    assert libc.mincore(start, length, ctypes.c_void_p(found.ctypes.data)) == 0
    return found & 1
