"""Makes the files beside it: the same tree, as several libraries and versions write it.

    pip download flax==0.5.3 --no-deps && unzip flax-0.5.3-py3-none-any.whl 'flax/serialization.py'
    python tests/golden/make.py flax/serialization.py

Run once for each; the files are kept, so that every later version is tested with them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import ml_dtypes
import numpy as np
from eformer.pytree import serialization as eformer

import treepack

FOLDER = Path(__file__).parent


def tree() -> dict[str, Any]:
    """Returns what is in all of the files."""
    return {
        "params": {
            "dense": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.ones(4)},
            "half": np.arange(6).astype(ml_dtypes.bfloat16),
            "large": np.arange(40, dtype=np.int64).reshape(4, 10),
        },
        "list": [1, (2.5, "text")],
        "step": np.int32(7),
        "flag": True,
        "complex": 1 + 2j,
        "none": None,
    }


def of_flax_05(path: str) -> Any:
    """Returns the module of flax 0.5, which runs with what jax and NumPy had then."""
    np.issctype = lambda ty: isinstance(ty, type) and issubclass(ty, np.generic)
    jax.xla = types.SimpleNamespace(DeviceArray=())  # type: ignore[attr-defined]
    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("flax_05", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Writes the files."""
    modules: tuple[tuple[str, Any], ...] = (
        ("flax-0.5.3.msgpack", of_flax_05(sys.argv[1])),
        (f"flax-{flax.__version__}.msgpack", flax.serialization),
        ("eformer-0.0.101.msgpack", eformer),
    )
    for name, module in modules:
        before, module.MAX_CHUNK_SIZE = module.MAX_CHUNK_SIZE, 100
        (FOLDER / name).write_bytes(module.to_bytes(tree()))
        module.MAX_CHUNK_SIZE = before
    metadata = {"made": "by version 1 of the format"}
    treepack.save(FOLDER / "version-1.treepack", tree(), metadata=metadata)
    treepack.save(FOLDER / "version-1.treepack.gz", tree(), metadata=metadata, compress=True)


if __name__ == "__main__":
    main()
