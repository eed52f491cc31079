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


def shared_memory_actor(connection: Connection, name: str) -> None:
    """Views the policy in shared memory whenever it is told where."""
    memory = SharedMemory(name)
    policy = None
    while (message := connection.recv()) is not None:
        offset, size = message
        policy = treepack.serialization.msgpack_restore(
            memory.buf[offset : offset + size], copy=False
        )
        connection.send(float(policy["layer_3"]["bias"][0]))
    del policy  # views hold on to the memory
    memory.close()


def pipe_actor(connection: Connection) -> None:
    """Receives the policy itself."""
    while data := connection.recv_bytes():
        policy = flax.msgpack_restore(data)
        connection.send(float(policy["layer_3"]["bias"][0]))


class MemoryPublisher:
    """Packs a policy into the two slots of shared memory in turns."""

    def __init__(self, policy: dict[str, Any]):
        self.policy = policy
        self.slot = -(-treepack.packed_size(policy) // 4096) * 4096
        self.memory = SharedMemory(create=True, size=2 * self.slot)
        self.turn = 0

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the policy as it is now."""
        self.turn = 1 - self.turn
        offset = self.turn * self.slot
        size = treepack.pack_into(self.policy, self.memory.buf, offset=offset)
        for connection in connections:
            connection.send((offset, size))

    def close(self) -> None:
        """Gives the memory back."""
        self.memory.close()
        self.memory.unlink()


class PipePublisher:
    """Sends a policy to each actor through its pipe."""

    def __init__(self, policy: dict[str, Any]):
        self.policy = policy

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the policy as it is now."""
        data = flax.to_bytes(self.policy)
        for connection in connections:
            connection.send_bytes(data)


def main() -> None:
    """Publishes policies of three sizes both ways."""
    for width in (128, 512, 2048):
        policy = make_policy(width)
        publisher = MemoryPublisher(policy)
        try:
            ours = latency(shared_memory_actor, publisher, publisher.memory.name)
        finally:
            publisher.close()
        theirs = latency(pipe_actor, PipePublisher(policy))
        print(
            f"{publisher.slot / 2**20:6.2f} MiB to {ACTORS} actors: "
            f"shared memory {ours * 1e6:8.0f} us, flax + pipe {theirs * 1e6:8.0f} us, "
            f"{theirs / ours:5.1f} times as long"
        )


def latency(
    actor: Callable[..., None], publish: MemoryPublisher | PipePublisher, *arguments: str
) -> float:
    """Returns the median time in seconds until all actors have a new policy."""
    context = mp.get_context("spawn")
    pairs = [context.Pipe() for _ in range(ACTORS)]
    actors = [
        context.Process(target=actor, args=(theirs, *arguments), daemon=True) for _, theirs in pairs
    ]
    for process, (_, theirs) in zip(actors, pairs, strict=True):
        process.start()
        theirs.close()  # so that the end of an actor is noticed
    connections = [ours for ours, _ in pairs]
    times = []
    for version in range(ROUNDS):
        publish.policy["layer_3"]["bias"][0] = version
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
