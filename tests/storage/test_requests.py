"""How many requests each verb makes to read each form from a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from promises.forms import FORMS
from support import s3
from treepack._src.storage.address import Address

# Of 48 arrays; a verb that reads each by its own request makes more.
RNG = np.random.default_rng(0)
TREE = {
    f"l{layer}": {"w": RNG.random((256, 256), np.float32), "b": np.full(300, layer, np.int32)}
    for layer in range(24)
}

# The maximum number of requests, where it is larger than 14: files without an index have a header
# before each array, and a repository has several files.
MOST = {"flax": 32, "npz": 36, "repository": 24}

VERBS: dict[str, Callable[[str, Path, dict[str, Any]], object]] = {
    "load": lambda url, _, more: treepack.load(url, **more),
    "select": lambda url, _, more: treepack.load(url, select="*/b", **more),
    "verify": lambda url, _, more: treepack.verify(url, **more),
    "digest": lambda url, _, more: treepack.digest(url, **more),
    "diff": lambda url, _, more: treepack.diff(url, TREE, **more),
    "diff with stats": lambda url, _, more: treepack.diff(TREE, url, stats=True, **more),
    "statistics": lambda url, _, more: treepack.open(url, **more)["l3/w"].statistics(),
    "copy": lambda url, path, more: treepack.save(path / "copy", treepack.open(url, **more)),
    "cast": lambda url, path, more: treepack.save(
        path / "cast", treepack.open(url, **more), dtype="float16"
    ),
    "export": lambda url, path, more: treepack.save(
        path / "copy.safetensors", treepack.open(url, **more)
    ),
    "export to npz": lambda url, path, more: treepack.save(
        path / "copy.npz", treepack.open(url, **more)
    ),
    "base": lambda url, path, more: treepack.save(
        path / "patch", TREE, base=treepack.open(url, **more)
    ),
    "salvage": lambda url, _, more: treepack.open(url, salvage=True, **more).load(),
}


@pytest.fixture(scope="module")
def server() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@tiers.parametrize("form", sorted(FORMS.keys() - {"Orbax directory"}))  # read locally only
def test_arrays_are_fetched_together(server: s3.Server, tmp_path: Path, form: str) -> None:
    (tmp_path / "form").mkdir()
    path = tmp_path / "form" / f"saved{FORMS[form].suffix}"
    options: dict[str, Any] = {"storage_options": server.options}
    if form == "repository":
        treepack.save(path, TREE, format="safetensors", max_shard_size="2MB")
    elif form == "npz":
        treepack.save(path, treepack.open(treepack.dumps(TREE)))
    else:
        FORMS[form].write(path, TREE)
    url = server.url(f"{form.replace(' ', '-')}/")
    for file in (tmp_path / "form").rglob("*"):
        if file.is_file():
            place = Address.of(url + str(file.relative_to(tmp_path / "form")), server.options)
            place.write_bytes(file.read_bytes(), durable=False)
    url += str(FORMS[form].entry(path).relative_to(tmp_path / "form"))
    counts = {}
    for name, verb in VERBS.items():
        if name == "base" and not FORMS[form].is_base:
            continue
        server.proxy.requests.clear()
        verb(url, tmp_path, options)
        counts[name] = len(server.proxy.requests)
    assert max(counts.values()) <= MOST.get(form, 14), counts
