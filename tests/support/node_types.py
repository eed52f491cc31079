"""Types of nodes of every kind, registered once: what a program's own module would hold."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any, NamedTuple

import eformer.pytree
import equinox
import flax.core
import flax.struct
import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jax.tree_util import GetAttrKey, Partial

import treepack


@treepack.register_auxdata
class Mode(enum.Enum):
    TRAIN = 1
    EVAL = 2


@treepack.register_auxdata
@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    names: tuple[str, ...] = ()


@treepack.register_function
def scale(factor: Any, x: Any) -> Any:
    return factor * x


@treepack.register_dataclass
@dataclasses.dataclass
class Plain:
    w: Any
    shape: tuple[int, ...] = dataclasses.field(default=(1, 2), metadata={"static": True})

    def __post_init__(self) -> None:
        if not hasattr(self.w, "dtype") or isinstance(self.w, jax.ShapeDtypeStruct):
            raise TypeError(f"w is a placeholder: {self.w!r}")


@treepack.register_dataclass(
    data_fields=["w", "b"],
    meta_fields=["mode", "config"],
    drop_fields=["cache"],
    serialized_name="tests.Frozen",
)
@dataclasses.dataclass(frozen=True)
class Frozen:
    w: Any
    mode: Mode = Mode.TRAIN
    b: Any = None
    config: Config = Config(3, ("a", "b"))
    cache: Any = "default"


@dataclasses.dataclass
class Base:
    w: Any


@treepack.register_dataclass
@dataclasses.dataclass
class Derived(Base):
    axis: str = dataclasses.field(default="x", metadata={"static": True})


@treepack.register_dataclass
@flax.struct.dataclass
class Struct:
    w: Any
    name: str = flax.struct.field(pytree_node=False, default="struct")
    spec: Any = flax.struct.field(pytree_node=False, default=PartitionSpec("x", None, ("y", "z")))


@treepack.register_dataclass
@eformer.pytree.auto_pytree
class Auto:
    w: jax.Array
    name: str = "auto"


@treepack.register_dataclass
class Tree(eformer.pytree.PyTree):
    w: jax.Array
    name: str = "tree"


@treepack.register_dataclass
class XTree(eformer.pytree.xTree):
    w: jax.Array
    name: str = eformer.pytree.field(pytree_node=False, default="xtree")


@treepack.register_dataclass
@eformer.pytree.dataclass
class EformerData:
    w: jax.Array
    name: str = eformer.pytree.field(pytree_node=False, default="data")


@treepack.register_dataclass
class Module(equinox.Module):
    w: jax.Array
    activation: Any
    width: int = equinox.field(static=True)
    dtype: Any = equinox.field(static=True)


@treepack.register_namedtuple
class Point(NamedTuple):
    x: Any
    y: Any


class Pair:
    """Without names for its children."""

    def __init__(self, first: Any, second: Any, label: Any = None):
        self.first, self.second, self.label = first, second, label


jax.tree_util.register_pytree_node(
    Pair,
    lambda pair: ((pair.first, pair.second), pair.label),
    lambda label, children: Pair(*children, label),
)
treepack.register_node(Pair, serialized_name="tests.Pair")


@jax.tree_util.register_pytree_with_keys_class
class Keyed:
    def __init__(self, w: Any, bits: tuple[int, ...]):
        self.w, self.bits = w, bits

    def tree_flatten_with_keys(self) -> Any:
        return [(GetAttrKey("w"), self.w)], self.bits

    @classmethod
    def tree_unflatten(cls, bits: Any, children: Any) -> Keyed:
        return cls(*children, bits)


treepack.register_node(
    Keyed,
    serialized_name="tests.Keyed",
    serialize_auxdata=lambda bits: bytes(bits),
    deserialize_auxdata=lambda data: tuple(memoryview(data)),  # which takes bytes alone
)


class Free:
    """No dataclass, but JAX takes it for one."""

    def __init__(self, w: Any, names: Any):
        self.w, self.names = w, names


jax.tree_util.register_dataclass(Free, ["w"], ["names"])
treepack.register_node(Free, serialized_name="tests.Free")

treepack.register_node(flax.core.FrozenDict, serialized_name="tests.FrozenDict")
treepack.register_node(collections.OrderedDict, serialized_name="tests.OrderedDict")
treepack.register_node(collections.defaultdict, serialized_name="tests.defaultdict")
treepack.register_node(Partial, serialized_name="tests.Partial")
treepack.register_tree(optax.adam(1e-3).init({"w": np.zeros(1)}), prefix="optax")

W = np.arange(3, dtype=np.float32)

# One node of each kind, which a function of JAX can take and return.
NODES: dict[str, Any] = {
    "plain": Plain(W, (3, 4)),
    "frozen": Frozen(W, Mode.EVAL, {"inner": W}, Config(5)),
    "derived": Derived(W, "y"),
    "struct": Struct(W, "other"),
    "auto": Auto(W, "other"),
    "tree": Tree(W, "other"),
    "xtree": XTree(W, "other"),
    "eformer": EformerData(W, "other"),
    "module": Module(W, None, 3, jax.numpy.bfloat16),
    "namedtuple": Point(W, (W, [W])),
    "pair": Pair(W, Pair(W, W, np.dtype("float32")), ("a", ["b", {"c": 1}])),
    "keyed": Keyed(W, (1, 0, 255)),
    "free": Free(W, ("a", "b")),
    "frozen_dict": flax.core.FrozenDict({"b": W, "a": flax.core.FrozenDict({"c": W})}),
    "ordered_dict": collections.OrderedDict(b=W, a=W),
    "defaultdict": collections.defaultdict(list, {"b": W, "a": W}),
    "partial": Partial(scale, W, x=W),
    "optax": optax.adam(1e-3).init({"w": W}),
    "builtin": {"list": [W, (W,), None], "dict": {"b": W, "a": W}},
}
