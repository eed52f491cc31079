from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ForwardRef,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_args,
)

import numpy as np

from treepack._src.advice import advise, check_parameters, unknown_option
from treepack._src.dtypes import is_float, resolve
from treepack._src.elsewhere import by_name
from treepack._src.printable import either

if TYPE_CHECKING:
    import typing_extensions

    Buffer = typing_extensions.Buffer
    Device: TypeAlias = Any  # jaxlib has no types for it
    Template = typing_extensions.TypeVar("Template", default=Any)
else:
    Device = ForwardRef("jax.Device")
    Buffer = getattr(collections.abc, "Buffer", Any)  # Python 3.11 has no name for it
    Template = TypeVar("Template")


class LazyModule:
    """Imports a module when one of its names is looked up, by `typing.get_type_hints`."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


jax = LazyModule("jax")  # for `Device`, which may be resolved before jax is imported

Strict = bool | Literal["exact"]
"""How leaves are compared with a template: as JAX sees them, exactly, or not at all (`False`)."""

Tell = Callable[[int, int], object]
"""A callable of the bytes done and their total."""

Progress = Tell | bool | None
"""A callable of the bytes done and their total, `True` for a progress bar, or no reports."""

StorageOptions = Mapping[str, Any] | None
"""Options of obstore or fsspec for the store of a URL."""

Compress = bool | Literal["gzip", "numbers"]
"""How data are compressed: with gzip (`True`), by the exponents of floats, or not (`False`)."""

Arrays = Literal["saved", "numpy", "jax"]
"""The types of arrays: as saved, all NumPy arrays, or all JAX arrays."""

Unknown = Literal["error", "dict"]
"""Whether nodes of unregistered types are an error, or become dicts of their children."""

Containers = Literal["saved", "plain"]
"""The containers of a tree without a template: as saved, or plain dicts and lists."""

Missing = Literal["error", "target"]
"""Whether leaves of a template that the file lacks are an error, or stay unchanged."""

Mismatched = Literal["error", "target"]
"""Whether arrays of another shape than the template's are an error, or the template's stay."""

Unexpected = Literal["ignore", "error"]
"""Whether leaves of a file that the template lacks are ignored or an error; by default, they are
ignored in dicts."""

Static = Literal["skip-code", "skip", "error"]
"""Whether static data that cannot be stored are left out (only code, or all), or are an error."""

Replicas = Literal["read", "broadcast"]
"""Whether each process reads the shards that several need, or one reads and sends them."""

Cast = bool | Literal["overflow"]
"""Whether floats are cast to the dtypes of a template, also those that overflow there."""

TIMEOUT_S = 3600.0
"""The default of `timeout`: how long a process waits for another one, in seconds."""

OnCorrupt = Literal["error", "skip"]
"""Whether leaves that do not match their checksums are an error, or count as missing."""

Status = Literal["ok", "corrupt", "unreadable", "unchecked"]
"""The result of checking a leaf: `unchecked` if the file has no checksum for it."""


def _values(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return True, False
    return tuple(value for part in get_args(annotation) for value in _values(part) or (part,))


_CHOICES = {
    "compress": _values(Compress),
    "strict": _values(Strict),
    "arrays": _values(Arrays),
    "unknown": _values(Unknown),
    "containers": _values(Containers),
    "missing": _values(Missing),
    "mismatched": _values(Mismatched),
    "unexpected": _values(Unexpected),
    "on_corrupt": _values(OnCorrupt),
    "static": _values(Static),
    "replicas": _values(Replicas),
    "cast": _values(Cast),
    **dict.fromkeys(("copy", "sharded"), (True, False, None)),
    **dict.fromkeys(
        (
            "background",
            "durable",
            "mmap",
            "return_report",
            "verify",
            "salvage",
            "described",
            "stats",
            "in_place",
        ),
        _values(bool),
    ),
}

# Numbers: their description, the function that checks their type, and their minimum.
_NUMBERS: dict[str, tuple[str, Callable[[Any], Any], float]] = {
    "bins": ("a number of intervals, or 0", operator.index, 0),
    "max_size": ("a number of bytes of at least 0, such as 10**9", operator.index, 0),
    **dict.fromkeys(("rtol", "atol"), ("a number of at least 0, such as 1e-6", float, 0)),
    "timeout": ("a number of seconds above 0, such as 600", float, math.nextafter(0, 1)),
    # The core checks further limits of these.
    "level": ("an integer from 0 to 9", operator.index, -math.inf),
    "threads": ("an integer", operator.index, -math.inf),
    "align": ("a power of two from 1 to 64", operator.index, -math.inf),
    **dict.fromkeys(("step", "offset"), ("an integer", operator.index, -math.inf)),
    **dict.fromkeys(
        ("anchor_every", "every", "last", "full_every"),
        ("an integer of at least 1", operator.index, 1),
    ),
    "seconds": ("a number above 0, such as 10", float, math.nextafter(0, 1)),
}

_OPTIONAL = {
    "max_size",
    "level",
    "threads",
    "step",
    "unexpected",
    "every",
    "seconds",
    "full_every",
}


def check(name: str, value: Any) -> None:
    if value is None and name in _OPTIONAL:
        return
    if (choices := _CHOICES.get(name)) is not None:
        # Other types may compare in any way, such as arrays.
        if not isinstance(value, _OF_CHOICES) or value not in choices:
            raise invalid_choice(name, value, choices)
    elif (number := _NUMBERS.get(name)) is not None:
        text, typed, least = number
        error: type[Exception] = TypeError
        with contextlib.suppress(TypeError, ValueError):
            if not isinstance(value, (str, bool, np.bool_)):
                if typed(value) >= least:
                    return
                error = ValueError
        raise error(f"{name} must be {text}, got {value!r:.100}")


_CURES = {"cast": ": a dtype is passed as dtype=, without a target"}


def invalid_choice(name: str, value: Any, choices: Iterable[Any]) -> ValueError:
    text = f"{name} must be {either(map(repr, choices))}, got {value!r:.100}"
    if name == "compress" and isinstance(value, int):
        text += ": pass it as level=, beside compress=True"
    return ValueError(text + _CURES.get(name, ""))


_OF_CHOICES = (bool, str, type(None), np.bool_)


def check_compress(compress: Compress, level: int | None) -> None:
    check("compress", compress)
    if level is not None and (not compress or compress == "numbers"):
        raise ValueError("level requires compress=True (gzip): leave it out, or pass compress=True")


def check_iterator(saved: Saved, *, background: bool) -> None:
    for name in ("select", "exclude", "mapping"):
        if getattr(saved, name) is not None:
            raise ValueError(
                f"{name}= requires a tree: let the iterator yield only the leaves to save"
                f"{', with their paths in the file' * (name == 'mapping')}"
            )
    if background or saved.sharded:
        raise ValueError(
            "an iterator cannot be saved with background=True or sharded=True: leave them out, or "
            "pass a tree"
        )


def check_plain(saved: Saved, *, is_whole: bool) -> None:
    names = ("metadata", "sharded", "base")
    left_out = (None, False)
    given = [f"{name}=" for name in names if all(getattr(saved, name) is not no for no in left_out)]
    for name in given if is_whole else ["an iterator", *given]:
        raise ValueError(
            f".msgpack is flax's format, which does not support {name}: choose the suffix .treepack"
        )


def float_dtype(dtype: Any) -> np.dtype[Any]:
    resolved_dtype = None
    with contextlib.suppress(TypeError, ValueError):
        resolved_dtype = resolve(dtype.encode()) if isinstance(dtype, str) else np.dtype(dtype)
    if resolved_dtype is None or not is_float(resolved_dtype):
        text = f"{dtype!r:.100}" if resolved_dtype is None else resolved_dtype.name
        near = _near_dtype(dtype) if isinstance(dtype, str) else None
        hint = "" if near is None else f": is it {near!r}?"
        if isinstance(dtype, Mapping):
            hint = ": for one dtype for each leaf, pass a target with them, and cast=True"
        raise ValueError(f"dtype= must be a float dtype such as bfloat16, got {text}{hint}")
    return resolved_dtype


def _near_dtype(text: str) -> str | None:
    name = text.rpartition(".")[2].lower()
    name = _DTYPES.get(name, name)
    resolved_dtype = resolve(name.encode())
    return name if resolved_dtype is not None and is_float(resolved_dtype) else None


# Names of other libraries.
_DTYPES = by_name(
    {
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp32 float": "float32",
        "fp64": "float64",
        "e4m3 e4m3fn fp8 float8 fp8_e4m3 fp8_e4m3fn f8_e4m3 f8_e4m3fn f8e4m3": "float8_e4m3fn",
        "e5m2 fp8_e5m2 f8_e5m2 f8e5m2": "float8_e5m2",
    }
)


@dataclasses.dataclass
class _Options:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            # `Reading.static` is a tree, and `LeftOut` checks `Saved.static`.
            if name != "static":
                check(name, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Makes an instance from the options of a verb that are its fields.

        Its class has the defaults: setting these would take most of the time of small messages.
        """
        instance = cls.__new__(cls)
        if options:
            fields, given = cls.__dataclass_fields__, vars(instance)
            for name in options:
                if name in fields:
                    given[name] = options[name]
            if given:
                instance.__post_init__()
        return instance


V = TypeVar("V", bound=Callable[..., Any])


def check_in_time(is_late: Callable[[], bool] = sys.is_finalizing) -> None:
    """Raises a RuntimeError if Python is ending, so that nothing can be written.

    Modules may have lost their names by then, so the function holds `is_late`.
    """
    if is_late():
        raise RuntimeError(
            "too late to save: Python is taking its modules apart: save before, or in a function "
            "passed to atexit.register, not in __del__"
        )


def takes(types: Any = None, *, early: bool | None = False, **defaults: Any) -> Callable[[V], V]:
    """Gives a verb a signature, each option for `**options` and no `*_more`, and checks names.

    `types` is the `TypedDict` of the options, with defaults of the dataclasses below, or
    `defaults`. With `early`, values are checked as well: by a verb that may find nothing to read,
    or that only keeps them.
    """
    types = getattr(types, "__annotations__", {})
    kinds: Any = WRITING if "durable" in types else READING
    fields = {field.name: field.default for kind in kinds for field in dataclasses.fields(kind)}
    defaults = fields | defaults
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in types.items()
    ]

    check_now = check_in_time if kinds is WRITING else None

    def shown(verb: V) -> V:
        def wrapper(*args: Any, **options: Any) -> Any:
            if check_now is not None:
                check_now()
            if options and not names.issuperset(options):
                check_known(checked, options)
            if early and options:
                for name in own.intersection(options):
                    check(name, options[name])
                if values := {name: options[name] for name in options if name in types}:
                    for kind in kinds:
                        kind.of(values)
            try:
                return verb(*args, **options)
            except TypeError as error:
                advise(verb, error, options)
                raise

        checked: Any = functools.wraps(verb)(wrapper) if types or early else verb
        signature = inspect.signature(verb)
        hidden = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        given = [each for each in signature.parameters.values() if each.kind not in hidden]
        own = {each.name for each in given if early and _is_option(each)}
        checked.__signature__ = signature.replace(parameters=[*given, *options])
        names = frozenset(checked.__signature__.parameters)
        return cast(V, checked)

    return shown


def _is_option(parameter: inspect.Parameter) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        check(parameter.name, parameter.default)
        return parameter.kind is parameter.KEYWORD_ONLY
    return False


def check_known(verb: Callable[..., Any], options: Mapping[str, Any]) -> None:
    signed: Any = verb
    if unknown := options.keys() - signed.__signature__.parameters.keys():
        name = min(unknown)
        if verb.__name__ == "loads" and unknown <= LoadOptions.__annotations__.keys():
            summed = "path, ...), of a file of save," if name == "verify" else "data, ...)"
            raise TypeError(f"loads() has no {name}=: treepack.load({summed} takes it")
        raise unknown_option(verb, name)


@dataclasses.dataclass(kw_only=True)
class Writing(_Options):
    compress: Compress = False
    level: int | None = None
    align: int = 64
    durable: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        self.compress = self.compress or False  # `None` where a verb chooses no compression
        _Options.__post_init__(self)
        check_compress(self.compress, self.level)


@dataclasses.dataclass(kw_only=True)
class Saved(_Options):
    """The content of a save, and the processes that take part; see `save`.

    Attributes:
      own: Returns metadata of each process, in its file of a sharded checkpoint, which then has a
        file of each; not compared between processes.
      linking: Links files with unchanged shards of a sharded checkpoint; `None` writes all.
    """

    sharded: bool | None = None
    step: int | None = None
    timeout: float = TIMEOUT_S
    metadata: Any = None
    static: Static = "skip-code"
    select: Any = None
    mapping: Any = None
    exclude: Any = None
    dtype: Any = None
    own: Callable[[], Any] | None = None
    linking: Any = None
    base: Any = None

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        if self.step is not None:
            self.step = operator.index(self.step)
        if self.dtype is not None:
            self.dtype = float_dtype(self.dtype)


@dataclasses.dataclass(kw_only=True)
class Export(_Options):
    format: str | None = None
    max_shard_size: int | str | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        if not isinstance(self.separator, str | None):
            raise TypeError(f"separator must be a text, such as '/', got {self.separator!r:.100}")


@dataclasses.dataclass(kw_only=True)
class Opening(_Options):
    """How a file is opened; see `load`.

    Reading sets `unchanged` to the paths of the arrays that a patch leaves as in the base.
    """

    mmap: bool = True
    base: Any = None
    max_size: int | None = None
    expect: Any = None
    threads: int | None = None
    progress: Progress = None
    unchanged: Sequence[str] = ()


@dataclasses.dataclass(kw_only=True)
class Reading(_Options):
    """How trees are read; see `load`.

    If `is_drop_in`, mismatches begin with flax's message, and arrays stay arrays where a template
    has a NumPy scalar.
    """

    is_drop_in: ClassVar[bool] = False

    strict: Strict = True
    cast: Cast = False
    dtype: Any = None
    arrays: Arrays = "saved"
    device: Any = None
    sharding: Any = None
    copy: bool | None = None
    unknown: Unknown = "error"
    containers: Containers = "saved"
    static: Any = None
    threads: int | None = None
    progress: Progress = None

    def __post_init__(self) -> None:
        _Options.__post_init__(self)
        if self.dtype is not None:
            self.dtype = float_dtype(self.dtype)
        if self.device is None and self.sharding is None:
            return
        if self.device is not None and self.sharding is not None:
            raise ValueError("device= and sharding= exclude each other: pass only one of them")
        if self.arrays == "numpy":
            raise ValueError("device= and sharding= return JAX arrays: leave out arrays='numpy'")

    @property
    def casts(self) -> bool:
        return bool(self.cast) and self.dtype is None  # with `dtype`, it only allows overflow

    @property
    def everywhere(self) -> bool:
        return self.arrays == "jax" or self.device is not None or self.sharding is not None

    def check(self, target: Any) -> None:
        if self.cast and target is None and (self.cast is True or self.dtype is None):
            more = "instead" if self.cast is True else "beside it"
            raise ValueError(
                f"cast={self.cast!r} requires a target to cast to: pass one, or pass dtype= {more}"
            )
        if self.dtype is not None and target is not None:
            raise ValueError(
                "dtype= cannot be used with a target: pass cast=True to cast to the target's dtypes"
            )
        if self.static is not None and target is not None:
            raise ValueError(
                "static= cannot be used with a target, which has its own static data: leave it out"
            )


@dataclasses.dataclass(kw_only=True)
class BytesReading(Reading, Opening):
    """See `loads`."""


SMALL = frozenset({"strict", "cast", "arrays", "copy", "unknown", "containers", "threads"})
"""Options of `loads` whose values are small and do not change."""


@dataclasses.dataclass(kw_only=True)
class Sharing(_Options):
    replicas: Replicas = "read"
    timeout: float = TIMEOUT_S


class DropInReading(Reading):
    is_drop_in = True


@functools.lru_cache(maxsize=64)
def restoring(strict: Strict, copy: bool | None = None, threads: int | None = None) -> Reading:
    """Returns the options of a function of the drop-in; cached, since these are called often."""
    return DropInReading(strict=strict, copy=copy, threads=threads)


@dataclasses.dataclass(kw_only=True)
class Selection(_Options):
    """With `drops`, not an option, damaged leaves count as missing."""

    select: Any = None
    exclude: Any = None
    mapping: Any = None
    missing: Missing = "error"
    mismatched: Mismatched = "error"
    unexpected: Unexpected | None = None
    verify: bool = False
    on_corrupt: OnCorrupt = "error"
    return_report: bool = False
    drops: bool = False

    def check(self, target: Any) -> None:
        if target is not None:
            return
        for name in ("missing", "mismatched"):
            if getattr(self, name) != "error":
                raise ValueError(
                    f"{name}= requires a target, whose leaves stay: pass one as the second argument"
                )

    @property
    def verifies(self) -> bool:
        return self.verify or self.on_corrupt == "skip"

    @property
    def is_whole(self) -> bool:
        return all(value is getattr(Selection, name) for name, value in vars(self).items())


# The dataclasses whose defaults the options of a function have, which writes or reads.
WRITING = (Writing, Saved, Export)
READING = (Reading, Selection, Sharing, Opening)


class WriteOptions(TypedDict, total=False):
    """The options of `Writing`; see `save`."""

    compress: Compress | None
    level: int | None
    align: int
    durable: bool
    threads: int | None


class StepOptions(WriteOptions, total=False):
    """The options of `Series.save`; see `save`."""

    metadata: Any
    static: Static
    progress: Progress


class FileOptions(StepOptions, total=False):
    """The options of `save_exported`; see `save`."""

    storage_options: StorageOptions


class SaveOptions(FileOptions, total=False):
    """The options of `save` that do not change the type of its result.

    Examples:
      >>> import tempfile, treepack
      >>> from typing import Unpack
      >>> def save_state(path, state, **options: Unpack[treepack.SaveOptions]):
      ...     treepack.save(path, {"state": state}, **options)
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> save_state(path, 3, metadata={"step": 1})
      >>> treepack.load(path)
      {'state': 3}
    """

    sharded: bool | None
    step: int | None
    timeout: float
    select: Any
    mapping: Any
    exclude: Any
    dtype: Any
    base: Any
    format: str | None
    max_shard_size: int | str | None
    separator: str | None


class ReadOptions(TypedDict, total=False):
    """The options of `Reading`; see `load`."""

    strict: Strict
    cast: Cast
    dtype: Any
    arrays: Arrays
    device: Device | None
    sharding: Any
    copy: bool | None
    unknown: Unknown
    containers: Containers
    static: Any
    threads: int | None
    progress: Progress


class BytesOptions(ReadOptions, total=False):
    """The options of `loads`."""

    base: Any
    max_size: int | None


class ChoiceOptions(ReadOptions, total=False):
    """Options of `Reading`, `Selection` and `Sharing` that `Series.resume` has as well."""

    select: Any
    exclude: Any
    mapping: Any
    missing: Missing
    mismatched: Mismatched
    unexpected: Unexpected | None
    replicas: Replicas


class PartOptions(ChoiceOptions, total=False):
    """The options of `Reading`, `Selection` and `Sharing` without `return_report`; see `load`."""

    verify: bool
    on_corrupt: OnCorrupt
    timeout: float


class LoadOptions(PartOptions, total=False):
    """The options of `load` that do not change the type of its result.

    Examples:
      >>> import treepack
      >>> from typing import Unpack
      >>> def load_state(path, **options: Unpack[treepack.LoadOptions]):
      ...     return treepack.load(path, **options)["state"]
      >>> load_state(treepack.dumps({"state": [1, 2]}), containers="plain")
      [1, 2]
    """

    mmap: bool
    base: Any
    max_size: int | None
    expect: Any
    storage_options: StorageOptions


def tell_from(tell: Tell, before: int, total: int) -> Tell:
    return lambda done, _: tell(before + done, total)


def progress_bar(progress: Progress, title: str) -> AbstractContextManager[Tell | None]:
    if progress is True:
        return _bar(title)
    if callable(progress):
        check_parameters(progress, "progress=", "the bytes done and their total", 2)
    if progress is None or progress is False or callable(progress):
        return contextlib.nullcontext(None if progress is False else progress)
    raise TypeError(f"progress must be a callable, a bool or None, got {progress!r}")


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Tell]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True requires tqdm: pip install tqdm") from error
    with contextlib.ExitStack() as stack:
        bar: Any = None

        def tell(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:  # none without work, as for a mapped file
                units: Any = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
                bar = stack.enter_context(tqdm(desc=title, total=total, **units))
            bar.total = total
            bar.update(done - bar.n)

        yield tell
