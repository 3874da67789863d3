"""Reads the two shapes that came before `hcd: 1` and rewrites them to it.

Contract: `normalise(root, report)` returns a tree of canonical shape whose nodes keep the place and the path that the
author wrote, so that a later diagnostic points at the legacy line. Every legacy form is told once, as a warning that
says how it was read. Nothing is guessed from magnitudes: a legacy key means what its origin document means by it.

Shape A (`.hcd` files): chip / compute_units / memory / tensor / constraints, without `hcd:`.
Shape B (device YAML): device_type / capabilities / supported_ops / fallback_policy.
"""

from __future__ import annotations

import re

from torchfl.hcd import terms
from torchfl.hcd.diagnostics import Note, Report, did_you_mean, show
from torchfl.hcd.nodes import Map, Node, Scalar, Seq

#: Legacy key of shape A -> (canonical key, unit). `peak_gflops` is TFLOP/s in the document that introduced it.
UNIT_KEYS: dict[str, tuple[str, str]] = {
    "peak_gflops": ("peak", "TFLOP/s"),
    "peak_gops": ("peak", "TOP/s"),
    "peak_tflops": ("peak", "TFLOP/s"),
    "peak_tops": ("peak", "TOP/s"),
    "size_kb": ("size", "KiB"),
    "size_mb": ("size", "MiB"),
    "size_gb": ("size", "GiB"),
    "total_gb": ("size", "GiB"),
    "bandwidth_gb_per_s": ("bandwidth", "GB/s"),
    "bandwidth_gbps": ("bandwidth", "GB/s"),
}

_SECTIONS = frozenset(
    {
        *("chip", "adapter", "compute_units", "memory", "tensor", "constraints", "power", "ops", "instructions"),
        *("fusions", "fallback", "overheads", "extends", "provenance"),
    }
)
_DEVICE_ONLY = frozenset(
    {
        *("device_type", "chip_model", "driver_version", "runtime_so", "runtime_header", "capabilities"),
        *("supported_ops", "fallback_policy", "compute"),
    }
)
_DEVICE_KEYS = _DEVICE_ONLY | {"vendor", "extends"}
_CAPABILITIES = frozenset({"dtypes", "memory", "compute", "features"})
_OP_KEYS = {"name": "op", "impl": "kernel", "dtype_support": "dtypes", "constraints": "where"}
_MORE_OP_KEYS = frozenset({"layouts", "int8_as", "why", "cost", "paths"})  # as in the canonical form
_PEAK = re.compile(r"peak_([tg])(flops|ops)_(\w+)")
_BARE_VARIABLE = re.compile(r"(?<!\$)\$([A-Za-z_][A-Za-z0-9_]*)")
_UNIT_OF = {dtype: unit for unit, dtype in reversed(terms.UNIT_DTYPE.items()) if unit != "tf32"}


def normalise(root: Map, report: Report) -> Map:
    """The canonical tree of a file, or the file's own tree when it is canonical or of no known shape."""
    if "hcd" in root.items:
        return root
    keys = set(root.items)
    if keys & _DEVICE_ONLY and not keys & {"chip", "compute_units", "tensor"}:
        return _Device(root, report).run()
    if keys & _SECTIONS:
        return _chip_file(root, report)
    return root


def hint_for(key: str) -> str | None:
    """What to write in a canonical file instead of a legacy key."""
    if key in UNIT_KEYS:
        name, unit = UNIT_KEYS[key]
        return f"legacy key: write '{name}: <number> {unit}'"
    if key in _DEVICE_ONLY:
        return "key of the legacy device file, which has no 'hcd:' line; see docs/descriptor.md"
    return None


def _warn(report: Report, code: str, at: Scalar, message: str, hint: str | None = None) -> None:
    report.add(code, at.place, message, path=at.path, hint=hint, width=at.width)


def _root_warning(report: Report, code: str, root: Map, message: str) -> None:
    first = next(iter(root.keys.values()))
    report.add(code, first.place, message, hint="add 'hcd: 1' and write the canonical form", width=first.width)


def _format_key(root: Map) -> Scalar:
    return Scalar(root.place, 1, "hcd", 1)


def _chip_file(root: Map, report: Report) -> Map:
    _root_warning(report, "HCD080", root, "no 'hcd:' line: read as the first origin document's form")
    items, keys = dict(root.items), dict(root.keys)
    for section in ("compute_units", "memory"):
        node = items.get(section)
        if isinstance(node, Map):
            parts = {k: _with_units(v, report) if isinstance(v, Map) else v for k, v in node.items.items()}
            items[section] = node.with_items(parts, node.keys)
    tensor = items.get("tensor")
    if isinstance(tensor, Map) and "supported_dtypes" in tensor.items:
        dtypes = _bare_dtypes(tensor.items["supported_dtypes"], report)
        items["tensor"] = tensor.with_items({**tensor.items, "supported_dtypes": dtypes}, tensor.keys)
    return root.with_items({"hcd": _format_key(root), **items}, {"hcd": _format_key(root), **keys})


def _with_units(node: Map, report: Report) -> Map:
    """`size_kb: 8192` as `size: 8192 KiB`."""
    items: dict[str, Node] = {}
    keys: dict[str, Scalar] = {}
    for key, value in node.items.items():
        name, unit = UNIT_KEYS.get(key, (key, ""))
        at = node.keys[key]
        if name in items:
            first = keys[name].place
            report.add(
                "HCD005",
                at.place,
                f"gives '{name}' a second time",
                path=at.path,
                notes=[Note(first, "the first one is here")],
                width=at.width,
            )
            continue
        items[name] = _quantity(value, unit, at, name, report) if unit else value
        keys[name] = at
    return node.with_items(items, keys)


def _quantity(value: Node, unit: str, at: Scalar, name: str, report: Report) -> Node:
    if not isinstance(value, Scalar) or isinstance(value.value, bool | str) or value.value is None:
        return value
    text = f"{value.value} {unit}"
    _warn(report, "HCD081", at, f"legacy key, read as {text}", f"write '{name}: {text}'")
    return Scalar(value.place, value.width, value.path, text)


def _bare_dtypes(node: Node, report: Report) -> Node:
    """dtype names without `torch.`, with one warning for the list."""
    if not isinstance(node, Seq):
        return node
    items: list[Node] = []
    warned = False
    for item in node.items:
        if isinstance(item, Scalar) and isinstance(item.value, str) and item.value.startswith("torch."):
            bare = item.value.removeprefix("torch.")
            if not warned:
                _warn(report, "HCD082", item, f"legacy dtype name {show(item.value)}", f"write '{bare}'")
            warned = True
            item = Scalar(item.place, item.width, item.path, bare)
        items.append(item)
    return Seq(node.place, node.width, node.path, items)


class _Device:
    """Rewrites shape B. Every value is put at its canonical path with the key it was written under."""

    def __init__(self, root: Map, report: Report) -> None:
        self.root = root
        self.report = report
        self.out = Map(root.place, 1, "")

    def run(self) -> Map:
        root = self.root
        _root_warning(self.report, "HCD083", root, "no 'hcd:' line: read as the second origin document's device file")
        self._put("hcd", _format_key(root), _format_key(root))
        simple = {
            "device_type": "chip.device_type",
            "vendor": "chip.vendor",
            "chip_model": "chip.name",
            "driver_version": "adapter.driver_version",
            "extends": "extends",
        }
        for key, node in root.items.items():
            at = root.keys[key]
            if key in simple:
                self._put(simple[key], self._path(node, at) if key == "extends" else node, at)
            elif key in ("runtime_so", "runtime_header"):
                self._put("adapter.runtime" if key == "runtime_so" else "adapter.header", self._path(node, at), at)
            elif key == "capabilities":
                self._capabilities(node, at)
            elif key == "compute" or (key == "memory" and isinstance(node, Map) and set(node.items) & set(UNIT_KEYS)):
                self._capability(key, node, at)  # a child may override a capability without repeating the section
            elif key == "supported_ops":
                self._ops(node, at)
            elif key == "fallback_policy":
                self._fallback(node, at)
            elif key in _SECTIONS or key.startswith("x-"):
                self.out.items[key], self.out.keys[key] = node, at
            else:
                self._unknown(at, _DEVICE_KEYS | _SECTIONS)
        if {"runtime_so", "supported_ops"} & set(root.items):
            cause = root.keys.get("runtime_so") or root.keys["supported_ops"]
            self._put("adapter.style", Scalar(cause.place, cause.width, cause.path, "pybind"), cause)
        return self.out

    def _put(self, path: str, node: Node, at: Scalar) -> None:
        here = self.out
        *sections, last = path.split(".")
        for section in sections:
            inner = here.items.get(section)
            if not isinstance(inner, Map):
                inner = Map(at.place, at.width, at.path)
                here.items[section], here.keys[section] = inner, at
            here = inner
        here.items[last], here.keys[last] = node, at

    def _unknown(self, at: Scalar, known: frozenset[str]) -> None:
        hint = did_you_mean(str(at.value), known)
        self.report.add("HCD011", at.place, "unknown key", path=at.path, hint=hint, width=at.width)

    def _expect(self, node: Node, at: Scalar, wanted: type[Map] | type[Seq]) -> bool:
        if isinstance(node, wanted):
            return True
        what = "a mapping" if wanted is Map else "a list"
        self.report.add("HCD013", node.place, f"expected {what}", path=at.path, width=node.width)
        return False

    def _path(self, node: Node, at: Scalar) -> Node:
        """`$NAME` becomes `${NAME}`: the document writes variables so."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return node
        text = _BARE_VARIABLE.sub(r"${\1}", node.value)
        if text != node.value:
            self.report.add(
                "HCD084",
                node.place,
                "legacy variable reference",
                path=at.path,
                hint=f"write '{text}'",
                width=node.width,
            )
        return Scalar(node.place, node.width, node.path, text)

    def _capabilities(self, node: Node, at: Scalar) -> None:
        if not self._expect(node, at, Map):
            return
        assert isinstance(node, Map)
        for key, value in node.items.items():
            if key in _CAPABILITIES:
                self._capability(key, value, node.keys[key])
            else:
                self._unknown(node.keys[key], _CAPABILITIES)

    def _capability(self, key: str, node: Node, at: Scalar) -> None:
        if key == "dtypes":
            bare = _bare_dtypes(node, self.report)
            self._put("tensor.supported_dtypes", bare, at)
            for item in bare.items if isinstance(bare, Seq) else []:
                unit = _UNIT_OF.get(item.value) if isinstance(item, Scalar) and isinstance(item.value, str) else None
                if unit and self._missing_unit(unit):
                    self._put(f"compute_units.{unit}", Map(item.place, item.width, item.path), at)
        elif key == "features":
            self._put("chip.features", node, at)
        elif self._expect(node, at, Map):
            assert isinstance(node, Map)
            if key == "memory":
                self._put("memory.off_chip_memory", _with_units(node, self.report), at)
            else:
                self._compute(node)

    def _missing_unit(self, unit: str) -> bool:
        units = self.out.items.get("compute_units")
        return not (isinstance(units, Map) and unit in units.items)

    def _compute(self, node: Map) -> None:
        for key, value in node.items.items():
            at, peak = node.keys[key], _PEAK.fullmatch(key)
            if peak:
                unit = f"{peak.group(1).upper()}{'FLOP' if peak.group(2) == 'flops' else 'OP'}/s"
                self._put(f"compute_units.{peak.group(3)}.peak", _quantity(value, unit, at, "peak", self.report), at)
            elif key == "max_threads_per_block":
                self._put("constraints.max_threads_per_block", value, at)
            else:
                self._unknown(at, frozenset({"max_threads_per_block", "peak_tflops_fp16", "peak_tops_int8"}))

    def _ops(self, node: Node, at: Scalar) -> None:
        if not self._expect(node, at, Seq):
            return
        assert isinstance(node, Seq)
        entries: list[Node] = []
        for entry in node.items:
            if not isinstance(entry, Map):
                entries.append(entry)
                continue
            items: dict[str, Node] = {}
            keys: dict[str, Scalar] = {}
            for key, value in entry.items.items():
                name = _OP_KEYS.get(key, key)
                if name == key and key not in _MORE_OP_KEYS | {"delete"}:
                    self._unknown(entry.keys[key], frozenset(_OP_KEYS) | _MORE_OP_KEYS)
                    continue
                items[name] = _bare_dtypes(value, self.report) if name == "dtypes" else value
                keys[name] = entry.keys[key]
            entries.append(entry.with_items(items, keys))
        self._put("ops", Seq(node.place, node.width, node.path, entries), at)

    def _fallback(self, node: Node, at: Scalar) -> None:
        if not self._expect(node, at, Map):
            return
        assert isinstance(node, Map)
        names = {"default": "fallback.default", "op_specific": "fallback.ops", "budget": "fallback.budget"}
        for key, value in node.items.items():
            if key in names:
                self._put(names[key], value, node.keys[key])
            else:
                self._unknown(node.keys[key], frozenset(names))
