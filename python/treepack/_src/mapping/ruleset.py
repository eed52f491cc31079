from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Mapping as Dict
from typing import Any, Literal, Self

from treepack._src.advice import Hinting, check_parameters
from treepack._src.mapping.leaves import Leaf
from treepack._src.mapping.plan import Plan, Planner
from treepack._src.mapping.rules import Rule, rule_of, sizes_of
from treepack._src.options import invalid_choice
from treepack.errors import TreepackError

Rest = Literal["same", "error", "skip"]
"""How leaves without a rule are treated."""

Rules = Dict[Any, Any] | Callable[[str], Any]
"""Rules by the paths of the tree, or a function of these paths."""


class RuleSet(Hinting):
    def __init__(self, rules: Rules, rest: Rest, sizes: Dict[str, int | tuple[int, ...]]):
        if rest not in ("same", "error", "skip"):
            raise invalid_choice("rest", rest, ("same", "error", "skip"))
        self._function = None
        self._is_inverse = False
        self._rules: tuple[Rule, ...] = ()
        if isinstance(rules, Dict):
            self._rules = tuple(rule_of(path, rule) for path, rule in rules.items())
        elif callable(rules) and not isinstance(rules, type):
            check_parameters(rules, "mapping=", "a path of the target", 1)
            self._function = rules
        else:
            raise TypeError(
                "mapping= takes a treepack.Mapping, a dict of rules such as {'head/kernel': "
                f"('lm_head.weight', 'v m -> m v')}}, or a function of paths, got {rules!r:.100}"
            )
        self._sizes = sizes_of(sizes, self._rules) if self._function is None else {**sizes}
        self.rest: Rest = rest

    @staticmethod
    def of(mapping: Any) -> RuleSet:
        return mapping if isinstance(mapping, RuleSet) else RuleSet(mapping, "same", {})

    @property
    def is_function(self) -> bool:
        return self._function is not None

    def __repr__(self) -> str:
        count = "a function" if self.is_function else f"{len(self._rules)} rule"
        count += "s" * (not self.is_function and len(self._rules) != 1)
        return f"treepack.Mapping({count}{', inverse' * self._is_inverse})"

    def inverse(self) -> Self:
        """Returns the mapping from trees to files; a ValueError if a rule has no exact inverse."""
        inverse = object.__new__(type(self))
        inverse.__dict__.update(self.__dict__)
        inverse._is_inverse = not self._is_inverse
        if self._function is None:
            inverse._rules = tuple(rule.inverse() for rule in self._rules)
        return inverse

    def plan(
        self, here: Dict[str, Leaf], there: Dict[str, Leaf] | None, others: Iterable[str] = ()
    ) -> Plan:
        """Raises if no rule has a match, and no leaf lacks for that.

        `others` are further paths here, of leaves that are not selected.
        """
        rules = self._rules
        if self._function is not None:
            rules = self._called(here if self._is_inverse else there)
        plan = Planner(rules, self._sizes, here, there, others).plan(self.rest)
        is_unused = plan.unused and len(plan.unused) == len(rules)
        if is_unused and here and not any(fault.is_missing for fault in plan.faults):
            raise TreepackError(plan.unused[0].unmatched(here, there))
        return plan

    def _called(self, paths: Iterable[str] | None) -> tuple[Rule, ...]:
        if paths is None:
            raise TreepackError(
                "a function of paths as mapping= needs a target, whose paths it takes: pass one to "
                "treepack.load, or a dict of rules as mapping="
            )
        assert self._function is not None
        rules = []
        for path in paths:
            rule = self._function(path)
            if rule is not None:
                parsed = rule_of(path, rule, is_literal=True)
                rules.append(parsed.inverse() if self._is_inverse else parsed)
        return tuple(rules)
