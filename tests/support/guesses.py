"""Wrong guesses of names, arguments and functions of options, for `test_mistakes`."""

from __future__ import annotations

import dataclasses
import enum
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import treepack
from mistakes import Row

NAMES: list[Row] = [
    (
        "verify('model').corrupted",
        "no attribute 'corrupted': use corrupt$",
        ["verify('model').corrupt"],
    ),
    ("verify('model').status", "use leaves, a dict", ["verify('model').leaves['step']"]),
    (
        "treepack.diff('model', 'base').paths",
        "use .each.path for each in differences.$",
        ["[each.path for each in treepack.diff('model', 'base')]"],
    ),
    (
        "treepack.digest('model').hexdigest()",
        r"use str\(digest\)$",
        ["load('model', expect=str(treepack.digest('model')))"],
    ),
    (
        "file['params/w'].statistics().max",
        "no attribute 'max': use maximum$",
        ["file['params/w'].statistics().maximum"],
    ),
    ("file['params/w'].read()", r"array\[\.\.\.\], or a part", ["file['params/w'][:10]"]),
    (
        "treepack.Mapping({'v': 'step'}).load('model')",
        "pass it as mapping= to the function of",
        ["load('model', mapping=treepack.Mapping({'v': 'step'}))"],
    ),
    (
        "file['params/w/0']",
        r"params/w is a leaf: index .*, as in file\['params/w'\]\[0\]$",
        ["file['params/w'][0]"],
    ),
    (
        "file['params/w']['0']",
        r"params/w is an array, which has no '0': .*, as in array\[0\]$",
        ["file['params/w'][0]"],
    ),
    ("file.infos('params')", r"call it as infos\(\)$", ["[*file['params'].infos()]"]),
    ("file.leaves('params')", r"call it as leaves\(\)$", ["[*file['params'].leaves()]"]),
    ("file.abstract('params')", r"call it as abstract\(\)", ["file['params'].abstract()"]),
    (
        "open('model', select='params')",
        "load of the open file takes it$",
        ["open('model').load(select='params')"],
    ),
    (
        "dumps(TREE, format='safetensors')",
        r"treepack\.save\(path, tree, \.\.\.\) takes it$",
        ["save('arrays', {'w': np.ones(1)}, format='safetensors')"],
    ),
    (
        "load('model', TREE, partial=True)",
        'pass missing="target"$',
        ["load('model', TREE, missing='target')"],
    ),
    (
        "load('model', {'n': 1}, rename={'n': 'step'})",
        "'rename': pass mapping=$",
        ["load('model', {'n': np.int32(1)}, mapping={'n': 'step'})"],
    ),
    (
        "load('model', transforms={'n': 'step'})",
        "'transforms': pass mapping=$",
        ["load('model', mapping={'n': 'step'})"],
    ),
    (
        "load('model', restore_args=TREE)",
        "pass jax.ShapeDtypeStructs as target=$",
        ["load('model', target=abstract())"],
    ),
    (
        "treepack.register_dataclass(Guess, name='Guess')",
        "'name': pass serialized_name=$",
        ["treepack.register_dataclass(Guess, serialized_name='Guess')"],
    ),
    (
        "treepack.register_tree(Guess)",
        "got a class: pass an object of guesses.Guess, or call",
        [
            "treepack.register_dataclass(Guess)",
            "treepack.register_tree(Guess(1), prefix='guesses')",
        ],
    ),
    (
        "treepack.Series('run', prefix=3)",
        "prefix must be a string, such as 'step_', got 3$",
        ["treepack.Series('run', prefix='step_')"],
    ),
    (
        "run('info', 'model', 'params')",
        r"whole file: write a\W+part\W+to a file by `treepack get FILE PATH TARGET",
        ["run('get', 'model', 'params', 'part')", "run('info', 'part')"],
    ),
]
"""Names of attributes, options and paths."""

FUNCTIONS: list[Row] = [
    (
        "load('jax', sharding=lambda path: on_cpu)",
        "sharding= is called with a path and a Shape",
        ["load('jax', sharding=lambda path, struct: on_cpu)"],
    ),
    (
        "load('model', select=lambda path, leaf: True)",
        r"a predicate is called with a path alone \(for shapes, .* from File.infos\(\)\): ",
        [
            "load('model', select=lambda path: True)",
            "load('model', select=[info.path for info in open('model').infos() if info.shape])",
        ],
    ),
    (
        "load('model', TREE, exclude=lambda: False)",
        "a predicate is called with a path alone",
        ["load('model', TREE, exclude=lambda path: False)"],
    ),
    (
        "load('model', TREE, mapping=lambda: 'x')",
        "mapping= is called with a path of the target: ",
        ["load('model', TREE, mapping=lambda path: path)"],
    ),
    (
        "save('x', TREE, progress=lambda done: None)",
        "progress= .* the bytes done and their total",
        ["save('x', TREE, progress=lambda done, total: None)"],
    ),
    (
        "load('model', {'v': 1}, mapping=lambda path: 'stop')",
        r"^(?!.*Pass mapping=)(?!.*Add).*Change mapping= .*'stop'; is it 'step'\?",
        ["load('model', {'v': np.int32(1)}, mapping=lambda path: 'step')"],
    ),
    (
        "load('column', {'x': np.ones((3, 1))}, mapping=lambda path: 'column')",
        r"Let the function of mapping= return the values of \{'x': \('column', 'a b -> b a'\)\}",
        ["load('column', {'x': np.ones((3, 1))}, mapping=lambda path: ('column', 'a b -> b a'))"],
    ),
]
"""Functions of options with other parameters, or other results."""

THINGS: list[Row] = [
    (
        "load('model', jax.tree.structure(TREE))",
        r"pass a tree, such as jax.tree.unflatten",
        ["load('model', jax.tree.unflatten(jax.tree.structure(TREE), jax.tree.leaves(TREE)))"],
    ),
    (
        "load('model', file)",
        r"got a File \(File\): pass its abstract\(\)",
        ["load('jax', treepack.open('jax').abstract())"],
    ),
    (
        "load('nnx', nnx.graphdef(linear))",
        r"GraphDef.*: pass nnx.state\(model\)",
        ["load('nnx', nnx.state(linear))"],
    ),
    (
        "dumps({'a': mesh})",
        r"save dict\(mesh.shape\)$",
        ["dumps({'a': dict(mesh.shape)})"],
    ),
    (
        "dumps({'a': jax.devices()[0]})",
        r"save str\(\.\.\.\) of it$",
        ["dumps({'a': str(jax.devices()[0])})"],
    ),
    (
        "dumps({'a': io.BytesIO(b'x')})",
        r"save its content, such as read\(\) returns$",
        ["dumps({'a': io.BytesIO(b'x').read()})"],
    ),
    (
        "save('x', iter([('a', 1), ('a', 2)]))",
        "place a: .*: give each leaf a path of its own$",
        ["save('x', iter([('a', 1), ('b', 2)]))"],
    ),
    (
        "save('x', iter([('a', 1), ('a/b', 2)]))",
        "a/b: its parent is a leaf: give one of them an",
        ["save('x', iter([('a', 1), ('b/b', 2)]))"],
    ),
    (
        "treepack.pack_into(bytearray(999), TREE)",
        "the tree comes first, as in pack_into.*type dict$",
        ["treepack.pack_into(TREE, bytearray(999))"],
    ),
    (
        "treepack.pack_into(TREE, bytes(999))",
        "writable and contiguous, such as a bytearray: ",
        ["treepack.pack_into(TREE, bytearray(999))"],
    ),
    (
        "treepack.loads(memoryview(dumps(TREE))[::2])",
        r"contiguous: pass bytes\(\.\.\.\) of it$",
        ["treepack.loads(bytes(memoryview(dumps(TREE))[::1]))"],
    ),
    (
        "treepack.load_exported('exported')",
        r"has neither a target nor unknown=: register",
        ["load('exported', unknown='dict')['params']"],
    ),
    (
        "treepack.register_dataclass(Other, serialized_name='O', aliases=['guesses.Kind'])",
        "'guesses.Kind' is the auxdata guesses.Kind: .* a type that is gone: leave it out",
        ["treepack.register_dataclass(Other, serialized_name='O')"],
    ),
    (
        "treepack.register_dataclass(Third, serialized_name='T', aliases=['optax.EmptyState'])",
        "'optax.EmptyState' is .* an alias is the name of a type that is gone: leave it out",
        ["treepack.register_dataclass(Third, serialized_name='T')"],
    ),
]
"""Objects in the place of trees, leaves, buffers and types."""


@treepack.register_auxdata(serialized_name="guesses.Kind")
class Kind(enum.Enum):
    """An enum that is registered."""

    A = 1


@dataclasses.dataclass
class Guess:
    """A dataclass that a row registers."""

    a: Any


@dataclasses.dataclass
class Lost:
    """A dataclass that is never registered."""

    a: Any


MORE = {
    it.__name__: it for it in (Guess, dataclasses.make_dataclass("Other", ["a"]), optax, io)
} | {
    "Third": dataclasses.make_dataclass("Third", ["a"]),
    "linear": nnx.Linear(1, 1, rngs=nnx.Rngs(0)),
    "on_cpu": jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0]),
}
"""The names that only these rows use."""


def make_guesses() -> None:
    """Makes the files that only these rows read, in the working directory."""
    treepack.save("jax", {"w": jnp.ones(2)})
    treepack.save("column", {"column": np.ones((1, 3))})
    treepack.save("nnx", nnx.state(MORE["linear"]))
    treepack.save("exported", {"exported": b"", "params": Lost(np.ones(2))})
