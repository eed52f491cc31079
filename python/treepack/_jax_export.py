"""Registering types with `jax.export`, which has no way to ask what it knows, nor to undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from treepack._auxdata import default_name
from treepack._nodes import unflatten


def register(
    nodetype: type,
    name: str,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None,
) -> None:
    """Registers a type with `jax.export`, unless somebody else has."""
    from jax import export

    known = _exported.get(name)
    if known is not None:
        _exported[name] = known._replace(current=nodetype, from_children=from_children)
        if known.ty is not nodetype:
            _export_again(nodetype, name, encode)
        return

    def build(auxdata: Any, children: Sequence[Any]) -> Any:
        current = _exported[name]
        if current.from_children is not None:
            return current.from_children(auxdata, children)
        return unflatten(current.current, auxdata, children)

    try:
        export.register_pytree_node_serialization(
            nodetype,
            serialized_name=name,
            serialize_auxdata=encode,
            deserialize_auxdata=decode,
            from_children=build,  # type: ignore[arg-type]  # it is called by position
        )
    except ValueError as error:
        # There is no way to ask. If it is about the type, somebody else has registered it.
        if f"registration for type `{nodetype}`" in str(error):
            return
        raise ValueError(f"{default_name(nodetype)} with the name {name!r}: {error}") from None
    _exported[name] = _Exported(nodetype, nodetype, from_children)


class _Exported(NamedTuple):
    """What `jax.export` was told by us: of which type, and which has its name now."""

    ty: type
    current: type
    from_children: Callable[[Any, Sequence[Any]], Any] | None


_exported: dict[str, _Exported] = {}


def _export_again(nodetype: type, name: str, encode: Callable[[Any], bytes]) -> None:
    """Lets a class that was defined again take the place of its older self.

    `jax.export` has no way to do that, and a cell of a notebook is run many times.
    """
    try:
        from jax._src.export import _export as internals

        internals.serialization_registry.setdefault(nodetype, (name, encode))
    except (ImportError, AttributeError):  # then JAX says that the type is not registered
        pass
