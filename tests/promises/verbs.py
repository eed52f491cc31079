"""Calls that read or write a form.

A verb returns the leaves that it has read, by the keys that lead to them, in the form of
`leaves.plain`; or asserts what it promises instead.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import treepack
from commands import COMMAND
from promises.forms import METADATA, Form
from promises.leaves import leaves_of, plain

Leaves = dict[tuple[str, ...], Any]


class Case(NamedTuple):
    """The saved tree that a verb reads.

    Attributes:
      form: Its form.
      tree: The tree.
      argument: How the verb names it; see `sources.py`.
      entry: The path of the file or directory that readers take.
      options: Options of the call, such as `storage_options`.
      folder: An empty folder for files that the verb writes.
    """

    form: Form
    tree: Any
    argument: Any
    entry: Path
    options: dict[str, Any]
    folder: Path


class Verb(NamedTuple):
    """A verb.

    Attributes:
      run: Calls it.
      takes: The groups of sources that it takes.
      verifies: Whether it notices damage of leaves in forms with checksums.
      writes: Whether it writes a file at `Case.folder`, or over the form itself.
      options: The options that it has, of those that conditions pass.
      forms: The forms that have it; all by default.
      is_of_home: Whether it takes the path that the form was written to, such as the directory of a
        run, not the file that readers take.
      is_partial: Whether it reads, or returns, some leaves only.
    """

    run: Callable[[Case], Leaves | None]
    takes: frozenset[str]
    verifies: bool = False
    writes: bool = False
    options: frozenset[str] = frozenset({"max_size"})
    forms: frozenset[str] | None = None
    is_of_home: bool = False
    is_partial: bool = False
    name: str = ""

    def expected(self, leaf: Any) -> Any:
        """Returns a leaf as the verb returns it, in the form of `plain`."""
        kind, *rest = plain(leaf)
        # An open or mapped file has no JAX arrays, which alone are weak.
        has_none = self.name.startswith("open") or self.name.endswith("mapped")
        return ("array", *rest) if kind == "weak" and has_none else plain(leaf)

    @property
    def is_command(self) -> bool:
        """Whether it is a command of the shell."""
        return self.name.startswith("treepack ")


def template_of(tree: Any) -> Any:
    """Returns a template: arrays without their elements, and other leaves as they are."""

    def leaf(value: Any) -> Any:
        if isinstance(value, jax.Array):
            return value  # sharding, weak type and kind of key included
        return np.empty_like(value) if isinstance(value, np.ndarray) else value

    return jax.tree.map(leaf, tree, is_leaf=lambda value: value is None)


def load(case: Case, **options: Any) -> Leaves:
    return leaves_of(treepack.load(case.argument, **options, **case.options))


def load_verified(case: Case) -> Leaves:
    return load(case, verify=True)


def load_expected(case: Case) -> Leaves:
    return load(case, expect=treepack.digest(case.tree))


def load_mapped(case: Case) -> Leaves:
    return load(case, mapping={"a/w": ("a/w", "x y")})


def load_template(case: Case) -> Leaves:
    loaded = treepack.load(case.argument, template_of(case.tree), strict=False, **case.options)
    return leaves_of(loaded)


def load_selected(case: Case) -> Leaves:
    return load(case, select=["a/w", "z"])


def opened(case: Case, **options: Any) -> treepack.File:
    if isinstance(case.argument, treepack.File):
        return case.argument
    return treepack.open(case.argument, **options, **case.options)


def open_all(case: Case) -> Leaves:
    with opened(case) as file:
        return {tuple(path.split("/")): plain(leaf) for path, leaf in file.leaves()}


def open_mapped(case: Case) -> Leaves:
    with treepack.open(case.argument, mapping={"a/w": ("a/w", "x y")}, **case.options) as file:
        return {tuple(path.split("/")): plain(leaf) for path, leaf in file.leaves()}


def open_slice(case: Case) -> None:
    with opened(case) as file:
        rows = np.asarray(file["a/w"][3:5, 7])
    assert rows.tobytes() == case.tree["a"]["w"][3:5, 7].tobytes()


def abstract(case: Case) -> None:
    shapes = treepack.abstract(case.argument, **case.options)
    assert shapes["a"]["w"].shape == case.tree["a"]["w"].shape
    assert shapes["z"].dtype == case.tree["z"].dtype


def verify(case: Case) -> None:
    result = treepack.verify(case.argument, **storage(case))
    if not result.ok:
        raise treepack.CorruptionError(str(result))
    assert {"a/w", "z"} <= set(result.leaves)


def storage(case: Case) -> dict[str, Any]:
    """Returns the options without those of decompression."""
    return {name: value for name, value in case.options.items() if name == "storage_options"}


def diff(case: Case) -> None:
    with opened(case) as file:
        differences = treepack.diff(file, case.tree)
    assert {each.path for each in differences} <= {"a/leaf"}, differences
    assert case.form.groups != frozenset({"array"}) or not differences, differences


def digest(case: Case) -> None:
    if isinstance(case.argument, np.ndarray):  # to `digest`, a tree of one leaf
        with opened(case) as file:
            computed = treepack.digest(file)
    else:
        computed = treepack.digest(case.argument, **case.options)
    expected = treepack.digest(case.tree)
    assert computed.leaves["a/w"] == expected.leaves["a/w"]
    assert (
        case.form.groups != frozenset({"array", "value", "typed", "name"}) or computed == expected
    )


def read_metadata(case: Case) -> None:
    metadata = treepack.read_metadata(case.argument, **case.options)
    if case.form.has_metadata:
        assert {**metadata, **METADATA} == metadata


def is_checkpoint(case: Case) -> None:
    if not treepack.is_checkpoint(case.argument, **storage(case)):
        raise treepack.DecodeError("is_checkpoint returns False")


def command(*args: str) -> str:
    """Runs a command; returns what it prints, or raises its error."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            COMMAND(list(args), prog_name="treepack")
        except SystemExit as ended:
            if ended.code:
                raise treepack.TreepackError(output.getvalue()) from None
    return output.getvalue()


def save_mapped(case: Case) -> Leaves:
    """Saves what was loaded in another layout, and loads that in the layout before."""
    path, mapping = case.folder / "mapped", {"a/w": ("moved.w", "x y -> y x"), "z": "moved.z"}
    treepack.save(path, treepack.load(case.argument, **case.options), mapping=mapping)
    return leaves_of(treepack.load(path, mapping=mapping))


def info(case: Case) -> None:
    summary = json.loads(command("info", "--json", str(case.argument)))
    assert summary["leaves"] == len(leaves_of(case.tree)), summary


def link(case: Case) -> Leaves:
    """Saves what was loaded as two steps of a run, the second with links to the first."""
    tree = treepack.load(case.argument, **case.options)
    folder = tempfile.mkdtemp(dir=case.folder.parent)
    run = treepack.Series(folder, unchanged="link")
    for step in (1, 2):
        run.save(step, tree)
    restored = treepack.Series(folder).resume()
    assert restored is not None
    return leaves_of(restored[1])


def convert(case: Case) -> Leaves:
    target = case.folder / "converted"
    command("convert", str(case.argument), str(target))
    return leaves_of(treepack.load(target))


def ls(case: Case) -> None:
    assert "float32[40,50]" in command("ls", str(case.argument))


def salvage(case: Case) -> Leaves:
    with opened(case, salvage=True) as file:
        unverified = {*file.unverified}
        leaves = [leaf for leaf in file.leaves() if leaf[0] not in unverified]
        return {tuple(path.split("/")): plain(leaf) for path, leaf in leaves}


def base(case: Case) -> Leaves:
    patch = case.folder / "patch"
    treepack.save(patch, {**case.tree, "z": case.tree["z"] + 1}, base=case.argument)
    loaded = treepack.load(patch, base=case.argument)
    return leaves_of({**loaded, "z": loaded["z"] - 1})


def save_over(case: Case) -> Leaves:
    case.form.write(case.argument, case.tree)
    return leaves_of(treepack.load(case.entry))


def save_loaded(case: Case) -> Leaves:
    treepack.save(case.folder / "again", treepack.load(case.argument, **case.options))
    return leaves_of(treepack.load(case.folder / "again"))


def resume(case: Case) -> Leaves:
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a damaged step
        restored = treepack.Series(case.argument).resume()
    if restored is None:
        raise treepack.CorruptionError("no step is intact")
    return leaves_of(restored[1])


def subscribe(case: Case) -> Leaves:
    return leaves_of(treepack.Subscriber(case.argument).latest()[1])


PATHS = frozenset({"path"})
READ = frozenset({"path", "URL", "data", "file object"})
ANY = READ | {"open"}

VERBS: dict[str, Verb] = {
    "load": Verb(load, READ),
    "load, verified": Verb(load_verified, READ, verifies=True),
    "load, expecting a digest": Verb(load_expected, READ, verifies=True),
    "load, mapped": Verb(load_mapped, READ, is_partial=True),
    "load into a template": Verb(load_template, READ),
    "load a selection": Verb(load_selected, READ, is_partial=True),
    "open": Verb(open_all, ANY, is_partial=True),
    "open, mapped": Verb(open_mapped, READ, is_partial=True),
    "open and slice": Verb(open_slice, ANY, is_partial=True),
    "open, salvaging": Verb(salvage, READ, verifies=True, is_partial=True),
    "abstract": Verb(abstract, READ, is_partial=True),
    "verify": Verb(verify, READ, verifies=True, options=frozenset()),
    "diff": Verb(diff, ANY, is_partial=True),
    "digest": Verb(digest, ANY, is_partial=True),
    "read_metadata": Verb(read_metadata, READ, is_partial=True),
    "is_checkpoint": Verb(is_checkpoint, READ, options=frozenset()),
    "treepack convert": Verb(convert, PATHS, writes=True, options=frozenset()),
    "treepack ls": Verb(ls, PATHS, options=frozenset()),
    "treepack info": Verb(info, PATHS, options=frozenset()),
    "base of a patch": Verb(base, ANY - {"file object"}, writes=True, options=frozenset()),
    "save over it": Verb(save_over, PATHS, writes=True, options=frozenset(), is_of_home=True),
    "save what was loaded": Verb(save_loaded, READ, writes=True),
    "save what was loaded, mapped": Verb(save_mapped, READ, writes=True),
    "link what was loaded": Verb(link, READ, writes=True),
    "Series.resume": Verb(
        resume,
        PATHS,
        verifies=True,
        options=frozenset(),
        forms=frozenset({"step", "linked step"}),
        is_of_home=True,
    ),
    "Subscriber.latest": Verb(
        subscribe,
        PATHS,
        verifies=True,
        options=frozenset(),
        forms=frozenset({"version"}),
        is_of_home=True,
    ),
}

VERBS = {name: each._replace(name=name) for name, each in VERBS.items()}
