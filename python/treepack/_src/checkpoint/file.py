from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Never, Unpack

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.advice import Hinting, advised, read_only, unknown_option
from treepack._src.checkpoint.load import load_part
from treepack._src.checkpoint.mapped import MappedReader
from treepack._src.checkpoint.opening import open_reader
from treepack._src.checkpoint.whole import warn_of_unused
from treepack._src.mapping.leaves import Leaf
from treepack._src.mapping.plan import Fault
from treepack._src.options import (
    Containers,
    PartOptions,
    Reading,
    Selection,
    Sharing,
    StorageOptions,
    Unknown,
    check,
    takes,
)
from treepack._src.placing.placement import sharing
from treepack._src.printable import (
    MOST_ROWS,
    cells,
    count_text,
    padded,
    path_end,
    printable,
    shortened,
    size_text,
    warn,
)
from treepack._src.readers.info import Info, levels, totals
from treepack._src.readers.reader import Place, Reader, dtype_and_shape
from treepack._src.registry.static import metadata_in
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.naming import naming
from treepack.errors import SALVAGE_ADVICE, CorruptionError, DecodeError, MissingPathError

_INTACT = '; leaves() lists the intact leaves, load(target, missing="target") loads them'


def _from_end(part: str, names: list[str]) -> list[str]:
    is_index = re.fullmatch("-[1-9][0-9]{0,8}", part) and names[:1] == ["0"]
    return names[int(part) :][:1] if is_index and -int(part) <= len(names) else []


class Tree(Hinting, Mapping[str, Any]):
    """A container in an open file: a mapping of its keys to its children.

    Arrays are `LazyArray`s, containers `Tree`s; other leaves are read when looked up. Elements of
    lists and tuples have keys such as `"0"`. A key may also be a path, such as `params/layers/0/w`,
    or a key path of JAX. In a path, and in the keys of an iteration, `/` inside a key is written
    `~1`, and `~` is written `~0`. If no value has that path, it is also tried without escapes, and
    must then match one value, such as haiku's `mlp/~/linear_0/w`.

    Examples:
      >>> import numpy as np, treepack
      >>> data = treepack.dumps({"layers": [{"w": np.ones(2)}, {"w": np.zeros(2)}]})
      >>> with treepack.open(data) as file:
      ...     print(list(file["layers"]), file["layers/1/w"].shape, file["layers"]["0"].load())
      ['0', '1'] (2,) {'w': array([1., 1.])}
    """

    def __init__(self, place: Place):
        self._place = place

    @property
    def _catalog(self) -> core.Catalog:
        return self._place.reader.catalog

    __setitem__: Callable[..., None] = read_only
    __delitem__: Callable[..., None] = read_only

    def __getitem__(self, path: Any) -> Any:
        """Returns the leaf or container at a path.

        Raises:
          MissingPathError: If the file has no value at the path.
          CorruptionError: If the leaf is damaged; always found only after `open(salvage=True)`.
        """
        reader, start, above = self._place
        parts = _paths.parts(path)
        catalog = reader.catalog
        value = catalog.find(parts, start)
        if value is None:
            value, parts = self._find_literally(path, parts)
        parts = [*above, *parts]
        if catalog.children(value) is None:
            try:
                if reader.salvages:
                    reader.compare(value, parts)
                return reader.leaf(value, parts)
            except Exception as error:
                naming(reader.given).add_to(error)
                raise
        return Tree(Place(reader, value, parts))

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuses to become an array, which NumPy would make of the keys."""
        raise TypeError(
            f"a {type(self).__name__} is a container: look up an array in it, as by file[path], or "
            "read it by load()"
        )

    def _hint_for(self, name: str) -> str:
        if name[0] != "_" and not self._place.reader.is_closed:
            if name in self:
                return f"is it [{name!r}]?"
            if [*self] == ["value"] and hasattr(np.ndarray, name):  # a variable of nnx
                return f"is it ['value'].{name}?"
        return super()._hint_for(name)

    def _literally(self, path: Any) -> tuple[list[tuple[int, list[str]]], dict[str, list[str]]]:
        if not isinstance(path, str):
            return [], {}
        children = self._catalog.children
        reader, start, _ = self._place
        if reader.separator and reader.separator in path:
            parts = path.split(reader.separator)
            if (value := reader.catalog.find(parts, start)) is not None:
                return [(value, parts)], {}
        matches, near = _paths.literal(path, self._place.value, lambda value: children(value) or ())
        return matches, near

    def _find_literally(self, path: Any, parts: list[str]) -> tuple[int, list[str]]:
        matches, names = self._literally(path)
        if len(matches) != 1:
            raise self._missing(path, parts, names, [parts for _, parts in matches])
        return matches[0]

    def _missing(
        self, path: Any, parts: list[str], names: dict[str, list[str]], readings: list[list[str]]
    ) -> MissingPathError:
        hint = ""
        if isinstance(path, str) and "*" in path:
            hint = (
                f"a path has no wildcards here: call load(select={path!r}), or `treepack convert "
                "--select`"
            )
        elif readings:
            texts = map(repr, map(_paths.text, readings))
            hint = f"it has several readings: {shortened(texts, len(readings), 9)}"
        elif near := _paths.closest(path, names) if names else []:
            hint = f"is it {near[0]!r}, written {_paths.text(names[near[0]])!r}?"
        elif (similar := self._similar(parts)) is not None:
            hint = f"is it {similar!r}?"
        elif isinstance(path, str) and path in ("metadata", "damage"):
            hint = f"is it file.{path}?"
        elif len(path) <= _paths.MOST_LENGTH:
            hint = self._keys_near(parts)
        if self._place.reader.salvages and self._place.reader.damage is not None:
            hint = f"it may be lost, since the file is damaged{_INTACT}"
        missing = path if isinstance(path, str) else _paths.text(parts)
        return MissingPathError(missing, self._place.reader.filename, hint)

    def _keys_near(self, parts: list[str]) -> str:
        catalog = self._catalog
        for count in range(len(parts) - 1, -1, -1):
            value = catalog.find(parts[:count], self._place.value)
            if value is not None:
                children = catalog.children(value)
                names = [printable(str(name)) for name, _ in children or ()]
                above = printable(_paths.text(parts[:count])) if count else "it"
                if children is None and count:
                    return f"{above} is a leaf: index an array by numbers, as in file[{above!r}][0]"
                return f"{above} has {shortened(names, len(names), 9)}" if names else ""
        return ""

    def _similar(self, parts: list[str]) -> str | None:
        catalog, start = self._catalog, self._place.value
        leaves = (path for path, _ in catalog.leaves(start))
        if (suggested := _paths.suggest("/".join(parts), leaves)) is not None:
            return suggested
        # Otherwise missing parts are replaced by similar names.
        near: list[str] = []
        for part in parts:
            value = catalog.find(near, start)
            names = [] if value is None else [name for name, _ in catalog.children(value) or ()]
            if part not in names:
                # Compares names rather than paths: the time is quadratic in the length.
                names = _from_end(part, names) or _paths.closest(part, names[: _paths.MOST_NAMES])
                if not names:
                    return None
            near.append(part if part in names else names[0])
        return _paths.text(near)

    def __contains__(self, path: object) -> bool:
        try:
            value = self._catalog.find(_paths.parts(path), self._place.value)
        except TypeError:
            return False
        return value is not None or len(self._literally(path)[0]) == 1

    def get(self, path: Any, default: Any = None) -> Any:
        """Returns the leaf or container at a path, or `default` if there is none."""
        if path in self:
            return self[path]
        return default

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[str]:
        children = self._catalog.children(self._place.value)
        return iter([_paths.text([name]) for name, _ in children or ()])

    def keys(self) -> KeysView[str]:
        """Returns the keys."""
        return _Keys(self)

    @advised
    def items(self) -> ItemsView[str, Any]:
        """Returns the keys with their values."""
        return super().items()

    @advised
    def values(self) -> ValuesView[Any]:
        """Returns the values."""
        return super().values()

    def __len__(self) -> int:
        return len(self._catalog.children(self._place.value) or ())

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    @advised
    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yields the relative paths and leaves below, in the order of the file.

        After `open(salvage=True)`, damaged leaves are left out; damage to compressed arrays is an
        error when they are read.

        Examples:
          >>> import numpy as np, treepack
          >>> with treepack.open(treepack.dumps({"a": {"w": np.zeros(3)}, "step": 7})) as file:
          ...     print(dict(file.leaves()))
          {'a/w': LazyArray('a/w', shape=(3,), dtype=float64), 'step': 7}
        """
        reader, start, parts = self._place
        before: list[str] = []
        for path, value in _paths.PathBudget().all(reader.catalog.leaves(start)):
            relative = _paths.parts(path)
            # Leaves below a long key share the string.
            shared = [
                old if old == new else new for old, new in zip(before, relative, strict=False)
            ]
            before = shared + relative[len(shared) :]
            try:
                with naming(reader.given):
                    if reader.salvages:
                        reader.compare(value, [*parts, *before])
                    leaf = reader.leaf(value, [*parts, *before])
            except (CorruptionError, DecodeError):
                if not reader.salvages:
                    raise
                continue
            yield path, leaf

    def _at(self, path: Any = _paths.ROOT) -> Place:
        place = self._place
        if path == _paths.ROOT:
            return place
        parts = _paths.parts(path)
        value = place.catalog.find(parts, place.value)
        if value is None:
            value, _ = self._find_literally(path, parts)
        return place.below(value, _paths.parts(place.catalog.path_of(value, place.value)))

    def _in_layout(self, mapping: Any, template: Mapping[str, Leaf] | None = None) -> File:
        reader = MappedReader(self._place, mapping, template)
        # A leaf that only the template has is a difference, not a fault of the mapping.
        if faults := [fault for fault in reader.plan.faults if not fault.is_missing]:
            raise Fault.error(faults)
        return File(reader, getattr(self, "_unknown", "error"))

    def info(self, path: Any = ".") -> Info:
        """Describes the leaf or container at a path, by default this one, without reading it.

        Raises:
          MissingPathError: If the file has no value at the path.
        """
        place = self._at(path)
        return Info.at(place.reader, place.value, _paths.text(_paths.parts(path)))

    @advised
    def infos(self) -> Iterator[Info]:
        """Describes the leaves below, in the order of the file, without reading them.

        Examples:
          >>> import numpy as np, treepack
          >>> data = treepack.dumps({"params": {"w": np.zeros((3, 4), np.float32)}, "step": 7})
          >>> with treepack.open(data) as file:
          ...     for info in file.infos():
          ...         print(info.path, info, info.nbytes)
          params/w float32[3,4] 48
          step int 1
        """
        for path, value in _paths.PathBudget().all(self._catalog.leaves(self._place.value)):
            yield Info.at(self._place.reader, value, path)

    def levels(self, depth: int | None = None) -> Iterator[tuple[int, str, Info]]:
        """Describes the containers and leaves below, each container before its children.

        Args:
          depth: The number of levels; all by default.

        Yields:
          The level, from 0, the key, and the description.

        Examples:
          >>> import numpy as np, treepack
          >>> with treepack.open(treepack.dumps({"params": {"w": np.zeros(3)}})) as file:
          ...     for level, key, info in file.levels():
          ...         print(level, key, info)
          0 params 1 leaf
          1 w float64[3]
        """
        return levels(self._place.reader, self._place.value, 0, depth, _paths.Trail())

    @property
    def nbytes(self) -> int:
        """The total size of its leaves in bytes, uncompressed and without headers."""
        return totals(self._catalog, self._place.value)[1]

    @property
    def num_params(self) -> int:
        """The number of elements of its arrays.

        Of packed bytes, such as `F4_packed`, the elements that they represent; unreadable members
        of npz have none.
        """
        kinds = self._catalog.kinds(self._place.value)
        arrays = [(*dtype_and_shape(kind), count) for kind, count, _ in kinds if kind[0] == "array"]
        return sum(
            count * _dtypes.elements_in(dtype, math.prod(shape)) for dtype, shape, count in arrays
        )

    def to_dict(self) -> Any:
        """Loads it into dicts and lists of NumPy arrays.

        Examples:
          >>> import numpy as np, treepack
          >>> with treepack.open(treepack.dumps({"w": (np.ones(2), 7)})) as file:
          ...     print(file.to_dict(), file.num_params)
          {'w': [array([1., 1.]), 7]} 2
        """
        return self.load(arrays="numpy", containers="plain")

    @takes(PartOptions)
    def load(
        self,
        target: Any = None,
        *,
        return_report: bool = False,
        **options: Unpack[PartOptions],
    ) -> Any:
        """Loads this container or a part of it; all paths are relative to it.

        Takes the options of `treepack.load`, except `mmap`, `base`, `max_size`, `storage_options`.
        Without a target, a file without a record becomes dicts. After `open(salvage=True)`, damaged
        leaves are left out, or with `missing="target"` stay the target's.

        Examples:
          >>> import numpy as np, treepack
          >>> data = treepack.dumps({"params": [np.ones(2), np.zeros(2)], "step": 7})
          >>> with treepack.open(data) as file:
          ...     print(file["params"].load(), file.load(select="step"))
          [array([1., 1.]), array([0., 0.])] {'step': 7}
        """
        selection = Selection.of({**options, "return_report": return_report})
        reading = Reading.of(options)
        together = sharing(target, reading, Sharing.of(options))
        reader = self._place.reader
        selection.drops = reader.salvages and not selection.verify and "on_corrupt" not in options
        with naming(reader.given), together as group:
            return load_part(self._place, target, selection, reading, group)

    @advised
    def abstract(
        self,
        *,
        unknown: Unknown = "error",
        containers: Containers = "saved",
        static: Any = None,
    ) -> Any:
        """Returns the tree with `jax.ShapeDtypeStruct`s for arrays; see `treepack.abstract`."""
        check("unknown", unknown)
        check("containers", containers)
        reader = self._place.reader
        if lost := reader.unknown(self._place.value):
            warn(
                f"{reader.name}: {reader.listed(lost)} damaged or unsupported, and described as "
                "bytes"
            )
        with naming(reader.given):
            if isinstance(reader, MappedReader):
                reader.check_has_no_code(self._place.parts, lambda _: True)
            is_plain = containers == "plain"
            tree = self._place.abstract(
                unknown_as_dict=unknown == "dict", plain=is_plain, static=static
            )
            if static is not None and containers == "saved":
                warn_of_unused(static, tree)
            return tree

    def __repr__(self) -> str:
        if self._place.reader.is_closed:
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

        title = Text(f"{self._title()}: {self._summary()}")  # rich would parse a str as markup
        table = Table(title=title, caption=self._and_more() or None)
        for name, justify in (("path", "left"), ("kind", "left"), ("size", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for row in self._rows():
            table.add_row(*map(Text, row))
        return table

    def _title(self) -> str:
        name = type(self).__name__
        return f"treepack.{name} {self._place.reader.name}" + (
            f" at {printable(_paths.text(self._place.parts))}" if self._place.parts else ""
        )

    def _summary(self) -> str:
        count, nbytes = totals(self._catalog, self._place.value)
        return f"{count_text(count)}, {size_text(nbytes)}"

    def _rows(self) -> list[tuple[str, str, str]]:
        leaves = itertools.islice(self._catalog.leaves(self._place.value), MOST_ROWS)
        infos = (Info.at(self._place.reader, value, path) for path, value in leaves)
        return [(path_end(printable(it.path)), str(it), size_text(it.nbytes)) for it in infos]

    def _and_more(self) -> str:
        more = self._catalog.totals(self._place.value)[0] - MOST_ROWS
        return f"\n  and {more} more" if more > 0 else ""

    def __reduce__(self) -> Any:
        return Tree, (self._place,)


class _Keys(KeysView[str]):
    def __repr__(self) -> str:
        return f"KeysView([{shortened((repr(path_end(key)) for key in self), len(self))}])"


class File(Tree):
    """An open file, the result of `open`: a `Tree` and a context manager.

    Threads may share it. It can be pickled unless it is of a file object: unpickling opens the file
    again.

    Examples:
      >>> import numpy as np, treepack
      >>> data = treepack.dumps({"w": np.ones((100, 8))}, metadata={"step": 3})
      >>> with treepack.open(data) as file:
      ...     print(file.metadata, file.damage, file["w"][:2, 0])
      {'step': 3} None [1. 1.]
    """

    def __init__(self, reader: Reader, unknown: Unknown = "error"):
        self._place = Place(reader, 0, [])
        self._unknown = unknown

    @property
    def metadata(self) -> Any:
        """The `metadata` of the save, or `None`.

        Raises:
          UnregisteredTypeError: If a type in it is not registered, unless `open` had
            `unknown="dict"`.
        """
        reader = self._place.reader
        with naming(reader.given):
            return metadata_in(reader.metadata_record, unknown_as_dict=self._unknown == "dict")

    @property
    def damage(self) -> str | None:
        """A description of damage to the file, or `None`.

        With `salvage=True`, why some of it cannot be read, and which leaves cannot be verified;
        otherwise only a damaged index of a small gzip file.
        """
        reader = self._place.reader
        if (damage := reader.damage) is None:
            return None
        if unverified := reader.unverified():
            damage += f"; {reader.listed(unverified)} not verified, for lack of checksums"
        return damage.replace(SALVAGE_ADVICE, _INTACT)

    @property
    def unverified(self) -> list[str]:
        """The paths of leaves whose checksums are lost; their values may be damaged."""
        reader, budget = self._place.reader, _paths.PathBudget()
        return [budget.text(reader.catalog.path_of(value, 0)) for value in reader.unverified()]

    @property
    def format(self) -> str:
        """The format in words, such as `treepack, compressed` or `safetensors`."""
        reader = self._place.reader
        if reader.format is not None:
            return reader.format
        name = "msgpack, as of flax" if self._catalog.record is None else "treepack"
        if not reader.inflated:
            return name
        if not reader.is_patch:
            return f"{name}, compressed"
        content = Opened.of(reader.given, join=False).content
        return f"{name}, a patch of {printable(core.patch_parts(content)[0])}"

    @property
    def stored_nbytes(self) -> int:
        """The size of its files in bytes, as they are stored."""
        return self._place.reader.nbytes

    @property
    def linked(self) -> dict[str, int]:
        """The sizes of files that an earlier step wrote, by name; see `unchanged` of `Series`."""
        return {**self._place.reader.linked}

    @property
    def has_checksums(self) -> bool:
        """Whether it has checksums, which `verify` compares."""
        return self._place.reader.is_summed

    @property
    def others(self) -> list[str]:
        """The names of checkpoints of other formats in a directory of files with named arrays."""
        reader = self._place.reader
        if reader.is_one_file or reader.separator is None:
            return []
        inside = Address.of(reader.given).listed() or ()
        names = sorted(entry.name for entry in inside if not entry.is_directory)

        def is_other(name: str) -> bool:
            name = name.lower().removesuffix(".gz")
            format = formats.of_suffix(name)
            is_own = format is not None and format.name == reader.format
            return name.endswith(formats.readable_suffixes()) and not is_own

        return [*filter(is_other, names)]

    @property
    def path(self) -> str | None:
        """The path or URL, as it was passed; `None` for data in memory."""
        return self._place.reader.filename

    def close(self) -> None:
        """Closes the file. NumPy and JAX arrays that were read stay valid; lazy arrays do not."""
        self._place.reader.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return File, (self._place.reader, self._unknown)


@takes()
def open(
    source: Openable,
    *_more: Never,
    salvage: bool = False,
    mmap: bool = True,
    max_size: int | None = None,
    unknown: Unknown = "error",
    mapping: Any = None,
    storage_options: StorageOptions = None,
    **_unknown: Never,
) -> File:
    """Opens a file to inspect it and to read parts of it.

    A file of `save` has an index at its end. For other files, such as flax's, this reads all
    headers once. Arrays are read when they are used.

    Args:
      source: A path or URL (`str`, `PathLike` or `UPath`), bytes, or a seekable file object, with
        msgpack of treepack, flax or eformer, gzip of treepack, safetensors, or npz or npy of NumPy.
        Or a directory: a sharded checkpoint, or one of safetensors or Orbax.
      salvage: Whether to open a truncated or damaged file, too, with its intact leaves, which are
        compared with their checksums. `File.damage` describes the damage outside of leaves.
      mmap: Whether to map the file. `False` reads the whole file now.
      max_size: See `load`.
      unknown: Whether values of unregistered types in `metadata` are an error when it is read, or
        become dicts (`"dict"`): of their fields, or of the name of the type and the parts of the
        value.
      mapping: A `Mapping`, or its rules, by which the file is read as a tree of another layout. Its
        containers are dicts, and its arrays are assembled when they are used.
      storage_options: See `save`.

    Returns:
      The open file: a mapping of keys to children, and a context manager.

    Raises:
      DecodeError: With the byte offset and, if known, the format, if the file has another one.
      NewerVersionError: If a newer version of treepack wrote the file.
      NoIndexError: If the file is gzip of another program above 1 MiB.
      CorruptionError: If gzip is damaged (GzipCorruptionError) or truncated (GzipTruncatedError).

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"params": {"w": np.ones((1000, 8))}, "step": 3})
      >>> with treepack.open(path) as file:
      ...     print(list(file), file["params/w"].shape, file["params/w"][:2, 0], file["step"])
      ['params', 'step'] (1000, 8) [1. 1.] 3
    """
    if _more:
        raise TypeError("open() takes one path, and reads it: treepack.save writes files")
    if _unknown:
        raise unknown_option(open, min(_unknown))
    for name, value in (("unknown", unknown), ("mmap", mmap), ("salvage", salvage)):
        check(name, value)
    source = Address.or_data(source, storage_options)
    try:
        reader = open_reader(
            source, salvage="alone" if salvage else False, mmap=mmap, max_size=max_size
        )
        file = File(reader, unknown)
        return file if mapping is None else file._in_layout(mapping)
    except Exception as error:
        naming(source).add_to(error)
        raise
