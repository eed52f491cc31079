"""Saves and loads below a limit of the state and 256 MiB, with nothing left behind after each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import processes
import tiers
from support import s3

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")

START = """
import gc, json, resource
from pathlib import Path
kind, folder, count, options = args[0], args[1], int(args[2]), json.loads(args[3])
MIB = 1 << 20

def addresses():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def limit(nbytes):
    resource.setrlimit(resource.RLIMIT_AS, (addresses() + int(nbytes), -1))

def check_growth(used):
    # The first half fills what is kept for the next calls: stacks, arenas, a spare buffer.
    half = used[len(used) // 2:]
    if count > 30:
        assert half[-1] - half[0] < MIB * len(half), used
    print("growth", half[-1] - half[0])

# Leaves of several sizes: the largest is half of the state.
def state(nbytes):
    sizes = [nbytes // 2, *[nbytes // 32] * 15, nbytes // 32 - 4096, *[64] * 64]
    made = {f"w{at}": jnp.arange(size // 4, dtype=jnp.float32) for at, size in enumerate(sizes)}
    if kind == "devices":
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
        made = {name: jax.device_put(it, rows) for name, it in made.items()}
    elif kind == "NumPy":
        made = {name: np.array(it) for name, it in made.items()}
    return jax.block_until_ready(made)

SAVES = {
    "file": {},
    "NumPy": {},
    "gzip": {"compress": True, "level": 1},
    "numbers": {"compress": "numbers"},
    "sharded": {"sharded": True},
    "devices": {"sharded": True},
    "safetensors": {},
    "cast": {"sharded": True},
    "background": {"background": True},
    "store": {},
}
name = "state.safetensors" if kind == "safetensors" else "state"

def save(path, tree):
    saving = treepack.save(
        f"{path}/{name}", tree, durable=False, storage_options=options or None, **SAVES[kind])
    if saving is not None:
        saving.result()

small, large = state(4 * MIB), state(int(args[4]) * MIB)
save(folder + "/small", small)
"""

SAVES = (
    START
    + """
limit(256 * MIB)
used = []
for number in range(count):
    save(folder + "/large", large)
    used.append(anonymous())
check_growth(used)
"""
)

LOADS = (
    START
    + """
save(folder + "/large", large)

def load(path, tree):
    template = {
        name: jax.ShapeDtypeStruct(
            it.shape,
            jnp.bfloat16 if kind == "cast" else it.dtype,
            sharding=getattr(it, "sharding", None),
        )
        for name, it in tree.items()
    }
    # A mapped file takes addresses, and its pages may be dropped at any time.
    found = treepack.load(
        f"{path}/{name}", template, mmap=False, cast=True, storage_options=options or None)
    return jax.block_until_ready(found)

load(folder + "/small", small)
# Arrays lie in the memory that the file was read to, except cast arrays and arrays of safetensors,
# which are not aligned as JAX needs.
copies = {"cast": 0.5, "safetensors": 1}
limit((int(args[4]) * (1 + copies.get(kind, 0)) + 256) * MIB)
used = []
for number in range(count):
    found = load(folder + "/large", large)
    assert all((found[name] == it).all() for name, it in small.items() if it.size == 16)
    del found
    gc.collect()  # jax keeps memory that it shares with NumPy until then
    used.append(anonymous())
check_growth(used)
"""
)

# More than 256 MiB, so that there is no room for a copy.
LARGE_MIB = 288

SAVED = ["file", "sharded", "background", "NumPy", "gzip", "numbers", "devices", "safetensors"]
LOADED = [*SAVED, "cast"]
QUICK = [(SAVES, "file"), (LOADS, "sharded")]
ALL = [(SAVES, kind) for kind in SAVED] + [(LOADS, kind) for kind in LOADED]
CASES = [*dict.fromkeys([*QUICK, *tiers.some(ALL)])]


def check(
    program: str,
    kind: str,
    folder: str,
    options: dict[str, object],
    *,
    count: int = 2,
    mib: int = LARGE_MIB,
) -> None:
    devices = 4 if kind == "devices" else 1
    text = json.dumps(options)
    found = processes.run(program, 1, kind, folder, count, text, mib, devices=devices)
    assert "growth" in found


@pytest.mark.parametrize(
    ("program", "kind"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.campaign) for case in CASES],
    ids=[f"{'save' if program is SAVES else 'load'}-{kind}" for program, kind in CASES],
)
def test_little_memory_is_needed_beside_the_state(in_memory: Path, program: str, kind: str) -> None:
    check(program, kind, str(in_memory), {})


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["file", "sharded", "background"])
def test_fifty_saves_leave_less_than_a_mebibyte_each(in_memory: Path, kind: str) -> None:
    mib = tiers.either(32, 32, nightly=LARGE_MIB)
    check(SAVES, kind, str(in_memory), {}, count=50, mib=mib)


@pytest.mark.campaign
@pytest.mark.parametrize("program", [SAVES, LOADS], ids=["saves", "loads"])
def test_little_memory_is_needed_for_a_store(program: str) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3.running() as server:
        given = {key: it for key, it in server.options.items() if isinstance(it, (str, bool))}
        check(program, "store", server.url("ceiling"), given)
