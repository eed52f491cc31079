"""Counts patterns of odd English in prose, per 1,000 words: `make lint` fails above a bound.

    python tools/prose.py            # checks the bounds
    python tools/prose.py --show     # also prints the lines with a pattern

docs/words.md has the rules that exclude the patterns, and examples. Blocks of code do not
count.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

PATTERNS = {
    "what": r"\b[Ww]hat\b",
    "that of": r"\b(?:[Tt]hat|[Tt]hose) of\b",
    "told": r"\b(?:told|tells|asked|asks)\b",
    "so many": r"\b(?:[Ss]o|[Aa]s) many\b",
    "nobody": r"\b(?i:nobody|whoever|somebody)\b",
    "is no": r"\b(?:is|are) no\b",
    "has to": r"\b(?:has|have) to\b",
    "but for": r"\bbut for\b",
    "meanwhile": r"\b[Mm]eanwhile\b",
}
FOLDERS = ("python", "examples", "benches", "tools")
# The most of each pattern in 1,000 words. It only ever falls.
BOUNDS = {"docs": 0.5, "docstrings": 0.5, "comments": 0.5}


def without_code(text: str) -> str:
    """Returns a page with empty lines in place of its blocks of code and the table of the rules."""
    text = re.sub(r"^```.*?^```", lambda it: "\n" * it[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(
        r"^\| rule \|.*?\n\n", lambda it: "\n" * it[0].count("\n"), text, flags=re.M | re.S
    )


def docs() -> Iterator[tuple[Path, int, str]]:
    """Yields the lines of README, docs and other pages: path, number, text."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")]:
        for number, line in enumerate(
            without_code(path.read_text(encoding="utf-8")).split("\n"), 1
        ):
            yield path, number, line


def docstrings() -> Iterator[tuple[Path, int, str]]:
    """Yields the lines of docstrings of the package, examples, benchmarks and tools."""
    for path in (it for folder in FOLDERS for it in ROOT.glob(f"{folder}/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ) and (text := ast.get_docstring(node, clean=False)):
                first = node.body[0].lineno
                for number, line in enumerate(text.split("\n"), first):
                    yield path, number, line


def comments() -> Iterator[tuple[Path, int, str]]:
    """Yields the comments of the core."""
    for path in ROOT.glob("src/**/*.rs"):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if found := re.search(r"(?:^|\s)//[/!]? ?(.*)", line):
                yield path, number, found[1]


def main() -> None:
    """Checks every kind of prose."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print the lines with a pattern")
    show = parser.parse_args().show
    failed = False
    for kind, lines in (("docs", docs()), ("docstrings", docstrings()), ("comments", comments())):
        found = list(lines)
        words = sum(len(line.split()) for _, _, line in found)
        # A pattern may be split by the end of a line.
        text = "\n".join(line for _, _, line in found)
        for name, pattern in PATTERNS.items():
            spaced = re.compile(pattern.replace(" ", r"\s+"))
            rate = 1000 * len(spaced.findall(text)) / words
            if show:
                for path, number, line in found:
                    if spaced.search(line):
                        print(f"{path.relative_to(ROOT)}:{number}: {name}: {line.strip()}")
            if rate > BOUNDS[kind]:
                failed = True
                print(
                    f"{kind}: {name!r} {rate:.2f} times in 1,000 words, at most {BOUNDS[kind]}: "
                    "see docs/words.md, and `python tools/prose.py --show`"
                )
    sys.exit(failed)


if __name__ == "__main__":
    main()
