"""A learner hands its policy to actors through shared memory.

    python examples/rl_broadcast.py

The learner (this process) packs the policy into shared memory; the actors view it there
and decide with it, without a copy. Beside it the same with flax's bytes through a pipe.
What is printed is the latency: from "publish" in the learner until the slowest actor
holds the policy and has answered, without the time to use it.

Two slots take turns, so that the actors can use one policy while the next is written.
The largest policy needs 135 MB of shared memory.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from flax import serialization as flax

import treepack

ACTORS = 2
ROUNDS = 200


def make_policy(width: int) -> dict[str, Any]:
    """Returns the parameters of a network of four dense layers."""
    rng = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "kernel": rng.standard_normal((width, width), dtype=np.float32),
            "bias": np.zeros(width, np.float32),
        }
        for i in range(4)
    }


def shared_memory_actor(name: str, connection: Connection) -> None:
    """Views the policy in shared memory whenever it is told where."""
    memory = SharedMemory(name)
    policy = None
    while (message := connection.recv()) is not None:
        offset, size = message
        policy = treepack.msgpack_restore(memory.buf[offset : offset + size], copy=False)
        connection.send(float(policy["layer_3"]["bias"][0]))
    del policy  # views hold on to the memory
    memory.close()


def pipe_actor(name: str, connection: Connection) -> None:
    """Receives the policy itself."""
    while data := connection.recv_bytes():
        policy = flax.msgpack_restore(data)
        connection.send(float(policy["layer_3"]["bias"][0]))


def main() -> None:
    """Publishes policies of three sizes both ways."""
    context = mp.get_context("spawn")
    for width in (128, 512, 2048):
        policy = make_policy(width)
        slot = -(-treepack.packed_size(policy) // 4096) * 4096
        memory = SharedMemory(create=True, size=2 * slot)
        turn = 0

        def through_memory(connections: list[Connection]) -> None:
            nonlocal turn
            turn = 1 - turn
            offset = turn * slot
            size = treepack.pack_into(policy, memory.buf, offset=offset)
            for connection in connections:
                connection.send((offset, size))

        def through_pipe(connections: list[Connection]) -> None:
            data = flax.to_bytes(policy)
            for connection in connections:
                connection.send_bytes(data)

        try:
            ours = latency(context, shared_memory_actor, memory.name, policy, through_memory)
            theirs = latency(context, pipe_actor, memory.name, policy, through_pipe)
        finally:
            memory.close()
            memory.unlink()
        print(
            f"{slot / 2**20:6.2f} MiB to {ACTORS} actors: shared memory {ours * 1e6:8.0f} us, "
            f"flax + pipe {theirs * 1e6:8.0f} us, {theirs / ours:5.1f} times as long"
        )


def latency(
    context: Any,
    actor: Callable[[str, Connection], None],
    name: str,
    policy: dict[str, Any],
    publish: Callable[[list[Connection]], None],
) -> float:
    """Returns the median time in seconds until all actors have a new policy."""
    pairs = [context.Pipe() for _ in range(ACTORS)]
    actors = [
        context.Process(target=actor, args=(name, theirs), daemon=True) for _, theirs in pairs
    ]
    for process, (_, theirs) in zip(actors, pairs, strict=True):
        process.start()
        theirs.close()  # so that the end of an actor is noticed
    connections = [ours for ours, _ in pairs]
    times = []
    for version in range(ROUNDS):
        policy["layer_3"]["bias"][0] = version
        start = time.perf_counter()
        publish(connections)
        answers = [connection.recv() for connection in connections]
        times.append(time.perf_counter() - start)
        if answers != [version] * ACTORS:
            raise AssertionError(f"an actor has another policy: {answers}, not {version}")
    for connection in connections:
        connection.send(None) if actor is shared_memory_actor else connection.send_bytes(b"")
    for process in actors:
        process.join()
    return statistics.median(times[ROUNDS // 10 :])


if __name__ == "__main__":
    main()
