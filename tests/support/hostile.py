"""Sharded checkpoints whose checksums are right, and whose records are not.

    python tests/support/hostile.py first last

makes the changes of these numbers to a checkpoint, and uses it in all ways, with little memory. It
prints what is no documented error, or takes long.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import place_of
from treepack._src.checkpoint.shards import MANIFEST
from treepack._src.options import Compress
from treepack._src.saving.layout import described_layout
from treepack._src.saving.sharded import _array_paths
from trees import record_of

MARK = b"\x93treepm\n"
KEY = b"__treepack__"
GZIP = b"\x1f\x8b"
NUMBERS = b"\xc1t"

# What an integer, or anything else, is replaced by.
INTEGERS = [0, 1, -1, 2, 7, 255, 2**31, 2**31 - 1, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63]
INTEGERS += [2**64 - 1, -(2**31), -(2**63)]
OTHERS: list[Any] = [None, True, False, 1.5, float("nan"), "", "a", "é/~1", b"", b"\xc1", [], {}]
OTHERS += [
    [0],
    [[]],
    {"a": 1},
    {1: 2},
    "x" * 300,
    [0] * 70,
    ["array", []],
    "uint32",
    "threefry2x32",
]

# Leaves that are asked for.
NAMES = ("params/w", "host", "key", "none such")

# More memory than this beside what is loaded at the start, and more seconds, no change may take.
MEMORY = 3 << 29
SECONDS = 20


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values in nested lists and dicts."""
    yield path
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


def changed(value: Any, rng: random.Random) -> Any:
    """Returns another value in the place of one."""
    if value is None or isinstance(value, (bool, float, Pairs)):
        return rng.choice(OTHERS + INTEGERS)
    if isinstance(value, int):
        near = [value + 1, value - 1, value * 2, value * 1000, -value, value // 2]
        near = [it for it in near if -(2**63) <= it < 2**64]
        return rng.choice([*near, *INTEGERS, rng.choice(OTHERS)])
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        texts = [value[:at], value[at:], value + value, f"{value[:at]}/{value[at:]}", f"{value}\0"]
        texts += [value.replace("32", "64"), value.replace(":", ",")]
        return rng.choice([*texts, rng.choice(OTHERS + INTEGERS)])
    if isinstance(value, bytes):
        at = rng.randrange(len(value) + 1)
        flipped = bytearray(value)
        if value:
            flipped[at - 1] = rng.choice([0, 0xFF, 0xC1, 0xDD, 0xCF, 0xC6, rng.randrange(256)])
        parts = [value[:at], value[at:], value + value, bytes(flipped), bytes(flipped)]
        return rng.choice([*parts, rng.choice(OTHERS + INTEGERS)])
    if isinstance(value, list):
        found: list[Any] = list(value)
        choice = rng.randrange(5)
        at = rng.randrange(len(found) + 1)
        if choice == 0:
            return found[:at]
        if choice == 1:
            return found + found[at:]
        if choice == 2:
            rng.shuffle(found)
            return found
        if choice == 3 and found:
            del found[at - 1]
            return found
        return rng.choice(OTHERS + INTEGERS)
    items = list(value.items())
    at = rng.randrange(len(items) + 1)
    choice = rng.randrange(4)
    if choice == 0 and items:
        del items[at - 1]
    elif choice == 1 and items:
        key, child = items[at - 1]
        items[at - 1] = (rng.choice([key * 2, *OTHERS[5:8], 3]) if key else "k", child)
    elif choice == 2 and items:
        return Pairs([*items, rng.choice(items)])
    else:
        return rng.choice(OTHERS + INTEGERS)
    return dict(items)


class Pairs:
    """A map in which a key may be twice."""

    def __init__(self, items: list[tuple[Any, Any]]):
        self.items = items


def packed(value: Any) -> bytes:
    """Returns MessagePack of what `changed` makes."""
    packer = msgpack.Packer()
    if isinstance(value, list):
        return packer.pack_array_header(len(value)) + b"".join(map(packed, value))
    if isinstance(value, dict):
        value = Pairs([*value.items()])
    if isinstance(value, Pairs):
        head = packer.pack_map_header(len(value.items))
        return head + b"".join(packed(part) for item in value.items for part in item)
    return packer.pack(value)  # type: ignore[no-any-return]


def unpacked(data: bytes) -> Any:
    """Returns what is in MessagePack."""
    return msgpack.unpackb(data, strict_map_key=False, raw=False)


def with_change(value: Any, rng: random.Random) -> Any:
    """Returns nested lists and dicts in which a value, or a few, are others."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice([*places(value)])
        value = _put(value, path, rng)
    return value


def _put(value: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    if not path:
        return changed(value, rng)
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _put(value[key], tuple(rest), rng)
    return copy


def with_changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns MessagePack of another structure, or other bytes."""
    if rng.random() < 0.3:
        found: bytes = changed(data, rng)
        return found if isinstance(found, bytes) else b""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return packed(with_change(unpacked(data), rng))
    return data


def hostile_record(record: dict[str, Any], rng: random.Random) -> Any:
    """Returns another record of a structure, or one with another index."""
    if "index" in record and rng.random() < 0.6:
        index = unpacked(record["index"])
        if isinstance(index, dict) and "outline" in index and rng.random() < 0.3:
            index = {**index, "outline": with_changed_bytes(index["outline"], rng)}
        else:
            index = with_change(index, rng)
        return {**record, "index": packed(index)}
    return with_change(record, rng)


def hostile_file(data: bytes, rng: random.Random) -> bytes:
    """Returns a file with another record, whose checksum is right."""
    old = new = record_of(data)
    after = data[data.rindex(old) + len(old) : -24]
    while new == old:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            new = packed(hostile_record(unpacked(old), rng))
    sums = rng.choice([after, after, b"", after[4:], after + bytes(4)])
    footer = struct.pack("<QII", len(new), len(sums) // 4, zlib.crc32(new + sums))
    place = data.rindex(KEY) + len(KEY)
    return data[:place] + packed(new + sums + footer + b"\x93treepk\n")


def hostile_manifest(data: bytes, rng: random.Random) -> bytes:
    """Returns another manifest, whose checksum is right."""
    record = unpacked(data[: -len(MARK) - 4])
    if rng.random() < 0.6:
        return sealed_manifest(packed(with_change(record, rng)))
    skeleton = zlib.decompress(record["skeleton"])
    if rng.random() < 0.7:
        skeleton = hostile_file(skeleton, rng)
    else:
        found = changed(skeleton, rng)
        skeleton = found if isinstance(found, bytes) else packed(found)
    return sealed_manifest(packed({**record, "skeleton": zlib.compress(skeleton)}))


def sealed_manifest(record: bytes) -> bytes:
    """Returns a manifest with the checksum of its record."""
    return record + struct.pack("<I", zlib.crc32(record)) + MARK


def _inside(data: bytes) -> bytes:
    if data[:2] == GZIP:
        return gzip.decompress(data)
    return serialization.decompress_bytes(data) if data[:2] == NUMBERS else data


def resealed(path: Path) -> None:
    """Lets a manifest expect the files that there are."""
    manifest = path / MANIFEST
    read = core.Manifest.decode(manifest.read_bytes())
    files = []
    for name, _, _ in read.files:
        data = (path / name).read_bytes()
        inside = _inside(data)
        record = unpacked(inside[inside.rindex(KEY) + len(KEY) :])
        files.append((name, len(data), zlib.crc32(record)))
    manifest.write_bytes(read.with_files(files))


def hostile(path: Path, seed: int) -> None:
    """Changes a checkpoint."""
    rng = random.Random(seed)
    manifest = path / MANIFEST
    if rng.random() < 0.5:
        manifest.write_bytes(hostile_manifest(manifest.read_bytes(), rng))
        return
    file = rng.choice(sorted(set(path.iterdir()) - {manifest}))
    data = file.read_bytes()
    changed = hostile_file(_inside(data), rng)
    if data[:2] == GZIP:
        changed = gzip.compress(changed, 1)
    elif data[:2] == NUMBERS:
        changed = serialization.compress_bytes(changed, compress="numbers")
    file.write_bytes(changed)
    resealed(path)


def _look(path: Path, salvage: bool) -> None:
    with treepack.open(path, salvage=salvage) as file:
        repr(file)
        repr(file.damage)
        _ = file.metadata, file.nbytes, len(file)
        with documented():
            file.abstract()
        for name in NAMES:
            with documented():
                found = file[name]
                if isinstance(found, treepack.LazyArray):
                    _look_at(found)
        for value, _ in [*zip(range(file._catalog.values), range(50), strict=False)]:
            with documented():
                if file._catalog.children(value) is None:
                    place_of(file).reader.leaf(value, ["?"])
        with documented():
            for _, leaf in file.leaves():
                with documented():
                    if isinstance(leaf, treepack.LazyArray):
                        _look_at(leaf)


def _look_at(array: Any) -> None:
    _ = array.shape, array.dtype, array.nbytes, repr(array)
    for index in (..., slice(0, 3), slice(None, None, -7), 0, (slice(0, 0),)):
        with documented():
            array[index]
    with documented():
        array.flat_range(0, min(array.size, 5))
    with documented():
        np.asarray(array)


def _again(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, treepack.open(path) as file:
        treepack.save(f"{folder}/again", file.leaves(), durable=False)


@contextlib.contextmanager
def documented() -> Iterator[None]:
    """Lets documented errors pass; an IndexError only of what is asked, not of what is there."""
    try:
        yield
    except (treepack.TreepackError, treepack.UnserializableLeafError, OSError):
        pass
    except ValueError as error:
        if "select matches nothing" not in str(error):
            raise
    except KeyError as error:
        if error.args[0] not in NAMES:  # it is not there any more
            raise
    except IndexError as error:
        if "out of bounds" not in str(error) and "too many indices" not in str(error):
            raise


def uses(template: Any) -> list[Callable[[Path], Any]]:
    """Returns everything that can be done with a checkpoint."""
    some = {"params": {"w": template["params"]["w"]}}
    return [
        treepack.load,
        lambda path: treepack.load(path, arrays="numpy"),
        lambda path: treepack.load(path, template),
        lambda path: treepack.load(path, template, strict=False),
        lambda path: treepack.load(path, some, select="params/w", cast=True),
        lambda path: treepack.load(path, select="**/w"),
        lambda path: treepack.load(path, unknown="dict", max_size=10_000),
        lambda path: treepack.load(
            path, template, on_corrupt="skip", missing="target", return_report=True
        ),
        lambda path: treepack.load(path, {"v": template["host"]}, rename={"host": "v"}),
        treepack.verify,
        treepack.abstract,
        treepack.read_metadata,
        lambda path: _look(path, False),
        lambda path: _look(path, True),
        _again,
    ]


def _late(*_: object) -> None:
    raise RuntimeError(f"it takes more than {SECONDS} seconds")


def run(path: Path, seeds: range, template: Any) -> int:
    """Makes the changes of these numbers to a checkpoint, and returns how many failed."""
    failed = 0
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _late)
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            copy = Path(folder, "copy")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy)
            hostile(copy, seed)
            for number, use in enumerate(uses(template)):
                signal.alarm(SECONDS)
                begun = time.process_time()
                try:
                    with documented():
                        use(copy)
                except Exception:
                    failed += 1
                    print(f"change {seed}, use {number}:", traceback.format_exc(), flush=True)
                finally:
                    signal.alarm(0)
                if time.process_time() - begun > 2:
                    print(f"change {seed}, use {number}: {time.process_time() - begun} s")
    return failed


def make(path: Path, *, compress: Compress) -> None:
    """Saves a checkpoint of all kinds of leaves, as two processes do it that have half each."""
    array = jnp.arange(48.0).reshape(8, 6)
    tree = {
        "params": {"w": array, "b": (jnp.ones(6, jnp.bfloat16), array[0, 0])},
        "host": np.arange(500, dtype=np.int16),
        "key": jax.random.split(jax.random.key(7), 4),
        "layers": [array * k for k in range(3)],
        "rest": {"step": 3, "none": None, "text": "x" * 50, "empty": {}, "bytes": b"abc", "z": 2j},
    }
    whole = described_layout(tree, 1, {"step": 3}, max_chunk_size=2**30, index=True, hollow=True)
    parts: list[Any] = [{}, {}]
    grids = []
    for leaf in whole.hollow:
        is_host = isinstance(leaf, np.ndarray)
        count = 1 if is_host or not leaf.shape or leaf.shape[0] % 2 else 2
        counts = [count, *[1] * leaf.ndim][: leaf.ndim]
        grids.append((counts, [*range(count)], is_host))
    splits = [
        (counts, core.ShardHolders([[number] for number in files]), 1, is_host)
        for counts, files, is_host in grids
    ]
    draft = core.Manifest.planned(whole, core.ShardPlan(splits))
    names = _array_paths(draft, len(grids))
    for keys, leaf, (counts, files, is_host) in zip(names, whole.hollow, grids, strict=True):
        cells = core.ShardGrid(leaf.shape, counts)
        for cell, number in enumerate(files):
            index = [slice(*ends) for ends in cells.bounds(cell)]
            name = [] if is_host else [cells.name(cell)]
            _paths.put(parts[number], [*keys, *name], np.asarray(leaf)[(*index, ...)])
    path.mkdir()
    (path / MANIFEST).write_bytes(draft.with_files(draft.files))
    for number, part in enumerate(parts):
        treepack.save(path / f"{number}.treepack", part, compress=compress, durable=False)
    files = [(f"{number}.treepack", 0, 0) for number in range(2)]
    (path / MANIFEST).write_bytes(draft.with_files(files))
    resealed(path)


def check(first: int, last: int) -> int:
    """Makes the changes of these numbers, and returns how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        ways: list[Compress] = [False, True, "numbers"]
        for number, compress in enumerate(ways):
            path = Path(folder, f"compress-{compress}")
            make(path, compress=compress)
            assert treepack.verify(path).ok
            template = treepack.load(path)
            for use in uses(template):
                use(path)  # and what it needs is imported
            failed += run(path, range(first + number, last, len(ways)), template)
    return failed


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(check(int(sys.argv[1]), int(sys.argv[2])) > 0)
