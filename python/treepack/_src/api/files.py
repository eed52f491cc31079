from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Unpack, overload

from treepack._src import formats
from treepack._src.api import digest as _digest
from treepack._src.api.streams import spooled
from treepack._src.checkpoint.file import File, Tree
from treepack._src.checkpoint.load import load_file
from treepack._src.checkpoint.select import chosen
from treepack._src.formats import SEPARATOR, Format, Leaves, Write
from treepack._src.formats.exchange import Alone, exchange_folder_of, exchange_of
from treepack._src.formats.named import named, nested
from treepack._src.layouts.copying import Copy
from treepack._src.layouts.layout import Encoding, base_of, state_layout
from treepack._src.layouts.mapped import mapped_leaves
from treepack._src.options import (
    Export,
    LoadOptions,
    Opening,
    Reading,
    Saved,
    SaveOptions,
    Selection,
    Sharing,
    Template,
    Writing,
    check,
    check_iterator,
    check_plain,
    takes,
)
from treepack._src.readers.reader import Reader
from treepack._src.registry.nodes import Recorder
from treepack._src.restore.report import Report
from treepack._src.saving.background import OneByOne, Saving
from treepack._src.saving.sharded import is_distributed
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import Openable, is_source
from treepack.errors import TreepackError


@overload
def save(
    path: Location,
    tree: Any,
    *,
    background: Literal[False] = False,
    **options: Unpack[SaveOptions],
) -> None: ...


@overload
def save(
    path: Location,
    tree: Any,
    *,
    background: Literal[True],
    **options: Unpack[SaveOptions],
) -> Saving: ...


@takes(SaveOptions, compress=None)
def save(
    path: Location, tree: Any, *_more: Any, background: bool = False, **options: Unpack[SaveOptions]
) -> Saving | None:
    """Saves a tree to a file, atomically.

    `load` restores the tree without a template: containers, the order of keys, keys other than
    strings, registered types with their static data, and leaves. flax reads the file as well: it is
    msgpack with one more key, `__treepack__`, which flax ignores in dicts.

    Writes from the arrays to a temporary file in the same directory, then renames it: after any
    failure, the file is the old or the new one. Missing directories are created.

    The suffix `.msgpack` writes flax's own form, also for its targets that are not dicts: without
    structure, index, checksums and metadata, so `load` needs a template. The suffix `.safetensors`
    or `format="safetensors"` saves only the arrays; their names are paths with dots between keys.

    Args:
      path: The file (`~` is the home folder), a `UPath`, or a URL of a store (obstore or fsspec),
        where the object appears once it is complete. Suffixes of other formats and typos such as
        `.safetensor` are errors. A replaced file keeps its permissions; a new one follows the
        umask.
      tree: Any tree of dicts, lists, tuples, registered nodes and leaves. Or, for trees larger than
        memory, an iterator of pairs of a path and a leaf, which become nested dicts; their arrays
        are spooled to a temporary file beside `path`; not to `.msgpack`, and without `background=`,
        `sharded=` and `mapping=`. Or an open `File`, copied an array at a time with its types and
        metadata, or a `Tree` of one, which becomes dicts. Only these can become `.npz` and `.npy`,
        which get the arrays; a file without a known suffix gets an index and a record if the old
        one has. They take no `background=`, `sharded=`, `base=` or `metadata=`: save `file.load()`
        with these. Damage is an error; after `open(salvage=True)`, the intact leaves are copied.
        Keep open files open until `save` returns.
      background: Whether to write in a thread, and return a `Saving` as soon as the tree may
        change: NumPy arrays are copied, arrays on accelerators fetched, and immutable JAX arrays on
        CPU referenced. The next save to this path and the exit of the program wait for it.
      sharded: Whether `path` becomes a directory, to which each process of `jax.distributed` writes
        its shards (of safetensors, some files); all must call this with the same tree. `None` does
        so if no single process holds an array fully. See docs/sharded.md.
      step: A number, such as the training step, which processes that save together compare, so that
        none combines its shards with another step. Not stored.
      timeout: The seconds that these processes wait for each other.
      metadata: Any value of plain Python types or types registered with `register_auxdata`, for
        `read_metadata`. Unregistered dataclasses, namedtuples, enums, `argparse.Namespace`s and
        `ConfigDict`s become plain dicts and values. For safetensors a dict of strings, by default
        `{"format": "flax"}`.
      static: How to treat static data and leaves that cannot be stored. `"skip-code"` leaves out
        code (functions, optimizers, definitions of models), which a template or `load(static=...)`
        supplies again; other data, also of callables, are an error. `"skip"` leaves these out, too,
        except arrays, also of other libraries. `"error"` leaves out nothing.
      mapping: The layout of the file, as for `load`; each tensor is made when it is written. Keys
        of the file are divided at dots.
      select: The leaves to save, such as `"**/lora_*"`; see `load`. Not for an iterator. Containers
        that lose children become dicts. `load(path, target, missing="target")` takes the rest from
        a target.
      exclude: The leaves not to save, in the form of `select`.
      dtype: For an open file: the dtype to which its float arrays are cast.
      base: Data that readers have: a file of `save` (its path, URL or an open `File`), a tree or
        encoded bytes. Arrays of the same path, dtype and shape are written as differences; see
        docs/pipelines.md. `load` and `open` find a file in the same directory by its name; it must
        stay unchanged, and has no base itself. Not for sharded saves.
      format: `"safetensors"` saves to a directory as on Hugging Face: `model.safetensors`, or files
        `model-00001-of-00002.safetensors` and their index, which is replaced last; then earlier
        files are removed.
      max_shard_size: The maximum size of these files, in bytes or as `"500MB"` (powers of 1000); by
        default `"5GB"`. A larger array has its own file.
      separator: For safetensors, and npz of an open file: the text between keys in a name. `None`
        is a dot; for an open npz that is saved as npz, its text.
      compress: `True` compresses with gzip. `None` does so if the file name ends with `.gz`, except
        in sharded saves. `"numbers"` compresses the exponents of floats, smaller and faster for
        weights, but only for treepack.
      level: The gzip level from 0 (stored) to 9 (smallest). `None` chooses by the content.
      align: A power of two from 1 to 64: arrays of at least 1 KiB begin at its multiples in bytes.
        With 64, JAX on CPU can use the arrays of a mapped file in place.
      durable: Whether to wait until the file is on the disk (fsync), so that it survives a power
        failure.
      threads: The maximum number of threads that copy or compress. `None` uses the environment
        variable `TREEPACK_NUM_THREADS`, or else the number of cores.
      progress: A callable of the encoded bytes done and their total, or `True` for a tqdm bar. An
        exception in it cancels the save.
      storage_options: Options of obstore or fsspec for a URL, such as credentials and endpoints, in
        addition to a `UPath`'s; see docs/stores.md.

    Returns:
      With `background=True`, a `Saving`, whose `result()` waits until the file is written.

    Raises:
      UnserializableLeafError: With the path, if a leaf, a key or static data cannot be stored.
      ValueError: If a dict has two keys that are equal as strings, or a reserved key; if `select`
        or `mapping` matches nothing; if `path` has the suffix of another format; or if two arrays
        would have the same name in safetensors.
      TypeError: If metadata cannot be stored.
      TreepackError: If another process fails or saves a different tree, or another job is saving to
        the same directory.

    Examples:
      >>> import jax.numpy as jnp, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"layers": [(jnp.zeros(2), "relu")]}, metadata={"step": 3})
      >>> treepack.load(path)
      {'layers': [(Array([0., 0.], dtype=float32), 'relu')]}
    """
    if _more:
        raise TypeError("save() takes a path and a tree: name the rest, as in metadata={'step': 1}")
    check("background", background)
    saved, export = Saved.of(options), Export.of(options)
    progress = options.get("progress")
    place = Address.of(
        path,
        options.get("storage_options"),
        for_file="pass its path, or write the result of dumps(tree) to it",
    )
    saved.base = Address.further(saved.base, options.get("storage_options"))
    if isinstance(tree, (Tree, Copy)):
        _copy(place, tree, saved, export, options, background=background)
        return None
    if saved.dtype is not None:
        raise ValueError(
            "dtype= casts the arrays of an open file: those of a tree are cast before, as by "
            "jax.tree.map"
        )
    Encoding.check(tree)
    format = formats.to_save(place, export)
    if format is not None:
        format.check(place, export, options)
    whole = tree
    if isinstance(tree, Iterator):
        check_iterator(saved, background=background)
        saved.sharded = False
    else:
        tree = chosen(tree, saved.select, saved.exclude)
    if format is not None:
        return _saved(format, place, tree, whole, saved, export, options, background=background)
    compress = place.compression(options.get("compress"))
    if saved.sharded is None:
        saved.sharded = is_distributed(tree)
    is_plain = place.has_flax_suffix
    if is_plain:
        check_plain(saved, is_whole=not isinstance(tree, Iterator))
        Copy.check_for_flax(tree)
    if options.get("compress") is None:
        options["compress"] = not saved.sharded and compress
    writing = Writing.of(options)
    if saved.base is not None and saved.sharded:
        raise ValueError("base= is for trees that are saved to one file: leave it out")
    saves = OneByOne(place)
    saves.wait()
    with spooled(tree, place) as tree:
        exchange = Alone(tree)
        if saved.mapping is not None:
            folder = exchange_folder_of(place)
            exchange, tree = _mapped(
                folder, tree, whole, saved, writing.threads, snapshot=background
            )
        if saved.sharded:
            together = exchange.sharded(place, tree, saved, writing, snapshot=background)
            return saves.run(
                place,
                together,
                progress,
                background=background,
                claims=place,
                abandon=together.abandon,
            )
        name = _name_beside(saved.base, place)
        if is_plain:
            how: Any = {"left_out": Recorder(saved.static), "threads": writing.threads}
            layout = state_layout(tree, align=writing.align, snapshot=background, **how)
        else:
            layout = Encoding.file(tree, saved, writing, snapshot=background, base_name=name)
        # The program may change its working directory during the save.
        where = place.absolute() if background else place
        write = functools.partial(where.save, layout, writing)
        del layout  # so that the traceback of an error does not hold it
        return saves.run(place, write, progress, background=background)


def _saved(
    format: Format,
    place: Address,
    tree: Any,
    whole: Any,
    saved: Saved,
    export: Export,
    options: Any,
    *,
    background: bool,
) -> Saving | None:
    saves = OneByOne(place)
    saves.wait()
    threads, progress = options.get("threads"), options.get("progress")
    with spooled(tree, place) as tree:
        exchange, tree = _mapped(
            format.exchange_folder(place), tree, whole, saved, threads, snapshot=background
        )
        try:
            content = format.content_of(tree, saved)
            write = _export(
                format, place, *content, export, options, snapshot=background, exchange=exchange
            )
        except BaseException as error:
            exchange.abandon(error)
            raise
        return saves.run(place, write, progress, background=background, abandon=exchange.abandon)


def _mapped(
    folder: Address | None,
    tree: Any,
    whole: Any,
    saved: Saved,
    threads: int | None,
    *,
    snapshot: bool,
) -> tuple[Alone, Any]:
    exchange = exchange_of(folder, tree, saved, snapshot=snapshot, threads=threads)
    try:
        if saved.mapping is None:
            return exchange, exchange.tree
        leaves = mapped_leaves(exchange.tree, whole, saved.mapping, snapshot=snapshot)
        return exchange, _nested(leaves)
    except BaseException as error:
        exchange.abandon(error)
        raise


def _nested(leaves: Leaves) -> Any:
    leaves = [*leaves]
    if [parts for parts, _ in leaves] == [()]:
        return leaves[0][1]
    if any(not parts for parts, _ in leaves):
        raise TreepackError(
            "a rule gives the root . to a leaf, and the tree has other leaves: give it a key, or "
            "leave out the others with select="
        )
    remedy = "give one another path with mapping="
    return nested(named(leaves, SEPARATOR, remedy), SEPARATOR)


def _export(
    format: Format,
    place: Address,
    leaves: Leaves,
    metadata: Mapping[str, str] | None,
    export: Export,
    options: Any,
    **more: Any,
) -> Write:
    writing = Writing.of({**options, "compress": False})
    return format.write(place, leaves, metadata, writing, export, **more)


def _copy(
    place: Address,
    source: Tree | Copy,
    saved: Saved,
    export: Export,
    options: Any,
    *,
    background: bool,
) -> None:
    for name, given in (
        *(("background", background), ("sharded", saved.sharded)),
        *(("base", saved.base is not None), ("metadata", saved.metadata is not None)),
    ):
        if given:
            raise ValueError(
                f"{name}= does not apply to an open file: leave it out, or save file.load()"
            )
    progress = options.get("progress")
    format = formats.to_save(place, export, is_open=True)
    if format is not None:
        format.check(place, export, options)
    else:
        options["compress"] = place.compression(options.get("compress"))
    copy = source if isinstance(source, Copy) else Copy.of(source)
    with copy.reading():
        whole, copy = copy.tree, copy.chosen(saved.select, saved.exclude)
        copy.check(place)
        if saved.mapping is not None:
            tree = _nested(mapped_leaves(copy.tree, whole, saved.mapping, snapshot=False))
            copy = copy._replace(tree=tree, record=None)
        copy = copy.cast(saved.dtype)
        OneByOne(place).wait()
        if format is not None:
            if export.separator is None and copy.reader.separator in format.separators:
                export.separator = copy.reader.separator  # so that names stay as they are
            _export(format, place, *copy.exported(format), export, options)(progress)
            return
        writing = Writing.of(options)
        with copy.fetching(lays=True):
            layout = copy.layout(place, writing)
        with copy.fetching():
            place.save(layout, writing, progress)


def _name_beside(base: Any, place: Address) -> str:
    """Returns the name of a base in the directory of a place, which must not be its file."""
    if base is None:
        return ""
    file = base
    if isinstance(base, File):
        file = Address.or_data(base.path)
    if not isinstance(file, Address):
        return ""
    if file.real() == place.real():
        raise ValueError(
            f"{place.shown} is the file of base=, which the patch would replace: save to another "
            "path, or without base="
        )
    name = os.path.basename(file)  # noqa: PTH119
    return name if place.beside(name).real() == file.real() else ""


@overload
def load(
    path: Openable,
    target: Template | None = None,
    *,
    return_report: Literal[False] = False,
    **options: Unpack[LoadOptions],
) -> Template: ...


@overload
def load(
    path: Openable,
    target: Template | None = None,
    *,
    return_report: Literal[True],
    **options: Unpack[LoadOptions],
) -> tuple[Template, Report]: ...


@takes(LoadOptions)
def load(
    path: Openable,
    target: Any = None,
    *_more: Any,
    return_report: bool = False,
    **options: Unpack[LoadOptions],
) -> Any:
    """Loads a tree from a file: as it was saved, or in the structure of a target.

    Args:
      path: A file of `save` or its URL, the directory of a sharded checkpoint, a `UPath`, bytes, or
        a file object; see `open`. Without a target, files of flax and of `treepack.serialization`
        become dicts and lists, safetensors dicts of NumPy arrays with a dot between keys of names,
        directories of Orbax dicts and lists of NumPy arrays, and a file of `numpy.save` an array.
        Gzip is recognised by its first bytes.
      target: A template. The result has its containers. Only shape, dtype and sharding of its
        leaves matter, so `jax.ShapeDtypeStruct`s suffice (from `jax.eval_shape` or `abstract`).
        Where it has these or JAX arrays, arrays become JAX arrays on the same devices (not with
        64-bit dtypes unless `jax_enable_x64` is set); elsewhere NumPy arrays.
      strict: How leaves are compared with the target. `True`: shapes and dtypes must be equal;
        float64 in the file matches float32 in JAX arrays, unless `jax_enable_x64` is set.
        `"exact"`: dtypes must be equal, dicts must not have keys that the target lacks
        (`unexpected="ignore"` allows them), and containers equal types where the file stores them.
        `False`: not compared. Static data are never compared (`diff` does): the target's stay.
      cast: Whether to cast floats to the dtypes of the target, and integers where no value changes.
        Floats that overflow are an error, also with `dtype=` and where JAX makes float64 float32,
        except with `cast="overflow"`.
      dtype: Without a target, the dtype to which float arrays are cast, such as `jnp.bfloat16`;
        other arrays, PRNG keys and Python numbers keep their types.
      select: The leaves to load; nothing else is read. One of: a path, which selects everything
        below it and may have wildcards (`*` within one part, `**` across any number of parts); a
        tuple of the parts of a path, without wildcards; a list or set of these; a predicate on
        paths; or a pytree of bools, each for everything below it, for all leaves of the file. Other
        leaves of the target, which has the whole paths, stay unchanged, as in
        `load(path, {"params": params}, select="params")["params"]`. Without a target, incomplete
        containers become dicts with strings as keys. A pattern without a match in the file and the
        target is an error.
      exclude: The leaves not to load, in the form of `select`.
      mapping: The layout of the file, where it differs from the tree's: a `Mapping`; or a dict of
        its rules, tree: file, such as `{"params/backbone": "params/encoder"}` for other names, or
        `{"head/kernel": ("lm_head.weight", "v m -> m v")}`; or a function from paths of the target
        to paths in the file. All other options mean the tree. A leaf whose rule finds nothing in
        the file is missing. Leaves without a rule keep their paths; where the target lacks them,
        dicts ignore them and lists do not, see `unexpected`. Without a target, containers are
        dicts, arrays NumPy's, and leaves that are code an error.
      missing: Whether leaves of the target that the file lacks are an error, or stay unchanged
        (`"target"`; `ShapeDtypeStruct`s with a warning). `None` in the file, as of
        `equinox.filter`, and empty nodes, as of `optax.masked`, count as missing. Warns if every
        leaf of the file is loaded, since it may be one of several. Unless a report is returned, it
        is an error if nothing is loaded, and a warning if the file has the leaves elsewhere, only
        others in their subtree, or a path like one in their rule of `mapping`.
      mismatched: The same for arrays whose shape differs from the target's.
      unexpected: Whether leaves of the file that the target lacks are an error (`"error"`) or
        ignored (`"ignore"`). By default ignored in dicts and other mappings of the target, and an
        error in its other nodes, such as a dataclass that lost a field.
      verify: Whether to compare the file with its checksums first; see `verify`. Otherwise only
        headers are checked, and damage in the bytes of an array goes unnoticed.
      on_corrupt: Whether damaged leaves are an error, or count as missing (`"skip"`), so that the
        target's stay; then damage outside of leaves is a warning. A leaf whose checksum is lost
        counts as damaged; of a file without any, leaves are loaded unverified, unless
        `verify=True`. Warnings and the report name both. Unless a report is returned, warns if no
        leaf is intact.
      return_report: Whether to also return a `Report`.
      arrays: The type of arrays: as saved (`"saved"`), all NumPy (`"numpy"`), or all JAX (`"jax"`).
        Arrays of a dtype that JAX lacks, such as `datetime64`, stay NumPy arrays; so do 64-bit
        arrays where the target has such NumPy arrays, unless `jax_enable_x64` is set.
      device: The device for all arrays, which become JAX arrays. By default, arrays are placed as
        in the target; without one, with their saved `NamedSharding` if the number of devices is the
        same (see docs/sharded.md), or else on the default device.
      sharding: The sharding for all arrays, which become JAX arrays: a `jax.sharding.Sharding`; a
        pytree of shardings, each for everything below it; or a callable of the path and a
        `ShapeDtypeStruct` that returns one. NumPy arrays without a sharding, or with `None`, stay
        NumPy arrays. Each device reads its part of the file.
      replicas: How to load shards that devices of several processes need. `"read"`: each process
        reads them. `"broadcast"`: one process reads each shard and sends it to the others over the
        devices; all processes with such devices must call this with the same target, in the same
        order. See docs/sharded.md.
      timeout: The seconds that processes wait for each other with `replicas="broadcast"`.
      copy: For NumPy arrays, as in NumPy 2. `None` returns read-only views of the file where its
        bytes are aligned for the dtype, and copies elsewhere. `True` returns writable copies.
        `False` returns only views, and is an error for arrays that are not aligned, even if cast;
        cast arrays are new.
      mmap: Whether to map the file, so that its arrays are read from the disk when they are used. A
        mapped file may be replaced or deleted, as by `save`, but must not be truncated or
        overwritten in place. `False` reads the whole file now.
      unknown: Whether nodes that cannot be rebuilt are an error, or become dicts of their children
        (`"dict"`): of unregistered types, of types whose fields changed since, or without static
        data in the file or in `static`. Ignored with a target.
      containers: Without a target, whether containers keep their saved types, or become plain dicts
        and lists (`"plain"`): tuples become lists, nodes of other types dicts of their children
        without static data, and code `None`; mappings keep their keys.
      static: The static data that were not saved (see `save`): a dict by path, such as
        `{"tx": optimizer}`, or a tree like the saved one. Warns of paths that the tree lacks. Not
        allowed with a target, which supplies them.
      base: The base of a file that was saved with `base=`: a path or URL, an open `File`, a tree or
        encoded bytes. By default, the file of the saved name in the same directory. Other files
        ignore it.
      max_size: The maximum decompressed size in bytes of gzip, and of a patch and its base; for a
        directory, of its manifest and all its files together.
      expect: The `Digest` of the file, or its 32 digits: the whole file is compared with it before
        anything is loaded, also with `select`.
      threads: See `save`.
      progress: See `save`. Not called for a mapped file.
      storage_options: See `save`.

    Returns:
      The tree. Typed PRNG keys are always JAX arrays. With `return_report=True`, a pair: the tree,
      and a `Report` of the loaded, kept, unexpected, cast and corrupt leaves.

    Raises:
      DecodeError: With the byte offset, if the file has another format, which it names.
      NewerVersionError: If a newer version of treepack wrote the file.
      ValueError: If `select` or `mapping` matches nothing.
      MismatchError: If the file does not match the target; it lists all differences.
      BaseMismatchError: If the file was saved with another `base=`, or the base beside it cannot be
        used. A missing base is a FileNotFoundError.
      UnregisteredTypeError: With the name, if a type is not registered.
      CorruptionError: If gzip is damaged (GzipCorruptionError) or truncated (GzipTruncatedError),
        if `verify` finds damage, or if the digest differs from `expect`; a `Digest` there lets the
        error name the leaves.
      PlaceholderError: If static data were not saved, and neither `static` nor a target supplies
        them.
      TreepackError: If JAX would change the dtype of an array or the value of an integer, if an
        array cannot be placed on its device or sharding, or if another process fails with
        `replicas="broadcast"`. Like all errors above, a ValueError.
      ImportError: If JAX arrays were saved and jax is not installed, see `arrays`; or for a
        directory of Orbax, if TensorStore is not installed.

    Examples:
      >>> import jax, jax.numpy as jnp, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"w": jnp.ones((2, 2), jnp.float32)})
      >>> template = {"w": jax.ShapeDtypeStruct((2, 2), jnp.bfloat16)}
      >>> treepack.load(path, template, cast=True)["w"].dtype
      dtype(bfloat16)
      >>> treepack.load(path, template)
      Traceback (most recent call last):
        ...
      treepack.errors.MismatchError: '...model.treepack': 1 leaf does not match the template:
        w: expected bfloat16[2,2], found float32[2,2]
      Pass cast=True to cast floats to the dtypes of the template.
      Pass strict=False to take the shapes and dtypes of the file.
    """
    if _more:
        raise TypeError("load() takes a path and a target: name the rest, as in strict=False")
    selection = Selection.of({**options, "return_report": return_report})
    reading = Reading.of(options)
    together, opening = Sharing.of(options), Opening.of(options)
    if isinstance(target, (str, os.PathLike)) and not is_source(path):
        raise TypeError(
            f"the path comes first, as in load(path, target), got target={target!r:.100}"
        )
    salvage = selection.on_corrupt == "skip"
    if opening.base is not None:
        base = Address.further(opening.base, options.get("storage_options"))
        opening.base = base_of(base, max_size=opening.max_size, salvage=salvage)
    expected = None if opening.expect is None else _digest.checked(opening.expect)
    path = Address.or_data(path, options.get("storage_options"))
    compare = None
    if expected is not None:

        def compare(reader: Reader) -> None:
            found = _digest.digest_of(File(reader), opening.threads)
            _digest.compare(found, expected)

    return load_file(path, target, selection, reading, together, opening, compare)
