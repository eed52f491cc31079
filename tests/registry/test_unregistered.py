"""Trees of unregistered types, with code: saved, and loaded by name or template."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import inspect
import operator
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import treepack
from treepack import serialization
from treepack._src.registry import library_types, lookups


def custom(x: Any) -> Any:
    return x


MODEL = nn.Dense(3)

OPTIMIZER = optax.adam(1e-3)


def train_state() -> TrainState:
    params = MODEL.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    return TrainState.create(apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs)])
        self.act = jnp.tanh
        self.width = 2


class Pair(NamedTuple):
    a: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    act: Any = dataclasses.field(default="relu", metadata={"static": True})


@dataclasses.dataclass
class Plain:
    """A dataclass that JAX does not know."""

    w: Any
    mode: Any = dataclasses.field(default="x", metadata={"static": True})


class Listing(list[Any]):
    pass


@jax.tree_util.register_pytree_with_keys_class
class Twins:
    """A node whose children have the same key."""

    def __init__(self, *children: Any):
        self.children = children

    def tree_flatten_with_keys(self) -> Any:
        return [(jax.tree_util.GetAttrKey("twin"), child) for child in self.children], None

    def tree_flatten(self) -> Any:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Twins:
        return cls(*children)


def assert_same(found: Any, expected: Any) -> None:
    found_leaves, found_def = jax.tree.flatten(found)
    leaves, treedef = jax.tree.flatten(expected)
    assert found_def == treedef
    for a, b in zip(found_leaves, leaves, strict=True):
        if isinstance(b, (jax.Array, np.ndarray)):
            np.testing.assert_array_equal(a, b)
        else:
            assert a is b or a == b


STATES: dict[str, Any] = {
    "a train state": train_state,
    "an nnx module": lambda: Network(nnx.Rngs(0)),
    "the state of an nnx module": lambda: nnx.state(Network(nnx.Rngs(0))),
    "both halves of an nnx module": lambda: nnx.split(Network(nnx.Rngs(0))),
    "an optimizer of nnx": lambda: nnx.Optimizer(Network(nnx.Rngs(0)), OPTIMIZER, wrt=nnx.Param),
    "a module of equinox": lambda: eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)),
    "a chain of optax": lambda: optax.chain(
        optax.clip(1.0), optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)
    ).init({"w": jnp.ones(2)}),
    "own types": lambda: [Pair(jnp.ones(2), 1), Layer(jnp.zeros(2), ("tanh", 3))],
    "a function in static data": lambda: Layer(jnp.zeros(2), jnp.tanh),
    "functions in a tuple of static data": lambda: Layer(jnp.zeros(2), (3, [jnp.tanh, "x"])),
    "functions as leaves": lambda: {"f": jnp.tanh, "l": [len, 1], "p": Pair(functools.reduce, 2)},
    "an optimizer": lambda: {"tx": optax.adam(1e-3), "step": 3},
    "children of one key": lambda: {"t": Twins(jnp.ones(1), 2)},
}


@pytest.mark.parametrize("name", STATES)
def test_any_tree_saves_and_a_template_restores_it(name: str, tmp_path: Path) -> None:
    tree = STATES[name]()
    treepack.save(tmp_path / "tree", tree)
    assert_same(treepack.load(tmp_path / "tree", tree), tree)
    assert_same(treepack.load(tmp_path / "tree", tree, strict="exact"), tree)
    assert_same(treepack.load(tmp_path / "tree", tree, missing="target", select="**"), tree)
    assert_same(treepack.loads(treepack.dumps(tree), static=tree), tree)
    assert treepack.verify(tmp_path / "tree").ok
    assert treepack.open(tmp_path / "tree").load(unknown="dict") is not None
    flax.serialization.msgpack_restore((tmp_path / "tree").read_bytes())


@pytest.mark.parametrize("name", ["a train state", "a module of equinox", "a chain of optax"])
def test_a_template_without_arrays(name: str) -> None:
    tree = STATES[name]()
    template = eqx.filter_eval_shape(STATES[name])
    assert_same(treepack.loads(treepack.dumps(tree), template), tree)


def test_trees_of_libraries_load_without_a_template() -> None:
    for name in ("the state of an nnx module", "a chain of optax"):
        tree = STATES[name]()
        assert_same(treepack.loads(treepack.dumps(tree)), tree)


@pytest.mark.campaign
def test_a_process_that_has_imported_the_library(tmp_path: Path) -> None:
    save = (
        "import optax, sys, treepack\n"
        "treepack.save(sys.argv[1], optax.adam(1e-3).init({'w': 1.0}))\n"
    )
    code = "import sys, treepack\nprint(type(treepack.load(sys.argv[1])[0]).__name__)"
    path = str(tmp_path / "tree")

    def run(program: str) -> Any:
        command = [sys.executable, "-c", program, path]
        return subprocess.run(command, capture_output=True, text=True)

    assert run(save).returncode == 0
    assert run("import optax\n" + code).stdout.split() == ["ScaleByAdamState"]
    without = run(code).stderr
    assert "UnregisteredTypeError" in without
    assert "import optax" in without
    for part in ("EmptyState", "ScaleByAdamState"):
        assert f"'optax:{part}'" in without


def test_errors_name_what_a_template_must_supply() -> None:
    with pytest.raises(treepack.UnregisteredTypeError) as caught:
        treepack.loads(treepack.dumps([Pair(1, Plain(2)), Layer(3)]))
    for ty in (Pair, Plain, Layer):
        assert f"{ty.__module__}.{ty.__name__}" in str(caught.value)
    assert 'unknown="dict"' in str(caught.value)
    assert "template" in str(caught.value)
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at f: .*tanh"):
        treepack.loads(treepack.dumps({"f": jnp.tanh, "x": 1}))
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at apply_fn: .*at tx: "):
        treepack.loads(treepack.dumps(train_state()))
    assert treepack.loads(treepack.dumps([Pair(1, 2)]), unknown="dict") == [{"a": 1, "b": 2}]
    assert treepack.loads(treepack.dumps({"f": jnp.tanh, "x": 1}), unknown="dict") == {
        "f": {},
        "x": 1,
    }


def test_all_placeholders_are_reported_at_once() -> None:
    tree = {"a": train_state(), "b": [jnp.tanh, {"c": custom}], "w": jnp.ones(2)}
    data = treepack.dumps(tree)
    with pytest.raises(treepack.errors.PlaceholderError) as caught:
        treepack.loads(data)
    for path in ("a/apply_fn", "a/tx", "b/0", "b/1/c"):
        assert f"at {path}: " in str(caught.value)
        assert f"'{path}': ..." in str(caught.value)
    with pytest.raises(treepack.errors.PlaceholderError) as caught:
        treepack.loads(data, static={"a": tree["a"], "b/0": jnp.tanh, "b/1/d": custom})
    assert str(caught.value).startswith("at b/1/c: ")
    assert "'b/1/d'" in str(caught.value)
    with pytest.raises(treepack.errors.PlaceholderError, match="; and 70 more: pass a target"):
        treepack.loads(treepack.dumps([custom] * 100 + [1]))
    # Types that are not known come first: without them nothing helps.
    with pytest.raises(treepack.UnregisteredTypeError, match="Layer"):
        treepack.loads(treepack.dumps({"a": custom, "b": Layer(1)}))
    assert treepack.loads(data, unknown="dict")["b"] == [{}, {"c": {}}]


def test_static_fills_code_by_its_path_or_one_above() -> None:
    optimizer = optax.adam(1e-3)
    tree = {"tx": optimizer, "f": [len, jnp.tanh], "x": 1}
    data = treepack.dumps(tree)
    for static in (
        {"tx": optimizer, "f/0": len, "f/1": jnp.tanh},
        {"tx": optimizer, "f": [len, jnp.tanh]},
        {"tx/init": optimizer.init, "tx/update": optimizer.update, "f": [len, jnp.tanh]},
    ):
        assert treepack.loads(data, static=static) == tree
    layer = Layer(1, {"a": (3, custom)})
    data = treepack.dumps([layer])
    for static in ([layer], {"0": layer}, {"0": Layer(5), "0/act": layer.act}):
        assert treepack.loads(data, static=static) == [layer]
    static = {"x": Layer(5), "0/act/a/1": jnp.sin}
    assert treepack.loads(data, static=static) == [Layer(1, {"a": (3, jnp.sin)})]


def test_the_tree_in_static_brings_types_by_their_own_names() -> None:
    class Later(NamedTuple):
        a: Any

    data = treepack.dumps([Later(1), {"b": Pair(1, 2)}])
    treepack.register_namedtuple(Later, serialized_name="tests.unregistered.later")
    template = [Later(0), {"b": Pair(0, 0)}]
    assert treepack.loads(data, static=template) == [Later(1), {"b": Pair(1, 2)}]
    assert type(treepack.loads(data, template)[0]) is Later


def test_types_of_one_name() -> None:
    first, second = (collections.namedtuple("Same", "a", module="somewhere") for _ in range(2))
    tree = [first(1), second(2)]
    data = treepack.dumps(tree)
    found = treepack.loads(data, tree)
    assert [type(node) for node in found] == [first, second]
    with pytest.raises(treepack.UnregisteredTypeError, match=r"2 types in static= .*Same.*target"):
        treepack.loads(data, static=tree)
    other = collections.namedtuple("Same", "a b", module="somewhere")
    with pytest.raises(treepack.UnregisteredTypeError) as caught:
        treepack.loads(treepack.dumps([first(1), other(2, 3)]))
    assert str(caught.value).startswith("unregistered type 'somewhere.Same': pass a template")


def test_a_tree_in_static_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    types_of_it = [collections.namedtuple(f"N{i}", "a") for i in range(50)]
    tree = [*(ty(1) for ty in types_of_it), *({"f": len} for _ in range(50))]
    data = treepack.dumps(tree)
    calls = []
    kind_of = lookups.kind_of
    monkeypatch.setattr(lookups, "kind_of", lambda value: calls.append(0) or kind_of(value))
    assert treepack.loads(data, static=tree) == tree
    assert len(calls) < 1000


def test_strange_values_are_not_errors_of_their_own() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    class Asking:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    itself: list[Any] = []
    itself.append(itself)
    nested: Any = 0
    for _ in range(3000):
        nested = Layer(0, nested)
    for value in (Silent(), Asking(), itself, nested):
        with pytest.raises(treepack.UnserializableLeafError, match=r"at \.: .*Layer: .*act"):
            treepack.dumps(Layer(1, value))
    nowhere = collections.namedtuple("Nowhere", "a")
    nowhere.__module__ = None  # type: ignore[assignment]
    assert treepack.loads(treepack.dumps([nowhere(1)]), [nowhere(0)]) == [nowhere(1)]


def test_modules_and_signatures_are_code() -> None:
    tree = Layer(1, (np, inspect.signature(custom)))
    assert treepack.loads(treepack.dumps(tree), Layer(0, tree.act)) == tree
    wrapped = {"f": eqx.filter_jit(custom)}
    assert_same(treepack.loads(treepack.dumps(wrapped), wrapped), wrapped)


def test_code_with_arrays_is_refused() -> None:
    class Callable:
        def __init__(self) -> None:
            self.table = jnp.ones(3)

        def __call__(self) -> None: ...

    class Slotted:
        __slots__ = ("inner",)

        def __init__(self) -> None:
            self.inner = Callable()

        def __call__(self) -> None: ...

    module = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    method = types.MethodType(lambda self: None, module)
    for code in (
        functools.partial(custom, jnp.ones(3)),
        functools.partial(custom, x=[np.ones(3)]),
        functools.partial(functools.partial(custom, jnp.ones(3)), 1),
        functools.partial(custom, [functools.partial(custom, x=np.ones(2))]),
        optax.GradientTransformation(custom, functools.partial(custom, np.ones(2))),
        Callable(),
        Slotted(),
        method,
    ):
        for tree in ({"a": [code]}, {"a": [Layer(1, code)]}):
            with pytest.raises(treepack.UnserializableLeafError, match=r"at a/0.* holds arrays"):
                treepack.dumps(tree)


def bound(constant: Any) -> Any:
    return lambda *_: constant


class Schedule:
    """Any callable with data."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> None: ...


class Slots:
    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self) -> None: ...


class Stateless:
    def __call__(self) -> None: ...


def test_callables_with_data_are_refused() -> None:
    foreign = type("Tensor", (), {"__dlpack__": None})()
    array = np.ones(3)
    for code, reason in (
        (Schedule(1), "has data"),
        (Schedule(1).__call__, "has data"),
        (Slots(1), "has data"),
        (functools.partial(custom, 3.0), "has data"),
        (operator.itemgetter(1), "has data"),
        (weakref.ref(Schedule), "has data"),
        (weakref.WeakMethod(Stateless().__call__), "has data"),
        ({"a": 1}.get, "has data"),
        (np.random.default_rng(0).normal, "has data"),
        (bound(array), "holds arrays"),
        (bound({"a": [Schedule(array)]}), "holds arrays"),  # type: ignore[arg-type]
        (bound(foreign), "holds arrays"),
        (bound(jax.random.key(0)), "holds arrays"),
        (lambda x, w=array: w, "holds arrays"),
        (functools.wraps(custom)(bound(array)), "holds arrays"),
        (functools.lru_cache(bound(array)), "holds arrays"),
        (jax.jit(bound(array)), "holds arrays"),
        (jax.vmap(bound(array)), "holds arrays"),
        (array.sum, "holds arrays"),
        (jnp.ones(3).sum, "holds arrays"),
        (nn.Dense(1).bind({"params": {"kernel": array}}), "holds arrays"),
        (nn.Dense(1).bind({"params": {"kernel": array}}).apply, "holds arrays"),
    ):
        with pytest.raises(treepack.UnserializableLeafError, match=f"at a/0: .*{reason}"):
            treepack.dumps({"a": [code]})
        with pytest.raises(treepack.UnserializableLeafError, match=r"at a: .*Layer: .*act"):
            treepack.dumps({"a": Layer(1, code)})
    with pytest.raises(treepack.UnserializableLeafError, match=r"at a: partial: .* has data"):
        treepack.dumps({"a": collections.defaultdict(functools.partial(list, [1]))})
    # As the errors say:
    skipped = treepack.dumps([Schedule(1), Layer(1, Schedule(2))], static="skip")
    template = [Schedule(3), Layer(0, Schedule(4))]
    assert treepack.loads(skipped, template)[1].act is template[1].act
    partial = jax.tree_util.Partial(custom, array)
    assert_same(treepack.loads(treepack.dumps({"a": partial}), {"a": partial}), {"a": partial})


def test_what_has_no_data_is_code() -> None:
    schedule = optax.cosine_onecycle_schedule(100, 0.1)  # which closes over arrays
    codes = [
        *(len, np.dot, np.add, np.vectorize(len), jax.nn.relu, jax.jit(custom), jax.vmap(custom)),
        *(
            Stateless(),
            Stateless().__call__,
            functools.partial(custom),
            functools.partial(len, len),
        ),
        *(functools.wraps(custom)(bound(1e-3)), functools.lru_cache(custom), list[int], str.upper),
        *(MODEL, MODEL.apply, nn.initializers.lecun_normal(), jax.custom_jvp(custom)),
        *(optax.adam(schedule), optax.adam(bound(np.ones(2)))),
        optax.MultiSteps(OPTIMIZER, 2).gradient_transformation(),
        optax.adam(jnp.asarray(0.1)),
        bound(jnp.asarray(0.1)),
    ]
    for code in codes:
        tree = {"a": code, "b": Layer(1, code)}
        assert treepack.loads(treepack.dumps(tree), tree)["b"].act is code


def test_data_without_a_form_are_never_left_out_by_themselves() -> None:
    class Config:
        pass

    with pytest.raises(
        TypeError, match=r"at m: .*Layer: the field 'act': .*register_auxdata.*skip"
    ):
        treepack.dumps({"m": Layer(1, Config())})
    with pytest.raises(TypeError, match="Config"):
        treepack.dumps({"m": Layer(1, (jnp.tanh, Config()))})
    config = Config()
    data = treepack.dumps({"m": Layer(1, config)}, static="skip")
    assert treepack.loads(data, {"m": Layer(0, config)})["m"] == Layer(1, config)
    with pytest.raises(treepack.errors.PlaceholderError, match="at m/act"):
        treepack.loads(data, static={"n": Layer(0)})
    with pytest.raises(ValueError, match="static must be "):
        treepack.dumps({}, static={"tx": 1})  # type: ignore[arg-type]
    for tree in ({"f": len}, Layer(1, len), train_state()):
        with pytest.raises(TypeError):
            treepack.dumps(tree, static="error")
    assert b"tanh" in treepack.dumps(Layer(1, "tanh"), static="error")


def test_leaves_without_a_form_are_left_out_on_request() -> None:
    class Marker:
        pass

    marker = Marker()
    tree = {"a": [marker, jnp.ones(2)], "p": Pair(marker, 1)}
    with pytest.raises(treepack.UnserializableLeafError, match=r"at a/0: .*Marker"):
        treepack.dumps(tree)
    data = treepack.dumps(tree, static="skip")
    for found in (treepack.loads(data, tree), treepack.loads(data, static=tree)):
        assert found["a"][0] is marker
        assert found["p"] == Pair(marker, 1)
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at a/0: .*Marker.*at p/a: "):
        treepack.loads(data, static={"x": Pair(0, 0)})
    for value in (np.ma.masked_array([1.0], [True]), type("Text", (str,), {})("x")):
        with pytest.raises(treepack.UnserializableLeafError):
            treepack.dumps({"a": value}, static="skip")
    with pytest.raises(treepack.UnserializableLeafError, match="traced value"):
        jax.jit(lambda x: treepack.dumps({"a": x}, static="skip") and x)(1.0)


def test_code_at_the_root_is_an_error(tmp_path: Path) -> None:
    for code in (jnp.tanh, MODEL):
        with pytest.warns(UserWarning, match="no data") as warned:
            data = treepack.dumps(code)
        assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match="no data"):
            treepack.save(tmp_path / "code", code)
        for load in (
            functools.partial(treepack.loads, data),
            lambda: treepack.load(tmp_path / "code"),
            lambda: treepack.open(tmp_path / "code").load(),
            lambda: treepack.abstract(tmp_path / "code"),
        ):
            with pytest.raises(treepack.PlaceholderError, match=r"at \."):
                load()
        assert treepack.loads(data, static={".": code}) is code
        assert treepack.loads(data, static=code) is code


def test_a_tree_of_nothing_but_code_warns() -> None:
    for tree in ({"f": MODEL.apply}, [OPTIMIZER, None], {"f": {"a": len}}):
        with pytest.warns(UserWarning, match="no data: .*save its variables"):
            treepack.dumps(tree)
    for tree in ({}, None, [()], {"f": len, "x": 1}, optax.sgd(0.1).init({"w": 1.0})):
        treepack.dumps(tree)


def new_state() -> Any:
    return {"w": jnp.zeros(2)}


class Attributes:
    def __init__(self) -> None:
        self.w = jnp.zeros(2)


def test_code_is_not_a_template(tmp_path: Path) -> None:
    data = treepack.dumps({"w": jnp.ones(2)})
    treepack.save(tmp_path / "tree", {"w": jnp.ones(2)})
    for target, remedy in (
        (new_state, r"jax\.eval_shape\(new_state\)"),
        (jax.jit(new_state), "call it"),
        (functools.partial(new_state), "call it"),
        (dict, r"type \(dict\)"),
        (MODEL, r"jax\.eval_shape\(module\.init"),
        (np, "a tree of arrays"),
        (Attributes(), "register its type"),
        ((number for number in range(3)), "a tree of arrays"),
        (slice(3), "a tree of arrays"),
    ):
        for load in (
            lambda target: treepack.loads(data, target),
            lambda target: treepack.load(tmp_path / "tree", target),
            lambda target: treepack.load(tmp_path / "tree", target, select="w"),
            lambda target: treepack.open(tmp_path / "tree").load(target),
        ):
            with pytest.raises(TypeError, match=f"the target must be a tree, got a .*{remedy}"):
                load(target)
    assert treepack.loads(data, jax.eval_shape(new_state))["w"].sum() == 2


def test_the_template_keeps_its_code() -> None:
    data = treepack.dumps({"f": jnp.tanh, "x": jnp.ones(2)})
    found = treepack.loads(data, {"f": jnp.sin, "x": jnp.zeros(2)})
    assert found["f"] is jnp.sin
    assert serialization.from_bytes({"f": jnp.sin, "x": jnp.zeros(2)}, data)["f"] is jnp.sin
    for leaf in (jnp.zeros(2), None):
        with pytest.raises(treepack.MismatchError, match=r"f: expected .*, found .*code"):
            treepack.loads(data, {"f": leaf, "x": jnp.zeros(2)})
    arrays = treepack.dumps({"f": jnp.ones(2), "x": jnp.ones(2)})
    with pytest.raises(treepack.MismatchError, match=r"f: expected function, found float32\[2\]"):
        treepack.loads(arrays, {"f": custom, "x": jnp.zeros(2)})


@pytest.mark.campaign
def test_a_program_that_registers_the_name_reads_them() -> None:
    data = treepack.dumps([Plain(np.arange(3), "m"), Layer(2)])
    code = """if True:
        import dataclasses, sys, treepack
        from typing import Any
        @treepack.register_dataclass(serialized_name="test_unregistered.Layer")
        @dataclasses.dataclass
        class Layer:
            w: Any
            act: Any = dataclasses.field(default="relu", metadata={"static": True})
        @treepack.register_dataclass(serialized_name="test_unregistered.Plain")
        @dataclasses.dataclass
        class Plain:
            w: Any
            mode: Any = dataclasses.field(default="x", metadata={"static": True})
        print(treepack.loads(sys.stdin.buffer.read()))
    """
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[0] == (
        "[Plain(w=array([0, 1, 2]), mode='m'), Layer(w=2, act='relu')]"
    )


def test_a_name_that_another_type_has() -> None:
    mine = type("Taken", (NamedTuple("Base", [("a", int)]),), {})
    other = treepack.register_namedtuple(
        collections.namedtuple("Other", "a"), serialized_name=f"{mine.__module__}.Taken"
    )
    data = treepack.dumps(mine(1))
    with pytest.raises(treepack.errors.PlaceholderError, match="Taken"):
        treepack.loads(data)
    assert type(treepack.loads(data, mine(0))) is mine
    assert type(treepack.loads(treepack.dumps(other(1)))) is other


def test_only_node_types_of_imported_libraries_are_found() -> None:
    assert library_types.find("optax:EmptyState") is optax.EmptyState
    assert library_types.find("optax.EmptyState") is optax.EmptyState
    assert library_types.find("optax:moved.elsewhere.EmptyState") is optax.EmptyState
    assert library_types.find("flax:nnx.State") is nnx.State
    for name in (
        "os:system",
        "optax",
        "optax:",
        "optax:adam",  # a function
        "jax:Array",  # no node
        "flax:linen.Dense",
        "jax:numpy.ndarray",
        "optax:__builtins__.dict",
        "equinox:nn._mlp.jax.tree_util.PyTreeDef",  # of another library
        "numpyro:infer.SVIState",  # not imported
        "optax:" + "a." * 10_000 + "b",
    ):
        assert library_types.find(name) is None
    assert "numpyro" not in sys.modules


@pytest.mark.parametrize(
    ("module", "is_found"), [("numpyro.infer", True), ("numpyro.distributions.x", False)]
)
def test_static_data_in_the_order_of_a_set(
    module: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = collections.namedtuple("State", "a", module=module)
    for name in ("numpyro", module):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules[module])["State"] = made
    path = module.removeprefix("numpyro.")
    assert library_types.find(f"numpyro:{path}.State") is (made if is_found else None)
    assert library_types.library_name(made) == (f"numpyro:{path}.State" if is_found else None)


def test_types_that_are_registered_keep_their_names() -> None:
    state = optax.TraceState(jnp.ones(2))
    assert b"optax:TraceState" in treepack.dumps(state)
    renamed = type("Renamed", (NamedTuple("Base", [("a", int)]),), {})
    assert b"Renamed" in treepack.dumps(renamed(1))
    treepack.register_namedtuple(renamed, serialized_name="tests.unregistered.renamed")
    assert b"tests.unregistered.renamed" in treepack.dumps(renamed(1))


def test_nodes_that_only_a_template_can_make() -> None:
    tree = {"a": Listing([1, jnp.ones(2)])}
    data = treepack.dumps(tree)
    found = treepack.loads(data, {"a": Listing([0, jnp.zeros(2)])})
    assert type(found["a"]) is Listing
    assert found["a"][0] == 1
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at a: .*Listing"):
        treepack.loads(data)


def test_types_are_freed_with_the_program_that_made_them() -> None:
    for make in (
        lambda: collections.namedtuple("Gone", "x y"),
        lambda: dataclasses.make_dataclass("Gone", ["x", "y"]),
    ):
        ty: Any = make()
        value = {"p": ty(np.ones(2), 2)}
        treepack.dumps(value)
        treepack.serialization.to_bytes(value)
        treepack.loads(treepack.dumps(value), value)
        gone = weakref.ref(ty)
        del ty, value
        gc.collect()
        assert gone() is None
