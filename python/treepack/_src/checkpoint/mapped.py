"""Checkpoints in another layout: a reader over a reader, by the rules of a `Mapping`.

rules, headers of the file, template ──plan──▶ assemblies ──▶ layout ──▶ catalog, as of any file
box of an array ──assembly──▶ boxes of its sources ──read or viewed──▶ their places in the box
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as Dict
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.advice import advised
from treepack._src.arrays.deferred import Computed
from treepack._src.checkpoint.opening import open_reader
from treepack._src.mapping.leaves import Leaf, check_equal
from treepack._src.mapping.moving import Made, RowBlocks, Source
from treepack._src.mapping.plan import Fault
from treepack._src.mapping.ruleset import Rest, Rules, RuleSet
from treepack._src.options import Reading, Status, StorageOptions, Tell
from treepack._src.printable import printable, shortened, warn
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.boxed import BoxedArray, aligned
from treepack._src.readers.reader import (
    LazyArray,
    Place,
    Reader,
    StayLazy,
    Verified,
    dtype_and_shape,
)
from treepack._src.readers.unchecked import layout_of
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened, is_source
from treepack._src.storage.fetch import RemoteRange, fetching
from treepack._src.storage.naming import naming
from treepack.errors import DecodeError, NewerVersionError, PlaceholderError, TreepackError


class Mapping(RuleSet):
    """The weights of one layout in another, both ways: for `load`, `open`, `abstract` and `save`.

    A rule has paths in the tree, paths in the file, and the axes of both, in the notation of
    einops. Each device reads just the boxes that it needs.

    | rule | meaning |
    |---|---|
    | `"head/kernel": ("lm_head.weight", "v m -> m v")` | axes of the file, then of the tree |
    | `"attn/q": ("q.weight", "(h d) m -> m h d")` | sizes from shapes or keywords |
    | `"norm": ("layers.{l}.norm.weight", "m -> l m")` | an index of the file: stacked |
    | `"layers/{l}/scale": "layers.{l}.norm.weight"` | one rule for each |
    | `{l:0..12}`, `{l:0..24:2}`, `{l:1..}` | the numbers of an index, without the end |
    | `"mlp": (("gate", "up"), "f m -> n f m", {"along": "n"})` | several as one |
    | `("q", "k", "v"): ("qkv", "(n h d) m -> m h d", {"along": "n"})` | one as several |
    | `"params/backbone": "params/encoder"` | other names for all leaves below |
    | `"new/{i}/kernel": "old/{i}/w"` | an index of both sides alone is any name without dots |

    Without a range, numbers are 0, 1, … without a gap. `1` is a unit axis, `...` all other ones. Of
    several rules for a leaf of the tree, the one with the longest path counts; of equal lengths,
    the one with fewer indices.

    Options of a rule, as a third value:

    * `along`: the axis along which several arrays are one; an array without it is one index.
    * `pad`: the sizes of axes of the tree that are longer, filled with zeros: `{"v": 1024}`. `save`
      leaves out the indices beyond the file's size, a keyword.
    * `scale`, `add`: a factor and then a sum, computed in float32.
    * `dtype`: the dtype of the result: float32, bfloat16 or float16.
    * `scales`, `block`: the path of factors in the file for blocks of the last two dimensions, as
      of float8 weights. The result has `dtype`, or that of the template, or float32. For rows, a
      block is `(1, columns)`.
    * `inexact`: allows `save` to round, where `scale` or `add` require it.

    With these options, floats that overflow are an error.

    Args:
      rules: The rules by paths of the tree, or tuples of them; or a function that returns the rule
        for the path of a leaf of the tree, or `None`.
      rest: Whether leaves without a rule have the same path in the file, are an error, or are left
        out: the target's stay, with a warning for `ShapeDtypeStruct`s, and `save` does not write
        them.
      sizes: The sizes of axes that no shape tells; of the axis of `along` also a tuple.

    Raises:
      ValueError: If a rule has a mistake; it names the rule, and the position in it.
      TypeError: If it is not a rule.

    Examples:
      >>> import numpy as np, treepack
      >>> file = {f"layers.{l}.q.weight": np.full((8, 6), l, np.float32) for l in range(4)}
      >>> heads = treepack.Mapping({"q": ("layers.{l}.q.weight", "(h d) m -> l m h d")}, h=2)
      >>> with treepack.open(treepack.dumps(file), mapping=heads) as tree:
      ...     tree["q"].shape, tree["q"][3, :2, 1]
      ((4, 6, 2, 4), array([[3., 3., 3., 3.],
             [3., 3., 3., 3.]], dtype=float32))
    """

    @advised
    def __init__(self, rules: Rules, *, rest: Rest = "same", **sizes: int | tuple[int, ...]):
        super().__init__(rules, rest, sizes)

    @advised
    def check(
        self, target: Any, source: Openable, *, storage_options: StorageOptions = None
    ) -> None:
        """Checks that a file fits the rules and a target, by its headers.

        Args:
          target: A template, as for `load`.
          source: A file, as for `open`.
          storage_options: See `save`.

        Raises:
          TreepackError: If there are leaves without a tensor, tensors without a rule (not with
            `rest="skip"`), gaps in indices or sizes that disagree; it lists all.
        """
        if isinstance(target, (str, os.PathLike)) and not is_source(source):
            raise TypeError(
                f"the target comes first, as in check(target, source), got target={target!r:.100}"
            )
        source = Address.or_data(source, storage_options)
        with naming(source), contextlib.closing(open_reader(source)) as reader:
            mapped = MappedReader(Place(reader, 0, []), self, Leaf.by_path(target))
            there, faults = mapped.there or {}, [*mapped.plan.faults, *mapped.unlike()]
            unused = []
            if self.rest != "skip":
                unused = [new for new in mapped.plan.same if new not in there]
                unused += mapped.unexpected()
            faults += [Fault(path, "no rule takes it") for path in unused]
            if faults:
                raise Fault.error(faults)


class MappedArray(BoxedArray):
    def __init__(self, reader: MappedReader, value: int, parts: list[str], kind: Any, made: Made):
        super().__init__(reader, value, parts, kind)
        self._made = made
        self._blocks: RowBlocks | None = None
        inner = made.assembly.parts[0].order
        order = made.assembly.result.order
        stacked = [axis for axis, _ in made.assembly.stacked]
        first = next(iter([*stacked, *inner]), None)
        groups = made.assembly.result.groups
        self.outer = (
            next((at for at, group in enumerate(groups) if first in group), 0) if order else 0
        )

    def _source(self, number: int) -> Source:
        reader: Any = self.reader
        return reader.source(self._made, number)  # type: ignore[no-any-return]

    def _read(self, box: Sequence[range], threads: int | None = None) -> np.ndarray:
        elements = aligned(tuple(map(len, box)), self.dtype)
        self.read_to(box, elements, threads=threads)
        return elements

    def whole(self, copy: bool | None, threads: int | None) -> np.ndarray:
        if copy is False:
            return self._read_all(copy)
        return self._read([range(size) for size in self.shape], threads)

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        with naming(self.reader.given):
            self._made.fill(self._source, box, target, path=self.path, threads=threads)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        if not self.shape or start >= stop:
            return super().flat_range(start, stop)
        if self._blocks is None:
            self._blocks = RowBlocks(self._read, self.shape, self.nbytes)
        return self._blocks.take(start, stop)

    def ahead(self, box: Sequence[range]) -> Iterator[RemoteRange]:
        if self.reader.is_local or 0 in self.shape:
            return
        # Places without memory: nothing is moved.
        places = np.broadcast_to(np.empty((), self.dtype), [*map(len, box)])
        for step in self._made.steps(self._source, box, places):
            yield from step.ahead()


# The maximum number of rules for which similar names are searched.
_MOST_TYPOS = 5


class MappedReader(Reader):
    """A part of an open file in another layout.

    Attributes:
      there: The leaves of the template by path.
      outcome: By path, an array that is made, or the path of a leaf in the file.
    """

    is_one_file = has_types = False
    is_mapped = True

    def __init__(self, place: Place, mapping: Any, there: Dict[str, Leaf] | None):
        self._place, self._mapping, self.there = place, RuleSet.of(mapping), there
        inner = place.reader
        if inner.catalog.is_newer:
            raise NewerVersionError(str(inner.catalog.damage))
        self._factors: dict[str, np.ndarray] = {}
        self._values = dict(_paths.PathBudget().all(place.catalog.ends(place.value)))
        here = {path: self._leaf_of(value) for path, value in self._values.items()}
        self.plan = self._mapping.plan(here, there)
        if inner.salvages and inner.damage is not None:
            self.plan.faults.clear()  # leaves are lost with their tensors
            self._leave_out_short()
        if there is None:  # with a template, such leaves are unexpected, or missing
            self.plan.check_apart(self._is_leaf, "tree")
            if self.plan.unused and not inner.salvages:
                warn(self.plan.lacks("file", self._values))
        self.outcome: dict[str, Made | str] = {**self.plan.same, **self.plan.made}
        for path, tie in self.plan.ties:
            one = self.outcome[path]
            check_equal(path, Made.names(one, tie), self._elements(one), self._elements(tie))
        tree: dict[str, Any] = {}
        for path, made in [*self.outcome.items()]:
            leaf = self._stand_in(path, made, here)
            if leaf is _UNREADABLE:
                del self.outcome[path]
            elif path == _paths.ROOT and len(self.outcome) == 1:
                tree = leaf
            else:
                try:
                    _paths.put(tree, _paths.parts(path), leaf)
                except TreepackError as error:
                    ruled = self.plan.ruled
                    near = [
                        other
                        for other in ruled
                        if f"{path}/".startswith(f"{other}/") or other.startswith(f"{path}/")
                    ]
                    rules = {printable(ruled[other].text): None for other in near}
                    raise TreepackError(f"{error}; {shortened(rules, len(rules))}") from error
        if there is not None:  # its nodes may need lists
            self._join_lists(tree)
        content = core.Content.laid(layout_of(tree, None, state_dict=False), [])
        opened = Opened(content, nbytes=inner.nbytes)
        super().__init__(inner.given, opened, salvage=False)
        self.given, self.may_change = inner.given, inner.may_change
        self.inflated, self.is_patch = inner.inflated, inner.is_patch
        self.is_local, self.salvages = inner.is_local, inner.salvages
        self.format = inner.format

    def check_names(self, paths: Iterable[str]) -> None:
        for path, (new, made) in itertools.product(paths, self.outcome.items()):
            name = path.replace(".", "/")
            if made.rule.takes(name) if isinstance(made, Made) else name == made:
                raise TreepackError(f"{path!r} is a path of the file: is it {new!r} in the tree?")

    def _leave_out_short(self) -> None:
        """A damaged file may have lost the last arrays of a stack."""
        for path, made in [*self.plan.made.items()]:
            wanted = (self.there or {}).get(path)
            is_whole = wanted is not None and wanted.shape == made.assembly.result.shape
            if made.rule.is_open and not is_whole and self._place.reader.is_cut:
                del self.plan.made[path]

    def _elements(self, made: Made | str) -> Any:
        if isinstance(made, str):
            leaf = self._saved(made)
            return np.asarray(leaf) if isinstance(leaf, LazyArray) else leaf
        return made.assembled(functools.partial(self.source, made), path=made.rule.text)

    def _join_lists(self, tree: dict[str, Any]) -> None:
        catalog = self._place.catalog

        @functools.cache
        def is_list(path: str) -> bool:
            value = catalog.find(_paths.parts(path), self._place.value)
            return value is not None and catalog.is_list(value)

        lists = set()
        for new, old in self.plan.same.items():
            while "/" in new and "/" in old:
                (new, _, name), (old, _, ours) = new.rpartition("/"), old.rpartition("/")
                if name != ours:
                    break
                if is_list(old):
                    lists.add(tuple(_paths.parts(new)))
        for *above, name in sorted(lists, key=len, reverse=True):
            node = functools.reduce(dict.__getitem__, above, tree)
            if (elements := _paths.elements(node[name])) is not None:
                node[name] = elements

    def _leaf_of(self, value: int) -> Leaf:
        catalog = self._place.catalog
        if catalog.children(value) is not None:
            return Leaf((), None)
        kind = catalog.leaf(value)[1]
        if kind[0] != "array":
            return Leaf((), None)
        name, shape = dtype_and_shape(kind)
        return Leaf(tuple(shape), _dtypes.resolve(name.encode()))

    def _stand_in(self, path: str, made: Made | str, here: Dict[str, Leaf]) -> Any:
        if isinstance(made, Made):
            rule, dtype = made.rule, made.dtype
            if rule.dtype is not None:
                dtype = rule.dtype
            elif rule.scales is not None:
                wanted = (self.there or {}).get(path, Leaf((), None)).dtype
                is_float = wanted is not None and _dtypes.is_float(wanted)
                dtype = wanted if wanted is not None and is_float else np.dtype(np.float32)
            return _StandIn(path, made.assembly.result.shape, dtype)
        shape, own = here[made]
        if own is not None:
            return _StandIn(path, shape, own)
        value = self._values[made]
        children = self._place.catalog.children(value)
        if children is not None:
            return [] if self._place.catalog.is_list(value) else {}
        kind = self._place.catalog.leaf(value)[1]
        if kind[0] == "array":  # of a dtype that NumPy lacks
            return _UNREADABLE
        return self._saved(made)

    def _saved(self, path: str) -> Any:
        parts = [*self._place.parts, *_paths.parts(path)]
        return self._place.reader.leaf(self._values[path], parts)

    def source(self, made: Made, number: int) -> Source:
        array = self._saved(made.assembly.paths[number])
        if not made.scales:
            return Source(array)
        return Source(array, functools.partial(self._scales, made.scales[number]))

    def _scales(self, path: str) -> np.ndarray:
        if path not in self._factors:
            self._factors[path] = np.asarray(self._saved(path))
        return self._factors[path]

    def array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        made = self.outcome[_paths.text(parts)] if kind[0] == "array" else None
        if isinstance(made, Made):
            return MappedArray(self, value, parts, kind, made)
        if made is None:  # the data of a PRNG key
            return super().array(value, parts, kind)
        leaf: LazyArray = self._saved(made)
        return leaf

    def read(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> Any:
        """Like `Reader.read`; equal arrays of the same tensors, as of tied weights, are one.

        Arrays that go to devices, or are cast, stay lazy: each device reads its part.
        """
        lazy: dict[Any, LazyArray] = {}
        loaded: dict[Any, np.ndarray] = {}

        def waits(parts: list[str]) -> bool:
            if reading.arrays != "numpy" and (
                reading.everywhere if stays is None else stays(parts)
            ):
                return True
            return reading.casts

        def leaf(value: int, parts: list[str]) -> Any:
            saved = self.leaf(value, parts)
            if not isinstance(saved, LazyArray):
                return saved
            made = self.outcome[_paths.text(parts)]
            tie = made if isinstance(made, str) else made.tie
            if waits(parts[len(place.parts) :]):
                return lazy.setdefault(tie, saved)
            if tie not in loaded:
                if isinstance(saved, MappedArray):
                    loaded[tie] = saved.whole(reading.copy, reading.threads)
                else:
                    loaded[tie] = saved.__array__(copy=reading.copy)
            return loaded[tie]

        def ahead() -> Iterator[RemoteRange]:
            for value in self.catalog.leaf_values(place.value):
                parts = _paths.parts(self.catalog.path_of(value, 0))
                saved = self.leaf(value, parts) if marks is None or value in marks else None
                if isinstance(saved, LazyArray) and not waits(parts[len(place.parts) :]):
                    yield from saved.ahead([*map(range, saved.shape)])

        with contextlib.nullcontext() if self.is_local else fetching(ahead()):
            return place.state(leaf, marks)

    def _sources_of(self, value: int) -> list[int]:
        made = self.outcome.get(self.catalog.path_of(value, 0))
        if made is None:
            return []
        paths = [made] if isinstance(made, str) else [*made.assembly.paths, *made.scales]
        return [self._values[path] for path in paths]

    def compare(self, value: int, parts: list[str]) -> None:
        for inner in self._sources_of(value):
            self._place.reader.compare(inner, parts)

    def verify(self, *, threads: int | None, progress: Tell | None) -> Verified:
        """A leaf is as its worst source."""
        statuses, damage = self._place.reader.verify(threads=threads, progress=progress)
        worst: dict[int, Status] = {}
        for value in self.catalog.leaf_values(0):
            inner = {statuses.get(source, "ok") for source in self._sources_of(value)}
            worst[value] = next((each for each in _WORST if each in inner), "ok")
        return worst, damage

    def unverified(self) -> list[int]:
        inner = {*self._place.reader.unverified()}
        values = self.catalog.leaf_values(0) if inner else []
        return [value for value in values if not inner.isdisjoint(self._sources_of(value))]

    @property
    def original(self) -> Reader:
        return self._place.reader

    @property
    def damage(self) -> str | None:
        return self._place.reader.damage

    @property
    def is_cut(self) -> bool:
        return self._place.reader.is_cut

    @property
    def is_summed(self) -> bool:
        return self._place.reader.is_summed

    @property
    def metadata_record(self) -> bytes | None:
        return self._place.reader.metadata_record

    def salvaging(self) -> Reader:
        if self.salvages:
            return self
        place = self._place._replace(reader=self._place.reader.salvaging())
        return type(self)(place, self._mapping, self.there)

    def lacks(self) -> dict[str, str]:
        missing = [fault for fault in self.plan.faults if fault.is_missing]
        lacks = {fault.path: fault.text for fault in missing}
        for rule in self.plan.unused[:1] if missing else ():
            near = rule.near(self._values, self.there)
            lacks |= {it.path: it.text + near for it in missing if it.text.endswith(rule.text)}
        made = filter(None, map(self._unlike_made, self.plan.made))
        return {fault.path: fault.text for fault in made} | lacks

    def warn_of_typos(self, selects: Callable[[str], bool]) -> None:
        """Warns of a rule that perhaps means another leaf, of the file or of the target."""
        plan, there = self.plan, self.there or {}
        missing = {it.path: it.text for it in plan.faults if it.is_missing and selects(it.path)}
        for rule in plan.unused[:_MOST_TYPOS] if missing and not self.has_function else ():
            near = rule.near(plan.left, there)
            for path, text in missing.items() if rule.here.is_typo_of(near) else ():
                if text.endswith(rule.text):
                    warn(f"{printable(path)} stays as in the target: {text}{near}")
                    return
        free = [*there.keys() - {*plan.ruled, *(it.path for it in plan.faults)}]
        for rule in plan.unreached[:_MOST_TYPOS] if free else ():
            if rule.there.is_typo_of(near := rule.near_there(filter(selects, free))):
                warn(f"the target has no leaf for {rule.text}{near}")
                return

    def unmatched(self) -> str:
        if self.plan.ruled or not self.plan.unused:
            return ""
        return self.plan.unused[0].unmatched(self._values, self.there)

    def unexpected(self) -> list[str]:
        return [*filter(self._is_leaf, self.plan.hidden)]

    def _is_leaf(self, path: str) -> bool:
        return self._place.catalog.children(self._values[path]) is None

    def check_has_no_code(self, above: Sequence[str], selects: Callable[[str], bool]) -> None:
        """Raises a PlaceholderError if a leaf is code, which would be an empty dict here."""
        places = (_paths.parts(path) for path in self._code())
        below = [parts[len(above) :] for parts in places if parts[: len(above)] == [*above]]
        if code := [path for path in map(_paths.text, below) if selects(path)]:
            raise PlaceholderError(
                f"code was not saved, at {shortened(map(printable, code), len(code))}: pass a "
                f"target to treepack.load that has it, or exclude={code!r:.200}"
            )

    def _code(self) -> list[str]:
        catalog = self._place.catalog
        old = {path for path, value in self._values.items() if catalog.children(value) is not None}
        if not old or catalog.record is None:
            return []
        plain = self._place.abstract(unknown_as_dict=True, plain=True)
        code = old & {_paths.text(parts) for parts, leaf in leaves_of(plain, ()) if leaf is None}
        return [new for new, path in self.plan.same.items() if path in code]

    def _unlike_made(self, path: str) -> Fault | None:
        one, wanted = self.plan.made.get(path), (self.there or {}).get(path)
        if one is None or wanted is None or one.assembly.result.shape == wanted.shape:
            return None
        text = (
            f"the target has {[*wanted.shape]}, the rule makes "
            f"{[*one.assembly.result.shape]} of {[*one.assembly.parts[0].shape]}"
        )
        return Fault(path, f"{text}; {one.rule.text}", is_unfit=True)

    def unlike(self) -> Iterator[Fault]:
        """Yields the leaves of the template that no rule makes, or in another shape."""
        plan, made = self.plan, self.plan.made
        known = {*self.outcome, *(fault.path for fault in plan.faults), *self.left_out()}
        for path, wanted in (self.there or {}).items():
            if (fault := self._unlike_made(path)) is not None:
                yield fault
            elif path in plan.same and path not in made:
                saved = self._leaf_of(self._values[plan.same[path]])
                if saved.dtype is not None and saved.shape != wanted.shape:
                    text = f"the target has {[*wanted.shape]}, the file {[*saved.shape]}"
                    yield Fault(path, text, is_unfit=True)
            elif path not in known:
                yield Fault(path, "the file has no such leaf", is_missing=True)

    def unfit(self) -> set[str]:
        return {fault.path for fault in self.plan.faults if fault.is_unfit} & {*(self.there or ())}

    @property
    def has_function(self) -> bool:
        return self._mapping.is_function

    def left_out(self) -> set[str]:
        if self._mapping.rest != "skip":
            return set()
        return {*(self.there or ())} - {*self.outcome, *(fault.path for fault in self.plan.faults)}

    def skipped(self) -> set[str]:
        """Returns the leaves of the file that are left out, which the template lacks as well."""
        if self._mapping.rest != "skip":
            return set()
        return self.plan.same.keys() - {*self.plan.ruled, *(self.there or ())}

    def remember(self) -> None:
        self._place.reader.remember()

    def close(self) -> None:
        super().close()
        self._place.reader.close()

    def __reduce__(self) -> Any:
        return type(self), (self._place, self._mapping, self.there)


_UNREADABLE = object()

_WORST: tuple[Status, ...] = ("corrupt", "unreadable", "unchecked")


class _StandIn(Computed):
    """The catalog describes it; its elements are read elsewhere."""

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]):
        if math.prod(shape) * dtype.itemsize > sys.maxsize:
            reason = f"the index of the file is damaged: {dtype}{[*shape]} exceeds all memory"
            raise DecodeError(reason, path=path)
        super().__init__(shape, dtype, lambda start, stop: np.zeros(stop - start, dtype))
