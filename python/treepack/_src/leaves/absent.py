from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar


# A placeholder for the parts of a state that are not loaded.
class _Absent:
    def __init__(self) -> None:
        # Whether this represents fields that neither the file nor `upgrade=` has, not defaults.
        self._is_default = ContextVar("is_default", default=False)

    @property
    def is_default(self) -> bool:
        return self._is_default.get()

    @contextlib.contextmanager
    def as_default(self, applies: bool) -> Iterator[None]:
        token = self._is_default.set(applies)
        try:
            yield
        finally:
            self._is_default.reset(token)

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
