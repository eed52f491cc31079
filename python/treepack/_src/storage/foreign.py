from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable

import treepack._core as core
from treepack._src import formats
from treepack._src.formats import Look
from treepack._src.options import Buffer
from treepack._src.printable import printable
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened
from treepack.errors import NoManifestError, TreepackError

# The maximum number of names in an error.
_MOST_NAMES = 5

# Names of checkpoints of flax and of `Series` by default; groups: the step.
_STEP = re.compile(r"(?:checkpoint|step)_(\d+)")


def substitute(data: core.Content | Buffer) -> str | None:
    """Describes a git-LFS pointer, or the page of a failed download, in place of a file."""
    text = core.described(data if isinstance(data, core.Content) else core.Content.lent(data))
    return text if text and text.startswith(_SUBSTITUTES) else None


# The descriptions of `src/foreign/sniff.rs` begin so.
_SUBSTITUTES = ("a git-LFS pointer", "an HTML page", "an XML document")


# The maximum number of names to search for a checkpoint.
_MOST_TRIED = 20


def _contained(path: Address, manifest: str, look: Look) -> Address | None:
    names = look(path)
    steps = _steps(names)
    for step in sorted(steps, reverse=True)[:_MOST_TRIED]:
        if _is_checkpoint(place := path / steps[step], manifest, look):
            return place
    # The item of a step of Orbax, or of the last step.
    inside = [f"{name}/{item}" for name in names[-1:] for item in look(path / name)]
    for name in [*names[:_MOST_TRIED], *inside[:_MOST_TRIED]]:
        if manifest in look(path / name):
            return path / name
    return None


def _below(path: Address, manifest: str, look: Look) -> Address | None:
    inner = [path / name for name in look(path)[:_MOST_TRIED]]
    below = [place / name for place in inner for name in look(place)]
    places = [*inner, *below[:_MOST_TRIED]]
    return next((place for place in places if _is_checkpoint(place, manifest, look)), None)


def _is_checkpoint(path: Address, manifest: str, look: Look) -> bool:
    try:
        if names := look(path):
            opening = formats.in_directory(path, names, lambda: False)
            return manifest in names or opening is not None
        if path.is_special():
            return False
        if (is_tree := Opened.raw(path).begins_as_tree()) is not None:
            return is_tree
        content = Opened.of(path, join=False).content
        if core.is_patch(content) or formats.of_content(content) is not None:
            return True
        return core.Catalog.open(content, salvage=False).children(0) is not None
    except (TreepackError, OSError):
        return False


def _steps(names: list[str]) -> dict[int, str]:
    return {int(match[1]): name for name in names if (match := _STEP.fullmatch(name))}


class WithoutManifest:
    """A directory that has no manifest."""

    def __init__(self, path: Address, manifest: str):
        self._path, self._manifest = path, manifest
        self.names = names = sorted(entry.name for entry in path.listed() or ())
        # Each directory is listed once.
        self._look: Look = functools.cache(lambda at: names if at == path else at.names())
        self._inside = functools.cache(functools.partial(_contained, path, manifest, self._look))

    def has_checkpoint(self) -> bool:
        return self._inside() is not None

    def error(self) -> NoManifestError:
        text = _directory_text(self._path, self._inside(), self._manifest, self._look)
        error = NoManifestError(f"the directory has no {self._manifest}: {text}")
        error.names, error.is_above = self.names, self.has_checkpoint()
        return error


def _directory_text(path: Address, inside: Address | None, manifest: str, look: Look) -> str:
    names = look(path)
    if inside is not None:
        paths = {step: path / name for step, name in _steps(names).items()}
        newest = max((step for step in paths if paths[step] == inside), default=-1)
        steps = ", ".join([str(step) for step in sorted(paths) if step <= newest][-_MOST_NAMES:])
        several = "s" * ("," in steps)
        text = f"is a series with the step{several} {steps}" if steps else "contains a checkpoint"
        return f"it {text}: load {inside.shown!r}{'' if steps else _run_of(inside, names)}"
    for fits, text in _KNOWN:
        if found := sorted(filter(fits, names)):
            return text.format(printable(found[0]))
    for format in formats.known():
        if (described := format.describe(path, look)) is not None:
            return described
    if not names:
        return (
            "it is empty, may not be listed, or its save has not finished: pass the path of a "
            "save, or of a file, or wait until this save returns"
        )
    if (below := _below(path, manifest, look)) is not None:
        return f"it contains a checkpoint: load {below.shown!r}{_run_of(below, names)}"
    more = ", …" if len(names) > _MOST_NAMES else ""
    listed = ", ".join(map(printable, names[:_MOST_NAMES]))
    return f"it is not a checkpoint, or its save has not finished. It contains {listed}{more}"


def _run_of(checkpoint: Address, names: list[str]) -> str:
    name = checkpoint.shown.rpartition("/")[2]
    prefix = name.rstrip("0123456789")
    if name not in names or prefix in ("", name):
        return ""
    return f", or list its run by `treepack ls` with --prefix {shlex.quote(prefix)}"


# Names, and descriptions of directories that contain one; the first match counts. Names of Hugging
# Face are from `utils/constants.py` of huggingface_hub, SavedModel and checkpoint names from
# https://www.tensorflow.org/guide, names of Zarr from https://zarr-specs.readthedocs.io.
_KNOWN: list[tuple[Callable[[str], object], str]] = [
    (
        re.compile(r"flax_model.*\.msgpack").fullmatch,
        "it looks like a model of Hugging Face in flax: load its files flax_model*.msgpack",
    ),
    (
        re.compile(r"pytorch_model.*\.bin|.*\.(pt|pth)").fullmatch,
        "it looks like a checkpoint of PyTorch: load it with torch, and save its tensors as arrays "
        "of NumPy",
    ),
    (
        re.compile(r"saved_model\.pb|.*\.ckpt.*\.index|.*\.data-\d+-of-\d+").fullmatch,
        "it looks like a checkpoint of TensorFlow: read it with tf.train.load_checkpoint, and save "
        "its arrays",
    ),
    (
        frozenset((".zarray", ".zgroup", "zarr.json")).__contains__,
        "it looks like a directory of Zarr: read it with zarr, and save its arrays",
    ),
    (
        re.compile(r"version_\d+-[0-9a-f]{16}\.(treepack|patch)").fullmatch,
        "it has the versions of a treepack.Publisher: treepack.Subscriber(directory).latest() "
        "loads the newest",
    ),
    (
        re.compile(r"[0-9a-f]{8}-\d{5}\.treepack").fullmatch,
        "it has files of a checkpoint whose manifest is missing: copy that too, or read its leaves "
        "with treepack.open(directory, salvage=True) or `treepack salvage`",
    ),
    (
        re.compile(r"(?!lease\.treepack$).*\.(treepack|msgpack)").fullmatch,
        "it is not a checkpoint, but contains files that may be: load one of them, such as {}",
    ),
]
