"""What people see: pipes, completion, wide characters, text of files that is hostile."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from test_headers_of_safetensors import ARRAY, packed

import treepack.__main__
from commands import call, refused
from treepack._cli import output


@pytest.mark.campaign
def test_a_pipe_that_closes_is_not_an_error(folder: Path) -> None:
    treepack.save("many", {f"{index:05}": index for index in range(20_000)})
    command = [sys.executable, "-m", "treepack", "ls", "--flat", "many"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"00000  int  1 B\n"
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_a_warning_is_one_line(folder: Path) -> None:
    treepack.save("saved", {"a": 1})
    names = ["--map", "b=a", "--map", "c=absent"]
    command = [sys.executable, "-m", "treepack", "convert", "saved", "made", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "treepack: the file has no leaf for rule 'c': 'absent'\n"


@pytest.mark.campaign
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
    assert done.returncode == 2
    assert "pip install typer rich" in done.stderr


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
    text = refused("convert", "hostile.safetensors", "new", status=1)
    check_harmless(text)
    assert SEEN in text
    array = ARRAY | {"shape": [3], "data_offsets": [0, 12]}
    Path("cut.safetensors").write_bytes(packed({HOSTILE: array}, bytes(8)))
    for args in (("verify", "cut.safetensors"), ("salvage", "cut.safetensors", "new")):
        text = call(*args, status=1)
        check_harmless(text)
        assert SEEN in text
    check_harmless(str(treepack.verify(Path("cut.safetensors").read_bytes()).damage))


class Terminal(io.StringIO):
    """Shown on a terminal."""

    def isatty(self) -> bool:
        """Tells so."""
        return True


def test_a_long_key_does_not_make_all_rows_as_wide(folder: Path) -> None:
    leaves = {f"x{number}": np.ones(1) for number in range(300)}
    treepack.save("long", {"k" * 30_000: leaves})
    text = call("ls", "long")
    assert "k" * 30_000 in text
    assert "x299" in text
    assert len(text) < 100_000


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


def test_colors_leave_the_text_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    treepack.save("model", {f"a{number}": {"w": np.ones(number)} for number in range(50)})
    plain = call("ls", "model")
    printed: list[object] = []
    console_print = output.Console.print
    monkeypatch.setattr(
        output.Console,
        "print",
        lambda self, *texts, **options: (printed.append(1), console_print(self, *texts, **options)),
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = call("ls", "model")
    assert re.sub("\x1b\\[[0-9;]*m", "", colored) == plain
    assert "\x1b[36mfloat64[49]\x1b[0m" in colored
    assert len(printed) < 10  # it takes 50 times as long as `print`: not once for each row


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_encodings_without_some_characters(
    folder: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Of a terminal in the C locale, and of pipes on Windows."""
    noise = np.random.default_rng(0).normal(size=3000)
    treepack.save("wide", {"\u5c42": noise, "text": "\u5c42"}, metadata="\u5c42" * 3000)

    def printed(*args: str) -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "argv", ["treepack", *args])
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
            treepack.__main__.main()
        assert ended.value.code == 0
        out.flush()
        return out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]

    shown = printed("show", "wide", "\u5c42")
    assert ("+/-" if encoding == "ascii" else "\xb1") in shown
    assert "345567888788775544" in shown  # the histogram
    listed = printed("ls", "wide")
    assert r"\u5c42" in listed
    assert listed.splitlines()[1].endswith("..." if encoding == "ascii" else "\u2026")
    assert "\\u5c42" in printed("show", "wide", "text")
