"""Trees that describe themselves: saved with their structure, loaded without a template."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from treepack import _core, serialization
from treepack._context import Strict
from treepack._state_dict import restore_tree, without_structure
from treepack.errors import DecodeError, TreepackError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def dumps(tree: Any, *, align: int = 16, metadata: Any = None, threads: int | None = None) -> bytes:
    """Returns a tree with its structure, encoded as msgpack.

    `loads` gives all of it back without a template: containers and the order of their keys,
    keys that are no strings, nodes of registered types with their static data, and leaves.
    The encoding is that of `to_bytes` with one more key, `__treepack__`, which flax ignores
    when it restores a dict template. Nodes are written as JAX sees them: handlers of
    `register_serialization_state` are not asked.

    Args:
      tree: Any tree of dicts, lists, tuples, registered nodes and leaves.
      align: See `to_bytes`.
      metadata: Anything to be kept with the tree, such as a step or a configuration: values
        of the plain types of Python, or of types that `register_auxdata` knows. See
        `read_metadata`.
      threads: See `to_bytes`.

    Raises:
      UnserializableLeafError: A TypeError, with the path. If a leaf cannot be stored, or a
        node has a type that is not registered, or static data or keys that cannot be written.
      ValueError: If keys of a dict are the same as strings, or reserved.
      TypeError: If metadata cannot be written.

    Example:
      >>> import numpy as np, treepack
      >>> tree = {"layers": [(np.zeros(2), 1), None], 7: "seven"}
      >>> treepack.loads(treepack.dumps(tree))
      {'layers': [(array([0., 0.]), 1), None], 7: 'seven'}
    """
    return described_layout(tree, align, metadata).to_bytes(threads=threads)


def loads(
    data: Buffer,
    target: Any = None,
    *,
    copy: bool | None = None,
    strict: Strict = True,
    like: Literal["numpy", "saved"] = "numpy",
    device: jax.Device | None = None,
    sharding: jax.sharding.Sharding | None = None,
    unknown: Literal["error", "dict"] = "error",
    threads: int | None = None,
) -> Any:
    """Returns a tree that `dumps` encoded, as it was.

    Args:
      data: The encoding; any bytes-like object. With a target also that of `to_bytes` or flax.
      target: A template to restore into instead, as `from_bytes` does; what is recorded of
        the structure does not matter then.
      copy: See `msgpack_restore`.
      strict: See `from_state_dict`; for a target.
      like: What becomes of arrays of jax: arrays of NumPy, or, with `"saved"`, of jax again,
        on the default device.
      device: Where to put what were arrays of jax, as with `jax.device_put`; typed PRNG keys
        as well.
      sharding: How to put what were arrays of jax, as with `jax.device_put`.
      unknown: What becomes of nodes of types that are not registered here, or had other
        fields when they were saved: an error, or dicts of their children.
      threads: See `to_bytes`; for arrays that are copied.

    Returns:
      The tree. Typed PRNG keys are always arrays of jax.

    Raises:
      DecodeError: A ValueError. If the bytes are no such encoding.
      UnregisteredTypeError: A DecodeError, with the name. If a type is not registered.
      TreepackError: A ValueError. If jax would not keep the dtype of an array.
      MismatchError: A ValueError. If they do not fit the target.

    Example:
      >>> import jax.numpy as jnp, treepack
      >>> saved = treepack.dumps((jnp.arange(3), {"n": 1}))
      >>> treepack.loads(saved)
      (array([0, 1, 2], dtype=int32), {'n': 1})
      >>> treepack.loads(saved, like="saved")
      (Array([0, 1, 2], dtype=int32), {'n': 1})
    """
    return restore_described(
        data,
        target,
        copy=copy,
        strict=strict,
        convert=_converter(like, device, sharding),
        unknown=unknown,
        threads=threads,
    )


def structure(data: Buffer, *, unknown: Literal["error", "dict"] = "error") -> Any:
    """Returns a tree that `dumps` encoded, with its arrays as shapes and dtypes only.

    No array is read, however large. The result is a template for `from_bytes`, and what
    `jax.eval_shape` returns for a function that makes such a tree.

    Args:
      data: The encoding; any bytes-like object.
      unknown: See `loads`.

    Returns:
      The tree, with `jax.ShapeDtypeStruct`s as arrays.

    Raises:
      DecodeError: See `loads`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> treepack.structure(treepack.dumps([np.zeros((2, 3)), "text"]))
      [ShapeDtypeStruct(shape=(2, 3), dtype=float64), 'text']
    """
    _check_unknown(unknown)
    state, trailer = _split(_core.restore(data, None, None, abstract_arrays=True))
    return _assemble(state, trailer, None, unknown, placeholders=True)


def read_metadata(data: Buffer) -> Any:
    """Returns what was given to `dumps` as metadata, or `None`. No array is read.

    Args:
      data: The encoding; any bytes-like object.

    Raises:
      DecodeError: See `loads`, as for other errors.

    Example:
      >>> import treepack
      >>> treepack.read_metadata(treepack.dumps([], metadata={"step": 3, "shape": (1, 2)}))
      {'step': 3, 'shape': (1, 2)}
    """
    _, trailer = _split(_core.restore(data, None, None, abstract_arrays=True))
    return _core.trailer_metadata(_present(trailer))


def described_layout(tree: Any, align: int, metadata: Any = None) -> _core.Layout:
    """Returns a tree with its structure, ready to be written."""
    return _core.walk(
        tree,
        state_dict=True,
        sort_keys=False,
        align=align,
        max_chunk_size=serialization.MAX_CHUNK_SIZE,
        overridden=[],
        structure=True,
        metadata=None if metadata is None else _core.encode_value(metadata),
    )


def restore_described(
    data: Buffer | _core.Content,
    target: Any = None,
    *,
    copy: bool | None = None,
    strict: Strict = True,
    convert: Any = None,
    unknown: str = "error",
    threads: int | None = None,
) -> Any:
    """Returns a tree as `loads` does; `convert` takes and returns the arrays of jax."""
    _check_unknown(unknown)
    if target is not None and convert is not None:
        raise ValueError("like, device and sharding are for trees without a target")
    if convert is not None and copy is None and not isinstance(data, (bytes, _core.Content)):
        copy = True  # jax takes memory as its own where it can, and expects it not to change
    state = _core.restore(data, copy, threads)
    if target is not None:
        return restore_tree(target, state, ".", strict)
    state, trailer = _split(state)
    return _assemble(state, trailer, convert, unknown)


def _split(state: Any) -> tuple[Any, bytes | None]:
    """Returns the state of a tree and the record of its structure, if there is one."""
    trailer = state.get(_core.TRAILER_KEY) if type(state) is dict else None
    if trailer is not None and type(trailer) is not bytes:
        raise DecodeError(f"{_core.TRAILER_KEY!r} is a {type(trailer).__name__}, not bytes")
    return without_structure(state), trailer


def _present(trailer: bytes | None) -> bytes:
    if trailer is None:
        raise DecodeError(
            "the structure of the tree was not saved: the bytes are not from dumps. Give a "
            "target, or call msgpack_restore for plain dicts"
        )
    return trailer


def _check_unknown(unknown: str) -> None:
    if unknown not in ("error", "dict"):
        raise ValueError(f"unknown must be 'error' or 'dict', got {unknown!r}")


def _assemble(
    state: Any,
    trailer: bytes | None,
    convert: Any,
    unknown: str,
    *,
    placeholders: bool = False,
) -> Any:
    return _core.assemble(
        state,
        _present(trailer),
        convert=convert,
        unknown_as_dict=unknown == "dict",
        placeholders=placeholders,
    )


def _converter(like: str, device: Any, sharding: Any) -> Any:
    """Returns what makes arrays of jax, or `None` if they are to be NumPy's."""
    if like not in ("numpy", "saved"):
        raise ValueError(f"like must be 'numpy' or 'saved', got {like!r}")
    if device is not None and sharding is not None:
        raise ValueError("device and sharding exclude each other")
    placement = device if sharding is None else sharding
    if placement is None and like == "numpy":
        return None
    return functools.partial(_to_jax, placement=placement)


@functools.cache
def _jax_has(dtype: np.dtype) -> bool:
    """Tells whether jax can have arrays of a dtype, in this byte order."""
    try:
        jax.device_put(np.zeros(0, dtype))
    except (TypeError, ValueError, RuntimeError):
        return False
    return dtype.isnative


def _to_jax(arrays: list[Any], placement: Any) -> list[jax.Array]:
    for array in arrays:
        if not isinstance(array, (np.ndarray, jax.Array)):
            raise DecodeError(f"there is a {type(array).__name__} where an array was saved")
        if isinstance(array, np.ndarray) and not _jax_has(array.dtype):
            raise DecodeError(f"jax has no arrays of {array.dtype}, which was saved as such")
    made: list[jax.Array] = jax.device_put(arrays, placement)
    for array, saved in zip(made, arrays, strict=True):
        if array.dtype != saved.dtype:
            raise TreepackError(
                f"an array of {saved.dtype.name} was saved, which jax makes {array.dtype.name} "
                "here; set jax_enable_x64, or load with like='numpy'"
            )
    return made
