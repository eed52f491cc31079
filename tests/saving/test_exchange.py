"""Safetensors that several processes save together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import processes
import tiers
import treepack
from tiers import examples
from treepack._src.formats.exchange import HIDDEN, writers_of

TREE = """
import json, pathlib, traceback

def end(*error):  # the shutdown of JAX would wait for the other process
    traceback.print_exception(*error, file=sys.stdout)
    sys.stdout.flush()
    os._exit(1)

sys.excepthook = end
from treepack._src.layouts import mapped
from treepack._src.storage.address import Address

mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))

def put(value, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

W = np.arange(4 * 16 * 8, dtype=np.float32).reshape(4, 16, 8)
B = (np.arange(32) / 7).astype(jnp.bfloat16)
HOST = {
    "layers": {"w": W, "norm": W[:, 0] * 2},
    "embed": W[0] + 1,
    "b": B,
    "own": np.arange(10.0),
    "big": np.arange(3, dtype=">i4"),
    "empty": np.zeros((0, 3), np.int8),
    "count": np.int32(5),
}

def distributed():
    return HOST | {
        "layers": {"w": put(W, None, "x", "y"), "norm": put(W[:, 0] * 2, "x")},
        "embed": put(W[0] + 1, "y"),
        "b": put(B),
    }

written, made = [], []

def save(path, *args, real=Address.save):
    if path.endswith(".safetensors"):
        written.append(os.path.basename(path))
    return real(path, *args)

def make(self, real=mapped._Tensor._make):
    made.append(self._path)
    return real(self)

Address.save, mapped._Tensor._make = save, make
RULES = {
    "layers/w": ("model.layers.{l}.w", "o i -> l i o"),
    "layers/norm": ("model.layers.{l}.norm", "m -> l m"),
    "embed": ("model.embed", "v m"),
}
"""

SAVE = (
    TREE
    + """
path, alone, options = args[0], args[1], json.loads(args[2])
background, is_mapped = options.pop("background"), options.pop("is_mapped")
if is_mapped:
    options["mapping"] = RULES
tree = distributed()
saving = treepack.save(path, tree, background=background, metadata={"a": "b"}, **options)
if background:
    saving.result()
assert len(made) == len({*made}), made  # each tensor of a file once
assert not written if path.endswith(".safetensors") and index else written
options.pop("sharded", None)
if index == 0:
    treepack.save(alone, HOST, metadata={"a": "b"}, **options)
"""
)


def files_of(path: Path) -> dict[str, bytes]:
    paths = [path] if path.is_file() else [*path.iterdir()]
    return {each.name: each.read_bytes() for each in paths}


@tiers.parametrize(
    ("count", "devices", "is_file", "options"),
    [
        (2, 1, False, {"max_shard_size": 1000, "is_mapped": True}),
        (2, 2, False, {"max_shard_size": 1000, "background": True}),
        (4, 1, False, {"max_shard_size": 300, "is_mapped": True, "background": True}),
        (2, 1, True, {"is_mapped": True, "background": True}),
        (2, 2, True, {}),
        (2, 1, False, {"max_shard_size": "1KB"}),
        (2, 1, False, {"max_shard_size": 500, "separator": "/", "sharded": True}),
    ],
)
def test_files_are_those_of_one_process(
    tmp_path: Path, count: int, devices: int, is_file: bool, options: dict[str, object]
) -> None:
    suffix = ".safetensors" if is_file else ""
    path, alone = tmp_path / f"together{suffix}", tmp_path / f"alone{suffix}"
    options = {"background": False, "is_mapped": False, "format": "safetensors", **options}
    processes.run(SAVE, count, path, alone, json.dumps(options), devices=devices)
    mine, expected = files_of(path), files_of(alone)
    assert [*mine.values()] == [*expected.values()] if is_file else mine == expected
    assert sorted(tmp_path.iterdir()) == sorted([path, alone])  # nothing else is left


def test_every_process_writes_about_as_much() -> None:
    assert writers_of([5, 1, 1, 1, 1, 1], 2) == [0, 1, 1, 1, 1, 1]
    assert writers_of([3, 3, 3], 1) == [0, 0, 0]
    assert writers_of([1, 2, 3, 4], 2) == [0, 1, 1, 0]


@given(st.lists(st.integers(0, 100)), st.integers(1, 9))
@examples(50)
def test_no_process_writes_more_than_its_share_and_a_file(sizes: Sequence[int], count: int) -> None:
    writers = writers_of(sizes, count)
    loads = [
        sum(size for size, at in zip(sizes, writers, strict=True) if at == process)
        for process in range(count)
    ]
    assert max(loads) <= sum(sizes) / count + max(sizes, default=0)


FAILURES = (
    TREE
    + """
path = args[0]
options = {"format": "safetensors", "max_shard_size": 1000, "mapping": RULES}

def names():
    return sorted(os.listdir(path)) if os.path.isdir(path) else []

treepack.save(path, distributed(), **options)
before = names()

def fails(what, tree, save=treepack.save, **more):
    for background in (False, True):
        try:
            saving = save(path, tree, background=background, **options | more)
            if background:
                saving.result()
        except (ValueError, TypeError, OSError) as error:
            assert what in str(error), error
        else:
            raise AssertionError("no error")
        assert index > 0 or names() == before, names()  # process 0 cleans up

bad = distributed()
if index == 1:
    bad["b"] = object()
fails("object", bad)
other = distributed()
if index == 1:
    other["own"] = np.arange(11.0)
fails("process 1 saved a different tree" if index == 0 else "process 1", other)
turned = distributed()
if index == 1:  # arrays of one shape must not be confused
    turned["b"] = turned.pop("b")
    turned["own"] = turned.pop("own")
fails("process 1 saved a different tree" if index == 0 else "process 1", turned)

def enough(done, total):
    assert 0 <= done <= total
    if index == 1 and written:
        raise ValueError("enough")

written.clear()
fails("enough", distributed(), progress=enough)
same = "the same mapping=, separator=, max_shard_size="
fails(same, distributed(), max_shard_size=1000 * (1 + index))
fails(same, distributed(), metadata={"process": str(index)})
square = {"a": put(W[0, :8]), "b": put(W[1, :8], "x")}
for rule in ("m", "a b -> b a"), ("m", "a b", {"scale": 2.0}):  # headers are equal
    fails(same, square, mapping={"b": rule if index else ("m", "a b")})
fails(same, square, mapping={"a": "b", "b": "a"} if index else {"a": "a"})

def torn(path, *args, real=Address.save):
    if index == 1 and path.endswith(".safetensors"):
        raise OSError(28, "No space left on device", path)
    return real(path, *args)

Address.save = torn
fails("No space left", distributed())
Address.save = save
tied = distributed()
tied["head"] = put(W[0] + 2, "y")
fails("differ", tied, mapping=RULES | {"head": ("model.embed", "v m")})
file = pathlib.Path(path + ".safetensors")
treepack.save(file, square)
old = file.read_bytes()
try:
    treepack.save(file, square, mapping={"b": ("m", "a b -> b a" if index else "a b")})
except ValueError as error:
    assert same in str(error), error
else:
    raise AssertionError("no error")
assert index > 0 or file.read_bytes() == old
try:
    treepack.save(file, tied, format="safetensors", mapping={"embed": "e", "head": "e"})
except ValueError as error:
    assert "differ" in str(error), error
if index == 0:
    assert [each for each in os.listdir(file.parent) if "safetensors" in each] == [file.name]
treepack.save(path, distributed(), **options)
assert before != names() and len(before) == len(names()) or index
print("failed")
"""
)


def test_an_error_in_one_process_is_one_in_all(tmp_path: Path) -> None:
    assert "failed" in processes.run(FAILURES, 2, tmp_path / "model")


def test_only_shards_of_a_save_are_removed(tmp_path: Path) -> None:
    tree = {"w": np.arange(4.0)}
    for path, room in (
        (tmp_path / "model", tmp_path / "model"),
        (tmp_path / "model.safetensors", tmp_path / ".model.safetensors"),
    ):
        (room / HIDDEN).mkdir(parents=True)
        left = room / HIDDEN / "1f0c9a2e-00001.treepack"
        mine = room / HIDDEN / ".notes"
        for each in (left, mine):
            each.write_bytes(b"text")
        treepack.save(path, tree, format="safetensors")
        assert left.exists()
        assert mine.read_bytes() == b"text"
        mine.unlink()
        treepack.save(path, tree, format="safetensors")
        assert not (room / HIDDEN).exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "model.safetensors"]
    (tmp_path / "model" / HIDDEN).write_bytes(b"text")
    treepack.save(tmp_path / "model", tree, format="safetensors")
    assert (tmp_path / "model" / HIDDEN).exists()


def test_a_lease_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "lease.treepack").write_bytes(b"{}")
    with pytest.raises(ValueError, match="its save has not finished"):
        treepack.load(tmp_path)


REARRANGED = (
    TREE
    + """
path, background = args[0], args[1] == "True"
tree = distributed() | {"text": "t", "none": {}, "key": jax.random.key(3), "n": 3}
rules = RULES | {"own": "mine", "big": ("turned", "1 a -> a")}
saving = treepack.save(path, tree, mapping=rules, metadata={"a": 1}, background=background)
if background:
    saving.result()
assert len(made) == len({*made}), made
assert made  # in each process
for other in ({"embed": ("e", "a b")}, {"embed": ("e", "a b", {"scale": 2.0})}), (rules, {}):
    try:
        treepack.save(path, tree, mapping=other[index % 2])
    except ValueError as error:
        assert "the same mapping=" in str(error) or "another tree" in str(error), error
    else:
        raise AssertionError("no error")
if index == 0:
    tree |= HOST
    treepack.save(args[2], tree, mapping=rules, metadata={"a": 1}, sharded=False)
"""
)


@tiers.parametrize(("count", "background"), [(2, False), (4, True)])
def test_a_mapping_of_a_sharded_directory(tmp_path: Path, count: int, background: bool) -> None:
    path, alone = tmp_path / "together", tmp_path / "alone.treepack"
    processes.run(REARRANGED, count, path, background, alone)
    assert sorted(tmp_path.iterdir()) == sorted([path, alone])
    assert len([*path.glob("*-*.treepack")]) == count
    assert not treepack.diff(path, alone)
    assert treepack.digest(path) == treepack.digest(alone)
    assert treepack.verify(path).ok
    assert treepack.read_metadata(path) == {"a": 1}
    loaded = treepack.load(path)
    assert loaded["turned"].tolist() == [[0, 1, 2]]
    assert loaded["none"] == {}


@pytest.mark.parametrize("background", [False, True])
def test_a_mapping_of_a_directory_of_one_process(tmp_path: Path, background: bool) -> None:
    tree = {"w": np.arange(24.0).reshape(4, 6), "s": np.float32(2), "n": 3, "none": {}}
    rules = {"w": ("m.{l}", "a -> l a")}
    options = {"mapping": rules, "background": background}
    savings = [
        treepack.save(tmp_path / "directory", tree, sharded=True, **options),  # type: ignore[call-overload]
        treepack.save(tmp_path / "file.treepack", tree, **options),  # type: ignore[call-overload]
    ]
    tree["w"][0] = 7  # after the save, or its copy
    for saving in savings if background else ():
        saving.result()
    assert not treepack.diff(tmp_path / "directory", tmp_path / "file.treepack")
    assert treepack.load(tmp_path / "directory")["m"]["0"].tolist() == [0, 1, 2, 3, 4, 5]


BUSY = (
    TREE
    + """
from treepack._src.claims.lease import Permit
import contextlib
path = pathlib.Path(args[0])
is_held = index == 0 and path.suffix == ""
hold = Permit.taken(Address.of(path), "other") if is_held else contextlib.nullcontext()
with hold:
    try:
        treepack.save(path, distributed(), format="safetensors", timeout=60)
    except ValueError as error:
        assert "being saved to" in str(error) or "already" in str(error), error
    else:
        raise AssertionError("no error")
print("busy")
"""
)


@pytest.mark.campaign
def test_another_job_saves_to_the_directory(tmp_path: Path) -> None:
    assert "busy" in processes.run(BUSY, 2, tmp_path / "model")
    assert not any((tmp_path / "model").iterdir())


OVERTAKEN = (
    TREE
    + """
lease = pathlib.Path(args[0], "lease.treepack")

def overtaken(path, *rest, real=Address.save):
    # As after process 0 stood still for longer than its lease.
    if index == 1 and path.endswith(".safetensors"):
        lease.unlink()
        lease.write_text('{"name": "other"}')
        written.append(path)
    return real(path, *rest)

Address.save = overtaken
try:
    treepack.save(args[0], distributed(), format="safetensors", max_shard_size=1000)
except ValueError as error:
    assert "the lease of " in str(error) and " is gone" in str(error), error
else:
    raise AssertionError("no error")
assert not any(map(os.path.exists, written)), written
print("overtaken")
"""
)


@pytest.mark.campaign
def test_no_file_gets_its_name_without_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert "overtaken" in processes.run(OVERTAKEN, 2, path)
    assert not (path / "model.safetensors.index.json").exists()


KILLED = (
    TREE
    + """
def die(path, *rest, real=Address.save):
    if path.endswith(".safetensors"):
        os._exit(9)
    return real(path, *rest)

if index == int(args[1]):
    Address.save = die
try:
    treepack.save(args[0], distributed(), format="safetensors", max_shard_size=1000, timeout=1)
except ValueError as error:
    assert "process 1: did not" in str(error), error
os._exit(0)  # without waiting for the other
"""
)

AGAIN = (
    TREE
    + """
treepack.save(args[0], distributed(), format="safetensors", max_shard_size=1000)
"""
)


@pytest.mark.campaign
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("killed", [0, 1])
def test_the_next_save_removes_shards_of_a_killed_one(
    tmp_path: Path, killed: int, together: bool
) -> None:
    path = tmp_path / "model"
    tree = {"w": np.arange(4.0)}
    treepack.save(path, tree, format="safetensors")
    programs = processes.start(KILLED, 2, path, killed)
    for number, program in enumerate(programs):
        output, _ = program.communicate(timeout=600)
        assert program.returncode == 9 if number == killed else killed == 0 or not output, output
    np.testing.assert_array_equal(treepack.load(path)["w"], tree["w"])
    assert (path / HIDDEN).exists() is (killed == 0)
    if together:
        processes.run(AGAIN, 2, path)
    else:
        treepack.save(path, tree, format="safetensors")
    assert not (path / HIDDEN).exists()
    assert not [each for each in path.iterdir() if each.name.startswith(".")]
    assert len(treepack.load(path)) == (7 if together else 1)
