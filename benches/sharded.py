"""Compares sharded checkpoints with Orbax's, in time and memory.

    python benches/sharded.py                    # 1 GiB, 2 processes with 4 devices each
    python benches/sharded.py --mib 256 --runs 3

Processes of `jax.distributed` on this machine save the state of a transformer and load it: onto
the mesh that it was saved from, and onto another one, where each process needs half of what each
has written. They take turns at going first. Times are of the slowest process after a barrier;
medians. Loaded and saved trees are compared.

- Arrays that are mapped files have not been read when a load returns. So there is also the time
  until each process has read every byte that its devices have.
- Devices are CPU devices, whose memory need not be copied before a background save returns. Memory
  of other devices must be copied, which takes most of the time until such a save returns.
- Memory is the peak of resident memory, mapped files included, in fresh processes. There each has a
  copy of the checkpoint, as on a machine of its own, for the bytes read from the disk, readahead
  included.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization as flax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import compare
import measure
import treepack
from open import bytes_from_disk, drop

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import processes

LAYERS = 11
MESHES = ("same mesh", "other mesh")

Tree = Any
# Names of rows and figures, of each peer.
Figures = dict[str, dict[str, list[float]]]
Row = tuple[str, float]


# The saved trees


def template(mib: int, mesh_name: str = MESHES[0]) -> Tree:
    """Returns shapes, dtypes and shardings of 135 arrays, which are about so large together."""
    devices = np.array(jax.devices()).reshape(-1, 2)
    # Transposed, rows are split into fewer parts and columns into more, and the devices of a
    # process have columns where they had rows.
    mesh = Mesh(devices if mesh_name == MESHES[0] else devices.T, ("data", "model"))
    # A layer of width d has about 12 d² elements; the embeddings have 9 d².
    d = int((mib * 2**18 / (12 * LAYERS + 9)) ** 0.5) // 16 * 16

    def array(*shape: int, split: tuple[str | None, ...] = (), dtype: Any = np.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*split)))

    def dense(rows: int, columns: int, *split: str) -> Tree:
        return {"kernel": array(rows, columns, split=split), "bias": array(columns)}

    layer = {
        "ln_1": {"scale": array(d), "bias": array(d)},
        "c_attn": dense(d, 3 * d, "data", "model"),
        "c_proj": dense(d, d, "model", "data"),
        "ln_2": {"scale": array(d), "bias": array(d)},
        "mlp": [dense(d, 4 * d, "data", "model"), dense(4 * d, d, "data")],
    }
    return {
        "transformer": {f"h_{number}": layer for number in range(LAYERS)},
        "wte": array(8 * d, d, split=("data", "model")),
        "wpe": array(d, d, split=(None, "model")),
        "step": array(dtype=np.int32),
    }


def values(like: Tree) -> Tree:
    """Returns values for a template, the same in all processes."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: np.asarray(rng.standard_normal(leaf.shape, np.float32), leaf.dtype), like
    )


def placed(like: Tree, whole: Tree) -> Tree:
    """Returns values on the devices of a template."""

    def put(leaf: jax.ShapeDtypeStruct, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, value.__getitem__)

    return jax.block_until_ready(jax.tree.map(put, like, whole))


def shards(like: Tree, *, here: bool) -> list[tuple[tuple[int, str], int]]:
    """Returns which shard each device has, or each of this process, and of how many bytes."""
    return [
        ((number, str(index)), math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize)
        for number, leaf in enumerate(jax.tree.leaves(like))
        for sharding in [leaf.sharding]
        for device, index in sharding.devices_indices_map(leaf.shape).items()
        if not here or device.process_index == jax.process_index()
    ]


def held(like: Tree) -> int:
    """Returns how many bytes the devices of this process have, replicas included."""
    return sum(nbytes for _, nbytes in shards(like, here=True))


def read_through(tree: Tree) -> Tree:
    """Reads every byte that the devices of this process have."""
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            np.asarray(shard.data).view(np.int32).max()
    return tree


def check(tree: Tree, like: Tree, whole: Tree) -> None:
    """Raises unless a tree equals the saved one, on the requested devices."""

    def check_leaf(found: jax.Array, leaf: jax.ShapeDtypeStruct, value: np.ndarray) -> None:
        assert (found.dtype, found.sharding) == (leaf.dtype, leaf.sharding)
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(shard.data, value[shard.index])

    jax.tree.map(check_leaf, tree, like, whole)


# The peers


class Peer(NamedTuple):
    """How a library saves to new directories, which have numbers as names.

    Attributes:
      save: Returns when all processes have saved; `None` if it does so in the background alone.
      start: Returns a function that waits for the save.
      load: Returns the saved tree on the devices of a template.
      prepare: Called once before all saves.
    """

    save: Callable[[Path, Tree], Any] | None
    start: Callable[[Path, Tree], Callable[[], Any]] | None = None
    load: Callable[[Path, Tree], Tree] | None = None
    prepare: Callable[[Tree], None] | None = None


# Gets a peer, given the directory of its directories.
Factory = Callable[[Path], Peer]


def _treepack(_: Path) -> Peer:
    save = functools.partial(treepack.save, sharded=True)
    return Peer(save, lambda path, tree: save(path, tree, background=True).result, treepack.load)


def _orbax_restore(like: Tree) -> ocp.args.PyTreeRestore:
    how = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.args.PyTreeRestore(item=like, restore_args=how)


def _orbax(_: Path, **options: bool) -> Peer:
    now = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options))
    later = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**options))

    def start(path: Path, tree: Tree) -> Callable[[], Any]:
        later.save(path, args=ocp.args.PyTreeSave(tree))
        return later.wait_until_finished

    return Peer(
        lambda path, tree: now.save(path, args=ocp.args.PyTreeSave(tree)),
        start,
        lambda path, like: now.restore(path, args=_orbax_restore(like)),
    )


def _flax(_: Path) -> Peer:
    """Returns the baseline: process 0 gathers everything and writes a file."""

    def save(path: Path, tree: Tree) -> None:
        whole = multihost_utils.process_allgather(tree, tiled=True)
        if jax.process_index() == 0:
            path.mkdir(parents=True)
            with (path / "flax").open("wb") as file:
                file.write(flax.to_bytes(whole))
                file.flush()
                os.fsync(file.fileno())
        barrier()

    return Peer(save)


def _dd(root: Path) -> Peer:
    """Returns the lower bound: each process writes and syncs its bytes."""
    here = root / f"{jax.process_index()}.bytes"

    def save(path: Path, tree: Tree) -> None:
        path.mkdir(parents=True, exist_ok=True)
        target = path / str(jax.process_index())
        subprocess.run(
            ["dd", f"if={here}", f"of={target}", "bs=1M", "conv=fsync", "status=none"], check=True
        )
        barrier()

    def prepare(tree: Tree) -> None:
        root.mkdir(parents=True, exist_ok=True)
        with here.open("wb") as file:
            for leaf in jax.tree.leaves(tree):
                for shard in leaf.addressable_shards:
                    if shard.replica_id == 0:
                        file.write(np.asarray(shard.data).reshape(-1).view(np.uint8))

    return Peer(save, prepare=prepare)


def _managed(handler: Any, save_args: Any, restore_args: Any, root: Path) -> Peer:
    """Returns a `CheckpointManager` with a handler."""
    manager = ocp.CheckpointManager(root, item_handlers=handler)

    def start(path: Path, tree: Tree) -> Callable[[], Any]:
        manager.save(int(path.name), args=save_args(tree))
        return manager.wait_until_finished

    def load(path: Path, like: Tree) -> Tree:
        return manager.restore(int(path.name), args=restore_args(like))

    return Peer(None, start, load)


# Without compression, and without a database as well.
RAW = {
    "orbax raw": {"use_compression": False},
    "orbax raw zarr": {"use_compression": False, "use_ocdbt": False},
}

PEERS: dict[str, Factory] = {
    "treepack": _treepack,
    "orbax": _orbax,
    **{name: functools.partial(_orbax, **options) for name, options in RAW.items()},
    "flax": _flax,
    "dd": _dd,
}


def managed() -> dict[str, Factory]:
    """Returns the peers that save inside of a `CheckpointManager`."""
    args = ocp.args
    how = {"orbax": (ocp.StandardCheckpointHandler(), args.StandardSave, args.StandardRestore)}
    for name, options in RAW.items():
        how[name] = ocp.PyTreeCheckpointHandler(**options), args.PyTreeSave, _orbax_restore
    try:
        import treepack.orbax as ours
    except ImportError:
        pass
    else:
        how = {"treepack": (ours.TreepackHandler(), ours.TreepackSave, ours.TreepackRestore)} | how
    return {name: functools.partial(_managed, *parts) for name, parts in how.items()}


# The measurements


def barrier() -> None:
    """Waits for all processes."""
    multihost_utils.sync_global_devices("benchmark")


def files_in(folder: Path) -> list[Path]:
    """Returns all files of a directory."""
    return [path for path in folder.rglob("*") if path.is_file()]


def clear(folder: Path) -> None:
    """Removes the checkpoints of all processes."""
    barrier()
    if jax.process_index() == 0:
        shutil.rmtree(folder)
    barrier()


def laps(*calls: Callable[[], Any], memory: int, cold: Path | None = None) -> list[float]:
    """Returns after how many seconds each of some calls is done, one after the other."""
    gc.collect()  # also of mappings of files that must be cold
    measure.touch(memory)
    barrier()
    if cold and jax.process_index() == 0:
        for path in files_in(cold):
            drop(path)
    barrier()
    start = time.perf_counter()
    return [(call(), time.perf_counter() - start)[1] for call in calls]


def turn_of(
    peer: Peer, path: Path, likes: dict[str, Tree], tree: Tree, whole: Tree
) -> Iterator[Row]:
    """Yields the seconds of all that a peer does once."""
    memory = held(likes[MESHES[0]])
    kept: list[Any] = []
    if peer.save:
        yield "save", laps(lambda: peer.save(path, tree), memory=memory)[0]
        clear(path)
    if not peer.load:
        return
    start = functools.partial(peer.start, path, tree)
    returned, done = laps(lambda: kept.append(start()), lambda: kept.pop()(), memory=memory)
    yield "save in the background: returns", returned
    yield "save in the background: is done", done
    for heat, (mesh_name, like) in itertools.product(("warm", "cold"), likes.items()):
        load = functools.partial(peer.load, path, like)
        returned, done = laps(
            lambda load=load: kept.append(jax.block_until_ready(load())),
            lambda: read_through(kept[0]),
            memory=memory,
            cold=path if heat == "cold" else None,
        )
        check(kept.pop(), like, whole)
        yield f"load, {heat}, {mesh_name}", returned
        yield f"load, {heat}, {mesh_name}, and read", done
    clear(path)


def times(folder: Path, factories: dict[str, Factory], mib: int, runs: int) -> Figures:
    """Returns the seconds of peers, which take turns."""
    peers = {name: make(folder / name) for name, make in factories.items()}
    likes = {name: template(mib, name) for name in MESHES}
    whole = values(likes[MESHES[0]])
    tree = placed(likes[MESHES[0]], whole)
    for peer in peers.values():
        if peer.prepare:
            peer.prepare(tree)
    found: Figures = {name: defaultdict(list) for name in peers}
    for turn in range(runs + 1):
        names = [*peers] * 2
        for name in names[turn % len(peers) :][: len(peers)]:
            path = folder / name / str(turn)
            for row, seconds in turn_of(peers[name], path, likes, tree, whole):
                if turn:  # the first one is to warm up
                    found[name][row].append(seconds)
    return found


def needs_to_save(folder: Path, name: str, mib: int) -> Iterator[Row]:
    """Yields the memory that a peer needs to save, relative to the state of the process."""
    peer, path = PEERS[name](folder / name), folder / name / "1"
    # Memory that it needs for any size, such as imports, does not count.
    small, like = template(1), template(mib)
    peer.save(folder / name / "0", placed(small, values(small)))
    tree = placed(like, values(like))
    yield "memory: save", measure.peak_memory(lambda: peer.save(path, tree)) / held(like)
    size = sum(path.stat().st_size for path in files_in(path))
    yield "size of the files", size / sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    if name == "treepack":
        manifest = (path / "manifest.treepack").stat().st_size
        yield "manifest: bytes a shard", manifest / len(dict(shards(like, here=False)))


def needs_to_load(folder: Path, name: str, mib: int, mesh_name: str) -> Iterator[Row]:
    """Yields the memory that a peer needs to load the checkpoint of `needs_to_save`."""
    root = folder / f"{jax.process_index()}" / name
    shutil.copytree(folder / name, root, dirs_exist_ok=True)
    peer, like = PEERS[name](root), template(mib, mesh_name)
    read_through(peer.load(root / "0", template(1, mesh_name)))
    for path in files_in(root):
        drop(path)
    before = bytes_from_disk()
    load = functools.partial(peer.load, root / "1", like)
    peak = measure.peak_memory(lambda: read_through(jax.block_until_ready(load())))
    yield f"memory: load, {mesh_name}", peak / held(like)
    needed = sum(dict(shards(like, here=True)).values())
    yield f"from the disk: load, {mesh_name}", (bytes_from_disk() - before) / needed


# The groups of processes

PROGRAM = "sys.path.insert(0, args[0]); import sharded; sharded.work(*args[1:])"


def work(task: str, peer: str, folder: str, mib: str, runs: str) -> None:
    """Runs one process of a group, and writes its figures to a file."""
    root, size = Path(folder), int(mib)
    if task == "times":
        found = times(root / task, PEERS, size, int(runs))
    elif task == "managed":
        found = times(root / task, managed(), size, int(runs))
    else:
        is_save = task == "save"
        rows = needs_to_save(root, peer, size) if is_save else needs_to_load(root, peer, size, task)
        found = {peer: {row: [figure] for row, figure in rows}}
    (root / f"{jax.process_index()}.json").write_text(json.dumps(found))
    barrier()  # one that ends while others work would take them with it


def group(options: argparse.Namespace, folder: str, task: str, peer: str = "") -> Figures:
    """Returns the figures of fresh processes: the slowest or largest of each."""
    count, devices = options.processes, options.devices
    if task == "managed":
        count, devices = 1, count * devices
    what = Path(__file__).parent, task, peer, folder, options.mib, options.runs
    processes.run(PROGRAM, count, *what, devices=devices, timeout=3600, fresh=True)
    paths = [Path(folder, f"{index}.json") for index in range(count)]
    found, *others = [json.loads(path.read_text()) for path in paths]
    for name, rows in found.items():
        for row, figures in rows.items():
            runs = zip(figures, *(other[name][row] for other in others), strict=True)
            rows[row] = [max(run) for run in runs]
    return found


def show(title: str, found: Figures, *, ratios: bool = True) -> None:
    """Prints a table of medians, and how much slower the fastest of Orbax is."""
    print(f"\n{title:38}", *(f"{name:>15}" for name in found), "  orbax/treepack" * ratios)
    for row in dict.fromkeys(row for rows in found.values() for row in rows):
        medians = {name: statistics.median(rows.get(row, [np.nan])) for name, rows in found.items()}
        cells = [f"{'' if np.isnan(it) else f'{it:.3f}':>15}" for it in medians.values()]
        orbax = min(median for name, median in medians.items() if name.startswith("orbax"))
        if ratios and "treepack" in medians:
            cells.append(f"{orbax / medians['treepack']:16.1f}")
        print(f"  {row:36}", *cells, flush=True)


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="how often times are measured")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices", type=int, default=4, help="how many each process has")
    parser.add_argument("--folder", help="where to write; a temporary directory by default")
    options = parser.parse_args()
    about = compare.about(argparse.Namespace(size=options.mib, rounds=options.runs))
    versions = [f"{name} {about['versions'][name]}" for name in ("jax", "orbax-checkpoint")]
    print(f"{about['machine']}, {', '.join(versions)}")
    shape = f"{options.processes} processes with {options.devices} devices each"
    print(f"{options.mib} MiB in 135 arrays, {shape}, medians of {options.runs} runs")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = functools.partial(group, options, folder)
        show("seconds", run("times"))
        found: Figures = {name: {} for name in PEERS if name != "dd"}
        for name, task in itertools.product(found, ("save", *MESHES)):
            if task == "save" or name != "flax":
                found[name] |= run(task, name)[name]
        show("times what is held, or needed", found, ratios=False)
        show("seconds in a CheckpointManager", run("managed"))


if __name__ == "__main__":
    main()
