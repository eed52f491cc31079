"""First calls of users of other libraries, before they read the documentation."""

from __future__ import annotations

import inspect
import io
import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util
from flax.training.train_state import TrainState
from safetensors.numpy import save_file
from upath import UPath

import treepack
from commands import call, refused
from treepack import checkpoints


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WEIGHT = np.arange(6.0).reshape(2, 3)


def test_new_names_and_axes_in_the_shell() -> None:
    save_file({"fc.weight": WEIGHT, "fc.bias": np.ones(2)}, "torch.safetensors")
    call("convert", "torch.safetensors", "made.treepack", "--map", "fc/kernel=fc.weight=o i -> i o")
    with treepack.open("made.treepack") as file:
        assert {path for path, _ in file.leaves()} == {"fc/kernel", "fc/bias"}
        np.testing.assert_array_equal(file["fc/kernel"], WEIGHT.T)
    call("convert", "made.treepack", "split", "--map", "layers/{l}/w=fc/kernel=l o -> o")
    assert "layers/1/w" in call("ls", "split", "--flat")
    assert "has 'a' twice" in refused("convert", "split", "x", "--map=a=b", "--map=a=c")
    assert "the new and the old path" in refused("convert", "split", "x", "--map=a=b", "--map=c")
    assert "--gzip and --level: " in refused("convert", "split", "x", "--gzip", "--numbers")


def test_a_library_that_rules_import_is_named_with_their_file() -> None:
    treepack.save("model", {"w": WEIGHT})
    Path("rules.py").write_text("import no_such_library\nmapping = {}", encoding="utf-8")
    expected = "--map: rules.py: No module named 'no_such_library'"
    assert expected in refused("ls", "model", "--map", "rules.py:mapping")


def test_leaves_in_a_list_have_no_place_in_shorter_lists() -> None:
    treepack.save("model", {"w": WEIGHT, "opt": (WEIGHT, 0)})
    with pytest.raises(treepack.MismatchError, match="pass one with its keys in place of the list"):
        treepack.load("model", jax.tree.leaves({"w": WEIGHT, "opt": (WEIGHT, 0)}))
    with pytest.raises(treepack.MismatchError, match=r"with the keys \['opt', 'w'\]"):
        treepack.load("model", [WEIGHT] * 3, missing="target")
    with pytest.raises(treepack.MismatchError, match="The file has these leaves in opt: "):
        treepack.load("model", [WEIGHT, 0])


def test_a_leaf_has_two_places_in_a_template() -> None:
    treepack.save("model", {"model": {"embed": WEIGHT}})
    both = {"embed": "model/embed", "head": ("model/embed", "a b -> b a")}
    template = {"embed": np.zeros((2, 3)), "head": np.zeros((3, 2))}
    for options in ({}, {"verify": True}):
        found = treepack.load("model", template, mapping=both, **options)
        np.testing.assert_array_equal(found["embed"], WEIGHT)
        np.testing.assert_array_equal(found["head"], WEIGHT.T)
    tied = {"model": {"embed": np.zeros((2, 3))}, "head": np.zeros((3, 2))}
    found = treepack.load("model", tied, mapping={"head": both["head"]})
    np.testing.assert_array_equal(found["model"]["embed"], WEIGHT)


def state() -> TrainState:
    """Makes the state of a training."""
    model = nn.Dense(3)
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))


@pytest.mark.parametrize("background", [False, True])
def test_flax_reads_what_the_suffix_says(background: bool) -> None:
    saved = state().replace(step=11)
    saving = treepack.save("state.msgpack", saved, background=background)
    if saving is not None:
        saving.result()
    data = Path("state.msgpack").read_bytes()
    assert flax.serialization.from_bytes(state(), data).step == 11
    assert flax.serialization.msgpack_restore(data).keys() == {"step", "params", "opt_state"}
    assert treepack.load("state.msgpack", jax.eval_shape(state)).step == 11
    treepack.save("small.msgpack.gz", saved, select="params", sharded=False)
    assert list(treepack.load("small.msgpack.gz")) == ["params"]
    unsupported: list[dict[str, Any]] = [{"metadata": 1}, {"sharded": True}, {"base": {"w": 1}}]
    for options in unsupported:
        with pytest.raises(ValueError, match=f"support {min(options)}=: choose the suffix .treepa"):
            treepack.save("state.msgpack", {"w": np.ones(1)}, **options)
    with pytest.raises(ValueError, match="support an iterator: choose"):
        treepack.save("state.msgpack", iter([("w", np.ones(1))]))
    assert Path("state.msgpack").read_bytes() == data


def test_a_selection_needs_no_code() -> None:
    def own(x: jax.Array) -> jax.Array:  # never registered
        return x

    mlp = eqx.nn.MLP(4, 1, 16, 2, activation=own, key=jax.random.key(0))
    treepack.save("eqx", {"model": mlp})
    found = treepack.load("eqx", select="model/layers/0")
    assert found["model"]["layers"]["0"].weight.shape == (16, 4)  # a whole node
    linear = nnx.Linear(4, 8, promote_dtype=own, rngs=nnx.Rngs(0))
    treepack.save("nnx", {"a": linear, "t": (1, 2)})
    found = treepack.load("nnx", select=["a", "t"])
    assert {"kernel", "bias"} < set(found["a"])
    assert found["t"] == (1, 2)
    with pytest.raises(treepack.PlaceholderError, match='or containers="plain" to get dicts'):
        treepack.load("nnx")
    assert {"kernel", "bias"} < set(treepack.load("nnx", containers="plain")["a"])


def test_paths_of_other_file_systems_are_paths() -> None:
    tree = {"w": np.arange(3.0)}
    place = UPath("memory://first_try/a")
    treepack.save(place, tree)
    assert not treepack.diff(place, tree)
    assert not treepack.diff(tree, place)
    treepack.save(UPath("memory://first_try/b"), tree, base=place)
    np.testing.assert_array_equal(treepack.load("memory://first_try/b")["w"], tree["w"])


def test_slashes_are_levels_in_npz() -> None:
    np.savez("flat.npz", **{"params/dense/w": np.ones((3, 4)), "step": 5})
    template = {"params": {"dense": {"w": np.zeros((3, 4))}}, "step": 0}
    assert treepack.load("flat.npz", template)["step"] == 5
    assert "params/dense/w" in call("ls", "flat.npz", "--flat")
    treepack.save("haiku", {"mlp/~/linear": {"w": np.ones(2)}})
    call("convert", "haiku", "haiku.npz")
    assert list(treepack.load("haiku.npz")) == ["mlp/~/linear"]  # as it was converted


def test_the_index_of_a_repository_is_its_path() -> None:
    treepack.save("hub", {"a": WEIGHT, "b": WEIGHT}, format="safetensors", max_shard_size=60)
    index = Path("hub/model.safetensors.index.json")
    assert index.exists()
    for path in (index, str(index.absolute())):
        np.testing.assert_array_equal(treepack.load(path)["b"], WEIGHT)
        with treepack.open(path) as file:
            assert file["a"].shape == (2, 3)
        assert treepack.is_checkpoint(path)
        assert treepack.verify(path).unchecked == ["a", "b"]
        assert treepack.abstract(path)["a"].shape == (2, 3)
        assert treepack.read_metadata(path) == {"format": "flax"}
        assert not treepack.diff(path, "hub")
        assert call("ls", str(path), "--flat") == call("ls", "hub", "--flat")
        call("convert", str(path), "copy")
        assert not treepack.diff("copy", "hub")


def test_a_base_that_is_missing_is_named() -> None:
    tree = {"w": np.arange(300.0)}
    treepack.save("base", tree)
    treepack.save("patch", tree, base="base")
    Path("base").unlink()
    with pytest.raises(FileNotFoundError, match=r"patch is a patch of this file, .* with base="):
        treepack.load("patch")
    treepack.load("patch", base=tree)
    with pytest.raises(treepack.TreepackError, match=r"base=.* --base"):
        treepack.abstract(treepack.dumps(tree, base=tree))


def test_rules_that_are_wrong() -> None:
    treepack.save("model", {"layers": [{"w": WEIGHT}] * 2})
    with pytest.raises(treepack.MismatchError, match=r"a: the file has no layer/\{l\}/w, rule 'a'"):
        treepack.load("model", {"a": WEIGHT}, mapping={"a": ("layer/{l}/w", "... -> l ...")})


def test_the_best_checkpoint_is_loaded() -> None:
    run = treepack.Series("run", keep=treepack.Keep(last=1, best=("acc", 1, "max")))
    assert run.best() is None
    for step, acc in enumerate([0.1, 0.9, 0.3]):
        run.save(step, {"w": np.full(2, step)}, metrics={"acc": acc})
    assert (run.best(), run.steps()) == (1, [1, 2])
    assert treepack.load(run.path(1))["w"][0] == 1
    Path(run.path(1)).write_bytes(b"")
    assert run.best() == 2
    with pytest.raises(ValueError, match=r'best=."loss", 1, "min".'):
        treepack.Series("run").best()
    other = treepack.Series("run")
    other.save(3, {"w": WEIGHT}, metrics={"acc": 0.2, "loss": 0.5})
    other.save(4, {"w": WEIGHT}, metrics={"acc": 0.8, "loss": 0.7})
    assert [other.best(*it) for it in (("acc", "min"), ("acc", "max"), ("loss", "min"))] == [
        3,
        4,
        3,
    ]
    assert (run.best("acc"), run.best("acc", "min")) == (4, 3)
    with pytest.raises(treepack.TreepackError, match=r'metric "losss": is it "loss"\?'):
        run.best("losss", "min")
    with pytest.raises(treepack.TreepackError, match='metric "typo": they have "acc", "loss"'):
        run.best("typo", "max")


@pytest.mark.parametrize("fast", [None, "fast"])
def test_a_metric_that_no_checkpoint_has_removes_none(fast: str | None) -> None:
    keep = treepack.Keep(best=("val", 1, "min"))
    run = treepack.Series("run", keep=keep)
    for step, value in enumerate([3.0, 1.0, 2.0]):
        run.save(step, {"w": WEIGHT}, metrics={"val": value})
    typo = treepack.Series("run", keep=treepack.Keep(best=("vall", 1, "min")), fast=fast)

    def save(step: int) -> None:
        typo.save(step, {"w": WEIGHT}, metrics={"val": 4.0})
        typo.wait()

    for step in (3, 4):
        with pytest.warns(UserWarning, match="metrics has 'val', keep asks for 'vall'"):
            save(step)
    typo.save(5, {"w": WEIGHT})
    typo.wait()
    assert typo.steps() == [1, 2, 3, 4, 5]
    with pytest.raises(treepack.TreepackError, match='metric "vall": is it "val"'):
        typo.best()
    run.save(6, {"w": WEIGHT})
    assert run.steps() == [1, 6]


def test_static_data_that_differ_are_listed() -> None:
    treepack.save("four", {"net": eqx.nn.MLP(2, 2, 2, 1, jax.nn.relu, key=jax.random.key(0))})
    treepack.save("seven", {"net": eqx.nn.MLP(2, 2, 2, 1, jax.nn.gelu, key=jax.random.key(0))})
    assert "0 of 4 leaves differ, and 1 static value" in call("diff", "four", "seven", status=1)
    [found] = json.loads(call("diff", "four", "seven", "--json", status=1))["differences"]
    assert found == {"path": "net", "kind": "static", "text": "'relu' and 'gelu'"}


def test_leaves_elsewhere_in_a_file_are_shown_on_both_sides() -> None:
    params = {"dense": {"w": np.ones((4, 4)), "b": np.ones(4)}}
    treepack.save("state", {"params": params, "opt": (np.ones(2),), "step": 1})

    def hint(target: Any) -> str:
        with pytest.raises(treepack.MismatchError) as caught:
            treepack.load("state", target)
        return str(caught.value)

    keys = "a subtree with the keys ['b', 'w']"
    assert f"dense: missing (expected {keys}); is it params/dense?" in hint(params)
    assert treepack.load("state", {"params": params})["params"].keys() == {"dense"}
    assert treepack.open("state")["params"].load(params).keys() == {"dense"}
    moved = {"model": params, "step": 1}
    dense = "a subtree with the keys ['dense']"
    assert f"model: missing (expected {dense})\n  params: unexpected (found {dense})" in hint(moved)
    assert "\nPass mapping= if" in hint(moved)
    assert treepack.load("state", moved, mapping={"model": "params"})["step"] == 1
    shapes = {"params": {"dense": {"w": (4, 4), "b": (4,)}}, "opt": ((2,),), "step": 1}
    assert hint(shapes).endswith("for a shape, pass jax.ShapeDtypeStruct((4, 4), dtype).")
    assert "mapping={" not in hint({"w": (4, 4), "b": (4,)})


def test_verify_goes_on_and_verifies_a_run() -> None:
    run = treepack.Series("run")
    for step in range(2):
        run.save(step, {"w": np.ones(2)})
    treepack.save("good", {"w": np.ones(2)})
    printed = call("verify", "absent", "good", "run", status=2)
    assert "No such file or directory: 'absent'" in printed
    assert "good: 1 ok" in printed
    assert "run/step_0: 1 ok\nrun/step_1: 1 ok" in printed
    treepack.save("base", {"w": np.ones(300)})
    treepack.save("patch", {"w": np.ones(300)}, base="base")
    treepack.save("base", {"w": np.zeros(300)})
    assert "another base" in str(treepack.verify("patch").damage)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_one_array_keeps_its_name(suffix: str) -> None:
    treepack.save("model", {"params": {"w": np.ones(2)}})
    call("get", "model", "params/w", f"w{suffix}")
    assert list(treepack.load(f"w{suffix}")) == ["w"]


def test_a_file_in_place_of_a_command() -> None:
    treepack.save("model", {"w": 1})
    assert "list it with `treepack ls model`" in refused("model")
    assert "No such command" in refused("other")


def test_reprs_say_what_they_are() -> None:
    treepack.save("model", {"w": np.ones(2)})
    assert repr(treepack.verify("model")).startswith("Verification(ok=True, leaves={")
    found = repr(treepack.diff({"w": np.array([1, np.nan])}, {"w": np.array([1.0, 2.0])}))
    assert "1 element, some of them NaN or infinite in one only" in found


def test_one_array_becomes_npy() -> None:
    tree = {"params": {"w": WEIGHT, "h": jnp.ones(2, jnp.bfloat16)}, "none": None}
    treepack.save("model", tree)
    call("get", "model", "params/w", "w.npy")
    np.testing.assert_array_equal(np.load("w.npy"), WEIGHT)
    assert "or choose .npz" in refused("get", "model", "params", "p.npy")
    assert "or choose .npz" in refused("convert", "model", "p.npy")
    assert "--dtype" in refused("get", "model", "params/h", "h.npy")
    call("get", "model", "params/h", "h.npy", "--dtype", "float32")
    assert np.load("h.npy").dtype == np.float32
    refused("get", "model", "none", "n.npy")
    assert not Path("n.npy").exists()


@pytest.mark.parametrize("size", [1, 300, 70_000])
def test_metadata_of_a_patch_need_no_base(size: int) -> None:
    tree = {"w": np.arange(3000.0)}
    metadata = {"text": "x" * size, "__treepack__": ["__treepack__"]}
    data = treepack.dumps(tree, base=tree, metadata=metadata)
    assert treepack.read_metadata(data) == metadata
    assert treepack.read_metadata(treepack.dumps(tree, base=tree, metadata=1, compress=True)) == 1
    treepack.save("base", tree)
    treepack.save("patch", tree, base="base", metadata=metadata)
    treepack.save("base", {"w": np.zeros(3000)})
    assert treepack.read_metadata("patch") == metadata
    Path("base").unlink()
    assert treepack.read_metadata("patch") == metadata
    Path("cut").write_bytes(data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
    with pytest.raises(treepack.TreepackError):
        treepack.read_metadata("cut")


def test_a_text_as_template() -> None:
    data = treepack.dumps("saved")
    assert treepack.load(data, "template") == "saved"
    assert treepack.load(io.BytesIO(data), "template") == "saved"


def test_a_misspelt_file_name() -> None:
    treepack.save("folder/model.treepack", {"w": 1})
    for verb in (treepack.load, treepack.open, treepack.verify):
        with pytest.raises(FileNotFoundError) as caught:
            verb("folder/modl.treepack")
        assert caught.value.__notes__ == ["treepack: is it 'folder/model.treepack'?"]
    with pytest.raises(FileNotFoundError) as caught:
        treepack.load("memory://first_try/absent")
    assert not hasattr(caught.value, "__notes__")
    assert "is it 'folder/model.treepack'" in refused("ls", "folder/modl.treepack")
    with Path("file").open("wb") as file, pytest.raises(TypeError, match=r"BufferedWriter.*dumps"):
        treepack.save(file, {"w": 1})  # type: ignore[call-overload]


def test_a_save_that_has_not_ended() -> None:
    Path(".new.treepack-1-0-x.tmp").touch()
    with pytest.raises(FileNotFoundError) as caught:
        treepack.load("new")
    assert (
        "a save to it has not ended, or was killed: wait for result()" in caught.value.__notes__[0]
    )
    with pytest.raises(FileNotFoundError) as caught:
        treepack.load("other")
    assert not hasattr(caught.value, "__notes__")


def test_arguments_without_a_name() -> None:
    with pytest.raises(TypeError, match=r"name the rest, as in metadata={'step': 1}"):
        treepack.save("model", {"w": 1}, {"step": 1})  # type: ignore[call-overload]
    for verb in (treepack.save, treepack.load, treepack.open, treepack.Series.save):
        assert "_more" not in inspect.signature(verb).parameters


def test_a_new_name_of_a_leaf() -> None:
    treepack.save("model", {"kernle": np.ones(3)})
    with pytest.raises(treepack.MismatchError, match=r"mapping={'kernel': 'kernle'} if this"):
        treepack.load("model", {"kernel": np.ones(3)})
    treepack.load("model", {"kernel": np.ones(3)}, mapping={"kernel": "kernle"})


def test_a_verification_is_true_without_damage() -> None:
    treepack.save("model", {"w": WEIGHT})
    assert treepack.verify("model")
    data = bytearray(Path("model").read_bytes())
    data[data.index(WEIGHT.tobytes())] ^= 1
    Path("model").write_bytes(data)
    assert not treepack.verify("model")


def test_new_names_that_the_template_lacks() -> None:
    treepack.save("model", {"norm": np.ones(3), "layers": [{"q": WEIGHT}, {"q": WEIGHT}]})
    template = {"scale": np.zeros(3), "q": np.zeros((2, 3, 2))}
    stack = ("layers/{l}/q", "a b -> l b a")
    rules: list[tuple[dict[str, Any], str]] = [
        ({"p": stack}, "p is not in it; it has scale, q"),
        ({"scael": "norm"}, "scael is not in it; is it 'scale'?"),
    ]
    for mapping, text in rules:
        with pytest.raises(treepack.TreepackError, match=text):
            treepack.load("model", template, mapping=mapping, missing="target")
    found = treepack.load("model", template, mapping={"scale": "norm", "q": stack})
    assert np.array_equal(found["q"][1], WEIGHT.T)


def test_axes_that_are_reversed_and_templates_that_are_too_deep() -> None:
    treepack.save("model", {"w": WEIGHT, "step": 1})
    template = {"w": WEIGHT.T, "step": 1}
    with pytest.raises(treepack.MismatchError, match=r"Pass mapping=\{'w': \('w', 'a b -> b a'\)"):
        treepack.load("model", template)
    mapping = {"w": ("w", "a b -> b a")}
    assert np.array_equal(treepack.load("model", template, mapping=mapping)["w"], WEIGHT.T)
    text = r"state: missing \(expected a subtree with the keys \['step', 'w'\]\)"
    with pytest.raises(treepack.MismatchError, match=text):
        treepack.load("model", {"state": {"w": WEIGHT, "step": 1}})
    deep = {"state": {"w": np.zeros((2, 3)), "step": 0}}
    found = treepack.load("model", deep, mapping=lambda path: path.removeprefix("state/"))
    assert np.array_equal(found["state"]["w"], WEIGHT)


def test_arguments_of_other_types() -> None:
    with pytest.raises(TypeError, match="got a str: "):
        treepack.save_exported(jax.export.export(jax.jit(jnp.sin))(1.0), "model")
    with pytest.raises(TypeError, match=r"the result of jax\.export\.export.*got a PjitFunction$"):
        treepack.save_exported("model", jax.jit(jnp.sin))
    with pytest.raises(TypeError, match="got 'v3': pass the step"):
        treepack.Publisher("policy").push({"w": WEIGHT}, version="v3")


def test_a_forgotten_prefix() -> None:
    tree = {"w": WEIGHT}
    assert treepack.Series("run").resume(tree) is None  # without a warning
    treepack.Series("run", prefix="model-").save(9, tree)
    treepack.Series("run", prefix="model-").save(10, tree)
    Path("run/events.17").write_text("of another program")
    Path("run/logs_3").mkdir()
    for unfinished in (False, True):
        if unfinished:
            Path("run/step_7").mkdir()
            Path("run/step_7/0a1b2c3d-00000.treepack").write_bytes(b"")
        with pytest.warns(UserWarning, match="prefix") as caught:
            assert treepack.Series("run").resume(tree) is None
        (text,) = [str(it.message) for it in caught]
        assert "no checkpoint of the prefix 'step_', but 'model-10': pass prefix='model-'" in text
    assert treepack.Series("run", prefix="model-").resume(tree)[0] == 10


def test_a_run_in_a_directory_of_something_else() -> None:
    tree = {"w": WEIGHT}
    treepack.Publisher("policy").push(tree, version=1)
    treepack.save("sharded", tree, sharded=True)
    treepack.save("hub", {"w": jnp.asarray(WEIGHT)}, format="safetensors")
    treepack.Series("experiments/first").save(5, tree)
    Path("experiments/notes").mkdir()
    treepack.save("loose/step_20.treepack", tree)
    treepack.save("loose/step_100.treepack", tree)
    for directory, text in {
        "policy": r"it has the versions of a treepack\.Publisher, which a treepack\.Subscriber",
        "sharded": "it is a checkpoint itself: load it, or pass the directory above it",
        "hub": "it is a checkpoint itself: load it, or pass the directory above it",
        "experiments": "but 'first' in it has: pass that to Series",
        "loose": "but 'step_100.treepack': names of its checkpoints have no suffix: rename it "
        "'step_100', or load it",
    }.items():
        with pytest.warns(
            UserWarning, match=f"{directory} has no checkpoint of .*{text}"
        ) as caught:
            assert treepack.Series(directory).resume(tree) is None
        assert len(caught) == 1
    with pytest.warns(UserWarning, match="but 'first' in it has: pass that to restore_checkpoint"):
        checkpoints.restore_checkpoint("experiments", tree, prefix="step_")
    assert treepack.Series("experiments/first").resume(tree)[0] == 5
    Path("loose/step_100.treepack").rename("loose/step_100")
    assert treepack.Series("loose").resume(tree)[0] == 100
    treepack.save("quiet/best.treepack", tree)
    np.savez("quiet/step_3.npz", w=WEIGHT)
    assert treepack.Series("quiet").resume(tree) is None  # without a warning


def test_a_rule_with_a_typo_keeps_the_target() -> None:
    save_file({"norm.weight": WEIGHT[0], "head.weight": WEIGHT}, "model.safetensors")
    target = {"norm": np.zeros_like(WEIGHT[0]), "head": np.zeros_like(WEIGHT)}
    head = {"head": "head.weight"}
    typo = partial(treepack.load, "model.safetensors", target, missing="target")
    for norm in ("norms.weight", ("norms.weight", "m -> m")):
        with pytest.warns(
            UserWarning, match="^norm stays as in the target: .* is it 'norm/weight'"
        ):
            found = typo(mapping=head | {"norm": norm})
        assert not found["norm"].any()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, report = typo(mapping=head | {"norm": norm}, return_report=True)
            assert report.kept == ["norm"]
            typo(mapping=head | {"norm": norm}, select="head")
            typo(mapping=head | {"norm": "head.wt"})  # head takes it
            typo(mapping=head | {"norm": "embedding"})
    assert typo(mapping=head | {"norm": "norm.weight"})["norm"].any()


def test_a_rule_of_a_leaf_that_the_target_lacks() -> None:
    file, target = {"enc": WEIGHT, "head": WEIGHT + 1}, {"enc": WEIGHT, "head": WEIGHT}
    load = partial(treepack.load, treepack.dumps(file))
    for typo in ("enc", ("enc", "a b -> a b")):
        with pytest.warns(UserWarning, match="^the target has no leaf for .* is it 'head'"):
            found = load(target, mapping={"enc": "head", "heads": typo})
        assert np.array_equal(found["head"], file["head"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(target, mapping={"enc": "head", "heads": "enc"}, return_report=True)
        assert load({"enc": WEIGHT}, mapping={"enc": "head", "head": "enc"})  # rules of the whole
        assert np.array_equal(load(target, mapping={"head": "enc"})["head"], WEIGHT)
        series = dict.fromkeys(("norm1", "n2", "blocks.0.q", "v", "q1", "decoder"), WEIGHT)
        load = partial(treepack.load, treepack.dumps(series), mapping={
            "norm2": "n2", "blocks.0.v": "v", "q2": "q0", "encoder": "n2"
        })  # fmt: skip
        load({"norm1": WEIGHT, "blocks.0.q": WEIGHT, "decoder": WEIGHT})
        load({"norm2": WEIGHT, "blocks.0.v": WEIGHT, "q2": WEIGHT}, missing="target")


def test_leaves_with_one_level_more_or_a_shorter_name() -> None:
    def layer(value: float) -> Any:
        return {"w": np.full(3, value), "b": np.full(2, value)}

    flat = {"params": {"enc": layer(1), "head": layer(2)}}
    deep = {"params": {"trunk": {"enc": layer(1)}, "head": layer(2)}}
    short = {"enc": layer(1), "head": layer(2)}
    long = {"encoder": layer(1), "head": layer(2)}
    for one, other, new, old in (
        (flat, deep, "params/trunk/enc", "params/enc"),
        (deep, flat, "params/enc", "params/trunk/enc"),
        (short, long, "encoder", "enc"),
        (long, short, "enc", "encoder"),
    ):
        load = partial(treepack.load, treepack.dumps(one), jax.tree.map(np.zeros_like, other))
        text = re.escape(f"pass mapping={{{new!r}: {old!r}}} if they are the same")
        with pytest.warns(UserWarning, match=text):
            load(missing="target")
        found = load(missing="target", mapping={new: old})
        assert jax.tree.all(jax.tree.map(np.array_equal, found, other))


def test_a_subscriber_of_something_else() -> None:
    treepack.Series("run").save(3, {"w": WEIGHT})
    treepack.save("sharded", {"w": WEIGHT}, sharded=True)
    for directory, text in {
        "run": r"it has checkpoints, such as those of a Series: treepack\.load reads one",
        "sharded": "it is a checkpoint itself: load it",
        "nowhere": "push one by a Publisher|is it its path",
    }.items():
        subscriber = treepack.Subscriber(directory)
        with pytest.raises(FileNotFoundError, match=text):
            subscriber.latest()
        with pytest.raises(TimeoutError) as caught:
            subscriber.wait(timeout=0.01)
        assert re.search(text, "".join(caught.value.__notes__))


def test_texts_of_key_paths() -> None:
    tree = {"layers": [{"w": WEIGHT}, {"w": WEIGHT}]}
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    named = [(jax.tree_util.keystr(path), WEIGHT) for path in paths]
    for write in (treepack.save, treepack.write_stream):
        with pytest.warns(UserWarning, match="looks like .*keystr") as caught:
            write("named", iter(named))
        assert len(caught) == 1
    with pytest.warns(UserWarning, match="looks like"):
        treepack.save("named", iter([(".params['w']", WEIGHT)]))
    simple = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    for pairs in (zip(paths, [WEIGHT] * 2, strict=True), ((path, WEIGHT) for path in simple)):
        treepack.save("made", pairs)
        assert treepack.load("made", tree)["layers"][1]["w"].shape == (2, 3)
    treepack.save("others", iter([("a[0]", 1), ("[x]", 2), (".a.b", 3), ("['a']/b", 4)]))


def test_names_in_a_file_of_rules() -> None:
    save_file({"a.w": WEIGHT}, "hf.safetensors")
    Path("rules.py").write_text("import treepack\nnames = treepack.Mapping({'b': 'a'})\n")
    text = refused("ls", "hf.safetensors", "--map", "rules.py:mapping")
    assert "rules.py has no name 'mapping': it has names\n" in text
    call("ls", "hf.safetensors", "--map", "rules.py:names")


def test_a_subscriber_loads_a_part() -> None:
    treepack.Publisher("policy").push({"params": {"w": WEIGHT}, "step": 3}, version=1)
    subscriber = treepack.Subscriber("policy")
    version, found = subscriber.latest(
        {"w": WEIGHT, "b": 1}, mapping={"w": "params/w"}, missing="target"
    )
    assert version == 1
    assert np.array_equal(found["w"], WEIGHT)
    assert found["b"] == 1
    assert subscriber.wait(newer_than=0, select="step") == (1, {"step": 3})
    assert subscriber.latest(select="step") == (1, {"step": 3})
    with pytest.raises(ValueError, match="missing must be"):
        subscriber.latest(missing="keep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'selects': is it 'select'"):
        subscriber.latest(selects="step")  # type: ignore[call-arg]


def test_keys_that_are_numbers_in_a_selection() -> None:
    tree = {"table": {0: WEIGHT, 7: 7, (1, 2): {3: 3, "x": 4}}, "list": [5, 6]}
    data = treepack.dumps(tree)
    assert treepack.load(data, select="table/7") == {"table": {7: 7}}
    found = treepack.load(data, exclude=["table/0", "table/*/x"])
    assert found == {"table": {7: 7, (1, 2): {3: 3}}, "list": [5, 6]}
    treepack.save("part", tree, select=["table/7", "list/1"])
    assert treepack.load("part") == {"table": {7: 7}, "list": {"1": 6}}


def test_verification_of_a_patch_without_its_base() -> None:
    treepack.save("base", {"w": WEIGHT})
    treepack.save("patch", {"w": WEIGHT + 1}, base="base")
    treepack.save("folder/patch", {"w": WEIGHT + 1}, base="base")
    Path("base").rename("moved")
    for name, text in (
        ("patch", "which is missing: put it there.*'base'"),
        ("folder/patch", "base="),
    ):
        found = treepack.verify(name)
        assert not found.ok
        assert re.search(text, found.damage or "")
        assert "this file" in call("verify", name, "moved", status=1) or name != "patch"
    with pytest.raises(FileNotFoundError):
        treepack.verify("absent")


def test_one_of_several_new_names_matches_nothing() -> None:
    with pytest.warns(UserWarning, match="the tree has no leaf for rule 'bb': 'd'; is it 'b'"):
        treepack.save(
            "model.safetensors", {"a": WEIGHT, "b": WEIGHT}, mapping={"a": "c", "bb": "d"}
        )
    treepack.save("model", {"c": {"d": WEIGHT}, "b": WEIGHT})
    with pytest.warns(UserWarning, match="no leaf for rule 'y': 'cc/d'; is it 'c/d'"):
        treepack.load("model", mapping={"x": "b", "y": "cc/d"})


def test_representations() -> None:
    assert str(inspect.signature(treepack.Keep)).startswith("(*, last: 'int' = 1, ")
    run = treepack.Series("run", prefix="model-", keep=treepack.Keep(last=2))
    assert re.fullmatch(r"<treepack.Series '.*run', prefix='model-', keep=Keep\(.*\)>", repr(run))
    publisher, subscriber = treepack.Publisher("policy"), treepack.Subscriber("policy")
    assert re.fullmatch(r"<treepack.Publisher '.*policy': no version published>", repr(publisher))
    assert re.fullmatch(r"<treepack.Subscriber '.*policy': no version received>", repr(subscriber))
    publisher.push({"w": WEIGHT}, version=7)
    subscriber.latest()
    assert "version 7 published" in repr(publisher)
    assert "version 7 received" in repr(subscriber)


def test_the_size_of_a_converted_repository() -> None:
    treepack.save("model", {"w": WEIGHT})
    assert re.fullmatch(
        r"made: \d+ B\n", call("convert", "model", "made", "--max-shard-size", "1MB")
    )


def test_a_template_without_leaves_loads_nothing() -> None:
    tree = {"params": {"w": WEIGHT}, "step": 3}
    treepack.save("model", tree)
    treepack.save("model.msgpack", tree)
    treepack.save("shards", tree, sharded=True)
    treepack.save("model.safetensors", tree, select="params")
    treepack.Series("run").save(1, tree)
    treepack.Publisher("policy").push(tree, version=1)
    data, patch = treepack.dumps(tree), treepack.dumps(tree, base=tree)
    stateless = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.BatchStat)
    for template in ({}, {"batch_stats": {}}, stateless):
        for load in (
            *(partial(treepack.load, name) for name in ("model", "model.msgpack", "shards")),
            *(partial(treepack.load, name) for name in ("model.safetensors", data)),
            *(partial(treepack.loads, each) for each in (data, bytearray(data), [data])),
            partial(treepack.loads, patch, base=tree),
            partial(treepack.load, "model", verify=True),
            treepack.open("model").load,
            treepack.open("model")["params"].load,
            treepack.Series("run").resume,
            treepack.Subscriber("policy").latest,
        ):
            with pytest.warns(UserWarning, match="target has no leaves, so nothing is loaded: pas"):
                load(template)
    treepack.save("one", {"w": WEIGHT})
    within: dict[str, Any] = {}
    within["w"] = within
    with pytest.raises(treepack.MismatchError, match="w: expected a subtree"):
        treepack.load("one", within)
    treepack.save("nothing", {"params": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        treepack.load("nothing", {})
        treepack.loads(treepack.dumps({"params": {}}), {})
        treepack.load("model", {}, unexpected="ignore")
        treepack.load("model", {}, missing="target")
        treepack.load("model", {}, return_report=True)
        treepack.serialization.from_bytes({}, data)


def test_one_tensor_as_several_leaves() -> None:
    tensors = {
        f"b.{at}.qkv": np.arange(36, dtype=np.float32).reshape(12, 3) + at for at in range(2)
    }
    save_file(tensors, "torch.safetensors")
    leaf = jax.ShapeDtypeStruct((3, 2, 2), jnp.float32)
    template = {"b": [dict.fromkeys("qkv", leaf)] * 2}
    paths = tuple(f"b/{{l}}/{name}" for name in "qkv")
    axes, file = ("(n h d) m -> n m h d", "(n h d) m -> m h d"), "b.{l}.qkv"
    wrong, right = (treepack.Mapping({paths: (file, text, {"along": "n"})}, h=2) for text in axes)
    for refuse in (
        lambda: wrong.check(template, "torch.safetensors"),
        lambda: treepack.load("torch.safetensors", template, mapping=wrong),
    ):
        with pytest.raises(treepack.TreepackError) as caught:
            refuse()
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) == 6
        assert all("leave n out of 'n m h d': each leaf is one index" in line for line in lines)
    loaded = treepack.load("torch.safetensors", template, mapping=right)
    for at, layer in enumerate(loaded["b"]):
        parts = np.split(tensors[f"b.{at}.qkv"], 3)
        for name, part in zip("qkv", parts, strict=True):
            np.testing.assert_array_equal(layer[name], part.reshape(2, 2, 3).transpose(2, 0, 1))
    treepack.save("again.safetensors", loaded, mapping=right)
    assert not treepack.diff("again.safetensors", "torch.safetensors")


@pytest.mark.parametrize("missing", ["error", "target"])
def test_a_damaged_leaf_without_a_value_of_the_template_warns(missing: Any) -> None:
    tree = {"w": np.full(400, 7.0), "b": np.ones(3)}
    treepack.save("m", tree)
    data = bytearray(Path("m").read_bytes())
    data[data.index(tree["w"].tobytes()) + 9] ^= 1
    Path("m").write_bytes(data)
    template = {name: jax.ShapeDtypeStruct(leaf.shape, np.float32) for name, leaf in tree.items()}
    stays = pytest.warns(UserWarning, match="stay in the tree, since w is damaged: pass")
    with stays:
        found = treepack.load("m", template, on_corrupt="skip", missing=missing)
    assert isinstance(found["w"], jax.ShapeDtypeStruct)
    with treepack.open("m", salvage=True) as file, stays:
        file.load(template, missing="target")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        treepack.load("m", tree, on_corrupt="skip", missing=missing)
        treepack.load("m", template, on_corrupt="skip", missing=missing, return_report=True)


def test_parameters_that_are_trained_from_now_on() -> None:
    """Where they were frozen, the file has no moments, which `strict=False` would restore."""
    params = {"base": WEIGHT, "head": WEIGHT}

    def moments(**labels: str) -> Any:
        parts = {"trained": optax.adam(1.0), "frozen": optax.set_to_zero()}
        return optax.multi_transform(parts, labels).init(params)

    data = treepack.dumps(moments(base="frozen", head="trained"))
    template = moments(base="trained", head="trained")
    with pytest.raises(treepack.MismatchError, match=r"mu/base: .* an empty container") as caught:
        treepack.load(data, template)
    assert 'Pass missing="target"' in str(caught.value)
    assert "strict=False" not in str(caught.value)
    found, report = treepack.load(data, template, missing="target", return_report=True)
    assert jax.tree.structure(found) == jax.tree.structure(template)
    assert {path.split("/")[-1] for path in report.kept} == {"base"}


@pytest.mark.parametrize("separator", ["/", "."])
def test_names_that_are_whole_paths_in_the_file(separator: str) -> None:
    nested = {"enc": {"dense": {"w": WEIGHT, "b": np.ones(3)}}, "head": {"w": WEIGHT + 1}}
    flat = traverse_util.flatten_dict(nested, sep=separator)
    for place in ("flat", *["flat.safetensors"] * (separator == "/")):
        treepack.save(place, flat)
        with pytest.raises(treepack.MismatchError, match="Pass mapping=lambda") as caught:
            treepack.load(place, nested)
        found = re.search(
            r"Pass mapping=(.*) if the names in the file are joined", str(caught.value)
        )
        assert found is not None
        assert "mapping={" not in str(caught.value)
        assert not treepack.diff(treepack.load(place, nested, mapping=eval(found[1])), nested)
