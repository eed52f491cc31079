"""Assembles arrays from several others in loads, and splits them in saves: `stack`, `unstack`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from treepack._src import paths as _paths
from treepack._src.checkpoint.boxed import BoxedArray, aligned
from treepack._src.checkpoint.reader import LazyArray, Place
from treepack._src.checkpoint.select import (
    filled,
    leaf_at,
    matches,
    similar,
    wildcards_of,
    with_escapes,
)
from treepack._src.printable import printable
from treepack.errors import TreepackError

Axes = bool | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The leaves of a file that become one leaf of a tree, or into which it is split.

    See `stack`, `unstack` and `transpose`.
    """

    pattern: str
    axis: int | None = None
    axes: Axes = False
    name: str = dataclasses.field(default="transpose", compare=False)

    def __str__(self) -> str:
        return f"{self.name}({self.pattern!r})"


def stack(pattern: str, *, axis: int = 0, transpose: Axes = False) -> Source:
    """Stacks the arrays of several layers, as the source of one leaf in `load(rename=)`.

    Each array is read into its place in the result, or each device reads its part of each array;
    each process reads for its own devices, also with `replicas="broadcast"`. A cast goes in blocks.

    Args:
      pattern: The paths of the arrays in the file, with a `*` for the number of the layer. The
        arrays have one shape and dtype, and are stacked in the order of their numbers. The path in
        the tree has the same wildcards except the last: `{"layers/*/w": stack("layers/*/moe/*/w")}`
        stacks the experts of each layer.
      axis: The axis of the result that counts the layers.
      transpose: Whether to swap the axes of each matrix, as PyTorch's `[out, in]` becomes flax's
        `[in, out]`; or the order of the axes of each array, as `numpy.transpose` takes it, which
        more than two dimensions need.

    Examples:
      >>> import numpy as np, treepack
      >>> data = treepack.dumps({"layers": [{"w": np.full((3, 2), at)} for at in range(4)]})
      >>> template = {"kernel": np.zeros((4, 2, 3), int)}
      >>> rename = {"kernel": treepack.stack("layers/*/w", transpose=True)}
      >>> treepack.load(data, template, rename=rename)["kernel"][:, 0, 0]
      array([0, 1, 2, 3])
    """
    return _of_layers("stack", pattern, axis, transpose)


def unstack(pattern: str, *, axis: int = 0, transpose: Axes = False) -> Source:
    """Splits a leaf into the arrays of several layers in `save(rename=)`: the inverse of `stack`.

    Its result is equal to that of `stack`, so that the sources of `load(rename=)` can be passed to
    `save(rename=)`. Each layer is copied when it is written.

    Args:
      pattern: As for `stack`.
      axis: The axis of the leaf that counts the layers.
      transpose: As for `stack`; each layer is transposed back.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
      >>> rename = {"kernel": treepack.unstack("layers/*/w", transpose=True)}
      >>> treepack.save(path, {"kernel": np.zeros((4, 2, 3))}, rename=rename)
      >>> with treepack.open(path) as file:
      ...     file["layers/3/w"].shape
      (3, 2)
    """
    return _of_layers("unstack", pattern, axis, transpose)


def _of_layers(name: str, pattern: str, axis: int, transpose: Axes) -> Source:
    if not isinstance(pattern, str) or wildcards_of(pattern)[-1:] != ["*"]:
        raise ValueError(
            f"{name} needs a pattern with one *, for the number of the layer, after any other "
            f"wildcards, such as 'layers/*/w', got {pattern!r:.100}"
        )
    if not hasattr(axis, "__index__"):
        raise TypeError(f"axis must be an integer, such as 0, got {axis!r:.100}")
    if not isinstance(transpose, bool):
        _check_axes("transpose", transpose)
    return Source(pattern, axis, transpose, name)


def transpose(path: str, axes: tuple[int, ...] | None = None) -> Source:
    """Transposes an array, as the source of a leaf in `load(rename=)`.

    In `save(rename=)`, it transposes the leaf back, and `path` is its new name.

    Args:
      path: The path of the array in the file. With wildcards, which the path in the tree has as
        well, it transposes each match: `{"layers/*/kernel": transpose("blocks/*/weight")}`.
      axes: The order of its axes, as `numpy.transpose` takes it, such as `(2, 3, 1, 0)` for the
        filters of a convolution of PyTorch. Only those of a matrix are swapped by default.

    Examples:
      >>> import numpy as np, treepack
      >>> data = treepack.dumps({"lm_head": {"weight": np.zeros((5, 2))}})
      >>> rename = {"head": treepack.transpose("lm_head/weight")}
      >>> treepack.load(data, {"head": np.ones((2, 5))}, rename=rename)["head"].shape
      (2, 5)
    """
    if not isinstance(path, str):
        raise TypeError(
            "transpose takes the path of an array, in rename= of load or save, got "
            f"{type(path).__name__}: an array itself is transposed by numpy.transpose"
        )
    if axes is not None:
        _check_axes("axes", axes)
    return Source(path, None, True if axes is None else tuple(axes))


def _check_axes(name: str, axes: Any) -> None:
    """Raises a TypeError for an order of axes that is no tuple of ints."""
    if not isinstance(axes, Iterable) or not all(isinstance(axis, int) for axis in axes):
        raise TypeError(f"{name} must be a tuple of ints, such as (1, 0), got {axes!r:.100}")


def split(rename: Any) -> tuple[Any, dict[Any, Source]]:
    """Splits `rename=` into the names of leaves, and the sources by paths or patterns of the tree.

    Raises:
      TypeError: If a source is a key.
      ValueError: If a path has other wildcards than its source.
    """
    if not isinstance(rename, Mapping):
        return rename, {}
    for key, path in rename.items():
        if isinstance(key, Source):
            raise TypeError(f"rename= maps the path to the source: pass {{{path!r}: {key}}}")
    sources = {
        _paths.text(_paths.parts(path)) if isinstance(path, str) else path: source
        for path, source in rename.items()
        if isinstance(source, Source)
    }
    for path, source in sources.items():
        check_wildcards(path, source)
    names = {path: source for path, source in rename.items() if not isinstance(source, Source)}
    return (names or None), sources


def check_wildcards(path: Any, source: Source) -> None:
    """Checks that a path of the tree has the wildcards of its source, without the layer's.

    Raises:
      ValueError: If it has others.
    """
    theirs = wildcards_of(source.pattern)
    if source.axis is not None:
        theirs.pop()
    if wildcards_of(path) != theirs:
        but = (
            ", except its last, for the number of the layer: stack joins one level, as in "
            "{'layers/*/w': stack('layers/*/experts/*/w')}"
        )
        raise ValueError(
            f"{path!r} must have the same wildcards as {source}, in the same order"
            f"{'' if source.axis is None else but}"
        )


def resolve(
    path: Any, source: Source, paths: Collection[str]
) -> dict[str, tuple[Source, list[str]]]:
    """Returns the sources without wildcards, and the paths of their leaves in order.

    Args:
      path: The path, or pattern, in the tree.
      source: The source.
      paths: The paths of the file.

    Returns:
      The sources by their paths in the tree.

    Raises:
      TreepackError: If there are none, or a layer is missing.
    """
    layers: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for leaf, captured in matches(source.pattern, paths).items():
        layer = "0" if source.axis is None else captured.pop()
        if layer.isdecimal():  # of any number of digits
            layers.setdefault(tuple(captured), []).append((float(layer), leaf))
    if not layers:
        near = similar(source.pattern.replace("*", "0"), paths)
        if source.axis is not None:  # the number of a layer
            near = re.sub(r"(?<=['/])\d+(?=['/])", "*", near)
        if escaped := with_escapes(source.pattern, paths):
            near = f"; is it {escaped!r}?"
        if source.axis is None and matches(path, paths):
            near = (
                "; keys are paths of the tree: "
                f"is it {{{source.pattern!r}: {source.name}({path!r})}}?"
            )
        way = "; load stacks arrays, and save splits them" if source.name == "unstack" else ""
        raise TreepackError(f"{source} matches nothing in the file{near}{way}")
    resolved: dict[str, tuple[Source, list[str]]] = {}
    for texts, numbers in layers.items():
        numbers.sort()
        for at, (number, leaf) in enumerate(numbers):
            if number < at:
                raise TreepackError(f"{source}: {numbers[at - 1][1]} and {leaf} are the same layer")
            if number > at:
                named = filled(source.pattern, [*texts, str(at)])
                raise TreepackError(
                    f"{source}: the file lacks {named}, although it has layer {numbers[-1][0]:.0f}"
                    ": load without a template, and stack the layers that are there"
                )
        resolved[filled(path, texts)] = _filled_source(source, texts), [leaf for _, leaf in numbers]
    return resolved


def spread(path: Any, source: Source, leaves: Collection[str]) -> dict[str, Source]:
    """Returns the sources without wildcards of the leaves of a tree that a path matches."""
    return {leaf: _filled_source(source, texts) for leaf, texts in matches(path, leaves).items()}


def _filled_source(source: Source, wildcards: Iterable[str]) -> Source:
    """Replaces the wildcards of a source, without the layer's."""
    return dataclasses.replace(source, pattern=filled(source.pattern, [*wildcards, "*"]))


def axes_of(source: Source, ndim: int) -> tuple[int | None, tuple[int, ...]]:
    """Returns the axis of layers in the leaf, and the order of the axes of arrays in the file.

    Args:
      source: The source.
      ndim: The number of dimensions of an array in the file.

    Raises:
      TreepackError: If they do not fit.
    """
    axes = source.axes
    if axes is True and ndim > 2:
        option = "a second argument" if source.axis is None else "transpose="
        example = _EXAMPLES.get(ndim, (*range(ndim)[::-1],))
        raise TreepackError(
            f"{source}: expected a matrix, found an array of {ndim} dimensions: pass the order of "
            f"its axes as {option} of treepack.{source.name}, such as {example}, or in the shell "
            f"as --transpose PATH={','.join(map(str, example))}"
        )
    order = (*range(ndim),) if axes is False else (*range(ndim)[::-1],)
    if isinstance(axes, tuple):
        if sorted(axes) != [*range(ndim)]:
            raise TreepackError(f"{source}: expected a permutation of {ndim} axes, got {axes}")
        order = axes
    if source.axis is None:
        return None, order
    if not -ndim - 1 <= source.axis <= ndim:
        raise TreepackError(f"{source}: expected an axis from 0 to {ndim}, got {source.axis}")
    return source.axis % (ndim + 1), order


# From the filters of convolutions of PyTorch to those of flax.
_EXAMPLES = {3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}


def arrays_of(
    sources: Mapping[Any, Source], place: Place, paths: Collection[str], targets: Collection[str]
) -> tuple[dict[str, SourceArray], dict[str, str]]:
    """Returns the arrays of sources by their paths in the tree, and these by the paths of the file.

    Of sources with one path in the tree, the first counts.

    Args:
      sources: The sources by paths or patterns of the tree.
      place: The place of the file that is loaded.
      paths: The paths of its leaves.
      targets: The paths of the leaves of the target. Matches of wildcards may have others.

    Raises:
      TreepackError: If a source matches no leaf of the file, or reaches none of the target.
    """
    arrays: dict[str, SourceArray] = {}
    taken: dict[str, str] = {}
    for pattern, source in sources.items():
        resolved = {
            leaf_at(path, targets) or path: value
            for path, value in resolve(pattern, source, paths).items()
        }
        if not any(path in targets for path in resolved):
            path = next(iter(resolved))
            below = next((target for target in targets if target.startswith(f"{path}/")), None)
            near = similar(path, targets) if below is None else f"; is it {below!r}?"
            raise TreepackError(
                f"rename= has {source} for {printable(_paths.text(_paths.parts(pattern)))}, which "
                f"is not a leaf of the target{near}"
            )
        for path, (filled_source, leaves) in resolved.items():
            if path in targets and path not in arrays:
                arrays[path] = array_of(filled_source, place, leaves)
                taken.update(dict.fromkeys(leaves, path))
    return arrays, taken


def array_of(source: Source, place: Place, paths: Sequence[str]) -> SourceArray:
    """Returns the array of a source whose leaves have these paths.

    Raises:
      TreepackError: If a leaf is not an array, or has another shape or dtype than the first.
    """
    arrays: list[LazyArray] = []
    for path in paths:
        parts = _paths.parts(path)
        value = place.catalog.find(parts, place.value)
        array = None if value is None else place.reader.leaf(value, [*place.parts, *parts])
        if not isinstance(array, LazyArray):
            raise TreepackError(f"{source}: {path} is not an array")
        first = arrays[0] if arrays else array
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise TreepackError(
                f"{source}: expected {first.dtype}{[*first.shape]} at {path}, as at {paths[0]}, "
                f"found {array.dtype}{[*array.shape]}"
            )
        arrays.append(array)
    return SourceArray(source, arrays)


class SourceArray(BoxedArray):
    """An array that is read from the leaves of a source."""

    def __init__(self, source: Source, arrays: list[LazyArray]):
        first = arrays[0]
        self.source = source
        self.reader, self.value, self.parts = first.reader, first.value, first.parts
        self.dtype = first.dtype
        self._arrays = arrays
        ndim = len(first.shape)
        self._axis, self._axes = axes_of(source, ndim)
        shape = [first.shape[axis] for axis in self._axes]
        if self._axis is not None:
            shape.insert(self._axis, len(arrays))
        self.shape = tuple(shape)
        inner = self._axes.index(0) if ndim else 0
        self.outer = inner if self._axis is None else self._axis

    def _read(self, box: Sequence[range]) -> np.ndarray:
        """Returns the elements of a box, in memory that JAX on CPU can use in place."""
        elements = aligned(tuple(map(len, box)), self.dtype)
        self.read_to(box, elements)
        return elements

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        """Reads the elements of a box, each array to its place in the target."""
        for array, part, inside in self._parts(box, target):
            array.read_to(inside, part, threads=threads)

    def _parts(
        self, box: Sequence[range], result: np.ndarray
    ) -> Iterator[tuple[LazyArray, np.ndarray, list[range]]]:
        """Yields each array that a box needs, its place in the result, and its own box."""
        order = np.argsort(self._axes)
        if self._axis is None:
            yield self._arrays[0], result.transpose(order), [box[at] for at in order]
            return
        inner = [*box]
        layers = inner.pop(self._axis)
        for at, layer in enumerate(layers):
            target = np.moveaxis(result, self._axis, 0)[at]
            yield self._arrays[layer], target.transpose(order), [inner[axis] for axis in order]

    def compare(self) -> None:
        """Compares the arrays with their checksums."""
        for array in self._arrays:
            array.compare()
