"""Links names in docstrings, for the reference of the site (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

# The public names on the pages of the reference.
PAGES = (Path(__file__).parents[1] / "docs" / "reference").glob("*.md")
NAMES = {
    name for page in PAGES for name in re.findall(r"^::: treepack\.(\w+)$", page.read_text(), re.M)
}


class Links(griffe.Extension):
    """Makes links of names in code spans, and of pages of the documentation.

    The docstrings stay as `help` shows them.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes one docstring, except its examples."""
        if obj.docstring is None:
            return
        text, examples, rest = obj.docstring.value.partition("Examples:\n")
        text = re.sub(r"(?<!\[)`(?:treepack\.)?(\w+)`", lambda it: _link(it, obj), text)
        text = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](../\1.md)", text)
        obj.docstring.value = text + examples + rest


def _link(found: re.Match[str], obj: griffe.Object) -> str:
    name = found[1]
    if name == obj.name or name not in NAMES:
        return found[0]
    return f"[{found[0]}][treepack.{name}]"


class Options(griffe.Extension):
    """Shows each option of a function that takes `**options`, with its default."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Changes one signature."""
        for parameter in func.parameters:
            parameter.default = _value(parameter.default, func)
        for decorator in func.decorators:
            if decorator.callable_path.endswith(".takes"):
                call: Any = decorator.value
                given = [it for it in call.arguments if isinstance(it, griffe.ExprKeyword)]
                for hidden in [it.name for it in func.parameters if it.name.startswith("_")]:
                    del func.parameters[hidden]
                # As in `**dict.fromkeys(LoadOptions.__annotations__)`: the defaults are `None`.
                are_none = [it for it in call.arguments if isinstance(it, griffe.ExprVarKeyword)]
                found = [it for it in call.arguments if it not in [*given, *are_none]]
                if not found:
                    continue
                types = func.modules_collection[found[0].canonical_path]
                kinds = "WRITING" if "durable" in types.all_members else "READING"
                declared = func.modules_collection[f"treepack._src.options.{kinds}"].value
                fields = [
                    field
                    for kind in declared.elements
                    for field in func.modules_collection[kind.canonical_path].attributes.values()
                    if "instance-attribute" in field.labels
                ]
                defaults = {field.name: _value(field.value, field) for field in fields}
                defaults |= {it.name: it.value for it in given}
                defaults = {} if are_none else defaults
                del func.parameters[func.parameters[-1].name]
                for name, option in types.all_members.items():
                    func.parameters[name] = griffe.Parameter(
                        name,
                        annotation=option.annotation,
                        kind=griffe.ParameterKind.keyword_only,
                        default=defaults.get(name, "None"),
                    )


def _value(default: Any, where: griffe.Object) -> Any:
    """Returns a default; of a constant of the package, its value."""
    is_name = isinstance(default, (griffe.ExprName, griffe.ExprAttribute))
    if is_name and default.canonical_path.startswith("treepack."):
        named = where.modules_collection[default.canonical_path]
        return _value(named.value, where) if named.is_attribute else default
    return default
