"""Loads weights of Hugging Face's layout through a mapping, beside safetensors and NumPy.

    python benches/mapping.py               # 1 GiB of bfloat16, 512 MiB of float8; 4 devices on CPU
    python benches/mapping.py --mib 256

*heads* stacks 32 layers and splits and transposes heads, as `"(h d) m -> l m h d"`; *unmapped* is
a load of the same tensors as they are. *float8* multiplies blocks of 128 by 128 by their scales, to
bfloat16, stacked and transposed. *saved* is back to files, wall time only. NumPy does the same by
`safe_open` (float8, which it lacks, by a mapped file), functions for each tensor, `np.stack` and
`device_put`, as trainers write it. Columns are those of repository.py; bytes read are a multiple of
those in the files.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

import treepack
from repository import LAYERS, Rows, arguments, once, place, table, timed, write

HEADS, BLOCK = 16, 128

HEADS_RULES = treepack.Mapping({"w": ("layers.{l}.w", "(h d) m -> l m h d")}, h=HEADS)
FLOAT8 = {"scales": "layers.{l}.w_scale_inv", "block": (BLOCK, BLOCK), "dtype": "bfloat16"}
FLOAT8_RULES = treepack.Mapping({"w": ("layers.{l}.w", "o i -> l i o", FLOAT8)})


def side_of(folder: Path) -> int:
    """Returns the number of rows and columns of a tensor."""
    with treepack.open(folder) as file:
        return int(file["layers/0/w"].shape[0])


def write_float8(folder: Path, mib: int) -> None:
    """Writes weights of a byte with their scales."""
    side = int((mib * (1 << 20) / LAYERS) ** 0.5)
    random = np.random.default_rng(0)
    tensors = {}
    for at in range(LAYERS):
        weight = random.integers(0, 127, (side, side), np.uint8)  # without NaN
        tensors[f"layers.{at}.w"] = weight.view(ml_dtypes.float8_e4m3fn)
        scales = random.random((-(-side // BLOCK),) * 2, np.float32)
        tensors[f"layers.{at}.w_scale_inv"] = scales
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with (folder / "model.safetensors").open("rb") as written:  # only clean pages can be dropped
        os.fsync(written.fileno())


def struct(shape: tuple[int, ...], sharding: Any) -> Any:
    """Returns the template of an array on devices."""
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)


def heads(folder: Path, sharding: Any) -> Any:
    """Stacks, splits and transposes heads with treepack."""
    side = side_of(folder / "bfloat16")
    template = {"w": struct((LAYERS, side, HEADS, side // HEADS), sharding)}
    return treepack.load(folder / "bfloat16", template, mapping=HEADS_RULES)


def unmapped(folder: Path, _: Any) -> Any:
    """Loads the same tensors as they are, by rows."""
    shape = (side_of(folder / "bfloat16"),) * 2
    template = {str(at): {"w": struct(shape, place("x", None))} for at in range(LAYERS)}
    return treepack.load(folder / "bfloat16", {"layers": template})


def float8(folder: Path, sharding: Any) -> Any:
    """Scales, stacks and transposes with treepack."""
    shape = (LAYERS, *(side_of(folder / "float8"),) * 2)
    return treepack.load(folder / "float8", {"w": struct(shape, sharding)}, mapping=FLOAT8_RULES)


def heads_by_numpy(folder: Path, sharding: Any) -> Any:
    """Does it with NumPy."""
    layers, side = {}, side_of(folder / "bfloat16")
    for path in sorted(folder.glob("bfloat16/*.safetensors")):
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                weight = file.get_tensor(name).reshape(HEADS, -1, side)
                layers[name] = weight.transpose(2, 0, 1)
    return on_devices(layers, sharding)


def float8_by_numpy(folder: Path, sharding: Any) -> Any:
    """Does it with NumPy."""
    path = folder / "float8" / "model.safetensors"
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    memory = np.memmap(path, np.uint8, "r", start)
    layers = {}

    def tensor(name: str, dtype: Any) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        return np.asarray(memory[begin:end].view(dtype).reshape(header[name]["shape"]))

    for at in range(LAYERS):
        weight = tensor(f"layers.{at}.w", ml_dtypes.float8_e4m3fn).astype(np.float32)
        scales = tensor(f"layers.{at}.w_scale_inv", np.float32)
        rows, columns = weight.shape
        weight *= scales.repeat(BLOCK, 0)[:rows].repeat(BLOCK, 1)[:, :columns]
        layers[f"layers.{at}.w"] = weight.astype(ml_dtypes.bfloat16).T
    return on_devices(layers, sharding)


def on_devices(layers: dict[str, np.ndarray], sharding: Any) -> Any:
    """Stacks layers and places them on devices."""
    return jax.device_put(np.stack([layers[f"layers.{at}.w"] for at in range(LAYERS)]), sharding)


ROWS: Rows = {
    "heads": (
        (None, None, "x"),
        {"treepack": heads, "unmapped": unmapped, "NumPy": heads_by_numpy},
    ),
    "float8": ((None, "x"), {"treepack": float8, "NumPy": float8_by_numpy}),
}


def saved(folder: Path, rounds: int) -> None:
    """Prints times of saves, through a mapping and without."""
    mapped, plain = heads(folder, place(None, None, "x")), unmapped(folder, None)
    out = folder / "out"

    def save(tree: Any, mapping: Any) -> None:
        treepack.save(out, tree, format="safetensors", mapping=mapping)

    calls = {"treepack": (mapped, HEADS_RULES), "unmapped": (plain, None)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            shutil.rmtree(out, ignore_errors=True)
            times[name].append(timed(lambda call=call: save(*call))[1])
    for name, found in times.items():
        print(f"{'saved':15} {name:12} {'':7} {statistics.median(found[1:]):7.2f}s")


def main() -> None:
    """Prints a table."""
    options = arguments(__doc__).parse_args()
    if options.once:
        folder, row, library, mode = options.once
        once(ROWS, Path(folder), row, library, cold=mode == "cold")
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        for kind, function in (("bfloat16", write), ("float8", write_float8)):
            (folder / kind).mkdir()
            function(folder / kind, options.mib if kind == "bfloat16" else options.mib // 2)
        files = {
            "heads": sum(path.stat().st_size for path in folder.glob("bfloat16/*")),
            "float8": sum(path.stat().st_size for path in folder.glob("float8/*")),
        }
        wanted = options.row or [*ROWS, "saved"]
        options.row = [row for row in wanted if row in ROWS]
        if options.row:
            table(__file__, ROWS, folder, lambda row: (files[row], options.mib << 20), options)
        if "saved" in wanted:
            saved(folder, options.rounds)


if __name__ == "__main__":
    main()
