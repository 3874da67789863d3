"""Environment variables in descriptors.

Contract: `${NAME}` and `${NAME:-default}` are expanded after parsing, in `extends` and in the path fields of `adapter`
only, so a variable can never change the structure of a file. An unset variable without a default is an error; a set
but empty one counts as unset for `:-`, as in a shell. `$$` is a literal dollar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchfl.hcd.diagnostics import Report, show
from torchfl.hcd.nodes import Map, Node, Scalar, walk

PATH_FIELDS = ("library", "sdk", "runtime", "header", "kernels")
_EXPANDED = frozenset({"extends", *(f"adapter.{name}" for name in PATH_FIELDS)})

_REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$")


def expand_text(node: Scalar, env: Mapping[str, str], report: Report) -> str | None:
    """The text of `node` with its variables replaced; None after an error was reported."""
    text, failed = str(node.value), False

    def replace(match: re.Match[str]) -> str:
        nonlocal failed
        if match.group() == "$$":
            return "$"
        name, default = match.group(1), match.group(3)
        if name is None:
            failed = True
            hint = "write ${NAME} or ${NAME:-default}; a literal dollar is $$"
            report.add("HCD041", node.place, "malformed variable", path=node.path, hint=hint, width=node.width)
            return ""
        value = env.get(name)
        if match.group(2) and not value:
            return default or ""
        if value is None:
            failed = True
            hint = f"set it, or give a default: ${{{name}:-...}}"
            message = f"environment variable {name} is not set"
            report.add("HCD040", node.place, message, path=node.path, hint=hint, width=node.width)
            return ""
        return value

    expanded = _REFERENCE.sub(replace, text)
    return None if failed else expanded


def expand(root: Map, env: Mapping[str, str], report: Report) -> Map:
    """The tree with the path fields of `adapter` expanded; a field that cannot be is left out, after an error."""
    for path, node in walk(root):
        if not isinstance(node, Scalar) or not isinstance(node.value, str) or "${" not in node.value:
            continue
        if path not in _EXPANDED and not path.startswith("x-"):
            message = f"{show(node.value)} is taken as text: variables are expanded in paths only"
            report.add("HCD042", node.place, message, path=node.path, width=node.width)
    adapter = root.items.get("adapter")
    if not isinstance(adapter, Map):
        return root
    items: dict[str, Node] = {}
    for key, value in adapter.items.items():
        if key in PATH_FIELDS and isinstance(value, Scalar) and isinstance(value.value, str):
            text = expand_text(value, env, report)
            if text is not None:
                items[key] = Scalar(value.place, value.width, value.path, text)
        else:
            items[key] = value
    keys = {k: v for k, v in adapter.keys.items() if k in items}
    return root.with_items({**root.items, "adapter": adapter.with_items(items, keys)}, root.keys)
