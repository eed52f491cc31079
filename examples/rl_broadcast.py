"""Sends a learner's policy to actors through shared memory.

    python examples/rl_broadcast.py

The learner (this process) packs the policy into shared memory; the actors view it there, without a
copy. For comparison, flax's bytes go through a pipe. The printed latency is the time from "publish"
in the learner until the slowest actor has the policy and has answered.

Two slots take turns, so that the actors can use one policy while the next is written.
The largest policy needs 135 MB of shared memory.

Then bfloat16 policies, 1 % of which changes in each round, are sent whole and as patches, through
shared memory and through a directory. A directory may be on another host; in shared memory, whole
policies are faster.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from flax import serialization as flax

import treepack

ACTORS = 2
ROUNDS = 50


def make_policy(width: int, dtype: Any = np.float32) -> dict[str, Any]:
    """Returns the parameters of a network of four dense layers."""
    rng = np.random.default_rng(0)
    return {
        f"layer_{i}": {
            "kernel": rng.standard_normal((width, width), dtype=np.float32).astype(dtype),
            "bias": np.zeros(width, np.float32),
        }
        for i in range(4)
    }


def shared_memory_actor(connection: Connection, name: str) -> None:
    """Views the policy in shared memory after each message."""
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
    """Receives the encoded policy."""
    while data := connection.recv_bytes():
        policy = flax.msgpack_restore(data)
        connection.send(float(policy["layer_3"]["bias"][0]))


def patching_actor(connection: Connection, name: str) -> None:
    """Copies the first policy from shared memory, and patches it from then on."""
    memory, policy = SharedMemory(name), None
    while (message := connection.recv()) is not None:
        offset, size = message
        data = memory.buf[offset : offset + size]
        if policy is None:
            policy = bytearray(data)
        else:
            treepack.apply_delta(data, policy)
        data.release()
        found = treepack.serialization.msgpack_restore(policy, copy=False)
        connection.send(float(found["layer_3"]["bias"][0]))
    memory.close()


def file_actor(connection: Connection, path: str) -> None:
    """Loads the file of each policy."""
    while connection.recv() is not None:
        connection.send(float(treepack.load(path)["layer_3"]["bias"][0]))


def subscribed_actor(connection: Connection, path: str) -> None:
    """Receives the newest policy from a directory."""
    subscriber = treepack.Subscriber(path)
    while connection.recv() is not None:
        connection.send(float(subscriber.latest()[1]["layer_3"]["bias"][0]))


class MemoryPublisher:
    """Packs a policy into the two slots of shared memory in turns."""

    def __init__(self, policy: dict[str, Any]):
        self.policy = policy
        self.slot = -(-treepack.packed_size(policy) // 4096) * 4096
        self.memory = SharedMemory(create=True, size=2 * self.slot)
        self.turn = 0

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the current policy."""
        self.turn = 1 - self.turn
        offset = self.turn * self.slot
        size = treepack.pack_into(self.policy, self.memory.buf, offset=offset)
        for connection in connections:
            connection.send((offset, size))

    def close(self) -> None:
        """Frees the memory."""
        self.memory.close()
        self.memory.unlink()


class PatchPublisher(MemoryPublisher):
    """Puts patches into the two slots, after a whole policy."""

    held: bytearray | None = None

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the current policy."""
        if self.held is None:
            super().__call__(connections)
            self.held = bytearray(treepack.packed_size(self.policy))
            treepack.pack_into(self.policy, self.held)
            return
        self.turn = 1 - self.turn
        offset = self.turn * self.slot
        size = treepack.pack_into(self.policy, self.memory.buf, offset=offset, base=self.held)
        for connection in connections:
            connection.send((offset, size))
        with self.memory.buf[offset : offset + size] as patch:
            treepack.apply_delta(patch, self.held)  # while the actors do the same


class FilePublisher:
    """Saves each policy to a file."""

    def __init__(self, policy: dict[str, Any], path: str):
        self.policy, self.path = policy, path

    def publish(self) -> None:
        """Saves the current policy."""
        treepack.save(self.path, self.policy, durable=False)

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the current policy."""
        self.publish()
        for connection in connections:
            connection.send(True)


class DirectoryPublisher(FilePublisher):
    """Publishes versions of a policy in a directory."""

    def __init__(self, policy: dict[str, Any], path: str):
        super().__init__(policy, path)
        self.publisher, self.version = treepack.Publisher(path, durable=False), 0

    def publish(self) -> None:
        """Pushes the current policy."""
        self.version += 1
        self.publisher.push(self.policy, version=self.version)


class PipePublisher:
    """Sends a policy to each actor through its pipe."""

    def __init__(self, policy: dict[str, Any]):
        self.policy = policy

    def __call__(self, connections: list[Connection]) -> None:
        """Publishes the current policy."""
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
    print("\nbfloat16, 1 % changed: milliseconds  memory, whole  patch  directory, whole  patch")
    for width in (128, 512, 2048):
        patches(width)


def patches(width: int) -> None:
    """Publishes a policy whole and as patches."""
    policy = make_policy(width, ml_dtypes.bfloat16)
    found = []
    for actor, kind in ((shared_memory_actor, MemoryPublisher), (patching_actor, PatchPublisher)):
        memory = kind(policy)
        try:
            found.append(latency(actor, memory, memory.memory.name, change=change))
        finally:
            memory.close()
    with tempfile.TemporaryDirectory() as folder:
        for actor, other, name in (
            (file_actor, FilePublisher, "policy.treepack"),
            (subscribed_actor, DirectoryPublisher, "policy"),
        ):
            path = str(Path(folder) / name)
            found.append(latency(actor, other(policy, path), path, change=change))
    times = "".join(f"{seconds * 1e3:14.2f}" for seconds in found)
    print(f"{memory.slot / 2**20:6.2f} MiB {times}")


def change(policy: dict[str, Any], version: int) -> None:
    """Moves 1 % of the weights by one unit in the last place."""
    rng = np.random.default_rng(version)
    for layer in policy.values():
        words = layer["kernel"].view(np.uint16).reshape(-1)
        words[rng.integers(0, words.size, words.size // 100)] ^= 1


def latency(
    actor: Callable[..., None],
    publish: MemoryPublisher | FilePublisher | PipePublisher,
    *arguments: str,
    change: Callable[[dict[str, Any], int], None] | None = None,
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
        if change is not None:
            change(publish.policy, version)
        start = time.perf_counter()
        publish(connections)
        answers = [connection.recv() for connection in connections]
        times.append(time.perf_counter() - start)
        if answers != [version] * ACTORS:
            raise AssertionError(f"an actor has another policy: {answers}, not {version}")
    for connection in connections:
        connection.send_bytes(b"") if actor is pipe_actor else connection.send(None)
    for process in actors:
        process.join()
    return statistics.median(times[ROUNDS // 10 :])


if __name__ == "__main__":
    main()
