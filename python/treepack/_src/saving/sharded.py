"""Writes the files of a sharded checkpoint, and the manifest that joins them.

    tree ──walk──▶ encoding with gaps ──▶ plan of writers ──▶ a file of this process
                          └──────────────── process 0, after all have written ──▶ manifest

Each attempt has its own file names, so the old checkpoint stays until the new manifest replaces it.
"""

from __future__ import annotations

import functools
import json
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import treepack._core as core
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.claims.directory import Directory, Written, writer
from treepack._src.claims.identity import Identity
from treepack._src.interop import jax as _jax
from treepack._src.layouts.layout import Encoding
from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import printable, shortened, warn
from treepack._src.processes.group import Group, Message
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.saving.linking import (
    BLOCK_BYTES,
    Alive,
    Linking,
    Part,
    Step,
    Terms,
    fixed,
    in_host_memory,
    name_of,
    parts_of,
    probes_of,
    worth_linking,
)
from treepack._src.sharded.files import MANIFEST, ShardFile, save_of
from treepack._src.sharded.plan import plan_of, start_of
from treepack._src.storage.address import Address
from treepack.errors import TreepackError


def is_distributed(tree: Any) -> bool:
    if _jax.client() is None:
        return False
    return any(
        _jax.is_array(leaf) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        for _, leaf in leaves_of(tree, ())
    )


class ShardedWrite:
    def __init__(
        self,
        path: Address,
        tree: Any,
        saved: Saved,
        writing: Writing,
        *,
        snapshot: bool,
        group: Group | None = None,
    ):
        self.group: Group = group or Group(saved.timeout, step=saved.step)
        self._path = path.absolute()  # the working directory may change
        self._writing = writing
        try:
            self._prepare(path, tree, saved, snapshot=snapshot)
        except BaseException as error:
            self.abandon(error)
            raise

    def _prepare(self, path: Address, tree: Any, saved: Saved, *, snapshot: bool) -> None:
        index, count = self.group.index, self.group.count
        whole = Encoding(align=1, index=True, gaps=True).tree(tree, saved.metadata, saved.static)
        arrays = whole.gaps
        plan = plan_of(arrays, None if saved.linking is None else BLOCK_BYTES)
        self._processes = [*plan.processes]
        if saved.own is not None:
            self._processes += sorted({*range(count)} - {*self._processes})
        self._draft = core.Manifest.planned(whole, plan)
        del whole  # it holds arrays
        paths = _array_paths(self._draft, len(arrays))
        # Differs if two processes save different trees. Path by path: a long key is in many.
        self._plan = plan.checksum
        for parts, array in zip(paths, arrays, strict=True):
            kind = repr((parts, array.shape, name_of(array.dtype)))
            self._plan = zlib.crc32(kind.encode(), self._plan)
        self._identity: Identity | None = None  # for other processes
        if count > 1:
            self._identity = Identity.of(
                path, saved, self._writing, self._plan, self._draft, arrays
            )
        mine: list[tuple[list[str], Any]] = []  # without the texts of paths, which may be long
        self._linking: Linking | None = saved.linking
        linked: list[Part] = []
        for number, (parts, array) in enumerate(zip(paths, arrays, strict=True)):
            wanted = plan.shards_of(number, index)
            shards = _shards(parts, array, self._draft.grid(number), wanted, index)
            if self._linking is None:
                mine += [([*parts, *name], data) for _, name, data in shards]
            else:
                linked += parts_of(parts, array, shards)
        self._layout: core.Layout | None = None
        self._step: Step | None = None
        if index in self._processes:
            self._about = {"process": index, "plan": self._plan}
            if saved.own is not None:
                self._about["own"] = saved.own()
            if self._linking is None:
                self._layout = self._laid(mine, snapshot=snapshot)
            else:
                self._is_fixed = snapshot
                self._parts = fixed(linked, on_host=True) if snapshot else linked

    def _laid(
        self,
        shards: Iterable[tuple[list[str], Any]],
        *,
        snapshot: bool = False,
        digests: bool = False,
        **more: Any,
    ) -> core.Layout:
        tree: Any = {}
        for keys, data in shards:
            if keys:
                _paths.put(tree, keys, data)
            else:
                tree = data  # the tree is a single host array
        return Encoding.file(
            tree,
            Saved(metadata=self._about | more),
            self._writing,
            snapshot=snapshot,
            digests=digests,
        )

    @property
    def leads(self) -> bool:
        return self.group.index == 0

    def abandon(self, error: BaseException) -> None:
        self.group.abandon(error)

    def __call__(self, progress: Progress, check: object = None) -> None:
        """Writes the checkpoint, once. `check` is for files: it has its own lease."""
        directory = Directory.at(self._path)
        if self.leads:
            self._lead(directory, progress)
        else:
            self._follow(directory, progress)
        if self._linking is not None and self._step is not None:
            self._linking.has_saved(self._step)

    def _lead(self, directory: Directory, progress: Progress) -> None:
        linked = None if self._linking is None else self._linking.previous(self._parts)
        taken = set() if linked is None else {*map(save_of, linked.files)}
        while (name := secrets.token_hex(4)) in taken:
            pass
        try:
            try:
                try:
                    directory.claim(name)
                except BaseException:
                    self.group.announce("")
                    raise
                try:
                    self._write_and_commit(directory, name, progress)
                    self.group.end()  # the others continue while old files are removed
                finally:
                    directory.clean()
            finally:
                directory.release()
        except BaseException as error:
            self.group.end(error)
            raise

    def _write_and_commit(self, directory: Directory, name: str, progress: Progress) -> None:
        linking = self._linking
        terms = None if linking is None else linking.terms(linking.previous(self._parts))
        if self._identity is not None:
            self.group.announce(json.dumps([name, self._identity.summary(), terms]))
        mine = self.write(directory, name, terms, progress)
        messages = {0: Message(written=mine), **self._last_round(terms).gather()}
        errors = [*self._errors_of(messages)]
        if errors:
            raise self.group.failed(errors)
        self._commit(directory, name, messages)

    def _follow(self, directory: Directory, progress: Progress) -> None:
        group, mine = self.group, self._identity
        announced = group.announced()
        if announced and mine is not None:
            name, identity, terms = json.loads(announced)
            if mine.is_same(identity):
                terms = None if terms is None else Terms(*terms)
                last_round = self._last_round(terms)
                try:
                    written = self.write(directory, name, terms, progress)
                except BaseException as error:
                    last_round.fail(error)
                    raise
                last_round.tell(Message(written=written))
            else:
                group.tell(Message(differs=mine.text()))  # process 0 describes the difference
        group.wait()

    def _last_round(self, terms: Terms | None) -> Group:
        return self.group if terms is None or not terms.is_shared else self.group.further()

    def write(
        self,
        directory: Directory,
        name: str,
        terms: Terms | None = None,
        progress: Progress = None,
    ) -> Written | None:
        if terms is not None and self._linking is not None:
            return self._link_and_write(self._linking, directory, name, terms, progress)
        layout, self._layout = self._layout, None
        if layout is None:
            return None
        file = Directory.file_name(name, self.group.index)
        directory.file(file).save(layout, self._writing, progress)
        del layout
        return directory.look(file)

    def _link_and_write(
        self,
        linking: Linking,
        directory: Directory,
        name: str,
        terms: Terms,
        progress: Progress,
    ) -> Written:
        parts, self._parts = self._parts, []
        durable, threads = self._writing.durable, self._writing.threads
        last = linking.previous(parts)
        unchanged: dict[int, str] = {}
        probes: list[bytes | None] = []

        def alive() -> Alive:
            probes.extend(probes_of(parts, last, threads))
            if last is None or terms.full[0] == 1:
                return []
            unchanged.update(last.unchanged(parts, probes, threads))
            return last.alive(parts, unchanged)

        agree = self._worth_linking if terms.is_shared else (lambda it: worth_linking([it()]))
        linked, is_shared = agree(alive)
        age = 0 if last is None else last.age + 1
        step = Step(self._path, {}, {}, {}, {}, {}, terms.full, age, is_shared)
        done: set[int] = set()
        if last is not None:
            done = linking.link(last, step, unchanged, parts, linked, directory, durable=durable)
        rest = {number: part for number, part in enumerate(parts) if number not in done}
        if self._writing.compress and not self._is_fixed:  # digests and bytes must stay equal
            rest = dict(zip(rest, fixed([*rest.values()], on_host=False), strict=True))
        links = [*step.files]
        index = self.group.index
        # Shards that change together lie together. The last file is the one of the process: once it
        # is on the disk, so are the names before it.
        for place, is_moved in ((1, True), (0, False)):
            ours = [part for number, part in rest.items() if (number in unchanged) is is_moved]
            if is_moved and not ours:
                continue
            more: dict[str, Any] = {} if is_moved else {"full": [*terms.full], "links": links}
            file = Directory.file_name(name, index, place)
            shards = [(part.keys, part.data) for part in ours]
            layout = self._laid(shards, digests=True, age=step.age, **more)
            directory.file(file).save(layout, self._writing, progress)
            del layout, shards
            written, catalog = directory.read(file)
            step.add(written[:3], ours, ShardFile(catalog).digests())
        step.probes.update((part.text, probe) for part, probe in zip(parts, probes, strict=True))
        self._step = step
        others = [row for file, row in step.files.items() if file != written.name]
        numbers_of = {written.name: 0} | {row[0]: at for at, row in enumerate(others, 1)}
        places = [numbers_of[step.shards[part.text].file] for part in parts]
        return written._replace(others=others, places=places)

    def _worth_linking(self, alive: Callable[[], Alive]) -> tuple[list[str], bool]:
        """Agrees with the other processes, which may have other shards of the same files.

        In the first round, which also has the messages of processes that do not save.
        """
        group = self.group
        if self.leads:
            text = ""
            try:
                mine = alive()
                messages = group.gather()
                if errors := [*self._errors_of(messages)]:
                    raise group.failed(errors)
                rows = [mine, *(it.written or () for it in messages.values())]
                linked, is_shared = worth_linking(rows)
                text = json.dumps([linked, is_shared])
            finally:
                group.further().announce(text)
            return linked, is_shared
        try:
            group.tell(Message(written=alive()))
        except BaseException as error:
            group.fail(error)
            raise
        if not (text := group.further().announced()):
            group.wait()  # raises the error of process 0
        linked, is_shared = json.loads(text)
        return linked, is_shared

    def _errors_of(self, messages: Mapping[int, Message]) -> Iterator[str]:
        for process, message in sorted(messages.items()):
            if message.error:
                yield f"process {process}: {message.error}"
            elif message.differs and self._identity is not None:
                yield self._identity.differences(process, message.differs)

    def _commit(self, directory: Directory, name: str, messages: Mapping[int, Message]) -> None:
        """For process 0; the number of requests does not depend on the number of processes."""
        files = []
        there = directory.names()
        if MANIFEST not in there:
            _warn_of_others(self._path, there)
        reports: list[Written] = []
        for process in self._processes:
            row = messages[process].written
            written = None if row is None else Written(*row)
            if written is None or written.name not in there:
                again = self._look(directory, name, process)  # listings may be stale
                written = again if written is None else written
            if written.plan != self._plan:
                raise TreepackError(
                    f"process {process} saved a different tree than process 0, or arrays that are "
                    "only on its own devices"
                )
            files.append((written.name, written.nbytes, written.record))
            reports.append(written)
        others = {row[0]: (*row,) for written in reports for row in written.others}
        for row in others.values():
            if row[0] not in there and directory.look(row[0])[:3] != row:
                raise TreepackError(f"{row[0]} in {directory} is not the file that was linked")
        numbers = {row[0]: at for at, row in enumerate(others.values(), len(files))}
        places = [
            [numbers[written.others[at - 1][0]] if at else number for at in written.places]
            for number, written in enumerate(reports)
        ]
        data = self._draft.with_files(
            [*files, *others.values()], writer(), places if others else None
        )
        directory.commit(data, there, durable=self._writing.durable)

    def _look(self, directory: Directory, name: str, process: int) -> Written:
        try:
            return directory.look(Directory.file_name(name, process))
        except FileNotFoundError as error:
            raise TreepackError(
                f"the file of process {process} is missing in {directory}: all processes must "
                "write to the same directory, and no other job may save there"
            ) from error


def _warn_of_others(path: Address, names: Iterable[str]) -> None:
    both = ((name, formats.of_suffix(name)) for name in sorted(names))
    others = [printable(name) for name, format in both if format is not None and format.is_split]
    if others:
        warn(
            f"{path.shown} has another checkpoint, {shortened(others, len(others))}, which other "
            "programs read in place of this one: remove it, or choose another directory"
        )


def _array_paths(manifest: core.Manifest, count: int) -> list[list[str]]:
    """Equal parts are one object."""
    catalog = core.Catalog.open(manifest.content, salvage=False)
    paths: list[list[str]] = [[] for _ in range(count)]
    interned: dict[str, str] = {}
    for path, value in catalog.leaves(0):
        array = manifest.array_of(catalog, value)
        if array is not None:
            paths[array] = [interned.setdefault(part, part) for part in _paths.parts(path)]
    return paths


@functools.lru_cache(maxsize=1024)  # many arrays have one shape
def _cells(shape: tuple[int, ...], counts: tuple[int, ...]) -> core.ShardGrid:
    return core.ShardGrid(shape, counts)


def _shards(
    path: list[str],
    array: Any,
    grid: tuple[list[int], bool],
    wanted: list[int],
    process: int,
) -> list[tuple[int, list[str], Any]]:
    counts, is_host = grid
    cells = _cells(tuple(array.shape), tuple(counts))
    if is_host and len(cells) == 1:
        return [(0, [], array)] if wanted else []
    if len(cells) == 1 and wanted:
        if len(array.sharding.device_set) == 1:  # as most arrays; making shards takes long
            return [(0, [cells.name(0)], array)]
        if shards := array.addressable_shards:
            return [(0, [cells.name(0)], shards[0].data)]
    size = array.shape if is_host else array.sharding.shard_shape(array.shape)
    is_split = any(
        part * count > n for part, count, n in zip(size, counts, array.shape, strict=True)
    )
    # The box of each shard, and the first element of the array's own shard that contains it.
    boxes, corners = [cells.bounds(cell) for cell in wanted], list[tuple[int, ...]]()
    for box in boxes:
        corner = tuple(start for start, _ in box)
        if is_split:
            corner = tuple(at - at % max(1, n) for at, n in zip(corner, size, strict=True))
        corners.append(corner)
    needed = {*corners}
    held: dict[tuple[int, ...], Any] = {(0,) * array.ndim: array} if is_host else {}
    for shard in () if is_host or not wanted else array.addressable_shards:
        if (corner := start_of(shard.index)) in needed:
            held.setdefault(corner, shard.data)
    if len(held) < len(needed):  # JAX was interrupted while creating them
        raise TreepackError(
            f"at {_paths.text(path)}: the array is incomplete: expected {len(needed)} shards in "
            f"process {process}, found {len(held)}. Create the array again"
        )
    rows = []
    for cell, box, corner in zip(wanted, boxes, corners, strict=True):
        data = held[corner]
        if is_split:
            if _jax.is_array(data):
                data = held[corner] = in_host_memory(data)
            data = data[tuple(slice(a - c, b - c) for (a, b), c in zip(box, corner, strict=True))]
        rows.append((cell, [cells.name(cell)], data))
    return rows
