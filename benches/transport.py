"""Sends a policy to another process of this machine by Ray, Dask, multiprocessing and gRPC.

    python benches/transport.py                             # 1 KiB, 1 MiB, 48 MiB, 512 MiB
    python benches/transport.py --mib 48 --rounds 20 --libraries ray grpc

A time begins with the policy in the sender, and ends when the receiver has read every byte of it
and has answered. Both have run before, and ways take turns; medians. The policy is a tree of
layers: once of NumPy arrays of float32, once of JAX arrays of bfloat16. What arrives is compared
with what was sent.

Ways:
  tree: the tree as it is, which the library pickles
  dumps: `treepack.dumps(tree)`, bytes
  packed: `treepack.pack_into` a NumPy array of bytes
  pieces: `treepack.buffers(tree)`, sent one by one, or as buffers of pickle
  shared: `treepack.pack_into` shared memory; the library sends its name and size
  file: `treepack.save` to a file in memory (/dev/shm); the library sends its path
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import ml_dtypes
import numpy as np

import measure
import treepack

Ways = dict[str, Callable[[], int]]

SIZES = (2**10, 2**20, 48 * 2**20, 512 * 2**20)
MESSAGE = 2**22  # of a stream of gRPC
MOST = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def make_policy(nbytes: int, dtype: Any) -> dict[str, Any]:
    """Returns layers of that size in all, with biases; each layer has at most 2 MiB."""
    count = max(1, nbytes // 2**21)
    words = nbytes // count // 4 * 4 // np.dtype(dtype).itemsize
    bias = words // 64
    rng = np.random.default_rng(0)
    return {
        f"layer_{at}": {
            "kernel": rng.standard_normal((words - bias) // 4 * 4, np.float32).astype(dtype),
            "bias": np.zeros(bias // 4 * 4, dtype),
        }
        for at in range(count)
    }


def total(tree: Any) -> int:
    """Reads every byte of a tree."""
    if isinstance(tree, dict):
        return sum(map(total, tree.values()))
    return int(np.asarray(tree).view(np.uint64).sum(dtype=np.uint64))


def total_of(data: Any) -> int:
    """Reads every byte of a tree that treepack has encoded, without JAX."""
    return total(treepack.loads(data, arrays="numpy"))


def total_of_file(path: str) -> int:
    """Reads every byte of a tree in a file."""
    return total(treepack.load(path, arrays="numpy"))


class Attached:
    """Shared memory of the sender, in the receiver."""

    def __init__(self) -> None:
        self.memory: dict[str, SharedMemory] = {}

    def total(self, name: str, size: int) -> int:
        """Reads every byte of a tree that is packed into shared memory."""
        if name not in self.memory:
            self.memory[name] = SharedMemory(name)
        return total_of(self.memory[name].buf[:size])


ATTACHED = Attached()


class Pieces:
    """A tree whose pieces pickle sends out of band; it arrives as a tree."""

    def __init__(self, tree: Any):
        self.tree = tree

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Returns the pieces as buffers."""
        pieces = treepack.buffers(self.tree, described=True)
        return _loaded, ([*map(pickle.PickleBuffer, pieces)],)


def _loaded(pieces: list[Any]) -> Any:
    return treepack.loads(pieces, arrays="numpy")


class Sender:
    """The memory of a learner, which it uses again for each encoding of its policy."""

    def __init__(self, tree: Any):
        self.tree = tree
        self.size = treepack.packed_size(tree, described=True)
        self.array = np.empty(self.size, np.uint8)
        self.memory = SharedMemory(create=True, size=self.size)
        self.path = f"/dev/shm/treepack-{os.getpid()}.treepack"

    def dumps(self) -> bytes:
        """Encodes the tree."""
        return treepack.dumps(self.tree)

    def packed(self) -> np.ndarray:
        """Packs the tree into an array."""
        treepack.pack_into(self.tree, self.array, described=True)
        return self.array

    def shared(self) -> tuple[str, int]:
        """Packs the tree into shared memory."""
        treepack.pack_into(self.tree, self.memory.buf, described=True)
        return self.memory.name, self.size

    def file(self) -> str:
        """Saves the tree to a file in memory."""
        treepack.save(self.path, self.tree, durable=False)
        return self.path

    def close(self) -> None:
        """Frees the memory."""
        self.memory.close()
        self.memory.unlink()
        Path(self.path).unlink(missing_ok=True)


def receive(queue: Any, connection: Any) -> None:
    """Answers in another process what arrives by a queue or a pipe."""
    while (message := queue.get()) is not None:
        way, payload = message
        if way == "pipe":
            payload = connection.recv_bytes()
        connection.send(RECEIVERS[way](payload))
        del message, payload


RECEIVERS: dict[str, Callable[[Any], int]] = {
    "tree": total,
    "dumps": total_of,
    "pipe": total_of,
    "shared": lambda payload: ATTACHED.total(*payload),
    "file": total_of_file,
}


@contextlib.contextmanager
def multiprocessing_ways() -> Iterator[Callable[[Sender], Ways]]:
    """Yields the ways of queues and pipes."""
    context = mp.get_context("spawn")
    queue, (connection, other) = context.Queue(), context.Pipe()
    process = context.Process(target=receive, args=(queue, other), daemon=True)
    process.start()

    def put(way: str, payload: Any) -> int:
        queue.put((way, payload))
        return int(connection.recv())

    def pipe(sender: Sender) -> int:
        queue.put(("pipe", None))
        connection.send_bytes(sender.dumps())
        return int(connection.recv())

    yield lambda sender: {
        "tree": lambda: put("tree", sender.tree),
        "dumps": lambda: put("dumps", sender.dumps()),
        "dumps by a pipe": lambda: pipe(sender),
        "shared": lambda: put("shared", sender.shared()),
        "file": lambda: put("file", sender.file()),
    }
    queue.put(None)
    process.join()


@contextlib.contextmanager
def ray_ways() -> Iterator[Callable[[Sender], Ways]]:
    """Yields the ways of Ray's object store."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, object_store_memory=4 * 2**30, **options)

    @ray.remote
    class Receiver:
        def total(self, way: str, payload: Any) -> int:
            return RECEIVERS[way](payload)

    actor = Receiver.remote()

    def put(way: str, payload: Any) -> int:
        return int(ray.get(actor.total.remote(way, payload)))  # large ones by the object store

    yield lambda sender: {
        "tree": lambda: put("tree", sender.tree),
        "dumps": lambda: put("dumps", sender.dumps()),
        "packed": lambda: put("dumps", sender.packed()),
        "pieces": lambda: put("tree", Pieces(sender.tree)),
        "shared": lambda: put("shared", sender.shared()),
        "file": lambda: put("file", sender.file()),
    }
    ray.shutdown()


def answer(way: str, payload: Any) -> int:
    """Reads a payload in a worker of Dask."""
    return RECEIVERS[way](payload)


@contextlib.contextmanager
def dask_ways() -> Iterator[Callable[[Sender], Ways]]:
    """Yields the ways of Dask's workers."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):

        def ask(way: str, payload: Any) -> int:
            return int(client.submit(answer, way, payload, pure=False).result())

        def ways(sender: Sender) -> Ways:
            def put(way: str, payload: Any) -> int:
                if sender.size >= 2**20:
                    payload = client.scatter([payload], direct=True, hash=False)[0]
                return ask(way, payload)

            return {
                "tree": lambda: put("tree", sender.tree),
                "dumps": lambda: put("dumps", sender.dumps()),
                "packed": lambda: put("dumps", sender.packed()),
                "shared": lambda: ask("shared", sender.shared()),
                "file": lambda: ask("file", sender.file()),
            }

        yield ways


def serve(connection: Any) -> None:
    """Serves gRPC until the other end closes."""
    import grpc

    def unary(data: bytes, _: Any) -> bytes:
        way, _, payload = data.partition(b":")
        received = payload if way == b"dumps" else pickle.loads(payload)
        return str(RECEIVERS[way.decode()](received)).encode()

    def stream(pieces: Iterator[bytes], _: Any) -> bytes:
        return str(total_of(list(pieces))).encode()

    handlers = {
        "Send": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_unary_rpc_method_handler(stream),
    }
    server = grpc.server(ThreadPoolExecutor(2), options=MOST)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Policy", handlers)])
    connection.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    connection.recv()
    server.stop(None)


def messages(tree: Any) -> Iterator[bytes]:
    """Yields the pieces of a tree as messages."""
    for piece in treepack.buffers(tree, described=True):
        for at in range(0, len(piece), MESSAGE):
            yield bytes(piece[at : at + MESSAGE])


@contextlib.contextmanager
def grpc_ways() -> Iterator[Callable[[Sender], Ways]]:
    """Yields the ways of gRPC."""
    import grpc

    context = mp.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=serve, args=(other,), daemon=True)
    process.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{connection.recv()}", options=MOST)
    send, stream = channel.unary_unary("/Policy/Send"), channel.stream_unary("/Policy/Stream")

    def pickled(way: bytes, payload: Any) -> int:
        return int(send(way + b":" + pickle.dumps(payload, protocol=5)))

    yield lambda sender: {
        "tree": lambda: pickled(b"tree", sender.tree),
        "dumps": lambda: int(send(b"dumps:" + sender.dumps())),
        "pieces": lambda: int(stream(messages(sender.tree))),
        "shared": lambda: pickled(b"shared", sender.shared()),
        "file": lambda: pickled(b"file", sender.file()),
    }
    channel.close()
    connection.send(None)
    process.join()


LIBRARIES = {
    "multiprocessing": multiprocessing_ways,
    "ray": ray_ways,
    "dask": dask_ways,
    "grpc": grpc_ways,
}


def main() -> None:
    """Prints a table for each library and kind of arrays."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mib", type=float, nargs="*", help="sizes of the policy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--libraries", nargs="*", default=[*LIBRARIES], choices=LIBRARIES)
    options = parser.parse_args()
    sizes = [int(mib * 2**20) for mib in options.mib] if options.mib else SIZES
    for name in options.libraries:
        with LIBRARIES[name]() as ways:
            for kind in ("NumPy, float32", "JAX, bfloat16"):
                compare(name, kind, ways, sizes, options.rounds)


def compare(name: str, kind: str, ways: Callable[[Sender], Ways], sizes: Any, rounds: int) -> None:
    """Prints the table of a library: a row for each way, a column for each size."""
    rows: dict[str, list[str]] = {}
    for nbytes in sizes:
        tree: Any = make_policy(nbytes, np.float32 if "float32" in kind else ml_dtypes.bfloat16)
        expected = total(tree)
        if kind.startswith("JAX"):
            import jax

            tree = jax.tree.map(jax.numpy.asarray, tree)
        sender = Sender(tree)
        try:
            calls = ways(sender)
            for way, call in calls.items():
                if call() != expected:
                    raise AssertionError(f"{name}, {way}: another policy arrives")
            times = measure.medians(calls, memory=nbytes, rounds=rounds)
        finally:
            sender.close()
        for way, seconds in times.items():
            rows.setdefault(way, []).append(milliseconds(seconds, seconds == min(times.values())))
    print(f"\n{name}, {kind}".ljust(36) + "".join(f"{size(it):>12}" for it in sizes))
    for way, cells in rows.items():
        print(f"  {way:33}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def milliseconds(seconds: float, is_best: bool) -> str:
    """Formats a time; the best one has a star."""
    return f"{seconds * 1e3:.3g} ms{'*' if is_best else ' '}"


def size(nbytes: int) -> str:
    """Formats a number of bytes."""
    return f"{nbytes // 2**20} MiB " if nbytes >= 2**20 else f"{nbytes // 2**10} KiB "


if __name__ == "__main__":
    main()
