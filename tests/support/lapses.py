"""Files in place of trees, rules of the wrong side, and other lapses, for `test_mistakes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mistakes import Row


class Measured(np.ndarray):
    """An array with a unit, as of astropy."""

    def __new__(cls, values: Any, unit: str) -> Measured:
        made: Measured = np.asarray(values).view(cls)
        made.unit = unit
        return made

    def __array_finalize__(self, other: Any) -> None:
        self.unit = getattr(other, "unit", None)


LAPSES: list[Row] = [
    ("treepack.Series('run').resume(TREE, expect='0' * 32)", "load takes it, as for run.path", [
        "load(treepack.Series('run').path(2), TREE, expect=treepack.digest(TREE))"]),
    ("treepack.Subscriber('policy').latest(mmap=False)", "leave it out: versions are read into m", [
        "treepack.Subscriber('policy').latest()"]),
    ("checkpoints.restore_checkpoint('series', TREE, select='step')", "'select': treepack.load t", [
        "load('series/checkpoint_2', TREE, select='step')"]),
    ("treepack.load_exported('model', dtype='bfloat16')", "'dtype': treepack.load takes it$", [
        "load('model', dtype='bfloat16')"]),
    ("file['params/w'].block_until_ready()", r"use jax.numpy.asarray\(array\)$", [
        "jnp.asarray(file['params/w']).block_until_ready()"]),
    ("load('model', mapping={'v': 'params.w'}, select='params.w')", "is it 'v' in the tree", [
        "load('model', mapping={'v': 'params.w'}, select='v')"]),
    ("load('with_list', mapping={'w': ('layers.{i}', 'a -> i a')}, select='layers/1')",
        "'layers/1' is a path of the file: is it 'w' in the tree", [
            "load('with_list', mapping={'w': ('layers.{i}', 'a -> i a')}, select='w')"]),
    ("load('with_list', mapping={'w': ('layers.*', 'a -> i a')})", r"braces, as in 'layers.{i}'", [
        "load('with_list', mapping={'w': ('layers.{i}', 'a -> i a')})"]),
    ("load('wide', mapping={('a', 'b'): ('w', '(n d) -> n d', {'along': 'n'})})",
        "  a: the size of n is unknown: .* or leave n out of the side with 2 arrays, if each is", [
            "load('pair_of', mapping={('c', 'd'): ('a', '(n e) f -> e f', {'along': 'n'})})"]),
    ("treepack.diff({'x': TREE['step']}, 'model', mapping={'x': 'step'})", "one: pass it first$", [
        "treepack.diff('model', {'x': TREE['step']}, mapping={'x': 'step'})"]),
    ("treepack.Series('run').save(9, TREE, local=Thing())", r"dict of its state, as vars\(...\)", [
        "treepack.Series('run').save(9, TREE, local=vars(Thing()))"]),
    ("treepack.Series('run').save(9, TREE, local=iter([1]))", r"save list\(...\) of it; an", [
        "treepack.Series('run').save(9, TREE, local=[*iter([1])])"]),
    ("open('jax')['w'].__setitem__(0, 1)", r'arrays of file.load\(arrays="numpy", copy=True\)', [
        "open('jax').load(arrays='numpy', copy=True)['w'].__setitem__(0, 1)"]),
    ("checkpoints.save_checkpoint('new', TREE, 1, keep_last=2)", "'keep_last': pass keep=3$", [
        "checkpoints.save_checkpoint('new', TREE, 1, keep=3)"]),
    ("[treepack.Series('runs', prefix='m_').save(1, TREE), load('runs')]", "with --prefix m_$", [
        "run('ls', 'runs', '--prefix', 'm_')"]),
    ("load('wide', sharding=NamedSharding(mesh, P()))", "sharding=, or None in sharding= for it$", [
        "load('wide', sharding={'w': None})", "load('wide', sharding=lambda path, leaf: None)"]),
    ("load('model', select=('params/w',))", "A tuple is one path, by its keys: pass 'params/w'$", [
        "load('model', select='params/w')"]),
    ("load('model', mmap_mode='r')", "leave it out: files are mapped", [
        "load('model', copy=True)"]),
    ("save('x', TREE, save_args=None)", "leave it out: save has dtype=, ", ["save('x', TREE)"]),
    ("treepack.Subscriber('policy').latest(newer_than=0)", "wait of a treepack.Subscriber takes", [
        "treepack.Subscriber('policy').wait(newer_than=0)"]),
    ("treepack.Subscriber('policy').latest(timeout=1)", "wait of a treepack.Subscriber takes it", [
        "treepack.Subscriber('policy').wait(timeout=1)"]),
    ("treepack.Subscriber('policy').latest({**TREE, 'none': 0})", 'missing="target" to keep', [
        "treepack.Subscriber('policy').latest({**TREE, 'none': 0}, missing='target')"]),
    ("treepack.Series('run').resume(state=TREE)", "pass it as template=$", [
        "treepack.Series('run').resume(template=TREE)"]),
    ("treepack.load_exported('model', params=TREE)", r'load\(path, {"params": template}, select=', [
        "load('model', {'params': TREE['params']}, select='params')"]),
    ("treepack.Keep(metric='loss', mode='min')", r'pass best=\("loss", 1, "min"\)', [
        "treepack.Keep(best=('loss', 1, 'min'))"]),
    ("treepack.diff('model', {})['params/w']", r"no index: use \{it.path: it for it in differ", [
        "{it.path: it for it in treepack.diff('model', {})}['params/w']"]),
    ("run('info', 'model', '--metadata')", "leave it out: the metadata are printed", [
        "run('info', 'model')"]),
    ("run('get', 'model', 'params/w')", "Name the new file, or - .* the last argument", [
        "run('get', 'model', 'params/w', 'w.npy')"]),
    ("save('x', 'a.npz')", "the tree is the path of a file: pass .*copies treepack.open", [
        "save('x', open('a.npz'))", "save('x', load('a.npz'))", "save('x', 'model')"]),
    ("save('x', pathlib.Path('model'))", "the tree is the path of a file", [
        "save('x', open('model'))"]),
    ("save('x', open_binary('model'))", "the tree is a file object", [
        "save('x', open(open_binary('model')))"]),
    ("treepack.packed_size('a.npz')", "the tree is the path of a file", [
        "treepack.packed_size(load('a.npz'))"]),
    ("[*treepack.buffers('a.npz', described=True)]", "the tree is the path of a file", [
        "[*treepack.buffers(load('a.npz'), described=True)]"]),
    ("treepack.Series('run').save(9, TREE, metrics={'loss': 1 + 2j})", "pass a real one, such as", [
        "treepack.Series('run').save(9, TREE, metrics={'loss': float(abs(1 + 2j))})"]),
    ("load('model', cast='overflow')", "cast='overflow' .* or pass dtype= beside it", [
        "load('model', cast='overflow', dtype='float16')"]),
    ("dumps('a.npz')", "the tree is the path of a file: pass treepack.load", [
        "dumps(load('a.npz'))", "dumps('no file.npz')"]),
    ("treepack.Series('run').save(9, 'a.npz')", "the tree is the path of a file", [
        "treepack.Series('run').save(9, load('a.npz'))"]),
    ("treepack.Series('run').save(9, dumps(TREE))", "pass the tree itself", [
        "treepack.Series('run').save(9, TREE)"]),
    ("treepack.Publisher('policy').push('a.npz', version=2)", "the tree is the path of a file", [
        "treepack.Publisher('policy').push(load('a.npz'), version=2)"]),
    ("save('x', {'q': Measured(np.ones(2), 'm')})", "at q: .*its attributes would be lost: save", [
        "save('x', {'q': np.asarray(Measured(np.ones(2), 'm')), 'unit': 'm'})"]),
    ("serialization.to_bytes({'q': Measured(np.ones(2), 'm')})", "attributes would be lost", [
        "serialization.to_bytes({'q': np.asarray(Measured(np.ones(2), 'm'))})"]),
    ("save('x', jax.tree.leaves_with_path(TREE))", r"a key is not a leaf: .*iter\(\.\.\.\)", [
        "save('x', iter(jax.tree.leaves_with_path(TREE)))"]),
    ("np.asarray(file['params'])", r"a Tree is a container: .*file\[path\], or .*load\(\)", [
        "np.asarray(file['params/w'])", "file['params'].load()"]),
    ("jax.tree.map(jnp.asarray, file)", "a File is a container", [
        "jax.tree.map(jnp.asarray, file.load())"]),
    ("file['params']['params/w']", "nothing at params/w: is it 'w'", ["file['params']['w']"]),
    ("file['params'].load(select='params/w')", "matches nothing .* params/w; is it 'w'", [
        "file['params'].load(select='w')"]),
    ("file['params'][0]", "got 0: pass '0'$", ["open('with_list')['layers']['0']"]),
    ("file['params/w'].at[0].set(1)", r"use jax.numpy.asarray\(array\).at$", [
        "jnp.asarray(file['params/w']).at[0].set(1)"]),
    ("load('model', select='*w')", r"\* is within one part of a path: is it '\*\*/\*w'", [
        "load('model', select='**/*w')"]),
    ("save('x', TREE, select='*w')", r"in the tree: \*w; .*: is it '\*\*/\*w'", [
        "save('x', TREE, select='**/*w')"]),
    ("load('model', select='Params/**')", r"is it 'params/\*\*'\?$", [
        "load('model', select='params/**')"]),
    ("load('model', select='params/{w,b}')", r"pass a list: \['params/w', 'params/b'\]$", [
        "load('model', select=['params/w', 'params/b'])"]),
    ("load('model', select='!**/b')", r"to leave out, pass exclude=: '\*\*/b'$", [
        "load('model', exclude='**/b')"]),
    ("load('model', exclude='!**/b')", "it has params/w", ["load('model', select='**/b')"]),
    ("open('with_list').load(select='layers[0]')", "is it 'layers/0'", [
        "open('with_list').load(select='layers/0')"]),
    ("load('model', dtype='bf16')", r"got 'bf16': is it 'bfloat16'\?$", [
        "load('model', dtype='bfloat16')"]),
    ("load('model', dtype='torch.float')", "is it 'float32'", ["load('model', dtype='float32')"]),
    ("load('model', dtype='fp8_e4m3fn')", "is it 'float8_e4m3fn'", [
        "load('model', dtype='float8_e4m3fn')"]),
    ("load('model', dtype='fp9')", "got 'fp9'$", ["load('model', dtype='float16')"]),
    ("run('convert', 'model', 'x', '--dtype', 'fp16')", "is it 'float16'", [
        "run('convert', 'model', 'x', '--dtype', 'float16')"]),
    ("save('x', TREE['params'], format='safetensors', max_shard_size='200')", "as in '200MB'$", [
        "save('x', TREE['params'], format='safetensors', max_shard_size='200MB')"]),
    ("save('x', TREE['params'], format='safetensors', max_shard_size=5e9)", "must be an integer", [
        "save('x', TREE['params'], format='safetensors', max_shard_size=int(5e9))"]),
    ("save('memory://bucket/', TREE)", r"choose a file in it; save\(..., sharded=True\)", [
        "save('memory://bucket/x', TREE)", "save('memory://bucket/', TREE, sharded=True)"]),
    ("treepack.Series('run').save(9, args=TREE)", "pass it as state=$", [
        "treepack.Series('run').save(9, state=TREE)"]),
    ("treepack.exists('model')", "use treepack.is_checkpoint$", [
        "treepack.is_checkpoint('model')"]),
    ("verify('model').valid", "use ok$", ["verify('model').ok"]),
    ("treepack.Series('run').remove(1)", "use keep=", [
        "treepack.Series('run', keep=treepack.Keep(last=1)).save(5, TREE)"]),
    ("load('nested', mapping={'heads': 'heads.weigh'})", "is it 'heads/weight'.$", [
        "load('nested', mapping={'heads': 'heads/weight'})"]),
    ("load('with_list', mapping={'w': ('layer/{i}', 'a -> i a')})", "is it 'layers/{i}'.$", [
        "load('with_list', mapping={'w': ('layers/{i}', 'a -> i a')})"]),
    ("load('with_list', mapping={'layers/{i}': ('w', 'a -> i a')})", "exchange the paths", [
        "load('with_list', mapping={'w': ('layers/{i}', 'a -> i a')})"]),
    ("load('model', select='params.*')", "is it 'params/.'", ["load('model', select='params/*')"]),
    ("load('model', {'params': {'w': np.zeros((2, 3))}, 'q': {'c': 1}}, "
     "mapping={'qq/c': 'step'}, cast=True)", "Write 'q' in place of 'qq' in the rules", [
        "load('model', {'params': {'w': np.zeros((2, 3))}, 'q': {'c': 1}}, "
        "mapping={'q/c': 'step'}, cast=True)"]),
    ("load('pair_of', {'a': np.zeros(3), 'b': np.zeros((2, 3))})", "The file has one more .* 4 ", [
        "load('pair_of', {'a': np.zeros(3), 'b': np.zeros((2, 3))}, strict=False)['a'][0]"]),
    ("load('with_list', {'layers': [np.zeros((4, 2)), np.zeros((4, 2))]})", "The template has", [
        "load('with_list', jax.tree.map(lambda x: x[0], {'layers': [np.zeros((4, 2))] * 2}))"]),
    ("load('modl.treepak')", "is it 'model'", ["load('model')"]),
    ("save('model', TREE['params'], format='safetensors')", "A file has this name.*format=", [
        "save('m', TREE['params'], format='safetensors')"]),
    ("save('x', TREE, compress=9)", "got 9: pass it as level=", [
        "save('x', TREE, compress=True, level=9)"]),
    ("save('x', TREE, compresslevel=9)", "pass level=, beside compress=True", [
        "save('x', TREE, compress=True, level=9)"]),
    ("save('x', TREE, save_dtype='float16')", "cast the arrays before, as by jax.tree.map", [
        "save('x', jax.tree.map(lambda x: x.astype('float16'), TREE))"]),
    ("save('x', TREE, use_ocdbt=True)", "leave it out", ["save('x', TREE)"]),
    ("load('model', tensors=['params/w'])", "pass select=$", ["load('model', select='params/w')"]),
    ("load('model', axis_resources=split)", "pass sharding=$", [
        "load('even', sharding=split)"]),
    ("load('model', return_metadata=True)", r"treepack.read_metadata\(path\) returns them", [
        "treepack.read_metadata('model')"]),
    ("load('memory://m', region='eu')", "pass it in storage_options=", [
        "load('memory://m', storage_options={})"]),
    ("treepack.write_stream(TREE.items(), 'x')", "the path comes first", [
        "treepack.write_stream('x', iter(TREE['params'].items()))"]),
    ("run('convert', 'model', 'x.npy')", "get one, by `treepack get`", [
        "run('get', 'model', 'params/w', 'x.npy')"]),
    ("run('ls', 'model', '--select', 'params')", "name the part as PATH, after FILE", [
        "run('ls', 'model', 'params')"]),
    ("run('ls', 's3://a/b', '--region', 'eu')", "set the environment variables", []),
    ("load('model', select=\"['params', 'step']\")", r"pass a list: \['params', 'step'\]$", [
        "load('model', select=['params', 'step'])"]),
    ("run('convert', 'model', 'x', '--select', 'params,step')", "for several patterns, ", [
        "run('convert', 'model', 'x', '--select', 'params', '--select', 'step')"]),
    ("run('ls', 'model', '--path', 'params')", "name the part as PATH, after FILE", [
        "run('ls', 'model', 'params')"]),
    ("run('verify', 'run', '--prefix', 'step_')", "name the checkpoints, as in `treepack ver", [
        "run('verify', 'run/step_0', 'run/step_1')"]),
    ("open('with_list')['layers[1]']", r"is it 'layers/1'\?$", [
        "open('with_list')['layers/1']"]),
    ("file[\"['params']['w']\"]", r"is it 'params/w'\?$", ["file['params/w']"]),
    ("run('show', 'model', \"['params']['w']\")", "is it 'params/w'", [
        "run('show', 'model', 'params/w')"]),
    ("verify('model').leaves[\"['params']['w']\"]", r"is it 'params/w'\?$", [
        "verify('model').leaves['params/w']"]),
    ("open(dumps([1, 2, 3]))['-1']", r"is it '2'\?$", ["open(dumps([1, 2, 3]))['2']"]),
    ("open(dumps([1, 2, 3]))['-4']", "it has 0, 1, 2$", ["open(dumps([1, 2, 3]))['0']"]),
    ("file['parms/zz']", "it has params, step$", ["file['params']"]),
    ("load(dumps({'net': {str(n): 1 for n in range(9)}, 'step': 3}), select='optimizer')",
        "it has net, step$", ["load('model', select='step')"]),
    ("load('model', map={'v': 'w'})", "'map': pass mapping=$", [
        "load('model', mapping={'params/v': 'params/w'})"]),
    ("save('x', TREE, sep='/')", "'sep': pass separator=$", [
        "save('x.safetensors', TREE['params'], separator='/')"]),
    ("save('x', TREE, strict=True)", "'strict': treepack.load takes it$", [
        "load('model', TREE, strict=True)"]),
    ("save('x', TREE, metrics={'loss': 1})", "'metrics': save of a treepack.Series takes it$", [
        "treepack.Series('run').save(9, TREE, metrics={'loss': 1})"]),
    ("load('model', TREE, ignore_mismatched_sizes=True)", "pass mismatched=\"target\"$", [
        "load('model', with_w((4, 5)), mismatched='target')"]),
    ("load('model', device_map='auto')", "pass device= or sharding=$", [
        "load('model', device=jax.devices()[0])"]),
    ("load('model', verbose=True)", "'verbose': pass progress=True$", [
        "load('model', progress=True)"]),
    ("load('model', lazy=True)", "treepack.open reads arrays when they are used$", [
        "open('model')['params/w'][0]"]),
    ("load('model', checksum=True)", "'checksum': pass verify=True$", [
        "load('model', verify=True)"]),
    ("treepack.Series('run', template=TREE)", "resume takes it$", [
        "treepack.Series('run').resume(TREE)"]),
    ("treepack.Series('run', background=True)", "save of the series takes it$", [
        "treepack.Series('run').save(9, TREE, background=True).result()"]),
    ("treepack.Series('run', link=True)", 'pass unchanged="link"$', [
        "treepack.Series('run', unchanged='link')"]),
    ("treepack.Series('run').save(9, TREE, format='safetensors')", "treepack.save has it$", [
        "save('x', TREE['params'], format='safetensors')"]),
    ("treepack.Series('run').save(9, TREE, prefix='best_')", r"Series\(path, \.\.\.\) takes it$", [
        "treepack.Series('run', prefix='best_').save(9, TREE)"]),
    ("treepack.Series('run').wait(timeout=3)", "'timeout'; it has none$", [
        "treepack.Series('run').wait()"]),
    ("treepack.Series('run').last()", r"use steps\(\), as in run\.steps\(\)\[-1\]", [
        "treepack.Series('run').steps()[-1]"]),
    ("treepack.Series('run').save(9, TREE, metrics={'train': {'loss': 1.0}})",
        "each of its numbers by its own name, such as 'train/loss'$", [
            "treepack.Series('run').save(9, TREE, metrics={'train/loss': 1.0})"]),
    ("load(treepack.Series('run'))", r"got Series: call its resume\(target\), or treepack\.load", [
        "treepack.Series('run').resume(TREE)", "load(treepack.Series('run').path(1), TREE)"]),
    ("load(treepack.Series('run').path)", r"got method: call it, as path\(\.\.\.\)$", [
        "load(treepack.Series('run').path(1))"]),
    ("file.flatten()", r"use dict\(file\.leaves\(\)\)$", ["dict(file.leaves())"]),
    ("file.select('params')", r"use load\(select=\.\.\.\)$", ["file.load(select='params')"]),
    ("treepack.diff('model', TREE).ok", "use `not differences`: ", [
        "not treepack.diff('model', TREE)"]),
    ("file['params/w'].statistics().average", "use mean$", [
        "file['params/w'].statistics().mean"]),
    ("file['params/w'].sharding", r"treepack\.abstract\(path\) has that of the save$", [
        "treepack.abstract('model')['params']['w'].sharding"]),
    ("load('model', TREE, return_report=True)[1].missing", "'missing': use kept$", [
        "load('model', TREE, return_report=True)[1].kept"]),
    ("treepack.list_checkpoints", r"use treepack\.Series\(path\)\.steps\(\)$", [
        "treepack.Series('run').steps()"]),
    ("treepack.summary", r"print treepack\.open\(path\)$", ["print(treepack.open('model'))"]),
    ("load('model', jax.tree.leaves(TREE))", "dict there: pass one with its keys in place of the", [
        "load('model', TREE)"]),
    ("load('with_list', [{'layers': [np.ones(2), np.zeros(2)]}])",
        r"leaves of 0 one level higher: pass template\[0\] as", [
            "load('with_list', {'layers': [np.ones(2), np.zeros(2)]})"]),
    ("load(dumps({'a': {'b': 1}}), {'b': {'a': 0}})", r"^(?!.*one level higher)", [
        "load(dumps({'a': {'b': 1}}), {'a': {'b': 0}})"]),
    ("load(dumps({'w': jnp.ones(2)}), sharding=jax.devices())",
        r"shardings \(a list of devices; for all, pass NamedSharding\(mesh, spec\)\) has", [
            "load('model', sharding=NamedSharding(mesh, P()))"]),
    ("load(dumps({'w': jnp.ones(2)}), sharding={'a': jax.devices()[0]})",
        "the tree of shardings has no entry", [
            "load('model', sharding=jax.devices()[0])"]),
    ("save('x.eqx', TREE)", r"\.eqx file, which is for equinox: choose \.treepack", [
        "save('x.treepack', TREE)"]),
]  # fmt: skip
"""Mistakes of users who come from other libraries, first seen in their programs."""
