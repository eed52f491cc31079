"""`save` and `load`: files that keep types, and arrays that go where they should."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import treepack
from treepack import serialization
from treepack._src.options import (
    BytesOptions,
    FileOptions,
    LoadOptions,
    Opening,
    PartOptions,
    Reading,
    Saved,
    SaveOptions,
    Selection,
    Sharing,
    Writing,
)

MESH = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("data",))
ROWS = NamedSharding(MESH, PartitionSpec("data"))
WHOLE = NamedSharding(MESH, PartitionSpec())

TREE = {
    "jax": jnp.arange(4096.0).reshape(64, 64),
    "numpy": np.arange(4096.0).reshape(64, 64),
    "list": [jnp.arange(4, dtype=jnp.bfloat16), (1, "text")],
}


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model"
    treepack.save(path, TREE, metadata={"step": 3})
    found = treepack.load(path)
    assert isinstance(found["jax"], jax.Array)
    assert type(found["numpy"]) is np.ndarray
    assert found["list"][1] == (1, "text")
    jax.tree.map(np.testing.assert_array_equal, found, TREE)
    assert treepack.read_metadata(path) == {"step": 3}
    assert treepack.abstract(path)["jax"].shape == (64, 64)
    before = treepack.dumps(TREE, align=64).index(b"__treepack__")
    assert path.read_bytes()[:before] == treepack.dumps(TREE, align=64)[:before]
    numpy = treepack.load(path, arrays="numpy")
    assert type(numpy["jax"]) is np.ndarray
    assert not numpy["jax"].flags.writeable
    assert treepack.load(path, arrays="numpy", copy=True)["jax"].flags.writeable
    template = {"jax": np.zeros(0), "numpy": 0, "list": {"0": 0, "1": {"0": 0, "1": 0}}}
    assert flax.serialization.from_bytes(template, path.read_bytes())["list"]["1"]["1"] == "text"


@pytest.mark.parametrize("compress", [False, True])
def test_options_of_save(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "model"
    calls: list[tuple[int, int]] = []
    treepack.save(
        path,
        TREE,
        compress=compress,
        level=6 if compress else None,
        durable=False,
        progress=lambda done, total: calls.append((done, total)),
    )
    content = path.read_bytes()
    plain = gzip.decompress(content) if compress else content
    assert calls[-1][0] == calls[-1][1] == len(plain)
    assert (content[:2] == b"\x1f\x8b") is compress
    if compress:
        before = plain.index(b"__treepack__")
        assert plain[:before] == treepack.dumps(TREE, align=64)[:before]
        with pytest.raises(treepack.TreepackError, match="exceeds max_size=100"):
            treepack.loads(content, max_size=100)
    for mmap in (True, False):
        jax.tree.map(np.testing.assert_array_equal, treepack.load(path, mmap=mmap), TREE)
    jax.tree.map(np.testing.assert_array_equal, treepack.loads(content), TREE)
    assert treepack.abstract(path)["list"][0].dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="level requires compress=True"):
        treepack.save(path, TREE, level=3)
    with pytest.raises(ValueError, match="level requires compress=True"):
        treepack.dumps(TREE, level=3)


def test_urls_of_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (
        lambda path: treepack.save(path, {}),
        lambda path: serialization.save_to_file({}, path),
        treepack.load,
        treepack.abstract,
        treepack.load_exported,
    ):
        with pytest.raises(ImportError, match="paramiko"):
            verb("sftp://host/model")
    assert list(tmp_path.iterdir()) == []


def test_packing_with_the_structure() -> None:
    for align in (1, 16, 64):
        size = treepack.packed_size(TREE, align=align, described=True)
        buffer = bytearray(size)
        assert treepack.pack_into(TREE, buffer, align=align, described=True) == size
        assert b"".join(treepack.buffers(TREE, align=align, described=True)) == buffer
        jax.tree.map(np.testing.assert_array_equal, treepack.loads(buffer), TREE)
    assert treepack.packed_size(TREE, align=1) == len(serialization.to_bytes(TREE, align=1))
    assert b"".join(treepack.buffers(TREE, align=1, described=True)) == treepack.dumps(
        TREE, align=1
    )


# Where arrays go


def test_on_cpu_a_mapped_file_is_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, {"w": jnp.arange(1 << 16, dtype=jnp.float32)})
    content = path.read_bytes()
    found = treepack.load(path, device=jax.devices()[0])["w"]
    address = found.unsafe_buffer_pointer()
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line for line in maps if line.endswith(str(path))]
    bounds = [[int(part, 16) for part in line.split()[0].split("-")] for line in mapped]
    assert any(start <= address < end for start, end in bounds)
    # What a program does to it never reaches the file.
    donated = jax.jit(lambda x: x * 2, donate_argnums=0)(found)
    np.testing.assert_array_equal(donated, np.arange(1 << 16, dtype=np.float32) * 2)
    again = treepack.load(path)["w"].at[0].set(-1.0)
    assert again[0] == -1
    assert path.read_bytes() == content
    np.testing.assert_array_equal(treepack.load(path)["w"], np.arange(1 << 16))


def test_memory_that_may_change_is_not_taken() -> None:
    values = np.arange(1 << 12, dtype=np.float32)
    for target in (None, [jax.ShapeDtypeStruct(values.shape, values.dtype)]):
        buffer = bytearray(treepack.dumps([jnp.asarray(values)], align=64))
        found = treepack.loads(buffer, target)[0]
        buffer[:] = bytes(len(buffer))
        np.testing.assert_array_equal(found, values)


class Pair(NamedTuple):
    a: Any
    b: Any


treepack.register_namedtuple(Pair, serialized_name="tests.load.Pair")

PLACED = {
    "p": Pair(jnp.ones((4, 2)), jnp.zeros((4, 3))),
    "l": [jnp.ones((4, 2)), np.ones(4, np.float32)],
}


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize(
    "sharding",
    [
        ROWS,
        {"p": ROWS, "l": ROWS},
        {"p": Pair(ROWS, ROWS), "l": [ROWS, None]},
        lambda path, leaf: ROWS if leaf.shape[0] == 4 and path else WHOLE,
    ],
)
def test_shardings(with_target: bool, sharding: Any) -> None:
    data = treepack.dumps(PLACED)
    target = treepack.abstract(data) if with_target else None
    if target is not None:
        target["l"][1] = np.zeros(4, np.float32)
    found = treepack.loads(data, target, sharding=sharding)
    for leaf in (*found["p"], found["l"][0]):
        assert leaf.sharding == ROWS
        assert leaf.addressable_shards[0].data.shape[0] == 2
    is_given = not isinstance(sharding, dict) or sharding["l"] is ROWS
    assert isinstance(found["l"][1], jax.Array if is_given else np.ndarray)
    jax.tree.map(np.testing.assert_array_equal, found, PLACED)


@pytest.mark.parametrize("name", ["file", "directory", "file.gz"])
@pytest.mark.parametrize("how", ["device", "sharding", "arrays"])
def test_all_arrays_go_to_an_explicit_place(tmp_path: Path, how: str, name: str) -> None:
    device = jax.devices()[how != "arrays"]
    options: Any = {
        "device": {"device": device},
        "sharding": {"sharding": jax.sharding.SingleDeviceSharding(device)},
        "arrays": {"arrays": "jax"},
    }[how]
    value = np.arange(4, dtype=np.float32)
    tree = {"w": value, "p": Pair(jnp.ones(2), [value]), "day": np.zeros(2, "M8[s]"), "n": 1}
    path = tmp_path / name
    treepack.save(path, tree, sharded=name == "directory")

    def check(found: Any) -> None:
        arrays = [leaf for leaf in jax.tree.leaves(found) if hasattr(leaf, "shape")]
        assert arrays
        for leaf in arrays:
            if leaf.dtype.kind == "M":
                assert type(leaf) is np.ndarray
            else:
                assert leaf.devices() == {device}

    check(treepack.load(path, **options))
    check(treepack.load(path, select=["w", "p"], **options))
    template = {**tree, "w": value.copy(), "p": Pair(np.ones(2, np.float32), [value])}
    check(treepack.load(path, template, **options))
    check(treepack.load(path, template, select="w", strict="exact", **options)["w"])
    with treepack.open(path) as file:
        check(file.load(**options))
        check(file["p"].load(**options))
        check(file["p"].load(template["p"], missing="target", **options))
    check(treepack.loads(treepack.dumps(tree), **options))
    check(treepack.loads(treepack.dumps(tree), template, **options))
    check(treepack.loads(treepack.dumps(value), **options))
    check(treepack.loads(treepack.dumps(tree), dtype="float16", **options))
    check(treepack.load(serialization.to_bytes({"w": [value]}), select="**", **options))


def test_a_place_for_what_jax_has_not() -> None:
    data = treepack.dumps({"w": np.ones(2)})  # of 64 bits
    with pytest.raises(treepack.TreepackError, match=r"at w: .* load with neither device= nor"):
        treepack.loads(data, device=jax.devices()[0])
    with pytest.raises(treepack.TreepackError, match=r"at w: .* load with arrays='numpy'"):
        treepack.loads(data, arrays="jax")
    found = treepack.loads(data, dtype="float32", device=jax.devices()[1])
    assert found["w"].devices() == {jax.devices()[1]}
    assert type(treepack.loads(data, {"w": np.ones(2)}, arrays="jax")["w"]) is np.ndarray
    both = treepack.dumps({"w": np.ones(2), "b": np.ones((8, 8), np.float32)})
    assert type(treepack.loads(both, sharding={"b": ROWS})["w"]) is np.ndarray
    with pytest.raises(ValueError, match="fits no leaf: it has b, the file w"):
        treepack.loads(data, sharding={"b": ROWS})


@pytest.mark.parametrize(
    "options",
    [{"device": "nope"}, {"sharding": 3}, {"sharding": {"a": 3}}, {"sharding": ROWS.mesh}],
)
def test_places_that_are_none(options: Any) -> None:
    for data in (treepack.dumps({}), treepack.dumps({"a": np.zeros(2)})):
        for target in (None, {}, {"a": np.zeros(2)}):
            with pytest.raises(ValueError, match="must be a JAX device or sharding"):
                treepack.loads(data, target, **options)
        with pytest.raises(ValueError, match="must be a JAX device or sharding"):
            treepack.load(data, select="**", **options)


def test_a_sharding_for_each_path() -> None:
    seen = []

    def where(path: str, leaf: jax.ShapeDtypeStruct) -> Any:
        seen.append((path, leaf.shape, leaf.dtype))
        return jax.devices()[1]

    found = treepack.loads(treepack.dumps(PLACED), sharding=where)
    assert [path for path, *_ in seen] == ["p/a", "p/b", "l/0", "l/1"]
    assert found["p"].a.devices() == {jax.devices()[1]}
    with pytest.raises(ValueError, match="at l/0: the tree of shardings has no entry"):
        treepack.loads(treepack.dumps(PLACED), sharding={"p": ROWS})
    with pytest.raises(ValueError, match="exclude each other"):
        treepack.loads(treepack.dumps(PLACED), sharding=ROWS, device=jax.devices()[0])
    with pytest.raises(ValueError, match="return JAX arrays"):
        treepack.loads(treepack.dumps(PLACED), device=jax.devices()[0], arrays="numpy")


def test_arrays_go_where_those_of_the_target_are() -> None:
    device = jax.devices()[3]
    target = {
        "rows": jax.device_put(jnp.zeros((4, 2)), ROWS),
        "abstract": jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=ROWS),
        "device": jax.device_put(jnp.zeros((4, 2)), device),
        "default": jnp.zeros((4, 2)),
        "free": jax.ShapeDtypeStruct((4, 2), jnp.float32),
        "numpy": np.zeros((4, 2), np.float32),
        "wide": jax.ShapeDtypeStruct((4, 2), np.float64),
        "number": 1.5,
        "key": jax.device_put(jax.random.key(1), device),
    }
    value = np.arange(8, dtype=np.float32).reshape(4, 2)
    tree = {**dict.fromkeys(target, value), "number": 2.5, "key": jax.random.key(7)}
    tree["wide"] = value.astype(np.float64)
    for data in (treepack.dumps(tree), serialization.to_bytes(tree)):
        found = treepack.loads(data, target)
        assert found["rows"].sharding == found["abstract"].sharding == ROWS
        assert found["device"].devices() == {device}
        for name in ("default", "free"):
            assert isinstance(found[name], jax.Array)
            assert not found[name].committed
        assert type(found["numpy"]) is type(found["wide"]) is np.ndarray
        assert found["number"] == 2.5
        assert found["key"].devices() == {device}
        assert jax.random.key_data(found["key"])[1] == 7
        for name in ("rows", "abstract", "device", "default", "free", "numpy", "wide"):
            np.testing.assert_array_equal(found[name], value)
        everything = treepack.loads(data, target, arrays="numpy")
        assert type(everything["rows"]) is np.ndarray


def test_64_bits_into_a_template_of_32() -> None:
    values = np.arange(3.0)
    found = treepack.loads(treepack.dumps([values]), [jnp.zeros(3)])[0]
    assert isinstance(found, jax.Array)
    assert found.dtype == jnp.float32


def test_handlers_take_part_in_placing() -> None:
    class Holder:
        def __init__(self, value: Any):
            self.value = value

    serialization.register_serialization_state(
        Holder,
        lambda it: {"v": serialization.to_state_dict(it.value)},
        lambda it, state: Holder(serialization.from_state_dict(it.value, state["v"], "v")),
    )
    target = [Holder({"w": jnp.zeros(3)}), jnp.zeros(2), np.zeros(1)]
    tree = [Holder({"w": np.ones(3, "f4")}), np.full(2, 2, "f4"), np.full(1, 3.0)]
    found = treepack.loads(serialization.to_bytes(tree), target)
    assert isinstance(found[0].value["w"], jax.Array)
    assert found[0].value["w"].sum() == 3
    assert isinstance(found[1], jax.Array)
    assert found[1].sum() == 4
    assert type(found[2]) is np.ndarray


# Casting


def test_casting() -> None:
    large = np.linspace(-3, 3, (1 << 20) * 3 + 17, dtype=np.float32).reshape(-1, 1)
    tree = {
        "large": large,
        "jax": jnp.ones(3),
        "half": np.ones(3, np.float16),
        "int": np.arange(3),
        "same": np.ones(3),
        "scalar": np.zeros((), np.float32),
        "big": np.full(2, 1e300),
    }
    template = {
        "large": np.zeros(large.shape, ml_dtypes.bfloat16),
        "jax": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        "half": np.zeros(3, np.float64),
        "int": np.arange(3),
        "same": np.zeros(3),
        "scalar": jnp.zeros((), jnp.float16),
        "big": np.zeros(2, np.float32),
    }
    data = treepack.dumps(tree)
    for threads in (None, 1, 3):
        found = treepack.loads(data, template, cast="overflow", threads=threads)
        with np.errstate(over="ignore"):
            expected = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), tree, template)
        for name, leaf in expected.items():
            assert found[name].dtype == leaf.dtype, name
            np.testing.assert_array_equal(np.asarray(found[name]), leaf)
            assert isinstance(found[name], jax.Array) == (name in ("jax", "scalar"))
    assert np.isinf(found["big"]).all()
    with pytest.raises(treepack.TreepackError, match=r"overflow float32 at big \(2\)"):
        treepack.loads(data, template, cast=True)
    with pytest.raises(treepack.MismatchError, match="large: expected bfloat16"):
        treepack.loads(data, template)
    with pytest.raises(treepack.MismatchError, match="int: expected float32"):
        treepack.loads(data, {**template, "int": np.zeros(3, np.float32)}, cast=True)
    wrong = {**template, "jax": jax.ShapeDtypeStruct((4,), jnp.bfloat16)}
    with pytest.raises(treepack.MismatchError, match=r"jax: expected bfloat16\[4\]"):
        treepack.loads(data, wrong, cast=True)


def test_keys_do_not_change_with_the_buffer() -> None:
    keys = jax.random.split(jax.random.key(1), 5000)
    expected = np.asarray(jax.random.key_data(keys))
    encoded = treepack.dumps({"k": keys}, align=64)
    for shift in range(0, 64, 4):
        buffer = bytearray(shift) + encoded
        view = memoryview(buffer)[shift:]
        found = [
            treepack.loads(view)["k"],
            treepack.loads(view, {"k": keys})["k"],
            serialization.msgpack_restore(view)["k"],
        ]
        buffer[:] = bytes(len(buffer))
        for key in found:
            np.testing.assert_array_equal(jax.random.key_data(key), expected)


def test_integers_that_do_not_fit_32_bits() -> None:
    data = treepack.dumps({"n": np.array([2**40 + 5])})
    with pytest.raises(treepack.TreepackError, match=r"at n: .*int64.*int32"):
        treepack.loads(data, {"n": jnp.zeros(1, jnp.int32)})
    assert treepack.loads(data, {"n": jnp.zeros(1, jnp.int32)}, arrays="numpy")["n"][0] > 2**40
    assert treepack.loads(treepack.dumps([np.array([7])]), [jnp.zeros(1, jnp.int32)])[0][0] == 7


class Handled:
    def __init__(self, parts: Any):
        self.parts = parts


def in_flax(value: Any) -> Any:
    return flax.serialization.to_state_dict(value)


@pytest.mark.parametrize("library", ["ours", "flax", "odd", "destructive"])
def test_leaves_in_handlers_go_where_they_should(library: str) -> None:
    kind = type("Kind", (Handled,), {})

    def odd(template: Any, state: Any) -> Any:
        w = serialization.from_state_dict(template.parts["w"], state["w"])
        v = state["v"]
        if isinstance(w, np.ndarray):  # not so the second time
            v = serialization.from_state_dict(template.parts["v"], v)
        return kind({"w": w, "v": v})

    restore = {
        "ours": lambda it, state: kind(serialization.from_state_dict(it.parts, state)),
        "flax": lambda it, state: kind(flax.serialization.from_state_dict(it.parts, state)),
        "odd": odd,
        "destructive": lambda _, state: kind({"w": state.pop("w"), "v": state.pop("v")}),
    }[library]
    serialization.register_serialization_state(kind, lambda it: in_flax(it.parts), restore)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    template = [kind({"w": jnp.ones(2), "v": jnp.zeros(2)}), jnp.zeros(2)]
    tree = [kind({"w": jnp.full(2, 3.0), "v": jnp.full(2, 5.0)}), jnp.full(2, 7.0)]
    found = treepack.loads(serialization.to_bytes(tree), template, sharding=device)
    values = [found[0].parts["w"], found[0].parts["v"], found[1]]
    assert [float(value[0]) for value in values] == [3, 5, 7]
    assert all(isinstance(value, jax.Array) for value in values)
    assert all(value.sharding == device for value in values)


def test_trees_of_shardings_that_can_be_called() -> None:
    import equinox as eqx

    linear = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    treepack.register_tree(linear)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    shardings = jax.tree.map(lambda _: device, linear)
    assert treepack.loads(treepack.dumps(linear), sharding=shardings).weight.sharding == device
    treepack.register_function(ascii, serialized_name="tests.load.ascii")  # no other test uses it
    partial = {"p": jax.tree_util.Partial(ascii, jnp.zeros(3))}
    shardings = jax.tree.map(lambda _: device, partial)
    found = treepack.loads(treepack.dumps(partial), sharding=shardings)
    assert found["p"].args[0].sharding == device


def test_keys_that_look_like_paths() -> None:
    one, other = (jax.sharding.SingleDeviceSharding(device) for device in jax.devices()[:2])
    tree = {".": {"x": jnp.ones(1)}, "x": jnp.ones(1), "": jnp.ones(1)}
    found = treepack.loads(treepack.dumps(tree), sharding={".": {"x": one}, "x": other, "": other})
    assert found["."]["x"].sharding == one
    assert found["x"].sharding == found[""].sharding == other
    template = {".": {"w": np.zeros(2)}, "w": np.zeros(3)}
    wrong = serialization.to_bytes({".": {"w": np.zeros(5)}, "w": np.zeros(6)})
    with pytest.raises(treepack.MismatchError) as caught:
        serialization.from_bytes(template, wrong)
    assert [mismatch.path for mismatch in caught.value.mismatches] == ["~2/w", "w"]


def test_shardings_that_do_not_fit() -> None:
    data = treepack.dumps({"a": {"w": jnp.zeros(3)}})
    columns = NamedSharding(MESH, PartitionSpec(None, "data"))
    for sharding in (ROWS, columns):
        with pytest.raises(treepack.TreepackError, match=r"at a/w: cannot place an array of shape"):
            treepack.loads(data, sharding=sharding)
    with pytest.raises(ValueError, match="at a/w: expected a sharding or device"):
        treepack.loads(data, sharding=lambda *_: [])


def test_a_template_of_an_abstract_mesh() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    template = [jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)]
    found = treepack.loads(treepack.dumps([jnp.ones(4)]), template)
    np.testing.assert_array_equal(found[0], np.ones(4))


def test_paths_that_were_urls() -> None:
    with pytest.raises(ValueError, match="gs:/bucket/model"):
        treepack.save(Path("gs://bucket/model"), {})


VERBS = [
    (treepack.save, SaveOptions, (Saved, Writing)),
    (treepack.save_exported, FileOptions, (Saved, Writing)),
    (treepack.load, LoadOptions, (Selection, Reading, Sharing, Opening)),
    (treepack.Tree.load, PartOptions, (Selection, Reading, Sharing)),
    (treepack.loads, BytesOptions, (Reading, Opening)),
]


@pytest.mark.parametrize(("verb", "types", "kinds"), VERBS)
def test_verbs_show_and_check_their_options(verb: Any, types: Any, kinds: tuple[Any, ...]) -> None:
    shown = inspect.signature(verb).parameters
    fields = {field.name: field for kind in kinds for field in dataclasses.fields(kind)}
    for name, annotation in types.__annotations__.items():
        text = getattr(annotation, "__forward_arg__", annotation)
        assert shown[name].annotation == text
        if name in fields and name != "compress":  # `None` goes by the name of the file
            assert shown[name].default == fields[name].default
            assert fields[name].type in (text, "Any")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'typo'"):
        verb(*[None] * 2, typo=1)


def test_a_size_below_zero_is_refused_whatever_is_read(tmp_path: Path) -> None:
    treepack.save(tmp_path / "file", {"a": 1})
    treepack.save(tmp_path / "directory", {"a": 1}, sharded=True)
    for read in (treepack.load, treepack.open, treepack.verify, treepack.abstract):
        for name in ("file", "directory"):
            with pytest.raises(ValueError, match=r"max_size .*, got -"):
                read(tmp_path / name, max_size=-1)
    with pytest.raises(ValueError, match=r"max_size .* got -1"):
        treepack.loads(treepack.dumps(1), max_size=-1)
    with treepack.open(tmp_path / "file") as file, pytest.raises(TypeError, match="'max_size'"):
        file.load(max_size=1)


def test_options_that_exist_where_work_is_done(tmp_path: Path) -> None:
    path = tmp_path / "model.gz"
    tree = {"w": np.zeros(100_000)}
    for made in (
        treepack.serialization.to_compressed_bytes(tree),
        gzip.compress(treepack.serialization.to_bytes(tree)),
    ):
        path.write_bytes(made)
        for load in (
            functools.partial(treepack.load, path, tree),
            functools.partial(treepack.load, path, tree, return_report=True),
            functools.partial(serialization.load_from_file, tree, path),
            functools.partial(treepack.load_exported, path),
        ):
            with pytest.raises(treepack.TreepackError, match="exceeds max_size=10 bytes"):
                load(max_size=10)
            with pytest.raises(ValueError, match=r"max_size .* got -1"):
                load(max_size=-1)
        with pytest.raises(treepack.TreepackError, match="exceeds max_size=10 bytes"):
            treepack.open(path, max_size=10)
        assert treepack.load(path, tree, max_size=1_000_000)["w"].shape == (100_000,)
    tree = {"f": jax.tree_util.Partial(lambda: 1)}
    options: Any = {"metadata": {"step": 3}, "static": "skip"}
    data = treepack.dumps(tree, align=64, **options)  # which has no arrays that would differ
    size = treepack.packed_size(tree, described=True, **options)
    buffer = bytearray(size)
    assert treepack.pack_into(tree, buffer, described=True, **options) == size
    assert bytes(buffer) == data
    assert b"".join(treepack.buffers(tree, described=True, **options)) == data
    for option in options:
        with pytest.raises(ValueError, match="require described=True"):
            treepack.packed_size({}, **{option: options[option]})


def test_numbers_where_the_template_has_arrays_of_jax(tmp_path: Path) -> None:
    data = treepack.dumps({"step": 3, "scale": 2.5})
    template = {"step": jax.ShapeDtypeStruct((), "int32"), "scale": jnp.float32(0)}
    for found in (
        treepack.loads(data, template),
        treepack.loads(data, template, sharding=WHOLE),
        treepack.open(data).load(template),
    ):
        assert isinstance(found["step"], jax.Array)
        assert found["step"].dtype == np.int32
        assert (int(found["step"]), float(found["scale"])) == (3, 2.5)
    assert found["step"].sharding != WHOLE
    assert treepack.loads(data, template, sharding=WHOLE)["step"].sharding == WHOLE
    assert treepack.loads(data, template, arrays="numpy") == {"step": 3, "scale": 2.5}
    assert treepack.serialization.from_bytes(template, data) == {"step": 3, "scale": 2.5}
    # Of another kind they would be other numbers.
    found = treepack.loads(treepack.dumps({"step": 2.5, "scale": 3}), template, strict=False)
    assert found == {"step": 2.5, "scale": 3}
    large = {"step": 2**40, "scale": 1e300}
    assert treepack.loads(treepack.dumps(large), template, strict=False) == large
    for places in (template, {"step": np.int32(0), "scale": np.zeros((), np.float32)}):
        for strict in (True, "exact"):
            with pytest.raises(treepack.MismatchError, match=f"found int {2**40}.*does not fit"):
                treepack.loads(treepack.dumps(large), places, strict=strict)


@pytest.mark.parametrize(
    "template",
    [3, 2.5, True, np.int64(0), np.float64(0), np.zeros((), np.int64), np.zeros((), np.float64)],
    ids=repr,
)
@pytest.mark.parametrize("arrays", ["saved", "numpy"])
def test_numbers_come_back_as_the_template_has_them(template: Any, arrays: Any) -> None:
    kind = type(template.item()) if hasattr(template, "item") else type(template)
    for saved in (kind(1), np.asarray(kind(1))[()], np.asarray(kind(1))):
        found = treepack.loads(treepack.dumps({"a": saved}), {"a": template}, arrays=arrays)["a"]
        assert type(found) is type(template)
        assert found == 1
    array = treepack.loads(treepack.dumps({"a": np.float32(1)}), {"a": jnp.float32(0)})["a"]
    assert isinstance(array, jax.Array)


def test_scalars_stay_scalars_when_they_are_cast() -> None:
    found = treepack.loads(treepack.dumps({"a": np.float64(1)}), {"a": np.float32(0)}, cast=True)
    assert type(found["a"]) is np.float32
