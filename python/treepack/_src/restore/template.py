"""Restores a state into a template; one error lists all mismatches.

    encoded bytes ──▶ _core.restore_encoded  ┐
    file, selection ▶ _core.restore_selected ├──▶ _restore_child
    state dict ─────▶ _core.restore_state    ┘

One walk of the core covers the template and any source. It restores plain containers and matching
leaves; `_restore_child` restores the rest from state dicts. Both share a `Restore` (`session.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Deferred
from treepack._src.interop import flax
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.prng import Key, is_key_like
from treepack._src.leaves.signature import signature
from treepack._src.options import Buffer, Reading, Strict, check, restoring
from treepack._src.printable import printable
from treepack._src.pytree.containers import NodeKind
from treepack._src.pytree.handlers import foreign_path, overridden
from treepack._src.pytree.kinds import Pruned, kind_of
from treepack._src.pytree.state_dict import leaves_of, map_leaves, to_state_dict
from treepack._src.registry.lookups import Lookups
from treepack._src.restore.compare import NOTHING, described, difference, is_opaque
from treepack._src.restore.hints import level_of
from treepack._src.restore.record import split, take
from treepack._src.restore.report import Convert, Coverage, state_leaves
from treepack._src.restore.session import Restore, as_part, current
from treepack._src.restore.ties import joined
from treepack._src.restore.versions import Older, RecordAt, mark_older
from treepack.errors import MismatchError

T = TypeVar("T")


@overload
def from_state_dict(target: None, state: Any, name: str = ".", *, strict: Strict = True) -> Any: ...


@overload
def from_state_dict(target: T, state: Any, name: str = ".", *, strict: Strict = True) -> T: ...


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: Strict = True) -> Any:
    """Restores a tree from a state dict, in the structure of a target.

    Args:
      target: The template. The result has its containers. Only shape and dtype of its leaves
        matter, so `jax.ShapeDtypeStruct`s suffice. `None` as the target, and classes in it other
        than dtypes, accept any state unchanged.
      state: The result of `to_state_dict` or `msgpack_restore`.
      name: The name of this part of the tree, for error messages.
      strict: `True` compares the shape and dtype of each leaf with the template, where both have
        them; for JAX arrays, 64 bits count as 32 unless `jax_enable_x64` is set. `False` compares
        nothing, like flax. `"exact"` requires equal dtypes, and reports keys of the state that a
        dict of the template lacks, and containers of other types where types were saved.

    Returns:
      The restored tree, with the leaves of the state.

    Raises:
      MismatchError: If containers or leaves do not match. Its `mismatches` lists all differences.

    Examples:
      >>> import numpy as np, treepack
      >>> template = {"w": np.zeros(2), "n": (0, 0)}
      >>> state = {"w": np.ones(2), "n": {"0": 1, "1": 2}}
      >>> treepack.serialization.from_state_dict(template, state)
      {'w': array([1., 1.]), 'n': (1, 2)}
    """
    restore = current()
    if restore is None:
        return restore_tree(target, state, name, restoring(strict))
    check("strict", strict)
    if target is None:
        return state
    # Called by a handler during a restore: continues that restore.
    with restore.part(restore.strict if strict is True else strict):
        outer, restore.flax_message = restore.flax_message, None
        restored = restore.whole(target, state, as_part(name))
        if restore.flax_message is not None:
            # Raised immediately, since the handler may catch it.
            raise restore.error()
        restore.flax_message = outer
        return restored


def restore_encoded(
    target: Any,
    data: Buffer | core.Content,
    reading: Reading,
    *,
    convert: Convert | None = None,
) -> Any:
    if target is None:
        return take(core.restore(data, reading.copy, reading.threads))[0]
    if reading.strict != "exact" and not overridden():
        restored = core.restore_encoded(
            data,
            target,
            _ROOT,
            _begin,
            reading,
            convert,
            reading.strict,
            convert is not None and reading.everywhere,
            not reading.is_drop_in,
            reading.copy,
            reading.threads,
        )
        if restored is not None:
            tree, restore, record = restored
            if restore is None:  # most data match the target
                return tree
            with restore:
                return joined(target, tree, restore, record, ())
    state = core.restore(data, reading.copy, reading.threads)
    return restore_tree(target, state, _paths.ROOT, reading, convert=convert)


_ROOT = as_part(_paths.ROOT)


def _begin(reading: Reading, convert: Convert | None) -> Restore:
    restore = Restore(reading, _restore_child, convert=convert)
    restore.collected = None if convert is None else []
    return restore.__enter__()


def needs_state(target: Any, record: bytes | None, reading: Reading) -> bool:
    if reading.strict == "exact" or overridden() or core.RECORD_KEY in _keys(target):
        return True
    return record is not None and core.has_older_types(record)


def restore_part(
    target: Any,
    place: tuple[core.Catalog, int, Sequence[str]],
    reading: Reading,
    *,
    marks: core.Marks | None,
    given: Callable[[], dict[int, Any] | None],
    fetching: Callable[[], AbstractContextManager[Any]],
    read: Callable[[], tuple[Any, RecordAt | None]],
    convert: Convert | None,
    partial: Coverage,
) -> Any:
    """Restores leaves of a file into a target, without a state where possible.

    `place` has the leaves, the number of the part, and its path. `given` returns values that are
    not read from the file, `fetching` a context in which leaves are fetched, `read` the state with
    its record. `given` is `None` if a state is needed.
    """
    catalog, value, above = place
    record = catalog.record
    values = None if needs_state(target, record, reading) else given()
    if values is None:
        state, at = read()
        options: Any = {"convert": convert, "partial": partial, "above": above}
        return restore_tree(target, state, _paths.ROOT, reading, record=at, **options)
    with (
        fetching(),
        Restore(reading, _restore_child, convert=convert, partial=partial) as restore,
    ):
        with restore.conversion():
            tree = core.restore_selected(
                catalog,
                value,
                target,
                _ROOT,
                restore,
                marks=marks,
                given=values,
                copy=reading.copy,
                threads=reading.threads,
            )
        return joined(target, tree, restore, record, _paths.parts(catalog.path_of(value, 0)))


def restore_tree(
    target: Any,
    state: Any,
    name: str,
    reading: Reading,
    *,
    convert: Convert | None = None,
    partial: Coverage | None = None,
    record: RecordAt | None = None,
    above: Sequence[str] = (),
) -> Any:
    """Restores a tree like `from_state_dict`, outside of any current restore.

    Once everything matches, `convert` takes all leaves found for arrays of the template, and
    returns their replacements. `record` is for a state without it, with the position of the tree in
    it, whose path is `above`. `partial` are the leaves to restore; `None` for all.
    """
    if target is None or core.RECORD_KEY not in _keys(target):
        state, saved_record = split(state)
        record = (saved_record, []) if type(saved_record) is bytes else record
    if target is None:
        return state
    name = as_part(name)
    is_exact = reading.strict == "exact"
    kinds = None
    if record is not None and (is_exact or core.has_older_types(record[0])):
        # Until the end, `state` holds the dicts whose ids have kinds; handlers change only copies.
        state, kinds = mark_older(state, record)
    restore = Restore(
        reading,
        _restore_child,
        in_core=not overridden(),  # the core lacks the handlers of built-in types
        partial=partial,
        kinds=kinds if is_exact else None,
        convert=convert,
    )
    with restore:
        tree = restore.whole(target, state, name)
        return joined(target, tree, restore, None if record is None else record[0], above)


def _keys(target: Any) -> Any:
    return target.keys() if isinstance(target, Mapping) else ()


def _restore_child(target: Any, state: Any, name: str, restore: Restore) -> Any:
    kind = kind_of(target)
    restore.has_shareable |= flax.is_graph_node_type(type(target))
    if type(state) is Older:
        keeps = restore.partial is not None and restore.partial.keeps_missing
        current = state.upgrade(target, restore.path_of(name), keeps_missing=keeps)
        return restore.below(target, current, name)
    if state is ABSENT:
        if restore.partial is None or restore.partial.keeps(target, restore.path_of(name)):
            return restore.keep(target, name)
        state = {}  # records each leaf as missing
    if kind is None:
        return _restore_leaf(target, state, name, restore)
    if state is None and restore.strict != "exact" and not any(leaves_of(target, ())):
        return restore.keep(target, name)  # Orbax stores nodes without leaves as `None`
    if kind.final:
        return _restore_by_handler(kind, target, state, name, restore)
    if not isinstance(state, Mapping):
        is_shape = isinstance(target, tuple) and all(isinstance(size, int) for size in target)
        children = kind.children(target)
        if len(children) == 1 and not is_shape and state is not None:  # such as a variable of nnx
            path = restore.path_of(name)
            restore.deeper = restore.deeper or (path, _paths.Trail(path, *children))
        is_shape = is_shape and target == getattr(state, "shape", None)
        what = tuple(target) if is_shape else type(target).__name__
        restore.note(name, f"a subtree ({what})", described(state))
        cure = "" if kind_of(state) is None else ": pass to_state_dict(state), since it is a tree"
        restore.use_flax_message(
            f"The target has a subtree ({type(target).__name__}) where the state has a leaf "
            f"({type(state).__name__}) at path {'/'.join([*restore.path, name])}{cure}",
        )
        return target
    restore.path.append(name)
    try:
        return _restore_node(kind, target, state, restore)
    finally:
        restore.path.pop()


def _restore_node(kind: NodeKind, target: Any, state: Any, restore: Restore) -> Any:
    if restore.kinds is not None:
        _compare_kinds(target, restore.kinds.get(id(state)), restore)
    if kind.upgrade is not None:
        state = kind.upgrade(state)
    children, make = kind.opened(target)
    missing = [name for name in children if name not in state]
    more = [] if len(state) == len(children) - len(missing) else state.keys() - children.keys()
    is_mapping = kind.more_allowed or (
        isinstance(target, Mapping)
        and not dataclasses.is_dataclass(target)  # a dataclass has fixed names
    )
    if restore.partial is not None:
        state, missing, more = _partial_names(children, state, missing, restore)
    elif missing and restore.strict != "exact" and not restore.reading.is_drop_in:
        # Nodes without leaves, such as the graph's bookkeeping in nnx modules, lack nothing.
        empty = [name for name in missing if _is_empty(children[name])]
        state = {**state, **dict.fromkeys(empty, ABSENT)}
        missing = [name for name in missing if name not in empty]
    if missing or (more and not restore.takes_more(is_mapping)):
        if missing or not is_mapping:
            restore.use_flax_message(
                kind.flax_message(target, state, list(children), "/".join(restore.path))
            )
        _note_names(target, state, children, missing, restore)
    restored = {
        name: restore.below(child, state[name], name)
        for name, child in children.items()
        if name in state
    }
    # Code of the type might fail for mismatched children; the mismatch is an error anyway.
    return target if restore.mismatches or restore.collects else make(restored)


def _is_empty(child: Any) -> bool:
    return kind_of(child) is not None and not any(leaves_of(child, ()))


def _compare_kinds(target: Any, saved: str | None, restore: Restore) -> None:
    ty = type(target)
    expected = _PLAIN_KINDS.get(ty)
    if ty is dict and not all(type(key) is str for key in target):
        expected = "keys"
    if saved is None or saved == expected:
        return
    expected = expected or Lookups.other_name(ty, saved)
    if expected is None:
        return
    names = {"keys": "dict with keys other than strings"}
    expected, saved = names.get(expected, expected), names.get(saved, saved)
    restore.note_here(f"a container of the type {expected}", saved)
    restore.use_flax_message(
        f"The target has a {expected} where a {saved} was saved, at path {'/'.join(restore.path)}"
    )


_PLAIN_KINDS: dict[type, str] = {dict: "dict", list: "list", tuple: "tuple"}


def _partial_names(
    children: dict[str, Any], state: Any, missing: list[str], restore: Restore
) -> tuple[Any, list[str], list[str]]:
    partial = restore.partial
    assert partial is not None
    kept = {name for name in missing if partial.keeps(children[name], restore.path_of(name))}
    more = {
        name: state[name]
        for name in state
        if name not in children and partial.unexpected(state[name], restore.path_of(str(name)))
    }
    marked = {name: state[name] for name in state if name in children or name in more}
    marked |= dict.fromkeys(kept, ABSENT)
    return marked, [name for name in missing if name not in kept], [*more]


def _counted(elements: Sized) -> str:
    return "1 element" if len(elements) == 1 else f"{len(elements)} elements"


def _note_names(
    target: Any, state: Any, children: dict[str, Any], missing: list[str], restore: Restore
) -> None:
    more = [name for name in state if name not in children]
    is_sequence = isinstance(target, (list, tuple)) and not hasattr(target, "_fields")
    are_paths = is_sequence and children and all(isinstance(it, str) for it in children.values())
    level = None
    if not restore.reading.is_drop_in and all(state.get(it, ABSENT) is ABSENT for it in children):
        level = level_of(target, children, state, restore.here())
    if is_sequence and len(children) != len(state) and (are_paths or level is None):
        are_numbered = all(str(name).isdecimal() for name in state)
        found = _counted(state) if are_numbered else described(state)
        restore.note_here(_counted(children) + " (str)" * bool(are_paths), found)
        return
    restore.level = restore.level or level
    for name in missing:
        child = children[name]
        container = child.container if isinstance(child, Pruned) else child
        has_keys = isinstance(container, Mapping) and len(container) > 0
        subtree = f"a subtree ({type(container).__name__})"
        expected = described(container) if has_keys or kind_of(child) is None else subtree
        is_leaf = kind_of(container) is None
        few = len(more) <= _paths.MOST_NAMES
        similar = _similar(name, more, state, restore, is_leaf=is_leaf) if few else ""
        similar = similar if level is None or _paths.parts(similar)[-1:] == [name] else ""
        restore.note(name, expected, NOTHING, similar)
    for name in more if not restore.takes_more(False) else ():
        restore.note(str(name), NOTHING, described(state[name]))


def _similar(name: str, more: list[Any], state: Any, restore: Restore, *, is_leaf: bool) -> str:
    """Finds an unexpected child with the same name below it, or a similar one.

    For a leaf, a leaf: also the only one in a container with a similar name.
    """
    first, *below = name.replace(".", "/").split("/")
    if below and isinstance(value := state.get(first), Mapping):
        path = restore.path_of(first)
        for key in below:
            value = value.get(key) if isinstance(value, Mapping) else None
            path = _paths.Trail(path, key)
        if value is not None:
            return str(path)
    above = [it for it in more if isinstance(state[it], Mapping) and name in state[it]]
    if len(above) == 1:
        return str(_paths.Trail(restore.path_of(str(above[0])), name))
    children = {str(it): state[it] for it in more}
    near = _paths.closest(name, [*children])
    if not near:
        return ""
    path, value = restore.path_of(near[0]), children[near[0]]
    while is_leaf and isinstance(value, Mapping) and len(value) == 1:
        [(key, value)] = value.items()
        path = _paths.Trail(path, str(key))
    return "" if is_leaf and isinstance(value, Mapping) else str(path)


def _restore_by_handler(
    kind: NodeKind, target: Any, state: Any, name: str, restore: Restore
) -> Any:
    """Restores a state by a registered handler.

    It compares nothing, so first the state is compared with the handler's for the template. That
    may fail, since templates may be incomplete.
    """
    strict = restore.strict
    is_compared = strict or restore.converts or restore.partial is not None
    expected = _expected_of(kind, target) if is_compared else ()
    for template in expected:
        # A copy of the dicts, since the handler may change them.
        state = _compared(template, state, name, restore)
        strict = False  # everything has been compared
    if restore.collects:
        return target
    given = map_leaves(_on_host, state)
    restore.path.append(name)
    try:
        with (
            restore.part(strict),
            restore.without_conversion() if expected else contextlib.nullcontext(),
            foreign_path(restore.path),
        ):
            return kind.make(target, given)
    except MismatchError as error:
        for mismatch in error.mismatches:
            restore.mismatches.setdefault(mismatch.path, mismatch)
        restore.use_flax_message(str(error))
        return target
    except Exception as error:  # a handler may raise any error
        where = printable("/".join(restore.path))
        error.add_note(f"while {type(target).__name__} was restored at {where}")
        raise
    finally:
        restore.path.pop()


def _expected_of(kind: NodeKind, target: Any) -> tuple[Any, ...]:
    try:
        children = kind.children(target)
    except Exception:  # a handler may raise any error
        return ()
    try:
        return (map_leaves(to_state_dict, children),)
    except Exception:  # likewise for a handler inside
        return (children,)


def _on_host(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, Deferred) else leaf


def _restore_leaf(target: Any, state: Any, name: str, restore: Restore) -> Any:
    # With a selection, it may not be loaded at all.
    if restore.partial is not None and type(state) is dict and state:
        state = map_leaves(lambda leaf: leaf, state, ABSENT)
    if state is ABSENT:
        return restore.keep(target, name)
    if type(state) is dict and not state and is_opaque(target):
        return target  # it was left out: code, or an object that cannot be stored
    if isinstance(state, Mapping) and is_key_like(target):
        key = Key.of_state(state)
        wrapped = None if key is None else key.wrapped()
        state = state if wrapped is None else wrapped
    texts = difference(target, state, restore.strict, cast=restore.reading.casts)
    if texts is not None:
        restore.note(name, *texts)
        if isinstance(state, Mapping) and len(state) == 1 and target is not None:
            path = restore.path_of(name)
            restore.deeper = restore.deeper or (_paths.Trail(path, str(*state)), path)
    if restore.partial is not None:
        restore.partial.loaded(restore.path_of(name))
    return restore.leaf(target, state, name)


def _compared(template: Any, state: Any, name: str, restore: Restore) -> Any:
    if _are_lists(template, state):
        return _converted(template, state, name, restore) if restore.converts else state
    if not isinstance(template, Mapping) or not isinstance(state, Mapping):
        # A container in the state of the template is not compared as a leaf.
        if state is ABSENT:
            return restore.keep(template, name)
        if kind_of(template) is not None and isinstance(state, Mapping):
            gaps = restore.partial is not None and any(
                leaf is ABSENT for _, leaf in state_leaves(state, _paths.Trail())
            )
            return restore.keep(template, name) if gaps else state
        return _restore_leaf(template, state, name, restore)
    # If it was read by paths, all keys are strings.
    keys = {str(key): key for key in template if type(key) is not str}
    state = {keys.get(key, key): value for key, value in state.items()} if keys else state
    restore.path.append(name)
    try:
        more = [key for key in state if key not in template]
        if restore.partial is not None:
            unexpected = restore.partial.unexpected
            more = [key for key in more if unexpected(state[key], restore.path_of(str(key)))]
        if not restore.takes_more(True):
            for key in more:
                restore.note(str(key), NOTHING, described(state[key]))
        elif restore.takes_more(False):
            state = {key: value for key, value in state.items() if key in template}
        if restore.strict == "exact":
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


def _are_lists(template: Any, state: Any) -> bool:
    types = type(template), type(state)
    return {*types} <= {list, tuple} and len(template) == len(state)


def _converted(template: Any, state: Any, name: str, restore: Restore) -> Any:
    """Other leaves are not a mismatch: only the handler knows the elements of lists."""
    restore.path.append(name)
    try:
        if _are_lists(template, state):
            pairs = enumerate(zip(template, state, strict=True))
            return type(state)(
                _converted(expected, item, str(index), restore) for index, (expected, item) in pairs
            )
        if isinstance(template, Mapping) and type(state) is dict:
            return {
                key: _converted(template[key], value, str(key), restore)
                if key in template
                else value
                for key, value in state.items()
            }
    finally:
        restore.path.pop()
    fits = difference(template, state, restore.strict, cast=restore.reading.casts) is None
    if not fits or signature(template) is None or signature(state) is None:
        return state
    return restore.leaf(template, state, name)
