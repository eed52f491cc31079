from __future__ import annotations

import io
import mmap
import os
import pathlib
from typing import Any, ClassVar

import treepack._core as core
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, Tree
from treepack._src.options import Saved, Static, Writing
from treepack._src.printable import short_repr, warn
from treepack._src.pytree.handlers import overridden
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.reader import LazyArray
from treepack._src.registry.code import is_code
from treepack._src.registry.definitions import plain_parts
from treepack._src.registry.nodes import Recorder
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened, is_source
from treepack._src.storage.naming import naming

Base = core.Layout | core.Content | core.Catalog
"""Encoded data that a patch refers to."""


def base_of(
    base: Any,
    static: Static = "skip",
    max_size: int | None = None,
    *,
    salvage: bool = False,
) -> Base | None:
    """Returns the data of a `base=`: of a tree, encoded bytes, a path or an open file.

    `static` is for a tree. Raises a TreepackError for other files, a TypeError for a file object, a
    part of an open file, several paths, or one leaf except an array.
    """
    if base is None:
        return None
    base = Address.or_data(base)
    if isinstance(base, list) and base and all(isinstance(frame, _FRAMES) for frame in base):
        base = b"".join(base)
    if isinstance(base, (bytes, bytearray, memoryview, mmap.mmap, Address)):
        return Opened.base(base, max_size, salvage=salvage)
    if isinstance(base, File):
        reader = base._at().reader
        with naming(reader.given):
            if reader.is_patch:
                raise Opened.not_a_base("a patch itself")
            if reader.is_mapped:
                raise Opened.not_a_base("an open file with a mapping")
            if reader.format is not None:
                raise Opened.not_a_base(f"a checkpoint of {reader.format}")
        return reader.fetched()
    if isinstance(base, Base):
        return base
    if is_source(base) and kind_of(base) is None:
        raise TypeError("the base is a file object: pass treepack.open(file), or its bytes")
    _check_is_tree(base)
    return Encoding(align=1).tree(base, static=static)


_FRAMES = (bytes, bytearray, memoryview)


def _check_is_tree(base: Any) -> None:
    kind = type(base)
    values = base.values() if kind is dict else base if kind in (list, tuple) else ()
    if isinstance(base, (LazyArray, Tree)):
        found = f"{kind.__name__}, a part of an open file: pass the File, or load the part"
    elif values and all(isinstance(value, (str, os.PathLike, Tree)) for value in values):
        found = (
            f"a {kind.__name__} of paths, files or texts: pass one file, or treepack.dumps(tree) "
            "if it is a tree of texts"
        )
    elif kind_of(base) is None and not (hasattr(base, "shape") and hasattr(base, "dtype")):
        found = f"{short_repr(base)}: pass the tree, or the file, that the receiver has"
    else:
        return
    raise TypeError(
        f"base= takes a tree, its bytes from dumps or buffers, a path or an open File, got {found}"
    )


def _encoded(metadata: Any) -> bytes:
    try:
        return core.encode_value(metadata)
    except TypeError:
        return core.encode_value(_plain(metadata, "metadata"))


def _plain(value: Any, path: str) -> Any:
    try:
        core.encode_value(value)
    except TypeError as error:
        reason = error
    else:
        return value
    if type(value) in (list, tuple, dict):
        names = value if type(value) is dict else range(len(value))
        parts = [_plain(value[name], _paths.join(path, str(name))) for name in names]
        if any(part is not value[name] for name, part in zip(names, parts, strict=True)):
            return dict(zip(names, parts, strict=True)) if names is value else type(value)(parts)
    elif (plain := plain_parts(value)) is not None:
        return _plain(plain, path)
    raise TypeError(f"at {path}: {reason}") from reason.__cause__


def _is_nothing(leaf: Any) -> bool:
    return leaf is None or is_code(leaf)


class Encoding(dict[str, Any]):
    """The options with which trees are laid out; see `_core.walk`.

    Attributes:
      chunks: `treepack.serialization`, where programs change `MAX_CHUNK_SIZE`.
    """

    __slots__ = ()

    chunks: ClassVar[Any]

    @staticmethod
    def check(tree: Any) -> None:
        """Refuses encoded trees and files."""
        if isinstance(tree, bytes) and tree.endswith(core.RECORD_MARK):
            raise TypeError("the tree is the result of dumps(tree): pass the tree itself")
        is_path = isinstance(tree, pathlib.PurePath)
        if isinstance(tree, str) and tree.endswith(formats.readable_suffixes()):  # others are texts
            is_path = os.path.exists(tree)  # noqa: PTH110
        if is_path or isinstance(tree, io.IOBase):
            raise TypeError(
                f"the tree is {'the path of a file' if is_path else 'a file object'}: pass "
                "treepack.load(path); treepack.save copies treepack.open(path)"
            )

    def plain(self, tree: Any) -> core.Layout:
        chunk = self.chunks.MAX_CHUNK_SIZE
        return core.walk(tree, state_dict=False, max_chunk_size=chunk, **self)

    def tree(self, tree: Any, metadata: Any = None, static: Static = "skip-code") -> core.Layout:
        """Lays out a tree with a record of its structure.

        Only files can have `checksums`, and an `index`, which finds leaves without a scan.
        """
        left_out = Recorder(static)
        layout = core.walk(
            tree,
            state_dict=True,
            structure=True,
            left_out=left_out,
            metadata=None if metadata is None else _encoded(metadata),
            max_chunk_size=self.chunks.MAX_CHUNK_SIZE,
            **self,
        )
        if left_out.has_code and all(_is_nothing(leaf) for _, leaf in leaves_of(tree, ())):
            warn(
                "the tree has no data: all its leaves are code, which is left out. To save a "
                "model, save its variables"
            )
        return layout

    @classmethod
    def patched(
        cls, tree: Any, static: Static, base: core.Content | None
    ) -> tuple[core.Content, core.Content]:
        cls.check(tree)
        layout = cls(align=64, index=True, base=base).tree(tree, static=static)
        patch = core.Content.lent(layout.to_bytes(threads=None))
        if base is None:
            return patch, patch
        return patch, core.join(patch, base, max_size=None, threads=None)[0]

    @classmethod
    def file(cls, tree: Any, saved: Saved, writing: Writing, **options: Any) -> core.Layout:
        """`digests` are of the written bytes or, if these are compressed, of the memory now."""
        # The blocks of a compressed file have their own; of a damaged patch, only these tell which
        # leaves are intact.
        is_summed = not writing.compress or saved.base is not None
        if saved.base is not None:
            options["base"] = base_of(saved.base, saved.static)
        encoding = cls(
            align=writing.align, index=True, checksums=is_summed, threads=writing.threads, **options
        )
        return encoding.tree(tree, saved.metadata, saved.static)


def state_layout(target: Any, **options: Any) -> core.Layout:
    """Lays out the state of a tree, in flax's form, with the options of `_core.walk`.

    Not a method of `Encoding`: an object takes a tenth of the time of a small message.
    """
    return core.walk(
        target,
        state_dict=True,
        max_chunk_size=Encoding.chunks.MAX_CHUNK_SIZE,
        overridden=overridden(),
        **options,
    )
