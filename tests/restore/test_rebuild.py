"""The native restore of a template does what the one in Python does."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
import treepack._core as core
from tiers import examples
from treepack._src.options import restoring
from treepack._src.restore import template as _template
from treepack._src.restore.session import Restore
from treepack.errors import MismatchError
from trees import assert_same

LEAVES = st.sampled_from(
    [
        *(None, 1, 2.5, "text", True, b"x", 1j, np.float32(1), np.zeros(3), np.zeros((3,), ">f8")),
        *(np.zeros((2, 3), np.float32), jnp.zeros((2, 3)), jax.ShapeDtypeStruct((3,), np.float64)),
        *(jnp.zeros(3, jnp.bfloat16), jax.random.key(0), dict, object(), range(3)),
    ]
)
KEYS = st.sampled_from(["a", "b", "c"])


def templates() -> st.SearchStrategy[Any]:
    return st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.dictionaries(KEYS, inner, max_size=3),
            st.dictionaries(st.sampled_from([1, "a", 2.5]), inner, max_size=3),
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(KEYS, inner, max_size=2).map(collections.OrderedDict),
        ),
        max_leaves=12,
    )


def states(template: Any) -> st.SearchStrategy[Any]:
    """States that fit a template, or nearly."""
    state = treepack.serialization.to_state_dict(template)
    if not isinstance(state, dict):
        fitting = jax.tree.map(
            lambda leaf: (
                np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            ),
            state,
        )
        return st.sampled_from([fitting] * 8 + [np.zeros(3), np.zeros(4), {"a": 1}, 5])
    whole = st.fixed_dictionaries({key: states(value) for key, value in state.items()})
    return st.one_of(
        whole,
        whole,
        whole.map(lambda found: {**found, "extra": 1}),
        whole.map(lambda found: dict(list(found.items())[1:])),
    )


def outcome(child: Any, template: Any, state: Any, strict: Any) -> tuple[Any, Any]:
    in_core = child is core.restore_state
    restore = Restore(restoring(strict), _template._restore_child, in_core=in_core)
    result = error = None
    with contextlib.suppress(ValueError):
        try:
            with restore:
                result = restore.below(template, state, ".")
        except MismatchError as raised:
            error = (type(raised), str(raised), raised.mismatches)
            raise
    assert restore.path == []
    assert treepack.serialization.current_path() == ""
    return (result if error is None else None), error


def assert_same_tree(a: Any, b: Any, same: Any = operator.is_) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same_tree(a[key], b[key], same)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_tree(x, y, same)
    elif isinstance(a, np.ndarray):
        assert_same(a, b)
    else:
        assert same(a, b)


@examples(400)
@given(st.data(), st.sampled_from([True, False, "exact"]))
def test_both_give_the_same_tree_or_the_same_error(data: Any, strict: Any):
    template = data.draw(templates())
    state = data.draw(states(template))
    expected, expected_error = outcome(_template._restore_child, template, state, strict)
    found, error = outcome(core.restore_state, template, state, strict)
    assert error == expected_error
    assert_same_tree(found, expected)


NODES = st.sampled_from([np.zeros(3), np.float32(1), 1, None, np.zeros((2, 3), np.float32)])


@examples(200)
@given(st.data(), st.sampled_from([True, False, "exact"]), st.booleans(), st.booleans())
def test_what_is_built_while_it_is_read_is_the_same(
    data: Any, strict: Any, described: bool, copy: bool
) -> None:
    """What is just like its template is built at once, and anything else as if that were not."""
    template = data.draw(st.one_of(templates(), fitting()))
    try:
        state = data.draw(states(template))
        encoded = treepack.serialization.msgpack_serialize(state, in_place=data.draw(st.booleans()))
        if described:
            encoded = treepack.dumps(state, static="skip")
    except (TypeError, ValueError):
        return  # a leaf that cannot be saved

    def restored() -> Any:
        try:
            return treepack.serialization.from_bytes(
                template, encoded, strict=strict, copy=copy or None
            )
        except ValueError as error:
            return str(error)

    found = restored()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "restore_encoded", lambda *_: None)
        expected = restored()
    assert_same_tree(found, expected, lambda a, b: a is b or bool(np.all(a == b)))


class Pair(NamedTuple):
    a: Any
    b: Any


def fitting() -> st.SearchStrategy[Any]:
    """Templates of leaves that can be saved, so that most states are just like them."""
    return st.recursive(
        NODES,
        lambda inner: st.one_of(
            st.dictionaries(KEYS, inner, max_size=3),
            st.lists(inner, max_size=12),
            st.lists(inner, max_size=3).map(tuple),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=12,
    )


def test_most_trees_are_built_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("the state was made first")

    monkeypatch.setattr(core, "restore", never)
    pair = Pair(1, (np.ones((2, 3), np.float32), None))
    tree = {"a": [np.zeros(3), {}], "b": pair, "ü": [0] * 101}
    for template in (tree, [tree], Pair(1, 2), (), 5, np.zeros(2)):
        for write in (treepack.serialization.to_bytes, treepack.dumps):
            treepack.register_tree(template)
            found = treepack.serialization.from_bytes(template, write(template))
            assert_same(found, template)


def test_code_that_changes_the_template_while_it_is_restored() -> None:
    template: dict[str, Any] = {}

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Changing:
        items: Any

        def __post_init__(self) -> None:
            template.pop("c", None)

    template["b"] = Changing(np.zeros(3))
    template["c"] = 1
    encoded = treepack.serialization.to_bytes(template)
    found = treepack.serialization.from_bytes(template, encoded)
    assert list(found) == ["b", "c"]  # nodes are made last, of the template as it was
    assert type(found["b"]) is Changing


def test_mismatches_are_reported_as_before() -> None:
    """Bytes that are damaged, and code of types that raises."""
    data = treepack.dumps(5)[:-20]
    with pytest.raises(treepack.DecodeError, match="at __treepack__"):
        treepack.serialization.from_bytes(1, data)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Careful:
        a: Any

        def __post_init__(self) -> None:
            if type(self.a) is int and self.a > 1:
                raise KeyError("a is too large")

    whole = treepack.serialization.to_bytes({"a": {"a": 2}, "b": 1})
    template = {"a": Careful(1), "b": 1}
    with pytest.raises(KeyError, match="too large"):
        treepack.serialization.from_bytes(template, whole)
    with pytest.raises(treepack.DecodeError):
        treepack.serialization.from_bytes(template, whole[:-1])
