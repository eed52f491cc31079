"""Saves and resumes a run beside Orbax's CheckpointManager, with the same rules of retention.

    python benches/series.py [MiB]

Both keep the last two checkpoints and the best one, save in the background, and resume in a new
manager from the last checkpoint, each in turns; medians of seconds, and of seconds of processors.
treepack compares all bytes with their checksums while it resumes, Orbax does not.

The lines `links` compare `unchanged="link"` with `"write"` where most leaves are frozen: JAX arrays
that are the same objects in each step or new ones, NumPy arrays; where no leaf is; and of a buffer
of which 1 % of the rows change.

The line `whole` is the time until a checkpoint is whole, so that it survives the end of the
program: with a fast directory in memory, on the disk, and of Orbax on the disk.
"""

from __future__ import annotations

import inspect
import logging
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import treepack
from measure import touch

ROUNDS = 7

Times = dict[str, list[tuple[float, float]]]


def loop_of_treepack(folder: Path, template: Any, train: Any, steps: int) -> None:
    """Trains, and resumes."""
    run = treepack.Series(folder, keep=treepack.Keep(last=2, best=("loss", 1, "min")))
    last, state = run.resume(template) or (0, template)
    for step in range(last + 1, steps + 1):
        state, loss = train(state)
        run.save(step, state, metrics={"loss": loss}, background=True)
    run.wait()


def loop_of_orbax(folder: Path, template: Any, train: Any, steps: int) -> None:
    """Trains, and resumes."""
    options = ocp.CheckpointManagerOptions(
        preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(
            [
                ocp.checkpoint_managers.LatestN(2),
                ocp.checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: metrics["loss"], reverse=True, n=1
                ),
            ]
        )
    )
    manager = ocp.CheckpointManager(folder, options=options)
    last, state = manager.latest_step() or 0, template
    if last:
        state = manager.restore(last, args=ocp.args.StandardRestore(template))
    for step in range(last + 1, steps + 1):
        state, loss = train(state)
        manager.save(step, args=ocp.args.StandardSave(state), metrics={"loss": loss})
    manager.wait_until_finished()


LOOPS: dict[str, Callable[..., None]] = {"treepack": loop_of_treepack, "orbax": loop_of_orbax}


class Timed:
    """Times the calls of one method of a class."""

    def __init__(self, times: list[tuple[float, float]], owner: Any, method: str):
        self._times, self._owner, self._method = times, owner, method

    def __enter__(self) -> None:
        self._original = original = getattr(self._owner, self._method)

        def timed(*args: Any, **options: Any) -> Any:
            start, cpu = time.perf_counter(), seconds_of_processors()
            found = jax.block_until_ready(original(*args, **options))
            if found is not None:  # as it is of an empty run
                self._times.append((time.perf_counter() - start, seconds_of_processors() - cpu))
            return found

        setattr(self._owner, self._method, timed)

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._method, self._original)


def seconds_of_processors() -> float:
    """Returns the user and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def commits(folder: Path, state: Any) -> dict[str, float]:
    """Returns the median seconds until a checkpoint is whole, in turns."""
    keep = treepack.Keep(last=2)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as fast:
        tiers = treepack.Series(folder / "tiers", fast=fast, keep=keep)
        disk = treepack.Series(folder / "disk", keep=keep)
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        manager = ocp.CheckpointManager(folder / "manager", options=options)

        def save_by_orbax(step: int) -> None:
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()

        saves: dict[str, Callable[[int], None]] = {
            "fast": lambda step: tiers.save(step, state),
            "disk": lambda step: disk.save(step, state),
            "orbax": save_by_orbax,
        }
        times: dict[str, list[float]] = defaultdict(list)
        for step in range(ROUNDS):
            for name, save in saves.items():
                touch(2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
                start = time.perf_counter()
                save(step)
                times[name].append(time.perf_counter() - start)
                tiers.wait()  # the copy is not to disturb the others
    return {name: statistics.median(found[1:]) for name, found in times.items()}


# Of a run of which most leaves are frozen, in MiB, and its number of checkpoints.
FROZEN, CHANGING, CHECKPOINTS = 400, 9, 4


def states() -> dict[str, Callable[[int], Any]]:
    """Returns functions of the step that return the state of runs, by name."""
    rng = np.random.default_rng(0)
    frozen = {f"{it}": rng.standard_normal(1 << 18, np.float32) for it in range(FROZEN)}
    on_device = jax.tree.map(jnp.asarray, frozen)
    buffer = rng.standard_normal((128 << 10, 1 << 10), np.float32)  # 512 MiB

    def changing(step: int) -> Any:
        return {f"c{it}": np.full(1 << 18, step + it, "f4") for it in range(CHANGING)}

    def filled(step: int) -> Any:
        count = len(buffer) // 100
        buffer[step * count : (step + 1) * count] = rng.random()
        return {"buffer": buffer}

    return {
        "JAX arrays": lambda step: {**on_device, **jax.tree.map(jnp.asarray, changing(step))},
        "new JAX arrays": lambda step: {
            **jax.tree.map(lambda array: array + 0, on_device),
            **jax.tree.map(jnp.asarray, changing(step)),
        },
        "NumPy arrays": lambda step: {**frozen, **changing(step)},
        "none frozen": lambda step: jax.tree.map(lambda array: array + step, on_device),
        "replay buffer": filled,
    }


def links(folder: Path, name: str, state: Callable[[int], Any]) -> None:
    """Prints the seconds of a save after the first and of `resume`, and the bytes of a run.

    With links and without, in turns; the seconds are medians.
    """
    times: dict[Any, list[float]] = defaultdict(list)
    resumes: dict[Any, list[float]] = defaultdict(list)
    nbytes: dict[Any, int] = {}
    kinds: tuple[Literal["write", "link"], ...] = ("write", "link")
    for number in range(ROUNDS):
        for kind in kinds:
            path = folder / f"{kind}{number}"
            run = treepack.Series(path, unchanged=kind)
            for step in range(CHECKPOINTS):
                tree = jax.block_until_ready(state(step))
                start = time.perf_counter()
                run.save(step, tree)
                if step:
                    times[kind].append(time.perf_counter() - start)
            start = time.perf_counter()
            jax.block_until_ready(treepack.Series(path).resume(tree))
            resumes[kind].append(time.perf_counter() - start)
            files = [it.stat() for it in path.rglob("*") if it.is_file()]
            nbytes[kind] = sum({it.st_ino: it.st_size for it in files}.values())
            shutil.rmtree(path)
    write, link = (statistics.median(times[kind]) for kind in kinds)
    before, after = (statistics.median(resumes[kind]) for kind in kinds)
    print(
        f"links    {name:14}   write {write:.4f} s, {nbytes['write'] >> 20} MiB   "
        f"link {link:.4f} s, {nbytes['link'] >> 20} MiB, {link / write:.2f} of the time   "
        f"resume {before:.4f} s   {after:.4f} s, {after / before:.2f}"
    )


METHODS = {
    "treepack": (treepack.Series, "save", "resume"),
    "orbax": (ocp.CheckpointManager, "save", "restore"),
}


def main(mebibytes: int) -> None:
    """Prints a line for each call, and the lines of both loops."""
    logging.disable(logging.WARNING)
    arrays = 100
    size = (mebibytes << 20) // (4 * arrays)
    rng = np.random.default_rng(0)
    state = {f"{it}": jnp.asarray(rng.standard_normal(size, np.float32)) for it in range(arrays)}
    template = jax.eval_shape(lambda: state)
    times: dict[str, Times] = {name: defaultdict(list) for name in LOOPS}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for number in range(1, ROUNDS + 1):
            for name, loop in LOOPS.items():
                owner, save, resume = METHODS[name]
                found = times[name]

                def train(_: Any, number: int = number) -> tuple[Any, float]:
                    return state, 1 / number

                touch(2 * mebibytes << 20)
                with Timed(found["save"], owner, save), Timed(found["resume"], owner, resume):
                    loop(Path(folder) / name, template, train, number)
        whole = commits(Path(folder), state)
        for name, state_at in states().items():
            links(Path(folder), name, state_at)
    for what in ("save", "resume"):
        ours, theirs = (statistics.median(it[0] for it in times[name][what]) for name in LOOPS)
        mine, other = (statistics.median(it[1] for it in times[name][what]) for name in LOOPS)
        print(
            f"{what:8} treepack {ours:8.4f} s ({mine:.4f} of processors)   "
            f"orbax {theirs:8.4f} s ({other:.4f})   {theirs / ours:6.1f} times as long"
        )
    print(
        f"whole    fast {whole['fast']:8.4f} s   disk {whole['disk']:8.4f} s, "
        f"{whole['disk'] / whole['fast']:.1f} times as long   orbax {whole['orbax']:8.4f} s, "
        f"{whole['orbax'] / whole['fast']:.1f} times"
    )
    for name, loop in LOOPS.items():
        print(f"lines of the loop with {name}: {len(inspect.getsource(loop).splitlines()) - 2}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
