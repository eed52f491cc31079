"""Which leaves `select=` and `mapping=` mean, and the way that reads them without a state dict."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.struct
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.restore import template as _template

ARRAY = np.arange(3, dtype=np.float32)


@flax.struct.dataclass
class Node:
    a: Any
    b: Any


def leaves() -> st.SearchStrategy[Any]:
    plain = st.sampled_from([1, 2.5, "s", None, True, 1j, b"b"])
    arrays = st.sampled_from([np.float32(3), np.int64(4), ARRAY, ARRAY[:0], ARRAY > 0])
    of_jax = st.sampled_from([jnp.ones(2), jnp.zeros(3), jax.random.key(1)])
    return st.one_of(plain, arrays, of_jax)


def templates() -> st.SearchStrategy[Any]:
    more = st.sampled_from([jax.ShapeDtypeStruct((3,), np.float32), jnp.ones((2,), jnp.int32)])
    return trees(st.one_of(leaves(), more))


def trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "a/b", "0", "~"])

    def containers(child: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.dictionaries(names, child, max_size=3),
            st.lists(child, max_size=3),
            st.tuples(child, child),
            st.builds(Node, child, child),
        )

    return st.recursive(leaf, containers, max_leaves=8)


PATTERNS = st.lists(
    st.sampled_from(["a", "**", "*", "**/b", "a/*", "?", "0", "b/**", "a~1b", ".", "x"]), max_size=2
)


def plain(tree: Any) -> Any:
    """Returns a tree with types and elements in the place of containers and arrays."""
    if isinstance(tree, dict):
        return dict, [(key, plain(child)) for key, child in tree.items()]
    if isinstance(tree, (list, tuple)):
        return type(tree), [plain(child) for child in tree]
    if isinstance(tree, Node):
        return Node, plain(tree.a), plain(tree.b)
    if isinstance(tree, jax.Array) and jnp.issubdtype(tree.dtype, jax.dtypes.prng_key):
        return str(tree.dtype), jax.random.key_data(tree).tolist()
    if isinstance(tree, (np.ndarray, np.generic, jax.Array)):
        return type(tree), tree.dtype, tree.shape, np.asarray(tree).tolist()
    return type(tree), tree


def outcome(load: Any) -> Any:
    try:
        found = load()
        if isinstance(found, tuple) and isinstance(found[-1], treepack.Report):
            return plain(found[0]), [sorted(paths) for paths in found[1]]
        return plain(found)
    except treepack.TreepackError as error:
        return type(error), str(error), getattr(error, "__notes__", [])
    except (ValueError, TypeError, UserWarning) as error:
        return type(error), str(error)


@hypothesis.given(
    tree=trees(leaves()),
    template=templates(),
    same=st.booleans(),
    select=st.one_of(st.none(), PATTERNS, st.sampled_from([{"a": True, "b": False}, len])),
    missing=st.sampled_from(["error", "target"]),
    unexpected=st.sampled_from(["ignore", "error"]),
    strict=st.booleans(),
    cast=st.booleans(),
    arrays=st.sampled_from(["saved", "numpy"]),
    note=st.booleans(),
)
def test_both_ways_agree(
    tree: Any, template: Any, same: bool, select: Any, note: bool, **options: Any
) -> None:
    """Compares the walk of file and template in the core with the general way."""
    if same:
        template = jax.tree.map(lambda leaf: leaf, tree)
    file = treepack.open(serialization.to_bytes(tree))

    def load() -> Any:
        return file.load(template, select=select, return_report=note, **options)

    found = outcome(load)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_template, "needs_state", lambda *_: True)
        assert found == outcome(load)


@hypothesis.given(tree=trees(leaves()), template=templates(), same=st.booleans())
def test_whole_loads_agree_as_well(tree: Any, template: Any, same: bool) -> None:
    if same:
        template = jax.tree.map(lambda leaf: leaf, tree)
    data = serialization.to_bytes(tree)
    found = outcome(lambda: treepack.loads(data, template))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "restore_encoded", lambda *_: None)
        assert found == outcome(lambda: treepack.loads(data, template))


@pytest.mark.parametrize(
    ("select", "missing"),
    [(None, "target"), ("**", "error"), ("**/w", "error"), ({"p": True, "k": False}, "error")],
)
def test_no_state_dict_is_made_of_what_plainly_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, select: Any, missing: Any
) -> None:
    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("it was restored in the general way")

    tree = {"p": {"w": ARRAY, "n": Node(np.float32(1), (2, [jnp.ones(2)]))}, "k": jax.random.key(1)}
    template = {
        "k": jax.random.key(0),
        "p": {"n": Node(np.float32(0), (0, [jnp.zeros(2)])), "w": ARRAY * 0},
    }
    serialization.save_to_file(tree, tmp_path / "x")
    monkeypatch.setattr(_template, "restore_tree", made)
    found = treepack.load(tmp_path / "x", template, select=select, missing=missing)
    np.testing.assert_array_equal(found["p"]["w"], ARRAY)
    whole = treepack.load(tmp_path / "x", template)
    np.testing.assert_array_equal(whole["p"]["n"].b[1][0], [1, 1])
    assert isinstance(whole["p"]["n"].b[1][0], jax.Array)


def test_what_matches_nothing_is_an_error() -> None:
    file = treepack.open(treepack.dumps({"a": {"w": 1}, "b": 2}))
    template = {"a": {"w": 0}, "b": 0, "c": 0}
    for options in ({"missing": "target"}, {"missing": "error"}):
        for select in ("x", ["b", "x"], ["b", "a/*/x"]):
            # Without those of the template: it says "in the file".
            with pytest.raises(ValueError, match=r"select .*: .*x; .* a/w, b$"):
                file.load(template, select=select, **options)
            with pytest.raises(ValueError, match=r"exclude .*: .*x; .* a/w, b$"):
                file.load(template, exclude=select, **options)
        with pytest.raises(ValueError, match=r"rule 'a/w': 'x' matches|a/w: .*no x"):
            file.load(template, mapping={"a/w": "x", "b/{i}": "y/{i}"}, **options)
    # Leaves of the template may be missing in the file: an error, or kept.
    assert file.load(template, select=["b", "c"], missing="target")["b"] == 2
    with pytest.raises(treepack.MismatchError, match="c: missing"):
        file.load(template, select=["b", "c"])


def test_a_selection_must_reach_the_target() -> None:
    """Otherwise the target would come back as it was, as if it were loaded."""
    file = treepack.open(treepack.dumps({"params": {"w": 1}, "step": 2}))
    for select in ("params", ["params/w", "step"], "params/*"):
        with pytest.raises(treepack.TreepackError, match=r"params.* found w: .*'params'"):
            file.load({"w": 0}, select=select)
    assert file.load({"params": {"w": 0}}, select=["params", "step"]) == {"params": {"w": 1}}
    assert file.load({"w": 0}, mapping={"w": "params/w"}, select="w") == {"w": 1}
    assert file.load({"w": 0}, select="params", unexpected="ignore") == {"w": 0}


def test_a_file_that_lacks_what_is_meant_does_not_pass() -> None:
    """A part of the file without anything that is meant is looked at all the same."""
    file = treepack.open(treepack.dumps({"a": {"x": 1}, "b": {"w": 2}}))
    template = {"a": {"x": 0, "w": 0}, "b": {"w": 0}}
    with pytest.raises(treepack.MismatchError, match="a/w: missing"):
        file.load(template, select="**/w")
    assert file.load(template, select="b")["b"] == {"w": 2}


@pytest.mark.campaign
def test_patterns_and_masks_take_linear_time() -> None:
    """Whoever tries all ways, or all leaves for each, does not come to an end here."""
    path = "/".join(["a" * 2000] * 3)
    pattern = "*a" * 20 + "*b"
    file = treepack.open(treepack.dumps({path: 1, "c": 2}))
    with pytest.raises(ValueError, match="matches nothing"):
        file.load(select=[pattern, "c"])
    empty = {str(number): () for number in range(50_000)}
    file = treepack.open(treepack.dumps({"a": empty, "b": {"c": 1}}))
    assert file.load(select={"b": True}) == {"a": empty, "b": {"c": 1}}
    with pytest.warns(UserWarning, match="leave out every leaf"):
        assert file.load(select={"b": False}) == {}
    names = [f"layer{number}/w" for number in range(50_000)]
    file = treepack.open(treepack.dumps({f"layer{number}": {"w": 1} for number in range(50_000)}))
    assert len(file.load(select=names)) == 50_000


@pytest.mark.campaign
def test_renaming_takes_linear_time() -> None:
    data = msgpack.packb({**{f"a{number}": [number] for number in range(20_000)}, "c": 1})
    found = treepack.open(data).load({"c": 0}, mapping=lambda path: path, unexpected="ignore")
    assert found == {"c": 1}


@pytest.mark.parametrize("empty", [(), ("k",), ("k", "x"), ("x",)])
def test_empty_containers_follow_the_leaves_around_them(empty: tuple[str, ...]) -> None:
    """Where a mask has no bool for one, all leaves in the nearest container must be selected."""
    tree: Any = {"k": {"a": 1, "b": 2}, "c": 3}
    node = tree
    for part in empty:
        node = node.setdefault(part, {})
    node["empty"] = {}
    file = treepack.open(treepack.dumps(tree))
    for a, c in itertools.product([True, False], repeat=2):
        mask = {"k": {"a": a, "b": True}, "c": c}
        expected = file.load(select=mask)
        assert file.load(expected, mapping=lambda path: path, select=mask) == expected


@pytest.mark.campaign
def test_paths_are_not_made_for_patterns() -> None:
    """A long key above many leaves is in each of their paths."""
    code = (
        "import resource, treepack, numpy\n"
        "below = dict.fromkeys(map(str, range(2_000)), 1)\n"
        "data = treepack.dumps({'k' * 300_000: below, 'w': 2})\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)\n"
        "file = treepack.open(data)\n"
        "assert file.load(select='w') == {'w': 2}\n"
        "assert len(file.load(select='**')) == 2\n"
        "template = file.load()\n"
        "assert file.load(template, select=['**/7', 'w'])['w'] == 2\n"
        # A function takes whole paths, which together are much longer than the file.
        "try:\n"
        "    file.load(select=lambda path: path.endswith('/7'))\n"
        "except treepack.TreepackError as error:\n"
        "    assert 'open the container below such a key' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_tuple_is_one_path_and_a_list_is_several() -> None:
    tree = {"a": {"b": 1, "*": 2, "0": [3, 4]}, "b": {"b": 5}, "c": 6}
    file = treepack.open(treepack.dumps(tree))
    assert file.load(select=("a", "b")) == {"a": {"b": 1}}
    assert file.load(select=("a", "*")) == {"a": {"*": 2}}  # no wildcard
    assert file.load(select=("a", "0", 1)) == {"a": {"0": {"1": 4}}}
    assert file.load(select=()) == tree
    for several in (["c", ("b", "b")], {"c", ("b", "b")}):
        assert file.load(select=several) == {"b": {"b": 5}, "c": 6}
    assert file.load(select=["a", "c"]) == {"a": tree["a"], "c": 6}
    for template in (None, tree):
        with pytest.raises(ValueError, match=r"pass a list: \['b', 'c'\]"):
            file.load(template, select=("b", "c"))
        for typo in (("b", "x"), ["b/c"]):
            with pytest.raises(ValueError, match="matches nothing") as error:
                file.load(template, select=typo)
            assert "list" not in str(error.value)
    masked = treepack.open(treepack.dumps((1, 2)))
    assert masked.load(select=(True, False)) == {"0": 1}
    with pytest.raises(TypeError, match="pytree of bools"):
        masked.load(select=("a", 1.5))


NAMES: dict[str, Any] = {
    "paths": {"B/kernel": "params/B/k", "B/bias": "params/B/b", "head/kernel": "params/head/k"},
    "patterns": {"{i}/kernel": "params/{i}/k", "{i}/bias": "params/{i}/b"},
    "a function": lambda path: f"params/{path}".replace("/kernel", "/k").replace("/bias", "/b"),
}
RENAMED = {"B": {"kernel": np.zeros(2), "bias": np.zeros(1)}, "head": {"kernel": ARRAY * 0}}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("form", ["file", "flax", "gzip", "numbers", "directory"])
def test_new_last_names_where_a_whole_dict_is_left_out(
    form: str, names: str, tmp_path: Path
) -> None:
    """No list is there that a new name could split."""
    params = {"B": {"k": np.ones(2), "b": np.ones(1)}, "head": {"k": jnp.full(3, 5.0)}}
    tree, path = {"params": params, "list": [1, 2], "step": 1}, tmp_path / "saved"
    if form == "flax":
        path.write_bytes(serialization.msgpack_serialize(tree))
    else:
        compress: Any = form if form in ("gzip", "numbers") else False
        treepack.save(path, tree, compress=compress, sharded=form == "directory")
    for select in ("head", ["head/kernel"], lambda path: path.startswith("head"), ("head",)):
        found = treepack.load(path, RENAMED, mapping=NAMES[names], select=select)
        assert found["head"]["kernel"].tolist() == [5, 5, 5]
        assert found["B"]["bias"] is RENAMED["B"]["bias"]
    if form not in ("file", "directory"):
        return
    # A dict whose leaves are all damaged is left out as well.
    file = next(path.glob("*-00000.treepack")) if form == "directory" else path
    damaged = bytearray(file.read_bytes())
    at = damaged.index(np.full(3, 5, np.float32).tobytes())
    damaged[at] ^= 1
    file.write_bytes(damaged)
    skipping: dict[str, Any] = {"on_corrupt": "skip", "missing": "target", "verify": True}
    found, report = treepack.load(
        path, RENAMED, mapping=NAMES[names], return_report=True, **skipping
    )
    assert (found["head"]["kernel"].tolist(), report.corrupt) == ([0, 0, 0], ["head/kernel"])
    assert found["B"]["kernel"].tolist() == [1, 1]


@hypothesis.given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.binary(max_size=9),
        st.lists(st.sampled_from(b"'\"\\\n\x80a"), max_size=6).map(bytes),
        st.text(max_size=9),
    )
)
def test_foreign_keys_have_the_texts_of_python(key: Any):
    parts = [key.real, key.imag] if isinstance(key, complex) else key
    packed = msgpack.packb(parts)
    if isinstance(key, complex):
        packed = msgpack.packb(msgpack.ExtType(2, packed))
    found = treepack.load(b"\x81" + packed + b"\x07", select="**")
    assert found == {str(key): 7}
