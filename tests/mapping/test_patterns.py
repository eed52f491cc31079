"""Which texts the indices of a pattern take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
from treepack._src.mapping.patterns import LeafNames, Pattern

KEYS = st.text("ab1_", min_size=1, max_size=6)


def matched(pattern: str, name: str, *, above: bool = False) -> dict[str, str] | None:
    found = [values for values, *_ in Pattern(pattern).matches(LeafNames([name]), above=above)]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("pattern", "name", "values"),
    [
        ("w{a}_{b}", "wx_y_z", {"a": "x_y", "b": "z"}),
        ("{a}_{b}.{a}", "x_y_z.x", {"a": "x", "b": "y_z"}),
        ("{a}{b}", "h1", {"a": "h", "b": "1"}),
        ("{a}{b}", "11", {"a": "1", "b": "1"}),  # of one number
        ("{a}{b}", "1", None),
        ("h.{a}", "h.0.w", None),
    ],
)
def test_an_index_takes_as_much_as_the_later_ones_leave(
    pattern: str, name: str, values: dict[str, str] | None
) -> None:
    assert matched(pattern, name) == values


@given(st.lists(st.tuples(st.text("ab1_.", max_size=2), st.sampled_from("abc"))), st.data())
def test_a_match_is_that_of_an_expression(
    pieces: list[tuple[str, str]], data: st.DataObject
) -> None:
    pieces = [(text, name) for at, (text, name) in enumerate(pieces[:3]) if at == "abc".find(name)]
    pattern = "".join(f"{text}{{{name}}}" for text, name in pieces)
    expression = "".join(f"{re.escape(text)}(?P<{name}>[^.]+)" for text, name in pieces)
    name = ".".join(data.draw(st.lists(KEYS, min_size=1, max_size=3)))
    expected = re.fullmatch(expression, name)
    if pieces and not re.search(r"(^|\.)\.|\{\.\{", pattern):
        assert matched(pattern, name) == (expected and expected.groupdict())


@pytest.mark.parametrize(
    "pattern", ["a{x}a{y}a{z}b", "{x}a{y}a{z}a{w}.b", "{x}{y}{z}b", "{x}a{y}b"]
)
@pytest.mark.parametrize("above", [False, True])
def test_a_long_key_does_not_take_long(pattern: str, above: bool) -> None:
    """Trying all ways to share it among the indices would take days."""
    assert matched(pattern, "a" * 10**6, above=above) is None


@pytest.mark.parametrize("pattern", ["{x}_{y}.{x}", "{x}_{y}_{x}", "a.{x}.{x}_{y}"])
def test_a_long_name_for_an_index_that_occurs_twice_is_refused(pattern: str) -> None:
    """It may be matched in quadratic time."""
    keys = ["_" * 10**6 if "{" in key else key for key in pattern.split(".")]
    with pytest.raises(treepack.TreepackError, match=r"at most 300 letters, found [12]000"):
        matched(pattern, ".".join(keys))
    assert matched(pattern, ".".join([*keys, "b"])) is None
