"""Measures time and memory."""

from __future__ import annotations

import concurrent.futures
import gc
import mmap
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def touch(size: int) -> None:
    """Writes to fresh memory once and frees it.

    On a virtual machine that returns idle memory to its host, the first touch of a page takes many
    times longer, which should not be measured. The memory comes straight from the system, so that
    no allocator learns from it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        # The host clears the memory that it gives, for each processor. A thread may keep its
        # argument for a moment: a view would keep the memory from being closed.
        half = len(memory) // 2
        parts = (slice(0, half, mmap.PAGESIZE), slice(half, None, mmap.PAGESIZE))
        list(_COPIERS.map(lambda part: np.frombuffer(memory, np.uint8)[part].fill(1), parts))


def copy_fresh(source: np.ndarray) -> mmap.mmap:
    """Copies bytes by two threads into fresh memory: the lower bound of any encoder."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, source.size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    target = np.frombuffer(memory, np.uint8)
    parts = zip(np.array_split(target, 64), np.array_split(source, 64), strict=True)
    list(_COPIERS.map(lambda part: np.copyto(*part), parts))
    return memory


_COPIERS = concurrent.futures.ThreadPoolExecutor(2)


def medians(calls: dict[str, Callable[[], Any]], *, memory: int, rounds: int) -> dict[str, float]:
    """Returns the median time in seconds of each call.

    They take turns, and each is called before it is measured. A call that takes
    less than 50 ms is measured in a row of calls, which is how such calls occur.

    Args:
      calls: The calls by name.
      memory: How many bytes of memory a call needs.
      rounds: How often each is measured.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    rows = {}
    for name, call in calls.items():
        once = seconds(call, 1)
        rows[name] = max(1, int(0.05 / seconds(call, 10))) if once < 0.05 else 1
    order = [*calls]
    for _ in range(rounds):
        for name in order:
            touch(memory)
            times[name].append(seconds(calls[name], rows[name]))
        order.append(order.pop(0))  # the first one pays for the work before
    return {name: statistics.median(found) for name, found in times.items()}


def seconds(call: Callable[[], Any], count: int) -> float:
    """Returns the seconds of a call, measured in a row of `count` calls."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(count):
        call()  # dropping the result is part of its cost
    total = time.perf_counter() - start
    gc.enable()
    return total / count


def peak_memory(call: Callable[[], Any]) -> int:
    """Returns by how many bytes a call raises the memory of this process at its peak.

    Linux reports it. Other memory of the process, now or before, does not count.
    """
    return peak_and_mapped(call)[0]


def peak_and_mapped(call: Callable[[], Any]) -> tuple[int, int]:
    """Returns that peak, and the bytes of mapped files that are in memory after the call."""
    gc.collect()
    # Writing 5 there resets the peak to the current use.
    Path("/proc/self/clear_refs").write_text("5")
    before, mapped = _status("VmRSS"), _status("RssFile")
    result = call()
    peak, mapped = _status("VmHWM"), _status("RssFile") - mapped
    del result
    return peak - before, mapped


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
