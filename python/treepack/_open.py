"""Files that are opened, not read: `open`, and what it returns."""

from __future__ import annotations

import difflib
import functools
import html
import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treepack import _core, _dtypes, _paths, _prng
from treepack._content import Openable, Opened, absolute, opened
from treepack._described import Reading, Unknown, check_unknown
from treepack._lazy import LazyArray
from treepack._options import Progress, Strict
from treepack._partial import Missing, OnCorrupt, Part, Unexpected, load_part
from treepack._placement import Arrays
from treepack._printable import cells, padded, printable
from treepack._report import ABSENT
from treepack._sharded.reading import Checkpoint, ShardedArray
from treepack.errors import DecodeError

if TYPE_CHECKING:
    from types import TracebackType

    import jax

# Among more names than these, similar ones take long to find.
_MOST_NAMES = 1000

# A repr has so many leaves.
_MOST_ROWS = 20

# NumPy has no arrays of more dimensions.
_MOST_NDIM = 64


Status = Literal["ok", "corrupt", "unchecked"]
"""What is known of the bytes of a leaf: `unchecked` if there is nothing to compare them with."""


class Tree(Mapping[str, Any]):
    """A part of an open file: a mapping of the keys of a container to what is in it.

    An array is a `LazyArray`, a container another `Tree`; other leaves are read. Elements of lists
    and tuples have their numbers as keys. A key may also be a path, such as `params/layers/0/w`, or
    a key path of JAX. In a path `/` inside a key is written `~1`, and `~` is written `~0`.
    """

    def __init__(self, file: File, value: int, parts: list[str]):
        self._file = file
        self._value = value
        self._parts = parts

    def _catalog(self) -> _core.Catalog:
        catalog = self._file._opened
        if catalog is None:
            raise ValueError("the file is closed")
        return catalog

    def __getitem__(self, path: Any) -> Any:
        """Returns what is at a path.

        Raises:
          KeyError: If there is nothing.
        """
        parts = _paths.parts(path)
        value = self._catalog().find(parts, self._value)
        if value is None:
            error = KeyError(path if isinstance(path, str) else _paths.text(parts))
            near = difflib.get_close_matches(_paths.text(parts), self._paths_near(parts), n=1)
            for similar in near:
                error.add_note(f"is it {similar!r}?")
            raise error
        return self._at(value, [*self._parts, *parts])

    def _paths_near(self, parts: list[str]) -> list[str]:
        """Returns the paths that differ from one that there is not in one part only."""
        catalog = self._catalog()
        for count in range(len(parts)):
            value = catalog.find(parts[:count], self._value)
            names = [] if value is None else [name for name, _ in catalog.children(value) or ()]
            if parts[count] not in names:
                rest = parts[count + 1 :]
                return [_paths.text([*parts[:count], name, *rest]) for name in names[:_MOST_NAMES]]
        return []

    def _at(self, value: int, parts: list[str]) -> Any:
        catalog = self._catalog()
        if catalog.children(value) is not None:
            return Tree(self._file, value, parts)
        kind = self._kind(value, parts)
        if kind[0] == "array":
            return self._array(value, parts, kind)
        if kind[0] == "prng_key" and self._file._shards is not None:
            data = self._array(value, parts, kind)
            if isinstance(data, ShardedArray):
                found = np.asarray(data)
                key = _prng.wrap(kind[1], found)
                # Of an implementation that is not known here, as in a file.
                return {_prng.MARKER: kind[1], "data": found} if key is None else key
        return catalog.read(value, copy=None, threads=None)

    def _kind(self, value: int, parts: list[str]) -> tuple[Any, ...]:
        """Returns what a leaf is, as `Catalog.leaf` tells it.

        Raises:
          DecodeError: If it is an array that NumPy could not have.
        """
        _, kind, start, _, _ = self._catalog().leaf(value)
        if kind[0] == "array" or kind[0] == "prng_key":
            shape = kind[2]
            if len(shape) > _MOST_NDIM or max(shape, default=0) > sys.maxsize:
                raise DecodeError(
                    "the index of the file has an array of more dimensions, or larger ones, than "
                    "there can be",
                    start,
                    _paths.text(parts),
                )
        return kind

    def _array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        """Returns an array, or the data of a PRNG key; `kind` is what `_kind` returns."""
        dtype, shape = kind[1] if kind[0] == "array" else "uint32", kind[2]
        path, shards = _paths.text(parts), self._file._shards
        found = None if shards is None else shards.array(self, value, path, dtype, shape)
        return LazyArray(self, value, path, dtype, shape) if found is None else found

    def _part(self, value: int, parts: Iterable[str]) -> Tree:
        """Returns a part of it, which may be a leaf."""
        return Tree(self._file, value, [*self._parts, *parts])

    def __contains__(self, path: object) -> bool:
        try:
            return self._catalog().find(_paths.parts(path), self._value) is not None
        except TypeError:
            return False

    def get(self, path: Any, default: Any = None) -> Any:
        """Returns what is at a path, or the default if there is nothing."""
        try:
            return self[path]
        except (KeyError, TypeError):
            return default

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        children = self._catalog().children(self._value)
        return iter([_paths.text([name]) for name, _ in children or ()])

    def __len__(self) -> int:
        return len(self._catalog().children(self._value) or ())

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yields all leaves below with their paths from here, in the order of the file.

        Example:
          >>> import numpy as np, treepack
          >>> with treepack.open(treepack.dumps({"a": {"w": np.zeros(3)}, "step": 7})) as file:
          ...     print(dict(file.leaves()))
          {'a/w': LazyArray('a/w', shape=(3,), dtype=float64), 'step': 7}
        """
        for path, value in self._catalog().leaves(self._value):
            yield path, self._at(value, [*self._parts, *_paths.parts(path)])

    @property
    def nbytes(self) -> int:
        """How many bytes its leaves have in the file, uncompressed."""
        return self._catalog().totals(self._value)[1]

    def load(
        self,
        target: Any = None,
        *,
        select: Any = None,
        rename: Any = None,
        missing: Missing = "error",
        unexpected: Unexpected = "ignore",
        verify: bool = False,
        on_corrupt: OnCorrupt = "error",
        return_report: bool = False,
        strict: Strict = True,
        cast: bool = False,
        arrays: Arrays = "saved",
        device: jax.Device | None = None,
        sharding: Any = None,
        copy: bool | None = None,
        unknown: Unknown = "error",
        static: Any = None,
        threads: int | None = None,
        progress: Progress = None,
    ) -> Any:
        """Loads what is here, or some of it. All paths are from here.

        The parameters are those of `treepack.load`. Of a file without a record of its structure,
        and without a target, it returns dicts.

        Example:
          >>> import numpy as np, treepack
          >>> data = treepack.dumps({"params": [np.ones(2), np.zeros(2)], "step": 7})
          >>> with treepack.open(data) as file:
          ...     print(file["params"].load(), file.load(select="step"))
          [array([1., 1.]), array([0., 0.])] {'step': 7}
        """
        part = Part(select, rename, missing, unexpected, verify, on_corrupt, return_report)
        how = Reading(
            strict, cast, arrays, device, sharding, copy, unknown, static, threads, progress
        )
        return load_part(self, target, part, how)

    def abstract(self, *, unknown: Unknown = "error", static: Any = None) -> Any:
        """Returns the tree with `jax.ShapeDtypeStruct`s as arrays; see `treepack.abstract`."""
        check_unknown(unknown)
        catalog = self._catalog()
        state = catalog.read(self._value, copy=None, threads=None, abstract=True)
        trailer = catalog.trailer
        if trailer is None:
            return state
        return _core.assemble(
            state,
            trailer,
            convert=None,
            unknown_as_dict=unknown == "dict",
            placeholders=True,
            static=static,
            at=self._positions(),
        )

    def _state(
        self, leaf: Callable[[int, list[str]], Any], marks: _core.Marks | None = None
    ) -> Any:
        """Returns the state: dicts and lists of what `leaf` makes of values and their parts.

        `ABSENT` is in the place of leaves and empty containers that are not marked.
        """
        catalog = self._catalog()

        def below(value: int, parts: list[str]) -> Any:
            children = catalog.children(value)
            if not children and marks is not None and value not in marks:
                return ABSENT
            if children is None:
                return leaf(value, parts)
            found = {}  # no comprehension: this goes as deep as a tree
            for name, child in children:
                found[name] = below(child, [*parts, name])
            return list(found.values()) if catalog.is_list(value) else found

        return below(self._value, self._parts)

    def _positions(self) -> list[tuple[int, int]]:
        """Returns which child of how many leads here, from the root of the file on."""
        catalog = self._catalog()
        found, value = [], 0
        for part in self._parts:
            names = dict(catalog.children(value) or ())
            found.append((list(names).index(part), len(names)))
            value = names[part]
        return found

    def __repr__(self) -> str:
        if self._file._opened is None:
            return f"<{self._title()}: closed>"
        rows = self._rows()
        width = max((cells(path) for path, _, _ in rows), default=0)
        middle = max((cells(kind) for _, kind, _ in rows), default=0)
        lines = [
            f"\n  {padded(path, width)}  {padded(kind, middle)}  {size:>9}"
            for path, kind, size in rows
        ]
        return f"<{self._title()}: {self._summary()}{''.join(lines)}{self._and_more()}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._rows()
        )
        head = html.escape(f"{self._title()}: {self._summary()}")
        return f"<div>{head}</div><table>{rows}</table><div>{self._and_more()}</div>"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        title = Text(f"{self._title()}: {self._summary()}")  # not markup, as text would be
        table = Table(title=title, caption=self._and_more() or None)
        for name, justify in (("path", "left"), ("kind", "left"), ("size", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for row in self._rows():
            table.add_row(*map(Text, row))
        return table

    def _title(self) -> str:
        name = type(self).__name__
        return f"treepack.{name} {self._file._name}" + (
            f" at {printable(_paths.text(self._parts))}" if self._parts else ""
        )

    def _summary(self) -> str:
        count, nbytes = self._catalog().totals(self._value)
        return f"{count_text(count)}, {size_text(nbytes)}"

    def _rows(self) -> list[tuple[str, str, str]]:
        catalog = self._catalog()
        found = itertools.islice(catalog.leaves(self._value), _MOST_ROWS)
        return [(printable(path), *leaf_text(catalog, value)) for path, value in found]

    def _and_more(self) -> str:
        more = self._catalog().totals(self._value)[0] - _MOST_ROWS
        return f"\n  and {more} more" if more > 0 else ""

    def __reduce__(self) -> Any:
        return operator.getitem, (self._file, _paths.text(self._parts))


class File(Tree):
    """An open file: what `open` returns.

    It is a context manager. Any number of threads may read from it. It can be pickled, unless it
    was opened by a file object: another process opens the file again.

    Attributes:
      metadata: What was given to `save` as metadata, or `None`.
      damage: What is wrong with the file, in words, or `None`: with `salvage=True`, why not all of
        it could be read; and that the index of a small gzip file is damaged.
    """

    def __init__(
        self,
        source: Openable,
        *,
        salvage: bool = False,
        mmap: bool = True,
        max_size: int | None = None,
        is_shard: bool = False,
    ):
        """See `open`; with `is_shard` it must be a regular file."""
        is_path = isinstance(source, (str, os.PathLike))
        # The program may go elsewhere, and so may a pickle.
        self._source = absolute(source) if is_path else source
        self._options = {"salvage": salvage, "mmap": mmap, "max_size": max_size}
        self._name = repr(os.fspath(source)) if is_path else "in memory"
        self._shards: Checkpoint | None = None
        try:
            found = opened(source, mmap=mmap, salvage=salvage, max_size=max_size, regular=is_shard)
        except IsADirectoryError:
            open_file = functools.partial(File, mmap=mmap, salvage=salvage, is_shard=True)
            self._shards = Checkpoint(self._source, open_file, max_size=max_size)
            found = Opened(self._shards.manifest.content)
        self._opened: _core.Catalog | None = _core.Catalog.open(found.content, salvage=salvage)
        self._damage = found.damage
        self._inflated = found.inflated
        super().__init__(self, 0, [])

    @property
    def metadata(self) -> Any:
        trailer = self._catalog().trailer
        return None if trailer is None else _core.trailer_metadata(trailer)

    @property
    def may_change(self) -> bool:
        """Whether it was opened in memory that others may change."""
        still = isinstance(self._source, (str, os.PathLike, bytes, _core.Content))
        return not still and not hasattr(self._source, "read")

    @property
    def damage(self) -> str | None:
        return self._damage or self._catalog().damage

    def _verified(
        self, *, threads: int | None, progress: Callable[[int, int], object] | None
    ) -> tuple[dict[int, Status], str | None]:
        """Compares it with its checksums.

        Returns:
          What is known of each leaf by its value, and what is wrong apart from leaves.
        """
        catalog = self._catalog()
        if self._shards is not None:
            leaves = []
            arrays = {}
            for path, value in catalog.leaves(0):
                leaves.append(value)
                parts = _paths.parts(path)
                kind = self._kind(value, parts)
                if kind[0] in ("array", "prng_key"):
                    array = self._array(value, parts, kind)
                    if isinstance(array, ShardedArray):
                        arrays[value] = array
            found, damage = self._shards.verify(
                arrays, threads=threads, progress=progress or (lambda *_: None)
            )
            damage = "; ".join(filter(None, [self.damage, damage])) or None
            # All others are in the manifest, whose checksum was compared.
            statuses = {value: found.get(value, "ok") for value in leaves}
            for number in catalog.unlike_index():
                if number < len(leaves):
                    statuses[leaves[number]] = "corrupt"
                else:
                    damage = damage or _DAMAGED_REST
            return statuses, damage
        *told, rest = catalog.verify(threads=threads, progress=progress)
        damage = self.damage or catalog.stream_damage
        if damage is None and rest == "corrupt":
            damage = _DAMAGED_REST
        for name in catalog.dtypes:
            if damage is None and _dtypes.resolve(name.encode()) is None:
                damage = f"{name!r} is no dtype that an array can have"
        return dict(zip(catalog.leaf_values(0), told, strict=True)), damage

    @property
    def _is_summed(self) -> bool:
        """Whether there is something to verify."""
        return self._shards is not None or self._catalog().is_summed

    def close(self) -> None:
        """Lets go of the file. Arrays that view it stay as they are."""
        self._opened = None
        if self._shards is not None:
            self._shards.close()

    def __enter__(self) -> File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        source = self._source
        if hasattr(source, "read"):
            raise TypeError("a File that was opened by a file object cannot be pickled")
        if not isinstance(source, (str, os.PathLike)):
            source = bytes(source)
        return _reopened, (source, self._options, self._name)


_DAMAGED_REST = "what lies between the leaves and the record of the structure is damaged"


def _reopened(source: Openable, options: dict[str, Any], name: str) -> File:
    file = File(source, **options)
    file._name = name
    return file


def open(
    source: Openable, *, salvage: bool = False, mmap: bool = True, max_size: int | None = None
) -> File:
    """Opens a file to look into it, and to read some of it.

    A file of `save` tells at its end what is in it. Of any other one, such as flax's, the headers
    are read once. Arrays are read when they are used.

    Args:
      source: A path, bytes, or a file object that can seek: msgpack of treepack, flax or eformer,
        or gzip of treepack. Or the directory of a sharded checkpoint.
      salvage: Whether a file that is cut short or damaged is opened, too, with what can be found.
        Its `damage` tells what is wrong then.
      mmap: Whether a file is mapped. `False` reads all of it now.
      max_size: The most bytes that gzip may have inside; of a directory, its manifest and all its
        files together.

    Returns:
      The file: a mapping, see `Tree`, and a context manager.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError, with the byte offset. If it is no such file.
      NoIndexError: A ValueError. If it is gzip of others, which cannot be read in parts.
      CorruptionError: A ValueError. If it is damaged gzip.

    Example:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"params": {"w": np.ones((1000, 8))}, "step": 3})
      >>> with treepack.open(path) as file:
      ...     print(list(file), file["params/w"].shape, file["params/w"][:2, 0], file["step"])
      ['params', 'step'] (1000, 8) [1. 1.] 3
    """
    return File(source, salvage=salvage, mmap=mmap, max_size=max_size)


def leaf_text(catalog: _core.Catalog, value: int) -> tuple[str, str]:
    """Returns what a leaf is and how large, for people."""
    _, kind, start, end, _ = catalog.leaf(value)
    return kind_text(kind), size_text(end - start)


def kind_text(kind: tuple[Any, ...]) -> str:
    """Returns what a leaf is: `float32[3,4]`, `int`."""
    if kind[0] == "array":
        return f"{printable(kind[1])}[{','.join(map(str, kind[2]))}]"
    if kind[0] == "prng_key":
        return f"key<{printable(kind[1])}>"
    return f"{printable(kind[1])}[]" if kind[0] == "scalar" else str(kind[0])


def count_text(leaves: int) -> str:
    """Returns a number of leaves for people."""
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"


def size_text(nbytes: float) -> str:
    """Returns a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
