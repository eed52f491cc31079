"""Copies in several processes: each reads them, or one reads and the others receive.

    python benches/replicas.py                   # 64 MiB in 4 processes, 100 ms a request
    python benches/replicas.py --mib 256 --processes 2 --latency 20 --most 500

All processes load all of the model (data-parallel), from a local directory that is in the page
cache, and from a local server of S3, each through a proxy of its own, which counts bytes and delays
each request: by a latency, and in the last rows also as if the store served all of them so many
MiB/s and no more. Server, proxies and processes share the cores of this machine, and bytes go from
process to process by TCP (gloo). Times are of the slowest process after a barrier, until each has
read every byte of its device; medians. Bytes are served by the store to one process, or to all, in
one load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support import processes, s3

PROGRAM = """
import json, statistics, time
from jax.experimental import multihost_utils
task, path, options, mib, runs, *endpoints = args
options = json.loads(options)
if endpoints:
    options["endpoint"] = endpoints[index]
where = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P())
value = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)  # 2 MiB
names = [f"layer_{at:03}" for at in range(int(mib) // 2)]
if task == "save":
    put = lambda at: jax.make_array_from_callback(
        value.shape, where, lambda index: value[index] + at)
    tree = {name: put(at) for at, name in enumerate(names)}
    treepack.save(path, tree, sharded=True, storage_options=options or None)
else:
    target = {name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=where)
              for name in names}
    times = []
    for _ in range(int(runs) + 1):
        multihost_utils.sync_global_devices("load")
        start = time.perf_counter()
        found = treepack.load(path, target, replicas=task, storage_options=options or None)
        for at, name in enumerate(names):
            shard = np.asarray(found[name].addressable_shards[0].data)
            assert shard.sum(dtype=np.float64) == (value + np.float32(at)).sum(dtype=np.float64)
        times.append(multihost_utils.process_allgather(time.perf_counter() - start).max())
        del found, shard
    print("first", float(times[0]), "then", float(statistics.median(times[1:])))
"""


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mib", type=int, default=64, help="size of the model")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--latency", type=float, default=100, help="milliseconds a request")
    parser.add_argument("--most", type=float, default=100, help="MiB/s that a store serves")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.mib} MiB in {options.processes} processes, medians of {options.runs} runs")
    print(f"{'':36}{'first':>9}{'then':>9}{'MiB a process':>16}{'in all':>9}")
    with tempfile.TemporaryDirectory() as folder:
        measure(options, "directory", f"{folder}/model", {}, [])
    with s3.running() as server, contextlib.ExitStack() as stack:
        proxies = [s3.Proxy(server.proxy.application) for _ in range(options.processes)]
        for proxy in proxies:
            stack.callback(proxy.server_close)
            stack.callback(proxy.shutdown)
        keys = {name: it for name, it in server.options.items() if name != "retry_config"}
        store = f"store, {options.latency:.0f} ms"
        measure(options, store, server.url("model"), keys, proxies)
        measure(
            options,
            f"{store}, {options.most:.0f} MiB/s",
            server.url("slow"),
            keys,
            proxies,
            options.most,
        )


def measure(
    options: argparse.Namespace,
    name: str,
    path: str,
    keys: dict[str, str],
    proxies: list[s3.Proxy],
    most: float | None = None,
) -> None:
    """Saves a model, and prints how long it takes to load it."""
    served = threading.Lock()

    def serve(request: s3.Request) -> None:
        if most is not None:
            with served:
                time.sleep(s3.requested_bytes(request) / 2**20 / most)

    urls = [proxy.url for proxy in proxies]
    for task in ("save", "read", "broadcast"):
        for proxy in proxies:
            proxy.reset()
            if task != "save":
                proxy.latency = options.latency / 1000
                proxy.fault = serve
        what = task, path, json.dumps(keys), options.mib, options.runs, *urls
        printed = processes.run(PROGRAM, options.processes, *what, timeout=3600)
        if task == "save":
            continue
        first, then = (float(printed.split(word)[1].split()[0]) for word in ("first", "then"))
        row = f"{name}: {task}".ljust(36) + f"{first:7.2f} s{then:7.2f} s"
        if proxies:
            requested = [sum(map(s3.requested_bytes, proxy.requests)) for proxy in proxies]
            mib = [nbytes / (options.runs + 1) / 2**20 for nbytes in requested]
            row += f"{max(mib):16.1f}{sum(mib):9.1f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
