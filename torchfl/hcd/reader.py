"""From a path to a `Descriptor`: runs the steps of the reader and joins their findings.

Contract: `load` returns a usable descriptor or raises `DescriptorError`; `validate` returns all findings and raises
nothing. Whatever the file holds, no other exception leaves this module. All problems come in one pass: a value that
is wrong in itself is reported and set aside, and the rest is still checked.

Steps: nodes (YAML) -> legacy (canonical shape) -> extends (merge) -> env (paths) -> model (values) -> check (rules).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from torchfl.hcd import check, env, extends, legacy, model, nodes
from torchfl.hcd.diagnostics import DescriptorError, Diagnostic, Place, Report, did_you_mean, short_path, show
from torchfl.hcd.nodes import Map, Node, Scalar, Seq

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Descriptor:
    """A checked descriptor.

    `model` holds the values in base units; `origins` maps the dotted path of every resolved value to the place it was
    written at (a parent's file for an inherited one); `extensions` holds the free `x-` areas as plain data; `warnings`
    are the diagnostics that did not stop the load; `path` is the absolute path of the file; `files` maps the names of
    all files read, as diagnostics and origins show them, to absolute paths.
    """

    model: model.Hcd
    path: str
    origins: Mapping[str, Place]
    warnings: list[Diagnostic] = field(default_factory=list)
    extensions: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def resolve_file(self, file: str) -> str:
        """The absolute path of a file as `origins` names it; it does not move with the working directory."""
        return self.files.get(file, file)

    def lower(self) -> dict[str, Any]:
        """The descriptor as plain data for the engine; see lower.py for the shape."""
        from torchfl.hcd.lower import lower

        return lower(self)


def load(path: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> Descriptor:
    """Read the descriptor at `path`. `env` replaces the process environment for `${NAME}`.

    Raises DescriptorError, which carries all diagnostics, if there is at least one error.
    """
    descriptor, report = _read(os.fspath(path), os.environ if env is None else env)
    if descriptor is None:
        raise DescriptorError(report.sorted())
    return descriptor


def validate(path: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> list[Diagnostic]:
    """All problems of the descriptor at `path`, errors and warnings; empty when there is nothing to say."""
    return _read(os.fspath(path), os.environ if env is None else env)[1].sorted()


def _read(path: str, environ: Mapping[str, str]) -> tuple[Descriptor | None, Report]:
    report = Report()
    root = extends.resolve(path, environ, report)
    if root is None or not _check_format(root, report):
        return None, report
    file = short_path(path)
    root = env.expand(root, environ, report)
    free = {k: nodes.plain(v) for k, v in root.items.items() if k.startswith("x-")}
    root = _without(root, set(free) | _empty_sections(root))
    checker = _Validation(root, file, report)
    result = checker.run()
    if result is not None:
        check.check(result, checker.root, file, report, checker.set_aside, checker.touched)
    if result is None or report.has_errors:
        return None, report
    origins = {at: node.place for at, node in nodes.walk(checker.root) if at}
    files = {name: os.path.normpath(Path(name).absolute()) for name in report.files}
    return Descriptor(result, files[file], origins, report.sorted(), free, files), report


def _check_format(root: Map, report: Report) -> bool:
    """Whether the file is of a format that can be read on with."""
    node = root.items.get("hcd")
    if node is None:
        first = next(iter(root.keys.values()), None)
        place = first.place if first else root.place
        hint = did_you_mean(str(first.value), ["hcd"]) if first and len(root.keys) else None
        hint = hint if hint and hint.startswith("did") else "a descriptor starts with 'hcd: 1'"
        report.add("HCD010", place, "this is no descriptor: there is no 'hcd:' line", hint=hint)
        return False
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or value != model.FORMAT:
        hint = f"this release reads format {model.FORMAT}"
        if isinstance(value, int) and value > model.FORMAT:
            hint += "; update flagos-torchfl"
        message = f"descriptor format {show(nodes.plain(node))} is not supported"
        report.add("HCD010", node.place, message, path="hcd", hint=hint, width=node.width)
        return False
    return True


def _empty_sections(root: Map) -> set[str]:
    """Sections with nothing in them, such as one whose lines are all commented out: the same as absent."""
    known = set(_names(model.Hcd))
    return {k for k, v in root.items.items() if isinstance(v, Scalar) and v.value is None and k in known}


def _without(root: Map, drop: set[str]) -> Map:
    return root.with_items(
        {k: v for k, v in root.items.items() if k not in drop}, {k: v for k, v in root.keys.items() if k not in drop}
    )


class _Validation:
    """Validates the tree against the model. What is wrong is reported and set aside until the rest holds."""

    def __init__(self, root: Map, file: str, report: Report) -> None:
        self.root = root
        self.file = file
        self.report = report
        self.set_aside: set[Loc] = set()
        #: The paths, as written, of what lost a part because the part was wrong.
        self.touched: set[str] = set()

    def run(self) -> model.Hcd | None:
        if not self.report.incomplete:
            self._required()
        for _ in range(6):
            try:
                return model.Hcd.model_validate(_complete(nodes.plain(self.root)))
            except ValidationError as failure:
                errors = failure.errors(include_url=False)
            drop: set[Loc] = set()
            for error in errors:
                if self.report.full:
                    return None
                loc = _location(error)
                self._tell(error, loc)
                found = _deepest(self.root, loc)[2]
                drop.add(found)
                self.touched.add(_deepest(self.root, found[:-1])[0].path)
            self.set_aside |= drop
            pruned = _prune(self.root, drop | {d[:2] for d in drop if d[0] in _LISTS and d[2:3] in _VITAL}, ())
            if not isinstance(pruned, Map):
                return None
            self.root = pruned
        return None

    def _tell(self, error: Any, loc: Loc) -> None:
        kind = str(error["type"])
        context = error.get("ctx") or {}
        node, key, _ = _deepest(self.root, loc)
        value = error.get("input")
        hint: str | None = None
        at: Node = node
        if kind.startswith("HCD"):
            code, message, hint = kind, context["message"], context["hint"]
        elif kind == "missing":
            self.missing(loc)
            return
        elif kind == "extra_forbidden":
            code, message, at = "HCD011", "unknown key", key or node
            name = str(loc[-1])
            hint = legacy.hint_for(name) or did_you_mean(name, _names_at(loc[:-1]))
        elif kind == "literal_error":
            names = re.findall(r"'([^']*)'", context.get("expected", ""))
            code, message = "HCD014", f"{show(value)} is not allowed here"
            hint = did_you_mean(value, names) if isinstance(value, str) else "allowed: " + ", ".join(names)
        elif kind == "bool_type":
            code, message = "HCD013", f"expected true or false, got {show(value)}"
            hint = "write true or false" if value in ("yes", "no", "on", "off", "Yes", "No", "On", "Off") else None
        else:
            code, message = "HCD013", f"wrong type of value: {show(value)}"
        self.add(code, at, message, hint)

    def _required(self) -> None:
        """Tells which required keys the author left out; `_complete` hides them from the model."""
        for section, values in _REQUIRED.items():
            given = self.root.items.get(section)
            if given is None:
                self.missing((section,))
            elif isinstance(given, Map):
                for key in values:
                    if key not in given.items:
                        self.missing((section, key))

    def missing(self, loc: Loc) -> None:
        node, key, _ = _deepest(self.root, loc[:-1])
        self.add("HCD012", key or node, f"missing key '{loc[-1]}'", None)

    def add(self, code: str, at: Node, message: str, hint: str | None) -> None:
        notes = extends.inherited_note(self.file, self.root, at.place)
        self.report.add(code, at.place, message, path=at.path, hint=hint, notes=notes, width=at.width)


#: Stand-ins for required values that are missing or set aside, so that the rest can still be checked.
_REQUIRED: dict[str, dict[str, Any]] = {
    "chip": {"name": "?", "vendor": "?", "device_type": "unknown"},
    "tensor": {"supported_dtypes": ["float32"]},
}


def _complete(data: dict[str, Any]) -> dict[str, Any]:
    filled = dict(data)
    for section, values in _REQUIRED.items():
        given = filled.get(section, {})
        if isinstance(given, dict):
            filled[section] = {**values, **given}
    return filled


def _location(error: Any) -> Loc:
    loc: Loc = error["loc"]
    item = (error.get("ctx") or {}).get("item")
    return loc if item is None else (*loc, item)


def _deepest(root: Map, loc: Loc) -> tuple[Node, Scalar | None, Loc]:
    """The deepest node on the way to `loc`, its key, and its own location. A step that a shorthand leaves out (the
    '*' of a plain dtype list, the 'in' of a plain list of values) is passed over."""
    node: Node = root
    key: Scalar | None = None
    at: Loc = ()
    for step in loc:
        if isinstance(node, Map) and isinstance(step, str) and step in node.items:
            key = node.keys[step]
            node = node.items[step]
        elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.items):
            key, node = None, node.items[step]
        elif isinstance(node, Seq) and isinstance(step, str):
            continue
        else:
            break
        at = (*at, step)
    return node, key, at


def _prune(node: Node, drop: set[Loc], at: Loc) -> Node | None:
    """The tree without the nodes at the locations in `drop`."""
    if at in drop:
        return None
    if isinstance(node, Map):
        kept = {k: p for k, v in node.items.items() if (p := _prune(v, drop, (*at, k))) is not None}
        return node.with_items(kept, {k: v for k, v in node.keys.items() if k in kept})
    if isinstance(node, Seq):
        items = [p for i, v in enumerate(node.items) if (p := _prune(v, drop, (*at, i))) is not None]
        return Seq(node.place, node.width, node.path, items) if items or not node.items else None
    return node


#: An entry of these lists with something wrong under these keys goes as a whole: without its kernel, say, it would only
#: give rise to further complaints.
_LISTS = ("ops", "instructions", "fusions")
_VITAL: tuple[Loc, ...] = (("kernel",), ("paths",), ("op",), ("ops",), ("name",))


def _names(cls: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in cls.model_fields.items()]


def _names_at(loc: Loc) -> list[str]:
    """The keys that the model knows at a location."""
    here: Any = model.Hcd
    for step in loc:
        here = _step(here, step)
    owner = next((m for m in _unwrap(here) if isinstance(m, type) and issubclass(m, BaseModel)), None)
    return _names(owner) if owner else []


def _step(annotation: Any, step: str | int) -> Any:
    for option in _unwrap(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            for name, info in option.model_fields.items():
                if (info.alias or name) == step:
                    return info.annotation
        args = get_args(option)
        if get_origin(option) is list and isinstance(step, int):
            return args[0]
        if get_origin(option) is dict and isinstance(step, str):
            return args[1]
    return None


def _unwrap(annotation: Any) -> list[Any]:
    """The alternatives behind Annotated and Optional."""
    if get_origin(annotation) is Annotated:
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return [o for a in get_args(annotation) for o in _unwrap(a)]
    return [annotation]
