from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.options import Buffer, BytesReading, Reading
from treepack._src.placing.casting import cast_floats
from treepack._src.placing.placement import converter, device_leaves
from treepack._src.printable import printable, shortened, warn
from treepack._src.pytree.kinds import kind_of
from treepack._src.registry.code import check_is_tree
from treepack._src.registry.lookups import Lookups
from treepack._src.restore.record import assembled, take
from treepack._src.restore.template import restore_encoded
from treepack._src.storage.content import content_of
from treepack.errors import DecodeError


def restore_described(
    data: Buffer | core.Content,
    target: Any,
    reading: Reading,
    *,
    base: Any = None,
) -> Any:
    held = device_leaves(base, reading.unchanged) if isinstance(reading, BytesReading) else {}
    convert = converter(reading, may_change=not isinstance(data, (bytes, core.Content)), held=held)
    return _converted(data, target, reading, convert)


_Convert = Callable[[list[Any]], list[Any]]


def restore_message(data: bytes, target: Any, options: Mapping[str, Any]) -> Any:
    try:
        reading, convert = _prepared(**options)
    except TypeError:  # a value is not hashable, or of another type
        reading = BytesReading.of(options)
        convert = converter(reading)
    return _converted(content_of(data, reading, is_bytes=True), target, reading, convert)


@functools.lru_cache(maxsize=64, typed=True)  # to check them takes most of the time of a message
def _prepared(**options: Any) -> tuple[BytesReading, _Convert | None]:
    reading = BytesReading.of(options)
    return reading, converter(reading)


def _converted(
    data: Buffer | core.Content, target: Any, reading: Reading, convert: _Convert | None
) -> Any:
    reading.check(target)
    if target is not None:
        check_is_tree(target)
        restored = restore_encoded(target, data, reading, convert=convert)
        if is_empty(target):
            warn_of_empty(_catalog_of(data), 0)
        return restored
    if reading.dtype is None:  # casting requires a state
        restored = core.restore_recorded(
            data,
            reading.copy,
            reading.threads,
            convert=convert,
            everywhere=convert is not None and reading.everywhere,
            unknown_as_dict=reading.unknown == "dict",
            plain=reading.containers == "plain",
            static=reading.static,
        )
        if restored is not None:
            return restored[0] if reading.static is None else noticed(restored[0], reading)
    state, record = take(core.restore(data, reading.copy, reading.threads))
    if record is None:  # a damaged key is found here
        _catalog_of(data)
    elif type(record) is not bytes:
        raise DecodeError(f"{core.RECORD_KEY!r} is a {type(record).__name__}, not bytes")
    state = cast_floats(state, reading, lambda _: None)
    return noticed(assembled(state, record, reading, convert=convert), reading)


def _catalog_of(data: Buffer | core.Content) -> core.Catalog:
    content = data if isinstance(data, core.Content) else core.Content.lent(data)
    return core.Catalog.open(content, salvage=False)


def is_empty(target: Any, depth: int = 64) -> bool:
    """Whether it has only mappings, which ignore leaves of a file."""
    if type(target) is not dict and not isinstance(target, Mapping):
        return False
    for child in target.values():  # most first ones are arrays: no call, as for small messages
        # A deeper one may contain itself.
        if hasattr(child, "dtype") or depth == 0 or not is_empty(child, depth - 1):
            return False
    return True


def warn_of_empty(catalog: core.Catalog, value: int) -> None:
    if catalog.leaf_values(value):
        warn(
            "the target has no leaves, so nothing is loaded: pass a tree like the saved one, or "
            "leave the target out to load all"
        )


def noticed(tree: Any, reading: Reading) -> Any:
    if reading.static is not None and reading.containers == "saved":
        warn_of_unused(reading.static, tree)
    return tree


def warn_of_unused(static: Any, tree: Any) -> None:
    lookups = Lookups([], static, unknown_as_dict=False, is_part=False)
    ours, theirs = map(kind_of, (static, tree))
    if not isinstance(static, Mapping) and theirs is not None and static is not None:
        if ours is None or not (ours.children(static).keys() & theirs.children(tree).keys()):
            warn(
                f"static= is a {type(static).__name__}, unlike the tree: pass a dict by path, such "
                "as {'tx': optimizer}, or a tree like the saved one"
            )
        return
    unused = [_paths.text(parts) for parts in lookups.values if not lookups.reaches(tree, parts)]
    if unused:
        paths = shortened((printable(path) for path in unused), len(unused))
        warn(f"static= has values for {paths}, where the tree has nothing: correct or remove them")
