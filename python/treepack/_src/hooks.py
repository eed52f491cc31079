"""Collects the Python functions that the core calls by name.

`import treepack` passes them to the core; `src/py/hooks.rs` documents each. `Recorder`, `Lookups`
and `Restore` are passed by saves and loads.
"""

# ruff: noqa: F401

from __future__ import annotations

from treepack._src.dtypes import dtype_and_name as dtype
from treepack._src.interop import msgpack
from treepack._src.interop import shardings as _shardings
from treepack._src.leaves.leaves import Transfer as transfer  # noqa: N813
from treepack._src.leaves.leaves import abstract_array, classify, explain, is_abstract_array
from treepack._src.leaves.prng import Key as key  # noqa: N813
from treepack._src.paths import Trail as trail  # noqa: N813
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import expand
from treepack._src.registry import static as static_data
from treepack._src.registry.fixed_fields import fixed_fields
from treepack._src.registry.lookups import Lookups as lookups  # noqa: N813

resolve_sharding = _shardings.resolve
