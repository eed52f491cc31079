"""Shards that several processes hold: one reads each, and the others get every bit of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
from support import processes, s3

START = """
import json, os, re, signal, sys, time
from pathlib import Path
from treepack._src.placing import placement
from treepack._src.placing import replicas
from treepack._src.placing import transfer

def mesh(*shape, devices=None):
    devices = np.array(jax.devices() if devices is None else devices)
    return Mesh(devices.reshape(shape), ("data", "model")[:len(shape)])

def put(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

def check(found, expected, where):
    assert found.sharding == where and found.dtype == expected.dtype, (found.sharding, where)
    assert found.shape == expected.shape
    for shard in found.addressable_shards:
        assert np.asarray(shard.data).tobytes() == expected[shard.index].tobytes(), shard

def load(path, target, **options):
    return treepack.load(path, target, **{"replicas": "broadcast", "timeout": 300} | options)

def raised(call, *texts, error=ValueError):
    try:
        call()
    except error as found:
        assert all(text in str(found) for text in texts), found
        return found
    raise AssertionError("no error")

reads = []  # what this process plans to read

def counted():
    made = placement.ShardedArray.plan
    def plan(self, index, **options):
        reads.append(self.path)
        return made(self, index, **options)
    placement.ShardedArray.plan = plan
"""

BITS = (
    START
    + """
jax.config.update("jax_enable_x64", True)
path, names = args[0], json.loads(args[1])
rng = np.random.default_rng(0)

def bits(name, shape):  # any that there are: NaNs with payloads, -0.0
    dtype = jnp.dtype(name)
    found = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype == bool:
        found &= 1
    info = jnp.iinfo if jnp.issubdtype(dtype, np.integer) else jnp.finfo
    if dtype.kind not in "bc" and info(dtype).bits < 8:
        found &= 2 ** info(dtype).bits - 1
    return np.frombuffer(found.tobytes(), dtype).reshape(shape)

n = jax.device_count()
wide, tall, turned = mesh(n), mesh(n // 2, 2), Mesh(mesh(2, n // 2).devices.T, ("data", "model"))
specs = [P(), P(None, "model"), P("model"), P("data"), P("data", "model"), P(("model", "data"))]
places = [NamedSharding(wide, P()), NamedSharding(wide, P("data"))]
places += [NamedSharding(mesh, spec) for mesh in (tall, turned) for spec in specs]
explicit = (jax.sharding.AxisType.Explicit,) * 2
places.append(NamedSharding(Mesh(tall.devices, ("data", "model"), axis_types=explicit), P("model")))
places.append(NamedSharding(wide, P(), memory_kind="pinned_host"))  # each process reads
expected = {name: bits(name, (8, 16)) for name in names}
expected |= {"scalar": bits("float32", ()), "empty": bits("float32", (0, 3))}
saved = {name: put(it, places[0]) for name, it in expected.items()}
treepack.save(path, saved, sharded=True, durable=False)
for where in places:
    put_at = {name: where if it.ndim and it.size else places[0] for name, it in expected.items()}
    target = {
        name: jax.ShapeDtypeStruct(it.shape, it.dtype, sharding=put_at[name])
        for name, it in expected.items()
    }
    found = load(path, target)
    for name, it in expected.items():
        check(found[name], it, put_at[name])
found = load(path, None, sharding=places[0])
for name, it in expected.items():
    check(found[name], it, places[0])
with jax.set_mesh(tall):
    found = load(path, None, select="float32", sharding=lambda *_: places[3])
check(found["float32"], expected["float32"], places[3])
"""
)

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64"]
DTYPES += ["complex64", "complex128", "int4", "uint2", "float8_e4m3fn", "float4_e2m1fn"]


@pytest.mark.campaign
@pytest.mark.parametrize(("count", "devices"), [(2, 2), (4, 1)])
def test_every_bit_arrives_on_any_mesh(tmp_path: Path, count: int, devices: int) -> None:
    names = json.dumps(DTYPES if count == 2 else ["float32", "bfloat16", "int4"])
    processes.run(BITS, count, tmp_path / "checkpoint", names, devices=devices)


SHARED_OUT = (
    START
    + """
path, model = args[0], np.arange(24 * 32, dtype=np.float32).reshape(24, 32)
everywhere, halves = NamedSharding(mesh(4), P()), NamedSharding(mesh(2, 2), P("model"))
split = NamedSharding(mesh(4), P("data"))
tree = {f"layer_{at:02}": put(model + at, everywhere) for at in range(16)}
tree |= {"half": put(model, halves), "split": put(model, split), "key": jax.random.key(3)}
tree |= {"host": np.arange(3), "step": 7, "here": jnp.ones(3)}
treepack.save(path, tree, sharded=True, durable=False)
counted()
load(path, tree, replicas="read")
assert sorted(reads) == sorted(it for it in tree if it not in ("key", "host", "step")), reads
reads.clear()
steps, agree = [], replicas.Together.agree
replicas.Together.agree = lambda self, plan: (steps.append(plan), agree(self, plan))[1]
transfer.BATCH_BYTES = 2 * model.nbytes
found = load(path, tree)
assert len(steps) == 1 + 9 + 1, steps  # the plan; batches of what all have; of what two have
assert {"split", "here"} <= {*reads}
shared = [it for it in reads if it.startswith("layer")]
assert len(shared) == 4, reads  # 16 over 4 processes
print(json.dumps(shared), file=open(f"{path}.{index}", "w"))
for name in tree:
    if name.startswith("layer"):
        check(found[name], model + int(name[-2:]), everywhere)
check(found["half"], model, halves)
check(found["split"], model, split)
assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(tree["key"]).tolist()
assert found["host"].tolist() == [0, 1, 2] and found["step"] == 7
assert found["here"].tolist() == [1, 1, 1]
as_half = {"half": jax.ShapeDtypeStruct(model.shape, jnp.bfloat16, sharding=halves)}
half = load(path, as_half, cast=True, select="half")["half"]
check(half, model.astype(jnp.bfloat16), halves)
renamed = load(path, {"other": tree["half"]}, mapping={"other": "half"})["other"]
check(renamed, model, halves)
with treepack.open(path) as file:
    check(file.load(tree, replicas="broadcast", select="half")["half"], model, halves)
assert treepack.verify(path).ok  # though devices have used its memory in place
"""
)


@pytest.mark.campaign
def test_processes_share_out_what_they_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    processes.run(SHARED_OUT, 4, path)
    read = [json.loads(Path(f"{path}.{index}").read_text()) for index in range(4)]
    assert sorted(itertools.chain(*read)) == [f"layer_{at:02}" for at in range(16)]


STORE = (
    START
    + """
url, options = args[0], json.loads(args[1])
options["endpoint"] = args[2 + index]  # each process has its own way to the store
ready = Path(args[-1])
model = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
where = NamedSharding(mesh(4), P())
tree = {f"layer_{at}": put(model + at, where) for at in range(16)}
treepack.save(url, tree, sharded=True, storage_options=options)
for replicas in ("read", "broadcast"):
    jax.experimental.multihost_utils.sync_global_devices(replicas)
    if index == 0:
        print(replicas, flush=True)
        sys.stdin.readline()
    jax.experimental.multihost_utils.sync_global_devices(replicas)
    found = load(url, tree, replicas=replicas, storage_options=options)
    for at in range(16):
        check(found[f"layer_{at}"], model + at, where)
jax.experimental.multihost_utils.sync_global_devices("end")
if index == 0:
    print("end", flush=True)
"""
)


@pytest.mark.campaign
def test_a_store_serves_each_shard_once(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    model = 16 << 20
    with s3.running() as server, contextlib.ExitStack() as stack:
        application = server.proxy.application
        proxies = [stack.enter_context(s3.Proxy(application)) for _ in range(4)]
        options = {name: it for name, it in server.options.items() if name != "retry_config"}
        program = "import jax.experimental.multihost_utils\n" + STORE
        what = server.url("model"), json.dumps(options), *(it.url for it in proxies), tmp_path
        started = processes.start(program, 4, *what, stdin=subprocess.PIPE)
        try:
            read = {}
            for name in ("read", "broadcast", "end"):
                line = ""
                while line.strip() != name:
                    line = next(iter(started[0].stdout))
                if name != "read":
                    read["read" if name == "broadcast" else "broadcast"] = [
                        sum(map(s3.requested_bytes, proxy.requests)) for proxy in proxies
                    ]
                for proxy in proxies:
                    proxy.reset()
                if name != "end":
                    started[0].stdin.write("go\n")
                    started[0].stdin.flush()
            outputs = [process.communicate(timeout=600)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0] * 4, outputs
    # The end of a file, which may be all that is needed of it, is requested without an offset.
    assert all(0.9 * model < nbytes < 1.3 * model for nbytes in read["read"]), read
    assert 0.9 * model < sum(read["broadcast"]) < 1.3 * model, read
    assert max(read["broadcast"]) < 0.3 * model, read


FAILURES = (
    START
    + """
saved, mine = Path(args[0]), Path(f"{args[0]}-{index}")
model = np.arange(48, dtype=np.float32).reshape(8, 6)
where, split = NamedSharding(mesh(2), P()), NamedSharding(mesh(2), P("data"))
tree = {"a": put(model, where), "b": put(model, where), "c": put(model, split)}
treepack.save(saved, tree, durable=False)
other = f"{saved}-other"
treepack.save(other, tree, durable=False)

def again():
    jax.experimental.multihost_utils.sync_global_devices("next")
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(saved, mine)
    check(load(mine, tree)["b"], model, where)

for failing in (0, 1):
    here = index == failing
    # No manifest.
    again()
    if here:
        (mine / "manifest.treepack").unlink()
    parts = () if here else (f"process {failing}: NoManifestError: ", "manifest.treepack")
    raised(lambda: load(mine, tree), *parts)
    # No directory.
    again()
    shutil.rmtree(mine) if here else None
    if here:
        raised(lambda: load(mine, tree), error=FileNotFoundError)
    else:
        raised(lambda: load(mine, tree), f"process {failing}: FileNotFoundError: ")
    # A file is damaged, or gone.
    for change in (lambda file: file.write_bytes(file.read_bytes()[:-1]), Path.unlink):
        again()
        if here:
            for file in mine.glob("*-*.treepack"):
                change(file)
        parts = () if here else (f"process {failing}: CorruptionError: ",)
        raised(lambda: load(mine, tree), ".treepack", *parts)
    # The work is interrupted while it reads, after a batch.
    again()
    spread, calls = replicas.spread, []
    def second(*given):
        calls.append(given)
        if len(calls) == 2 and here:
            raise KeyboardInterrupt
        return spread(*given)
    transfer.spread, transfer.BATCH_BYTES = second, 1
    if here:
        raised(lambda: load(mine, tree), error=KeyboardInterrupt)
    else:
        raised(lambda: load(mine, tree), f"process {failing}: KeyboardInterrupt")
    transfer.spread, transfer.BATCH_BYTES = spread, 1 << 28
    # Another target, or other places, or another save.
    again()
    message = "process 1: its load differs from the first process"
    raised(lambda: load(mine, {"a": tree["a"]} if here else tree, missing="target"), message)
    raised(lambda: load(mine, tree, sharding=where if here else {"a": where, "b": split,
        "c": split}), message)
    raised(lambda: load(other if here else mine, tree), "it reads another save of the checkpoint")
again()
treepack.save(saved, tree, durable=False)
keys = jax._src.distributed.global_state.client.key_value_dir_get("treepack/load")
assert len(keys) < 20, keys
"""
)


@pytest.mark.campaign
def test_an_error_in_one_process_is_one_in_all(tmp_path: Path) -> None:
    program = "import jax.experimental.multihost_utils, shutil\n" + FAILURES
    processes.run(program, 2, tmp_path / "checkpoint")


SAVED_AGAIN = (
    START
    + """
saved, mine = Path(args[0]), Path(f"{args[0]}-{index}")
where = NamedSharding(mesh(2), P())
trees = [{"a": put(np.full((4, 4), at, np.float32), where)} for at in range(2)]
for at in range(2):
    treepack.save(f"{saved}-{at}", trees[at], sharded=True, durable=False)
    jax.experimental.multihost_utils.sync_global_devices("saved")
mine = Path(f"{mine}.copy")
shutil.copytree(f"{saved}-0", mine)
share, calls = placement.share, []
def late(*given):  # process 1 has opened the first save, process 0 opens the second
    if index == 1 and not calls:
        shutil.rmtree(mine)
        shutil.copytree(f"{saved}-1", mine)
    calls.append(given)
    return share(*given)
if index == 0:
    shutil.rmtree(mine)
    shutil.copytree(f"{saved}-1", mine)
placement.share = late
check(load(mine, trees[1])["a"], np.ones((4, 4), np.float32), where)
assert len(calls) == 2, len(calls)
"""
)


@pytest.mark.campaign
def test_a_checkpoint_that_is_saved_again_is_read_again_by_all(tmp_path: Path) -> None:
    program = "import jax.experimental.multihost_utils, shutil\n" + SAVED_AGAIN
    processes.run(program, 2, tmp_path / "checkpoint")


MISSING = (
    START
    + """
path = args[0]
late = int(args[1])
markers = [Path(f"{path}.{other}") for other in range(3) if other != late]
where = NamedSharding(mesh(3), P())
tree = {"a": put(np.arange(8, dtype=np.float32), where)}
treepack.save(path, tree, sharded=True, durable=False)
if index != late:
    raised(lambda: load(path, tree, timeout=2), f"process {late}", "did not call load", "2 s")
    Path(f"{path}.{index}").touch()
while not all(other.exists() for other in markers):
    time.sleep(0.05)
if index == late:
    raised(lambda: load(path, tree, timeout=2), "did not call load")  # the one it has missed
check(load(path, tree)["a"], np.arange(8, dtype=np.float32), where)
"""
)


@pytest.mark.campaign
@pytest.mark.parametrize("late", [0, 2])
def test_a_process_that_does_not_come_is_named(tmp_path: Path, late: int) -> None:
    processes.run(MISSING, 3, tmp_path / "checkpoint", late)


KILLED = (
    START
    + """
path = args[0]
where = NamedSharding(mesh(2), P())
tree = {"a": put(np.arange(8, dtype=np.float32), where)}
treepack.save(path, tree, sharded=True, durable=False)
if index == 1:
    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    transfer.spread = killed  # after all have agreed on the plan
raised(lambda: load(path, tree, timeout=5), "process 1: did not call load, or did not finish")
print("named", flush=True)
os._exit(0)  # jax would wait for the other one
"""
)


@pytest.mark.campaign
def test_a_process_that_is_killed_is_named(tmp_path: Path) -> None:
    first, second = processes.start(KILLED, 2, tmp_path / "checkpoint")
    try:
        output = first.communicate(timeout=600)[0]
        second.communicate(timeout=600)
    finally:
        first.kill()
        second.kill()
    assert first.returncode == 0, output
    assert "named" in output
    assert second.returncode == -9


SOME = (
    START
    + """
path, value = args[0], np.arange(32, dtype=np.float32).reshape(8, 4)
everywhere = NamedSharding(mesh(4), P())
tree = {"a": put(value, everywhere), "b": put(value, everywhere)}
treepack.save(path, tree, sharded=True, durable=False)
if index == 3:  # alone: others are not waited for
    own = NamedSharding(mesh(2, devices=jax.local_devices()), P())
    check(load(path, tree, sharding=own)["a"], value, own)
    found = load(path, tree, device=jax.local_devices()[1])["a"]
    assert np.asarray(found).tolist() == value.tolist()
    assert load(path, None, arrays="numpy")["a"].tolist() == value.tolist()
# Two at a time, and one after the other: all have the whole tree.
first, last = (NamedSharding(mesh(2, 2, devices=jax.devices()[at:at + 4]), P(None, "data"))
               for at in (0, 4))
if index < 2:
    check(load(path, tree, sharding=first)["b"], value, first)
places = {"a": first, "b": last}
found = load(path, tree, sharding=places)
for name, where in places.items():
    check(found[name], value, where)
    assert len(found[name].addressable_shards) == 2 * ((name == "a") == (index < 2))
template = treepack.abstract(path)
found = load(path, template, sharding=lambda path, _: everywhere)
check(found["a"], value, everywhere)
# A file is one that all read.
file = f"{path}-{index}.treepack"
treepack.save(file, {"a": np.asarray(value)})
check(load(file, {"a": tree["a"]})["a"], value, everywhere)
"""
)


@pytest.mark.campaign
def test_processes_that_need_nothing_of_others(tmp_path: Path) -> None:
    processes.run(SOME.replace("mesh(4)", "mesh(8)"), 4, tmp_path / "checkpoint", devices=2)


FACES = (
    START
    + """
import orbax.checkpoint as ocp
from treepack import checkpoints
from treepack.orbax import TreepackRestore, TreepackSave
value, where = np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh(2), P())
split = NamedSharding(mesh(2), P("data"))
tree = {"a": put(value, where), "b": put(value, where), "c": put(value, split)}
counted()
checkpoints.save_checkpoint_multiprocess(args[0], tree, 1)
found = checkpoints.restore_checkpoint(args[0], tree, replicas="broadcast", timeout=300)
check(found["b"], value, where)
assert len(reads) == 2, reads
reads.clear()
with ocp.CheckpointManager(args[0] + "-orbax") as manager:
    manager.save(3, args=TreepackSave(tree))
    manager.wait_until_finished()
    found = manager.restore(3, args=TreepackRestore(tree, replicas="broadcast", timeout=300))
    check(found["a"], value, where)
assert len(reads) == 2, reads
"""
)


@pytest.mark.campaign
def test_series_and_orbax_take_the_options(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    processes.run(FACES, 2, tmp_path / "checkpoint", fresh=True)


def test_one_process_reads(tmp_path: Path) -> None:
    where = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())
    treepack.save(tmp_path / "saved", {"a": jnp.ones(4)}, sharded=True)
    for source in (tmp_path / "saved", treepack.dumps({"a": jnp.ones(4)})):
        found = treepack.load(source, sharding=where, replicas="broadcast")["a"]
        assert found.sharding == where
        assert found.tolist() == [1, 1, 1, 1]


def test_options_are_checked(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"a": jnp.ones(4)}, sharded=True)
    wrong: Any = "send"
    with pytest.raises(ValueError, match=r"replicas must be 'read' or 'broadcast'"):
        treepack.load(tmp_path / "saved", replicas=wrong)
    with pytest.raises(ValueError, match="timeout"):
        treepack.load(tmp_path / "saved", timeout=0)
