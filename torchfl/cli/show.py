"""A resolved descriptor as YAML, which can be read again.

Contract: `lines` writes every value that the descriptor has, quantities with the unit that makes them shortest, and, if
asked, behind each value where it was written. Reading the output gives an equal model (tests/cli holds it to that).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl.hcd import Descriptor
    from torchfl.hcd.units import Dimension

#: The fields that are quantities, by key.
DIMENSIONS: dict[str, Dimension] = {
    "peak": "rate",
    "clock": "frequency",
    "size": "bytes",
    "bytes": "bytes",
    "bandwidth": "bandwidth",
    "host_to_device_bandwidth": "bandwidth",
    "device_to_host_bandwidth": "bandwidth",
    "energy": "energy",
    "energy_per_byte": "energy",
    "cap": "power",
    "idle": "power",
    **dict.fromkeys(("latency", "launch", "tile_start", "dispatch", "synchronize", "cpu_call", "copy_latency"), "time"),
}
#: Mappings whose keys are the user's, so that a `size` in them is no quantity.
_FREE = ("where", "ops", "dtypes")

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./()+-]*(:?[ A-Za-z0-9_./()+-]*[A-Za-z0-9_./()+-])?")
_QUANTITY = re.compile(r"[0-9.]+ [A-Za-z/]+")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

Line = tuple[str, str | None]  # text, and the path of the value that it shows


def lines(descriptor: Descriptor, *, origins: bool = False) -> list[str]:
    """The descriptor as lines of YAML; with `origins`, each followed by a comment `# file:line:col`."""
    data = descriptor.model.model_dump(by_alias=True, exclude_none=True, exclude={"extends"})
    rows = list(_mapping({**data, **descriptor.extensions}, "", 0))
    if not origins:
        return [text for text, _ in rows]
    width = min(72, max(len(text) for text, _ in rows))
    return [f"{text:<{width}}  # {_origin(descriptor, path)}" if path else text for text, path in rows]


def _origin(descriptor: Descriptor, path: str) -> str:
    place = descriptor.origins.get(path)
    if place is None:
        return "default"
    file = Path(descriptor.resolve_file(place.file))
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{place.line}:{place.col}"


def _mapping(data: dict[str, Any], path: str, depth: int) -> Iterator[Line]:
    for key, value in data.items():
        at = f"{path}.{key}" if path else key
        if path.endswith("dtypes") and key == "*":
            at = path  # a plain list of dtypes stands for all arguments
        pad = "  " * depth
        if isinstance(value, dict) and value:
            yield f"{pad}{_text(key)}:", None
            yield from _mapping(value, at, depth + 1)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{pad}{_text(key)}:", None
            for i, item in enumerate(value):
                yield from _item(item, f"{at}[{i}]", depth + 1)
        elif value not in ({}, []) or (depth > 0 and at != "fallback.ops"):
            yield f"{pad}{_text(key)}: {_value(value, at)}", at


def _item(item: Any, path: str, depth: int) -> Iterator[Line]:
    pad = "  " * depth
    if not isinstance(item, dict) or not item:
        yield f"{pad}- {_value(item, path)}", path
        return
    for i, (text, at) in enumerate(_mapping(item, path, depth + 1)):
        yield (f"{pad}- {text.lstrip()}" if i == 0 else text), at


def _value(value: Any, path: str) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, path) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_value(v, path)}" for k, v in value.items()) + "}"
    parent, _, key = path.rpartition(".")
    if isinstance(value, int) and not isinstance(value, bool) and key in DIMENSIONS and not _is_free(parent):
        return quantity(value, DIMENSIONS[key], parent.rpartition(".")[2])
    return _text(value)


def _is_free(parent: str) -> bool:
    return parent.startswith("x-") or parent.rpartition(".")[2] in _FREE


def _text(value: Any) -> str:
    """A scalar in YAML 1.2 core, quoted where it would otherwise be read as something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    plain = (_PLAIN.fullmatch(value) and ": " not in value) or _QUANTITY.fullmatch(value)
    if plain and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def quantity(value: int, dimension: Dimension, owner: str = "") -> str:
    """`value` base units in the largest unit that says it exactly. `owner` is the section: integer units count OP/s."""
    from torchfl.hcd import units

    names = [name for name in units.names(dimension) if "bit" not in name and not name.startswith("KB")]
    if dimension == "rate":
        counted = "OP/s" if re.match("u?int|bool", owner) else "FLOP/s"
        names = [name for name in names if re.fullmatch(f"[kMGTPE]?{counted}", name)]
    for name in sorted(names, key=lambda name: units.UNITS[name][1], reverse=True):
        number = Fraction(value) / units.UNITS[name][1]
        text = f"{float(number):.12g}"
        if number >= 1 and "e" not in text and len(text.partition(".")[2]) <= 3 and Fraction(text) == number:
            return f"{text} {name}"
    return f"{value} {units.BASE[dimension].replace('op/s', 'OP/s')}"
