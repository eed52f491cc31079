"""Files of `numpy.save` are read as `numpy.load` reads them, or refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import random
import re
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
from jax.sharding import NamedSharding, PartitionSpec

import tiers
import treepack
from commands import call, refused
from treepack import DecodeError


def saved(array: Any, **options: Any) -> bytes:
    found = io.BytesIO()
    np.save(found, array, **options)
    return found.getvalue()


DTYPES = st.one_of(
    st_np.boolean_dtypes(),
    st_np.integer_dtypes(endianness="?"),
    st_np.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    st_np.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    st_np.datetime64_dtypes(max_period="s", endianness="?"),
)


@tiers.examples(100)
@given(st.data())
def test_any_array_is_read_as_numpy_reads_it(data: st.DataObject) -> None:
    shape = data.draw(st_np.array_shapes(min_dims=0, min_side=0))
    array = data.draw(st_np.arrays(data.draw(DTYPES), shape))
    if data.draw(st.booleans()):
        array = np.asfortranarray(array)
    found = treepack.load(saved(array))
    expected = np.load(io.BytesIO(saved(array)))
    assert found.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, expected)


def test_bfloat16_and_strings() -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(treepack.load(saved(array)), array)
    assert treepack.load(saved(np.array([["a", "é"]]))) == [["a", "é"]]


def test_an_array_lies_in_the_mapped_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000.0))
    found = treepack.load(tmp_path / "a.npy")
    assert not found.flags.owndata
    assert not found.flags.writeable
    with treepack.open(tmp_path / "a.npy") as file:
        again = pickle.loads(pickle.dumps(file["."]))
        np.testing.assert_array_equal(again[10:12], [10, 11])


def test_each_device_reads_its_part(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",))
    place = NamedSharding(mesh, PartitionSpec("x"))
    np.save(tmp_path / "a.npy", np.arange(8, dtype=np.float32))
    template = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=place)
    found = treepack.load(tmp_path / "a.npy", template)
    assert found.sharding == place
    np.testing.assert_array_equal(found, np.arange(8))


def test_what_is_refused(tmp_path: Path) -> None:
    good = saved(np.ones(30))
    twice = good + saved(np.zeros(2))
    for data, message in (
        (saved(np.array([{}]), allow_pickle=True), "pickled objects, which are never read"),
        (saved(np.zeros(3, [("x", "f4")])), "unsupported array dtype"),
        (good[:-1], "short read: the file ends before an array of shape"),
        (good.replace(b"(30,)", b"(-1,)"), "short read"),
        (good[:20], "unsupported header"),
        (twice, f"{len(twice) - len(good)} bytes follow the array"),
    ):
        path = tmp_path / "a.npy"
        path.write_bytes(data)
        for verb in (treepack.load, treepack.open):
            with pytest.raises(DecodeError, match=message):
                verb(path)
        assert message in str(treepack.verify(path).damage)
        assert not treepack.is_checkpoint(path)
    with pytest.raises(treepack.TreepackError, match=r"the base is a \.npy file"):
        treepack.save(tmp_path / "b.treepack", np.ones(2), base=io.BytesIO(good).getvalue())


def test_damaged_files_are_read_as_numpy_reads_them_or_refused() -> None:
    rng = random.Random(0)
    good = saved(np.asfortranarray(np.arange(12, dtype=">i2").reshape(3, 4)))
    read = 0
    for _ in range(tiers.either(500, 10_000)):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(good))] = rng.randrange(256)
        try:
            found = treepack.load(bytes(data))
        except treepack.TreepackError:
            continue
        expected = np.load(io.BytesIO(data))
        if not isinstance(found, np.ndarray):
            assert found == expected.tolist()  # of strings
            continue
        read += 1
        np.testing.assert_array_equal(found, expected)
    assert read > 10


@pytest.mark.parametrize("verb", [treepack.load, treepack.abstract, treepack.verify])
def test_long_headers_are_refused_before_they_are_read(folder: Path, verb: Any) -> None:
    long = b"\x93NUMPY\2\0" + (size := 64 << 20).to_bytes(4, "little")
    with Path("long.npy").open("wb") as file:
        file.write(long)
        file.truncate(size + 100)
    with zipfile.ZipFile("long.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", long + b" " * size)
    path = "long.npz" if verb is treepack.abstract else "long.npy"
    tracemalloc.start()
    with contextlib.suppress(DecodeError):
        verb(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size // 8


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_files_cut_anywhere_are_damaged(folder: Path, name: str) -> None:
    array = np.arange(3)
    np.save(name, array) if name == "a.npy" else np.savez(name, a=array)
    data = Path(name).read_bytes()
    for size in range(len(data)):
        Path(name).write_bytes(data[:size])
        assert not treepack.verify(name).ok
        for verb in (treepack.load, treepack.abstract):
            with pytest.raises(DecodeError):
                verb(name)


HEADERS = {
    "no dict": b"1 + 1",
    "syntax": b"{'descr': ",
    "deep": b"(" * 3000,
    "deeper": b"-" * 9000 + b"1",
    "keys": b"{'descr': '<f8'}",
    "NUL": b"{'descr': '<f8\0', 'fortran_order': False, 'shape': (1,)}",
    "dtype": b"{'descr': 'zz', 'fortran_order': False, 'shape': (1,)}",
    "no dtype": b"{'descr': {'a': 1}, 'fortran_order': False, 'shape': (1,)}",
    "unhashable": b"{[]: 1}",
    "order": b"{'descr': '<f8', 'fortran_order': 3, 'shape': (1,)}",
    "bool": b"{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
    "no tuple": b"{'descr': '<f8', 'fortran_order': False, 'shape': 1}",
    "dimensions": b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s)}" % (b"1," * 70),
    "empty": b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, %d)}" % 10**20,
    "long number": b"{'descr': %s, 'fortran_order': False, 'shape': (1,)}" % (b"9" * 5000),
    "version": b"\3",
    "short": b"",
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.filterwarnings("error")
def test_errors_of_hostile_headers_have_no_text_of_python(folder: Path, name: str) -> None:
    text = HEADERS[name]
    data = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(8)
    if name == "version":
        data = data.replace(b"NUMPY\1", b"NUMPY\3")
    Path("a.npy").write_bytes(data)
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("a.npy", data)
    for verb in (treepack.load, treepack.open):
        with pytest.raises(DecodeError) as caught:
            verb("a.npy")
        ways = "header: it is damaged, or of another version: copy", r"shape \([\w, …]*\)?: read it"
        assert re.match(
            rf"'a\.npy': the \.npy file cannot be read: unsupported ({'|'.join(ways)}) ",
            str(caught.value),
        )
    found = treepack.load("a.npz")["a"]
    assert found.tobytes() == data


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_strings_are_bounded_by_the_bytes_of_the_file(folder: Path, name: str) -> None:
    """A leaf takes hundreds of bytes: eight megabytes took a quarter of a minute."""
    few, many = np.full(1 << 16, b"a", "S1"), np.full(1 << 17, b"a", "S1")
    for array, is_read in ((few, True), (many, False), (many.astype("S4"), True)):
        np.save(name, array) if name == "a.npy" else np.savez(name, a=array)
        if is_read:
            found = treepack.load(name)
            assert (found if name == "a.npy" else found["a"]) == array.tolist()
        elif name == "a.npy":
            message = "it has 131072 strings, more than 98336: read it with numpy.load"
            with pytest.raises(DecodeError, match=message):
                treepack.load(name)
        else:
            found = treepack.load(name)["a"].tobytes()
            np.testing.assert_array_equal(np.load(io.BytesIO(found)), array)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors"])
def test_truncated_gzip_is_named(folder: Path, name: str) -> None:
    array = np.random.default_rng(0).random(1000)
    np.save(name, array) if name == "a.npy" else np.savez(name, a=array)
    if name == "a.safetensors":
        treepack.save(name, {"a": array, "b": array})
    packed = gzip.compress(Path(name).read_bytes())
    path = f"{name}.gz"
    for size in (3, 12, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        Path(path).write_bytes(packed[:size])
        for verb in (treepack.load, treepack.open, treepack.abstract):
            with pytest.raises(treepack.GzipTruncatedError):
                verb(path)
        assert str(treepack.verify(path).damage).startswith("compressed file ended before")
        with contextlib.suppress(DecodeError), treepack.open(path, salvage=True) as file:
            assert "compressed file ended" in str(file.damage)
        told = call("salvage", path, "new.treepack", status=1)
        assert told.splitlines()[0].startswith("damaged: compressed file ended before")


def test_commands(folder: Path) -> None:
    np.save("a.npy", np.arange(6.0).reshape(2, 3))
    assert "float64[2,3]" in call("ls", "a.npy")
    assert "npy of NumPy" in call("info", "a.npy")
    call("convert", "a.npy", "a.treepack")
    np.testing.assert_array_equal(treepack.load("a.treepack"), np.load("a.npy"))
    call("convert", "a.treepack", "b.npy")
    assert Path("b.npy").read_bytes() == Path("a.npy").read_bytes()
    call("salvage", "a.npy", "c.treepack")
    assert "0 of 1" in call("diff", "a.npy", "c.treepack")
    assert "one array" in refused("convert", "flax", "d.npy", "--skip", "step")
    assert "apply only to msgpack, and the target is npy" in refused(
        "convert", "a.npy", "d.npy", "--gzip"
    )
