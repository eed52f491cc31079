"""Prints the requirements of tests with the oldest versions of other packages, for pip."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

# Not a dependency, but a library that the drop-in replaces.
ORACLE = "flax"

# eformer wants a newer jax than the oldest, and works with this one. It is installed without its
# dependencies, of which it imports these.
IMPORTED_BY_EFORMER = (
    "braceexpand",
    "contextlib2",
    "google-cloud-storage",
    "mergedeep",
    "ml-collections",
    "plum-dispatch",
)


def oldest() -> Iterator[str]:
    """The lower bound of each dependency, and other imports of the tests."""
    settings = tomllib.loads(PROJECT.read_text())
    project, tests = settings["project"], settings["dependency-groups"]["test"]
    needed = [*project["dependencies"]]
    needed += [it for extra in project["optional-dependencies"].values() for it in extra]
    needed += [it for it in tests if it.startswith(ORACLE)]
    for requirement in needed:
        if found := re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement):
            yield f"{found[1]}=={found[2]}"
            if found[1] == "jax":
                yield f"jaxlib=={found[2]}"
    yield from (it for it in tests if it not in needed and not it.startswith("eformer"))
    yield from IMPORTED_BY_EFORMER


if __name__ == "__main__":
    print(*oldest(), sep="\n")
