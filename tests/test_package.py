"""What goes with the package is true: metadata, links, workflows, the program that tries it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import treepack

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CRATE = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", "")
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_smoke_test_uses_every_public_name():
    used, called = set(), set()
    for node in ast.walk(ast.parse((ROOT / "tests/smoke.py").read_text())):
        if isinstance(node, ast.Call):
            called.add(ast.unparse(node.func))
        elif isinstance(node, ast.Attribute):
            used.add(ast.unparse(node))
    for name in treepack.__all__:
        assert f"treepack.{name}" in used, name
        if inspect.isfunction(getattr(treepack, name)):
            assert f"treepack.{name}" in called, name


@pytest.mark.campaign
def test_the_smoke_test_passes(tmp_path: Path):
    subprocess.check_call([sys.executable, ROOT / "tests/smoke.py"], cwd=tmp_path)


@pytest.mark.parametrize("module", ["treepack", "treepack._core"])
@pytest.mark.parametrize("numpy", ["", "raise ImportError('another ABI')"])
def test_an_import_without_numpy_is_an_import_error(tmp_path: Path, module: str, numpy: str):
    if numpy:
        (tmp_path / "numpy.py").write_text(numpy)
    package = Path(treepack.__file__).parents[1]
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(package)!r}]
try:
    import {module}
except ImportError as error:
    print(error)
"""
    # Without the packages of the environment.
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert ("another ABI" if numpy else "No module named 'numpy'") in done.stdout, done.stderr


def test_names_and_versions_agree():
    project = PROJECT["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes is not None
    versions = {project["version"], CRATE["version"], citation["version"], changes[1]}
    versions.add(SITE["extra"]["release"])
    assert versions == {project["version"]}
    assert project["description"] == citation["abstract"]
    assert citation["repository-code"] == REPOSITORY


def test_extras_are_for_users_and_groups_for_developers():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"all", "cli", "export", "orbax", "remote"}
    groups = PROJECT["dependency-groups"]
    scripts = "".join(path.read_text() for path in (ROOT / "tools").glob("*.sh"))
    ways = r"(?:--group|^ *grouped|installed made|environment\.sh packages)((?: \w+)+)"
    installed = " ".join(re.findall(ways, MAKEFILE + scripts, re.M)).split()
    assert {*groups} == {*installed}
    # What the tests have is not older than what users are promised.
    promised = {it for name in extras if name != "all" for it in extras[name]}
    assert promised <= {*groups["test"]}


def test_the_readme_has_no_relative_links():
    """An index of packages shows the page without the repository around it."""
    readme = (ROOT / "README.md").read_text()
    assert not re.findall(r"\]\((?!https://)|<(?:img|a) ", readme)
    defined = dict(re.findall(r"^\[([^\]]+)\]: (.*)$", readme, re.M))
    assert len(defined) > 14
    for link in defined.values():
        assert link.startswith("https://"), link
    prose = re.sub(r"^```.*?^```", "", readme, flags=re.S | re.M)
    for text, name in re.findall(r"\[([^\]]+)\](?:\[([^\]]*)\])?", re.sub(r"`[^`]*`", "", prose)):
        found = " ".join((name or text).split()).lower()
        assert found in {it.lower() for it in defined}, found


def pages() -> list[Path]:
    patterns = ("*.md", "*.toml", "*.cff", "docs/*.md", ".github/**/*.*")
    return [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]


def test_links_into_the_repository_lead_to_files():
    owner = REPOSITORY.removeprefix("https://github.com/")
    places = (
        rf"(?:https://github\.com/{owner}/blob|https://raw\.githubusercontent\.com/{owner})/main/"
    )
    count = 0
    for page in pages():
        for name in re.findall(rf"{places}([^\s)#\"]+)", page.read_text()):
            assert (ROOT / name).is_file(), (page.name, name)
            count += 1
    assert count > 14


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.all_cases
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_nothing_but_make_and_scripts(path: Path):
    targets = re.search(r"^\.PHONY: (.*)", MAKEFILE, re.M)[1].split()  # type: ignore[index]
    for step in steps(yaml.safe_load(path.read_text())):
        if "run" not in step:
            continue
        made = re.fullmatch(r"make ([\w-]+)(?: \w+=(?:\w+|'[^']+'))*(?: > \w+\.txt)?", step["run"])
        script = re.fullmatch(r"(?:[A-Z_]+=\w+ )*sh (tools/\w+\.sh)((?: [\w-]+)*)", step["run"])
        assert made or script, step["run"]
        if made:
            assert made[1] in targets
        elif script:
            text = (ROOT / script[1]).read_text()
            assert all(re.search(rf"\b{part}\b", text) for part in script[2].split())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_what_they_use_and_may_do_little(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
    assert steps(workflow)
    used = re.findall(r"uses: (.*)", path.read_text())
    for line in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_artifacts_are_kept_as_long_as_is_said():
    """For public repositories, GitHub keeps none longer than 90 days."""
    found = [
        int(step["with"]["retention-days"])
        for path in WORKFLOWS
        for step in steps(yaml.safe_load(path.read_text()))
        if "retention-days" in step.get("with", {})
    ]
    assert all(days <= 90 for days in found), found


def test_one_commit_stands_for_each_action():
    used = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text())}
    assert len({line.partition("@")[0] for line in used}) == len(used)


def test_the_site_is_where_the_package_says_and_needs_no_other_host():
    assert SITE["site_url"] == PROJECT["project"]["urls"]["Documentation"]
    assert SITE["repo_url"] == REPOSITORY
    # The component of the theme asks GitHub for the stars of the repository.
    link = (ROOT / SITE["theme"]["custom_dir"] / "partials" / "source.html").read_text()
    assert "data-md-component" not in re.sub(r"{#.*?#}", "", link, flags=re.S)
    assert SITE["theme"]["font"] is False
    assert REPOSITORY in {it["link"] for it in SITE["extra"]["social"]}


def test_the_oldest_versions_are_those_of_the_project():
    found = subprocess.check_output([sys.executable, ROOT / "tools/oldest.py"], text=True)
    for name in ("jax", "jaxlib", "numpy", "ml_dtypes", "flax", "rich", "obstore"):
        assert re.search(rf"^{name}==\d", found, re.M), name
