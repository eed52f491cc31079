"""Values of other kinds in the place of numbers, leaves, indices and types, for `test_mistakes`."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import types
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
from mistakes import Row

NUMBERS: list[Row] = [
    (
        "treepack.Series('run').save(True, TREE)",
        r"step must be an integer, got True: pass int\(step\)$",
        ["treepack.Series('run').save(int(3.0), TREE)"],
    ),
    (
        "treepack.Series('run').save(3.0, TREE)",
        r"step must be an integer, got 3.0: pass int\(step\)$",
        ["treepack.Series('run').save(int(3.0), TREE)"],
    ),
    (
        "treepack.Series('run').path('2')",
        r"step must be an integer, got '2': pass int\(step\)$",
        ["load(treepack.Series('run').path(int('2')))"],
    ),
    (
        "treepack.Series('run').should_save(True)",
        "step must be an integer, got True: ",
        ["treepack.Series('run').should_save(1)"],
    ),
    (
        "treepack.Series('run', every=1.5)",
        "every must be an integer of at least 1, got 1.5$",
        ["treepack.Series('run', every=1)"],
    ),
    (
        "treepack.Series('run', seconds=True)",
        "seconds must be a number above 0, such as 10, got True$",
        ["treepack.Series('run', seconds=10)"],
    ),
    (
        "treepack.Series('run', sharded='yes')",
        "sharded must be True, False or None, got 'yes'$",
        ["treepack.Series('run', sharded=True)"],
    ),
    (
        "treepack.Keep(every=1.5)",
        "every must be an integer of at least 1, got 1.5$",
        ["treepack.Keep(every=1)"],
    ),
    (
        "treepack.Keep(last=True)",
        "last must be an integer of at least 1, got True$",
        ["treepack.Keep(last=1)"],
    ),
    (
        "treepack.Keep(best=('loss', True, 'min'))",
        "the number of checkpoints to keep .at least 1.* True, ",
        ["treepack.Keep(best=('loss', 1, 'min'))"],
    ),
    (
        "treepack.Publisher('policy').push(TREE, version=True)",
        "version must be an integer, got True: pass the step$",
        ["treepack.Publisher('policy').push(TREE, version=2)"],
    ),
    (
        "treepack.Publisher('policy', anchor_every=True)",
        "anchor_every must be an integer of at least 1, got True$",
        ["treepack.Publisher('policy', anchor_every=1)"],
    ),
    (
        "treepack.Publisher('policy', durable='no')",
        "durable must be True or False, got 'no'$",
        ["treepack.Publisher('policy', durable=False)"],
    ),
    (
        "treepack.Subscriber('policy').wait(newer_than=True)",
        "newer_than must be an integer, got True: pass the number of a version$",
        ["treepack.Subscriber('policy').wait(newer_than=0)"],
    ),
    (
        "save('x', TREE, step=True)",
        "step must be an integer, got True$",
        ["save('x', TREE, step=1)"],
    ),
    (
        "load('model', max_size=True)",
        r"max_size must be a number of bytes .*, such as 10\*\*9, got True$",
        ["load('model', max_size=10**9)"],
    ),
    (
        "load('a.gz', max_size=10)",
        "exceeds max_size=10 bytes: pass a larger max_size=, if you trust the data$",
        ["load('a.gz', max_size=10**6)"],
    ),
    (
        "treepack.pack_into(TREE, bytearray(999), offset='0')",
        "offset must be an integer, got '0'$",
        ["treepack.pack_into(TREE, bytearray(999), offset=0)"],
    ),
    (
        "treepack.apply_delta(b'', bytearray(9), offset=True)",
        "offset must be an integer, got True$",
        ["treepack.pack_into(TREE, bytearray(999), offset=1)"],
    ),
    (
        "treepack.packed_size(TREE, described='no')",
        "described must be True or False, got 'no'$",
        ["treepack.packed_size(TREE, described=False)"],
    ),
    (
        "open('model', salvage='no')",
        "salvage must be True or False, got 'no'$",
        ["open('model', salvage=False)"],
    ),
    (
        "treepack.diff('model', 'base', stats='yes')",
        "stats must be True or False, got 'yes'$",
        ["treepack.diff('model', 'base', stats=True)"],
    ),
    (
        "treepack.register_dataclass(Bare, serialized_name='Bare', version=True)",
        r"version must be an integer from 0 to 2\*\*32-1, got True$",
        ["treepack.register_dataclass(Bare, serialized_name='Bare', version=1)"],
    ),
    (
        "treepack.Series('run').save(3, TREE, metrics={1: 0.5})",
        'the names of metrics must be strings, such as "loss", got 1$',
        ["treepack.Series('run').save(3, TREE, metrics={'1': 0.5})"],
    ),
    (
        "treepack.Series('run').save(3, TREE, metrics={'loss': None})",
        "must be a number, got None: leave it out$",
        ["treepack.Series('run').save(3, TREE, metrics={})"],
    ),
    (
        "treepack.Series('run').save(3, TREE, metrics={'loss': np.ones(3)})",
        r"pass one number, such as float\(value.mean\(\)\)$",
        ["treepack.Series('run').save(3, TREE, metrics={'loss': float(np.ones(3).mean())})"],
    ),
    (
        "treepack.Series('run').save(3, TREE, metrics={'loss': 'low'})",
        "must be a number, got 'low': pass text in metadata=$",
        ["treepack.Series('run').save(3, TREE, metadata={'loss': 'low'})"],
    ),
]
"""Bools, fractions and texts in the place of numbers, and numbers in the place of others."""

LEAVES_TOO: list[Row] = [
    (
        "load('jax', {'w': split})",
        r"w: expected a sharding \(NamedSharding\), found float32\[2\]\n"
        r"Pass shardings as sharding=, or in jax.ShapeDtypeStruct\(shape, dtype, sharding=",
        [
            "load('jax', sharding={'w': split})",
            "load('jax', {'w': jax.ShapeDtypeStruct((2,), jnp.float32, sharding=split)})",
        ],
    ),
    (
        "load('jax', {'w': P('x')})",
        r"w: expected a sharding \(P\w*\), .*Pass shardings as sharding=",
        ["load('jax', sharding={'w': split})"],
    ),
    (
        "load('jax', {'w': jax.devices()[0]})",
        r"w: expected a sharding \(\w*Device\), .*Pass shardings as sharding=",
        ["load('jax', sharding={'w': jax.devices()[0]})"],
    ),
    (
        "load('jax', {'w': jnp.float32})",
        r"w: expected a dtype \(float32\), .*pass jax.ShapeDtypeStruct\(shape, dtype\)\.",
        ["load('jax', {'w': jax.ShapeDtypeStruct((2,), jnp.float32)})"],
    ),
    (
        "load('jax', {'w': np.dtype('float32')})",
        r"w: expected a dtype \(float32\), .*pass jax.ShapeDtypeStruct\(shape, dtype\)\.",
        ["load('jax', {'w': jax.ShapeDtypeStruct((2,), np.dtype('float32'))})"],
    ),
    (
        "load('jax', {'w': np.float32})",
        r"w: expected a dtype \(float32\), .*pass jax.ShapeDtypeStruct\(shape, dtype\)\.",
        ["load('jax', {'w': jax.ShapeDtypeStruct((2,), np.float32)})"],
    ),
    (
        "load('model', (np.ones(1), 2, 3))",
        r"expected 3 elements, found a subtree with the keys \['params', 'step'\]\n"
        "The file has a dict there: pass one with its keys in place of the list or tuple",
        ["load('model', {'params': TREE['params'], 'step': 3})"],
    ),
    (
        "load('jax', {'w': jnp.zeros(5)}, mismatched='target')",
        "so nothing is loaded: .* .treepack.load with return_report=True allows it.; ",
        ["load('jax', {'w': jnp.zeros(5)}, mismatched='target', return_report=True)"],
    ),
    (
        "dumps({'a': split})",
        "NamedSharding: pass it as metadata=$",
        ["dumps({}, metadata={'a': split})"],
    ),
    (
        "dumps({'f': jax.export.export(jax.jit(jnp.sin))(jnp.ones(1))})",
        r"at f/in_tree: .* or a function of jax.export by treepack.save_exported$",
        ["treepack.save_exported('x', jax.export.export(jax.jit(jnp.sin))(jnp.ones(1)))"],
    ),
    (
        "jax.jit(lambda x: dumps({}, metadata={'loss': x}))(1.0)",
        "at metadata/loss: .*traced value; serialize outside of jit",
        ["dumps({}, metadata={'loss': jax.jit(lambda x: x)(1.0)})"],
    ),
    (
        "dumps({}, metadata={'w': deleted()})",
        "at metadata/w: .*deleted.*: pass a value that this process has$",
        ["dumps({}, metadata={'w': jnp.ones(3)})"],
    ),
    (
        "treepack.Series('run').save(3, TREE, metrics={'loss': deleted()})",
        r"must be a number: .*deleted.*: pass one that this process has, such as float\(value",
        ["treepack.Series('run').save(3, TREE, metrics={'loss': float(jnp.ones(3).mean())})"],
    ),
    (
        "dumps({}, metadata={'d': jax.devices()[0]})",
        r"at metadata/d: .*; save str\(\.\.\.\) of it$",
        ["dumps({}, metadata={'d': str(jax.devices()[0])})"],
    ),
    (
        "dumps({}, metadata={'r': np.random.default_rng(0)})",
        "at metadata/r: .*; save its .bit_generator.state, a dict$",
        ["dumps({}, metadata={'r': np.random.default_rng(0).bit_generator.state})"],
    ),
    (
        "jax.jit(lambda at: open('jax')['w'][at])(1)",
        r"w: a traced index .* as jnp.asarray\(array\), and index the result",
        ["jax.jit(lambda at: jnp.asarray(open('jax')['w'])[at])(1)"],
    ),
    (
        "jax.jit(lambda at: open('jax')['w'][..., at:])(1)",
        r"w: a traced index .* as jnp.asarray\(array\), and index the result",
        ["jax.jit(lambda at: jnp.asarray(open('jax')['w'])[at])(1)"],
    ),
    (
        "load('wide64', {'w': jnp.zeros(3)})",
        "^'wide64': floats of float64 overflow float32 at w .*or pass cast='overflow'",
        ["load('wide64', {'w': jnp.zeros(3)}, cast='overflow')"],
    ),
]
"""Objects in the place of leaves and indices."""

KINDS: list[Row] = [
    (
        "load('model', mapping=treepack.Mapping)",
        "mapping= takes a treepack.Mapping, a dict of rules .*, got <class 'treepack.Mapping'>",
        ["load('model', mapping=treepack.Mapping({'v': 'step'}))"],
    ),
    (
        "load('model', TREE['params'], mapping={'': 'params'})",
        r"'model.norm.weight', or '\.' for the root, got ''",
        ["load('model', TREE['params'], mapping={'.': 'params'})"],
    ),
    (
        "load('model', cast=jnp.bfloat16)",
        "cast must be .*: a dtype is passed as dtype=, without a target$",
        ["load('model', dtype=jnp.bfloat16)"],
    ),
    (
        "save('hub', {'w': np.ones(2)}, format='huggingface')",
        "format must be None or 'safetensors', .* 'safetensors' as on Hugging Face$",
        ["save('hub', {'w': np.ones(2)}, format='safetensors')"],
    ),
    (
        "save(b'x', TREE)",
        r"got bytes: pass os.fsdecode\(path\)$",
        ["save(os.fsdecode(b'x'), TREE)"],
    ),
    (
        "treepack.Series('run', fast=True)",
        "expected a path or a URL, got bool: pass it as a str or a pathlib.Path$",
        ["treepack.Series('run', fast='fast')"],
    ),
    (
        "treepack.pack_into(TREE, 'x')",
        r"buffer must be a bytes-like object, got str: treepack.save\(path, tree\) writes a file$",
        ["save('x', TREE)"],
    ),
    (
        "treepack.pack_into(TREE, shared)",
        "buffer must be a bytes-like object, got SimpleNamespace: pass its buf$",
        ["treepack.pack_into(TREE, shared.buf)"],
    ),
    (
        "loads(shared)",
        r"got SimpleNamespace: pass its buf, or for reading its buf\[:size\]$",
        ["loads(shared.buf[: treepack.pack_into(TREE, shared.buf)])"],
    ),
    (
        "loads(tuple(treepack.buffers(TREE, described=True)))",
        r'got tuple: pass b""\.join\(\.\.\.\) of the pieces$',
        ["loads(b''.join(tuple(treepack.buffers(TREE, described=True))))"],
    ),
    (
        "treepack.apply_delta(treepack.buffers(TREE, base=TREE), bytearray(999))",
        r'patch must be a bytes-like object, got list: pass b""\.join\(\.\.\.\) of the pieces$',
        ["treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), packed(TREE))"],
    ),
    (
        "treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), TREE)",
        r"buffer must be .*, got dict: .* a bytearray of packed_size\(tree\) bytes$",
        ["treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), packed(TREE))"],
    ),
    (
        "treepack.register_dataclass('Text')",
        "expected a class, got 'Text': pass it as serialized_name=$",
        ["treepack.register_dataclass(serialized_name='Text')"],
    ),
    (
        "treepack.register_function('text')",
        "expected a function, got 'text': pass it as serialized_name=$",
        ["treepack.register_function(serialized_name='text')"],
    ),
    (
        "treepack.register_auxdata(abs)",
        "expected a class, .*: call register_function for a function$",
        ["treepack.register_function(abs)"],
    ),
    (
        "treepack.register_namedtuple(Point(1))",
        r"expected a class, got Point\(x=1\): pass type\(\.\.\.\) of it, Point$",
        ["treepack.register_namedtuple(type(Point(1)))"],
    ),
    (
        "treepack.register_auxdata(Mode, serialized_name='Mode', aliases=['mixups.Node'])",
        "'mixups.Node' is the node type mixups.Node: .* a type that is gone: leave it out",
        ["treepack.register_auxdata(Mode, serialized_name='Mode')"],
    ),
    (
        "treepack.Series('run')[2]",
        r"a Series has no items: steps\(\) lists its checkpoints, and treepack.load\(run.path",
        ["load(treepack.Series('run').path(treepack.Series('run').steps()[-1]))"],
    ),
    (
        "list(treepack.Subscriber('policy'))",
        r"a Subscriber has no items: call wait\(template\) for each newer version$",
        ["treepack.Subscriber('policy').wait(TREE)"],
    ),
    (
        "treepack.digest('model')['step']",
        r"a Digest has no items: leaves\[path\] is the digest of a leaf$",
        ["treepack.digest('model').leaves['step']"],
    ),
    (
        "treepack.Series('run').wait(5)",
        r"were given: call it as wait\(\)$",
        ["treepack.Series('run').wait()"],
    ),
    (
        "treepack.Series('run').save(3, TREE, sharded=True)",
        r"'sharded': treepack.Series\(path, \.\.\.\) takes it$",
        ["treepack.Series('new', sharded=True).save(3, TREE)"],
    ),
    (
        "treepack.Subscriber('policy', timeout=3)",
        "leave it out: treepack.load and Subscriber.wait take it$",
        ["treepack.Subscriber('policy').wait(timeout=3)"],
    ),
    (
        "treepack.Subscriber('policy').latest(version=1)",
        "only the newest version is read; pass newer_than= to wait$",
        ["treepack.Subscriber('policy').wait(newer_than=0)"],
    ),
    (
        "treepack.Publisher('policy').push(TREE, step=2)",
        "'step': pass version=$",
        ["treepack.Publisher('policy').push(TREE, version=2)"],
    ),
    (
        "treepack.buffers(TREE, compress=True)",
        "treepack.dumps takes compress=$",
        ["dumps(TREE, compress=True)"],
    ),
    (
        "treepack.abstract('model', dtype=jnp.bfloat16)",
        "'dtype': treepack.load takes it$",
        ["load('model', dtype=jnp.bfloat16)"],
    ),
    (
        "treepack.diff('model', 'base', tolerance=1e-3)",
        "pass rtol= or atol=$",
        ["treepack.diff('model', 'base', rtol=1e-3)"],
    ),
    (
        "treepack.digest('model', algorithm='sha256')",
        "leave it out: there is one kind of digests$",
        ["treepack.digest('model')"],
    ),
    (
        "treepack.Keep(keep_period=10)",
        "'keep_period': pass every=$",
        ["treepack.Keep(every=10)"],
    ),
    (
        "verify('model').leaves['w']",
        "there is nothing at w: is it 'params/w'\\?$",
        ["verify('model').leaves['params/w']"],
    ),
    (
        "save('x', params=TREE)",
        "'params': pass the tree as the second argument$",
        ["save('x', TREE)"],
    ),
    (
        "loads(dumps(TREE).decode('latin1'))",
        "expected a bytes-like object, got text: pass undecoded bytes$",
        ["loads(dumps(TREE))"],
    ),
    (
        "loads(placed(TREE)[: treepack.packed_size(TREE)])",
        "of a buffer of `pack_into`, pass the bytes from its `offset` on",
        ["loads(placed(TREE)[64:])"],
    ),
    (
        "run('convert', 'floats8', 'x.npz', '--dtype', 'bfloat16')",
        "does not support dtype bfloat16: convert it with dtype=, such as float32",
        ["run('convert', 'floats8', 'x.npz', '--dtype', 'float32')"],
    ),
]
"""Arguments and types of other kinds, and names of options that others have."""

OTHERS: list[Row] = [
    ("checkpoints.save_checkpoint('s', TREE, 3, keep='all')", "a large one keeps all", [
        "checkpoints.save_checkpoint('s', TREE, 3, keep=10**9)"]),
    ("checkpoints.restore_checkpoint('series', TREE, prefix='ckpt_')",
        "pass prefix='checkpoint_' to restore_checkpoint, or load it", [
            "checkpoints.restore_checkpoint('series', TREE, prefix='checkpoint_')"]),
    ("checkpoints.latest_checkpoint('run')", "pass prefix='step_' to latest_checkpoint, or load", [
        "load(checkpoints.latest_checkpoint('run', prefix='step_'))"]),
    ("checkpoints.save_checkpoint(ckpt_dir='s', tree=TREE, step=1)", "pass it as target=", [
        "checkpoints.save_checkpoint(ckpt_dir='s', target=TREE, step=1)"]),
    ("checkpoints.restore_checkpoint('series/checkpoint_2', TREE, step=2)",
        "is no checkpoint: pass its directory, or leave out step=", [
            "checkpoints.restore_checkpoint('series', TREE, step=2)",
            "checkpoints.restore_checkpoint('series/checkpoint_2', TREE)"]),
    ("checkpoints.latest_step('series')",
        r"latest_checkpoint or available_steps, or treepack\.Series", [
            "checkpoints.available_steps('series')[-1]"]),
    ("treepack.Series('run').best('loss', 'max', 3)", r"call it as best\(metric, mode\)", [
        "treepack.Series('run').best('loss', 'max')"]),
    ("treepack.Series('run').metrics('loss')", r"pass one step, such as steps\(\)\[-1\]", [
        "treepack.Series('run').metrics(treepack.Series('run').steps()[-1])"]),
    ("treepack.save(obj=TREE, f='x')", "pass the path as the first argument", [
        "treepack.save('x', TREE)"]),
    ("load('model', as_dict=True)", r"dict\(file\.leaves\(\)\) of treepack\.open\(path\) is flat", [
        "dict(treepack.open('model').leaves())['step']"]),
    ("load('model', TREE, mapping={'params/w': 'weights'})",
        "1 place does not match the template:", [
            "load('model', TREE, mapping={'params/w': 'params/w'})"]),
    ("load('model', key='params')", "pass select=", ["load('model', select='params')"]),
    ("load('model', ('params', 'w'))", r"for a part of the file, pass select= in its place", [
        "load('model', select=('params', 'w'))"]),
    ("load('model', step=2)",
        r"load that step, as by treepack\.load\(run\.path\(step\), target\)", [
            "load(treepack.Series('run').path(2), TREE)"]),
    ("load('model', backend='numpy')", 'pass arrays="numpy" or "jax"', [
        'load(\'model\', arrays="numpy")']),
    ("load('model', to=jax.devices()[0])", "pass device=", [
        "load('model', device=jax.devices()[0])"]),
    ("load('model', compress=True)", "leave it out: compressed files are recognized", [
        "load('model')"]),
    ("load('model', durable=False)", r"leave it out: treepack\.save takes it", ["load('model')"]),
    ("open('a.safetensors', framework='np')", "leave it out: arrays are NumPy's", [
        "open('a.safetensors')"]),
    ("open('model', arrays='numpy')", "load of the open file takes it", [
        "open('model').load(arrays='numpy')"]),
    ("open('patch', base='model')", r"treepack\.load takes it", ["load('patch', base='model')"]),
    ("file.get_tensor('params/w')", r"use file\[path\]", ["file['params/w'][...]"]),
    ("file.files", r"use \[path for path, _ in file\.leaves\(\)\]", [
        "[path for path, _ in file.leaves()][2]"]),
    ("file.tree()", r"use load\(\)", ["file.load()"]),
    ("file['params/w'].value", r"read it by array\[\.\.\.\], or a part by array\[:10\]", [
        "file['params/w'][...]"]),
    ("file.statistics()", r"look up an array in it, as by file\[path\]", [
        "file['params/w'].statistics()"]),
    ("file.verify()", r"use treepack\.verify\(path\)", ["treepack.verify('model')"]),
    ("save('x.safetensor', TREE['params'])",
        r"be \.safetensors\? Choose it, or a name that is less like it", [
            "save('x.safetensors', TREE['params'])"]),
    ("save('x.treepak', TREE)", r"is \.treepak to be \.treepack\?", ["save('x.treepack', TREE)"]),
    ("save('x.gzip', TREE)", r"\.treepack or \.msgpack, or \.safetensors for arrays alone", [
        "save('x.treepack', TREE)", "save('x.gz', TREE)"]),
    ("save('s3:b/x', TREE)", r"is it 's3://b/x'\? A file of this name is in a folder: \./", [
        "save('./s3:b/x', TREE)"]),
    ("load('file://server' + str(pathlib.Path('model').absolute()))",
        "has the host 'server': pass a path, or a URL with three slashes, file:///", [
            "load('file://' + str(pathlib.Path('model').absolute()))"]),
    ("save('file://x', TREE)", "pass a path, or a URL with three slashes, file:///", [
        "save('x', TREE)", "save('file://' + str(pathlib.Path('x').absolute()), TREE)"]),
    ("load('./models/model')", r"there is no folder '\./models': is it 'model'\?", [
        "load('model')"]),
    ("load('model:params')", "or `treepack ls model params`", [
        "treepack.open('model')['params']", "run('ls', 'model', 'params')"]),
    ("load('model/')", r"is it 'model'\?", ["load('model')"]),
    ("load('run/latest')", "there are 'run/step_0', 'run/step_1', 'run/step_2'", [
        "load('run/step_2')"]),
    ("load(io.BufferedWriter(io.BytesIO()))", "open the file with mode 'rb'", [
        "load(io.BytesIO(dumps(TREE)))"]),
    ("save('x', TREE, fsync=True)", "pass durable=, whether to wait for the disk", [
        "save('x', TREE, durable=True)"]),
    ("save('x', TREE, block=False)", "pass background=True", [
        "save('x', TREE, background=True).result()"]),
    ("save('x', TREE, atomic=True)", "leave it out: files are always replaced atomically", [
        "save('x', TREE)"]),
    ("save('x', TREE, keep=3)", r"treepack\.Series\(path, keep=\.\.\.\) takes it", [
        "treepack.Series('new', keep=treepack.Keep(last=3)).save(1, TREE)"]),
    ("save('x', TREE, protocol=5)", "leave it out", ["save('x', TREE)"]),
    ("save('x', TREE, separator='/')", "leave it out, or choose another suffix", [
        "save('x', TREE)", "save('x.safetensors', TREE, separator='/')"]),
    ("save('x', TREE, sharding=NamedSharding(mesh, P()))",
        "leave it out: arrays are saved as they are sharded", [
            "save('x', TREE)"]),
    ("save('x', TREE, verify=True)", r"call treepack\.verify\(path\) after the save", [
        "[save('x', TREE), treepack.verify('x').ok][1]"]),
    ("save('x', TREE, checksum=True)", "leave it out: leaves always have checksums", [
        "save('x', TREE)"]),
    ('save(\'x\', TREE, select="[\'params\'][\'w\']")',
        r"\['params'\]\['w'\]; is it 'params/w'\?", [
            "save('x', TREE, select='params/w')"]),
    ("save('x', TREE, select='.*w')", r"\.\*w; wildcards are \*, \*\* and \?: is it '\*\*/\*w'\?", [
        "save('x', TREE, select='**/*w')"]),
    ("save('x', TREE, select=nnx.Param)",
        r"a pytree of bools, got <class 'flax\.nnx\.variablelib\.Param'>", [
            "save('x', TREE, select='params')"]),
    ("save('x', TREE, select=lambda path: path[0] == 'params')",
        "leave out every leaf of the tree, such as 'params/w'", [
            "save('x', TREE, select=lambda path: path.startswith('params/'))"]),
    ("treepack.Mapping({'params/w': 'params/w'}).check(TREE)",
        r"'source': call it as check\(target, source\)", [
            "treepack.Mapping({'params/w': 'params/w'}).check(TREE, 'model')"]),
    ("treepack.Mapping({'params/w': 'params/w'}).apply(TREE)",
        r"pass it as mapping= to treepack\.load or treepack\.save", [
            "load('model', mapping=treepack.Mapping({'params/w': 'params/w'}))"]),
    ("load('model', jax.eval_shape)",
        r"call it with its arguments, as jax\.eval_shape\(eval_shape, \.\.\.\) does", [
            "load('model', jax.eval_shape(lambda: TREE))"]),
    ("load('model', {'params.w': np.zeros((2, 3), np.float32)})",
        r"missing \(expected float32\[2,3\]\); is it params/w\?", [
            "load('model', {'params.w': np.zeros((2, 3), np.float32)}, mapping={'params.w': "
            "'params/w'})"]),
    ("load('model', sharding=[NamedSharding(mesh, P())])",
        "it has 0, the file params/w: give it the paths of the file", [
            "load('model', sharding={'params': NamedSharding(mesh, P())})"]),
    ("load('model', sharding={'parms': NamedSharding(mesh, P())})",
        "it has parms, the file params/w: give it the paths of the file", [
            "load('model', sharding={'params': NamedSharding(mesh, P())})"]),
    ("load('model', sharding=lambda leaf, path: NamedSharding(mesh, P('tp') if leaf.ndim > 1 "
     "else P()))",
        r"and ShapeDtypeStruct\(shape=\(2, 3\), dtype=float32\)", [
            "load('model', sharding=lambda path, leaf: NamedSharding(mesh, P('tp') if "
            "leaf.ndim > 1 else P()))"]),
    ("load('model', sharding=NamedSharding)",
        r"jax\.devices\(\)\[0\], got <class 'jax\.sharding\.NamedSharding'>", [
            "load('model', sharding=jax.devices()[0])"]),
    ("load('model', mesh=mesh)", r"pass sharding=NamedSharding\(mesh, spec\)", [
        "load('model', sharding=NamedSharding(mesh, P()))"]),
    ("dumps(TREE, durable=False)", r"treepack\.save has it", [
        "treepack.save('x', TREE, durable=False)"]),
    ("treepack.pack(TREE)", r"use treepack\.dumps", ["treepack.dumps(TREE)"]),
    ("treepack.unpackb(dumps(TREE))", r"use treepack\.loads", ["treepack.loads(dumps(TREE))"]),
    ("treepack.load_model('model')", r"use treepack\.load", ["treepack.load('model')"]),
    ("treepack.save_pretrained(TREE, 'd')",
        r'use treepack\.save\(path, tree, format="safetensors"\)', [
            'treepack.save(\'d\', TREE, format="safetensors")']),
    ("treepack.tree_map(lambda x: x, TREE)", r"use jax\.tree\.map", [
        "jax.tree.map(lambda x: x, TREE)"]),
    ("treepack.keys('model')", r"use treepack\.open", ["[*treepack.open('model')]"]),
    ("treepack.hash('model')", r"use treepack\.digest", ["treepack.digest('model')"]),
    ("treepack.compare('model', 'base')", r"use treepack\.diff", [
        "treepack.diff('model', 'base')"]),
    ("treepack.validate('model')", r"use treepack\.verify", ["treepack.verify('model')"]),
    ("treepack.merge('model', TREE)", r"pass missing='target' to treepack\.load", [
        "treepack.load('model', TREE, missing='target')"]),
    ("treepack.register_enum(Color)", r"use treepack\.register_auxdata", [
        "treepack.register_auxdata(Color)"]),
    ("treepack.register_class(Config)",
        r"use treepack\.register_dataclass or treepack\.register_node", [
            "treepack.register_dataclass(Config)"]),
    ("treepack.save_async('x', TREE)", r"use treepack\.save\(path, tree, background=True\)", [
        "treepack.save('x', TREE, background=True).result()"]),
    ("treepack.wait()", r"use result\(\) of the Saving that save\(background=True\) returns", [
        "treepack.save('x', TREE, background=True).result()"]),
    ("treepack.Manager('run')", r"use treepack\.Series, or Orbax's own with treepack\.orbax", [
        "treepack.Series('run')"]),
    ("treepack.buffers(TREE, threads=2)", r"treepack\.dumps takes threads=", [
        "treepack.dumps(TREE, threads=2)"]),
    ("treepack.Publisher('policy').push(TREE, version=2, metadata={'a': 1})",
        "make it a leaf of the tree", [
            "treepack.Publisher('policy').push({'tree': TREE, 'metadata': {'a': 1}}, version=2)"]),
    ("treepack.Publisher('policy').push(TREE, version=2, background=True)",
        "leave it out: push in a thread of your own", [
            "treepack.Publisher('policy').push(TREE, version=2)"]),
    ("treepack.Publisher('policy', every=50)", "pass anchor_every=", [
        "treepack.Publisher('policy', anchor_every=50)"]),
    ("treepack.Publisher('policy').latest()", r"a Subscriber of its directory has latest\(\)", [
        "treepack.Subscriber('policy').latest()"]),
    ("treepack.Subscriber('policy').version",
        r"use latest\(template\), whose first result is the version", [
            "treepack.Subscriber('policy').latest(TREE)[0]"]),
    ("treepack.Subscriber('policy').latest(TREE, 5)", r"call it as latest\(template\)", [
        "treepack.Subscriber('policy').latest(TREE)"]),
    ("treepack.write_stream('x', {'a': 1}, compress=True)",
        "argument 'compress'; it has path, leaves, storage_options", [
            "treepack.write_stream('x', {'a': 1}.items())"]),
    ("treepack.abstract('model', select='params')",
        r"take the part of an open file: file\[path\]", [
            "treepack.open('model')['params'].abstract()"]),
    ("treepack.abstract(lambda: TREE)",
        r"for the shapes of the result of a function, call jax\.eval_shape", [
            "jax.eval_shape(lambda: TREE)"]),
    ("treepack.verify('model', quiet=True)", "leave it out: it prints nothing", [
        "treepack.verify('model')"]),
    ("treepack.verify('model').raise_for_status()", r"treepack\.load\(path, verify=True\) raises", [
        "treepack.load('model', verify=True)"]),
    ("treepack.verify('model').errors", "use corrupt and damage", [
        "[treepack.verify('model').corrupt, treepack.verify('model').damage]"]),
    ("treepack.diff('model', 'base', select='params')",
        r"compare parts of open files, as file\[path\]", [
            "treepack.diff(open('model')['params'], open('base')['params'])"]),
    ("treepack.diff('model', ['base'])", "pass one", ["treepack.diff('model', 'base')"]),
    ("treepack.diff('model', 'even').summary()", r"use str\(differences\)", [
        "str(treepack.diff('model', 'even'))"]),
    ("treepack.digest('model', leaves=True)",
        r"use its result, such as digest\.leaves or verify\(path\)\.leaves", [
            "treepack.digest('model').leaves"]),
    ("treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
     "'mymodel.Config')",
        "the name in files is serialized_name=", [
            "treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
            "serialized_name='mymodel.Config')"]),
    ("treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
     "serialized_name=3)",
        "serialized_name must be a string, got 3", [
            "treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
            "serialized_name='m3.Config')"]),
    ("treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
     "serialized_name='')",
        "a name must be a non-empty string, got ''", [
            "treepack.register_dataclass(dataclasses.make_dataclass('A7', ['width']), "
            "serialized_name='m4.Config')"]),
    ("treepack.register_namedtuple(Pair, serialized_name='q5', version=1, upgrade='up')",
        "a function of static data, children and a version, got 'up'", [
            "treepack.register_namedtuple(Pair, serialized_name='q5', version=1, "
            "upgrade=lambda s, c, v: (s, c))"]),
    ("treepack.register_auxdata(Color, encode=3, decode=4)",
        "encode and decode must be functions, got 3, 4", [
            "treepack.register_auxdata(Color, encode=lambda c: c.name, "
            "decode=Color.__getitem__)"]),
    ("treepack.register_tree(TREE, 'prefix')",
        r"call it as register_tree\(tree\), and name the rest, as in prefix=", [
            "treepack.register_tree(TREE, prefix='prefix')"]),
    ("treepack.registered_types('x')", r"call it as registered_types\(\)", [
        "treepack.registered_types()"]),
    ("load('model', optax.adam(1e-3))",
        r"or module, such as jax\.eval_shape\(optimizer\.init, params\)\.", [
            "load('model', jax.eval_shape(optax.adam(1e-3).init, TREE), mapping={'0/mu': "
            "'params'}, missing='target', strict=False) if 0 else "
            "jax.eval_shape(optax.adam(1e-3).init, TREE)"]),
    ("treepack.apply_delta('patch', placed(TREE))",
        "pass the bytes of the file", [
            "treepack.apply_delta(b''.join(treepack.buffers(TREE, base=TREE)), placed(TREE), "
            "offset=64)"]),
    ("load('model', select=re.compile('w'))", "the search of an expression", [
        "load('model', select=re.compile('w').search)"]),
    ("load('model', select='params/w, step')",
        r"for several patterns, pass a list: \['params/w', 'step'\]", [
            "load('model', select=['params/w', 'step'])"]),
    ("loads(dumps(TREE), verify=True)", r"treepack\.load\(path, \.\.\.\), of a file of save", [
        "save('x', TREE)", "load('x', verify=True)"]),
    ("dumps(TREE, dtype='float16')", r"cast the arrays before, as by jax\.tree\.map", [
        "dumps(jax.tree.map(lambda array: array.astype('float16'), TREE))"]),
    ("file.load(mmap=False)", r"treepack\.open takes it", ["open('model', mmap=False).load()"]),
    ("treepack.digest('model', select='params/w')", r"use its result, such as digest\.leaves", [
        "treepack.digest('model').leaves['params/w']"]),
    ("load('model?select=params')", r"treepack\.open\('model'\)\['params'\], or `treepack ls", [
        "open('model')['params']"]),
    ("load('model', {'v': TREE['params']['w']}, mapping={'v': 'params/w'}, select='params/w')",
        "params/w. is a path of the file: is it .v. in the tree", [
            "load('model', {'v': TREE['params']['w']}, mapping={'v': 'params/w'}, select='v')"]),
    ("load('model', mapping={'v': ('params/w', 'a b -> b a')}, select='params/w')",
        "params/w. is a path of the file: is it .v. in the tree", [
            "load('model', mapping={'v': ('params/w', 'a b -> b a')}, select='v')"]),
    ("load('model', sharding=jax.devices())", "the paths of the file, or pass one device=", [
        "load('model', device=jax.devices()[0])"]),
    ("load('model', sharding=abstract())", "pass templates as target=", [
        "load('model', target=abstract())"]),
    ("load('model', mapping={'v': ('params/w', 'a b => b a')})", "and -> between the sides", [
        "load('model', mapping={'v': ('params/w', 'a b -> b a')})"]),
    ("load('model', mapping={'v': ('params/w', 'vm -> mv')})",
        "write spaces between axes, as in 'v m'", [
            "load('model', mapping={'v': ('params/w', 'a b -> b a')})"]),
    (r"load('model', mapping={'p/(.*)': r'params/\1'})", r"write indices in place of \*", [
        "load('model', mapping={'p/{i}': 'params/{i}'})"]),
    ("treepack.Series('memory://m').steps()", "pass a directory; treepack.load reads a file", [
        "treepack.Series('memory://runs').steps()", "load('memory://m')"]),
    ("serialization.from_state_dict(TREE, dumps(TREE))", "pass them to from_bytes or loads", [
        "serialization.from_bytes(TREE, dumps(TREE))"]),
    ("load(b'model')", "or if it is a path, pass a str", ["load('model')"]),
    ("loads(zlib.compress(dumps(TREE)))", "zlib data: decompress them with the module zlib", [
        "loads(zlib.decompress(zlib.compress(dumps(TREE))))"]),
    ("serialization.msgpack_serialize(TREE, 'x')", "in_place must be True or False, got 'x'", [
        "serialization.msgpack_serialize(TREE, True)"]),
    ("save('x', dumps(TREE))", "pass the tree itself", [
        "save('x', TREE)", "pathlib.Path('x').write_bytes(dumps(TREE))", "load('x')"]),
    ("treepack.diff('model', None)", "got None: pass one", ["treepack.diff('model', 'base')"]),
    ("file['params'].items('w')", r"call it as items\(\)", ["file['params'].items()"]),
    ("load('memory://n')", "is it 'memory://m'", ["load('memory://m')"]),
    ("verify('model')['step']", r"use leaves\[path\]", ["verify('model').leaves['step']"]),
]  # fmt: skip
"""Names, options, paths and templates of other libraries, and values that were silent."""


class Point(NamedTuple):
    """A namedtuple."""

    x: int


class Mode(enum.Enum):
    """An enum."""

    A = 1


@dataclasses.dataclass
class Node:
    """A node of JAX without static data."""

    a: Any


jax.tree_util.register_pytree_node(Node, lambda node: ((node.a,), None), lambda _, a: Node(*a))
treepack.register_node(Node, serialized_name="mixups.Node")

MIXED: dict[str, Any] = (
    {it.__name__: it for it in (Point, Mode, os, optax, re, zlib)}
    | {
        "shared": types.SimpleNamespace(buf=memoryview(bytearray(999))),  # as of shared memory
        "Bare": dataclasses.make_dataclass("Bare", ["a"]),
        "split": NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x")),
    }
)
"""The names that only these rows use."""


def placed(tree: Any) -> bytearray:
    """Returns a buffer with a tree at an offset."""
    buffer = bytearray(64 + treepack.packed_size(tree))
    treepack.pack_into(tree, buffer, offset=64)
    return buffer


MIXED["placed"] = placed


def make_mixups() -> None:
    """Makes the files that only these rows read, in the working directory."""
    treepack.save("wide64", {"w": np.full(3, 1e300)})
    treepack.save("a.gz", {"w": np.zeros(999)}, compress=True)
    treepack.save("floats8", {"w": np.ones(3, jnp.bfloat16)})
