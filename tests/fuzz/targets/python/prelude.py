"""What programs of fuzz targets begin with: the core that is built in, and what they share."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

signal.signal(signal.SIGINT, signal.SIG_DFL)
spec = importlib.machinery.ModuleSpec("treepack._core", importlib.machinery.BuiltinImporter)
core = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
importlib.machinery.BuiltinImporter.exec_module(core)

import numpy as np  # noqa: E402

import treepack  # noqa: E402

ADDRESS = re.compile(" at 0x[0-9a-f]+")
ERRORS = (treepack.TreepackError, MemoryError)


def outcome(read: Callable[[], Any], errors: tuple[type[BaseException], ...] = ERRORS) -> Any:
    """Returns what a call returns, or its error if that is one of these."""
    try:
        return read()
    except errors as error:
        return type(error), str(error)


def text(value: Any) -> str:
    """Returns all of a value in words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes()!r}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return type(value).__name__ + "(" + ",".join(map(text, value)) + ")"
    if isinstance(value, memoryview):
        return f"memoryview{bytes(value)!r}"
    return ADDRESS.sub("", f"{type(value)}{value!r}")


def is_error(value: Any) -> bool:
    """Returns whether an outcome is an error."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], type)


def counting(check: Callable[[bytes], None], counters: memoryview) -> Callable[[bytes], None]:
    """Makes lines of the package count while `check` runs, so that inputs that reach more stay."""
    places: dict[Any, int] = {}

    def called(frame: Any, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        place = places.get(code)
        if place is None:
            name = code.co_filename.rpartition("/treepack/")
            place = zlib.crc32(name[2].encode()) if name[1] else -1
            places[code] = place
        if place < 0:
            return None

        def line(frame: Any, _event: str, _arg: Any) -> Any:
            at = place + frame.f_lineno * 97 & 0xFFFF
            counters[at] = min(counters[at] + 1, 255)
            return line

        return line

    def counted(data: bytes) -> None:
        threading.settrace(called)
        sys.settrace(called)
        try:
            check(data)
        finally:
            sys.settrace(None)

    return counted
