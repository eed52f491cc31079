"""Saves JAX pytrees as flax-readable msgpack and loads them, at the speed of memory.

`save` and `load`, or `dumps` and `loads` for bytes, restore a tree with its structure, without a
template. `treepack.serialization` is a drop-in for `flax.serialization` and
`eformer.pytree.serialization`.
"""

from __future__ import annotations

from typing import ForwardRef

import treepack._core as core
from treepack import checkpoints, errors, serialization
from treepack._src import formats, hooks
from treepack._src.api.bytes import apply_delta, buffers, dumps, loads, pack_into, packed_size
from treepack._src.api.compare import diff
from treepack._src.api.digest import Digest, digest
from treepack._src.api.export import LoadedExported, load_exported, save_exported
from treepack._src.api.files import load, save
from treepack._src.api.streams import read_stream, write_stream
from treepack._src.api.structure import abstract, is_checkpoint, read_metadata
from treepack._src.checkpoint.file import File, Tree, open
from treepack._src.checkpoint.mapped import Mapping
from treepack._src.checkpoint.verify import Verification, verify
from treepack._src.elsewhere import MODULE
from treepack._src.options import (
    Arrays,
    LoadOptions,
    Progress,
    SaveOptions,
    StorageOptions,
    Strict,
)
from treepack._src.publishing import Publisher, Subscriber
from treepack._src.readers.info import Info
from treepack._src.readers.reader import LazyArray
from treepack._src.registry.register import register_dataclass, register_namedtuple, register_node
from treepack._src.registry.register_tree import register_tree
from treepack._src.registry.static import register_auxdata, register_function
from treepack._src.registry.types import registered_types
from treepack._src.restore.report import Report
from treepack._src.saving.background import Saving
from treepack._src.series import Keep, Series
from treepack._src.storage.address import Location
from treepack.errors import *  # noqa: F403  # it lists its names

core.set_hooks(hooks, errors)
del core, hooks

register_pytree_node_serialization = register_node
"""`register_node` under JAX's name for it."""

formats.known()  # imports the folders now, not within the first call

__all__ = [
    "Arrays",
    "Digest",
    "File",
    "Info",
    "Keep",
    "LazyArray",
    "LoadOptions",
    "LoadedExported",
    "Location",
    "Mapping",
    "Progress",
    "Publisher",
    "Report",
    "SaveOptions",
    "Saving",
    "Series",
    "StorageOptions",
    "Strict",
    "Subscriber",
    "Tree",
    "Verification",
    "__version__",
    "abstract",
    "apply_delta",
    "buffers",
    "checkpoints",
    "diff",
    "digest",
    "dumps",
    "errors",
    "is_checkpoint",
    "load",
    "load_exported",
    "loads",
    "open",
    "pack_into",
    "packed_size",
    "read_metadata",
    "read_stream",
    "register_auxdata",
    "register_dataclass",
    "register_function",
    "register_namedtuple",
    "register_node",
    "register_pytree_node_serialization",
    "register_tree",
    "registered_types",
    "save",
    "save_exported",
    "serialization",
    "verify",
    "write_stream",
]
__all__ += errors.__all__

for _public in map(globals().get, __all__):
    if isinstance(_public, type) and _public.__module__.startswith("treepack._src."):
        for _name, _hint in _public.__annotations__.items():
            # `typing.get_type_hints` resolves the names in the module that defines the class.
            _text = str(getattr(_hint, "__forward_arg__", _hint))
            _public.__annotations__[_name] = ForwardRef(_text, module=_public.__module__)
        _public.__module__ = "treepack"  # the public path, for tracebacks and pickles
del ForwardRef, _public, _name, _hint, _text

__version__: str


def __dir__() -> list[str]:
    return sorted(__all__)


_COMMANDS = ("ls", "show", "info", "convert", "get", "salvage")


def __getattr__(name: str) -> str:
    """Looks up the version on first use: eagerly, it would be a quarter of the import time."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("treepack")
        except PackageNotFoundError:  # the package without JAX as a dependency
            return version("treepack-core")
    hint = MODULE.get(name, "")
    if name in _COMMANDS:
        hint = f"use the command line, as in `treepack {name} --help`"
    for module in (serialization, checkpoints):
        if name in module.__all__:
            hint = f"use {module.__name__}.{name}"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and ': '}{hint}")
