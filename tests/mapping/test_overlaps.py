"""Rules that overlap, leaves that meet at one path, and elements that would change on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
from treepack import TreepackError


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def at(value: float, size: int = 1) -> np.ndarray:
    return np.full(size, value, np.float32)


def file_of(tree: Any, **options: Any) -> str:
    treepack.save("file", tree, **options)
    return "file"


def saved(tree: Any, mapping: Any) -> Any:
    treepack.save("new", tree, mapping=mapping)
    return treepack.load("new")


def copied(tree: Any, mapping: Any) -> Any:
    with treepack.open(file_of(tree)) as file:
        treepack.save("new", file, mapping=mapping)
    return treepack.load("new")


def by_the_inverse(tree: Any, mapping: Any) -> Any:
    return treepack.load(file_of(tree), mapping=treepack.Mapping(mapping).inverse())


WAYS = [saved, copied, by_the_inverse]


def check(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))


@pytest.mark.parametrize(
    ("rules", "file", "tree"),
    [
        (
            {"params": "model", "params/head": "classifier"},
            {"model": {"enc": {"k": at(1)}, "head": {"k": at(2)}}, "classifier": {"k": at(3)}},
            {"params": {"enc": {"k": at(1)}, "head": {"k": at(3)}}},
        ),
        (
            {".": ".", "head": "new_head"},
            {"a": at(1), "head": at(2), "new_head": at(3)},
            {"a": at(1), "head": at(3)},
        ),
        (
            {"m/{i}": "l/{i}", "m/1": "special"},
            {"l": {"0": at(1), "1": at(2)}, "special": at(3)},
            {"m": {"0": at(1), "1": at(3)}},
        ),
        (
            {"m": "l", "m/w": ("l.v", "a b -> b a")},
            {"l": {"v": np.ones((2, 3)), "w": at(2), "b": at(1)}},
            {"m": {"w": np.ones((3, 2)), "b": at(1)}},
        ),
        (
            {"m/{i}": ("l.{i}", "a -> a 1"), "m/1": ("special", "a -> 1 a")},
            {"l": {"0": at(1, 2), "1": at(2, 2)}, "special": at(3, 2)},
            {"m": {"0": at(1, 2)[:, None], "1": at(3, 2)[None]}},
        ),
        (
            {"m/{i}": ("l.{i}", "a -> a 1"), "m/1": "special"},
            {"l": {"0": at(1, 2), "1": at(2, 2)}, "special": at(3)},
            {"m": {"0": at(1, 2)[:, None], "1": at(3)}},
        ),
        (
            {
                "m/{n:0..1}": ("l", "n a -> a"),
                "m/1": ("special", "a -> 1 a"),
                "m/{i:2..}": "o/{i:2..}",
            },
            {"l": at(1, 2)[None], "special": at(3, 2), "o": {"2": at(4)}},
            {"m": {"0": at(1, 2), "1": at(3, 2)[None], "2": at(4)}},
        ),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_rule_of_the_longer_path_takes_precedence(
    rules: Any, file: Any, tree: Any, turned: bool
) -> None:
    rules = dict(reversed(rules.items())) if turned else rules
    template = jax.tree.map(np.zeros_like, tree)
    check(treepack.load(file_of(file), template, mapping=rules), tree)
    for way in WAYS:
        back = way(tree, rules)
        check(treepack.load(file_of(back), template, mapping=rules), tree)
        count = len(jax.tree.leaves(tree))
        assert len(jax.tree.leaves(back)) == count, "each leaf is written once"


@pytest.mark.parametrize("way", WAYS)
def test_two_rules_of_one_rank_are_refused(way: Any) -> None:
    tree = {"a": at(1, 2), "b": at(2, 2), "c": at(3, 2)}
    rules = {
        (first, second): (file, "n d -> d", {"along": "n"})
        for first, second, file in (("a", "b", "x"), ("a", "c", "y"))
    }
    with pytest.raises(TreepackError, match=r"a: two rules take it: rule .*'x', .* rule .*'y'"):
        way(tree, rules)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("rules", "tree", "path"),
    [
        ({"old": "new", "s": "new/x"}, {"old": {"x": 1, "y": 2}, "s": 3}, "new/x"),
        ({"x": "a", "y": "a"}, {"x": at(1), "y": at(2)}, "a"),
        ({"x": "a", "y": "a"}, {"x": {"k": at(1)}, "y": {"k": at(2)}}, "a/k"),
        ({"x": ("m.w", "a -> a"), "y": "m"}, {"x": at(1), "y": {"w": at(2)}}, "m/w"),
        ({"x": "a", "y": "a"}, {"x": at(1), "y": at(1).astype(np.float16)}, "a"),
        ({"x": "a", "y": "a"}, {"x": jax.random.key(0), "y": jax.random.key(1)}, "a"),
    ],
)
def test_leaves_that_meet_at_one_path_are_equal(
    way: Callable[[Any, Any], Any], rules: Any, tree: Any, path: str
) -> None:
    with pytest.raises(TreepackError, match=f"tree, .+ and .+, are {path} in the file"):
        way(tree, rules)
    first = jax.tree.leaves(tree)[0]
    same = jax.tree.map(lambda _: first, tree)
    back = way(same, rules)
    loaded = treepack.load(file_of(back), same, mapping=rules)
    assert str(loaded) == str(same)


@pytest.mark.parametrize("way", [saved, copied])
@pytest.mark.parametrize(
    ("element", "scale"), [(60000, 0.5), (2**-24, 1024.0), (2**-14 * 1.5, 1024.0)]
)
def test_a_save_with_a_power_of_two_is_exact(way: Any, element: float, scale: float) -> None:
    tree = {"x": np.array([1, element], np.float16)}
    rules = {"x": ("a", "n -> n", {"scale": scale})}
    with pytest.raises(TreepackError, match=r"scale= rounds elements.*inexact=True"):
        way({"x": np.array([element], np.float16)}, rules)
    inexact = {"x": ("a", "n -> n", {"scale": scale, "inexact": True})}
    if element < 1:
        assert way(tree, inexact)["a"][0] == np.float16(1 / scale)
    else:
        with pytest.raises(TreepackError, match="overflow float16: cast the array"):
            way(tree, inexact)
    whole = {"x": np.array([1.5, np.nan, -0.0, np.inf], np.float16)}
    back = way(whole, {"x": ("a", "n -> n", {"scale": 4.0})})
    again = treepack.load(file_of(back), mapping={"x": ("a", "n -> n", {"scale": 4.0})})
    assert again["x"].tobytes() == whole["x"].tobytes()


def test_a_scale_does_not_overflow() -> None:
    rules = {"x": ("a", "n -> n", {"scale": 2.0})}
    with pytest.raises(TreepackError, match=r"at x: rule 'x'.*overflow float16"):
        treepack.load(file_of({"a": np.array([60000], np.float16)}), mapping=rules)
    with pytest.raises(TreepackError, match="computed in float32, found float64"):
        treepack.load(file_of({"a": np.array([1e300])}), mapping=rules)
    rules = {"x": ("a", "n -> n", {"scale": 2.0, "dtype": "float32"})}
    found = treepack.load(file_of({"a": np.array([60000], np.float16)}), mapping=rules)
    assert found["x"].tolist() == [120000]


@pytest.mark.parametrize(
    ("weight", "factor", "options"),
    [
        (np.array([[448]], jax.numpy.float8_e4m3fn), 200, {"dtype": "float16"}),
        (np.array([[448]], jax.numpy.float8_e4m3fn), 1e37, {}),
        (np.array([[127]], np.int8), 1e37, {"dtype": "bfloat16"}),
        (np.array([[448]], jax.numpy.float8_e4m3fn), None, {"scale": 2.0}),
        (np.array([[3e38]], jax.numpy.bfloat16), None, {"scale": 2.0}),
        (np.array([[3.4e38]], np.float32), None, {"scale": 1.0, "dtype": "bfloat16"}),
        (np.array([[3.4e38]], np.float32), None, {"add": 3.4e38}),
    ],
)
def test_factors_do_not_overflow(weight: Any, factor: float | None, options: Any) -> None:
    tensors = {"w": weight} | ({} if factor is None else {"s": at(factor)})
    options = options | ({} if factor is None else {"scales": "s", "block": (1, 1)})
    with pytest.raises(TreepackError, match=r"at x: rule 'x'.*floats overflow"):
        treepack.load(file_of(tensors), mapping={"x": ("w", "a b", options)})
    if factor is None:
        infinite = file_of({"w": np.full_like(weight, np.inf)})
        loaded = treepack.load(infinite, mapping={"x": ("w", "a b", options)})["x"]
        assert not np.isfinite(loaded).any()


def test_a_template_of_small_floats_does_not_overflow() -> None:
    path = file_of({"w": np.full((2, 2), 448, jax.numpy.float8_e4m3fn), "s": at(200)})
    rules = {"x": ("w", "a b -> b a", {"scales": "s", "block": (2, 2)})}
    template = {"x": jax.ShapeDtypeStruct((2, 2), np.float16)}
    with pytest.raises(TreepackError, match="floats overflow float16: pass dtype='float32'"):
        treepack.load(path, template, mapping=rules, cast=True)
    with pytest.raises(TreepackError, match="computed in float32, found float64"):
        treepack.load(file_of({"w": np.ones((1, 1)), "s": at(2)}), mapping=rules)


def test_a_stack_of_a_cut_file_is_not_shorter() -> None:
    layers = {f"l.{number}": np.full(4000, number, np.float32) for number in range(3)}
    path = Path(file_of(layers))
    path.write_bytes(path.read_bytes()[:40_000])
    rules = {"x": ("l.{l}", "n -> l n"), "y": ("l.{l:0..2}", "n -> l n")}
    with treepack.open(path, mapping={"x": rules["x"]}, salvage=True) as file:
        assert [*file] == []
    with treepack.open(path, mapping={"y": rules["y"]}, salvage=True) as file:
        assert file["y"].shape == (2, 4000)


def test_a_template_with_fewer_elements_is_refused() -> None:
    file = file_of({"z": at(1), "l": [at(1), at(2), at(3)], "more": at(4)})
    template = {"y": at(0), "l": [at(0), at(0)]}
    with pytest.raises(treepack.MismatchError, match="l: expected 2 elements, found 3"):
        treepack.load(file, template, mapping={"y": "z"})
    template["l"].append(at(0))
    assert treepack.load(file, template, mapping={"y": "z"})["l"][2] == 3
    with pytest.raises(treepack.MismatchError, match="more: unexpected"):
        treepack.load(file, template, mapping={"y": "z"}, strict="exact")


def test_paths_of_the_file_are_escaped_and_may_be_the_root() -> None:
    check(saved({"n": at(1)}, {"n": "c~1d"}), {"c/d": at(1)})
    check(treepack.load("new", {"n": at(0)}, mapping={"n": "c~1d"}), {"n": at(1)})
    for way in (saved, copied):
        check(way({"w": at(1)}, {"w": "."}), at(1))


def test_an_open_file_keeps_its_metadata_and_is_selected_by_its_own_names() -> None:
    with treepack.open(file_of({"x": at(1), "y": at(2)}, metadata={"step": 3})) as file:
        treepack.save("new", file, mapping={"x": "a"}, select="x")
    assert treepack.read_metadata("new") == {"step": 3}
    check(treepack.load("new"), {"a": at(1)})


def test_a_leaf_in_whose_place_is_another_is_a_difference() -> None:
    found = treepack.diff(file_of({"a": at(1), "b": at(2)}), {"b": at(1)}, mapping={"b": "a"})
    assert [(it.path, it.kind) for it in found] == [("b", "only in the first")]


@pytest.mark.parametrize(("rest", "count"), [("same", 1), ("skip", 0)])
def test_a_difference_is_not_in_leaves_that_are_left_out(rest: Any, count: int) -> None:
    rules = treepack.Mapping({"b": "a"}, rest=rest)
    file = file_of({"a": at(1), "c": at(2)})
    assert len(treepack.diff(file, {"b": at(1)}, mapping=rules)) == count
    assert len(treepack.diff(file, {"b": at(1), "d": at(1)}, mapping=rules)) == count + 1


def test_ranges_have_equally_many_numbers() -> None:
    with pytest.raises(ValueError, match=r"the range of i has 5 numbers.*and 3 in"):
        treepack.Mapping({"m/{i:0..3}": "l/{i:0..5}"})


@pytest.mark.parametrize(
    ("there", "index", "cure"),
    [
        ([1, 2, 3], "l", "{l:1..}"),
        ([0, 1, 2], "l:0..5", "{l:0..3}"),
        ([0, 1, 3], "l", None),
    ],
)
def test_the_cure_for_a_gap_works(there: list[int], index: str, cure: str | None) -> None:
    file = file_of({f"l.{number}": at(number) for number in there})
    text = "is the file whole" if cure is None else f"pass the range {cure}"
    with pytest.raises(TreepackError) as raised:
        treepack.load(file, mapping={"x": (f"l.{{{index}}}", "n -> l n")})
    assert text in str(raised.value)
    if cure is not None:
        found = treepack.load(file, mapping={"x": (f"l.{cure}", "n -> l n")})
        assert found["x"][:, 0].tolist() == there


def test_a_hint_names_the_path_in_the_file() -> None:
    file = file_of({"old": {"kernel": at(1)}})
    template = {"new": {"kernle": at(0)}}
    with pytest.raises(treepack.MismatchError, match=r"Add {'new/kernle': 'old/kernel'} to"):
        treepack.load(file, template, mapping={"new": "old"})
    rules = {"new": "old", "new/kernle": "old/kernel"}
    check(treepack.load(file, template, mapping=rules), {"new": {"kernle": at(1)}})


def test_a_check_lists_other_shapes_and_leaves_without_a_rule() -> None:
    file = file_of({"a": at(1, 4), "b": at(1, 4)})
    with pytest.raises(TreepackError, match=r"x: the target has \[5\], the file \[4\]"):
        treepack.Mapping({"x": "a"}).check({"x": at(0, 5)}, file)
    with pytest.raises(TreepackError, match="a: no rule takes it"):
        treepack.Mapping({"a": "b"}).check({"a": at(0, 4)}, file)
    treepack.Mapping({"a": "b"}, rest="skip").check({"a": at(0, 4), "other": at(0)}, file)


KEYS = st.sampled_from(["a", "b", "0", "1"])
TREES = st.recursive(
    st.integers(1, 99).map(at), lambda below: st.dictionaries(KEYS, below, min_size=1, max_size=3)
).filter(lambda tree: isinstance(tree, dict))


@st.composite
def plain_rules(draw: st.DrawFn) -> dict[str, str]:
    """Draws rules that give other names, some with an index on both sides."""
    rules = {}
    for _ in range(draw(st.integers(1, 3))):
        tree, file = (draw(st.lists(KEYS, min_size=1, max_size=3)) for _ in range(2))
        if draw(st.booleans()):
            tree[draw(st.integers(0, len(tree) - 1))] = "{i}"
            file[draw(st.integers(0, len(file) - 1))] = "{i}"
        rules["/".join(tree)] = "/".join(file)
    return rules


@pytest.mark.filterwarnings("ignore:the (tree|file|target) has no leaf")
@given(tree=TREES, rules=plain_rules(), way=st.sampled_from(WAYS))
def test_a_load_reverts_a_save_or_one_of_them_is_refused(tree: Any, rules: Any, way: Any) -> None:
    try:
        way(tree, rules)
        file = "new" if way is not by_the_inverse else file_of(way(tree, rules))
        loaded = treepack.load(file, jax.tree.map(np.zeros_like, tree), mapping=rules)
    except TreepackError:
        return
    check(loaded, tree)


def test_the_root_has_one_leaf() -> None:
    with pytest.raises(TreepackError, match=r"gives the root \. to a leaf"):
        saved({"w": at(1), "b": at(2)}, {"w": ".", "b": "c"})


@pytest.mark.parametrize(
    ("select", "names"),
    [("k", ["m/3/w", "m/4/w"]), ("n", ["n"]), ("b/1/**", ["c/6/w"]), ("b", ["c/5/w", "c/6/w"])],
)
def test_a_saved_selection_needs_no_other_leaves(select: str, names: list[str]) -> None:
    tree = {"k": np.ones((2, 3)), "b": [{"w": at(1)}, {"w": at(2)}], "n": at(1)}
    rules = {"k": ("m.{l:3..5}.w", "a -> l a"), "b/{l:0..2}/w": ("c.{l:5..7}.w", "a")}
    treepack.save("whole", tree)
    with treepack.open("whole") as file:
        for whole in (tree, file):
            treepack.save("new", whole, mapping=rules, select=select)
            with treepack.open("new") as new:
                assert [path for path, _ in new.leaves()] == names
    with pytest.raises(TreepackError, match="matches nothing in the tree"):
        treepack.save("new", tree, mapping={"q": "p"}, select=select)


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"new": "old"}, "old/y"),
        ({"new/{i}": "old/{i}"}, "old/y"),
        ({"new/{i:0..2}": "old.{i:4..6}"}, "old.5"),
    ],
)
@pytest.mark.parametrize("rest", ["same", "skip", "error"])
def test_a_leaf_that_a_used_rule_lacks_is_missing(rules: Any, path: str, rest: Any) -> None:
    names = ["0", "1"] if "5" in path else ["x", "y"]
    template = {"new": {name: at(0) for name in names}}
    file = file_of({"old": {"4" if "5" in path else "x": at(1)}})
    mapping = treepack.Mapping(rules, rest=rest)
    found = f"new/{names[1]}: the file has no {path}, rule 'new"
    with pytest.raises(TreepackError, match=found):
        treepack.load(file, template, mapping=mapping)
    with pytest.raises(TreepackError, match=found):
        mapping.check(template, file)
    loaded = treepack.load(file, template, mapping=mapping, missing="target")
    check(loaded, {"new": {names[0]: at(1), names[1]: at(0)}})


def test_a_leaf_that_another_rule_takes_is_not_unexpected() -> None:
    tree = {"emb": at(1), "norm": at(2), "head": np.ones((2, 3))}
    file = file_of({"model": tree})
    template = {"body": {"emb": at(0), "norm": at(0)}, "head": np.zeros((3, 2))}
    rules = {
        "body": "model",
        "head": ("model.head", "a b -> b a"),
        "body/emb/x": "model.norm",
        "other": ("model.head", "a b"),
    }
    mapping = treepack.Mapping(rules)
    mapping.check(template, file)
    loaded = treepack.load(file, template, mapping=mapping, unexpected="error")
    check(loaded, {"body": {"emb": at(1), "norm": at(2)}, "head": np.ones((3, 2))})
    assert not treepack.diff(file, loaded, mapping=mapping)
    with pytest.raises(TreepackError, match="body/head"):
        treepack.load(file, {"body": template["body"]}, mapping=mapping, unexpected="error")


@pytest.mark.parametrize("is_flat", [True, False])
def test_a_container_may_be_a_part_of_a_key(is_flat: bool) -> None:
    tree = {"w": at(1), "state": {"scale": at(2), "of": {"x": at(3)}}}
    rules = {"w": "l.w", "state": "l.w.quant"}
    treepack.save("new", tree, mapping=rules)
    flat = {"l.w": at(1), "l.w.quant.scale": at(2), "l.w.quant.of.x": at(3)}
    file = file_of(flat) if is_flat else "new"
    check(treepack.load(file, mapping=rules), tree)
    check(treepack.load(file, tree, mapping=rules), tree)
