"""Trains a model, saves it, moves it between libraries, and resumes.

    make demo

A small flax model learns scikit-learn's handwritten digits with optax's adamw. Halfway, its
TrainState moves from flax to treepack and back, and training resumes from it. Then both libraries
save and load the parameters of a GPT-2 (half a gigabyte), each in a fresh process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization as flax
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import treepack

sys.path.insert(0, str(Path(__file__).parent.parent / "benches"))
import measure
import workloads

STEPS = 60
MIB = 2**20


class Classifier(nn.Module):
    """Two hidden layers over the 64 pixels of a digit."""

    @nn.compact
    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Returns the logits of the ten digits, of shape (batch, 10)."""
        hidden = nn.relu(nn.Dense(256)(pixels))
        hidden = nn.relu(nn.Dense(128)(nn.LayerNorm()(hidden)))
        return nn.Dense(10)(hidden)


MODEL = Classifier()
OPTIMIZER = optax.adamw(3e-3)


def new_state(width: int = 64) -> TrainState:
    """Returns an untrained model with the state of its optimizer."""
    params = MODEL.init(jax.random.key(0), jnp.zeros((1, width)))["params"]
    return TrainState.create(apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)


@jax.jit
def step(state: TrainState, pixels: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
    """Returns the state after one step on a batch, and the loss before it."""

    def loss(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, pixels)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def train(state: TrainState, first: int, last: int) -> tuple[TrainState, list[float]]:
    """Returns the state and the losses after the steps from `first` up to `last`."""
    pixels, labels = load_digits(return_X_y=True)
    losses = []
    for index in range(first, last):
        batch = np.random.default_rng(index).choice(len(labels), 256)
        state, loss = step(state, pixels[batch].astype(np.float32) / 16, labels[batch])
        losses.append(float(loss))
    return state, losses


def show(what: str, outcome: Any) -> None:
    """Prints one line of the table."""
    print(f"  {what:73}{outcome}")


def expect(condition: bool) -> str:
    """Returns 'yes', or ends the demo."""
    if not condition:
        raise SystemExit("the demo found a difference where there must be none")
    return "yes"


def same(a: Any, b: Any) -> bool:
    """Returns whether two trees have the same structure and bits."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves
    )


def trained_model(directory: Path) -> None:
    """Trains, saves with both libraries, restores with the other, and resumes."""
    state = new_state()
    print(f"\n1. A TrainState of {len(jax.tree.leaves(state))} arrays, trained on the digits")
    halfway, losses = train(state, 0, STEPS // 2)
    _, rest = train(halfway, STEPS // 2, STEPS)
    show(
        f"loss after 0 / {STEPS // 2} / {STEPS} steps",
        f"{losses[0]:.3f} / {rest[0]:.4f} / {rest[-1]:.4f}",
    )

    by_flax, by_treepack = directory / "flax.msgpack", directory / "treepack.msgpack"
    by_flax.write_bytes(flax.to_bytes(halfway))
    treepack.serialization.save_to_file(halfway, by_treepack)
    ours = treepack.serialization.load_from_file(new_state(), by_flax)
    theirs = flax.from_bytes(new_state(), by_treepack.read_bytes())
    show("saved by flax, restored by treepack, every bit the same", expect(same(ours, halfway)))
    show("saved by treepack, restored by flax, every bit the same", expect(same(theirs, halfway)))
    identical = treepack.serialization.to_bytes(halfway, align=1) == by_flax.read_bytes()
    show("to_bytes(align=1) equals the bytes of flax", expect(identical))
    _, resumed = train(ours, STEPS // 2, STEPS)
    show("losses after resuming equal the uninterrupted ones exactly", expect(resumed == rest))

    print("\n2. A template with another input width is refused")
    try:
        treepack.serialization.load_from_file(new_state(width=100), by_flax)
    except treepack.MismatchError as error:
        print("  " + str(error).replace("\n", "\n  "))
    else:
        expect(False)
    silent = flax.from_bytes(new_state(width=100), by_flax.read_bytes())
    kernel = silent.params["Dense_0"]["kernel"]
    show("(flax restores it silently, with a kernel of shape)", kernel.shape)


def large_model(directory: Path) -> None:
    """Saves and loads half a gigabyte with both libraries, each in a fresh process."""
    print("\n3. The parameters of a GPT-2 (124 M float32, 475 MiB), files not synced")
    print(f"  {'':34}{'flax':>12}{'treepack':>12}")
    for op in ("save", "load", "load and sum every array"):
        print(f"  {op + ', time':34}", end="", flush=True)
        found = {}
        for library in ("flax", "treepack"):
            command = [sys.executable, __file__, "--measure", library, op, str(directory)]
            found[library] = json.loads(subprocess.check_output(command))
            print(f"{found[library][0] * 1e3:9.1f} ms", end="", flush=True)
        (flax_s, flax_peak), (seconds, peak) = found["flax"], found["treepack"]
        print(f"{flax_s / seconds:8.1f} x")
        if op == "load and sum every array":
            break  # its memory is the load's, and the pages of the file that it reads
        print(
            f"  {op + ', peak of extra memory':34}{flax_peak / MIB:8.1f} MiB{peak / MIB:8.1f} MiB"
        )


def measure_one(library: str, op: str, directory: Path) -> tuple[float, int]:
    """Returns the median time in seconds and the peak of extra memory in bytes."""
    path = directory / f"gpt2-{library}"
    tree = workloads.gpt2() if op == "save" else None

    def load() -> Any:
        if library == "treepack":
            return treepack.serialization.load_from_file(None, path)
        return flax.msgpack_restore(path.read_bytes())

    def save() -> None:
        if library == "treepack":
            treepack.serialization.save_to_file(tree, path, durable=False)
        else:
            path.write_bytes(flax.to_bytes(tree))

    def total() -> float:
        return sum(float(array.sum()) for array in workloads.arrays(load()))

    call: Callable[[], Any] = {"save": save, "load": load}.get(op, total)
    treepack.serialization.from_bytes(
        None, treepack.serialization.to_bytes({"a": np.zeros(1)})
    )  # work that is done only once
    measure.touch(3 * 475 * MIB)
    peak = measure.peak_memory(call)
    seconds = []
    for _ in range(3):
        measure.touch(2 * 475 * MIB)
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        del result
    return statistics.median(seconds), peak


def main() -> None:
    """Runs all parts and prints their results."""
    if sys.argv[1:2] == ["--measure"]:
        library, op, directory = sys.argv[2:]
        print(json.dumps(measure_one(library, op, Path(directory))))
        return
    sys.stdout.reconfigure(line_buffering=True)  # also into a pipe
    print(f"treepack {treepack.__version__}, jax {jax.__version__} on {jax.default_backend()}")
    with tempfile.TemporaryDirectory() as name:
        trained_model(Path(name))
        large_model(Path(name))


if __name__ == "__main__":
    main()
