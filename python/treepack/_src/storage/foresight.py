"""Predicts the next small reads of a file from previous ones.

Without an index, a scan reads the header of one leaf after another. Layers are alike, and so are
the distances between headers. A prediction only decides which bytes are prefetched.
"""

from __future__ import annotations

import itertools

# Distances that differ by less count as equal: keys differ in length between layers.
_ALIKE_BYTES = 256

# The number of bytes to fetch around a place, since such differences add up.
_AROUND_BYTES = 1 << 10

# The minimum number of bytes to read at a place, and the maximum to fetch ahead.
_LEAST_BYTES = 2 << 10
_MOST_BYTES = 64 << 10

# The number of equal distances in a row that make a prediction, and the number of remembered
# places.
_MOST_ALIKE = 32
_MOST_PLACES = 4096


class Foresight:
    def __init__(self, near: int):
        self._near = near
        self._starts: list[int] = []
        self._stops: list[int] = []

    def gap(self, start: int) -> int | None:
        if not self._starts or start < self._starts[-1]:
            return None
        return max(0, start - self._stops[-1])

    def note(self, start: int, stop: int) -> None:
        gap = self.gap(start)
        if gap is None:
            self._starts, self._stops = [start], [stop]
        elif gap <= self._near:
            self._stops[-1] = max(self._stops[-1], stop)
        else:
            self._starts.append(start)
            self._stops.append(stop)
            if len(self._starts) > _MOST_PLACES:
                del self._starts[: _MOST_PLACES // 2], self._stops[: _MOST_PLACES // 2]

    def ahead(self, count: int) -> list[tuple[int, int]]:
        starts, stops = self._starts, self._stops
        ways = [after - before for before, after in itertools.pairwise(starts)]
        if not ways:
            return []
        first = _repeats_from(ways)
        at, ranges = starts[-1], []
        for number in range(count):
            way = first + number % (len(ways) - first)
            at += ways[way]
            like = way + 1 if way + 1 < len(ways) else first  # the last place was just reached
            nbytes = stops[like] - starts[like]
            nbytes = min(max(nbytes, _LEAST_BYTES), _MOST_BYTES)
            ranges.append((at - _AROUND_BYTES, at + nbytes + _AROUND_BYTES))
        return ranges


def _repeats_from(ways: list[int]) -> int:
    last = len(ways) - 1
    index, longest = last, 0
    for at in range(last - 1, -1, -1):
        count = 0
        while count <= at and abs(ways[at - count] - ways[last - count]) < _ALIKE_BYTES:
            count += 1
            if count == _MOST_ALIKE:
                return at + 1
        if count >= max(longest, 1):
            index, longest = at + 1, count
    return index
