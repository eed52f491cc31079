"""The types of a small model, which a program needs to load and call it."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import jax

import treepack


@treepack.register_auxdata
class Activation(enum.Enum):
    """The activation between layers."""

    RELU = "relu"
    TANH = "tanh"


@treepack.register_dataclass(serialized_name="example.Dense")
@dataclasses.dataclass(frozen=True)
class Dense:
    """A layer: kernel, bias and activation."""

    kernel: jax.Array
    bias: jax.Array
    activation: Activation | None = dataclasses.field(default=None, metadata={"static": True})


@treepack.register_namedtuple(serialized_name="example.Prediction")
class Prediction(NamedTuple):
    """The result of the model.

    Attributes:
      label: The most likely class, int32[batch].
      probability: Its probability, float32[batch].
    """

    label: jax.Array
    probability: jax.Array
