"""Mistakes on the command line, the errors that they print, and cures that these name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import typer

import treepack
from commands import call, refused
from treepack._cli import app


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    treepack.save("a.treepack", {"params": {"w": np.ones((4, 4)), "b": np.zeros(4)}, "step": 3})
    treepack.save("b.treepack", {"params": {"w": np.ones((4, 4)), "b": np.zeros(5)}, "step": 4})
    run = treepack.Series("run")
    for step in (1, 2):
        run.save(step, {"w": np.ones(3)})
    layer = np.ones((4, 2), "f4")
    safetensors.numpy.save_file({"l.0.w": layer, "l.1.w": layer}, "m.safetensors")
    held = treepack.load("m.safetensors")
    treepack.save("run/shards", held, sharded=True)
    treepack.save("run/whole", held)
    treepack.save("run/patch", held, base="run/whole")
    treepack.save("away/patch", held, base="run/whole")
    treepack.save("away/gone", held)
    treepack.save("away/lost", held, base="away/gone")
    Path("away/gone").unlink()


# A mistake, a part of its error, and cures with their exit status.
ROWS: list[tuple[str, str, list[tuple[str, int]]]] = [
    ("ls -l a.treepack", "-l: leave it out: shapes .* --json adds offsets", [
        ("ls a.treepack", 0), ("ls a.treepack --json", 0)]),
    ("ls -R a.treepack", "-R: leave it out: all levels", [("ls a.treepack", 0)]),
    ("ls a.treepack/params", "is a file, and 'params' a path .* `treepack ls a.treepack params`", [
        ("ls a.treepack params", 0)]),
    ("ls run 1", "a step is a path of its own: `treepack ls run/step_1`", [("ls run/step_1", 0)]),
    ("ls run/1", "is it 'run/step_1'", [("ls run/step_1", 0)]),
    ("show a.treepack params/w 0", r"treepack\.open\(FILE\)\[PATH\]\[0\]", [
        ("show a.treepack params/w", 0)]),
    ("convert a.treepack --to safetensors", "--to: the suffix of TARGET selects .*.safetensors", [
        ("convert a.treepack out.safetensors --skip step", 0)]),
    ("convert a.treepack -o x.treepack", "-o: name the new file after FILE", [
        ("convert a.treepack x.treepack", 0)]),
    ("convert a.treepack x.treepack --compress", "--compress: use --gzip, or --numbers", [
        ("convert a.treepack x.treepack --gzip", 0),
        ("convert a.treepack x.treepack --numbers", 0)]),
    ("convert a.treepack x.treepack --exclude step", "--exclude: use --skip", [
        ("convert a.treepack x.treepack --skip step", 0)]),
    ("convert a.treepack x.treepack --include step", "--include: use --select", [
        ("convert a.treepack x.treepack --select step", 0)]),
    ("convert a.treepack x.treepack --cast bfloat16", "--cast: use --dtype", [
        ("convert a.treepack x.treepack --dtype bfloat16", 0)]),
    ("convert a.treepack b.treepack --force", "--force: leave it out: files are always repl", [
        ("convert a.treepack x.treepack", 0), ("convert a.treepack x.treepack", 0)]),
    ("convert a.treepack x.treepack --map weights params", "write --map weights=params", [
        ("convert a.treepack x.treepack --map weights=params", 0)]),
    ("convert m.safetensors x.treepack --rename w=v", "--rename: use --map NEW=OLD=AXES", [
        ("convert m.safetensors x.treepack --map layers=l", 0)]),
    ("inspect a.treepack", "use `treepack info`", [("info a.treepack", 0)]),
    ("export a.treepack", "use `treepack convert`", [("convert a.treepack x.treepack", 0)]),
    ("tree a.treepack", "use `treepack ls`", [("ls a.treepack", 0)]),
    ("validate a.treepack", "use `treepack verify`", [("verify a.treepack", 0)]),
    ("sha256sum a.treepack", "use `treepack digest`", [("digest a.treepack", 0)]),
    ("repair a.treepack x.treepack", "use `treepack salvage`", [
        ("salvage a.treepack x.treepack", 0)]),
    ("merge a.treepack b.treepack", r"treepack.load\(path, tree, missing='target'\)", []),
    ("LS a.treepack", "write `treepack ls`", [("ls a.treepack", 0)]),
    ("ls", "'FILE'. Name a file, directory or URL, or - for standard input", [
        ("ls a.treepack", 0)]),
    ("verify", "Name a file, directory or URL, or -", [("verify a.treepack", 0)]),
    ("show a.treepack", "'PATH'. Name a leaf, as `treepack ls --flat FILE` lists them", [
        ("ls --flat a.treepack", 0), ("show a.treepack params/w", 0)]),
    ("diff a.treepack", "'OTHER'. Name the file to compare with", [
        ("diff a.treepack b.treepack", 1)]),
    ("ls a.treepack --tree", "--tree: leave it out: all levels", [("ls a.treepack", 0)]),
    ("ls a.treepack --format json", "--format: use --json", [("ls a.treepack --json", 0)]),
    ("info a.treepack --yaml", "--yaml: use --json", [("info a.treepack --json", 0)]),
    ("ls a.treepack --sort size", "send its lines to sort", [("ls --flat a.treepack", 0)]),
    ("convert a.treepack b.treepack --level 3", "--level requires --gzip: leave it out, or pass "
     "--gzip", [("convert a.treepack b.treepack --level 3 --gzip", 0)]),
    ("info a.treepack b.treepack", "name one file at a time", [("info b.treepack", 0)]),
    ("verify a.treepack --strict", "leave it out: every byte is compared", [
        ("verify a.treepack", 0)]),
    ("verify a.treepack --digest 0", "--digest: use --expect", [
        (f"verify a.treepack --expect {32 * '0'}", 1)]),
    ("get a.treepack params/w params/b out", "it writes one part: use", [
        ("convert a.treepack out --select params/w --select params/b", 0)]),
    ("verify a.treepack --path params", "leave it out: all leaves", [("verify a.treepack", 0)]),
    ("digest a.treepack --path params", "use --leaves", [("digest a.treepack --leaves", 0)]),
    ("digest a.treepack --sha256", "there is one kind of digests", [("digest a.treepack", 0)]),
    ("get a.treepack params x --select w", "name the part as PATH, and .* by --skip", [
        ("get a.treepack params x --skip b", 0)]),
    ("show a.treepack params/w --bins 9", r"treepack.open\(FILE\)\[PATH\].statistics", [
        ("show a.treepack params/w", 0)]),
    ("convert a.treepack x --only step", "--only: use --select", [
        ("convert a.treepack x --select step", 0)]),
    ("diff a.treepack b.treepack --select params", "compare parts that `treepack get` writes", [
        ("get a.treepack params p", 0), ("get b.treepack params q", 0), ("diff p q", 1)]),
    ("convert a.treepack x --zstd", "--zstd: use --gzip, or --numbers", [
        ("convert a.treepack x --gzip", 0)]),
    ("convert a.treepack x --threads 2", "the environment variable TREEPACK_NUM_THREADS", [
        ("convert a.treepack x", 0)]),
    ("convert a.treepack x y", "name one FILE and one TARGET", [("convert a.treepack x", 0)]),
    ("convert a.treepack x --gzip 9", "the level is --level 9", [
        ("convert a.treepack x --gzip --level 9", 0)]),
    ("convert a.treepack x --select step params", "repeat the option, as --select params", [
        ("convert a.treepack x --select step --select params", 0)]),
    ("convert a.treepack x.safetensor", "is .safetensor to be .safetensors", [
        ("convert a.treepack x.safetensors --skip step", 0)]),
    ("get a.treepack params x.treepack --sep /", "separator|--sep applies only to names", [
        ("get a.treepack params x.treepack", 0), ("get a.treepack params x.npz --sep /", 0)]),
    ("convert a.treepack x.treepack --sep /", "--sep applies only to names in npz and saf", [
        ("convert a.treepack x.treepack", 0), ("convert a.treepack x.npz --sep /", 0)]),
    ("ls a.treepack --sep /", "--sep applies only to names in npz and safetensors: leave", [
        ("ls a.treepack", 0), ("ls m.safetensors --sep /", 0)]),
    ("diff a.treepack b.treepack c.treepack", "compare two files at a time", [
        ("diff a.treepack b.treepack", 1)]),
    ("diff a.treepack b.treepack params", r"compares whole files: .* \| grep '?\^params", [
        ("diff a.treepack b.treepack", 1)]),
    ("diff a.treepack b.treepack --tol 1", "--tol: use --rtol or --atol", [
        ("diff a.treepack a.treepack --atol 1", 0)]),
    ("verify *.nope", "there are 'a.treepack', 'b.treepack', 'm.safetensors'", [
        ("verify a.treepack", 0)]),
    ("verify *.treepack", "has no wildcards: pass one of 'a.treepack', 'b.treepack'", [
        ("verify a.treepack b.treepack", 0)]),
    *((f"convert away/patch x --base {base}", f"the base is {form}: pass the file that `treepack "
        "convert` writes of it, or another one of treepack or flax that was saved without --base", [
        (f"convert {base} base", 0), ("convert away/patch x --base base", 0)])
        for base, form in [("run/shards", "a directory"), ("m.safetensors", "a safetensors file"),
            ("run/patch", "a patch itself")]),
    ("ls away/lost", "put it there, or run `treepack convert` with --base: 'away/gone'", [
        ("convert away/lost x --base run/whole", 0)]),
    ("convert a.treepack x --sharded", r"--sharded: treepack.save\(path, tree, sharded=True\)", []),
    ("ls a.treepack --map x=step --map rules.py:m", "got both: pass rules.py:m alone", [
        ("ls a.treepack --map x=step", 0)]),
    ("convert a.treepack", "'TARGET'.* Name the new file, or - for standard output, as the last", [
        ("convert a.treepack x.treepack", 0)]),
    ("get params/w a.treepack w.npy", "no params/w: FILE comes first: `treepack get a.treep", [
        ("get a.treepack params/w w.npy", 0)]),
    ("show params/w a.treepack", "FILE comes first: `treepack show a.treepack params/w`", [
        ("show a.treepack params/w", 0)]),
    ("ls a.treepack params b.treepack", "list one file, and one path in it, at a time", [
        ("ls a.treepack params", 0), ("ls b.treepack", 0)]),
    ("ls a.treepack --prefix step_", "--prefix is for a run, and this is a file: leave it", [
        ("ls a.treepack", 0), ("ls run --prefix step_", 0)]),
    ("diff a.treepack b.treepack --map x=y", "`treepack convert --map` first", [
        ("convert a.treepack x --map params=params", 0)]),
    ("verify a.treepack --map x=y", "leave it out: all leaves", [("verify a.treepack", 0)]),
    ("verify -v a.treepack", "`treepack verify --json`", [("verify --json a.treepack", 0)]),
    ("info a.treepack --map x=y", "use `treepack ls --map`", [
        ("ls a.treepack --map params=params", 0)]),
    (f"digest a.treepack --expect {'0' * 32}", "use `treepack verify --expect`", [
        (f"verify a.treepack --expect {'0' * 32}", 1)]),
    ("show a.treepack params/w --nan", "use `treepack ls --nan`", [("ls a.treepack --nan", 0)]),
    ("convert a.treepack away", "Is a directory: 'away' choose a file in it$", [
        ("convert a.treepack away/x", 0)]),
    ("convert m.safetensors x --max-shard-size 200", r"--max-shard-size must be .* as in '200MB'", [
        ("convert m.safetensors x --max-shard-size 200MB", 0)]),
    ("convert a.treepack x --select params,absent", "--select matches nothing in the file", []),
    ("convert a.treepack x --select params/w,params", "for several patterns, repeat the option: ", [
        ("convert a.treepack x --select params/w --select params", 0)]),
    ("get a.treepack --path params x", "name the part as PATH, after FILE", [
        ("get a.treepack params x", 0)]),
    ("show a.treepack --key params/w", "name the leaf as PATH, after FILE", [
        ("show a.treepack params/w", 0)]),
    ("-v", "use -V for the version", [("-V", 0)]),
    ("diff a.treepack b.treepack --rtol -1", "rtol must be a number of at least 0, such as 1e-6", [
        ("diff a.treepack a.treepack --rtol 1e-6", 0)]),
    ("diff a.treepack b.treepack --atol nan", "atol must be a number of at least 0, .* got nan", [
        ("diff a.treepack a.treepack --atol 1", 0)]),
    ("help ls", "`treepack --help`, or after a command, such as `treepack ls --help`", [
        ("--help", 0), ("ls --help", 0)]),
    ("--json ls a.treepack", "options follow the command, as in `treepack ls FILE --json`", [
        ("ls a.treepack --json", 0)]),
]  # fmt: skip


@pytest.mark.all_cases
@pytest.mark.parametrize(("mistake", "message", "cures"), ROWS, ids=[row[0] for row in ROWS])
def test_the_cure_works(mistake: str, message: str, cures: list[tuple[str, int]]) -> None:
    # An error of usage is wrapped in a box.
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", refused(*mistake.split())).split())
    assert re.search(message, text), text
    for cure, status in cures:
        call(*cure.split(), status=status)


def test_rows_of_a_difference_begin_with_their_paths() -> None:
    rows = call("diff", "a.treepack", "b.treepack", status=1).splitlines()
    assert [row.split()[0] for row in rows if re.match("params", row)] == ["params/b"]


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    commands = typer.main.get_group(app).commands
    assert len(commands) > 7
    for name, command in commands.items():
        for option in (it for each in command.params for it in each.opts if it.startswith("--")):
            assert re.search(rf"`{option}\b", page), (name, option)


def test_a_patch_of_a_base_elsewhere() -> None:
    expected = "a patch: run `treepack convert` with --base, the file that it was made against"
    assert expected in refused("ls", "away/patch", status=1)
    call("convert", "away/patch", "x", "--base", "run/whole")
