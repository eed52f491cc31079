"""Collects the licences of the crates that are linked into the extension.

`THIRD_PARTY_LICENSES` is in wheels and sdists. `python3 tools/third_party.py` writes it;
`make lint` runs this with `--check`, which compares it with `Cargo.lock`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLLECTED = ROOT / "THIRD_PARTY_LICENSES"

HEAD = """\
Licences of what is linked into the extension of treepack, on any system, written by
`python3 tools/third_party.py`. treepack itself is under the Apache License 2.0,
which is in LICENSE, as is Rust's standard library ("MIT OR Apache-2.0", The Rust Project
Contributors).
"""

# Those that wheels are for.
TARGETS = (
    "aarch64-apple-darwin",
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-msvc",
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
)

NAMES = re.compile(r"(licen[sc]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def linked() -> Iterator[dict[str, Any]]:
    """The packages that the crate links: not those that run while it is built, nor in tests."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--features=python"]
    command += [f"--filter-platform={target}" for target in TARGETS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    metadata = json.loads(done.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    todo, found = [root], {root}
    while todo:
        for dependency in nodes[todo.pop()]["deps"]:
            name = dependency["pkg"]
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            targets = {kind for target in packages[name]["targets"] for kind in target["kind"]}
            if None in kinds and "proc-macro" not in targets and name not in found:
                found.add(name)
                todo.append(name)
    yield from sorted((packages[name] for name in found - {root}), key=lambda it: it["name"])


def texts(package: dict[str, Any]) -> list[str]:
    """The licences of a package; of several to choose from, the short one of MIT."""
    folder = Path(package["manifest_path"]).parent
    # At the top, and one folder down, where C code lies in some.
    files = [*folder.glob("*"), *folder.glob("*/*")]
    files = sorted(file for file in files if NAMES.match(file.name) and file.is_file())
    if " OR " in (package["license"] or "") and any("MIT" in file.name for file in files):
        files = [file for file in files if "APACHE" not in file.name.upper()]
        files = [file for file in files if file.name.upper() != "UNLICENSE"]
    return [file.read_text(encoding="utf-8").strip() for file in files]


def collected() -> str:
    """The whole file: each text once, under the names of the packages that have it."""
    owners: dict[str, list[str]] = {}
    for package in linked():
        about = f"{package['name']} {package['version']} ({package['license']})"
        # A few packages leave out their texts, which their names in Cargo.toml stand for.
        for text in texts(package) or [f"{about} comes without a text of its licence."]:
            owners.setdefault(text, []).append(about)
    parts = [HEAD]
    parts += ["\n".join(names) + "\n\n" + text + "\n" for text, names in owners.items()]
    return f"\n{'-' * 80}\n\n".join(parts)


def main() -> None:
    """Writes the file, or compares it."""
    text = collected()
    if "--check" not in sys.argv:
        COLLECTED.write_text(text, encoding="utf-8")
    elif COLLECTED.read_text(encoding="utf-8") != text:
        sys.exit(f"{COLLECTED.name} differs from Cargo.lock: run `python3 tools/third_party.py`")


if __name__ == "__main__":
    main()
