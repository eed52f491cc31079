"""Names that users of other libraries try, and what replaces them here.

Errors for unknown names and options, and of calls that do not fit, end with these hints.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

V = TypeVar("V", bound=Callable[..., Any])


def by_name(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for names, hint in rows.items() for name in names.split()}


class _Option(NamedTuple):
    names: str
    needed: str
    hint: str


# The first that fits counts.
_OPTIONS = [
    _Option(
        "template item like abstract_state abstract_pytree args params state tree model",
        "on_corrupt",
        "pass it as target=",
    ),
    _Option("template item like tree state pytree params", "target", "pass it as target="),
    _Option("target item like abstract_state abstract_pytree", "template", "pass it as template="),
    _Option(
        "overwrite force replace exist_ok mode", "durable", "leave it out: saving always replaces"
    ),
    _Option(
        "async_ async_save asynchronous is_async use_async use_thread block blocking",
        "background",
        "pass background=True to write in a thread",
    ),
    _Option("every every_n keep keep_every", "anchor_every", "pass anchor_every="),
    _Option("background", "version", "leave it out: push in a thread of your own"),
    _Option("metadata metrics", "version", "make it a leaf of the tree"),
    _Option("fsync sync flush", "durable", "pass durable=, whether to wait for the disk"),
    _Option("atomic", "durable", "leave it out: files are always replaced atomically"),
    _Option("checksum checksums crc", "durable", "leave it out: leaves always have checksums"),
    _Option("verify", "durable", "call treepack.verify(path) after the save"),
    _Option("sharding mesh", "sharded", "leave it out: arrays are saved as they are sharded"),
    _Option("mesh spec partition_spec", "sharding", "pass sharding=NamedSharding(mesh, spec)"),
    _Option("keep max_to_keep keep_last", "durable", "treepack.Series(path, keep=...) takes it"),
    _Option("obj pytree params state model", "separator", "pass the tree as the second argument"),
    _Option("f file filename file_path fname", "tree", "pass the path as the first argument"),
    _Option("f file filename file_path fname", "path", "pass the path as the first argument"),
    _Option("ignore skip skip_keys", "exclude", "pass exclude="),
    _Option("key keys prefix path_prefix only paths names tensors", "select", "pass select="),
    _Option("axis_resources shardings in_shardings out_shardings", "sharding", "pass sharding="),
    _Option(
        "region endpoint endpoint_url anon key secret token profile credentials access_key_id",
        "storage_options",
        'pass it in storage_options=, as {"region": ...}',
    ),
    _Option(
        "return_metadata with_metadata",
        "on_corrupt",
        "treepack.read_metadata(path) returns them",
    ),
    _Option("compresslevel compression_level", "level", "pass level=, beside compress=True"),
    _Option("save_dtype param_dtype", "static", "cast the arrays before, as by jax.tree.map"),
    _Option("use_ocdbt use_zarr3 ocdbt", "durable", "leave it out: it is of Orbax's files"),
    _Option(
        "compress compression decompress",
        "on_corrupt",
        "leave it out: compressed files are recognized",
    ),
    _Option("step", "on_corrupt", "load that step, as by treepack.load(run.path(step), target)"),
    _Option(
        "flat nested as_dict flatten",
        "on_corrupt",
        "dict(file.leaves()) of treepack.open(path) is flat",
    ),
    _Option("backend numpy return_numpy jax torch", "arrays", 'pass arrays="numpy" or "jax"'),
    _Option("framework framework_name", "arrays", 'pass arrays="numpy" or "jax"'),
    _Option("to map_location", "device", "pass device="),
    _Option("exclude select ignore", "state", "pass a part of the state"),
    _Option(
        "loss accuracy acc val_loss eval_loss score reward metric",
        "metrics",
        'pass it in metrics=, such as metrics={"loss": loss}',
    ),
    _Option(
        "sharded unchanged fast keep every seconds prefix full_every storage_options",
        "metrics",
        "treepack.Series(path, ...) takes it",
    ),
    _Option("template target", "full_every", "resume takes it"),
    _Option(
        "background compress level align durable metadata metrics local static",
        "full_every",
        "save of the series takes it",
    ),
    _Option("link incremental dedupe", "unchanged", 'pass unchanged="link"'),
    _Option("step", "version", "pass version="),
    _Option("version", "template", "only the newest version is read; pass newer_than= to wait"),
    _Option("timeout", "max_size", "leave it out: treepack.load and Subscriber.wait take it"),
    _Option("compress compression level", "described", "treepack.dumps takes compress="),
    _Option("dtype sharding device", "path_or_data", "treepack.load takes it"),
    _Option("select exclude", "path_or_data", "take the part of an open file: file[path]"),
    _Option("select exclude keys", "rtol", "compare parts of open files, as file[path]"),
    _Option("dtype cast", "static", "cast the arrays before, as by jax.tree.map"),
    _Option("mmap max_size storage_options", "on_corrupt", "treepack.open takes it"),
    _Option("leaves", "source", "use its result, such as digest.leaves or verify(path).leaves"),
    _Option("quiet verbose", "source", "leave it out: it prints nothing"),
    _Option("tolerance tol eps", "rtol", "pass rtol= or atol="),
    _Option("algorithm algo method", "source", "leave it out: there is one kind of digests"),
    _Option("keep_period", "best", "pass every="),
    _Option("expect digest", "source", "treepack.load and `treepack verify` have it"),
    _Option(
        "gda_manager",
        "keep_every_n_steps",
        "leave it out: save_checkpoint_multiprocess saves arrays of several processes",
    ),
    _Option("tree target params pytree args", "metrics", "pass it as state="),
    _Option("step", "template", "load that step, as by treepack.load(run.path(step), template)"),
    _Option("mode", "salvage", "leave it out: open reads, and treepack.save writes"),
    _Option("format", "on_corrupt", "leave it out: the content tells the format"),
    _Option("filter_spec filter include", "select", "pass select="),
    _Option("rename transforms names map", "mapping", "pass mapping="),
    _Option("sep", "separator", "pass separator="),
    _Option("metrics local", "separator", "save of a treepack.Series takes it"),
    _Option(
        "strict missing mismatched unexpected arrays device unknown containers replicas",
        "separator",
        "treepack.load takes it",
    ),
    _Option("ignore_mismatched_sizes", "mismatched", 'pass mismatched="target"'),
    _Option("device_map", "device", "pass device= or sharding="),
    _Option("verbose show_progress progress_bar pbar", "progress", "pass progress=True"),
    _Option("lazy", "on_corrupt", "treepack.open reads arrays when they are used"),
    _Option("checksum checksums check validate", "on_corrupt", "pass verify=True"),
    _Option(
        "partial partial_restore ignore_missing allow_missing", "missing", 'pass missing="target"'
    ),
    _Option("restore_args shapes dtypes", "target", "pass jax.ShapeDtypeStructs as target="),
    _Option("target template", "separator", "pass the tree as the second argument"),
    _Option("path format", "tree", "treepack.save(path, tree, ...) takes it"),
    _Option(
        "select exclude target template dtype arrays sharding strict cast copy verify on_corrupt",
        "salvage",
        "load of the open file takes it",
    ),
    _Option("base", "salvage", "treepack.load takes it"),
    _Option("select exclude", "source", "use its result, such as digest.leaves"),
    _Option(
        "background durable align level metadata sharded format",
        "on_corrupt",
        "leave it out: treepack.save takes it",
    ),
    _Option(
        "durable sharded background mapping separator path format max_shard_size",
        "static",
        "treepack.save has it",
    ),
    _Option("name", "serialized_name", "pass serialized_name="),
    _Option("compression gzip zip", "compress", "pass compress=True"),
    _Option("framework framework_name device", "salvage", "leave it out: arrays are NumPy's"),
    _Option("weights_only allow_pickle pickle", "mmap", "leave it out: nothing is unpickled"),
    _Option("object_hook raw strict_map_key ext_hook use_list", "data", "leave it out"),
    _Option("default use_bin_type indent protocol described", "static", "leave it out"),
    _Option("threads", "described", "treepack.dumps takes threads="),
    _Option("save_every save_interval save_interval_steps every_n_steps", "every", "pass every="),
    _Option("max_to_keep keep_last keep_n last", "keep", "pass keep=treepack.Keep(last=3)"),
    _Option("max_to_keep keep_last keep_n", "last", "pass last="),
    _Option("keep_period", "keep", "pass keep=treepack.Keep(every=1000)"),
    _Option("best_fn best_mode best", "keep", 'pass keep=treepack.Keep(best=("loss", 1, "min"))'),
]


def unknown_option(verb: Callable[..., Any], name: str) -> TypeError:
    names = [each for each in inspect.signature(verb).parameters if each != "self"]
    near = difflib.get_close_matches(name, names, n=1)
    hints = (row.hint for row in _OPTIONS if name in row.names.split() and row.needed in names)
    hint = next(hints, f"is it {near[0]!r}?" if near else "")
    end = f": {hint}" if hint else f"; it has {', '.join(names) or 'none'}"
    return TypeError(f"{_name_of(verb)}() got an unexpected keyword argument {name!r}{end}")


def advised(verb: V) -> V:
    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except TypeError as error:
            advise(verb, error, options)
            raise

    return cast(V, call)


def advise(verb: Callable[..., Any], error: TypeError, options: Iterable[str]) -> None:
    trace = error.__traceback__
    if trace is None or trace.tb_next is not None:
        return
    parameters = inspect.signature(verb).parameters
    if "unexpected keyword" in str(error):
        raise unknown_option(verb, min({*options} - {*parameters})) from None
    needed = [
        f"{each.name}=..." if each.kind is each.KEYWORD_ONLY else each.name
        for each in parameters.values()
        if each.default is each.empty
        and each.name[0] != "_"
        and each.name != "self"
        and each.kind is not each.VAR_KEYWORD
    ]
    named = [each.name for each in parameters.values() if each.kind is each.KEYWORD_ONLY]
    rest = f", and name the rest, as in {named[0]}=" if "were given" in str(error) and named else ""
    by_place = (it for it in parameters.values() if it.kind is it.POSITIONAL_OR_KEYWORD)
    if "were given" in str(error) and not needed:  # all are optional
        needed = [it.name for it in by_place if it.name != "self"]
    raise TypeError(f"{error}: call it as {_name_of(verb)}({', '.join(needed)}){rest}") from None


def _name_of(verb: Callable[..., Any]) -> str:
    kind, _, name = verb.__qualname__.rpartition(".")
    return kind if name == "__init__" else verb.__name__


def check_parameters(function: Callable[..., Any], option: str, arguments: str, count: int) -> None:
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError as error:
        raise TypeError(f"{option} is called with {arguments}: {error}") from None
    except ValueError:  # it has no signature
        pass


class Hinting:
    """Objects whose errors for unknown attributes name a replacement."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, self._hint_for(name))

    def _hint_for(self, name: str) -> str:
        return hint_for(type(self), name)


class Advising(Hinting):
    def __init_subclass__(cls, lists: str = "") -> None:
        """Advises the methods of a class of treepack, not of one that a program derives from it.

        `lists` names a method that returns a list: `run.steps[-1]` says to call it.
        """
        super().__init_subclass__()
        for name, method in [*vars(cls).items()] if Advising in cls.__bases__ else ():
            is_public = name[0] != "_" and inspect.isfunction(method)
            if name == lists:
                setattr(cls, name, _ListMethod(method))
            elif is_public and not hasattr(method, "__wrapped__"):  # `takes` advises as well
                setattr(cls, name, advised(method))

    if not TYPE_CHECKING:  # type checkers would accept any index

        def __getitem__(self, _: Any) -> Any:
            """Refuses an index, and so an iteration, which looks for one."""
            raise TypeError(f"a {type(self).__name__} has no items: {self._hint_for('[]')}")


def hint_for(kind: type, name: str) -> str:
    hints = (_OF_CLASSES.get(each.__name__, {}) for each in kind.__mro__)
    return next((rows[name] for rows in hints if name in rows), "")


def unknown_attribute(thing: object, name: str, hint: str) -> AttributeError:
    text = f"{type(thing).__name__!r} object has no attribute {name!r}{hint and ': '}{hint}"
    return AttributeError(text, name=name, obj=thing)


def read_only(*_: Any) -> None:
    raise TypeError(
        "open files are read-only: change the tree of load(copy=True) or file.load(copy=True), and "
        "save it"
    )


class _BoundListMethod(functools.partial[Any]):
    def _misuse(self, *_: Any) -> Any:
        name = self.func.__name__
        raise TypeError(f"{name} is a method: call it, as in {name}()[-1]")

    __getitem__ = __iter__ = __len__ = _misuse


class _ListMethod:
    def __init__(self, method: Callable[[Any], Any]):
        functools.update_wrapper(self, method)
        self._method = method

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self if owner is None else _BoundListMethod(self._method, owner)

    def __call__(self, owner: Any) -> Any:
        return self._method(owner)


_SERIES = by_name(
    {
        "restore load": "use resume(target), or treepack.load(run.path(step), target)",
        "latest_step all_steps latest last last_step": "use steps(), as in run.steps()[-1]",
        "wait_until_finished close": "use wait()",
        "best_step": "use best()",
        "delete remove rm": "use keep=treepack.Keep(...), which removes the others",
        "[]": "steps() lists its checkpoints, and treepack.load(run.path(step)) loads one",
    }
)
_PUBLISHER = by_name(
    {
        "publish send put update save write set": "use push(tree, version=...)",
        "close wait": "leave it out: a version is published once push returns",
        "latest version versions": "a Subscriber of its directory has latest()",
        "[]": "a Subscriber of its directory reads the versions",
    }
)
_SUBSCRIBER = by_name(
    {
        "get receive recv read poll pull load fetch": "use latest(template), or wait(template)",
        "subscribe next listen": "use wait(template), which waits for a newer version",
        "close": "leave it out: it holds no connection",
        "version versions": "use latest(template), whose first result is the version",
        "[]": "call wait(template) for each newer version",
    }
)
_SAVING = by_name(
    {
        "join get value finish wait_until_finished block_until_ready": "use result(), which waits",
        "is_done ready finished": "use done()",
    }
)
_TREE = by_name(
    {
        "save write to_file copy_to": "use treepack.save(path, file)",
        "read restore to_tree": "use load()",
        "diff digest": "use the function of this name, as in treepack.digest(file)",
        "verify": "use treepack.verify(path)",
        "get_tensor get_slice f get_array": "use file[path]",
        "files names paths": "use [path for path, _ in file.leaves()]",
        "tree state_dict": "use load()",
        "flatten arrays": "use dict(file.leaves())",
        "select filter": "use load(select=...)",
        "statistics shape dtype size": "look up an array in it, as by file[path]",
    }
)
_VERIFICATION = by_name(
    {
        "corrupted damaged bad": "use corrupt",
        "valid is_valid is_ok passed success": "use ok",
        "status statuses": "use leaves, a dict of path and status",
        "error errors failures failed": "use corrupt and damage",
        "raise_for_status raise_ check": "treepack.load(path, verify=True) raises",
    }
)
_DIFFERENCES = by_name(
    {
        "paths": "use [each.path for each in differences]",
        "differences": "it is a list of the differences",
        "summary text report": "use str(differences)",
        "ok equal equals same identical is_equal": "use `not differences`: it lists them",
    }
)
_STATISTICS = by_name(
    {
        "max amax": "use maximum",
        "min amin": "use minimum",
        "nans": "use nan",
        "inf infs": "use infinite",
        "count": "use size",
        "average avg": "use mean",
        "stddev sd": "use std",
    }
)
_MAPPING = by_name(
    {
        "load open": "pass it as mapping= to the function of this name",
        "apply convert transform map": "pass it as mapping= to treepack.load or treepack.save",
        "keys items rules": "keep the dict of its rules",
    }
)
# Names of Orbax's CheckpointManager and of other queues, and what replaces them, by our classes.
_OF_CLASSES = {
    "Series": _SERIES,
    "Publisher": _PUBLISHER,
    "Subscriber": _SUBSCRIBER,
    "Saving": _SAVING,
    "Tree": _TREE,
    "Verification": _VERIFICATION,
    "Differences": _DIFFERENCES,
    "Digest": by_name(
        {"hex hexdigest digest": "use str(digest)", "[]": "leaves[path] is the digest of a leaf"}
    ),
    "Statistics": _STATISTICS,
    "Report": by_name(
        {
            "missing ignored initialized": "use kept",
            "mismatched": "use kept, or mismatched= of load",
            "extra unused": "use unexpected",
            "restored": "use loaded",
            "damaged corrupted": "use corrupt",
        }
    ),
    "Mapping": _MAPPING,
    "LazyArray": by_name(
        {
            "load read array value": "read it by array[...], or a part by array[:10]",
            "at": "use jax.numpy.asarray(array).at",
            "sharding": "treepack.abstract(path) has that of the save",
        }
    ),
}

MODULE = by_name(
    {
        "restore load_file read from_file load_checkpoint load_params load_pytree load_state_dict "
        "tree_deserialise_leaves load_model from_pretrained": "use treepack.load",
        "save_file dump write to_file savez save_params save_pytree "
        "tree_serialise_leaves save_model": "use treepack.save",
        "save_pretrained": 'use treepack.save(path, tree, format="safetensors")',
        "save_async async_save": "use treepack.save(path, tree, background=True)",
        "wait wait_until_finished": "use result() of the Saving that save(background=True) returns",
        "pack packb encode": "use treepack.dumps",
        "unpack unpackb decode": "use treepack.loads",
        "safe_open inspect keys shape shapes tree checkpoint": "use treepack.open",
        "metadata load_metadata": "use treepack.read_metadata",
        "hash checksum": "use treepack.digest",
        "compare allclose": "use treepack.diff",
        "validate check": "use treepack.verify",
        "exists": "use treepack.is_checkpoint",
        "rename transpose": "pass mapping= to treepack.load or treepack.save",
        "list_checkpoints list_steps steps": "use treepack.Series(path).steps()",
        "Run run series save_series": "use treepack.Series",
        "publish": "use treepack.Publisher",
        "subscribe": "use treepack.Subscriber",
        "summary describe": "print treepack.open(path)",
        "Template template tree_structure eval_shape": "use treepack.abstract, or jax.eval_shape",
        "map": "use treepack.Mapping",
        "merge": "pass missing='target' to treepack.load",
        "tree_map": "use jax.tree.map",
        "register register_class register_type register_pytree_node "
        "register_pytree_node_class": "use treepack.register_dataclass or treepack.register_node",
        "register_enum register_static": "use treepack.register_auxdata",
        "orbax orbax_v1": "import it: import treepack.orbax, or treepack.orbax_v1",
        "CheckpointManager Manager": "use treepack.Series, or Orbax's own with treepack.orbax",
        "Checkpoint Checkpointer StandardCheckpointer PyTreeCheckpointer AsyncCheckpointer "
        "latest_step": "use treepack.save and treepack.load, or treepack.Series",
        "SaveArgs RestoreArgs ArrayRestoreArgs": "pass options to treepack.save or treepack.load",
    }
)
"""Names of other libraries, and what replaces them in `treepack`."""
