"""Saves trees as safetensors files, and as the directories of Hugging Face.

    tree ──▶ arrays by name ──▶ parts of at most max_shard_size ──▶ header and raw bytes of each

A directory has one `model.safetensors`, or parts, with new names in each save, and an index, which
is replaced last; then earlier parts are removed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._core import Class
from treepack._src import paths as _paths
from treepack._src.claims.directory import warn_of_kept
from treepack._src.claims.lease import Permit
from treepack._src.formats.exchange import (
    ARRAYS,
    Alone,
    exchange_folder_of,
    leased_exchange_folder,
    remove_shards,
    writers_of,
)
from treepack._src.formats.named import without_dtype
from treepack._src.formats.safetensors.header import (
    INDEX,
    INDEX_SUFFIX,
    ORDER,
    SAFETENSORS,
    SHARD,
    WHOLE,
    encode_header,
)
from treepack._src.leaves.leaves import classify, explain, holds_data
from treepack._src.options import Progress, Static, Tell, Writing, progress_bar
from treepack._src.printable import bytes_of, printable, warn
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.registry.code import is_code
from treepack._src.sharded.files import MANIFEST
from treepack._src.storage.address import Address
from treepack._src.storage.fetch import fetching_arrays
from treepack.errors import BusyError, CorruptionError, TreepackError, UnserializableLeafError

_PLAIN = (bool, int, float, complex, str, bytes)


def _tuple_in(tree: Any) -> tuple[Any, ...] | None:
    for key, child in tree.items() if isinstance(tree, dict) else ():
        found = key if type(key) is tuple else _tuple_in(child)
        if found is not None:
            return found
    return None


def leaves_to_save(tree: Any, static: Static) -> Iterator[tuple[tuple[str, ...], Any]]:
    if (key := _tuple_in(tree)) is not None:
        warn(
            f"the key {key!r:.100} becomes a part of a name, as it is: for names such as "
            f"{'.'.join(map(str, key))!r:.100}, save flax.traverse_util.unflatten_dict(tree)"
        )
    for parts, leaf in leaves_of(tree, ()):
        if not parts:
            raise TreepackError(
                "safetensors have only arrays with names: save a dict, such as {'weight': array}"
            )
        kind = classify(leaf)
        is_plain = leaf is None or isinstance(leaf, _PLAIN)
        is_other = kind in (Class.UNSUPPORTED, Class.MASKED) and not is_plain
        is_needed = static == "error" or (is_other and holds_data(leaf))
        if kind in ARRAYS:
            yield parts, np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
        elif is_needed or not (static == "skip" or is_code(leaf)):
            remedy = 'leave it out with select= or static="skip"'
            if isinstance(leaf, (bool, int, float, complex)):
                remedy = f"save numpy.asarray({leaf!r:.40}), or {remedy}"
            elif kind is Class.PRNG_KEY:
                remedy = f"save jax.random.key_data of it, or {remedy}"
            reason = f"safetensors have only arrays, found {type(leaf).__name__}: {remedy}"
            if is_other:
                reason = explain(leaf)
            raise UnserializableLeafError(reason, _paths.text(parts))


class Part(NamedTuple):
    header: bytes
    arrays: dict[str, Any]

    @property
    def nbytes(self) -> int:
        nbytes: int = sum(array.nbytes for array in self.arrays.values())
        return len(self.header) + nbytes

    def layout(self, *, snapshot: bool) -> core.Layout:
        try:
            return core.lay_raw(self.header, [*self.arrays.values()], snapshot=snapshot)
        except TreepackError:
            for name, array in self.arrays.items():
                try:
                    core.lay_raw(b"", [array], snapshot=False)
                except CorruptionError:  # names its file and leaf
                    raise
                except TreepackError as error:
                    reason = str(error).removeprefix("at .: ")
                    raise TreepackError(f"at {printable(name)}: {reason}") from error
            raise


def part_of(arrays: Mapping[str, Any], metadata: Mapping[str, str] | None) -> Part:
    """Sorts the arrays of a file as safetensors does: by dtype, then by name."""
    for name, array in arrays.items():
        if name == "__metadata__":
            raise TreepackError(
                f"at {name}: safetensors reserves this name: rename the leaf, or leave it out"
            )
        if array.dtype.name not in SAFETENSORS:
            raise UnserializableLeafError(without_dtype("safetensors", array), name)
    ordered = sorted(arrays.items(), key=lambda item: (ORDER[item[1].dtype.name], item[0]))
    return Part(encode_header(ordered, metadata), dict(ordered))


def text_metadata(metadata: Any) -> Mapping[str, str]:
    if metadata is None:
        return {"format": "flax"}
    texts: dict[Any, Any] = dict(metadata) if isinstance(metadata, Mapping) else {None: None}
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise TypeError(
            "the metadata of safetensors must be a dict with strings as keys and values: encode "
            f"other values, as by json.dumps, got {metadata!r:.100}"
        )
    return texts


DEFAULT_SIZE = "5GB"


def size_of(size: int | str) -> int:
    """Units are powers of 1000, as for huggingface_hub."""
    nbytes = 0
    hint = ""
    with contextlib.suppress(ValueError, TypeError):
        if isinstance(size, str):
            if size.strip().isdecimal():
                hint = f": add its unit, as in '{size.strip()}MB'"
            else:
                nbytes = bytes_of(size)
        elif not isinstance(size, bool):
            nbytes = operator.index(size)
    if nbytes <= 0:
        raise ValueError(
            "max_shard_size must be an integer, the number of bytes, or a text with the unit B, "
            f"KB, MB, GB or TB, such as '5GB' or '400B', got {size!r:.100}{hint}"
        )
    return nbytes


def split(arrays: Mapping[str, Any], max_shard_size: int) -> list[dict[str, Any]]:
    """Splits arrays into parts, as `split_state_dict_into_shards_factory` of huggingface_hub does.

    Parts are filled in the order of the tree, and end before the array that would exceed their
    size. A larger array is its own part, before the current one.
    """
    parts: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    left = max_shard_size
    for name, array in arrays.items():
        if array.nbytes > max_shard_size:
            parts.append({name: array})
            continue
        if array.nbytes > left:
            parts.append(current)
            current, left = {}, max_shard_size
        current[name] = array
        left -= array.nbytes
    return [*parts, current] if current or not parts else parts


# Temporary files of a save that was killed, in a local directory.
_TEMPORARY = re.compile(rf"\.({SHARD.pattern}|lease\.treepack)\.treepack-.*\.tmp")


class Save:
    def __init__(
        self,
        path: Address,
        arrays: Mapping[str, Any],
        metadata: Mapping[str, str] | None,
        writing: Writing,
        max_shard_size: int | None,
        *,
        snapshot: bool,
        exchange: Alone,
    ):
        """`max_shard_size` is `None` if `path` is a file. With `snapshot`, arrays may change."""
        self._is_file = max_shard_size is None
        several = [arrays] if max_shard_size is None else split(arrays, max_shard_size)
        self._parts = [part_of(part, metadata) for part in several]
        self._path = path.absolute()  # the working directory may change
        self._writing, self._exchange = writing, exchange
        self._layouts: dict[int, core.Layout] = {}
        if snapshot and exchange.count == 1:
            self._layouts = {at: part.layout(snapshot=True) for at, part in enumerate(self._parts)}
        writers = writers_of([part.nbytes for part in self._parts], exchange.count)
        self._mine = [at for at, writer in enumerate(writers) if writer == exchange.index]
        self._nbytes = sum(self._parts[at].nbytes for at in self._mine)

    def __call__(self, progress: Progress) -> None:
        with progress_bar(progress, "save") as tell:
            try:
                if self._exchange.index > 0:
                    self._follow(tell)
                elif self._is_file:
                    self._lead_file(tell)
                else:
                    self._lead_directory(tell)
            except BaseException as error:
                self._exchange.abandon(error)
                raise

    def _lead_file(self, tell: Tell | None) -> None:
        if self._exchange.count > 1:
            with (
                leased_exchange_folder(self._path) as permit,
                self._exchange.opened(tell, self._nbytes),
            ):
                self._exchange.agree(self._plan, ["", []])
                self._write_and_gather([], tell, permit)
            return
        self._write([], tell, Permit())
        folder = exchange_folder_of(self._path)
        with contextlib.suppress(OSError, BusyError):
            # Of a save of several processes that was killed.
            if folder.is_local and folder.is_directory():
                with leased_exchange_folder(self._path):
                    remove_shards(folder)

    def _lead_directory(self, tell: Tell | None) -> None:
        path, save = self._path, secrets.token_hex(4)
        with Permit.taken(path, save) as permit:
            with self._exchange.opened(tell, self._nbytes):
                before = {entry.name for entry in path.entries()}
                _check_free(path, before)
                names = _names(len(self._parts), before)
                try:
                    self._exchange.agree(self._plan, [save, names])
                    self._write_and_gather(names, tell, permit)
                except BaseException:
                    if permit.is_held:  # else another job may use these names
                        _remove(path, {*names} - before - {WHOLE})
                    raise
                if names != [WHOLE]:  # after an error, a store may have it
                    index = _index(dict(zip(names, self._parts, strict=True)))
                    permit.commit(path / INDEX, index, durable=self._writing.durable)
            if not permit.is_held:
                return
            old = {name for name in before if SHARD.fullmatch(name) or _TEMPORARY.fullmatch(name)}
            old |= {WHOLE, INDEX} & before
            if names == [WHOLE] and INDEX in old:
                path.remove_files([INDEX])  # readers prefer it, so it goes first
            _remove(path, old - {*names, INDEX})
            remove_shards(path)  # of a save of several processes, if killed

    def _follow(self, tell: Tell | None) -> None:
        with self._exchange.opened(tell, self._nbytes):
            save, names = self._exchange.agree(self._plan)
            permit = Permit(self._path, save) if save and self._path.is_local else Permit()
            self._write(names, tell, permit)

    def _write_and_gather(self, names: Sequence[str], tell: Tell | None, permit: Permit) -> None:
        """Writes the files of process 0, and waits for the others.

        One file completes the save, so the others must have agreed before.
        """
        if len(self._parts) == 1:
            self._exchange.gather()
        self._write(names, tell, permit)
        if len(self._parts) > 1:
            self._exchange.gather()

    def _plan(self) -> int:
        texts = (text for part in self._parts for text in (part.header, repr(part.arrays).encode()))
        return functools.reduce(lambda sum, text: zlib.crc32(text, sum), texts, 0)

    def _write(self, names: Sequence[str], tell: Tell | None, permit: Permit) -> None:
        before = self._exchange.nbytes
        total = before + self._nbytes

        def each(done: int, nbytes: int) -> None:
            if done == nbytes:  # only then the file gets its name
                permit.check()
            if tell is not None:
                tell(before + done, total)

        for at in self._mine:
            part, layout = self._parts[at], self._layouts.pop(at, None)
            if layout is None:
                with fetching_arrays(part.arrays.values(), lays=True):
                    layout = part.layout(snapshot=False)
            place = self._path if self._is_file else self._path / names[at]
            with fetching_arrays(part.arrays.values()):
                place.save(layout, self._writing, each)
            del layout
            before += part.nbytes


def _check_free(path: Address, names: set[str]) -> None:
    """Raises a TreepackError if readers would find another checkpoint in the directory."""
    others = sorted(name for name in names if name.endswith(INDEX_SUFFIX) and name != INDEX)
    for name in [MANIFEST] * (MANIFEST in names) + others:
        raise TreepackError(
            f"{path.shown} has another checkpoint, {name}: choose another directory, or remove it"
        )


def _names(count: int, taken: set[str]) -> list[str]:
    """The names differ from all files that a reader may be reading."""
    if count == 1:
        return [WHOLE]
    for middle in ("", f"-{secrets.token_hex(4)}"):
        names = [f"model{middle}-{at:05}-of-{count:05}.safetensors" for at in range(1, count + 1)]
        if taken.isdisjoint(names):
            break
    return names


def _index(files: Mapping[str, Part]) -> bytes:
    weights = {name: file for file, part in files.items() for name in part.arrays}
    total = sum(array.nbytes for part in files.values() for array in part.arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def _remove(path: Address, names: set[str]) -> None:
    """Also removes temporary files of dead processes; warns of files that must stay."""
    kept = []
    for name in sorted(names):
        try:
            if _TEMPORARY.fullmatch(name):
                core.remove_if_dead(Path(path / name))
                continue
            path.remove_files([name])
        except FileNotFoundError:  # its writer has removed it
            continue
        except OSError:
            kept.append(path / name)
    if kept:
        warn_of_kept(kept)
