"""Mistakes in runs, published versions, patches, arguments and trees, for `test_mistakes`."""

from __future__ import annotations

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
    ("treepack.unstack('w')", r"^unstack needs a pattern with one \*.*, got 'w'", [
        "treepack.unstack('*/w')"]),
    ("treepack.stack(3)", r"^stack needs a pattern with one \*.*, got 3", [
        "treepack.stack('*/w')"]),
    ("load('model', TREE, rename={'w': treepack.unstack('*/w')})",
        r"unstack\('\*/w'\) matches nothing.*load stacks arrays, and save splits them", [
            "save('a.safetensors', TREE['params'], rename={'w': treepack.unstack('*/w')})"]),
    ("load('partial')", r"register_function, called before the save, keeps it$", [
        "treepack.register_function(half)", "save('partial', partial())", "load('partial')"]),
]  # fmt: skip

TREES: list[Row] = [
    ("load('model', {'x': 1}, rename={'parms': 'x'})", r"rename matches.*; is it 'params'\?", [
        "load('model', {'x': TREE['params']}, rename={'params': 'x'})"]),
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
