"""Checkpoints in a store, at a local server of S3 with latency before it.

    python benches/stores.py                     # 100 ms for each request
    python benches/stores.py --latency 20 --upload-mib 1024

A proxy delays each request, counts them, and forwards them to the server, which runs in this
process as well: its share of the two cores is in all times. Uploads, which would measure the proxy,
go to the server itself, and take turns with `obstore.put` of the same bytes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
import obstore
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from obstore.store import from_url

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.claims.directory import Directory, Written
from treepack._src.layouts.layout import Encoding
from treepack._src.readers.shard_boxes import find, ranges_of, reading
from treepack._src.storage.address import Address
from treepack._src.storage.fetch import fetching

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import scale
from support import processes, s3

SAVE = """
import json
url, options, count = args[0], json.loads(args[1]), int(args[2])
mesh = Mesh(np.array(jax.devices()), ("x",))
whole = np.arange(256 * 1024, dtype=np.float32).reshape(256, 1024)
rows = NamedSharding(mesh, P("x", None))
put = lambda at: jax.make_array_from_callback(whole.shape, rows, lambda index: whole[index] + at)
treepack.save(url, {f"w{at}": put(at) for at in range(count)}, storage_options=options)
"""

RUNS = 3


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=100, help="milliseconds a request")
    parser.add_argument("--upload-mib", type=int, default=256)
    arguments = parser.parse_args()
    with s3.running() as server:
        print(f"{arguments.latency:.0f} ms a request; medians of {RUNS} runs")
        print(f"{'':56}{'time':>8}{'requests':>10}{'at once':>9}{'MiB':>9}")
        server.proxy.latency = arguments.latency / 1000
        directories(server)
        one_file(server)
        without_index(server)
        many_hosts(server)
        server.proxy.latency = 0
        upload(server, arguments.upload_mib << 20)


def row(server: s3.Server, name: str, work: Callable[[], Any]) -> None:
    """Prints the time and the requests of some work."""
    times = []
    for _ in range(RUNS):
        server.proxy.requests.clear()
        server.proxy.most = server.proxy.sent = 0
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    cells = f"{statistics.median(times):6.2f} s{len(server.proxy.requests):10}"
    sent = server.proxy.sent / 2**20
    print(f"{name:56}{cells}{server.proxy.most:9}{sent:9.1f}", flush=True)


def directories(server: s3.Server) -> None:
    """Loads arrays of four processes."""
    latency, server.proxy.latency = server.proxy.latency, 0
    options = {name: value for name, value in server.options.items() if name != "retry_config"}
    for count in (8, 40):
        url = server.url(f"directory-{count}")
        processes.run(SAVE, 4, url, json.dumps(options), str(count))
    server.proxy.latency = latency
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    for count in (8, 40):
        url = server.url(f"directory-{count}")
        for name, spec in (("rows", P("x", None)), ("columns", P(None, "x"))):
            place = NamedSharding(mesh, spec)
            load = functools.partial(
                treepack.load, url, sharding=place, storage_options=server.options
            )
            row(server, f"4 files, {count} arrays x 4 shards, as {name}", load)
    url, grid = server.url("many"), Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(grid, P("x"))
    tree = {f"w{at}": jax.device_put(np.zeros((64, 512), np.float32), rows) for at in range(60)}
    treepack.save(url, tree, sharded=True, storage_options=server.options)
    load = functools.partial(treepack.load, url, tree, storage_options=server.options)
    row(server, "1 file, 60 arrays x 8 shards", load)


def one_file(server: s3.Server) -> None:
    """Opens and loads a file, and parts of it."""
    url, options = server.url("file"), server.options
    tree = {f"w{at}": np.full((1024, 1024), at, np.float32) for at in range(32)}
    treepack.save(url, tree, storage_options=options)

    def opened(use: Callable[[treepack.File], Any]) -> None:
        with treepack.open(url, storage_options=options) as file:
            use(file)

    row(server, "128 MiB: open, list", lambda: opened(lambda file: list(file.leaves())))
    row(server, "open, a leaf", lambda: opened(lambda file: np.asarray(file["w7"])))
    row(server, "open, ten rows", lambda: opened(lambda file: file["w7"][500:510]))
    load = functools.partial(treepack.load, url, arrays="numpy", storage_options=options)
    row(server, "load", load)
    row(server, "load every other leaf", lambda: load(select=[f"w{at}" for at in range(0, 32, 2)]))
    row(server, "verify", lambda: treepack.verify(url, storage_options=options))


def without_index(server: s3.Server) -> None:
    """Opens files as flax writes them."""
    dense = {"bias": np.zeros(512, np.float32), "kernel": np.zeros((512, 512), np.float32)}
    layer = {"attention": dict.fromkeys(("key", "out", "query", "value"), dense)}
    layer |= {"mlp": {"down": np.zeros((2048, 512)), "up": np.zeros((512, 2048))}}
    trees = {
        "150 layers alike": {f"w{at}": dense for at in range(150)},
        "a transformer": {f"layer_{at}": layer for at in range(8)},
    }
    for name, tree in trees.items():
        data = server.proxy.files["/flax"] = serialization.to_bytes(tree)
        path = "w77/kernel" if "w77" in tree else "layer_5/mlp/up"

        def opened(use: Callable[[treepack.File], Any]) -> None:
            with treepack.open(f"{server.proxy.url}/flax") as file:
                use(file)

        label = f"flax, {name}, {len(data) >> 20} MiB: open, "
        row(server, f"{label}list", lambda: opened(lambda file: list(file.leaves())))
        row(server, f"{label}rows", lambda path=path: opened(lambda file: file[path][5:15]))


HOSTS = 2000

# The process that loads its own part of the checkpoint.
OWN = 1234


def many_hosts(server: s3.Server) -> None:
    """Commits as process 0 of many when the last message is there; loads as each of them."""
    _, plan = scale.plan(HOSTS, 1)
    whole = np.zeros((HOSTS * scale.DEVICES_PER_HOST, 1024), np.float32)
    names = [f"layer_{at}" for at in range(scale.LEAVES)]
    tree = {name: {"kernel": whole} for name in names}
    draft = core.Manifest.planned(Encoding(align=1, index=True, gaps=True).tree(tree), plan)
    url, options = server.url("hosts"), server.options
    store = from_url(
        f"s3://{s3.BUCKET}",
        client_options={"allow_http": True},
        **options,
    )
    files = [Directory.file_name("0123abcd", at) for at in range(HOSTS)]
    written = [Written(name, 1 << 30, at, 5) for at, name in enumerate(files)]
    for name in files:
        obstore.put(store, f"hosts/{name}", b"x")
    rows = [OWN * scale.DEVICES_PER_HOST + at for at in range(scale.DEVICES_PER_HOST)]
    shards = {f"[{row}:{row + 1},0:1024]": np.full((1, 1024), row, np.float32) for row in rows}
    own = {name: {"kernel": shards} for name in names}
    treepack.save(f"{url}/{files[OWN]}", own, storage_options=options)
    data = obstore.get(store, f"hosts/{files[OWN]}").bytes().to_bytes()
    with treepack.open(data) as file:
        record = zlib.crc32(file._catalog.record or b"")
    written[OWN] = Written(files[OWN], len(data), record, 5)

    def commit() -> None:
        obstore.delete(store, "hosts/manifest.treepack")
        directory = Directory.at(Address.of(url, options))
        server.proxy.requests.clear()
        there = directory.names()
        assert all(it.name in there for it in written)
        found = [(it.name, it.nbytes, it.record) for it in written]
        directory.commit(draft.with_files(found, "bench"), there, durable=False)

    def load() -> None:
        """Reads the part of a process under the same mesh, as `load(sharding=)` does."""
        with treepack.open(url, storage_options=options) as file:
            own = [(slice(row, row + 1), slice(None)) for row in rows]
            arrays = [file[name]["kernel"] for name in names]
            boxes = [array.plan(index) for array in arrays for index in own]
            find(boxes)
            with fetching(ranges_of(boxes)), reading(boxes, os.cpu_count() or 1) as read:
                found = [read(box)[0, 0] for box in boxes]
        assert found == rows * len(names)

    shards_label = f"{HOSTS} hosts, {HOSTS * len(rows) * len(names):,} shards"
    row(server, f"{shards_label}: commit", commit)
    row(server, "the same: open", lambda: treepack.open(url, storage_options=options).close())
    row(server, f"the same: load one's own {len(rows) * len(names):,} shards", load)


def upload(server: s3.Server, nbytes: int) -> None:
    """Uploads the same bytes as `obstore.put` does."""
    options = server.options
    tree = {"w": np.ones(nbytes, np.uint8)}
    client = {"allow_http": True, "timeout": "300s"}
    store = from_url(f"s3://{s3.BUCKET}", client_options=client, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "same"
        treepack.save(path, tree)
        works: list[Callable[[], Any]] = [
            lambda: treepack.save(server.url("uploaded"), tree, storage_options=options),
            lambda: obstore.put(store, "put", path, chunk_size=16 << 20, max_concurrency=12),
        ]
        times: list[list[float]] = [[], []]
        for turn in range(2 * RUNS):
            for at in (0, 1) if turn % 2 else (1, 0):
                start = time.perf_counter()
                works[at]()
                times[at].append(time.perf_counter() - start)
    ours, theirs = (statistics.median(some[2:]) for some in times)
    figures = f"{ours:.2f} s, obstore.put {theirs:.2f} s: {theirs / ours:.2f} x as fast"
    print(f"upload of {nbytes >> 20} MiB: {figures}")


if __name__ == "__main__":
    main()
