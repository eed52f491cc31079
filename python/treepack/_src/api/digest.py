from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.advice import Advising, advised
from treepack._src.checkpoint.file import File, Tree, open
from treepack._src.layouts.layout import Encoding
from treepack._src.leaves.prng import Key
from treepack._src.options import Static, StorageOptions
from treepack._src.printable import count_text, printable, shortened
from treepack._src.readers.reader import LazyArray, Reader
from treepack._src.sharded.files import ShardFile
from treepack._src.sharded.reading import unless_replaced
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened, is_source
from treepack._src.storage.fetch import fetching_arrays
from treepack._src.storage.naming import naming
from treepack.errors import CorruptionError, MissingPathError

# The memory for parts of arrays that are not digested where they lie.
_WINDOW_BYTES = 16 << 20

_HEX = re.compile("[0-9a-f]{32}")


class _Leaves(dict[str, str]):
    def __missing__(self, path: str) -> str:
        near = _paths.suggest(path, self) if isinstance(path, str) else None
        raise MissingPathError(str(path), hint="" if near is None else f"is it {near!r}?")


@dataclasses.dataclass(frozen=True, repr=False)
class Digest(Advising):
    """The digest of a tree, the result of `digest`; `str` returns its 32 hexadecimal digits.

    It equals a digest of the same leaves, and the string of these digits.

    Attributes:
      leaves: The digest of each leaf by path, 32 hexadecimal digits.

    Examples:
      >>> import numpy as np, treepack
      >>> found = treepack.digest({"w": np.zeros(3), "n": 1})
      >>> found
      Digest('5b271e8d8ab54228ea20e433dc7b841c', 2 leaves)
      >>> found.leaves["n"]
      '3f9581262551b4bd1fbf8db2d3a8ecaf'
    """

    leaves: dict[str, str]

    def __str__(self) -> str:
        ordered = sorted(self.leaves.items())
        return _of_bytes(
            b"".join(
                path.encode("utf-8", "surrogatepass") + b"\0" + bytes.fromhex(leaf)
                for path, leaf in ordered
            )
        ).hex()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str(self) == other
        return self.leaves == other.leaves if isinstance(other, Digest) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"Digest({str(self)!r}, {count_text(len(self.leaves))})"


@advised
def digest(
    source: Any,
    *,
    max_size: int | None = None,
    static: Static = "skip-code",
    threads: int | None = None,
    storage_options: StorageOptions = None,
) -> Digest:
    """Computes the digest of a checkpoint or tree: 128 bits, and as many for each leaf.

    It is the same for a tree and every file of it: plain, compressed, sharded over any mesh, or
    flax's. It covers paths, dtypes, shapes and values, but not metadata, types of containers and
    static data. NumPy and JAX arrays count as equal, and so do scalars of NumPy and 0-d arrays, but
    not Python numbers.

    Digests in the steps of a run with `unchanged="link"` are read, not computed. `verify` compares
    the bytes with their checksums, `load(expect=)` computes all digests.

    Digests find damage and mistakes, not forgery: two trees with the same digest can be
    constructed. docs/format.md has the definition.

    Args:
      source: Anything that `open` takes, an open `File` or a `Tree` of one, or a tree. An array is
        a tree of one leaf, not encoded data.
      max_size: See `open`.
      static: See `save`; for a tree.
      threads: See `save`.
      storage_options: See `save`.

    Raises:
      TreepackError: If the file or the tree cannot be read; see `open` and `save`.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> state = {"w": np.arange(6.0).reshape(2, 3), "step": 7}
      >>> path = f"{tempfile.mkdtemp()}/state.treepack"
      >>> treepack.save(path, state, compress=True)
      >>> treepack.digest(path) == treepack.digest(state)
      True
      >>> treepack.load(path, expect=treepack.digest(state))["step"]
      7
    """
    if isinstance(source, Tree):
        return digest_of(source, threads, reads_stored=True)
    source = Address.or_data(source, storage_options)
    if not is_source(source):
        check_is_one(source)
        return digest_of(_laid(source, static), threads)

    def attempt() -> Digest:
        with open(source, max_size=max_size) as file:
            return digest_of(file, threads, reads_stored=True)

    return unless_replaced(attempt)


def check_is_one(source: Any) -> None:
    if source is None:
        raise TypeError("expected a file or a tree, got None: pass one")
    paths = source if isinstance(source, (list, tuple)) else ()
    are_texts = all(isinstance(each, (str, os.PathLike)) for each in paths)
    if paths and are_texts and all(map(os.path.exists, paths)):
        raise TypeError(f"expected a file or a tree, got paths of {len(paths)} files: pass one")


def _laid(tree: Any, static: Static) -> File:
    layout = Encoding(align=1, index=True).tree(tree, static=static)
    return File(Reader(b"", Opened(core.Content.laid(layout, []))))


def digest_of(tree: Tree, threads: int | None, *, reads_stored: bool = False) -> Digest:
    with naming(tree._at().reader.given):
        heads: dict[str, tuple[bytes, int]] = {}
        digests: dict[str, bytes] = {}
        together: dict[str, LazyArray] = {}
        apart: dict[str, LazyArray] = {}
        for path, leaf in tree.leaves():
            head, data = _parts(leaf)
            if isinstance(data, LazyArray):
                heads[path] = _of_bytes(head), data.nbytes
                stored = data.reader.stored_digest(data) if reads_stored else None
                if stored is not None:
                    digests[path] = stored
                elif type(data) is LazyArray and data.reader.is_local:
                    together[path] = data
                else:
                    apart[path] = data
            else:
                heads[path] = _of_bytes(head + data), 0
                digests[path] = bytes(16)
        with fetching_arrays([*together.values(), *apart.values()]):
            joined = core.digests([*together.values()], threads=threads)
            digests.update(zip(together, ShardFile.split(joined), strict=True))
            for path, array in apart.items():
                digests[path] = _of_windows(array, threads)
        return Digest(
            _Leaves(
                (path, core.join_digests(head, digests[path], nbytes).hex())
                for path, (head, nbytes) in heads.items()
            )
        )


def _parts(leaf: Any) -> tuple[bytes, LazyArray | bytes]:
    """Returns the first bytes of a leaf that its digest covers, and the array or bytes after."""
    if isinstance(leaf, LazyArray):
        return _head(leaf), leaf
    key = Key.of(leaf) or Key.of_state(leaf)  # a state: of a key that JAX lacks here
    if key is not None or isinstance(leaf, (np.ndarray, np.generic)):
        array = np.asarray(leaf) if key is None else key.on_host()
        data = core.lay_raw(b"", [array], snapshot=False).to_bytes(threads=None)
        return (b"" if key is None else key.text.encode()) + _head(array), data
    return b"value\0", core.encode_value(leaf)


def _head(array: Any) -> bytes:
    return f"{_dtypes.shown(array.dtype)}[{','.join(map(str, array.shape))}]\0".encode()


def _of_bytes(data: bytes) -> bytes:
    return core.digests([np.frombuffer(data, np.uint8)], threads=1)


def _of_windows(array: LazyArray, threads: int | None) -> bytes:
    step, whole = max(1, _WINDOW_BYTES // max(1, array.dtype.itemsize)), bytes(16)
    for start in range(0, array.size, step):
        elements = array.flat_range(start, min(start + step, array.size)).view(np.uint8)
        part = core.digests([elements], threads=threads)
        whole = core.join_digests(whole, part, elements.nbytes)
    return whole


def checked(expected: Any) -> Any:
    if isinstance(expected, Digest):
        return expected
    if not isinstance(expected, str):
        raise TypeError(
            f"expect must be a Digest or its 32 hexadecimal digits, got {expected!r:.100}"
        )
    if not _HEX.fullmatch(expected.lower()):
        raise ValueError(
            f"expect must have 32 hexadecimal digits, as str(treepack.digest(path)), got "
            f"{expected!r:.100}"
        )
    return expected.lower()


def compare(found: Digest, expected: Digest | str) -> None:
    if str(found) == str(expected):
        return
    text = f"digest mismatch: expected {expected}, found {found}"
    if not isinstance(expected, Digest):
        raise CorruptionError(f"{text}; expect=treepack.digest(...) names the leaves that differ")
    paths = [*_differing(found.leaves, expected.leaves)]
    listed = shortened(map(printable, paths), len(paths), 9)
    verb = "leaf differs" if len(paths) == 1 else "leaves differ"
    raise CorruptionError(f"{text}; {len(paths)} {verb}: {listed}")


def _differing(found: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[str]:
    for path in dict.fromkeys([*expected, *found]):
        if path not in found:
            yield f"{path} (missing)"
        elif path not in expected:
            yield f"{path} (unexpected)"
        elif found[path] != expected[path]:
            yield path
