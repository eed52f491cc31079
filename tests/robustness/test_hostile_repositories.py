"""Damaged repositories of safetensors and directories of Orbax end in documented errors."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest

import tiers
import treepack
from hostile.headers import mutated, repository

# Of CPU time for one use; no file has a megabyte.
MOST_SECONDS = 1.0


def read_all(path: Path) -> None:
    """Reads each array alone."""
    with treepack.open(path) as file:
        for _, leaf in file.leaves():
            np.asarray(leaf)


USES: dict[str, Callable[[Path], Any]] = {
    "load": treepack.load,
    "abstract": treepack.abstract,
    "verify": treepack.verify,
    "read_metadata": treepack.read_metadata,
    "is_checkpoint": treepack.is_checkpoint,
    "open": read_all,
}


def refusals(path: Path) -> Iterator[treepack.TreepackError]:
    """Uses a checkpoint, and yields documented errors."""
    for name, use in USES.items():
        start = time.process_time()
        try:
            use(path)
        except treepack.TreepackError as error:
            yield error
        assert time.process_time() - start < MOST_SECONDS, name


def count_of(quick: int, every: int) -> int:
    """Set TREEPACK_HOSTILE to the number of cases to try more of them."""
    return int(os.environ.get("TREEPACK_HOSTILE", tiers.either(quick, every)))


@pytest.mark.parametrize("is_directory", [False, True])
def test_repositories_of_safetensors(in_memory: Path, is_directory: bool) -> None:
    taken = refused = 0
    first, count = int(os.environ.get("TREEPACK_SEED", "0")), count_of(100, 1000)
    for seed in range(first, first + count):
        own = random.Random(seed)
        path = in_memory / f"model-{seed}"
        if is_directory:
            path.mkdir()
            for name, data in repository(own).items():
                (path / name).write_bytes(data)
        else:
            path = path.with_suffix(".safetensors")
            path.write_bytes(mutated(own))
        found = [*refusals(path)]
        taken, refused = taken + (not found), refused + bool(found)
        shutil.rmtree(path) if is_directory else path.unlink()
    assert min(taken, refused) > count / 100


def write_v0(path: Path, **options: bool) -> None:
    tree = {"w": jnp.arange(2000.0), "b": {"c": np.arange(6).reshape(2, 3)}, "n": 7, "t": "text"}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(path, tree)


def write_v1(path: Path) -> None:
    ocp_v1.save_pytree(path, {"w": jnp.arange(2000.0), "b": [np.ones(3, np.int8), 2.5]})


WRITERS: dict[str, Callable[[Path], None]] = {
    "v0": write_v0,
    "without a database": lambda path: write_v0(path, use_ocdbt=False),
    "zarr 3": lambda path: write_v0(path, use_ocdbt=False, use_zarr3=True),
    "v1": write_v1,
}


def damage(path: Path, random: random.Random) -> None:
    """Damages a random file of a directory: metadata as often as all others."""
    files = sorted(it for it in path.rglob("*") if it.is_file())
    metadata = [it for it in files if it.name[:1] in "_.m" or it.suffix == ".json"]
    file = random.choice(random.choice([files, metadata]))
    data = bytearray(file.read_bytes())
    kind = random.choice(
        ["flip", "flip", "text", "text", "cut", "longer", "gone", "empty", "other"]
    )
    at = random.randrange(len(data) + 1)
    if kind == "flip" and data:
        data[at - 1] ^= 1 << random.randrange(8)
    elif kind == "text" and data:
        data[at - 1] = random.choice(b'0129-.e{}[]",:a\\\xff\0')
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data[at:at] = random.randbytes(random.randrange(1, 20))
    elif kind == "other":
        data[:] = random.choice(files).read_bytes()
    elif kind == "empty":
        data.clear()
    if kind == "gone":
        file.unlink()
    else:
        file.write_bytes(data)


@pytest.mark.parametrize("writer", WRITERS)
def test_directories_of_orbax(in_memory: Path, writer: str) -> None:
    WRITERS[writer](in_memory / "whole")
    assert not [*refusals(in_memory / "whole")]
    refused = 0
    first, count = int(os.environ.get("TREEPACK_SEED", "0")), count_of(20, 400)
    for seed in range(first, first + count):
        path = in_memory / f"damaged-{seed}"
        shutil.copytree(in_memory / "whole", path)
        damage(path, random.Random(seed))
        found = [*refusals(path)]
        assert all(path.stem in str(error) for error in found), found
        refused += bool(found)
        shutil.rmtree(path)
    assert refused > count / 10
