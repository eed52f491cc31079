"""`treepack.Mapping` in `load`, `open`, `abstract` and `save`, in every form."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import treepack
from treepack import CorruptionError, MismatchError, TreepackError

LAYERS = 12  # so that the order of numbers is not that of texts


def tensors() -> dict[str, np.ndarray]:
    """Returns a small model as on Hugging Face: two heads of four, two experts."""
    made: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        made[name] = np.random.default_rng(len(made)).standard_normal(shape, np.float32)

    add("model.embed_tokens.weight", 10, 6)
    for at in range(LAYERS):
        add(f"model.layers.{at}.self_attn.q_proj.weight", 8, 6)
        add(f"model.layers.{at}.input_layernorm.weight", 6)
        for expert in range(2):
            add(f"model.layers.{at}.mlp.experts.{expert}.w1.weight", 4, 6)
    add("lm_head.weight", 10, 6)
    return made


RULES: dict[Any, Any] = {
    "embed": ("model.embed_tokens.weight", "v m"),
    "layers/query": ("model.layers.{l}.self_attn.q_proj.weight", "(h d) m -> l m h d"),
    "layers/up": ("model/layers/{l}/mlp/experts/{e}/w1/weight", "f m -> l e m f"),
    "layers/norm": ("model.layers.{l}.input_layernorm.weight", "m -> l m"),
    "head": ("lm_head.weight", "v m -> m v"),
}


def tree_of(file: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the tree that the rules make, as NumPy makes it."""
    layers = [
        {
            "query": file[f"model.layers.{at}.self_attn.q_proj.weight"]
            .reshape(2, 4, 6)
            .transpose(2, 0, 1),
            "up": np.stack(
                [file[f"model.layers.{at}.mlp.experts.{e}.w1.weight"].T for e in range(2)]
            ),
            "norm": file[f"model.layers.{at}.input_layernorm.weight"],
        }
        for at in range(LAYERS)
    ]
    stacked = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    head = file["lm_head.weight"].T
    return {"embed": file["model.embed_tokens.weight"], "layers": stacked, "head": head}


FORMS = ["safetensors", "repository", "plain", "gzip", "directory", "flax", "npz", "orbax"]


@pytest.fixture(params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors(), path)
    tree = treepack.load(path)
    saved = tmp_path / "saved"
    if request.param == "safetensors":
        return path
    if request.param == "repository":
        treepack.save(saved, tree, format="safetensors", max_shard_size="1KB")
    elif request.param == "flax":
        saved.write_bytes(treepack.serialization.to_bytes(tree))
    elif request.param == "npz":
        saved = tmp_path / "saved.npz"
        np.savez(saved, **tensors())
    elif request.param == "orbax":
        ocp = pytest.importorskip("orbax.checkpoint")
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(saved, tree)
    else:
        saved = tmp_path / ("saved.gz" if request.param == "gzip" else "saved")
        treepack.save(saved, tree, sharded=request.param == "directory")
    return saved


def assert_equal(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), one, other))


def test_every_verb_reads_the_tree_of_a_file(path: Any) -> None:
    expected = tree_of(tensors())
    mapping = treepack.Mapping(RULES, h=2)
    assert_equal(treepack.load(path, mapping=mapping), expected)
    assert_equal(treepack.load(path, expected, mapping=RULES), expected)  # sizes of the template
    shapes = treepack.abstract(path, mapping=mapping)
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == jax.tree.map(np.shape, expected)
    with treepack.open(path, mapping=mapping) as file:
        assert not treepack.diff(file, expected)
        assert np.array_equal(file["layers/query"][3, :, 1], expected["layers"]["query"][3, :, 1])
    mapping.check(expected, path)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
def test_each_device_reads_its_part(path: Any, axis: int | None) -> None:
    expected = tree_of(tensors())
    spec = PartitionSpec(*[None] * (axis or 0), *["x"] * (axis is not None))
    where = NamedSharding(jax.make_mesh((2,), ("x",)), spec)
    template = {
        "layers": {"query": jax.ShapeDtypeStruct((LAYERS, 6, 2, 4), np.float32, sharding=where)}
    }
    query = treepack.load(path, template, mapping=RULES)["layers"]["query"]
    assert query.sharding == where
    assert np.array_equal(query, expected["layers"]["query"])
    half = jax.tree.map(lambda leaf: leaf.update(dtype=jnp.float16), template)
    query = treepack.load(path, half, mapping=RULES, cast=True)["layers"]["query"]
    assert np.array_equal(query, expected["layers"]["query"].astype(np.float16))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "jax", "sharded", "open"])
def test_a_save_is_the_inverse(tmp_path: Path, kind: str, background: bool) -> None:
    tree = tree_of(tensors())
    if kind == "jax":
        tree = jax.tree.map(jnp.asarray, tree)
    if kind == "sharded":
        mesh = jax.make_mesh((2,), ("x",))
        place = NamedSharding(mesh, PartitionSpec(None, "x"))
        tree = jax.tree.map(lambda array: jax.device_put(array, place), tree)
    if kind == "open":
        treepack.save(tmp_path / "tree", tree)
        tree = dict(treepack.open(tmp_path / "tree").items())
        tree["layers"] = dict(tree["layers"].items())
    path = tmp_path / "model.safetensors"
    saving = treepack.save(path, tree, mapping=RULES, background=background)
    if background:
        if kind == "numpy":
            tree["head"][...] = 0
        saving.result()
    saved = safetensors.numpy.load_file(path)
    assert saved.keys() == tensors().keys()
    assert all(saved[name].tobytes() == array.tobytes() for name, array in tensors().items())


def test_an_open_file_is_copied_in_another_layout(tmp_path: Path) -> None:
    treepack.save(tmp_path / "tree", tree_of(tensors()))
    path = tmp_path / "model.safetensors"
    with treepack.open(tmp_path / "tree") as file:
        treepack.save(path, file, mapping=RULES)
    saved = safetensors.numpy.load_file(path)
    assert saved.keys() == tensors().keys()
    assert all(saved[name].tobytes() == array.tobytes() for name, array in tensors().items())


def test_a_save_has_any_form(tmp_path: Path) -> None:
    tree = tree_of(tensors())
    treepack.save(tmp_path / "hub", tree, mapping=RULES, format="safetensors", max_shard_size="1KB")
    treepack.save(tmp_path / "saved.gz", tree, mapping=RULES)
    for name in ("hub", "saved.gz"):
        assert not treepack.diff(tmp_path / name, treepack.load(tmp_path / "hub"))
        assert_equal(treepack.load(tmp_path / name, tree, mapping=RULES), tree)


def load(file: Any, rules: Any, template: Any = None, **options: Any) -> Any:
    return treepack.load(treepack.dumps(file), template, mapping=rules, **options)


def test_indices_of_both_paths_are_one_rule_for_each() -> None:
    file = {f"h.{at}.mlp.w": np.full((2, 3), at) for at in range(LAYERS)}
    template = {"blocks": [{"kernel": np.zeros((3, 2), int)} for _ in range(LAYERS)]}
    rules = {"blocks/{l}/kernel": ("h.{l}.mlp.w", "f m -> m f")}
    loaded = load(file, rules, template)
    assert [layer["kernel"][0, 0] for layer in loaded["blocks"]] == [*range(LAYERS)]
    named = load(
        {"old": {"a": {"w": np.ones(2)}, "b": {"w": np.ones(3)}}}, {"new/{i}/k": "old/{i}/w"}
    )
    assert named["new"]["b"]["k"].shape == (3,)


def test_indices_of_the_tree_alone_split_an_array() -> None:
    loaded = load({"w": np.arange(6).reshape(3, 2)}, {"layers/{l}/w": ("w", "l m -> m")})
    assert [loaded["layers"][str(at)]["w"].tolist() for at in range(3)] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("tree", "file", "expected"),
    [
        ("w", "h.{l:0..3}.w", [0, 1, 2]),
        ("w", "h.{l:0..6:2}.w", [0, 2, 4]),
        ("w", "h.{l:2..}.w", [2, 3, 4, 5]),
        ("w", "h.{l:1..:2}.w", [1, 3, 5]),
        ("w", "h.{l}.w", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ranges_choose_layers(tree: str, file: str, expected: list[int]) -> None:
    layers = {f"h.{at}.w": np.full(1, at) for at in range(6)}
    assert load(layers, {tree: (file, "m -> l m")})["w"][:, 0].tolist() == expected


def test_ranges_on_both_sides_are_of_equal_positions() -> None:
    layers = {f"h.{at}.w": np.full(1, at) for at in range(6)}
    rules = {"even/{l:0..3}": "h.{l:0..6:2}.w", "odd/{l:0..3}": "h.{l:1..6:2}.w"}
    loaded = load(layers, rules)
    assert [loaded["even"][at][0] for at in "012"] == [0, 2, 4]
    assert [loaded["odd"][at][0] for at in "012"] == [1, 3, 5]


def test_a_range_tells_a_size(tmp_path: Path) -> None:
    tree = {"k": np.arange(24, dtype=np.float32).reshape(12, 2)}
    rules: Any = {"k": ("h.{l:1..4}.{e:0..2}.w", "a b -> (a l e) b")}
    treepack.save(tmp_path / "m.safetensors", tree, mapping=rules)
    with treepack.open(tmp_path / "m.safetensors") as file:
        assert np.array_equal(file["h/3/1/w"], tree["k"].reshape(2, 3, 2, 2)[:, 2, 1])
    assert np.array_equal(treepack.load(tmp_path / "m.safetensors", mapping=rules)["k"], tree["k"])
    split: Any = {"l/{l:0..3}": ("k", "(a l) b -> a b")}
    assert treepack.load(treepack.dumps(tree), mapping=split)["l"]["2"].shape == (4, 2)


@pytest.mark.parametrize(
    ("tree", "file", "axes"),
    [
        ("l/{l:0..4}", "h.{l:0..4}", "a -> a"),
        ("l/{l:0..4}", "h.{l}", None),
        ("l/{l}", "h.{l:0..4}", None),
        ("l/{l:4..8}", "h.{l:0..4}", None),
    ],
)
def test_a_range_of_both_paths_has_no_gap(
    tree: str, file: str, axes: str | None, tmp_path: Path
) -> None:
    layers = {f"h.{at}": np.full(2, at, np.float32) for at in (0, 1, 3)}
    rules: Any = {tree: file if axes is None else (file, axes)}
    with pytest.raises(TreepackError, match=r"the file has no h.2: correct the range of l; rule"):
        treepack.load(treepack.dumps(layers), mapping=rules)
    first = 4 if "4.." in tree else 0
    template = {"l": {str(first + 1): np.zeros(2, np.float32)}}
    found = treepack.load(treepack.dumps(layers), template, mapping=rules)
    assert found["l"][str(first + 1)].tolist() == [1, 1]
    lacking = {"l": {str(first + at): np.zeros(2) for at in (0, 1, 3)}}
    with pytest.raises(TreepackError, match=rf"the tree has no l/{first + 2}: correct the range"):
        treepack.save(tmp_path / "m.safetensors", lacking, mapping=rules)


def test_no_layers(tmp_path: Path) -> None:
    path, rules = tmp_path / "m.safetensors", {"k": ("h.{l}", "a -> l a"), "x": "x"}
    tree = {"k": np.zeros((0, 2), np.float32), "x": np.zeros(1, np.float32)}
    with pytest.raises(TreepackError, match=r"k is \[0, 2\], where l is 0, .* with exclude="):
        treepack.save(path, tree, mapping=rules)
    treepack.save(path, tree, mapping=rules, exclude="k")
    assert_equal(treepack.load(path), {"x": tree["x"]})
    split = {"l/{l}": ("k", "l a -> a")}
    assert_equal(treepack.load(treepack.dumps(tree), mapping=split), {"x": tree["x"]})
    target = {"l": [], "x": tree["x"]}
    assert_equal(treepack.load(treepack.dumps(tree), target, mapping=split), target)


def test_a_gap_in_the_tree_is_no_gap_in_the_file(tmp_path: Path) -> None:
    lacking = {"l": {"0": np.zeros(2), "2": np.zeros(2)}}
    with pytest.raises(TreepackError, match=r"the tree has no l = 1, .* is the tree whole\?"):
        treepack.save(tmp_path / "m.safetensors", lacking, mapping={"l/{l}": ("w", "l m -> m")})


def test_several_tensors_are_one_leaf_and_back(tmp_path: Path) -> None:
    file = {name: np.full((count, 3), count) for name, count in (("q", 8), ("k", 2), ("v", 2))}
    rules = {"qkv": (("q", "k", "v"), "n m -> m n", {"along": "n"})}
    mapping = treepack.Mapping(rules, n=(8, 2, 2))
    expected = np.concatenate([*file.values()]).T
    assert np.array_equal(load(file, rules)["qkv"], expected)
    treepack.save(tmp_path / "m.safetensors", {"qkv": expected}, mapping=mapping)
    assert_equal(treepack.load(tmp_path / "m.safetensors"), file)
    stacked = load(
        {"gate": file["k"], "up": file["v"]},
        {"w": (("gate", "up"), "f m -> n m f", {"along": "n"})},
    )
    assert np.array_equal(stacked["w"], np.stack([file["k"].T, file["v"].T]))


def test_any_leaf_of_the_template_tells_the_sizes() -> None:
    file = {"w": np.arange(24.0).reshape(2, 12)}
    template = {"t": {"1": np.zeros((2, 4)), "2": np.zeros((2, 4))}}
    loaded = load(file, {"t/{n}": ("w", "a (d n) -> a d")}, template)
    assert_equal(loaded, {"t": {name: file["w"][:, int(name) :: 3] for name in "12"}})


def test_a_tensor_is_split_into_leaves_of_the_sizes_of_the_template() -> None:
    rules = {("q", "k", "v"): ("qkv", "(n d) m -> m n d", {"along": "n"})}
    file = {"qkv": np.arange(72).reshape(24, 3)}
    template = {
        "q": np.zeros((3, 4, 4), int),
        "k": np.zeros((3, 1, 4), int),
        "v": np.zeros((3, 1, 4), int),
    }
    loaded = load(file, rules, template)
    assert np.array_equal(loaded["k"], file["qkv"][16:20].T.reshape(3, 1, 4))
    interleaved = load(
        file,
        {("q", "k", "v"): ("qkv", "(h n d) m -> m h d", {"along": "n"})},
        {name: np.zeros((3, 2, 4), int) for name in "qkv"},
    )
    assert np.array_equal(
        interleaved["v"], file["qkv"].reshape(2, 3, 4, 3)[:, 2].transpose(2, 0, 1)
    )


def test_unit_axes_and_the_rest() -> None:
    file = {"conv": np.arange(24).reshape(4, 3, 2, 1), "norm": np.arange(3)}
    rules = {"conv": ("conv", "o i ... -> ... i o"), "norm": ("norm", "m -> 1 1 m")}
    loaded = load(file, rules)
    assert np.array_equal(loaded["conv"], file["conv"].transpose(2, 3, 1, 0))
    assert loaded["norm"].shape == (1, 1, 3)
    rope = {"q": np.arange(16).reshape(8, 2)}
    loaded = load(rope, treepack.Mapping({"q": ("q", "(h two d) m -> m h (d two)")}, two=2, h=2))
    assert np.array_equal(
        loaded["q"], rope["q"].reshape(2, 2, 2, 2).transpose(3, 0, 2, 1).reshape(2, 2, 4)
    )


def test_plain_rules_give_other_names_to_all_leaves_below() -> None:
    file = {"params": {"encoder": {"w": np.ones(2), "n": 3}}, "step": 7}
    assert load(file, {"params/backbone": "params/encoder"}) == {
        "params": {"backbone": {"w": pytest.approx(np.ones(2)), "n": 3}},
        "step": 7,
    }
    loaded = load(file, {".": "params", "it": "step"})
    assert loaded["encoder"]["n"] == 3
    assert loaded["it"] == 7
    by_function = load(file, lambda path: f"params/encoder/{path}", {"w": np.zeros(2), "n": 0})
    assert by_function["n"] == 3


def test_leaves_without_a_rule() -> None:
    file = {"a": np.ones(2), "b": np.full(2, 2.0), "c": np.ones(1)}
    template = {"x": np.zeros(2), "b": np.zeros(2)}
    rules = {"x": "a"}
    loaded, report = load(file, rules, template, return_report=True)
    assert loaded["b"][0] == 2
    assert report.unexpected == ["c"]
    with pytest.raises(TreepackError, match=r"b: it has no rule"):
        load(file, treepack.Mapping(rules, rest="error"), template)
    skipped = load(file, treepack.Mapping(rules, rest="skip"), template)
    assert (skipped["x"][0], skipped["b"][0]) == (1, 0)
    with pytest.raises(MismatchError, match="c"):
        load(file, rules, template, unexpected="error")
    assert load(file, treepack.Mapping(rules, rest="skip")).keys() == {"x"}


def test_a_leaf_without_a_rule_may_be_a_tensor_that_another_leaf_takes() -> None:
    template = {"w": np.zeros((2, 3)), "t": np.zeros((3, 2)), "x": np.zeros(1)}
    file = {"w": np.ones((2, 3)), "x": np.ones(1)}
    loaded = load(file, {"t": ("w", "a b -> b a")}, template)
    assert [float(array.min()) for array in loaded.values()] == [1, 1, 1]


def test_a_missing_tensor_is_missing(path: Any) -> None:
    template = {**tree_of(tensors()), "bias": np.ones(3)}
    rules = {**RULES, "bias": ("lm_head.bias", "v")}
    with pytest.raises(TreepackError, match=r"bias: the file has no lm_head.bias"):
        treepack.load(path, template, mapping=rules)
    loaded = treepack.load(path, template, mapping=rules, missing="target")
    assert loaded["bias"][0] == 1
    assert treepack.load(path, template, mapping=rules, select="head")["bias"][0] == 1


def test_a_selection_is_of_the_tree(path: Any) -> None:
    loaded = treepack.load(path, mapping=treepack.Mapping(RULES, h=2), select="layers/query")
    assert_equal(loaded, {"layers": {"query": tree_of(tensors())["layers"]["query"]}})


def test_a_damaged_source_damages_the_leaf(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    treepack.save(path, tensors())
    data = bytearray(path.read_bytes())
    at = data.find(tensors()["model.layers.7.self_attn.q_proj.weight"].tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    mapping = treepack.Mapping(RULES, h=2)
    with pytest.raises(CorruptionError, match="layers/query"):
        treepack.load(path, mapping=mapping, verify=True)
    template = tree_of(tensors())
    loaded, report = treepack.load(
        path, template, mapping=mapping, on_corrupt="skip", return_report=True
    )
    assert report.corrupt == ["layers/query"]
    assert_equal(loaded, template)


def test_a_cut_file_keeps_the_leaves_whose_tensors_are_there(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    file = {f"l.{at}.w": np.full(400, at, np.float32) for at in range(4)} | {"z": np.zeros(400)}
    treepack.save(path, {"first": np.ones(400), **file})
    data = path.read_bytes()
    path.write_bytes(data[: data.find(file["l.2.w"].tobytes())])
    rules = {"w": ("l.{l:0..4}.w", "a -> l a"), "one": "first"}
    template = {"w": np.full((4, 400), 7, np.float32), "one": np.zeros(400)}
    with pytest.warns(UserWarning, match="damaged"):
        loaded = treepack.load(path, template, mapping=rules, on_corrupt="skip")
    assert (loaded["w"][0, 0], loaded["one"][0]) == (7, 1)
    with treepack.open(path, mapping=rules, salvage=True) as opened:
        assert "one" in opened
        assert "w" not in opened


def test_scalars_on_devices_are_stacked(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4,), ("x",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    scalars = [jax.device_put(jax.numpy.float32(at), everywhere) for at in range(3)]
    treepack.save(tmp_path / "m.safetensors", {"s": scalars}, mapping={"s/{l}": ("s", "l -> ")})
    with treepack.open(tmp_path / "m.safetensors") as file:
        assert file["s"][:].tolist() == [0, 1, 2]


def test_tied_leaves_are_one_tensor(tmp_path: Path) -> None:
    rules = {"embed": ("w", "v m"), "head": ("w", "v m -> m v")}
    table = np.arange(6.0).reshape(3, 2)
    tree = {"embed": table, "head": table.T}
    treepack.save(tmp_path / "m.safetensors", tree, mapping=rules)
    assert_equal(treepack.load(tmp_path / "m.safetensors", tree, mapping=rules), tree)
    with pytest.raises(TreepackError, match="tree, embed and head, are w in the file, and differ"):
        treepack.save(tmp_path / "n.safetensors", {**tree, "head": table.T + 1}, mapping=rules)


@pytest.mark.parametrize("cast", [False, True])
def test_tied_leaves_are_loaded_once(cast: bool) -> None:
    rules = {"embed": ("w", "v m -> m v"), "head": ("w", "v m -> m v"), "a": "b", "c": "b"}
    file = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}
    arrays = load(file, rules)
    assert arrays["embed"] is arrays["head"]
    assert arrays["a"] is arrays["c"]
    dtype = jnp.float16 if cast else jnp.float32
    template = {path: jnp.zeros((2, 3), dtype) for path in ("embed", "head")}
    template |= {path: jnp.zeros(2, dtype) for path in "ac"}
    on_device = load(file, rules, template, cast=cast)
    assert on_device["embed"] is on_device["head"]
    assert on_device["embed"].dtype == dtype


def test_a_mapped_file_is_pickled(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", tensors(), metadata={"step": 3})
    file = treepack.open(tmp_path / "saved", mapping=treepack.Mapping(RULES, h=2))
    again = pickle.loads(pickle.dumps(file))
    assert again.metadata == {"step": 3}
    assert np.array_equal(again["head"], file["head"])
    assert np.array_equal(pickle.loads(pickle.dumps(file["layers/up"])), file["layers/up"])


def test_a_mapping_describes_itself() -> None:
    one = treepack.Mapping({"a": "b"})
    assert repr(one) == "treepack.Mapping(1 rule)"
    assert repr(treepack.Mapping({"a": "b", "c": "d"}).inverse()) == (
        "treepack.Mapping(2 rules, inverse)"
    )
    assert repr(treepack.Mapping(lambda path: path)) == "treepack.Mapping(a function)"
