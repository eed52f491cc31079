"""Selects leaves by path: `select=` of `load` and `save`.

A pattern is a path, with `*` for any text within one part, `**` for any number of parts, and `?`
for one character. A match selects everything below it: `params/*/kernel`. A tuple is the parts of
one path, without wildcards; a list or set has several patterns.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.advice import check_parameters
from treepack._src.printable import printable, warn
from treepack._src.pytree.kinds import is_function, kind_of
from treepack._src.pytree.state_dict import expand, leaves_of
from treepack.errors import TreepackError


class Selector:
    """The compiled `select=`: `None`, or a predicate on paths that also marks leaves of files."""

    def __init__(self, select: Any):
        self._core: core.Selector | None = None
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
            self._core = core.Selector.patterns(literal)
            return
        tree = dict(leaves_of(select, ()))
        if tree and all(isinstance(leaf, _BOOLS) for leaf in tree.values()):
            bools = [([*keys], bool(leaf)) for keys, leaf in tree.items()]
            self._core = core.Selector.bools(bools)
        elif callable(select) and not isinstance(select, type):
            alone = "a path alone (for shapes, pass a list of paths, as from File.infos())"
            check_parameters(select, "a predicate", alone, 1)
            self._predicate = select
        else:
            raise TypeError(
                "select= must be a pattern, a list of patterns, a predicate on paths (such as the "
                f"search of an expression), or a pytree of bools, got {select!r:.100}"
            )

    def mark(self, catalog: core.Catalog, value: int) -> core.Marks | None:
        if self._predicate is not None:
            ends = _paths.PathBudget().all(catalog.ends(value))
            selected = {end for path, end in ends if self._predicate(path)}
            return catalog.mark(selected)
        if self._core is None:
            return None
        marks = catalog.select(value, self._core)
        if marks.undecided is not None:
            raise _no_bool(catalog.path_of(marks.undecided, value))
        return marks

    def selects(self, path: str) -> bool:
        if self._predicate is not None:
            return bool(self._predicate(path))
        if self._core is None:
            return True
        is_selected = self._core.selects(_paths.parts(path))
        if is_selected is None:
            raise _no_bool(path)
        return is_selected

    def unmatched(self, paths: Iterable[str]) -> list[int]:
        left = set(range(len(self.patterns)))
        for path in paths if left else ():
            assert self._core is not None
            left.difference_update(self._core.matching(_paths.parts(path)))
        return sorted(left)

    def settled(self, unmatched: Iterable[int], paths: Collection[str]) -> Selector:
        given = dict(self._given)
        for text in map(self.patterns.__getitem__, unmatched):
            if given[text] == text:
                given[text] = _literal(text, paths) or text
        return Selector([*given.values()])

    def without(self, other: Selector) -> Selector:
        return Selector(lambda path: self.selects(path) and not other.selects(path))

    def check(
        self, where: str, paths: Collection[str], name: str, others: Collection[str] = ()
    ) -> None:
        typos = [self.patterns[number] for number in self.unmatched([*paths, *others])]
        if not typos:
            return
        error = (
            f"{name} matches nothing in the {where}: {', '.join(map(printable, typos)) or repr('')}"
        )
        for typo in typos:
            parts = self._given[typo]
            are_names = type(parts) is tuple and all(isinstance(part, str) for part in parts)
            if are_names and not Selector([*parts]).unmatched(paths):
                several = f"for several patterns, pass a list: {[*parts]}"
                cure = several if len(parts) > 1 else f"pass {parts[0]!r}"
                raise TreepackError(f"{error}. A tuple is one path, by its keys: {cure}")
        hints = [_keyed, _separated, _dotted, _starred, _deeper, _escaped, _cased, _paths.similar]
        if name == "select":
            hints.insert(0, _negated)
        raise TreepackError(error + next(filter(None, (hint(typos[0], paths) for hint in hints))))


def nothing_left(where: str, paths: Iterable[str]) -> str:
    path = printable(next(iter(paths), _paths.ROOT))
    return f"select= and exclude= leave out every leaf of the {where}, such as {path!r}: select one"


def _literal(text: str, paths: Iterable[str]) -> tuple[str, ...] | None:
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


def _escaped(pattern: str, paths: Iterable[str]) -> str:
    for path in _some(paths) if "*" in pattern else ():
        if "~" not in path or len(path) > _MOST_TEXT:
            continue
        pieces = [at for part in _paths.parts(path) for at, _ in enumerate(part.split("/"))]
        escaped = ""
        for at, text in zip(pieces, pattern.split("/"), strict=False):
            rest = "*/**" if at and text == "**" else text.replace("~", "~0")
            escaped += f"{'~1' if at else '/'}{rest}"
        if not Selector(escaped[1:]).unmatched([path]):
            return f"; is it {escaped[1:]!r}?"
    return ""


def _dotted(pattern: str, paths: Iterable[str]) -> str:
    text = pattern.replace(".", "/")
    return f"; is it {text!r}?" if not Selector(text).unmatched(paths) else ""


def _starred(pattern: str, paths: Iterable[str]) -> str:
    star = _OTHERS.sub("*", pattern)
    for text in (star, f"**/{star}") if star != pattern and star.strip("*/") else ():
        if not Selector(text).unmatched(paths):
            return f"; wildcards are *, ** and ?: is it {text!r}?"
    return ""


def _separated(pattern: str, paths: Iterable[str]) -> str:
    if braces := _BRACES.fullmatch(pattern):
        pieces = [f"{braces[1]}{choice.strip()}{braces[3]}" for choice in braces[2].split(",")]
    else:
        pieces = [text.strip("[]()'\"") for text in re.findall(r"[^,\s]+", pattern)]
    is_list = len(pieces) > 1 and not Selector(pieces).unmatched(paths)
    return f"; for several patterns, pass a list: {pieces}" if is_list else ""


def _negated(pattern: str, paths: Iterable[str]) -> str:
    rest = pattern.removeprefix("!")
    is_negated = rest != pattern and not Selector(rest).unmatched(paths)
    return f"; for leaves to leave out, pass exclude=: {rest!r}" if is_negated else ""


def _deeper(pattern: str, paths: Iterable[str]) -> str:
    text = f"**/{pattern}"
    is_below = "*" in pattern and not Selector(text).unmatched(paths)
    return f"; * is within one part of a path: is it {text!r}?" if is_below else ""


def _cased(pattern: str, paths: Iterable[str]) -> str:
    parts = {part.casefold(): part for path in _some(paths) for part in path.split("/")}
    text = "/".join(parts.get(part.casefold(), part) for part in pattern.split("/"))
    is_cased = text != pattern and not Selector(text).unmatched(paths)
    return f"; is it {text!r}?" if is_cased else ""


def _some(paths: Iterable[str]) -> Iterator[str]:
    """Limits the search for similar paths, which is slow."""
    return itertools.islice(paths, _paths.MOST_NAMES)


def _keyed(pattern: str, paths: Iterable[str]) -> str:
    dotted = f".{pattern}".replace("/", ".")
    keys = [key[0] or key[1] for key in _KEY.findall(dotted)]
    path = _paths.text(keys)
    is_keyed = keys and "[" in pattern and not _KEY.sub("", dotted).strip(".")
    if not is_keyed or Selector(path).unmatched(paths):
        return ""
    return f"; is it {path!r}?"


# Groups, captures and classes.
_KEY = re.compile(r"""\[['"]?([^\]'"]*)['"]?\]|\.(\w+)""")
_BRACES = re.compile(r"(.*)\{(.*,.*)\}(.*)", re.DOTALL)
_OTHERS = re.compile(r"\{\w*\}|\(.*?\)|<\w+>|\[.*?\]|\.\*|\\\w\+?|\$\d")

# The maximum length of a path to which a pattern is compared.
_MOST_TEXT = 100


def _no_bool(path: str) -> TreepackError:
    return TreepackError(
        f"at {printable(path)}: the tree of bools in select= has no bool for it: "
        "add one, such as False, in the containers of the tree, or pass paths"
    )


# The leaf types of a mask: `None` is a missing leaf, as in equinox's masks.
_BOOLS = (bool, np.bool_, type(None))


def _patterns_in(select: Any) -> dict[str, Any] | None:
    if isinstance(select, str) or _is_path(select):
        select = [select]
    if not isinstance(select, (list, set, frozenset)):
        return None
    patterns: dict[str, Any] = {}
    for pattern in select:
        if isinstance(pattern, str):
            patterns[pattern] = pattern
        elif _is_path(pattern):  # it has no wildcards
            patterns.setdefault(_paths.text(_paths.parts(pattern)), pattern)
        else:
            return None
    return patterns


def _is_path(value: Any) -> bool:
    return type(value) is tuple and (
        all(type(entry) in (str, int) for entry in value)
        or any(hasattr(entry, name) for entry in value for name in ("key", "name", "idx"))
    )


def compiled(
    select: Any,
    where: str,
    paths: Collection[str],
    exclude: Any,
    others: Collection[str] = (),
) -> Selector:
    def one(given: Any, name: str) -> Selector:
        selector = Selector(given)
        if unmatched := selector.unmatched([*paths, *others]):
            selector = selector.settled(unmatched, [*paths, *others])
            selector.check(where, paths, name, others)
        return selector

    selector = one(select, "select")
    return selector if exclude is None else selector.without(one(exclude, "exclude"))


def chosen(tree: Any, select: Any, exclude: Any = None, where: str = "tree") -> Any:
    """Like `load(select=...)`; complete containers stay the same objects, others become dicts."""
    if select is None and exclude is None:
        return tree
    ends = dict(ends_of(tree))
    budget = _paths.PathBudget()
    paths = {parts: budget.text(_paths.text(parts)) for parts in ends}
    selector = compiled(select, where, paths.values(), exclude)
    selected = selected_by({paths[parts]: is_leaf for parts, is_leaf in ends.items()}, selector)
    wanted = {parts for parts in ends if paths[parts] in selected}
    if ends and not wanted:
        warn(nothing_left(where, paths.values()))
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
    children = _children(node)
    if not children:
        # Code is stored as an empty container.
        yield parts, kind_of(node) is None and not is_function(node)
    for name, child in children.items():
        yield from ends_of(child, (*parts, str(name)))


def _children(node: Any) -> Mapping[str, Any]:
    children = expand(node)[0] if kind_of(node) is not None else None
    return children if isinstance(children, Mapping) else {}


def selected_by(ends: Mapping[str, bool], selector: Selector) -> set[str]:
    selected = {path for path, is_leaf in ends.items() if is_leaf and selector.selects(path)}
    containers = [path for path, is_leaf in ends.items() if not is_leaf]
    # Whether all leaves in a container are selected, by the paths of containers with leaves.
    around: dict[str, bool] = {}
    for path in ends.keys() - containers if containers else ():
        for above in _above(path):
            is_selected = path in selected and around.get(above, True)
            if around.get(above) == is_selected:  # as are those further above
                break
            around[above] = is_selected
    for path in containers:
        try:
            is_wanted = selector.selects(path)
        except ValueError:  # select has no bool for it
            is_wanted = next((around[prefix] for prefix in _above(path) if prefix in around), True)
        if is_wanted:
            selected.add(path)
    return selected


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
    yield _paths.ROOT
