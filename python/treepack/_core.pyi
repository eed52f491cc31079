"""The native core: the walk over a tree, the encoding, and what it is poured into."""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, final

import numpy as np
from typing_extensions import Buffer

__all__ = [
    "CHUNKED_MARKER",
    "MAX_DEPTH",
    "ROOT_KEY",
    "TRAILER_KEY",
    "Catalog",
    "Content",
    "Layout",
    "Manifest",
    "Marks",
    "Selector",
    "ShardGrid",
    "assemble",
    "boxes_of_range",
    "captures",
    "check_hashes",
    "compress",
    "decode_value",
    "decompress",
    "encode_value",
    "has_older_types",
    "mark_older",
    "other_kinds",
    "problems",
    "rebuild",
    "restore",
    "restore_like",
    "restore_selected",
    "stream_items",
    "thread_count",
    "trailer_metadata",
    "walk",
    "write_file",
]

_Progress = Callable[[int, int], object]

MAX_DEPTH: int
"""How deep containers may be nested."""

TRAILER_KEY: str
"""The key of the record of a tree's structure, in the map at the top."""

ROOT_KEY: str
"""The key of a tree that is a leaf, in the map at the top."""

CHUNKED_MARKER: str
"""The key that marks a map as an array in chunks."""

@final
class Layout:
    """A tree that is ready to be written.

    It keeps the arrays alive.
    """

    @property
    def nbytes(self) -> int:
        """The exact length of the encoding in bytes."""

    @property
    def hollow(self) -> list[Any]:
        """The arrays whose places are kept, and which are not written."""

    def to_bytes(self, *, threads: int | None) -> bytes:
        """Returns the encoding, copied by so many threads at most."""

    def pack_into(self, buffer: Buffer, *, offset: int, threads: int | None) -> int:
        """Writes the encoding into a buffer and returns its length."""

    def buffers(self) -> list[memoryview]:
        """Returns the encoding in pieces, of which the large ones are array memory."""

    def to_gzip(
        self, level: int | None, *, threads: int | None, progress: _Progress | None
    ) -> bytes:
        """Returns the encoding as one gzip member; `None` lets the content decide."""

    def save(
        self,
        path: str | PathLike[str],
        *,
        durable: bool,
        threads: int | None,
        progress: _Progress | None,
    ) -> None:
        """Writes the encoding to a file, which is replaced whole or not at all.

        Where there are to be checksums, so many threads at most compute them.
        """

    def save_gzip(
        self,
        path: str | PathLike[str],
        level: int | None,
        *,
        durable: bool,
        threads: int | None,
        progress: _Progress | None,
    ) -> None:
        """Writes the encoding to a gzip file, which is replaced whole or not at all."""

def walk(
    tree: Any,
    *,
    state_dict: bool,
    sort_keys: bool,
    align: int,
    max_chunk_size: float,
    overridden: list[type],
    structure: bool = False,
    metadata: bytes | None = None,
    index: bool = False,
    checksums: bool = False,
    record: bytes | None = None,
    snapshot: bool = False,
    hollow: bool = False,
) -> Layout:
    """Walks a tree, which copies only small arrays. Those on accelerators are fetched later.

    Args:
      tree: The tree.
      state_dict: Whether lists become maps, keys strings, and other containers
        their state; otherwise lists stay lists and other containers are an error.
      sort_keys: Whether the keys of dicts are sorted.
      align: A power of two up to 64 that large arrays are placed at multiples of.
      max_chunk_size: Above how many bytes an array is split.
      overridden: Natively known types that have handlers nevertheless.
      structure: Whether the structure is recorded, and written as the last pair of the map
        at the top. Only for state dicts.
      metadata: A value of `encode_value` that is written with it.
      index: Whether it is recorded where the leaves are, too.
      checksums: Whether there are checksums of the leaves, which only `Layout.save` computes:
        elsewhere, zeros are in the place of what comes after the record.
      record: A record with what stands after it, whose types, structure and metadata are taken
        instead of the tree's own.
      snapshot: Whether the layout stays what it is whatever becomes of the tree: arrays of NumPy
        are copied, those on accelerators are fetched now.
      hollow: Whether arrays are not written, only their places are kept: all those of jax, and
        those of NumPy of more than 64 bytes. Zeros are in their place.

    Raises:
      UnserializableLeafError: A TypeError. If a leaf cannot be written.
      TreepackError: A ValueError. If the tree cannot be written.
      OverflowError: If an integer is out of range.
    """

def problems(tree: Any, *, overridden: list[type]) -> list[tuple[str, str]]:
    """Returns all that keeps a tree from being written as its state: paths and reasons."""

@final
class Content:
    """Encoded bytes, wherever they are."""

    @staticmethod
    def map(path: str | PathLike[str]) -> Content:
        """Maps a regular file into memory."""

    @staticmethod
    def read(
        path: str | PathLike[str], *, progress: _Progress | None, regular: bool = False
    ) -> Content:
        """Reads a file; with `regular` it must be no directory, pipe or device.

        Raises:
          DecodeError: A ValueError. If it is one.
        """

    @staticmethod
    def lent(data: Buffer) -> Content:
        """Borrows the memory of a bytes-like object."""

    @staticmethod
    def elsewhere(read: Callable[[int, int], bytes], len: int) -> Content:
        """Reads by a function, which takes an offset and a length."""

    def indexed(self, *, max_size: int | None = None) -> Content | None:
        """Returns the content, decompressed where it is read; `None` without an index.

        Raises:
          TreepackError: If there are more than `max_size` bytes.
        """

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""

    def read_range(self, start: int, stop: int) -> bytes:
        """Returns a copy of some of the bytes."""

    def is_gzip(self) -> bool:
        """Tells whether the content starts as gzip does."""

    def has_traces_of_index(self) -> bool:
        """Tells whether it ends as gzip with an index does.

        That is damaged if `indexed` finds none.
        """

    def inflate(
        self, *, max_size: int | None = None, threads: int | None, progress: _Progress | None
    ) -> Content:
        """Returns the content, decompressed.

        Raises:
          TreepackError: If there are more than `max_size` bytes.
        """

@final
class Manifest:
    """What holds the files of a sharded checkpoint together; see `src/manifest.rs`."""

    @staticmethod
    def encode(
        layout: Layout,
        files: list[tuple[str, int, int]],
        arrays: list[tuple[list[int], list[int], bool]],
    ) -> bytes:
        """Returns the manifest of a tree whose arrays are in files.

        Args:
          layout: The encoding of the tree, made with `hollow=True`.
          files: The name of each file, how many bytes it has, and the CRC-32 of its record.
          arrays: For each of `layout.hollow` how many shards it has in each dimension, the number
            of the file of each, and whether it is of the host; see `grid` and `file_of`.
        """

    def with_files(self, files: list[tuple[str, int, int]]) -> bytes:
        """Returns the same manifest with as many other files."""

    @staticmethod
    def decode(data: bytes, *, max_size: int | None = None) -> Manifest:
        """Reads a manifest.

        Args:
          data: The file.
          max_size: The most bytes that what is compressed in it may have.

        Raises:
          DecodeError: A ValueError. If it is none, or is damaged.
          TreepackError: If there are more bytes inside.
        """

    @property
    def files(self) -> list[tuple[str, int, int]]:
        """The name of each file, how many bytes it has, and the CRC-32 of its record."""

    @property
    def content(self) -> Content:
        """The encoding of the tree, of which the bytes of arrays are not there."""

    @property
    def inflated(self) -> int:
        """How many bytes what is compressed in it has."""

    def grid(self, array: int) -> tuple[list[int], bool]:
        """Returns how an array is split into shards of one shape.

        Returns:
          How many there are in each dimension; and whether it is an array of the host, not of
          devices, which is one shard.
        """

    def file_of(self, array: int, shard: int) -> int:
        """Returns the number of the file of a shard; the last dimension varies fastest."""

_BoxBounds = Sequence[tuple[int, int, int]]

@final
class ShardGrid:
    """How an array is cut into shards of one shape.

    They have numbers; the last dimension varies fastest.
    """

    def __new__(cls, shape: Sequence[int], counts: Sequence[int]) -> ShardGrid:
        """Takes how many shards there are in each dimension.

        Raises:
          ValueError: If they would not have one shape.
        """

    def __len__(self) -> int: ...
    def shard_at(self, start: Sequence[int]) -> int:
        """Returns the shard that begins at an index of the array.

        Raises:
          ValueError: If none does.
        """

    def bounds(self, shard: int) -> list[tuple[int, int]]:
        """Returns from where to where a shard is in each dimension."""

    def name(self, shard: int) -> str:
        """Returns the key of a shard in its file: `[0:4,8:16]`."""

    def parts(
        self, bounds: _BoxBounds
    ) -> list[tuple[int, list[tuple[int, int, int]], list[tuple[int, int]]]]:
        """Returns what shards have of a box.

        Args:
          bounds: See `Catalog.read_box`.

        Returns:
          The number of each shard, its part as a box of the shard, and from where to where that is
          in each dimension of the box.

        Raises:
          IndexError: If there is no such box in the array.
        """

def boxes_of_range(shape: Sequence[int], start: int, stop: int) -> list[list[tuple[int, int]]]:
    """Returns boxes that are a range of the elements of an array, one after the other.

    Raises:
      IndexError: If the array has fewer.
    """

@final
class Selector:
    """Compiled patterns of paths, or a tree of bools; see `_patterns`."""

    @staticmethod
    def patterns(patterns: list[tuple[str, bool]]) -> Selector:
        """Compiles patterns, each with whether it is literal: a path without wildcards."""

    @staticmethod
    def bools(bools: list[tuple[list[str], bool]]) -> Selector:
        """Compiles a tree of bools: each is for all below its keys where no other is nearer."""

    def means(self, keys: list[str]) -> bool | None:
        """Tells whether a leaf is meant; `None` if no bool is for it."""

    def matching(self, keys: list[str]) -> list[int]:
        """Returns the numbers of the patterns that match a leaf, or a container around it."""

@final
class Marks:
    """Which leaves and empty containers of a `Catalog` are meant."""

    def __contains__(self, value: int, /) -> bool: ...
    @property
    def values(self) -> list[int]:
        """The values that are meant, in their order."""

    @property
    def unmatched(self) -> list[int]:
        """The numbers of the patterns that match nothing."""

    @property
    def undecided(self) -> int | None:
        """The first leaf that no bool is for."""

def captures(pattern: str, path: str) -> tuple[list[str], str] | None:
    """Matches a pattern to the first parts of a path.

    Returns:
      The text that each wildcard stands for, the first ones as long as can be, and the rest of the
      path; `None` if it does not match.
    """

@final
class Catalog:
    """What is in encoded data: containers and leaves. They have numbers, the root has 0."""

    @staticmethod
    def open(content: Content, *, salvage: bool) -> Catalog:
        """Finds all leaves; with `salvage` those that there are in damaged data.

        Raises:
          DecodeError: A ValueError. If the data is no such encoding.
        """

    def __len__(self) -> int: ...
    def totals(self, value: int) -> tuple[int, int]:
        """Returns how many leaves there are in a value, and how many bytes they have."""

    @property
    def trailer(self) -> bytes | None:
        """The record of the structure, with what stands after it."""

    @property
    def damage(self) -> str | None:
        """What is wrong with data of which only a part could be read."""

    @property
    def is_summed(self) -> bool:
        """Whether `verify` has something to compare with."""

    def find(self, keys: list[str], value: int) -> int | None:
        """Returns the value that keys lead to from another one."""

    def children(self, value: int) -> list[tuple[str, int]] | None:
        """Returns the keys and values in a container; `None` for a leaf."""

    def is_list(self, value: int) -> bool:
        """Tells whether a value is a list, and not a map."""

    def without_content(self) -> Catalog:
        """Returns the same without the data: it tells what is where, and reads nothing."""

    def leaves(self, value: int) -> Iterator[tuple[str, int]]:
        """Yields the paths and values of all leaves below a value, in their order.

        All paths may be much larger than the data: each is made when it is asked for.
        """

    def ends(self, value: int) -> Iterator[tuple[str, int]]:
        """Yields those and the containers with nothing in them."""

    @property
    def stream_damage(self) -> str | None:
        """What is wrong with a gzip stream around the data, whose blocks may all be whole."""

    @property
    def dtypes(self) -> list[str]:
        """The names of all dtypes that leaves have."""

    def leaf_values(self, value: int) -> list[int]:
        """Returns the leaves below a value."""

    @property
    def values(self) -> int:
        """How many values there are."""

    def leaf(self, value: int) -> tuple[int, tuple[Any, ...], int, int, int]:
        """Returns the number of a leaf among all leaves, what it is, and where.

        What it is: `("array", dtype, shape)`, `("scalar", dtype, ())`, `("prng_key",
        implementation, shape of its data)`, or `("int",)` and the like. Where: from which
        byte to which, and from which byte on it is summed.
        """

    def read(
        self,
        value: int,
        *,
        copy: bool | None,
        threads: int | None,
        marks: Marks | None = None,
        absent: Any = None,
        abstract: bool = False,
    ) -> Any:
        """Reads a value.

        Args:
          value: A leaf, or a container: its state.
          copy: See `restore`.
          threads: See `restore`.
          marks: Which of the values that `ends` tells are read; `None` for all.
          absent: Stands in the state for the others.
          abstract: Whether no array is read; `_leaves.abstract` makes what stands for it.
        """

    def path_of(self, value: int, start: int) -> str:
        """Returns the path to a value from one around it."""

    def select(self, value: int, selector: Selector) -> Marks:
        """Marks the leaves and empty containers below a value that a selector means.

        Paths begin at the value. Of a container with nothing in it that no bool is for, the
        nearest container around it that has leaves decides: it is meant if all of those are.
        """

    def select_by(self, value: int, is_meant: Callable[[str], object]) -> Marks:
        """Marks the leaves and empty containers below a value by a predicate on their paths."""

    def mark(self, values: set[int]) -> Marks:
        """Marks these leaves and empty containers."""

    def read_bytes(self, value: int, start: int, stop: int) -> np.ndarray:
        """Reads a range of the bytes of an array into a fresh array of bytes.

        Raises:
          IndexError: If the array has fewer.
        """

    def read_box(self, value: int, bounds: _BoxBounds) -> np.ndarray:
        """Reads a box of an array into a fresh array of bytes.

        Args:
          value: An array.
          bounds: For each dimension, where the box begins, how many indices it has, and how far
            apart they are.

        Raises:
          IndexError: If there is no such box in the array.
        """

    def read_box_to(
        self,
        value: int,
        bounds: _BoxBounds,
        target: np.ndarray,
        at: int,
        strides: Sequence[int],
        *,
        threads: int | None,
    ) -> None:
        """Reads a box of an array to memory.

        Args:
          value: See `read_box`.
          bounds: See `read_box`.
          target: An array in C order that can be written.
          at: After how many of its bytes the first element of the box goes.
          strides: For each dimension, how many bytes further on the next element goes.
          threads: How many threads read, at most.

        Raises:
          IndexError: If there is no such box in the array, or no room for it in memory.
        """

    def prefetch(self, value: int, bounds: _BoxBounds) -> None:
        """Begins to read a box of an array, if the data are a mapped file."""

    def prefetch_only(self, boxes: Sequence[tuple[int, _BoxBounds]]) -> None:
        """Begins to read boxes of arrays, by their values, in another thread.

        What is around them is not read ahead any more from then on.
        """

    def array_elsewhere(self, value: int) -> int | None:
        """Returns the number of the array whose bytes a leaf has, and which is in other files.

        `None` if the bytes are here.

        Raises:
          DecodeError: A ValueError. If something else is missing.
        """

    def pieces(self, value: int) -> tuple[Content, list[tuple[int, int]]]:
        """Returns the data, and from where to where in them an array's bytes are."""

    def verify(
        self, *, threads: int | None, progress: _Progress | None
    ) -> list[Literal["ok", "corrupt", "unchecked"]]:
        """Compares the data with their checksums, and their headers with the index.

        Returns:
          What is known of each leaf, and of what lies between the last one and the record.
        """

    def unlike_index(self) -> list[int]:
        """Returns the numbers of the leaves whose headers are not what the index says.

        One more is that of what lies between the last leaf and the record.
        """

def thread_count(threads: int | None) -> int:
    """Returns how many threads work where so many are asked for.

    Raises:
      ValueError: If that is no number of threads.
    """

def write_file(path: str | PathLike[str], data: bytes, *, durable: bool) -> None:
    """Writes a file, which is replaced whole or not at all."""

def restore(
    data: Buffer | Content,
    copy: bool | None,
    threads: int | None,
    *,
    abstract_arrays: bool = False,
    part: tuple[int, int] | None = None,
) -> Any:
    """Returns the tree that `data` encodes, with arrays that view it.

    `part` is from where to where in a `Content` the tree is. With `abstract_arrays` no array is
    read, and `_leaves.abstract` makes what stands for it.

    Raises:
      DecodeError: A ValueError. If the data is no such encoding.
    """

def restore_like(
    data: Buffer | Content,
    template: Any,
    strict: bool | Literal["exact"],
    converts: bool,
    copy: bool | None,
    threads: int | None,
) -> Any | None:
    """Returns a template with what `restore` returns in it, in one step.

    `None` where that is not just like the template: other keys or another order, leaves that do not
    plainly match, containers that only Python knows, errors. With `converts`, all arrays that are
    not plainly what the template has are such leaves.
    """

def restore_selected(
    file: Catalog,
    value: int,
    template: Any,
    settle: Callable[[list[tuple[str, Any, Any]]], list[Any] | None],
    *,
    marks: Marks | None,
    selector: Selector | None,
    strict: bool,
    converts: bool,
    keeps_missing: bool,
    refuses_more: bool,
    note: bool,
    copy: bool | None,
    threads: int | None,
) -> tuple[Any, tuple[list[str], list[tuple[str, Any]]]] | None:
    """Restores leaves of a file in a template, if its containers plainly fit.

    Args:
      file: The file.
      value: The part of it that the template is for.
      template: The template.
      settle: Takes the paths of leaves that do not plainly match, those of the template, and those
        that were read. Returns what takes their places, or `None` if they do not match.
      marks: Which leaves are read; `None` for all. The others stay as in the template.
      selector: Tells whether a leaf is meant that the file lacks; `None` if nobody can.
      strict: Whether leaves are compared.
      converts: Whether arrays that are to become those of jax are settled.
      keeps_missing: Whether leaves that the file lacks stay as in the template.
      refuses_more: Whether the file may have no leaf that a dict of the template lacks.
      note: Whether paths are noted.
      copy: See `restore`.
      threads: See `restore`.

    Returns:
      The tree and, if they are noted, the paths of leaves that were read, and the parts of the
      template that stayed with their paths. `None` if the tree has to be restored in another way,
      which tells why it does not fit.
    """

def stream_items(content: Content) -> list[tuple[list[str], int, int]]:
    """Returns the keys of the leaves of a stream, and from where to where they are."""

def rebuild(target: Any, state: Any, name: str, restore: Any) -> Any:
    """Returns a template's child with its state, as `_restore.restore_child` does.

    Dicts, lists, tuples and matching leaves are handled natively.
    """

def assemble(
    state: Any,
    trailer: bytes,
    *,
    convert: Callable[[list[tuple[str, Any, Any]]], list[Any]] | None,
    unknown_as_dict: bool,
    placeholders: bool,
    static: Any,
    absent: Any = None,
    at: list[tuple[int, int]] = ...,
) -> Any:
    """Returns the tree that a state dict was made of.

    Args:
      state: The state. Its dicts may become part of the tree.
      trailer: The record of the structure.
      convert: Takes all leaves that were arrays of jax, each with its path and `None`; returns
        what takes their places.
      unknown_as_dict: Whether nodes of types that are not known become dicts.
      placeholders: Whether the leaves are none that the code of types could work with.
      static: What fills the holes of static data; see `_holes`.
      absent: What stands in the state for what was not read. Containers that are not whole become
        dicts of what there is, and what has nothing is absent itself.
      at: The state is that of a part of the tree: which child leads there, and of how many, from
        the root on.

    Raises:
      DecodeError: A ValueError. If the record is damaged, or is not that of the state.
    """

def mark_older(
    state: Any, trailer: bytes, mark: Callable[[Any, list[tuple[int, int]]], Any], *, at: Any = ...
) -> Any:
    """Returns a state dict with marks for nodes that are to be upgraded.

    Args:
      state: The state, which stays as it is.
      trailer: The record of its structure.
      mark: Takes the state of such a node and where it is, as `at`; returns the mark.
      at: See `assemble`.

    Raises:
      DecodeError: A ValueError. If the record is damaged, or is not that of the state.
    """

def other_kinds(target: Any, state: Any, trailer: bytes, *, at: Any = ...) -> dict[str, str] | None:
    """Returns what containers were saved as, unless a template plainly has the same.

    Args:
      target: The template.
      state: A state dict.
      trailer: The record of its structure.
      at: See `assemble`.

    Returns:
      By path, of containers that are no dicts with strings as keys: `list`, `tuple`, `keys` for a
      dict with others, or the name of a type.

    Raises:
      DecodeError: A ValueError. If the record is damaged, or is not that of the state.
    """

def has_older_types(trailer: bytes) -> bool:
    """Tells whether `mark_older` has something to mark."""

def trailer_metadata(trailer: bytes) -> Any:
    """Returns the metadata in the record of a structure, or `None`."""

def encode_value(value: Any) -> bytes:
    """Returns a value with its type as bytes; see `_auxdata`."""

def decode_value(data: bytes) -> Any:
    """Returns the value that `encode_value` made bytes of.

    Raises:
      DecodeError: A ValueError. If the bytes are damaged.
    """

def check_hashes(keys: object) -> None:
    """Raises if too many keys of a list have the same hash, so that a dict of them would be slow.

    Raises:
      DecodeError: A ValueError. If that is so.
      TypeError: If one cannot be hashed.
    """

def compress(
    data: Buffer, level: int | None, *, threads: int | None, progress: _Progress | None
) -> bytes:
    """Returns data as one gzip member; `None` lets the content decide."""

def decompress(
    data: Buffer, *, max_size: int | None, threads: int | None, progress: _Progress | None
) -> bytes:
    """Returns what all members of a gzip stream contain."""
