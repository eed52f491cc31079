"""Prints the lines of the core that the corpora of fuzz targets reach, and unreached functions.

`sh tools/fuzz.sh coverage` runs it: `fuzz_coverage.py tests/fuzz folder-of-programs target...`.
Each program was built with `-Cinstrument-coverage`, and runs over its corpus, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FUNCTION = re.compile(r"\bfn (\w+)")


def tool(name: str) -> str:
    """Returns the path of a program of nightly's llvm-tools."""
    command = ["rustc", "+nightly", "--print", "sysroot"]
    sysroot = Path(subprocess.check_output(command, text=True).strip())
    return str(next(sysroot.glob(f"lib/rustlib/*/bin/{name}")))


def collected(fuzz: Path, programs: Path, targets: list[str]) -> Any:
    """Runs the programs, and returns their coverage, as llvm-cov exports it."""
    profiles = programs / "profiles"
    profiles.mkdir(exist_ok=True)
    for target in targets:
        profile = profiles / f"{target}.profraw"
        profile.unlink(missing_ok=True)
        subprocess.run(
            [
                programs / target,
                "-runs=0",
                "-timeout=600",
                "-rss_limit_mb=0",
                fuzz / "corpus" / target,
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LLVM_PROFILE_FILE": str(profile)},
        )
    merged = profiles / "all.profdata"
    raw = [profiles / f"{target}.profraw" for target in targets]
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", *raw, "-o", merged], check=True)
    objects = [f"-object={programs / target}" for target in targets[1:]]
    export = [
        tool("llvm-cov"),
        "export",
        f"-instr-profile={merged}",
        programs / targets[0],
        *objects,
    ]
    return json.loads(subprocess.check_output(export))["data"][0]


def unreached(data: Any) -> dict[str, list[str]]:
    """Returns the functions that were never called, by file, without the closures in them."""
    counts: dict[tuple[str, int], int] = {}
    for function in data["functions"]:
        place = function["filenames"][0], function["regions"][0][0]
        counts[place] = max(counts.get(place, 0), function["count"])
    found: dict[str, list[str]] = {}
    for (name, line), count in sorted(counts.items()):
        if count == 0 and Path(name).is_relative_to(ROOT / "src"):
            head = Path(name).read_text(encoding="utf-8").split("\n")[line - 1]
            if named := FUNCTION.search(head):
                file = str(Path(name).relative_to(ROOT))
                found.setdefault(file, []).append(f"{named[1]}:{line}")
    return found


def main() -> None:
    """Prints a row for each file of the core."""
    fuzz, programs, *targets = sys.argv[1:]
    data = collected(ROOT / fuzz, ROOT / fuzz / programs, targets)
    never = unreached(data)
    print(f"{'file':32} {'lines':>11} {'':>6} {'regions':>11} {'':>6}  functions that none reaches")
    for file in sorted(data["files"], key=lambda it: it["filename"]):
        path = Path(file["filename"])
        if not path.is_relative_to(ROOT / "src"):
            continue
        name = str(path.relative_to(ROOT))
        row = f"{name:32}"
        for kind in ("lines", "regions"):
            of = file["summary"][kind]
            row += f" {of['covered']:5}/{of['count']:5} {of['percent']:5.1f}%"
        print(row, "", ", ".join(never.get(name, [])))


if __name__ == "__main__":
    main()
