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
    """The system would read ahead in small blocks around them."""
    path = tmp_path / "file"
    tree = {f"w{at}": np.full(1 << 19, at, np.float32) for at in range(6)}
    treepack.save(path, tree)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            if resident(memory).any():
                pytest.skip("the file system keeps files in memory")
            loaded = treepack.load(path)
            pages = resident(memory)
    at = [index for index, is_there in enumerate(pages) if is_there]
    end = len(pages) * mmap.PAGESIZE - (64 << 10)
    headers = [page for page in at if page * mmap.PAGESIZE < end]
    assert len(headers) <= 2, headers  # of the last array
    assert all((loaded[name] == value).all() for name, value in tree.items())


def resident(memory: mmap.mmap) -> np.ndarray:
    """Returns which pages of a file are in the page cache."""
    whole = np.frombuffer(memory, np.uint8)
    found = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start, length = ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(len(memory))
    assert libc.mincore(start, length, ctypes.c_void_p(found.ctypes.data)) == 0
    return found & 1
