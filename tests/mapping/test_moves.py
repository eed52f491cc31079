"""Rules of moves against NumPy: any axes, indices and parts, on both sides."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
import treepack._core as core
from treepack._src.mapping import moving

SIZES = st.sampled_from([1, 2, 3, 4])


class Example(NamedTuple):
    """A rule with all its sizes, and the arrays of both sides."""

    rules: dict[Any, Any]
    sizes: dict[str, Any]
    file: dict[str, np.ndarray]
    tree: dict[str, np.ndarray]

    @property
    def mapping(self) -> treepack.Mapping:
        return treepack.Mapping(self.rules, **self.sizes)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Draws a space of axes, and how the arrays of each side lie in it."""
    names = [*"abcd"[: draw(st.integers(1, 4))]]
    sizes = {name: draw(SIZES) for name in names}
    # Where an index is in the path: in the file, the tree, or both.
    indices = {name: draw(st.sampled_from(["file", "tree", "both"])) for name in draw(INDICES)}
    sizes |= {name: draw(SIZES) for name in indices}
    several = draw(st.sampled_from([None, "file", "tree"]))
    parts = draw(st.lists(SIZES, min_size=2, max_size=3)) if several else []
    is_absent = several is not None and draw(st.booleans())
    if is_absent:
        parts = [1] * len(parts)
    if several:
        sizes["n"] = sum(parts)
    axes = [*sizes]
    space = np.arange(math.prod(sizes.values()), dtype=np.float32).reshape([*sizes.values()])
    sides = {}
    for side, other in (("file", "tree"), ("tree", "file")):
        own = [*names, *(name for name, where in indices.items() if where == other)]
        own += ["n"] * (several == other or (several == side and not is_absent))
        groups: list[list[str]] = []
        for name in draw(st.permutations(own)):
            if groups and draw(st.booleans()):
                groups[-1].append(name)
            else:
                groups.append([name])
        if draw(st.booleans()):
            groups.insert(draw(st.integers(0, len(groups))), [])
        in_path = [name for name, where in indices.items() if where in (side, "both")]
        sides[side] = (groups, in_path, parts if several == side else [0])
    paths: dict[str, Any] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for side, (groups, in_path, lens) in sides.items():
        paths[side] = tuple(
            f"{side}{number}" + "".join(f".{{{name}}}.x" for name in in_path)
            for number in range(len(lens))
        )
        arrays[side] = {}
        for number, path in enumerate(paths[side]):
            start = sum(lens[:number])
            for at in itertools.product(*(range(sizes[name]) for name in in_path)):
                values = dict(zip(in_path, at, strict=True))
                index: list[Any] = [values.get(name, slice(None)) for name in axes]
                if several == side:
                    index[axes.index("n")] = slice(start, start + lens[number])
                part = space[tuple(index)]
                left = [name for name in axes if name not in in_path]
                order = [name for group in groups for name in group]
                order += [name for name in left if name not in order]  # of one index
                shape = [
                    math.prod(part.shape[left.index(name)] for name in group) for group in groups
                ]
                new = path.format(**values)
                arrays[side][new] = part.transpose([left.index(name) for name in order])
                arrays[side][new] = np.ascontiguousarray(arrays[side][new]).reshape(shape)
    texts = [
        " ".join(f"({' '.join(group)})" if group else "1" for group in sides[side][0])
        for side in ("file", "tree")
    ]
    tree, file = (each if len(each) > 1 else each[0] for each in (paths["tree"], paths["file"]))
    keywords: dict[str, Any] = {**sizes}
    if several and not is_absent:
        keywords["n"] = tuple(parts)
    known = {name for groups, _, _ in sides.values() for group in groups for name in group}
    keywords = {name: size for name, size in keywords.items() if name in known}
    options = {"along": "n"} if several else {}
    tree = (
        tuple(path.replace(".", "/") for path in paths["tree"])
        if several == "tree"
        else paths["tree"][0].replace(".", "/")
    )
    rules = {tree: (file, f"{texts[0]} -> {texts[1]}", options)}
    return Example(
        rules,
        keywords,
        arrays["file"],
        {path.replace(".", "/"): array for path, array in arrays["tree"].items()},
    )


INDICES = st.lists(st.sampled_from(["l", "e"]), unique=True, max_size=2)


def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draws slices with steps, and indices."""
    box: list[Any] = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        part = slice(start, draw(st.integers(start, size)), draw(st.sampled_from([1, 1, 2, 3])))
        box.append(draw(st.sampled_from([part, start, slice(None, None, -1)])))
    return tuple(box)


def source_of(arrays: dict[str, np.ndarray], form: str) -> Any:
    return treepack.dumps(arrays, compress=form == "gzip")


@pytest.mark.parametrize("form", ["plain", "gzip"])
@given(example=examples(), data=st.data())
def test_a_rule_moves_elements_as_numpy_does(form: str, example: Example, data: Any) -> None:
    mapping = example.mapping
    for arrays, other, one in (
        (example.file, example.tree, mapping),
        (example.tree, example.file, mapping.inverse()),
        (example.file, example.tree, mapping.inverse().inverse()),
    ):
        with treepack.open(source_of(arrays, form), mapping=one) as opened:
            leaves = dict(opened.leaves())
            names = {path.replace("/", "."): array for path, array in leaves.items()}
            expected = {path.replace("/", "."): array for path, array in other.items()}
            assert names.keys() == expected.keys()
            for path, array in expected.items():
                assert names[path].shape == array.shape
                assert np.array_equal(names[path], array)
                box = boxes(data.draw, array.shape)
                assert np.array_equal(names[path][box], array[box])


@given(
    shape=st.tuples(SIZES, SIZES, SIZES),
    most=st.sampled_from([1, 16, 50, 1 << 20]),
    ranges=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), min_size=1),
)
def test_ranges_of_elements_are_of_blocks(shape: Any, most: int, ranges: Any) -> None:
    before, moving.BLOCK_BYTES = moving.BLOCK_BYTES, most
    try:
        expected = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        source = treepack.dumps({"w": expected.transpose(2, 1, 0)})
        array = treepack.open(source, mapping={"w": ("w", "c b a -> a b c")})["w"]
        for one, other in [*ranges, (0, 64), (0, 64)]:
            start, stop = (min(end, expected.size) for end in sorted((one, other)))
            assert np.array_equal(array.flat_range(start, stop), expected.reshape(-1)[start:stop])
    finally:
        moving.BLOCK_BYTES = before


def test_a_copy_reads_its_source_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not once for each part of a transposed array that is written."""
    wide = np.arange(4 << 20, dtype=np.float32).reshape(2048, -1)
    treepack.save(tmp_path / "w.gz", {"w": wide})
    boxes = []
    fill = moving.Made.fill

    def spy(made: Any, source: Any, box: Any, *rest: Any, **options: Any) -> None:
        boxes.append(box)
        fill(made, source, box, *rest, **options)

    monkeypatch.setattr(moving.Made, "fill", spy)
    with treepack.open(tmp_path / "w.gz", mapping={"w": ("w", "a b -> b a")}) as file:
        treepack.save(tmp_path / "again.safetensors", {"w": file["w"]})
    assert np.array_equal(treepack.load(tmp_path / "again.safetensors")["w"], wide.T)
    assert len(boxes) == 1


@given(example=examples(), most=st.sampled_from([1, 8, 40]))
def test_windows_of_any_size_read_the_same(example: Example, most: int) -> None:
    before, moving.WINDOW_BYTES = moving.WINDOW_BYTES, most
    try:
        for form in ("plain", "gzip"):
            loaded = treepack.load(source_of(example.file, form), mapping=example.mapping)
            expected = treepack.load(source_of(example.tree, form))
            for path, array in expected.items():
                node = loaded
                for part in path.split("/"):
                    node = node[part]
                assert np.array_equal(node, array)
    finally:
        moving.WINDOW_BYTES = before


@pytest.mark.parametrize("mmap", [True, False])
def test_large_arrays_are_transposed_in_windows(tmp_path: Path, mmap: bool) -> None:
    made = np.random.default_rng(0).integers(0, 1 << 16, (2, 2100, 2300), np.uint16)
    treepack.save(tmp_path / "saved", {"layers": list(made)})
    rules = {"up": ("layers/{l}", "a b -> l b a")}
    template = {"up": made.transpose(0, 2, 1)}
    found = treepack.load(tmp_path / "saved", template, mapping=rules, mmap=mmap)["up"]
    assert found.flags.c_contiguous
    assert np.array_equal(found, template["up"])
    treepack.save(tmp_path / "again.safetensors", {"up": found}, mapping=rules)
    again = treepack.load(tmp_path / "again.safetensors")["layers"]
    assert all(np.array_equal(again[str(at)], made[at]) for at in range(2))


def test_memory_that_does_not_fit_is_refused() -> None:
    memory = np.zeros(24, np.uint8)

    def copy(source: Any, target: Any, at: int, strides: tuple[int, ...]) -> None:
        core.copy_array(source, (3, 4), 2, target, at, strides, threads=None)

    source = np.arange(24, dtype=np.uint8)
    copy(source, memory, 0, (2, 6))
    turned = memory.view(np.uint16).reshape(4, 3)
    assert np.array_equal(turned, source.view(np.uint16).reshape(3, 4).T)
    for error, wrong in (
        (IndexError, (source, memory, 1, (2, 6))),
        (IndexError, (source, memory, 0, (2, 4))),
        (ValueError, (source[:23], memory, 0, (2, 6))),
        (ValueError, (memory, memory, 0, (2, 6))),
    ):
        with pytest.raises(error):
            copy(*wrong)
