"""Trees and what tells of them travel between processes, as joblib, Ray and Dask send them."""

import pickle
from pathlib import Path

import cloudpickle
import jax.numpy as jnp
import joblib
import ml_dtypes
import numpy as np
import pytest
from distributed.protocol import deserialize, serialize

import treepack

tree = {"w": np.arange(12.0).reshape(3, 4), "layers": [np.ones(2), (np.zeros(1),)], "step": 3}


@pytest.mark.parametrize("library", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_loaded_trees_and_messages_are_pickled(library, tmp_path: Path) -> None:
    treepack.save(tmp_path / "tree.treepack", tree)
    loaded = treepack.load(tmp_path / "tree.treepack")  # views of a mapped file
    for sent in (loaded, treepack.loads(treepack.dumps(tree))):
        received = pickle.loads(library.dumps(sent))
        np.testing.assert_array_equal(received["w"], tree["w"])
        assert type(received["layers"][1]) is tuple


def test_errors_are_pickled(tmp_path: Path) -> None:
    treepack.save(tmp_path / "tree.treepack", tree)
    with pytest.raises(treepack.MismatchError) as raised:
        treepack.load(tmp_path / "tree.treepack", {**tree, "w": np.zeros(2)})
    received = pickle.loads(pickle.dumps(raised.value))
    assert type(received) is treepack.MismatchError
    assert str(received) == str(raised.value)


def mean(path: Path, name: str) -> float:
    with treepack.open(path) as file:
        return float(np.mean(file[name]))


def test_workers_of_joblib_open_the_same_file(tmp_path: Path) -> None:
    treepack.save(tmp_path / "tree.treepack", {str(i): np.full(100, i) for i in range(4)})
    jobs = [joblib.delayed(mean)(tmp_path / "tree.treepack", str(i)) for i in range(4)]
    assert joblib.Parallel(n_jobs=2, backend="threading")(jobs) == [0, 1, 2, 3]


def test_joblib_dumps_a_loaded_tree(tmp_path: Path) -> None:
    treepack.save(tmp_path / "tree.treepack", tree)
    joblib.dump(treepack.load(tmp_path / "tree.treepack"), tmp_path / "tree.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "tree.joblib")["w"], tree["w"])


# What docs/transport.md says of pickle and Dask.
def test_pickle_copies_arrays_of_jax_and_bfloat16() -> None:
    arrays = {
        "float32": np.ones(1000, np.float32),
        "bfloat16": np.ones(1000, ml_dtypes.bfloat16),
        "jax": jnp.ones(1000),
    }
    copied = set()
    for name, array in arrays.items():
        beside: list[pickle.PickleBuffer] = []
        pickle.dumps(array, protocol=5, buffer_callback=beside.append)
        if not beside:
            copied.add(name)
    assert copied == {"bfloat16", "jax"}


def test_dask_keeps_strides_and_treepack_does_not() -> None:
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    broadcast = np.broadcast_to(np.arange(1000.0), (1000, 1000))
    for array in (fortran, broadcast):
        header, frames = serialize(array)
        assert deserialize(header, frames).strides == array.strides
        encoded = treepack.dumps({"w": array})
        assert len(encoded) > array.nbytes
        loaded = treepack.loads(encoded)["w"]
        assert loaded.flags.c_contiguous
        np.testing.assert_array_equal(loaded, array)
    assert sum(memoryview(frame).nbytes for frame in serialize(broadcast)[1]) == 8000
