"""Trees that come back as they were, without a template."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import enum
import gzip
import io
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox
import flax.core
import flax.serialization
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from hypothesis import given
from jax.tree_util import Partial

import node_types
import treepack
import treepack._core as core
from node_types import NODES, Config, Frozen, Mode, Module, Pair, Plain, Point, Struct, scale
from tiers import examples
from treepack import serialization
from trees import KEYS, altered, arrays, assert_same, record_of, scalars, sealed


def assert_equal_trees(found: Any, expected: Any) -> None:
    """Raises unless two trees are equal in structure, order of keys, and bits."""
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    assert_same_containers(found, expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(one, jax.Array) is isinstance(other, jax.Array)
        assert_same(np.asarray(one) if isinstance(one, jax.Array) else one, other)


def raw_state(data: bytes) -> Any:
    """Returns what is encoded, the record of the structure with it."""
    return core.restore(data, None, None)


def assert_same_containers(found: Any, expected: Any) -> None:
    """Treedefs forget the order of keys, and that a dict is a subclass."""
    if isinstance(expected, (jax.Array, np.generic)):  # of two C types that are one dtype
        return
    assert type(found) is type(expected)
    if isinstance(expected, (dict, flax.core.FrozenDict)):
        assert list(found) == list(expected)
        assert [type(key) for key in found] == [type(key) for key in expected]
        for key in expected:
            assert_same_containers(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_same_containers(one, other)


def hashable() -> st.SearchStrategy[Any]:
    """Keys of any kind that are different as strings, too."""
    # No tuples of mixed types: JAX sorts keys.
    return st.integers() | st.integers(-(2**80), 2**80)


def trees() -> st.SearchStrategy[Any]:
    """Trees of all kinds of containers."""

    def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        few = st.lists(inner, max_size=5)
        mapping = st.dictionaries(KEYS, inner, max_size=5)
        return st.one_of(
            few,
            few.map(tuple),
            mapping,
            st.dictionaries(hashable(), inner, max_size=3),
            mapping.map(collections.OrderedDict),
            mapping.map(lambda items: collections.defaultdict(dict, items)),
            mapping.map(flax.core.FrozenDict),
            st.builds(Point, inner, inner),
            st.builds(Struct, inner, st.text(max_size=5)),
            st.builds(
                Frozen, inner, st.sampled_from(Mode), inner, st.builds(Config, st.integers())
            ),
            st.builds(Pair, inner, inner, st.tuples(st.booleans(), st.floats(allow_nan=False))),
            st.builds(lambda x, y: Partial(scale, x, x=y), inner, inner),
            arrays().map(Plain),
        )

    leaves = scalars() | arrays() | arrays().filter(_jax_has).map(jnp.asarray)
    return st.recursive(leaves, nodes, max_leaves=25)


def _jax_has(array: np.ndarray) -> bool:
    return array.dtype.name in ("float32", "bfloat16", "int8", "uint32", "bool", "complex64")


@given(trees())
def test_any_tree_comes_back(tree: Any) -> None:
    data = treepack.dumps(tree)
    assert_equal_trees(treepack.loads(data), tree)
    assert treepack.dumps(tree) == data


@given(trees())
@examples(50)
def test_the_structure_is_known_without_the_arrays(tree: Any) -> None:
    def is_array(leaf: Any) -> bool:
        return isinstance(leaf, (jax.Array, np.ndarray))

    found = treepack.abstract(treepack.dumps(tree))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(tree)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        if is_array(other):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert type(one) is jax.ShapeDtypeStruct
        else:
            assert_same(one, other)


@given(trees())
@examples(50)
def test_it_is_the_encoding_of_to_bytes_with_one_more_key(tree: Any) -> None:
    state = raw_state(treepack.dumps(tree))
    assert list(state)[-1] == "__treepack__"
    del state["__treepack__"]
    if list(state) == ["__treepack_root__"]:
        state = state["__treepack_root__"]
    assert_same(
        state, treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree))
    )


@pytest.mark.parametrize("name", NODES)
def test_every_kind(name: str) -> None:
    assert_equal_trees(treepack.loads(treepack.dumps(NODES[name])), NODES[name])
    assert_equal_trees(treepack.loads(treepack.dumps([NODES[name]] * 3)), [NODES[name]] * 3)


@pytest.mark.parametrize("name", NODES)
def test_flax_reads_the_same_bytes(name: str) -> None:
    tree = {"node": NODES[name], "more": [1, np.arange(2000)]}
    template = treepack.serialization.to_state_dict(tree)
    data = treepack.dumps(tree)
    with pytest.MonkeyPatch.context() as patch:
        # flax refuses nothing here: it ignores keys that a dict template lacks.
        patch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 2**30)
        assert_same(flax.serialization.from_bytes(template, data), template)


# Where `node_types` is.
SUPPORT = Path(node_types.__file__).parent

LOAD = """
import sys
import jax, node_types, treepack
tree = treepack.loads(open(sys.argv[1], "rb").read())
assert jax.tree.structure(tree) == jax.tree.structure(node_types.NODES)
print(*tree)
"""


@pytest.mark.campaign
def test_another_process_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_bytes(treepack.dumps(NODES))
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(NODES)


@pytest.mark.campaign
def test_a_process_without_the_types_names_them(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_bytes(treepack.dumps({"layers": [NODES["frozen"]]}))
    program = (
        "import sys, treepack\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "tree = treepack.loads(data, unknown='dict')\n"
        "print(type(tree['layers']).__name__, *tree['layers'][0])\n"
        "try:\n  treepack.loads(data)\n"
        "except treepack.UnregisteredTypeError as error: print(error.name, error)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "list w b"
    assert second.startswith("tests.Frozen unregistered type 'tests.Frozen': pass")
    assert 'unknown="dict"' in second


# Leaves


def test_leaves_of_every_kind() -> None:
    key = jax.random.key(3)
    tree = [
        *(1, -(2**63), 2**64 - 1, 1.5, True, None, 2 + 3j, "text", b"bytes"),
        *(bytearray(b"array"), memoryview(b"view"), np.float32(3), np.zeros(()), key),
        np.arange(3, dtype=">i4"),
        msgpack.Timestamp(3),
    ]
    found = treepack.loads(treepack.dumps(tree))
    assert [type(leaf) for leaf in found] == [type(leaf) for leaf in tree]
    for one, other in zip(found[:12], tree[:12], strict=True):
        assert one == other
    np.testing.assert_array_equal(jax.random.key_data(found[13]), jax.random.key_data(key))
    np.testing.assert_array_equal(found[14], tree[14])
    assert found[15] == tree[15]
    view = memoryview((ctypes.c_ubyte * 3)(1, 2, 3))  # of format <B
    assert treepack.loads(treepack.dumps([view])) == [b"\1\2\3"]


@pytest.mark.parametrize("leaf", [None, 3, "text", np.arange(5), jnp.arange(5), bytearray(b"abc")])
def test_a_tree_that_is_a_leaf(leaf: Any) -> None:
    assert_equal_trees(treepack.loads(treepack.dumps(leaf)), leaf)
    template = {"__treepack_root__": 0}
    assert list(flax.serialization.from_bytes(template, treepack.dumps(leaf))) == list(template)


def test_a_key_and_an_array_in_chunks_as_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    key = jax.random.split(jax.random.key(1), 3)
    found = treepack.loads(treepack.dumps(key))
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(key))
    abstract = treepack.abstract(treepack.dumps({"key": key}))["key"]
    assert (abstract.shape, abstract.dtype) == (key.shape, key.dtype)
    monkeypatch.setattr(treepack.serialization, "MAX_CHUNK_SIZE", 16)
    array = np.arange(100).reshape(10, 10)
    for tree in (array, [array]):
        assert_same(treepack.loads(treepack.dumps(tree)), tree)
        assert jax.tree.leaves(treepack.abstract(treepack.dumps(tree)))[0].shape == (10, 10)


def test_arrays_of_jax_are_of_jax_again() -> None:
    tree = {"jax": jnp.arange(3.0), "numpy": np.arange(3, dtype=np.int8), "n": [1, jnp.int8(3)]}
    data = treepack.dumps(tree)
    plain = treepack.loads(data, arrays="numpy")
    assert type(plain["jax"]) is type(plain["n"][1]) is np.ndarray
    saved = treepack.loads(data)
    assert isinstance(saved["jax"], jax.Array)
    assert isinstance(saved["n"][1], jax.Array)
    assert type(saved["numpy"]) is np.ndarray
    assert_same(saved["numpy"], tree["numpy"])
    np.testing.assert_array_equal(saved["jax"], tree["jax"])
    device = jax.devices()[0]
    assert treepack.loads(data, device=device)["jax"].devices() == {device}
    sharding = jax.sharding.SingleDeviceSharding(device)
    assert treepack.loads(data, sharding=sharding)["jax"].sharding == sharding


def test_what_jax_would_truncate_is_an_error() -> None:
    with jax.enable_x64(True):
        data = treepack.dumps({"w": jnp.arange(3.0, dtype="float64")})
    assert treepack.loads(data, arrays="numpy")["w"].dtype == np.float64
    with pytest.raises(treepack.TreepackError, match="JAX would convert float64 to float32"):
        treepack.loads(data)


def test_arrays_of_jax_do_not_change_with_the_buffer() -> None:
    values = np.arange(5000, dtype=np.float32)
    encoded = treepack.dumps([jnp.asarray(values)], align=64)
    for shift in range(64):  # one of them is aligned as jax likes it
        buffer = bytearray(shift) + encoded
        found = treepack.loads(memoryview(buffer)[shift:])[0]
        buffer[:] = bytes(len(buffer))
        np.testing.assert_array_equal(found, values)


def test_keys_are_put_where_arrays_are() -> None:
    device = jax.devices()[1]
    found = treepack.loads(treepack.dumps({"key": jax.random.key(1)}), device=device)
    assert found["key"].devices() == {device}


def test_what_jax_has_no_arrays_of() -> None:
    state = {"a": np.zeros(2, "M8[s]")}
    data = record([["jax", []], ["dict", [[1, 0]]]])
    with pytest.raises(treepack.DecodeError, match="datetime64"):
        treepack.loads(with_record(state, data))


def test_copy_and_views() -> None:
    data = treepack.dumps((np.arange(1000),))
    assert not treepack.loads(data)[0].flags.writeable
    assert treepack.loads(data, copy=True)[0].flags.writeable


# Nodes


def test_keys_of_every_kind() -> None:
    keys = [1, "one", 2.5, None, False, (1, ("a",)), b"x", Mode.EVAL, 2**70, frozenset({1})]
    tree = {key: index for index, key in enumerate(keys)}
    found = treepack.loads(treepack.dumps(tree))
    assert found == tree
    assert [type(key) for key in found] == [type(key) for key in keys]
    for mapping in (collections.OrderedDict, flax.core.FrozenDict):
        assert treepack.loads(treepack.dumps(mapping(tree))) == mapping(tree)


def test_keys_that_are_the_same_as_strings_are_refused() -> None:
    for mapping in (dict, collections.OrderedDict):
        with pytest.raises(ValueError, match="unique string representation"):
            treepack.dumps(mapping({1: 0, "1": 0}))


@pytest.mark.parametrize("key", ["__treepack__", "__treepack_root__", "__prng_key__"])
def test_reserved_keys_are_refused(key: str) -> None:
    with pytest.raises(treepack.TreepackError, match=rf'at a: the key "{key}" is reserved'):
        treepack.dumps({"a": {key: 1}})


def test_static_data_that_cannot_be_saved_name_type_and_field() -> None:
    with pytest.raises(TypeError, match=r"at a: node_types.Struct: the field 'name': static.*obj"):
        treepack.dumps({"a": Struct(1, object())})
    with pytest.raises(TypeError, match=r"at a: node_types.Struct: the field 'name': static.*lam"):
        treepack.dumps({"a": Struct(1, lambda: None)}, static="error")
    with pytest.raises(TypeError, match=r"at \.: the field 'func': static data of .*function"):
        treepack.dumps(Partial(lambda: None), static="error")


def test_functions_in_equinox_modules() -> None:
    model = equinox.nn.MLP(2, 2, 4, 1, final_activation=jnp.tanh, key=jax.random.key(0))
    added = treepack.register_tree(model, prefix="eqx")
    assert added.keys() <= {"eqx.MLP", "eqx.Linear"}
    assert {equinox.nn.MLP, equinox.nn.Linear} <= {*treepack.registered_types().values()}
    assert treepack.register_tree(model, prefix="eqx") == {}
    assert_equal_trees(treepack.loads(treepack.dumps(model)), model)
    found = treepack.loads(treepack.dumps(model))
    x = jnp.ones(2)
    np.testing.assert_array_equal(found(x), model(x))
    module = treepack.loads(treepack.dumps(Module(np.ones(2), jax.nn.relu, 3, jnp.float32)))
    assert module.activation is jax.nn.relu
    assert module.dtype is jnp.float32
    assert list(module.__dict__) == ["w", "activation", "width", "dtype"]


def test_no_code_of_the_type_runs_on_placeholders() -> None:
    # `Plain.__post_init__` refuses whatever is no array.
    assert type(treepack.loads(treepack.dumps(Plain(np.ones(1))))) is Plain


def test_metadata() -> None:
    metadata = {"step": 3, "shape": (1, [2]), "mode": Mode.TRAIN, "config": Config(1)}
    data = treepack.dumps({"w": np.zeros(5000)}, metadata=metadata)
    assert treepack.read_metadata(data) == metadata
    assert treepack.read_metadata(treepack.dumps([])) is None
    with pytest.raises(TypeError, match=r"at metadata/a/1/b~1c: .*object cannot be saved"):
        treepack.dumps([], metadata={"a": (1, {"b/c": object()})})


def test_metadata_without_a_form_name_their_place_in_sharded_saves(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"at metadata/a/0: .*object cannot be saved"):
        treepack.save(tmp_path / "x", {"w": 1}, metadata={"a": [object()]}, sharded=True)


def test_with_a_target() -> None:
    tree = {"a": (np.arange(3), 1), 5: {"x": Point(1, 2)}}
    template = {"a": (np.zeros(3, int), 0), 5: {"x": {"x": 0, "y": 0}}}
    expected = {"a": (np.arange(3), 1), 5: {"x": {"x": 1, "y": 2}}}
    for data in (treepack.dumps(tree), treepack.serialization.to_bytes(tree)):
        assert_same(treepack.loads(data, template), expected)
    wrong = {**template, "a": (np.zeros(4, int), 0)}
    with pytest.raises(treepack.MismatchError, match=r"a/0"):
        treepack.loads(treepack.dumps(tree), wrong)
    assert treepack.loads(treepack.dumps(3), 0) == 3
    with pytest.raises(ValueError, match="cast=True"):
        treepack.loads(treepack.dumps(tree), cast=True)


@pytest.mark.parametrize("option", [{"arrays": "torch"}, {"unknown": "ignore"}])
def test_options_are_checked(option: Any) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
        treepack.loads(treepack.dumps([]), **option)


@pytest.mark.parametrize("name", NODES)
def test_a_structure_is_a_template(name: str) -> None:
    data = treepack.dumps([NODES[name], 3])
    found = treepack.serialization.from_bytes(treepack.abstract(data), data)
    assert jax.tree.structure(found) == jax.tree.structure([NODES[name], 3])
    assert treepack.serialization.from_bytes(0, treepack.dumps(3)) == 3
    for state in (
        treepack.serialization.from_bytes(None, data),
        treepack.serialization.msgpack_restore(data),
    ):
        assert list(state) == ["0", "1"]


def test_a_structure_is_made_without_code_of_the_types() -> None:
    # `Plain.__post_init__` would refuse what has a shape but no values, too.
    found = treepack.abstract(treepack.dumps(NODES["plain"]))
    assert type(found) is Plain
    assert type(found.w) is jax.ShapeDtypeStruct


def test_unknown_types_in_keys_become_strings() -> None:
    class Gone(enum.Enum):
        A = 1

    treepack.register_auxdata(Gone, "tests.Gone")
    data = altered(treepack.dumps({Gone.A: 1}), b"tests.Gone", b"tests.Lost")
    with pytest.raises(treepack.UnregisteredTypeError, match='unknown="dict"'):
        treepack.loads(data)
    assert treepack.loads(data, unknown="dict") == {"Gone.A": 1}


# What is damaged


def with_record(state: dict[str, Any], data: Any, seal: bool = True) -> bytes:
    if type(data) is bytes and seal:
        data = sealed(data)
    return treepack.serialization.msgpack_serialize({**state, "__treepack__": data}, in_place=True)


def record(nodes: list[Any], types: Any = (), version: Any = 1, **more: Any) -> bytes:
    packed: bytes = msgpack.packb({"version": version, "types": types, "nodes": nodes, **more})
    return packed


PLAIN = ["plain", []]


def test_records_of_other_writers_are_read() -> None:
    # The record as the documentation of the format has it, with a key of a later version.
    data = record([PLAIN, ["tuple", [[2, 0]]], ["dict", [[1, 1]]]], later="something")
    assert treepack.loads(with_record({"a": {"0": 1, "1": 2}}, data)) == {"a": (1, 2)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "is a int, not bytes"),
        (b"", "damaged"),
        (b"\xc1", "damaged"),
        (record([]), "it has no nodes"),
        (record([PLAIN], version=2), "version 2.*newer treepack"),
        (record([["later", []]]), 'unknown "later" in a record.*newer treepack'),
        (record([["dict", [[1, 0]]]]), "node 0 cannot repeat node 0 1 times"),
        (record([PLAIN, ["dict", [[1, 7]]]]), "node 1 cannot repeat node 7 1 times"),
        (record([PLAIN, ["dict", [[0, 0], [1, 0]]]]), "node 1 cannot repeat node 0 0 times"),
        (record([PLAIN, ["jax", [[1, 0]]]]), "leaf with children"),
        (record([PLAIN, [{"typed": [3, b""]}, [[1, 0]]]]), "unknown type 3"),
        (record([PLAIN, ["dict", [[2, 0]]]]), "1 children, and was saved with 2"),
        (record([PLAIN, ["dict", [[2**32 - 1, 0]] * 3]]), "1 children, and was saved with 1288"),
        (record([PLAIN, ["list", [[1, 0]]]]), "list .*key a"),
        (record([["bytearray", []], ["dict", [[1, 0]]]]), r"expected bytes.*a"),
        (record([PLAIN, ["tuple", [[1, 0]]], ["dict", [[1, 1]]]]), r"expected a container.*a"),
        (record([PLAIN, [{"dict_with_keys": b"\xc1"}, [[1, 0]]]]), "damaged value"),
        (
            record([PLAIN, [{"dict_with_keys": core.encode_value([])}, [[1, 0]]]]),
            "0 keys and 1 children",
        ),
        (record([PLAIN, [{"dict_with_keys": core.encode_value(3)}, [[1, 0]]]]), "are not a list"),
        (record([PLAIN, [{"dict_with_keys": core.encode_value([[]])}, [[1, 0]]]]), "hashed"),
        (
            record([PLAIN, [{"typed": [0, b""]}, [[1, 0]]]], [["tests.Pair", None]]),
            "damaged value",
        ),
        (
            record(
                [PLAIN, [{"typed": [0, core.encode_value(None)]}, [[1, 0]]]],
                [["collections.OrderedDict", None]],
            ),
            "a node of the type collections.OrderedDict cannot be made",
        ),
        (
            record([PLAIN, [{"typed": [0, b""]}, [[1, 0]]]], [["tests.Frozen", [["v"], []]]]),
            "'v'",
        ),
    ],
)
def test_damaged_records_are_refused(data: Any, message: str) -> None:
    with pytest.raises(treepack.DecodeError, match=message):
        treepack.loads(with_record({"a": 1}, data))


@pytest.mark.campaign
def test_every_truncation_and_many_changes_of_a_record() -> None:
    tree = [NODES["pair"], {1: (2,)}, NODES["frozen"], jnp.zeros(2)]
    state = raw_state(treepack.dumps(tree))
    data = state.pop("__treepack__")
    for length in range(len(data)):
        with pytest.raises(treepack.DecodeError):
            treepack.loads(with_record(state, data[:length], seal=False))
    for position in range(len(data)):
        damaged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(treepack.DecodeError, match="damaged"):
            treepack.loads(with_record(state, damaged, seal=False))
    # Of writers that make mistakes.
    data = record_of(data)
    for length in range(len(data)):
        with pytest.raises(treepack.DecodeError):
            treepack.loads(with_record(state, data[:length]))
    for position in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xC1, 0xFF, data[position] ^ 1):
            damaged = data[:position] + bytes([value]) + data[position + 1 :]
            with contextlib.suppress(treepack.TreepackError):  # and nothing else
                treepack.loads(with_record(state, damaged))


def test_a_record_cannot_grow() -> None:
    # Sixty levels, each of which has the one before twice, are 2**60 nodes if one walks them all.
    levels = [["dict", [[2, level]]] for level in range(60)]
    with pytest.raises(treepack.DecodeError, match="was saved with 2"):
        treepack.loads(with_record({"a": 1}, record([["jax", []], *levels])))


@pytest.mark.parametrize(
    "name", ["plain", "struct", "auto", "tree", "xtree", "eformer", "frozen", "free"]
)
def test_nodes_with_other_children_or_static_data(name: str) -> None:
    """JAX takes what it is given, and reads beyond its end."""
    state = raw_state(treepack.dumps(NODES[name]))
    data = msgpack.unpackb(record_of(state.pop("__treepack__")))
    *_, (kind, runs) = data["nodes"]
    changes: list[tuple[dict[str, Any], Any]] = [
        ({}, []),
        ({f"x{key}": value for key, value in state.items()}, runs),
        ({**state, "more": 1}, [*runs, [1, 0]]),
    ]
    for changed, new_runs in changes:
        data["nodes"][-1] = [kind, new_runs]
        with pytest.raises(treepack.DecodeError, match="expected the children"):
            treepack.loads(with_record(changed, msgpack.packb(data)))
    for static in ((), (1, 2, 3, 4, 5), "text", None, [1]):
        data["nodes"][-1] = [{"typed": [0, core.encode_value(static)]}, runs]
        with pytest.raises(treepack.DecodeError, match="expected a tuple of the static data"):
            treepack.loads(with_record(state, msgpack.packb(data)))


def test_an_unknown_implementation_of_keys() -> None:
    data = altered(treepack.dumps([jax.random.key(1)]), b"threefry2x32", b"threefry2x33")
    with pytest.raises(treepack.DecodeError, match=r"found a dict .*implementation.*at 0"):
        treepack.loads(data)


def with_damaged_node(tree: Any) -> bytes:
    state = raw_state(treepack.dumps(tree))
    data = msgpack.unpackb(record_of(state.pop("__treepack__")))
    damaged = core.encode_value((1,))[:-1]
    for index, (kind, runs) in enumerate(data["nodes"]):
        if isinstance(kind, dict):
            data["nodes"][index] = [{"typed": [kind["typed"][0], damaged]}, runs]
    return with_record(state, msgpack.packb(data))


def test_where_a_node_cannot_be_made() -> None:
    tree = {"x": {"l": [1, NODES["pair"]]}}
    with pytest.raises(treepack.DecodeError, match="damaged value") as caught:
        treepack.loads(with_damaged_node(tree))
    assert caught.value.__notes__ == ["treepack: while loading x/l/1/1"]


def test_what_is_shared_in_the_record_is_decoded_once() -> None:
    """One large key in a thousand dicts is one string."""
    key = "k" * 100_000
    tree = [{key: index, 1: 2} for index in range(1000)]
    assert len(treepack.dumps(tree)) > 100_000_000  # all of them have it in the state
    state = {str(index): {"a": index, "1": 2} for index in range(1000)}
    keys = core.encode_value([key, 1])
    nodes = [PLAIN, [{"dict_with_keys": keys}, [[2, 0]]], ["list", [[1000, 1]]]]
    found = treepack.loads(with_record(state, record(nodes)))
    assert found == tree
    assert len({id(next(iter(mapping))) for mapping in found}) == 1


def test_unhashable_keys_in_values() -> None:
    for value in ({"dict": [[{"list": []}, "none"]]}, {"frozenset": [{"list": []}]}):
        with pytest.raises(treepack.DecodeError, match="cannot be hashed"):
            core.decode_value(msgpack.packb(value))


@pytest.mark.parametrize("tree", [{"a": [np.ones(3), {}], "b": (1, None)}, [1, {"c": {}}], 2.5])
def test_encodings_of_flax_are_dicts_and_lists_for_all_verbs(tree: Any, tmp_path: Path) -> None:
    data = flax.serialization.to_bytes(tree)
    path = tmp_path / "model.msgpack"
    path.write_bytes(data)
    expected = treepack.serialization.load_from_file(None, path)
    for source in (data, path, io.BytesIO(data), gzip.compress(data)):
        for options in ({}, {"arrays": "numpy"}, {"unknown": "dict"}, {"select": "**"}):
            assert_same(treepack.load(source, **options), expected)
    for found in (treepack.loads(data), treepack.open(path).load()):
        assert_same(found, expected)
    halved = treepack.loads(data, dtype=np.float16)
    assert_same(halved, treepack.load(data, dtype=np.float16, select="**"))
    shapes = treepack.abstract(path)
    assert jax.tree.structure(shapes) == jax.tree.structure(expected)
    assert treepack.read_metadata(path) is None


def test_plain_containers_keep_the_keys_of_mappings(tmp_path: Path) -> None:
    keys = {1: np.ones(1), 3: {4: 5}}
    mappings = [
        dict(keys),
        collections.OrderedDict({**keys, (2, "x"): 3, "s": None}),
        collections.defaultdict(list, keys),
        collections.defaultdict(lambda: 0, keys),
        flax.core.FrozenDict({1: np.ones(1), 2: {4: 5}}),
    ]
    tree = {"maps": mappings, "code": [len, {"f": jnp.sin}], "empty": collections.OrderedDict()}
    expected = {"maps": [*map(dict, mappings)], "code": [None, {"f": None}], "empty": {}}
    expected["maps"][-1][2] = {4: 5}
    treepack.save(tmp_path / "file", tree)
    treepack.save(tmp_path / "directory", tree, sharded=True)
    for path in (tmp_path / "file", tmp_path / "directory"):
        assert_same_containers(treepack.load(path, containers="plain"), expected)
    # Fields and numbers are no keys, whatever static data there are.
    named = treepack.dumps(Pair(1, {2: 3}))
    assert treepack.loads(named, containers="plain") == {"0": 1, "1": {2: 3}}


def test_plain_containers_of_files_and_directories(tmp_path: Path) -> None:
    """What no type here knows is no error, and arrays stay those of jax."""
    tree = {"t": (jnp.ones(2), [1]), "p": Pair(np.ones(3), {2: "x"}), "s": Struct(1, len), "e": ()}
    treepack.save(tmp_path / "file", tree)
    treepack.save(tmp_path / "directory", tree, sharded=True)
    expected = {"t": [tree["t"][0], [1]], "p": {"0": np.ones(3), "1": {2: "x"}}, "s": {"w": 1}}
    expected["e"] = []
    for path in (tmp_path / "file", tmp_path / "directory"):
        for options in ({}, {"select": "**"}):
            found = treepack.load(path, containers="plain", **options)
            assert_same_containers(found, expected)
            assert isinstance(found["t"][0], jax.Array)
        shapes = treepack.abstract(path, containers="plain")
        assert (type(shapes["t"]), shapes["p"]["0"].shape) == (list, (3,))
    with treepack.open(tmp_path / "file") as file:
        assert_same_containers(file["t"].load(containers="plain"), expected["t"])
    assert type(treepack.loads(treepack.dumps((1, 2)), containers="plain")) is list
    with pytest.raises(IsADirectoryError) as caught:
        serialization.load_from_file(None, tmp_path / "directory")
    assert "containers='plain'" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="containers must be "):
        treepack.load(tmp_path / "file", containers="dict")  # type: ignore[arg-type]


def test_a_record_under_a_damaged_key_is_damage() -> None:
    data = treepack.dumps({"a": [1, 2]}).replace(b"__treepack__", b"__treepacj__")
    for verb in (treepack.loads, treepack.load, treepack.abstract, treepack.read_metadata):
        with pytest.raises(treepack.DecodeError, match="is not under its key"):
            verb(data)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("set", range(10**12)),
        ("bytearray", 10**13),
        ("range", range(10**12)),
        ("slice", range(10**12)),
        ("functools.partial", (len, range(10**12), {})),
        ("treepack.hole", (5, "x")),
        ("jax.sharding.NamedSharding", (("a",), range(10**12), None, None)),
    ],
)
def test_hostile_parts_of_static_data(name: str, parts: Any) -> None:
    """What they would be made of takes for ever, or all memory."""
    from treepack._src.registry import static as _static

    with pytest.raises(treepack.DecodeError, match="cannot be restored"):
        _static.rebuild_value(name, parts)


# What would take long


class Lookups:
    """Counts the lookups by name."""

    def __init__(self, names: Any):
        self.names = names
        self.count: collections.Counter[str] = collections.Counter()

    def by_name(self, name: str) -> Any:
        self.count[name] += 1
        return self.names.by_name(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.names, name)


def many(kind: Any, types: Any, count: int = 300) -> bytes:
    """Returns a list of so many dicts, which are all the same node of a kind."""
    state = {str(index): {"a": index, "b": 1} for index in range(count)}
    return with_record(state, record([PLAIN, [kind, [[2, 0]]], ["list", [[count, 1]]]], types))


def test_unknown_types_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from treepack._src.registry import lookups as _lookups
    from treepack._src.registry import nodes as _nodes
    from treepack._src.registry import placeholders as _placeholders
    from treepack._src.registry import static as _static

    types, static = Lookups(_nodes.TYPES), Lookups(_static.AUXDATA)
    monkeypatch.setattr(_nodes, "TYPES", types)
    monkeypatch.setattr(_static, "AUXDATA", static)
    filled = []
    fill = _lookups.Lookups.fill
    monkeypatch.setattr(_lookups.Lookups, "fill", lambda *parts: filled.append(1) or fill(*parts))
    lost = msgpack.packb({"named": ["tests.LostData", {"int": 1}]})
    placeholder = core.encode_value((_placeholders.Placeholder("mode", "a mode"), None))
    frozen = _nodes.TYPES.entry_of(Frozen)
    assert frozen is not None
    fields = ["a", "b"]
    for kind, of in (
        ({"typed": [0, b""]}, [["tests.LostType", [fields * 1000, []]]]),
        ({"typed": [0, lost]}, [["tests.Frozen", frozen.fields]]),
        ({"typed": [0, placeholder]}, [["tests.Frozen", frozen.fields]]),
        ({"dict_with_keys": msgpack.packb({"list": [msgpack.unpackb(lost)] * 2})}, []),
    ):
        found = treepack.loads(many(kind, of), unknown="dict")
        assert found == [{"a": index, "b": 1} for index in range(300)]
    assert types.count["tests.LostType"] == 1
    assert static.count["tests.LostData"] == 2  # in the second and in the fourth
    assert len(filled) == 1


def test_large_static_data_of_many_nodes_are_filled_only_so_often() -> None:
    """Each of them is filled by itself, which takes as long as all of their data."""
    from treepack._src.registry import nodes as _nodes
    from treepack._src.registry import placeholders as _placeholders

    frozen = _nodes.TYPES.entry_of(Frozen)
    assert frozen is not None
    placeholder = core.encode_value((_placeholders.Placeholder("mode", "a mode"), bytes(1 << 20)))
    data = many({"typed": [0, placeholder]}, [["tests.Frozen", frozen.fields]])
    for static in (None, {"299/mode": Mode.EVAL}):
        with pytest.raises(
            treepack.TreepackError, match=r'static data.*takes too long.*unknown="dict"'
        ):
            treepack.loads(data, static=static)
    assert treepack.loads(data, unknown="dict")[299] == {"a": 299, "b": 1}


def test_large_static_data_that_can_change_are_decoded_only_so_often() -> None:
    """Each node has its own."""
    from treepack._src.registry import nodes as _nodes

    frozen = _nodes.TYPES.entry_of(Frozen)
    assert frozen is not None
    state = {str(index): {"w": index, "b": 1} for index in range(300)}

    def described(nbytes: int) -> bytes:
        typed = {"typed": [0, core.encode_value((Mode.EVAL, [bytes(nbytes)]))]}
        nodes = [PLAIN, [typed, [[2, 0]]], ["list", [[300, 1]]]]
        return with_record(state, record(nodes, [["tests.Frozen", frozen.fields]]))

    found = treepack.loads(described(10_000))
    assert found[299].config == [bytes(10_000)]
    assert found[0].config is not found[1].config
    with pytest.raises(treepack.TreepackError, match=r"static data takes too long.* a template"):
        treepack.loads(described(1 << 20))
    template = [Frozen(w=0, b=0, mode=Mode.EVAL, config=[bytes(1 << 20)])] * 300  # type: ignore[arg-type]
    assert treepack.loads(described(1 << 20), target=template)[299].w == 299


def test_placeholders_that_are_filled_in_some_places() -> None:
    lost: Any = object()
    tree = [Frozen(w=1, b=2, mode=lost, config=Config(1)) for _ in range(2)]
    data = treepack.dumps(tree, static="skip")
    found = treepack.loads(data, unknown="dict", static={"1/mode": Mode.EVAL})
    assert found[0] == {"w": 1, "b": 2}
    assert found[1].mode is Mode.EVAL


COLLIDING = [{"named": ["int", {"str": str((2**61 - 1) * index)}]} for index in range(400)]


@pytest.mark.parametrize(
    "value",
    [
        {"frozenset": COLLIDING},
        {"dict": [[key, "none"] for key in COLLIDING]},
        {"frozenset": [{"tuple": [key, "none"]} for key in COLLIDING]},
        {"frozenset": [{"frozenset": [key]} for key in COLLIDING]},
        {"named": ["set", {"frozenset": COLLIDING}]},
    ],
)
def test_keys_that_have_the_same_hash(value: Any) -> None:
    with pytest.raises(treepack.DecodeError, match="have the same hash"):
        core.decode_value(msgpack.packb(value))


def test_keys_of_dicts_that_have_the_same_hash() -> None:
    state = {str(index): index for index in range(400)}
    keys = msgpack.packb({"list": COLLIDING})
    with pytest.raises(treepack.DecodeError, match="hash"):
        treepack.loads(with_record(state, record([PLAIN, [{"dict_with_keys": keys}, [[400, 0]]]])))
    static = msgpack.packb({"tuple": [{"list": COLLIDING}, "none"]})
    ordered = record(
        [PLAIN, [{"typed": [0, static]}, [[400, 0]]]], [["collections.OrderedDict", None]]
    )
    with pytest.raises(treepack.DecodeError, match="hash"):
        treepack.loads(with_record(state, ordered))


def test_keys_of_maps_that_have_the_same_hash() -> None:
    parts = itertools.product((-1, -2), repeat=9)  # which have the same hash
    keys = [msgpack.ExtType(4, msgpack.packb(part)) for part in parts]
    data = (
        b"\xde"
        + len(keys).to_bytes(2, "big")
        + b"".join(msgpack.packb(key) + b"\1" for key in keys)
    )
    with pytest.raises(treepack.DecodeError, match="hash"):
        treepack.serialization.msgpack_restore(data)
    # The same key again is none more.
    twice = b"\xde\x01\x90" + b"\1\2" * 400
    assert treepack.serialization.msgpack_restore(twice) == {1: 2}
    honest = dict.fromkeys([*range(-1000, 1000), *(index / 8 for index in range(1, 999, 2))], 1)
    assert treepack.serialization.msgpack_restore(msgpack.packb(honest)) == honest
    found = {frozenset(itertools.product((-2, -1, 0, 1), repeat=4)): 1, frozenset(range(9999)): 2}
    assert treepack.loads(treepack.dumps(found)) == found


def test_many_keys_are_put_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes ten times as long to put a key as to make one."""
    data = treepack.dumps([jax.random.key(index) for index in range(100)])
    put, wrapped = [], []
    device_put, wrap = jax.device_put, jax.random.wrap_key_data
    monkeypatch.setattr(jax, "device_put", lambda it, *at: put.extend(it) or device_put(it, *at))
    monkeypatch.setattr(
        jax.random, "wrap_key_data", lambda it, **how: wrapped.append(type(it)) or wrap(it, **how)
    )
    found = [int(jax.random.key_data(key)[1]) for key in treepack.loads(data)]
    assert found == list(range(100))
    assert put == []
    assert wrapped[-1] is not np.ndarray


def test_names_of_no_implementation_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes jax long to find out in `eval_shape`, and a file may have many."""
    calls = []
    eval_shape = jax.eval_shape
    monkeypatch.setattr(jax, "eval_shape", lambda *it: calls.append(it) or eval_shape(*it))
    keys = treepack.serialization.msgpack_serialize([jax.random.key(0)] * 300)
    parts = keys.split(b"threefry2x32")
    names = [f"no-such-{index:04d}".encode() for index in range(300)]
    data = parts[0] + b"".join(map(bytes.__add__, names, parts[1:]))
    found = treepack.serialization.msgpack_restore(data)
    assert found[7]["__prng_key__"] == "no-such-0007"
    assert treepack.open(data).abstract()[7].keys() == found[7].keys()
    assert calls == []


def test_paths_in_errors_escape_invisible_characters() -> None:
    tree = {"\x1b[2J\n\u202e\xe9": {"l": [1, NODES["pair"]]}}
    place = r"\x1b[2J\n\u202eé/l/1"
    with pytest.raises(treepack.DecodeError) as caught:
        treepack.loads(with_damaged_node(tree))
    assert caught.value.__notes__ == [f"treepack: while loading {place}/1"]
    key = next(iter(tree))
    with pytest.raises(OverflowError) as overflow:
        serialization.to_bytes({key: {"l": [0, 2**64]}})
    assert place in str(overflow.value)
    with pytest.raises(UnicodeEncodeError) as encoding:
        serialization.to_bytes({key: {"l": [0, "\ud800"]}})
    assert place in str(encoding.value)


@pytest.mark.parametrize("options", [{}, {"compress": True}, {"sharded": True}], ids=str)
def test_integers_beyond_64_bits(options: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0).bit_generator
    large = [2**64, -(2**63) - 1, 2**127 - 1, -(2**127), 255 * 2**64, 3**1000]
    tree = {"rng": generator.state, "w": np.ones(3), "large": large}
    template = {**tree, "rng": np.random.default_rng(1).bit_generator.state}
    treepack.save(tmp_path / "tree", tree, **options)
    assert treepack.verify(tmp_path / "tree").ok
    for found in (
        treepack.load(tmp_path / "tree"),
        treepack.load(tmp_path / "tree", template, strict="exact"),
        treepack.load(tmp_path / "tree", template, select="**"),
        treepack.loads(treepack.dumps(tree)),
        treepack.loads(treepack.dumps(tree), template),
        serialization.from_bytes(template, treepack.dumps(tree)),
    ):
        assert found["rng"] == tree["rng"]
        assert found["large"] == large
        generator.state = found["rng"]
    with treepack.open(tmp_path / "tree") as file:
        assert file["rng/state/inc"] == tree["rng"]["state"]["inc"]
    assert treepack.loads(treepack.dumps(2**70)) == 2**70
    small = {**template, "rng": {**template["rng"], "state": {"state": 1, "inc": np.ones(2)}}}
    with pytest.raises(treepack.MismatchError, match=r"inc: expected float64\[2\], found int"):
        treepack.load(tmp_path / "tree", small)


def test_flax_reads_a_file_with_large_integers() -> None:
    read = flax.serialization.msgpack_restore(treepack.dumps({"n": -(2**70), "w": np.ones(2)}))
    assert read["n"] == msgpack.ExtType(73, (-(2**70)).to_bytes(9, "big", signed=True))
    assert read["w"].sum() == 2
    with pytest.raises(OverflowError, match=r"at n: .*treepack\.dumps"):
        serialization.to_bytes({"n": 2**70})
