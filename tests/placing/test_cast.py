"""`load(dtype=...)`: floats that are cast without a template; and the hint at `cast=True`."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import treepack
from treepack._src.dtypes import is_float
from treepack._src.options import Reading
from treepack._src.placing import casting
from trees import ML_DTYPES, NUMPY_DTYPES, example_array

DTYPES = [dtype for dtype in NUMPY_DTYPES + ML_DTYPES if dtype.char not in "gG"]


def tree() -> dict[str, Any]:
    found: dict[str, Any] = {
        dtype.str + dtype.name: example_array(dtype, (3, 2)) for dtype in DTYPES
    }
    jaxes = [jnp.ones(3, jnp.bfloat16), {"x": jnp.arange(4.0)}, jax.random.key(1)]
    return {"np": found, "jax": jaxes, "py": (1.5, True, np.float16(2), np.int8(1), None)}


def check(found: Any, dtype: Any) -> None:
    for name, array in tree()["np"].items():
        made = found["np"][name]
        assert made.dtype == (dtype if is_float(array.dtype) else array.dtype), name
        step = array.astype(np.float32) if is_float(array.dtype) else array
        assert made.tobytes() == step.astype(made.dtype).tobytes(), name
    first, second, key = found["jax"]
    assert isinstance(first, jax.Array)
    assert first.dtype == second["x"].dtype == dtype
    np.testing.assert_array_equal(np.asarray(second["x"]), np.arange(4).astype(dtype))
    assert key == jax.random.key(1)
    assert found["py"] == tree()["py"]
    assert type(found["py"][0]) is float
    assert found["py"][2].dtype == dtype
    assert found["py"][3].dtype == np.int8


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, "float16", ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("compress", [False, True])
def test_floats_are_cast_without_a_template(tmp_path: Path, dtype: Any, compress: bool) -> None:
    wanted = np.dtype(dtype)
    treepack.save(tmp_path / "x", tree(), compress=compress)
    check(treepack.load(tmp_path / "x", dtype=dtype), wanted)
    check(treepack.load(tmp_path / "x", dtype=dtype, mmap=False), wanted)
    check(treepack.loads((tmp_path / "x").read_bytes(), dtype=dtype), wanted)
    with treepack.open(tmp_path / "x") as file:
        check(file.load(dtype=dtype), wanted)
        assert file["jax"].load(dtype=dtype)[0].dtype == wanted
        found, report = file.load(dtype=dtype, select=["jax", "py/4"], return_report=True)
    assert found["jax"][1]["x"].dtype == wanted
    assert set(report.cast) == {"jax/0", "jax/1/x"} - {
        "jax/0" if wanted == jnp.bfloat16 else "",
        "jax/1/x" if wanted == np.float32 else "",
    }


def test_a_single_array_and_a_file_of_flax() -> None:
    assert treepack.loads(treepack.dumps(jnp.ones(2)), dtype=jnp.float16).dtype == jnp.float16
    data = treepack.serialization.to_bytes({"w": np.ones(2), "n": [np.ones(1)]})
    found = treepack.open(data).load(dtype=np.float32)
    assert found["w"].dtype == found["n"]["0"].dtype == np.float32


def test_sharded_arrays_are_cast_as_they_are_read(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    saved = {"w": jax.device_put(jnp.arange(16.0), sharding), "i": jnp.arange(4), "h": np.ones(3)}
    treepack.save(tmp_path / "d", saved, sharded=True)
    for options in ({}, {"sharding": sharding, "select": "w"}, {"arrays": "numpy"}):
        found = treepack.load(tmp_path / "d", dtype=jnp.bfloat16, **options)
        assert found["w"].dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(found["w"]), np.arange(16).astype(jnp.bfloat16))
        if "select" not in options:
            assert found["h"].dtype == jnp.bfloat16
            assert found["i"].dtype == np.int32


def test_arrays_are_cast_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "_CAST_BYTES", 1)
    state = {"a": [np.ones(1 << 18) for _ in range(16)]}
    tracemalloc.start()
    try:
        del state["a"][8:]
        before = tracemalloc.get_traced_memory()[0]
        state["a"] += [np.ones(1 << 18) for _ in range(8)]
        gc.collect()
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0] - before
        casting.cast_floats(state, Reading(dtype=np.float32, threads=2), lambda _: None)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert {array.dtype.name for array in state["a"]} == {"float32"}
    # Eight new ones of half the size take the place of what was not traced.
    assert peak < held + 11 * (1 << 20)


def test_what_dtype_cannot_be() -> None:
    data = treepack.dumps({"w": np.ones(2)})
    with pytest.raises(ValueError, match="cast=True"):
        treepack.loads(data, {"w": np.ones(2)}, dtype=np.float32)
    with pytest.raises(ValueError, match="got int32"):
        treepack.loads(data, dtype=np.int32)


def test_a_mismatch_of_floats_names_cast() -> None:
    data = treepack.dumps({"w": jnp.ones(2, jnp.bfloat16), "n": np.ones(2)})
    template = {"w": jnp.ones(2), "n": np.ones(2)}
    with pytest.raises(treepack.MismatchError, match="cast=True") as error:
        treepack.loads(data, template)
    assert "strict=False" in str(error.value)
    assert treepack.loads(data, template, cast=True)["w"].dtype == jnp.float32
    for other in ({"w": jnp.ones(3), "n": np.ones(2)}, {"w": jnp.ones(2, int), "n": np.ones(2)}):
        with pytest.raises(treepack.MismatchError) as error:
            treepack.loads(data, other)
        assert "cast=True" not in str(error.value)
    with pytest.raises(treepack.MismatchError) as error:
        treepack.serialization.from_bytes(template, data, strict=True)
    assert "cast=True" not in str(error.value)


def test_integers_are_cast_where_no_value_changes(tmp_path: Path) -> None:
    tree = {"j": jnp.arange(3), "n": np.arange(3), "s": np.int64(7), "e": np.zeros(0, np.int8)}
    template = {
        "j": jax.ShapeDtypeStruct((3,), jnp.uint32),
        "n": np.zeros(3, ml_dtypes.uint4),
        "s": np.uint8(0),
        "e": np.zeros(0, np.uint64),
    }
    treepack.save(tmp_path / "file", tree)
    treepack.save(tmp_path / "directory", tree, sharded=True)
    for name in ("file", "directory"):
        path = tmp_path / name
        with pytest.raises(treepack.MismatchError, match="Pass cast=True to cast integers to"):
            treepack.load(path, template)
        found, report = treepack.load(path, template, cast=True, return_report=True)
        assert set(report.cast) == set(tree)
        for key, leaf in template.items():
            assert found[key].dtype == leaf.dtype
            np.testing.assert_array_equal(np.asarray(found[key], int), np.asarray(tree[key], int))
    assert isinstance(found["j"], jax.Array)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(-1, np.uint64), (256, np.uint8), (2**31, np.int32), (-(2**40), np.int32), (16, "uint4")],
)
def test_integers_that_do_not_fit_are_errors_with_the_path(
    tmp_path: Path, value: int, dtype: Any
) -> None:
    for leaf, template in (
        (np.array([1, value]), np.zeros(2, dtype)),
        (np.int64(value), np.zeros((), dtype)[()]),
    ):
        for name, sharded in (("file", False), ("directory", True)):
            treepack.save(tmp_path / name, {"a": {"b": leaf}}, sharded=sharded)
            with pytest.raises(treepack.TreepackError, match=r"at a/b: integers of int64 do not"):
                treepack.load(tmp_path / name, {"a": {"b": template}}, cast=True)
    with pytest.raises(
        treepack.TreepackError, match=r"at \.: integers of uint64 do not fit into int64"
    ):
        treepack.loads(treepack.dumps(np.uint64(2**63)), np.int64(0), cast=True)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"]
)
def test_floats_that_overflow_are_counted_unless_allowed(
    dtype: str, sharded: bool, tmp_path: Path
) -> None:
    array = np.ones(2_100_000, np.float32)
    array[[5, 2_000_000]] = 3e38
    array[[7, 8]] = np.inf, np.nan
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    saved = {"a": jnp.asarray(array) if sharded else array, "fits": np.ones(2, np.float32)}
    treepack.save(tmp_path / "f", saved, sharded=sharded)
    template = {name: jax.ShapeDtypeStruct(leaf.shape, narrow) for name, leaf in saved.items()}
    count = "at least [12]" if sharded else "2"  # read in blocks
    message = rf"floats of float32 overflow {dtype} at a \({count}\): .* cast='overflow'"
    with pytest.raises(treepack.TreepackError, match=message):
        treepack.load(tmp_path / "f", template, cast=True)
    with pytest.raises(treepack.TreepackError, match=message):
        treepack.load(tmp_path / "f", dtype=narrow)
    with np.errstate(over="ignore"):
        expected = array.astype(narrow)
    for found in (
        treepack.load(tmp_path / "f", template, cast="overflow"),
        treepack.load(tmp_path / "f", dtype=narrow, cast="overflow"),
    ):
        assert np.asarray(found["a"]).tobytes() == expected.tobytes()


def test_bfloat16_overflows_only_above_its_largest_number() -> None:
    data = treepack.dumps([np.float32([3.38e38, -3.38e38, np.inf, np.nan])])
    assert np.isfinite(treepack.loads(data, dtype=jnp.bfloat16)[0][:2].astype(np.float32)).all()
    data = treepack.dumps([np.float32([-3.4e38])])
    with pytest.raises(treepack.TreepackError, match=r"overflow bfloat16 at 0 \(1\)"):
        treepack.loads(data, dtype=jnp.bfloat16)
