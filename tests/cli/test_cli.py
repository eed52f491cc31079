"""The command line: what it prints, its exit status, and the files that it writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

import treepack.__main__
from commands import ARRAY, TREE, call, packed, refused, run
from treepack import serialization
from treepack._cli import output


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
    message = "treepack: there is nothing at nothing\n"
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


def test_without_its_libraries(folder: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; import treepack.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'treepack[cli]'" in done.stderr


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
