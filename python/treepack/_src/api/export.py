from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from treepack._src import paths as _paths
from treepack._src.advice import advised
from treepack._src.api.files import save
from treepack._src.checkpoint.whole import restore_described
from treepack._src.interop import jax as _jax
from treepack._src.options import (
    Arrays,
    Device,
    FileOptions,
    LazyModule,
    Opening,
    Progress,
    Reading,
    StorageOptions,
    takes,
)
from treepack._src.printable import printable
from treepack._src.pytree.kinds import kind_of
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import Openable, content_of
from treepack._src.storage.naming import naming
from treepack.errors import DecodeError, TreepackError, UnregisteredTypeError

if TYPE_CHECKING:
    import jax
    from jax import export as jax_export
else:
    jax = LazyModule("jax")
    jax_export = LazyModule("jax.export")


class LoadedExported(NamedTuple):
    """The result of `load_exported`.

    Attributes:
      exported: The function; `call(...)` and `exported.call(...)` call it.
      params: The tree that was saved with it.
    """

    exported: jax_export.Exported
    params: Any

    def __repr__(self) -> str:  # the repr of `Exported` has the whole program
        name = printable(self.exported.fun_name)
        return f"<treepack.LoadedExported {name}, params: {type(self.params).__name__}>"

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        call: Any = self.exported.call
        return call(*args, **kwargs)


@takes(FileOptions, compress=None)
def save_exported(
    path: Location,
    exported: jax_export.Exported,
    params: Any = None,
    **options: Unpack[FileOptions],
) -> None:
    """Saves an exported function and its parameters to one file, atomically.

    Needs the package `flatbuffers`. Takes the options of `save`. jax promises to load a function
    for six months after its export, and 0.12, which writes version 12 of its format, refuses
    expired ones. The parameters do not expire.

    Args:
      path: The file.
      exported: The result of `jax.export.export`. The node types among its arguments and results
        must be registered, both here and where it is loaded; see `register_tree`.
      params: Any tree; it is not compared with the arguments of the function.
      metadata: See `save`, also for other options.

    Raises:
      TreepackError: If a node type is not registered with `jax.export` (`register_tree` registers
        it), a dict has keys that are not strings, or `jax.export` cannot save the function.
      UnserializableLeafError: See `save`, also for further errors.

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
    _jax.needed("save_exported saves functions of jax.export")
    if not hasattr(exported, "serialize"):
        order = ": the path comes first" * hasattr(path, "serialize")
        raise TypeError(
            "save_exported takes a path and the result of jax.export.export(jax.jit(function))"
            f"(*arguments), got a {type(exported).__name__}{order}"
        )
    try:
        function = exported.serialize()
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # jax may raise any type
        raise TreepackError(f"cannot save the exported function: {_explained(error)}") from error
    save(path, {"exported": bytes(function), "params": params}, **options)


_REMEDIES = {
    "unregistered type": "a node type among its arguments or results is not registered with "
    "jax.export: call treepack.register_tree on a tree with that type, both before saving and "
    "before loading",
    # The second is a text of jax 0.8.
    **dict.fromkeys(
        ("string keys", "non-string"),
        "jax.export saves only dicts with string keys: convert the keys of the arguments and "
        "results to strings, or pass lists",
    ),
    "6-month": "jax reads the exports of the last six months: export the function again from its "
    "code, or set JAX_EXPORT_DESERIALIZE_EXPIRED_VERSIONS=1",
}


def _explained(error: Exception) -> str:
    message = str(error)
    remedies = [remedy for part, remedy in _REMEDIES.items() if part in message]
    return f"{remedies[0]} ({message})" if remedies else message


@advised
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
    """Loads the function and the parameters that `save_exported` saved.

    The node types of arguments, results and parameters must be registered before; importing their
    module is enough if they are decorated with `register_dataclass`. Options are those of `load`,
    for the parameters. The file must not be truncated or overwritten in place while it is mapped.

    Raises:
      DecodeError: If the file has another format, if a node type among the arguments or results of
        the function is not registered (see `register_tree`), or if jax refuses the function, as
        0.12 does with one that was exported more than six months ago.
      UnregisteredTypeError: With the name, if a type among the parameters is not registered.
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
    jax = _jax.needed("load_exported returns functions of jax.export")
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        sharding = _of_params(sharding)
    reading = Reading(
        arrays=arrays,
        device=device,
        sharding=sharding,
        static=_static_of_params(static),
        copy=copy,
        threads=threads,
    )
    opening = Opening(mmap=mmap, max_size=max_size, threads=threads, progress=progress)
    path = Address.or_data(path, storage_options)
    with naming(path):
        content = content_of(path, opening)
        try:
            tree = restore_described(content, None, reading)
        except UnregisteredTypeError as error:
            error.add_note(
                "treepack: load_exported has neither a target nor unknown=: register the type, or "
                "read the parameters by treepack.load(path, unknown='dict')['params']"
            )
            raise
        if type(tree) is not dict or tree.keys() != {"exported", "params"}:
            raise DecodeError(
                "not written by save_exported: its tree is not a dict of 'exported' and 'params'; "
                "treepack.load reads other files"
            )
        if type(tree["exported"]) is not bytes:
            raise DecodeError(
                "not written by save_exported: expected the exported function as bytes, found "
                f"{type(tree['exported']).__name__}"
            )
        try:
            exported = jax.export.deserialize(bytearray(tree["exported"]))
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # jax may raise any type
            message = f"cannot read the exported function: {_explained(error)}"
            raise DecodeError(message) from error
        return LoadedExported(exported, tree["params"])


def _static_of_params(static: Any) -> Any:
    if static is None:
        return None
    below: dict[Any, Any] = {}
    if isinstance(static, Mapping):
        paths = [key for key in static if isinstance(key, (str, tuple))]
        below = {("params", *_paths.parts(path)): static[path] for path in paths}
    return below | {"params": static}


def _of_params(sharding: Any) -> Any:
    if kind_of(sharding) is not None or not callable(sharding):
        return {"params": sharding}
    return lambda path, leaf: sharding(_paths.text(_paths.parts(path)[1:]), leaf)
