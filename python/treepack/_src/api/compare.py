from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.advice import Hinting, advised
from treepack._src.api.bytes import dumps
from treepack._src.api.digest import check_is_one
from treepack._src.checkpoint.file import Tree, open
from treepack._src.leaves.prng import Key
from treepack._src.mapping.leaves import Leaf
from treepack._src.options import Static, StorageOptions, check
from treepack._src.paths import PathBudget
from treepack._src.printable import MOST_ROWS, count_text, kind_text, path_end, printable
from treepack._src.readers.reader import LazyArray
from treepack._src.readers.statistics import pairs
from treepack._src.storage.address import Address
from treepack._src.storage.content import is_source
from treepack._src.storage.fetch import fetching_arrays
from treepack.errors import TreepackError


class Difference(NamedTuple):
    """A difference between two checkpoints; see `diff`.

    Attributes:
      path: The path of the leaf, container, or static field.
      kind: `"only in the first"`, `"only in the second"`, `"shape"`, `"dtype"`, `"values"` of
        arrays, `"value"` of other leaves, or `"static"` (static data, types of containers).
      text: A description.
    """

    path: str
    kind: str
    text: str


@dataclasses.dataclass
class Change:
    """The change of a module between two files; norms are Euclidean.

    Attributes:
      arrays: The number of arrays of equal shape in both.
      norm: The norm of the first version.
      other_norm: The norm of the second one.
      change: The norm of their difference.
      largest: The largest absolute difference of two elements.
      nan: The number of NaNs in the first version.
      other_nan: The number of NaNs in the second one.
    """

    arrays: int = 0
    norm: float = 0.0
    other_norm: float = 0.0
    change: float = 0.0
    largest: float = 0.0
    nan: int = 0
    other_nan: int = 0

    def add(self, one: LazyArray, other: LazyArray) -> None:
        """Adds two arrays of the same shape; norms and differences leave out NaNs."""
        self.arrays += 1
        for left, right, apart in pairs(one, other):
            nans = np.isnan(left), np.isnan(right)
            self.nan += int(nans[0].sum())
            self.other_nan += int(nans[1].sum())
            left, right = np.where(nans[0], 0, left), np.where(nans[1], 0, right)
            apart[nans[0] | nans[1]] = 0
            self.norm = math.hypot(self.norm, float(np.linalg.norm(left)))
            self.other_norm = math.hypot(self.other_norm, float(np.linalg.norm(right)))
            self.change = math.hypot(self.change, float(np.linalg.norm(apart)))
            self.largest = max(self.largest, float(apart.max(initial=0.0)))


class Differences(Hinting, list[Difference]):
    """The differences between two checkpoints, the result of `diff`; empty if they are equal.

    Attributes:
      leaves: The number of compared leaves.
      modules: With `stats=True`, the changes of the modules, the containers of arrays, by path.
    """

    leaves: int = 0
    modules: Mapping[str, Change] = {}  # replaced, not changed

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise TypeError(f"{index!r} is no index: use {{it.path: it for it in differences}}")
        return list.__getitem__(self, index)

    def __repr__(self) -> str:
        rows = map(_row, self[:MOST_ROWS])
        more = [f"  and {len(self) - MOST_ROWS} more"] * (len(self) > MOST_ROWS)
        static = sum(difference.kind == "static" for difference in self)
        leaves = len(self) - static
        verb = "differs" if 1 in (leaves, self.leaves) else "differ"
        head = f"{leaves} of {count_text(self.leaves)} {verb}"
        head += f", and {static} static value{'s' * (static != 1)}" if static else ""
        return "\n".join([head, *rows, *more])


def _row(difference: Difference) -> str:
    text = printable(f"{difference.kind}, {difference.text}")
    return f"  {path_end(printable(difference.path), max(114 - len(text), 20))}: {text}"


@advised
def diff(
    one: Any,
    other: Any,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    stats: bool = False,
    mapping: Any = None,
    max_size: int | None = None,
    static: Static = "skip-code",
    storage_options: StorageOptions = None,
) -> Differences:
    """Compares names, shapes, dtypes, values and static data of two checkpoints or trees.

    Reads arrays a block at a time, and compares numbers: 0.0 equals -0.0, and NaN equals NaN. Code
    in static data is not compared; types of containers, such as list and tuple, are compared where
    both sides record them. Names with dots match those of a file that has names, as of safetensors.

    Args:
      one: Anything that `open` takes, an open `File` or a `Tree` of one, or a tree.
      other: Likewise.
      rtol: The relative tolerance for numbers: an element counts if it differs by more than
        `atol + rtol * max(abs(one), abs(other))`.
      atol: The absolute tolerance for numbers.
      stats: Whether to compute norms, changes and NaNs of each module, as `modules`.
      mapping: A `Mapping`, or its rules, by which `one` is read, as a tree of the layout of
        `other`.
      max_size: The maximum decompressed bytes of each; see `load`.
      static: See `save`; for trees.
      storage_options: For URLs; see `save`.

    Returns:
      The differences, each with `path`, `kind` and `text`.

    Examples:
      >>> import numpy as np, treepack
      >>> treepack.diff({"w": np.zeros(3), "n": 1}, {"w": np.array([0, 0, 0.5]), "n": 1})
      1 of 2 leaves differs
        w: values, 1 element, by 0.5 at most, relative 1
    """
    check("rtol", rtol)
    check("atol", atol)
    check("stats", stats)
    one, other = (Address.further(each, storage_options) for each in (one, other))
    if storage_options is not None and not any(map(_is_remote, (one, other))):
        Address.or_data(one, storage_options)  # an error
    with _opened(one, max_size, static) as left, _opened(other, max_size, static) as right:
        theirs = dict(right.leaves())
        differences = Differences()
        skipped: set[str] = set()
        if mapping is not None:
            original = left
            wanted = {path: Leaf.of(leaf) for path, leaf in theirs.items()}
            try:
                left = left._in_layout(mapping, wanted)
            except TreepackError as error:
                error.add_note("treepack: mapping= is the layout of the first one: pass it first")
                raise
            reader: Any = left._at().reader
            skipped = reader.skipped()
            for path in reader.unexpected():  # another leaf has its path
                unused = f"{_kind(original[path])}, which no rule takes"
                differences.append(Difference(path, "only in the first", unused))
        ours = {path: leaf for path, leaf in left.leaves() if path not in skipped}
        ours = _by_names(ours, right)
        theirs = _by_names(theirs, left)
        paths = dict.fromkeys([*ours, *theirs])
        both = [(path, ours.get(path, _NOTHING), theirs.get(path, _NOTHING)) for path in paths]
        with fetching_arrays(each for _, *pair in both if _are_compared(*pair) for each in pair):
            for path, mine, their in both:
                if _is_empty(path, mine, left, right) or _is_empty(path, their, right, left):
                    continue
                if (text := _difference(mine, their, rtol, atol)) is not None:
                    differences.append(Difference(path, *text))
        differences.leaves = len(paths)
        differences.extend(_static(left, right))
        if stats:
            differences.modules = _changes(ours, theirs)
    return differences


def _is_empty(path: str, leaf: Any, file: Tree, other: Tree) -> bool:
    """Whether `None` stands for a node without leaves, as of Orbax."""
    is_none = leaf is None and not file._at().reader.has_types
    return is_none and path in other and other.info(path).leaves == 0


def _by_names(leaves: dict[str, Any], file: Tree) -> dict[str, Any]:
    """Gives leaves of a flat dict the paths of their names in a file."""
    separator = file._at().reader.separator
    if not separator:
        return leaves
    names = {separator.join(_paths.parts(path)): path for path, _ in file.leaves()}
    return {
        names.get(separator.join(_paths.parts(path)), path): leaf for path, leaf in leaves.items()
    }


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Change]:
    by_module: dict[str, Change] = {}
    alike: dict[str, tuple[LazyArray, LazyArray]] = {}
    for path, array in one.items():
        match: Any = other.get(path)
        if _are_compared(array, match) and all(
            _dtypes.has_numbers(it.dtype) for it in (array, match)
        ):
            alike[path] = array, match
    with fetching_arrays(each for pair in alike.values() for each in pair):
        for path, pair in alike.items():
            module = _paths.text(_paths.parts(path)[:-1])
            by_module.setdefault(module, Change()).add(*pair)
    return by_module


def _static(one: Tree, other: Tree) -> Iterator[Difference]:
    (reader, value, _), (other_reader, other_value, _) = one._at(), other._at()
    for opened in (reader, other_reader):
        if not opened.has_types or (opened.salvages and opened.damaged_record() is not None):
            return
    catalog, budget = reader.catalog, PathBudget()
    for node, field, *both in catalog.static_differences(value, other_reader.catalog, other_value):
        path = catalog.path_of(node, value)
        path = budget.text(_paths.join(path, field) if field else path)
        yield Difference(path, "static", " and ".join(both))


def _is_remote(source: Any) -> bool:
    return isinstance(source, Address) and not source.is_local


@contextlib.contextmanager
def _opened(source: Any, max_size: int | None, static: Static) -> Iterator[Tree]:
    if isinstance(source, Tree):
        yield source
        return
    if not is_source(source):
        check_is_one(source)
        source = dumps(source, static=static)
    with open(source, max_size=max_size) as file:
        yield file


_NOTHING = object()


def _are_compared(left: Any, right: Any) -> bool:
    are_arrays = isinstance(left, LazyArray) and isinstance(right, LazyArray)
    return are_arrays and left.shape == right.shape


def _difference(left: Any, right: Any, rtol: float, atol: float) -> tuple[str, str] | None:
    if left is _NOTHING:
        return "only in the second", _kind(right)
    if right is _NOTHING:
        return "only in the first", _kind(left)
    if isinstance(left, LazyArray) and isinstance(right, LazyArray):
        if left.shape != right.shape:
            return "shape", f"{_kind(left)} and {_kind(right)}"
        distance = compared(left, right, rtol, atol)
        names = _dtypes.shown(left.dtype), _dtypes.shown(right.dtype)
        if names[0] != names[1]:
            apart = "" if distance.elements == 0 else f", {_apart(distance)}"
            return "dtype", f"{names[0]} and {names[1]}{apart}"
        return None if distance.elements == 0 else ("values", _apart(distance))
    if type(left) is type(right) and (_equal(left, right) or _near(left, right, rtol, atol)):
        return None
    texts = [_text(left), _text(right)]
    if isinstance(left, LazyArray) != isinstance(right, LazyArray):
        texts = [
            text if isinstance(leaf, LazyArray) else f"{_kind(leaf)} {text}"
            for text, leaf in zip(texts, (left, right), strict=True)
        ]
    return "value", " and ".join(texts)


def _apart(distance: Apart) -> str:
    count = f"{distance.elements} element{'s' * (distance.elements != 1)}"
    if math.isinf(distance.absolute):
        return f"{count}, some of them NaN or infinite in one only"
    return f"{count}, by {distance.absolute:.3g} at most, relative {distance.relative:.3g}"


def _equal(left: Any, right: Any) -> bool:
    one, other = Key.of(left), Key.of(right)
    if one is not None and other is not None:
        return one.impl == other.impl and bool(np.array_equal(one.on_host(), other.on_host()))
    if isinstance(left, np.ndarray):  # read whole, since its header has no shape
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if isinstance(left, dict):  # a PRNG key that this process cannot make
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right or (left != left and right != right))  # NaN


def _near(left: Any, right: Any, rtol: float, atol: float) -> bool:
    if type(left) in (int, float, complex):
        with contextlib.suppress(OverflowError):  # of integers that no float can be
            distance = abs(left - right)
            most = atol + rtol * max(abs(left), abs(right))
            return math.isfinite(distance) and distance <= most
    return False


def _kind(leaf: Any) -> str:
    if isinstance(leaf, LazyArray):
        return kind_text(("array", _dtypes.shown(leaf.dtype), leaf.shape))
    key = Key.of(leaf)
    return type(leaf).__name__ if key is None else key.text


def _text(leaf: Any) -> str:
    if (key := Key.of(leaf)) is not None:
        return f"{key.text} {key.on_host().tolist()!s:.40}"
    return _kind(leaf) if isinstance(leaf, LazyArray) else f"{leaf!r:.40}"


class Apart(NamedTuple):
    absolute: float
    relative: float
    elements: int


def compared(one: LazyArray, other: LazyArray, rtol: float, atol: float) -> Apart:
    """Counts and measures the elements that differ by more than `atol + rtol * size`."""
    absolute = relative = 0.0
    count = 0
    for left, right, distance in pairs(one, other, all_blocks=False):
        size = np.maximum(np.abs(left), np.abs(right))
        with np.errstate(all="ignore"):
            differs = distance > atol + (rtol * size if rtol else 0)
            differs |= np.isinf(distance)
            if not differs.any():
                continue
            distance, size = distance[differs], size[differs]
            far = np.where(np.isinf(distance), np.inf, distance / size)
        count += distance.size
        absolute = max(absolute, float(distance.max()))
        relative = max(relative, float(far.max()))
    return Apart(absolute, relative, count)
