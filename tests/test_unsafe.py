"""tools/unsafe.toml lists every `unsafe` of the core, with existing tests."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = tomllib.loads((ROOT / "tools" / "unsafe.toml").read_text(encoding="utf-8"))

ITEM = re.compile(
    r"^\s*(?:pub(?:\([a-z]+\))? )?(?:const |unsafe |extern \"C\" )*(?:fn|impl|trait)(?:<[^>]*>)? "
    r"([\w$]+(?: for \w+)?)"
)
UNSAFE = re.compile(r"\bunsafe (?:\{|impl\b|fn\b|trait\b|extern\b)|#\[unsafe\(")
COMMENT = re.compile(r"//.*")


def blocks(path: Path) -> Iterator[str]:
    """Yields the item around each `unsafe` of a file, but for those of its tests."""
    item = ""
    is_test = False
    for line in path.read_text(encoding="utf-8").split("\n"):
        is_test = is_test or re.fullmatch(r"(pub\(\w+\) )?mod tests \{", line) is not None
        code = COMMENT.sub("", line)
        if found := ITEM.search(code):
            item = found[1].strip()
        if not is_test:
            yield from (item for _ in UNSAFE.finditer(code))
        is_test = is_test and line != "}"


def in_the_code() -> dict[tuple[str, str], int]:
    paths = sorted((ROOT / "src").rglob("*.rs"))
    return collections.Counter(
        (path.relative_to(ROOT).as_posix(), item) for path in paths for item in blocks(path)
    )


def test_the_list_has_each_block() -> None:
    listed = {
        (path, item): it["blocks"] for path, items in LIST.items() for item, it in items.items()
    }
    assert listed == in_the_code()


@pytest.mark.campaign
def test_the_list_names_existing_tests() -> None:
    files = [
        path
        for pattern in ("src/**/*.rs", "tests/**/*.rs", "tests/**/*.py")
        for path in ROOT.glob(pattern)
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    known = {*re.findall(r"\b(?:fn|def) (\w+)\(", text)}
    for it in (it for items in LIST.values() for it in items.values()):
        assert it["tests"]
        assert known.issuperset(it["tests"]), it["tests"]


def test_what_is_taken_away_is_there() -> None:
    """`sh tools/breaches.sh`, which builds each."""
    command = [sys.executable, ROOT / "tools" / "breaches.py", "--check"]
    assert "arguments" in subprocess.check_output(command, text=True)


def test_each_block_says_why_it_is_sound() -> None:
    """Clippy denies blocks without; functions say what they ask for."""
    assert 'undocumented_unsafe_blocks = "deny"' in (ROOT / "Cargo.toml").read_text(
        encoding="utf-8"
    )
    allow = re.compile(r"^\s*#!?\[allow\(unsafe_code\)\]", re.MULTILINE)
    allowed = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*.rs")
        if allow.search(
            re.split(r"\n(?:pub\(\w+\) )?mod tests \{", path.read_text(encoding="utf-8"))[0]
        )
    }
    modules = {
        "py/memory/mod.rs",
        *(f"base/{name}.rs" for name in ("fold", "pages", "raw/mod", "stream", "system")),
    }
    assert allowed == {*modules, "files/mapping.rs", "codec/gzip/foreign.rs"}


@pytest.mark.parametrize(
    ("code", "item"),
    [
        ("unsafe fn f() {", "f"),
        ("pub(crate) const unsafe fn f() {", "f"),
        ('pub extern "C" fn f() {\n unsafe { g() }', "f"),
        ("unsafe impl<T> Send for Start {}", "Send for Start"),
        ("unsafe trait Plain {", "Plain"),
        ('fn f() {}\nunsafe extern "C" {', "f"),
        ("fn f() {}\n#[unsafe(no_mangle)]", "f"),
    ],
)
def test_all_kinds_of_unsafe_are_seen(tmp_path: Path, code: str, item: str) -> None:
    (tmp_path / "it.rs").write_text(code)
    assert list(blocks(tmp_path / "it.rs")) == [item]
