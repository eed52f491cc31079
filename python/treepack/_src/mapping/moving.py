"""Moves boxes of sources to their places in a box of the array that a rule makes.

box ──▶ pieces of sources ──▶ windows ──viewed or read──▶ moved, or computed
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.arrays.memory import copy
from treepack._src.mapping.assembly import Assembly, Part, box_of, joined, windows
from treepack._src.mapping.pointwise import apply
from treepack._src.mapping.rules import Rule
from treepack._src.storage.fetch import RemoteRange, fetching
from treepack._src.tasks import run
from treepack.errors import TreepackError

WINDOW_BYTES = 32 << 20
"""The most bytes that are read, or made contiguous, before they are moved."""

BLOCK_BYTES = 128 << 20
"""The approximate size of the blocks of rows in which an array is copied."""


class Source(NamedTuple):
    """Has `view`, `ahead` and `read_to`, as of `LazyArray`, and factors of its blocks."""

    array: Any
    scales: Callable[[], np.ndarray | None] = lambda: None


class Made(NamedTuple):
    """An array that a rule makes; `dtype` and `scales` are of its sources."""

    rule: Rule
    assembly: Assembly
    dtype: np.dtype[Any]
    scales: tuple[str, ...] = ()

    @property
    def tie(self) -> Any:
        rule = self.rule
        options = rule.scale, rule.add, rule.dtype, rule.block, tuple(rule.pad.items())
        return self.assembly, options, self.scales

    @staticmethod
    def names(*some: Made | str) -> list[str]:
        return [it if isinstance(it, str) else it.assembly.paths[0] for it in some]

    def fill(
        self,
        source: Callable[[int], Source],
        box: Sequence[range],
        target: np.ndarray,
        *,
        path: str,
        threads: int | None = None,
    ) -> None:
        if target.size == 0:
            return
        if self.rule.pad:
            target[...] = 0
        listed = [*self.steps(source, box, target)]
        with fetching(each for step in listed for each in step.ahead()):
            if self.rule.is_pointwise and _are_apart(listed):  # moves are no faster in threads
                run(
                    [functools.partial(step.run, path, 1) for step in listed],
                    core.thread_count(threads),
                )
                return
            for step in listed:
                step.run(path, threads)

    def assembled(
        self, source: Callable[[int], Source], *, path: str, empty: Any = np.empty
    ) -> np.ndarray:
        array: np.ndarray = empty(self.assembly.result.shape, self.dtype)
        self.fill(source, [range(size) for size in array.shape], array, path=path)
        return array

    def steps(
        self, source: Callable[[int], Source], box: Sequence[range], target: np.ndarray
    ) -> Iterator[Step]:
        most, itemsize = WINDOW_BYTES, self.dtype.itemsize
        for piece in self.assembly.pieces(box, target):
            one, part = source(piece.source), self.assembly.kind(piece.source)
            view = one.array.view()
            in_place = view is not None and self.rule.scales is None
            for ranges, place in windows(piece, part, itemsize, most, in_place=in_place):
                yield Step(self, one, part, view, ranges, place)


class Step(NamedTuple):
    made: Made
    source: Source
    part: Part
    view: np.ndarray | None
    ranges: tuple[range, ...]
    place: np.ndarray

    def ahead(self) -> Iterator[RemoteRange]:
        if self.view is None:
            yield from self.source.array.ahead(box_of(self.part, self.ranges))

    def run(self, path: str, threads: int | None) -> None:
        rule, place = self.made.rule, self.place
        shape = [*map(len, self.ranges)]
        if self.view is None:
            box = box_of(self.part, self.ranges)
            direct = None if rule.is_pointwise else joined(place, self.part)
            if direct is not None:
                self.source.array.read_to(box, direct, threads=threads)
                return
            read = np.empty([*map(len, box)], self.made.dtype)
            self.source.array.read_to(box, read, threads=threads)
            elements = read.reshape(shape)
        else:
            lens = [size for group in self.part.lens for size in group]
            index: tuple[Any, ...] = (
                *(slice(each.start, each.stop, each.step) for each in self.ranges),
                ...,
            )
            elements = self.view.reshape(lens)[index]
        if not rule.is_pointwise:
            copy(elements, place, threads=threads)
            return
        if rule.scales is not None:
            self._scale(elements, path, threads)
        elif rule.scale is not None or rule.add is not None:
            apply(elements, place, scale=rule.scale, add=rule.add, threads=threads)
            self._check(elements, path)
        else:
            result = place if place.flags.c_contiguous else np.empty(place.shape, place.dtype)
            remedy = (
                "or leave dtype= out of the rule: load(dtype=..., cast='overflow'), or a template"
            )
            _dtypes.cast(
                elements,
                result,
                path,
                remedy=f"{remedy} and cast='overflow', allow it",
                of_integers=f"leave dtype= out of the options; {rule.text}",
            )
            if result is not place:
                copy(result, place, threads=threads)

    def _check(self, elements: np.ndarray, path: str) -> None:
        rule, place = self.made.rule, self.place
        if rule.is_checked and rule.scale is not None:
            back = np.empty(elements.shape, elements.dtype)
            apply(place, back, scale=1 / rule.scale)
            is_nan = (back != back) & (elements != elements)
            if not np.all((back == elements) | is_nan):
                raise TreepackError(
                    f"at {path}: {rule.text}: scale= rounds elements, so that a round trip would "
                    "not be equal: pass inexact=True in the options of the rule to allow it"
                )
        self._check_range(elements, place, 1, path)

    def _check_range(
        self, elements: np.ndarray, result: np.ndarray, factor: float, path: str
    ) -> None:
        rule, dtype = self.made.rule, result.dtype
        most = _dtypes.largest(elements.dtype) * factor * abs(rule.scale or 1) + abs(rule.add or 0)
        if most <= _dtypes.largest(dtype) or _dtypes.all_finite(result):
            return
        if np.any(np.isfinite(elements) & ~np.isfinite(result)):
            cure = "pass dtype='float32' in the options of the rule"
            if rule.there.is_file:
                cure = "cast the array to float32 before it is saved"
            if dtype.itemsize > 2:
                cure = "pass a smaller scale=, or correct the scales"
            raise TreepackError(f"at {path}: {rule.text}: floats overflow {dtype}: {cure}")

    def _scale(self, elements: np.ndarray, path: str, threads: int | None) -> None:
        rule, scales, place = self.made.rule, self.source.scales(), self.place
        assert scales is not None
        assert rule.block is not None
        box = box_of(self.part, self.ranges)
        block = (*(1 for _ in box[2:]), *rule.block)
        sizes = zip(self.part.shape, block, strict=True)
        factors = scales.reshape([-(-size // each) for size, each in sizes])
        start = [part.start for part in box]
        if any(part.step > 1 and len(part) > 1 for part in box):
            blocks = [np.asarray(part) // each for part, each in zip(box, block, strict=True)]
            factors, block, start = factors[np.ix_(*blocks)], (1,) * len(box), [0] * len(box)
        direct = joined(place, self.part)
        result = np.empty([*map(len, box)], place.dtype) if direct is None else direct
        apply(
            elements.reshape(result.shape),
            result,
            scale=rule.scale,
            add=rule.add,
            scales=factors,
            block=block,
            start=start,
            threads=threads,
        )
        sizes_of_factors = np.abs(scales.astype(np.float32))
        factor = np.max(sizes_of_factors, where=np.isfinite(sizes_of_factors), initial=0)
        self._check_range(elements.reshape(result.shape), result, float(factor), path)
        if direct is None:
            copy(result.reshape(place.shape), place, threads=threads)


def _are_apart(listed: Sequence[Step]) -> bool:
    """Whether threads should take steps: small ones, each in memory of its own.

    While the core writes a place, nothing else may write between its elements.
    """
    sizes = [step.place.nbytes for step in listed]
    if len(sizes) < 2 or sum(sizes) < _SHARED_BYTES or max(sizes) >= _SHARED_BYTES:
        return False
    extents = sorted(np.lib.array_utils.byte_bounds(step.place) for step in listed)
    return all(one[1] <= other[0] for one, other in itertools.pairwise(extents))


# The size at which the core divides one step between threads.
_SHARED_BYTES = 4 << 20


class RowBlocks:
    """The elements of an array in C order, which are read in blocks of rows.

    A few elements of a transposed array lie in all of its source. So whole blocks are read, and
    dropped after their last element.
    """

    def __init__(
        self, read: Callable[[list[range]], np.ndarray], shape: Sequence[int], nbytes: int
    ):
        self._read, self._shape = read, shape
        self._row = math.prod(shape[1:])
        rows = max(1, BLOCK_BYTES * shape[0] // nbytes)
        self._rows, self._block = rows, rows * self._row
        # By the number of a block, its elements and how many of them are left to take.
        self._held: dict[int, tuple[np.ndarray, int]] = {}
        self._lock = threading.Lock()

    def take(self, start: int, stop: int) -> np.ndarray:
        parts = []
        while start < stop:
            number = start // self._block
            first, last = start - number * self._block, stop - number * self._block
            parts.append(self._from(number, first, min(last, self._block)))
            start += parts[-1].size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _from(self, number: int, start: int, stop: int) -> np.ndarray:
        with self._lock:
            if number not in self._held:
                while len(self._held) > 1:  # threads take neighbours at the same time
                    del self._held[next(iter(self._held))]
                rows = range(number * self._rows, min((number + 1) * self._rows, self._shape[0]))
                block = self._read([rows, *map(range, self._shape[1:])]).reshape(-1)
                self._held[number] = block, block.size
            block, left = self._held[number]
            part = block[start:stop]
            self._held[number] = block, left - part.size
            if left <= part.size:
                del self._held[number]
        return part
