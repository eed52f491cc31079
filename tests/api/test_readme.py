"""The examples in README and docs are run, and what these say of the API is true."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import operator
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax_checkpoint
import orbax.checkpoint.experimental.v1 as orbax_v1_api
import pytest
import safetensors.numpy as safetensors
from eformer.pytree import serialization as eformer
from flax import serialization as flax
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import safe_open

import tiers
import treepack
from commands import call
from treepack import checkpoints, orbax, orbax_v1, serialization

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG"))]
PAGES += sorted((ROOT / "docs").glob("*.md"))
# Where readers of the site and of the package index find files of the repository.
REPOSITORY = "https://github.com/treepack/treepack/blob/main/"
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
OF_PROCESSES = "docs/transport.md"


def blocks(language: str, text: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with the number of lines before it."""
    found = re.finditer(rf"^```{language}\n(.*?)^```", text, re.S | re.M)
    return [(text.count("\n", 0, block.start(1)), block[1]) for block in found]


def printed(code: str) -> list[str]:
    """The comments that follow a `print`, which are what it prints."""
    found, follows = [], False
    for line in map(str.strip, code.splitlines()):
        follows = "print(" in line or (follows and line.startswith("#"))
        if follows and line.startswith("#"):
            found.append(line[2:])
    return found


def examples() -> Iterator[Any]:
    """Yields the pages with examples, except the one whose examples start processes."""
    for page in TEXTS:
        if blocks("python", TEXTS[page]) and page != OF_PROCESSES:
            slow = [pytest.mark.campaign] if page == "docs/recipes.md" else []
            yield pytest.param(page, marks=slow)


@pytest.mark.parametrize("page", examples())
def test_each_example_needs_only_the_first_of_its_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    folder, kept = tmp_path / "folder", tmp_path / "kept"
    folder.mkdir()
    monkeypatch.chdir(folder)
    first: dict[str, object] = {}
    for number, (line, code) in enumerate(blocks("python", TEXTS[page])):
        if number:
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            monkeypatch.chdir(folder)
        names = dict(first) if number else first
        exec(compile("\n" * line + code, ROOT / page, "exec"), names)
        assert capsys.readouterr().out.splitlines() == printed(code)
        if not number:
            shutil.copytree(folder, kept)


@pytest.mark.campaign
@pytest.mark.parametrize("at", range(1, len(blocks("python", TEXTS[OF_PROCESSES]))))
def test_each_example_that_starts_processes(at: int, tmp_path: Path):
    """Runs the examples of Ray and gRPC only at night: other tiers do not install them."""
    found = [code for _, code in blocks("python", TEXTS[OF_PROCESSES])]
    for module in {"ray", "grpc"} & {*found[at].split()}:
        pytest.importorskip(module)
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}  # no token in the home folder
    command = [sys.executable, "-c", f"{found[0]}\n{found[at]}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tree = {"params": {"w": np.ones((64, 64))}, "step": 3}
    treepack.save("model.treepack", tree)
    treepack.save("other.treepack", tree)
    Path("model.msgpack").write_bytes(flax.to_bytes(tree))
    layers = {f"layers.{at}.w": np.ones((2, 3), np.float32) for at in range(2)}
    safetensors.save_file(layers, "hf.safetensors")
    rules = {"kernel": ("layers.{l}.w", "f m -> l m f")}
    Path("rules.py").write_text(f"mapping = {rules}")
    safetensors.save_file({"conv.weight": np.ones((4, 3, 2, 2))}, "torch.safetensors")
    Path("cut.treepack").write_bytes(Path("model.treepack").read_bytes()[:-100])
    shell = "".join(code for text in TEXTS.values() for _, code in blocks("sh", text))
    commands = re.findall(r"^treepack (.*?)(?: +#.*)?$", shell, re.M)
    assert len(commands) >= 8
    for command in commands:
        call(*shlex.split(command), status=int("salvage" in command))


COMMANDS = sorted({*re.findall(r"(?:^|`|\d )(pytest [^`\n]*)", "\n".join(TEXTS.values()), re.M)})


@pytest.mark.campaign
@pytest.mark.parametrize("command", tiers.some(COMMANDS, 5))
def test_a_command_of_pytest_selects_tests(command: str):
    arguments = [arg for arg in shlex.split(command)[1:] if arg != "-rP"]
    done = subprocess.run([sys.executable, "-m", "pytest", "--co", "-q", *arguments], cwd=ROOT)
    assert done.returncode == 0


@pytest.mark.parametrize("page", [page for page in TEXTS if blocks("console", TEXTS[page])])
def test_output_of_commands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    treepack.save("model.treepack", {"params": {"w": np.ones((64, 64)), "b": [1, 2]}, "step": 3})
    run = treepack.Series("run")
    for step in (100, 200, 300):
        monkeypatch.setattr(time, "time", lambda step=step: 1767261000.0 + 6 * step)
        run.save(step, {"w": np.zeros(1000)}, metrics={"loss": 50 / step})
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    run.keep(100)
    for _, code in blocks("console", TEXTS[page]):
        command, _, output = code.partition("\n")
        assert call(*command.removeprefix("$ treepack ").split()) == output


def test_calls_of_the_drop_in_name_its_parameters_in_order():
    calls = re.findall(
        r"`(?:path\.write_bytes\()?(\w+)\((\w+(?:, \w+)*)\)+`", TEXTS["docs/drop-in.md"]
    )
    found = 0
    for name, arguments in calls:
        verb = getattr(serialization, name, None) or getattr(treepack, name, None)
        parameters = [] if verb is None else [*inspect.signature(verb).parameters]
        for argument, parameter in zip(arguments.split(", "), parameters, strict=False):
            assert ("path" in argument) == ("path" in parameter), (name, arguments)
            found += 1
    assert found >= 8


# What the table of README says of the other libraries.
def test_other_libraries_return_other_trees(tmp_path: Path):
    tree = {"a": (np.ones(3), [np.zeros(2)])}
    assert treepack.loads(treepack.dumps(tree))["a"].__class__ is tuple
    assert flax.msgpack_restore(flax.to_bytes(tree))["a"].keys() == {"0", "1"}
    saver = orbax_checkpoint.StandardCheckpointer()
    saver.save(tmp_path / "orbax", tree)
    saver.wait_until_finished()
    assert saver.restore(tmp_path / "orbax")["a"].__class__ is list
    assert safetensors.load(safetensors.save({"a": np.ones(3)})).__class__ is dict


def shapes(tree: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def saved_by_orbax(tmp_path: Path) -> tuple[dict[str, np.ndarray], Path, Path]:
    """A tree of random numbers, and what both APIs of Orbax write."""
    tree = {"w": np.random.default_rng(0).standard_normal((300, 300), np.float32)}
    with orbax_checkpoint.PyTreeCheckpointer() as saver:
        saver.save(tmp_path / "v0", tree)
    orbax_v1_api.save_pytree(tmp_path / "v1", tree)
    return tree, tmp_path / "v0", tmp_path / "v1"


def test_who_notices_other_shapes(saved_by_orbax: Any):
    old, path, path_v1 = saved_by_orbax
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = {
        "jax": {"w": jnp.zeros((3, 3))},
        "struct": {"w": jax.ShapeDtypeStruct((3, 3), jnp.float32, sharding=there)},
    }
    numpy = {"w": np.zeros((3, 3), np.float32)}
    for template in (numpy, placed["jax"]):
        assert shapes(flax.from_bytes(template, flax.to_bytes(old))) == [(300, 300)]

    args = orbax_checkpoint.checkpoint_utils.construct_restore_args
    standard = orbax_checkpoint.StandardCheckpointer()
    tree = orbax_checkpoint.PyTreeCheckpointer()
    ways: list[Callable[[Any], Any]] = [
        lambda template: standard.restore(path, template),
        lambda template: tree.restore(path, restore_args=args(template)),
        lambda template: tree.restore(path, item=template, restore_args=args(template)),
        lambda template: orbax_v1_api.load_pytree(path_v1, template),
    ]
    for restore in ways:
        assert shapes(restore(numpy)) == [(300, 300)]
        for template in placed.values():
            with pytest.raises(ValueError, match="shape"):
                restore(template)
    for template in (numpy, *placed.values()):
        assert shapes(tree.restore(path, item=template)) == [(300, 300)]
        with pytest.raises(treepack.TreepackError, match="w"):
            treepack.loads(treepack.dumps(old), template)


def test_who_notices_a_corrupted_array(saved_by_orbax: Any, tmp_path: Path):
    old, path_v0, path_v1 = saved_by_orbax

    def flipped(data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    def is_wrong(tree: dict[str, np.ndarray]) -> bool:
        return tree["w"].shape == (300, 300) and bool((tree["w"] != old["w"]).any())

    assert is_wrong(flax.msgpack_restore(flipped(flax.to_bytes(old))))
    assert is_wrong(safetensors.load(flipped(safetensors.save(old))))
    for folder in (path_v0, path_v1):
        files = (path for path in folder.rglob("*") if path.is_file())
        largest = max(files, key=lambda path: path.stat().st_size)
        largest.write_bytes(flipped(largest.read_bytes()))
    assert is_wrong(orbax_checkpoint.PyTreeCheckpointer().restore(path_v0))
    assert is_wrong(orbax_v1_api.load_pytree(path_v1))
    path = tmp_path / "treepack"
    treepack.save(path, old)
    path.write_bytes(flipped(path.read_bytes()))
    assert is_wrong(treepack.load(path))
    assert treepack.verify(path).corrupt == ["w"]
    with pytest.raises(treepack.TreepackError, match="w"):
        treepack.load(path, verify=True)


@pytest.mark.parametrize(
    "array",
    [np.arange(64, dtype=np.float32), np.ones((512, 512), np.float32)],
    ids=["small", "ones"],
)
def test_orbax_notices_corrupted_nodes_of_its_database(tmp_path: Path, array: np.ndarray):
    with orbax_checkpoint.PyTreeCheckpointer() as saver:
        saver.save(tmp_path / "saved", {"w": array})
        errors = 0
        for file in (tmp_path / "saved").glob("**/d/*"):
            data = file.read_bytes()
            for at in range(0, len(data), len(data) // 7 + 1):
                file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                try:
                    found = saver.restore(tmp_path / "saved")["w"]
                except ValueError:
                    errors += 1
                else:
                    np.testing.assert_array_equal(found, array)  # a file that is not read
            file.write_bytes(data)
    assert errors >= 7


def test_who_reads_a_few_rows(saved_by_orbax: Any, tmp_path: Path):
    old, path, _ = saved_by_orbax
    safetensors.save_file(old, tmp_path / "safetensors")
    with safe_open(tmp_path / "safetensors", framework="np") as file:
        np.testing.assert_array_equal(file.get_slice("w")[10:20], old["w"][10:20])
    sharding = NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))
    args = {"w": orbax_checkpoint.ArrayRestoreArgs(sharding=sharding)}
    restored = orbax_checkpoint.PyTreeCheckpointer().restore(path, restore_args=args)["w"]
    assert {shard.data.shape for shard in restored.addressable_shards} == {(75, 300)}
    treepack.save(tmp_path / "treepack", old)
    with treepack.open(tmp_path / "treepack") as opened:
        np.testing.assert_array_equal(opened["w"][10:20], old["w"][10:20])


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    targets = re.search(r"^\.PHONY: (.*)", makefile, re.M)[1].split()  # type: ignore[index]
    others = re.findall(r"^  (\w+)\)", (ROOT / "tools/bench.sh").read_text(), re.M)
    named = re.findall(r"`make ([a-z-]+)(?: NAME=(\w+))?`", "".join(TEXTS.values()))
    assert len(set(named)) > 10
    for target, name in set(named):
        assert target in targets
        if name and name not in others:
            folder = {"bench": "benches", "example": "examples"}[target]
            assert (ROOT / folder / f"{name}.py").exists(), (target, name)


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)", prose(text), re.M)
    return {re.sub(r"[^\w -]", "", it).strip().lower().replace(" ", "-") for it in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str):
    inline = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose(TEXTS[page]))
    defined = re.findall(r"^\[[^\]]+\]: ([^\s#]*)(?:#(\S*))?$", prose(TEXTS[page]), re.M)
    for path, anchor in inline + defined:
        if path.startswith(REPOSITORY):
            target = ROOT / path.removeprefix(REPOSITORY)
        elif path.startswith("https://"):
            continue
        else:
            target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text()), (path, anchor)


def test_the_index_lists_every_page():
    listed = re.findall(r"\]\((\w[\w-]*\.md)\)", TEXTS["docs/index.md"])
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {*listed} == pages


def test_pages_name_every_verb():
    verbs = [name for name in treepack.__all__ if inspect.isfunction(getattr(treepack, name))]
    verbs = [name for name in verbs if getattr(treepack, name).__name__ == name]  # no alias
    assert len(verbs) > 20
    for name in verbs:
        named = [page for page, text in TEXTS.items() if re.search(rf"\b{name}\b", prose(text))]
        assert {"README.md", "docs/types.md"} & {*named}, name
        assert any(page.startswith("docs/") for page in named), name


def test_the_chart_and_the_tables_show_the_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benches")
    monkeypatch.delitem(sys.modules, "chart", raising=False)
    import chart

    results = json.loads((chart.RESULTS / "results.json").read_text())
    assert chart.PICTURE.read_text() == chart.svg(results)
    for page in chart.PAGES:
        text = page.read_text()
        assert text == chart.page(text)
        for library, times in chart.seconds(results).items():
            assert f"{library} {sum(times):.2f}" in text, library


def test_every_name_of_both_originals_is_there_with_its_signature():
    for original in (flax, eformer):
        for name, value in vars(original).items():
            public = not name.startswith("_") and getattr(value, "__module__", "") in (
                original.__name__,
            )
            if not (public and inspect.isfunction(value)):
                continue
            for module in (treepack.serialization,):
                ours = list(inspect.signature(getattr(module, name)).parameters.values())
                theirs = list(inspect.signature(value).parameters.values())
                positional = [p for p in ours if p.kind is not inspect.Parameter.KEYWORD_ONLY]
                assert [(p.name, p.default) for p in positional] == [
                    (p.name, p.default) for p in theirs
                ], name
    assert treepack.serialization.MAX_CHUNK_SIZE == flax.MAX_CHUNK_SIZE == eformer.MAX_CHUNK_SIZE


def test_the_reference_has_every_public_name():
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    listed = re.findall(r"^::: treepack\.(\S+)$", "\n".join(pages), re.M)
    modules = {"errors", "serialization", "checkpoints", "orbax", "orbax_v1"}
    assert modules <= {*listed}
    assert len(listed) == len({*listed})
    found = {name for name in treepack.__all__ if not hasattr(treepack.errors, name)}
    assert {*listed} - modules == found - modules - {"__version__"}


def test_the_reference_has_an_example_of_each_name():
    modules = {name: getattr(treepack, name) for name in treepack.__all__}
    for module in (treepack.serialization, checkpoints, orbax, orbax_v1):
        public = getattr(module, "__all__", [it for it in vars(module) if not it.startswith("_")])
        modules |= {f"{module.__name__}.{name}": getattr(module, name) for name in public}
    count = 0
    for name, value in modules.items():
        is_ours = getattr(value, "__module__", "").startswith("treepack")
        if not is_ours or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        # What another name makes is shown there.
        shown = inspect.getdoc(value) or ""
        if name in ("LoadedExported", "Mismatch", "treepack.orbax_v1.TreepackHandler"):
            assert re.search(r"`(load_exported|MismatchError|registry)`", shown), name
        else:
            assert "Examples:" in shown, name
            count += 1
    assert count > 60


@pytest.mark.campaign
def test_the_reference_shows_the_signatures_of_the_package():
    import griffe

    extensions = griffe.load_extensions(ROOT / "tools" / "reference.py")
    package = griffe.load("treepack", search_paths=[ROOT / "python"], extensions=extensions)
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    count = 0

    def compare(shown: Any, there: Any) -> None:
        nonlocal count
        shown = shown.final_target if shown.is_alias else shown
        for name, member in shown.members.items():
            is_shown = not member.is_alias and (name == "__init__" or name[0] != "_")
            if is_shown and hasattr(there, name):
                compare(member, getattr(there, name))
        if not shown.is_function or not callable(there):
            return
        signature = inspect.signature(there)
        given = {it.name: it.default for it in shown.parameters if it.name not in ("self", "cls")}
        expected = {
            it.name: it.default for it in signature.parameters.values() if it.name != "self"
        }
        assert given.keys() == expected.keys(), shown.path
        for name, default in expected.items():
            if default is not inspect.Parameter.empty:
                text = str(given[name])
                try:
                    found = ast.literal_eval(text)
                except ValueError:  # a name
                    found = getattr(builtins, text, f"{name} = {text} in {shown.path}")
                assert found == default, (shown.path, name)
                count += 1

    for path in re.findall(r"^::: treepack\.(\S+)$", "\n".join(pages), re.M):
        compare(package[path], operator.attrgetter(path)(treepack))
    assert count > 400


def test_the_guide_is_the_first_that_a_search_finds():
    """The search of the site puts matches in headings before those in texts."""
    for word in ("torch", "rename"):
        pages = {
            page
            for page, text in TEXTS.items()
            for heading in re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
            if word in heading.lower().split()
        }
        assert pages == {"docs/guide.md"}, word


def test_the_site_lists_every_page_in_the_order_of_the_index():
    docs = ROOT / "docs"
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
    order = re.findall(r"^\| \[.*\]\(([\w-]+\.md)\)", TEXTS["docs/index.md"], re.M)
    assert [page for page in listed if page in order] == order
