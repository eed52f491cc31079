"""Every call of the system that a verb makes, interrupted once (EINTR): none makes a verb fail.

File systems such as FUSE and CIFS let signals interrupt calls that others do not; Python repeats
some calls only. A tracer (`tests/support/tracer.c`) sees calls as the kernel does.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_system_calls import NEW, OLD, SAVES, found_at, name_of, names

import tiers
import treepack
from commands import call
from traced import ask, is_traced, run


def save_patch(path: Path, tree: Any) -> None:
    """Saves a patch of a file beside it."""
    base = path.with_name("base")
    treepack.save(base, OLD)
    treepack.save(path, tree, base=base)


def publish(path: Path, tree: Any) -> None:
    """Publishes the next version of a tree."""
    treepack.Publisher(path).push(tree, version=next(VERSIONS))


VERSIONS = itertools.count(1)


WRITES: dict[str, Callable[[Path, Any], object]] = {
    **SAVES,
    "patch": save_patch,
    "publish": publish,
}


def read_again(kind: str, path: Path) -> Any:
    """Returns the tree that was written last."""
    if kind == "publish":
        return treepack.Subscriber(path).latest()[1]
    if kind.startswith("convert to"):  # of other libraries' formats, which they read otherwise
        return treepack.load(path)
    return found_at(kind, path)


def write_interrupted(kind: str, folder: Path, stride: int) -> None:
    """Interrupts one of `stride` calls of a save, and of what reads the file afterwards."""
    inside = folder / "inside"
    inside.mkdir()
    path = inside / name_of(kind)
    WRITES[kind](path, OLD)
    read_again(kind, path)
    for number in itertools.count(1, stride):
        tree = (OLD, NEW)[number // stride % 2]
        ask(f"fail/{number}/{errno.EINTR}{inside}")
        WRITES[kind](path, tree)
        found = read_again(kind, path)
        was_interrupted = ask("failed")
        assert np.array_equal(np.asarray(found["w"]), tree["w"]), number
        if not was_interrupted:
            assert number > 10
            print(kind, "calls that were interrupted:", number // stride)
            return
        assert names(inside) == [], number


def template(tree: Any) -> Any:
    """Returns a template of a tree."""
    return {**tree, "w": np.empty_like(tree["w"])}


def opened(path: Path, **options: Any) -> Any:
    with treepack.open(path, **options) as file:
        return file["w"][5:7].tobytes(), sorted(path for path, _ in file.leaves())


def copied(path: Path) -> Any:
    with treepack.open(path) as file:
        treepack.save(path.with_name("copy.treepack"), file)
    return treepack.digest(path.with_name("copy.treepack"))


def converted(path: Path) -> Any:
    call("convert", str(path), str(path.with_name("converted.treepack")))
    return treepack.digest(path.with_name("converted.treepack"))


def differing(path: Path) -> Any:
    with treepack.open(path) as file:
        return treepack.diff(file, NEW)


# What each returns is compared with what it returns undisturbed.
READS: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: treepack.digest(treepack.load(path)),
    "load without a mapping": lambda path: treepack.digest(treepack.load(path, mmap=False)),
    "load into a template": lambda path: treepack.digest(
        treepack.load(path, template(NEW), strict=False)
    ),
    "load a part": lambda path: treepack.load(path, select="w")["w"].tobytes(),
    "load, mapped": lambda path: treepack.load(path, mapping={"v": "w"})["v"].tobytes(),
    "load, skipping damage": lambda path: treepack.digest(treepack.load(path, on_corrupt="skip")),
    "load, expecting a digest": lambda path: treepack.digest(
        treepack.load(path, expect=treepack.digest(path))
    ),
    "open": opened,
    "open, salvaging": lambda path: opened(path, salvage=True),
    "open without a mapping": lambda path: opened(path, mmap=False),
    "abstract": lambda path: str(treepack.abstract(path)),
    "verify": lambda path: treepack.verify(path),
    "digest": lambda path: treepack.digest(path),
    "diff": differing,
    "read_metadata": lambda path: treepack.read_metadata(path),
    "is_checkpoint": lambda path: treepack.is_checkpoint(path),
    "copy": copied,
    "treepack ls": lambda path: call("ls", str(path)),
    "treepack info": lambda path: call("info", str(path)),
    "treepack show": lambda path: call("show", str(path), "w"),
    "treepack verify": lambda path: call("verify", str(path)),
    "treepack convert": converted,
}

FORMS = {
    *("file", "gzip", "numbers", "directory", "state", "patch", "run with links"),
    *("convert to npz", "convert to safetensors", "directory of safetensors"),
}


def read_interrupted(kind: str, folder: Path, stride: int) -> None:
    """Interrupts one of `stride` calls of each verb that reads a form, beginning with another."""
    inside = folder / "inside"
    inside.mkdir()
    path = inside / name_of(kind)
    WRITES[kind](path, NEW)
    if kind.startswith("run"):
        [path] = path.glob("step_*")
    count = 0
    for at, (name, read) in enumerate(READS.items()):
        problem = f"{name} of {kind}"
        try:
            expected = read(path)
        except treepack.TreepackError:
            continue  # the form does not have it
        for number in itertools.count(1 + at % stride, stride):
            ask(f"fail/{number}/{errno.EINTR}{inside}")
            try:
                found = read(path)
            except Exception as error:
                raise AssertionError(f"{problem}: call {number}") from error
            if not ask("failed"):
                assert number > stride, problem
                break
            count += 1
            assert str(found) == str(expected), f"{problem}: call {number}"
    print(kind, "calls that were interrupted:", count)


@pytest.mark.campaign
@is_traced
@pytest.mark.parametrize("kind", tiers.some(WRITES))
def test_an_interrupted_call_of_a_save_is_made_again(kind: str, in_memory: Path) -> None:
    stride = tiers.either(13, 13, nightly=1)
    print(
        run(
            __name__, f"write_interrupted({kind!r}, pathlib.Path(sys.argv[1]), {stride})", in_memory
        )[0]
    )


@pytest.mark.campaign
@is_traced
@pytest.mark.parametrize("kind", sorted(FORMS))
def test_an_interrupted_call_of_a_read_is_made_again(kind: str, in_memory: Path) -> None:
    stride = tiers.either(5, 5, nightly=1)
    call = f"read_interrupted({kind!r}, pathlib.Path(sys.argv[1]), {stride})"
    print(run(__name__, call, in_memory)[0])
