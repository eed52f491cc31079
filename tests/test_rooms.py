"""The rooms of the package, and who imports whom; CONTRIBUTING has the map."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

import treepack

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "treepack"

# A room imports only from rooms before it, and its own modules not in a circle. Below stands the
# face of `formats`, which finds its folders by listing them; they are above the rooms they use.
ROOMS = [
    *("_src.printable", "errors", "_src.paths", "_src.dtypes"),
    *("_src.elsewhere", "_src.advice", "_src.options"),
    *(
        "_src.calls",
        "_src.tasks",
        "_src.forks",
        "_src.arrays",
        "_src.interop",
        "_src.processes",
        "_src.formats.__init__",
        "_src.storage",
    ),
    *("_src.pytree", "_src.leaves", "_src.registry", "_src.restore", "_src.hooks", "_src.mapping"),
    *("_src.readers", "_src.sharded", "_src.placing", "_src.checkpoint"),
    *(
        "_src.claims",
        "_src.layouts",
        "_src.saving",
        "_src.formats",
        "_src.api",
        "_src.runs",
        "_src.series",
        "_src.publishing",
        "serialization",
        "checkpoints",
        "__init__",
    ),
    *("orbax", "orbax_v1", "_cli", "__main__"),
]

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Returns the modules by name; a second of parsing that other tests do without."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


# Methods and attributes of NamedTuples, of Python itself and of other libraries.
OTHERS = {
    "_replace",
    "_fields",
    "_make",
    "_asdict",
    "_field_defaults",
    "_getframe",
    "_initializing",
}
OTHERS |= {"_condition", "_waiters", "_done_callbacks", "_register_atexit", "_error_context"}
OTHERS |= {"_parent", "_join", "_mapper", "_STATE_DICT_REGISTRY"}
# Our own, which public classes keep out of sight: the core calls it, too.
OTHERS |= {"_ahead", "_deferred", "_now"}
# Of open files, for other rooms.
OTHERS |= {"_at", "_in_layout"}


def room_of(module: str) -> int | None:
    """Returns the number of a module's room; the files that only describe rooms have none."""
    found = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    return ROOMS.index(found[0]) if found else None


def imports_of(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """Returns the imports of modules of the package, anywhere in a module."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("treepack."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("treepack")]
        else:
            continue
        for name in names:
            parts = name.split(".")[1:]
            while parts and not {".".join(parts), ".".join([*parts, "__init__"])} & {*MODULES}:
                if parts == ["_core"]:
                    break
                parts.pop()
            is_module = ".".join(parts) in MODULES or parts == ["_core"]
            found.append((node, ".".join(parts if is_module else [*parts, "__init__"])))
    return [(node, module) for node, module in found if module != "_core"]


def test_a_room_imports_only_rooms_below_it() -> None:
    upward = [
        f"{module} imports {imported}"
        for module, tree in trees().items()
        if (room := room_of(module)) is not None
        for _, imported in imports_of(tree)
        if (below := room_of(imported)) is None or below > room
    ]
    assert upward == []
    assert {room_of(module) for module in MODULES} - {None} == {*range(len(ROOMS))}


def test_the_map_names_every_room_and_every_module_of_the_core() -> None:
    core, rooms = (ROOT / "CONTRIBUTING.md").read_text().split("Python has everything about")
    listed = re.findall(r"`(\w+)/?`", " ".join(re.findall(r"^\* (.*?):", rooms, re.M)))
    known = [
        room.removeprefix("_src.")
        for room in ROOMS
        if room not in ("__main__", "_src.formats.__init__")
    ]
    assert listed == known
    named = {*re.findall(r"`(\w+)`", core), "lib"}
    assert {path.stem for path in (ROOT / "src").iterdir()} <= named


@functools.cache
def verbs() -> set[str]:
    """Returns the public names of the package by the paths of their definitions."""
    return {
        f"{node.module}.{it.name}"
        for node in trees()["__init__"].body
        if isinstance(node, ast.ImportFrom)
        for it in node.names
        if it.name in treepack.__all__
    }


def taken_by(room: str) -> set[str]:
    """Returns the internal names that a room takes, including names of modules that it imports.

    Rooms below `__init__` import verbs from the modules that define them.
    """
    taken: set[str] = set()
    modules = {f"treepack.{name.removesuffix('.__init__')}" for name in MODULES}
    for module in (name for name in MODULES if f"{name}.".startswith(f"{room}.")):
        nodes = [*ast.walk(trees()[module])]
        inside: dict[str, str] = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                inside |= {it.asname or it.name: it.name for it in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {it.asname or it.name: f"{node.module}.{it.name}" for it in node.names}
                inside |= {name: path for name, path in names.items() if path in modules}
                taken |= {*names.values()} - modules
        for node in nodes:
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in inside:
                taken.add(f"{inside[ast.unparse(node.value)]}.{node.attr}")
    internal = {name for name in taken if name.startswith(("treepack._src", "treepack._core"))}
    others = {name for name in internal - verbs() if not name.startswith(f"treepack.{room}.")}
    return {name.removeprefix("treepack._src.") for name in others}


# The internal names that each client takes beside the verbs.
CLIENTS = {
    "_cli": {
        *("api.anything.open_anything", "layouts.copying.Copy", "runs.listing.run_at"),
        *("printable.size_text", "formats.known", "storage.urls.shown"),
        *(f"printable.{name}" for name in ("bytes_of", "jsonable", "printable", "safe_repr")),
    },
    "orbax": {
        *("paths.text", "registry.code.check_is_tree", "saving.sharded.ShardedWrite"),
        *(f"options.{name}" for name in ("Saved", "WriteOptions", "Writing", "takes")),
        *("leaves.references.reference_text", "storage.address.Address"),
        "storage.naming.naming",
    },
    "orbax_v1": {
        *(f"options.{name}" for name in ("WriteOptions", "Writing", "takes")),
        *("saving.sharded.ShardedWrite", "storage.address.Address"),
    },
}


# The numbers of names that rooms take which do more beside the verbs. They only become smaller.
MOST = {"checkpoints": 10, "_src.series": 10, "_src.publishing": 10, "_src.runs": 25}


@pytest.mark.parametrize("client", [*CLIENTS, *MOST])
def test_clients_use_the_verbs(client: str) -> None:
    """Which they call as any program does; beside them, they take at most ten names."""
    taken = taken_by(client)
    assert CLIENTS.get(client, taken) == taken
    assert len(taken) <= MOST.get(client, 10)


def given_by(room: str) -> set[str]:
    """Returns the names of a room that other modules import."""
    return {
        f"{node.module}.{it.name}"
        for module, tree in trees().items()
        if not f"{module}.".startswith(f"{room}.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"treepack.{room}.")
        for it in node.names
    }


FACES = {
    **{"_src.arrays": 9, "_src.storage": 17, "_src.mapping": 10, "_src.checkpoint": 14},
    **{"_src.registry": 15, "_src.restore": 8, "_src.saving": 7, "_src.runs": 7},
    **{
        "_src.series": 2,
        "_src.publishing": 2,
        "_src.pytree": 19,
        "_src.interop": 14,
        "_src.processes": 4,
    },
    **{"_src.readers": 24, "_src.sharded": 14, "_src.placing": 5},
    **{"_src.api": 20, "_src.formats": 10, "_src.leaves": 16, "_src.claims": 10, "_src.layouts": 5},
}


@pytest.mark.parametrize(
    "room",
    [
        room
        for room in ROOMS
        if room.startswith("_src.") and (PACKAGE / room.replace(".", "/")).is_dir()
    ],
)
def test_rooms_have_narrow_faces(room: str) -> None:
    """Their numbers of names only become smaller."""
    assert 0 < len(given_by(room)) <= FACES[room]


def test_the_core_calls_few_functions_of_python() -> None:
    """Their number only becomes smaller: it calls methods of what it is given."""
    source = (ROOT / "src" / "py" / "hooks.rs").read_text()
    (hooks,) = re.findall(r"^hooks! \{$(.*?)^\}$", source, re.M | re.S)
    assert 0 < len(re.findall(r"^    (\w+),$", hooks, re.M)) <= 15


def test_modules_that_tests_name_exist() -> None:
    """Otherwise signals and kills at each of their lines would never come."""
    folders = {name.split(".")[1] for name in MODULES if name.count(".") > 1}
    named = {
        path
        for test in (ROOT / "tests").rglob("test_*.py")
        for path in re.findall(r'"(\w+/\w+\.py)"', test.read_text())
        if path.split("/")[0] in folders
    }
    assert len(named) >= 8
    assert not [path for path in named if not (PACKAGE / "_src" / path).exists()]


def test_a_constant_of_a_module_has_one_value() -> None:
    for module, tree in trees().items():
        assigned = [
            target.id
            for node in tree.body
            for target in (node.targets if isinstance(node, ast.Assign) else ())
            if isinstance(target, ast.Name)
        ]
        assert len(assigned) == len({*assigned}), module


def test_no_imports_run_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " imports ".join([*path, module])
        if module not in done:
            for _, imported in imports_of(trees()[module]):
                visit(imported, [*path, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def test_only_storage_tells_a_path_from_a_url() -> None:
    telling = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "local" in {alias.name for alias in node.names}
    }
    assert {module.rpartition(".")[0] for module in telling} == {"_src.storage"}


def test_an_address_is_made_by_its_methods() -> None:
    """So that each is normal: a path of the caller becomes one by `Address.of` or `or_data`."""
    made = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Address"
    }
    assert made == {"_src.storage.address"}


def folders() -> list[str]:
    """Returns the folders of formats."""
    return sorted(
        {name.split(".")[2] for name in MODULES if name.count(".") > 2 and ".formats." in name}
    )


def test_nobody_imports_a_format() -> None:
    """So that a folder can be deleted, and a new one needs no other change."""
    assert len(folders()) >= 3
    for module, tree in trees().items():
        for _, imported in imports_of(tree):
            inside = [
                name for name in folders() if f"{imported}.".startswith(f"_src.formats.{name}.")
            ]
            assert all(module.startswith(f"_src.formats.{name}.") for name in inside), module


def test_imports_stand_at_the_top() -> None:
    """Whoever needs one elsewhere, or for type checkers alone, holds too much."""
    for module, tree in trees().items():
        if module != "__main__":  # which tells what the command line lacks
            assert {*(node for node, _ in imports_of(tree))} <= {*tree.body}, module
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.expr)}
        # Which import other libraries by their names, and the folders that are there.
        if module not in ("_src.options", "_src.formats.__init__"):
            assert not names & {"importlib.import_module", "__import__"}, module


def test_imports_name_the_whole_path() -> None:
    """So that the other tests of this file see them."""
    for module, tree in trees().items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [ast.unparse(node) for node in imports if node.level], module


@pytest.mark.parametrize("folder", ["benches", "examples", "tools"])
def test_programs_beside_the_package_import_names_that_it_has(folder: str) -> None:
    """No other test runs the benchmarks."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("treepack."):
                names = {alias.name for alias in node.names}
                module = importlib.import_module(str(node.module))
                modules = {name.rpartition(".")[2] for name in MODULES}
                assert names <= {*vars(module), *modules}, path


def defined_in(tree: ast.AST) -> set[str]:
    """Returns the names of the methods and attributes of the classes in a module."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {it.name for it in node.body if isinstance(it, ast.FunctionDef)}
            found |= {ast.unparse(it.target) for it in node.body if isinstance(it, ast.AnnAssign)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def touched_in(tree: ast.AST) -> set[str]:
    """Returns the names of attributes of other objects than `self`, those of `getattr` as well."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found |= {it.value for it in node.args[1:2] if isinstance(it, ast.Constant)}
    return found


def test_no_module_uses_private_names_of_another() -> None:
    for module, tree in trees().items():
        private = {name for name in touched_in(tree) if name[0] == "_" != name[1]}
        assert private - defined_in(tree) <= OTHERS, module
        imported = [
            f"{node.module}.{alias.name}"
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("treepack.")
            for alias in node.names
            if alias.name[0] == "_" and alias.name not in ("_core", "_src", "_cli")
        ]
        assert imported == [], module
