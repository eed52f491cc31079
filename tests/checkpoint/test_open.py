"""Files that are opened: what is in them, leaves that are read in part, damage."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gzip
import io
import mmap
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import hypothesis
import hypothesis.strategies as st
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
from treepack._src.checkpoint.file import kind_text
from treepack._src.pytree import prng as _prng
from trees import DTYPES, example_array, record_of, sealed

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
    key = {_prng.MARKER: "no such", "data": np.zeros(2, np.uint32)}
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
        with pytest.raises(ValueError, match="matches nothing in the file: nothing"):
            file.load(select=["a", "nothing"])
        assert file["a/inner"].load(select="0") == {"0": ()}


# Parts of arrays

INDICES = st.one_of(
    st.integers(-5, 5),
    st.builds(
        slice,
        st.none() | st.integers(-7, 7),
        st.none() | st.integers(-7, 7),
        st.none() | st.integers(-3, 3).filter(bool),
    ),
    st.just(...),
    st.none(),
)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same arrays in a file, in chunks, and compressed."""
    folder = tmp_path_factory.mktemp("arrays")
    values = {
        f"{'x'.join(map(str, shape))}": np.arange(np.prod(shape)).astype(dtype).reshape(shape)
        for shape, dtype in (((4, 5, 3), "f4"), ((5,), "i8"), ((), "f8"), ((0, 4), "u1"))
    }
    treepack.save(folder / "plain", values)
    treepack.save(folder / "gzip", values, compress=True)
    before, serialization.MAX_CHUNK_SIZE = serialization.MAX_CHUNK_SIZE, 16
    treepack.save(folder / "chunks", values)
    serialization.MAX_CHUNK_SIZE = before
    return values, [treepack.open(folder / name) for name in ("plain", "gzip", "chunks")]


@hypothesis.given(data=st.data(), index=INDICES | st.lists(INDICES, max_size=4).map(tuple))
@hypothesis.settings(max_examples=300)
def test_indices_are_those_of_numpy(arrays: Any, data: Any, index: Any) -> None:
    values, files = arrays
    name = data.draw(st.sampled_from(sorted(values)))
    try:
        expected = values[name][index]
    except IndexError:
        for file in files:
            with pytest.raises(IndexError):
                file[name][index]
        return
    for file in files:
        found = file[name][index]
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_other_indices(arrays: Any) -> None:
    values, files = arrays
    for index in ([0, 2], np.array([1]), values["5"] > 2, (np.int64(3),)):
        np.testing.assert_array_equal(files[0]["5"][index], values["5"][index])
    assert len(files[0]["5"]) == 5
    assert list(files[0]["5"]) == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="unsized"):
        len(files[0][""])
    assert repr(files[0]["5"]) == "LazyArray('5', shape=(5,), dtype=int64)"
    assert np.asarray(files[0]["5"], np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.asarray(files[2]["4x5x3"], copy=False)
    copy = np.array(files[0]["5"])
    copy[:] = 0
    assert files[0]["5"][1] == 1


class Counting(io.BytesIO):
    """A file object that counts what is read."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.reads: list[int] = []

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.reads.append(len(found))
        return found


@pytest.mark.parametrize("compress", [False, True])
def test_only_what_is_needed_is_read(tmp_path: Path, compress: bool) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (4096, 4096), np.uint8)
    tree = {f"l{index}": rows for index in range(4)}
    treepack.save(tmp_path / "saved", tree, compress=compress)
    source = Counting((tmp_path / "saved").read_bytes())
    file = treepack.open(source)
    assert len(source.reads) <= 2 + 2 * compress
    assert sum(source.reads) <= 256 << 10
    source.reads.clear()
    np.testing.assert_array_equal(file["l2"][100:110], rows[100:110])
    assert len(source.reads) <= 3
    assert sum(source.reads) <= 10 * 4096 + (768 << 10)
    source.reads.clear()
    # Rows far apart, one by one.
    np.testing.assert_array_equal(file["l1"][::-1024, :2], rows[::-1024, :2])
    assert sum(source.reads) <= (3 << 20 if compress else 5 * (64 << 10))
    source.reads.clear()
    found = file.load(select="l3")
    assert sum(source.reads) <= 1.05 * rows.nbytes + (1 << 20)
    np.testing.assert_array_equal(found["l3"], rows)


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
    with pytest.raises(TypeError, match="cannot be pickled"):
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
        f"<treepack.File {str(tmp_path / 'saved')!r}: 3 leaves, 68 B\n"
        "  w    float64[2,3]       65 B\n"
        "  <b>  int                 1 B\n"
        "  n/x  str                 2 B>"
    )
    assert "&lt;b&gt;" in file._repr_html_()
    assert "<b>" not in file._repr_html_()
    many = treepack.open(treepack.dumps([0] * 30))
    assert "and 10 more" in repr(many)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(2 << 20)
    foreign = gzip.compress(serialization.to_bytes({"a": noise}), 1)
    with pytest.raises(treepack.errors.GzipError, match="no index"):
        treepack.open(foreign)
    with pytest.raises(treepack.DecodeError, match="looks like"):
        treepack.open(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FileNotFoundError):
        treepack.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match="Protocol not known"):
        treepack.open("nothing-like-this://host/file")
    with pytest.raises(treepack.DecodeError):
        treepack.open(b"")


# Damage

SMALL: dict[str, Any] = {
    "params": {"w": np.arange(400.0), "b": np.arange(3)},
    "step": 7,
    "empty": {"x": {}},
    "last": "text",
}


def test_every_bit_counts(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    treepack.save(path, SMALL)
    data = path.read_bytes()
    assert treepack.verify(path).ok
    catalog = core.Catalog.open(core.Content.lent(data), salvage=False)
    regions = [(leaf, *catalog.leaf(value)[2:]) for leaf, value in catalog.leaves(0)]
    end_of_leaves = regions[-1][2]
    record_start = len(data) - len(data[data.index(b"__treepack__") + 12 :])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        found = treepack.verify(bytes(damaged))
        assert not found.ok, position
        if position < end_of_leaves:
            [expected] = [leaf for leaf, _, end, begin in regions if begin <= position < end]
            assert found.corrupt == [expected], position
            assert found.damage is None
        elif position < record_start:
            assert found.damage is not None
        else:
            assert found.damage is not None, position


def test_damage_in_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = {str(index): rng.integers(0, 256, 1 << 18, np.uint8) for index in range(4)}
    path = tmp_path / "saved"
    treepack.save(path, tree, compress=True)
    assert set(treepack.verify(path).leaves.values()) == {"ok"}
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    found = treepack.verify(bytes(data))
    assert not found.ok
    assert 1 <= len(found.corrupt) <= 2
    for name, status in found.leaves.items():
        if status == "ok":
            np.testing.assert_array_equal(np.asarray(treepack.open(bytes(data))[name]), tree[name])


def test_files_of_flax_are_unchecked() -> None:
    found = treepack.verify(flax.serialization.to_bytes({"a": np.zeros(3), "b": 1}))
    assert found.leaves == {"a": "unchecked", "b": "unchecked"}
    assert found.unchecked == ["a", "b"]
    assert found.ok
    assert not treepack.verify(flax.serialization.to_bytes({"a": np.zeros(3)})[:-1]).ok


@pytest.mark.parametrize("described", [False, True])
def test_files_that_are_cut_short(tmp_path: Path, described: bool) -> None:
    path = tmp_path / "saved"
    treepack.save(path, SMALL)
    data = path.read_bytes() if described else serialization.to_bytes(SMALL)
    leaves = [path for path, _ in treepack.open(data).leaves()]
    for length in range(len(data)):
        cut = data[:length]
        with pytest.raises(treepack.DecodeError):
            treepack.open(cut)
        with treepack.open(cut, salvage=True) as file:
            assert file.damage
            found = dict(file.leaves())
            assert list(found) == leaves[: len(found)]
            for name, leaf in found.items():
                if isinstance(leaf, treepack.LazyArray):
                    np.testing.assert_array_equal(
                        np.asarray(leaf), SMALL["params"][name.removeprefix("params/")]
                    )
            kept = file.load(SMALL, missing="target")
            assert kept["last"] == "text"
    assert len(found) == len(leaves) - (not described)


def test_records_of_later_versions() -> None:
    data = treepack.dumps((1, 2))
    record = msgpack.unpackb(record_of(data))
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"

    def with_record(**more: Any) -> bytes:
        return plain + msgpack.packb(sealed(msgpack.packb({**record, **more})))

    assert treepack.open(with_record(later=[1])).load() == (1, 2)
    for load in (treepack.open, treepack.loads):
        with pytest.raises(treepack.DecodeError, match=r"version 2.*newer treepack"):
            load(with_record(version=2))


def test_damaged_indices_are_refused(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"a": 1, "b": {"c": np.zeros(3)}})
    data = (tmp_path / "saved").read_bytes()
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    changes: list[dict[str, Any]] = [
        {"heads": []},
        {"heads": [3], "sizes": [1]},
        {"outline": b""},
        {"outline": b"\xc1"},
        {"outline": msgpack.packb({"a": 7, "b": {"c": 0}})},
        {"outline": msgpack.packb({"a": 0, "b": {"c": "x"}})},
        {"outline": msgpack.packb({"a": 0})},
        {"outline": msgpack.packb({"a": 0, "b": {"c": 0, "d": 0}})},
        {"kinds": []},
        {"sizes": [2**64 - 1, 2**64 - 1]},
    ]
    for change in changes:
        packed = msgpack.packb({**record, "index": msgpack.packb({**index, **change})})
        damaged = plain + msgpack.packb(sealed(packed))
        # Where the leaves do not lie in the data, the headers are read instead.
        with contextlib.suppress(treepack.DecodeError):
            assert [path for path, _ in treepack.open(damaged).leaves()] == ["a", "b/c"]
        assert treepack.loads(damaged)["a"] == 1


def test_a_file_inside_another_one(tmp_path: Path) -> None:
    treepack.save(tmp_path / "inner", {"a": 1})
    inner = (tmp_path / "inner").read_bytes()
    outer = serialization.to_bytes({"x": 2, "inner": inner})
    with treepack.open(outer) as file:
        assert list(file) == ["x", "inner"]
        assert treepack.open(file["inner"])["a"] == 1


# What a review has found


def test_damage_in_small_gzip_files() -> None:
    data = treepack.dumps({"a": np.arange(1000)}, compress=True)
    assert treepack.verify(data).leaves == {"a": "ok"}
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 8
    for found in (treepack.verify(bytes(damaged)), treepack.verify(data[: len(data) // 2])):
        assert not found.ok
        assert found.damage


def test_gzip_that_is_cut_short(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 1 << 18), np.uint8)
    tree = {str(index): row for index, row in enumerate(noise)}
    treepack.save(tmp_path / "saved", tree, compress=True)
    data = (tmp_path / "saved").read_bytes()
    foreign = gzip.compress(serialization.to_bytes(tree), 1)
    assert treepack.verify(foreign).ok
    for whole in (data, foreign):
        cut = whole[: len(whole) * 5 // 8]
        with pytest.raises(treepack.CorruptionError):
            treepack.open(cut)
        with treepack.open(cut, salvage=True) as file:
            assert file.damage
            found = dict(file.leaves())
        assert list(found) == [str(index) for index in range(len(found))]
        assert 3 <= len(found) <= 5
        with treepack.open(cut, salvage=True) as file:
            for name, leaf in file.leaves():
                np.testing.assert_array_equal(np.asarray(leaf), tree[name])
        assert not treepack.verify(cut).ok


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


def test_kinds_of_later_versions(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"a": 1, "b": np.zeros(3)})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    for later in ({"quark": [1, 2]}, "quark", 7):
        index["kinds"][0] = later
        packed = msgpack.packb({**record, "index": msgpack.packb(index)})
        plain = data[: data.index(b"__treepack__")] + b"__treepack__"
        with treepack.open(plain + msgpack.packb(sealed(packed))) as file:
            assert file["a"] == 1
            assert file["b"].shape == (3,)


def test_a_mapping_and_an_array_like_others() -> None:
    file = treepack.open(treepack.dumps({"a": np.array(2.0), "b": np.arange(1000)}))
    assert 5 not in file
    assert file.get(None) is None
    assert file == file
    assert {file: 1}[file] == 1
    with pytest.raises(TypeError, match="0-d"):
        list(file["a"])
    assert bool(file["a"])
    assert file["b"][::500].base.nbytes == 2 * 8  # and not what is between


def test_a_box_is_read_to_where_it_belongs() -> None:
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    catalog = treepack.open(treepack.dumps(array))._catalog
    made = np.zeros((2, 9), np.int16)
    read = functools.partial(catalog.read_box_to, threads=None)
    read(0, [(0, 2, 2), (3, 1, 1), (1, 2, 3)], made, 2, [18, 18, 4])
    expected = np.zeros((2, 9), np.int16)
    expected[:, 1:4:2] = array[::2, 3, 1::3]
    np.testing.assert_array_equal(made, expected)
    box = [(0, 3, 1), (0, 4, 1), (0, 5, 1)]
    whole = np.empty_like(array)
    read(0, box, whole, 0, whole.strides)
    np.testing.assert_array_equal(whole, array)
    for bounds in ([*box[:2], (1, 5, 1)], [*box[:2], (0, 3, 2**63)], box[:2]):
        with pytest.raises(IndexError, match="no such box"):
            read(0, bounds, whole, 0, whole.strides)
        with pytest.raises(IndexError, match="no such box"):
            catalog.read_box(0, bounds)
    with pytest.raises(IndexError, match="no such box"):  # one place twice
        read(0, box, whole, 0, (40, 8, 2))
    for at in (1, 2**64 - 1):
        with pytest.raises(IndexError, match="too small"):
            read(0, box, whole, at, whole.strides)
    with pytest.raises(BufferError):
        read(0, box, np.asarray(treepack.loads(treepack.dumps(array))), 0, (40, 10, 2))


def test_an_index_that_tells_another_dtype_or_shape_is_noticed(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"w": np.arange(12, dtype=np.float32).reshape(4, 3)})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    for dtype, shape in [
        ("float64", [4, 3]),
        ("int32", [4, 3]),
        ("float16", [4, 3]),
        ("float32", [2, 6]),
        ("float32", [1 << 40, 100]),
        ("float32", [(1 << 63) - 1, 100]),
    ]:
        other = {**index, "kinds": [{"array": [dtype, shape]}]}
        packed = msgpack.packb({**record, "index": msgpack.packb(other)})
        plain = data[: data.index(b"__treepack__")] + b"__treepack__"
        array = treepack.open(plain + msgpack.packb(sealed(packed)))["w"]
        assert (array.dtype, array.shape) == (dtype, tuple(shape))
        for read in (lambda array=array: array[1, 2], lambda array=array: array[:, 0]):
            with pytest.raises(treepack.DecodeError, match="not what the index of the file has"):
                read()


def test_indices_that_are_large_or_odd() -> None:
    values = {"w": np.arange(12.0).reshape(4, 3), "m": np.arange(5).astype("m8")}
    file = treepack.open(treepack.dumps(values))
    for step in (2**64, -(2**64)):
        np.testing.assert_array_equal(file["w"][::step], values["w"][::step])
    assert file["m"][3] == values["m"][3]
    np.testing.assert_array_equal(file["m"][1:4], values["m"][1:4])
    for odd in (np.timedelta64(1), np.timedelta64(1, "s")):
        with pytest.raises(IndexError):
            file["w"][odd]


def test_a_box_takes_few_reads() -> None:
    data = treepack.dumps(np.arange(90_000, dtype=np.int16).reshape(10_000, 3, 3))
    reads = []

    def read(start: int, length: int) -> bytes:
        reads.append(length)
        return data[start : start + length]

    found = treepack.open(core.Content.elsewhere(read, len(data)))
    array = next(array for _, array in found.leaves())
    reads.clear()
    whole = np.arange(90_000, dtype=np.int16).reshape(10_000, 3, 3)
    for index in (np.s_[:, ::2, ::2], np.s_[:, 1, :2], np.s_[::7, 1:]):
        np.testing.assert_array_equal(array[index], whole[index])
    assert len(reads) <= 6, reads  # a header and the data each


def test_a_file_that_is_cut_short_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, {"a": np.zeros(10), "w": np.ones((1000, 100))})
    with treepack.open(path) as file:
        array = file["w"]
        os.truncate(path, 100_000)
        with pytest.raises(treepack.DecodeError, match=r"ends inside a value.*at w"):
            array[100:900]


def test_a_path_that_there_is_not() -> None:
    file = treepack.open(treepack.dumps({"enc": {"kernel": 1, "bias": 2}}))
    for at, path, near in (
        (file, "enc/krnel", "enc/kernel"),
        (file["enc"], "krnel", "kernel"),
        (file, "xyz", None),
    ):
        with pytest.raises(KeyError) as caught:
            at[path]
        assert caught.value.args == (path,)
        notes = getattr(caught.value, "__notes__", [])
        assert notes == ([] if near is None else [f"is it {near!r}?"])


def same_bytes(found: Any, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.asarray(found).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", ["described", "flax", "gzip", "sharded", "sharded-gzip"])
def test_every_dtype_is_sliced_and_saved_again(tmp_path: Path, how: str, dtype: Any) -> None:
    tree = {"w": example_array(dtype, (40, 24)), "none": np.zeros((0, 3), dtype)}
    path, again = tmp_path / "saved", tmp_path / "again"
    options = {"compress": "gzip" in how, "sharded": "sharded" in how, "durable": False}
    if how == "flax":
        path.write_bytes(treepack.serialization.to_bytes(tree))
    else:
        treepack.save(path, tree, **options)
    with treepack.open(path) as file:
        array = file["w"]
        same_bytes(array, tree["w"])
        for index in (slice(None), (slice(1, 30, 7), slice(2, 20)), 5, (slice(39, 3, -5), 2)):
            same_bytes(array[index], tree["w"][index])
        same_bytes(array.flat_range(30, 100), tree["w"].reshape(-1)[30:100])
        same_bytes(file["none"][:], tree["none"])
        treepack.save(again, dict(file), **options)
        assert file.abstract()["w"].dtype == dtype
    template = {name: np.zeros_like(leaf) for name, leaf in tree.items()}
    loaded = [treepack.load(path, template), treepack.load(again, template), treepack.load(again)]
    for found in loaded if how == "flax" else [*loaded, treepack.load(path)]:
        same_bytes(found["w"], tree["w"])
        same_bytes(found["none"], tree["none"])
    assert treepack.verify(again).ok


def test_where_the_chunks_of_an_array_are_is_found_out_once(chunk_size: Any) -> None:
    chunk_size(64)
    array = np.arange(16 * 300)  # a chunk has eight
    data = bytearray(serialization.to_bytes({"a": array}))
    lazy = treepack.open(data)["a"]
    np.testing.assert_array_equal(lazy[7:17], array[7:17])
    # Nobody looks at the headers again.
    for chunk in range(600):
        data[data.index(array[8 * chunk : 8 * chunk + 8].tobytes()) - 3] ^= 0xFF
    for start in (0, 7, 8, 15, 2400, 4790):
        np.testing.assert_array_equal(lazy[start : start + 10], array[start : start + 10])
    np.testing.assert_array_equal(lazy[::799], array[::799])
    assert lazy[0:0].size == 0
