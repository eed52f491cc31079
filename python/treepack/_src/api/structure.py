from __future__ import annotations

import contextlib
from typing import Any

from treepack._src.advice import advised
from treepack._src.checkpoint.file import File, open
from treepack._src.checkpoint.opening import open_reader
from treepack._src.options import Containers, Opening, StorageOptions, Unknown, check
from treepack._src.registry.static import metadata_in
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened, content_of
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack.errors import (
    GzipError,
    GzipTruncatedError,
    NewerVersionError,
    NoIndexError,
    TreepackError,
)


@advised
def abstract(
    path_or_data: Openable,
    *,
    unknown: Unknown = "error",
    containers: Containers = "saved",
    static: Any = None,
    mapping: Any = None,
    max_size: int | None = None,
    storage_options: StorageOptions = None,
) -> Any:
    """Returns the structure of a saved tree, with shapes and dtypes in place of its arrays.

    Takes any source that `open` takes, such as a file of `save` or the result of `dumps`, and
    options of `open` and `load`. Reads no array. The result is a template for `load`, like that of
    `jax.eval_shape`; arrays of NumPy then become JAX arrays. Arrays that were sharded over several
    devices have their `sharding` if the number of devices is the same; see docs/sharded.md. This
    initializes JAX, so call `jax.distributed.initialize` before.

    Returns:
      The tree, with `jax.ShapeDtypeStruct`s in place of arrays.

    Raises:
      DecodeError: See `load`, also for further errors.

    Examples:
      >>> import numpy as np, treepack
      >>> treepack.abstract(treepack.dumps([np.zeros((2, 3)), "text"]))
      [ShapeDtypeStruct(shape=(2, 3), dtype=float64), 'text']
    """
    check("unknown", unknown)
    source = Address.or_data(path_or_data, storage_options)
    with naming(source), _opened(source, max_size, mapping=mapping) as file:
        return file.abstract(unknown=unknown, containers=containers, static=static)


@advised
def read_metadata(
    path_or_data: Openable,
    *,
    unknown: Unknown = "error",
    max_size: int | None = None,
    storage_options: StorageOptions = None,
) -> Any:
    """Returns the `metadata` of a saved tree, or `None`, without reading arrays.

    Args:
      path_or_data: Any source that `open` takes; also a patch, without its base.
      unknown: Whether values that cannot be rebuilt, such as values of unregistered types, are an
        error, or become dicts of their parts (`"dict"`).
      max_size: See `load`.
      storage_options: See `save`.

    Raises:
      UnregisteredTypeError: With the name and a path such as `metadata/c/act`.
      DecodeError: See `load`, also for further errors.

    Examples:
      >>> import treepack
      >>> treepack.read_metadata(treepack.dumps([], metadata={"step": 3, "shape": (1, 2)}))
      {'step': 3, 'shape': (1, 2)}
    """
    check("unknown", unknown)
    source = Address.or_data(path_or_data, storage_options)
    with naming(source):
        try:
            with _opened(source, max_size, unknown, join=False) as file:
                return file.metadata
        except (TreepackError, FileNotFoundError):
            if (record := Opened.record_of_patch(source, max_size)) is None:
                raise
        return metadata_in(record, unknown_as_dict=unknown == "dict")


@advised
def is_checkpoint(path_or_data: Openable, *, storage_options: StorageOptions = None) -> bool:
    """Returns whether a path, URL or data are a checkpoint that treepack reads.

    All that `open` takes counts, and so do patches without their base, files of newer versions, and
    files whose arrays are damaged (see `verify`). Reads no array, and only the first bytes of gzip
    from other programs above 1 MiB.

    Args:
      path_or_data: Any source that `open` takes. A missing file is not a checkpoint.
      storage_options: See `save`.

    Raises:
      OSError: If the file cannot be read for another reason, such as its permissions.
      ImportError: If it is a directory of Orbax, and TensorStore is not installed.
      TreepackError: If a file in a store is replaced during the call.

    Examples:
      >>> import tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.is_checkpoint(path)
      False
      >>> treepack.save(path, {"step": 3})
      >>> treepack.is_checkpoint(path)
      True
    """
    try:
        source = Address.or_data(path_or_data, storage_options)
        with naming(source), contextlib.closing(open_reader(source, join=False)) as reader:
            catalog = reader.catalog
            is_map = catalog.children(0) is not None and not catalog.is_list(0)
            return is_map or catalog.record is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except NewerVersionError:
        return True
    except NoIndexError:
        return bool(Opened.raw(source).begins_as_tree())
    except ConditionError:  # the file was replaced
        raise
    except (TreepackError, EOFError):
        return False


def _opened(
    path_or_data: Openable,
    max_size: int | None,
    unknown: Unknown = "error",
    mapping: Any = None,
    *,
    join: bool = True,
) -> File:
    try:
        if not join:
            return File(open_reader(path_or_data, max_size=max_size, join=False), unknown)
        return open(path_or_data, max_size=max_size, unknown=unknown, mapping=mapping)
    except (GzipError, GzipTruncatedError):
        content = content_of(path_or_data, Opening(max_size=max_size))
        return open(content, unknown=unknown, mapping=mapping)
