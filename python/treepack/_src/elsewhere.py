"""Names that users of other libraries try, and their replacements here, for `advice.py`."""

from __future__ import annotations

from collections.abc import Mapping


def by_name(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for names, hint in rows.items() for name in names.split()}


# Options that verbs lack, an option that these verbs have, and a hint. The first row that fits
# counts.
OPTIONS = [
    (
        "template item like abstract_state abstract_pytree args params state tree model",
        "on_corrupt",
        "pass it as target=",
    ),
    ("template item like tree state pytree params", "target", "pass it as target="),
    ("mmap_mode", "mmap", "leave it out: files are mapped, and copy=True makes writable arrays"),
    ("save_args save_kwargs", "separator", "leave it out: save has dtype=, compress= and durable="),
    (
        "target item like abstract_state abstract_pytree params state tree pytree",
        "template",
        "pass it as template=",
    ),
    ("overwrite force replace exist_ok mode", "durable", "leave it out: saving always replaces"),
    (
        "async_ async_save asynchronous is_async use_async use_thread block blocking",
        "background",
        "pass background=True to write in a thread",
    ),
    ("every every_n keep keep_every", "anchor_every", "pass anchor_every="),
    ("background", "version", "leave it out: push in a thread of your own"),
    ("metadata metrics", "version", "make it a leaf of the tree"),
    ("fsync sync flush", "durable", "pass durable=, whether to wait for the disk"),
    ("atomic", "durable", "leave it out: files are always replaced atomically"),
    ("checksum checksums crc", "durable", "leave it out: leaves always have checksums"),
    ("verify", "durable", "call treepack.verify(path) after the save"),
    ("sharding mesh", "sharded", "leave it out: arrays are saved as they are sharded"),
    ("mesh spec partition_spec", "sharding", "pass sharding=NamedSharding(mesh, spec)"),
    ("max_to_keep keep_last keep_n", "keep_every_n_steps", "pass keep=3"),
    ("keep max_to_keep keep_last", "durable", "treepack.Series(path, keep=...) takes it"),
    ("obj pytree params state model", "separator", "pass the tree as the second argument"),
    ("target template", "separator", "pass the tree as the second argument"),
    ("f file filename file_path fname", "tree", "pass the path as the first argument"),
    ("f file filename file_path fname", "path", "pass the path as the first argument"),
    ("ignore skip skip_keys", "exclude", "pass exclude="),
    ("key keys prefix path_prefix only paths names tensors", "select", "pass select="),
    ("axis_resources shardings in_shardings out_shardings", "sharding", "pass sharding="),
    (
        "region endpoint endpoint_url anon key secret token profile credentials access_key_id",
        "storage_options",
        'pass it in storage_options=, as {"region": ...}',
    ),
    ("return_metadata with_metadata", "on_corrupt", "treepack.read_metadata(path) returns them"),
    ("compresslevel compression_level", "level", "pass level=, beside compress=True"),
    ("save_dtype param_dtype", "static", "cast the arrays before, as by jax.tree.map"),
    ("use_ocdbt use_zarr3 ocdbt", "durable", "leave it out: it is of Orbax's files"),
    (
        "compress compression decompress",
        "on_corrupt",
        "leave it out: compressed files are recognized",
    ),
    ("step", "on_corrupt", "load that step, as by treepack.load(run.path(step), target)"),
    (
        "flat nested as_dict flatten",
        "on_corrupt",
        "dict(file.leaves()) of treepack.open(path) is flat",
    ),
    ("backend numpy return_numpy jax torch", "arrays", 'pass arrays="numpy" or "jax"'),
    ("framework framework_name", "arrays", 'pass arrays="numpy" or "jax"'),
    ("to map_location", "device", "pass device="),
    ("exclude select ignore", "state", "pass a part of the state"),
    (
        "loss accuracy acc val_loss eval_loss score reward metric",
        "metrics",
        'pass it in metrics=, such as metrics={"loss": loss}',
    ),
    (
        "sharded unchanged fast keep every seconds prefix full_every storage_options",
        "metrics",
        "treepack.Series(path, ...) takes it",
    ),
    ("template target", "full_every", "resume takes it"),
    (
        "background compress level align durable metadata metrics local static",
        "full_every",
        "save of the series takes it",
    ),
    ("link incremental dedupe", "unchanged", 'pass unchanged="link"'),
    ("step", "version", "pass version="),
    ("mmap verify", "template", "leave it out: versions are read into memory, and verified"),
    (
        "expect on_corrupt return_report",
        "template",
        "treepack.load takes it, as for run.path(step)",
    ),
    ("newer_than timeout", "template", "wait of a treepack.Subscriber takes it"),
    ("version", "template", "only the newest version is read; pass newer_than= to wait"),
    ("timeout", "max_size", "leave it out: treepack.load and Subscriber.wait take it"),
    ("compress compression level", "described", "treepack.dumps takes compress="),
    ("dtype sharding device", "path_or_data", "treepack.load takes it"),
    ("select exclude", "path_or_data", "take the part of an open file: file[path]"),
    ("select exclude keys", "rtol", "compare parts of open files, as file[path]"),
    ("select exclude dtype cast mapping missing", "copy", "treepack.load takes it"),
    ("dtype cast", "static", "cast the arrays before, as by jax.tree.map"),
    ("mmap max_size storage_options", "on_corrupt", "treepack.open takes it"),
    ("leaves", "source", "use its result, such as digest.leaves or verify(path).leaves"),
    ("quiet verbose", "source", "leave it out: it prints nothing"),
    ("tolerance tol eps", "rtol", "pass rtol= or atol="),
    ("algorithm algo method", "source", "leave it out: there is one kind of digests"),
    ("keep_period", "best", "pass every="),
    ("best_metric best_fn best_mode metric monitor mode", "best", 'pass best=("loss", 1, "min")'),
    ("expect digest", "source", "treepack.load and `treepack verify` have it"),
    (
        "gda_manager",
        "keep_every_n_steps",
        "leave it out: save_checkpoint_multiprocess saves arrays of several processes",
    ),
    ("tree target params pytree args", "metrics", "pass it as state="),
    ("step", "template", "load that step, as by treepack.load(run.path(step), template)"),
    ("mode", "salvage", "leave it out: open reads, and treepack.save writes"),
    ("format", "on_corrupt", "leave it out: the content tells the format"),
    ("filter_spec filter include", "select", "pass select="),
    ("rename transforms names map", "mapping", "pass mapping="),
    ("sep", "separator", "pass separator="),
    ("metrics local", "separator", "save of a treepack.Series takes it"),
    (
        "strict missing mismatched unexpected arrays device unknown containers replicas",
        "separator",
        "treepack.load takes it",
    ),
    ("ignore_mismatched_sizes", "mismatched", 'pass mismatched="target"'),
    ("device_map", "device", "pass device= or sharding="),
    ("verbose show_progress progress_bar pbar", "progress", "pass progress=True"),
    ("lazy", "on_corrupt", "treepack.open reads arrays when they are used"),
    ("checksum checksums check validate", "on_corrupt", "pass verify=True"),
    ("partial partial_restore ignore_missing allow_missing", "missing", 'pass missing="target"'),
    ("restore_args shapes dtypes", "target", "pass jax.ShapeDtypeStructs as target="),
    ("path format", "tree", "treepack.save(path, tree, ...) takes it"),
    (
        "select exclude target template dtype arrays sharding strict cast copy verify on_corrupt",
        "salvage",
        "load of the open file takes it",
    ),
    ("base", "salvage", "treepack.load takes it"),
    ("select exclude", "source", "use its result, such as digest.leaves"),
    (
        "background durable align level metadata sharded format",
        "on_corrupt",
        "leave it out: treepack.save takes it",
    ),
    (
        "durable sharded background mapping separator path format max_shard_size",
        "static",
        "treepack.save has it",
    ),
    ("name", "serialized_name", "pass serialized_name="),
    ("compression gzip zip", "compress", "pass compress=True"),
    ("framework framework_name device", "salvage", "leave it out: arrays are NumPy's"),
    ("lazy lazily", "salvage", "leave it out: arrays are read when they are used"),
    ("weights_only allow_pickle pickle", "mmap", "leave it out: nothing is unpickled"),
    ("object_hook raw strict_map_key ext_hook use_list", "data", "leave it out"),
    ("default use_bin_type indent protocol described", "static", "leave it out"),
    ("threads", "described", "treepack.dumps takes threads="),
    ("save_every save_interval save_interval_steps every_n_steps", "every", "pass every="),
    ("max_to_keep keep_last keep_n last", "keep", "pass keep=treepack.Keep(last=3)"),
    ("max_to_keep keep_last keep_n", "last", "pass last="),
    ("keep_period", "keep", "pass keep=treepack.Keep(every=1000)"),
    ("best_fn best_mode best", "keep", 'pass keep=treepack.Keep(best=("loss", 1, "min"))'),
    (
        "params template target like tree state",
        "mmap",
        'treepack.load(path, {"params": template}, select="params") takes one',
    ),
]


# Names of Orbax's CheckpointManager and of other queues, and what replaces them, by our classes.
OF_CLASSES = {
    kind: by_name(rows)
    for kind, rows in {
        "Series": {
            "restore load": "use resume(target), or treepack.load(run.path(step), target)",
            "latest_step all_steps latest last last_step": "use steps(), as in run.steps()[-1]",
            "wait_until_finished close": "use wait()",
            "best_step": "use best()",
            "delete remove rm": "use keep=treepack.Keep(...), which removes the others",
            "[]": "steps() lists its checkpoints, and treepack.load(run.path(step)) loads one",
        },
        "Publisher": {
            "publish send put update save write set": "use push(tree, version=...)",
            "close wait": "leave it out: a version is published once push returns",
            "latest version versions": "a Subscriber of its directory has latest()",
            "[]": "a Subscriber of its directory reads the versions",
        },
        "Subscriber": {
            "get receive recv read poll pull load fetch": "use latest(template), or wait(template)",
            "subscribe next listen": "use wait(template), which waits for a newer version",
            "close": "leave it out: it holds no connection",
            "version versions": "use latest(template), whose first result is the version",
            "[]": "call wait(template) for each newer version",
        },
        "Saving": {
            "join get value finish wait_until_finished "
            "block_until_ready": "use result(), which waits",
            "is_done ready finished": "use done()",
        },
        "Tree": {
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
        },
        "Verification": {
            "corrupted damaged bad": "use corrupt",
            "valid is_valid is_ok passed success": "use ok",
            "status statuses": "use leaves, a dict of path and status",
            "error errors failures failed": "use corrupt and damage",
            "raise_for_status raise_ check": "treepack.load(path, verify=True) raises",
        },
        "Differences": {
            "paths": "use [each.path for each in differences]",
            "differences": "it is a list of the differences",
            "summary text report": "use str(differences)",
            "ok equal equals same identical is_equal": "use `not differences`: it lists them",
        },
        "Digest": {
            "hex hexdigest digest": "use str(digest)",
            "[]": "leaves[path] is the digest of a leaf",
        },
        "Statistics": {
            "max amax": "use maximum",
            "min amin": "use minimum",
            "nans": "use nan",
            "inf infs": "use infinite",
            "count": "use size",
            "average avg": "use mean",
            "stddev sd": "use std",
        },
        "Report": {
            "missing ignored initialized": "use kept",
            "mismatched": "use kept, or mismatched= of load",
            "extra unused": "use unexpected",
            "restored": "use loaded",
            "damaged corrupted": "use corrupt",
        },
        "Mapping": {
            "load open": "pass it as mapping= to the function of this name",
            "apply convert transform map": "pass it as mapping= to treepack.load or treepack.save",
            "keys items rules": "keep the dict of its rules",
        },
        "LazyArray": {
            "load read array value": "read it by array[...], or a part by array[:10]",
            "at": "use jax.numpy.asarray(array).at",
            "block_until_ready device devices addressable_shards": "use jax.numpy.asarray(array)",
            "sharding": "treepack.abstract(path) has that of the save",
        },
    }.items()
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
