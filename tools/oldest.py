"""Prints the oldest versions of other packages that treepack allows, as constraints for pip."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

# No dependencies, but libraries whose functions the drop-in takes the place of, and whose states
# are saved.
ORACLES = ("flax", "optax")


def oldest() -> Iterator[str]:
    """A constraint for each lower bound of the package and its extras, and of the oracles."""
    settings = tomllib.loads(PROJECT.read_text())
    project = settings["project"]
    needed = [*project["dependencies"]]
    needed += [it for extra in project["optional-dependencies"].values() for it in extra]
    needed += [it for it in settings["dependency-groups"]["test"] if it.startswith(ORACLES)]
    for requirement in needed:
        if found := re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement):
            yield f"{found[1]}=={found[2]}"
            if found[1] == "jax":
                yield f"jaxlib=={found[2]}"


if __name__ == "__main__":
    print(*oldest(), sep="\n")
