"""Classifies leaves, and brings their bytes to host memory.

The native walk handles builtin Python types and NumPy arrays, and calls `classify` once per call
for any other type.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import enum
import fractions
import io
import operator
import pathlib
import types
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._core import Class
from treepack._src.arrays.deferred import Deferred
from treepack._src.interop import flax, msgpack, shardings
from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import is_marker
from treepack._src.interop.modules import has_array_protocol, instance_of
from treepack._src.leaves import prng as _prng
from treepack._src.options import Static
from treepack._src.pytree.handlers import handlers_of
from treepack._src.pytree.kinds import describes_array, is_function, kind_of

if TYPE_CHECKING:
    import jax


_BUILTIN = (str, bytes, int, float, bool, complex, type(None))


def classify(value: Any, static: Static | None = None) -> Class:
    """Depends only on the type of the value, and on `static`."""
    if isinstance(value, (np.ndarray, np.generic)):
        return Class.NODE if kind_of(value) is not None else _class_of_array(value)
    if msgpack.is_ext(value):
        return Class.EXT
    if msgpack.is_timestamp(value):
        return Class.TIMESTAMP
    if isinstance(value, Deferred):
        return Class.DEFERRED
    if flax.is_graph_definition(value):
        return Class.CODE  # it has no leaves, so a save would store nothing
    if kind_of(value) is not None:
        return Class.NODE
    if _prng.is_key(value):
        return Class.PRNG_KEY
    if _jax.is_array(value) and not _jax.is_tracer(value):
        return Class.JAX_ARRAY
    if isinstance(value, (bytearray, memoryview)):
        return Class.BYTES_LIKE
    if is_function(value) and not isinstance(value, (type, enum.Enum)):
        return Class.CODE
    if is_marker(value):  # or another object of its type, which raises later
        return Class.CODE
    if static == "skip" and not (_jax.is_tracer(value) or holds_data(value)):
        return Class.CODE
    return Class.UNSUPPORTED


def is_abstract_array(value: object) -> bool:
    return _jax.is_abstract(value) and handlers_of(type(value)) is None


def _class_of_array(value: np.ndarray | np.generic) -> Class:
    if isinstance(value, np.generic):
        return Class.SCALAR
    if isinstance(value, np.ma.MaskedArray):
        return Class.MASKED
    return Class.UNSUPPORTED if _has_attributes(value) else Class.ARRAY


def _has_attributes(value: Any) -> bool:
    owners = (ty for ty in type(value).__mro__ if "__array_finalize__" in vars(ty))
    return isinstance(value, np.ndarray) and next(owners).__module__.split(".")[0] != "numpy"


def explain(value: Any) -> str:
    ty = type(value)
    name = ty.__qualname__ if ty.__module__ == "builtins" else f"{ty.__module__}.{ty.__qualname__}"
    text = f"cannot serialize a leaf of type {name}"
    hint = remedy(value)
    if hint is not None:
        return f"{text}: {hint}"
    if isinstance(value, _BUILTIN):
        builtin = next(builtin for builtin in _BUILTIN if isinstance(value, builtin))
        return f"{text}: convert it to {builtin.__name__}"
    plain = as_plain(value)
    if plain is not None:
        return f"{text}: save {plain[0]}"
    return (
        f"{text}; if it is a container, register its type with jax.tree_util.register_pytree_node, "
        'or leave it out with treepack.save(static="skip")'
    )


def as_plain(value: Any) -> tuple[str, Callable[[Any], Any]] | None:
    if _is_namespace(value) or isinstance(value, types.SimpleNamespace):
        return "vars(...) of it", vars
    methods = ("model_dump", "to_dict")  # pydantic's models, ConfigDict
    method = next((name for name in methods if callable(getattr(type(value), name, None))), None)
    return None if method is None else (f"its .{method}()", operator.methodcaller(method))


_is_namespace = instance_of("argparse", "Namespace")

_AS_TEXT = (decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PurePath)


def _has_property(value: Any) -> bool:
    return isinstance(getattr(type(value), "value", None), property)


def holds_data(value: Any) -> bool:
    return isinstance(value, _BUILTIN) or has_array_protocol(value) or _is_buffer(value)


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except (TypeError, BufferError, ValueError):  # a closed `mmap`
        return False
    return True


def _is_key(value: Any) -> bool:
    return type(value).__module__.startswith("jax") and type(value).__name__ in _KEYS


# The entries of key paths.
_KEYS = ("DictKey", "SequenceKey", "GetAttrKey", "FlattenedIndexKey")

# Remedies for values that are common among leaves: types or a predicate, and a text. The first one
# that fits counts.
_REMEDIES: list[tuple[Any, str]] = [
    (_jax.is_tracer, "this is a traced value; serialize outside of jit, grad and vmap"),
    (
        instance_of("numpy.ma", "MaskedArray"),
        "the mask would be lost; save data and mask as two arrays",
    ),
    (
        _has_attributes,
        "its attributes would be lost: save numpy.asarray(...) of it, and them beside it",
    ),
    (enum.Enum, "save its .value"),
    (flax.is_linen_module, "a linen Module is configuration; save its variables"),
    (flax.is_graph_definition, "it defines a model; save nnx.state(model)"),
    ((np.dtype, type), "a dtype or class is not a leaf; save its name"),
    (datetime.date, "save its .isoformat()"),
    (datetime.timedelta, "save its .total_seconds()"),
    (_AS_TEXT, "save str(...) of it, or pass it as metadata="),
    ((set, frozenset), "a set has no order: save sorted(...) of it, or pass it as metadata="),
    ((range, collections.deque), "save list(...) of it, or pass it as metadata="),
    (_is_key, "a key is not a leaf: save the tree, or iter(...) of the pairs of a path and a leaf"),
    (
        collections.abc.ItemsView,
        "save dict(...) of it, or iter(...) of it, whose pairs are paths and leaves",
    ),
    (io.IOBase, "save its content, such as read() returns"),
    (instance_of("jax.sharding", "Mesh"), "save dict(mesh.shape)"),
    (instance_of("jax", "Device"), "save str(...) of it"),
    (
        (collections.abc.MappingView, collections.abc.Iterator),
        'save list(...) of it, or leave it out with treepack.save(static="skip"); an iterator of '
        "pairs of a path and a leaf is saved by treepack.save(path, iterator)",
    ),
    (instance_of("numpy.random", "Generator"), "save its .bit_generator.state, a dict"),
    (instance_of("numpy.random", "BitGenerator"), "save its .state, a dict"),
    (instance_of("numpy.random", "RandomState"), "save its .get_state()"),
    (instance_of("treepack", "Tree"), "save its .load()"),
    (
        instance_of("jax.sharding", "PartitionSpec"),
        "save tuple(...) of it, or pass it as metadata=",
    ),
    (
        _jax.is_abstract,
        "it has no values, like results of jax.eval_shape: save the arrays that the function "
        "itself returns, or pass the tree as metadata=",
    ),
    (describes_array, "it describes an array and has no values: save the array"),
    (_has_property, "its data are in .value, where JAX does not see them: save the .value"),
    (
        _jax.is_treedef,
        "a PyTreeDef is structure: save the tree itself, or a function of jax.export by "
        "treepack.save_exported",
    ),
    (instance_of("jax.sharding", "Sharding"), "pass it as metadata="),
    (
        lambda value: hasattr(type(value), "__array__"),
        "save numpy.asarray(...) of it, or jax.numpy.from_dlpack(...) if an accelerator has it",
    ),
    (has_array_protocol, "save numpy.from_dlpack(...) or jax.numpy.from_dlpack(...) of it"),
    (memoryview, "its format and shape would be lost: save numpy.asarray(...) of it"),
    (_is_buffer, "save numpy.asarray(...) of it"),
    (
        lambda value: callable(value) and hasattr(value, "__name__"),
        "functions are code; keep it in a static field, or a jax.tree_util.Partial, and call "
        "treepack.register_function on it",
    ),
]


def remedy(value: Any) -> str | None:
    for fits, text in _REMEDIES:
        if isinstance(value, fits) if isinstance(fits, (type, tuple)) else fits(value):
            return text
    return None


# JAX stores these packed, and NumPy does not, so they cannot be viewed.
_PACKED = {"int2", "uint2", "int4", "uint4", "float4_e2m1fn"}


def abstract_array(
    shape: tuple[int, ...], dtype: np.dtype, weak_type: bool = False, sharding: Any = None
) -> jax.ShapeDtypeStruct:
    struct = _jax.needed("arrays that are not read are jax.ShapeDtypeStructs").ShapeDtypeStruct
    sharding = shardings.fitting(sharding, shape)
    return struct(shape, dtype, weak_type=weak_type, sharding=sharding)  # type: ignore[no-any-return]


class Transfer:
    @staticmethod
    def view(array: jax.Array) -> np.ndarray | None:
        devices = array.devices()
        if len(devices) != 1 or next(iter(devices)).platform != "cpu":
            return None
        if array.dtype.name in _PACKED:
            with _jax.explicit():
                return _unshared(array).__array__()
        # np.asarray would first try protocols that not all dtypes have.
        return array.__array__()

    def __init__(self, array: jax.Array):
        if array.is_fully_replicated:
            self.shards = [([0] * array.ndim, _unshared(array.addressable_data(0)))]
            return
        self.shards = [
            ([index.start or 0 for index in shard.index], _unshared(shard.data))
            for shard in array.addressable_shards
            if shard.replica_id == 0
        ]

    def start(self) -> Transfer:
        with _jax.explicit():
            for _, shard in self.shards:
                if shard.platform() != "cpu":
                    shard.copy_to_host_async()
        return self

    def finish(self) -> list[tuple[list[int], np.ndarray]]:
        with _jax.explicit():
            return [(start, np.asarray(shard, order="C")) for start, shard in self.shards]


def _unshared(array: jax.Array) -> jax.Array:
    """Returns a new object for an array on one device, with the same memory.

    JAX caches the host copy of an array in its object, which is dropped with this one.
    """
    import jax

    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
