"""Trains on the devices of one or many hosts, saves to a store, and resumes after a preemption.

    python examples/pod.py s3://bucket/run --mesh 4,2 --devices 8       # interrupt it: kill -TERM
    python examples/pod.py s3://bucket/run --mesh 2,4 --devices 8       # resumes on another mesh

The state is a matrix that is split over both axes of the mesh, and the momentum of an optimizer. A
series saves it every few steps in the background, and once more on SIGTERM, which a preempted
machine sends. Options of the store come from the environment, or as JSON. With `--processes N`,
start it N times, each with its `--index`.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

PARSER = argparse.ArgumentParser()
PARSER.add_argument("url", help="the directory of the run")
PARSER.add_argument("--mesh", default="1,1", help="the devices in rows and columns")
PARSER.add_argument("--steps", type=int, default=50)
PARSER.add_argument("--every", type=int, default=10, help="the steps between saves")
PARSER.add_argument("--devices", type=int, help="the number of simulated CPU devices")
PARSER.add_argument("--storage-options", type=json.loads, help="options of the store, as JSON")
PARSER.add_argument("--processes", type=int, default=1)
PARSER.add_argument("--index", type=int, default=0)
PARSER.add_argument("--coordinator", default="127.0.0.1:9876", help="address of process 0")
OPTIONS = PARSER.parse_args()

if OPTIONS.devices is not None:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={OPTIONS.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import treepack

SIZE = 64
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
TARGET = np.sin(np.arange(SIZE * SIZE, dtype=np.float32)).reshape(SIZE, SIZE)

State = dict[str, Any]


def initial() -> State:
    """Returns the state before the first step."""
    params = jnp.zeros((SIZE, SIZE))
    return {"params": params, "optimizer": OPTIMIZER.init(params), "step": jnp.zeros((), jnp.int32)}


@jax.jit
def train(state: State) -> State:
    """Takes one step towards the target."""
    gradient = jax.grad(lambda params: jnp.mean((params - TARGET) ** 2) * SIZE)(state["params"])
    updates, optimizer = OPTIMIZER.update(gradient, state["optimizer"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": optimizer, "step": state["step"] + 1}


def placed(mesh: Mesh, leaf: Any) -> NamedSharding:
    """Returns the sharding of a leaf: matrices are split over both axes, others replicated."""
    return NamedSharding(mesh, P("x", "y") if leaf.ndim == 2 else P())


def loss_of(state: State) -> float:
    """Returns the distance from the target."""
    return float(jnp.mean((state["params"] - TARGET) ** 2))


def main() -> None:
    """Trains until the last step, or until SIGTERM."""
    if OPTIONS.processes > 1:
        jax.distributed.initialize(OPTIONS.coordinator, OPTIONS.processes, OPTIONS.index)
    shape = [int(count) for count in OPTIONS.mesh.split(",")]
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("x", "y"))
    template = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed(mesh, leaf)),
        jax.eval_shape(initial),
    )
    run = treepack.Series(
        OPTIONS.url,
        keep=treepack.Keep(last=2, best=("loss", 1, "min")),
        every=OPTIONS.every,
        sharded=True,
        timeout=600,
        storage_options=OPTIONS.storage_options,
    )
    resumed = run.resume(template)
    if resumed is not None:
        done, state = resumed
        print(f"goes on after step {done}", flush=True)
    else:
        done = 0
        state = jax.jit(initial, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, template))()
    with run.preemption():
        for step in range(done + 1, OPTIONS.steps + 1):
            state = train(state)
            print(f"step {step}", flush=True)
            if run.should_save(step) or step == OPTIONS.steps:
                run.save(step, state, metrics={"loss": loss_of(state)}, background=True)
    run.wait()
    print(f"ends after step {int(state['step'])}, loss {loss_of(state):.6f}", flush=True)


if __name__ == "__main__":
    main()
