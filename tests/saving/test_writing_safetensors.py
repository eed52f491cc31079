"""Trees are saved as safetensors; its own writers and readers are the oracle."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import tiers
import treepack
from commands import call, refused
from treepack import TreepackError, UnserializableLeafError
from treepack._src.claims import lease
from treepack._src.formats.safetensors import writing as saving
from treepack._src.storage.address import Address

INDEX = "model.safetensors.index.json"
FLAX = {"format": "flax"}


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def tree() -> dict[str, Any]:
    """Arrays of all kinds, in several containers."""
    mesh = jax.make_mesh((4,), ("x",))
    split = jax.device_put(
        jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, PartitionSpec(None, "x"))
    )
    return {
        "layers": [Layer(np.arange(6, dtype=np.float16).reshape(2, 3), np.int8(3))],
        "split": split,
        "half": jnp.arange(300, dtype=jnp.bfloat16),
        "small": jnp.ones((2, 2), jnp.float8_e4m3fn),
        "turned": np.arange(2000, dtype=np.float32).reshape(40, 50).T,
        "swapped": np.arange(3, dtype=">i4"),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 3), np.uint16),
    }


def flat() -> dict[str, np.ndarray]:
    found = tree()
    layer = found.pop("layers")[0]
    arrays = {"layers.0.kernel": layer.kernel, "layers.0.bias": layer.bias} | found
    return {name: np.asarray(array) for name, array in arrays.items()}


def expected(arrays: dict[str, Any] | None = None, metadata: Any = FLAX) -> bytes:
    """The bytes that the writer of safetensors for flax makes."""
    arrays = flat() if arrays is None else arrays
    native = {name: it.astype(it.dtype.newbyteorder("="), order="C") for name, it in arrays.items()}
    return safetensors.flax.save({name: jnp.asarray(it) for name, it in native.items()}, metadata)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("options", [{}, {"durable": False}, {"metadata": {"a": "é"}}])
def test_a_file_is_what_safetensors_writes(
    tmp_path: Path, background: bool, options: dict[str, Any]
) -> None:
    path = tmp_path / "folder" / "model.safetensors"
    saving = treepack.save(path, tree(), background=background, **options)
    if saving is not None:
        saving.result()
    assert path.read_bytes() == expected(metadata=options.get("metadata", FLAX))
    assert [*path.parent.iterdir()] == [path]
    assert treepack.read_metadata(path) == options.get("metadata", FLAX)


def test_a_save_in_the_background_does_not_see_later_changes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    array, layers = np.ones(5000), np.ones((2, 3000))
    done, total = [], []

    def tell(now: int, most: int) -> None:
        done.append(now)
        total.append(most)

    unstack = {"layers": ("layers.{l}.w", "... -> l ...")}
    saving = treepack.save(
        path, {"a": array, "layers": layers}, background=True, mapping=unstack, progress=tell
    )
    array[:] = layers[:] = 2
    saving.result()
    found = safetensors.numpy.load_file(path)
    assert [*found] == ["a", "layers.0.w", "layers.1.w"]
    assert all((it == 1).all() for it in found.values())
    assert {*total} == {path.stat().st_size}
    assert done == sorted(done)


@tiers.examples(40)
@given(st.data())
def test_any_arrays_are_written_as_safetensors_does(data: st.DataObject) -> None:
    names = ["uint64", "float32", "int16", "uint8", "bool", "float16", "int64"]
    leaf = st.tuples(st.sampled_from(names), st.lists(st.integers(0, 4), max_size=3))
    spec = data.draw(st.dictionaries(st.text(max_size=4).filter(lambda it: "." not in it), leaf))
    arrays = {
        name: np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
        for name, (dtype, shape) in spec.items()
        if name != "__metadata__"
    }
    part = saving.part_of(arrays, FLAX)
    made = part.layout(snapshot=False).to_bytes(threads=None)
    assert len(made) == part.nbytes
    assert made == safetensors.numpy.save(arrays, FLAX)


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    arrays = {
        name: np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name, name))
        for name in saving.SAFETENSORS
    }
    path = tmp_path / "model.safetensors"
    treepack.save(path, arrays)
    found = treepack.load(path)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes()
    entries = dict(safetensors.deserialize(path.read_bytes()))
    assert {name: it["dtype"] for name, it in entries.items()} == saving.SAFETENSORS


UNSAVED: dict[str, tuple[Any, str]] = {
    "text": ("a", 'found str: leave it out with select= or static="skip"'),
    "none": (None, "found NoneType: leave it out"),
    "int": (3, r"found int: save numpy.asarray\(3\)"),
    "complex": (1j, r"found complex: save numpy.asarray\(1j\)"),
    "bytes": (b"a", "found bytes"),
    "object": (object(), "leaf of type object"),
    "abstract": (jax.ShapeDtypeStruct((2,), np.float32), "ShapeDtypeStruct"),
    "key": (jax.random.key(0), "jax.random.key_data"),
    "complex128": (np.ones(2, complex), "dtype complex128: save its parts"),
    "int4": (jnp.ones(2, jnp.int4), "dtype int4: "),
    "float8": (np.ones(2, ml_dtypes.float8_e4m3), "float8_e4m3: cast it, as by array.astype"),
    "datetime": (np.zeros(2, "M8[s]"), r"dtype datetime64\[s\]: "),
    "objects": (np.array([object()]), "dtype object: "),
    "masked": (np.ma.ones(3), "MaskedArray"),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_other_leaves_are_an_error_with_their_path(tmp_path: Path, name: str) -> None:
    leaf, text = UNSAVED[name]
    where = "a.b" if "dtype" in text or "save it" in text or "cast" in text else "a/b"
    with pytest.raises(UnserializableLeafError, match=f"at {where}: .*{text}"):
        treepack.save(tmp_path / "x.safetensors", {"a": {"b": leaf, "c": np.ones(2)}})
    assert [*tmp_path.iterdir()] == []


def test_tuples_in_names_warn(tmp_path: Path) -> None:
    """As of `flax.traverse_util.flatten_dict`."""
    flat = {"params": {("enc", "kernel"): np.ones(2)}}
    with pytest.warns(UserWarning, match=r"'enc.kernel', save .*unflatten_dict\(tree\)"):
        treepack.save(tmp_path / "saved.safetensors", flat)


def test_a_deleted_array_is_named(tmp_path: Path) -> None:
    array = jnp.arange(3) + 1
    array.delete()
    with pytest.raises(TreepackError, match=r"at a\.b: "):
        treepack.save(tmp_path / "x.safetensors", {"a": {"b": array, "c": np.ones(2)}})


def test_leaves_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = {"w": np.ones(2), "name": "a", "none": None, "call": jax.nn.relu, "step": 3}
    treepack.save(path, whole, static="skip")
    assert [*treepack.load(path)] == ["w"]
    treepack.save(path, whole, select="w")
    assert [*treepack.load(path)] == ["w"]
    treepack.save(path, {"w": np.zeros(3), "call": jax.nn.relu})  # code is left out
    assert treepack.load(path)["w"].shape == (3,)


@pytest.mark.parametrize(
    ("whole", "options", "text"),
    [
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, {}, r"two arrays .* this name .*mapping="),
        ({"a": np.ones(1), "b": np.ones(1)}, {"mapping": {"a": "b"}}, "two leaves would"),
        ({"__metadata__": np.ones(1)}, {}, "reserves this name"),
        ({"\ud800": np.ones(1)}, {}, "must be valid Unicode"),
        (np.ones(1), {}, "only arrays with names"),
        ({"a": np.ones(1)}, {"mapping": {"b": "c"}}, r"rule 'b': .* matches nothing"),
        ({"a": np.ones(())}, {"mapping": {"a": ("c/{l}", "... -> l ...")}}, "dimensions"),
        ({"a": np.ones(1)}, {"compress": True}, "compress= does not apply to safetensors"),
        ({"a": np.ones(1)}, {"compress": "numbers"}, "compress= does not apply"),
        ({"a": np.ones(1)}, {"level": 3}, "level= does not apply"),
        ({"a": np.ones(1)}, {"align": 16}, "align= does not apply"),
        ({"a": np.ones(1)}, {"base": {"a": np.ones(1)}}, "base= does not apply"),
        ({"a": np.ones(1)}, {"max_shard_size": "5GB"}, "max_shard_size= applies to directories"),
        ({"a": np.ones(1)}, {"format": "npz"}, "format must be None or 'safetensors'"),
    ],
)
def test_what_cannot_be_saved(
    tmp_path: Path, whole: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        treepack.save(tmp_path / "model.safetensors", whole, **options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "name", ["a.npz", "a.npy", "a.treepack", "a.msgpack", "a.safetensors", INDEX]
)
def test_names_of_files_are_not_given_to_directories(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="choose another path"):
        treepack.save(tmp_path / name, tree(), format="safetensors", max_shard_size="1MB")
    treepack.save(tmp_path / "tree", {"a": np.ones(1)})
    split = ["--max-shard-size", "1MB"]
    for options in (split, []) if name == INDEX else (split,):
        assert "choose another path" in refused(
            "convert", str(tmp_path / "tree"), str(tmp_path / name), *options
        )
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize("metadata", [{"step": 3}, {3: "a"}, "text", [("a", "b")]])
def test_metadata_are_strings(tmp_path: Path, metadata: Any) -> None:
    with pytest.raises(TypeError, match="dict with strings as keys and values"):
        treepack.save(tmp_path / "model.safetensors", {"a": np.ones(1)}, metadata=metadata)


@pytest.mark.parametrize("size", ["5", "GB", "-1GB", "0KB", 0, -3, "5 XB", "", True, 5e9])
def test_sizes_that_mean_nothing(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ValueError, match="max_shard_size must be"):
        treepack.save(tmp_path / "a", tree(), format="safetensors", max_shard_size=size)
    assert saving.size_of("1.5 kb") == 1500


def test_options_of_safetensors_are_for_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^max_shard_size= "):
        treepack.save(tmp_path / "a", tree(), max_shard_size=3)


def sized(*sizes: int) -> dict[str, np.ndarray]:
    return {f"a{at}": np.full(size, at, np.uint8) for at, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("sizes", "most", "parts"),
    [
        # The example in the documentation of split_state_dict_into_shards_factory.
        ([6, 6, 2, 6, 2, 2], 10, [[6], [6, 2], [6, 2, 2]]),
        ([11, 3, 12, 4], 10, [[11], [12], [3, 4]]),  # larger ones come before the open part
        ([5, 5, 0, 1], 10, [[5, 5, 0], [1]]),
        ([12], 10, [[12]]),
        ([], 10, [[]]),
    ],
)
def test_arrays_are_split_as_by_huggingface_hub(
    sizes: list[int], most: int, parts: list[list[int]]
) -> None:
    found = saving.split(sized(*sizes), most)
    assert [[it.nbytes for it in part.values()] for part in found] == parts


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def arrays_in(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a directory, read as transformers does."""
    if (folder / INDEX).exists():
        found = {}
        index = json.loads((folder / INDEX).read_text())
        for name, file in index["weight_map"].items():
            with safetensors.safe_open(folder / file, "numpy") as opened:
                found[name] = opened.get_tensor(name)
        assert index["metadata"]["total_size"] == sum(it.nbytes for it in found.values())
        return found
    return safetensors.numpy.load_file(folder / "model.safetensors")


def check_same(folder: Any, arrays: dict[str, np.ndarray]) -> None:
    found = treepack.load(folder)
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def save(folder: Path, arrays: dict[str, np.ndarray], size: int = 10, **options: Any) -> None:
    treepack.save(folder, arrays, format="safetensors", max_shard_size=size, **options)


def test_a_directory_has_parts_and_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "model"
    first, second = sized(6, 6, 2, 6, 2, 2), sized(7, 8)
    save(folder, first)
    names = [f"model-{at:05}-of-00003.safetensors" for at in (1, 2, 3)]
    assert names_in(folder) == [*names, INDEX]
    assert arrays_in(folder).keys() == first.keys()
    check_same(folder, first)
    assert safetensors.safe_open(folder / names[0], "numpy").metadata() == FLAX
    (folder / "config.json").write_text("{}")
    # Parts never have the names of those that they replace.
    changed = {name: array + 1 for name, array in first.items()}
    save(folder, changed)
    check_same(folder, changed)
    assert arrays_in(folder)["a1"][0] == 2
    assert not {*names} & {*names_in(folder)}
    assert len(names_in(folder)) == 5
    save(folder, second, 100)
    assert names_in(folder) == ["config.json", "model.safetensors"]
    check_same(folder, second)
    save(folder, first)
    assert names_in(folder) == ["config.json", *names, INDEX]
    check_same(folder, first)
    treepack.save(folder, second, format="safetensors", background=True).result()
    check_same(folder, second)


@pytest.mark.parametrize("before", [None, (7, 8), (5, 5)])
@pytest.mark.parametrize("now", [(6, 6, 2), (3, 3)])
def test_a_save_that_ends_anywhere_leaves_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, now: tuple[int, ...]
) -> None:
    """The process is killed before each step that changes the directory."""
    old = None if before is None else {n: it + 100 for n, it in sized(*before).items()}
    new = sized(*now)
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        if old is not None:
            save(folder, old)
        left = steps

        class Killed(BaseException):
            pass

        with monkeypatch.context() as patch:
            for owner, name in (
                (Address, "save"),
                (lease.Lease, "commit"),
                (Address, "remove_files"),
            ):
                real = getattr(owner, name)

                def step(*args: Any, real: Any = real, **options: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        raise Killed
                    return real(*args, **options)

                patch.setattr(owner, name, step)
            try:
                save(folder, new)
            except Killed:
                pass
            else:
                break
        try:
            found = treepack.load(folder)
        except (TreepackError, OSError):
            assert old is None  # an unfinished first save is no checkpoint
        else:
            reference = new if len(found) == len(new) and found["a0"][0] == 0 else old
            assert reference is not None
            check_same(folder, reference)
            if {INDEX, "model.safetensors"} & {*names_in(folder)}:  # else transformers finds none
                assert arrays_in(folder).keys() in (new.keys(), reference.keys())
        save(folder, new)  # the next save succeeds
        check_same(folder, new)
        assert len([it for it in names_in(folder) if "safetensors" in it]) in (1, 3)
        steps += 1
    has_index = len(now) > 2 or (before is not None and sum(before) > 10)
    assert steps >= (3 if has_index else 1)


def test_an_error_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder, sized(6, 6))

    def stop(done: int, total: int) -> None:
        assert total > 24
        if done >= 100:
            raise KeyError

    before = names_in(folder)
    with pytest.raises(KeyError):
        save(folder, sized(6, 7, 8), progress=stop)
    assert names_in(folder) == before
    check_same(folder, sized(6, 6))


def test_other_checkpoints_are_not_hidden(tmp_path: Path) -> None:
    treepack.save(tmp_path / "ours", sized(3), sharded=True)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "unet.safetensors.index.json").write_text("{}")
    for name in ("ours", "theirs"):
        with pytest.raises(TreepackError, match="has another checkpoint"):
            save(tmp_path / name, sized(3))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        save(tmp_path / "file", sized(3))


def test_a_sharded_save_beside_them_warns(tmp_path: Path) -> None:
    """Other programs would go on reading them."""
    treepack.save(tmp_path / "a", {"w": np.zeros(2)}, format="safetensors")
    with pytest.warns(UserWarning, match=r"another checkpoint, model\.safetensors, .* remove it"):
        treepack.save(tmp_path / "a", {"w": np.ones(2)}, sharded=True)
    treepack.save(tmp_path / "a", {"w": np.ones(2)}, sharded=True)  # it was said
    assert treepack.load(tmp_path / "a")["w"].sum() == 2


def test_files_of_an_unfinished_save_are_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, sized(6, 6, 6))
    (tmp_path / INDEX).unlink()
    check_same(tmp_path, sized(6, 6, 6))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(treepack.DecodeError, match=r"lacks model-00002-of-00003\.safetensors"):
        treepack.load(tmp_path)


def test_urls(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    base = f"memory://{tmp_path.name}"
    treepack.save(f"{base}/one.safetensors", tree())
    assert memory.cat(f"/{tmp_path.name}/one.safetensors") == expected()
    folder = f"{base}/folder"
    for sizes in ([6, 6, 2], [6, 6, 3], [3], [7, 8]):
        treepack.save(folder, sized(*sizes), format="safetensors", max_shard_size=10)
        check_same(folder, sized(*sizes))
        found = [Path(it).name for it in memory.ls(f"/{tmp_path.name}/folder", detail=False)]
        assert len(found) == (1 if sizes == [3] else 3)


def test_iterators_are_spooled(tmp_path: Path) -> None:
    arrays = {f"layers/{at}": np.full(20_000, at, np.float32) for at in range(3)}
    path = tmp_path / "model.safetensors"
    treepack.save(path, iter(arrays.items()))
    flat = {name.replace("/", "."): it for name, it in arrays.items()}
    assert path.read_bytes() == safetensors.numpy.save(flat, FLAX)
    treepack.save(tmp_path / "m", iter(arrays.items()), format="safetensors", max_shard_size="80KB")
    assert arrays_in(tmp_path / "m").keys() == flat.keys()


def test_an_open_file_is_copied_array_by_array(tmp_path: Path) -> None:
    treepack.save(tmp_path / "one", {"a": np.arange(5000.0), "b": {"c": np.ones(3)}})
    with treepack.open(tmp_path / "one") as file:
        lazy = {"a": file["a"], "b": {"c": file["b/c"]}}
        treepack.save(tmp_path / "two.safetensors", lazy)
    check_same_file = safetensors.numpy.load_file(tmp_path / "two.safetensors")
    assert np.array_equal(check_same_file["a"], np.arange(5000.0))


@pytest.mark.campaign
def test_large_headers_are_refused() -> None:
    arrays = {"a" * 60_000_000: np.ones(1), "b" * 60_000_000: np.ones(1)}
    with pytest.raises(TreepackError, match="safetensors allows at most 100000000"):
        saving.part_of(arrays, None)


def test_the_command_writes_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    treepack.save("one", {"a": np.ones(300), "b": {"c": np.arange(400)}})
    call("convert", "one", "model", "--max-shard-size", "3KB")
    found = arrays_in(tmp_path / "model")
    assert len(names_in(tmp_path / "model")) == 3
    assert np.array_equal(found["b.c"], np.arange(400))
    call("convert", "model", "back")
    assert np.array_equal(treepack.load("back")["b"]["c"], np.arange(400))
    assert "applies to directories" in refused(
        "convert", "one", "x.safetensors", "--max-shard-size", "3KB"
    )
    assert "got '3'" in refused("convert", "one", "x", "--max-shard-size", "3")
    call("convert", "one", "memory://hub-test/x.safetensors")
    data = fsspec.filesystem("memory").cat("/hub-test/x.safetensors")
    assert struct.unpack("<Q", data[:8])[0] < 1000
    assert safetensors.numpy.load(data).keys() == {"a", "b.c"}
