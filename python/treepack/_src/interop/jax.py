"""Supports JAX without importing it early: the import takes half a second and 100 MB."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treepack._src.interop.modules import found_at, imported, instance_of

if TYPE_CHECKING:
    import jax


def needed(reason: str, instead: str = "") -> Any:
    """Imports jax, or raises an ImportError that begins with the reason, and names the remedy."""
    try:
        import jax
    except ImportError as error:
        remedy = f"{instead}, or pip install jax" if instead else "pip install jax"
        raise ImportError(f"{reason}, but jax is not installed: {remedy}") from error
    return jax


@contextlib.contextmanager
def explicit() -> Iterator[None]:
    """Makes transfers explicit for `jax.transfer_guard`; guards against explicit ones stay."""
    import jax

    with contextlib.ExitStack() as relaxed:
        for way in ("host_to_device", "device_to_device", "device_to_host"):
            if getattr(jax.config, f"jax_transfer_guard_{way}") in ("disallow", "log"):
                relaxed.enter_context(getattr(jax, f"transfer_guard_{way}")("allow"))
        yield


def on_host(array: Any) -> np.ndarray:
    with explicit() if is_array(array) else contextlib.nullcontext():
        return np.asarray(array)


def fetched(value: Any) -> Any:
    return on_host(value) if is_array(value) and not is_extended(value.dtype) else value


def as_jax(array: np.ndarray) -> Any:
    """The result may share memory; NumPy arrays stay without JAX, or if it lacks their dtype."""
    try:
        import jax

        placed = jax.device_put(array)  # `asarray` compiles a copy for each shape
    except (ImportError, TypeError):
        return array
    return placed if placed.dtype == array.dtype else array


def weak(array: jax.Array) -> jax.Array:
    """Returns an array with a weak dtype and the same memory.

    Only dtypes of Python's numbers can be weak. Others, and arrays of several processes, stay
    unchanged.
    """
    from jax.dtypes import canonicalize_dtype

    # Dtypes of typed keys have no kind.
    number = {"i": int, "f": float, "c": complex}.get(getattr(array.dtype, "kind", ""))
    if number is None or canonicalize_dtype(number) != array.dtype:
        return array
    if not array.is_fully_addressable:
        return array
    # JAX's functions that make weak arrays compile for each shape, of which files may have many.
    untyped: Any = array
    is_whole = len(array.sharding.device_set) == 1
    shards = [untyped] if is_whole else [shard.data for shard in array.addressable_shards]
    try:
        weak_aval = untyped.aval.update(weak_type=True)
        weak_array: jax.Array = type(untyped)(
            weak_aval, array.sharding, shards, committed=array.committed
        )
    except (AttributeError, TypeError):  # another version of JAX
        return array
    return weak_array


_starts: ContextVar[bool] = ContextVar("starts", default=True)


@contextlib.contextmanager
def without_start() -> Iterator[None]:
    """Lets `devices` return none while JAX's backends, which reserve devices, have not started."""
    token = _starts.set(False)
    try:
        yield
    finally:
        _starts.reset(token)


def devices() -> Sequence[Any]:
    import jax

    bridge: Any = imported("jax._src.xla_bridge")  # has no public name
    is_started = getattr(bridge, "backends_are_initialized", lambda: False)
    return jax.devices() if _starts.get() or is_started() else []


is_array = instance_of("jax", "Array")
is_struct = instance_of("jax", "ShapeDtypeStruct")
is_tracer = instance_of("jax.core", "Tracer")


def is_abstract(value: object) -> bool:
    jax = imported("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_traceable(value: object) -> bool:
    if not is_struct(value):
        return False
    from jax import numpy as jnp

    dtype: Any = getattr(value, "dtype", None)
    kinds = (jnp.number, jnp.bool_)
    return is_extended(dtype) or any(jnp.issubdtype(dtype, kind) for kind in kinds)


def is_extended(dtype: object) -> bool:
    """Returns whether only JAX has a dtype, such as the dtype of PRNG keys."""
    jax = None if isinstance(dtype, np.dtype) else imported("jax")
    return jax is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def processes() -> tuple[int, int, Any]:
    jax = imported("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0, 1, None
    return jax.process_index(), jax.process_count(), client()


def client() -> Any:
    distributed = imported("jax._src.distributed")
    return None if distributed is None else distributed.global_state.client


def wait_for_all(name: str) -> int:
    """Waits until all processes call this with the same name; returns the index of this one."""
    index, count, _ = processes()
    if count > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices(name)
    return index


def has_preemption_service() -> bool:
    distributed = imported("jax._src.distributed")
    state = None if distributed is None else distributed.global_state
    return getattr(state, "preemption_sync_manager", None) is not None


def is_preempted_at(step: int) -> bool:
    from jax.experimental.multihost_utils import reached_preemption_sync_point

    return bool(reached_preemption_sync_point(step))


def is_node(value: object) -> bool:
    jax = imported("jax")
    return jax is not None and value is not None and not jax.tree_util.all_leaves([value])


def is_partial_type(ty: object) -> bool:
    jax = imported("jax")
    return jax is not None and ty is jax.tree_util.Partial


is_partial = instance_of("jax.tree_util", "Partial")


def partial_function(partial: Any) -> Any:
    function = partial.func
    return function.fun if type(function).__name__ == "_HashableCallableShim" else function


def is_of_nn(value: object) -> bool:
    name = getattr(value, "__name__", None) if callable(value) else None
    return isinstance(name, str) and found_at("jax.nn", name) is value


is_treedef = instance_of("jax.tree_util", "PyTreeDef")


def is_node_type(ty: type) -> bool:
    if imported("jax") is None:
        return False
    from jax.tree_util import default_registry

    try:
        _treedef_maker()(default_registry, (ty, None), [])
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


class _Retired:
    """The class of objects that were made to find out how their type works."""


# Retired objects of types with another layout.
_kept: list[Any] = []


def retire(probe: Any) -> None:
    """Prevents the `__del__` of a type from running on an object without `__init__`."""
    if not hasattr(type(probe), "__del__"):
        return
    try:
        object.__setattr__(probe, "__class__", _Retired)
    except TypeError:
        _kept.append(probe)


def is_namedtuple(ty: type) -> bool:
    return issubclass(ty, tuple) and hasattr(ty, "_fields")


def is_plain_namedtuple(ty: Any) -> bool:
    if not is_namedtuple(ty):
        return False
    if imported("jax") is None:
        return True
    from jax.tree_util import tree_flatten

    fields = [object() for _ in ty._fields]
    node: Any = tuple.__new__(ty, fields)
    try:
        parts, treedef = tree_flatten(node, is_leaf=lambda part: part is not node)
    except Exception:  # a flatten function may raise anything for unexpected values
        return False
    finally:
        retire(node)
    same = len(parts) == len(fields) and all(map(operator.is_, parts, fields))
    definition: Any = treedef
    return same and definition.node_data()[1] is None


def children(node: Any) -> Sequence[Any]:
    from jax.tree_util import default_registry

    parts, _ = default_registry.flatten_one_level(node)
    return tuple(parts)


def treedef_with(ty: type, auxdata: Any, children: Sequence[Any]) -> jax.tree_util.PyTreeDef:
    from jax.tree_util import default_registry

    treedef: jax.tree_util.PyTreeDef = _treedef_maker()(default_registry, (ty, auxdata), children)
    return treedef


def unflatten(ty: type, auxdata: Any, children: Sequence[Any]) -> Any:
    from jax.tree_util import tree_structure

    if hasattr(ty, "_fields") and not is_plain_namedtuple(ty):
        return registration(ty).unflatten(auxdata, children)
    leaves = [tree_structure(0)] * len(children)
    return treedef_with(ty, auxdata, leaves).unflatten(children)


class Registration(NamedTuple):
    ty: type
    flatten: Any
    unflatten: Any

    @classmethod
    def of(cls, ty: type) -> Registration | None:
        try:
            from jax._src.tree_util import _registry

            entry = _registry[ty]
            return cls(ty, entry.to_iter, entry.from_iter)
        except (ImportError, AttributeError, KeyError):
            return None

    @property
    def is_by_dataclass(self) -> bool:
        if getattr(self.flatten, "__module__", None) != "jax._src.tree_util":
            return False
        # The underscore is new in JAX 0.12.
        maker, _, name = getattr(self.flatten, "__qualname__", "").partition(".")
        return maker.lstrip("_") == "register_dataclass" and name == "<locals>.flatten_func"

    def argument_order(self, fields: Sequence[str]) -> list[int] | None:
        """Returns the order in which the type takes fields, children first, by position.

        `None` unless JAX rebuilds nodes by calling the type with its fields as keywords, and a call
        with positional arguments is equivalent.
        """
        untyped: Any = self.ty
        if (
            not self.is_by_dataclass
            or untyped.__new__ is not object.__new__
            or type(untyped).__call__ is not type.__call__
            or type(untyped.__init__) is not FunctionType
        ):
            return None
        code = untyped.__init__.__code__
        names = code.co_varnames[1 : code.co_argcount][: len(fields)]
        if code.co_posonlyargcount > 1 or sorted(names) != sorted(fields):
            return None
        return [fields.index(name) for name in names]

    def make(self, auxdata: Any, children: Sequence[Any]) -> Any:
        return self.unflatten(auxdata, tuple(children))


def registration(ty: type) -> Registration:
    """For nodes without a treedef: namedtuples, and nodes whose number of children varies."""
    registered = Registration.of(ty)
    if registered is None:
        raise TypeError(
            f"cannot rebuild a {ty.__qualname__}: this version of JAX does not expose its "
            "unflatten function. Upgrade jax, or pass a template as target"
        )
    return registered


@functools.cache
def _treedef_maker() -> Any:
    from jax.tree_util import PyTreeDef

    # Older versions of JAX use another name.
    name = "from_node_data_and_children"
    return getattr(PyTreeDef, name, None) or getattr(PyTreeDef, f"make_{name}")
