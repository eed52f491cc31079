"""Runs tests under a sanitizer, and prints one line about them if nothing was found.

    python tools/sanitize.py --reports FOLDER [--about PATTERN] NAME COMMAND...

The command prints results as `cargo test` or pytest do. This fails if the command does, if no test
has run, or if there is a report in the output, or in a file of the folder: sanitizers write there,
since the output of processes that tests start may be lost.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

# The last line of a report of Miri and of other sanitizers; valgrind has none.
REPORT = re.compile(r"Undefined Behavior:|SUMMARY: \w+Sanitizer:")
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; \d+ failed; (\d+) ignored", re.MULTILINE)
PYTEST = re.compile(r"^(?:=+ )?(?:\d+ failed, )?(\d+) passed(?:, (\d+) skipped)?", re.MULTILINE)


def reports(folder: Path, about: str | None) -> list[str]:
    """Returns the reports in a folder, only those that are `about` something unless it is None."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    if about is None:
        return [text for text in texts if REPORT.search(text)]
    blocks = [it for text in texts for it in re.split(r"^==\d+== $|^=+$", text, flags=re.MULTILINE)]
    return [block for block in blocks if re.search(about, block)]


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--about")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    args.reports.mkdir(parents=True, exist_ok=True)
    for path in args.reports.iterdir():
        path.unlink()
    output = ""
    with subprocess.Popen(
        args.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output += line
            print(line, end="", flush=True)
    found = [*REPORT.findall(output), *reports(args.reports, args.about)]
    results = [*CARGO.findall(output), *PYTEST.findall(output)]
    ran, left_out = (sum(int(it[k] or 0) for it in results) for k in (0, 1))
    if process.returncode or found or not ran:
        print(*found, sep="\n\n")
        print(f"{args.name}: status {process.returncode}, {ran} tests, {len(found)} reports")
        return 1
    print(f"{args.name}: {ran} tests, {left_out} left out; 0 reports")
    return 0


if __name__ == "__main__":
    sys.exit(main())
