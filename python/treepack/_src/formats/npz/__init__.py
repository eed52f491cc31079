from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import treepack._core as core
from treepack._src.formats import SEPARATOR, Format, Leaves, Write
from treepack._src.formats.named import named, nested
from treepack._src.formats.npz.archive import is_archive, read_npz
from treepack._src.formats.npz.reading import NpzReader
from treepack._src.formats.numpy_arrays import check_dtype, write_array
from treepack._src.options import Export, Progress, Writing
from treepack._src.printable import printable
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.fetch import fetching_arrays
from treepack.errors import TreepackError

_MAX_NAME = (1 << 16) - 1 - len(".npy")


class Npz(Format):
    name = "npz"
    library = "NumPy"
    title = "an npz archive of NumPy"
    suffixes = (".npz",)
    separators = SEPARATOR, "/"

    def recognizes(self, content: core.Content) -> bool:
        form = core.convertible(content)
        return form == self.name or (form in (None, "stream") and is_archive(content))

    def open(self, source: Openable, opened: Opened, **options: Any) -> NpzReader:
        return NpzReader(source, opened, **options)

    def write(
        self,
        path: Address,
        leaves: Leaves,
        metadata: Mapping[str, str] | None,
        writing: Writing,
        export: Export,
        **_: Any,
    ) -> Write:
        import zipfile  # takes milliseconds of the start of every program

        arrays = named(leaves, export.separator)

        def write(_: Progress) -> None:
            with (
                path.replacing() as file,
                zipfile.ZipFile(file, "w", allowZip64=True) as archive,
                fetching_arrays(arrays.values()),
            ):
                for name, array in arrays.items():
                    if "\0" in name or len(name.encode()) > _MAX_NAME:
                        raise TreepackError(
                            f"at {printable(name[:100])}: invalid name: npz allows no NUL and at "
                            f"most {_MAX_NAME} bytes"
                        )
                    check_dtype(array, name, self.name)
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        write_array(member, array)

        return write

    def tree_of(self, content: core.Content, separator: str, max_size: int | None) -> Any:
        return nested(read_npz(Opened(content), max_size), separator), None


FORMAT = Npz()
