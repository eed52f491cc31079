"""JAX pytrees to flax-readable msgpack and back, at the speed of memory.

`treepack.serialization` is a drop-in for `flax.serialization` and for
`eformer.pytree.serialization`; all of its names are here as well. `dumps` and `loads` bring
trees back as they were, without a template, `register_dataclass` and its like tell the types.
"""

from __future__ import annotations

import sys
import types
from importlib.metadata import version

from treepack import errors, serialization
from treepack._auxdata import register_auxdata, register_function
from treepack._described import dumps, loads, read_metadata, structure
from treepack._exported import load_exported, save_exported
from treepack._node_types import registered_types
from treepack._packing import buffers, pack_into, packed_size
from treepack._registration import (
    register_dataclass,
    register_namedtuple,
    register_node,
    register_tree,
)
from treepack.errors import (
    CorruptionError,
    DecodeError,
    MismatchError,
    TreepackError,
    UnregisteredTypeError,
    UnserializableLeafError,
)
from treepack.serialization import (
    MAX_CHUNK_SIZE,
    compress_bytes,
    current_path,
    decompress_bytes,
    from_bytes,
    from_compressed_bytes,
    from_state_dict,
    get_serialization_info,
    is_serializable,
    load_from_file,
    msgpack_restore,
    msgpack_serialize,
    register_serialization_state,
    save_to_file,
    to_bytes,
    to_compressed_bytes,
    to_state_dict,
    validate_serializable,
)

__all__ = [
    "MAX_CHUNK_SIZE",
    "CorruptionError",
    "DecodeError",
    "MismatchError",
    "TreepackError",
    "UnregisteredTypeError",
    "UnserializableLeafError",
    "__version__",
    "buffers",
    "compress_bytes",
    "current_path",
    "decompress_bytes",
    "dumps",
    "errors",
    "from_bytes",
    "from_compressed_bytes",
    "from_state_dict",
    "get_serialization_info",
    "is_serializable",
    "load_exported",
    "load_from_file",
    "loads",
    "msgpack_restore",
    "msgpack_serialize",
    "pack_into",
    "packed_size",
    "read_metadata",
    "register_auxdata",
    "register_dataclass",
    "register_function",
    "register_namedtuple",
    "register_node",
    "register_serialization_state",
    "register_tree",
    "registered_types",
    "save_exported",
    "save_to_file",
    "serialization",
    "structure",
    "to_bytes",
    "to_compressed_bytes",
    "to_state_dict",
    "validate_serializable",
]

__version__ = version("treepack")


class _Package(types.ModuleType):
    """Passes `treepack.MAX_CHUNK_SIZE` on to where it is read."""

    @property
    def MAX_CHUNK_SIZE(self) -> float:  # noqa: N802
        return serialization.MAX_CHUNK_SIZE

    @MAX_CHUNK_SIZE.setter
    def MAX_CHUNK_SIZE(self, value: float) -> None:  # noqa: N802
        serialization.MAX_CHUNK_SIZE = value


del MAX_CHUNK_SIZE
sys.modules[__name__].__class__ = _Package
