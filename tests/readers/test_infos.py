"""What open files tell of their leaves without reading them, and statistics of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import treepack
from treepack import MissingPathError

TREE: dict[str, Any] = {
    "a/b": {"w": np.ones((3, 4), np.float32), "none": {}},
    "list": [np.float64(2), "text", 3],
    "key": jax.random.key(1),
    "small": np.zeros(5, ml_dtypes.int4),
}


@pytest.mark.parametrize("name", ["file", "file.gz", "directory"])
def test_leaves_are_described_as_they_are_read(tmp_path: Path, name: str) -> None:
    treepack.save(tmp_path / name, TREE, sharded=name == "directory")
    with treepack.open(tmp_path / name) as file:
        infos = {info.path: info for info in file.infos()}
        leaves = dict(file.leaves())
        assert [*infos] == [*leaves]
        for path, leaf in leaves.items():
            assert file.info(path) == infos[path]
            assert infos[path].leaves == 1
            if isinstance(leaf, treepack.LazyArray):
                assert infos[path].shape == leaf.shape
                assert infos[path].dtype == leaf.dtype
                assert infos[path].dtype == leaf.dtype.name
                assert infos[path].dtype == leaf.dtype.type
                assert infos[path].nbytes == leaf.nbytes
        kinds = {path: (info.kind, str(info)) for path, info in infos.items()}
        assert kinds == {
            "a~1b/w": ("array", "float32[3,4]"),
            **{"list/0": ("scalar", "float64[]"), "list/1": ("str", "str")},
            **{"list/2": ("int", "int"), "key": ("prng_key", "key<threefry2x32>")},
            "small": ("array", "int4[5]"),
        }
        part = file["a/b"]
        assert part.info() == treepack.Info(".", "container", None, None, 48, None, 1)
        assert [info.path for info in part.infos()] == ["w"]
        assert sum(info.nbytes for info in file.infos()) == file.nbytes == file.info().nbytes
        with pytest.raises(MissingPathError, match="is it 'list/2'"):
            file.info("list/2.")


def test_levels_have_containers_before_their_children() -> None:
    with treepack.open(treepack.dumps(TREE)) as file:
        rows = [(level, key, str(info)) for level, key, info in file.levels()]
        assert rows[:4] == [
            *((0, "a/b", "1 leaf"), (1, "w", "float32[3,4]"), (1, "none", "0 leaves")),
            (0, "list", "3 leaves"),
        ]
        assert [*file.levels(0)] == []
        assert [level for level, _, _ in file.levels(1)] == [0, 0, 0, 0]
        assert {info.path for _, _, info in file.levels()} >= {info.path for info in file.infos()}


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, ml_dtypes.bfloat16, np.complex64, bool])
def test_statistics_are_those_of_numpy(dtype: Any) -> None:
    array = (np.random.default_rng(1).normal(100, 9, (3, 200_000))).astype(dtype)
    array[0, 7] = 0
    with treepack.open(treepack.dumps({"w": array})) as file:
        found = file["w"].statistics(bins=7)
        assert found is not None
        numbers = np.abs(array.astype(np.complex128)) if found.symbol == "|x|" else array
        numbers = numbers.astype(np.float64)
        assert (found.minimum, found.maximum) == (numbers.min(), numbers.max())
        assert found.mean == pytest.approx(numbers.mean(), rel=1e-12)
        assert found.std == pytest.approx(numbers.std(), rel=1e-9)
        assert found.zeros == (numbers == 0).sum()
        assert found.histogram == np.histogram(numbers, 7)[0].tolist()
        assert file["w"].statistics(bins=0).histogram == []
        with pytest.raises(ValueError, match="bins must be a number of intervals, or 0, got -1"):
            file["w"].statistics(bins=-1)


@pytest.mark.parametrize(
    "values",
    [
        *(np.full(3, it) for it in (1e17, 1e300, -3e38)),
        np.array([2**63 + 1], np.uint64),
        np.arange(5) + 1_700_000_000_000_000_000,  # nanoseconds
        np.array([-1.7e308, 1.7e308]),
        np.array([0, 5e-324]),
    ],
)
def test_histograms_of_close_and_of_distant_numbers(values: np.ndarray) -> None:
    with treepack.open(treepack.dumps({"a": values})) as file:
        found = file["a"].statistics()
    assert sum(found.histogram) == values.size
    assert (found.minimum, found.maximum) == (float(values.min()), float(values.max()))
    assert found.std <= 1e-9 * abs(found.maximum) or values.min() != values.max()


def test_what_is_not_finite_is_counted_apart() -> None:
    arrays = {"a": np.array([np.nan, np.inf, -np.inf, 2]), "none": np.array([np.nan])}
    with treepack.open(treepack.dumps({**arrays, "day": np.zeros(2, "M8[s]")})) as file:
        found = file["a"].statistics()
        assert (found.nan, found.infinite, found.mean, found.std) == (1, 2, 2.0, 0.0)
        nothing = file["none"].statistics()
        assert (nothing.nan, np.isnan(nothing.mean), sum(nothing.histogram)) == (1, True, 0)
        assert file["day"].statistics() is None
