"""A chip's page, from its descriptor: what it is, what it computes under which conditions, and how that is known.

Contract: `render` is a pure function of a resolved descriptor and gives Markdown; no torch, nothing is loaded. Paths of
a machine do not get in: the page of a shipped chip is the same everywhere (tests/docs holds docs/chips to that).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl.hcd import Descriptor


def render(descriptor: Descriptor) -> str:
    from torchfl.pages import environment

    model = descriptor.model
    path = Path(descriptor.path)
    source = f"{path.absolute().parent.name}/{path.name}"  # the same wherever the folder lies
    made = environment("torchfl.pages", escape=False)
    made.filters.update(cell=_cell, code=_code)
    text = made.get_template("chip.md").render(
        source=source,
        model=model,
        facts=_facts(model),
        units=[_unit(name, unit) for name, unit in model.compute_units.units().items()],
        levels=_levels(model),
        limits=_limits(model),
        rows=[_row(names, kept) for names, kept in _grouped(model.ops)],
        instructions=[
            {"names": [i.op for i in group], "kernels": [group[0].kernel], **_conditions(group[0])}
            for group in _same(model.instructions or [])
        ],
        fusions=[{"model": f, **_conditions(f)} for f in model.fusions or []],
        overheads=_quantities(model.overheads),
        operators=len({op.op for op in model.ops}),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _cell(text: str) -> str:
    """As one cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def _code(names: Iterable[Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _quantity(value: int, key: str, owner: str = "") -> str:
    from torchfl.cli.show import DIMENSIONS, quantity

    return quantity(value, DIMENSIONS[key], owner)


def _quantities(section: Any, owner: str = "") -> list[tuple[str, str]]:
    """(name, value with its unit) of a section's values."""
    from torchfl.cli.show import DIMENSIONS

    if section is None:
        return []
    return [
        (key.replace("_", " "), _quantity(value, key, owner) if key in DIMENSIONS else _plain(value))
        for key, value in section.model_dump(by_alias=True, exclude_none=True).items()
    ]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} as {_plain(item)}" for key, item in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(model: Any) -> list[tuple[str, str]]:
    chip, tensor = model.chip, model.tensor
    device = chip.device_type.partition(":")[0]
    facts = [("device", f"`{device}`"), ("vendor", chip.vendor)]
    if chip.version:
        facts.append(("version", chip.version))
    facts.append(("dtypes", ", ".join(tensor.supported_dtypes)))
    others = {"cpu": "run on the CPU", "cast": "are cast", "error": "are refused"}
    facts.append(("other dtypes", others[tensor.on_unsupported_dtype]))
    facts.append(("layout", tensor.default_layout))
    for name in ("compiled_layout", "compute_as"):
        value = tensor.model_dump(exclude_none=True).get(name)
        if value:
            facts.append((name.replace("_", " "), _plain(value)))
    if tensor.max_rank:
        facts.append(("dimensions", f"at most {tensor.max_rank}"))
    if tensor.autocast and tensor.autocast.dtype:
        facts.append(("autocast", tensor.autocast.dtype))
    if chip.features:
        facts.append(("features", ", ".join(chip.features)))
    if model.power:
        facts += [(f"power, {name}", text) for name, text in _quantities(model.power)]
    return facts


def _unit(name: str, unit: Any) -> dict[str, str]:
    values = dict(_quantities(unit, name))
    values.pop("tile", None)
    return {"name": name, "peak": values.pop("peak", "unknown"), "count": values.pop("count", ""),
            "more": "; ".join(f"{key}: {text}" for key, text in values.items())}  # fmt: skip


def _levels(model: Any) -> list[dict[str, str]]:
    names = {"on_chip_cache": "on-chip cache", "off_chip_memory": "memory"}
    out = []
    for key, name in names.items():
        level = getattr(model.memory, key)
        if level is not None:
            values = dict(_quantities(level))
            out.append({"name": name, "size": values.pop("size", "unknown"),
                        "bandwidth": values.pop("bandwidth", "unknown"),
                        "more": "; ".join(f"{k}: {v}" for k, v in values.items())})  # fmt: skip
    return out


def _limits(model: Any) -> list[tuple[str, str]]:
    limits = [(name, text) for name, text in _quantities(model.constraints) if text != "no"]
    attention = model.compute_units.attention
    if attention is not None:
        limits += [(f"attention: {name}", text) for name, text in _quantities(attention)]
    return limits


def _grouped(ops: list[Any]) -> Iterable[tuple[list[str], list[Any]]]:
    """Operators whose kernels stand under the same conditions, in the order of the descriptor."""
    groups: dict[str, tuple[list[str], list[Any]]] = {}
    for op in ops:
        key = repr([(path.kernel, _conditions(path), _conditions(op)) for path in op.paths or [op]])
        names, kept = groups.setdefault(key, ([], []))
        names.append(op.op)
        kept.append(op)
    yield from groups.values()


def _row(names: list[str], kept: list[Any]) -> dict[str, Any]:
    first = kept[0]
    kernels = [path.kernel for path in first.paths] if first.paths else [op.kernel for op in kept]
    conditions = _conditions(first)
    own = [(path.kernel, _conditions(path)) for path in first.paths or ()]
    for kernel, theirs in own:
        extra = [text for text in theirs["where"] if text not in conditions["where"]]
        conditions["where"] += [f"{kernel}: {text}" for text in extra]
        if theirs["dtypes"] and theirs["dtypes"] != conditions["dtypes"]:
            conditions["where"].append(f"{kernel}: {theirs['dtypes']}")
    return {"names": names, "kernels": list(dict.fromkeys(k for k in kernels if k)), **conditions}


def _same(instructions: list[Any]) -> list[list[Any]]:
    groups: dict[str, list[Any]] = {}
    for instruction in instructions:
        groups.setdefault(repr((instruction.kernel, _conditions(instruction))), []).append(instruction)
    return list(groups.values())


def _conditions(entry: Any) -> dict[str, Any]:
    """`dtypes` as text, `where` as a list of texts, `why`."""
    dtypes = entry.dtypes or {}
    if set(dtypes) == {"*"}:
        text = ", ".join(dtypes["*"])
    else:
        text = "; ".join(f"{'others' if name == '*' else name}: {', '.join(listed)}" for name, listed in dtypes.items())
    where = [_predicate(name, predicate) for name, predicate in (entry.where or {}).items()]
    if entry.layouts:
        where.insert(0, f"layout is {' or '.join(entry.layouts)}")
    return {"dtypes": text, "where": where, "why": entry.why or ""}


def _literal(value: Any) -> str:
    """A value of a condition, as a descriptor writes it."""
    if isinstance(value, list):
        return ", ".join(map(_literal, value))
    return str(value).lower() if isinstance(value, bool) else _plain(value)


_PREDICATES = {
    "equals": "is",
    "in_": "is one of",
    "not_": "is not",
    "min": "is at least",
    "max": "is at most",
    "multiple_of": "is a multiple of",
}


def _predicate(name: str, predicate: Any) -> str:
    given = [(words, getattr(predicate, field)) for field, words in _PREDICATES.items()]
    parts = [f"{words} {_literal(value)}" for words, value in given if value is not None]
    text = f"{name} {' and '.join(parts)}"
    return f"{text} ({predicate.why})" if predicate.why else text


def shipped(folder: Path) -> dict[str, Path]:
    """The descriptors in the folders of a folder, by the name of their page; other files of YAML are none."""
    found = {}
    for inside in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in sorted(inside.glob("*.yaml")):
            if re.search(r"^hcd:", path.read_text(encoding="utf-8"), re.MULTILINE):
                found[path.stem] = path
    return found
