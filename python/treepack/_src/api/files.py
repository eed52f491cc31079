"""Trees in files: `save`, `load`, `abstract`, `read_metadata` and `is_checkpoint`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any, Literal, Unpack, overload

from treepack._src.api.streams import spooled
from treepack._src.checkpoint.file import File, open, place_of
from treepack._src.checkpoint.load import load_part, restore_described
from treepack._src.checkpoint.opening import open_reader
from treepack._src.checkpoint.placement import sharing
from treepack._src.checkpoint.reader import Place
from treepack._src.checkpoint.safetensors import has_suffix
from treepack._src.checkpoint.select import chosen
from treepack._src.checkpoint.sharded import unless_replaced
from treepack._src.options import (
    Containers,
    LoadOptions,
    Opening,
    Reading,
    Saved,
    SaveOptions,
    Selection,
    Sharing,
    StorageOptions,
    Template,
    Unknown,
    Writing,
    check,
    check_iterator,
    check_known,
    takes,
)
from treepack._src.restore.report import Report
from treepack._src.saving.background import Saving, run, wait_for
from treepack._src.saving.directory import interrupted
from treepack._src.saving.layout import base_of, file_layout
from treepack._src.saving.sharded import ShardedWrite, is_distributed
from treepack._src.storage.content import Openable, content_of, downloaded, inflated_head
from treepack._src.storage.naming import filename_of, naming
from treepack._src.storage.place import (
    Location,
    absolute,
    beside,
    check_suffix,
    has_gzip_suffix,
    located,
    real,
    resolved,
)
from treepack._src.storage.safetensors import is_safetensors
from treepack._src.storage.store import ConditionError
from treepack._src.storage.write import save_layout
from treepack.errors import (
    GzipError,
    GzipTruncatedError,
    NewerVersionError,
    NoIndexError,
    TreepackError,
)


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


@takes(SaveOptions, Saved, Writing, compress=None)
def save(
    path: Location, tree: Any, *, background: bool = False, **options: Unpack[SaveOptions]
) -> Saving | None:
    """Saves a tree to a file, which is replaced whole or not at all.

    `load` restores all of it without a template: containers and the order of their keys,
    keys that are no strings, nodes of registered types with their static data, and leaves. flax
    reads the file as well: it is msgpack with one more key, `__treepack__`, which flax ignores
    when it restores a dict template.

    The bytes go straight from the arrays to a temporary file in the same directory, which then
    takes the name. Whatever goes wrong, the file is the old one or the new one. Missing
    directories are made.

    Args:
      path: The file (a `~` at its start is the home folder), a `UPath`, or a URL of a store
        (`pip install treepack[remote]`), where the object appears once all of it has been written.
        Suffixes of other formats, such as `.safetensors`, are refused.
        The permissions of a file are those of the one that it replaces, or follow the umask.
      tree: Any tree of dicts, lists, tuples, registered nodes and leaves. Or an iterator of pairs
        of a path and a leaf, for trees that are larger than memory: they become nested dicts, whose
        arrays wait in a temporary file beside `path`.
      background: Whether to write in a thread, and to return a `Saving` as soon as the program may
        change the tree: by then arrays of NumPy have been copied, those on accelerators fetched,
        and those of jax on CPU are held. The next save to the same path waits for the end of this
        one, and so does the end of the program.
      sharded: Whether `path` becomes a directory, in which each process of `jax.distributed`
        writes a file of its shards; see docs/sharded.md. All processes have to call this with the
        same tree. `None` does so if there are arrays that no single process has all of.
      step: A number of the save, such as the step of training. Processes that save together
        compare it, so that none that has missed a save pairs its shards with those of another
        step. It is not stored: `metadata` is.
      timeout: The seconds that processes which save together wait for each other.
      metadata: Any value to be kept with the tree, such as a step or a configuration, of the plain
        types of Python or of types that `register_auxdata` knows. See `read_metadata`.
      static: Static data and leaves that have no form in files. `"skip-code"` leaves out code:
        functions, optimizers made of functions, definitions of models. A template brings them
        back, and so does `load(static=...)`. Data without a form are errors, and so are those of
        callables. `"skip"` leaves out these, too, except arrays; `"error"` leaves out nothing.
      select: The leaves to save, such as `"**/lora_*"`; see `load`, which would return the same
        tree for this selection of a whole file: containers that lose children become dicts.
        `load(path, target, missing="target")` takes the others from a target.
      base: A file of `save` (its path or an open `File`), or a tree or encoded bytes: arrays that
        it has at the same path, of the same dtype and shape, are written as differences; see
        docs/pipelines.md. `load` and `open` find a file in the same directory by its name; it must
        stay as it is, and may have no base itself. Not for sharded saves.
      compress: Whether to compress with gzip. `None` does so if the name of the file ends with
        `.gz`, but not in sharded saves. `"numbers"` is smaller and faster for weights, by the
        exponents of floats, but only treepack reads the file; see docs/compression.md.
      level: From 0 (stored) to 9 (smallest); `None` chooses by the content. For gzip.
      align: A power of two from 1 to 64: arrays of at least 1 KiB begin at multiples of this many
        bytes. At 64, JAX on CPU can use the arrays of a mapped file in place.
      durable: Whether the file is on the disk when this returns, so that it survives
        a loss of power. Otherwise it survives a crash of the program.
      threads: The maximum number of threads that copy or compress. `None` is the environment
        variable `TREEPACK_NUM_THREADS`, or else the number of cores.
      progress: A callable that is called now and then with the number of bytes of the encoding
        that are done, and of all; or `True` for a bar of tqdm. An exception in it ends the work,
        and the file is the old one.
      storage_options: Options of obstore or fsspec for the store of a URL, such as credentials and
        endpoints; see docs/stores.md. A `UPath` has its own, to which these are added.

    Returns:
      With `background=True` a `Saving`, whose `result()` waits until all is written.

    Raises:
      OSError: If the file cannot be written.
      UnserializableLeafError: A TypeError, with the path. If a leaf, a key or
        static data have no form in files.
      ValueError: If keys of a dict are the same as strings, or reserved; if `select` matches
        nothing; or if the suffix of `path` is of another format.
      TypeError: If metadata cannot be written.
      TreepackError: A ValueError. If another process fails, if processes that save together do not
        save the same, or if another job is saving to the same directory.

    Examples:
      >>> import jax.numpy as jnp, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"layers": [(jnp.zeros(2), "relu")]}, metadata={"step": 3})
      >>> treepack.load(path)
      {'layers': [(Array([0., 0.], dtype=float32), 'relu')]}
    """
    check_known(save, options)
    saved = Saved.of(options)
    progress = options.get("progress")
    place = located(path, options.get("storage_options"))
    check_suffix(place)
    if isinstance(tree, Iterator):
        check_iterator(saved, background=background)
    else:
        tree = chosen(tree, saved.select)
        if saved.sharded is None:
            saved.sharded = is_distributed(tree)
    if options.get("compress") is None:
        options["compress"] = not saved.sharded and has_gzip_suffix(place)
    how = Writing.of(options)
    if saved.base is not None and saved.sharded:
        raise ValueError("base= is for trees that are saved to one file: leave it out")
    wait_for(place)
    if isinstance(tree, Iterator):
        with spooled(tree, place) as tree:
            save_layout(file_layout(tree, saved, how), place, how, progress)
        return None
    if saved.sharded:
        together = ShardedWrite(place, tree, saved, how, snapshot=background)
        return run(
            place,
            together,
            progress,
            background=background,
            at_once=bool(interrupted(place)),  # which ends only after this
            abandon=together.abandon,
        )
    name = _name_beside(saved.base, place)
    layout = file_layout(tree, saved, how, snapshot=background, base_name=name)
    # Meanwhile the program may change its directory.
    where = absolute(place) if background else place
    write = functools.partial(save_layout, layout, where, how)
    del layout  # so that the traceback of an error does not hold it
    return run(place, write, progress, background=background)


def _name_beside(base: Any, place: Any) -> str:
    """Returns the name of a base that is a file in the directory of a place, or an empty string."""
    file = filename_of(place_of(base).reader.given) if isinstance(base, File) else base
    if not isinstance(file, (str, os.PathLike)):
        return ""
    name = os.path.basename(os.fspath(file))  # noqa: PTH119
    there: str = beside(os.fspath(place), name)
    return name if real(there) == real(file) else ""


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


@takes(LoadOptions, Selection, Reading, Sharing, Opening)
def load(
    path: Openable,
    target: Any = None,
    *,
    return_report: bool = False,
    **options: Unpack[LoadOptions],
) -> Any:
    """Loads the tree in a file: as it was saved, or in the structure of a target.

    Args:
      path: A file of `save`, or its URL; or the directory of a sharded one; or all else that
        `open` takes: a `UPath`, bytes, a file object. Files of flax and of
        `treepack.serialization` are dicts and lists without a target. Gzip is recognised by its
        first bytes.
      target: A template. The result has its containers; of its leaves only shape, dtype and
        sharding matter, so `jax.ShapeDtypeStruct`s will do (from `jax.eval_shape` or `abstract`).
        Where it has arrays of jax or `ShapeDtypeStruct`s (of a dtype that jax has here: without
        `jax_enable_x64`, not of 64 bits), arrays become arrays of jax on the same devices;
        elsewhere they become arrays of NumPy.
      strict: How the leaves are compared with the template's. `True`: equal shapes, and dtypes
        that are equal to JAX, so that 64 bits count as 32 unless `jax_enable_x64` is set.
        `"exact"`: equal dtypes, no keys that a dict of the template lacks, and containers of equal
        types, where these were saved; `unexpected="ignore"` allows more keys. `False`: not at all.
      cast: Whether to cast floats to the dtypes of the template, and integers where no value
        changes.
      dtype: Without a target, the dtype that all arrays of floats get, such as `jnp.bfloat16`, each
        as it is loaded. Integers, bools, complex numbers, keys and numbers of Python stay.
      select: The leaves to load; nothing else is read. A path, which selects all below it and may
        have wildcards (`*` in one part, `**` over any number of them); a tuple of the parts of a
        path, without wildcards; a list or set of those; a predicate on paths; or a pytree of bools,
        each for all below its place. With a target, its
        other leaves stay as they are. Without, incomplete containers become dicts. A pattern that
        matches nothing, neither in the file nor in the target, is an error.
      rename: The names of the file's leaves in the target: a dict of paths, with wildcards as
        above or tuples, such as `{"old/*/w": "new/*/kernel"}`, of which at least one has to match;
        or a function of paths. Paths in `select` and in errors are the new ones.
      missing: Whether leaves of the target that the file lacks are an error, or stay as they are
        (`"target"`).
      unexpected: Whether leaves of the file that the target lacks are an error, or ignored. By
        default they are ignored where the target has a dict or another mapping, and an error where
        it has a node of another type, such as a dataclass that has lost a field.
      verify: Whether to compare the file with its checksums first; see `treepack.verify`. Otherwise
        only headers are checked, and damaged bytes of an array are not noticed.
      on_corrupt: Whether damaged leaves are an error, or count as missing and stay as the target
        has them (`"skip"`). Damage outside of leaves is a warning then; if checksums are lost by
        it, leaves that cannot be verified are loaded, and the warning says so.
      return_report: Whether to return a `Report` as well.
      arrays: Whether arrays of jax come back as such (`"saved"`), or all arrays as NumPy's
        (`"numpy"`), or as jax's (`"jax"`). Arrays of NumPy stay that where jax lacks their dtype,
        such as `datetime64`; so do those of 64 bits where a target has them, without
        `jax_enable_x64`.
      device: The device for all arrays, which become arrays of jax as with `arrays="jax"`; by
        default that of the target's arrays. Without a target, arrays get the `NamedSharding` again
        that they were saved with, where there are as many devices (see docs/sharded.md), or else
        the default device.
      sharding: The sharding for all arrays, likewise: a `jax.sharding.Sharding`; a pytree of them,
        each for all below its place; or a callable of the path and a `ShapeDtypeStruct`, which
        returns one. Arrays of NumPy stay that where there is none, or `None`. Each device reads its
        part of the file.
      replicas: Shards of a sharded checkpoint that devices of several processes get. `"read"`: each
        process reads them. `"broadcast"`: one of them does, and the others receive them over the
        devices, so that no store serves them twice; all processes that have such devices call
        this with the same target, in the same order. See docs/sharded.md.
      timeout: The seconds that processes wait for each other with `replicas="broadcast"`.
      copy: For arrays of NumPy, as in NumPy 2. `None` returns read-only views of the file
        wherever they are aligned for their dtype, copies elsewhere. `True` returns
        writable arrays with memory of their own. `False` returns views only, but for arrays that
        are cast.
      mmap: Whether to map the file, so that its arrays are read from the disk when they are used.
        Meanwhile the file may be replaced or deleted, as by `save`, but must not be truncated or
        overwritten in place. `False` reads all of it now.
      unknown: Whether nodes of types that are not registered here, or had other fields when they
        were saved, or lack static data that are not in `static` either, are an error, or become
        dicts of their children (`"dict"`). It does not matter with a target.
      containers: Without a target, whether containers are those that were saved, or plain dicts and
        lists (`"plain"`): tuples become lists, and nodes of all other types dicts of their
        children, without static data; mappings keep their keys, and code is `None`.
      static: The static data that were not saved (see `static` of `save`): a dict by path,
        such as `{"tx": optimizer}`, or a tree like the one that was saved. Not with a target,
        which has them.
      base: The base of a file that was saved with `base=`, if it is no file in the same directory:
        a path, an open `File`, a tree or encoded bytes. Other files ignore it.
      max_size: The maximum decompressed size of gzip in bytes; of a directory, that of its
        manifest and all its files together.
      threads: See `save`; for decompressing, casting and copying.
      progress: See `save`; for reading and decompressing. A mapped file has no progress.
      storage_options: See `save`.

    Returns:
      The tree. Typed PRNG keys are always arrays of jax. With `return_report` a pair: the tree,
      and a `Report` of the loaded, kept, unexpected, cast and corrupt leaves.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError, with the byte offset. If the file has another format; it says which
        one, if that is known.
      NewerVersionError: A DecodeError. If a newer version of treepack has written it.
      ValueError: If `select` or `rename` match nothing.
      MismatchError: A ValueError. If the file does not fit the target; it lists all differences.
      BaseMismatchError: A ValueError. If the file was saved with another `base=`.
      UnregisteredTypeError: A DecodeError, with the name. If a type is not registered.
      CorruptionError: A ValueError. If it is a damaged gzip file (GzipCorruptionError), or one that
        ends early (GzipTruncatedError), or if `verify` finds damage.
      HoleError: A TreepackError. If static data were not saved, and neither `static` nor a target
        has them.
      TreepackError: A ValueError. If jax would not keep the dtype of an array or the value of an
        integer, or an array cannot be put where it should go, or another process fails with
        `replicas="broadcast"`.
      ImportError: If arrays of jax were saved and jax is not installed; see `arrays`.

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
      Pass strict=False to restore the state regardless.
      >>> treepack.load(path, dtype=jnp.float16)["w"].dtype
      dtype('float16')
    """
    check_known(load, options)
    selection, how = Selection.of(options), Reading.of(options)
    selection.return_report = return_report
    together, opening = Sharing.of(options), Opening.of(options)
    opening.base = base_of(opening.base)
    path = resolved(path, options.get("storage_options"))
    is_directory = False

    def attempt() -> Any:
        nonlocal is_directory
        with sharing(target, how, together) as group:
            source = path
            if selection.is_whole and not is_directory and not has_suffix(path):
                try:
                    source = content_of(path, opening)
                except IsADirectoryError:
                    is_directory = True  # a sharded checkpoint, or nothing
                else:
                    if not is_safetensors(source):
                        return restore_described(source, target, how)
            if selection.verifies and selection.select is None and not is_directory:
                try:  # once, so that what is verified is what is used
                    source = downloaded(path, opening.progress)
                except IsADirectoryError:
                    is_directory = True
            reader = open_reader(
                source,
                is_directory=is_directory,
                salvage=selection.on_corrupt == "skip",
                mmap=opening.mmap,
                max_size=opening.max_size,
                base=opening.base,
            )
            reader.given = path
            with contextlib.closing(reader):
                return load_part(Place(reader, 0, []), target, selection, how, group)

    with naming(path):
        return unless_replaced(attempt)


def abstract(
    path_or_data: Openable,
    *,
    unknown: Unknown = "error",
    containers: Containers = "saved",
    static: Any = None,
    max_size: int | None = None,
    storage_options: StorageOptions = None,
) -> Any:
    """Returns a saved tree with only the shapes and dtypes of its arrays.

    No array is read, however large. The result is a template for `load`, as `jax.eval_shape`
    returns it for a function that makes such a tree. Arrays that were split over several devices
    have their `sharding`, where there are as many; see docs/sharded.md. That starts jax, so call
    `jax.distributed.initialize` before.

    Args:
      path_or_data: A file of `save`, the result of `dumps`, or all else that `open` takes.
      unknown: See `load`.
      containers: See `load`.
      static: See `load`.
      max_size: See `load`.
      storage_options: See `save`.

    Returns:
      The tree, with `jax.ShapeDtypeStruct`s for arrays.

    Raises:
      DecodeError: See `load`, as for other errors.

    Examples:
      >>> import numpy as np, treepack
      >>> treepack.abstract(treepack.dumps([np.zeros((2, 3)), "text"]))
      [ShapeDtypeStruct(shape=(2, 3), dtype=float64), 'text']
    """
    check("unknown", unknown)
    source = resolved(path_or_data, storage_options)
    with naming(source), _opened(source, max_size) as file:
        return file.abstract(unknown=unknown, containers=containers, static=static)


def read_metadata(
    path_or_data: Openable,
    *,
    unknown: Unknown = "error",
    max_size: int | None = None,
    storage_options: StorageOptions = None,
) -> Any:
    """Returns the metadata that `save` was given, or `None`. No array is read.

    Args:
      path_or_data: A file of `save`, the result of `dumps`, or all else that `open` takes.
      unknown: Whether values that cannot be made here, as of types that are not registered, are an
        error, or become dicts of their parts (`"dict"`); see `open`.
      max_size: See `load`.
      storage_options: See `save`.

    Raises:
      UnregisteredTypeError: A DecodeError, with the name and a path such as `metadata/c/act`. If a
        type is not registered.
      DecodeError: See `load`, as for other errors.

    Examples:
      >>> import treepack
      >>> treepack.read_metadata(treepack.dumps([], metadata={"step": 3, "shape": (1, 2)}))
      {'step': 3, 'shape': (1, 2)}
    """
    source = resolved(path_or_data, storage_options)
    with naming(source), _opened(source, max_size, unknown) as file:
        return file.metadata


def is_checkpoint(path_or_data: Openable, *, storage_options: StorageOptions = None) -> bool:
    """Returns whether a path, a URL or data are a checkpoint that treepack reads.

    That is a file of treepack, flax or eformer, perhaps in gzip, or the directory of a sharded
    checkpoint; also one that is damaged below its headers (see `verify`), or that a newer version
    has written. No array is read. Of gzip from elsewhere, only the first bytes are.

    Args:
      path_or_data: What `open` takes.
      storage_options: See `save`.

    Returns:
      Whether it is one; also `False` if nothing is there.

    Raises:
      OSError: If the file cannot be read for another reason, such as its permissions.
      TreepackError: If a file in a store is replaced meanwhile.

    Examples:
      >>> import tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.is_checkpoint(path)
      False
      >>> treepack.save(path, {"step": 3})
      >>> treepack.is_checkpoint(path)
      True
      >>> treepack.is_checkpoint(b"step: 3")
      False
    """
    source = resolved(path_or_data, storage_options)
    try:
        with naming(source), open(source) as file:
            place = place_of(file)
            is_map = place.catalog.children(0) is not None and not place.catalog.is_list(0)
            return is_map or place.catalog.record is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except NewerVersionError:
        return True
    except NoIndexError:
        head = inflated_head(source, 1)
        return head != b"" and (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF))  # a map
    except ConditionError:  # another file is there by now
        raise
    except (TreepackError, EOFError):
        return False


def _opened(path_or_data: Openable, max_size: int | None, unknown: Unknown = "error") -> File:
    """Opens a file or data; inflates gzip that cannot be read in parts."""
    try:
        return open(path_or_data, max_size=max_size, unknown=unknown)
    except (GzipError, GzipTruncatedError):
        return open(content_of(path_or_data, Opening(max_size=max_size)), unknown=unknown)
