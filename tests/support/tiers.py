"""Three tiers of tests, each with more examples than the one before.

`make test` has every behaviour once, `make test-all` everything, and the workflow of each night
(`TIER=nightly`) the campaigns at full length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = {"quick": 25, "all": 50, "nightly": 1000}

# No test depends on how fast the machine is, nor on how fast examples are made. Each run has the
# same examples, except at night, which looks for new ones.
for _name, _count in EXAMPLES.items():
    settings.register_profile(
        _name,
        deadline=None,
        derandomize=_name != "nightly",
        max_examples=_count,
        suppress_health_check=[HealthCheck.too_slow],
    )


def examples(count: int) -> settings:
    """Settings of hypothesis with `count` examples where the tier has 100 of other tests."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))


def either(quick: Any, every: Any, nightly: Any = None) -> Any:
    """Returns `quick` in `make test`, `every` in `make test-all`; `nightly`, if given, at night."""
    count = settings().max_examples
    if nightly is not None and count >= EXAMPLES["nightly"]:
        return nightly
    return every if count >= EXAMPLES["all"] else quick


def some(values: Iterable[Any], step: int = 2) -> list[Any]:
    """Returns all values at night, otherwise each `step`-th one."""
    values = [*values]
    return list(either(values[::step], values[::step], nightly=values))


def params(
    values: Iterable[Any], *, quick: int | set[Any] = 1, is_tuple: bool = False
) -> list[Any]:
    """Parameters of a fixture: `make test` runs the first `quick` values, or those in the set."""
    return [
        value
        if (at < quick if isinstance(quick, int) else value in quick)
        else pytest.param(*(value if is_tuple else (value,)), marks=pytest.mark.campaign)
        for at, value in enumerate(values)
    ]


def parametrize(
    names: str | tuple[str, ...],
    values: Iterable[Any],
    *,
    quick: int | set[Any] = 1,
    ids: Iterable[str] | Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """As pytest's; `make test` runs the first `quick` values only, or those in the set `quick`."""
    by_tier = params(values, quick=quick, is_tuple=isinstance(names, tuple))
    return pytest.mark.parametrize(names, by_tier, ids=ids)
