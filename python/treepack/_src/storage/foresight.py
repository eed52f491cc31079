"""Where the next small reads of a file will be, judging by those before.

Whoever looks for the leaves of a file without an index reads the header of one leaf, which tells
where the next one is. The layers of a model are alike, and so are the ways from header to header:
after some, the next ones are known before they are read. That only decides what is fetched; who
reads gets the bytes that are there.
"""

from __future__ import annotations

import itertools

# Ways that differ by less are alike: keys have other lengths in other layers.
_ALIKE_BYTES = 256

# So much is fetched around a place, since such differences add up.
_AROUND_BYTES = 1 << 10

# At a place at least so much is read, and at most so much is fetched ahead.
_LEAST_BYTES = 2 << 10
_MOST_BYTES = 64 << 10

# So many alike ways in a row are believed, and of so many places some are remembered.
_MOST_ALIKE = 32
_MOST_PLACES = 4096


class Foresight:
    """The places that have been read, and those that will be."""

    def __init__(self, near: int):
        """Reads at most `near` bytes apart are at one place."""
        self._near = near
        self._starts: list[int] = []
        self._stops: list[int] = []

    def gap(self, start: int) -> int | None:
        """Returns how far a read is behind the last place: 0 in it, `None` before it."""
        if not self._starts or start < self._starts[-1]:
            return None
        return max(0, start - self._stops[-1])

    def note(self, start: int, stop: int) -> None:
        """Notes a read."""
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
        """Returns ranges around the next places, in order."""
        starts, stops = self._starts, self._stops
        ways = [after - before for before, after in itertools.pairwise(starts)]
        if not ways:
            return []
        first = _repeats_from(ways)
        at, found = starts[-1], []
        for number in range(count):
            way = first + number % (len(ways) - first)
            at += ways[way]
            like = way + 1 if way + 1 < len(ways) else first  # the last place has just been reached
            nbytes = stops[like] - starts[like]
            nbytes = min(max(nbytes, _LEAST_BYTES), _MOST_BYTES)
            found.append((at - _AROUND_BYTES, at + nbytes + _AROUND_BYTES))
        return found


def _repeats_from(ways: list[int]) -> int:
    """Returns from where on the ways repeat: after the longest run that is like the last ones."""
    last = len(ways) - 1
    found, longest = last, 0
    for at in range(last - 1, -1, -1):
        count = 0
        while count <= at and abs(ways[at - count] - ways[last - count]) < _ALIKE_BYTES:
            count += 1
            if count == _MOST_ALIKE:
                return at + 1
        if count >= max(longest, 1):
            found, longest = at + 1, count
    return found
