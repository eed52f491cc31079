"""Trees that describe themselves: saved with their structure, loaded without a template.

What `save` and `load`, `dumps` and `loads`, `save_exported` and `load_exported` have in common.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from treepack import _core, _holes, serialization
from treepack._content import save_layout
from treepack._options import Progress, Strict
from treepack._placement import Arrays, Leaves, converter
from treepack._restore import restore_encoded, split
from treepack.errors import DecodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Unknown = Literal["error", "dict"]
"""What becomes of nodes of types that are not registered: an error, or dicts of their children."""


def described_layout(
    tree: Any,
    align: int,
    metadata: Any = None,
    *,
    holes: bool = False,
    index: bool = False,
    checksums: bool = False,
    snapshot: bool = False,
    hollow: bool = False,
) -> _core.Layout:
    """Returns a tree with its structure, ready to be written.

    With `index` it is found without reading all headers, and with `checksums` damage is found
    in it; only files can have those. With `snapshot` it stays what it is whatever becomes of the
    tree, and with `hollow` it has only the places of arrays; see `_core.walk`.
    """
    with _holes.allowing(holes):
        return _core.walk(
            tree,
            state_dict=True,
            sort_keys=False,
            align=align,
            max_chunk_size=serialization.MAX_CHUNK_SIZE,
            overridden=[],
            structure=True,
            metadata=None if metadata is None else _core.encode_value(metadata),
            index=index,
            checksums=checksums,
            snapshot=snapshot,
            hollow=hollow,
        )


class Writing(NamedTuple):
    """How files are written; see `save`."""

    compress: bool
    level: int | None
    align: int
    durable: bool
    threads: int | None

    def layout(
        self, tree: Any, metadata: Any, *, holes: bool = False, snapshot: bool = False
    ) -> _core.Layout:
        """Returns a tree that is ready to be written to a file."""
        return described_layout(
            tree,
            self.align,
            metadata,
            holes=holes,
            index=True,
            checksums=not self.compress,
            snapshot=snapshot,
        )

    def save(
        self, layout: _core.Layout, path: str | os.PathLike[str], progress: Progress = None
    ) -> None:
        """Writes it to a file, which is replaced whole or not at all."""
        save_layout(
            layout,
            path,
            compress=self.compress,
            level=self.level,
            durable=self.durable,
            threads=self.threads,
            progress=progress,
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """How trees are read; see `load`."""

    strict: Strict = True
    cast: bool = False
    arrays: Arrays = "saved"
    device: Any = None
    sharding: Any = None
    copy: bool | None = None
    unknown: Unknown = "error"
    static: Any = None
    threads: int | None = None
    progress: Progress = None

    def check(self, target: Any) -> None:
        """Raises if something is asked for that cannot be."""
        check_unknown(self.unknown)
        if self.cast and target is None:
            raise ValueError("cast=True is for a target, whose dtypes are taken")
        if self.static is not None and target is not None:
            raise ValueError("static= fills what a file lacks; a target has its own static data")

    def converter(
        self, *, may_change: bool, copy: bool | None = None
    ) -> Callable[[Leaves], list[Any]] | None:
        """Returns what makes of leaves what is asked for; see `converter`."""
        return converter(
            self.arrays,
            self.device,
            self.sharding,
            cast=self.cast,
            threads=self.threads,
            # jax takes memory as its own where it can, and expects it not to change.
            may_change=may_change and self.copy is not True,
            copy=copy,
        )


def restore_described(data: Buffer | _core.Content, target: Any, how: Reading) -> Any:
    """Returns a tree as `load` does, from what is in its file."""
    how.check(target)
    convert = how.converter(may_change=not isinstance(data, (bytes, _core.Content)))
    if target is not None:
        return restore_encoded(
            target,
            data,
            how.strict,
            copy=how.copy,
            threads=how.threads,
            cast=how.cast,
            convert=convert,
            in_words=False,
        )
    state = _core.restore(data, how.copy, how.threads)
    return assembled(state, convert=convert, unknown=how.unknown, static=how.static)


def assembled(
    state: Any, *, convert: Any = None, unknown: Unknown, static: Any, placeholders: bool = False
) -> Any:
    """Returns the tree that a state with the record of its structure was made of.

    With `placeholders` its leaves are none that the code of types could work with.
    """
    state, trailer = _split(state)
    return _core.assemble(
        state,
        present(trailer),
        convert=convert,
        unknown_as_dict=unknown == "dict",
        placeholders=placeholders,
        static=static,
    )


def _split(state: Any) -> tuple[Any, bytes | None]:
    """Returns the state of a tree and the record of its structure, if there is one."""
    state, trailer = split(state)
    if trailer is not None and type(trailer) is not bytes:
        raise DecodeError(f"{_core.TRAILER_KEY!r} is a {type(trailer).__name__}, not bytes")
    return state, trailer


def present(trailer: bytes | None) -> bytes:
    """Returns the record of a structure, which has to be there."""
    if trailer is None:
        raise DecodeError(
            "the structure of the tree was not saved, as by flax or treepack.serialization. Give "
            "a target, or call serialization.msgpack_restore or load_from_file(None, ...) for "
            "plain dicts"
        )
    return trailer


def check_unknown(unknown: str) -> None:
    """Raises unless it is one of the options."""
    if unknown not in ("error", "dict"):
        raise ValueError(f"unknown must be 'error' or 'dict', got {unknown!r}")
