"""Converts parameters from before flax had Linen."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterator
from typing import Any

from treepack._src.interop import flax
from treepack.checkpoints._names import natural_sort

MODULE_NUM_RE = re.compile(r"(.*)_[0-9]+$")
"""The name of a module of flax and its number."""


def convert_pre_linen(params: Any) -> Any:
    """Renames the modules in parameters that were saved before flax had Linen.

    All modules of a parent were counted together (`Conv_0`, `Dense_1`); Linen counts by class
    (`Conv_0`, `Dense_0`). Parameters of Linen stay unchanged.

    Args:
      params: The parameters: dicts or FrozenDicts of modules.

    Examples:
      >>> from treepack import checkpoints
      >>> checkpoints.convert_pre_linen({"Conv_0": {"w": 1}, "Dense_1": {"w": 2}})
      {'Conv_0': {'w': 1}, 'Dense_0': {'w': 2}}
    """
    if not isinstance(params, dict) and not flax.is_frozen_dict(params):
        return params
    renamed: dict[str, Any] = {}
    counts: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    for name in natural_sort(params):
        match = MODULE_NUM_RE.match(name)
        new = name if match is None else f"{match[1]}_{next(counts[match[1]])}"
        renamed[new] = convert_pre_linen(params[name])
    return type(params)(renamed) if flax.is_frozen_dict(params) else renamed
