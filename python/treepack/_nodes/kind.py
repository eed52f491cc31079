"""What a kind of container is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """How the children of a template's container differ from those of a state.

    Attributes:
      target: The container.
      state: The state.
      expected: The names of the container's children.
      path: Where it is, as `current_path` tells it.
    """

    target: Any
    state: Mapping[str, Any]
    expected: list[str]
    path: str


class NodeKind(NamedTuple):
    """What can be done with one kind of container.

    Attributes:
      children: Takes a container, returns its children by name. If `final`, the
        values are not children but their state already.
      make: Takes a template container and new children by name, returns a new container.
      in_words: Tells a difference as flax does.
      more_allowed: Whether a state may have children that a template lacks.
      upgrade: Takes a state that may be of an older form, returns it in today's.
      final: Whether handlers of the program do the whole subtree by themselves; `make` takes
        the state then.
      open: `children` and `make` of one container at once, where that saves work.
    """

    children: Callable[[Any], Any]
    make: Callable[[Any, Any], Any]
    in_words: Callable[[Difference], str]
    more_allowed: bool = False
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    final: bool = False
    open: Callable[[Any], tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] | None = None

    def opened(self, value: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
        """Returns the children of a template, and what makes a container of new ones."""
        if self.open is not None:
            return self.open(value)
        return self.children(value), functools.partial(self.make, value)
