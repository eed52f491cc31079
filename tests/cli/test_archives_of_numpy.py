"""Archives of NumPy that are damaged, hostile, or none."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiers
import treepack
from commands import call, refused
from treepack import CorruptionError, DecodeError


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(*shape: int) -> bytes:
    """Returns an array of one byte whose header has another shape."""
    file = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + b"a"


def archive_of(
    *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, flipped: int | None = None
) -> None:
    with zipfile.ZipFile("bad.npz", "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    if flipped is not None:
        data = bytearray(Path("bad.npz").read_bytes())
        data[flipped] ^= 1
        Path("bad.npz").write_bytes(data)


GOOD = npy(np.ones(20))

TEMPLATE = {"good": np.zeros(20)}

METHODS = pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])


@METHODS
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_refused(folder: Path, method: int) -> None:
    for name in ("a.npy", "a"):
        archive_of(("a.npy", GOOD), (name, GOOD), method=method)
        with pytest.raises(DecodeError, match="two arrays"):
            treepack.load("bad.npz")
        assert "two arrays" in str(treepack.verify("bad.npz").damage)
    archive_of(("folder/a.npy", GOOD), ("other/", b""), method=method)
    np.testing.assert_array_equal(treepack.load("bad.npz")["folder"]["a"], np.ones(20))


def check_others(*, is_refused: bool) -> None:
    """Reads the member `good` beside `a`, which may be refused at its use, in each way."""
    for found in (treepack.load("bad.npz", select="good"), treepack.load("bad.npz", TEMPLATE)):
        np.testing.assert_array_equal(found["good"], np.ones(20))
    with treepack.open("bad.npz") as file:
        np.testing.assert_array_equal(file["good"], np.ones(20))
    told = pytest.warns(UserWarning, match=r"bad\.npz': a is damaged or unsupported")
    with told if is_refused else contextlib.nullcontext():
        assert treepack.abstract("bad.npz")["good"].shape == (20,)
    assert "good" in call("ls", "bad.npz")
    call("convert", "bad.npz", "rest.treepack", "--skip", "a")
    np.testing.assert_array_equal(treepack.load("rest.treepack")["good"], np.ones(20))


BYTES = {
    "structure": npy(np.zeros(3, [("x", "<f4"), ("y", "i1")])),
    "void": npy(np.zeros(3, "V4")),
    "long void": npy(np.zeros(3, "V1000")),
    "surrogate": npy(np.array(["\ud800"])),
    "above Unicode": npy(np.full(2, 0x110000, np.uint32).view("U1")),
    "like valid UTF-8": npy(np.full(2, 1 << 26 | 0x10000, np.uint32).view("U1")),
    "many": npy(np.zeros(5, "U1")).replace(b"(5,), }" + b" " * 16, b"(%d,0), }" % (1 << 50)),
    "deep": header(*[1] * 65),
    "long": header(10**20, 0),
    "large": header(1 << 62, 1 << 62, 0),
    "no array": b"what is no array",
}


@METHODS
@pytest.mark.parametrize("name", BYTES)
def test_members_that_no_tree_can_hold_are_bytes(folder: Path, method: int, name: str) -> None:
    """NumPy reads these bytes."""
    data = BYTES[name]
    archive_of(("good.npy", GOOD), ("a.npy", data), method=method)
    check_others(is_refused=False)
    with treepack.open("bad.npz") as file:
        assert file["a"].dtype.metadata == {"treepack.packed": "NPY_packed"}
    assert treepack.load("bad.npz")["a"].tobytes() == data
    assert treepack.abstract("bad.npz")["a"].shape == (len(data),)
    assert dict(treepack.verify("bad.npz").leaves) == {"good": "ok", "a": "ok"}
    if name == "structure":
        raw = io.BytesIO(treepack.load("bad.npz")["a"].tobytes())
        assert np.load(raw).dtype.names == ("x", "y")
    call("convert", "bad.npz", "all.treepack")
    assert treepack.load("all.treepack")["a"].tobytes() == data
    call("get", "all.treepack", "a", "a.npy")
    assert Path("a.npy").read_bytes() == data
    call("get", "bad.npz", "a", "a.npz")
    with zipfile.ZipFile("a.npz") as archive:
        assert archive.read("a.npy") == data


@METHODS
def test_damaged_members_are_refused_at_their_use(folder: Path, method: int) -> None:
    for data in (
        GOOD[:-3],
        GOOD.replace(b"(20,), ", b"(2000,)"),
        GOOD.replace(b"(20,)", b"(-2,)"),
    ):
        archive_of(("good.npy", GOOD), ("a.npy", data), method=method)
        check_others(is_refused=True)
        for options in ({}, {"verify": True}, {"select": "a"}):
            with pytest.raises(CorruptionError, match="a is damaged"):
                treepack.load("bad.npz", **options)
        assert dict(treepack.verify("bad.npz").leaves) == {"good": "ok", "a": "corrupt"}
        assert "DAMAGED_packed" in call("ls", "bad.npz")


@METHODS
@pytest.mark.parametrize("name", ["a.npy", "a"])
def test_damaged_sizes_in_the_directory(folder: Path, method: int, name: str) -> None:
    for data in (GOOD, b"what is no array" * 9):
        archive_of(("good.npy", GOOD), (name, data), method=method)
        archive = bytearray(Path("bad.npz").read_bytes())
        archive[archive.rindex(b"PK\1\2") + 24] ^= 0x80
        Path("bad.npz").write_bytes(archive)
        assert treepack.verify("bad.npz").corrupt == ["a"]
        assert treepack.load("bad.npz", on_corrupt="skip").keys() == {"good"}


KINDS: dict[str, tuple[int, int, bytes, str]] = {
    "objects": (0, 0, npy(np.array([{}], object)), "pickled objects, which are never read"),
    "compression": (zipfile.ZIP_LZMA, 0, GOOD, "method 14"),
    "encryption": (0, 1, GOOD, "it is encrypted"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_never_read_is_no_damage(folder: Path, kind: str) -> None:
    method, flags, data, reason = KINDS[kind]
    archive_of(("good.npy", GOOD))
    with zipfile.ZipFile("bad.npz", "a", method) as archive:
        archive.writestr("a.npy", data)
    data = bytearray(Path("bad.npz").read_bytes())
    data[data.rindex(b"PK\3\4") + 6] |= flags
    data[data.rindex(b"PK\1\2") + 8] |= flags
    Path("bad.npz").write_bytes(data)
    check_others(is_refused=True)
    with pytest.raises(DecodeError, match=f"array a cannot be read: .*{reason}.*: select= loads"):
        treepack.load("bad.npz")
    with pytest.raises(DecodeError, match=reason):
        call("convert", "bad.npz", "all.treepack")
    found = treepack.verify("bad.npz")
    assert (found.ok, dict(found.leaves)) == (False, {"good": "ok", "a": "unreadable"})
    assert (found.corrupt, found.unreadable, found.damage) == ([], ["a"], None)
    assert "1 ok, 1 unreadable" in call("verify", "bad.npz", status=2)
    with pytest.raises(CorruptionError, match=r"^'bad\.npz': a is not readable by treepack: pass"):
        treepack.load("bad.npz", verify=True)
    assert treepack.load("bad.npz", on_corrupt="skip").keys() == {"good"}
    assert "UNREADABLE_packed" in call("ls", "bad.npz")
    for target in ("rest.npz", "rest.treepack"):
        assert "left out an unreadable leaf: a" in call("salvage", "bad.npz", target, status=1)
        assert str(treepack.load(target)) == str({"good": np.ones(20)})


def test_empty_archives(folder: Path) -> None:
    np.savez("empty.npz")
    assert dict(np.load("empty.npz")) == treepack.load("empty.npz") == {}
    assert treepack.abstract("empty.npz") == {}
    assert treepack.is_checkpoint("empty.npz")
    assert treepack.verify("empty.npz").ok
    for target in ("other.npz", "other.treepack"):
        call("convert", "empty.npz", target)
        assert treepack.load(target) == {}


def test_members_inside_each_other_are_refused(folder: Path) -> None:
    """Their arrays would take the same bytes many times."""
    with zipfile.ZipFile("bad.npz", "w") as archive:
        archive.writestr("a.npy", npy(np.ones(2000)))
        for number in range(20):
            twin = copy.copy(archive.filelist[0])
            twin.filename = f"b{number}.npy"
            archive.filelist.append(twin)
    for read in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(DecodeError, match=r"overlap: they have \d+ of \d+ bytes"):
            read("bad.npz")
    assert "overlap" in str(treepack.verify("bad.npz").damage)


def test_archives_of_many_arrays_are_opened_once(folder: Path) -> None:
    np.savez("many.npz", **{f"a{index}": np.ones(2) for index in range(50)})
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    with treepack.open("many.npz") as file:
        assert len(os.listdir("/dev/fd")) <= before + 2  # noqa: PTH208
        assert file["a49"][:].tolist() == [1, 1]


def test_files_other_than_archives(folder: Path) -> None:
    for content, message in (
        (b"PK", "text that begins"),
        (b"PK\x03\x04" + bytes(40), "zip"),
    ):
        Path("bad.npz").write_bytes(content)
        with pytest.raises(DecodeError, match=message):
            call("convert", "bad.npz", "new")
        with pytest.raises(DecodeError, match=r"bad\.npz"):
            call("convert", "bad.npz", "new", "--sep", "/")
        assert not Path("new").exists()


ARRAYS = {
    "whole": np.arange(6.0).reshape(2, 3),
    "turned": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "swapped": np.arange(6, dtype=">i4"),
    "empty": np.zeros((0, 3)),
    "large": np.arange(3_000_000, dtype=np.int16).reshape(3000, 1000),
    "layers.0.scale": np.array(2.5),
    "half/b": np.ones(3, ml_dtypes.bfloat16),
    "day": np.array(["2020-02-02"], "M8[D]"),
    "complex": np.ones(3, np.complex64),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_verb_reads_archives(folder: Path, save: Any) -> None:
    save("some.npz", **ARRAYS, names=np.array([["a", "bc"]]))
    data = Path("some.npz").read_bytes()
    loaded = treepack.load("some.npz")
    assert loaded["names"] == [["a", "bc"]]
    with treepack.open("some.npz") as file, treepack.open(io.BytesIO(data)) as other:
        for name, array in ARRAYS.items():
            path = name.replace("/", "~1").replace(".", "/")
            for found in (file[path], other[path], pickle.loads(pickle.dumps(file))[path]):
                assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("="))
                np.testing.assert_array_equal(np.asarray(found), array)
        assert file["large"][7:9, 5].tolist() == ARRAYS["large"][7:9, 5].tolist()
        assert file["names/0/1"] == "bc"
        np.testing.assert_array_equal(loaded["large"], ARRAYS["large"])
    template = {"whole": np.zeros((2, 3)), "layers": {"0": {"scale": np.zeros(())}}}
    assert treepack.load("some.npz", template)["layers"]["0"]["scale"] == 2.5
    assert treepack.load("some.npz", select="turned")["turned"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert set(treepack.verify("some.npz").leaves.values()) == {"ok"}
    assert treepack.is_checkpoint(data)
    assert treepack.read_metadata("some.npz") is None
    assert not treepack.diff("some.npz", data)
    call("get", "some.npz", "layers", "layers.treepack")
    call("salvage", "some.npz", "all.treepack")
    assert treepack.load("layers.treepack")["0"]["scale"] == 2.5
    assert not treepack.diff("some.npz", "all.treepack")
    np.savez_compressed("packed.npz", a=np.zeros(99))
    with pytest.raises(treepack.TreepackError, match="max_size=10"):
        treepack.load("packed.npz", max_size=10)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_arrays(folder: Path, save: Any) -> None:
    save("some.npz", a=ARRAYS["large"], b=np.ones(5))
    data = bytearray(Path("some.npz").read_bytes())
    data[len(data) // 2] ^= 1
    Path("some.npz").write_bytes(data)
    found = treepack.verify("some.npz")
    assert (dict(found.leaves), found.damage) == ({"a": "corrupt", "b": "ok"}, None)
    with treepack.open("some.npz") as file:
        assert file["b"][:].tolist() == [1] * 5
        for _ in range(2):
            with pytest.raises(CorruptionError, match="a is damaged"):
                file["a"][0, :5]
    for options in ({}, {"verify": True}, {"select": "a"}):
        with pytest.raises(CorruptionError, match="a"):
            treepack.load("some.npz", **options)
    with pytest.raises(CorruptionError, match=r"a is damaged: `treepack salvage`"):
        call("convert", "some.npz", "new.treepack")
    assert call("salvage", "some.npz", "rest.treepack", status=1)
    assert treepack.load("rest.treepack")["b"].tolist() == [1] * 5


@pytest.mark.parametrize(("place", "bit"), [(10, 1), (10, 16), (8, 1), (8, 32), (8, 64)])
def test_damaged_flags_and_methods_are_damage(folder: Path, place: int, bit: int) -> None:
    """Which a limit of treepack would look like, without the header of the member."""
    path = folder / "x.npz"
    np.savez(path, a=np.arange(3), b=np.ones(2))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + place] ^= bit
    path.write_bytes(data)
    assert treepack.verify(path).corrupt == ["a"]
    assert str(treepack.load(path, on_corrupt="skip")) == str({"b": np.ones(2)})


def test_archives_are_recognised_by_their_end(folder: Path) -> None:
    path = folder / "x.npz"
    np.savez(path, a=np.arange(3), b=np.ones(2))
    path.write_bytes(b"\0" + path.read_bytes()[1:])
    assert treepack.verify(path).corrupt == ["a"]
    with pytest.raises(CorruptionError, match="the array a is damaged"):
        treepack.load(path)
    assert str(treepack.load(path, select="b")) == str({"b": np.ones(2)})
    data = path.read_bytes()
    for place in (26, 30, 34):  # the length and name of the first member
        changed = bytearray(b"P" + data[1:])
        changed[place] ^= 1
        path.write_bytes(changed)
        assert treepack.verify(path).corrupt == ["a"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"")
        archive.writestr("b.npy", npy(np.ones(2)))
    for verb in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(DecodeError, match="PyTorch"):
            verb(path)


def test_many_strings_in_few_bytes_are_the_bytes_of_their_file(folder: Path) -> None:
    """Each would be a leaf: two kilobytes took half a minute."""
    empty = {name: np.zeros(40_000, "S1") for name in "abc"}
    np.savez_compressed(folder / "x.npz", **empty)
    tree = treepack.load(folder / "x.npz")
    assert tree["a"] == [b""] * 40_000
    for name in "bc":  # 65,536 strings are free, and one for four bytes
        assert np.array_equal(np.load(io.BytesIO(tree[name].tobytes())), empty[name])
    assert treepack.verify(folder / "x.npz").ok


def test_folders_in_an_archive_are_skipped(folder: Path) -> None:
    archive_of(("a/", b""), ("a/b/", b""), ("a/b/w.npy", GOOD))
    data = Path("bad.npz").read_bytes()
    for damaged in (data, b"\0" + data[1:]):
        Path("bad.npz").write_bytes(damaged)
        assert str(treepack.load("bad.npz")) == str({"a": {"b": {"w": np.ones(20)}}})
        assert treepack.verify("bad.npz").ok
        assert "npz of NumPy" in call("info", "bad.npz")
    with pytest.raises(DecodeError, match=r"an npz archive of NumPy: read it with treepack\.load"):
        treepack.loads(data)


UNREADABLE = {
    "objects": (npy(np.array([{}], object)), None, 2, "a cannot be read: .* --skip leaves it out"),
    "damage": (npy(np.zeros(20)), -1, 1, "a is damaged: `treepack salvage`|array a is damaged"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("target", ["new.safetensors", "new.npz", "new.treepack", "new.msgpack"])
@pytest.mark.parametrize("options", [(), ("--sep", "/")])
@pytest.mark.filterwarnings("error")
def test_members_that_cannot_be_copied(
    folder: Path, kind: str, target: str, options: tuple[str, ...]
) -> None:
    """Not their bytes, nor advice for another dtype."""
    data, flipped, status, message = UNREADABLE[kind]
    archive_of(("a.npy", data), ("good.npy", GOOD))
    if flipped is not None:
        raw = bytearray(Path("bad.npz").read_bytes())
        raw[raw.index(b"NUMPY") + 130] ^= 1
        Path("bad.npz").write_bytes(raw)
    text = refused("convert", "bad.npz", target, *options, status=status)
    assert re.search(message, text)
    assert not Path(target).exists()
    call("convert", "bad.npz", target, *options, "--skip", "a")
    np.testing.assert_array_equal(treepack.load(target)["good"], np.ones(20))


def test_bytes_that_stand_for_elements_are_no_array_of_numpy(folder: Path) -> None:
    head = json.dumps({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    Path("a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"ab")
    assert "npz does not support dtype F4_packed: save its bytes" in refused(
        "convert", "a.safetensors", "a.npz"
    )


@pytest.mark.parametrize(
    "names", [["a/b", "a/c"], ["a.b", "a.c"], ["a/b.c", "a/c"], ["a/b", "w"], ["w"]]
)
def test_names_of_arrays_stay_as_they_are(folder: Path, names: list[str]) -> None:
    np.savez("old.npz", **{name: np.ones(2) for name in names})
    for command in (["convert", "old.npz"], ["salvage", "old.npz"]):
        call(*command, "new.npz")
        assert np.load("new.npz").files == names
    call("convert", "old.npz", "new.safetensors")
    assert not treepack.diff("old.npz", "new.safetensors")


@pytest.mark.parametrize("command", ["convert SOURCE", "get SOURCE .", "salvage SOURCE"])
@pytest.mark.parametrize("source", ["of.npz", "of.safetensors", "of.treepack"])
def test_a_separator_is_of_the_names_that_are_written(
    folder: Path, command: str, source: str
) -> None:
    treepack.save("old.treepack", {"a": {"b": np.ones(2), "c": np.ones(2)}})
    call("convert", "old.treepack", source)
    for target in ("new.npz", "new.safetensors"):
        call(*command.replace("SOURCE", source).split(), target, "--sep", "-")
        call("convert", target, "back.treepack", "--sep", "-")
        assert treepack.digest("back.treepack") == treepack.digest("old.treepack")
    assert np.load("new.npz").files == ["a-b", "a-c"]


def test_only_elements_of_arrays_are_parameters(folder: Path) -> None:
    structure = npy(np.zeros(3, [("x", "<f4")]))
    archive_of(("good.npy", GOOD), ("a.npy", structure), ("b.npy", npy(np.array([{}], object))))
    with treepack.open("bad.npz") as file:
        assert file.num_params == 20
    assert json.loads(call("info", "bad.npz", "--json"))["parameters"] == 20
    head = {
        name: {"dtype": dtype, "shape": [4, *[1] * dims], "data_offsets": [start, start + size]}
        for name, dtype, dims, start, size in (
            ("f4", "F4", 0, 0, 2), ("f6", "F6_E2M3", 0, 2, 3), ("deep", "F32", 70, 5, 16),
            ("bools", "BOOL", 70, 21, 4), ("deep8", "F8_E4M3", 70, 25, 4),
        )
    }  # fmt: skip
    text = json.dumps(head).encode()
    Path("a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(29))
    with treepack.open("a.safetensors") as file:
        assert file.num_params == 20


class Pipe(io.RawIOBase):
    """A file that cannot seek: zipfile writes sizes after each member."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def cut_forms() -> dict[str, tuple[bytes, list[int]]]:
    """Returns archives, and the ends of their members."""
    found = {}
    for is_piped, is_packed, is_of_numpy in itertools.product((False, True), repeat=3):
        file: Any = Pipe() if is_piped else io.BytesIO()
        if is_of_numpy:  # with sizes of 8 bytes
            (np.savez_compressed if is_packed else np.savez)(file, **CUT)
        else:
            method = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
            with zipfile.ZipFile(file, "w", method) as archive:
                for name, array in CUT.items():
                    archive.writestr(f"{name}.npy", npy(array))
        data = bytes(file.data) if is_piped else file.getvalue()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            begins = [member.header_offset for member in archive.infolist()]
            ends = [*begins[1:], archive.start_dir]
        name = f"{'piped' if is_piped else 'whole'}, {'packed' if is_packed else 'stored'}"
        found[f"{name}, {'NumPy' if is_of_numpy else 'zipfile'}"] = data, ends
    return found


# One has the signature of a descriptor among its elements.
CUT = {
    "a": np.arange(3, dtype=np.uint8),
    "b": np.frombuffer(b"PK\7\x08" * 6, np.uint32),
    "text": np.array("xyz"),
    "c": np.ones((2, 2)),
}

CUT_FORMS = cut_forms()


def had(data: bytes) -> tuple[dict[str, Any], ...]:
    """Returns the arrays, by all ways, of a damaged archive; checks that its damage is reported."""
    with treepack.open(data, salvage=True) as file:
        verified = treepack.verify(data)
        intact = [path for path, status in verified.leaves.items() if status == "ok"]
        assert verified.damage
        assert file.damage == verified.damage
        assert not file.unverified
        for path in verified.corrupt:
            with pytest.raises(CorruptionError, match=f"the array {path} is damaged"):
                np.asarray(file[path])
            assert f"the file ends within {path}, at byte {len(data)}" in verified.damage
        opened = {path: np.asarray(file[path]) for path in intact}
    loaded, report = treepack.load(data, on_corrupt="skip", return_report=True)
    assert report.corrupt == verified.corrupt
    return opened, loaded


@pytest.mark.parametrize("form", CUT_FORMS)
@pytest.mark.filterwarnings("ignore:in memory is damaged")
def test_of_an_archive_that_is_cut_all_whole_members_are_had(form: str) -> None:
    data, ends = CUT_FORMS[form]
    some = tiers.either(11, 3, nightly=1)
    for cut in {*range(40, len(data), some), *ends, *(end - 1 for end in ends)}:
        whole = [name for name, end in zip(CUT, ends, strict=True) if end <= cut]
        try:
            ways = had(data[:cut])
        except DecodeError:
            assert not whole, cut
            continue
        for found in ways:
            assert found.keys() >= {*whole}, cut
            for name, array in found.items():
                np.testing.assert_array_equal(array, CUT[name])


def test_an_archive_without_its_directory_is_salvaged(folder: Path) -> None:
    data, ends = CUT_FORMS["whole, stored, NumPy"]
    Path("cut.npz").write_bytes(data[: ends[2] - 5])
    for read in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(DecodeError, match=r"missing; copy it again, or .* `treepack salvage`"):
            read("cut.npz")
    told = call("salvage", "cut.npz", "rest.npz", status=1)
    assert "within text, at byte" in told
    assert treepack.load("rest.npz").keys() == {"a", "b"}
    # Damage elsewhere ends the walk; members behind it are not guessed.
    damaged = bytearray(data[:-60])
    damaged[ends[0]] ^= 1
    assert dict(treepack.verify(damaged).leaves) == {"a": "ok"}
    assert f"no member begins at byte {ends[0]}" in str(treepack.verify(damaged).damage)
    archive_of(("a.npy", npy(np.zeros(1 << 16))), method=zipfile.ZIP_DEFLATED)
    cut = Path("bad.npz").read_bytes()[:-30]
    assert dict(treepack.verify(cut).leaves) == {"a": "ok"}
    with pytest.raises(treepack.TreepackError, match="exceed max_size=9999 bytes"):
        treepack.open(cut, salvage=True, max_size=9999)


@METHODS
@pytest.mark.parametrize("length", [1, 6, 31])
def test_a_tiny_member_that_is_damaged_is_one_leaf(folder: Path, method: int, length: int) -> None:
    """Its bytes are read with its header, when the others are, too."""
    archive_of(("good.npy", GOOD), ("a.npy", b"x" * length), method=method)
    data = bytearray(Path("bad.npz").read_bytes())
    data[data.rindex(b"PK\1\2") + 16] ^= 1  # the CRC of the last
    Path("bad.npz").write_bytes(data)
    check_others(is_refused=True)
    assert treepack.verify("bad.npz").corrupt == ["a"]
