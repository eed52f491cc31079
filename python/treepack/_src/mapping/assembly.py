"""The boxes of sources that a box of a result needs, and how they lie in it.

All axes of a rule span a space, in which the result and each source are boxes. A range of a
composed dimension is a few boxes of its axes; in each source, they are ranges of its dimensions
again, or are split until they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from treepack._src.arrays.deferred import boxes_of


class Part(NamedTuple):
    """The position of an array in the space of a rule.

    Attributes:
      groups: The numbers of the axes of each dimension.
      cover: The indices of each axis that it has.
    """

    groups: tuple[tuple[int, ...], ...]
    cover: tuple[range, ...]

    @property
    def lens(self) -> list[tuple[int, ...]]:
        return [tuple(len(self.cover[axis]) for axis in group) for group in self.groups]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(math.prod, self.lens))

    @property
    def order(self) -> list[int]:
        return [axis for group in self.groups for axis in group]


class Piece(NamedTuple):
    """A part that a result takes from a source.

    Attributes:
      ranges: The indices of each axis of the source, in the order of its dimensions.
      target: A view of the result, with these axes.
    """

    source: int
    ranges: tuple[range, ...]
    target: np.ndarray


class Assembly(NamedTuple):
    """An array of one side, and its sources on the other side.

    Attributes:
      stacked: The axes that count sources, with their numbers.
      parts: The position of each kind of source.
      paths: The paths of the sources, by `stacked`, then by kind.
    """

    result: Part
    stacked: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]
    paths: tuple[str, ...]

    def kind(self, source: int) -> Part:
        return self.parts[source % len(self.parts)]

    def pieces(self, box: Sequence[range], target: np.ndarray) -> Iterator[Piece]:
        """Padding yields nothing."""
        dims = [[*_split(lens, part)] for lens, part in zip(self.result.lens, box, strict=True)]
        order = self.result.order
        for combination in itertools.product(*dims):
            within = [*self.result.cover]
            for group, (inner, _) in zip(self.result.groups, combination, strict=True):
                for axis, part in zip(group, inner, strict=True):
                    start = self.result.cover[axis].start
                    within[axis] = range(part.start + start, part.stop + start, part.step)
            index: tuple[Any, ...] = (*(place for _, place in combination), ...)
            view = target[index]
            view = view.reshape([len(within[axis]) for axis in order])
            # Axes that the result lacks have one index here.
            missing = [axis for axis in range(len(within)) if axis not in order]
            view = np.expand_dims(view, tuple(range(len(order), len(order) + len(missing))))
            yield from self._shared(within, view, [*order, *missing])

    def _shared(self, within: list[range], view: np.ndarray, order: list[int]) -> Iterator[Piece]:
        counts = [count for _, count in self.stacked]
        stacked = [axis for axis, _ in self.stacked]
        for kind, part in enumerate(self.parts):
            index: list[Any] = [slice(None)] * len(order)
            inside = [*within]
            for at, axis in enumerate(order):
                if axis not in stacked:
                    inside[axis], index[at] = overlap(within[axis], part.cover[axis])
            if not all(map(len, inside)):
                continue
            rest = [axis for axis in order if axis not in stacked]
            turned = [rest.index(axis) for axis in part.order]
            others = [at for at in range(len(rest)) if at not in turned]  # of one index
            for numbers in itertools.product(*(enumerate(within[axis]) for axis in stacked)):
                source = 0
                for axis, count, (at, number) in zip(stacked, counts, numbers, strict=True):
                    source = source * count + number
                    index[order.index(axis)] = at
                place = view[(*index, ...)].transpose(*turned, *others)
                place = place.reshape([len(inside[axis]) for axis in part.order])
                ranges = tuple(inside[axis] for axis in part.order)
                yield Piece(source * len(self.parts) + kind, ranges, place)


def _split(lens: tuple[int, ...], part: range) -> Iterator[tuple[tuple[range, ...], slice]]:
    spans = [(part.start, part.stop)] if part.step == 1 else [(at, at + 1) for at in part]
    wide = [axis for axis, size in enumerate(lens) if size > 1]
    if part.step > 1 and len(part) > 1 and len(wide) == 1:
        yield tuple(part if axis in wide else range(1) for axis in range(len(lens))), slice(None)
        return
    at = 0
    for start, stop in spans:
        for box in boxes_of(lens, start, stop):
            size = math.prod(map(len, box))
            yield box, slice(at, at + size)
            at += size


def overlap(part: range, cover: range) -> tuple[range, slice]:
    first = max(0, -(-(cover.start - part.start) // part.step))
    last = max(first, min(len(part), -(-(cover.stop - part.start) // part.step)))
    there = part[first:last]
    return range(there.start - cover.start, there.stop - cover.start, part.step), slice(first, last)


def windows(
    piece: Piece, part: Part, itemsize: int, most: int, *, in_place: bool
) -> Iterator[tuple[tuple[range, ...], np.ndarray]]:
    """Splits a piece into boxes of its source of at most `most` bytes, with their places.

    With `in_place`, the source is in memory, and boxes of its axes are enough.
    """
    ranges, target = piece.ranges, piece.target
    nbytes = math.prod(map(len, ranges)) * itemsize
    wide = [axis for axis, part_of_it in enumerate(ranges) if len(part_of_it) > 1]
    count = 0
    if nbytes > most and wide:
        axis = wide[0]
        count = max(1, most * len(ranges[axis]) // nbytes)
    elif not in_place and (uneven := _uneven(part, ranges)) is not None:
        axis, count = uneven, 1
    if not count:
        yield ranges, target
        return
    inside = np.moveaxis(target, axis, 0)
    for start in range(0, len(ranges[axis]), count):
        at = slice(start, start + count)
        split = (*ranges[:axis], ranges[axis][at], *ranges[axis + 1 :])
        place = np.moveaxis(inside[at], 0, axis)
        yield from windows(
            Piece(piece.source, split, place), part, itemsize, most, in_place=in_place
        )


def _uneven(part: Part, ranges: tuple[range, ...]) -> int | None:
    """Returns the axis to split because a dimension has no range with these indices."""
    at = 0
    for lens in part.lens:
        inner = ranges[at : at + len(lens)]
        if merged(inner, lens) is None:
            return next(at + axis for axis, each in enumerate(inner) if len(each) > 1)
        at += len(lens)
    return None


def merged(ranges: Sequence[range], lens: Sequence[int]) -> range | None:
    start, step, count, stride = 0, 1, 1, 1
    for part, size in zip(reversed(ranges), reversed(lens), strict=True):
        if len(part) > 1:
            if count == 1:
                step = part.step * stride
            elif part.step * stride != step * count:
                return None
            count *= len(part)
        start += part.start * stride
        stride *= size
    return range(start, start + count * step, step)


def box_of(part: Part, ranges: Sequence[range]) -> list[range]:
    box, at = [], 0
    for lens in part.lens:
        indices = merged(ranges[at : at + len(lens)], lens)
        assert indices is not None
        box.append(indices)
        at += len(lens)
    return box


def joined(target: np.ndarray, part: Part) -> np.ndarray | None:
    at, shape = 0, []
    for lens in part.lens:
        sizes = target.shape[at : at + len(lens)]
        strides = target.strides[at : at + len(lens)]
        wide = [axis for axis, size in enumerate(sizes) if size > 1]
        for axis, inner in itertools.pairwise(wide):
            if strides[axis] != strides[inner] * sizes[inner]:
                return None
        shape.append(math.prod(sizes))
        at += len(lens)
    return target.reshape(shape)
