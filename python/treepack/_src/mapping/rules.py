from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from treepack._src import paths as _paths
from treepack._src.dtypes import is_float, resolve
from treepack._src.mapping.axes import REST, Group, parse
from treepack._src.mapping.patterns import FAR, LeafNames, Pattern


class Side(NamedTuple):
    patterns: tuple[Pattern, ...]
    groups: tuple[Group, ...]
    is_file: bool

    @property
    def name(self) -> str:
        return "file" if self.is_file else "tree"

    @property
    def axes(self) -> list[str]:
        return [name for group in self.groups for name in group]

    @property
    def indices(self) -> tuple[str, ...]:
        return self.patterns[0].indices

    def is_typo_of(self, hint: str) -> bool:
        """Whether each name is like the hint's, and no other one, as `norm2` beside `norm1`."""
        path = _hinted(hint)
        texts = (self.patterns[0].text, path) if path else ()
        ours_and_theirs = zip(*(text.replace(".", "/").split("/") for text in texts), strict=False)
        return bool(texts) and all(itertools.starmap(_is_typo, ours_and_theirs))


def _is_typo(name: str, other: str) -> bool:
    is_other = name[:1] != other[:1] or _DIGITS.sub("", name) == _DIGITS.sub("", other)
    likeness = difflib.SequenceMatcher(None, name, other).ratio()
    return name == other or (not is_other and likeness >= _LEAST_LIKE)


_DIGITS = re.compile(r"\d+")

_LEAST_LIKE = 0.75


@dataclasses.dataclass(frozen=True)
class Rule:
    """How arrays of one side, `here`, become those of the other, `there`.

    Attributes:
      text: For errors, as the caller wrote it.
      is_plain: Whether it only gives other names; its paths may be of containers.
      inexact: Whether elements may be rounded on the way back.
      is_checked: Whether elements must be equal once they are computed back.
    """

    text: str
    here: Side
    there: Side
    is_plain: bool = False
    along: str | None = None
    pad: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scale: float | None = None
    add: float | None = None
    dtype: np.dtype[Any] | None = None
    scales: Pattern | None = None
    block: tuple[int, int] | None = None
    inexact: bool = False
    is_checked: bool = False

    @property
    def is_open(self) -> bool:
        names = {*self.here.indices} - {*self.there.indices}
        pattern = self.here.patterns[0]
        return any(pattern.ranges.get(name, range(FAR)).stop >= FAR for name in names)

    @property
    def is_pointwise(self) -> bool:
        given = (self.scale, self.add, self.dtype, self.scales)
        return any(option is not None for option in given)

    def inverse(self) -> Rule:
        if self.scales is not None:
            raise ValueError(
                f"{self.text}: scales= has no inverse, since the blocks are not quantized again: "
                "save without this rule"
            )
        scale, add = self.scale, self.add
        is_power = scale is None or math.frexp(scale)[0] in (0.5, -0.5)
        if not self.inexact and (add is not None or not is_power):
            what = "add=" if add is not None else "scale="
            raise ValueError(
                f"{self.text}: {what} rounds elements on the way back, so a round trip would not "
                "be equal: pass inexact=True in the options of the rule to allow it"
            )
        # x * scale + add = y, so x = y / scale - add / scale.
        return dataclasses.replace(
            self,
            here=self.there,
            there=self.here,
            scale=None if scale is None else 1 / scale,
            add=None if add is None else -add / (scale or 1),
            dtype=None,
            is_checked=scale is not None and not self.inexact,
        )

    def takes(self, path: str) -> bool:
        return any(True for each in self.here.patterns for _ in each.matches(LeafNames([path])))

    def unmatched(self, here: Iterable[str], there: Iterable[str] | None) -> str:
        return f"{self.text} matches nothing in the {self.here.name}{self.near(here, there)}"

    def near(self, here: Iterable[str], there: Iterable[str] | None) -> str:
        [ours, *_], [theirs, *_] = self.here.patterns, self.there.patterns

        def fits(pattern: Pattern, paths: Iterable[str]) -> bool:
            return any(True for _ in pattern.matches(LeafNames(paths), above=True))

        if {"*", "\\"} & {*ours.text, *theirs.text}:  # of globs and regular expressions
            return "; write indices in place of *, as in {'new/{i}/kernel': 'old/{i}/w'}"
        is_above = f"{ours.text.replace('.', '/')}/".startswith(f"{theirs.text.replace('.', '/')}/")
        is_reversed = self.here.is_file and not is_above and fits(theirs, here)
        if is_reversed and (there is None or fits(ours, there)):
            pair = f"{ours.text!r}: {theirs.text!r}"
            axes = "" if self.is_plain else ", with the axes of both sides exchanged"
            return f"; keys are paths of the tree: is it {{{pair}}}{axes}?"
        return _similar_with_indices(ours.text.replace(".", "/"), here)

    def near_there(self, there: Iterable[str]) -> str:
        return _similar_with_indices(self.there.patterns[0].text, there)


def _hinted(hint: str) -> str:
    match = re.fullmatch(r"; is it '(.*)'\?", hint)
    return match[1] if match else ""


def _similar_with_indices(text: str, paths: Iterable[str]) -> str:
    hint = _paths.similar(text, paths)
    names, found = text.split("/"), _hinted(hint).split("/")
    if found == [""] or len(names) != len(found):
        return hint
    both = zip(names, found, strict=True)
    path = "/".join(
        name if re.fullmatch(r"{\w+}", name) and at.isdigit() else at for name, at in both
    )
    return f"; is it {path!r}?"


# The options of a rule, with examples.
_OPTIONS = {
    "along": "'n'",
    "pad": "{'v': 1024}",
    "scale": "2.0",
    "add": "1.0",
    "dtype": "'bfloat16'",
    "scales": "'model.layers.{l}.up.weight_scale_inv'",
    "block": "(128, 128)",
    "inexact": "True",
}


def rule_of(tree: Any, value: Any, *, is_literal: bool = False) -> Rule:
    text = f"rule {tree!r:.200}: {value!r:.300}"
    try:
        return _rule_of(text, tree, value, is_literal)
    except (ValueError, TypeError) as error:
        if str(error).startswith(text):
            raise
        raise type(error)(f"{text}: {error}") from None


def _rule_of(text: str, tree: Any, value: Any, is_literal: bool) -> Rule:
    is_plain = isinstance(value, str)
    if not is_plain and not (isinstance(value, tuple) and len(value) in (2, 3)):
        raise TypeError(
            "a rule is a path, (path, axes) or (path, axes, options), such as "
            "('lm_head.weight', 'v m -> m v')"
        )
    file, axes, options = (value, "", {}) if is_plain else (*value, {})[:3]
    if not isinstance(axes, str):
        raise TypeError(f"axes are a text such as 'v m -> m v', got {axes!r:.100}")
    if not isinstance(options, Mapping):
        raise TypeError(f"options are a dict such as {{'along': 'n'}}, got {options!r:.100}")
    groups = ((), ()) if is_plain else parse(axes)
    source = Side(_patterns(file, "file", is_literal and is_plain), groups[0], True)
    target = Side(_patterns(tree, "tree", is_literal), groups[1], False)
    _check_ranges(source, target)
    if is_plain:
        _check_plain(source, target)
        return Rule(text, source, target, True)
    rule = Rule(text, source, target, **_options(options))
    _check_axes(rule)
    _check_options(rule)
    return rule


def _patterns(paths: Any, side: str, is_literal: bool) -> tuple[Pattern, ...]:
    several = paths if isinstance(paths, tuple) else (paths,)
    if not several or not all(isinstance(path, str) and path for path in several):
        raise TypeError(
            f"the {side} side is a path or a tuple of paths, such as 'model.norm.weight', or '.' "
            f"for the root, got {paths!r:.100}"
        )
    patterns = tuple(Pattern(path, is_literal=is_literal) for path in several)
    if len({*several}) < len(several):
        raise ValueError(f"a path of the {side} occurs twice: {paths!r:.100}")
    for pattern in patterns:
        if {*pattern.indices} != {*patterns[0].indices}:
            raise ValueError(
                f"the paths of the {side} have different indices: {patterns[0].text!r} and "
                f"{pattern.text!r}"
            )
    return patterns


def _check_ranges(source: Side, target: Side) -> None:
    for one, other in itertools.product(source.patterns, target.patterns):
        for name in one.ranges.keys() & other.ranges.keys():
            ours, theirs = one.ranges[name], other.ranges[name]
            if ours.stop < FAR and theirs.stop < FAR and len(ours) != len(theirs):
                raise ValueError(
                    f"the range of {name} has {len(ours)} numbers in {one.text!r}, and "
                    f"{len(theirs)} in {other.text!r}"
                )


def _check_plain(source: Side, target: Side) -> None:
    if len(source.patterns) > 1 or len(target.patterns) > 1:
        raise ValueError("several paths on one side need axes and along=, as in " + _ALONG)
    if {*source.indices} != {*target.indices}:
        raise ValueError(
            "a rule without axes has the same indices on both sides: write axes to stack arrays, "
            "as in ('model.layers.{l}.norm.weight', 'm -> l m')"
        )


_ALONG = "(('gate', 'up'), 'f m -> n f m', {'along': 'n'})"


def _check_axes(rule: Rule) -> None:
    file, tree = rule.here, rule.there
    reversed_ = "; keys are paths of the tree: if this one is of the file, exchange the paths"
    for path, side, other in (("file", file, tree), ("tree", tree, file)):
        for name in side.indices:
            is_shared = name in other.indices
            if name in side.axes:
                reason = "an index is an axis of the other side, where the arrays are stacked"
                reason = "an index in both paths is no axis" if is_shared else reason
                raise ValueError(
                    f"{name} is an index in the path of the {path}, and an axis there: give the "
                    f"axis another name, since {reason}{reversed_ if side is tree else ''}"
                )
            if not is_shared and name not in other.axes:
                raise ValueError(
                    f"the index {name} of the {path} has no place on the other side: name it among "
                    f"the axes, as in 'm -> {name} m', or in the path"
                )
            if is_shared and name in other.axes:
                raise ValueError(
                    f"{name} is an index in both paths, so it is no axis: remove it from the axes, "
                    "or from one path"
                )
    along, many = rule.along, None
    if len(file.patterns) > 1 or len(tree.patterns) > 1:
        if len(file.patterns) > 1 and len(tree.patterns) > 1:
            raise ValueError("only one side can have several paths: write a rule for each pair")
        many, one = (file, tree) if len(file.patterns) > 1 else (tree, file)
        if along is None:
            raise ValueError(
                f"several paths on one side are joined along an axis: pass along=, as in {_ALONG}"
            )
        if along not in one.axes:
            raise ValueError(
                f"along={along!r} is no axis of the side with one path: it has "
                f"{', '.join(one.axes) or 'none'}"
            )
    elif along is not None:
        raise ValueError("along= needs several paths on one side: leave it out, or pass a tuple")
    for path, side, other in (("left", file, tree), ("right", tree, file)):
        known = {*other.axes, *other.indices}
        if many is other and along is not None:
            known.add(along)
        for name in side.axes:
            if name not in known:
                what = "..." if name == REST else f"the axis {name}"
                is_joined = any(sorted(name) == sorted(axis) for axis in other.axes)
                cure = "name it on both sides, or as an index in braces"
                cure = f"write spaces between axes, as in {' '.join(name)!r}" if is_joined else cure
                if star := next((it.text for it in other.patterns if "*" in it.text), None):
                    cure = f"an index is in braces, as in {star.replace('*', f'{{{name}}}', 1)!r}"
                raise ValueError(f"{what} is only on the {path}: {cure}")


def _options(options: Mapping[Any, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(f"{name!r} is no option of a rule: they are {', '.join(_OPTIONS)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        number = isinstance(value, (int, float, np.integer, np.floating))
        is_number = number and not isinstance(value, bool)
        is_right = {
            "along": isinstance(value, str),
            "pad": isinstance(value, Mapping) and all(map(_is_size, value.values())),
            "scale": is_number and math.isfinite(value) and value != 0,
            "add": is_number and math.isfinite(value),
            "scales": isinstance(value, str) and value != "",
            "block": isinstance(value, (tuple, list))
            and len(value) == 2
            and all(map(_is_size, value)),
            "inexact": isinstance(value, bool),
        }.get(name, True)
        if not is_right:
            raise ValueError(f"{name}={value!r:.100} must be like {name}={_OPTIONS[name]}")
    if "dtype" in given:
        given["dtype"] = _dtype(given["dtype"])
    if "scales" in given:
        given["scales"] = Pattern(given["scales"])
    if "block" in given:
        given["block"] = tuple(map(int, given["block"]))
    if "pad" in given:
        given["pad"] = {name: int(size) for name, size in given["pad"].items()}
    return given | {name: float(given[name]) for name in ("scale", "add") if name in given}


def _is_size(value: Any) -> bool:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_whole and int(value) > 0


def _dtype(value: Any) -> np.dtype[Any]:
    try:
        dtype = resolve(value.encode()) if isinstance(value, str) else np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or not is_float(dtype) or dtype.itemsize not in (2, 4):
        raise ValueError(f"dtype={value!r:.100} must be float32, bfloat16 or float16")
    return dtype


def _check_options(rule: Rule) -> None:
    file, tree = rule.here, rule.there
    for name in rule.pad:
        if name not in tree.axes or name not in file.axes or name == rule.along:
            raise ValueError(
                f"pad= names {name!r}, which must be an axis on both sides, not along="
            )
    if (rule.scales is None) != (rule.block is None):
        raise ValueError("scales= and block= belong together: pass both, as in " + _BLOCK)
    if rule.scales is None:
        return
    if len(file.patterns) > 1 or {*rule.scales.indices} != {*file.indices}:
        raise ValueError(
            "scales= is the path beside one tensor, with the same indices as its path: as in "
            + _BLOCK
        )


_BLOCK = "{'scales': 'layers.{l}.up.weight_scale_inv', 'block': (128, 128)}"


def sizes_of(sizes: Mapping[str, Any], rules: Collection[Rule]) -> dict[str, Any]:
    axes = {name for rule in rules for name in (*rule.here.axes, *rule.there.axes)}
    for name, size in sizes.items():
        several = size if isinstance(size, tuple) else (size,)
        if not several or not all(map(_is_size, several)):
            raise ValueError(
                f"{name}={size!r:.100} must be the size of an axis, such as 32, or for along= a "
                "tuple of the size in each array; options other than rest= belong to load and save"
            )
        if name not in axes:
            raise ValueError(
                f"no rule has an axis {name}: leave {name}= out; the axes are "
                f"{', '.join(sorted(axes - {REST})) or 'none'}"
            )
    return {
        name: tuple(map(int, size)) if isinstance(size, tuple) else int(size)
        for name, size in sizes.items()
    }
