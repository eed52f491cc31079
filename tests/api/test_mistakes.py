"""Mistakes, the errors that they raise, and cures that these errors name: each cure works."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import io
import json
import pathlib
import pickle
import re
import shutil
import types
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tiers
import treepack
from commands import invoke
from guesses import FUNCTIONS, MORE, NAMES, THINGS, make_guesses
from lapses import LAPSES, Measured
from mistakes import CALLS, HERE, RUNS, TREES, Row
from mixups import KINDS, LEAVES_TOO, MIXED, NUMBERS, OTHERS, make_mixups
from slips import FILES, HERE_TOO, SLIPS, TEMPLATES, make_slips
from treepack import checkpoints, serialization


@dataclasses.dataclass
class Config:
    """A dataclass that is not registered."""

    width: Any = 1


class Thing:
    """A class that is neither a container nor a leaf."""

    def __init__(self) -> None:
        self.width = 1


class Color(enum.Enum):
    """An enum."""

    RED = 1


class Pair(NamedTuple):
    """A namedtuple that is not registered."""

    a: Any


TREE = {
    "params": {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)},
    "step": np.int32(3),
}


def make_files() -> None:
    """Makes the files that the rows read, in the working directory."""
    treepack.save("model", TREE, metadata={"step": 1})
    data = pathlib.Path("model").read_bytes()
    pathlib.Path("cut").write_bytes(data[:100])
    pathlib.Path("flipped").write_bytes(data.replace(b"\0\0\x80\x3f", b"\0\0\x81\x3f", 1))
    pathlib.Path("longer").write_bytes(serialization.to_bytes(TREE) + b"\0")
    pathlib.Path("zero").write_bytes(b"")
    pathlib.Path("text").write_text("hello world")
    pathlib.Path("json").write_text(json.dumps({"a": 1}))
    pathlib.Path("pickle").write_bytes(pickle.dumps(TREE))
    pathlib.Path("page").write_text("<!doctype html><p>Not found")
    pathlib.Path("of_flax").write_bytes(serialization.to_bytes(TREE))
    np.savez("a.npz", w=np.ones(3))
    np.savez("objects.npz", a=np.array([{}], object), w=np.ones(3))
    np.save("a.npy", np.ones(3))
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, "a.safetensors")
    treepack.save("config", {"c": Config(np.ones(2))})
    treepack.save("pair", Pair(np.ones(2)))
    treepack.save("code", {"f": len, "w": np.ones(1)})
    treepack.save("pickles", {"mlp/~/linear": {"w": np.ones(2)}})
    treepack.save("nested", {"heads": {"weight": np.zeros(2)}})
    treepack.save("wide", {"w": np.arange(3.0)})
    treepack.save("even", {"w": np.zeros(2, np.float32)})
    treepack.save("sharded", TREE, sharded=True)
    treepack.save("patch", TREE, base=TREE)
    treepack.save("pair_of", {"a": np.ones((4, 3)), "b": np.ones((4, 2, 3))})
    treepack.save("with_list", {"layers": [np.ones(2), np.zeros(2)]})
    for name in ("base", "gone"):
        treepack.save(name, TREE)
    treepack.save("elsewhere/patch", TREE, base="base")
    treepack.save("lost", TREE, base="gone")
    pathlib.Path("gone").unlink()
    treepack.save("partial", partial())
    treepack.save("jax", {"w": jnp.ones(2)})
    treepack.Publisher("policy").push(TREE, version=1)
    run = treepack.Series("run")
    for step in range(3):
        checkpoints.save_checkpoint("series", TREE, step, keep=9)
        run.save(step, TREE, metrics={"loss": 1 / (step + 1)})
    treepack.Series("scores").save(0, TREE)
    pathlib.Path("empty").mkdir()
    treepack.save("variable", {"kernel": {"value": np.ones(2)}})
    with zipfile.ZipFile("all.zip", "w") as file:
        file.write("model")
    make_slips()
    make_guesses()
    make_mixups()


PATHS: list[Row] = [
    ("load('series')", "it is a series with the steps 0, 1, 2: load 'series/ch[^ ]*_2'$", [
        "load('series/checkpoint_2', TREE)"]),
    ("load('run')", "treepack: it is a series with the steps 0, 1, 2: load 'run/step_2'$", [
        "load('run/step_2')"]),
    ("open('run')", "'run/step_2'", ["open('run/step_2')"]),
    ("verify('series')", "'series/checkpoint_2'", ["verify('series/checkpoint_2')"]),
    ("load('empty')", "'empty': .* is empty, .*: pass the path of a save, or of a file, or wait", [
        "save('empty', TREE, sharded=True)", "load('empty')"]),
    ("load('zero')", r"'zero': the file is empty \(0 bytes\): write or copy it again", [
        "save('zero', TREE)", "load('zero')"]),
    ("load('cut')", "'cut': the data ends early.*copy it again, or .*`treepack salvage` .byte 87", [
        "salvage('cut', 'whole')", "load('whole')"]),
    ("open('cut')", "ends early, inside a value: .* at step.*|ends early.*salvage", [
        "open('cut', salvage=True)['params/w'][:]"]),
    ("load('longer')", "1 trailing byte after the end of the value: .*only the value's by", [
        "loads(bytes_of('longer')[:-1])"]),
    ("load('text')", '^[^;]*"hello world": .*text, .*byte 1', [
        "pathlib.Path('text').read_text()"]),
    ("load('json')", r"^[^;]*JSON text: read it with the module json \(", [
        "json.loads(bytes_of('json'))"]),
    ("load('pickle')", r"Python pickle.*load it where you trust it, and save it with treepack \(", [
        "save('unpickled', pickle.loads(bytes_of('pickle')))"]),
    ("load('page')", "an HTML page: the download went wrong; look at it", ["bytes_of('page')"]),
    ("loads(bytes_of('a.npz'))", r"^[^;]*npz archive of NumPy: read it with treepack.load \(", [
        "load('a.npz')"]),
    ("loads(bytes_of('a.npy'))", r"^[^;]*a .npy file: read it with treepack.load \(", [
        "load('a.npy')"]),
    ("load('sharded/manifest.treepack')", "give the directory", ["load('sharded')"]),
    ("load('absent')", "No such file.*'absent'", ["save('absent', TREE)", "load('absent')"]),
    ("load(None)", "expected a path, a URL, a bytes-like object or a file object", [
        "load('model')"]),
    ("load(io.StringIO('x'))", "open .*'rb'", ["load(io.BytesIO(bytes_of('model')))"]),
    ("load(pathlib.Path('s3://b/m'))", "URL that pathlib changed: pass it as a str", [
        "load('memory://m')"]),
    ("load('model', storage_options={'a': 1})", "apply only to URLs.*leave them out", [
        "load('model')"]),
    ("load('memory://m', storage_options={'a': 1})", "no option 'a': leave out storage_options", [
        "load('memory://m')"]),
    ("save('s3://b/m', TREE, storage_options={'acces_key_id': 'a'})",
        "'acces_key_id' is not valid.*such as .*access_key_id", [
            "save('memory://m', TREE)"]),
    ("save('protocol://b/m', TREE)", "'protocol://b/m': Protocol not known", [
        "save('memory://m', TREE)"]),
    ("load(TREE, 'model')", r"the path comes first, as in load\(path, target\)", [
        "load('model', TREE)"]),
    ("load('model', ['params'])", "a template: for a part of the file, pass select=", [
        "load('model', select='params')"]),
    ("file.params", r"no attribute 'params': is it \['params'\]\?$", ["file['params']"]),
    ("file['params'].w", r"no attribute 'w': is it \['w'\]\?$", ["file['params']['w']"]),
    ("file.weights", "no attribute 'weights'$", ["file['params']"]),
    ("save(TREE, 'x')", r"got dict: the path comes first, as in save\(path, tree\)", [
        "save('x', TREE)"]),
    ("save('', TREE)", "The path is empty", ["save('x', TREE)"]),
    ("treepack.digest('')", "The path is empty", ["treepack.digest('model')"]),
    ("save('x')", "missing 1 required positional argument: 'tree'", ["save('x', TREE)"]),
    ("save('sharded', TREE)", "Is a directory: 'sharded'.*choose a file in it; .*sharded=True", [
        "save('sharded', TREE, sharded=True)"]),
    ("save('model', TREE, sharded=True)",
        "this name, and sharded=True, .* or Series writes a directory: choose another .*model'", [
            "save('sharded2', TREE, sharded=True)"]),
    ("save('zero/x', TREE)", "Not a directory: 'zero/x'", ["save('folder/x', TREE)"]),
    ("save('x.npz', TREE)", r"\.npz file.*choose \.treepack.* run `treepack convert` on it", [
        "save('x.treepack', TREE)", "run('convert', 'x.treepack', 'x.npz')"]),
    ("save('x.json', TREE)", r"\.json file.*choose \.treepack", ["save('x.treepack', TREE)"]),
    ("save('x.pt', TREE)", r"\.pt file.*choose \.treepack", ["save('x.treepack', TREE)"]),
    ("save('d', TREE, format='npz')", "format must be None or 'safetensors', got 'npz'", [
        "save('d', {'w': np.ones(1)}, format='safetensors')"]),
    ("save('a.safetensors', {'n': 3})", "at n: .*save numpy.asarray", [
        "save('a.safetensors', {'n': np.asarray(3)})"]),
    ("save('x', {'n': memoryview(np.ones(1))})", "at n: .*format and shape would be lost: save n", [
        "save('x', {'n': np.asarray(memoryview(np.ones(1)))})"]),
    ("treepack.dumps({'n': memoryview(np.ones(1, 'i1'))})", "at n: .*would be lost", [
        "treepack.dumps({'n': memoryview(b'1')})"]),
    ("save('a.safetensors', {'n': 'x', 'w': np.ones(1)})", "at n: .*static=.skip", [
        "save('a.safetensors', {'n': 'x', 'w': np.ones(1)}, static='skip')"]),
    ("save('a.safetensors', {'w': np.ones(1)}, metadata={'n': 1})", "strings .*json.dumps", [
        "save('a.safetensors', {'w': np.ones(1)}, metadata={'n': json.dumps(1)})"]),
    ("save('x', TREE, max_shard_size='1GB')",
        "^max_shard_size= applies only to safetensors: pass format='safetensors', or leave it o", [
        "save('d', TREE, format='safetensors', max_shard_size='1GB')"]),
    ("save('d', TREE, format='safetensors', max_shard_size='big')", "'big'.*500MB|'big'", [
        "save('d', TREE, format='safetensors', max_shard_size='500MB')"]),
    ("treepack.loads('model')", "got the path 'model': use treepack.load for files", [
        "load('model')"]),
    ("treepack.loads(TREE)", "expected a bytes-like object, such as dumps returns, got dict", [
        "loads(dumps(TREE))"]),
    ("treepack.loads(b'')", r"is empty \(0 bytes\): send", ["loads(dumps(TREE))"]),
    ("load('objects.npz')", "array a cannot be .*pickled objects.*never read: select= loads", [
        "load('objects.npz', select='w')"]),
    ("load('patch')", "base", ["load('patch', base=TREE)"]),
]  # fmt: skip

OPTIONS: list[Row] = [
    ("load('model', copy=3)", "copy must be True, False or None, got 3", [
        "load('model', copy=True)", "load('model', copy=None)"]),
    ("load('model', copy=1)", "copy must be True, False or None, got 1", [
        "load('model', copy=True)"]),
    ("load('model', max_size='1GB')", r"max_size .* bytes .*, such as 10\*\*9, got '1GB'", [
        "load('model', max_size=10**9)"]),
    ("load('model', max_size=-1)", "max_size must be .* of at least 0, .* got -1", [
        "load('model', max_size=0)"]),
    ("load('model', verify='yes')", "verify must be True or False, got 'yes'", [
        "load('model', verify=True)"]),
    ("load('model', mmap='no')", "mmap must be True or False, got 'no'", [
        "load('model', mmap=False)"]),
    ("open('model', mmap='no')", "mmap must be True or False", ["open('model', mmap=False)"]),
    ("load('model', return_report='yes')", "return_report must be True or False", [
        "load('model', return_report=True)"]),
    ("file.load(return_report=2)", "return_report must be True or False, got 2", [
        "file.load(return_report=True)"]),
    ("load('model', TREE, strict='yes')", "strict must be True, False or 'exact', got 'yes'", [
        "load('model', TREE, strict='exact')"]),
    ("load('model', TREE, cast='float16')", "cast must be True, False or 'overflow'", [
        "load('model', TREE, cast=True)"]),
    ("load('model', arrays='torch')", "arrays must be 'saved', 'numpy' or 'jax', got 'torch'", [
        "load('model', arrays='numpy')"]),
    ("load('model', unknown='skip')", "unknown must be 'error' or 'dict', got 'skip'", [
        "load('model', unknown='dict')"]),
    ("load('model', containers='dict')", "containers must be 'saved' or 'plain'", [
        "load('model', containers='plain')"]),
    ("load('model', TREE, unexpected='drop')", "unexpected must be 'ignore' or 'error'", [
        "load('model', TREE, unexpected='ignore')"]),
    ("load('model', TREE, missing='keep')", "missing must be 'error' or 'target', got 'keep'", [
        "load('model', TREE, missing='target')"]),
    ("load('model', TREE, mismatched='keep')", "mismatched must be 'error' or 'target'", [
        "load('model', TREE, mismatched='target')"]),
    ("load('model', missing='target')", "missing= requires a target.*second argument", [
        "load('model', TREE, missing='target')"]),
    ("load('model', mismatched='target')", "mismatched= requires a target", [
        "load('model', TREE, mismatched='target')"]),
    ("load('model', mapping=lambda path: path)", "needs a target, whose paths it takes", [
        "load('model', TREE, mapping=lambda path: path)"]),
    ("load('model', cast=True)", "cast=True requires a target.*pass dtype=", [
        "load('model', dtype='float16')"]),
    ("load('model', TREE, dtype='float16')", "cast=True", ["load('model', TREE, cast=True)"]),
    ("load('model', dtype='int8')", "float dtype such as bfloat16, got int8", [
        "load('model', dtype='bfloat16')"]),
    ("load('model', dtype='floaty')", "float dtype such as bfloat16, got 'floaty'", [
        "load('model', dtype='bfloat16')"]),
    ("load('model', TREE, static={'a': 1})", "static= cannot be used with a target.*leave it out", [
        "load('model', TREE)"]),
    ("load('model', TREE, on_corrupt='ignore')", "on_corrupt must be 'error' or 'skip'", [
        "load('model', TREE, on_corrupt='skip')"]),
    ("load('model', threads=-1)", "threads must be from 1 to 65536, got -1", [
        "load('model', threads=1)"]),
    ("load('model', threads='all')", "threads must be an integer, got 'all'", [
        "load('model', threads=None)"]),
    ("load('model', timeout=-1)", "seconds above 0, such as 600, got -1", [
        "load('model', timeout=1)"]),
    ("load('model', timeout='1s')", "seconds above 0, such as 600, got '1s'", [
        "load('model', timeout=1.5)"]),
    ("load('model', replicas='all')", "replicas must be 'read' or 'broadcast'", [
        "load('model', replicas='read')"]),
    ("load('model', progress='bar')", "progress must be a callable, a bool or None", [
        "load('model', progress=True)"]),
    ("load('model', device='gpu')", r"device= must be .*jax\.devices\(\)\[0\], got 'gpu'", [
        "load('model', device=jax.devices()[0])"]),
    ("load('model', sharding=P('tp'))",
     r"got P\('tp',\): wrap it, as NamedSharding\(mesh, PartitionSpec\('tp'\)\)", [
        "load('model', select='step', sharding=NamedSharding(mesh, P()))"]),
    ("load('even', sharding='tp')",
     r"got 'tp': wrap it, as NamedSharding\(mesh, PartitionSpec\('tp'\)\)", [
        "load('even', sharding=NamedSharding(mesh, PartitionSpec('tp')))"]),
    ("load('model', sharding={'params': P(), 'step': None})", r"at params .*wrap it", [
        "load('model', sharding={'params': NamedSharding(mesh, P()), 'step': None})"]),
    ("load('model', sharding=mesh)", r"as NamedSharding\(mesh, PartitionSpec\(\.\.\.\)\)", [
        "load('model', sharding=NamedSharding(mesh, P()))"]),
    ("load('model', device=jax.devices()[0], sharding=NamedSharding(mesh, P()))",
        "device= and sharding= exclude each other: pass only one", [
            "load('model', device=jax.devices()[0])"]),
    ("load('model', device=jax.devices()[0], arrays='numpy')", "leave out arrays='numpy'", [
        "load('model', device=jax.devices()[0])"]),
    ("load('wide', arrays='jax')", "arrays='numpy'", ["load('wide', arrays='numpy')"]),
    ("load('model', TREE, stict=False)", r"load\(\) got .*'stict': is it 'strict'\?", [
        "load('model', TREE, strict=False)"]),
    ("load('model', dtype=np)", "got <module 'numpy'|must be a valid dtype", [
        "load('model', dtype=np.float16)"]),
    ("save('x', TREE, compress=True, level=6.0)", "level must be an integer from 0 to 9, got 6.0", [
        "save('x', TREE, compress=True, level=6)"]),
    ("dumps(TREE, background=True)", "'background': treepack.save has it", [
        "save('x', TREE, background=True).result()"]),
    ("verify('model', expect='0')", "treepack.load and `treepack verify` have it", [
        "load('model', expect=treepack.digest('model'))",
        "run('verify', 'model', '--expect', treepack.digest('model'))"]),
    ("save('x', TREE, background=True).join()", r"no attribute 'join': use result\(\)", [
        "save('x', TREE, background=True).result()"]),
    ("save('x', TREE, background=True).result('1s')",
        "timeout must be a number of seconds or Non", [
        "save('x', TREE, background=True).result(60)"]),
    ("treepack.loads(open_binary('model'))",
        r"pass the result of its read\(\), or .*treepack.load", [
        "treepack.loads(open_binary('model').read())", "load(open_binary('model'))"]),
    ("treepack.loads(['model'])", "item 0: .* got the path 'model': use treepack.load", [
        "load('model')"]),
    ("treepack.load_exported('model')",
        "not written by save_exported: .*treepack.load reads", [
        "load('model')"]),
    ("treepack.Series('by_step').save(jnp.arange(2), TREE)",
        r"step must be an integer, got Array\(\[0,", [
        "treepack.Series('by_step').save(5, TREE)"]),
    ("treepack.Series('by_step').save(step=6, tree=TREE)", "'tree': pass it as state=$", [
        "treepack.Series('by_step').save(step=6, state=TREE)"]),
    ("treepack.Series('run').resume(TREE, TREE)",
        r"call it as resume\(template\), and name the re", [
        "treepack.Series('run').resume(TREE)"]),
    ("treepack.Subscriber('policy', max_size=9).latest()",
        r"larger than max_size=9 .* of \d+ or mo", [
        "treepack.Subscriber('policy', max_size=999).latest()"]),
    ("treepack.Subscriber('empty').latest()", r"push one by a Publisher of this directory, or", [
        "treepack.Publisher('empty').push(TREE, version=1)",
        "treepack.Subscriber('empty').latest()"]),
    ("run('ls', 'a.safetensors', '--map', 'l/{l}=w')", "axes, as in 'l/{l}=w=l o i -> o i'$", [
        "run('ls', 'a.safetensors', '--map', 'l/{l} = w = l -> 1')"]),
    ("run('ls', 'a.safetensors', '--map', 'l/{l}=w.{k}')", "give an index the same name in both$", [
        "run('ls', 'a.safetensors', '--map', 'l=w')"]),
    ("run('convert', 'a.safetensors', 'x', '--map', 'v:w')", "no file 'v'; a rule is NEW=OLD", [
        "run('convert', 'a.safetensors', 'x', '--map', 'v=w')"]),
    ("checkpoints.save_checkpoint('series3', TREE, 1, gda_manager=1)",
        "leave it out: save_check", [
        "checkpoints.save_checkpoint_multiprocess('series3', TREE, 1)"]),
    ("checkpoints.save_checkpoint('series4', TREE, 1, async_manager=True)",
        r"AsyncManager\(\), got", [
        "checkpoints.save_checkpoint('series4', TREE, 1, async_manager=None)"]),
    ("load('model', templates=TREE)", "'templates'; it has path, target, ", [
        "load('model', target=TREE)"]),
    ("file.load(selct='params')", r"'selct': is it 'select'\?", ["file.load(select='params')"]),
    ("save('x', TREE, compresss=True)", "'compresss': is it 'compress'", [
        "save('x', TREE, compress=True)"]),
    ("save('x', TREE, compress='zstd')", "compress must be True, False, 'gzip' or 'numbers'", [
        "save('x', TREE, compress='numbers')"]),
    ("save('x', TREE, compress=True, level=10)", "level must be from 0 to 9, got 10", [
        "save('x', TREE, compress=True, level=9)"]),
    ("save('x', TREE, compress=True, level='best')",
        "level must be an integer from 0 to 9, got 'best'", [
        "save('x', TREE, compress=True, level=9)"]),
    ("save('x', TREE, level=3)", "pass compress=True", ["save('x', TREE, level=3, compress=True)"]),
    ("save('x', TREE, align=3)", "align must be a power of two from 1 to 64, got 3", [
        "save('x', TREE, align=4)"]),
    ("save('x', TREE, align='page')", "align must be a power of two from 1 to 64, got 'page'", [
        "save('x', TREE, align=64)"]),
    ("save('x', TREE, durable=2)", "durable must be True or False, got 2", [
        "save('x', TREE, durable=False)"]),
    ("save('x', TREE, background='yes')", "background must be True or False", [
        "save('x', TREE, background=True).result()"]),
    ("save('x', TREE, sharded='yes')", "sharded must be True, False or None", [
        "save('y', TREE, sharded=True)"]),
    ("save('x', TREE, step='3')", "step must be an integer, got '3'", [
        "save('x', TREE, step=3)"]),
    ("save('x', TREE, static='all')", "static must be 'skip-code', 'skip' or 'error'", [
        "save('x', TREE, static='skip')"]),
    ("save('x', TREE, sharded=True, base=TREE)", "one file: leave it out", [
        "save('y', TREE, sharded=True)"]),
    ("save('x', iter([]), select='a')", "let the iterator yield only", [
        "save('x', iter([('a', np.ones(1))]))"]),
    ("save('x', iter([]), background=True)", "leave them out, or pass a tree", [
        "save('x', iter([('w', 1)]))"]),
    ("treepack.packed_size(TREE, metadata=1)", "require described=True", [
        "treepack.packed_size(TREE, metadata=1, described=True)"]),
    ("load('of_flax', verify=True)", "no checksums.*not from treepack.save", [
        "save('x', load('of_flax'))", "load('x', verify=True)"]),
    ("load('flipped', verify=True)", "/w is damaged: pass on_corrupt='skip' to .*load", [
        "load('flipped', TREE, on_corrupt='skip', missing='target')"]),
]  # fmt: skip

PARTS: list[Row] = [
    ("load('model', select={'params': True})",
        "at step: .* no bool for it: add one, such as F", [
        "load('model', select={'params': True, 'step': False})"]),
    ("load('model', abstract(), sharding={'params': {'w': None}, 'step': None})",
        "at params/b: the tree of shardings has no entry .*: add one for it, or for a container ", [
            "load('model', abstract(), sharding={'params': None, 'step': None})"]),
    ("load('model', select='params/b', sharding=lambda path, it: P())",
        r"wrap it, as NamedSharding", [
        "load('model', select='params/b', sharding=lambda path, it: NamedSharding(mesh, P()))"]),
    ("load('model', select='params/b', sharding=NamedSharding(mesh, P(None, 'tp')))",
        "its spec has 2 dimensions, the array 1; pass a function of path and shape as sharding=", [
            "load('model', select='params/b', sharding=lambda path, _: NamedSharding(mesh, P()))"]),
    ("load('model', mapping={'params/w': 'v'})",
        r"matches nothing in the file; keys are paths of the tree: is it \{'v': 'params/w'\}\?", [
            "load('model', mapping={'v': 'params/w'})"]),
    ("load('model', mapping={'params/w': ('v', 'a b -> b a')})",
        r"keys are paths of the tree: is it .*, with the axes of both sides exchanged\?", [
            "load('model', mapping={'v': ('params/w', 'b a -> a b')})"]),
    ("load('nested', {'head': np.zeros(2)})", r"Pass mapping=\{'head': 'heads/weight'\}", [
        "load('nested', {'head': np.zeros(2)}, mapping={'head': 'heads/weight'})"]),
    ("file.save('x')", r"no attribute 'save': use treepack\.save\(path, file\)$", [
        "save('x', file)"]),
    ("treepack.Series('run', last=3)", r"'last': pass keep=treepack\.Keep\(last=3\)$", [
        "treepack.Series('run', keep=treepack.Keep(last=3))"]),
    ("treepack.Mapping(v='params/w')", r"call it as Mapping\(rules\)", [
        "treepack.Mapping({'v': 'params/w'})"]),
    ("treepack.Mapping({'v': 'step'}).check('model', TREE)", r"as in check\(target, source\)", [
        "treepack.Mapping({'step': 'step'}).check(TREE, 'model')"]),
    ("load('model', {**TREE, 'params': collections.OrderedDict(TREE['params'])}, strict='exact')",
        "expected a container of the type collections.OrderedDict, found dict.*Pass strict=True", [
            "load('model', {**TREE, 'params': collections.OrderedDict(TREE['params'])})"]),
    ("file['w']", "'model': .* w: is it 'params/w'", ["file['params/w']"]),
    ("file['/params/w']", "at /params/w: is it 'params/w'", ["file['params/w']"]),
    ("file['params.w']", "at params.w: is it 'params/w'", ["file['params/w']"]),
    ("file['params/W']", "at params/W: is it 'params/w'", ["file['params/w']"]),
    ("file['parms']", "at parms: is it 'params'", ["file['params']"]),
    ("file['params/*']", r"no wildcards here: call load\(select='params/\*'\)", [
        "file.load(select='params/*')"]),
    ("file[0]", "a path must be a string, such as 'params/0/w', .*got 0", ["file['params']"]),
    ("load('model', select='w')", "select matches nothing in the file: w; is it 'params/w'", [
        "load('model', select='params/w')"]),
    ("load('model', select='')", "matches nothing in the file: ''; it has params/w, params/b, s", [
        "load('model', select='params/b')"]),
    ("load('model', select='params.w')", "is it 'params/w'", ["load('model', select='params/w')"]),
    ("load('model', select=[])", r"select=\[\] selects nothing: leave it out", ["load('model')"]),
    ("save('x', TREE, select=[])", r"select=\[\] selects nothing", ["save('x', TREE)"]),
    ("save('x', TREE, select='b')", "nothing in the tree: b; is it 'params/b'", [
        "save('x', TREE, select='params/b')"]),
    ("load('model', select=3)", "select= must be a pattern, a list of patterns, a predicate", [
        "load('model', select=['step'])"]),
    ("load('model', select=('params/w', 'step'))", "pass a list", [
        "load('model', select=['params/w', 'step'])"]),
    ("load('model', exclude='b')", "exclude matches nothing in the file: b; is it 'params/b'", [
        "load('model', exclude='params/b')"]),
    ("load('model', {'p': TREE['params'], 'step': 3}, mapping={'p': 'parms'})", "is it 'params'", [
        "load('model', {'p': TREE['params'], 'step': 3}, mapping={'p': 'params'})"]),
    ("load('model', {'new': np.int32(7), **TREE}, mapping={'step': 'new'})",
     r"keys are paths of the tree: is it \{'new': 'step'\}", [
        "load('model', {'new': np.int32(7), **TREE}, mapping={'new': 'step'})"]),
    ("load('model', TREE, mapping=3)", "mapping= takes a treepack.Mapping, a dict of rules", [
        "load('model', TREE, mapping=lambda path: path)"]),
    ("load('model', {'b': TREE['params']}, mapping={'b/*': 'params/*'}, missing='target')",
     r"write indices in place of \*, as in \{'new/\{i\}/kernel'", [
        "load('model', {'b': TREE['params']}, mapping={'b/{i}': 'params/{i}'})"]),
    ("load('model', select='params/[bw]')", r"wildcards are \*, .* is it 'params/\*'", [
        "load('model', select='params/*')"]),
    ("load('model', 'params')", "This argument is a template: for a part .*select= in its place", [
        "load('model', select='params')"]),
    ("file.load('params')", "This argument is a template: for a part .*select= in its place", [
        "file.load(select='params')", "file['params'].load()"]),
    ("load('model', Config)", r"got a type \(Config\): pass an object of it", [
        "load('config', {'c': Config(np.ones(2))})"]),
    ("load('model', lambda: TREE)", r"call it, as jax\.eval_shape", [
        "load('model', jax.eval_shape(lambda: TREE))"]),
    ("load('model', linen.Dense(3))", r"jax\.eval_shape\(module\.init", [
        "load('model', {'params': {'w': TREE['params']['w'], 'b': TREE['params']['b']},"
        " 'step': TREE['step']})"]),
    ("load('model', {'p': {**TREE['params'], 'v': 1}}, mapping={'p/v': 'step', 'p/w': 'params/w'})",
     r"p/b: missing", [
        "load('model', {'p': {**TREE['params'], 'v': np.int32(1)}}, "
        "mapping={'p/v': 'step', 'p': 'params'})"]),
    ("load('model', {'v': TREE['params']['b'], 'n': np.int32(1)}, mapping={'n': 'step'})",
     "v: missing", [
        "load('model', {'v': TREE['params']['b'], 'n': np.int32(1)}, "
        "mapping={'n': 'step', 'v': 'params/b'})"]),
    ("load('model', {'v': 1, 'step': 3})", 'v: missing.*missing="target".*unexpected="ignore"', [
        "load('model', {'v': 1, 'step': 3}, missing='target', unexpected='ignore')"]),
    ("load('model', {'v': TREE['params']['w']}, missing='target')", "is loaded: .*mapping=", [
        "load('model', {'v': TREE['params']['w']}, missing='target', mapping={'v': 'params/w'})"]),
    ("load('model', with_w((3, 2)))", r'expected float32\[3,2\].*mismatched="target".*strict=F', [
        "load('model', with_w((3, 2)), mismatched='target')",
        "load('model', with_w((3, 2)), strict=False)"]),
    ("load('model', with_w((2, 3), jnp.bfloat16))", "params/w: expected bfloat16.*cast=True", [
        "load('model', with_w((2, 3), jnp.bfloat16), cast=True)"]),
    ("load('model', {**TREE, 'ema': np.ones(1)})", 'ema: missing.*missing="target"', [
        "load('model', {**TREE, 'ema': np.ones(1)}, missing='target')"]),
    ("load('config')", r"'config': unregistered type 'test_mistakes\.Config': pass a template as "
        r"target, or unknown=\"dict\" for dicts\. Or register it under this name: @treepack\.regis"
        r"ter_dataclass\(serialized_name='test_mistakes\.Config'\), or register_named", [
            "load('config', {'c': Config(np.ones(2))})", "load('config', unknown='dict')",
            "treepack.register_dataclass(Config, serialized_name='test_mistakes.Config')",
            "load('config')"]),
    ("load('pair')", "'test_mistakes.Pair'.*unknown=\"dict\"", [
        "load('pair', Pair(np.ones(2)))", "load('pair', unknown='dict')"]),
    ("load('code')", "static=", ["load('code', {'f': len, 'w': np.ones(1)})",
        "load('code', static={'f': len})"]),
    ("np.asarray(file['params/w'])[0].__setitem__(0, 1)", "read-only", [
        "load('model', copy=True)['params']['w'].__setitem__(0, 1)"]),
    ("file['params/w'].sort()", r"array\[\.\.\.\]\.sort", ["file['params/w'][...].sort()"]),
    ("closed()['params']", "'model' is closed: open it again", ["open('model')['params']"]),
]  # fmt: skip

LEAVES: list[Row] = [
    ("dumps({'a': {1, 2}})", r"at a: .*set.* a set has no order: save sorted\(\.\.\.\) of it", [
        "dumps({'a': sorted({1, 2})})", "dumps({}, metadata={'a': {1, 2}})"]),
    ("dumps({'a': range(3)})", r"at a: .*list\(\.\.\.\)", [
        "dumps({'a': list(range(3))})"]),
    ("dumps({'a': collections.deque([1])})", r"at a: .*list\(\.\.\.\)", [
        "dumps({'a': list(collections.deque([1]))})"]),
    ("dumps({'a': np.array(['x'])})", r"at a: .*\.tolist\(\)", [
        "dumps({'a': np.array(['x']).tolist()})"]),
    ("dumps({'a': np.array([1, None], object)})", r"dtype\('O'\).*\.tolist\(\)", [
        "dumps({'a': np.array([1, None], object).tolist()})"]),
    ("dumps({'a': np.zeros(1, 'V3')})", r"at a: .*dtype", ["dumps({'a': bytes(3)})"]),
    ("dumps({'a': Color.RED})", r"at a: .*save its \.value", ["dumps({'a': Color.RED.value})"]),
    ("dumps({'a': argparse.Namespace(b=1)})", r"at a: .*vars\(\.\.\.\)", [
        "dumps({'a': vars(argparse.Namespace(b=1))})"]),
    ("dumps({'a': types.SimpleNamespace(b=1)})", r"at a: .*vars\(\.\.\.\)", [
        "dumps({'a': vars(types.SimpleNamespace(b=1))})"]),
    ("dumps({'a': pathlib.Path('x')})", r"at a: .*str\(\.\.\.\).* metadata=", [
        "dumps({'a': str(pathlib.Path('x'))})", "dumps({}, metadata=pathlib.Path('x'))"]),
    ("dumps({'a': datetime.datetime(2020, 1, 1)})", r"save its \.isoformat\(\)", [
        "dumps({'a': datetime.datetime(2020, 1, 1).isoformat()})"]),
    ("dumps({'a': decimal.Decimal(1)})", r"at a: .*str\(\.\.\.\)", [
        "dumps({'a': str(decimal.Decimal(1))})"]),
    ("dumps({'a': np.dtype('int8')})", "save its name", ["dumps({'a': np.dtype('int8').name})"]),
    ("dumps({'a': np.ma.masked_array([1], [True])})", "save data and mask", [
        "dumps({'a': np.ma.masked_array([1], [True]).data, 'mask': np.array([True])})"]),
    ("dumps({'a': {'b': Thing()}})", r"at a/b: .*test_mistakes\.Thing.*register.*static=\"skip\"", [
        "dumps({'a': {'b': Thing()}}, static='skip')"]),
    ("dumps({'a': (it for it in [1])})", 'at a: .*generator.*static="skip"', [
        "dumps({'a': (it for it in [1])}, static='skip')"]),
    ("dumps({'a': file})", r"at a: .*treepack\.File.*save its \.load\(\)", [
        "dumps({'a': file.load()})"]),
    ("dumps({'a': jax.ShapeDtypeStruct((1,), 'f4')})", "no values.*metadata=", [
        "dumps({}, metadata={'a': jax.ShapeDtypeStruct((1,), 'f4')})"]),
    ("dumps({'a': P('x')})", r"at a: .*tuple\(\.\.\.\)", ["dumps({'a': tuple(P('x'))})"]),
    ("dumps({'a': jax.tree.structure([1])})", "save the tree itself", ["dumps({'a': [1]})"]),
    ("dumps({'m': nnx.graphdef(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))}, static='error')", "nnx.state",
        ["dumps({'m': nnx.state(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))})"]),
    ("jax.jit(lambda it: dumps({'a': it}))(1.0)", "at a: .*outside of jit", ["dumps({'a': 1.0})"]),
    ("dumps({1: 2, '1': 3})", "representation.*: rename keys that are equal as strings$", [
        "dumps({1: 2, 2: 3})"]),
    ("dumps({'__treepack__': 3})", "the key \"__treepack__\" is reserved", [
        "dumps({'treepack': 3})"]),
    ("dumps({Thing(): 3})", r"a key .*str\(\.\.\.\)", ["dumps({str(Thing()): 3})"]),
    ("dumps({}, metadata=Thing())", "at metadata: .*encode=", [
        "treepack.register_auxdata(Thing, serialized_name='Thing', encode=vars,"
        " decode=lambda it: Thing())", "dumps({}, metadata=Thing())"]),
    ("dumps({}, metadata={'a': [closed]})", "at metadata/a/0: .*register_function", [
        "treepack.register_function(closed)", "dumps({}, metadata={'a': [closed]})"]),
    ("treepack.restore", "no attribute 'restore': use treepack.load", ["treepack.load('model')"]),
    ("treepack.load_file('model')", "use treepack.load", ["treepack.load('model')"]),
    ("treepack.save_file(TREE, 'x')", "use treepack.save", ["treepack.save('x', TREE)"]),
    ("treepack.to_bytes(TREE)", "use treepack.serialization.to_bytes", [
        "treepack.serialization.to_bytes(TREE)"]),
    ("treepack.restore_checkpoint('series', None)", "use treepack.checkpoints.restore_checkpoint", [
        "treepack.checkpoints.restore_checkpoint('series', None)"]),
    ("treepack.info('model')", "use the command line, as in `treepack info --help`", [
        "run('info', 'model')"]),
    ("save('x', (it for it in [1, 2]))", r"pairs of .*, such as \('params/w', array\), got 1", [
        "save('x', (it for it in [('a', 1)]))"]),
    ("loads(dumps(TREE), select='step')", "treepack.load\\(data, ...\\) takes it", [
        "load(dumps(TREE), select='step')"]),
    ("file['params/w'].load()", r"read it by array\[\.\.\.\]", ["file['params/w'][...]"]),
    ("treepack.register_dataclass(3)", "expected a class, got 3", [
        "treepack.register_dataclass(dataclasses.make_dataclass('A', ['a']))"]),
    ("treepack.register_namedtuple(Config)", "a namedtuple: use treepack.register_dataclass$", [
        "treepack.register_namedtuple(collections.namedtuple('B', 'b'), serialized_name='m.B')"]),
    ("checkpoints.restore_checkpoint('series', TREE, step=9)", "the steps 0, 1, 2", [
        "checkpoints.restore_checkpoint('series', TREE, step=2)"]),
    ("checkpoints.save_checkpoint('series', TREE, 1)", "a later step, or pass overwrite=True", [
        "checkpoints.save_checkpoint('series', TREE, 3)"]),
    ("serialization.from_bytes(TREE, dumps(TREE)[:-5])", "at least 5 more bytes are needed; copy", [
        "serialization.from_bytes(TREE, dumps(TREE))"]),
    ("run('get', 'model', 'w', 'x')", "is it 'params/w'", ["run('get', 'model', 'params/w', 'x')"]),
    ("run('show', 'model', 'params')", "list its children with `treepack ls model params`", [
        "run('ls', 'model', 'params')"]),
    ("run('ls', 'model', 'parms')", "is it 'params'", ["run('ls', 'model', 'params')"]),
]  # fmt: skip

ROWS = [
    *(*PATHS, *OPTIONS, *PARTS, *LEAVES, *RUNS, *TREES, *CALLS, *TEMPLATES, *FILES, *SLIPS),
    *(*NAMES, *FUNCTIONS, *THINGS, *NUMBERS, *LEAVES_TOO, *KINDS, *OTHERS, *LAPSES),
]


def with_w(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Returns a template with another array."""
    return {**TREE, "params": {**TREE["params"], "w": np.zeros(shape, dtype)}}  # type: ignore[dict-item]


def abstract() -> Any:
    """Returns a template of JAX arrays."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, TREE))


def half(value: Any) -> Any:
    """A function that is not registered."""
    return value / 2


def partial() -> Any:
    return {"f": jax.tree_util.Partial(half), "w": np.ones(1)}


def salvage(source: str, target: str) -> None:
    """Runs `treepack salvage`, whose exit status is not 0 for a damaged file."""
    with pytest.raises(ValueError, match="damaged: "):
        invoke("salvage", source, target)


def closed() -> treepack.File:
    with treepack.open("model") as file:
        return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("mistakes")
    with contextlib.chdir(path):
        make_files()
    return path


@pytest.fixture
def folder(files: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[None]:
    """Runs a row in a copy of the files, which it may change."""
    shutil.copytree(files, tmp_path / "files", symlinks=True)
    with contextlib.chdir(tmp_path / "files"):
        yield


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that the rows use."""
    treepack.save("memory://m", TREE)
    modules = (argparse, collections, dataclasses, datetime, decimal, io, json, pathlib, pickle)
    verbs = (treepack.load, treepack.save, treepack.open, treepack.verify)
    return {
        **{it.__name__: it for it in (*modules, types, jax, treepack)},
        **{it.__name__: it for it in (*verbs, treepack.loads, treepack.dumps)},
        **{it.__name__: it for it in (Color, Config, Measured, Pair, Thing, NamedSharding)},
        **{it.__name__: it for it in (with_w, abstract, closed, salvage, half, partial)},
        **{
            "np": np,
            "jnp": jnp,
            "P": PartitionSpec,
            "PartitionSpec": PartitionSpec,
            "TREE": TREE,
            "run": invoke,
        },
        **{"checkpoints": checkpoints, "serialization": serialization},
        "__name__": __name__,  # the module of dataclasses made here, from Python 3.12 on
        **HERE,
        **HERE_TOO,
        **MORE,
        **MIXED,
        "linen": linen,
        "nnx": nnx,
        "mesh": Mesh(np.array(jax.devices()[:2]), ("tp",)),
        "bytes_of": lambda name: pathlib.Path(name).read_bytes(),
        "open_binary": lambda name: io.BytesIO(pathlib.Path(name).read_bytes()),
    }


SOME = tiers.either(ROWS[::3], ROWS)


@pytest.mark.all_cases
@pytest.mark.parametrize(("mistake", "message", "cures"), SOME, ids=[row[0] for row in SOME])
def test_the_cure_works(
    folder: None, names: dict[str, Any], mistake: str, message: str, cures: list[str]
) -> None:
    names = {**names, "file": treepack.open("model")}
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the text is checked
        eval(mistake, names)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(message, text, re.S), text
    for cure in cures:
        eval(cure, names)


def test_no_mistake_is_twice_in_the_table() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS) >= 120
