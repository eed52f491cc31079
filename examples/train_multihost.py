"""Trains in several processes that are killed, and resumes on other meshes with equal losses.

    python examples/train_multihost.py                    # three kills
    python examples/train_multihost.py --steps 200 --kills 20

Each run has several processes of `jax.distributed` on this machine (gloo), with CPU devices that
form a mesh. All train one model, whose parameters and optimizer state are sharded over the mesh,
and save every step: Orbax's `CheckpointManager` keeps the last three, and treepack's handler writes
them in the background. Then one process or all are killed at a random moment, and the next run
resumes from the last saved step, with another number of processes and another mesh. In the end,
every loss must equal the loss of an undisturbed run.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# Another mesh sums in another order.
TOLERANCE = 1e-4

IN, HIDDEN, OUT, BATCH = 48, 96, 8, 48


class Run(NamedTuple):
    """The number of processes, the devices of each, and the mesh of all devices."""

    processes: int
    devices: int
    mesh: tuple[int, int]


RUNS = [
    Run(2, 2, (2, 2)),
    Run(1, 4, (1, 4)),
    Run(4, 1, (4, 1)),
    Run(2, 1, (1, 2)),
    Run(3, 1, (3, 1)),
]


# One process of a run


def train(run: Run, folder: Path, steps: int) -> None:
    """Trains from the last saved step on, and prints the loss of each step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from treepack.orbax import TreepackRestore, TreepackSave

    mesh = Mesh(np.array(jax.devices()).reshape(run.mesh), ("data", "model"))
    optimizer = optax.adam(1e-2)

    def initial(key: jax.Array) -> dict[str, Any]:
        first, second = jax.random.split(key)
        params = {
            "first": {
                "kernel": jax.random.normal(first, (IN, HIDDEN)) / math.sqrt(IN),
                "bias": jnp.zeros(HIDDEN),
            },
            "second": {"kernel": jax.random.normal(second, (HIDDEN, OUT)) / math.sqrt(HIDDEN)},
        }
        return {"params": params, "opt": optimizer.init(params), "step": jnp.zeros((), jnp.int32)}

    def placed(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        """Splits matrices over both axes of the mesh, vectors over one."""
        axes = [("data", "model"), ("model",), ()][2 - leaf.ndim]
        return NamedSharding(mesh, PartitionSpec(*axes))

    key = jax.random.key(0)
    shapes = jax.eval_shape(initial, key)
    shardings = jax.tree.map(placed, shapes)

    @jax.jit
    def update(
        state: dict[str, Any], x: jax.Array, y: jax.Array
    ) -> tuple[dict[str, Any], jax.Array]:
        def loss(params: dict[str, Any]) -> jax.Array:
            hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
            return jnp.mean((hidden @ params["second"]["kernel"] - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(gradient, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, value

    step_function = jax.jit(
        update, out_shardings=(shardings, NamedSharding(mesh, PartitionSpec())), donate_argnums=0
    )
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def batch(step: int) -> tuple[jax.Array, jax.Array]:
        rng = np.random.default_rng(step)
        x = rng.standard_normal((BATCH, IN), dtype=np.float32)
        y = np.sin(x[:, :OUT])
        put = lambda value: jax.make_array_from_callback(  # noqa: E731
            value.shape, rows, value.__getitem__
        )
        return put(x), put(y)

    options = ocp.CheckpointManagerOptions(max_to_keep=3, cleanup_tmp_directories=True)
    with ocp.CheckpointManager(folder, options=options) as manager:
        latest = manager.latest_step()
        if latest is None:
            state = jax.jit(initial, out_shardings=shardings)(key)
        else:
            template = jax.tree.map(
                lambda leaf, sharding: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=sharding
                ),
                shapes,
                shardings,
            )
            state = manager.restore(latest, args=TreepackRestore(template))
        for step in range(int(state["step"]), steps):
            state, loss = step_function(state, *batch(step))
            if jax.process_index() == 0:
                print("loss", step, float(loss), flush=True)
            # The state may be donated to the next step: the save is independent of it.
            manager.save(step + 1, args=TreepackSave(state))


# The program that starts and kills them

# Sockets that keep ports for the runs.
held: list[socket.socket] = []


def start(run: Run, folder: Path, steps: int) -> list[subprocess.Popen[str]]:
    """Starts the processes of a run."""
    # No other process gets this port before process 0 listens on it, with an option to share it.
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    held.append(holder)
    port = holder.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={run.devices}"
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, __file__, "--folder", str(folder), "--steps", str(steps)]
    return [
        subprocess.Popen(
            [*program, "--worker", *map(str, (port, index, *run[:2], *run.mesh))],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=None if index == 0 else subprocess.DEVNULL,
            text=True,
        )
        for index in range(run.processes)
    ]


def follow(processes: list[subprocess.Popen[str]], losses: dict[int, float], most: int) -> bool:
    """Collects `most` printed losses; returns false if the run ended before.

    Raises:
      RuntimeError: If a loss differs from an earlier one of the same step.
    """
    output = processes[0].stdout
    assert output is not None
    for line in output:
        if not line.startswith("loss "):
            continue  # output of jax
        _, number, loss = line.split()
        step, value = int(number), float(loss)
        if not math.isclose(losses.setdefault(step, value), value, rel_tol=TOLERANCE):
            raise RuntimeError(f"the loss of step {step} was {losses[step]}, and is {value} now")
        most -= 1
        if most == 0:
            return True
    if any(process.wait(600) for process in processes):
        raise RuntimeError("a process has failed")
    return False


def main(steps: int, kills: int, seed: int) -> None:
    """Trains once undisturbed and once with kills, and compares."""
    with tempfile.TemporaryDirectory() as root:
        expected: dict[int, float] = {}
        follow(start(RUNS[1], Path(root, "undisturbed"), steps), expected, -1)
        print(f"undisturbed: loss {expected[0]:.4f} at first, {expected[steps - 1]:.4f} in the end")
        folder, rng = Path(root, "killed"), random.Random(seed)
        losses: dict[int, float] = {}
        for number in range(kills + 1):
            run = RUNS[number % len(RUNS)]
            left = steps - max(losses, default=-1) - 1
            is_last = number == kills
            most = -1 if is_last else max(1, rng.randint(1, max(1, 2 * left // (kills + 1))))
            processes = start(run, folder, steps)
            began = len(losses)
            try:
                goes_on = follow(processes, losses, most)
                time.sleep(rng.random() / 20)  # at any moment of a step, or of a save
                victim = rng.choice([None, *processes]) if goes_on else None
                if victim is not None:
                    victim.kill()
                    time.sleep(rng.random() / 20)
            finally:
                for process in processes:
                    process.kill()
            saved = sorted(int(it.name) for it in folder.iterdir() if it.name.isdigit())
            print(
                f"{run.processes} processes, {run.devices} devices each, mesh {run.mesh}: "
                f"{len(losses) - began} new steps, {'killed' if goes_on else 'done'}; "
                f"saved: {saved}"
            )
        if losses.keys() != expected.keys():
            raise RuntimeError(f"steps are missing: {sorted(expected.keys() - losses.keys())}")
        worst = max(abs(losses[step] / expected[step] - 1) for step in expected)
        if worst > TOLERANCE:
            raise RuntimeError(f"a loss differs by {worst:.1e}")
        if saved != [steps - 2, steps - 1, steps]:
            raise RuntimeError(f"the manager has kept {saved}")
        print(
            f"{steps} losses are equal (to {worst:.0e}: sums are taken in another order), and the "
            "last three steps are kept"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="the number of training steps")
    parser.add_argument("--kills", type=int, default=3, help="the number of kills")
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of times and victims of kills"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is None:
        main(args.steps, args.kills, args.seed)
    else:
        import jax

        port, index, count, devices, *shape = args.worker
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if count > 1:
            jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
        train(Run(count, devices, (shape[0], shape[1])), args.folder, args.steps)
