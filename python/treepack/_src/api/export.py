"""Functions of `jax.export` in one file with their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from treepack._src import paths as _paths
from treepack._src.api.files import save
from treepack._src.checkpoint.load import restore_described
from treepack._src.options import (
    Arrays,
    Device,
    FileOptions,
    OnUse,
    Opening,
    Progress,
    Reading,
    Saved,
    StorageOptions,
    Writing,
    check_known,
    takes,
)
from treepack._src.pytree.kinds import kind_of
from treepack._src.storage.content import Openable, content_of
from treepack._src.storage.naming import naming
from treepack._src.storage.place import Location, resolved
from treepack.errors import DecodeError, TreepackError

if TYPE_CHECKING:
    import jax
    from jax import export as jax_export
else:
    jax = OnUse("jax")
    jax_export = OnUse("jax.export")


class LoadedExported(NamedTuple):
    """The result of `load_exported`.

    Attributes:
      exported: The function; call it with `exported.call`.
      params: The tree that was saved with it.
    """

    exported: jax_export.Exported
    params: Any


@takes(FileOptions, Saved, Writing, compress=None)
def save_exported(
    path: Location,
    exported: jax_export.Exported,
    params: Any = None,
    **options: Unpack[FileOptions],
) -> None:
    """Saves an exported function and its parameters to one file, replaced whole or not at all.

    Needs the package `flatbuffers` (`pip install treepack[export]`). Takes the options of `save`.

    Args:
      path: The file. Missing directories are made.
      exported: The result of `jax.export.export`. The types of nodes among its arguments and
        results must be registered, here and where it is loaded: `register_tree` does so.
      params: Any tree.
      metadata: Any value to be kept with the tree.
      static: Static data without a form; see `save`.
      compress: Whether to compress with gzip, or how; see `save`. `None` does so if the name of the
        file ends with `.gz`.
      level: From 0 (stored) to 9 (smallest), for gzip.
      align: The alignment of arrays.
      durable: Whether the file is on the disk when this returns.
      threads: The maximum number of threads.
      progress: A callable of bytes done and in all, or `True` for a bar.
      storage_options: Options for the store of a URL; see `save`.

    Raises:
      OSError: If the file cannot be written.
      TreepackError: A ValueError. If `jax.export` does not know a type of nodes, which
        `register_tree` registers, or cannot save the function for another reason.
      UnserializableLeafError: See `save`, as for other errors.

    Examples:
      >>> import jax, jax.numpy as jnp, tempfile, treepack
      >>> params = {"w": jnp.full(3, 2.0)}
      >>> apply = jax.export.export(jax.jit(lambda params, x: params["w"] * x))(params, params["w"])
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save_exported(path, apply, params)
      >>> loaded = treepack.load_exported(path)
      >>> loaded.exported.call(loaded.params, jnp.ones(3))
      Array([2., 2., 2.], dtype=float32)
    """
    check_known(save_exported, options)
    try:
        function = exported.serialize()
    except ValueError as error:
        raise TreepackError(f"the function cannot be saved: {_explained(error)}") from error
    save(path, {"exported": bytes(function), "params": params}, **options)


def _explained(error: Exception) -> str:
    """Returns the message of an error of `jax.export`, and which function of ours helps."""
    if "unregistered type" not in str(error):
        return str(error)
    return (
        "jax.export does not know a type among its arguments or results: call "
        "treepack.register_tree on a tree of them, both where it is saved and where it is loaded "
        f"({error})"
    )


def load_exported(
    path: Openable,
    *,
    arrays: Arrays = "saved",
    device: Device | None = None,
    sharding: Any = None,
    static: Any = None,
    copy: bool | None = None,
    mmap: bool = True,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> LoadedExported:
    """Returns the function and the parameters that `save_exported` saved.

    The types of nodes among them must be registered, which importing their modules does where
    they are decorated with `register_dataclass`. The arrays are read from the file when they
    are used. Takes the options of `load`, for the parameters.

    Args:
      path: The file, which must not be truncated or overwritten in place while it is mapped.
      arrays: Whether arrays of jax come back as such (`"saved"`), or all as NumPy's (`"numpy"`).
      device: The device for arrays of jax.
      sharding: The sharding, or a pytree or function of shardings, for arrays of jax.
      static: The static data that were not saved.
      copy: Whether arrays of NumPy are copies; `None` returns views where possible.
      mmap: Whether to map the file.
      max_size: The maximum decompressed size in bytes.
      threads: The maximum number of threads.
      progress: A callable of bytes done and in all, or `True` for a bar.
      storage_options: Options for the store of a URL; see `save`.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError. If the file has another format, or if a type among the arguments or
        results of the function is not registered; see `register_tree`.
      UnregisteredTypeError: A DecodeError, with the name. If a type of the parameters is not
        registered.
      ImportError: If `flatbuffers` is not installed.

    Examples:
      >>> import jax, jax.numpy as jnp, tempfile, treepack
      >>> path, params = f"{tempfile.mkdtemp()}/model.treepack", {"w": jnp.ones(2)}
      >>> double = jax.export.export(jax.jit(lambda params: 2 * params["w"]))(params)
      >>> treepack.save_exported(path, double, params)
      >>> exported, loaded = treepack.load_exported(path)
      >>> exported.call(loaded)
      Array([2., 2.], dtype=float32)
    """
    from jax import export
    from jax.sharding import Sharding

    if sharding is not None and not isinstance(sharding, Sharding):
        sharding = _of_params(sharding)
    how = Reading(
        arrays=arrays,
        device=device,
        sharding=sharding,
        static=_static_of_params(static),
        copy=copy,
        threads=threads,
    )
    opening = Opening(mmap=mmap, max_size=max_size, threads=threads, progress=progress)
    path = resolved(path, storage_options)
    with naming(path):
        content = content_of(path, opening)
        tree = restore_described(content, None, how)
        if type(tree) is not dict or tree.keys() != {"exported", "params"}:
            raise DecodeError("the file is not from save_exported")
        if type(tree["exported"]) is not bytes:
            raise DecodeError("the file is not from save_exported: there is no function in it")
        try:
            exported = export.deserialize(bytearray(tree["exported"]))
        except ImportError:
            raise
        except Exception as error:  # jax raises any type here
            message = f"the function in the file cannot be read: {_explained(error)}"
            raise DecodeError(message) from error
        return LoadedExported(exported, tree["params"])


def _static_of_params(static: Any) -> Any:
    """Prefixes the paths in `static` with `params`."""
    if static is None:
        return None
    below: dict[Any, Any] = {}
    if isinstance(static, Mapping):
        paths = [key for key in static if isinstance(key, (str, tuple))]
        below = {("params", *_paths.parts(path)): static[path] for path in paths}
    return below | {"params": static}


def _of_params(sharding: Any) -> Any:
    """Prefixes the paths in `sharding` with `params`."""
    if kind_of(sharding) is not None or not callable(sharding):
        return {"params": sharding}
    return lambda path, leaf: sharding(_paths.text(_paths.parts(path)[1:]), leaf)
