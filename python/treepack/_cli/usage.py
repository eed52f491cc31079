"""Hints in errors of usage, at commands, options and arguments that other tools have."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from treepack._src import formats

_COMMANDS = {
    "cat print": "use `treepack show`",
    "list tree keys": "use `treepack ls`",
    "inspect view stat metadata": "use `treepack info`",
    "check validate": "use `treepack verify`",
    "checksum hash sha sha256 sha256sum": "use `treepack digest`",
    "compare": "use `treepack diff`",
    "extract": "use `treepack get`",
    "repair recover fix": "use `treepack salvage`",
    "cp export import dump save": "use `treepack convert`",
    "merge join": "load one into the other in Python: treepack.load(path, tree, missing='target')",
    "rename mv": "use `treepack convert --map NEW=OLD`",
    "stack transpose": "use `treepack convert --map NEW=OLD=AXES`",
    "version": "use `treepack -V`",
    "head tail": "use `treepack ls`, or `treepack show FILE PATH` for the values of a leaf",
    "load open read restore": "use `treepack ls`, or treepack.load in Python",
    "help": "use `treepack --help`, or after a command, such as `treepack ls --help`",
}

_EXAMPLE = next((each.suffixes[0] for each in formats.known() if each.is_saved), ".msgpack")

# Options of other tools, by the command that they are tried with; `None` for all.
_OPTIONS = {
    "ls": {
        "-l -a -la -lh --long": "leave it out: shapes and sizes are always listed, and --json adds "
        "offsets",
        "-R -r --recursive --tree": "leave it out: all levels are listed unless --depth limits "
        "them",
        "--format -j --yaml": "use --json",
        "--select --only --path --key": "name the part as PATH, after FILE",
        "--sort -S -t": "send its lines to sort, as in `treepack ls --flat FILE | sort -k2`",
    },
    "info": {
        "--format -j --yaml": "use --json",
        "--map": "use `treepack ls --map`",
        "--metadata --meta": "leave it out: the metadata are printed",
    },
    "verify": {
        "--map": "leave it out: all leaves of the file are compared",
        "-v --verbose": "leave it out: `treepack verify --json` has the status of each leaf",
        "--strict": "leave it out: every byte is compared",
        "--digest --hash": "use --expect",
        "--prefix": "name the checkpoints, as in `treepack verify run/best_*`",
        "--path --select": "leave it out: all leaves of the file are compared",
    },
    "digest": {
        "--sha256 --md5 --algorithm": "leave it out: there is one kind of digests",
        "--expect": "use `treepack verify --expect`",
        "--path --select": "use --leaves, which lists the digest of each leaf",
    },
    "get": {
        "--path --key": "name the part as PATH, after FILE",
        "--select --only": "name the part as PATH, and what to leave out by --skip",
    },
    "diff": {
        "--tolerance --tol": "use --rtol or --atol",
        "--map": "convert FILE by `treepack convert --map` first, or use treepack.diff in Python",
        "--quiet -q": "leave it out, and send the output to /dev/null: the exit status tells",
    },
    "show": {
        "--path --key": "name the leaf as PATH, after FILE",
        "--bins": "leave it out: in Python, treepack.open(FILE)[PATH].statistics(bins=10) has them",
        "--nan": "use `treepack ls --nan`; the statistics count them",
        "--rows": "rows of an array are read in Python, as treepack.open(FILE)[PATH][:3]",
    },
    None: {
        "--to --format -f -t": f"the suffix of TARGET selects the format, as in out{_EXAMPLE}",
        "--sharded": "treepack.save(path, tree, sharded=True) writes such a directory",
        "--output --out -o": "name the new file after FILE, as TARGET",
        "--compress --compression -z": "use --gzip, or --numbers",
        "--exclude --ignore": "use --skip",
        "--include --filter --only": "use --select",
        "--select": "compare parts that `treepack get` writes",
        "--zstd --bz2 --lz4 --xz": "use --gzip, or --numbers",
        "--threads -j": "set the environment variable TREEPACK_NUM_THREADS",
        "--cast --precision": "use --dtype",
        "--rename --stack --unstack --transpose": "use --map NEW=OLD=AXES",
        "--region --endpoint --profile --anon --storage-options": "set the environment variables "
        "of the store, such as AWS_REGION",
        "--force --overwrite -y": "leave it out: files are always replaced",
    },
}


def _hint(rows: Mapping[str, str], name: str) -> str:
    return next((hint for names, hint in rows.items() if name in names.split()), "")


# Arguments that may be missing.
_ARGUMENTS = {
    "file": "name a file, directory or URL, or - for standard input",
    "files": "name a file, directory or URL, or - for standard input",
    "path": "name a leaf, as `treepack ls --flat FILE` lists them",
    "other": "name the file to compare with",
    "target": "name the new file, or - for standard output, as the last argument",
}

# The options of the form ONE=OTHER.
_PAIRS = ("--map",)

_Usage: Any = typer.BadParameter.__mro__[1]  # typer has click in it, or beside it


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [*args]  # which the parser empties
        file, path, *_ = [*(arg for arg in args if arg[:1] != "-"), "", ""]
        # No error if a signal interrupts the call.
        is_file = self.name in _OF_LEAVES and os.path.isfile(path)  # noqa: PTH113
        if is_file and not _is_there(file):
            ctx.fail(f"there is no {file}: FILE comes first: `treepack {self.name} {path} {file}`")
        try:
            return super().parse_args(ctx, args)
        except _Usage as error:
            option = getattr(error, "option_name", None)
            hint = ""
            if option is not None:
                hint = _hint(_OPTIONS.get(self.name, {}) | _OPTIONS[None], option)
                error.message = f"No such option: {option}" if hint else error.message
            elif "extra argument" in error.message:
                hint = _extra(str(self.name), given)
            elif getattr(error, "param", None) is not None and not error.message:
                hint = _ARGUMENTS.get(error.param.name, "")
            if hint:
                # A sentence about a missing argument comes before its message.
                message = error.message.rstrip(".")
                text = f"{message}: {hint}" if message else hint[0].upper() + hint[1:]
                error.message, error.possibilities = text, None
            raise


# The commands of a file and a path in it.
_OF_LEAVES = ("get", "ls", "show")


def _is_there(file: str) -> bool:
    return "://" in file or Path(file).exists()


def _extra(command: str, args: Sequence[str]) -> str:
    for option in _PAIRS:
        at = args.index(option) + 1 if option in args else len(args)
        if at + 1 < len(args) and "=" not in args[at]:
            return f"write {option} {shlex.quote(f'{args[at]}={args[at + 1]}')}"
    options = [arg for arg, last in zip(args, args[2:], strict=False) if last == args[-1]]
    if options and options[0] in ("--select", "--skip", "--map"):
        return f"repeat the option, as {options[0]} {args[-1]}"
    if args[-2:][0] == "--gzip":
        return f"the level is --level {args[-1]}"
    files = [arg for arg in args if arg[:1] != "-"]
    if command == "diff" and (Path(files[-1]).exists() or Path(files[-1]).suffix):
        return "compare two files at a time"
    if Path(f"{files[0]}/step_{files[-1]}").exists():
        return f"name the checkpoint by its path, as {files[0]}/step_{files[-1]}"
    if command == "diff":
        return f"it compares whole files: for a part, add | grep {shlex.quote(f'^{files[-1]}')}"
    if command == "ls":
        return "list one file, and one path in it, at a time"
    if command in ("info", "digest") and Path(files[-1]).exists():
        return "name one file at a time"
    if command in ("info", "digest") and len(files) == 2:
        return "it takes a whole file: write a part to a file by `treepack get FILE PATH TARGET`"
    if command == "get":
        return "it writes one part: use `treepack convert FILE TARGET --select A --select B`"
    if command == "show":
        return "a part of an array is read in Python, as treepack.open(FILE)[PATH][0]"
    return "name one FILE and one TARGET" if command in ("convert", "salvage") else ""


class Commands(TyperGroup):
    """Commands of which unknown ones, and options before them, are errors with hints."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name.lower() in self.commands:
            ctx.fail(f"No such command {cmd_name!r}: write `treepack {cmd_name.lower()}`")
        if command is None and Path(cmd_name).exists():
            ctx.fail(f"{cmd_name} is a file: list it with `treepack ls {cmd_name}`")
        if command is None and (hint := _hint(_COMMANDS, cmd_name)):
            ctx.fail(f"No such command {cmd_name!r}: {hint}")
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _Usage as error:
            option = getattr(error, "option_name", None)
            if option in ("-v", "--verbose"):
                error.message, error.possibilities = (
                    f"{error.message}: use -V for the version",
                    None,
                )
                raise
            for name, command in self.commands.items():
                if any(option in param.opts for param in command.params):
                    hint = f"options follow the command, as in `treepack {name} FILE {option}`"
                    error.message, error.possibilities = f"{error.message}: {hint}", None
                    break
            raise
