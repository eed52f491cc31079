"""Files that are opened: their leaves, abstract trees, parts, reprs, pickles."""

from __future__ import annotations

import concurrent.futures
import gc
import gzip
import io
import mmap
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
import rich.console

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.readers.info import kind_text
from trees import record_of, sealed

TREE: dict[str, Any] = {
    "params": {
        "layers": [
            {"w": jnp.arange(12.0).reshape(4, 3), "b": np.arange(3, dtype=np.int8)},
            {"w": np.arange(4096.0).reshape(64, 64).astype(ml_dtypes.bfloat16), "b": None},
        ],
        "a/b": {"~c": 1.5},
    },
    "empty": {},
    "step": 7,
    "big": 2**63,
    "name": "text",
    "raw": b"bytes",
    "flag": True,
    "z": 1 + 2j,
    "scalar": np.float32(0.5),
    "key": jax.random.key(3),
    "none": np.zeros((0, 3)),
    "zero": np.array(4.0),
}
PATHS = [
    "params/layers/0/w",
    "params/layers/0/b",
    "params/layers/1/w",
    "params/layers/1/b",
    "params/a~1b/~0c",
    *("step", "big", "name", "raw", "flag", "z", "scalar", "key", "none", "zero"),
]


def forms(folder: Path, tree: Any) -> dict[str, Any]:
    """The same tree in all that can be opened."""
    treepack.save(folder / "saved", tree)
    treepack.save(folder / "packed", tree, compress=True)
    (folder / "flax").write_bytes(serialization.to_bytes(tree))
    return {
        "saved": folder / "saved",
        "read": folder / "saved",
        "packed": folder / "packed",
        "flax": folder / "flax",
        "dumps": treepack.dumps(tree),
        "gzip": treepack.dumps(tree, compress=True),
        "bytearray": bytearray(serialization.to_bytes(tree)),
        "object": io.BytesIO((folder / "saved").read_bytes()),
    }


FORMS = ["saved", "read", "packed", "flax", "dumps", "gzip", "bytearray", "object"]


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_have_the_same_leaves(tmp_path: Path, form: str) -> None:
    source = forms(tmp_path, TREE)[form]
    with treepack.open(source, mmap=form != "read") as file:
        assert [path for path, _ in file.leaves()] == PATHS
        assert list(file) == [key for key in TREE if key != "a/b"]
        assert list(file["params"]) == ["layers", "a~1b"]
        assert len(file["empty"]) == 0
        for path, leaf in file.leaves():
            expected: Any = serialization.to_state_dict(TREE)
            for part in path.split("/"):
                expected = expected[part.replace("~1", "/").replace("~0", "~")]
            if isinstance(leaf, treepack.LazyArray):
                assert leaf.shape == expected.shape
                assert leaf.dtype == expected.dtype
                assert leaf.nbytes == expected.nbytes
                np.testing.assert_array_equal(np.asarray(leaf), np.asarray(expected))
                np.testing.assert_array_equal(jnp.asarray(leaf), jnp.asarray(expected))
            elif path == "key":
                assert jnp.array_equal(jax.random.key_data(leaf), jax.random.key_data(expected))
            else:
                assert type(leaf) is type(expected)
                assert leaf == expected
        with pytest.raises(KeyError, match="params/nothing"):
            file["params/nothing"]
        assert "params/layers/0" in file
        place = jax.tree_util.DictKey("params"), jax.tree_util.DictKey("a/b")
        assert list(file[place]) == ["~0c"]
        assert file.abstract()["step"] == 7
        state = flax.serialization.to_state_dict(file.abstract())
        assert state["params"]["layers"]["1"]["w"].dtype == jnp.bfloat16
        assert jnp.issubdtype(state["key"].dtype, jax.dtypes.prng_key)


def test_an_abstract_tree_is_the_same_opened_or_not() -> None:
    """Lists of a state are one leaf of an index; keys may be of an implementation unknown here."""
    data = treepack.dumps(TREE)
    with treepack.open(data) as file:
        assert repr(file.abstract()) == repr(treepack.abstract(data))
        assert file["params/layers/0/w"].shape == (4, 3)
        assert file["params"].abstract()["a/b"] == {"~c": 1.5}
    data = serialization.msgpack_serialize({"list": [np.ones(2), {"x": np.ones(3)}], "n": 1})
    with treepack.open(data) as file:
        found = file.abstract()
        assert found["list"][0] == jax.ShapeDtypeStruct((2,), np.float64)
        assert found["list"][1]["x"].shape == (3,)
    key = {"__prng_key__": "no such", "data": np.zeros(2, np.uint32)}
    data = msgpack.packb({"key": key}, default=lambda it: msgpack.ExtType(1, _body(it)))
    with treepack.open(data) as file:
        found = file.abstract()["key"]
    assert found == {**key, "data": jax.ShapeDtypeStruct((2,), np.uint32)}


def _body(array: np.ndarray) -> bytes:
    packed: bytes = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
    return packed


def test_an_abstract_tree_of_no_such_arrays() -> None:
    def packed(shape: list[int], dtype: str) -> bytes:
        data = msgpack.packb((shape, dtype, bytes(8)))
        whole: bytes = msgpack.packb({"a": {"w": msgpack.ExtType(1, data)}})
        return whole

    with treepack.open(packed([8], "float7")) as file:
        for use in (file.abstract, file["a"].abstract):
            with pytest.raises(treepack.DecodeError, match=r"float7.*at a/w"):
                use()
    with treepack.open(packed([8], "int8")) as file:
        assert file.abstract() == {"a": {"w": jax.ShapeDtypeStruct((8,), np.int8)}}


def test_a_leaf_alone_and_metadata(tmp_path: Path) -> None:
    for tree in (np.arange(3.0), 7, [], {}):
        treepack.save(tmp_path / "leaf", tree, metadata={"step": (1, 2)})
        with treepack.open(tmp_path / "leaf") as file:
            assert file.metadata == {"step": (1, 2)}
            np.testing.assert_array_equal(file.load(), tree)
            if isinstance(tree, np.ndarray):
                assert file["."][1] == 1
    assert treepack.open(serialization.to_bytes({"a": 1})).metadata is None


def test_index_and_headers_tell_the_same(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", TREE)
    data = (tmp_path / "saved").read_bytes()
    indexed = core.Catalog.open(core.Content.lent(data), salvage=False)
    index = record_of(data)
    without = msgpack.packb({**msgpack.unpackb(index), "index": None})
    plain = data[: data.index(b"__treepack__")]
    bare = plain + b"__treepack__" + msgpack.packb(sealed(without))
    scanned = core.Catalog.open(core.Content.lent(bare), salvage=False)
    assert indexed.is_summed
    assert not scanned.is_summed
    assert list(indexed.leaves(0)) == list(scanned.leaves(0))
    for path, value in indexed.leaves(0):
        if path != "key":  # a map of two leaves, whose region is counted from the first
            assert indexed.leaf(value) == scanned.leaf(value), path


class State(NamedTuple):
    w: Any
    inner: tuple[Any, ...]


treepack.register_namedtuple(State, serialized_name="tests.open.State")


def test_parts_keep_their_structure(tmp_path: Path) -> None:
    tree = {"a": State(jnp.ones(3), ((), {1: 2})), "b": [State(np.zeros(2), ()), (1, 2)]}
    treepack.save(tmp_path / "saved", tree)
    with treepack.open(tmp_path / "saved") as file:
        found = file["a"].load()
        assert type(found) is State
        assert isinstance(found.w, jax.Array)
        assert found.inner == ((), {1: 2})
        assert file["b/1"].load() == (1, 2)
        assert file["a/inner/1"].load() == {1: 2}
        assert type(file["a"].abstract()) is State
        # What is not whole is a dict.
        assert file.load(select="b/1/0") == {"b": {"1": {"0": 1}}}
        whole = file.load(select=["a", "b/0"])
        assert type(whole["a"]) is State
        assert type(whole["b"]["0"]) is State
        with pytest.raises(ValueError, match=r": nothing\b"):
            file.load(select=["a", "nothing"])
        assert file["a/inner"].load(select="0") == {"0": ()}


# The life of a file


def test_a_closed_file(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", TREE)
    with treepack.open(tmp_path / "saved") as file:
        view = np.asarray(file["params/layers/1/w"])
        assert not view.flags.owndata
        lazy = file["params/layers/0/w"]
        tree = file["params"]
    assert repr(file).endswith("closed>")
    for use in (lambda: file["step"], lambda: lazy[0], lambda: list(tree), lambda: file.metadata):
        with pytest.raises(ValueError, match="closed"):
            use()
    np.testing.assert_array_equal(view, TREE["params"]["layers"][1]["w"])


def test_reprs_show_what_cannot_be_seen() -> None:
    hostile = "\x1b[2J\n\u202e\ufeff\u2028[red]<b>"
    seen = r"\x1b[2J\n\u202e\ufeff\u2028[red]"
    with treepack.open(treepack.dumps({hostile: {hostile: 1, "\u5c42": 2, "a": 3}})) as file:
        for tree in (file, file[hostile]):
            text = repr(tree)
            assert all(line.isprintable() for line in text.split("\n"))
            assert f"{seen}<b>" in text
            page = tree._repr_html_()
            assert page.isprintable()
            assert f"{seen}&lt;b&gt;" in page
            shown = io.StringIO()
            rich.console.Console(file=shown, width=200).print(tree)
            assert f"{seen}<b>" in shown.getvalue()
            assert "\x1b" not in shown.getvalue()
        escaped, wide, narrow = (row.index("int") for row in repr(file[hostile]).splitlines()[1:])
        assert escaped == wide + 1 == narrow, "a wide character takes two cells"
        for kind in (("array", hostile, (2,)), ("scalar", hostile), ("prng_key", hostile)):
            assert kind_text(kind).isprintable()
        assert {path for path, _ in file.leaves()} >= {f"{hostile}/a"}, "data stay as they are"


def test_errors_show_what_cannot_be_seen() -> None:
    hostile = "\x1b[2J\n\u202e"
    seen = r"\x1b[2J\n\u202e"
    data = treepack.dumps({hostile: np.ones(3), "b": {hostile: 1}})
    with pytest.raises(treepack.TreepackError) as caught:
        treepack.loads(data, {hostile: np.ones(4), "b": {}})
    assert f"\n  {seen}: expected" in str(caught.value)
    assert caught.value.mismatches[0].path == hostile
    with pytest.raises(treepack.UnserializableLeafError) as other:
        treepack.dumps({hostile: object()})
    assert str(other.value).startswith(f"at {seen}: ")
    assert other.value.path == hostile
    for error in (caught.value, other.value, treepack.DecodeError("bad", 1, hostile)):
        assert all(line.isprintable() for line in str(error).split("\n"))
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_pickles(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", TREE)
    for source in (tmp_path / "saved", treepack.dumps(TREE), bytearray(treepack.dumps(TREE))):
        file = treepack.open(source)
        again, tree, lazy = pickle.loads(
            pickle.dumps((file, file["params/layers"], file["params/layers/0/w"]))
        )
        assert again["step"] == 7
        assert list(tree) == ["0", "1"]
        assert lazy[1, 1] == 4
    with pytest.raises(TypeError, match="cannot pickle a File"):
        pickle.dumps(treepack.open(io.BytesIO(treepack.dumps(1))))


def test_public_classes_are_those_of_the_package(tmp_path: Path) -> None:
    public = [value for value in vars(treepack).values() if isinstance(value, type)]
    assert {value.__module__ for value in public} == {"treepack", "treepack.errors"}
    treepack.save(tmp_path / "saved", {"w": np.ones(2)})
    _, report = treepack.load(tmp_path / "saved", {"w": np.ones(2)}, return_report=True)
    assert pickle.loads(pickle.dumps(report)) == report
    found = treepack.verify(tmp_path / "saved")
    assert pickle.loads(pickle.dumps(found)) == found
    assert b"_src.restore" not in pickle.dumps(report)
    loaded = treepack.LoadedExported(1, 2)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_gzip_of_others_has_shapes_and_metadata(tmp_path: Path) -> None:
    """`open` refuses it where it is large, since it cannot be read in parts."""
    tree = {"w": np.random.default_rng(0).random(1 << 18)}
    data = gzip.compress(treepack.dumps(tree, metadata={"step": 3}), 1)
    (tmp_path / "saved").write_bytes(data)
    with pytest.raises(treepack.errors.NoIndexError):
        treepack.open(data)
    for source in (data, tmp_path / "saved"):
        assert treepack.abstract(source)["w"].shape == (1 << 18,)
        assert treepack.read_metadata(source) == {"step": 3}
        with pytest.raises(treepack.TreepackError, match="exceeds max_size=100 bytes"):
            treepack.abstract(source, max_size=100)
        with pytest.raises(treepack.errors.GzipTruncatedError):
            treepack.read_metadata(data[:-9])


@pytest.mark.parametrize("compress", [False, True])
def test_many_readers(tmp_path: Path, compress: bool) -> None:
    tree = {str(index): np.full((300, 300), index) for index in range(20)}
    treepack.save(tmp_path / "saved", tree, compress=compress)
    with treepack.open(tmp_path / "saved") as file:

        def sums(name: str) -> Any:
            return file[name][10:200].sum(), np.asarray(file[name]).sum()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for name, found in zip([*tree] * 5, pool.map(sums, [*tree] * 5), strict=True):
                assert found == (int(name) * 190 * 300, int(name) * 300 * 300)


def test_how_it_looks(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"w": np.zeros((2, 3)), "<b>": 1, "n": {"x": "y"}})
    file = treepack.open(tmp_path / "saved")
    assert repr(file) == (
        f"<treepack.File {str(tmp_path / 'saved')!r}: 3 leaves, 51 B\n"
        "  w    float64[2,3]       48 B\n"
        "  <b>  int                 1 B\n"
        "  n/x  str                 2 B>"
    )
    assert "&lt;b&gt;" in file._repr_html_()
    assert "<b>" not in file._repr_html_()
    many = treepack.open(treepack.dumps([0] * 30))
    assert "and 12 more" in repr(many)


def test_wide_containers_are_fast() -> None:
    file = treepack.open(treepack.dumps({f"k{index}": index for index in range(50_000)}))
    assert sum(dict(file.items()).values()) == sum(range(50_000))
    assert len(file.abstract()) == 50_000


def test_errors_tell_the_place() -> None:
    data = bytearray(serialization.to_bytes({"m": {"w": np.arange(300.0)}}))
    file = treepack.open(bytes(data))
    start = data.index(b"float64")
    assert file["m/w"][1] == 1
    data[start : start + 7] = b"flaot64"
    damaged = treepack.open(data)
    for use in (lambda: damaged.load(), lambda: damaged["m/w"]):
        with pytest.raises(treepack.DecodeError, match="at m/w"):
            use()


def test_other_file_objects(tmp_path: Path) -> None:
    treepack.save(tmp_path / "q", {"w": np.arange(100_000)})
    with (tmp_path / "q").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert treepack.open(mapped)["w"][7] == 7

    class Short(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            return super().read(min(size, 1000) if size > 0 else size)

    with Short(tmp_path / "q") as short:
        assert np.asarray(treepack.open(short)["w"]).sum() == sum(range(100_000))


def test_a_path_that_there_is_not() -> None:
    file = treepack.open(treepack.dumps({"enc": {"kernel": 1, "bias": 2}}))
    for at, path, near in (
        (file, "enc/krnel", "enc/kernel"),
        (file["enc"], "krnel", "kernel"),
        (file, "xyz", None),
        (file["enc"], "xyz", None),
    ):
        with pytest.raises(KeyError) as caught:
            at[path]
        assert caught.value.args == (path,)
        hint = f": it has {', '.join(at)}" if near is None else f": is it {near!r}?"
        assert str(caught.value) == f"there is nothing at {path}{hint}"


def test_paths_are_looked_up_without_a_search_for_similar_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = treepack.open(treepack.dumps({"enc": {"kernel": 1}}))
    searched = []

    def search(text: str, names: list[str], n: int) -> list[str]:
        searched.append((text, names))
        return []

    monkeypatch.setattr("difflib.get_close_matches", search)
    assert file.get("enc/krnel", 5) == 5
    assert "enc/krnel" not in file
    assert searched == []
    with pytest.raises(KeyError):
        file["enc/krnel"]
    # Of names, not of whole paths: the time for texts is as the square of their length.
    assert searched == [("krnel", ["kernel"])]


def test_keys_with_slashes_are_found_as_they_are() -> None:
    tree = {"mlp/~/linear_0": {"w": 1, "b/c": [2, {"d": 3}]}, "a~1b": 4, "x": {"y/z": 5}}
    file = treepack.open(treepack.dumps(tree))
    assert file["mlp/~/linear_0/w"] == file["mlp~1~0~1linear_0/w"] == 1
    assert file["mlp/~/linear_0/b/c/1/d"] == file["mlp/~/linear_0"]["b/c/1"]["d"] == 3
    assert (file["a~1b"], file["x/y/z"], file.get("x/y/z")) == (4, 5, 5)
    assert "mlp/~/linear_0" in file
    assert "mlp/~/linear_1" not in file
    assert ("mlp", "~", "linear_0") not in file  # its parts are keys
    for missing in ("mlp/~/linear_1", "mlp/~/linear_1/w"):
        with pytest.raises(KeyError) as error:
            file[missing]
        assert "'mlp~1~0~1linear_0'" in str(error.value)
    with pytest.raises(KeyError) as error:
        file["mlp/~/linear_0/b/d"]
    assert "written 'mlp~1~0~1linear_0/b~1c'" in str(error.value)


def test_a_text_that_leads_to_two_places_leads_to_none() -> None:
    tree = {"a": {"b/c": 1}, "a/b": {"c": 2}, "d/e": 1, "d": {"e": 2}}
    file = treepack.open(treepack.dumps(tree))
    assert "a/b/c" not in file
    assert file["d/e"] == 2  # as a path
    # Each value is visited once, though the ways to split the text are 2 ** 60.
    deep: object = 1
    for _ in range(60):
        deep = {"a": deep, "a/a": {}}
    assert "/".join(["a"] * 62) not in treepack.open(treepack.dumps(deep))


def test_a_view_is_collected_with_a_cycle_that_holds_its_file() -> None:
    ignored: list[object] = []
    data = np.frombuffer(treepack.dumps({"w": np.ones(3000)}), np.uint8)
    before = sys.getrefcount(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", ignored.append)
        view = memoryview(data)  # older than the cycle, so it is cleared first
        cycle: list[object] = [view, treepack.open(view)]
        cycle.append(cycle)
        del view, cycle
        gc.collect()
    assert not ignored
    assert sys.getrefcount(data) == before
