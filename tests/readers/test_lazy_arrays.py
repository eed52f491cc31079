"""Arrays of open files: indices, boxes, and how little is read for them."""

from __future__ import annotations

import ctypes
import functools
import io
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy

import tiers
import treepack
import treepack._core as core
from tiers import examples
from treepack import serialization
from trees import DTYPES, example_array

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
@examples(300)
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


def test_nothing_is_read_to_list_what_the_index_tells(tmp_path: Path) -> None:
    arrays = {f"l{index}": {"w": np.ones((300, 64), np.float32)} for index in range(40)}
    tree = {"params": arrays, "list": [np.arange(9), np.zeros((), np.int8)], "step": 7}
    treepack.save(tmp_path / "saved", tree)
    source = Counting((tmp_path / "saved").read_bytes())
    file = treepack.open(source)
    assert sum(source.reads) < 170 << 10  # the end, in which the index is
    source.reads.clear()
    source.seek(0)
    assert [*file] == [*file.keys()] == file._ipython_key_completions_() == [*tree]
    assert len(file) == 3
    assert "params/l39/w" in file
    assert "params/l40" not in file
    params = file["params"]
    assert params._ipython_key_completions_() == [*arrays]
    assert file["list"]._ipython_key_completions_() == ["0", "1"]
    found = {path: (leaf.shape, leaf.dtype, leaf.size) for path, leaf in params.leaves()}
    assert found == {f"{name}/w": ((300, 64), np.float32, 19200) for name in arrays}
    assert sum(leaf.nbytes for _, leaf in params.leaves()) == 40 * 300 * 64 * 4
    assert params.nbytes == 40 * 300 * 64 * 4  # without headers
    assert file.nbytes == params.nbytes + 9 * 8 + 1 + 1
    lazy = file["params/l7/w"]
    assert (len(lazy), lazy.ndim) == (300, 2)
    assert repr(lazy) == "LazyArray('params/l7/w', shape=(300, 64), dtype=float32)"
    assert "params/l0/w" in repr(file)
    assert "step" in file._repr_html_() or "and 25 more" in file._repr_html_()
    assert file["list/1"].shape == ()
    assert source.reads == []
    assert source.tell() == 0
    assert lazy[0].sum() == 64
    assert source.reads != []


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


@pytest.mark.parametrize("kind", ["treepack", "npy", "safetensors"])
def test_an_array_is_not_read_to_its_own_memory(kind: str) -> None:
    array = np.random.default_rng(0).random((20, 30))
    npy = io.BytesIO()
    np.save(npy, array)
    data = {
        "treepack": treepack.dumps({"w": array}),
        "npy": npy.getvalue(),
        "safetensors": safetensors.numpy.save({"w": array}),
    }
    buffer = bytearray(data[kind])
    [(_, lazy)] = treepack.open(buffer).leaves()
    with pytest.raises(ValueError, match="shares memory"):
        lazy.read_to([range(10), range(30)], np.frombuffer(buffer, count=300).reshape(10, 30))
    assert buffer == data[kind]
    apart = np.empty_like(array)
    lazy.read_to([range(20), range(30)], apart)
    np.testing.assert_array_equal(apart, array)


def test_a_buffer_at_no_address_is_filled_with_nothing() -> None:
    """AddressSanitizer and debug builds tell where a slice would begin at a null pointer."""
    view = ctypes.pythonapi.PyMemoryView_FromMemory
    view.restype, view.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int),
    )
    nowhere = view(None, 0, 0x200)  # PyBUF_WRITE
    catalog = treepack.open(treepack.dumps(np.zeros((0, 3))))._catalog
    catalog.read_box_to(0, [(0, 0, 1), (0, 3, 1)], nowhere, 0, [24, 8], threads=None)
    with pytest.raises(ValueError, match="too small"):
        treepack.pack_into({}, nowhere)


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

    found = treepack.open(core.Content.elsewhere(read, len(data), 2 << 20))
    array = next(array for _, array in found.leaves())
    reads.clear()
    whole = np.arange(90_000, dtype=np.int16).reshape(10_000, 3, 3)
    for index in (np.s_[:, ::2, ::2], np.s_[:, 1, :2], np.s_[::7, 1:]):
        np.testing.assert_array_equal(array[index], whole[index])
    assert len(reads) <= 6, reads  # a header and the data each


def same_bytes(found: Any, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.asarray(found).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@tiers.parametrize("how", ["described", "sharded-gzip", "flax", "gzip", "sharded"], quick=2)
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


def test_what_only_arrays_have_says_how_to_get_it() -> None:
    lazy = treepack.open(treepack.dumps({"w": np.arange(6.0)}))["w"]
    for name in ("reshape", "item", "argmax"):
        with pytest.raises(AttributeError, match=rf"read it first, as by array\[...\]\.{name}"):
            getattr(lazy, name)
    with pytest.raises(AttributeError, match=r"'LazyArray' object has no attribute 'cpu'$"):
        lazy.cpu  # noqa: B018
    assert not hasattr(lazy, "__dlpack__")
    assert lazy[...].mean() == 2.5


def test_the_way_to_a_few_rows_is_short(tmp_path: Path) -> None:
    """A lookup is mostly calls of Python, so their number is what it costs."""
    treepack.save(tmp_path / "x", {"a": {"w": np.ones((100, 8))}})
    package = str(Path(treepack.__file__).parent)
    seen = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.add(frame.f_code)

    treepack.open(tmp_path / "x")["a/w"][3:5]
    sys.setprofile(note)
    try:
        treepack.open(tmp_path / "x")["a/w"][3:5]
    finally:
        sys.setprofile(None)
    assert len(seen) <= 27, sorted(code.co_qualname for code in seen)
