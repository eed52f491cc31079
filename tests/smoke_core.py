"""Uses a package without JAX: `python tests/smoke_core.py`, without pytest.

Needs treepack-core[cli] and nothing else. `works` is for trees of NumPy, `of_jax` for what programs
with JAX have saved; `needs_jax` has every call that cannot do without JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import treepack
from treepack import checkpoints, serialization

GOLDEN = Path(__file__).parent / "golden" / "forms"
OF_JAX = GOLDEN / "jax.treepack"  # arrays and PRNG keys of JAX
TREE = {
    "w": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    "l": [np.zeros(3), (1, "text"), None],
    5: {"b": b"bytes", "s": np.float32(2)},
}


@dataclasses.dataclass
class Point:
    x: Any


class Pair(NamedTuple):
    a: Any
    b: Any


class Mode(enum.Enum):
    TRAIN = 1


def same(found: Any, expected: Any = TREE) -> None:
    assert repr(found) == repr(expected), found


def fails(error: type[Exception], text: str, work: Callable[[], object]) -> None:
    found = ""
    try:
        work()
    except error as raised:
        found = str(raised)
    assert text in found, (error, text, found)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Adds the name of a call to what it raises."""
    try:
        yield
    except Exception as error:
        error.add_note(name)
        raise


def in_memory() -> None:
    data = treepack.dumps(TREE, metadata={"step": 3})
    same(treepack.loads(data))
    same(treepack.loads(data, TREE))
    assert treepack.read_metadata(data) == {"step": 3}
    same(treepack.loads(treepack.dumps(TREE, compress="numbers")))
    buffer = bytearray(treepack.packed_size(TREE, described=True))
    treepack.pack_into(TREE, buffer, described=True)
    same(treepack.loads(buffer))
    same(treepack.loads([*treepack.buffers(TREE, described=True)]))
    base, changed = {"w": np.arange(100)}, {"w": np.arange(100) + 1}
    same(treepack.loads(treepack.dumps(changed, base=base), base=base), changed)
    held = bytearray(b"".join(treepack.buffers(base)))
    treepack.apply_delta(b"".join(treepack.buffers(changed, base=base)), held)
    same(serialization.msgpack_restore(held), changed)


def dropin(folder: Path) -> None:
    encoded = serialization.to_bytes(TREE)
    same(serialization.from_bytes(TREE, encoded))
    assert serialization.msgpack_restore(encoded).keys() == {"w", "l", "5"}
    assert serialization.validate_serializable(TREE) == (True, [])
    point = serialization.from_bytes(Point(np.zeros(2)), serialization.to_bytes(Point(np.ones(2))))
    assert point.x.sum() == 2
    w = "w: expected float64[3], found bfloat16[2,3]"
    fails(treepack.MismatchError, w, lambda: serialization.from_bytes({"w": np.zeros(3)}, encoded))
    fails(treepack.UnserializableLeafError, "at a", lambda: treepack.dumps({"a": object()}))
    checkpoints.save_checkpoint(folder / "series", TREE, step=7)
    same(checkpoints.restore_checkpoint(folder / "series", TREE))


def in_files(folder: Path) -> None:
    path = folder / "tree.treepack"
    treepack.save(path, TREE, background=True).result()
    same(treepack.load(path))
    same(treepack.load(path, select="l"), {"l": TREE["l"]})
    assert treepack.verify(path).ok
    assert treepack.diff(path, TREE) == []
    with treepack.open(path) as file:
        np.testing.assert_array_equal(file["w"][1:], [[3, 4, 5]])
    treepack.save(folder / "tree.treepack.gz", TREE)
    same(treepack.load(folder / "tree.treepack.gz"))
    treepack.save(folder / "shards", TREE, sharded=True)
    same(treepack.load(folder / "shards"))
    treepack.save(folder / "many.treepack", ((str(at), np.ones(3)) for at in range(3)))
    assert treepack.load(folder / "many.treepack", dtype="bfloat16")["2"].dtype == "bfloat16"
    treepack.write_stream(folder / "stream", [("a/b", np.ones(2))])
    assert [key for key, _ in treepack.read_stream(folder / "stream")] == [("a", "b")]
    layers = {"layers": {"kernel": np.arange(24.0).reshape(4, 2, 3)}}
    rules = {"layers/kernel": ("model.layers.{l}.weight", "o i -> l i o")}
    treepack.save(folder / "model.safetensors", layers, mapping=rules)
    assert treepack.load(folder / "model.safetensors")["model"]["layers"]["3"]["weight"].shape == (
        3,
        2,
    )
    same(treepack.load(folder / "model.safetensors", layers, mapping=rules), layers)
    np.savez(folder / "arrays.npz", w=np.ones(3))
    assert treepack.load(folder / "arrays.npz")["w"].sum() == 3


def runs(folder: Path) -> None:
    run = treepack.Series(folder / "run", keep=treepack.Keep(last=1))
    run.save(7, TREE, metrics={"loss": 0.5})
    resumed = run.resume(TREE)
    assert resumed is not None
    same(resumed[1])
    treepack.Publisher(folder / "policy").push(TREE, version=1)
    same(treepack.Subscriber(folder / "policy").latest()[1])


def types() -> None:
    treepack.register_namedtuple(Pair, serialized_name="smoke.Pair")
    treepack.register_auxdata(Mode, serialized_name="smoke.Mode")
    treepack.register_function(fails, serialized_name="smoke.fails")
    treepack.register_tree([Pair(1, 2)])
    pair = Pair(Mode.TRAIN, (1, None))
    same(treepack.loads(treepack.dumps({Mode.TRAIN: pair.b})), {Mode.TRAIN: pair.b})
    same(treepack.loads(treepack.dumps(Pair(1, 2))), Pair(1, 2))


def command(*arguments: object) -> str:
    """Runs the command line in this process; its status is 0."""
    from treepack.__main__ import main

    printed, given = io.StringIO(), sys.argv
    sys.argv, status = ["treepack", *map(str, arguments)], None
    try:
        with contextlib.redirect_stdout(printed):
            main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv = given
    assert not status, (arguments, printed.getvalue())
    return printed.getvalue()


def commands(folder: Path) -> None:
    path = folder / "tree.treepack"
    assert command("--version") == f"treepack {treepack.__version__}\n"
    for verb in ("ls", "info", "verify"):
        assert command(verb, path), verb
    assert "bfloat16[2,3]" in command("ls", path)
    command("convert", folder / "model.safetensors", folder / "converted.treepack")
    command("verify", folder / "converted.treepack")
    command("get", path, "l/0", folder / "zeros.npy")
    assert np.load(folder / "zeros.npy").size == 3


def works(folder: Path) -> None:
    in_memory()
    dropin(folder)
    in_files(folder)
    runs(folder)
    commands(folder)
    assert not {"jax", "jaxlib", "flax"} & sys.modules.keys()


def of_jax() -> None:
    arrays = ["array", "half", "weak", "numpy"]
    found = treepack.load(OF_JAX, arrays="numpy", select=arrays)
    assert {type(leaf) for leaf in found.values()} == {np.ndarray}, found
    template = {"array": np.zeros((2, 3), np.float16)}
    options: dict[str, Any] = {"select": "array", "unexpected": "ignore"}
    assert treepack.load(OF_JAX, template, cast=True, **options)["array"].dtype == np.float16
    assert treepack.load(OF_JAX, template, strict=False, **options)["array"].dtype == np.float32
    assert treepack.verify(OF_JAX).ok
    assert treepack.diff(OF_JAX, OF_JAX) == []
    with treepack.open(OF_JAX) as file:
        assert "key<threefry2x32>" in repr(file)
    typed = treepack.load(GOLDEN / "typed.treepack", arrays="numpy", unknown="dict")
    assert typed["partial"]["args"][0].sum() == 3
    assert "key<threefry2x32>" in command("ls", OF_JAX)
    assert command("show", OF_JAX, "array")
    command("diff", OF_JAX, OF_JAX)


def needs_jax(folder: Path) -> None:
    """Every call that needs JAX says so, and how to get it."""
    path, jax = folder / "tree.treepack", "pip install jax"
    data = OF_JAX.read_bytes()
    treepack.Publisher(folder / "of jax").push(TREE, version=1)
    subscriber = treepack.Subscriber(folder / "of jax")
    opened = treepack.open(path)
    calls: dict[str, Callable[[], object]] = {
        "abstract": lambda: treepack.abstract(path),
        "saved": lambda: treepack.load(OF_JAX),
        "saved, in memory": lambda: treepack.loads(data),
        "saved, opened": lambda: treepack.open(OF_JAX).load(),
        "saved, exported": lambda: treepack.load_exported(path),
        "exported": lambda: treepack.save_exported(path, object()),
        "dataclass": lambda: treepack.register_dataclass(Point),
        "node": lambda: treepack.register_node(Point, serialized_name="smoke.Point"),
        "JAX's name": lambda: treepack.register_pytree_node_serialization(
            Point, serialized_name="smoke.Point"
        ),
    }
    options: tuple[dict[str, Any], ...] = (
        {"arrays": "jax"},
        {"device": object()},
        {"sharding": object()},
        {"sharding": {"w": None}},
        {"sharding": lambda path, struct: None},
    )
    for given in options:
        calls |= {
            f"load {given}": lambda given=given: treepack.load(path, **given),
            f"load into a template {given}": lambda given=given: treepack.load(path, TREE, **given),
            f"loads {given}": lambda given=given: treepack.loads(treepack.dumps(TREE), **given),
            f"open {given}": lambda given=given: opened.load(**given),
            f"latest {given}": lambda given=given: subscriber.latest(**given),
            f"shards {given}": lambda given=given: treepack.load(folder / "shards", **given),
            f"load_exported {given}": lambda given=given: treepack.load_exported(path, **given),
        }
    for name, call in calls.items():
        with named(name):
            fails(ImportError, jax, call)
    fails(treepack.DecodeError, jax, lambda: treepack.load(OF_JAX, arrays="numpy"))
    fails(treepack.UnregisteredTypeError, jax, lambda: treepack.load(GOLDEN / "typed.treepack"))
    fails(ImportError, "arrays='numpy'", lambda: treepack.load(OF_JAX))
    for module in ("orbax", "orbax_v1"):
        name = f"treepack.{module}"
        fails(ImportError, "pip install orbax", lambda name=name: importlib.import_module(name))
    save = checkpoints.save_checkpoint
    by_orbax: dict[str, Any] = {"orbax_checkpointer": object()}
    fails(ImportError, "pip install orbax", lambda: save(folder / "o", TREE, 1, **by_orbax))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        works(Path(name))
        types()
        of_jax()
        needs_jax(Path(name))
    print(f"treepack {treepack.__version__} of {treepack.__file__}: works without JAX")


if __name__ == "__main__":
    assert importlib.util.find_spec("jax") is None, "jax is installed"
    main()
