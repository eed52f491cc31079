"""Reads remote files in blocks, and fetches ranges ahead of reads, many at a time.

the ranges that will be read ──join close ones──▶ requests, in flight ──▶ Blocks.read
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from threading import Condition
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.arrays.deferred import Deferred
from treepack._src.forks import Locked
from treepack._src.options import Buffer
from treepack._src.storage.foresight import Foresight
from treepack._src.tasks import Task, Thread, started
from treepack.errors import CorruptionError, TreepackError

# The start and stop offset of a range of bytes.
Range = tuple[int, int]

# The maximum number of bytes of a request.
_PART_BYTES = 16 << 20

# Headers that are close together are read in windows: the maximum size of a window, and of a gap
# between headers, in bytes (`src/format/wire/cursor.rs`).
_WINDOW_BYTES = 1 << 20
_SKIPPED_BYTES = 16 << 10

# The size in bytes of the pieces in which bytes of repeated reads are compared.
_COMPARED_BYTES = 64 << 10

# The number of unforeseen jumps after which blocks grow.
_MOST_SURPRISES = 8


class Fetch(Task[Buffer | None]):
    """A request for a range, made by a thread or by the first reader.

    `is_due` returns whether it is time for it; `on_end` is called when its last byte is read.
    """

    def __init__(self, fetch: Callable[[int, int], Buffer], start: int, stop: int):
        super().__init__(lambda: fetch(start, stop))
        self.start, self.stop = start, stop
        self.is_due: Callable[[], bool] = lambda: True
        self.on_end: Callable[[], None] = lambda: None


_START = operator.attrgetter("start")


class Blocks(Locked):
    """A remote file that is read in few large blocks.

    Reads in a range that is being fetched use that request. Otherwise a small read that continues
    the last block doubles the block size. After a jump, blocks are small again, and blocks of the
    next foreseen jumps are fetched at the same time; after many unforeseen jumps, blocks grow.

    Attributes:
      near: The number of bytes that take as long to transfer as a request.
      at_once: The maximum number of requests at a time.
    """

    LEAST = 64 << 10
    MOST = 8 << 20

    # The end, with the record, is read first and cached.
    END = 160 << 10

    def __init__(
        self,
        fetch: Callable[[int, int], Buffer],
        length: int,
        *,
        near: int,
        at_once: int = 1,
        end: Buffer = b"",
    ):
        super().__init__()
        self.near: int = near
        self.at_once: int = at_once
        self.length: int = length
        self._fetch = fetch
        self._nearer = near // at_once  # with many requests at a time, one costs less
        self._foresight = Foresight(self._nearer)
        self._blocks: list[tuple[int, memoryview]] = []  # their start offsets and bytes
        self._ahead = self.LEAST
        self._hits = 0  # jumps since the last block into blocks fetched with it
        self._surprises = 0  # consecutive unforeseen jumps
        view = memoryview(end)
        self._end = view.cast("B") if view.nbytes else None
        self._fetches: list[Fetch] = []  # in order

    def remember(self) -> None:
        """From now on, checks that bytes do not change between two reads."""
        with self.lock:
            if not isinstance(self._fetch, _Remembering):
                self._fetch = _Remembering(self._fetch, self.length)
                self._blocks = []  # they were read before this call

    def read(self, start: int, length: int) -> Buffer:
        """Returns between 1 and `length` bytes from an offset on."""
        if self._end is not None and start >= self.length - len(self._end):
            return self._end[start - self.length + len(self._end) :][:length]
        fetch = self._fetched(start)
        # The headers of large leaves are read long before the leaves.
        if fetch is not None and (length >= self.LEAST or fetch.is_due()):
            if start + length >= fetch.stop:
                fetch.on_end()
            data = fetch.result()
            if data is not None:  # else another thread dropped it
                return memoryview(data).cast("B")[start - fetch.start :][:length]
        if length < self.LEAST and self._end is None and start >= self.length - self.LEAST:
            return self._read_end(start, length)
        with self.lock:
            gap = self._foresight.gap(start)
            is_jump = gap is None or gap > self._nearer
            goes_on = gap is not None and gap <= _SKIPPED_BYTES
            if length < self.LEAST or (length <= _WINDOW_BYTES and goes_on):
                self._foresight.note(start, start + length)
                for number, (first, block) in enumerate(self._blocks):
                    if first <= start and start + length <= first + len(block):
                        if is_jump and number > 0:
                            self._hits += 1
                            self._ahead = self.LEAST // 4
                        return block[start - first :][:length]
                return self._read_block(start, length, gap)
        return self._fetch(start, min(start + length, start + _PART_BYTES))

    def _read_block(self, start: int, length: int, gap: int | None) -> Buffer:
        kept, foreseen = self._blocks[1:], []
        if gap is not None and gap <= self._nearer:
            self._ahead = min(2 * self._ahead, self.MOST)
        else:
            is_surprise = gap is not None and gap <= self.near and not self._hits
            self._surprises = self._surprises + 1 if is_surprise else 0
            grows = self._surprises > _MOST_SURPRISES
            kept, foreseen = [], self._foresight.ahead(min(2 * self._hits + 1, self.at_once - 1))
            least = self.LEAST // 4 if foreseen else self.LEAST
            self._ahead = min(2 * self._ahead, self.MOST) if grows else least
            self._hits = 0
        stop = min(self.length, start + max(self._ahead, length))
        last = self.length - (0 if self._end is None else len(self._end))
        more = [(max(first, stop), min(end, last)) for first, end in foreseen]
        ranges = [(start, stop), *joined(more, self._nearer)]
        works = [functools.partial(self._fetch_block, *some) for some in ranges]
        prefetched = []
        with started(works[1:], len(works)) as others:
            block = works[0]()
            for other in others:
                with contextlib.suppress(Exception):  # a failed prefetch is not an error
                    prefetched.append(other.result())
        self._blocks = [block, *prefetched, *kept]
        return block[1][:length]

    def _fetch_block(self, start: int, stop: int) -> tuple[int, memoryview]:
        return start, memoryview(self._fetch(start, stop)).cast("B")

    def _read_end(self, start: int, length: int) -> Buffer:
        first = max(0, self.length - self.END)
        with self.lock:
            if self._end is None:
                self._end = memoryview(self._fetch(first, self.length)).cast("B")
            return self._end[start - first :][:length]

    def _fetched(self, start: int) -> Fetch | None:
        fetches = self._fetches
        at = bisect_right(fetches, start, key=_START) - 1
        if at < 0 or start >= fetches[at].stop:
            return None
        return None if fetches[at].is_forgotten or fetches[at].is_suspended else fetches[at]

    def fetches_of(self, start: int, stop: int) -> Iterator[Fetch]:
        while start < stop and (fetch := self._fetched(start)) is not None:
            yield fetch
            start = fetch.stop

    def expect(self, ranges: Iterable[Range], *, joins: bool = True) -> list[Fetch]:
        """Prepares requests, in the order of the file, which reads use until `forget`."""
        near = self.near if joins else self._nearer
        last = self.length if self._end is None else self.length - len(self._end)
        ranges = [(start, min(stop, last)) for start, stop in ranges]
        parts = [part for whole in joined(ranges, near) for part in parted(whole, _PART_BYTES)]
        with self.lock:
            fetches = [Fetch(self._fetch, *part) for part in parts if not self._fetched(part[0])]
            self._fetches = sorted([*self._fetches, *fetches], key=_START)
        return fetches

    def forget(self, fetches: Iterable[Fetch]) -> None:
        gone = {*fetches}
        with self.lock:
            self._fetches = [fetch for fetch in self._fetches if fetch not in gone]


RemoteRange = tuple[Blocks, Range]
"""A range of the bytes of a remote file."""


class _Remembering(Locked):
    """Compares repeated reads of ranges with checksums of the first reads.

    So exactly the verified bytes are used, without keeping them in memory.
    """

    def __init__(self, fetch: Callable[[int, int], Buffer], length: int):
        super().__init__()
        self._fetch = fetch
        self._length = length
        self._sums = np.full(-(-length // _COMPARED_BYTES), -1, np.int64)

    def __call__(self, start: int, stop: int) -> Buffer:
        first = start - start % _COMPARED_BYTES
        last = min(self._length, stop + -stop % _COMPARED_BYTES)
        data = memoryview(self._fetch(first, last)).cast("B")
        for at in range(first, last, _COMPARED_BYTES):
            crc = zlib.crc32(data[at - first :][:_COMPARED_BYTES])
            number = at // _COMPARED_BYTES
            with self.lock:
                previous = self._sums[number]
                self._sums[number] = crc
            if previous not in (-1, crc):
                raise CorruptionError(
                    f"bytes {at} and following changed since they were verified: the store has "
                    "inconsistent copies, or they were changed in transit. Try again"
                )
        return data[start - first : stop - first]


def joined(ranges: Iterable[Range], near: int) -> list[Range]:
    merged: list[Range] = []
    for start, stop in sorted(extent for extent in ranges if extent[0] < extent[1]):
        if merged and start <= merged[-1][1] + near:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def parted(whole: Range, most: int) -> Iterator[Range]:
    start, stop = whole
    count = -(-(stop - start) // most)
    cuts = [start + (stop - start) * at // count for at in range(count + 1)] if count else []
    return itertools.pairwise(cuts)


class _Flight:
    """The requests for ranges that will be read soon.

    Threads make a request when readers are near it, and drop data far behind them. A reader ahead
    of the threads makes its request itself.
    """

    def __init__(self, fetches: list[Fetch], most: int):
        self._fetches = fetches
        self._most = most
        self._behind = core.thread_count(None) + 2  # the maximum number of concurrent readers
        self._queue = enumerate(fetches)
        self._reached = -1
        self._stopped = False
        self._changed = Condition()
        for number, fetch in enumerate(fetches):
            fetch.is_due = functools.partial(self._is_due, number)
            fetch.on_end = functools.partial(self._reach, number)

    def run(self) -> None:
        for number, fetch in self._queue:  # `next` is atomic for threads
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._is_due(number))  # noqa: B023
            if self._stopped:
                return
            fetch.attempt()

    def _is_due(self, number: int) -> bool:
        return number <= self._reached + self._most

    def _reach(self, number: int) -> None:
        if number <= self._reached:
            return
        with self._changed:
            behind = range(self._reached - self._behind, number - self._behind)
            self._reached = max(number, self._reached)
            self._changed.notify_all()
        for at in behind:
            if at >= 0:
                self._fetches[at].forget_result()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for fetch in self._fetches:
            fetch.end()


@contextlib.contextmanager
def fetching(wanted: Iterable[RemoteRange], *, joins: bool = True) -> Iterator[None]:
    """Fetches ranges of files in threads while the caller reads them in the same order.

    The stores, not the number of cores, limit the requests. With `joins`, gaps that take less than
    a request are fetched, too; without it, only gaps that take less with many at a time.
    """
    wanted = [(blocks, extent) for blocks, extent in wanted if blocks.at_once > 1]
    if not wanted:  # such as for local files
        yield
        return
    ranges: dict[Blocks, list[Range]] = defaultdict(list)
    for blocks, extent in wanted:
        ranges[blocks].append(extent)
    requests = {blocks: blocks.expect(some, joins=joins) for blocks, some in ranges.items()}
    order: dict[Fetch, None] = {}  # an ordered set
    mine = {fetch for fetches in requests.values() for fetch in fetches}
    for blocks, (start, stop) in wanted:
        order.update(
            dict.fromkeys(fetch for fetch in blocks.fetches_of(start, stop) if fetch in mine)
        )
    most = max((blocks.at_once for blocks in requests), default=0)
    flight = _Flight([*order], most)
    process = os.getpid()
    try:
        with contextlib.suppress(RuntimeError, MemoryError):  # fewer threads are enough
            for _ in range(min(most, len(order)) if len(order) > 1 else 0):
                Thread(flight.run)
        yield
    finally:
        if os.getpid() == process:  # a forked process lacks the threads
            flight.stop()
        for blocks, fetches in requests.items():
            blocks.forget(fetches)


def fetching_arrays(arrays: Iterable[Any], *, lays: bool = False) -> AbstractContextManager[None]:
    """Fetches remote arrays while they are read or, with `lays`, laid out; see `fetching`."""

    def ranges() -> Iterator[RemoteRange]:
        for array in arrays:
            if isinstance(array, Deferred):
                with contextlib.suppress(TreepackError, OSError):  # reading it raises the error
                    yield from array._ahead(lays=lays)

    return fetching(ranges())
