"""Writes trees in every form, for valgrind, which tells what is written and was never set.

    PYTHONMALLOC=malloc valgrind python tests/support/written.py

Arrays have each dtype, except long doubles, whose padding is never set. They are small, large,
empty, of sizes that no alignment divides, and of any strides. With `--uninitialized` one more
is saved at the end that was never set, which valgrind has to report. jax is not imported, which
would take valgrind minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import treepack
from treepack import serialization

CODES = (
    "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"].replace("g", "").replace("G", "")
)
DTYPES = [
    *map(np.dtype, CODES),
    np.dtype("datetime64[ns]"),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "int4")),
]
SHAPES = [(), (0,), (3, 0), (1,), (7,), (3, 5), (300,), (1025, 3)]
LARGE = [np.arange(300_001, dtype=np.float32), np.arange(70_001).astype(ml_dtypes.bfloat16)]


def array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) % 100 % 2).astype(dtype).reshape(shape)


def tree() -> dict[str, Any]:
    return {
        "arrays": {
            dtype.name: {str(at): array(dtype, shape) for at, shape in enumerate(SHAPES)}
            for dtype in DTYPES
        },
        "large": dict(zip("ab", LARGE, strict=True)),
        "turned": {"t": LARGE[0][:-1].reshape(500, 600).T, "s": LARGE[1][::3]},
        "small": {str(at): np.full(at % 5, at, np.float32) for at in range(200)},
        "values": {"n": 3, "x": 0.5, "z": 1j, "text": "text", "bytes": b"bytes", "none": None},
    }


def leaves(tree: Any, *keys: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, *keys, key)
    else:
        yield keys, tree


def to_null(data: Any) -> None:
    """Writes what is made in memory, so that valgrind looks at it."""
    handle = os.open(os.devnull, os.O_WRONLY)
    os.write(handle, data)
    os.close(handle)


def pack(path: Path, tree: Any) -> None:
    buffer = bytearray(treepack.packed_size(tree))
    treepack.pack_into(tree, buffer)
    to_null(buffer)
    for piece in treepack.buffers(tree):
        to_null(piece)


FORMS: dict[str, Callable[[Path, Any], object]] = {
    "file": lambda path, tree: treepack.save(path, tree, metadata={"step": 3}),
    "one thread": lambda path, tree: treepack.save(path, tree, threads=1, align=1),
    "gzip": lambda path, tree: treepack.save(path, tree, compress=True),
    "gzip, stored": lambda path, tree: treepack.save(path, tree, compress=True, level=0),
    "gzip, level 9": lambda path, tree: treepack.save(path, tree, compress=True, level=9),
    "numbers": lambda path, tree: treepack.save(path, tree, compress="numbers"),
    "background": lambda path, tree: treepack.save(path, tree, background=True).result(),
    "directory": lambda path, tree: treepack.save(path, tree, sharded=True),
    "iterator": lambda path, tree: treepack.save(path, leaves(tree)),
    "stream": lambda path, tree: treepack.write_stream(path, leaves(tree)),
    "state": lambda path, tree: serialization.save_to_file(tree, path),
    "bytes": lambda _, tree: to_null(treepack.dumps(tree)),
    "compressed bytes": lambda _, tree: to_null(serialization.to_compressed_bytes(tree)),
    "pieces": pack,
}


def main() -> None:
    written = tree()
    with tempfile.TemporaryDirectory() as folder:
        for at, (name, write) in enumerate(FORMS.items()):
            path = Path(folder) / str(at)
            write(path, written)
            print(f"{name} is written", flush=True)
            if path.exists() and name != "stream":
                assert treepack.verify(path).ok
        # In a process of its own, whose reports valgrind keeps apart.
        if "--uninitialized" in sys.argv and os.fork() == 0:
            treepack.save(Path(folder) / "unset", {"never set": np.empty(1000, np.float32)})
            os._exit(0)
    print(f"{len(FORMS)} passed")


if __name__ == "__main__":
    main()
