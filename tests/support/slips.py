"""Mistakes in templates, damaged files and arguments, for `test_mistakes`."""

from __future__ import annotations

import base64
import concurrent.futures
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import equinox
import jax.numpy as jnp
import numpy as np

import treepack
from mistakes import Row

PARAMS = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}

TEMPLATES: list[Row] = [
    ("load('model', TREE['params'])",
        r"w: missing.*; is it params/w\?.*\nThe file has these leaves in params: pass "
        r"\{'params': template\} as the template, and take \['params'\] of the loaded tree\.$", [
        "load('model', {'params': TREE['params']})['params']",
        "treepack.open('model')['params'].load(TREE['params'])"]),
    ("load('model', {**TREE['params'], 'ema': np.ones(1)})",
        r"pass \{'params': template\} as .*\nPass missing=\"target\" to [^\n]*$", [
        "load('model', {'params': {**TREE['params'], 'ema': np.ones(1)}}, missing='target')"]),
    ("load('twice', TREE['params'])", r"leaves in params, ema: pass \{'params': template\} as", [
        "load('twice', {'params': TREE['params']})['params']"]),
    ("load('model', {'state': TREE})", r"keys \['params', 'step'\]\)\n.*\nThe file has the "
        r"leaves of state one level higher: pass template\['state'\] as the template\.$", [
        "load('model', TREE)"]),
    ("load('model', [TREE])", r"one level higher: pass template\[0\] as the template\.$", [
        "load('model', TREE)"]),
    ("load('model', Pair(TREE))", r"one level higher: pass template\.a as the template\.$", [
        "load('model', Pair(TREE).a)"]),
    ("load('model', {'params': {'x': TREE['params']}})", "The file has the leaves of params/x in "
        r"params: pass the node x in the place of params\.$", [
        "load('model', {'params': TREE['params']})"]),
    ("load('deep', TREE)", r"The file has the leaves of params in params/x: pass \{'x': \.\.\.\} "
        r"in its place\.$", [
        "load('deep', {**TREE, 'params': {'x': TREE['params']}})"]),
    ("load('model', {'param': TREE['params'], 'step': 3})",
        r"Pass mapping=\{'param': 'params'\} if this is its name in the file", [
        "load('model', {'param': TREE['params'], 'step': 3}, mapping={'param': 'params'})"]),
    ("load('model', {'params': {'ww': TREE['params']['w'], 'bb': TREE['params']['b']}, 'step': 3})",
        "Pass mapping={'params/ww': 'params/w', 'params/bb': 'params/b'} if these are their", [
        "load('model', {'params': {'ww': TREE['params']['w'], 'bb': TREE['params']['b']}, "
        "'step': 3}, mapping={'params/ww': 'params/w', 'params/bb': 'params/b'})"]),
    ("load('model', {**with_w((9, 9)), 'extra': np.ones(2)})",
        r"Pass missing=\"target\".*\nPass mismatched=\"target\" ", [
        "load('model', {**with_w((9, 9)), 'extra': np.ones(2)}, missing='target', "
        "mismatched='target')"]),
    ("load(dumps([np.ones((2, 3)), np.ones(2)]), [np.ones((2, 4)), np.ones(2), np.ones(3)])",
        r"expected 3 elements, .*\nPass missing=\"target\".*\nPass mismatched=\"target\" ", [
        "load(dumps([np.ones((2, 3)), np.ones(2)]), [np.ones((2, 4)), np.ones(2), np.ones(3)],"
        " missing='target', mismatched='target')"]),
    ("load('model', {**TREE, 'params': 3})", "Pass exclude='params' to keep", [
        "load('model', {**TREE, 'params': 3}, exclude='params')"]),
    ("load('model', {**TREE, 'step': {'a': 3, 'b': 4}})", "Pass exclude='step' to keep", [
        "load('model', {**TREE, 'step': {'a': 3, 'b': 4}}, exclude='step')"]),
    ("load('model', with_w((2, 3), np.int32), cast=True)",
        "not cast to each other: pass strict=False, and call astype on the result", [
        "load('model', with_w((2, 3), np.int32), strict=False)['params']['w'].astype(int)"]),
    ("treepack.Subscriber('policy').wait(5)", "for a version, pass newer_than=", [
        "treepack.Subscriber('policy').wait(newer_than=0)"]),
    ("treepack.Series('run').resume(1)", r"for a step, treepack\.load\(run\.path\(step\)\)", [
        "load(treepack.Series('run').path(1))"]),
    ("treepack.Series('run').resume('run')", "This argument is a template: for a part of", [
        "treepack.Series('run').resume(select='step')"]),
]  # fmt: skip

FILES: list[Row] = [
    ("load('lost_manifest')", r"manifest is missing: .*treepack\.open\(directory, salvage=True\)", [
        "open('lost_manifest', salvage=True)['params/w'][:]",
        "salvage('lost_manifest', 'found')", "load('found')"]),
    ("load('lost_shard')", r"-00000\.treepack is missing: copy it, too, or ", [
        "open('lost_shard', salvage=True).damage"]),
    ("load('junk_before')", r"trailing bytes .*: something was added before or after it, or line "
        "ends were changed; copy the file again, in binary mode", [
        "pathlib.Path('junk_before').write_bytes(bytes_of('model'))", "load('junk_before')"]),
    ("treepack.loads(padded(TREE))", "of a longer buffer, pass only the value's bytes", [
        "treepack.loads(padded(TREE)[:treepack.packed_size(TREE, described=True)])"]),
    ("load('cut.gz')", "end-of-stream marker was reached: copy it again", [
        "save('cut.gz', TREE, compress=True)", "load('cut.gz')"]),
    ("list(treepack.read_stream('of_flax'))", r"bytes\]: treepack\.load reads other files", [
        "load('of_flax')"]),
    ("load('several.npy')", r"bytes follow the array; equinox\.tree_deserialise_leaves reads", [
        "equinox.tree_deserialise_leaves('several.npy', [np.ones(3), np.ones(2)])"]),
    ("open('readings')['a/b/c']", r"several readings: 'a~1b/c', 'a/b~1c'|'a/b~1c', 'a~1b/c'", [
        "open('readings')['a~1b/c']", "open('readings')['a/b~1c']"]),
    ("file['params/kernel']", r"nothing at params/kernel: params has w, b$", ["file['params/w']"]),
    ("file['kernels']", r"nothing at kernels: it has params, step$", ["file['params']"]),
    ("file['metadata']", r"nothing at metadata: is it file\.metadata\?", ["file.metadata"]),
    ("file.__setitem__('step', 1)", r"read-only: change the arrays of file.load", [
        "load('model', copy=True).__setitem__('step', 1)",
        "file.load(copy=True).__setitem__('step', 1)"]),
    ("file['params/w'].__setitem__(0, 1)", r"read-only: change the arrays of file.load", [
        "file.load(copy=True)['params']['w'].__setitem__(0, 1)"]),
    ("load('model', {'params': TREE['params']}, unexpected='error')", 'unexpected="ignore" to', [
        "load('model', {'params': TREE['params']}, unexpected='ignore')"]),
]  # fmt: skip

SLIPS: list[Row] = [
    ("dumps('x', TREE)", r"^dumps\(\) takes a tree, .* treepack\.save\(path, tree\) writes f", [
        "save('x', TREE)", "dumps(TREE)"]),
    ("treepack.buffers(TREE, True)", r"call it as buffers\(tree\), and name the rest, as in", [
        "treepack.buffers(TREE, described=True)"]),
    ("treepack.pack_into(TREE)", r"call it as pack_into\(tree, buffer\)$", [
        "treepack.pack_into(TREE, bytearray(treepack.packed_size(TREE)))"]),
    ("treepack.Series('run').metrics()", r"call it as metrics\(step\)$", [
        "treepack.Series('run').metrics(2)"]),
    ("treepack.Series('run').save(9, TREE, loss=0.5)", r'in metrics=, such as metrics=\{"loss"', [
        "treepack.Series('run').save(9, TREE, metrics={'loss': 0.5})"]),
    ("treepack.Series('run').resume(TREE, step=1)", r"treepack\.load\(run\.path\(step\), temp", [
        "load(treepack.Series('run').path(1), TREE)"]),
    ("treepack.Series('model').save(1, TREE)", "Series writes a directory: choose another name", [
        "treepack.Series('run5').save(1, TREE)"]),
    ("in_thread(treepack.Series('run').preemption().__enter__)", "only the main thread receives", [
        "treepack.Series('run').preemption().__enter__()"]),
    ("open('model', mode='w')", "'mode': leave it out: open reads, and treepack.save writes$", [
        "open('model')", "save('x', TREE)"]),
    ("load('a.safetensors', format='safetensors')", "'format': leave it out", [
        "load('a.safetensors')"]),
    ("checkpoints.save_checkpoint(TREE, 'series2', 5)", "path of a directory, which comes first", [
        "checkpoints.save_checkpoint('series2', TREE, 5)"]),
    ("serialization.load_from_file('of_flax', TREE)", r"zation\.load_from_file\(tree, path", [
        "serialization.load_from_file(TREE, 'of_flax')"]),
    ("serialization.from_bytes(dumps(TREE), TREE)", r"got dict; .*from_bytes\(target, data\)$", [
        "serialization.from_bytes(TREE, dumps(TREE))"]),
    ("serialization.msgpack_restore('of_flax')", "got the path 'of_flax': use treepack.load", [
        "load('of_flax')"]),
    ("serialization.decompress_bytes(b'hello')", "not compressed: use them as they are", [
        "b'hello'"]),
    ("save('x', TREE, format='msgpack')", r"got 'msgpack': leave it out; the suffix \.msgpack", [
        "save('x', TREE)", "save('x.msgpack', TREE)"]),
    ("save('x.treepack', TREE['params'], max_shard_size=9)", r"files with the suffix \.safeten", [
        "save('new', TREE['params'], format='safetensors', max_shard_size=9)"]),
    ("save('x.safetensors', TREE['params'], rename={'w': 'v'})", "unexpected keyword.*'rename'", [
        "save('x.safetensors', TREE['params'], mapping={'w': 'v'})"]),
    ("save('x.safetensors', TREE['params'], mapping={'w': 'l.{l}.w'})", "write axes to stack", [
        "save('x.safetensors', TREE['params'], mapping={'w': ('l.{l}.w', 'a -> l a')})"]),
    ("dumps({}, metadata=np.ones(9999))", "save larger ones as leaves of the tree", [
        "dumps({'a': np.ones(9999)})"]),
    ("treepack.apply_delta(dumps(TREE, base=TREE), packed(TREE))", "by buffers or pack_into with", [
        "treepack.apply_delta(dumps(TREE, base=TREE), bytearray(dumps(TREE)))",
        "treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), packed(TREE))"]),
    ("treepack.apply_delta(packed(TREE), dumps(TREE, base=TREE))", "the patch comes first, as in", [
        "treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), packed(TREE))"]),
    ("treepack.apply_delta(dumps(TREE, base=TREE), TREE)", r"dict: treepack.loads\(patch, bas", [
        "treepack.loads(dumps(TREE, base=TREE), base=TREE)"]),
    ("treepack.apply_delta(TREE, packed(TREE))", r"dict: pass b\"\"\.join\(buffers\(", [
        "treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), packed(TREE))"]),
    ("treepack.pack_into(TREE, 5)", r"got int: pass a bytearray of packed_size\(tree\) bytes$", [
        "treepack.pack_into(TREE, bytearray(treepack.packed_size(TREE)))"]),
    ("serialization.from_state_dict((TREE,), (TREE,))", r"path \.: pass to_state_dict\(st", [
        "serialization.from_state_dict((TREE,), serialization.to_state_dict((TREE,)))"]),
    ("run('diff', 'run', '1', '2')", "run/step_2", [
        "run('diff', 'run/step_1', 'run/step_2')"]),
    ("run('info', 'run', '2')", "run/step_2", [
        "run('info', 'run/step_2')"]),
    ("load('foo://x')", "Protocol not known: foo: treepack reads s3://, gs://.* memory://", [
        "save('memory://slips/x', TREE)", "load('memory://slips/x')"]),
    ("treepack.loads(encoded(TREE))", r"got base64 text: .* base64\.b64decode\(text\)$", [
        "treepack.loads(base64.b64decode(encoded(TREE)))"]),
    ("treepack.loads(encoded(TREE).encode())", r"looks like base64 text: .* base64\.b64decode\(", [
        "treepack.loads(base64.b64decode(encoded(TREE).encode()))"]),
    ("treepack.loads(dumps(TREE).hex())", r"got hexadecimal text: .* bytes\.fromhex\(text\)$", [
        "treepack.loads(bytes.fromhex(dumps(TREE).hex()))"]),
    ("treepack.loads('a.b/' * 9999)", r"got the path '(a\.b/)+a\.b: use treepack.load for files$", [
        "load('model')"]),
    ("treepack.diff('model', 'base', rtol=-1)", "rtol must be a number of at least 0, such as 1e", [
        "treepack.diff('model', 'base', rtol=1e-6)"]),
    ("load('elsewhere/patch', base=['base'])", "got a list of paths, .*: pass one file", [
        "load('elsewhere/patch', base='base')"]),
    ("load('elsewhere/patch', base=open('base')['params'])", "got Tree, .*: pass the File, or", [
        "load('elsewhere/patch', base=open('base'))"]),
    ("run('version')", "use `treepack -V`", ["run('-V')"]),
    ("run('head', 'model')", "use `treepack ls`, or `treepack show FILE PATH`", [
        "run('ls', 'model')", "run('show', 'model', 'params/w')"]),
    ("run('show', 'model', 'params/w', '--rows', '3')", r"treepack\.open\(FILE\)\[PATH\]\[:3\]", [
        "open('model')['params/w'][:3]"]),
    ("run('get', 'model', 'params/*', 'x')", "or `treepack convert --select`", [
        "run('convert', 'model', 'x', '--select', 'params/*')"]),
    ("dumps({'a': deleted()})", "deleted or donated: save it before, or save what the call", [
        "dumps({'a': jnp.ones(3)})"]),
    ("dumps({'__treepack__': 1})", "it marks .*; choose another key", ["dumps({'treepack_': 1})"]),
    ("treepack.register_dataclass(renamed(), serialized_name='New')", r"aliases=\['New'\]$", [
        "treepack.register_dataclass(dataclasses.make_dataclass('R', ['a']), serialized_name='Old2'"
        ", aliases=['New'])"]),
]  # fmt: skip


def renamed() -> type:
    """Returns a dataclass that is registered."""
    made = dataclasses.make_dataclass("Renamed", ["a"])
    return treepack.register_dataclass(made, serialized_name="Old")


def packed(tree: Any, **options: Any) -> bytearray:
    """Returns the result of `pack_into`."""
    buffer = bytearray(treepack.packed_size(tree, **options))
    treepack.pack_into(tree, buffer, **options)
    return buffer


def padded(tree: Any) -> bytearray:
    """Returns a buffer that is longer than its tree."""
    return packed(tree, described=True) + bytes(8)


def deleted() -> Any:
    """Returns an array whose memory is gone."""
    array = jnp.ones(3)
    array.delete()
    return array


def encoded(tree: Any) -> str:
    """Returns an encoding as text."""
    return base64.b64encode(treepack.dumps(tree)).decode()


def in_thread(work: Callable[[], Any]) -> Any:
    """Calls a function in another thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


HERE_TOO = {
    it.__name__: it
    for it in (renamed, packed, padded, deleted, encoded, in_thread, equinox, base64)
}
"""The names that only these rows use."""


def make_slips() -> None:
    """Makes the files that only these rows read, in the working directory."""
    treepack.save("twice", {"params": PARAMS, "ema": PARAMS, "step": 3})
    treepack.save("deep", {"params": {"x": PARAMS}, "step": np.int32(3)})
    for name in ("lost_manifest", "lost_shard"):
        treepack.save(name, {"params": {"w": jnp.ones(3), "b": jnp.ones(2)}}, sharded=True)
    pathlib.Path("lost_manifest/manifest.treepack").unlink()
    next(pathlib.Path("lost_shard").glob("*-00000.treepack")).unlink()
    treepack.save("readings", {"a": {"b/c": 1}, "a/b": {"c": 2}})
    equinox.tree_serialise_leaves("several.npy", [np.ones(3), np.ones(2)])
    data = pathlib.Path("model").read_bytes()
    pathlib.Path("junk_before").write_bytes(b"HTTP/1.1 200 OK\r\n\r\n" + data)
    treepack.save("cut.gz", {"w": np.random.default_rng(0).random(9999)}, compress=True)
    whole = pathlib.Path("cut.gz").read_bytes()
    pathlib.Path("cut.gz").write_bytes(whole[:-300])
