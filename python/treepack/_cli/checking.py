"""Checks and compares files: `treepack verify`, `treepack diff` and `treepack digest`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import treepack
from treepack._cli import output, piped
from treepack._cli.listing import ANY_FILE, KINDS, MAX_SIZE, flag, opened
from treepack._src.printable import jsonable, printable
from treepack._src.runs.listing import run_at
from treepack._src.storage.urls import shown


def _digits(text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{32}", text):
        raise typer.BadParameter(
            f"expected 32 hexadecimal digits, as `treepack digest` prints them, got {text!r:.100}"
        )
    return text


def verify(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help=f"{KINDS}; - is standard input.", callback=piped.read),
    ],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; only set the exit status.")
    ] = False,
    as_json: Annotated[bool, flag("--json", "Print the results as JSON.")] = False,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="HEX",
            help="The digest of each file, as `treepack digest` prints it.",
            callback=_digits,
        ),
    ] = None,
    max_size: MAX_SIZE = None,
) -> None:
    """Compares files with their checksums, and with an expected digest.

    For a run, compares all of its checkpoints. Exit status: 1 if a file is damaged, of another
    format, or not as expected, otherwise 2 if a file or a leaf cannot be read, or a newer
    version of treepack wrote it.
    """
    damaged = newer = failed = False
    results: list[dict[str, Any]] = []
    for file in [path for given in files for path in _checkpoints_of(given)]:
        try:
            with output.bar("verify") as progress:
                report = treepack.verify(file, max_size=max_size, progress=progress)
        except OSError as error:
            failed = True
            output.error(error)
            results.append({"file": shown(file), "ok": False, "error": str(error)})
            continue
        damaged |= report.damage is not None or bool(report.corrupt)
        failed |= bool(report.unreadable)
        newer |= report.newer is not None
        fields = report._asdict()
        if as_json:  # else their paths, which may be many and long, are not needed
            fields["leaves"] = dict(report.leaves)
        differs = None
        if expect is not None and report.ok:
            fields["digest"] = found = str(treepack.digest(file, max_size=max_size))
            if found != expect.lower():
                differs, damaged = f"digest mismatch: expected {expect}, found {found}", True
        is_checked = "unchecked" not in report.leaves.values()
        if others := [] if is_checked else _others_in(file, max_size):
            fields["others"] = others
        results.append({"file": shown(file), "ok": report.ok and differs is None, **fields})
        if quiet or as_json:
            continue
        if report.newer is not None:
            output.line(f"{shown(file)}: not checked: {report.newer}", "yellow")
            continue
        counts: Counter[str] = Counter(report.leaves.values())
        texts = [f"{counts[key]} {key}" for key in _STATUSES if counts[key]]
        is_wrong = differs is not None or not report.ok
        style = "red" if is_wrong else "green" if is_checked else "yellow"
        output.line(f"{shown(file)}: {', '.join(texts) or 'no leaves'}", style)
        for key, paths in (("corrupt", report.corrupt), ("unreadable", report.unreadable)):
            output.rows(((f"  {key}", path), ("bold red", "")) for path in paths)
        if report.damage is not None:
            output.line(f"  damaged: {report.damage}", "bold red")
        if differs is not None:
            output.line(f"  {differs}", "bold red")
        if not is_checked:
            why = (
                "the file has no checksums" if report.damage is None else "no checksums were found"
            )
            output.line(f"  unchecked: {why}; only its headers were read", "dim")
        if others:
            output.line(f"  not read: {', '.join(map(printable, others))}, in the same directory")
    if as_json and not quiet:
        output.json(jsonable({"files": results}))
    raise typer.Exit(1 if damaged else 2 if newer or failed else 0)


def _others_in(file: str, max_size: int | None) -> list[str]:
    with contextlib.suppress(OSError, treepack.TreepackError), opened(file, max_size) as found:
        return found.others
    return []


def _checkpoints_of(path: str) -> Sequence[str]:
    with contextlib.suppress(OSError):  # which `treepack.verify` raises again
        if (run := run_at(path)) is not None:
            return run.paths
    return [path]


def digest(
    file: ANY_FILE,
    leaves: Annotated[bool, flag("--leaves", "Print the digest of each leaf as well.")] = False,
    as_json: Annotated[bool, flag("--json", "Print all digests as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Prints the digest of a file: 32 digits, the same in all formats and for any sharding."""
    with opened(file, max_size) as found:
        computed = treepack.digest(found)
        if as_json:
            each = dict(computed.leaves)
            output.json({"file": found.path, "digest": str(computed), "leaves": each})
            return
        output.line(f"{computed}  {printable(str(found.path))}")
        if leaves:
            rows = ((f"  {each}", path) for path, each in computed.leaves.items())
            output.rows((row, ("", "")) for row in rows)


_STATUSES: tuple[Any, ...] = ("ok", "corrupt", "unreadable", "unchecked")

_STATS_HELP = "Print norms, the norm of the change, the largest change and NaNs of each module."


def diff(
    one: ANY_FILE,
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="Another one, of any format.", callback=piped.read),
    ],
    rtol: Annotated[float, typer.Option(help="Relative tolerance for values.")] = 0.0,
    atol: Annotated[float, typer.Option(help="Absolute tolerance for values.")] = 0.0,
    stats: Annotated[bool, flag("--stats", _STATS_HELP)] = False,
    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Compares names, shapes, dtypes, values and static data of two files.

    Exit status 1: they differ.
    """
    with opened(one, max_size) as left, opened(other, max_size) as right:
        differences = treepack.diff(left, right, rtol=rtol, atol=atol, stats=stats)
    modules = differences.modules
    if as_json:
        result: dict[str, Any] = {
            "files": [shown(one), shown(other)],
            "leaves": differences.leaves,
            "differences": [difference._asdict() for difference in differences],
        }
        if stats:
            rows = {path: dataclasses.asdict(change) for path, change in modules.items()}
            result["modules"] = jsonable(rows)
        output.json(result)
        raise typer.Exit(int(bool(differences)))
    output.rows((tuple(difference), ("", "yellow", "")) for difference in differences)
    if modules:
        output.rows([(_STATS, ("dim",) * len(_STATS)), *map(_stats_row, modules.items())], _RIGHT)
    output.line(repr(differences).partition("\n")[0], "yellow" if differences else "green")
    raise typer.Exit(int(bool(differences)))


_STATS = ("module", "arrays", "norm", "other norm", "change", "largest", "NaN", "other NaN")
_RIGHT = frozenset(range(1, len(_STATS)))


def _stats_row(module: tuple[str, Any]) -> output.Row:
    path, change = module
    cells = (f"{number:.4g}" for number in dataclasses.astuple(change))
    style = "red" if change.nan or change.other_nan else ""
    return (path, *cells), ("bold", *[style] * (len(_STATS) - 1))
