"""The case of a seed: a hostile file, in one of the containers."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from hostile import directories, files, frames, patches, values
from hostile.changes import with_other_bytes


class Case(NamedTuple):
    """A hostile file.

    Attributes:
      seed: What it is made of.
      container: What it is: `file`, `bytes`, `flax`, `gzip`, `numbers`, `stream`, `directory`,
        `values`, `patch`.
      name: The name of the tree that it was.
      template: That tree.
      paths: Paths that were in it.
      data: The bytes of a file, or of the files of a directory by their names.
      max_size: What may be inside, if it is compressed.
      base: The file or directory `base` beside it, of a patch.
    """

    seed: int
    container: str
    name: str
    template: Any
    paths: list[str]
    data: bytes | dict[str, bytes]
    max_size: int
    base: bytes | dict[str, bytes] | None = None

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return sum(
            sum(map(len, [data] if isinstance(data, bytes) else data.values()))
            for data in (self.data, self.base or b"")
        )


# Which containers, and of a hundred cases how many are in each.
CONTAINERS = {
    "file": 30, "bytes": 12, "flax": 6, "gzip": 14, "numbers": 9, "stream": 6, "directory": 5,
    "values": 12, "patch": 6,
}  # fmt: skip

MAX_SIZE = 1 << 20


class Cases:
    """Makes cases of their seeds."""

    def __init__(self) -> None:
        self.sources = files.sources()
        self._paths = {name: paths_of(it.tree) for name, it in self.sources.items()}
        # Of small blocks; one has more content than a block of a writer has.
        self._large = files.file_of(self.sources["large"].parts) * 4
        self._make: dict[str, Callable[[random.Random, files.Source], bytes]] = {
            "file": _file,
            "bytes": lambda rng, it: files.hostile_state(it.state, rng),
            "flax": lambda rng, it: files.hostile_flax(it.flax, rng),
            "gzip": functools.partial(_framed, gzip=True),
            "numbers": functools.partial(_framed, gzip=False),
            "stream": _stream,
        }

    @functools.cached_property
    def values(self) -> values.Values:
        """What cases of typed values are made of."""
        return values.Values()

    @functools.cached_property
    def patches(self) -> patches.Patches:
        """The parts of cases of patches."""
        return patches.Patches(self.sources)

    @functools.cached_property
    def directories(self) -> directories.Directories:
        """The parts of cases of directories."""
        return directories.Directories()

    def case(self, seed: int, only: tuple[str, ...] = ()) -> Case:
        """Returns the case of a seed."""
        rng = random.Random(seed)
        weights = {name: CONTAINERS[name] for name in only} if only else CONTAINERS
        [container] = rng.choices([*weights], [*weights.values()])
        if container == "directory":
            template, found = self.directories.case(rng)
            return Case(seed, container, "", template, directories.NAMES, found, MAX_SIZE)
        if container == "values":
            template, data = self.values.case(rng)
            return Case(seed, container, "", template, ["a", "b"], data, MAX_SIZE)
        if container == "patch":
            patch, base = self.patches.case(rng)
            paths = self._paths[patch.name]
            return Case(
                seed, container, patch.name, patch.template, paths, patch.data, MAX_SIZE, base
            )
        name = rng.choice([*self.sources])
        if name in ("large", "long") and rng.random() < 0.9:
            name = "params"
        source = self.sources[name]
        data = self._make[container](rng, source)
        return Case(seed, container, name, source.tree, self._paths[name], data, MAX_SIZE)


def _file(rng: random.Random, source: files.Source) -> bytes:
    if rng.random() < 0.25:
        return with_other_bytes(files.file_of(source.parts), rng)
    return files.hostile_file(source.parts, rng)


def _framed(rng: random.Random, source: files.Source, *, gzip: bool) -> bytes:
    """Returns a compressed file: with hostile content, or a hostile frame."""
    choice = rng.random()
    content = files.file_of(source.parts)
    if choice < 0.5:
        content = files.hostile_file(source.parts, rng)
    elif choice < 0.55:
        content = content * rng.choice([0, 2])
    block = frames.block_size(rng, len(content))
    found = (
        frames.gzip_of(content, block)
        if gzip
        else frames.numbers_of(content, block, frames.widths(rng))
    )
    if choice < 0.45:
        return frames.assembled(found, index=rng.random() < 0.9)
    if choice < 0.9:
        return frames.with_change(found, rng)
    return with_other_bytes(frames.assembled(found), rng)


def _stream(rng: random.Random, source: files.Source) -> bytes:
    if rng.random() < 0.3:
        return with_other_bytes(files.stream_of(source, None), rng)
    data = files.stream_of(source, rng)
    if rng.random() < 0.1:
        return frames.assembled(frames.gzip_of(data, 200), index=False)
    return data


def paths_of(tree: Any) -> list[str]:
    """Returns some paths of a tree."""
    found: list[str] = []

    def visit(value: Any, path: str) -> None:
        items = value.items() if isinstance(value, dict) else ()
        if isinstance(value, (list, tuple)):
            items = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
        for key, child in items:
            if len(found) < 8:
                text = str(key).replace("~", "~0").replace("/", "~1")
                visit(child, f"{path}/{text}" if path else text)
        found.append(path or ".")

    visit(tree, "")
    return found
