"""The trees that are measured, and how."""

from __future__ import annotations

import gc
import mmap
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

Tree = dict[str, Any]


def layers(nbytes: int, *, count: int = 12, seed: int = 0) -> Tree:
    """Returns a GPT-2-like float32 tree of about `nbytes` bytes, 12 arrays a layer."""
    rng = np.random.default_rng(seed)
    # A layer of width d has 12 d² + 13 d elements.
    width = int((nbytes / 4 / count / 12) ** 0.5) // 8 * 8

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def layer() -> Tree:
        d = width
        return {
            "ln_1": {"scale": array(d), "bias": array(d)},
            "attn": {
                "c_attn": {"kernel": array(d, 3 * d), "bias": array(3 * d)},
                "c_proj": {"kernel": array(d, d), "bias": array(d)},
            },
            "ln_2": {"scale": array(d), "bias": array(d)},
            "mlp": {
                "c_fc": {"kernel": array(d, 4 * d), "bias": array(4 * d)},
                "c_proj": {"kernel": array(4 * d, d), "bias": array(d)},
            },
        }

    return {"transformer": {f"h_{i}": layer() for i in range(count)}}


def many_small() -> Tree:
    """Returns 20,000 arrays of 64 float32, four levels deep."""
    values = iter(np.random.default_rng(0).standard_normal((20_000, 64), dtype=np.float32))
    return {
        f"a{i}": {
            f"b{j}": {f"c{k}": {f"d{m}": next(values) for m in range(10)} for k in range(10)}
            for j in range(10)
        }
        for i in range(20)
    }


def policy() -> Tree:
    """Returns 12 arrays of 1.2 MB together, the size of a small policy network."""
    rng = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "kernel": rng.standard_normal((224, 224), dtype=np.float32),
            "bias": rng.standard_normal(224, dtype=np.float32),
        }
        for i in range(6)
    }


def as_jax_bfloat16(tree: Any) -> Any:
    """Returns a float32 tree as jax arrays of bfloat16 of the same total size."""
    if isinstance(tree, dict):
        return {key: as_jax_bfloat16(value) for key, value in tree.items()}
    return jnp.concatenate([jnp.asarray(tree, jnp.bfloat16)] * 2).block_until_ready()


def arrays(tree: Any) -> list[Any]:
    """Returns the arrays in nested dicts."""
    if isinstance(tree, dict):
        return [array for value in tree.values() for array in arrays(value)]
    return [tree]


def nbytes(tree: Any) -> int:
    """Returns the bytes of all arrays in nested dicts."""
    return sum(array.nbytes for array in arrays(tree))


def touch(size: int) -> None:
    """Writes to fresh memory once and gives it back.

    A virtual machine that returns idle memory to its host pays many times the normal
    price for the first touch of a page; that should not be part of what is measured.
    The memory comes straight from the system, so that no allocator learns from it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1


def medians(calls: dict[str, Callable[[], Any]], *, memory: int, rounds: int) -> dict[str, float]:
    """Returns the median time in seconds of each call.

    They take turns, and each is called twice before it is measured. A call that takes
    less than 50 ms is measured in a row of calls, which is how such calls occur.

    Args:
      calls: What to measure, by name.
      memory: How many bytes of memory a call needs.
      rounds: How often each is measured.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    rows = {}
    for name, call in calls.items():
        _seconds(call, 1)
        rows[name] = max(1, int(0.05 / _seconds(call, 1)))
    for _ in range(rounds):
        for name, call in calls.items():
            touch(memory)
            times[name].append(_seconds(call, rows[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Returns the seconds that a call takes, from so many in a row."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(count):
        result = call()
    seconds = time.perf_counter() - start
    gc.enable()
    del result
    return seconds / count
