"""`save(select=...)`: a file of the chosen leaves is what `load` would choose of a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack
from node_types import Frozen, Plain
from treepack._src import paths as _paths
from treepack._src.pytree.state_dict import leaves_of
from trees import assert_same, state_trees


def outcome(make: Any) -> Any:
    try:
        return make()
    except ValueError as error:
        return type(error), str(error).replace("in the tree", "in the file")


@pytest.mark.filterwarnings("ignore:select= and exclude= leave out every leaf")
@hypothesis.given(tree=state_trees(), data=st.data())
def test_a_saved_selection_is_the_selection_of_what_is_saved(tree: Any, data: Any) -> None:
    paths = [_paths.text(path) for path, _ in leaves_of(tree, ())]
    patterns = ["**/kernel", "*", "**", "0", "*/1", "**/0", "x", *paths]
    wanted = st.sets(st.sampled_from(paths)) if paths else st.just(set[str]())
    picked = data.draw(wanted)
    select = data.draw(
        st.lists(st.sampled_from(patterns), min_size=1, max_size=3)
        | st.sampled_from([lambda path: path in picked, lambda path: path not in picked])
    )
    expected = outcome(lambda: treepack.open(treepack.dumps(tree)).load(select=select))
    found = outcome(lambda: treepack.loads(treepack.dumps(tree, select=select)))
    assert_same(found, expected)


def whole() -> dict[str, Any]:
    return {
        "params": [{"lora_a": jnp.ones(2), "w": np.zeros(3)}, {"lora_a": jnp.zeros(2), "w": 1}],
        "node": Plain(np.ones(2), (3, 4)),
        "frozen": Frozen(np.ones(1), np.zeros(1)),
        "key": jax.random.key(3),
        "empty": {"x": {}, "y": ()},
        3: (1, None),
        "code": jnp.tanh,
    }


@pytest.mark.filterwarnings("ignore:select= and exclude= leave out every leaf")
@pytest.mark.parametrize(
    "select",
    [
        "**/lora_*",
        ["node", "key"],
        "frozen/w",
        "3/0",
        "3",
        "empty",
        ("empty", "y"),
        ["params/0", "3"],
        lambda path: path.startswith("key"),
        lambda path: False,
        {"params": [True, False], "node": True, "frozen": False, "key": None, "empty": {}, 3: True},
    ],
)
def test_nodes_keys_and_code(tmp_path: Path, select: Any) -> None:
    tree = whole()
    if isinstance(select, dict):
        del tree["code"]  # the mask has nothing for it
    before = treepack.dumps(tree)
    with treepack.open(before) as file:
        expected = file.load(select=select)
    treepack.save(tmp_path / "x", tree, select=select)
    treepack.save(tmp_path / "y", tree, select=select, background=True).result()
    treepack.save(tmp_path / "d", tree, select=select, sharded=True)
    for name in ("x", "y", "d"):
        found = treepack.load(tmp_path / name)
        assert treepack.dumps(found) == treepack.dumps(expected)  # types, keys and bits
    assert treepack.verify(tmp_path / "x").ok
    assert treepack.dumps(tree) == before


def test_a_template_brings_the_rest(tmp_path: Path) -> None:
    tree = whole()
    treepack.save(tmp_path / "x", tree, select="**/lora_*")
    template = whole()
    template["params"][0]["lora_a"] = jnp.full(2, 9.0)
    template["params"][1]["w"] = 7
    found = treepack.load(tmp_path / "x", template, missing="target")
    assert found["params"][0]["lora_a"].tolist() == [1, 1]
    assert found["params"][1]["w"] == 7
    assert found["code"] is jnp.tanh


def test_code_is_chosen_as_it_is_saved() -> None:
    data = treepack.dumps({"f": jnp.tanh, "w": 1, "bad": object()}, select=["f", "w"])
    assert treepack.loads(data, static={"f": jnp.tanh}) == {"f": jnp.tanh, "w": 1}


def test_selections_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"select .*: x\b"):
        treepack.dumps({"a": 1}, select=["a", "x"])
    with pytest.raises(ValueError, match="pass a list"):
        treepack.dumps({"a": 1, "b": 2}, select=("a", "b"))
    with pytest.raises(ValueError, match="requires a tree"):
        treepack.save(tmp_path / "x", iter([("a", 1)]), select="a")
    with pytest.raises(ValueError, match="at b: the tree of bools"):
        treepack.dumps({"a": 1, "b": 2}, select={"a": True})
    assert not (tmp_path / "x").exists()
