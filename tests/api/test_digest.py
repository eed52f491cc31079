"""Digests of arrays and trees."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
import treepack._core as core
from commands import call
from treepack import serialization
from treepack._src.api import digest as module
from treepack._src.saving import sharded

POLYNOMIALS = (0x9A6C9329AC4BC9B5, 0xC96C5795D7870F42)  # reflected: NVME, XZ


def table(polynomial: int) -> list[int]:
    crcs = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
        crcs.append(crc)
    return crcs


TABLES = [table(polynomial) for polynomial in POLYNOMIALS]


def reference(data: bytes) -> bytes:
    """Returns a digest of bytes as docs/format.md defines it."""
    digest = b""
    for crcs in TABLES:
        crc = 2**64 - 1
        for byte in data:
            crc = crc >> 8 ^ crcs[(crc ^ byte) & 255]
        digest += (crc ^ 2**64 - 1).to_bytes(8, "big")
    return digest


@pytest.mark.parametrize("threads", [1, 3])
def test_the_core_sums_the_bytes_in_c_order(threads: int) -> None:
    numbers = np.arange(60_000, dtype=np.int16).reshape(100, 600)
    arrays: list[Any] = [
        np.arange(10, dtype=np.float32),
        np.zeros((0, 3)),
        numbers,
        numbers[:, ::2],
        numbers.T,
        np.asfortranarray(numbers[:9]),
        numbers[:9].astype(">i2"),
        jnp.arange(5000.0),
        jnp.zeros((), jnp.bfloat16),
        np.float64(3),
    ]
    digests = core.digests(arrays, threads=threads)
    assert len(digests) == 16 * len(arrays)
    for array in arrays:
        native = np.asarray(array)
        data = native.astype(native.dtype.newbyteorder("<")).tobytes()
        digest, digests = digests[:16], digests[16:]
        assert digest == reference(data), (array.dtype, array.shape)


def test_digests_of_parts_are_joined() -> None:
    array = np.random.default_rng(0).integers(0, 255, 5000, np.uint8)
    whole, nothing = core.digests([array, array[:0]], threads=None)[:16], bytes(16)
    assert reference(b"") == nothing
    for cut in (0, 1, 4096, 5000):
        first, second = (core.digests([part], threads=None) for part in (array[:cut], array[cut:]))
        assert core.join_digests(first, second, array.size - cut) == whole
    with pytest.raises(ValueError, match="16"):
        core.join_digests(b"", whole, 3)
    with pytest.raises(OverflowError):
        core.join_digests(whole, whole, -1)


STATE: dict[str, Any] = {
    "w": np.arange(6000.0).reshape(60, 100),
    "params": {"x": jnp.arange(3000, dtype=jnp.bfloat16), "s": "ä", "no": None, "data": b"x" * 70},
    "list": [1, (2, True)],
    "f": 0.5,
    "c": 1j,
    "scalar": np.float32(2),
    "int4": np.arange(6, dtype=ml_dtypes.int4),
    "F": np.asfortranarray(np.ones((40, 50))),
    "empty": np.zeros((3, 0)),
    "0-d": np.array(1.5),
    "key": jax.random.split(jax.random.key(7), 3),
}


def test_it_is_as_the_page_of_the_format_defines_it() -> None:
    found = treepack.digest(STATE)
    leaves = {
        "w": b"float64[60,100]\0" + STATE["w"].tobytes(),
        "scalar": b"float32[]\0" + np.float32(2).tobytes(),
        "empty": b"float64[3,0]\0",
        "key": b"key<threefry2x32>uint32[3,2]\0"
        + np.asarray(jax.random.key_data(STATE["key"])).tobytes(),
        "params/no": b"value\0" + core.encode_value(None),
        "f": b"value\0" + core.encode_value(0.5),
    }
    for path, data in leaves.items():
        assert found.leaves[path] == reference(data).hex(), path
    ordered = sorted(found.leaves.items(), key=lambda leaf: leaf[0].encode())
    whole = b"".join(path.encode() + b"\0" + bytes.fromhex(leaf) for path, leaf in ordered)
    assert str(found) == reference(whole).hex()
    assert repr(found) == f"Digest('{found}', {len(found.leaves)} leaves)"
    assert repr(treepack.digest(np.ones(3))).endswith("1 leaf)")


def test_files_have_the_digest_of_their_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = treepack.digest(STATE)
    assert treepack.digest(treepack.dumps(STATE)) == expected
    monkeypatch.setattr(module, "_WINDOW_BYTES", 1000)
    for options in ({}, {"compress": True}, {"compress": "numbers"}, {"sharded": True}):
        path = tmp_path / str(options)
        treepack.save(path, STATE, **options)
        assert treepack.digest(path) == expected, options
        assert treepack.digest(treepack.load(path)) == expected, options
        with treepack.open(path) as file:
            assert treepack.digest(file) == expected
            part = treepack.digest(file["params"])
            assert part.leaves["x"] == expected.leaves["params/x"]
            assert part == treepack.digest(STATE["params"])
    serialization.save_to_file(STATE, tmp_path / "flax")
    assert treepack.digest(tmp_path / "flax") == expected


@pytest.mark.parametrize(
    "spec", [(None, None), ("x", None), (None, "y"), ("x", "y"), (("x", "y"),)]
)
def test_it_does_not_depend_on_the_mesh(
    spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW_BYTES", 1000)
    numbers = np.arange(1600, dtype=np.int32).reshape(40, 40)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    tree = {"w": jax.device_put(numbers, NamedSharding(mesh, PartitionSpec(*spec)))}
    expected = treepack.digest({"w": numbers})
    assert treepack.digest(tree) == expected
    treepack.save(tmp_path / "shards", tree, sharded=True)
    assert treepack.digest(tmp_path / "shards") == expected


@pytest.mark.parametrize(
    "change",
    [
        {"w": STATE["w"] + 1e-12},
        {"w": STATE["w"].reshape(100, 60)},
        {"w": STATE["w"].view(np.int64)},
        {"f": np.float64(0.5)},
        {"c": 2j},
        {"key": jax.random.key_data(STATE["key"])},
        {"list": [1, (2, 1)]},
        {"more": 1},
    ],
    ids=str,
)
def test_each_change_changes_it(change: dict[str, Any], tmp_path: Path) -> None:
    expected = treepack.digest(STATE)
    treepack.save(tmp_path / "model", {**STATE, **change})
    assert treepack.digest(tmp_path / "model") != expected
    with pytest.raises(
        treepack.CorruptionError, match=f"1 leaf differs: {next(iter(change))}"
    ) as found:
        treepack.load(tmp_path / "model", expect=expected)
    assert "model" in str(found.value)
    with pytest.raises(treepack.CorruptionError, match="digest mismatch"):
        treepack.load(tmp_path / "model", expect=str(expected), select="f")


@pytest.mark.parametrize("sharded", [False, True])
def test_an_expected_file_is_loaded(sharded: bool, tmp_path: Path) -> None:
    path, expected = tmp_path / "model", treepack.digest(STATE)
    treepack.save(path, STATE, sharded=sharded)
    for given in (expected, str(expected), str(expected).upper()):
        assert treepack.digest(treepack.load(path, expect=given)) == expected
    assert treepack.load(path, {"f": 0.0}, expect=expected, strict=False)["f"] == 0.5
    with pytest.raises(ValueError, match="32 hexadecimal digits, as"):
        treepack.load(path, expect="12")
    with pytest.raises(TypeError, match="expect must be a Digest"):
        treepack.load(path, expect=12)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [None, ("x", None), (None, "y"), ("x", "y")])
def test_a_step_with_links_stores_digests(
    spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "BLOCK_BYTES", 1000)
    numbers = np.arange(3200, dtype=np.int32).reshape(40, 80)
    tree: Any = {**STATE, "m": numbers}
    if spec is not None:
        mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
        tree["m"] = jax.device_put(numbers, NamedSharding(mesh, PartitionSpec(*spec)))
    run, expected = treepack.Series(tmp_path, unchanged="link"), treepack.digest(tree)
    for step in range(2):
        run.save(step, {**tree, "step": step} if step == 0 else tree)
    path = Path(run.path(1))
    assert treepack.digest(path) == expected
    with treepack.open(path) as file:
        assert treepack.digest(file["params"]) == treepack.digest(STATE["params"])
    treepack.load(path, expect=expected)
    # The digests are of what was saved; damage is found by all that reads the arrays.
    for name in path.glob("*-*.treepack"):
        data = bytearray(name.read_bytes())
        at = data.find(numbers[13, 20:24].tobytes())
        if at >= 0:
            data[at] ^= 1
            name.write_bytes(data)
    is_stored = spec is None or spec[1] is None
    assert (treepack.digest(path) == expected) is is_stored
    assert not treepack.verify(path).ok
    with pytest.raises(treepack.CorruptionError):
        treepack.load(path, expect=expected)
    assert "1 corrupt" in call("verify", str(path), "--expect", str(expected), status=1)


@pytest.mark.parametrize("chunk", [2**30, 1000])
@pytest.mark.parametrize("options", [{}, {"compress": True}, {"compress": "numbers"}, {"align": 1}])
def test_stored_digests_are_of_the_bytes_of_arrays(
    options: Any, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", chunk)
    tree = {**STATE, "large": np.arange(3_000_000.0), "empty": np.zeros((0, 3)), "b/c": np.ones(1)}
    run, expected = treepack.Series(tmp_path, unchanged="link"), treepack.digest(tree)
    run.save(0, tree, **options)
    monkeypatch.setattr(module, "_of_windows", None)  # all are stored
    assert treepack.digest(run.path(0)) == expected


def test_static_data_that_cannot_be_saved_are_left_out_as_by_save(tmp_path: Path) -> None:
    state = TrainState.create(
        apply_fn=len, params={"w": jnp.ones(4)}, tx=optax.MultiSteps(optax.sgd(1.0), 2)
    )
    for verb in (treepack.digest, lambda tree: treepack.diff(tree, tree)):
        with pytest.raises(treepack.UnserializableLeafError, match='static="skip"'):
            verb(state)
    treepack.save(tmp_path / "model", state, static="skip")
    expected = treepack.digest(state, static="skip")
    assert treepack.digest(tmp_path / "model") == expected
    assert treepack.load(tmp_path / "model", state, expect=expected).step == 0
    assert not treepack.diff(tmp_path / "model", state, static="skip")


def test_missing_and_unexpected_leaves_are_named(tmp_path: Path) -> None:
    treepack.save(tmp_path / "model", {"a": 1, "b": 2})
    with pytest.raises(treepack.CorruptionError, match=r"c \(missing\), b \(unexpected\)"):
        treepack.load(tmp_path / "model", expect=treepack.digest({"a": 1, "c": 2}))


def test_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    treepack.save("model", STATE)
    np.savez("model.npz", w=STATE["w"])
    expected = treepack.digest(STATE)
    assert call("digest", "model") == f"{expected}  model\n"
    assert expected.leaves["w"] in call("digest", "model.npz", "--leaves")
    printed = json.loads(call("digest", "model", "--json"))
    assert printed == {"file": "model", "digest": str(expected), "leaves": dict(expected.leaves)}
    assert call("verify", "model", "--expect", str(expected)).startswith("model: ")
    for wrong in ("12", f"{expected}0", "g" * 32, ""):
        assert "32 hexadecimal digits" in call("verify", "model", "--expect", wrong, status=2)
    other = call("verify", "model", "--expect", "0" * 32, status=1)
    assert f"found {expected}" in other
    printed = json.loads(call("verify", "model", "--json", "--expect", "0" * 32, status=1))
    assert [printed["files"][0][key] for key in ("ok", "digest")] == [False, str(expected)]
