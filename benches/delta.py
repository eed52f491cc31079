"""Patches of bfloat16 weights, beside a copy and other differences: `make bench NAME=delta`.

    python benches/delta.py
    python benches/delta.py --mib 1024 --rounds 11

Weights of which a part has moved by one unit in the last place stand for a step of post-training;
others come from steps of AdamW on a small network. Sizes are compared with the entropy of
independent changes, with indices and values (int32 and bfloat16), and with the exclusive or of
both, compressed by zlib at level 1 (zstd, if `zstandard` is installed). Calls take turns with a
copy by two threads; ratios are medians of the ratios of each round, in seconds of the processors.
`loads` returns new memory, which the system fills with zeros first, so it is also compared with a
copy into new memory.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

import treepack

CODEC = "zstd" if importlib.util.find_spec("zstandard") else "zlib"

RATES = (0.001, 0.01, 0.03, 0.1)
_COPIERS = concurrent.futures.ThreadPoolExecutor(2)


def main() -> None:
    """Measures, and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{'':46}of a copy: encode  apply_delta  loads  (of one into new memory)")
    print(f"changed  smaller  of entropy  indices  xor and {CODEC}")
    for rate in RATES:
        moved(rate, options.mib << 20, options.rounds)
    print(f"\ntrained weights            changed  smaller  xor and {CODEC}")
    trained()


def moved(rate: float, nbytes: int, rounds: int) -> None:
    """Prints a row for weights of which a part has moved."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    for number in range(8):
        words = rng.standard_normal(nbytes // 16, np.float32).astype(ml_dtypes.bfloat16)
        held[f"w{number}"] = words
        new = words.view(np.uint16).copy()
        chosen = rng.random(new.size, np.float32) < rate
        new[chosen] += rng.choice([-1, 1], int(chosen.sum())).astype(np.uint16)
        policy[f"w{number}"] = new.view(ml_dtypes.bfloat16)
    patch = treepack.dumps(policy, base=held)
    count = nbytes // 2
    bound = count * (-rate * np.log2(rate) - (1 - rate) * np.log2(1 - rate) + rate) / 8
    data = treepack.dumps(held)
    in_place = b"".join(treepack.buffers(policy, base=held))
    buffer = bytearray(treepack.packed_size(held))

    def fill() -> None:
        treepack.pack_into(held, buffer)

    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    into_old: Callable[[], object] = lambda: copy(source, target)  # noqa: E731
    into_new: Callable[[], object] = lambda: copy(source, np.empty_like(source))  # noqa: E731
    loads: Callable[[], object] = lambda: treepack.loads(patch, base=data)  # noqa: E731
    calls = [
        (into_old, lambda: treepack.dumps(policy, base=data)),
        (into_old, lambda: treepack.apply_delta(in_place, buffer)),
        (into_old, loads),
        (into_new, loads),
    ]
    ratios: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for found, (peer, call) in zip(ratios, calls, strict=True):
            fill()
            copied = seconds(peer)
            found.append(copied / seconds(call))
    speeds = "  ".join(f"{statistics.median(found):9.2f}" for found in ratios)
    indices = nbytes / (6 * rate * count)
    xor = nbytes / sum(differing(policy[name], held[name]) for name in held)
    sizes = f"{nbytes / len(patch):7.1f}  {len(patch) / bound:10.3f}  {indices:7.1f}  {xor:5.1f}"
    print(f"{rate:7.1%}  {sizes}    {speeds}")


def seconds(call: Callable[[], object]) -> float:
    """Returns the seconds of all processors that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies by two threads."""
    parts = zip(np.array_split(target, 2), np.array_split(source, 2), strict=True)
    list(_COPIERS.map(lambda part: np.copyto(*part), parts))


def differing(new: np.ndarray, old: np.ndarray) -> int:
    """Returns the bytes of the exclusive or, compressed."""
    word = f"u{new.dtype.itemsize}"
    data = (new.view(word) ^ old.view(word)).tobytes()
    if CODEC == "zstd":
        import zstandard

        return len(zstandard.ZstdCompressor(1).compress(data))
    return len(zlib.compress(data, 1))


def trained() -> None:
    """Prints rows for weights after steps of AdamW."""
    for name, rate, steps, dtype in (
        ("bfloat16, 1 step, 1e-6", 1e-6, 1, jnp.bfloat16),
        ("bfloat16, 1 step, 3e-6", 3e-6, 1, jnp.bfloat16),
        ("bfloat16, 1 step, 1e-3", 1e-3, 1, jnp.bfloat16),
        ("bfloat16, 100 steps, 1e-3", 1e-3, 100, jnp.bfloat16),
        ("float32, 1 step, 1e-3", 1e-3, 1, jnp.float32),
        ("float32, 1 step, 3e-6", 3e-6, 1, jnp.float32),
    ):
        held, policy = (jax.tree.map(np.asarray, it) for it in steps_of(rate, steps, dtype))
        pairs = [(policy[it], held[it]) for it in held]
        nbytes = sum(new.nbytes for new, _ in pairs)
        words = [(new.view(f"u{new.itemsize}"), old.view(f"u{new.itemsize}")) for new, old in pairs]
        changed = sum(int((new != old).sum()) for new, old in words) / sum(
            new.size for new, _ in words
        )
        smaller = nbytes / len(treepack.dumps(policy, base=held))
        xor = nbytes / sum(differing(new, old) for new, old in pairs)
        print(f"{name:26} {changed:7.1%}  {smaller:7.2f}  {xor:.2f}")


def steps_of(rate: float, steps: int, dtype: Any) -> tuple[Any, Any]:
    """Returns the weights of a small network after 200 steps of training, and after more.

    The weights have `dtype`, those in training float32.
    """
    keys = jax.random.split(jax.random.key(0), 6)
    sizes = (256, 1024, 1024, 256)
    params = {
        f"w{at}": jax.random.normal(keys[at], (sizes[at], sizes[at + 1])) * sizes[at] ** -0.5
        for at in range(3)
    }
    inputs = jax.random.normal(keys[3], (4096, 256))
    outputs = jnp.tanh(inputs @ jax.random.normal(keys[4], (256, 256)) / 16)

    def loss(params: Any, at: Any) -> Any:
        x, y = (jax.lax.dynamic_slice_in_dim(it, at, 64) for it in (inputs, outputs))
        for name in ("w0", "w1"):
            x = jax.nn.gelu(x @ params[name])
        return jnp.mean((x @ params["w2"] - y) ** 2)

    def train(params: Any, rate: float, steps: int) -> Any:
        optimizer = optax.adamw(rate)
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any, at: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params, at), state, params)
            return optax.apply_updates(params, updates), state

        for number in range(steps):
            params, state = step(params, state, 64 * number % 4096)
        return params

    held = train(params, 1e-3, 200)
    policy = train(held, rate, steps)
    return tuple(jax.tree.map(lambda leaf: leaf.astype(dtype), it) for it in (held, policy))


if __name__ == "__main__":
    main()
