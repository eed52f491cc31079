"""`treepack ls`, `show`, `verify` and `diff`: what they print, and their exit statuses."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import treepack.__main__
from commands import TREE, call, refused, run
from treepack import serialization
from treepack._src.printable import size_text
from trees import record_of, sealed


def test_ls(folder: Path) -> None:
    assert run("ls", "flax").splitlines() == [
        "flax: 4 leaves, 23.5 KiB",
        "params      3 leaves         23.5 KiB",
        "  dense     2 leaves         23.5 KiB",
        "    kernel  float32[60,100]  23.4 KiB",
        "    bias    float64[3]           24 B",
        "  scale     bfloat16[8]          16 B",
        "step        int                   1 B",
    ]
    assert call("ls", "flax", "--depth", "1").splitlines()[1:] == [
        "params  3 leaves  23.5 KiB",
        "step    int            1 B",
    ]
    assert call("ls", "flax", "params", "--flat").split() == [
        *("dense/kernel", "float32[60,100]", "23.4", "KiB"),
        *("dense/bias", "float64[3]", "24", "B", "scale", "bfloat16[8]", "16", "B"),
    ]
    assert call("ls", "flax", "step").split() == ["step", "int", "1", "B"]
    found = json.loads(call("ls", "model", "--json"))
    assert found["file"] == "model"
    assert found["metadata"] == {"epoch": 3}
    kernel = found["leaves"][0]
    assert kernel["path"] == "params/dense/kernel"
    assert (kernel["dtype"], kernel["shape"]) == ("float32", [60, 100])
    assert kernel["nbytes"] == 24_000
    assert [leaf["kind"] for leaf in found["leaves"]][3:] == [
        *("int", "prng_key", "array", "int", "str"),
    ]


def test_depth_is_the_number_of_levels(folder: Path) -> None:
    levels = [call("ls", "flax", "--depth", str(depth)).splitlines()[1:] for depth in range(4)]
    assert [len(rows) for rows in levels] == [0, 2, 4, 6]


def test_all_levels_are_listed_by_default(folder: Path) -> None:
    text = call("ls", "--help")
    assert "--depth" in text
    assert str(1 << 30) not in text
    assert (
        call("ls", "model")
        == call("ls", "model", "--depth", "9")
        != call("ls", "model", "--depth", "1")
    )


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
    message = run("show", "model", "absent", status=2)
    assert message.startswith("treepack: 'model': ")
    assert message.endswith(" absent: it has params, step, key, list\n")
    assert refused("show", "model", "absent") == message


def test_verify(folder: Path) -> None:
    assert call("verify", "model") == "model: 8 ok\n"
    assert "4 unchecked" in call("verify", "flax")
    data = bytearray(Path("model").read_bytes())
    data[3000] ^= 4
    Path("model").write_bytes(data)
    text = call("verify", "model", "flax", status=1)
    assert text.splitlines()[:2] == ["model: 7 ok, 1 corrupt", "  corrupt  params/dense/kernel"]
    assert "1 corrupt" in text
    assert call("verify", "-q", "model", status=1) == ""
    assert "No such file" in refused("verify", "nothing")
    text = call("verify", "--json", "flax", "x" * 300, status=2)
    files = json.loads(text[text.index("{") :])["files"]
    assert [file["ok"] for file in files] == [True, False]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1023, "1023 B"), (1023.6, "1.0 KiB"), (1 << 20, "1.0 MiB"), ((1 << 20) - 1, "1.0 MiB")],
)
def test_sizes_have_at_most_four_digits(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text


def test_verify_prints_no_paths_of_intact_leaves(folder: Path) -> None:
    """All of them together may be much longer than the file."""
    treepack.save("long", {"k" * 10**6: dict.fromkeys(map(str, range(300)), 0)})
    assert call("verify", "long") == "long: 300 ok\n"
    assert "make all paths together much longer" in refused("verify", "--json", "long")


def test_a_truncated_file(folder: Path) -> None:
    Path("cut").write_bytes(Path("model").read_bytes()[:24_080])
    text = call("verify", "cut", status=1)
    assert text.startswith("cut: ")
    assert "read its intact leaves with `treepack salvage`" in text
    assert "no checksums were found" in text
    text = call("salvage", "cut", "rest", status=1)
    assert "the data ends early" in text
    assert "treepack salvage" not in text


def test_slips(folder: Path) -> None:
    assert "there is nothing at flax: it is another file: list one" in refused(
        "ls", "model", "flax"
    )
    for given, meant in (("cat", "show"), ("rename", "convert --map NEW=OLD"), ("load", "ls")):
        assert f"No such command '{given}': use `treepack {meant}`" in call(given, status=2)
    swapped = refused("get", "model", "x.npy", "params")
    assert "nothing at x.npy: it comes before the new file, as in" in swapped
    call("convert", "model", "one.safetensors", "--select", "params")
    call("convert", "model", "two.treepack")
    assert call("ls", ".").endswith("also there, in other formats: two.treepack\n")
    assert call("verify", ".").endswith("  not read: two.treepack, in the same directory\n")
    assert json.loads(call("verify", ".", "--json"))["files"][0]["others"] == ["two.treepack"]
    assert "others" not in json.loads(call("verify", "flax", "--json"))["files"][0]
    assert "also" not in call("ls", "one.safetensors")
    json.loads(call("ls", ".", "--json"))


def test_the_file_to_read_is_no_target(folder: Path) -> None:
    data = Path("model").read_bytes()
    Path("link").symlink_to("model")
    treepack.save("patch", TREE, base="flax")
    for command in (
        ("convert", "model", "./model", "--dtype", "bfloat16"),
        ("convert", "model", "link"),
        ("get", "link", "params", "model"),
        ("salvage", "model", "model"),
        ("convert", "patch", "flax", "--base", "flax"),
    ):
        assert "is the file to read: pass another, then move it" in refused(*command)
    assert Path("model").read_bytes() == data
    call("convert", "model", "new")
    call("convert", "flax", "new")  # replaces another file, as cp does


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


def test_files_of_newer_versions(folder: Path) -> None:
    record = msgpack.unpackb(record_of(Path("model").read_bytes()))
    newer = msgpack.packb({"__treepack__": sealed(msgpack.packb({**record, "version": 2}))})
    Path("newer").write_bytes(newer)
    assert "newer: not checked: " in call("verify", "model", "newer", status=2)
    assert "upgrade treepack" in call("verify", "newer", status=2)
    assert "upgrade treepack" in refused("ls", "newer")
    Path("cut").write_bytes(Path("model").read_bytes()[:-5])
    assert "damaged" in call("verify", "cut", "newer", status=1)


def test_a_truncated_file_is_reported(folder: Path) -> None:
    """Its error is an EOFError, which click takes for the end of what a user types."""
    Path("cut.gz").write_bytes(treepack.dumps(TREE, compress=True)[:-100])
    for command in ("ls", "show", "diff"):
        other = {"ls": [], "show": ["step"], "diff": ["model"]}[command]
        message = refused(command, "cut.gz", *other, status=1)
        assert message.startswith("treepack: 'cut.gz': "), message
        assert "ended before the end" in message, message


def test_arrays_whose_headers_tell_no_shape_are_compared(folder: Path) -> None:
    for name, last in (("one", 3), ("other", 4)):
        elements = np.array([1, 2, last], "<i4").tobytes()
        array = msgpack.ExtType(1, msgpack.packb(([-1], "<i4", elements)))
        Path(name).write_bytes(msgpack.packb({"a": array}))
    assert call("diff", "one", "one") == "0 of 1 leaf differs\n"
    assert "1 of 1 leaf differs" in call("diff", "one", "other", status=1)


def test_keys_of_other_implementations_differ(folder: Path) -> None:
    for name in ("rbg", "unsafe_rbg"):
        treepack.save(name, {"key": jax.random.key(3, impl=name)})
    assert call("diff", "rbg", "rbg") == "0 of 1 leaf differs\n"
    assert "1 of 1 leaf differs" in call("diff", "rbg", "unsafe_rbg", status=1)


def test_values_without_a_repr_are_named_by_their_type(folder: Path) -> None:
    axes = nnx.StateAxes([({"no": "hash"}, 0)])
    with pytest.raises(TypeError, match="unhashable"):
        repr(axes)
    treepack.save("odd", {"a": 1}, metadata=axes)
    assert "metadata: <StateAxes>" in call("ls", "odd").splitlines()
    assert json.loads(call("ls", "odd", "--json"))["metadata"] == "<StateAxes>"
    treepack.save("odd", {"a": 1}, metadata={"loss": [float("nan"), float("-inf"), 0.5]})
    assert json.loads(call("ls", "odd", "--json"))["metadata"] == {"loss": ["nan", "-inf", 0.5]}


def test_changes_by_module(folder: Path) -> None:
    tree = {"enc": {"w": np.ones((3, 3), np.float32), "b": np.zeros(2)}, "w": np.array([3.0, 4.0])}
    treepack.save("one", {**tree, "n": np.ones(2), "day": np.array(["2020-01-01"], "M8[D]")})
    other = {"enc": {"w": tree["enc"]["w"].copy(), "b": np.ones(2)}, "w": tree["w"]}
    other["enc"]["w"][0, 1] = np.nan
    treepack.save("other", {**other, "n": np.array([1, np.inf]), "day": np.array(["NaT"], "M8[D]")})
    found = json.loads(call("diff", "one", "other", "--json", "--stats", status=1))
    assert found["modules"] == {
        "enc": {
            **{"arrays": 2, "norm": 3.0, "other_norm": math.sqrt(10), "change": math.sqrt(2)},
            **{"largest": 1.0, "nan": 0, "other_nan": 1},
        },
        ".": {
            **{"arrays": 2, "norm": math.sqrt(27), "other_norm": "inf", "change": "inf"},
            **{"largest": "inf", "nan": 0, "other_nan": 0},
        },
    }
    assert [it["path"] for it in found["differences"]] == ["enc/w", "enc/b", "n", "day"]
    assert found["leaves"] == 5
    assert "modules" not in json.loads(call("diff", "one", "one", "--json"))
    lines = call("diff", "one", "other", "--stats", status=1).splitlines()
    assert lines[4].split() == [
        "module",
        "arrays",
        "norm",
        "other",
        "norm",
        "change",
        "largest",
        "NaN",
        "other",
        "NaN",
    ]
    assert lines[5].split() == ["enc", "2", "3", "3.162", "1.414", "1", "0", "1"]


def test_arrays_that_are_not_finite(folder: Path) -> None:
    half = np.array([1, np.nan, np.inf, -np.inf], ml_dtypes.bfloat16)
    treepack.save(
        "one", {"a": {"h": half, "c": np.array([np.nan + 1j])}, "i": np.arange(3), "s": "x"}
    )
    listed = call("ls", "--nan", "one").splitlines()
    assert [line.split() for line in listed[:2]] == [
        ["a/h", "bfloat16[4]", "1", "NaN,", "2", "infinite"],
        ["a/c", "complex128[1]", "1", "NaN,", "0", "infinite"],
    ]
    assert listed[2] == "one: arrays with NaN or infinity: 2"
    assert call("ls", "--nan", "one", "i") == "one: arrays with NaN or infinity: 0\n"


def size_on_disk(path: Path) -> int:
    """Returns the size of a file, or of all files in a directory."""
    files = [path, *path.rglob("*")]
    return sum(it.stat().st_size for it in files if it.is_file())


def test_info(folder: Path) -> None:
    tree = {"w": np.ones((3, 4), np.float32), "b": np.ones(4), "n": 1}
    treepack.save("one.treepack", tree, metadata={"lr": 0.1})
    treepack.save("one.gz", tree)
    treepack.save("patch", {**tree, "n": 2}, base="one.treepack")
    treepack.save("one.safetensors", {"w": tree["w"]})
    Path("one.msgpack").write_bytes(flax.serialization.to_bytes(tree))
    np.savez("one.npz", w=tree["w"])
    treepack.save("sharded", {"w": jnp.ones((3, 4))}, sharded=True)
    Path("hub").mkdir()
    treepack.save("hub/model.safetensors", {"w": tree["w"]})
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / "orbax", {"w": tree["w"]})
    for name, format, summed, count in (
        ("one.treepack", "treepack", "yes", 3),
        ("one.gz", "treepack, compressed", "yes", 3),
        ("patch", "treepack, a patch of one.treepack", "yes", 3),
        ("one.safetensors", "safetensors", "no", 1),
        ("one.msgpack", "msgpack, as of flax", "no", 3),
        ("one.npz", "npz of NumPy", "yes", 1),
        ("sharded", "treepack, a sharded directory", "yes", 1),
        ("hub", "safetensors", "no", 1),
        ("orbax", "Orbax", "no", 1),
    ):
        rows = dict(re.split("  +", it, maxsplit=1) for it in call("info", name).splitlines()[1:])
        assert (rows["format"], rows["checksums"]) == (format, summed), name
        assert rows["parameters"] == ("16" if count == 3 else "12")
        assert rows["content"].startswith(f"{count} lea")
        assert rows["stored"] == size_text(size_on_disk(Path(name)))
    assert "{'lr': 0.1}" in call("info", "one.treepack")
    assert "float32 (1), float64 (1), int (1)" in call("info", "one.treepack")


def test_statistics_take_less_memory_than_twice_the_leaf(tmp_path: Path) -> None:
    treepack.save(tmp_path / "it", {"w": np.arange(5 << 20, dtype=np.uint16)}, durable=False)
    with treepack.open(tmp_path / "it") as file:
        tracemalloc.start()
        try:
            assert file["w"].statistics() is not None
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 * file["w"].nbytes
