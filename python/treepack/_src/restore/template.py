"""A template and a state become a tree; what does not fit is told all at once.

    restore_tree ──▶ Restore.below ──▶ _core.rebuild ──▶ restore_child
                                       plain containers,   everything else,
                                       equal leaves        and all that is wrong

The core goes through what is plain by itself, and asks here about the rest. A `Restore`
(`session.py`) is where it all meets: the path, and the mismatches so far.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.interop import jax as _jax
from treepack._src.options import Strict, check_choice
from treepack._src.printable import printable
from treepack._src.pytree import handlers
from treepack._src.pytree import prng as _prng
from treepack._src.pytree.containers import Difference, NodeKind
from treepack._src.pytree.kinds import Pruned, kind_of
from treepack._src.pytree.state_dict import finished, state_leaves
from treepack._src.registry.names import default_name
from treepack._src.registry.nodes import is_named
from treepack._src.registry.types import name_of
from treepack._src.restore.compare import described, difference, signature
from treepack._src.restore.record import split
from treepack._src.restore.report import ABSENT, Convert, Partial
from treepack._src.restore.session import NOTHING, Restore, RestoreChild, as_part, current
from treepack._src.restore.versions import Older, Record, marked
from treepack._src.storage.deferred import Deferred
from treepack.errors import MismatchError, TreepackError

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")


@overload
def from_state_dict(target: None, state: Any, name: str = ".", *, strict: Strict = True) -> Any: ...


@overload
def from_state_dict(target: T, state: Any, name: str = ".", *, strict: Strict = True) -> T: ...


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: Strict = True) -> Any:
    """Returns a tree like the target, with leaves from a state dict.

    Args:
      target: The template. Its containers are what the result is made of; of its
        leaves only shape and dtype matter, so `jax.ShapeDtypeStruct`s will do.
        `None` as the target, and classes in it, take any state as it is.
      state: What `to_state_dict` or `msgpack_restore` returned.
      name: The name of this part of the tree, for error messages.
      strict: `True` compares the shape and dtype of each leaf with the template's, where both
        have them: against arrays of jax as JAX sees them, so that 64 bits count as 32 unless
        `jax_enable_x64` is set. `False` compares nothing, as flax. `"exact"` takes equal
        dtypes only, and reports keys of the state that a dict of the template lacks, and
        containers of other types where types were saved.

    Returns:
      The new tree. Its leaves are those of the state.

    Raises:
      MismatchError: A ValueError. If containers do not match, or leaves do not. All
        differences are in its `mismatches`.

    Example:
      >>> import numpy as np, treepack
      >>> template = {"w": np.zeros(2), "n": (0, 0)}
      >>> state = {"w": np.ones(2), "n": {"0": 1, "1": 2}}
      >>> treepack.serialization.from_state_dict(template, state)
      {'w': array([1., 1.]), 'n': (1, 2)}
    """
    restore = current()
    if restore is None:
        return restore_tree(target, state, name, strict)
    if target is None:
        return state
    # A handler calls in the midst of a restore, which it takes part in.
    with restore.part(restore.strict if strict is True else strict):
        outer, restore.sentence = restore.sentence, None
        restored = restore.whole(target, state, as_part(name))
        if restore.sentence is not None:
            # Raised at once, since the handler may know what to do.
            raise restore.error()
        restore.sentence = outer
        return restored


def restore_encoded(
    target: Any,
    data: Buffer | core.Content,
    strict: Strict,
    *,
    copy: bool | None,
    threads: int | None,
    cast: bool = False,
    convert: Convert | None = None,
    in_words: bool = True,
) -> Any:
    """Returns what `restore_tree` makes of encoded bytes; `copy` and `threads` are for these."""
    if target is not None and strict != "exact" and not handlers.overridden():
        check_choice("strict", strict)
        # Most data are just what the target has.
        converts = convert is not None
        restored = core.restore_like(data, target, strict, converts, copy, threads)
        if restored is not None:
            return restored
        if converts:
            selected = _restore_converted(
                target, data, strict, copy=copy, threads=threads, cast=cast, convert=convert
            )
            if selected is not None:
                return selected[0]
    state = core.restore(data, copy, threads)
    return restore_tree(target, state, ".", strict, cast=cast, convert=convert, in_words=in_words)


def _restore_converted(
    target: Any, data: Buffer | core.Content, strict: Strict, **options: Any
) -> tuple[Any] | None:
    """Restores all of encoded bytes as `restore_selected` does, if they can be read."""
    content = data if isinstance(data, core.Content) else core.Content.lent(data)
    try:
        catalog = core.Catalog.open(content, salvage=False)
    except TreepackError:  # which is told when all is read
        return None
    return restore_selected(target, catalog, 0, strict, **options)


def restore_selected(
    target: Any,
    catalog: core.Catalog,
    value: int,
    strict: Strict,
    *,
    marks: core.Marks | None = None,
    selector: core.Selector | None = None,
    partial: Partial | None = None,
    copy: bool | None,
    threads: int | None,
    cast: bool,
    convert: Convert | None,
) -> tuple[Any] | None:
    """Returns a target with leaves of a file, in a tuple, if its containers plainly fit.

    Otherwise `restore_tree` does the same, and tells what is wrong. See `_core.restore_selected`
    for `catalog`, `value`, `marks` and `selector`, and `restore_tree` for the others.
    """
    check_choice("strict", strict)
    if strict == "exact" or handlers.overridden() or core.TRAILER_KEY in _keys(target):
        return None
    if catalog.trailer is not None and core.has_older_types(catalog.trailer):
        return None

    def settle(leaves: list[tuple[str, Any, Any]]) -> list[Any] | None:
        for _, expected, found in leaves:
            if difference(expected, found, strict, cast=cast) is not None:
                return None
        if convert is None:
            return [found for _, _, found in leaves]
        converted = [leaf for leaf in leaves if signature(leaf[1]) is not None]
        made = iter(convert(converted) if converted else ())
        return [
            found if signature(expected) is None else next(made) for _, expected, found in leaves
        ]

    restored = core.restore_selected(
        catalog,
        value,
        target,
        settle,
        marks=marks,
        selector=selector,
        strict=bool(strict),
        converts=convert is not None,
        keeps_missing=partial is not None and partial.keeps_missing,
        refuses_more=partial is not None and partial.refuses_more,
        note=partial is not None and partial.notes,
        copy=copy,
        threads=threads,
    )
    if restored is None:
        return None
    tree, (loaded, kept) = restored
    if partial is not None:
        for path in loaded:
            partial.loaded(path)
        for path, part in kept:
            partial.kept(part, path)
    return (tree,)


def restore_tree(
    target: Any,
    state: Any,
    name: str,
    strict: Strict,
    *,
    cast: bool = False,
    convert: Convert | None = None,
    in_words: bool = True,
    partial: Partial | None = None,
    record: Record | None = None,
) -> Any:
    """Returns a tree as `from_state_dict` does, apart from any restore under way.

    Args:
      target: The template.
      state: Its state; the record of its structure may be in it.
      name: The name of the whole.
      strict: See `from_state_dict`.
      cast: Whether floats may have another dtype than the template's.
      convert: Takes all leaves that were found where the template has arrays, and returns what
        takes their places. It is called once everything fits.
      in_words: Whether an error says first what flax says.
      partial: What stays as the target has it, if not all is restored.
      record: The record of the structure if it is not in the state, and where in it that begins:
        see `_core.assemble`.
    """
    if target is None or core.TRAILER_KEY not in _keys(target):
        state, trailer = split(state)
        record = (trailer, []) if type(trailer) is bytes else record
    if target is None:
        check_choice("strict", strict)
        return state
    name = as_part(name)
    kinds = None
    if record is not None:
        if strict == "exact":
            kinds = core.other_kinds(target, state, record[0], at=record[1])
        state = marked(state, record)

    child = restore_child if kinds is not None else _child_restorer()
    with Restore(
        strict,
        child,
        cast=cast,
        in_words=in_words,
        partial=partial,
        kinds=kinds,
        convert=convert,
    ) as restore:
        return restore.whole(target, state, name)


def _keys(target: Any) -> Any:
    return target.keys() if isinstance(target, Mapping) else ()


def _child_restorer() -> RestoreChild:
    """Returns what restores children: the native function, unless it knows too little."""
    return restore_child if handlers.overridden() else core.rebuild


def is_abstract_array(target: object) -> bool:
    """Tells whether a leaf of a template is an array of jax, or stands for one."""
    return _jax.is_abstract(target) and handlers.find(type(target)) is None


def restore_child(target: Any, state: Any, name: str, restore: Restore) -> Any:
    """Returns a part of the template with its state: any container or leaf."""
    kind = kind_of(target)
    if type(state) is Older:
        with restore.without_kinds():
            today = state.today(target, restore.path_of(name))
            return restore.below(target, today, name)
    if state is ABSENT:
        if restore.partial is None or restore.partial.keeps(target, restore.path_of(name)):
            return restore.keep(target, name)
        state = {}  # what is missing is told leaf by leaf
    if kind is None:
        return _restore_leaf(target, state, name, restore)
    if kind.final:
        return _restore_by_handler(kind, target, state, name, restore)
    if not isinstance(state, Mapping):
        restore.note(name, f"a subtree ({type(target).__name__})", described(state))
        _say(
            restore,
            f"The target has a subtree ({type(target).__name__}) where the state has a leaf "
            f"({type(state).__name__}) at path {'/'.join([*restore.path, name])}",
        )
        return target
    restore.path.append(name)
    try:
        return _restore_node(kind, target, state, restore)
    finally:
        restore.path.pop()


def _restore_node(kind: NodeKind, target: Any, state: Any, restore: Restore) -> Any:
    if restore.kinds is not None:
        _compare_kinds(target, restore.kinds, restore)
    if kind.upgrade is not None:
        state = kind.upgrade(state)
    children, make = kind.opened(target)
    missing = [name for name in children if name not in state]
    more = [] if len(state) == len(children) - len(missing) else state.keys() - children.keys()
    more_allowed = kind.more_allowed and restore.strict != "exact"
    partial = restore.partial
    if partial is not None:
        state, missing, more = _partial_names(children, state, missing, restore)
        more_allowed = more_allowed and not partial.refuses_more
    if missing or (more and not more_allowed):
        _note_names(kind, target, state, children, missing, restore)
    found = {
        name: restore.below(child, state[name], name)
        for name, child in children.items()
        if name in state
    }
    # Code of the type might not like children that do not fit; an error follows anyway.
    return target if restore.mismatches or restore.collects else make(found)


def _compare_kinds(target: Any, kinds: dict[str, str], restore: Restore) -> None:
    """Notes it if another kind of container was saved in the place of one."""
    ty = type(target)
    expected = _PLAIN_KINDS.get(ty)
    if ty is dict and not all(type(key) is str for key in target):
        expected = "keys"
    found = kinds.get(_paths.text(restore.path[1:]), "dict")
    if found == expected or (expected is None and is_named(ty, found)):
        return
    names = {"keys": "dict with keys that are no strings"}
    expected = names.get(expected, expected) if expected else name_of(ty) or default_name(ty)
    found = names.get(found, found)
    name = restore.path.pop()
    restore.note(name, f"a container of the type {expected}", found)
    restore.path.append(name)
    _say(
        restore,
        f"The target has a {expected} where a {found} was saved, at path {'/'.join(restore.path)}",
    )


_PLAIN_KINDS: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple"}


def _partial_names(
    children: dict[str, Any], state: Any, missing: list[str], restore: Restore
) -> tuple[Any, list[str], list[str]]:
    """Returns the state with marks for what stays as it is, and what is wrong about its names."""
    partial = restore.partial
    assert partial is not None
    kept = {name for name in missing if partial.keeps(children[name], restore.path_of(name))}
    more = [
        name
        for name in state
        if name not in children and partial.unexpected(state[name], restore.path_of(str(name)))
    ]
    known = {name: state[name] for name in state if name in children or name in more}
    known |= dict.fromkeys(kept, ABSENT)
    return known, [name for name in missing if name not in kept], more


def _note_names(
    kind: NodeKind,
    target: Any,
    state: Any,
    children: dict[str, Any],
    missing: list[str],
    restore: Restore,
) -> None:
    """Notes which children are missing, and which nobody expects."""
    more = [name for name in state if name not in children]
    if missing or not kind.more_allowed:
        found = Difference(target, state, list(children), "/".join(restore.path))
        _say(restore, kind.in_words(found))
    if isinstance(target, (list, tuple)) and not hasattr(target, "_fields"):
        counts = f"{len(children)} elements", f"{len(state)} elements"
        if counts[0] != counts[1]:
            name = restore.path.pop()
            restore.note(name, *counts)
            restore.path.append(name)
            return
    names = [str(name) for name in more]
    for name in missing:
        child = children[name]
        container = child.container if isinstance(child, Pruned) else child
        subtree = f"a subtree ({type(container).__name__})"
        expected = described(child) if kind_of(child) is None else subtree
        near = difflib.get_close_matches(name, names, n=1) if len(names) <= _MOST_NAMES else []
        restore.note(name, expected, NOTHING, restore.path_of(near[0]) if near else "")
    for name in more:
        restore.note(str(name), NOTHING, described(state[name]))


# Among more names than these, similar ones take long to find.
_MOST_NAMES = 1000


def _say(restore: Restore, sentence: str) -> None:
    restore.sentence = restore.sentence or sentence


def _restore_by_handler(
    kind: NodeKind, target: Any, state: Any, name: str, restore: Restore
) -> Any:
    """Returns what a registered handler makes of a state.

    The handler compares nothing, so the state is compared with that of the template
    before, if the handler can tell it: templates are not always complete.
    """
    strict = restore.strict
    known = strict or restore.converts or restore.partial is not None
    expected = _expected_of(kind, target, name, restore) if known else ()
    for template in expected:
        # The handler may take it apart, and it may be needed once more.
        state = _compared(template, state, name, restore)
        strict = False  # all of it has been compared
    if restore.collects:
        return target
    given = state if restore.convert is None else _on_host(state)
    restore.path.append(name)
    try:
        with (
            restore.part(strict),
            restore.as_found() if expected else contextlib.nullcontext(),
            handlers.foreign_path(restore.path),
        ):
            return kind.make(target, given)
    except MismatchError as error:
        for mismatch in error.mismatches:
            restore.mismatches.setdefault(mismatch.path, mismatch)
        _say(restore, str(error))
        return target
    except Exception as error:  # whatever a handler raises
        where = printable("/".join(restore.path))
        error.add_note(f"while {type(target).__name__} was restored at {where}")
        raise
    finally:
        restore.path.pop()


def _expected_of(kind: NodeKind, target: Any, name: str, restore: Restore) -> tuple[Any, ...]:
    """Returns the state of a template that a handler makes; nothing if it makes none.

    It is asked once, even if the restore comes by two times.
    """
    path = restore.path_of(name)
    if path not in restore.handled:
        expected = _told(kind, target)
        if not restore.converts:
            return expected
        restore.handled[path] = expected
    return restore.handled[path]


def _told(kind: NodeKind, target: Any) -> tuple[Any, ...]:
    try:
        children = kind.children(target)
    except Exception:  # whatever a handler raises
        return ()
    try:
        return (finished(children),)
    except Exception:  # likewise, of what is inside
        return (children,)


def _on_host(state: Any) -> Any:
    """Returns the state of a handler with arrays that are not read yet as arrays of NumPy."""
    if type(state) is dict:
        return {key: _on_host(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_on_host, state))
    return np.asarray(state) if isinstance(state, Deferred) else state


def _restore_leaf(target: Any, state: Any, name: str, restore: Restore) -> Any:
    if state is ABSENT:
        return restore.keep(target, name)
    if isinstance(state, Mapping) and _prng.MARKER in state and _prng.is_key_like(target):
        key = _prng.wrap(state[_prng.MARKER], state.get("data"))
        state = state if key is None else key
    found = difference(target, state, restore.strict, cast=restore.cast)
    if found is not None:
        restore.note(name, *found)
    if restore.partial is not None:
        restore.partial.loaded(restore.path_of(name))
    if restore.converts and signature(target) is not None:
        return restore.leaf(target, state, name)
    return state


def _compared(template: Any, state: Any, name: str, restore: Restore) -> Any:
    """Compares what a handler will restore, since it will not do so itself.

    Returns:
      The state, with other leaves where they are converted.
    """
    if _are_lists(template, state):
        return _converted(template, state, name, restore) if restore.converts else state
    if not isinstance(template, Mapping) or not isinstance(state, Mapping):
        # What is a container in the template's state has no leaf in its place.
        if state is ABSENT:
            return restore.keep(template, name)
        if kind_of(template) is not None and isinstance(state, Mapping):
            gaps = restore.partial is not None and any(
                leaf is ABSENT for _, leaf in state_leaves(state, "")
            )
            return restore.keep(template, name) if gaps else state
        return _restore_leaf(template, state, name, restore)
    if restore.partial is not None:
        state = _with_keys_of(template, state)
    restore.path.append(name)
    try:
        if restore.strict == "exact":
            for key in state.keys() - template.keys():
                restore.note(str(key), NOTHING, described(state[key]))
            for key in template.keys() - state.keys():
                restore.note(str(key), described(template[key]), NOTHING)
        compared = {
            key: _compared(template[key], value, str(key), restore) if key in template else value
            for key, value in state.items()
            if key in template or value is not ABSENT
        }
        if restore.partial is not None:
            for key in template.keys() - state.keys():
                if restore.partial.keeps(template[key], restore.path_of(str(key))):
                    compared[key] = restore.keep(template[key], str(key))
        return compared
    finally:
        restore.path.pop()


def _with_keys_of(template: Mapping[Any, Any], state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns a state that was read by paths with the keys of the template that are no strings."""
    keys = {str(key): key for key in template if type(key) is not str}
    return {keys.get(key, key): value for key, value in state.items()} if keys else state


def _are_lists(template: Any, state: Any) -> bool:
    """Tells whether the state of a handler has a list of as many elements as the template's."""
    types = type(template), type(state)
    return {*types} <= {list, tuple} and len(template) == len(state)


def _converted(template: Any, state: Any, name: str, restore: Restore) -> Any:
    """Returns a list of a handler's state with other leaves, where it has what the template has.

    What lists have in them is for the handler alone, so nothing is wrong with any other.
    """
    restore.path.append(name)
    try:
        if _are_lists(template, state):
            pairs = enumerate(zip(template, state, strict=True))
            return type(state)(
                _converted(expected, found, str(index), restore)
                for index, (expected, found) in pairs
            )
        if isinstance(template, Mapping) and type(state) is dict:
            return {
                key: _converted(template[key], found, str(key), restore)
                if key in template
                else found
                for key, found in state.items()
            }
    finally:
        restore.path.pop()
    fits = difference(template, state, restore.strict, cast=restore.cast) is None
    if not fits or signature(template) is None or signature(state) is None:
        return state
    return restore.leaf(template, state, name)
