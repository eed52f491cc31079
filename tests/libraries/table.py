"""Which states of other libraries can be saved and loaded, without a word about their types.

    python -m venv libraries && libraries/bin/pip install -r tests/libraries/requirements.txt .
    libraries/bin/python tests/libraries/table.py            # prints a line for each state
    libraries/bin/python tests/libraries/table.py optax      # only these libraries
    libraries/bin/python tests/libraries/table.py --write    # and the table in docs/types.md

One process of each library makes and saves its states; another one, which has imported the library
and made nothing, loads them. A state passes if the treedef is the same and all leaves are equal.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "types.md"
MARKS = ("<!-- libraries: begin -->", "<!-- libraries: end -->")
COLUMNS = {
    "make": "the state is made",
    "save": "it is saved, and verified",
    "alone": "loaded without a template, in a process that has only imported the library",
    "bytes": "dumps and loads",
    "template": "loaded with a template",
    "abstract": "loaded with jax.eval_shape of what makes it",
    "sharded": "saved with sharded=True, loaded with a template",
    "flax": "flax reads all arrays in it",
}
HANG_S = 900


# In the processes of a library


def arrays_of(tree: Any) -> list[Any]:
    """The arrays of a tree as NumPy's, keys as their data."""
    import jax
    import numpy as np

    found = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray)]
    is_key = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in found]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(found, is_key, strict=True)
    ]


def differences(found: Any, expected: Any) -> str:
    """Tells the first difference between two trees, or nothing."""
    import jax
    import numpy as np

    structures = jax.tree.structure(found), jax.tree.structure(expected)
    if structures[0] != structures[1] and str(structures[0]) != str(structures[1]):
        return f"other structure: {structures[0]} instead of {structures[1]}"
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, one), other in zip(paths, jax.tree.leaves(found), strict=True):
        place = jax.tree_util.keystr(path, simple=True, separator="/") or "."
        if type(one) is not type(other):
            return f"{place}: {type(other).__name__} instead of {type(one).__name__}"
        if not isinstance(one, jax.Array | np.ndarray | np.generic):
            if one is not other and one != other:
                return f"{place}: {other!r} instead of {one!r}"
        elif one.dtype != other.dtype or one.shape != other.shape:
            return f"{place}: {other.dtype}{other.shape} instead of {one.dtype}{one.shape}"
        else:
            (one,), (other,) = arrays_of([one]), arrays_of([other])
            if one.tobytes() != other.tobytes():
                return f"{place}: other values"
    return ""


def emptied(tree: Any) -> Any:
    """A template with zeros in its arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def zeros(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.zeros_like(leaf)
        if not isinstance(leaf, jax.Array):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = jnp.zeros_like(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        return jnp.zeros_like(leaf)

    return jax.tree.map(zeros, tree)


def abstract(make: Callable[[], Any]) -> Any:
    """A template without arrays; by equinox where leaves are no arrays."""
    import jax

    try:
        return jax.eval_shape(make)
    except Exception:
        import equinox

        return equinox.filter_eval_shape(make)


def read_by_flax(data: bytes, expected: Any) -> str:
    """Tells how many arrays are not among those that flax reads."""
    from flax import serialization

    found = collections.Counter(
        (str(leaf.dtype), leaf.tobytes()) for leaf in arrays_of(serialization.msgpack_restore(data))
    )
    wanted = collections.Counter((str(leaf.dtype), leaf.tobytes()) for leaf in arrays_of(expected))
    missing = (wanted - found).total()
    return f"{missing} of {wanted.total()} arrays are missing" if missing else ""


def tell(state: str, column: str, attempt: Callable[[], str | None]) -> bool:
    """Prints how an attempt ends."""
    try:
        reason = attempt() or ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        reason = f"{type(error).__name__}: {error}"
    print("\n" + json.dumps([state, column, " ".join(reason.split())]), flush=True)
    return not reason


def imported(library: str) -> dict[str, Callable[[], Any]]:
    """Imports what a program that uses the library imports."""
    from states import STATES

    for module in STATES[library].modules:
        importlib.import_module(module)
    return STATES[library].states


def save(library: str, folder: Path) -> None:
    """Makes and saves all states of a library."""
    states = imported(library)
    import treepack

    def saved(tree: Any, path: Path) -> str | None:
        treepack.save(path, tree)
        return None if treepack.verify(path).ok else str(treepack.verify(path))

    for name, make in states.items():
        made: list[Any] = []
        if tell(name, "make", lambda made=made, make=make: made.append(make())):
            path = folder / f"{name}.treepack"
            tell(name, "save", lambda made=made, path=path: saved(made[0], path))


def load(library: str, folder: Path) -> None:
    """Loads all states of a library."""
    states = imported(library)
    import treepack

    for name, make in states.items():
        path = folder / f"{name}.treepack"
        if not path.exists():
            continue
        alone: list[Any] = []
        tell(name, "alone", lambda a=alone, path=path: a.append(treepack.load(path)))
        tree = make()
        if alone:
            tell(name, "alone", lambda a=alone, t=tree: differences(a[0], t))

        def sharded(tree: Any = tree, folder: Path = folder / name) -> str:
            treepack.save(folder, tree, sharded=True)
            return differences(treepack.load(folder, emptied(tree)), tree)

        def whole(column: str, attempt: Callable[..., str], name: str = name) -> None:
            tell(name, column, attempt)

        template = emptied(tree)
        whole("bytes", lambda t=tree: differences(treepack.loads(treepack.dumps(t)), t))
        whole("template", lambda t=tree, p=path, e=template: differences(treepack.load(p, e), t))
        whole(
            "abstract",
            lambda t=tree, p=path, m=make: differences(treepack.load(p, abstract(m)), t),
        )
        whole("sharded", sharded)
        whole("flax", lambda t=tree, p=path: read_by_flax(p.read_bytes(), t))


# In the process that starts them


def attempts(library: str, folder: Path) -> dict[str, dict[str, str]]:
    """Runs the processes of a library: the reason of each state and column, empty if it passed."""
    found: dict[str, dict[str, str]] = {}
    for verb in ("save", "load"):
        if verb == "load" and not any(folder.glob("*.treepack")):
            break
        command = [sys.executable, "-W", "ignore", __file__, library, "--only", verb]
        with (folder / "output").open("w+") as output:
            try:
                code = subprocess.run(
                    [*command, "--folder", str(folder)],
                    stdout=subprocess.PIPE, stderr=output, stdin=subprocess.DEVNULL, text=True,
                    timeout=HANG_S, check=False,
                )  # fmt: skip
                lines, status = code.stdout, code.returncode
            except subprocess.TimeoutExpired as expired:
                lines, status = str(expired.stdout or ""), -1
            output.seek(0)
            errors = [line for line in output.read().splitlines() if line.strip()]
        for line in lines.splitlines():
            if line.startswith('["'):
                state, column, reason = json.loads(line)
                found.setdefault(state, {})[column] = reason
        if status:
            last = errors[-1] if errors else ""
            found.setdefault(PROCESS, {})[verb] = f"ended with {status}: {last}"
    return found


def version(library: str) -> str:
    """The version of the library's distribution."""
    from states import STATES

    module = STATES[library].modules[0].split(".")[0]
    names = importlib.metadata.packages_distributions().get(module, [])
    return importlib.metadata.version(names[0]) if names else ""


def short(reason: str) -> str:
    """A reason that fits into a cell of a table."""
    for part, words in EXPECTED.items():
        if part in reason:
            return words
    reason = re.sub(r" \(/[^)]*\)", "", reason)  # where a library lies here
    reason = re.sub(r"^\w+(\.\w+)*: ", "", reason).replace("|", "\\|").replace("<", "&lt;")
    return reason if len(reason) < 120 else reason[:117] + "…"


# Reasons that docs/types.md explains, by a part of the message.
UNTRACED = "`jax.eval_shape` cannot trace the function that makes the state"
EXPECTED = {
    "static data were not saved": "needs its code",
    "unregistered type 'states.": "needs a registration",
    "unregistered type": "needs a template",
    "ArrayImpl instead of": "`jax.eval_shape` returns arrays in place of Python numbers",
    "other structure: ": "the template has new functions, which are not equal",
    "Abstract tracer value": UNTRACED,
    "boolean conversion of traced": UNTRACED,
    "JitTracer": UNTRACED,
}

GROUPS = {
    "save": ["make", "save"],
    "load without a template": ["alone", "bytes"],
    "load with a template": ["template", "abstract", "sharded"],
    "read by flax": ["flax"],
}
PROCESS = "(the process)"


def failures(found: dict[str, dict[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Returns the states of a library that fail, by group and reason."""
    failed: dict[tuple[str, str], list[str]] = {}
    for state, results in found.items():
        for column, reason in results.items():
            group = next((name for name, columns in GROUPS.items() if column in columns), "")
            if state == PROCESS:
                group = "start" if len(found) == 1 else f"{column} the other states"
            if reason:
                states = failed.setdefault((group, short(reason)), [])
                states += [] if state in states or state == PROCESS else [state]
    return failed


def table(results: dict[str, dict[str, dict[str, str]]]) -> str:
    """Returns the table for the documentation."""
    failed: dict[tuple[str, str], list[str]] = {}
    for library, found in results.items():
        for key, states in failures(found).items():
            failed.setdefault(key, []).append(" ".join([library, *(f"`{it}`" for it in states)]))
    order = ["start", *GROUPS]
    rows = sorted(
        failed.items(), key=lambda row: order.index(row[0][0]) if row[0][0] in order else 9
    )
    tried = ", ".join(f"{library} {version(library)}" for library in results)
    lines = [
        f"Tried with jax {importlib.metadata.version('jax')} by `tests/libraries/table.py`:",
        "",
        "```text",
        *textwrap.wrap(tried, 100, break_on_hyphens=False),
        "```",
        "",
        "Everything worked, except:",
        "",
        "| fails to | reason | states |",
        "|---|---|---|",
    ]
    lines += [f"| {group} | {why} | {', '.join(names)} |" for (group, why), names in rows]
    return "\n".join(lines)


def main() -> None:
    """Tries all libraries, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", help="names; all by default")
    parser.add_argument("--write", action="store_true", help="write the table into docs/types.md")
    parser.add_argument("--json", type=Path, help="write all results to a file")
    parser.add_argument("--only", choices=["save", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        warnings.simplefilter("ignore")
        {"save": save, "load": load}[options.only](options.libraries[0], options.folder)
        return
    from states import STATES

    results = {}
    for library in options.libraries or STATES:
        with tempfile.TemporaryDirectory() as folder:
            results[library] = attempts(library, Path(folder))
        for state, found in results[library].items():
            failed = [f"{column}: {why}" for column, why in found.items() if why]
            print(f"{library} / {state}: {' | '.join(failed) or 'ok'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.write:
        text = PAGE.read_text()
        before, _, rest = text.partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
