"""Looks up what a load needs and the file lacks: node types, and values for placeholders."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from treepack._src import paths as _paths
from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import library_of_type
from treepack._src.interop.modules import imported
from treepack._src.printable import shortened
from treepack._src.pytree.containers import NodeKind
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.ties import tied
from treepack._src.registry.code import is_code
from treepack._src.registry.definitions import is_definition, made_of, part_of
from treepack._src.registry.fields import Fields
from treepack._src.registry.jax_nodes import holds_code
from treepack._src.registry.library_types import library_name, library_of, remedy
from treepack._src.registry.names import default_name
from treepack._src.registry.nodes import BY_JAX, by_name, other_name, own, type_of
from treepack._src.registry.placeholders import Code, Placeholder
from treepack._src.registry.static import known_type
from treepack._src.registry.types import TYPES, NodeType, evolved
from treepack.errors import DecodeError, PlaceholderError, UnregisteredTypeError

# The maximum number of placeholders in a message; more are only counted.
_MOST_SHOWN = 30

# The maximum length of a text of a file in a message.
_MOST_LETTERS = 200


class Lookups:
    """The lookups of one load.

    Attributes:
      static: Values for placeholders by path, or a tree like the saved tree; see `load`.
      values: The values, by the parts of their paths.
      longest: The number of parts of the longest path.
    """

    holds_code = staticmethod(holds_code)
    other_name = staticmethod(other_name)
    tied = staticmethod(tied)

    def __init__(
        self,
        types: list[tuple[str, tuple[list[str], list[str]] | None, int]],
        static: Any,
        unknown_as_dict: bool,
        is_part: bool,
    ):
        """`types` has the name, fields and version of each type in the record.

        With `unknown_as_dict`, dicts replace nodes that cannot be made. A part of a tree may lack
        some types.
        """
        self.static = static
        self.values: dict[tuple[str, ...], Any] = {}
        if isinstance(static, Mapping):
            items = [(key, static[key]) for key in static if isinstance(key, (str, tuple))]
            self.values = {tuple(_paths.parts(key)): value for key, value in items}
        self.longest = max(map(len, self.values), default=0)
        self._types = types
        self._unknown_as_dict = unknown_as_dict
        self._is_part = is_part
        self._types_in_static: dict[str, list[NodeType]] | None = None
        self._checks: dict[type, Callable[[Any], None]] = {}
        self._children: dict[int, tuple[Any, dict[str, Any]]] = {}
        # The number of placeholders without a value; of the first ones, descriptions and
        # suggestions for `static=`; hints; the names of types that need only a registration.
        self._unfilled = 0
        self._lines: list[str] = []
        self._suggestions: list[str] = []
        self._hints: dict[str, None] = {}
        self._unregistered: dict[str, None] = {}

    @staticmethod
    def upgrades(name: str, version: int) -> bool:
        entry = TYPES.by_name(name)
        return entry is not None and entry.upgrade is not None and version < entry.version

    def node_type(self, number: int) -> NodeType | None:
        """Finds a type of the record, and converts it to read nodes with the saved fields.

        `None` if dicts replace its nodes. An UnregisteredTypeError lists all types, unless only a
        part is loaded.
        """
        name, fields, version = self._types[number]
        try:
            entry = by_name(name) or self._type_in_static(name)
            if entry is None:
                raise _unknown({name: fields is not None})
            self._checks[entry.ty] = entry.check
            is_same = entry.fields == fields and entry.version == version
            if is_same and (entry.checked or not (entry.split or TYPES.by_name(name) is entry)):
                return entry
            return evolved(entry, None if fields is None else Fields(*fields), version)
        except UnregisteredTypeError:
            if self._unknown_as_dict:
                return None
            types = [] if self._is_part else self._types
            unknown = {name: fields is not None for name, fields, _ in types if not by_name(name)}
            if len(unknown) > 1:
                raise _unknown(unknown) from None
            raise

    def _type_in_static(self, name: str) -> NodeType | None:
        if self._types_in_static is None:
            self._types_in_static = {}
            _collect_types(self.static, self._types_in_static, {})
        entries = self._types_in_static.get(name, [])
        if len(entries) > 1:
            raise UnregisteredTypeError(
                f"{len(entries)} types in static= have the name {name!r}: pass the tree as target",
                name,
            )
        return entries[0] if entries else None

    def below(self, node: Any, parts: Sequence[str]) -> tuple[Any] | None:
        for part in parts:
            _, children = self._children.get(id(node)) or (None, None)
            if children is None:
                kind = kind_of(node)
                children = kind.children(node) if kind is not None else {}
                self._children[id(node)] = node, children
            if part not in children:
                return None
            node = children[part]
        return (node,)

    def reaches(self, tree: Any, parts: Sequence[str]) -> bool:
        for count in range(len(parts), -1, -1):
            below = self.below(tree, parts[:count])
            if below is None:
                continue
            (node,) = below
            kind = kind_of(node)
            described = None if kind is None else type_of(type(node), kind)
            static = {} if described is None else described.static_of(node)
            return count == len(parts) or parts[count] in static or "" in static
        return False

    def fill(self, static: Any, path: list[str], ty: type) -> tuple[Any, bool]:
        """Replaces placeholders in static data of a node; returns the data, and whether all were.

        Raises a PlaceholderError if some remain, and a dict replaces the node; an
        UnregisteredTypeError if a library would receive objects that the file has combined.
        """
        filling = _Filling(self, path, ty)
        filled = filling.fill(static)
        if filling.missing and self._unknown_as_dict:
            raise PlaceholderError(
                "static data were not saved: pass a target or static= that supplies them"
            )
        for placeholder, inside in filling.missing:
            self._describe(placeholder, _paths.text([*path, *inside]), ty)
        if not filling.missing and library_of_type(ty) is not None:
            self._checks[ty](filled)
        return filled, not filling.missing

    def _describe(self, placeholder: Placeholder, place: str, ty: type) -> None:
        self._unfilled += 1
        description, path = _brief(placeholder.description), _brief(place)
        if placeholder.name is None:
            reason = f"were not saved ({description})"
        else:
            reason = f"are of the unregistered type {_brief(placeholder.name)!r}"
            self._unregistered[_brief(placeholder.name)] = None
        if self._unfilled > _MOST_SHOWN:
            return
        name = description if placeholder.field is None else default_name(ty)
        expected = f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
        value = "..." if placeholder.field or ty is Code else f"{expected} like it"
        self._lines.append(f"at {path}: the static data {reason}")
        self._suggestions.append(f"{path!r}: {value}")
        if issubclass(ty, functools.partial) and not placeholder.description.startswith("method"):
            self._hints["; treepack.register_function, called before the save, keeps it"] = None
        paths = [_paths.text(parts) for parts in self.values]
        if place in paths:
            self._hints[f"; the value in static= for {path!r} is not {expected}"] = None
            return
        for near in difflib.get_close_matches(place, paths, n=1):
            self._hints[f"; is {near!r} in static= meant for {path}?"] = None

    def placeholder_error(self) -> PlaceholderError:
        lines = _joined(self._lines, "; ", self._unfilled)
        values = _joined(self._suggestions, ", ", self._unfilled)
        hints = "".join(itertools.islice(self._hints, _MOST_SHOWN))
        return PlaceholderError(
            f"{lines}: {_remedies(self._unregistered)}pass a target that has them, or static= a "
            f'tree that has them, or static={{{values}}}, or containers="plain" to get '
            f"dicts{hints}"
        )


def _collect_types(
    tree: Any, types: dict[str, list[NodeType]], seen: dict[type, NodeKind | None]
) -> None:
    ty = type(tree)
    if ty not in seen:
        kind = seen[ty] = kind_of(tree)
        if kind is not None and ty not in BY_JAX and own(ty) is None:
            entry = type_of(ty, kind)
            if entry is not None:
                is_registered = TYPES.name_of(ty) is not None
                name = library_name(ty) or default_name(ty) if is_registered else entry.name
                types.setdefault(name, []).append(entry)
    kind = seen[ty]
    if kind is None or kind.final:
        return
    for child in _jax.children(tree) if kind.sort == "pytree" else kind.children(tree).values():
        if type(child) not in seen or seen[type(child)] is not None:
            _collect_types(child, types, seen)


def _unknown(types: dict[str, bool]) -> UnregisteredTypeError:
    names = [*types]
    libraries = {name: library_of(name) for name in names}
    missing = {
        name: library
        for name, library in libraries.items()
        if library is not None and not imported(library)
    }
    remedies = [remedy(library) for library in sorted({*missing.values()})]
    own = [name for name in names if name not in missing]
    if own:
        which = "it under this name" if len(names) == 1 else "them under these names"
        kinds = {types[name] for name in own}
        verbs = ["register_dataclass", "register_namedtuple"] * (True in kinds)
        first, *others = verbs + ["register_node"] * (False in kinds)
        remedies.append(
            f"register {which}: @treepack.{first}(serialized_name={own[0]!r})"
            + (f", or {', '.join(others)}" if others else "")
            + " (aliases= takes the name before a move)"
        )
    way = 'pass a template as target, or unknown="dict" for dicts'
    named = " and ".join(remedies)
    text = f"{way}. Or {named}" if own else f"{named}, or {way}"
    quoted = shortened(map(repr, names), len(names))
    return UnregisteredTypeError(
        f"unregistered type{'s' if len(names) > 1 else ''} {quoted}: {text}", names[0]
    )


def _remedies(names: Collection[str]) -> str:
    libraries = {name: library_of(name) if ":" in name else None for name in names}
    remedies = [remedy(name) for name in dict.fromkeys(libraries.values()) if name is not None]
    own = [repr(name) for name, library in libraries.items() if library is None]
    if own:
        remedies.append(f"call treepack.register_auxdata on {_joined(own, ', ', len(own))}")
    return "".join(f"{remedy}, or " for remedy in remedies)


def _brief(text: str) -> str:
    half = _MOST_LETTERS // 2
    return text if len(text) <= _MOST_LETTERS else f"{text[:half]}…{text[-half:]}"


def _joined(parts: list[str], separator: str, count: int) -> str:
    more = f"{separator}and {count - _MOST_SHOWN} more" if count > _MOST_SHOWN else ""
    return separator.join(parts[:_MOST_SHOWN]) + more


class _Filling:
    def __init__(self, lookups: Lookups, parts: list[str], ty: type):
        self.lookups = lookups
        self.parts = parts
        self.ty = ty
        self.missing: list[tuple[Placeholder, list[str]]] = []
        # By the number of keys above a template: its node at the path, and that node's static data.
        self._templates: dict[int, tuple[Any, dict[str, Any]] | None] = {}

    def fill(self, value: Any) -> Any:
        if type(value) is Placeholder:
            inside = _paths.parts(value.field) if value.field else []
            parts = self.fill(value.parts)
            if value.name is not None and (rebuilt := known_type(value.name, value.parts, parts)):
                return rebuilt[0]
            match = self._by_path(value, inside)
            match = match or self._in_template(value, inside, self.lookups.static, -1)
            if match is not None:
                return _like(match[0], value.name, parts)
            self.missing.append((value, inside))
            return value
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(self.fill, tuple.__iter__(value)))
        if type(value) is list:
            return [self.fill(part) for part in value]
        if type(value) is dict:
            return {key: self.fill(part) for key, part in value.items()}
        return value

    def _by_path(self, placeholder: Placeholder, inside: list[str]) -> tuple[Any] | None:
        values, longest = self.lookups.values, self.lookups.longest
        whole = (*self.parts, *inside)
        for count in range(min(len(whole), longest), -1, -1) if values else ():
            if whole[:count] not in values:
                continue
            value = values[whole[:count]]
            if count > len(self.parts):
                match = _inside(value, inside[count - len(self.parts) :])
            else:
                match = self._in_template(placeholder, inside, value, count)
                if match is None and count == len(whole) and placeholder.field == "":
                    match = (value,)  # all static data of a node, or a leaf
            if match is not None:
                return match
        return None

    def _in_template(
        self, placeholder: Placeholder, inside: list[str], template: Any, count: int
    ) -> tuple[Any] | None:
        """`count` is the number of keys above the tree; -1 for all of `static`."""
        if count not in self._templates:
            self._templates[count] = self._node_in(template, max(count, 0))
        pair = self._templates[count]
        if pair is None:
            return None
        node, static = pair
        if self.ty is Code:
            return (node,) if kind_of(node) is None or is_code(node) else None
        if placeholder.field is None:
            return (node,) if default_name(type(node)) == placeholder.description else None
        # A subclass has the same fields, but may have other static data.
        if type(node) is not self.ty and not (inside and isinstance(node, self.ty)):
            return None
        if inside and inside[0] in static:
            return _inside(static[inside[0]], inside[1:])
        return _inside(static[""], inside) if "" in static else None

    def _node_in(self, template: Any, count: int) -> tuple[Any, dict[str, Any]] | None:
        below = self.lookups.below(template, self.parts[count:])
        if below is None or template is None:
            return None
        (node,) = below
        described = type_of(type(node), kind_of(node)) if isinstance(node, self.ty) else None
        return node, {} if described is None else described.static_of(node)


def _like(value: Any, name: str | None, parts: Any) -> Any:
    ty = type(value)
    if default_name(ty) != name or not is_definition(ty):
        return value
    try:
        return made_of(ty, parts)
    except Exception as error:  # another definition of the type may raise anything
        raise DecodeError(f"static data of type {name} cannot be restored: {error}") from error


def _inside(value: Any, parts: Sequence[str]) -> tuple[Any] | None:
    """Returns a part of static data in a 1-tuple; `None` if it is missing.

    The path comes from a file: it selects only what a save could have left out, never another
    attribute of an object of the program.
    """
    for part in parts:
        child = part_of(value, part)
        if child is None:
            return None
        (value,) = child
    return (value,)
