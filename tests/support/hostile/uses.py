"""What is done with a file, beside what all files are read by."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import jax
import numpy as np
import typer.main

import treepack
from hostile.cases import Case
from hostile.values import Guarded, Touched, touched
from treepack import __main__, _cli, checkpoints, serialization

Work = Callable[[Case, str, str], Any]
"""A use of a case, the path of its file, and the folder for what is written."""

_MEMORY = fsspec.filesystem("memory")


def make_commands() -> None:
    """Makes the commands of the command line once, in a process that does nothing else.

    Typer makes them anew for each run, which takes longer than most of them.
    """
    _cli.app = typer.main.get_command(_cli.app)  # type: ignore[assignment]


def _limited(function: Any, **options: Any) -> Work:
    """Calls a verb with the path of the file."""
    return lambda case, path, _: function(path, max_size=case.max_size, **options)


def _into(**options: Any) -> Work:
    """Loads into the tree that the file was."""
    return lambda case, path, _: treepack.load(
        path, case.template, max_size=case.max_size, **options
    )


def _selected(case: Case, path: str, _: str) -> Any:
    chosen = case.paths[case.seed % len(case.paths)]
    part = treepack.load(path, select=chosen, max_size=case.max_size, unknown="dict")
    with treepack.open(path, max_size=case.max_size, unknown="dict") as file:
        file[chosen] if chosen != "." else file.load(unknown="dict")
    return part


def _renamed(case: Case, path: str, _: str) -> Any:
    old = case.paths[0]
    return treepack.load(path, {"v": np.ones(3)}, mapping={"v": old}, max_size=case.max_size)


def look(case: Case, path: str, _: str, *, salvage: bool = False, source: Any = None) -> None:
    """Asks everything of an open file."""
    options: dict[str, Any] = {"max_size": case.max_size, "unknown": "dict", "salvage": salvage}
    with treepack.open(path if source is None else source, **options) as file:
        _ = repr(file), file._repr_html_(), file.damage, file.metadata, file.nbytes, len(file)
        for name in [*case.paths, *list(file)[:5]]:
            with contextlib.suppress(treepack.MissingPathError, treepack.TreepackError):
                found = file[name]
                if isinstance(found, treepack.LazyArray):
                    look_at(found)
        for number, (_, leaf) in enumerate(file.leaves()):
            if isinstance(leaf, treepack.LazyArray) and number < 20:
                look_at(leaf)
        file.abstract(unknown="dict")


def look_at(array: Any) -> None:
    """Reads an array in parts: they are those of the whole."""
    _ = array.shape, array.dtype, array.nbytes, repr(array)
    try:
        whole = np.asarray(array)
    except treepack.TreepackError:
        whole = None
    indices: list[Any] = [..., (Ellipsis, None)]
    if array.ndim:
        indices += [slice(0, 3), slice(None, None, -7), (slice(1, -1), ...), [0, 0][: array.size]]
    for index in indices:
        with contextlib.suppress(treepack.TreepackError):
            part = array[index]
            if whole is not None and part.tobytes() != whole[index].tobytes():
                raise AssertionError(f"[{index}] is not that of the whole array")
    with contextlib.suppress(treepack.TreepackError):
        array.flat_range(0, min(array.size, 5))


def _copied(case: Case, path: str, folder: str) -> None:
    with treepack.open(path, max_size=case.max_size) as file:
        treepack.save(f"{folder}/copied", file.leaves(), durable=False)
    if not treepack.verify(f"{folder}/copied").ok:
        raise AssertionError("what save has written is damaged")


def _remote(verb: Any, **options: Any) -> Work:
    """Calls a verb with a URL."""

    def use(case: Case, _: str, __: str) -> Any:
        files = case.data if isinstance(case.data, dict) else {"": case.data}
        try:
            for name, data in files.items():
                _MEMORY.pipe_file(f"/hostile/file/{name}".rstrip("/"), data)
            if isinstance(case.base, bytes):
                _MEMORY.pipe_file("/hostile/base", case.base)
            return verb("memory://hostile/file", **options)
        finally:
            _MEMORY.rm("/hostile", recursive=True)

    return use


def _stream(case: Case, path: str, _: str) -> Any:
    found = list(treepack.read_stream(path, max_size=case.max_size))
    return [np.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf for _, leaf in found]


def _streamed(case: Case, path: str, folder: str) -> Any:
    leaves = treepack.read_stream(path, max_size=case.max_size)
    treepack.save(f"{folder}/streamed", leaves, durable=False)


def _dropin(case: Case, _: str, __: str) -> Any:
    data = case.data
    if data[:2] in (b"\x1f\x8b", b"\xc1t"):
        return serialization.from_compressed_bytes(None, data, max_size=case.max_size)
    return serialization.from_bytes(None, data)


def _dropin_into(case: Case, path: str, _: str) -> Any:
    return serialization.load_from_file(case.template, path, max_size=case.max_size)


def _series(case: Case, path: str, _: str) -> Any:
    return checkpoints.restore_checkpoint(path, None)


def _placed(case: Case, path: str, _: str) -> Any:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return treepack.load(path, sharding=device, unknown="dict", max_size=case.max_size)


def command(*args: str) -> tuple[int, str, str]:
    """Runs the command line in this process; returns its status and what it prints."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["treepack", *args]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            __main__.main()
        status: Any = None
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = argv
    errors = err.getvalue()
    # Damage is 1, for commands that look for it without an error.
    needs_report = status == 2 or (status == 1 and args[0] not in ("diff", "salvage"))
    is_reported = not needs_report or errors.startswith("treepack: ") or args[0] == "verify"
    if status not in (0, 1, 2, None) or "Traceback" in errors or not is_reported:
        raise AssertionError(f"treepack {' '.join(args)} ends with {status}: {errors}")
    if any(ord(char) < 32 and char not in "\n\t" for char in out.getvalue() + errors):
        raise AssertionError(f"treepack {' '.join(args)} prints control characters")
    return int(status or 0), out.getvalue(), errors


def _cli_verify(case: Case, path: str, _: str) -> None:
    status, *outputs = command("verify", "--max-size", str(case.max_size), path)
    expected = 2
    with contextlib.suppress(treepack.TreepackError, OSError):
        found = treepack.verify(path, max_size=case.max_size)
        is_damaged = found.damage is not None or bool(found.corrupt)
        expected = 0 if found.ok else 1 if is_damaged and not found.newer else 2
    if status != expected:
        raise AssertionError(f"treepack verify ends with {status}, not {expected}: {outputs}")


def _prints(*args: str) -> Work:
    """Runs a command that prints; paths of a case are at `{path}`."""

    def use(case: Case, path: str, _: str) -> None:
        chosen = case.paths[case.seed % len(case.paths)]
        command(args[0], *[it.format(file=path, path=chosen) for it in args[1:]])

    return use


def _writes(name: str, suffix: str, *args: str) -> Work:
    """Runs a command that writes a file: whole, or not at all."""

    def use(case: Case, path: str, folder: str) -> None:
        chosen = [case.paths[case.seed % len(case.paths)]] if name == "get" else []
        target = Path(folder, f"{name}{suffix}")
        status, *outputs = command(name, path, *chosen, str(target), *args)
        nothing_left = status == 1 and (name != "salvage" or "no leaf is intact" in outputs[0])
        if (status == 2 or nothing_left) == target.exists():
            is_there = target.exists()
            raise AssertionError(f"{name} ends with {status}, file: {is_there}; {outputs}")
        if not target.exists() or suffix != ".treepack" or treepack.verify(target).ok:
            return
        # A whole file keeps its record, right or wrong.
        if name == "salvage" or treepack.verify(path, max_size=case.max_size).ok:
            raise AssertionError(f"{name} has written a damaged file")

    return use


def _given(load: Callable[..., Any], kinds: int = 4) -> Work:
    """Loads with objects of the program, which the file must not use."""

    def use(case: Case, _: str, __: str) -> None:
        mine, held = Guarded(1, Touched()), Touched()
        trees: list[Any] = [
            {"a": mine},
            mine,
            {"a/backend": sys, "a": held},
            {"a/0": held, "": held},
        ]
        touched.clear()
        try:
            load(case, static=trees[case.seed % kinds])
        finally:
            if touched:
                raise AssertionError(f"the file has touched {touched[:3]}")

    return use


# What is done with each file and, where there are any, with directories.
USES: dict[str, Work] = {
    "load": _limited(treepack.load),
    "load, copied": _limited(treepack.load, copy=True, mmap=False),
    "load, numpy, verified": _limited(treepack.load, arrays="numpy", verify=True),
    "load into": _into(),
    "load into, exact": _into(strict="exact"),
    "load into, not strict": _into(strict=False, cast=True),
    "load into, unexpected": _into(unexpected="error", missing="target"),
    "load into, skipping": _into(on_corrupt="skip", missing="target", return_report=True),
    "load, selected": _selected,
    "load, pattern": _limited(treepack.load, select="**/w"),
    "load, function": _limited(treepack.load, select=lambda path: path.endswith("w")),
    "load, renamed": _renamed,
    "load, dtype": _limited(treepack.load, dtype="float16"),
    "load, sharding": _placed,
    "load, small": lambda case, path, _: treepack.load(path, unknown="dict", max_size=300),
    "abstract": _limited(treepack.abstract),
    "abstract, dict": _limited(treepack.abstract, unknown="dict"),
    "read_metadata": _limited(treepack.read_metadata),
    "is_checkpoint": lambda _, path, __: treepack.is_checkpoint(path),
    "open": look,
    "open, salvage": functools.partial(look, salvage=True),
    "save leaves": _copied,
    "restore_checkpoint": _series,
    "memory: load": _remote(treepack.load, max_size=1 << 20),
    "memory: select": _remote(treepack.load, select="**/w", max_size=1 << 20),
    "memory: verify": _remote(treepack.verify, max_size=1 << 20),
    "memory: metadata": _remote(treepack.read_metadata, max_size=1 << 20),
    "memory: abstract": _remote(treepack.abstract, max_size=1 << 20),
    "cli verify": _cli_verify,
    "cli ls": _prints("ls", "{file}"),
    "cli ls --flat": _prints("ls", "--flat", "{file}"),
    "cli ls --json": _prints("ls", "--json", "{file}"),
    "cli show": _prints("show", "{file}", "{path}"),
    "cli diff": _prints("diff", "{file}", "{file}"),
    "cli get": _writes("get", ".treepack"),
    "cli salvage": _writes("salvage", ".treepack"),
    "cli convert": _writes("convert", ".treepack"),
    "cli convert, npz": _writes("convert", ".npz"),
    "cli convert, safetensors": _writes("convert", ".safetensors"),
    "cli convert, flax": _writes("convert", ".msgpack.gz"),
}

# And with files alone.
FILES: dict[str, Work] = {
    "open, file object": lambda case, path, folder: look(
        case, path, folder, source=io.BytesIO(case.data)  # type: ignore[arg-type]
    ),
    "read_stream": _stream,
    "save(read_stream)": _streamed,
    "msgpack_restore": lambda case, *_: serialization.msgpack_restore(case.data),
    "msgpack_restore, copied": lambda case, *_: serialization.msgpack_restore(
        case.data, copy=True
    ),
    "from_bytes": _dropin,
    "load_from_file": _dropin_into,
    "decompress_bytes": lambda case, *_: serialization.decompress_bytes(
        case.data, max_size=case.max_size
    ),
    "loads into": lambda case, *_: treepack.loads(
        case.data, case.template, max_size=case.max_size
    ),
    "loads, static": _given(lambda case, **given: treepack.loads(
        case.data, max_size=case.max_size, **given
    )),
    "abstract, static": _given(lambda case, **given: treepack.abstract(
        case.data, max_size=case.max_size, **given
    )),
    "open, static": _given(lambda case, **given: treepack.open(
        case.data, max_size=case.max_size
    ).load(arrays="numpy", **given)),
    "loads into, guarded": _given(lambda case, static: treepack.loads(
        case.data, static, strict=False, max_size=case.max_size
    ), 2),
}  # fmt: skip
