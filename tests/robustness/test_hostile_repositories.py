"""Damaged safetensors, directories of Orbax and archives of NumPy end in documented errors."""

from __future__ import annotations

import copy
import os
import random
import shutil
import time
import zipfile
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
from hostile import limits
from hostile.changes import with_other_bytes
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
    return int(os.environ.get("TREEPACK_HOSTILE", tiers.either(quick, every // 2, nightly=every)))


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


def archive(path: Path, own: random.Random) -> None:
    """Writes an archive of NumPy whose directory tells what is not so.

    Members lie inside each other, and have other sizes.
    """
    large = {"a": np.arange(3000), "b": np.zeros((300, 300)), "t": np.array(["x", "yz"])}
    own.choice([np.savez, np.savez_compressed])(path, **large)
    with zipfile.ZipFile(path, "a") as file:
        for number in range(own.choice([0, 1, 30])):
            twin = copy.copy(own.choice(file.filelist[:3]))
            twin.filename = f"{number}.npy"
            file.filelist.append(twin)
        member = own.choice(file.filelist)
        field = own.choice(["header_offset", "compress_size", "file_size", "CRC", "compress_type"])
        value, most = getattr(member, field), {"compress_type": 2**16, "CRC": 2**32}
        other = own.choice([0, 1, value + 1, value // 2, value * 40, 2**31, 2**33])
        setattr(member, field, other % most.get(field, 2**40))
        file._didModify = True  # type: ignore[attr-defined]
    if own.random() < 0.5:
        path.write_bytes(with_other_bytes(path.read_bytes(), own))


@pytest.mark.filterwarnings("ignore:Duplicate name", "ignore:.* damaged or unsupported")
def test_archives_of_numpy(in_memory: Path) -> None:
    taken = refused = 0
    measured = limits.Limits()
    first, count = int(os.environ.get("TREEPACK_SEED", "0")), count_of(60, 1000)
    for seed in range(first, first + count):
        path = in_memory / "model.npz"
        archive(path, random.Random(seed))
        with measured.memory(f"seed {seed}", path.stat().st_size, 0) as exceeded:
            found = [*refusals(path)]
        assert not exceeded, (seed, exceeded)
        taken, refused = taken + (not found), refused + bool(found)
        path.unlink()
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
    kinds = ["flip", "flip", "text", "text", "cut", "longer", "gone", "empty", "other", "number"]
    kind = random.choice(kinds)
    at = random.randrange(len(data) + 1)
    if kind == "flip" and data:
        data[at - 1] ^= 1 << random.randrange(8)
    elif kind == "text" and data:
        data[at - 1] = random.choice(b'0129-.e{}[]",:a\\\xff\0')
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data[at:at] = random.randbytes(random.randrange(1, 20))
    elif kind == "number":  # arrays and chunks that claim more than there is
        digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
        for at in random.sample(digits, min(len(digits), 2)):
            data[at:at] = b"9" * random.choice([1, 3, 6, 12])
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
