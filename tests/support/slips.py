"""Mistakes in templates, damaged files and arguments, for `test_mistakes`."""

from __future__ import annotations

import numpy as np

import treepack
from mistakes import Row

PARAMS = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}

TEMPLATES: list[Row] = [
    ("load('model', TREE['params'])",
        r"w: missing.*; is it params/w\?.*\nThe file has these leaves in params: pass "
        r"\{'params': template\} as the template, and take \['params'\] of the result\.$", [
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
        r"Pass rename=\{'params': 'param'\} to treepack.load if this is its new name", [
        "load('model', {'param': TREE['params'], 'step': 3}, rename={'params': 'param'})"]),
    ("load('model', {'params': {'ww': TREE['params']['w'], 'bb': TREE['params']['b']}, 'step': 3})",
        "Pass rename={'params/w': 'params/ww', 'params/b': 'params/bb'} to .* these are their", [
        "load('model', {'params': {'ww': TREE['params']['w'], 'bb': TREE['params']['b']}, "
        "'step': 3}, rename={'params/w': 'params/ww', 'params/b': 'params/bb'})"]),
    ("load('model', {**with_w((9, 9)), 'extra': np.ones(2)})",
        r"Pass missing=\"target\".*\nPass mismatched=\"target\" ", [
        "load('model', {**with_w((9, 9)), 'extra': np.ones(2)}, missing='target', "
        "mismatched='target')"]),
    ("load(dumps([np.ones((2, 3)), np.ones(2)]), [np.ones((2, 4)), np.ones(2), np.ones(3)])",
        r"expected 3 elements, .*\nPass missing=\"target\".*\nPass mismatched=\"target\" ", [
        "load(dumps([np.ones((2, 3)), np.ones(2)]), [np.ones((2, 4)), np.ones(2), np.ones(3)],"
        " missing='target', mismatched='target')"]),
    ("load('model', {**TREE, 'params': 3})", "Pass exclude='params' to treepack.load to keep", [
        "load('model', {**TREE, 'params': 3}, exclude='params')"]),
    ("load('model', {**TREE, 'step': {'a': 3, 'b': 4}})", "Pass exclude='step' to treepack.load", [
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

FILES: list[Row] = []  # fmt: skip

SLIPS: list[Row] = []  # fmt: skip


def make_slips() -> None:
    """Makes the files that only these rows read, in the working directory."""
    treepack.save("twice", {"params": PARAMS, "ema": PARAMS, "step": 3})
    treepack.save("deep", {"params": {"x": PARAMS}, "step": np.int32(3)})
