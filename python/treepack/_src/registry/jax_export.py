"""Registers types with `jax.export`, whose registrations can neither be queried nor undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from treepack._src.interop import jax as _jax
from treepack._src.registry.names import default_name


class _Exported(NamedTuple):
    ty: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None


# Changed only while `names.registering` is held; exports read it at any time.
_exported: dict[str, _Exported] = {}


def check_name(nodetype: type, name: str) -> None:
    """Raises a ValueError if `jax.export` would reject a name, too late to undo the rest."""
    if name in _exported:
        return
    types, names = _registries()
    if nodetype not in types and name in names:
        raise ValueError(
            f"cannot register {default_name(nodetype)} with the name {name!r}: jax.export has "
            "another type with that name"
        )


def register(
    nodetype: type,
    name: str,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None,
) -> None:
    try:
        from jax import export
    except ImportError:
        return  # without jax, nothing can be exported
    is_known = name in _exported
    _exported[name] = _Exported(nodetype, encode, decode, from_children)  # for other threads
    if is_known:
        # Perhaps a redefined class, as in a notebook cell. JAX cannot replace the registration.
        types, _ = _registries()
        types.setdefault(nodetype, (name, lambda auxdata: _exported[name].encode(auxdata)))
        return

    def build(auxdata: Any, children: Sequence[Any]) -> Any:
        current = _exported[name]
        if current.from_children is not None:
            return current.from_children(auxdata, children)
        return _jax.unflatten(current.ty, auxdata, children)

    try:
        export.register_pytree_node_serialization(
            nodetype,
            serialized_name=name,
            serialize_auxdata=lambda auxdata: _exported[name].encode(auxdata),
            deserialize_auxdata=lambda data: _exported[name].decode(data),
            from_children=build,  # type: ignore[arg-type]  # it is called by position
        )
    except BaseException as error:
        del _exported[name]
        if not isinstance(error, ValueError):
            raise
        # There is no query. An error about the type means that it is registered already.
        if f"registration for type `{nodetype}`" in str(error):
            return
        raise ValueError(
            f"cannot register {default_name(nodetype)} with the name {name!r}: {error}"
        ) from None


def _registries() -> tuple[dict[Any, Any], dict[Any, Any]]:
    try:
        from jax._src.export import _export as internals

        return internals.serialization_registry, internals.deserialization_registry
    except (ImportError, AttributeError):  # JAX will then raise for the unregistered type
        return {}, {}
