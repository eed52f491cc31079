"""The native restore of a template does what the one in Python does."""

from __future__ import annotations

import collections
import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import treepack
from treepack import _core, _restore
from treepack._restore import Restore
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
    restore = Restore(strict)
    restore.child = child
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


def assert_same_tree(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same_tree(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_tree(x, y)
    elif isinstance(a, np.ndarray):
        assert_same(a, b)
    else:
        assert a is b


@settings(max_examples=400)
@given(st.data(), st.sampled_from([True, False, "exact"]))
def test_both_give_the_same_tree_or_the_same_error(data: Any, strict: Any):
    template = data.draw(templates())
    state = data.draw(states(template))
    expected, expected_error = outcome(_restore.restore_child, template, state, strict)
    found, error = outcome(_core.rebuild, template, state, strict)
    assert error == expected_error
    assert_same_tree(found, expected)
