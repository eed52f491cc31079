"""Mistakes in rules: each error names the rule, the place or both shapes, and the way out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from treepack import TreepackError

# A rule for `t`, and the error.
WRITTEN: list[tuple[Any, str]] = [
    (("w", "(h d m -> l m h d"), r"in '\(h d m -> l m h d', at position 0: this \( is not closed"),
    (("w", "h d) m -> m"), r"at position 3: this \) has no \("),
    (("w", "((h d) m) -> m"), "at position 1: parentheses do not nest"),
    (("w", "a -> b -> c"), "at position 7: a rule has one arrow"),
    (("w", "(a -> a)"), r"at position 0: this \( is not closed"),
    (("w", "a a -> a"), "at position 2: the axis a occurs twice on one side"),
    (("w", "a (b a) -> a b"), "at position 5: the axis a occurs twice"),
    (("w", "a 2 -> a"), "at position 2: '2' is no axis: sizes are keywords, as Mapping"),
    (("w", "a, b -> b a"), "at position 1: ',' is no axis: axes are names, 1, ... and groups"),
    (("w", "a-b"), "at position 1: '-' is no axis"),
    (("w", "(a ...) -> a ..."), r"at position 3: ... stands for whole dimensions"),
    (("w", "... a ... -> a ..."), "at position 6: a side has one ..."),
    (("w", "a ... -> a"), r"\.\.\. is only on the left: name it on both sides"),
    (("w", "a b -> a"), "the axis b is only on the left"),
    (("w", "a -> a b"), "the axis b is only on the right"),
    (("l.{l}.w", "a -> a"), "the index l of the file has no place on the other side.*'m -> l m'"),
    (("l.{l}.w", "l a -> l a"), "l is an index in the path of the file, and an axis there"),
    (("l.{l.w", "a -> l a"), r"in 'l.\{l.w', at position 2: indices are \{l\}, \{l:0..12\}"),
    (("l.l}.w", "a -> l a"), r"at position 3: indices are"),
    (("l.{l:0}.w", "a -> l a"), r"at position 2: indices are"),
    (("l.{l:3..3}.w", "a -> l a"), "the range of l is empty: the end is excluded"),
    (("l.{l:0..4:0}.w", "a -> l a"), "the step of l is 0: leave it out"),
    (("l.{l:0..4}.{l:0..5}", "a -> l a"), "the range of l occurs twice"),
    (("l.{}.w", "a -> l a"), "at position 2: indices are"),
    ("l.{l}.w", "a rule without axes has the same indices on both sides: write axes to stack"),
    (("w",), "a rule is a path, \\(path, axes\\) or \\(path, axes, options\\)"),
    (("w", "a", {}, 1), "a rule is a path"),
    (7, "a rule is a path"),
    (None, "a rule is a path"),
    (["w", "a"], "a rule is a path"),
    (("w", 3), "axes are a text such as"),
    (("w", "a", "along"), "options are a dict such as"),
    ((3, "a"), "the file side is a path or a tuple of paths"),
    (((), "a"), "the file side is a path or a tuple of paths"),
    (("", "a"), "the file side is a path"),
    ((("a", "a"), "n -> n", {"along": "n"}), "a path of the file occurs twice"),
    ((("q", "k"), "n -> n"), "several paths on one side are joined along an axis: pass along="),
    (
        (("q", "k"), "m -> m", {"along": "n"}),
        "along='n' is no axis of the side with one path: it has m",
    ),
    (("q", "n -> n", {"along": "n"}), "along= needs several paths on one side"),
    ((("q.{l}", "k"), "m -> n l m", {"along": "n"}), "have different indices: 'q.{l}' and 'k'"),
    (("w", "a", {"scle": 2}), "'scle' is no option of a rule: they are along, pad, scale"),
    (("w", "a", {"scale": "2"}), "scale='2' must be like scale=2.0"),
    (("w", "a", {"scale": 0}), "scale=0 must be like"),
    (("w", "a", {"scale": math.inf}), "scale=inf must be like"),
    (("w", "a", {"add": True}), "add=True must be like"),
    (("w", "a", {"pad": 16}), "pad=16 must be like pad={'v': 1024}"),
    (("w", "a", {"pad": {"b": 16}}), "pad= names 'b', which must be an axis on both sides"),
    (("w", "a", {"pad": {"a": -1}}), "must be like pad="),
    (("w", "a", {"dtype": "int8"}), "dtype='int8' must be float32, bfloat16 or float16"),
    (("w", "a", {"dtype": "flot32"}), "dtype='flot32' must be"),
    (("w", "a b", {"scales": "s"}), "scales= and block= belong together"),
    (("w", "a b", {"block": (2, 2)}), "scales= and block= belong together"),
    (("w", "a b", {"scales": "s", "block": 128}), r"block=128 must be like block=\(128, 128\)"),
    (("w", "a b", {"scales": "s.{l}", "block": (2, 2)}), "the same indices as its path"),
    (("w", "a", {"inexact": 1}), "inexact=1 must be like inexact=True"),
]


@pytest.mark.parametrize(("rule", "error"), WRITTEN, ids=lambda value: str(value)[:40])
def test_a_mistake_in_a_rule_is_told_when_it_is_written(rule: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error) as raised:
        treepack.Mapping({"t": rule})
    assert str(raised.value).startswith("rule 't': ")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: treepack.Mapping({("q", "k"): "w"}),
            "several paths on one side need axes and along=",
        ),
        (
            lambda: treepack.Mapping({("q", "k"): (("a", "b"), "n", {"along": "n"})}),
            "only one side can have several paths",
        ),
        (
            lambda: treepack.Mapping({"l/{l}": ("l.{l}", "l a -> a")}),
            "l is an index in the path of the file",
        ),
        (
            lambda: treepack.Mapping({"l/{l}": ("l.{l}", "a -> l a")}),
            "l is an index in both paths, so it is no axis",
        ),
        (lambda: treepack.Mapping({3: "w"}), "the tree side is a path"),
        (
            lambda: treepack.Mapping([("t", "w")]),
            "mapping= takes a treepack.Mapping, a dict of rules",
        ),
        (
            lambda: treepack.open(treepack.dumps({}), mapping=treepack.Mapping),
            "mapping= takes a treepack.Mapping, a dict of rules",
        ),
        (
            lambda: treepack.Mapping({"t": "w"}, rest="keep"),
            "rest must be 'same', 'error' or 'skip'",
        ),
        (lambda: treepack.Mapping({"t": ("w", "a")}, b=3), "no rule has an axis b.*the axes are a"),
        (lambda: treepack.Mapping({"t": ("w", "a")}, a="3"), "a='3' must be the size of an axis"),
        (lambda: treepack.Mapping({"t": ("w", "a")}, a=(3, 0)), "must be the size of an axis"),
        (
            lambda: treepack.Mapping({"t": ("w", "a")}, strict=True),
            "options other than rest= belong to load and save",
        ),
        (
            lambda: treepack.Mapping({"t/{l}": ("t.{l}", "o l -> l o")}),
            "give the axis another name, since an index in both paths is no axis",
        ),
    ],
)
def test_a_mistake_in_a_call_is_told(call: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        call()


FILE = {
    "w": np.zeros((6, 4), np.float32),
    "s": np.zeros((2, 2), np.float32),
    "n": 3,
    "l.0.w": np.zeros((2, 3), np.float32),
    "l.1.w": np.zeros((2, 3), np.float32),
    "l.3.w": np.zeros((2, 3), np.float32),
    "e.0.0": np.zeros(2),
    "e.0.1": np.zeros(2),
    "e.1.0": np.zeros(2),
    "k.0": np.zeros(2, np.float32),
    "k.1": np.zeros(3, np.float32),
    "d.0": np.zeros(2, np.float32),
    "d.1": np.zeros(2, np.float16),
    "z.0": np.zeros(2),
    "z.00": np.zeros(2),
    "empty": np.zeros((10**8, 0)),
    "large": np.array([4097]),
}


def leaf(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("rules", "template", "error"),
    [
        (
            {"t": ("w", "(h d) m -> h d m")},
            None,
            "t: the size of d is unknown: pass it as a keyword, as in treepack.Mapping",
        ),
        (
            {"t": ("w", "(h d) m -> h d m")},
            leaf(4, 2, 4),
            r"\(h d\) is 6 in the file's \[6, 4\], but 4 x 2 by",
        ),
        ({"t": ("w", "(h d) m -> h d m")}, leaf(2, 4, 4), r"\(h d\) is 6 in the file's \[6, 4\]"),
        ({"t": ("w", "a b c")}, None, r"'a b c' are 3 dimensions, but the array has 2: \[6, 4\]"),
        ({"t": ("w", "a -> a")}, None, "write one axis for each, or ... for the rest"),
        (
            {"t": ("l.{l}.w", "a b -> l a b")},
            None,
            r"has no l = 2, although it has l = 3: is the file whole",
        ),
        ({"t": ("l.{l:0..9}.w", "a b -> l a b")}, None, "the file has no l = 2"),
        ({"t": ("e.{l}.{e}", "a -> l e a")}, None, r"t: the file lacks e.1.1; rule 't'"),
        (
            {"t": ("k.{l}", "a -> l a")},
            None,
            r"k.1 is float32\[3\], unlike k.0, which is float32\[2\]",
        ),
        (
            {"t": ("d.{l}", "a -> l a")},
            None,
            r"d.1 is float16\[2\], unlike d.0, which is float32\[2\]",
        ),
        ({"t": ("z.{l}", "a -> l a")}, None, "z.0 and z.00 have the same number"),
        ({"t": ("n", "a")}, None, "n is not an array"),
        ({"t": ("missing", "a b")}, None, "rule 't': .* matches nothing in the file"),
        ({"t": ("ww", "a b"), "u": "w"}, leaf(6, 4), "t: the file has no ww, rule 't'"),
        (
            {("t", "u"): ("w", "n m", {"along": "n"})},
            None,
            r"the size of n is unknown.*n=\(32, 8\)\)",
        ),
        (
            {"t": ("w", "a b"), ("t", "u"): ("k.0", "n ->", {"along": "n"})},
            None,
            "t: two rules make it",
        ),
        (
            {"t": ("w", "a b", {"pad": {"a": 4}})},
            None,
            "a is 6 in the file, more than pad= fills: 4",
        ),
        (
            {"t": ("w", "a b", {"scales": "s", "block": (2, 2)})},
            None,
            r"s, the scales, is \[2, 2\]: blocks of \[2, 2\] in \[6, 4\] need \[3, 2\]",
        ),
        (
            {"t": ("w", "a b", {"scales": "x", "block": (3, 2)})},
            None,
            "the file lacks x, the scales",
        ),
        (
            {"t": ("k.0", "a", {"scales": "s", "block": (1, 1)})},
            None,
            r"needs two dimensions, found \[2\]",
        ),
        (
            {"t": ("w", "a b", {"scales": "n", "block": (6, 4)})},
            None,
            "n, the scales, is not an array: save np.asarray of it",
        ),
        (
            {"t": ("large", "a", {"dtype": "float16"})},
            None,
            "do not fit into float16: leave dtype= out of the options; rule 't'",
        ),
        ({".": "w", "t": "s"}, None, "rule gives the path of .* to another leaf"),
        ({"t": "w", "t/u": "s"}, None, "cannot place t/u: .*rule 't': 'w', rule 't/u': 's'"),
        ({"t/{l}": ("empty", "l m -> m")}, None, "has no elements, and would be 100000000 arrays"),
        ({"t/{l:0..2}": ("w", "l m -> m")}, None, "the range of l has 2 numbers, but l is 6"),
    ],
)
def test_a_rule_that_does_not_fit_names_both_sides(rules: Any, template: Any, error: str) -> None:
    target = None if template is None else {"t": template}
    with pytest.raises(TreepackError, match=error) as raised:
        treepack.load(treepack.dumps(FILE), target, mapping=rules)
    assert "rule " in str(raised.value)


def test_rules_that_a_template_does_not_need_may_be_unsolved() -> None:
    rules = {"t": ("w", "(h d) m -> h d m"), "g": ("l.{l}.w", "a b -> l a b"), "s": "s"}
    assert treepack.load(treepack.dumps(FILE), {"s": leaf(2, 2)}, mapping=rules)["s"].shape == (
        2,
        2,
    )


def test_one_error_lists_all_faults(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", FILE)
    mapping = treepack.Mapping(
        {"t": ("w", "(h d) m -> h d m"), "g": ("l.{l}.w", "a b -> l a b"), "u": ("v", "a")}
    )
    template = {"t": leaf(4, 2, 4), "g": leaf(4, 2, 3), "u": leaf(3), "new": leaf(1)}
    template["s"] = leaf(3, 3)
    with pytest.raises(TreepackError, match="does not fit 5 leaves") as raised:
        treepack.load(tmp_path / "saved", template, mapping=mapping)
    with pytest.raises(TreepackError) as checked:
        mapping.check(template, tmp_path / "saved")
    for path in "tgu":
        assert f"\n  {path}: " in str(raised.value)
        assert f"\n  {path}: " in str(checked.value)
    for error in (raised, checked):
        assert "\n  new: the file has no such leaf" in str(error.value)
        assert "\n  s: the target has [3, 3], the file [2, 2]" in str(error.value)
    assert "\n  k.0: no rule takes it" in str(checked.value)
    options: list[dict[str, Any]] = [
        {"missing": "target"},
        {"mismatched": "target"},
        {"strict": False},
    ]
    for option, path in zip(options, ["new", "s", "s"], strict=True):
        with pytest.raises(TreepackError, match="does not fit") as raised:
            treepack.load(tmp_path / "saved", template, mapping=mapping, **option)
        assert f"\n  {path}: " not in str(raised.value)


def test_a_mismatch_names_its_rule_and_both_shapes() -> None:
    rules: Any = {"t": ("w", "a b -> b a")}
    with pytest.raises(treepack.MismatchError) as raised:
        treepack.load(treepack.dumps(FILE), {"t": leaf(6, 4)}, mapping=rules)
    text = (
        "t: the target has [6, 4], the rule makes [4, 6] of [6, 4]; rule 't': ('w', 'a b -> b a')"
    )
    assert text in str(raised.value)


def test_a_selected_leaf_that_a_rule_cannot_make_is_the_error() -> None:
    rules: Any = {"t": ("w", "(h d) m -> h d m"), "u": "s"}
    with pytest.raises(TreepackError, match="t: the size of d is unknown"):
        treepack.load(treepack.dumps(FILE), mapping=rules, select="t")
    assert [*treepack.load(treepack.dumps(FILE), mapping=rules, select="u")] == ["u"]


def test_a_size_that_the_template_does_not_tell_is_the_cause() -> None:
    rules: Any = {"t": ("w", "(a c) b -> b (c a)")}
    with pytest.raises(TreepackError, match="the size of a is unknown") as raised:
        treepack.load(treepack.dumps(FILE), {"t": leaf(4, 6)}, mapping=rules)
    assert "or a template" not in str(raised.value)
    assert "other dimensions" not in str(raised.value)
    spread: Any = {"t/{a}": ("w", "(a c d) b -> (d c) b")}
    with pytest.raises(TreepackError, match="does not fit 2 leaves") as raised:
        treepack.load(treepack.dumps(FILE), {"t": [leaf(3, 4)] * 2}, mapping=spread)
    assert "t/1: the size of a is unknown" in str(raised.value)
    assert "has no w" not in str(raised.value)


def test_a_save_names_rules_without_a_leaf(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.warns(UserWarning, match="the tree has no leaf for rule 'tt'"):
        treepack.save(path, {"t": leaf(2)}, mapping={"t": ("w", "a"), "tt": ("ww", "a")})
    with pytest.raises(TreepackError, match="matches nothing in the tree; is it 't'"):
        treepack.save(path, {"t": leaf(2)}, mapping={"tt": ("w", "a")})
    rules: Any = {"t": (("q", "k"), "n -> n", {"along": "n"})}
    with pytest.raises(TreepackError, match="the size of n is unknown"):
        treepack.save(path, {"t": leaf(4)}, mapping=rules)
    given = treepack.Mapping(rules, n=4)
    with pytest.raises(TreepackError, match="the size of n in each of the 2 arrays is unknown"):
        treepack.save(path, {"t": leaf(4)}, mapping=given)
    with pytest.raises(ValueError, match="mapping= requires a tree"):
        treepack.save(path, iter([("t", leaf(2))]), mapping={"t": "w"})


@pytest.mark.parametrize(
    ("rules", "error", "cure"),
    [
        (
            {"t/{l:0..2}": ("w", "l m -> m")},
            r"write \{l:0\.\.6\}",
            {"t/{l:0..6}": ("w", "l m -> m")},
        ),
        (
            {"t/{l:2..4:2}": ("w", "l m -> m")},
            r"write \{l:2\.\.14:2\}",
            {"t/{l:2..14:2}": ("w", "l m -> m")},
        ),
        (
            {"t": ("w", "a b", {"pad": {"a": 4}})},
            "pass a larger size",
            {"t": ("w", "a b", {"pad": {"a": 8}})},
        ),
        (
            {"t": ("w", "a b", {"scales": "s", "block": (2, 2)})},
            "change block=",
            {"t": ("w", "a b", {"scales": "s", "block": (3, 2)})},
        ),
        (
            {"t": ("w", "a b", {"scales": "x", "block": (3, 2)})},
            "change scales=, or leave it out",
            {"t": ("w", "a b")},
        ),
        ({"t": ("text", "a")}, "text is not an array: leave out the axes", {"t": "text"}),
        (
            {"t": ("m.{l}", "a -> l a")},
            r"stack equal ones, by a range such as \{l:0\.\.12\}",
            {"t": ("m.{l:0..2}", "a -> l a")},
        ),
        (
            {"t": ("flags", "a", {"scale": 2.0})},
            "take numbers, found bool: leave them out",
            {"t": ("flags", "a")},
        ),
        (
            treepack.Mapping({"t": ("w", "(h d) m -> h d m")}, h=4),
            "which h = 4 does not divide; change the axes or the keywords",
            treepack.Mapping({"t": ("w", "(h d) m -> h d m")}, h=3),
        ),
        (
            treepack.Mapping({"t": (("w", "w2"), "n m", {"along": "n"})}, n=(6, 1)),
            r"n#1 = 1; change the axes or the keywords",
            treepack.Mapping({"t": (("w", "w2"), "n m", {"along": "n"})}, n=(6, 2)),
        ),
        (
            treepack.Mapping({"t": (("w", "w2"), "n m", {"along": "n"})}, n=(6, 1, 1)),
            r"n=\(6, 1, 1\) has 3 sizes for 2 arrays: pass one for each",
            treepack.Mapping({"t": (("w", "w2"), "n m", {"along": "n"})}, n=(6, 2)),
        ),
        (
            treepack.Mapping({"t": "w"}, rest="error"),
            'it has no rule, and rest="error": add one',
            treepack.Mapping({"t": "w", ".": "."}, rest="error"),
        ),
    ],
)
def test_a_rule_with_its_cure_fits(rules: Any, error: str, cure: Any) -> None:
    file = {
        "w": np.zeros((6, 4), np.float32),
        "w2": np.zeros((2, 4), np.float32),
        "s": np.zeros((2, 2), np.float32),
        "m": [np.zeros(2), np.zeros(2), np.zeros(3)],
        "text": "text",
        "flags": np.zeros(2, bool),
    }
    with pytest.raises(TreepackError, match=error):
        treepack.load(treepack.dumps(file), mapping=rules)
    assert "t" in treepack.load(treepack.dumps(file), mapping=cure)
