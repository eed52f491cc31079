"""Loading a part of a file, into a template of other names, or with leaves of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.struct
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import treepack
from treepack import serialization
from treepack._src import paths as _paths
from trees import assert_same

NAMES = st.sampled_from(["a", "b", "ab", "x/y", "~", "*"])
FLAT = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=4).map(tuple), st.integers(0, 99), min_size=1, max_size=12
)


def nested(flat: dict[tuple[str, ...], Any]) -> Any:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return tree


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {leaf: value for key in tree for leaf, value in leaves(tree[key], (*path, key)).items()}


@st.composite
def trees(draw: Any) -> Any:
    flat = draw(FLAT)
    # No leaf is a container as well.
    return nested(
        {
            path: value
            for path, value in flat.items()
            if not any(path != other and other[: len(path)] == path for other in flat)
        }
    )


@pytest.mark.filterwarnings("ignore:select= and exclude= leave out every leaf")
@hypothesis.given(tree=trees(), other=trees(), data=st.data())
def test_a_naive_oracle(tree: Any, other: Any, data: Any) -> None:
    have, template = leaves(tree), leaves(other)
    prefix = data.draw(st.sampled_from([*have, *template]))[: data.draw(st.integers(0, 3))]
    select = data.draw(st.sampled_from([_paths.text(prefix), None]))
    chosen = {
        path for path in {*have, *template} if select is None or path[: len(prefix)] == prefix
    }
    if "*" in "".join(prefix):
        select = lambda path: tuple(_paths.parts(path)) in chosen  # noqa: E731
    file = treepack.open(treepack.dumps(tree))
    selected = {path: value for path, value in have.items() if path in chosen}
    if selected or not isinstance(select, str):
        assert leaves(file.load(select=select)) == (selected or {})
    else:
        with pytest.raises(ValueError, match="matches nothing"):
            file.load(select=select)
    expected = {
        path: have[path] if path in have and path in chosen else value
        for path, value in template.items()
    }
    clashes = any(
        one != two and two[: len(one)] == one
        for one in [*have, *template]
        for two in [*have, *template]
    )
    if clashes:
        return
    found, report = file.load(other, select=select, missing="target", return_report=True)
    assert leaves(found) == expected
    assert set(report.loaded) == {
        _paths.text(path) for path in template if path in have and path in chosen
    }
    assert set(report.kept) | set(report.loaded) == {_paths.text(path) for path in template}
    assert set(report.unexpected) == {
        _paths.text(path) for path in have if path not in template and path in chosen
    }
    if any(path not in have and path in chosen for path in template):
        with pytest.raises(treepack.MismatchError) as error:
            file.load(other, select=select)
        assert any(it.found == "nothing" for it in error.value.mismatches)
    if report.unexpected:
        with pytest.raises(treepack.MismatchError, match="unexpected"):
            file.load(other, select=select, missing="target", unexpected="error")


@pytest.mark.filterwarnings("ignore:select= and exclude= leave out every leaf")
@pytest.mark.parametrize(
    ("select", "paths"),
    [
        ("a", ["a/w", "a/b", "a/in/w"]),
        (".", ["a/w", "a/b", "a/in/w", "ab/w", "step"]),
        ("*/w", ["a/w", "ab/w"]),
        ("**/w", ["a/w", "a/in/w", "ab/w"]),
        ("**/ab", ["ab/w"]),
        ("a/*", ["a/w", "a/b", "a/in/w"]),
        ("?", ["a/w", "a/b", "a/in/w"]),
        (["ab", "step"], ["ab/w", "step"]),
        (lambda path: path.endswith("w"), ["a/w", "a/in/w", "ab/w"]),
        (
            {"a": {"w": True, "b": False, "in": True}, "ab": False, "step": True},
            ["a/w", "a/in/w", "step"],
        ),
        ((jax.tree_util.DictKey("a"), jax.tree_util.DictKey("w")), ["a/w"]),
        ({"a": {"w": np.True_, "b": None, "in": None}, "ab": None, "step": None}, ["a/w"]),
        (lambda path: False, []),
    ],
)
def test_what_selects(tmp_path: Path, select: Any, paths: list[str]) -> None:
    tree = {"a": {"w": 1, "b": 2, "in": {"w": 3}}, "ab": {"w": 4}, "step": 5}
    treepack.save(tmp_path / "saved", tree)
    found = treepack.load(tmp_path / "saved", select=select)
    assert [_paths.text(path) for path in leaves(found) if path] == paths
    template = nested(dict.fromkeys(leaves(tree), 0))
    loaded, report = treepack.load(tmp_path / "saved", template, select=select, return_report=True)
    assert report.loaded == paths
    assert {_paths.text(p) for p, value in leaves(loaded).items() if value} == set(paths)


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"new": "old"}, "new/0/w"),
        ({"new/{i}/kernel": "old/{i}/w"}, "new/0/kernel"),
        ({"{i}/{j}/kernel": "{i}/{j}/w"}, "old/0/kernel"),
        ({"{i}_{j}_{k}": "{i}/{j}/{k}"}, "old_0_w"),
        ({".": "old/0"}, "w"),
        ({"all": "."}, "all/old/0/w"),
        ({"x": "ol", "w": "old/0/w"}, "w"),
        (str.lower, "OLD/0/W"),
    ],
)
def test_new_names(mapping: Any, expected: str) -> None:
    file = treepack.open(treepack.dumps({"old": [{"w": np.arange(3)}]}))
    template = nested({tuple(_paths.parts(expected)): np.zeros(3, int)})
    found = file.load(template, mapping=mapping)
    np.testing.assert_array_equal(leaves(found)[tuple(_paths.parts(expected))], np.arange(3))


@pytest.mark.usefixtures("folder")
def test_a_tensor_in_whose_place_another_goes_is_unexpected() -> None:
    file = treepack.open(treepack.dumps({"a": np.ones(2), "b": np.zeros(2)}))
    template = {"a": np.full(2, 7.0)}
    loaded, report = file.load(template, mapping={"a": "b"}, return_report=True)
    assert loaded["a"].tolist() == [0, 0]
    assert (report.loaded, report.unexpected) == (["a"], ["a"])
    with pytest.raises(treepack.MismatchError, match=r"no rule of the mapping takes.*: a is left"):
        file.load(template, mapping={"a": "b"}, unexpected="error")
    whole = {**template, "b": template["a"]}
    for read in (treepack.open, treepack.load, treepack.abstract):
        with pytest.raises(treepack.TreepackError, match="gives the path of a to another leaf"):
            read(treepack.dumps({"a": np.ones(2), "b": np.zeros(2)}), mapping={"a": "b"})
    with pytest.raises(treepack.TreepackError, match="gives the path of b to another leaf"):
        treepack.save("f", whole, mapping={"a": "b"})
    treepack.save("f", whole, mapping=treepack.Mapping({"a": "b"}, rest="skip"))
    assert [*treepack.load("f")] == ["b"]
    swapped, report = file.load(
        {**template, "b": template["a"]}, mapping={"a": "b", "b": "a"}, return_report=True
    )
    assert swapped["b"].tolist() == [1, 1]
    assert report.unexpected == []


def test_names_that_make_no_sense() -> None:
    file = treepack.open(treepack.dumps({"a": 1, "b": 2, "c": {"d": 3}}))
    template = {"a": 0}
    with pytest.raises(TypeError, match=r"mapping=.*got 3"):
        file.load(template, mapping=3)
    with pytest.raises(TypeError, match=r"select=.*got 3"):
        file.load(select=3)
    with pytest.raises(ValueError, match="missing must be "):
        file.load(missing="ignore")  # type: ignore[arg-type]


def state(seed: int) -> TrainState:
    params = {"w": jax.random.normal(jax.random.key(seed), (4, 3)), "b": jnp.full(3, seed)}
    tx = optax.adamw(1e-3)
    made = TrainState.create(apply_fn=None, params=params, tx=tx)
    return made.replace(step=seed)


def test_params_of_a_train_state(tmp_path: Path) -> None:
    """Start a model from part of another."""
    treepack.register_tree(state(0))
    saved, fresh = state(1), state(2)
    treepack.save(tmp_path / "state", saved, static="skip")
    (tmp_path / "flax").write_bytes(serialization.to_bytes(saved))
    for name in ("state", "flax"):
        found, report = treepack.load(tmp_path / name, fresh, select="params", return_report=True)
        assert type(found) is TrainState
        assert found.step == 2
        jax.tree.map(np.testing.assert_array_equal, found.params, saved.params)
        jax.tree.map(np.testing.assert_array_equal, found.opt_state, fresh.opt_state)
        assert report.loaded == ["params/b", "params/w"] or report.loaded == [
            "params/w",
            "params/b",
        ]
        assert "step" in report.kept
        assert "opt_state/0/mu/w" in report.kept
    params = treepack.open(tmp_path / "state")["params"].load()
    jax.tree.map(np.testing.assert_array_equal, params, saved.params)
    # Nothing but params in the file.
    treepack.save(tmp_path / "params", {"params": saved.params})
    found = treepack.load(tmp_path / "params", fresh, missing="target")
    assert found.step == 2
    with pytest.raises(treepack.MismatchError, match="opt_state"):
        treepack.load(tmp_path / "params", fresh)


class Opaque:
    def __init__(self, a: Any, b: Any):
        self.a, self.b = a, b


def test_handlers_keep_parts() -> None:
    serialization.register_serialization_state(
        Opaque,
        lambda it: {"a": it.a, "b": {"c": it.b}},
        lambda _, state: Opaque(state["a"], state["b"]["c"]),
    )
    data = serialization.to_bytes({"x": Opaque(np.ones(2), 3)})
    template = {"x": Opaque(np.zeros(2), 0)}
    file = treepack.open(data)
    for select, a, b in (("x/a", 1, 0), ("x/b", 0, 3), (lambda _: False, 0, 0), (None, 1, 3)):
        found = file.load(template, select=select)["x"]
        np.testing.assert_array_equal(found.a, [a, a])
        assert found.b == b
    less = treepack.open(serialization.to_bytes({"x": {"b": {"c": 5}}}))
    found, report = less.load(template, missing="target", return_report=True)
    assert found["x"].b == 5
    assert report.kept == ["x/a"]


class Listed:
    def __init__(self, parts: list[Any]):
        self.parts = parts


def test_leaves_in_lists_of_handlers_have_the_paths_of_the_file() -> None:
    serialization.register_serialization_state(
        Listed, lambda it: {"parts": it.parts}, lambda _, state: Listed(state["parts"])
    )
    template = {"x": Listed([1, {"c": 2}]), "y": 3}
    whole = treepack.open(serialization.to_bytes(template))
    assert "x/parts/1/c" in {path for path, _ in whole.leaves()}
    less = treepack.open(serialization.to_bytes({"y": 4}))
    found, report = less.load(
        template, select=["x/parts/1/c", "y"], missing="target", return_report=True
    )
    assert found["y"] == 4
    assert found["x"].parts == [1, {"c": 2}]
    assert report.kept == ["x/parts/0", "x/parts/1/c"]


@flax.struct.dataclass
class Model:
    w: Any
    name: str = dataclasses.field(default="m", metadata={"pytree_node": False})


def test_casts_and_placement(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"m": {"w": jnp.ones((8, 2))}, "n": jnp.zeros(3)})
    template = {"m": Model(jax.ShapeDtypeStruct((8, 2), jnp.bfloat16)), "n": jnp.ones(3)}
    sharding = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",), devices=jax.devices()[:4]), jax.sharding.PartitionSpec("x")
    )
    found, report = treepack.load(
        tmp_path / "saved", template, cast=True, return_report=True, select="m", sharding=sharding
    )
    assert report.cast == ["m/w"]
    assert found["m"].w.dtype == jnp.bfloat16
    assert found["m"].w.sharding == sharding
    assert found["n"] is template["n"]
    with pytest.raises(treepack.MismatchError, match="m/w: expected"):
        treepack.load(tmp_path / "saved", template, select="m")
    with pytest.raises(ValueError, match="cast=True"):
        treepack.load(tmp_path / "saved", cast=True, select="m")


def test_damaged_leaves_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    tree = {"a": np.arange(1000), "b": np.arange(10), "c": [np.ones(1000), 2]}
    treepack.save(path, tree)
    assert treepack.load(path, verify=True)["c"][1] == 2
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    treepack.load(path)  # without verification
    with pytest.raises(treepack.CorruptionError, match="a is damaged"):
        treepack.load(path, verify=True)
    treepack.load(path, verify=True, select="c")
    assert list(treepack.load(path, verify=True, on_corrupt="skip")) == ["b", "c"]
    found, report = treepack.load(
        path, dict(tree, a=np.zeros(1000, int)), verify=True, on_corrupt="skip", return_report=True
    )
    assert report.corrupt == report.kept == ["a"]
    assert found["a"].sum() == 0
    assert report.loaded == ["b", "c/0", "c/1"]
    path.write_bytes(treepack.dumps(tree))
    with pytest.raises(treepack.TreepackError, match="no checksums"):
        treepack.load(path, verify=True)


# What a review has found


class Items:
    def __init__(self, items: Any, b: Any):
        self.items, self.b = items, b


serialization.register_serialization_state(
    Items,
    lambda it: {"items": it.items, "b": it.b},
    lambda _, state: Items(state["items"], state["b"]),
)


def test_lists_in_states_are_whole_or_not_there() -> None:
    tree = {"h": Items([1, {"x": 2}], 3), "z": 5}
    for data in (serialization.to_bytes(tree), treepack.dumps(tree, static="skip")):
        file = treepack.open(data)
        template = {"h": Items([8, 9], 0), "z": 0}
        for options in ({"select": "z"}, {"select": "z", "mapping": {"z": "z"}}):
            found, report = file.load(template, **options, return_report=True)
            assert found["h"].items == [8, 9]
            assert found["z"] == 5
            assert report.loaded == ["z"]
        assert file.load(select="z", unknown="dict", static=tree) == {"z": 5}
        assert file.load(template, mapping={"z": "z"})["h"].items == [1, {"x": 2}]
    lists = treepack.open(serialization.msgpack_serialize({"a": [{"x": 1}, 2], "b": 3}))
    assert lists.load(select="b") == {"b": 3}
    assert lists.load(select="a/0/x") == {"a": [{"x": 1}, 2]}
    assert lists.abstract() == {"a": [{"x": 1}, 2], "b": 3}
    dicts = treepack.open(
        serialization.to_bytes({"h": {"items": {"0": 1, "1": 2}, "b": 1}, "z": 2})
    )
    found = dicts.load({"h": Items([8, 9], 0), "z": 0}, select=["z", "h/items/0"], strict=False)
    assert found["h"].items == [8, 9]


def test_a_leaf_in_the_place_of_what_is_not_selected() -> None:
    file = treepack.open(treepack.dumps({"a": {"x": 1}, "b": 2}))
    for leaf in (None, dict, 3, np.ones(2)):
        for strict in (True, False):
            assert file.load({"a": leaf, "b": 3}, select="b", strict=strict)["b"] == 2
            assert file.load({"a": leaf, "b": 3}, select="b", strict=strict)["a"] is leaf
    with pytest.raises(treepack.MismatchError):
        file.load({"a": None, "b": 3}, select="a")


def test_masks_of_states_with_empty_containers(tmp_path: Path) -> None:
    saved = optax.adamw(1e-3).init({"w": jnp.ones(3)})
    treepack.register_tree(saved)
    treepack.save(tmp_path / "saved", {"opt": saved, "n": 1})
    mask = jax.tree.map(lambda _: True, {"opt": saved, "n": 1})
    found = treepack.load(tmp_path / "saved", select=mask)
    assert jax.tree.structure(found) == jax.tree.structure({"opt": saved, "n": 1})
    mask["n"] = False
    found = treepack.load(tmp_path / "saved", select=mask)
    assert list(found) == ["opt"]
    assert type(found["opt"]) is tuple
    assert treepack.load(tmp_path / "saved", {"opt": saved, "n": 0}, select=mask)["n"] == 0
    mask = jax.tree.map(lambda _: False, {"opt": saved, "n": 1})
    assert treepack.load(tmp_path / "saved", select=mask | {"n": True}) == {"n": 1}


def test_reports_list_cast_leaves(tmp_path: Path) -> None:
    treepack.save(tmp_path / "r", {"a": np.arange(3.0), "b": np.arange(3)})
    _, report = treepack.load(
        tmp_path / "r", {"a": jnp.zeros(3), "b": jnp.zeros(3, int)}, return_report=True
    )
    assert report.cast == ["a", "b"]
    template = {"a": np.zeros(3, np.int32), "b": np.zeros(3, np.float32)}
    found, report = treepack.load(
        tmp_path / "r", template, return_report=True, cast=True, strict=False
    )
    assert found["a"].dtype == np.float64
    assert report.cast == []


def test_all_paths_are_from_here(tmp_path: Path) -> None:
    state = TrainState.create(apply_fn=None, params={"w": jnp.ones(2)}, tx=optax.sgd(0.1))
    treepack.register_tree(state)
    treepack.save(tmp_path / "n", {"b": [jnp.ones(2)] * 2, "ts": state}, static="skip")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    with treepack.open(tmp_path / "n") as file:
        for found in file["b"].load(sharding=[sharding, sharding]):
            assert found.sharding == sharding
        seen: list[str] = []
        file["b"].load(sharding=lambda path, _: seen.append(path))
        assert seen == ["0", "1"]
        for static in (state, {"tx": state.tx}):
            assert file["ts"].load(static=static).tx is state.tx
        with pytest.raises(treepack.TreepackError, match="at tx: the static data"):
            file["ts"].load()


def test_the_last_of_equal_keys_counts() -> None:
    for data in (b"\x82\xa1a\x01\xa1a\x02", b"\x82\xa1a\x91\x01\xa1a\x02"):
        file = treepack.open(data)
        assert file.load() == {"a": 2}
        assert file.load({"a": 0}) == {"a": 2}
        assert file["a"] == 2


def test_keys_in_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 16)
    tree = {"key": jax.random.split(jax.random.key(0), 4)}
    treepack.save(tmp_path / "k", tree)
    for found in (
        treepack.loads(treepack.dumps(tree)),
        treepack.load(tmp_path / "k"),
        treepack.open(tmp_path / "k").load(),
        treepack.open(treepack.dumps(tree)).load(),
        serialization.from_bytes(tree, serialization.to_bytes(tree)),
    ):
        assert jnp.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(tree["key"]))
    assert [path for path, _ in treepack.open(treepack.dumps(tree)).leaves()] == ["key"]


def test_trees_as_deep_as_can_be_saved(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(500):
        tree = {"k": tree}
    treepack.save(tmp_path / "d", tree)
    (tmp_path / "flax").write_bytes(serialization.to_bytes(tree))
    for name in ("d", "flax"):
        assert treepack.load(tmp_path / name, tree, missing="target") == tree
        file = treepack.open(tmp_path / name)
        assert file.load(select="k") == tree
        assert file.abstract() == tree
        assert file["k/k"].load()["k"]


def test_a_key_that_is_a_dot(tmp_path: Path) -> None:
    tree = {".": {"a": 5, ".": 1}, "a": 2}
    treepack.save(tmp_path / "x", tree)
    file = treepack.open(tmp_path / "x")
    assert [path for path, _ in file.leaves()] == ["~2/a", "~2/~2", "a"]
    assert list(file) == ["~2", "a"]
    assert file["~2"].load() == tree["."]
    found, report = file.load({".": {"a": 10, ".": 0}, "a": 20}, select="a", return_report=True)
    assert found == {".": {"a": 10, ".": 0}, "a": 2}
    assert report.kept == ["~2/a", "~2/~2"]


def test_mapping_and_the_root(tmp_path: Path) -> None:
    treepack.save(tmp_path / "q", np.arange(3))
    found = treepack.load(tmp_path / "q", {"a": np.zeros(3, int)}, mapping={"a": "."})
    np.testing.assert_array_equal(found["a"], np.arange(3))
    treepack.save(tmp_path / "q", {"b": 3, "a": np.arange(3)})
    found, report = treepack.load(
        tmp_path / "q", np.zeros(3, int), mapping={".": "a"}, return_report=True
    )
    np.testing.assert_array_equal(found, np.arange(3))
    assert report.unexpected == ["b"]


def test_key_paths_are_no_patterns() -> None:
    file = treepack.open(treepack.dumps({"*": 1, "b": 2}))
    assert file.load(select=(jax.tree_util.DictKey("*"),)) == {"*": 1}


@pytest.mark.parametrize("deeper", ["template", "file"])
def test_values_that_lie_deeper_on_one_side(deeper: str) -> None:
    """As between a state of nnx and its pure dict: the error says how to rename them."""
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    saved, like = nnx.to_pure_dict(state), jax.tree.map(jnp.zeros_like, state)
    if deeper == "file":
        saved, like = state, nnx.to_pure_dict(like)
    data, template = treepack.dumps({"m": saved, "step": 1}), {"m": like, "step": 0}
    with pytest.raises(treepack.MismatchError, match="one level deeper") as caught:
        treepack.load(data, template)
    short, long = "m/bias", "m/bias/value"
    first = {long: short} if deeper == "template" else {short: long}
    assert f"Pass mapping={first} and so on, or" in str(caught.value)
    paths = [it.path for it in caught.value.mismatches]
    assert paths == ["m/bias", "m/kernel"]
    mappings: list[Any] = [{f"{it}/value": it for it in paths}]
    if deeper == "file":
        mappings = [
            {it: f"{it}/value" for it in paths},
            lambda path: f"{path}/value" if path in paths else None,
        ]
    for mapping in mappings:
        found = treepack.load(data, template, mapping=mapping)
        leaves = zip(jax.tree.leaves(found["m"]), jax.tree.leaves(state), strict=True)
        assert all(jnp.array_equal(one, other) for one, other in leaves)


HELD: Any = {
    "w": np.ones(3),
    "b": {"x": jnp.ones(2)},
    "o": optax.ScaleByAdamState(jnp.zeros(()), {"w": jnp.ones(3)}, {"w": jnp.ones(3)}),
    "l": [1, np.ones(2)],
    "k": jax.random.key(0),
}


@pytest.mark.parametrize("options", [{}, {"sharded": True}, {"compress": True}], ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_none_in_the_file_is_missing(whole: bool, options: dict[str, Any], tmp_path: Path) -> None:
    part = {**jax.tree.map(lambda _: None, HELD), "w": np.zeros(3)}
    if whole:  # of whole subtrees
        part |= {"b": None, "l": None}
    treepack.save(tmp_path / "f", part, **options)
    for more in ({}, {"unexpected": "error"}, {"mismatched": "target"}):
        found = treepack.load(tmp_path / "f", HELD, missing="target", **more)
        assert not found["w"].any()
        assert jax.tree.all(jax.tree.map(lambda a, b: a is b, {**found, "w": 0}, {**HELD, "w": 0}))
    renamed = treepack.load(
        tmp_path / "f", {"z": HELD}, mapping=lambda path: path.removeprefix("z/"), missing="target"
    )
    assert not renamed["z"]["w"].any()
    assert renamed["z"]["k"] is HELD["k"]
    assert treepack.load(tmp_path / "f", {**HELD, "b": None}, missing="target")["b"] is None
    with pytest.raises(treepack.MismatchError, match=r"o/count: expected float32.*found None") as e:
        treepack.load(tmp_path / "f", HELD)
    assert 'Pass missing="target" to keep leaves that are None' in str(e.value)
    assert "exclude=" not in str(e.value)


def test_filtered_modules_and_masked_states(tmp_path: Path) -> None:
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    one = eqx.tree_at(lambda m: m.layers[0].weight, jax.tree.map(lambda _: False, model), True)
    treepack.save(tmp_path / "f", eqx.filter(jax.tree.map(lambda x: x, model), one))
    other = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(1))
    found = treepack.load(tmp_path / "f", other, missing="target")
    assert np.array_equal(found.layers[0].weight, model.layers[0].weight)
    assert found.layers[1].bias is other.layers[1].bias

    params = {"w": jnp.ones(3), "b": jnp.ones(2)}
    masked, whole = (
        optax.masked(optax.adam(1e-3), {"w": True, "b": b}).init(params) for b in (False, True)
    )
    treepack.save(tmp_path / "m", masked)
    found = treepack.load(tmp_path / "m", whole, missing="target")
    assert jax.tree.structure(found) == jax.tree.structure(whole)


def test_shards_one_by_one_into_an_abstract_template(tmp_path: Path) -> None:
    tree = {"a": jnp.ones(3), "b": jnp.zeros(2)}
    for name, leaf in tree.items():
        treepack.save(tmp_path / name, {name: leaf})
    template = jax.eval_shape(lambda: tree)
    with pytest.warns(UserWarning, match=r"stay in the tree .*: b"):
        first = treepack.load(tmp_path / "a", template, missing="target")
    found = treepack.load(tmp_path / "b", first, missing="target")
    assert jax.tree.all(jax.tree.map(np.array_equal, found, tree))
    with pytest.raises(treepack.MismatchError, match="no values to keep"):
        treepack.load(tmp_path / "a", {"c": template["b"]}, missing="target")


def test_a_load_without_an_intact_leaf_warns(tmp_path: Path) -> None:
    """It returns the template as it is, or nothing; a report has the names."""
    path = tmp_path / "file"
    treepack.save(path, {"v": np.arange(500.0), "w": np.arange(500.0), "step": 7})
    with treepack.open(path) as file:
        offsets = [file.info(name).offset or 0 for name in ("v", "w")]
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset + 200] ^= 1
    path.write_bytes(data)
    arrays = {"v": np.zeros(500), "w": np.zeros(500)}
    options: Any = {"on_corrupt": "skip", "select": [*arrays]}
    with pytest.warns(
        UserWarning, match="file' has no intact leaf to load, so the result is empty"
    ):
        assert treepack.load(path, **options) == {}
    with pytest.warns(UserWarning, match="no intact leaf to load, so the target stays as it is"):
        assert_same(treepack.load(path, arrays, **options), arrays)
    _, report = treepack.load(path, arrays, **options, return_report=True)
    assert report.corrupt == ["v", "w"]
    assert treepack.load(path, {**arrays, "step": 0}, on_corrupt="skip")["step"] == 7
