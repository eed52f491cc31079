"""The formats that `treepack ls` and `convert` read, the leaves that are chosen, exit statuses."""

from __future__ import annotations

import dataclasses
import enum
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import fsspec
import jax
import ml_dtypes
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
import safetensors
import safetensors.numpy
from typer.testing import CliRunner

import tiers
import treepack
from commands import call, refused, run
from treepack import serialization
from treepack._cli import app
from treepack._src.printable import size_text

TREE: dict[str, Any] = {
    "params": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3)},
    "step": np.array(7),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def flat() -> dict[str, np.ndarray]:
    return {"params.w": TREE["params"]["w"], "params.b": TREE["params"]["b"], "step": np.array(7)}


def write_safetensors(path: str) -> str:
    safetensors.numpy.save_file(flat(), path, {"format": "pt"})
    return path


def write_npz(path: str) -> str:
    with open(path, "wb") as file:  # noqa: PTH123
        np.savez(file, **flat())  # type: ignore[arg-type]
    return path


def write_stream(path: str) -> str:
    """As the StreamingCheckpointer of EasyLM does."""
    leaves = {("params", "w"): TREE["params"]["w"], ("params", "b"): TREE["params"]["b"]}
    packer = msgpack.Packer()
    parts = [
        packer.pack((key, flax.serialization.to_bytes(leaf)))
        for key, leaf in {**leaves, ("step",): np.int32(7)}.items()
    ]
    Path(path).write_bytes(b"".join(parts))
    return path


def write_flax(path: str) -> str:
    Path(path).write_bytes(flax.serialization.to_bytes(TREE))
    return path


def write_gzip(path: str) -> str:
    """Gzip of another program, which is too large to be inflated unasked."""
    noise = np.random.default_rng(0).bytes(2 << 20)
    encoded = flax.serialization.to_bytes({**TREE, "noise": np.frombuffer(noise, np.uint8)})
    Path(path).write_bytes(gzip.compress(encoded, 1))
    return path


def write_orbax(path: str) -> str:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(path).absolute(), TREE)
    return path


def write_orbax_v1(path: str) -> str:
    ocp_v1.save_pytree(Path(path).absolute(), TREE)
    return path


def write_orbax_step(path: str) -> str:
    with ocp.CheckpointManager(Path(path).absolute()) as manager:
        items = {"state": ocp.args.StandardSave(TREE), "config": ocp.args.JsonSave({"a": 1})}
        manager.save(3, args=ocp.args.Composite(**items))
    return f"{path}/3"


WRITERS = [
    *(write_safetensors, write_npz, write_stream, write_flax, write_gzip),
    *(write_orbax, write_orbax_v1, write_orbax_step),
]


@pytest.mark.parametrize("write", WRITERS)
def test_each_format_is_listed_and_converted(write: Callable[[str], str]) -> None:
    path = write("source")
    lines = [line.split() for line in call("ls", path, "--flat").splitlines()]
    assert ["params/w", "float32[2,3]"] in [line[:2] for line in lines]
    assert ["params/b", "float64[3]"] in [line[:2] for line in lines]
    assert {line[0] for line in lines} >= {"params/w", "params/b", "step"}
    if write not in (write_flax, write_gzip):  # whose sizes are those of the encoding
        assert ["params/w", "float32[2,3]", "24", "B"] in lines
    assert call("ls", path, "params/w").split()[:2] == ["params/w", "float32[2,3]"]
    assert [it.split()[0] for it in call("ls", path, "params").splitlines()[1:]] in (
        ["w", "b"],
        ["b", "w"],
    )
    assert "nothing at params/x" in refused("ls", path, "params/x")
    found = json.loads(call("ls", path, "--json"))
    by_path = {leaf["path"]: leaf for leaf in found["leaves"]}
    assert by_path["params/w"]["dtype"] == "float32"
    assert by_path["params/w"]["shape"] == [2, 3]
    assert found["metadata"] == ({"format": "pt"} if write is write_safetensors else None)

    call("convert", path, "new.treepack")
    loaded = treepack.load("new.treepack")
    for name, array in TREE["params"].items():
        assert loaded["params"][name].dtype == array.dtype
        np.testing.assert_array_equal(loaded["params"][name], array)
    assert loaded["step"] == 7
    found = treepack.verify("new.treepack")
    assert found.ok
    assert not found.unchecked  # there are checksums, and so an index
    call("convert", path, "new.treepack.gz", "--skip", "step", "--dtype", "bfloat16")
    loaded = treepack.load("new.treepack.gz")
    assert loaded["params"]["w"].dtype == ml_dtypes.bfloat16
    assert "step" not in loaded


@pytest.mark.campaign
def test_what_a_directory_of_orbax_has() -> None:
    write_orbax_step("source")
    assert ": 1 of 1 " in call("ls", "source")
    message = refused("show", "source", "w")
    assert "'source': " in message
    assert message.endswith("the step 3: pass its path, source/3\n")
    code = (
        "import sys, treepack.__main__ as m; sys.modules['tensorstore'] = None; "
        "sys.argv = ['treepack', 'ls', 'source/3']; m.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "requires TensorStore: pip install tensorstore" in done.stderr


def test_streams_are_read_by_all_commands_that_list_or_copy() -> None:
    write_stream("stream")
    call("convert", "stream", "saved")
    assert "float32[2,3], 24 B" in call("show", "stream", "params/w")
    assert "stream of EasyLM" in call("info", "stream")
    assert call("diff", "stream", "saved") == "0 of 3 leaves differ\n"
    call("get", "stream", "params", "part.treepack")
    assert treepack.load("part.treepack")["b"].sum() == 3


def test_lists_that_begin_like_streams() -> None:
    Path("list").write_bytes(flax.serialization.msgpack_serialize([["a"], b"\xff\xff"]))
    lines = [line.split()[:2] for line in call("ls", "list", "--flat").splitlines()]
    assert lines == [["0/0", "str"], ["1", "bytes"]]


# Metadata


def test_metadata_of_safetensors_are_kept() -> None:
    write_safetensors("one.safetensors")
    call("convert", "one.safetensors", "two.treepack")
    assert treepack.read_metadata("two.treepack") == {"format": "pt"}
    assert "metadata: {'format': 'pt'}" in call("ls", "two.treepack")
    call("convert", "two.treepack", "three.safetensors")
    with safetensors.safe_open("three.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert safetensors.numpy.load_file("three.safetensors").keys() == flat().keys()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, None),
        ({"step": 3, "name": "x", "t": (1, {2: b"a"})}, {"step": "3", "name": "x"}),
        ([1, "é"], {"metadata": '[1, "\\u00e9"]'}),
    ],
)
def test_other_metadata_become_text(metadata: Any, expected: Any) -> None:
    treepack.save("one", TREE, metadata=metadata)
    call("convert", "one", "two.safetensors", "--select", "params")
    with safetensors.safe_open("two.safetensors", "numpy") as file:
        found = file.metadata()
    if isinstance(metadata, dict):
        assert json.loads(found.pop("t")) == [1, {"2": "b'a'"}]
    assert found == expected


@treepack.register_auxdata(serialized_name="tests.sources.Act")
class Act(enum.Enum):
    GELU = 1


@treepack.register_auxdata(serialized_name="tests.sources.Config")
@dataclasses.dataclass
class Config:
    act: Act


@pytest.mark.campaign
def test_metadata_of_types_that_are_not_registered() -> None:
    treepack.save("one", TREE, metadata={"c": Config(Act.GELU)})
    assert "metadata: {'c': {'act': {'tests.sources.Act': 'GELU'}}}" in run("ls", "one")
    found = json.loads(run("ls", "one", "--json"))
    assert found["metadata"] == {"c": {"act": {"tests.sources.Act": "GELU"}}}
    assert "Config" in json.loads(call("ls", "one", "--json"))["metadata"]["c"]


# Choosing leaves


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "params"], ["params/w", "params/b"]),
        (["--select", "**/w", "--select", "step"], ["params/w", "step"]),
        (["--skip", "params/b"], ["params/w", "step", "list/0", "list/1"]),
        (["--select", "list", "--skip", "list/0"], ["list/1"]),
    ],
)
@pytest.mark.parametrize("target", ["new.treepack", "new", "new.npz"])
def test_chosen_leaves(options: list[str], expected: list[str], target: str) -> None:
    treepack.save("one.treepack", {**TREE, "list": [np.ones(2), np.zeros(2)]}, metadata={"a": "b"})
    call("convert", "one.treepack", target, *options)
    found = [line.split()[0] for line in call("ls", target, "--flat").splitlines()]
    assert found == expected
    if target == "new.treepack":
        assert treepack.verify(target).ok
        assert treepack.read_metadata(target) == {"a": "b"}


def test_patterns_that_match_nothing() -> None:
    write_safetensors("one.safetensors")
    for option in ("--select", "--skip"):
        message = refused("convert", "one.safetensors", "x", option, "params", option, "prams/*")
        assert f"{option} " in message
        assert ": prams/*" in message


# Dtypes


def test_bfloat16_of_npz() -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    for save in (np.savez, np.savez_compressed):
        save("one.npz", w=array, f=np.asfortranarray(array))
        with np.load("one.npz") as archive:
            assert archive["w"].dtype == np.dtype("V2")
        assert "bfloat16[2,3]" in call("ls", "one.npz")
        call("convert", "one.npz", "two.treepack")
        loaded = treepack.load("two.treepack")
        assert loaded["w"].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(loaded["w"], array)
        np.testing.assert_array_equal(loaded["f"], array)
    np.savez("one.npz", w=array.astype(ml_dtypes.float8_e4m3fn))
    assert "NPY_packed" in call("ls", "one.npz")


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
        ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
        ("float8_e8m0fnu", "F8_E8M0"),
    ],
)
def test_floats_of_8_bits(name: str, theirs: str) -> None:
    array = np.arange(1, 5, dtype=np.float32).astype(getattr(ml_dtypes, name))
    Path("one").write_bytes(serialization.to_bytes({"w": array}))
    call("convert", "one", "two.safetensors")
    ((_, entry),) = safetensors.deserialize(Path("two.safetensors").read_bytes())
    assert entry["dtype"] == theirs
    assert bytes(entry["data"]) == array.tobytes()
    call("convert", "two.safetensors", "three")
    assert Path("three").read_bytes() == Path("one").read_bytes()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("float8_e4m3b11fnuz", "convert it with --dtype"),
        ("float8_e3m4", "convert it with --dtype"),
        ("int4", "save it with another dtype"),  # --dtype casts floats
    ],
)
def test_dtypes_that_safetensors_lacks(name: str, remedy: str) -> None:
    Path("one").write_bytes(serialization.to_bytes({"w": np.zeros(2, getattr(ml_dtypes, name))}))
    message = refused("convert", "one", "two.safetensors")
    assert f"at w: safetensors does not support dtype {name}: {remedy}" in message


# Limits and statuses


@pytest.mark.campaign
def test_the_largest_size() -> None:
    treepack.save("one", {"w": np.zeros(100_000)}, compress=True)
    np.savez_compressed("one.npz", w=np.zeros(100_000))
    for command in (
        *(["ls", "one"], ["show", "one", "w"], ["verify", "one"], ["diff", "one", "one"]),
        *(["convert", "one", "x"], ["get", "one", "w", "x"], ["salvage", "one", "x"]),
        *(["ls", "one.npz"], ["convert", "one.npz", "x"]),
    ):
        for size in ("1000", "1KB", "0.001 MB"):
            assert "exceed" in refused(*command, "--max-size", size)
        assert "or a text such as '1GB', got '1 kilo'" in " ".join(
            refused(*command, "--max-size", "1 kilo").replace("│", " ").split()
        )
    call("convert", "one.npz", "x", "--max-size", "900000")
    assert not Path("y").exists()


@tiers.parametrize(
    "args",
    [["ls"], ["ls", "--nothing", "x"], ["nothing"], ["ls", "x", "--depth", "-1"], ["convert", "x"]],
    quick=2,
)
def test_wrong_usage(args: list[str]) -> None:
    run(*args, status=2)


def test_a_level_needs_compression() -> None:
    treepack.save("source", TREE)
    assert "--level requires --gzip" in refused("convert", "source", "new", "--level", "3")
    call("convert", "source", "new.gz", "--level", "3")


def test_an_empty_path_is_not_the_working_directory() -> None:
    write_orbax_step("source")
    for command in (("ls", ""), ("convert", "", "new")):
        assert ": ''" in refused(*command)


def test_the_version() -> None:
    assert run("--version") == run("-V") == f"treepack {treepack.__version__}\n"


@pytest.mark.campaign
def test_errors_of_treepack_itself_are_no_damage() -> None:
    write_flax("one")
    code = (
        "import sys, treepack._cli.listing as s, treepack.__main__ as m; "
        "s.opened = None; sys.argv = ['treepack', 'ls', 'one']; m.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.campaign
def test_files_of_numpy_are_read_without_other_libraries() -> None:
    treepack.save("one", TREE, metadata={"a": 1})
    write_safetensors("two.safetensors")
    for args in (["ls", "one"], ["verify", "one"], ["ls", "two.safetensors"]):
        code = (
            f"import sys, treepack.__main__ as m; sys.argv = {['treepack', *args]!r}\n"
            "try: m.main()\n"
            "except SystemExit as error: assert not error.code\n"
            "assert not {'jax', 'flax', 'orbax', 'tensorstore', 'fsspec', 'obstore', "
            "'rich.progress'} & sys.modules.keys()"
        )
        environment = {**os.environ, "PYTHONWARNINGS": "error,ignore::DeprecationWarning:typer"}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_other_formats_at_urls() -> None:
    store = fsspec.filesystem("memory")
    for name in (write_npz("x.npz"), write_safetensors("x.safetensors")):
        store.pipe(name, Path(name).read_bytes())
        url = f"memory://{name}"
        for options in ([], ["--sep", "/"]):
            listed = [call("ls", "--flat", it, *options) for it in (url, name)]
            assert listed[0] == listed[1]


def test_a_stream_with_a_key_is_listed() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    treepack.write_stream("stream", [(("rng",), keys), (("step",), 3)])
    treepack.save("saved", {"rng": keys, "step": 3})
    lines = [call("ls", name, "--flat").splitlines()[0] for name in ("stream", "saved")]
    assert lines[0] == lines[1]
    [found, _] = json.loads(call("ls", "stream", "--json"))["leaves"]
    assert (found["kind"], found["nbytes"]) == ("prng_key", 32)


def piped(*args: str, given: bytes = b"", status: int = 0) -> tuple[bytes, str]:
    """Runs a command with standard input; returns what it writes to each output."""
    done = CliRunner().invoke(app, [*args], input=given)
    assert done.exit_code == status, done.output
    return done.stdout_bytes, done.stderr


@pytest.mark.parametrize("write", [it for it in WRITERS if "orbax" not in it.__name__])
def test_each_format_is_read_from_standard_input(write: Callable[[str], str]) -> None:
    source = write("file")
    data = Path(source).read_bytes()
    for command in (["ls", "-"], ["ls", "--json", "-"], ["ls", "--flat", "-"]):
        found, _ = piped(*command, given=data)
        of_file = call(*(source if it == "-" else it for it in command))
        assert found.decode() == of_file.replace("file:", "-:").replace(
            '"file"\n', '"-"\n'
        ).replace('"file": "file"', '"file": "-"')
    copied, said = piped("convert", "-", "-", given=data)
    call("convert", source, "copy")
    assert copied == Path("copy").read_bytes()
    assert said == f"-: {size_text(len(copied))}\n"
    assert not Path("-").exists()


def test_every_command_reads_and_writes_pipes() -> None:
    tree = {"params": {"w": np.arange(6.0).reshape(2, 3)}, "x": np.array([1, np.nan, np.inf])}
    treepack.save("model", tree, metadata={"step": 3})
    data = Path("model").read_bytes()
    for command in ("info", "verify"):
        [found] = [json.loads(piped(command, "--json", "-", given=data)[0])]
        assert found.get("files", [found])[0]["file"] == "-"
    shown = json.loads(piped("show", "--json", "-", "params/w", given=data)[0])
    assert (shown["shape"], shown["statistics"]["mean"]) == ([2, 3], 2.5)
    listed = json.loads(piped("ls", "--nan", "--json", "-", given=data)[0])
    assert [(it["path"], it["nan"], it["infinite"]) for it in listed["leaves"]] == [("x", 1, 1)]
    assert piped("diff", "model", "-", given=data)[0] == b"0 of 2 leaves differ\n"
    assert piped("diff", "-", "model", given=data)[0] == b"0 of 2 leaves differ\n"
    part, _ = piped("get", "-", "params/w", "-", given=data)
    np.testing.assert_array_equal(treepack.loads(part), tree["params"]["w"])
    saved, said = piped("salvage", "-", "-", given=data)
    assert treepack.diff(saved, "model") == []
    assert "saved 2 leaves" in said
    patch = treepack.dumps(tree, base=tree)
    whole, _ = piped("convert", "-", "-", "--base", "model", given=patch)
    assert treepack.diff(whole, "model") == []
    assert piped("verify", "-", given=data[:-9] + b"123456789", status=1)[0].startswith(b"-: ")
    _, said = piped("diff", "-", "-", given=data, status=2)
    assert "can be read once" in said
    assert piped("ls", "-", given=b"hello", status=1) == (b"", "")
    for options in (["--numbers", "--gzip"], ["--max-shard-size", "1MB"]):
        assert piped("convert", "model", "-", *options, status=1)[0] == b""
    with Path("/dev/null").open() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", device)
        assert "a device: pipe a file into it" in call("info", "-", status=2)
    Path("-").write_bytes(data)
    assert b"./-: 2 leaves" in piped("ls", "./-")[0]


def test_results_are_json() -> None:
    treepack.save("model", {"w": np.ones(3), "name": "x"}, metadata={"step": 3})
    found = json.loads(call("info", "model", "--json"))
    assert (found["leaves"], found["parameters"], found["metadata"]) == (2, 3, {"step": 3})
    assert json.loads(call("show", "model", "name", "--json"))["value"] == "x"
    data = bytearray(Path("model").read_bytes())
    data[data.index(np.ones(3).tobytes()) + 3] ^= 1
    Path("bad").write_bytes(data)
    found = json.loads(call("verify", "model", "bad", "--json", status=1))["files"]
    assert [(it["ok"], it["leaves"].get("w")) for it in found] == [(True, "ok"), (False, "corrupt")]
    assert call("verify", "model", "--json", "--quiet") == ""
