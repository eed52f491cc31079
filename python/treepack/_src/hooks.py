"""Collects the Python functions that the core calls by name.

`import treepack` passes them to the core; `src/py/hooks.rs` documents each.
"""

# ruff: noqa: F401

from __future__ import annotations

from treepack._src.dtypes import describe as describe_dtype
from treepack._src.dtypes import resolve as resolve_dtype
from treepack._src.interop.msgpack import decode_error
from treepack._src.interop.msgpack import make as make_ext
from treepack._src.interop.shardings import describe as describe_sharding
from treepack._src.interop.shardings import resolve as resolve_sharding
from treepack._src.paths import Trail as trail  # noqa: N813
from treepack._src.printable import printable
from treepack._src.pytree.containers import check_unique_keys
from treepack._src.pytree.leaves import abstract as abstract_array
from treepack._src.pytree.leaves import (
    classify,
    explain,
    finish_transfer,
    host_view,
    start_transfer,
    to_contiguous,
)
from treepack._src.pytree.prng import unwrap as unwrap_key
from treepack._src.pytree.prng import wrap as wrap_key
from treepack._src.pytree.state_dict import expand
from treepack._src.pytree.ties import tied
from treepack._src.registry.fixed_fields import fixed_fields
from treepack._src.registry.inert import is_key
from treepack._src.registry.jax_nodes import holds_code
from treepack._src.registry.lookups import Lookups as lookups  # noqa: N813
from treepack._src.registry.nodes import flatten_node, is_named
from treepack._src.registry.static import rebuild_value, reduce_value
from treepack._src.registry.types import upgrades
from treepack._src.restore.template import begin_restore, is_abstract_array, restore_child
