from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from treepack._src import paths as _paths
from treepack._src.paths import ROOT, Trail
from treepack._src.printable import printable, shortened
from treepack._src.pytree.kinds import kind_of
from treepack._src.restore.compare import A_DTYPE, A_SHARDING, EMPTY, NODE_OF, NOTHING, VALUES_OF
from treepack.errors import Mismatch

# Matches the description of an array of floats or integers: its kind and shape.
_CASTABLE = re.compile(r"b?(float)\w*(\[[\d,]*\])|u?(int)\w*(\[[\d,]*\])")

_ARRAY = re.compile(r"\w+(\[[\d,]*\])")

# Matches the description of a tuple with the numbers of a shape.
_SHAPE = re.compile(r"a subtree \((\(.*\))\)")

# Matches the length of a list or tuple.
_LENGTH = re.compile(r"(\d+) elements?")

# Hints by the beginnings of both sides: descriptions of arrays without shapes, keys of one side
# that are their data on the other, types of containers, and shared nodes.
_BEGINNINGS = {
    ("a subtree", "bytes"): "If the bytes are an encoding, pass them to from_bytes or loads.",
    (A_DTYPE, ""): "A template has shapes, too: pass jax.ShapeDtypeStruct(shape, dtype).",
    (A_SHARDING, ""): (
        "Pass shardings as sharding=, or in jax.ShapeDtypeStruct(shape, dtype, sharding=...)."
    ),
    ("key<", "uint32["): (
        "The file has the data of a key: load them in place of jax.random.key_data(key), and call "
        "jax.random.wrap_key_data on them."
    ),
    ("uint32[", "key<"): (
        "The file has a typed key: load it in place of a jax.random.key, and call "
        "jax.random.key_data on it."
    ),
    ("a container of the type ", ""): "Pass strict=True to accept containers of other types.",
    ("", NODE_OF): (
        "JAX copies shared nodes of nnx: make the template without jax.tree.map and jax.jit, "
        "or with jax.eval_shape, whose nodes are joined as in the file."
    ),
}


class Level(NamedTuple):
    """A node of a template whose children are one level away from it in the file.

    `names` are the missing and unexpected children that `hint` explains.
    """

    hint: str
    path: str
    names: frozenset[str]

    def explains(self, mismatch: Mismatch) -> bool:
        above, _, name = mismatch.path.rpartition("/")
        return (above or ROOT) == self.path and name in self.names


def level_of(
    target: Any, children: Mapping[str, Any], state: Mapping[Any, Any], path: Trail
) -> Level | None:
    at, is_root = str(path), not path.parts
    names = {str(name): name for name in state}
    shared = {
        name: _shared(children, state[key])
        for name, key in names.items()
        if isinstance(state[key], Mapping)
    }
    higher = {
        name: _shared(_children_of(child), {each: state[key] for each, key in names.items()})
        for name, child in children.items()
    }
    most = max(map(len, shared.values()), default=0)
    # Some positions of a list are in every longer one.
    is_alike = most == len(children) or not all(map(str.isdecimal, children))
    if most and is_alike and most >= max(map(len, higher.values()), default=0):
        above = [name for name, found in shared.items() if len(found) == most]
        places = shortened((printable(str(Trail(path, name))) for name in above), len(above))
        near = printable(above[0])
        hint = (
            f"The file has these leaves in {places}: pass {{{near!r}: template}} as the template, "
            f"and take [{near!r}] of the loaded tree."
            if is_root
            else f"The file has the leaves of {printable(at)} in {places}: pass "
            f"{{{near!r}: ...}} in its place."
        )
        return Level(hint, at, frozenset(map(_part, shared[above[0]] | names.keys())))
    for name, below in higher.items():
        if below:
            shown = printable(name)
            if isinstance(target, Mapping):
                part = f"[{shown!r}]"
            else:
                part = f"[{shown}]" if shown.isdecimal() else f".{shown}"
            hint = (
                f"The file has the leaves of {shown} one level higher: pass template{part} as the "
                "template."
                if is_root
                else f"The file has the leaves of {printable(str(Trail(path, name)))} in "
                f"{printable(at)}: pass the node {shown} in the place of {printable(at)}."
            )
            return Level(hint, at, frozenset(map(_part, children.keys() | below)))
    return None


def _part(name: str) -> str:
    return _paths.text([name])


def _shared(children: Mapping[str, Any], state: Mapping[str, Any]) -> set[str]:
    return {
        name
        for name in children.keys() & state.keys()
        if isinstance(state[name], Mapping) == (kind_of(children[name]) is not None)
    }


def _children_of(child: Any) -> Mapping[str, Any]:
    kind = kind_of(child)
    try:
        children = {} if kind is None else kind.children(child)
    except Exception:  # a handler may raise any error
        return {}
    return children if isinstance(children, Mapping) else {}


def about_root(mismatches: list[Mismatch]) -> str:
    mismatch, missing = mismatches[0], {it.expected for it in mismatches if it.found == NOTHING}
    if missing == {"function"} and any(it.expected == NOTHING for it in mismatches):
        return (
            "These leaves of the template are code: pass the state of an optimizer or module, such "
            "as jax.eval_shape(optimizer.init, params)."
        )
    if mismatch.path != ROOT and missing != {"str"}:
        return ""
    if mismatch.expected.endswith(("str", "(str)")):
        return "This argument is a template: for a part of the file, pass select= in its place."
    if mismatch.expected == "int" and mismatch.found.startswith("a subtree"):
        return (
            "This argument is a template: for a version, pass newer_than=; for a step, "
            "treepack.load(run.path(step))."
        )
    return ""


def about_names(
    mismatches: list[Mismatch],
    deeper: tuple[Trail, Trail] | None,
    names_of: Mapping[str, str] | None,
    *,
    has_function: bool,
    unruled: Collection[str],
) -> Iterator[str]:
    """Yields hints about names that differ.

    `mismatches` lack those that a `Level` explains. With a mapping, `names_of` are the paths of
    leaves in the file, where these differ, and `unruled` leaves whose rule has no match, always an
    error.
    """
    in_file = names_of or {}
    if deeper is not None:
        old, new = map(str, deeper)
        yield (
            f"Pass mapping={{{printable(new)!r}: {printable(old)!r}}} and so on, "
            "or a function of paths of the template: one side has its leaves one level deeper."
        )
    shapes = (_SHAPE.fullmatch(mismatch.expected) for mismatch in mismatches)
    for shape in filter(None, shapes):
        yield f"A tuple is a subtree: for a shape, pass jax.ShapeDtypeStruct({shape[1]}, dtype)."
        break
    similar = {
        printable(in_file.get(it.similar, it.similar)): printable(it.path)
        for it in mismatches
        if it.similar
    }
    of_rules = [it for it in mismatches if it.similar and _is_of_rules(it.similar, names_of)]
    if of_rules and not has_function:
        new, old = printable(of_rules[0].path), printable(of_rules[0].similar)
        yield f"Write {new!r} in place of {old!r} in the rules of mapping=, if this is its name."
    elif names_of is None and (joined := _joined(mismatches)):
        yield joined
    elif similar:
        pairs = shortened((f"{new!r}: {old!r}" for old, new in similar.items()), len(similar))
        names = "this is its name" if len(similar) == 1 else "these are their names"
        yield f"{_mapped(pairs, names_of, has_function)} if {names} in the file."
    elif {NOTHING} <= {mismatch.found for mismatch in mismatches} & {
        mismatch.expected for mismatch in mismatches
    }:
        others = "Pass mapping=" if names_of is None else "Change mapping="
        yield f"{others} if leaves have other names in the file."
    if any(_LENGTH.match(it.expected) and it.found.startswith("a subtree") for it in mismatches):
        yield "The file has a dict there: pass one with its keys in place of the list or tuple."
    lengths = [
        (_LENGTH.match(mismatch.expected), _LENGTH.match(mismatch.found)) for mismatch in mismatches
    ]
    more = [int(ours[1]) - int(theirs[1]) for ours, theirs in lengths if ours and theirs]
    if max(more, default=0) > 0 or any(
        mismatch.found == NOTHING and mismatch.path not in unruled for mismatch in mismatches
    ):
        yield 'Pass missing="target" to keep leaves that the file lacks.'
    elif any(mismatch.found in ("None", EMPTY) for mismatch in mismatches):
        yield 'Pass missing="target" to keep leaves that are None or empty in the file.'
    is_more = min(more, default=0) < 0 or any(
        mismatch.expected == NOTHING for mismatch in mismatches
    )
    if is_more:
        yield (
            'Pass unexpected="ignore" to ignore leaves that the template lacks, '
            "or select= to load fewer leaves."
        )
    for mismatch in mismatches:
        is_node = mismatch.expected.startswith("a subtree")
        is_other = mismatch.expected == "None" or (
            deeper is None
            and mismatch.found != "None"
            and not _SHAPE.fullmatch(mismatch.expected)
            and is_node != mismatch.found.startswith("a subtree")
            and mismatch.path != ROOT
        )
        if is_other and NOTHING not in (mismatch.expected, mismatch.found):
            yield f"Pass exclude={printable(mismatch.path)!r} to keep this part of the template."
            break


def _joined(mismatches: list[Mismatch]) -> str:
    """Returns a hint if the file has leaves whose names are whole paths, as of `flatten_dict`."""
    more = [it.path for it in mismatches if it.expected == NOTHING]
    for mismatch in mismatches:
        if mismatch.found != NOTHING or not mismatch.expected.startswith("a subtree"):
            continue
        for between in ("~1", "."):
            for path in more:
                if "/" not in path and path.startswith(f"{mismatch.path}{between}"):
                    return (
                        f"Pass mapping=lambda path: path.replace('/', {between!r}) if the names in "
                        f"the file are joined, as {printable(path)!r}."
                    )
    return ""


def _is_of_rules(path: str, names_of: Mapping[str, str] | None) -> bool:
    return names_of is not None and not any(
        path == new or f"{old}/".startswith(f"{path}/") for new, old in names_of.items()
    )


def about_beginnings(mismatches: list[Mismatch]) -> Iterator[str]:
    for (ours, theirs), hint in _BEGINNINGS.items():
        if any(
            mismatch.expected.startswith(ours) and mismatch.found.startswith(theirs)
            for mismatch in mismatches
        ):
            yield hint
    if any(it.expected.startswith(VALUES_OF) or it.found.startswith(NODE_OF) for it in mismatches):
        yield "Pass strict=False to restore them as separate nodes."


def about_axes(
    mismatches: list[Mismatch], names_of: Mapping[str, str] | None, *, has_function: bool
) -> Iterator[str]:
    names = names_of or {}
    rules, split, unclear = {}, {}, []
    for mismatch in mismatches:
        path, ours, theirs = mismatch.path, _sizes(mismatch.expected), _sizes(mismatch.found)
        if ours is None or theirs is None or ours == theirs:
            continue
        axes = None if sorted(ours) == sorted(theirs) else _split(theirs, ours)
        if names_of is not None and path not in names:  # a rule has given the axes
            if axes is not None:
                yield f"Split or join the axes that the rule of {printable(path)} gives: {axes!r}."
            continue
        if sorted(ours) != sorted(theirs):
            if axes is not None:
                split[path] = f"{path!r}: ({names.get(path, path)!r}, {axes!r})"
            continue
        if len({*ours}) < len(ours) or len(ours) > len(_AXES):
            unclear.append(path)  # several orders have these shapes
        else:
            axes = " ".join(_AXES[: len(ours)])
            turned = " ".join(_AXES[theirs.index(size)] for size in ours)
            rules[path] = f"{path!r}: ({names.get(path, path)!r}, '{axes} -> {turned}')"
    if rules:
        shown = shortened(rules.values(), len(rules))
        yield f"{_mapped(shown, names_of, has_function)} if these axes are swapped."
    if split:
        shown = shortened(split.values(), len(split))
        yield f"{_mapped(shown, names_of, has_function)} if these axes are split or joined."
    if unclear and not rules:
        yield (
            f"The axes of {printable(unclear[0])} have another order, which the shapes do not "
            "tell: pass it as axes in mapping=, as in {path: (path, 'a b -> b a')}."
        )


def _mapped(rules: str, names_of: Mapping[str, str] | None, has_function: bool) -> str:
    if names_of is None:
        return f"Pass mapping={{{rules}}}"
    if has_function:
        return f"Let the function of mapping= return the values of {{{rules}}} for these paths"
    return f"Add {{{rules}}} to mapping="


_AXES = "abcdefghijklmnopqrstuvwxyz"


def _split(theirs: list[int], ours: list[int]) -> str | None:
    if min([*theirs, *ours], default=0) < 2 or max(len(theirs), len(ours)) > len(_AXES):
        return None
    letters = iter(_AXES)
    sides: tuple[list[str], list[str]] = ([], [])
    rest = [*theirs], [*ours]
    while all(rest):
        parts = [rest[0].pop(0)], [rest[1].pop(0)]
        while (left := math.prod(parts[0])) != (right := math.prod(parts[1])):
            smaller = int(left > right)
            if not rest[smaller]:
                return None
            parts[smaller].append(rest[smaller].pop(0))
        if min(map(len, parts)) > 1:
            return None
        axes = [*itertools.islice(letters, max(map(len, parts)))]
        for side, each in enumerate(parts):
            sides[side].append(" ".join(axes) if len(each) == len(axes) else f"({' '.join(axes)})")
    return None if any(rest) else " -> ".join(map(" ".join, sides))


def is_reshaped(mismatch: Mismatch) -> bool:
    ours, theirs = _sizes(mismatch.expected), _sizes(mismatch.found)
    is_same = ours is None or theirs is None or sorted(ours) == sorted(theirs)
    return not is_same and math.prod(ours or ()) == math.prod(theirs or ())


def _sizes(text: str) -> list[int] | None:
    match = _ARRAY.fullmatch(text)
    return match and [int(size) for size in match[1][1:-1].split(",") if size]


def _about_copies(shapes: list[tuple[list[int], list[int]]]) -> Iterator[str]:
    for at, hint in (
        (0, "jax.tree.map(lambda x: x[0], template) as the template, and replicate the result."),
        (1, "strict=False, and take [0] of each array of the result, as by jax.tree.map."),
    ):
        both = [(sides[at], sides[1 - at]) for sides in shapes]
        counts = {more[0] if more and more[1:] == other else -1 for more, other in both}
        if len(both) > 1 and len(counts) == 1 and -1 not in counts:
            yield (
                f"{('The template', 'The file')[at]} has one more dimension of {counts.pop()} in "
                f"each array, as flax's replicate or jax.vmap makes: pass {hint}"
            )


def about_leaves(mismatches: list[Mismatch]) -> Iterator[str]:
    shapes = [
        (_sizes(mismatch.expected), _sizes(mismatch.found), is_reshaped(mismatch))
        for mismatch in mismatches
    ]
    known = ((it[0], it[1]) for it in shapes if it[0] is not None and it[1] is not None)
    yield from _about_copies([sides for sides in known if sides[0] != sides[1]])
    for ours, theirs, is_same_size in shapes:
        if is_same_size and _split(theirs or [], ours or []) is None:
            yield (
                f"Some arrays have their elements in another shape, such as {theirs} in place of "
                f"{ours}: load them without a template, and call reshape on them."
            )
            break
    if any(
        None not in (ours, theirs) and ours != theirs and not same for ours, theirs, same in shapes
    ):
        yield 'Pass mismatched="target" to keep arrays whose shape differs in the file.'
    numbers = [
        (_CASTABLE.fullmatch(mismatch.expected), _CASTABLE.fullmatch(mismatch.found))
        for mismatch in mismatches
    ]
    same = [
        ours for ours, theirs in numbers if ours and theirs and ours.groups() == theirs.groups()
    ]
    kinds = [
        kind
        for group, kind in ((1, "floats"), (3, "integers"))
        if any(match[group] for match in same)
    ]
    if kinds:
        yield f"Pass cast=True to cast {' and '.join(kinds)} to the dtypes of the template."
    if any(ours and theirs and ours[1] != theirs[1] for ours, theirs in numbers):
        yield (
            "Floats and integers are not cast to each other: pass strict=False, and call astype on "
            "the result."
        )
