"""A function that jax has exported, to be saved."""

from __future__ import annotations

import functools

import jax
import numpy as np


@functools.cache
def doubling() -> jax.export.Exported:
    """Returns a function of one float."""
    return jax.export.export(jax.jit(lambda x: 2 * x))(np.float32(1))
