"""Writes a wheel of `treepack-core` for each of treepack: the same files, without depending on JAX.

    python tools/core_wheel.py FOLDER  # of wheels; needs the package `wheel`

Only the metadata differ: the name, and the requirements, without JAX and the extras that are of no
use without it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

NAME = "treepack-core"
LEFT_OUT = {"jax"}
EXTRAS_LEFT_OUT = {"export", "orbax"}


def core_metadata(text: str) -> str:
    """Returns the METADATA of treepack-core from those of treepack."""
    head, blank, readme = text.partition("\n\n")
    return "\n".join(filter(None, map(_line, head.splitlines()))) + blank + readme


def _line(line: str) -> str | None:
    """Returns a line of the head as treepack-core has it; `None` if it has none."""
    field, _, value = line.partition(": ")
    if field == "Name":
        return f"{field}: {NAME}"
    if field == "Provides-Extra" and value in EXTRAS_LEFT_OUT:
        return None
    if field != "Requires-Dist":
        return line
    required = Requirement(value)
    if required.name in LEFT_OUT or _is_of_extra_left_out(required):
        return None
    if required.name == "treepack":
        required.name, required.extras = NAME, required.extras - EXTRAS_LEFT_OUT
    return f"{field}: {required}"


def _is_of_extra_left_out(required: Requirement) -> bool:
    if required.marker is None or required.marker.evaluate({"extra": ""}):
        return False
    return any(required.marker.evaluate({"extra": extra}) for extra in EXTRAS_LEFT_OUT)


def write(wheel: Path) -> None:
    """Writes the wheel of treepack-core into the same folder."""
    command = [sys.executable, "-m", "wheel"]
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([*command, "unpack", wheel, "--dest", name], check=True)
        (folder,) = Path(name).iterdir()
        (info,) = folder.glob("*.dist-info")
        info = info.rename(folder / info.name.replace("treepack", NAME.replace("-", "_")))
        metadata = info / "METADATA"
        text = core_metadata(metadata.read_text(encoding="utf-8"))
        metadata.write_text(text, encoding="utf-8", newline="\n")
        subprocess.run([*command, "pack", folder, "--dest-dir", wheel.parent], check=True)


def main() -> None:
    """Writes a wheel for each in a folder."""
    for wheel in sorted(Path(sys.argv[1]).glob("treepack-*.whl")):
        write(wheel)


if __name__ == "__main__":
    main()
