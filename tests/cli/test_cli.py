"""The command line: what it prints, its exit status, and the files that it writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from rich.cells import cell_len
from typer.testing import CliRunner

import treepack.__main__
from treepack import DecodeError, TreepackError, serialization
from treepack._cli import app, output
from treepack._cli import convert as _convert
from trees import ML_DTYPES, record_of, sealed

TREE: dict[str, Any] = {
    "params": {
        "dense": {
            "kernel": np.arange(6000.0, dtype=np.float32).reshape(60, 100),
            "bias": np.ones(3),
        },
        "scale": np.arange(8).astype(ml_dtypes.bfloat16),
    },
    "step": 7,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    treepack.save(
        "model",
        {**TREE, "key": jax.random.key(1), "list": [jnp.ones(2), (1, "x")]},
        metadata={"epoch": 3},
    )
    Path("flax").write_bytes(flax.serialization.to_bytes(TREE))
    return tmp_path


def run(*args: str, status: int = 0) -> str:
    """Runs a command in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "treepack", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status < 2 else done.stderr


def refused(*args: str) -> str:
    """Returns the message of a command that cannot be done, which ends as `run` sees it end."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["treepack", *args])
            with pytest.raises(SystemExit) as ended:
                treepack.__main__.main()
        err.flush()
    message = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert ended.value.code == 2, message
    return message


def call(*args: str, status: int = 0) -> str:
    """The same in this process."""
    done = CliRunner().invoke(app, args)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


def test_ls(folder: Path) -> None:
    assert run("ls", "flax").splitlines() == [
        "flax: 4 leaves, 23.5 KiB",
        "params      3 leaves         23.5 KiB",
        "  dense     2 leaves         23.5 KiB",
        "    kernel  float32[60,100]  23.5 KiB",
        "    bias    float64[3]           40 B",
        "  scale     bfloat16[8]          33 B",
        "step        int                   1 B",
    ]
    assert call("ls", "flax", "--depth", "0").splitlines()[1:] == [
        "params  3 leaves  23.5 KiB",
        "step    int            1 B",
    ]
    assert call("ls", "flax", "params", "--flat").split() == [
        *("dense/kernel", "float32[60,100]", "23.5", "KiB"),
        *("dense/bias", "float64[3]", "40", "B", "scale", "bfloat16[8]", "33", "B"),
    ]
    assert call("ls", "flax", "step").split() == ["step", "int", "1", "B"]
    found = json.loads(call("ls", "model", "--json"))
    assert found["file"] == "model"
    assert found["metadata"] == {"epoch": 3}
    kernel = found["leaves"][0]
    assert kernel["path"] == "params/dense/kernel"
    assert (kernel["dtype"], kernel["shape"]) == ("float32", [60, 100])
    assert kernel["nbytes"] >= 24_000
    assert [leaf["kind"] for leaf in found["leaves"]][3:] == [
        *("int", "prng_key", "array", "int", "str"),
    ]


def test_show(folder: Path) -> None:
    text = call("show", "model", "params/dense/kernel")
    assert "float32[60,100], 23.4 KiB" in text
    assert "0 to 5999" in text
    assert "2999.5 ± 1732.05" in text
    assert "1 of 6000" in text
    assert "█" in text
    assert call("show", "model", "step") == "step: int\n7\n"
    treepack.save(
        "odd",
        {
            "w": np.array([np.nan, np.inf, 1.0]),
            "e": np.zeros((0, 2)),
            "z": np.ones(2, np.complex64),
            "t": np.zeros(2, "M8[s]"),
            "n": np.float64(2),
        },
    )
    assert "1 NaN, 1 infinite" in call("show", "odd", "w")
    for path in ("e", "z", "t", "n"):
        assert call("show", "odd", path)
    assert "treepack ls model params" in refused("show", "model", "params")
    message = "treepack: 'model': there is nothing at nothing\n"
    assert run("show", "model", "nothing", status=2) == message
    assert refused("show", "model", "nothing") == message


def test_verify(folder: Path) -> None:
    assert call("verify", "model") == "model: 8 ok\n"
    assert "4 unchecked" in call("verify", "flax")
    data = bytearray(Path("model").read_bytes())
    data[3000] ^= 4
    Path("model").write_bytes(data)
    text = call("verify", "model", "flax", status=1)
    assert "corrupt  params/dense/kernel" in text
    assert "1 corrupt" in text
    assert call("verify", "-q", "model", status=1) == ""
    assert "No such file" in refused("verify", "nothing")


def test_diff(folder: Path) -> None:
    assert call("diff", "flax", "flax") == "0 of 4 leaves differ\n"
    other = {
        "params": {
            "dense": {"kernel": TREE["params"]["dense"]["kernel"] + np.float32(0.5)},
            "scale": TREE["params"]["scale"].astype(np.float32),
        },
        "step": 8,
        "more": np.zeros(2),
    }
    Path("other").write_bytes(serialization.to_bytes(other))
    lines = call("diff", "flax", "other", status=1).splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["params/dense/kernel", "values"],
        ["params/dense/bias", "only"],
        ["params/scale", "dtype"],
        ["step", "value"],
        ["more", "only"],
    ]
    assert "6000 elements, by 0.5 at most, relative 1" in lines[0]
    assert lines[-1] == "5 of 5 leaves differ"
    text = call("diff", "flax", "other", "--atol", "0.5", status=1)
    assert "values" not in text


@pytest.mark.parametrize("gzip", ["--gzip", "--no-gzip"])
def test_conversions_keep_all(folder: Path, gzip: str) -> None:
    call("convert", "model", "new", gzip, "--align", "16")
    assert (Path("new").read_bytes()[:2] == b"\x1f\x8b") == (gzip == "--gzip")
    found = treepack.load("new")
    assert found["list"][1] == (1, "x")
    assert isinstance(found["list"][0], jax.Array)
    assert treepack.read_metadata("new") == {"epoch": 3}
    assert treepack.verify("new").ok
    assert not treepack.verify("new").unchecked
    call("convert", "new", "again", "--no-gzip")
    assert Path("again").read_bytes() == Path("model").read_bytes()
    # flax's files stay flax's.
    call("convert", "flax", "new", gzip, "--align", "1")
    call("convert", "new", "again", "--no-gzip", "--align", "1")
    assert Path("again").read_bytes() == Path("flax").read_bytes()


def test_other_formats(folder: Path) -> None:
    call("convert", "flax", "new.safetensors")
    flat = safetensors.numpy.load_file("new.safetensors")
    assert sorted(flat) == ["params.dense.bias", "params.dense.kernel", "params.scale", "step"]
    np.testing.assert_array_equal(flat["params.dense.kernel"], TREE["params"]["dense"]["kernel"])
    np.testing.assert_array_equal(flat["params.scale"], TREE["params"]["scale"])
    call("convert", "new.safetensors", "back")
    back = serialization.msgpack_restore(Path("back").read_bytes())
    assert back["params"]["scale"].dtype == ml_dtypes.bfloat16
    jax.tree.map(np.testing.assert_array_equal, back, TREE)
    call("convert", "flax", "new.npz", "--dtype", "float16", "--sep", "/")
    archive = np.load("new.npz")
    assert archive["params/dense/kernel"].dtype == np.float16
    np.testing.assert_array_equal(
        archive["params/dense/kernel"], TREE["params"]["dense"]["kernel"].astype(np.float16)
    )
    call("convert", "new.npz", "back", "--sep", "/", "--dtype", "float32")
    np.savez_compressed("packed.npz", a=np.arange(3), b=np.asfortranarray(np.ones((2, 3))))
    call("convert", "packed.npz", "back2")
    back = serialization.msgpack_restore(Path("back2").read_bytes())
    np.testing.assert_array_equal(back["b"], np.ones((2, 3)))
    # Of other writers.
    safetensors.numpy.save_file(
        {"a.b": np.arange(4, dtype=np.uint16)}, "hf.safetensors", metadata={"format": "np"}
    )
    call("convert", "hf.safetensors", "back3", "--gzip")
    assert treepack.open("back3")["a/b"][2] == 2


def test_parts(folder: Path) -> None:
    call("get", "model", "params/dense", "dense")
    found = flax.serialization.msgpack_restore(Path("dense").read_bytes())
    np.testing.assert_array_equal(found["kernel"], TREE["params"]["dense"]["kernel"])
    call("get", "model", "params/dense/kernel", "kernel", "--dtype", "bfloat16")
    assert serialization.msgpack_restore(Path("kernel").read_bytes()).dtype == ml_dtypes.bfloat16


def test_floats_in_lists_become_another_dtype(folder: Path) -> None:
    tree = {"list": [np.ones(300, np.float32), {"deeper": np.ones(2)}], "count": [np.arange(3)]}
    Path("lists").write_bytes(serialization.msgpack_serialize(tree))
    call("convert", "lists", "new", "--dtype", "bfloat16")
    new = serialization.msgpack_restore(Path("new").read_bytes())
    assert jax.tree.map(lambda it: it.dtype.name, new) == {
        "list": ["bfloat16", {"deeper": "bfloat16"}],
        "count": ["int64"],
    }


def test_what_cannot_be_converted(folder: Path) -> None:
    for args, message in (
        (("convert", "model", "x.safetensors"), "at key: a PRNGKeyArray is no array"),
        (("convert", "flax", "x.npz"), "npz has no dtype bfloat16"),
        (("convert", "flax", "x", "--dtype", "int8"), "no dtype of floats"),
        (("convert", "flax", "x.npz", "--gzip"), "are for msgpack"),
        (("get", "model", "nothing", "x"), "nothing at nothing"),
        (("ls", "nothing-like-this://host/x"), "Protocol not known"),
    ):
        assert message in refused(*args)
    Path("bad.safetensors").write_bytes(b"\xff" * 20)
    assert "does not fit" in refused("convert", "bad.safetensors", "x")
    Path("keys").write_bytes(serialization.to_bytes({"a.b": np.ones(2)}))
    assert "choose another one with --sep" in refused("convert", "keys", "x.npz")
    assert sorted(os.listdir()) == ["bad.safetensors", "flax", "keys", "model"]  # noqa: PTH208


@pytest.mark.parametrize("name", ["bcomplex32", "complex32"])
def test_complex_numbers_of_ml_dtypes(folder: Path, name: str) -> None:
    array = np.asarray([3j, 3j], getattr(ml_dtypes, name))
    Path("complex").write_bytes(serialization.to_bytes({"w": array}))
    assert "|x| from  3 to 3" in call("show", "complex", "w")


@pytest.mark.parametrize("dtype", ML_DTYPES, ids=str)
def test_npz_has_no_dtypes_of_ml_dtypes(folder: Path, dtype: Any) -> None:
    Path("one").write_bytes(serialization.to_bytes({"w": np.zeros(3, dtype)}))
    with pytest.raises(treepack.TreepackError, match=f"npz has no dtype {dtype.name}"):
        call("convert", "one", "one.npz")


def test_salvage(folder: Path) -> None:
    data = Path("model").read_bytes()
    Path("cut").write_bytes(data[: len(data) // 2])
    text = call("salvage", "cut", "new", status=1)
    assert "damaged: the data ends" in text
    Path("flipped").write_bytes(data[:3000] + b"?" + data[3001:])
    assert "params/dense/kernel" in call("salvage", "flipped", "new", status=1)
    found = serialization.msgpack_restore(Path("new").read_bytes())
    assert list(found["params"]["dense"]) == ["bias"]
    assert found["step"] == 7
    call("salvage", "model", "new")
    assert Path("new").read_bytes() == data


def test_pipes_and_completion(folder: Path) -> None:
    command = f"{sys.executable} -m treepack ls --flat many | head -n 1"
    treepack.save("many", {f"{index:05}": index for index in range(20_000)})
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "00000  int  1 B\n"
    assert done.stderr == ""
    environment = os.environ | {
        "_TREEPACK_COMPLETE": "complete_bash",
        "COMP_WORDS": "treepack ver",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [Path(sys.executable).parent / "treepack"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "verify" in done.stdout


LARGE = """
import numpy as np, treepack
treepack.save("large", {f"l{i}": np.full(1 << 22, i, np.float32) for i in range(20)}, durable=False)
"""

MEMORY = """
import sys
from pathlib import Path
from treepack._cli import app, output
import numpy as np, zipfile, json, treepack._cli.convert
def memory(field):
    return int(Path("/proc/self/status").read_text().split(field)[1].split()[1])
Path("/proc/self/clear_refs").write_text("5")  # what the process that started this one had
before = memory("VmRSS")
app(sys.argv[1:], standalone_mode=False)
print("MEMORY", memory("VmHWM") - before)
"""


def test_files_may_be_larger_than_memory(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", LARGE], check=True)
    for args in (
        ("convert", "large", "large.safetensors"),
        ("convert", "large.safetensors", "again", "--dtype", "bfloat16"),
        ("convert", "large", "large.npz"),
        ("convert", "large", "packed", "--gzip"),
        ("get", "packed", "l3", "one"),
    ):
        command = [sys.executable, "-c", MEMORY, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout.split("MEMORY")[1]) < 150 << 10, args  # KiB, of 320 MiB
    assert treepack.open("again")["l7"][5] == 7
    assert safetensors.numpy.load_file("large.safetensors")["l7"][5] == 7
    assert treepack.open("one")["."][9] == 3


def test_without_its_libraries(folder: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; import treepack.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'treepack[cli]'" in done.stderr


ARRAY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def packed(header: Any, body: bytes, length: int | None = None) -> bytes:
    """The bytes of a file of safetensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def hostile_headers() -> dict[str, bytes]:
    zeros = bytes(16)

    def one(**changes: Any) -> bytes:
        return packed({"a": ARRAY | changes}, zeros[:8])

    def two(first: list[int], second: list[int], body: int = 16) -> bytes:
        ours, theirs = ARRAY | {"data_offsets": first}, ARRAY | {"data_offsets": second}
        return packed({"a": ours, "b": theirs}, zeros[:body])

    many = 1 << 32
    return {
        "negative": one(data_offsets=[-8, 0]),
        "overlapping": two([0, 8], [4, 12], 12),
        "equal": two([0, 8], [0, 8], 8),
        "hole": two([0, 8], [12, 20], 20),
        "hole at the start": packed({"a": ARRAY | {"data_offsets": [8, 16]}}, zeros),
        "more after": packed({"a": ARRAY}, zeros),
        "beyond the end": packed({"a": ARRAY}, zeros[:7]),
        "backward": one(data_offsets=[8, 0]),
        "three offsets": one(data_offsets=[0, 8, 8]),
        "offsets of floats": one(data_offsets=[0.0, 8.0]),
        "negative shape": one(shape=[-1, -2]),
        "shape of bools": one(shape=[True, 2]),
        "no shape": one(shape=None),
        "shape wraps around": one(shape=[many, many, 0], data_offsets=[0, 0]),
        "shape beyond integers": one(shape=[10**4000, 0], data_offsets=[0, 0]),
        "other size": one(dtype="F64"),
        "unknown dtype": one(dtype="F31"),
        "dtype of another kind": one(dtype=["F32"]),
        "dtypes of NumPy": one(dtype="float32"),
        "no fields": packed({"a": {}}, b""),
        "no map": packed({"a": 5}, b""),
        "a list": packed(b"[]", b""),
        "nothing": packed(b"", b""),
        "metadata of numbers": packed({"__metadata__": {"a": 1}}, b""),
        "metadata of text": packed({"__metadata__": "a"}, b""),
        "NaN": packed(b'{"__metadata__":NaN}', b""),
        "half a character": packed(b'{"\\ud800":' + json.dumps(ARRAY).encode() + b"}", zeros[:8]),
        "no UTF-8": packed(b'{"\xff":' + json.dumps(ARRAY).encode() + b"}", zeros[:8]),
        "deep": packed(b'{"a":' + b"[" * 100_000, b""),
        "deep in what nobody reads": one(more=json.loads("[" * 200 + "]" * 200)),
        "more after the header": packed(b"{}\0", b""),
        "too large": packed(b"{}", b"", length=100_000_001),
        "cut": b"\x02\0\0",
        "empty": b"",
    }


@pytest.mark.parametrize("name", hostile_headers())
def test_what_safetensors_refuses_is_refused(folder: Path, name: str) -> None:
    data = hostile_headers()[name]
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)
    Path("hostile.safetensors").write_bytes(data)
    with pytest.raises(DecodeError):
        _convert.read_safetensors("hostile.safetensors", ".")


def test_the_command_line_refuses_hostile_headers(folder: Path) -> None:
    Path("hostile.safetensors").write_bytes(hostile_headers()["negative"])
    assert "[-8, 0]" in refused("convert", "hostile.safetensors", "new")
    assert not Path("new").exists()
    twice = json.dumps({"a": ARRAY})[1:-1]
    Path("hostile.safetensors").write_bytes(packed(f"{{{twice},{twice}}}".encode(), bytes(8)))
    with pytest.raises(DecodeError, match="'a' appears twice"):
        call("convert", "hostile.safetensors", "new")
    path = "a." * 5000
    Path("deep.safetensors").write_bytes(packed({path: ARRAY}, bytes(8)))
    with pytest.raises(DecodeError, match="another separator"):
        call("convert", "deep.safetensors", "new")
    call("convert", "deep.safetensors", "new", "--sep", "/")
    assert list(treepack.open("new")) == [path]


def mutated(random: random.Random) -> bytes:
    """A file of safetensors with some things wrong, or none."""
    header: dict[str, Any] = {"__metadata__": {"k": "v"}} if random.random() < 0.3 else {}
    body = 0
    for name in random.sample("abcd", random.randrange(4)):
        dtype, size = random.choice([("F32", 4), ("BF16", 2), ("BOOL", 1), ("F8_E4M3FNUZ", 1)])
        shape = [random.randrange(4) for _ in range(random.randrange(3))]
        stop = body + size * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [body, stop]}
        body = stop
    names = random.sample(list(header), len(header))
    header = {name: header[name] for name in names}
    for _ in range(random.randrange(3)):
        entry: Any = header.get(random.choice("abcd"), {})
        if "shape" not in entry:
            continue
        number = random.choice([-1, 0, 1, 2, 4, 8, 2**31, 2**63, 2**64 - 1, 2**64, 1.0, None, "1"])
        which = random.choice(["data_offsets", "data_offsets", "shape", "dtype", "more", "gone"])
        if which == "data_offsets":
            entry[which][random.randrange(2)] = number
        elif which == "shape":
            entry[which].insert(0, number)
        elif which == "dtype":
            entry[which] = random.choice(["F16", "U8", "C64", "F8_E8M0", "f32", "", None, 1])
        elif which == "more":
            entry[random.choice(["x", "Shape"])] = number
        else:
            del entry[random.choice(["dtype", "shape", "data_offsets"])]
            break
    text = bytearray(json.dumps(header).encode() + b" " * random.randrange(3))
    if random.random() < 0.3 and text:
        text[random.randrange(len(text))] = random.choice(b'0123456789-.eE{}[]",:ab \\\xff\0')
    length, wrong = (
        len(text) + random.choice([0] * 20 + [-1, 1]),
        random.choice([0] * 20 + [-1, 1]),
    )
    return packed(bytes(text), random.randbytes(max(0, body + wrong)), length)


# The format forbids the first two, though its reader does not look; NumPy cannot have the third.
NOT_TAKEN = "begins with no {|appears twice|NumPy has no array"


def test_any_header_is_read_as_safetensors_reads_it(folder: Path) -> None:
    own = random.Random(23)
    taken = refused = 0
    for _ in range(1500):
        data = mutated(own)
        Path("any.safetensors").write_bytes(data)
        try:
            expected = dict(safetensors.deserialize(data))
        except safetensors.SafetensorError:
            refused += 1
            with pytest.raises(DecodeError):
                _convert.read_safetensors("any.safetensors", "")
            continue
        try:
            found = _convert.read_safetensors("any.safetensors", "").tree
        except DecodeError as error:
            if not re.search(NOT_TAKEN, str(error)):
                raise
            continue
        taken += 1
        assert found.keys() == expected.keys()
        for name, array in found.items():
            dtype = _convert._SAFETENSORS[array.dtype.name]
            info = {"shape": list(array.shape), "dtype": dtype}
            assert expected[name] == info | {"data": array.flat_range(0, array.size).tobytes()}
    assert min(taken, refused) > 300


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


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


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_that_are_refused(folder: Path, method: int) -> None:
    good = npy(np.ones(20))
    longer = good.replace(b"(20,), ", b"(2000,)")
    negative = good.replace(b"(20,)", b"(-2,)")
    objects = npy(np.array([{}, 1], dtype=object))
    for members, message in (
        ([("a.npy", good[:-3])], "more than the bytes"),
        ([("a.npy", longer), ("b.npy", good)], "more than the bytes"),
        ([("a.npy", negative)], "more than the bytes"),
        ([("a.npy", good), ("a.npy", good)], "two arrays"),
        ([("a.npy", good), ("a", good)], "two arrays"),
        ([("a.txt", b"what is no array")], "magic"),
        ([("a.npy", objects)], "never read"),
        ([("a.npy", good.replace(b"(20,), ", b"((20,),"))], "not of numpy.savez"),
    ):
        archive_of(*members, method=method)
        with pytest.raises(DecodeError, match=message):
            _convert.read_npz("bad.npz", ".")
    archive_of(("a.npy", good), method=method, flipped=60)
    with pytest.raises(DecodeError):
        _convert.read_npz("bad.npz", ".")
    archive_of(("a.npy", good), method=zipfile.ZIP_LZMA)
    with pytest.raises(DecodeError, match="method 14"):
        _convert.read_npz("bad.npz", ".")
    archive_of(("folder/", b""), ("folder/a.npy", good), method=method)
    np.testing.assert_array_equal(
        np.asarray(_convert.read_npz("bad.npz", "/").tree["folder"]["a"].flat_range(0, 20))
        if method == zipfile.ZIP_STORED
        else _convert.read_npz("bad.npz", "/").tree["folder"]["a"],
        np.ones(20),
    )


def test_archives_of_many_arrays_are_opened_once(folder: Path) -> None:
    np.savez("many.npz", **{f"a{index}": np.ones(2) for index in range(50)})
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    state = _convert.read_npz("many.npz", ".")
    assert len(os.listdir("/dev/fd")) <= before + 2  # noqa: PTH208
    assert state.tree["a49"].flat_range(0, 2).tolist() == [1, 1]


def test_what_is_no_archive(folder: Path) -> None:
    for content in (b"", b"PK", npy(np.ones(2)), b"PK\x03\x04" + bytes(40)):
        Path("bad.npz").write_bytes(content)
        with pytest.raises(DecodeError, match=r"not of numpy\.savez"):
            call("convert", "bad.npz", "new")
    np.savez("text.npz", a=np.array(["x"]))
    assert "cannot serialize" in refused("convert", "text.npz", "new")
    assert not Path("new").exists()


def test_names_that_other_formats_cannot_have(folder: Path) -> None:
    for tree, write, message in (
        ({"a": {"b": 1}, "ab": 2}, _convert.write_safetensors, "two arrays"),
        ({"a": {"b": 1}, "ab": 2}, _convert.write_npz, "two arrays"),
        ({"__metadata__": 1}, _convert.write_safetensors, "__metadata__"),
        ({"a\0b": 1}, _convert.write_npz, "no NUL"),
        ({"a" * 65_532: 1}, _convert.write_npz, "at most"),
    ):
        with pytest.raises(TreepackError, match=message):
            write(_convert.State(tree, None), "new", "")
    _convert.write_npz(_convert.State({"a" * 65_531: 1}, None), "new", "")
    assert np.load("new")["a" * 65_531] == 1


def test_names_as_deep_as_trees(folder: Path) -> None:
    safetensors.numpy.save_file({".".join("a" * 511): np.ones(1)}, "deep.safetensors")
    call("convert", "deep.safetensors", "new", "--dtype", "float16")
    call("convert", "new", "new.npz")
    assert np.load("new.npz")[".".join("a" * 511)].dtype == np.float16


# A title of the window, a cleared screen, a line of its own, text from right to left, nothing that
# can be seen, and markup of rich. In escapes, as people see them:
HOSTILE = "\x1b]0;x\x07\x1b[2J\n0 corrupt\r\u202e\u2066\u200b\ufeff\u2028\x9b\x7f[red]\t."
SEEN = r"\x1b]0;x\x07\x1b[2J\n0 corrupt\r\u202e\u2066\u200b\ufeff\u2028\x9b\x7f[red]\t."


def check_harmless(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n")), ascii(text)


def test_what_files_bring_is_escaped(folder: Path) -> None:
    treepack.save("hostile", {HOSTILE: {"w": np.ones(3), HOSTILE: 1}, "v": HOSTILE})
    Path(HOSTILE).write_bytes(Path("hostile").read_bytes())
    treepack.save("other", {HOSTILE: {"w": np.zeros(3)}, "v": 1}, metadata=HOSTILE)
    data = bytearray(Path("hostile").read_bytes())
    data[data.index(np.ones(3).tobytes())] ^= 1
    Path("damaged").write_bytes(data)
    for args, status in (
        (("ls", "hostile"), 0),
        (("ls", "--flat", "hostile"), 0),
        (("ls", HOSTILE, HOSTILE), 0),
        (("show", HOSTILE, f"{HOSTILE}/w"), 0),
        (("diff", "hostile", "other"), 1),
        (("verify", "damaged", HOSTILE), 1),
        (("salvage", "damaged", "new"), 1),
        (("convert", "other", f"{HOSTILE}.new"), 0),
        (("get", HOSTILE, HOSTILE, f"{HOSTILE}.part"), 0),
    ):
        text = call(*args, status=status)
        check_harmless(text)
        assert SEEN in text, args
    check_harmless(call("show", "hostile", "v"))
    check_harmless(call("ls", "--json", "other"))
    for args in (
        ("ls", HOSTILE + "?"),
        ("show", "hostile", HOSTILE),
        ("ls", "hostile", HOSTILE * 2),
    ):
        text = refused(*args)
        check_harmless(text)
    Path("hostile.safetensors").write_bytes(packed({HOSTILE: ARRAY | {"shape": [3]}}, bytes(8)))
    text = refused("convert", "hostile.safetensors", "new")
    check_harmless(text)
    assert SEEN in text


def test_columns_count_cells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"ab": 1, "\u5c42\u6a21": 2, "e\u0301": 3, "\u5c42" * 40: 4}
    treepack.save("wide", tree)
    lines = call("ls", "--flat", "wide").splitlines()
    starts = [cell_len(line[: line.index("int")]) for line in lines]
    assert starts == [82] * 4
    monkeypatch.setattr(output.shutil, "get_terminal_size", lambda: os.terminal_size((40, 20)))
    with contextlib.redirect_stdout(Terminal()) as shown:
        output.rows([((key, "int"), ("", "")) for key in tree])
    lines = shown.getvalue().splitlines()
    assert [cell_len(line) for line in lines] == [40] * 4
    assert lines[3].startswith("\u2026\u5c42")


class Terminal(io.StringIO):
    """What somebody looks at."""

    def isatty(self) -> bool:
        """Tells so."""
        return True


def test_files_of_newer_versions(folder: Path) -> None:
    record = msgpack.unpackb(record_of(Path("model").read_bytes()))
    newer = msgpack.packb({"__treepack__": sealed(msgpack.packb({**record, "version": 2}))})
    Path("newer").write_bytes(newer)
    assert "newer: not checked: " in call("verify", "model", "newer", status=2)
    assert "upgrade treepack" in call("verify", "newer", status=2)
    assert "upgrade treepack" in refused("ls", "newer")
    Path("cut").write_bytes(Path("model").read_bytes()[:-5])
    assert "damaged" in call("verify", "cut", "newer", status=1)
