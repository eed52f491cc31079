"""Removes arguments for unsafe code, one at a time, and expects a test to fail; see `breaches.sh`.

`breaches.toml` has the edits that remove them, `unsafe.toml` the tests. It works in a copy of the
files that git tracks, built without optimisations and with the checks of the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Breach:
    """The edits that remove the argument of an item: texts of files, and their replacements."""

    file: str
    item: str
    why: str
    edits: tuple[tuple[str, str, str], ...]


def breaches() -> list[Breach]:
    """Returns all of them."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    found = []
    for entry in tomllib.loads(text)["breach"]:
        edits = [edit if len(edit) == 3 else [entry["file"], *edit] for edit in entry["edits"]]
        found.append(Breach(entry["file"], entry["item"], entry["why"], tuple(map(tuple, edits))))
    return found


def tests_of(breach: Breach) -> list[str]:
    """Returns the names of the tests that `unsafe.toml` lists for the item."""
    listed = tomllib.loads(Path(__file__).with_name("unsafe.toml").read_text(encoding="utf-8"))
    return list(listed[breach.file][breach.item]["tests"])


def edited(breach: Breach) -> dict[str, str]:
    """Returns the texts of files as the breach makes them."""
    texts: dict[str, str] = {}
    for file, old, new in breach.edits:
        text = texts.get(file) or (ROOT / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        texts[file] = text.replace(old, new)
    return texts


@contextlib.contextmanager
def breached(breach: Breach, root: Path) -> Iterator[None]:
    """Has the files of the copy as the breach makes them."""
    texts = edited(breach)
    try:
        for file, text in texts.items():
            (root / file).write_text(text, encoding="utf-8")
        yield
    finally:
        for file in texts:
            shutil.copyfile(ROOT / file, root / file)


def copy(root: Path) -> None:
    """Copies the files that git knows, if they are not there as they are here."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            shutil.copyfile(ROOT / name, target)


def built(root: Path) -> None:
    """Builds the extension of the copy."""
    command = ["cargo", "build", "--quiet", "--lib", "--features", "python"]
    subprocess.run(command, cwd=root, check=True, env={**os.environ, "PYO3_PYTHON": sys.executable})
    shutil.copy(root / "target/debug/libtreepack.so", root / "python/treepack/_core.abi3.so")


def fails(name: str, root: Path) -> bool:
    """Runs a test, wherever it is, and returns whether it fails."""
    for path in sorted(root.glob("tests/**/*.py")):
        if re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            command = [sys.executable, "-m", "pytest", "-xq", "-m", "", f"{path}::{name}"]
            return not succeeds(command, root)
    programs = {"core": root.glob("tests/core/*.rs"), "out_of_memory": root.glob("tests/out*.rs")}
    where = ["--lib"]
    for program, files in programs.items():
        if any(f"fn {name}(" in file.read_text("utf-8") for file in files):
            where = ["--test", program]
    command = ["cargo", "test", "--quiet", *where]
    subprocess.run([*command, "--no-run"], cwd=root, check=True)
    return not succeeds([*command, name], root)


def succeeds(command: list[object], root: Path) -> bool:
    """Runs a command in the copy, whose package Python imports; a hang counts as failure."""
    environment = {**os.environ, "PYTHONPATH": str(root / "python")}
    line = [str(it) for it in command]
    try:
        run = subprocess.run(line, cwd=root, env=environment, capture_output=True, timeout=300)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def main() -> None:
    """Removes all arguments, or some, and prints which tests failed for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT / "target/breaches", help="of the copy")
    parser.add_argument("--check", action="store_true", help="only whether all can be taken away")
    parser.add_argument("--items", nargs="*", help="only those of these items")
    options = parser.parse_args()
    if options.check:
        for breach in breaches():
            tests_of(breach)
            edited(breach)
        print(f"{len(breaches())} arguments can be taken away")
        return
    os.environ["RUSTFLAGS"] = "--allow=warnings"  # of unused code
    copy(options.root)
    chosen = [it for it in breaches() if not options.items or it.item in options.items]
    built(options.root)
    if always := {name for it in chosen for name in tests_of(it) if fails(name, options.root)}:
        sys.exit(f"these fail without a breach: {', '.join(sorted(always))}")
    silent = 0
    for breach in chosen:
        with breached(breach, options.root):
            built(options.root)
            outcomes = {test: fails(test, options.root) for test in tests_of(breach)}
        noticed = [test for test, failed in outcomes.items() if failed]
        silent += not noticed
        answer = ", ".join(noticed) if noticed else f"NOTHING FAILED of {', '.join(outcomes)}"
        print(f"{breach.file} {breach.item}, {breach.why}: {answer}", flush=True)
    print(f"{len(chosen)} breaches, of {silent} no test fails")
    sys.exit(silent > 0)


if __name__ == "__main__":
    main()
