"""The modules of the core, and which imports which; CONTRIBUTING has the map."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# `crate::array::Grid` is `("array", "Grid")`, and the crate itself is `()`.
Name = tuple[str, ...]

USE = re.compile(r"^\s*(pub(?:\(\w+\))? )?use ([^;]+);", re.M)


def code_of(path: Path) -> str:
    """Returns a file without comments, texts and its modules of tests, which are at its end."""
    text = re.sub(r"//.*| +$", "", path.read_text(), flags=re.M)
    text = re.split(r"#\[cfg\(test\)\]\n(?:#\[.*\]\s*)*(?:pub(?:\(\w+\))? )?mod \w+ \{", text)[0]
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


def module_of(path: Path) -> Name:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return () if parts == ("lib",) else parts[:-1] if parts[-1] == "mod" else parts


FILES = {module_of(path): code_of(path) for path in SOURCE.rglob("*.rs")}


def modules_in(room: Name) -> list[str]:
    """Returns the modules that a file lists, in its order."""
    return re.findall(r"^\s*(?:pub(?:\(crate\))? )?mod (\w+);", FILES[room], re.M)


# The rooms that are lists of modules, whose order counts like that of the rooms.
LISTS = [
    (),
    *((room,) for room in modules_in(()) if not re.search(r"^(?!.*mod ).+", FILES[room,], re.M)),
]


def leaves_of(tree: str) -> Iterator[str]:
    """Yields the paths of a tree of `use`."""
    head, _, rest = tree.partition("{")
    if not rest:
        yield tree.strip()
        return
    for part in re.findall(r"[^{},]+(?:\{(?:[^{}]|\{[^{}]*\})*\})?", rest.rpartition("}")[0]):
        if part.strip():
            yield from (head.strip() + leaf for leaf in leaves_of(part))


def absolute(path: str, module: Name) -> Name | None:
    """Returns the name of a path in a module, or `None` if it is of another crate."""
    first, *rest = path.removesuffix("::self").split("::")
    if first == "crate":
        return tuple(rest)
    if first == "super" and module[:-1] in LISTS:
        return (*module, *rest)  # of a module inside of the file; others write `crate`
    if first == "super":
        return absolute("::".join(["self", *rest]), module[:-1])
    if first == "self" and rest[:1] == ["super"]:
        return absolute("::".join(rest), module)
    if first == "self" or (*module, first) in FILES:
        return (*module, *(rest if first == "self" else [first, *rest]))
    return None


def uses_of(module: Name) -> Iterator[tuple[Name, str, bool]]:
    """Yields the paths of `use` in a module, their names there, and whether it exports them."""
    for exported, tree in USE.findall(FILES[module]):
        for leaf in leaves_of(" ".join(tree.split())):
            path, _, name = leaf.partition(" as ")
            found = absolute(path, module)
            if found is not None:
                yield found, name or path.rpartition("::")[2], bool(exported)


EXPORTS = {
    (*module, name): found
    for module in FILES
    for found, name, exported in uses_of(module)
    if exported
}


def home_of(name: Name) -> Name:
    """Returns the file that defines a name."""
    for end in range(len(name) + 1):
        if name[:end] in EXPORTS and name[:end] not in FILES:
            return home_of(EXPORTS[name[:end]] + name[end:])
    return max((name[:end] for end in range(len(name) + 1) if name[:end] in FILES), key=len)


def imports_of(module: Name) -> set[Name]:
    """Returns the files that a file uses; to export a name is no use of it."""
    body = USE.sub("", FILES[module])
    inline = [
        absolute(path, module) for path in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", body)
    ]
    found = {home_of(name) for name in inline if name is not None}
    for name, local, exported in uses_of(module):
        if not exported or re.search(rf"\b{local}\b", body):
            found.add(home_of(name))
    return found - {module}


IMPORTS = {module: imports_of(module) for module in FILES if module}


def test_a_module_imports_only_modules_above_it() -> None:
    assert len(LISTS) > 5
    upward = []
    for room in LISTS:
        order, depth = modules_in(room), len(room)
        assert {module[depth] for module in IMPORTS if module[:depth] == room != module} == {*order}
        upward += [
            f"{'::'.join(module)} imports {'::'.join(imported) or 'lib'}"
            for module, found in IMPORTS.items()
            for imported in found
            if module[:depth] == room == imported[:depth]
            if imported == room or order.index(imported[depth]) > order.index(module[depth])
        ]
    assert upward == []


def test_the_map_has_the_order_of_the_rooms() -> None:
    order = modules_in(())
    core = (ROOT / "CONTRIBUTING.md").read_text().split("Rust has everything about bytes")[1]
    listed = re.findall(r"`(\w+)`", core.split("\n\n")[1])
    assert [name for name in listed if name in order] == order


def test_the_codec_takes_only_the_base() -> None:
    """As the compiler sees in `tests/codec`, which has both alone."""
    taken = {it[0] for module, found in IMPORTS.items() if module[0] == "codec" for it in found}
    assert taken == {"base", "codec"}
    codec, package = (
        tomllib.loads((ROOT / folder / "Cargo.toml").read_text()) for folder in ("tests/codec", "")
    )
    for kind in ("dependencies", "dev-dependencies"):
        assert codec[kind].items() <= package[kind].items(), kind


# The most names that a room gives to others.
FACES = {
    **{("codec", "gzip"): 8, ("codec", "delta"): 7, ("patches",): 9, ("catalog",): 8},
    **{("format", "structure"): 10, ("format", "array"): 13, ("format", "events"): 2},
}


def test_faces_are_narrow() -> None:
    for room, most in FACES.items():
        uses = re.findall(r"^pub(?:\(crate\))? use ([^;]+);", FILES[room], re.M)
        names = [leaf for tree in uses for leaf in leaves_of(" ".join(tree.split()))]
        assert 1 < len(names) <= most, (room, names)
        assert not re.search(r"^pub(?:\(crate\))? mod", FILES[room], re.M)


def test_no_imports_of_files_run_in_a_circle() -> None:
    done: set[Name] = set()

    def visit(module: Name, path: list[str]) -> None:
        text = "::".join(module)
        assert text not in path, " imports ".join([*path, text])
        if module not in done:
            for imported in IMPORTS.get(module, ()):
                visit(imported, [*path, text])
            done.add(module)

    for module in IMPORTS:
        visit(module, [])


def test_the_imports_are_found() -> None:
    """Otherwise the tests above would hold of anything."""
    above = {("base", "grow"), ("base", "error"), ("format", "wire", "cursor")}
    assert above <= IMPORTS["catalog", "check"]
    assert ("codec", "gzip", "numbers") in IMPORTS["codec", "gzip", "compress"]
    assert ("py", "memory", "arrays") in IMPORTS["py", "walk", "arrays"]
    assert sum(map(len, IMPORTS.values())) > 600
