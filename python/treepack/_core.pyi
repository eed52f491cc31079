"""The native core: walks and encodes trees, writes the output, reads and restores."""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from types import ModuleType
from typing import Any, ClassVar, Literal, final

import numpy as np
from typing_extensions import Buffer

__all__ = [
    "ALIGN_MIN_BYTES",
    "CHUNKED_MARKER",
    "MAX_DEPTH",
    "RECORD_KEY",
    "RECORD_MARK",
    "ROOT_KEY",
    "Catalog",
    "Class",
    "Content",
    "Layout",
    "Manifest",
    "Marks",
    "Pipe",
    "Replacement",
    "Selector",
    "ShardBox",
    "ShardGrid",
    "ShardPlan",
    "Shards",
    "Tensors",
    "apply_delta",
    "assemble",
    "check_hashes",
    "check_unique_keys",
    "convert",
    "convertible",
    "copy_array",
    "decode_value",
    "decompress",
    "described",
    "digests",
    "encode_value",
    "fresh_memory",
    "has_older_types",
    "is_compressed",
    "is_patch",
    "is_wrapped",
    "join",
    "join_digests",
    "lay_raw",
    "make_directories",
    "mark_older",
    "patch_parts",
    "problems",
    "ranges_of_box",
    "record_digests",
    "record_metadata",
    "record_ties",
    "remove_if_dead",
    "restore",
    "restore_encoded",
    "restore_recorded",
    "restore_selected",
    "restore_state",
    "set_hooks",
    "stream_items",
    "thread_count",
    "walk",
]

_Progress = Callable[[int, int], object]

MAX_DEPTH: int
"""The maximum depth of nested containers."""

RECORD_KEY: str
"""The key of the record in the top-level map."""

RECORD_MARK: bytes
"""The last bytes of an encoding that has a record."""

ROOT_KEY: str
"""The key of a tree that is a single leaf, in the top-level map."""

ALIGN_MIN_BYTES: int
"""The size in bytes from which arrays are aligned in files."""

CHUNKED_MARKER: str
"""The key that marks a map as an array in chunks."""

@final
class Layout:
    """A tree that is ready to be written. Keeps the arrays alive."""

    @property
    def nbytes(self) -> int:
        """The exact length of the encoding in bytes."""

    @property
    def gaps(self) -> list[Any]:
        """The arrays that are not written, but have reserved space."""

    def to_bytes(self, *, threads: int | None) -> bytes:
        """Returns the encoding, copied by at most `threads` threads."""

    def pack_into(self, buffer: Buffer, *, offset: int, threads: int | None) -> int:
        """Writes the encoding into a buffer and returns its length."""

    def buffers(self) -> list[memoryview]:
        """Returns the encoding in pieces; the large ones are views of array memory."""

    def to_gzip(
        self,
        level: int | None,
        *,
        numbers: bool = False,
        threads: int | None,
        progress: _Progress | None,
    ) -> bytes:
        """Returns the encoding as one gzip member, or compressed as numbers.

        With level `None`, the level depends on the content.
        """

    def save(
        self,
        place: str | PathLike[str] | Pipe,
        *,
        compress: bool | str,
        level: int | None,
        durable: bool,
        threads: int | None,
        progress: _Progress | None,
    ) -> int:
        """Writes the encoding to a file, atomically, or to a pipe.

        At most `threads` threads compress it or compute the checksums. Returns the number of bytes.
        """

@final
class Pipe:
    """An end of a pipe: `Layout.save` writes to one end, and the other is read."""

    @staticmethod
    def pair() -> tuple[Pipe, Pipe]:
        """Returns the end to read from and the end to write to of a new pipe."""

    def read(self, most: int) -> bytes:
        """Returns the next bytes: fewer than `most` only at the end."""

    def close(self) -> None:
        """Closes this end, once its file is not in use."""

def walk(
    tree: Any,
    *,
    state_dict: bool,
    sort_keys: bool = False,
    align: int,
    max_chunk_size: float,
    overridden: list[type] = ...,
    left_out: object = None,
    structure: bool = False,
    metadata: bytes | None = None,
    index: bool = False,
    checksums: bool = False,
    digests: bool = False,
    record: bytes | None = None,
    snapshot: bool = False,
    gaps: bool = False,
    align_all: bool = False,
    joined: bool = False,
    base: Layout | Content | Catalog | None = None,
    base_name: str = "",
    threads: int | None = None,
) -> Layout:
    """Walks a tree. Copies only small arrays; arrays on accelerators are fetched later.

    Args:
      tree: The tree.
      state_dict: Whether lists become maps, keys strings, and other containers
        their state; otherwise lists stay lists and other containers are an error.
      sort_keys: Whether to sort the keys of dicts.
      align: A power of two up to 64; large arrays are placed at its multiples.
      max_chunk_size: Arrays of more bytes are split.
      overridden: Natively known types that have handlers.
      left_out: The `Recorder` of the save; described trees with other nodes than dicts need it.
      structure: Whether to record the structure, as the last pair of the map at the top. Only for
        state dicts.
      metadata: Metadata for the record, by `encode_value`.
      index: Whether to record the places of the leaves, too.
      digests: Whether the record has the digests of the arrays; with `checksums`, `Layout.save`
        computes them from the bytes that it writes.
      checksums: Whether to reserve space for checksums of the leaves, which only `Layout.save`
        computes: other outputs have zeros after the record.
      record: A record, and the bytes after it, whose types, structure and metadata replace the
        tree's.
      snapshot: Whether later changes of the tree must not affect the layout: NumPy arrays are
        copied, and arrays on accelerators fetched, now.
      gaps: Whether to write gaps in place of arrays: all JAX arrays, and NumPy arrays of more
        than 64 bytes.
      align_all: Whether arrays below 1 KiB are aligned, too: at least for their dtype.
      joined: Whether only `Layout.to_bytes` will be called: small arrays are copied to the result
        at once.
      base: Encoded data, or a layout. The result is a patch of it; see `join`.
      base_name: The file of the base, relative to that of the patch.
      threads: The maximum number of threads that make a patch.

    Raises:
      UnserializableLeafError: A TypeError. If a leaf cannot be written.
      TreepackError: A ValueError. If the tree cannot be written.
      OverflowError: If an integer is out of range.
    """

def lay_raw(header: bytes, arrays: list[Any], *, snapshot: bool) -> Layout:
    """Lays out a header of another format, and then the bytes of arrays in C order.

    Args:
      header: The header.
      arrays: NumPy or JAX arrays, NumPy scalars, or deferred arrays.
      snapshot: See `walk`.

    Raises:
      TreepackError: A ValueError. If an array cannot be read.
    """

def digests(arrays: list[Any], *, threads: int | None) -> bytes:
    """Returns the digests of arrays, 16 bytes each, in their order.

    A digest is the CRC-64/NVME and the CRC-64/XZ of the bytes in C order, big-endian.

    Args:
      arrays: See `lay_raw`.
      threads: The maximum number of threads.

    Raises:
      TreepackError: A ValueError. If an array cannot be read.
    """

def join_digests(first: bytes, second: bytes, nbytes: int) -> bytes:
    """Returns the digest of two parts of an array, one after the other.

    Args:
      first: The digest of the first part.
      second: The digest of the second part.
      nbytes: The number of bytes of the second part.
    """

def is_compressed(data: Buffer | Content, *, by_start: bool = False) -> bool:
    """Returns whether data start like gzip, or are compressed as numbers.

    Args:
      data: The data.
      by_start: Whether to read the start even of remote files that end like a file of treepack.
    """

def is_patch(data: Buffer | Content) -> bool:
    """Returns whether data end as a patch does."""

def is_wrapped(data: Buffer) -> bool:
    """Returns whether data are compressed or a patch: one call for small messages."""

def patch_parts(patch: Content, *, salvage: bool = False) -> tuple[str, bytes | None]:
    """Returns the file of the base that a patch names, and the record of its structure, if any.

    The file is relative to the patch, or an empty string. With `salvage`, the record of a damaged
    patch is read without its checksum.

    Raises:
      DecodeError: A ValueError. If the patch is damaged; with `salvage`, if its record is.
    """

def join(
    patch: Content,
    base: Layout | Content | Catalog,
    *,
    max_size: int | None,
    threads: int | None,
    salvage: bool = False,
) -> tuple[Content, list[str], str | None]:
    """Makes the encoding of a patch and its base.

    With `salvage`, it has zeros for arrays that are lost by damage to the patch or its base; they
    differ from their checksums.

    Returns:
      The encoding, the paths of the arrays of the base that do not change, and a description of
      damage, or `None`.

    Raises:
      BaseMismatchError: A ValueError. If the patch was made against another base; with `salvage`,
        if no array matches.
      DecodeError: A ValueError. If the patch is damaged, without `salvage`.
      TreepackError: A ValueError. If the encoding has more than `max_size` bytes.
    """

def apply_delta(patch: Buffer, buffer: Buffer, *, offset: int, threads: int | None) -> int:
    """Replaces the encoding of the base in a buffer by that of the patch; returns its length."""

def problems(tree: Any, *, overridden: list[type]) -> list[tuple[str, str]]:
    """Returns the paths of all parts of a tree that cannot be written, with the reasons."""

@final
class Tensors:
    """The header of a safetensors file."""

    @staticmethod
    def read(content: Content, *, salvage: bool = False) -> Tensors:
        """Reads the header, and no array.

        With `salvage`, a file that ends too early or too late has the arrays that are whole in it.

        Raises:
          DecodeError: A ValueError. If the reader of safetensors would refuse the file.
        """

    @staticmethod
    def dtypes() -> list[tuple[str, str]]:
        """Returns the names of NumPy's dtypes, with their names in safetensors.

        They are in the order in which the writer of safetensors sorts arrays.
        """

    @property
    def checksum(self) -> int:
        """The CRC-32 of the header."""

    @property
    def damage(self) -> str | None:
        """Where a file ends too early or too late, and the arrays that it lacks; or `None`."""

    @property
    def metadata(self) -> dict[str, str] | None:
        """The texts under `__metadata__`."""

    def arrays(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Returns the name, dtype, shape and offset of each array, in the order of their bytes."""

    def layout(
        self, content: Content, metadata: bytes | None = None, *, beside: list[str] = ...
    ) -> Layout:
        """Lays out the tree of the arrays, which lie in `content`; dots in names are levels.

        Names are divided into keys as in a tree that also has the names `beside`.

        Raises:
          DecodeError: A ValueError. If names do not form a tree.
        """

    @staticmethod
    def manifest(
        headers: list[Tensors],
        contents: list[Content],
        files: list[tuple[str, int]],
        index: dict[str, str],
        metadata: bytes | None = None,
        *,
        max_size: int | None = None,
    ) -> tuple[Manifest, Layout]:
        """Makes the manifest of several files, which is not written, and lays out their arrays.

        Args:
          headers: Their headers.
          contents: Their contents, in which the arrays of the layout lie.
          files: Their names and sizes in bytes.
          index: The file of each array; arrays in other files are left out. Empty without an index.
          metadata: The encoded metadata.
          max_size: The maximum size of the manifest.

        Raises:
          DecodeError: A ValueError. If an array is in two files, or is missing.
          TreepackError: If the manifest is larger than `max_size`.
        """

@final
class Content:
    """Encoded bytes in a file, in memory or elsewhere."""

    @staticmethod
    def map(path: str | PathLike[str]) -> Content:
        """Opens a regular file, and maps it into memory if the system can do that."""

    @staticmethod
    def read(
        path: str | PathLike[str], *, progress: _Progress | None, regular: bool = False
    ) -> Content:
        """Reads a file.

        Raises:
          DecodeError: A ValueError. If `regular` and it is a directory, pipe or device.
        """

    @staticmethod
    def lent(data: Buffer) -> Content:
        """Borrows the memory of a bytes-like object."""

    @staticmethod
    def elsewhere(read: Callable[[int, int], Buffer], len: int, near: int) -> Content:
        """Reads with a function.

        Args:
          read: Takes an offset and a length, returns between 1 and length bytes.
          len: The number of bytes.
          near: Ranges that are less than `near` bytes apart are read together.
        """

    @staticmethod
    def laid(layout: Layout, files: list[Content]) -> Content:
        """Presents a layout without checksums as content, whose arrays are read where they lie.

        Args:
          layout: The layout.
          files: The contents with its arrays; empty if functions read them.
        """

    def stored(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the range of the file that a range of the content is decompressed from.

        In a layout, it is the range of the bytes of arrays.
        """

    def mended(self, *, max_size: int | None = None) -> Content | None:
        """Returns the content of a stream of treepack whose header is damaged; `None` otherwise.

        Raises:
          TreepackError: If it has more than `max_size` bytes.
        """

    def indexed(self, *, max_size: int | None = None) -> Content | None:
        """Returns the content of indexed blocks, decompressed on access; `None` without an index.

        Raises:
          TreepackError: If it has more than `max_size` bytes.
        """

    @property
    def has_memory(self) -> bool:
        """Whether the bytes lie in memory or are mapped, so that arrays can view them."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    def read_range(self, start: int, stop: int) -> bytes:
        """Returns a copy of a range of bytes."""

    def has_traces_of_index(self) -> bool:
        """Returns whether the content ends like gzip or numbers with an index.

        The index is damaged if `indexed` finds none.
        """

    def in_memory(self, *, progress: _Progress | None) -> Content:
        """Reads all bytes into memory, which arrays then view."""

    def inflate(
        self, *, max_size: int | None = None, threads: int | None, progress: _Progress | None
    ) -> Content:
        """Returns the content, decompressed.

        Raises:
          TreepackError: If it has more than `max_size` bytes.
        """

    def salvage(self, *, max_size: int | None) -> tuple[Content, str | None]:
        """Returns the content, decompressed up to its first damage, and describes the damage.

        Raises:
          TreepackError: If it has more than `max_size` bytes.
        """

@final
class Manifest:
    """The list of the files and arrays of a sharded checkpoint; see `src/sharding/manifest.rs`."""

    @staticmethod
    def planned(layout: Layout, plan: ShardPlan) -> Manifest:
        """Makes the manifest of a tree whose arrays will be in other files.

        Args:
          layout: The encoding of the tree, made with `gaps=True`.
          plan: The plan of the arrays in `layout.gaps`.
        """

    def with_files(
        self,
        files: list[tuple[str, int, int]],
        writer: str | None = None,
        places: list[list[int]] | None = None,
    ) -> bytes:
        """Encodes the same manifest with other files, and their writer in words.

        Args:
          files: As many as it has, and perhaps more, which have no shards without `places`.
          writer: The process that writes it.
          places: For each writing process of the plan, the number of the file of each of its
            shards, in order. `None`: its shards are in the file with its index.

        Raises:
          IndexError: If `places` lacks a shard, or has a number without a file.
        """

    @staticmethod
    def decode(data: bytes, *, max_size: int | None = None) -> Manifest:
        """Reads a manifest.

        Args:
          data: The file.
          max_size: The maximum decompressed size of its compressed parts in bytes.

        Raises:
          DecodeError: A ValueError. If it is not a manifest, or is damaged.
          TreepackError: If its compressed parts have more bytes.
        """

    @property
    def writer(self) -> str:
        """A description of the process that wrote it; empty if unknown."""

    @property
    def files(self) -> list[tuple[str, int, int]]:
        """The name of each file, its number of bytes, and the CRC-32 of its record."""

    @property
    def content(self) -> Content:
        """The encoding of the tree without the bytes of arrays."""

    @property
    def inflated(self) -> int:
        """The number of bytes of its compressed parts, decompressed."""

    def grid(self, array: int) -> tuple[list[int], bool]:
        """Returns the division of an array into shards of one shape.

        Returns:
          The number of shards in each dimension; and whether it is a host array.
        """

    def array_of(self, catalog: Catalog, value: int) -> int | None:
        """Returns the number of the array of a leaf whose bytes are in other files.

        `None` if the bytes are in the manifest. `catalog` is that of `content`.

        Raises:
          DecodeError: A ValueError. If something else is missing.
        """

    def shards(self, catalog: Catalog, value: int) -> tuple[Shards, bool] | None:
        """Returns the shards of an array, and whether it is a host array.

        `None` as `array_of`, and for dtypes that NumPy lacks.

        Raises:
          DecodeError: A ValueError. If the shards do not form a grid.
        """

@final
class ShardPlan:
    """The assignment of shards to processes that write them; see `src/sharding/plan.rs`.

    It is the same in all processes. The bytes of processes are balanced as far as possible.
    """

    def __new__(
        cls,
        arrays: Sequence[tuple[Sequence[int], int, int, bool]],
        holders: Sequence[Sequence[Sequence[int]]],
    ) -> ShardPlan:
        """Plans a save.

        Args:
          arrays: For each array the number of shards in each dimension, the index of their holders,
            the bytes of a shard, and whether it is a host array.
          holders: The processes that hold each shard, the last dimension varying fastest; arrays
            that are split alike share them.
        """

    @property
    def processes(self) -> list[int]:
        """The processes that write; their indices are the numbers of files."""

    @property
    def checksum(self) -> int:
        """A checksum of the plan."""

    def shards_of(self, array: int, process: int) -> list[int]:
        """Returns the shards of an array that a process writes."""

_BoxBounds = Sequence[tuple[int, int, int]]

@final
class ShardGrid:
    """The division of an array into shards of one shape; the last of a dimension may be shorter.

    The shards have numbers; the last dimension varies fastest.
    """

    def __new__(cls, shape: Sequence[int], counts: Sequence[int]) -> ShardGrid:
        """Takes the shape of the array, and the number of shards in each dimension.

        Raises:
          ValueError: If shards would be empty.
        """

    def __len__(self) -> int: ...
    def shard_at(self, start: Sequence[int]) -> int:
        """Returns the shard that begins at an index of the array.

        Raises:
          ValueError: If there is none.
        """

    def bounds(self, shard: int) -> list[tuple[int, int]]:
        """Returns the start and stop of a shard in each dimension."""

    def name(self, shard: int) -> str:
        """Returns the key of a shard in its file: `[0:4,8:16]`."""

@final
class Shards:
    """The shards of an array, and the number of the file of each; see `src/sharding/boxes.rs`."""

    def __len__(self) -> int: ...
    @property
    def files(self) -> list[int]:
        """The number of the file of each shard; the last dimension varies fastest."""

    def name(self, shard: int) -> str:
        """Returns the key of a shard in its file; see `ShardGrid.name`."""

    def find(self, shard: int, catalog: Catalog) -> int | None:
        """Returns the leaf of a shard in its file.

        `None` if the index of the file lacks it.
        """

    def box(self, bounds: _BoxBounds) -> ShardBox:
        """Returns a box of the array, which takes no memory for each shard.

        Args:
          bounds: See `Catalog.read_box`.

        Raises:
          IndexError: If the box exceeds the array.
        """

@final
class ShardBox:
    """A box of a sharded array.

    Its methods process the part in each shard, in the order of the shards. They take the catalogs
    of all files by number; the catalogs that it needs must not be `None`.
    """

    def __len__(self) -> int:
        """Returns the number of shards that have a part of it."""

    @property
    def files(self) -> list[tuple[int, int]]:
        """The numbers of the files that it needs, ascending, and its bytes in each."""

    def missing(self, catalogs: list[Catalog | None]) -> int | None:
        """Returns the first shard that the index of its file lacks, or `None`."""

    def places(
        self, catalogs: list[Catalog | None]
    ) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """Returns the place of each part: its file, the leaf there, and the box of that leaf."""

    def prefetch(
        self,
        catalogs: list[Catalog | None],
        explain: Callable[[int, BaseException], BaseException],
    ) -> None:
        """Starts to read it from the disk, if the files are mapped; see `read_to`."""

    def read_to(
        self,
        catalogs: list[Catalog | None],
        target: Buffer,
        at: int,
        strides: Sequence[int],
        *,
        threads: int | None,
        explain: Callable[[int, BaseException], BaseException],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Reads it to memory, without the GIL.

        Args:
          catalogs: The catalogs of the files.
          target: The memory.
          at: The offset of the first element.
          strides: The distance of elements in each dimension.
          threads: The maximum number of threads.
          explain: Returns the error to raise, from the number of a file and an error in reading it.
          check: Called regularly; may raise.

        Raises:
          IndexError: If the memory is too small.
        """

def copy_array(
    source: np.ndarray,
    shape: Sequence[int],
    itemsize: int,
    target: np.ndarray,
    at: int,
    strides: Sequence[int],
    *,
    threads: int | None,
) -> None:
    """Copies the bytes of an array in C order to memory in which it has these strides.

    Args:
      source: Its bytes.
      shape: Its shape.
      itemsize: The size of an element in bytes.
      target: Bytes that do not overlap the source.
      at: The offset of the first element in `target`.
      strides: The distances of neighbours in `target`, in bytes, in any order.
      threads: The maximum number of threads.

    Raises:
      IndexError: If the target is too small, or elements would overlap.
      ValueError: If `source` has another size, or overlaps the target.
    """

def convert(
    source: tuple[np.ndarray, int, Sequence[int]],
    kind: str | np.ndarray,
    target: tuple[np.ndarray, int, Sequence[int]],
    dtype: str,
    shape: Sequence[int],
    blocks: Sequence[tuple[int, int]],
    scales: np.ndarray | None,
    *,
    scale: float | None,
    add: float | None,
    threads: int | None,
) -> None:
    """Writes `source * scales * scale + add`, computed in float32.

    Args:
      source: Bytes, the offset of the first element, and the strides; rows are contiguous.
      kind: The dtype of the source: float16, bfloat16, float32 or float64; or the values of all 256
        elements of a dtype of one byte, as float32.
      target: Bytes that do not overlap the source, and as for the source, in C order.
      dtype: The dtype of the target: float16, bfloat16 or float32.
      shape: The shape of both, without an empty dimension.
      blocks: For each dimension, the number of elements that share a scale, and of those of the
        first block that are before the source.
      scales: The scales of all blocks that overlap the source, contiguous, as float32.
      scale: A factor.
      add: A summand.
      threads: The maximum number of threads.

    Raises:
      IndexError: If the source or target has another order or size, or the scales another number.
      ValueError: If a dtype is not supported, or the target overlaps the source.
    """

def ranges_of_box(
    shape: Sequence[int], itemsize: int, bounds: _BoxBounds, near: int
) -> list[tuple[int, int]]:
    """Returns the ranges of bytes of an array in C order that a box needs.

    Ranges that are less than `near` bytes apart are joined.

    Raises:
      IndexError: If the box exceeds the array.
    """

@final
class Selector:
    """Compiled patterns of paths, or a tree of bools; see `checkpoint/select.py`."""

    @staticmethod
    def patterns(patterns: list[tuple[str, bool]]) -> Selector:
        """Compiles patterns, each with whether it is literal: a path without wildcards."""

    @staticmethod
    def bools(bools: list[tuple[list[str], bool]]) -> Selector:
        """Compiles a tree of bools: the nearest one above a leaf selects it or not."""

    def selects(self, keys: list[str]) -> bool | None:
        """Returns whether a leaf is selected; `None` if no bool covers it."""

    def matching(self, keys: list[str]) -> list[int]:
        """Returns the numbers of the patterns that match a leaf, or a container around it."""

@final
class Marks:
    """The selected leaves and empty containers of a `Catalog`."""

    def __contains__(self, value: int, /) -> bool: ...
    @property
    def values(self) -> list[int]:
        """The selected values, in order."""

    @property
    def unmatched(self) -> list[int]:
        """The numbers of the patterns that match nothing."""

    @property
    def undecided(self) -> int | None:
        """The first leaf that no bool covers."""

@final
class Class:
    """The kinds of values that the hook `classify` distinguishes, by type."""

    UNSUPPORTED: ClassVar[Class]
    ARRAY: ClassVar[Class]
    SCALAR: ClassVar[Class]
    JAX_ARRAY: ClassVar[Class]
    PRNG_KEY: ClassVar[Class]
    BYTES_LIKE: ClassVar[Class]
    EXT: ClassVar[Class]
    TIMESTAMP: ClassVar[Class]
    NODE: ClassVar[Class]
    DEFERRED: ClassVar[Class]
    CODE: ClassVar[Class]
    MASKED: ClassVar[Class]

@final
class Catalog:
    """The containers and leaves in encoded data. These values have numbers; the root is 0."""

    @staticmethod
    def open(content: Content, *, salvage: bool) -> Catalog:
        """Finds all leaves; with `salvage`, all intact leaves of damaged data.

        Raises:
          DecodeError: A ValueError. If the data do not encode a tree.
        """

    def salvaging(self) -> Catalog:
        """Opens the same data as with `salvage`."""

    def __len__(self) -> int: ...
    def totals(self, value: int) -> tuple[int, int]:
        """Returns the number of leaves in a value, and of their bytes."""

    def kinds(self, value: int) -> list[tuple[tuple[Any, ...], int, int]]:
        """Returns the kinds of the leaves in a value: each with their number, and their bytes."""

    @property
    def record(self) -> bytes | None:
        """The record of the structure, and the bytes after it."""

    @property
    def damage(self) -> str | None:
        """A description of damage that prevents reading some of the data."""

    @property
    def is_newer(self) -> bool:
        """Whether a newer version wrote the file; `damage` describes it."""

    @property
    def is_summed(self) -> bool:
        """Whether the data have checksums for `verify`."""

    @property
    def summed(self) -> int:
        """The number of leaves that `verify` checks; they are the first ones."""

    def find(self, keys: list[str], value: int) -> int | None:
        """Returns the value at keys below another one."""

    def children(self, value: int) -> list[tuple[str, int]] | None:
        """Returns the keys and values of a container; `None` for a leaf."""

    def is_list(self, value: int) -> bool:
        """Returns whether a value is a list rather than a map."""

    def without_content(self) -> Catalog:
        """Returns the same catalog without the data, for queries that read nothing."""

    def leaves(self, value: int) -> Iterator[tuple[str, int]]:
        """Yields the paths and values of all leaves below a value, in order.

        It formats one path at a time, since together they may be much larger than the data.
        """

    def ends(self, value: int) -> Iterator[tuple[str, int]]:
        """Yields like `leaves`, and empty containers."""

    @property
    def stream_damage(self) -> str | None:
        """A description of damage to the gzip stream, even if all blocks are intact."""

    def check_record(self) -> None:
        """Compares the record of the structure with the tree, without its types.

        Raises:
          DecodeError: If it belongs to another tree, or its values cannot be read.
        """

    @property
    def dtypes(self) -> list[str]:
        """The names of all dtypes of leaves."""

    def inner_dtypes(self) -> list[str]:
        """Returns the dtypes of arrays inside of readable leaves: typed keys, lists and maps."""

    def other_dtypes(self, inner: list[str]) -> list[str]:
        """Returns the dtypes, of leaves and in `inner`, whose element size the core lacks."""

    def leaf_values(self, value: int, least: int = 0) -> list[int]:
        """Returns the leaves below a value of at least so many bytes, with their headers."""

    def static_differences(
        self, value: int, other: Catalog, other_value: int
    ) -> list[tuple[int, str, str, str]]:
        """Compares types and static data of nodes of equal paths below two values.

        Placeholders for code are equal. Data are compared as bytes and plain values.

        Returns:
          Of each difference: the node, the field or `""`, and short texts of both sides: values, or
          names of types.
        """

    @property
    def values(self) -> int:
        """The number of values."""

    def leaf(self, value: int) -> tuple[int, tuple[Any, ...], int, int, int]:
        """Returns the number of a leaf among all leaves, its description, and its place.

        The description is `("array", dtype, shape)`, `("scalar", dtype, ())`, `("prng_key",
        implementation, shape of its data)`, or `("int",)` and the like. The place is its first
        byte, the byte after its last, and the first byte that its checksum covers.
        """

    def read(
        self,
        value: int,
        *,
        copy: bool | None,
        threads: int | None,
        marks: Marks | None = None,
        absent: Any = None,
        given: dict[int, Any] | None = None,
        abstract: bool = False,
    ) -> Any:
        """Reads a value.

        Args:
          value: A leaf, or a container: its state.
          copy: See `restore`.
          threads: See `restore`.
          marks: The values of `ends` to read; `None` for all.
          absent: The placeholder in the state for other values.
          given: Leaves that are not read, by their values.
          abstract: Whether `leaves.abstract_array` replaces all arrays, which are not read.
        """

    def path_of(self, value: int, start: int) -> str:
        """Returns the path of a value, from a value around it."""

    def select(self, value: int, selector: Selector) -> Marks:
        """Marks the leaves and empty containers below a value that a selector selects.

        Paths begin at the value. An empty container that no bool covers is marked if all leaves of
        the nearest container around it that has leaves are.
        """

    def mark(self, values: set[int]) -> Marks:
        """Marks the given leaves and empty containers."""

    def read_box(self, value: int, bounds: _BoxBounds) -> np.ndarray:
        """Reads a box of an array into a new array of bytes.

        Args:
          value: An array.
          bounds: For each dimension, the start of the box, the number of its indices, and the step.

        Raises:
          IndexError: If the box exceeds the array.
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
          target: A writable array in C order.
          at: The offset in bytes of the first element of the box in it.
          strides: For each dimension, the distance in bytes to the next element.
          threads: The most threads to read with.

        Raises:
          IndexError: If the box exceeds the array, or the target.
        """

    def prefetch_only(self, boxes: Sequence[tuple[int, _BoxBounds]]) -> None:
        """Starts to read boxes of arrays of a mapped file ahead in another thread, by their values.

        From then on, the data around them are not read ahead.
        """

    def pieces_to_copy(self, value: int, file: str | None) -> tuple[Content, list[tuple[int, int]]]:
        """Returns the data, and the ranges in them of an array's bytes.

        The data are compared with the array's checksum while read: the read that completes it
        raises a CorruptionError that names `file`.
        """

    def compare(self, value: int) -> None:
        """Compares a leaf with its checksum, if it has one.

        Raises:
          CorruptionError: If it is damaged.
        """

    def verify(
        self, *, threads: int | None, progress: _Progress | None
    ) -> list[Literal["ok", "corrupt", "unchecked"]]:
        """Compares the data with their checksums, and their headers with the index.

        Returns:
          The status of each leaf, and of the bytes between the last one and the record.
        """

    def unlike_index(self) -> list[int]:
        """Returns the numbers of the leaves whose headers do not match the index.

        The number of leaves stands for the bytes between the last leaf and the record.
        """

def set_hooks(hooks: ModuleType, errors: ModuleType) -> None:
    """Sets the functions that the core calls, and the exceptions. Further calls are no-ops.

    Raises:
      AttributeError: If `hooks` lacks a function.
    """

def fresh_memory(sizes: list[int]) -> list[np.ndarray | None]:
    """Returns arrays of bytes that share huge pages.

    Each releases its own pages when it is freed. `None` where the allocator is better: for small
    arrays, or few bytes in total.
    """

def thread_count(threads: int | None) -> int:
    """Returns the number of threads for an option `threads`.

    Raises:
      ValueError: If the option is not a number of threads.
    """

@final
class Replacement:
    """A new file that replaces another one on `complete`, or else is removed with this object.

    It is in the same directory, which is created if it is missing. It is locked, so that the next
    replacement of the same path removes it if this process is killed.
    """

    def __new__(cls, path: str | PathLike[str], *, private: bool) -> Replacement:
        """With `private`, or if there is an old file, other users cannot open it.

        Raises:
          OSError: If it cannot be created.
        """
    @property
    def name(self) -> str:
        """The path of the new file."""
    def descriptor(self) -> int:
        """Returns another descriptor of the new file; on Windows, a handle."""
    def complete(self, *, durable: bool) -> None:
        """Replaces the old file and keeps its permissions; waits for the disk if `durable`.

        Raises:
          OSError: If that fails; the old file stays.
        """
    def discard(self) -> None:
        """Removes the new file, unless it is complete."""

def make_directories(path: str | PathLike[str]) -> None:
    """Creates a directory and its missing parents, and waits until they are on the disk."""

def remove_if_dead(path: str | PathLike[str]) -> None:
    """Removes a temporary file of the core, unless its writer, which locks it, is alive.

    Raises:
      OSError: If it is alive, or the file cannot be removed.
    """

def restore(
    data: Buffer | Content,
    copy: bool | None,
    threads: int | None,
    *,
    part: tuple[int, int] | None = None,
) -> Any:
    """Decodes a tree, with arrays that view the data.

    `part` is the range of a `Content` that contains the tree.

    Raises:
      DecodeError: A ValueError. If the data do not encode a tree.
    """

def restore_encoded(
    data: Buffer | Content,
    target: Any,
    name: str,
    begin: Callable[[Any, Any], Any],
    reading: Any,
    convert: Callable[..., Any] | None,
    strict: bool,
    everywhere: bool,
    text_keys: bool,
    copy: bool | None,
    threads: int | None,
) -> tuple[Any, Any, bytes | None] | None:
    """Restores a template from encoded bytes: one pass over their headers, one over the template.

    Args:
      data: The bytes.
      target: The template.
      name: The name of the root.
      begin: Begins a `Restore` and returns it, from `reading` and `convert`; called only if leaves
        do not plainly match, or if only Python knows a container.
      reading: The options.
      convert: Converts the leaves that the `Restore` collects, or `None`.
      strict: Whether to compare leaves.
      everywhere: Whether to convert NumPy arrays of the template, too.
      text_keys: Whether keys that are not strings count as their texts.
      copy: See `restore`.
      threads: See `restore`.

    Returns:
      The tree, and if a `Restore` has begun, that, exited, and the record beside the tree. `None`
      for errors of the data, and if nodes have older versions of their types.
    """

def restore_recorded(
    data: Buffer | Content,
    copy: bool | None,
    threads: int | None,
    *,
    convert: Callable[[list[Any]], list[Any]] | None = None,
    everywhere: bool = False,
    unknown_as_dict: bool = False,
    plain: bool = False,
    static: Any = None,
) -> tuple[Any] | None:
    """Restores a tree by the record at the end of its encoding, in one pass; see `assemble`.

    `None` if the data have no record, or do not match it.

    Raises:
      DecodeError: A ValueError. If a node cannot be made.
    """

def restore_selected(
    file: Catalog,
    value: int,
    target: Any,
    name: str,
    restore: Any,
    *,
    marks: Marks | None,
    given: dict[int, Any] | None,
    copy: bool | None,
    threads: int | None,
) -> Any:
    """Restores leaves of a file in a template.

    Args:
      file: The file.
      value: The part of it for the template.
      target: The template.
      name: The name of the root.
      restore: The current `Restore`, which decides which leaves stay, and records paths and
        mismatches.
      marks: The leaves to read; `None` for all. Other leaves are kept from the template.
      given: Leaves that are not read, by their values.
      copy: See `restore`.
      threads: See `restore`.
    """

def convertible(content: Content) -> Literal["safetensors", "npz", "stream"] | None:
    """Returns the apparent format of data, if the command line converts it."""

def described(content: Content) -> str | None:
    """Describes the apparent format of data that are not msgpack, with a remedy."""

def stream_items(content: Content) -> list[tuple[list[str], int, int]]:
    """Returns the keys and ranges of the leaves of a stream."""

def restore_state(target: Any, state: Any, name: str, restore: Any) -> Any:
    """Restores the child of a template from its state, as `template.restore_child` does."""

def assemble(
    state: Any,
    record: bytes | None,
    *,
    convert: Callable[[list[Any]], list[Any]] | None = None,
    everywhere: bool = False,
    unknown_as_dict: bool = False,
    plain: bool = False,
    placeholders: bool = False,
    static: Any = None,
    absent: Any = None,
    at: list[tuple[int, int]] = ...,
    parts: Sequence[str] | None = None,
) -> Any:
    """Rebuilds the tree of a state dict.

    Args:
      state: The state. Its dicts may become part of the tree.
      record: The record of the structure; `None` if the tree is the state.
      convert: Takes all leaves that were arrays of jax, each as its path, `None`, the leaf, whether
        its dtype was weak, and its sharding or `None`; returns their replacements.
      everywhere: Whether these are all arrays.
      unknown_as_dict: Whether nodes of unknown types become dicts.
      plain: Whether tuples become lists, and nodes of all other types dicts.
      placeholders: Whether the leaves are placeholders, which the code of types cannot use.
      static: The values for placeholders in static data; see `registry/lookups.py`.
      absent: The placeholder in the state for parts that were not read. Incomplete containers
        become dicts of the parts that were read, or `absent` if there are none.
      at: The place of the state in the tree: from the root on, the index of the child that leads
        there, and the number of children.
      parts: The parts of the same path, to restore ties; `None` leaves nodes apart.

    Raises:
      DecodeError: A ValueError. If the record is damaged, or does not fit the state.
    """

def mark_older(
    state: Any,
    record: bytes,
    mark: Callable[[Any, list[tuple[int, int]]], Any],
    *,
    at: Any = ...,
) -> tuple[Any, dict[int, str]]:
    """Marks the nodes of a state dict that must be upgraded.

    Args:
      state: The state, which is not changed.
      record: The record of its structure.
      mark: Takes the state of such a node and its place, as `at`; returns the mark.
      at: See `assemble`.

    Returns:
      A state dict with the marks; and the saved kinds of its other containers by the `id` of their
      dicts: `dict`, `list`, `tuple`, `keys` for a dict with other keys, or the name of a type.

    Raises:
      DecodeError: A ValueError. If the record is damaged, or does not fit the state.
    """

def has_older_types(record: bytes) -> bool:
    """Returns whether a record has nodes for `mark_older`."""

def record_digests(record: bytes) -> bytes | None:
    """Returns the digests in the record of a structure, 16 bytes for each leaf, or `None`.

    Raises:
      DecodeError: A ValueError, if the record is damaged.
    """

def record_metadata(record: bytes, *, unknown_as_dict: bool) -> Any:
    """Returns the metadata in the record of a structure, or `None`.

    With `unknown_as_dict`, values that cannot be made become dicts of their parts.

    Raises:
      DecodeError: A ValueError, with the place. If a value cannot be made.
    """

def record_ties(record: bytes) -> list[tuple[str, str]]:
    """Returns the ties in the record of a structure; see `pytree/ties.py`."""

def encode_value(value: Any) -> bytes:
    """Encodes a value with its type; see `registry/static.py`."""

def decode_value(data: bytes) -> Any:
    """Decodes the bytes of `encode_value`.

    Raises:
      DecodeError: A ValueError. If the bytes are damaged.
    """

def check_unique_keys(mapping: Any) -> None:
    """Raises a ValueError if two keys are equal as strings."""

def check_hashes(keys: object) -> None:
    """Raises if too many keys have the same hash, which would make a dict slow.

    Raises:
      DecodeError: A ValueError, if too many keys have the same hash.
      TypeError: If a key cannot be hashed.
    """

def decompress(
    data: Buffer, *, max_size: int | None, threads: int | None, progress: _Progress | None
) -> bytes:
    """Returns the content of all members of a gzip stream."""
