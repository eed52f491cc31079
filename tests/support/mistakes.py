"""Mistakes in runs, published versions, patches, arguments and trees, for `test_mistakes`."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

import treepack

# Each row: a mistake, the error that it raises, and cures.
Row = tuple[str, str, list[str]]

RUNS: list[Row] = [
    ("treepack.CheckpointManager('run')", "use treepack.Series, or .* treepack.orbax", [
        "treepack.Series('run')"]),
    ("treepack.Series('run').latest_step()", r"use steps\(\), as in run\.steps\(\)\[-1\]", [
        "treepack.Series('run').steps()[-1]"]),
    ("treepack.Series('run').restore(2)", r"use resume\(target\), or .*path\(step\), target\)", [
        "load(treepack.Series('run').path(2), TREE)", "treepack.Series('run').resume(TREE)"]),
    ("treepack.Series('run').save(TREE, 4)", "step must be an integer, .* as in save.step, state", [
        "treepack.Series('run').save(4, TREE)"]),
    ("treepack.Series('run').resume(TREE, verify='none')", "must be 'manifest' or 'all'", [
        "treepack.Series('run').resume(TREE, verify='manifest')"]),
    ("treepack.Series('series', prefix='checkpoint_').resume()",
        "^(?!.*leave out).*; pass verify=.manifest. to resume", [
        "treepack.Series('series', prefix='checkpoint_').resume(verify='manifest')"]),
    ("treepack.Keep(3)", r"rules have names: pass Keep\(last=3\)", ["treepack.Keep(last=3)"]),
    ("treepack.Keep(lst=3)", "unexpected keyword argument 'lst': is it 'last'", [
        "treepack.Keep(last=3)"]),
    ("treepack.Series('run').best()", r"requires a metric, as in best\(.loss., .min.\), or keep=", [
        "treepack.Series('run').best('loss', 'min')",
        "treepack.Series('run', keep=treepack.Keep(best=('loss', 1, 'min'))).best()"]),
    ("treepack.Series('run').best('loss')", r'best\("loss", "min"\) for the least, or be.*max', [
        "treepack.Series('run').best('loss', 'max')"]),
    ("treepack.Series('run').best('los', 'min')", r'has the metric "los": is it "loss"\?', [
        "treepack.Series('run').best('loss', 'min')"]),
    ("treepack.Series('scores').path(treepack.Series('scores').best('loss', 'min'))",
        r'as best\(\) returns while no .* metrics: pass save\(\.\.\., metrics=\{"loss": loss\}\)', [
            "treepack.Series('scores').save(1, TREE, metrics={'loss': 0.5})",
            "treepack.Series('scores').path(treepack.Series('scores').best('loss', 'min'))"]),
    ("treepack.Keep(best=('accuracy', 2))",
        r'pass best=\("accuracy", 2, "min"\) for the least, or best=\("accuracy", 2, "max"', [
            "treepack.Keep(best=('accuracy', 2, 'max'))"]),
    ("treepack.Keep(best=('loss', 1, 'minimum'))", "1, .min..* for the least, .*got 'minimum'", [
        "treepack.Keep(best=('loss', 1, 'min'))"]),
    ("treepack.Series('run').save(9, TREE, metrics={'loss': '0.5'})",
        r"metrics\['loss'\] must be a number, got '0.5': pass float", [
            "treepack.Series('run').save(9, TREE, metrics={'loss': float('0.5')})"]),
    ("treepack.Keep(last='3')", "last must be an integer of at least 1, got '3'", [
        "treepack.Keep(last=3)"]),
    ("treepack.Series('run', keep=3)", r"must be a treepack\.Keep, such as Keep\(last=3\)", [
        "treepack.Series('run', keep=treepack.Keep(last=3))"]),
    ("treepack.Series('run').save(9, TREE, {'loss': 1})", r"name the rest, as in metrics=\{", [
        "treepack.Series('run').save(9, TREE, metrics={'loss': 1})"]),
    ("treepack.Publisher('pub').push(1, TREE)", "required keyword-only argument: 'version'", [
        "treepack.Publisher('pub').push(TREE, version=1)"]),
    ("treepack.Subscriber('policy').latest({'v': 1, 'step': 3})", 'v: missing.*missing="target"', [
        "treepack.Subscriber('policy').latest({'v': 1, 'step': 3}, missing='target')"]),
    ("open('model', 'w')", r"open\(\) takes one path, and reads it: treepack\.save wr", [
        "open('model')", "save('x', TREE)"]),
    ("load('model', TREE, False)", "name the rest, as in strict=False", [
        "load('model', TREE, strict=False)"]),
    ("open('elsewhere/patch')", r"this is a patch: pass base=.*to load or loads", [
        "load('elsewhere/patch', base='base')"]),
    ("run('ls', 'elsewhere/patch')", "this is a patch: .*--base to `treepack convert`", [
        "run('convert', 'elsewhere/patch', 'whole', '--base', 'base')", "run('ls', 'whole')"]),
    ("load('lost')", "lost is a patch of this file, which is missing: put it there,.*: 'gone'", [
        "load('lost', base='base')", "run('convert', 'lost', 'whole', '--base', 'base')",
        "save('gone', TREE)", "load('lost')"]),
    ("load('partial')", r"register_function, called before the save, keeps it$", [
        "treepack.register_function(half)", "save('partial', partial())", "load('partial')"]),
]  # fmt: skip

TREES: list[Row] = [
    ("load('model', {'x': 1}, mapping={'x': 'parms'})", r"file has no parms.*; is it 'params'\?", [
        "load('model', {'x': TREE['params']}, mapping={'x': 'params'})"]),
    ("load('model', TREE, sharding=NamedSharding(mesh, P('tp')))",
        "cannot place an array of shape .*; pass a function of path and shape as sharding=, or", [
            "load('model', TREE, sharding=lambda path, leaf: NamedSharding(mesh, P()))",
            "load('model', TREE, sharding={'params': NamedSharding(mesh, P()), 'step': None})"]),
    ("dumps({'a': np.random.default_rng(0)})", r"save its \.bit_generator\.state", [
        "dumps({'a': np.random.default_rng(0).bit_generator.state})"]),
    ("dumps({'a': np.random.PCG64(0)})", r"save its \.state", [
        "dumps({'a': np.random.PCG64(0).state})"]),
    ("dumps({'a': np.random.RandomState(0)})", r"save its \.get_state\(\)", [
        "dumps({'a': np.random.RandomState(0).get_state()})"]),
    ("loads(dumps(jax.random.PRNGKey(0)), jax.random.key(0))",
        r"in place of jax\.random\.key_data\(key\), and call jax\.random\.wrap_key_data", [
            "jax.random.wrap_key_data("
            "loads(dumps(jax.random.PRNGKey(0)), jax.random.key_data(jax.random.key(1))))"]),
    ("loads(dumps(jax.random.key(0)), jax.random.PRNGKey(0))",
        r"in place of a jax\.random\.key, and call jax\.random\.key_data", [
            "jax.random.key_data(loads(dumps(jax.random.key(0)), jax.random.key(1)))"]),
    ("dataclasses.dataclass(treepack.register_dataclass(type('B', (), {}), serialized_name='B'))",
        "put @register_dataclass above @dataclass", [
            "treepack.register_dataclass(dataclasses.dataclass(type('B', (), {})),"
            " serialized_name='B')"]),
    ("save('folder/', TREE)", r"save\(..., sharded=True\) writes a directory", [
        "save('folder/', TREE, sharded=True)", "load('folder/')"]),
    ("load('owner/Model-7B-v0.1')", r"huggingface_hub\.snapshot_download\('owner/Model-7B-v0", [
        "save('owner/Model-7B-v0.1', TREE, sharded=True)", "load('owner/Model-7B-v0.1')"]),
]  # fmt: skip


class Tensor:
    """An array of a library that NumPy converts."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.ones(3)


class Capsule:
    """An array of a library that only exports it."""

    def __dlpack__(self, **options: Any) -> Any:
        return np.ones(3).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def leaves(is_copied: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a file that is closed afterwards."""
    with treepack.open("model") as file:
        for path, leaf in file.leaves():
            yield path, np.asarray(leaf) if is_copied else leaf


def save_in_block() -> None:
    with treepack.open("model") as file:
        treepack.save("x", file.leaves())


HERE = {
    **{it.__name__: it for it in (Tensor, Capsule, leaves, save_in_block, array, ctypes)},
    "FLAT": {"params/w": np.ones(2), "step": 3},
}
"""The names that only `CALLS` uses."""

# Names, options and calls of other libraries, and arrays of theirs.
CALLS: list[Row] = [
    ("treepack.Series('run', save_every=10)", "'save_every': pass every=$", [
        "treepack.Series('run', every=10)"]),
    ("treepack.Series('run', max_to_keep=3)", r"pass keep=treepack\.Keep\(last=3\)$", [
        "treepack.Series('run', keep=treepack.Keep(last=3))"]),
    ("treepack.Series('run', best_fn=min)", r"keep=treepack\.Keep\(best=\(.loss., 1, .min.\)\)$", [
        "treepack.Series('run', keep=treepack.Keep(best=('loss', 1, 'min')))"]),
    ("treepack.Series('run', keep_period=9)", r"pass keep=treepack\.Keep\(every=1000\)$", [
        "treepack.Series('run', keep=treepack.Keep(every=1000))"]),
    ("treepack.Series('run', colour=1)", r"^Series\(\) got .*'colour'; it has path, keep, every", [
        "treepack.Series('run', seconds=1)"]),
    ("treepack.Series('run', 3)", r"call it as Series\(path\), and name the rest, as in keep=$", [
        "treepack.Series('run', keep=treepack.Keep(last=3))"]),
    ("treepack.Series('run', every='10')", "every must be an integer of at least 1, got '10'", [
        "treepack.Series('run', every=10)"]),
    ("treepack.Keep(max_to_keep=3)", "'max_to_keep': pass last=$", ["treepack.Keep(last=3)"]),
    ("treepack.Series('run').save(TREE)", r"'state': call it as save\(step, state\)$", [
        "treepack.Series('run').save(9, TREE)"]),
    ("treepack.Series('run').save(9, TREE, exclude='params')", "'exclude': pass a part of the st", [
        "treepack.Series('run').save(9, {'step': TREE['step']})"]),
    ("treepack.Series('run').resume(target=TREE)", "'target': pass it as template=$", [
        "treepack.Series('run').resume(template={'step': TREE['step']})"]),
    ("treepack.Series('run').steps[-1]", r"steps is a method: call it, as in steps\(\)\[-1\]$", [
        "treepack.Series('run').steps()[-1]"]),
    ("list(treepack.Series('run').steps)", "steps is a method: call it", [
        "list(treepack.Series('run').steps())"]),
    ("treepack.Series('model').steps()", "Not a directory: .*pass a directory; treepack.load rea", [
        "treepack.Series('run').steps()", "load('model')"]),
    ("treepack.Publisher('model')", "Not a directory: .*pass a directory; treepack.load reads a", [
        "treepack.Publisher('pub2')", "load('model')"]),
    ("treepack.Subscriber('model').latest()", "Not a directory: .*pass a directory; treepack", [
        "treepack.Subscriber('policy').latest()"]),
    ("load('model/params')", r"is a file, and 'params' a path .*open\('.*model'\)\['params'\]", [
        "open('model')['params']"]),
    ("save('model/x', TREE)", "a folder above it is a file: choose another folder", [
        "save('folder2/x', TREE)"]),
    ("open('pickles')['mlp/~/*/w']", r"no wildcards here: call load\(select='mlp/~/\*/w'\)", [
        "load('pickles', select='mlp~1~0~1*/w')"]),
    ("treepack.Publisher('pub3').publish(TREE)", r"'publish': use push\(tree, version=\.\.\.\)$", [
        "treepack.Publisher('pub3').push(TREE, version=1)"]),
    ("treepack.Publisher('pub4').push(TREE)", r"call it as push\(tree, version=\.\.\.\)$", [
        "treepack.Publisher('pub4').push(TREE, version=1)"]),
    ("treepack.Subscriber('policy').get()", r"use latest\(template\), or wait\(template\)$", [
        "treepack.Subscriber('policy').latest(TREE)", "treepack.Subscriber('policy').wait(TREE)"]),
    ("treepack.Subscriber('polic').wait(timeout=1e-9)",
        "no Publisher has pushed to this directory: is it its path", [
            "treepack.Subscriber('policy').wait(timeout=1)"]),
    ("treepack.apply_delta(dumps(TREE, base=TREE), dumps(TREE))",
        r"pass bytearray\(data\); treepack.loads\(patch, base=data\) leaves data", [
            "treepack.apply_delta(dumps(TREE, base=TREE), bytearray(dumps(TREE)))",
            "loads(dumps(TREE, base=TREE), base=dumps(TREE))"]),
    ("load('model', template=TREE)", "'template': pass it as target=$", [
        "load('model', target=TREE)"]),
    ("load('model', map_location='cpu')", "'map_location': pass device=$", [
        "load('model', device=jax.devices()[0])"]),
    ("load('model', sharding='cpu')", r"got 'cpu': pass jax.devices\('cpu'\)\[0\]\n", [
        "load('model', sharding=jax.devices('cpu')[0])"]),
    ("load('model', device='cpu:1')", r"pass jax.devices\('cpu'\)\[1\]", [
        "load('model', device=jax.devices('cpu')[1])"]),
    ("load('model', dtype={'params/w': 'bfloat16'})", "pass a target with them, and cast=True", [
        "load('model', with_w((2, 3), jnp.bfloat16), cast=True)"]),
    ("open('model', lazy=True)", "'lazy': leave it out: arrays are read when they are used$", [
        "open('model')"]),
    ("open('variable')['kernel'].shape", r"is it \['value'\].shape\?$", [
        "open('variable')['kernel']['value'].shape"]),
    ("load('all.zip/model')", "'all.zip' is an archive: is it 'zip://model::all.zip'", [
        "load('zip://model::all.zip')"]),
    ("load(f'simplecache::{pathlib.Path.cwd()}/model')", "is it 'simplecache::file:///.*/model'", [
        "load(f'simplecache::file://{pathlib.Path.cwd()}/model')"]),
    ("load('zip://model')", "as in zip://model.treepack::all.zip", [
        "load('zip://model::all.zip')"]),
    ("load('model', weights_only=True)", "'weights_only': leave it out: nothing is unpickled$", [
        "load('model')"]),
    ("load('a.safetensors', framework='np')", "'framework': pass arrays=.numpy. or .jax.$", [
        "load('a.safetensors', arrays='numpy')"]),
    ("load('model', filter_spec='step')", "'filter_spec': pass select=$", [
        "load('model', select='step')"]),
    ("save('x', TREE, overwrite=True)", "'overwrite': leave it out: saving always replaces$", [
        "save('x', TREE)", "save('x', TREE)"]),
    ("save('x', TREE, mode='w')", "'mode': leave it out: saving always replaces$", [
        "save('x', TREE)"]),
    ("save('x', TREE, async_=True)", "'async_': pass background=True to write in a thread$", [
        "save('x', TREE, background=True).result()"]),
    ("save('x', TREE, gzip=True)", "'gzip': pass compress=True$", [
        "save('x', TREE, compress=True)"]),
    ("save('x', TREE, skip_keys='opt_state')", "'skip_keys': pass exclude=$", [
        "save('x', {**TREE, 'opt_state': 1}, exclude='opt_state')", "load('x', TREE)"]),
    ("treepack.diff('model')", r"'other': call it as diff\(one, other\)$", [
        "treepack.diff('model', 'base')"]),
    ("verify('model', depth=1)", r"^verify\(\) got .*'depth'; it has source, ", [
        "verify('model')"]),
    ("load(['model', 'base'])", "got list: pass one of them at a time$", [
        "[load(path) for path in ['model', 'base']]"]),
    ("load('*.safetensors')", "a path has no wildcards: pass one of '.*a.safetensors'", [
        "load('a.safetensors')"]),
    ("load('a')", r"is it 'a\.(npz|safetensors)'\?$", ["load('a.npz')", "load('a.safetensors')"]),
    ("load('run/1')", "is it 'run/step_1'", ["load('run/step_1')"]),
    ("treepack.diff('a.npz', 'zz.npz')", "there are .*'a.npz'", [
        "treepack.diff('a.npz', 'a.npz')"]),
    ("treepack.abstract(TREE)", r"got dict: .*call jax\.eval_shape\(lambda: tree\)$", [
        "jax.eval_shape(lambda: TREE)", "treepack.abstract(dumps(TREE))"]),
    ("load('pickles', select='mlp/~/lin*/w')", r"is it 'mlp~1~0~1lin\*/w'\?$", [
        "load('pickles', select='mlp~1~0~1lin*/w')"]),
    ("load('pickles', select='mlp/~/**')", r"is it 'mlp~1~0~1\*/\*\*'\?$", [
        "load('pickles', select='mlp~1~0~1*/**')"]),
    ("save('x', leaves())", r"keep it open .*until save returns.*numpy\.asarray\(leaf\)", [
        "save_in_block()", "save('x', leaves(is_copied=True))"]),
    ("save('x', dict(leaves()))", r"keep it open while.*numpy\.asarray\(leaf\)", [
        "save('x', dict(leaves(is_copied=True)))"]),
    ("save('x', FLAT.items())", r"dict_items: save dict\(\.\.\.\) of it, or iter\(\.\.\.\) of it", [
        "save('x', dict(FLAT.items()))", "save('x', iter(FLAT.items()))"]),
    ("dumps({'a': FLAT.keys()})", r"at a: .*dict_keys: save list\(\.\.\.\) of it", [
        "dumps({'a': list(FLAT.keys())})"]),
    ("dumps({'a': iter([1])})", r"at a: .*save list\(\.\.\.\) of it, or .*save\(path, iterator\)", [
        "dumps({'a': list(iter([1]))})", "save('x', iter([('a', 1)]))"]),
    *[
        (f"{verb}, static='{static}')", rf"at a: .*save {text}\(\.\.\.\)", [cure])
        for static in ("skip-code", "skip", "error")
        for value, text, made in [
            ("Tensor()", r"numpy\.asarray", "np.asarray(Tensor())"),
            ("Capsule()", r"numpy\.from_dlpack", "np.from_dlpack(Capsule())"),
            ("array.array('f', [1])", r"numpy\.asarray", "np.asarray(array.array('f', [1]))"),
            ("(ctypes.c_int * 2)()", r"numpy\.asarray", "np.asarray((ctypes.c_int * 2)())"),
        ]
        for verb, cure in [
            (f"dumps({{'a': {value}}}", f"dumps({{'a': {made}}})"),
            (f"save('t.safetensors', {{'a': {value}}}", f"save('t.safetensors', {{'a': {made}}})"),
        ]
    ],
]  # fmt: skip
