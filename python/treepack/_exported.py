"""Functions that `jax.export` has exported, in one file with their parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treepack import _core
from treepack._described import described_layout, restore_described
from treepack.errors import DecodeError

if TYPE_CHECKING:
    from jax.export import Exported


class LoadedExported(NamedTuple):
    """What `load_exported` returns.

    Attributes:
      exported: The function; call it with `exported.call`.
      params: The tree that was saved with it, with arrays that view the file.
    """

    exported: Exported
    params: Any


def save_exported(
    path: str | os.PathLike[str],
    exported: Exported,
    params: Any = None,
    *,
    metadata: Any = None,
    durable: bool = True,
) -> None:
    """Saves an exported function and its parameters to one file, replaced whole or not at all.

    Needs the package `flatbuffers` (`pip install treepack[export]`).

    Args:
      path: The file. Missing directories are made.
      exported: What `jax.export.export` returned. The types of nodes among its arguments and
        results must be registered, here and where it is loaded.
      params: Any tree; see `dumps`.
      metadata: See `dumps`.
      durable: See `save_to_file`.

    Raises:
      OSError: If the file cannot be written.
      ValueError: If a type of nodes is not registered.
      UnserializableLeafError: See `dumps`, as for other errors.

    Example:
      >>> import jax, jax.numpy as jnp, tempfile, treepack
      >>> params = {"w": jnp.full(3, 2.0)}
      >>> apply = jax.export.export(jax.jit(lambda params, x: params["w"] * x))(params, params["w"])
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save_exported(path, apply, params)
      >>> loaded = treepack.load_exported(path)
      >>> loaded.exported.call(loaded.params, jnp.ones(3))
      Array([2., 2., 2.], dtype=float32)
    """
    tree = {"exported": bytes(exported.serialize()), "params": params}
    layout = described_layout(tree, 64, metadata)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    layout.save(path, durable=durable, progress=None)


def load_exported(path: str | os.PathLike[str], *, copy: bool | None = None) -> LoadedExported:
    """Returns the function and the parameters that `save_exported` saved.

    The types of nodes among them must be registered, which importing their modules does where
    they are decorated with `register_dataclass`. The arrays are read from the file when they
    are used.

    Args:
      path: The file. See `load_from_file` for what must not become of it meanwhile.
      copy: See `msgpack_restore`.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError. If it is no such file, or if a type among the arguments or
        results of the function is not registered.
      UnregisteredTypeError: A DecodeError, with the name. If a type of the parameters is not
        registered.
      ImportError: If there is no `flatbuffers`.
    """
    from jax import export

    tree = restore_described(_core.Content.map(path), copy=copy)
    if type(tree) is not dict or tree.keys() != {"exported", "params"}:
        raise DecodeError("the file is not from save_exported")
    if type(tree["exported"]) is not bytes:
        raise DecodeError("the file is not from save_exported: there is no function in it")
    try:
        exported = export.deserialize(bytearray(tree["exported"]))
    except ImportError:
        raise
    except Exception as error:  # jax raises all kinds for what it cannot read
        raise DecodeError(f"the function in the file cannot be read: {error}") from error
    return LoadedExported(exported, tree["params"])
