"""Strictness of templates: one error lists all mismatches."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
from tiers import examples
from treepack import serialization
from treepack.errors import Mismatch, MismatchError


def mismatches(template: Any, tree: Any, **options: Any) -> list[Mismatch]:
    """Returns the mismatches, by both families of verbs."""
    found: list[list[Mismatch]] = []
    strict = {name: value for name, value in options.items() if name == "strict"}
    for load in (
        lambda: treepack.loads(treepack.dumps(tree), template, **options),
        lambda: serialization.from_bytes(template, serialization.to_bytes(tree), **strict),
        lambda: serialization.from_state_dict(
            template, serialization.to_state_dict(tree), **strict
        ),
    ):
        try:
            load()
        except MismatchError as error:
            found.append(error.mismatches)
        else:
            found.append([])
        if options != strict:
            break
    assert all(one == found[0] for one in found)
    return found[0]


def paths(template: Any, tree: Any, **options: Any) -> list[str]:
    return [mismatch.path for mismatch in mismatches(template, tree, **options)]


F32 = np.zeros(2, np.float32)
F64 = np.zeros(2)
ABSTRACT = jax.ShapeDtypeStruct((2,), jnp.float32)

# Template, what is found, and at which levels of strictness that is a mismatch.
LEAVES = [
    (F32, F32, ()),
    (F32, F64, (True, "exact")),
    (F32, np.zeros(3, np.float32), (True, "exact")),
    (jnp.zeros(2), F64, ("exact",)),
    (ABSTRACT, F64, ("exact",)),
    (ABSTRACT, np.zeros(2, np.float16), (True, "exact")),
    (jax.ShapeDtypeStruct((2,), "int32"), np.zeros(2, np.int64), ("exact",)),
    (jax.ShapeDtypeStruct((2,), "int32"), np.zeros(2, np.uint64), (True, "exact")),
    (F32, None, (True, "exact")),
    (F32, 1.5, (True, "exact")),
    (F32, "text", (True, "exact")),
    (None, F32, (True, "exact")),
    (1.5, F32, (True, "exact")),
    ("text", F32, (True, "exact")),
    (1, np.zeros((), np.int32), ()),
    (1, np.int64(3), ()),
    (1, np.zeros((), np.float32), (True, "exact")),
    (1.5, np.zeros((), ml_dtypes.bfloat16), ()),
    (True, np.zeros((), bool), ()),
    (1, np.zeros((), bool), (True, "exact")),
    (np.zeros((), np.int32), 3, ()),
    (np.zeros((), np.int32), 3.5, (True, "exact")),
    (jnp.zeros((), jnp.int32), 3, ()),
    (np.zeros((1,), np.int32), 3, (True, "exact")),
    (1, 2.5, ("exact",)),
    (None, 3, ("exact",)),
    ("a", b"a", ("exact",)),
    (F32, {"a": 1}, (True, "exact")),
    (None, {"a": 1}, (True, "exact")),
    (3, {"a": 1}, (True, "exact")),
    (object(), F32, ()),
    (dict, F32, ()),
    (jax.random.key(0), jax.random.key(1), ()),
    (jax.random.key(0), np.zeros(2, np.uint32), (True, "exact")),
    (jax.random.key(0), jax.random.split(jax.random.key(0)), (True, "exact")),
]


@pytest.mark.parametrize("case", range(len(LEAVES)))
@pytest.mark.parametrize("strict", [True, False, "exact"])
def test_leaves(case: int, strict: Any) -> None:
    target, found, wrong = LEAVES[case]
    expected = ["x/0"] if strict in wrong else []
    assert paths({"x": [target]}, {"x": [found]}, strict=strict) == expected


def test_64_bits_count_where_jax_has_them() -> None:
    with jax.enable_x64(True):
        assert paths({"x": ABSTRACT}, {"x": F64}) == ["x"]
        assert paths({"x": jax.ShapeDtypeStruct((2,), "float64")}, {"x": F64}) == []


@pytest.mark.parametrize("found", [F32, {"a": 1}, None, 3])
def test_a_subtree_is_expected(found: Any) -> None:
    for strict in (True, False, "exact"):
        assert paths({"x": {"y": 1, "z": 2}}, {"x": found}, strict=strict)


def test_a_target_of_none_returns_the_state() -> None:
    tree = {"a": [F32]}
    assert list(serialization.from_state_dict(None, {"a": 1})) == ["a"]
    assert list(serialization.from_bytes(None, treepack.dumps(tree))) == ["a"]


class Point(NamedTuple):
    x: Any
    y: Any


@flax.struct.dataclass
class Struct:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = None


def test_all_mismatches_are_reported_at_once() -> None:
    template = {
        "a": F32,
        "kernel": F32,
        "list": [F32, F32],
        "point": Point(F32, 1),
        "struct": Struct(F32, {"z": 1}),
        "plain": Plain(F32),
        "leaf": F32,
        "node": {"a": 1},
    }
    state = {
        "a": np.zeros(3, np.float32),
        "kernle": F32,
        "list": {"0": F64},
        "point": {"x": F64, "z": 1},
        "struct": {"x": F64, "y": {}},
        "plain": {"x": F32, "y": None, "w": 1},
        "leaf": {"b": 1},
        "node": 5,
    }
    with pytest.raises(MismatchError) as caught:
        serialization.from_state_dict(template, state)
    found = {mismatch.path: mismatch for mismatch in caught.value.mismatches}
    assert list(found) == [
        *("kernel", "kernle", "a", "list", "list/0", "point/y", "point/z", "point/x"),
        *("struct/x", "struct/y/z", "plain/w", "leaf", "node"),
    ]
    assert found["kernel"] == ("kernel", "float32[2]", "nothing", "kernle")
    assert found["kernle"] == ("kernle", "nothing", "float32[2]", "")
    assert found["list"][1:3] == ("2 elements", "1 element")
    assert found["struct/y/z"][1:3] == ("int", "nothing")
    assert found["leaf"][1:3] == ("float32[2]", "a subtree with the keys ['b']")
    assert found["node"][1:3] == ("a subtree (dict)", "int")
    # flax's sentence, which programs match, and then all.
    assert str(caught.value).startswith("The target dict keys and state dict keys do not match")
    note = caught.value.__notes__[0]
    assert note.startswith("13 places do not match the template:\n  kernel: missing")
    assert "kernel: missing (expected float32[2]); is it kernle?" in note
    with pytest.raises(MismatchError, match="13 places") as native:
        treepack.loads(serialization.msgpack_serialize(state, in_place=True), template)
    listed, _, hints = str(native.value).partition("\nPass ")
    assert listed == note
    # Doing as they say leaves the leaves that differ.
    assert 'missing="target"' in hints
    assert 'unexpected="ignore"' in hints
    with pytest.raises(MismatchError, match="6 places") as left:
        treepack.load(
            serialization.msgpack_serialize(state, in_place=True),
            template,
            missing="target",
            unexpected="ignore",
        )
    assert {"leaf", "node"} < {it.path for it in left.value.mismatches}


@dataclasses.dataclass
class Spec:
    """Describes an array, as the abstract leaves of Orbax do."""

    shape: Any
    dtype: Any
    place: Any = None


@dataclasses.dataclass
class Settings:
    """Describes no array."""

    shape: Any
    dtype: str
    rate: Any = None


def test_dataclasses_that_describe_arrays_are_leaves() -> None:
    tree = {"w": np.ones(3, np.float32), "n": [np.arange(2), 1]}
    data, state = treepack.dumps(tree), serialization.to_bytes(tree)
    for dtype in (np.dtype("float32"), np.float32, jnp.float32):
        template = {"w": Spec((3,), dtype, {"some": "where"}), "n": [np.zeros(2, int), 0]}
        found, report = treepack.load(data, template, missing="target", return_report=True)
        assert report.loaded == ["w", "n/0", "n/1"]
        for strict in (True, False, "exact"):
            for found in (
                treepack.loads(data, template, strict=strict),
                treepack.load(data, template, select="**", strict=strict),
                treepack.load(state, template, mapping={"w": "w"}, strict=strict),
                serialization.from_bytes(template, state, strict=strict),
            ):
                assert type(found["w"]) is np.ndarray
                assert found["w"].dtype == np.float32
        other = template | {"w": Spec((4,), dtype)}
        assert mismatches(other, tree) == [Mismatch("w", "float32[4]", "float32[3]")]
        assert treepack.loads(data, other, strict=False)["w"].shape == (3,)
    half = {"w": Spec((3,), ml_dtypes.bfloat16), "n": [np.zeros(2, int), 0]}
    assert treepack.loads(data, half, cast=True)["w"].dtype == ml_dtypes.bfloat16
    assert treepack.load(data, half, select="n")["w"] is half["w"]
    lacking = half | {"v": Spec((2,), np.float32)}
    found, report = treepack.load(data, lacking, cast=True, missing="target", return_report=True)
    assert (found["v"], report.kept) == (lacking["v"], ["v"])
    with pytest.raises(treepack.UnserializableLeafError, match="save the array"):
        treepack.dumps(half)
    saved = {"m": Settings((2, 3), "float32", np.ones(2))}
    found = treepack.loads(treepack.dumps(saved), saved)["m"]
    assert (found.shape, found.dtype, found.rate.tolist()) == ((2, 3), "float32", [1, 1])


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(6, np.int32),
        np.zeros((6, 1), np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros(7, np.float32),
        np.zeros((), np.float32),
        F64,
    ],
)
def test_one_array_among_many_that_are_alike(other: Any) -> None:
    usual = {str(at): np.full(6, at, np.float32) for at in range(150)}
    for at in (0, 1, 2, 64, 65, 66, 130, 149):
        odd = {**usual, str(at): other}
        assert [found.path for found in mismatches(usual, odd)] == [str(at)]
        assert [found.path for found in mismatches(odd, usual)] == [str(at)]
        assert mismatches(odd, odd) == []
        loaded = serialization.from_bytes(odd, serialization.to_bytes(odd))
        jax.tree.map(np.testing.assert_array_equal, loaded, odd)


def test_long_lists_of_differences_are_cut() -> None:
    template = {str(index): F32 for index in range(200)}
    state = dict.fromkeys(template, F64)
    with pytest.raises(MismatchError, match="and 150 more") as caught:
        serialization.from_state_dict(template, state)
    assert len(caught.value.mismatches) == 200


def test_no_code_of_the_program_sees_what_does_not_fit() -> None:
    @dataclasses.dataclass
    class Checked:
        w: Any

    class Made(NamedTuple):
        w: Any

    @flax.struct.dataclass
    class Picky:
        w: Any

        def __post_init__(self) -> None:
            assert self.w.shape == (2,)

    for template in (Checked(F32), Made(F32), Picky(F32)):
        assert paths([template], {"0": {"w": np.zeros(3)}}) == ["0/w"]


def test_paths_of_odd_keys() -> None:
    template = {"a/b": {"~": F32, "": F32}, ".": F32}
    wrong = {"a/b": {"~": F64, "": F64}, ".": F64}
    assert paths(template, wrong) == ["a~1b/~0", "a~1b/", "~2"]
    issues = serialization.validate_serializable({"a/b": [object()]})[1]
    assert issues[0].startswith("a~1b/0: ")
    with pytest.raises(treepack.UnserializableLeafError) as caught:
        treepack.dumps({"a/b": [object()]})
    assert caught.value.path == "a~1b/0"


# A naive oracle


def leaves() -> st.SearchStrategy[Any]:
    arrays = st.sampled_from([F32, F64, np.zeros(3, np.float32), np.zeros((), np.int32)])
    return st.one_of(arrays, st.sampled_from([None, 1, 1.5, "text", ABSTRACT]))


def trees() -> st.SearchStrategy[Any]:
    keys = st.sampled_from("abc")
    return st.recursive(
        leaves(),
        lambda below: st.one_of(
            st.dictionaries(keys, below, max_size=3),
            st.lists(below, max_size=2),
            st.builds(Point, below, below),
            st.builds(Struct, below, below),
            st.builds(Plain, below, below),
        ),
        max_leaves=8,
    )


def change(tree: Any, draw: Any) -> Any:
    """Returns a state dict that differs from that of a tree here and there."""
    if isinstance(tree, dict):
        changed = {}
        for key, value in tree.items():
            what = draw(st.integers(0, 12))
            if what == 0:
                continue
            changed[f"{key}x" if what == 1 else key] = change(value, draw)
        if draw(st.integers(0, 12)) == 0:
            changed["more"] = 1
        return changed
    if draw(st.integers(0, 6)) == 0:
        return draw(st.sampled_from([F32, F64, np.zeros(3, np.float32), None, 1, {"a": 1}, {}]))
    return np.zeros(2, np.float32) if tree is ABSTRACT else tree


def oracle(target: Any, state: Any, path: str, exact: bool) -> set[str]:
    """Compares in the plainest way; for float32, float64 and int32 arrays, without jax."""
    below = lambda name: f"{path}/{name}" if path else name  # noqa: E731
    names = None
    if isinstance(target, dict):
        names = {key: target[key] for key in target}
    elif isinstance(target, (Point, Struct, Plain)):
        names = {"x": target.x, "y": target.y}
    elif isinstance(target, list):
        names = {str(index): value for index, value in enumerate(target)}
    if names is not None:
        if not isinstance(state, dict):
            return {path or "."}
        found = set()
        missing, more = names.keys() - state.keys(), state.keys() - names.keys()
        if isinstance(target, list) and len(state) != len(target):
            found.add(path or ".")
        elif missing or (more and (exact or not isinstance(target, dict))):
            found |= {below(name) for name in missing | more}
        for name in names.keys() & state.keys():
            found |= oracle(names[name], state[name], below(name), exact)
        return found
    array = isinstance(target, np.ndarray) or target is ABSTRACT
    if isinstance(state, dict):
        same = False
    elif array and isinstance(state, np.ndarray):
        dtypes = {target.dtype, state.dtype}
        as_jax = target is ABSTRACT and not exact and dtypes <= {np.dtype("f4"), np.dtype("f8")}
        same = target.shape == state.shape and (len(dtypes) == 1 or as_jax)
    elif array:
        same = type(state) is int and target.shape == () and target.dtype.kind == "i"
    elif isinstance(state, np.ndarray):
        same = type(target) is int and state.shape == () and state.dtype.kind == "i"
    else:
        same = not exact or type(target) is type(state)
    return set() if same else {path or "."}


@examples(400)
@given(st.data(), st.sampled_from([True, "exact"]))
def test_differences_are_those_of_an_oracle(data: Any, strict: Any) -> None:
    template = data.draw(trees())
    state = change(serialization.to_state_dict(template), data.draw)
    expected = set() if template is None else oracle(template, state, "", strict == "exact")
    try:
        serialization.from_state_dict(template, state, strict=strict)
        found: set[str] = set()
    except MismatchError as error:
        found = {mismatch.path for mismatch in error.mismatches}
    assert found == expected


class Left(NamedTuple):
    a: int


class Right(NamedTuple):
    a: int


KINDS: list[tuple[Any, Any, str]] = [
    ((1, 2), [1, 2], "expected a container of the type list, found tuple"),
    ([], {}, "expected a container of the type dict, found list"),
    ([1, 2], {"0": 1, "1": 2}, "expected a container of the type dict, found list"),
    (Left(1), {"a": 1}, r"expected a container of the type dict, found strict\.Left"),
    (Left(1), Right(1), r"expected a container of the type strict\.Right, found strict\.Left"),
    ({1: 2}, {"1": 2}, "type dict, found dict with keys other than strings"),
    ({"1": 2}, {1: 2}, "type dict with keys other than strings, found dict"),
    (collections.OrderedDict(a=1), {"a": 1}, "type dict, found collections.OrderedDict"),
]


@pytest.mark.parametrize(("saved", "template", "message"), KINDS)
def test_exact_is_also_about_what_containers_are(saved: Any, template: Any, message: str) -> None:
    for ty in (Left, Right):
        treepack.register_namedtuple(ty, serialized_name=f"strict.{ty.__name__}")
    data = treepack.dumps({"x/y": [saved]})
    with pytest.raises(treepack.MismatchError, match=rf"x~1y/0: .*{message}"):
        treepack.loads(data, {"x/y": [template]}, strict="exact")
    found = treepack.loads(data, {"x/y": [template]})
    assert type(found["x/y"][0]) is type(template)
    same = treepack.loads(data, {"x/y": [saved]}, strict="exact")
    assert same == {"x/y": [saved]}
    assert type(same["x/y"][0]) is type(saved)
    # The root, and encoded without types, where nothing is known of them.
    with pytest.raises(treepack.MismatchError, match=message):
        treepack.loads(treepack.dumps(saved), template, strict="exact")
    flat = treepack.serialization.to_bytes({"x": saved})
    treepack.serialization.from_bytes({"x": template}, flat, strict="exact")


def test_types_that_were_not_saved_are_not_compared() -> None:
    """The state of a handler has no record."""

    class Box:
        def __init__(self, value: Any):
            self.value = value

    treepack.serialization.register_serialization_state(
        Box,
        lambda box: {"value": treepack.serialization.to_state_dict(box.value)},
        lambda box, state: Box(
            treepack.serialization.from_state_dict(box.value, state["value"], name="value")
        ),
    )
    data = treepack.dumps([Box([1, (2,)])])
    assert treepack.loads(data, [Box([0, (0,)])], strict="exact")[0].value == [1, (2,)]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.int8], ids=str)
def test_a_scalar_of_numpy_in_a_template_gets_a_scalar(dtype: Any, tmp_path: Any) -> None:
    template = {"a": np.dtype(dtype).type(0), "w": np.zeros(2)}
    for saved in (template["a"] + np.dtype(dtype).type(3), np.array(3, dtype), jnp.array(3, dtype)):
        tree = {"a": saved, "w": np.ones(2)}
        treepack.save(tmp_path / "tree", tree)
        for found in (
            treepack.load(tmp_path / "tree", template),
            treepack.load(tmp_path / "tree", template, select="a"),
            treepack.load(tmp_path / "tree", template, cast=True),
            treepack.load(tmp_path / "tree", template, arrays="numpy"),
            treepack.loads(treepack.dumps(tree), template),
            treepack.loads(treepack.dumps(tree), template, arrays="numpy"),
        ):
            assert type(found["a"]) is type(template["a"])
            assert found["a"] == 3


@pytest.mark.parametrize(("dtype", "number"), [("int32", 0), ("bfloat16", 0.5), ("bool", True)])
def test_a_number_in_a_template_gets_a_number(dtype: str, number: Any, tmp_path: Any) -> None:
    for saved in (np.array(number, np.dtype(dtype)), jnp.array(number, dtype)):
        treepack.save(tmp_path / "tree", {"a": saved})
        for found in (
            treepack.load(tmp_path / "tree", {"a": number}),
            treepack.load(tmp_path / "tree", {"a": number}, arrays="numpy"),
            treepack.load(tmp_path / "tree", {"a": number}, select="a"),
            treepack.loads(treepack.dumps({"a": saved}), {"a": number}),
        ):
            assert type(found["a"]) is type(number)
            assert found["a"] == number


LAYER = {"w": F32}

# The template, the state, and an option that the error suggests.
SUGGESTED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "longer": ([LAYER, LAYER], [LAYER], {"missing": "target"}),
    "shorter": ([LAYER], [LAYER, LAYER], {"unexpected": "ignore"}),
    "None in the template": (None, [LAYER], {"exclude": "part"}),
    "None in the file": ([LAYER], None, {"missing": "target"}),
    "None for an array": (F32, None, {"missing": "target"}),
}


@pytest.mark.parametrize("name", SUGGESTED)
def test_options_that_an_error_suggests_work(name: str) -> None:
    template, state, options = SUGGESTED[name]
    data = treepack.dumps({"part": state, "n": 1})
    with pytest.raises(MismatchError) as caught:
        treepack.load(data, {"part": template, "n": 0})
    [(option, value)] = options.items()
    assert f"Pass {option}={value!r}".replace("'", '"') in str(caught.value).replace("'", '"')
    assert "one level deeper" not in str(caught.value)
    found = treepack.load(data, {"part": template, "n": 0}, **options)
    assert found["n"] == 1
    assert jax.tree.structure(found["part"]) == jax.tree.structure(template)
