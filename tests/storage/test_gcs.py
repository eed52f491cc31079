"""Checkpoints in Google Cloud Storage: its conditions are about generations, not e-tags."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import tiers
import treepack
from support import gcs
from treepack._src.storage.address import Address

pytest.importorskip("obstore")

TREE: dict[str, Any] = {
    f"layer_{index}": {"kernel": np.full((64, 1024), index, np.float32), "bias": np.arange(3.0)}
    for index in range(8)
}


@pytest.fixture
def server() -> Iterator[gcs.Server]:
    with gcs.running() as found:
        yield found


def same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@tiers.parametrize("sharded", [False, True], quick=2)
@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_all_verbs(server: gcs.Server, sharded: bool, scheme: str) -> None:
    url, options = f"{scheme}://bucket/run 1/model", server.options
    for step in range(2):
        treepack.save(url, TREE | {"step": step}, sharded=sharded, storage_options=options)
        assert treepack.load(url, storage_options=options)["step"] == step
    same(treepack.load(url, TREE | {"step": 0}, storage_options=options), TREE | {"step": 1})
    assert treepack.verify(url, storage_options=options).ok
    part = treepack.load(url, select="layer_3/*", storage_options=options)
    same(part, {"layer_3": TREE["layer_3"]})
    with treepack.open(url, storage_options=options) as file:
        same(file["layer_7/kernel"][3:9, ::2], TREE["layer_7"]["kernel"][3:9, ::2])
    if sharded:
        assert len(Address.of(url, options).entries()) == 2, (
            "the files of the first save are deleted"
        )
    Address.of(url, options).remove()
    assert not Address.of(url, options).exists()
    assert not server.objects
    with pytest.raises(FileNotFoundError, match="model"):
        treepack.load(url, storage_options=options)


def test_a_run_copies_unchanged_files_inside_the_store(server: gcs.Server) -> None:
    options: Any = {"unchanged": "link", "storage_options": server.options}
    run = treepack.Series("gs://bucket/run 1", keep=treepack.Keep(last=2), **options)
    for step in range(3):
        run.save(step, TREE | {"step": step, "w": np.full(100, step)})
    found = treepack.Series("gs://bucket/run 1", **options).resume()
    assert found is not None
    same(found[1], TREE | {"step": 2, "w": np.full(100, 2)})
    with treepack.open(run.path(2), storage_options=server.options) as file:
        (shared,) = file.linked
    assert {f"run 1/step_{step}/{shared}" for step in (1, 2)} <= server.objects.keys()


@pytest.mark.campaign
def test_uploads_in_parts(server: gcs.Server) -> None:
    large = {"w": np.arange(5 << 20)}
    treepack.save("gs://bucket/large", large, storage_options=server.options)
    assert sum(it.startswith("PUT large") for it in server.requests) == 3
    same(treepack.load("gs://bucket/large", storage_options=server.options), large)
    assert not server.uploads


@pytest.mark.parametrize("is_same", [False, True])
def test_of_two_jobs_one_gets_an_error(server: gcs.Server, is_same: bool) -> None:
    """Also if the manifest has the same e-tag as the one that was there when the save began."""
    url, options, manifest = "gs://bucket/jobs", server.options, "jobs/manifest.treepack"
    treepack.save(url, {"a": np.full(1000, 0)}, sharded=True, storage_options=options)

    def other(request: str) -> None:
        if request != f"PUT {manifest}":
            return
        server.before = lambda _: None
        if is_same:
            server.objects[manifest] = server.objects[manifest][0], next(server.numbers)
        else:
            treepack.save(url, {"a": np.full(1000, 1)}, sharded=True, storage_options=options)

    server.before = other
    with pytest.raises(treepack.TreepackError, match=r"process \d+ on"):
        treepack.save(url, {"a": np.full(1000, 2)}, sharded=True, storage_options=options)
    same(treepack.load(url, storage_options=options), {"a": np.full(1000, int(not is_same))})
    assert treepack.verify(url, storage_options=options).ok
    assert len(Address.of(url, options).entries()) == 2, (
        "the files of the one with the error are gone"
    )


def test_jobs_race_for_a_directory(server: gcs.Server) -> None:
    url, options = "gs://bucket/race", server.options
    won: list[int] = []
    wrong: list[BaseException] = []

    def save(job: int) -> None:
        try:
            for step in range(10):
                try:
                    tree = {"job": job, "step": step}
                    treepack.save(url, tree, sharded=True, storage_options=options)
                    won.append(job)
                except treepack.TreepackError as error:
                    if "another job saved" not in str(error):
                        raise
                assert set(treepack.load(url, storage_options=options)) == {"job", "step"}
        except BaseException as error:
            wrong.append(error)

    jobs = [threading.Thread(target=save, args=(job,)) for job in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert not wrong
    assert len(won) >= 10, "of those that commit at a time, one wins"
    assert treepack.verify(url, storage_options=options).ok
