"""Selects and renames leaves by path: `select=` and `rename=` of `load` and `save`.

A pattern is a path. In it `*` matches any text within one part, `**` any number of parts, and `?`
one character. A match selects everything below it: `params/*/kernel`, `params`. A tuple is the
parts of one path, without wildcards; a list or set has several patterns.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.printable import printable, shortened, warn
from treepack._src.pytree.kinds import is_function, kind_of
from treepack._src.pytree.state_dict import expand, leaves_of
from treepack.errors import TreepackError

# Takes the path of a leaf, returns whether it is selected.
Selects = Callable[[str], bool]

Select = str | tuple[Any, ...] | list[Any] | Callable[[str], object] | Mapping[Any, Any] | None
"""The selected leaves: patterns, a predicate on paths, or a pytree of bools."""

Rename = Mapping[Any, Any] | Callable[[str], str] | None
"""New paths: a dict of patterns (or tuples) and replacements, or a function of paths."""


class Selector:
    """The compiled `select=`: a predicate on paths that also marks the leaves of files.

    Attributes:
      selector: The patterns or bools, compiled by the core; `None` for all leaves, or a predicate.
      patterns: The patterns as passed by the caller.
    """

    def __init__(self, select: Any):
        """Compiles `select`.

        Raises:
          TypeError: If `select` has another type than `Select`.
        """
        self.selector: core.Selector | None = None
        self.patterns: list[str] = []
        self._given: dict[str, Any] = {}
        self._predicate: Callable[[str], object] | None = None
        if select is None:
            return
        patterns = _patterns_in(select)
        if patterns is not None:
            if not patterns:
                raise ValueError(f"select={select!r} selects nothing: leave it out to select all")
            self.patterns, self._given = list(patterns), patterns
            literal = [(text, type(given) is tuple) for text, given in patterns.items()]
            self.selector = core.Selector.patterns(literal)
            return
        tree = dict(leaves_of(select, ()))
        if tree and all(isinstance(leaf, _BOOLS) for leaf in tree.values()):
            bools = [([*keys], bool(leaf)) for keys, leaf in tree.items()]
            self.selector = core.Selector.bools(bools)
        elif callable(select):
            self._predicate = select
        else:
            raise TypeError(
                "select= must be a pattern, a list of patterns, a predicate on paths, or a "
                f"pytree of bools, got {select!r:.100}"
            )

    def mark(self, catalog: core.Catalog, value: int) -> core.Marks | None:
        """Marks the selected leaves of a file below a value; `None` for all.

        Raises:
          TreepackError: If a tree of bools has no bool for a leaf.
        """
        if self._predicate is not None:
            ends = _paths.Room().all(catalog.ends(value))
            meant = {end for path, end in ends if self._predicate(path)}
            return catalog.mark(meant)
        if self.selector is None:
            return None
        marks = catalog.select(value, self.selector)
        if marks.undecided is not None:
            raise _no_bool(catalog.path_of(marks.undecided, value))
        return marks

    def means(self, path: str) -> bool:
        """Returns whether the leaf at a path is selected.

        Raises:
          TreepackError: If a tree of bools has no bool for it.
        """
        if self._predicate is not None:
            return bool(self._predicate(path))
        if self.selector is None:
            return True
        is_selected = self.selector.means(_paths.parts(path))
        if is_selected is None:
            raise _no_bool(path)
        return is_selected

    def unmatched(self, paths: Iterable[str]) -> list[int]:
        """Returns the numbers of patterns that match none of the paths."""
        left = set(range(len(self.patterns)))
        for path in paths if left else ():
            assert self.selector is not None
            left.difference_update(self.selector.matching(_paths.parts(path)))
        return sorted(left)

    def settled(self, unmatched: Iterable[int], paths: Collection[str]) -> Selector:
        """Returns the selection with unmatched patterns replaced by paths without escapes.

        `unmatched` has the numbers of patterns that match nothing. Replaces those that match
        exactly one path without escapes.
        """
        given = dict(self._given)
        for text in map(self.patterns.__getitem__, unmatched):
            if given[text] == text:
                given[text] = _literal(text, paths) or text
        return Selector([*given.values()])

    def without(self, other: Selector) -> Selector:
        """Returns the selection without the leaves of another one."""
        return Selector(lambda path: self.means(path) and not other.means(path))

    def check(
        self, where: str, paths: Collection[str], name: str, others: Collection[str] = ()
    ) -> None:
        """Raises a TreepackError if patterns match none of the paths.

        Args:
          where: A description of the searched tree, for the error.
          paths: All paths of the tree.
          name: The name of the option in the error.
          others: Further paths that patterns may match.
        """
        typos = [self.patterns[number] for number in self.unmatched([*paths, *others])]
        if not typos:
            return
        error = (
            f"{name} matches nothing in the {where}: {', '.join(map(printable, typos)) or repr('')}"
        )
        for typo in typos:
            parts = self._given[typo]
            are_names = type(parts) is tuple and all(isinstance(part, str) for part in parts)
            if are_names and len(parts) > 1 and not Selector([*parts]).unmatched(paths):
                error += f". A tuple is one path: for several patterns, pass a list: {[*parts]}"
        raise TreepackError(error + (_starred(typos[0], paths) or similar(typos[0], paths)))


def _literal(text: str, paths: Iterable[str]) -> tuple[str, ...] | None:
    """Returns the parts of the only path, of a leaf or container, that is `text` without escapes.

    `None` if none or several are.
    """
    if "/" not in text and "~" not in text:
        return None
    candidates: set[tuple[str, ...]] = set()
    for path in paths:
        if "~" in path:
            parts = tuple(_paths.parts(path))
            ends = itertools.accumulate(len(part) + 1 for part in parts)
            if f"{'/'.join(parts)}/".startswith(f"{text}/"):
                counts = (at + 1 for at, end in enumerate(ends) if end == len(text) + 1)
                candidates.update(parts[:count] for count in counts)
    return candidates.pop() if len(candidates) == 1 else None


def similar(typo: str, paths: Iterable[str]) -> str:
    """Returns a hint about a path similar to one without escapes, or about the paths that exist.

    The path may be of a container, if it has as many parts.
    """
    texts = {"/".join(_paths.parts(path)): path for path in itertools.islice(paths, _MOST_PATHS)}
    if "*" in typo and (escaped := with_escapes(typo, texts.values())):
        return f"; is it {escaped!r}?"
    meant = _paths.meant(typo, texts.values())
    count = typo.count("/") + 1
    starts = ([*_paths.parts(text)][:count] for text in texts.values())
    both = {"/".join(start): _paths.text(start) for start in starts} | texts
    near = [meant] if meant else [both[name] for name in _paths.closest(typo, both)]
    if near:
        return f"; is it {near[0]!r}?"
    shown = [printable(text[:_MOST_TEXT]) for text in itertools.islice(texts.values(), _MOST_SHOWN)]
    shown += ["…"] * (len(texts) > _MOST_SHOWN)
    return f"; it has {', '.join(shown) or 'no leaves'}"


def with_escapes(pattern: str, paths: Iterable[str]) -> str | None:
    """Adds escapes to a pattern so that it matches a path; the first such path decides.

    So `mlp/~/linear_*/w` becomes `mlp~1~0~1linear_*/w`. `None` if it matches none.
    """
    for path in paths:
        if "~" not in path or len(path) > _MOST_TEXT:
            continue
        pieces = [at for part in _paths.parts(path) for at, _ in enumerate(part.split("/"))]
        escaped = ""
        for at, text in zip(pieces, pattern.split("/"), strict=False):
            rest = "*/**" if at and text == "**" else text.replace("~", "~0")
            escaped += f"{'~1' if at else '/'}{rest}"
        if not Selector(escaped[1:]).unmatched([path]):
            return escaped[1:]
    return None


def _starred(pattern: str, paths: Iterable[str], new: Any = None) -> str:
    """Returns a hint if a pattern has wildcards of regular expressions or templates."""
    star = _OTHERS.sub("*", pattern)
    if star == pattern or not any(core.captures(star, path) for path in paths):
        return ""
    meant = repr(star) if new is None else str({star: _OTHERS.sub("*", _text(new))})
    return f"; wildcards are *, ** and ?: is it {meant}?"


# Groups, captures and classes.
_OTHERS = re.compile(r"\{\w*\}|\(.*?\)|<\w+>|\[.*?\]|\.\*|\\\w\+?|\$\d")

# Limits the search for similar paths, which is slow.
_MOST_PATHS = 1000

# The maximum number of paths in an error, and of the characters of each.
_MOST_SHOWN = 5
_MOST_TEXT = 100


def _no_bool(path: str) -> TreepackError:
    return TreepackError(f"at {printable(path)}: the tree of bools in select= has no bool for it")


# The leaf types of a mask: `None` is a missing leaf, as in equinox's masks.
_BOOLS = (bool, np.bool_, type(None))


def _patterns_in(select: Any) -> dict[str, Any] | None:
    """Returns the patterns by their texts; `None` if `select` has other elements."""
    if isinstance(select, str) or _is_path(select):
        select = [select]
    if not isinstance(select, (list, set, frozenset)):
        return None
    patterns: dict[str, Any] = {}
    for pattern in select:
        if isinstance(pattern, str):
            patterns[pattern] = pattern
        elif _is_path(pattern):  # it has no wildcards
            patterns.setdefault(_text(pattern), pattern)
        else:
            return None
    return patterns


def _is_path(value: Any) -> bool:
    """Returns whether a value is a tuple of the parts of a path, or a JAX key path."""
    return type(value) is tuple and (
        all(type(entry) in (str, int) for entry in value)
        or any(hasattr(entry, name) for entry in value for name in ("key", "name", "idx"))
    )


def _text(path: Any) -> str:
    """Returns a path in any form as text."""
    return path if isinstance(path, str) else _paths.text(_paths.parts(path))


def compiled(
    select: Any,
    where: str,
    paths: Collection[str],
    exclude: Any = None,
    others: Collection[str] = (),
) -> Selector:
    """Compiles a selection without another, of paths and of `others`, which errors do not list.

    See `Selector.check` for `where` and `paths`.

    Raises:
      TreepackError: If a pattern matches none of the paths.
    """

    def one(given: Any, name: str) -> Selector:
        selector = Selector(given)
        if unmatched := selector.unmatched([*paths, *others]):
            selector = selector.settled(unmatched, [*paths, *others])
            selector.check(where, paths, name, others)
        return selector

    selector = one(select, "select")
    return selector if exclude is None else selector.without(one(exclude, "exclude"))


def chosen(tree: Any, select: Any, exclude: Any = None, where: str = "tree") -> Any:
    """Returns a tree with only the selected leaves, as `load(select=...)` returns it.

    A complete container stays the same object; a container that loses children becomes a dict.

    Raises:
      ValueError: If a pattern matches nothing, or a tree of bools has no bool for a leaf.
    """
    if select is None and exclude is None:
        return tree
    ends = dict(ends_of(tree))
    room = _paths.Room()
    paths = {parts: room.text(_paths.text(parts)) for parts in ends}
    selector = compiled(select, where, paths.values(), exclude)
    meant = meant_of({paths[parts]: is_leaf for parts, is_leaf in ends.items()}, selector)
    wanted = {parts for parts in ends if paths[parts] in meant}
    # The containers that lose leaves, and the containers that keep leaves.
    losing = {parts[:count] for parts in ends.keys() - wanted for count in range(len(parts) + 1)}
    keeping = {parts[:count] for parts in wanted for count in range(len(parts) + 1)}

    def below(node: Any, parts: tuple[str, ...]) -> Any:
        if parts not in losing:
            return node
        kept = {}  # no comprehension: this goes as deep as a tree
        for name, child in _children(node).items():
            if (*parts, str(name)) in keeping:
                kept[str(name)] = below(child, (*parts, str(name)))
        kind = kind_of(node)
        if kind is None or kind.final or len(kept) < len(_children(node)):
            is_dict = type(node) is dict  # it keeps its keys
            return {key: kept[str(key)] for key in node if str(key) in kept} if is_dict else kept
        return kind.make(node, kept)  # it keeps all its children, even if these lose some

    return below(tree, ()) if wanted else {}


def ends_of(node: Any, parts: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yields the paths of leaves and empty containers of a tree, and whether each is a leaf."""
    children = _children(node)
    if not children:
        # Code is stored as an empty container.
        yield parts, kind_of(node) is None and not is_function(node)
    for name, child in children.items():
        yield from ends_of(child, (*parts, str(name)))


def _children(node: Any) -> Mapping[str, Any]:
    children = expand(node)[0] if kind_of(node) is not None else None
    return children if isinstance(children, Mapping) else {}


def meant_of(ends: Mapping[str, bool], selector: Selector) -> set[str]:
    """Returns the selected paths of leaves and empty containers; see `Catalog.select`.

    Args:
      ends: All paths, and whether each is a leaf.
      selector: The selection.
    """
    meant = {path for path, is_leaf in ends.items() if is_leaf and selector.means(path)}
    containers = [path for path, is_leaf in ends.items() if not is_leaf]
    # Whether all leaves in a container are selected, by the paths of containers with leaves.
    around: dict[str, bool] = {}
    for path in ends.keys() - containers if containers else ():
        for above in _above(path):
            is_selected = path in meant and around.get(above, True)
            if around.get(above) == is_selected:  # as are those further above
                break
            around[above] = is_selected
    for path in containers:
        try:
            is_meant = selector.means(path)
        except ValueError:  # select has no bool for it
            is_meant = next((around[prefix] for prefix in _above(path) if prefix in around), True)
        if is_meant:
            meant.add(path)
    return meant


def _above(path: str) -> Iterator[str]:
    """Yields the paths of the containers around a leaf or container, innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
    yield _paths.ROOT


class Renaming:
    """The compiled `rename=`: a function from paths to new paths."""

    def __init__(
        self,
        rename: Any,
        paths: Collection[str] = (),
        targets: Collection[str] = (),
        values: Collection[str] = (),
    ):
        """Compiles `rename`.

        Args:
          rename: The option.
          paths: The paths to rename.
          targets: The paths that new paths may be. Of both, paths without escapes are recognised.
          values: The leaves whose variable of nnx also represents them.

        Raises:
          TypeError: If it is neither a dict nor a function.
          ValueError: If the wildcards of a replacement differ from its pattern.
        """
        self._targets = targets
        self._values = values
        self._rules: list[tuple[str, bool, Any]] = []
        self._function: Callable[[str], str] | None = None
        if isinstance(rename, Mapping):
            sides = sorted(paths), sorted(targets)
            pairs = [
                (_escaped(old, new, sides[0]), _escaped(new, old, sides[1]))
                for old, new in rename.items()
            ]
            for old, new in pairs:
                _check_wildcards(old, new)
                self._rules.append((_text(old), _is_literal(old), new))
        elif callable(rename):
            self._function = rename
        elif rename is not None:
            raise TypeError(
                f"rename= must be a dict of patterns or a function of paths, got {rename!r:.100}"
            )
        self._unmatched = dict.fromkeys(range(len(self._rules)))

    def __call__(self, path: str) -> str:
        """Returns the new path of a leaf."""
        new = self._new(path)
        # The value of a variable of nnx is meant by the path of the variable.
        ways = (new, f"{new}{_VALUE}", new.removesuffix(_VALUE))
        return next((way for way in ways if way in self._targets), new)

    def _new(self, path: str) -> str:
        if self._function is not None:
            new = self._function(path)
            if not isinstance(new, str):
                raise TypeError(
                    f"the function rename= must return a path for {path}, got {new!r:.100}: "
                    "treepack.transpose and its family are values of a dict"
                )
            return new
        for number, (pattern, literal, replacement) in enumerate(self._rules):
            match = _match(pattern, literal, path)
            if match is not None:
                self._unmatched.pop(number, None)
                wildcards, rest = match
                new = filled(replacement, wildcards)
                if path in self._values and rest == _VALUE:
                    return new
                return _joined(new, "" if path == _paths.ROOT else rest)
        return path

    def check(self, paths: Collection[str], where: str) -> None:
        """Checks that patterns match one of the paths; `where` describes these for the error.

        Raises:
          TreepackError: If there are patterns, and none matches.

        Warns:
          UserWarning: If some match nothing. First matches of others may hide theirs.
        """
        rules = [self._rules[number][:2] for number in self._unmatched]
        is_error = len(rules) == len(self._rules)
        if not is_error:
            rules = [rule for rule in rules if not any(_match(*rule, path) for path in paths)]
        if rules:
            patterns = shortened((printable(rule) for rule, _ in rules), len(rules))
            old, _, new = self._rules[next(iter(self._unmatched))]
            near = self._reversed(paths) or _starred(old, paths, new) or similar(old, paths)
            text = f"rename matches nothing in the {where}: {patterns}{near}"
            if is_error:
                raise TreepackError(text)
            warn(text)

    def _reversed(self, paths: Collection[str]) -> str:
        """Returns a hint if the first pattern without a match maps a target's path to one there."""
        old, is_literal, new = self._rules[next(iter(self._unmatched))]
        back = _text(new)
        is_back = any(_match(old, is_literal, path) for path in self._targets) and any(
            _match(back, _is_literal(new), path) for path in paths
        )
        return f"; keys are the paths there: is it {{{back!r}: {old!r}}}?" if is_back else ""


def _match(pattern: str, literal: bool, path: str) -> tuple[list[str], str] | None:
    """Returns the texts that wildcards match and the rest of a path, or `None`."""
    if pattern == _paths.ROOT:
        return [], path
    if not literal:
        return core.captures(pattern, path)
    return ([], path.removeprefix(pattern)) if f"{path}/".startswith(f"{pattern}/") else None


def twice(renamed: Iterable[tuple[str, str]]) -> str:
    """Describes two leaves with the same new path."""
    seen: dict[str, str] = {}
    for path, new in renamed:
        if new in seen:
            return f"{seen[new]} and {path} to {new}"
        seen[new] = path
    raise AssertionError("all new paths differ")


def _joined(new: str, rest: str) -> str:
    """Joins two paths, each of which may be the root."""
    rest = rest.removeprefix("/")
    if new == _paths.ROOT:
        return rest or _paths.ROOT
    return f"{new}/{rest}" if rest else new


_WILDCARDS = re.compile(r"(\*\*/|\*\*|\*|\?)")


def _is_literal(old: Any) -> bool:
    """Returns whether a pattern has no wildcards: comparing paths is faster than matching."""
    return not wildcards_of(old)


def _escaped(text: Any, other: Any, ordered: Sequence[str]) -> Any:
    """Returns the parts of one of the sorted paths if `text` is that path without escapes.

    Returns patterns, tuples and paths unchanged; `other` is the other side of the rule.
    """
    if not isinstance(text, str) or not _is_literal(text) or not _is_literal(other):
        return text
    return text if _paths.has(ordered, text) else _literal(text, ordered) or text


def _check_wildcards(old: Any, new: Any) -> None:
    theirs, ours = wildcards_of(old), wildcards_of(new)
    if ours not in (theirs, []):
        like = {old: filled(new, theirs)} if len(theirs) == len(ours) else _LIKE
        split = "" if theirs else f"; save splits an array by treepack.unstack({new!r})"
        raise ValueError(
            f"{new!r} must have the same wildcards as {old!r}, in the same order, or none, as in "
            f"{like}{split}"
        )


_LIKE = {"old/*/w": "new/*/kernel"}


def wildcards_of(path: Any) -> list[str]:
    """Returns the wildcards of a path; tuples have none."""
    return [] if isinstance(path, tuple) else _WILDCARDS.findall(path)


def filled(path: Any, wildcards: Iterable[str]) -> str:
    """Replaces the wildcards of a path by the texts that they match."""
    if not wildcards_of(path):
        return _text(path)
    texts = iter(wildcards)
    return _WILDCARDS.sub(lambda _: next(texts), path)


def matches(path: Any, leaves: Collection[str]) -> dict[str, list[str]]:
    """Returns the leaves that a path matches, with the texts that its wildcards match.

    A variable of nnx that it matches means the value of the variable.
    """
    if _is_literal(path):
        leaf = leaf_at(_text(path), leaves)
        return {} if leaf is None else {leaf: []}
    captures = {leaf: core.captures(path, leaf) for leaf in leaves}
    return {
        leaf: captured[0]
        for leaf, captured in captures.items()
        if captured is not None and captured[1] in ("", _VALUE)
    }


def leaf_at(path: str, leaves: Collection[str]) -> str | None:
    """Returns the leaf at a path, which may be of a variable of nnx, or `None`."""
    return next((name for name in (path, f"{path}{_VALUE}") if name in leaves), None)


def values_in(paths: Collection[str]) -> set[str]:
    """Returns the leaves that are, as the values of variables of nnx, alone in their containers."""
    count = collections.Counter(path.rpartition("/")[0] for path in paths)
    return {
        path for path in paths if path.endswith(_VALUE) and count[path.removesuffix(_VALUE)] == 1
    }


# The path of the value in a variable of nnx.
_VALUE = "/value"
