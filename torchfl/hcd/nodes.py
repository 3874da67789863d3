"""From bytes that nobody vouches for to a tree of values that know where they stand.

Contract: `read(path, report)` and `parse(data, file, report)` return the top-level `Map`, or None after at least one
error was reported; they raise nothing, whatever the bytes are. The tree holds YAML 1.2 core types only: null, true,
false, integers (017 is 17), floats (1e9 is one), text, lists, mappings with text keys. Nothing is constructed, no tag
is honoured, and size, depth and alias expansion are bounded before memory is spent on them.

Nodes are shared (aliases, inheritance), so they are never changed once built: later steps build new ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from torchfl.hcd.diagnostics import Note, Place, Report, show

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 50_000
MAX_ERRORS = 200

Value = bool | int | float | str | None

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONTROL = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_KEY = re.compile(r"[\w:*-]+")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass
class Node:
    """`path` is the dotted path in the file the node was written in, for messages."""

    place: Place
    width: int
    path: str


@dataclass
class Scalar(Node):
    value: Value


@dataclass
class Seq(Node):
    items: list[Node] = field(default_factory=list)


@dataclass
class Map(Node):
    items: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Scalar] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """The text under `key`, None when there is none or it is something else."""
        node = self.items.get(key)
        return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None

    def with_items(self, items: dict[str, Node], keys: dict[str, Scalar]) -> Map:
        return Map(self.place, self.width, self.path, items, keys)


def join(path: str, step: str | int) -> str:
    """`path` with one more step: a.b, a[0], a["odd key"]."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if not _PLAIN_KEY.fullmatch(step):
        return f'{path}["{step}"]'
    return f"{path}.{step}" if path else step


def plain(node: Node) -> Any:
    """The tree as Python data."""
    if isinstance(node, Map):
        return {k: plain(v) for k, v in node.items.items()}
    if isinstance(node, Seq):
        return [plain(v) for v in node.items]
    assert isinstance(node, Scalar)
    return node.value


def kind(node: Node) -> str:
    return "a mapping" if isinstance(node, Map) else "a list" if isinstance(node, Seq) else "a single value"


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node below and including `node` with its path in the resolved tree."""
    yield path, node
    if isinstance(node, Map):
        for key, value in node.items.items():
            yield from walk(value, join(path, key))
    elif isinstance(node, Seq):
        for i, value in enumerate(node.items):
            yield from walk(value, join(path, i))


def read(path: str, file: str, report: Report) -> Map | None:
    """Parse the file at `path`, which is called `file` in diagnostics."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        report.add("HCD001", Place(file, 1, 1), f"cannot read the file: {reason}")
        return None
    return parse(data, file, report)


def parse(data: bytes, file: str, report: Report) -> Map | None:
    start = Place(file, 1, 1)
    if len(data) > MAX_BYTES:
        report.add_source(file, "")
        report.add("HCD004", start, f"the file is larger than {MAX_BYTES} bytes")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        report.add_source(file, before)
        report.add("HCD002", _place_of(before, len(before), file), f"byte 0x{data[error.start]:02x} is not UTF-8")
        return None
    report.add_source(file, text)
    odd = _CONTROL.search(text)
    if odd:
        place = _place_of(text, odd.start(), file)
        report.add("HCD002", place, f"control character U+{ord(odd.group()):04X} in the text")
        return None
    builder = _Builder(file, report)
    try:
        builder.run(_events(text))
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else start
        message = error.problem or error.context or "not well-formed"
        hint = None
        if "'\\t'" in message or "\\t" in repr(message):
            hint = "indent with spaces, not tabs"
        elif "mapping values are not allowed" in message:
            hint = "put text that contains ': ' in quotes, and check the indentation"
        report.add("HCD003", place, f"YAML syntax: {message}", hint=hint)
        return None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as a directive with an absurd version number
        report.add("HCD003", start, f"YAML syntax: {str(error).splitlines()[0] if str(error) else 'not well-formed'}")
        return None
    root = builder.root
    if isinstance(root, Map) and not builder.failed:
        return root
    if not builder.failed:
        if root is None or (isinstance(root, Scalar) and root.value is None):
            report.add("HCD008", start, "the file is empty", hint="a descriptor starts with 'hcd: 1'")
        else:
            report.add("HCD008", root.place, f"the top level is {kind(root)}, not a mapping")
    return root if isinstance(root, Map) else None


def _events(text: str) -> Iterable[Any]:
    """The events of YAML's parser. libyaml's takes a tenth of the time, where PyYAML was built with it; what it refuses
    the other one refuses too, and says in words that docs/diagnostics.md knows."""
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            return list(yaml.parse(text, Loader=fast))
        except yaml.YAMLError:
            pass
    return yaml.parse(text, Loader=yaml.SafeLoader)


class _Stop(Exception):
    """Reading ends here; the reason has been reported."""


@dataclass
class _Frame:
    """A container being filled, with the size and height it has after aliases are expanded."""

    node: Map | Seq
    anchor: str | None
    size: int = 1
    height: int = 1
    key: Scalar | None = None
    skip_value: bool = False


class _Builder:
    """Turns parser events into nodes with an explicit stack: nesting never becomes Python recursion."""

    def __init__(self, file: str, report: Report) -> None:
        self.file = file
        self.report = report
        self.root: Node | None = None
        self.failed = False
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int, int] | None] = {}
        self._documents = 0
        self._errors = 0

    def run(self, events: Iterable[Any]) -> None:
        for event in events:
            if isinstance(event, DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    self._fail("HCD006", event, "a second document starts here; a descriptor is one document")
                    raise _Stop
            elif isinstance(event, AliasEvent):
                self._alias(event)
            elif isinstance(event, ScalarEvent):
                self._refuse_tag(event)
                self._place_value(self._scalar(event), event, 1, 1)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                self._refuse_tag(event)
                self._open(event)
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                frame = self._stack.pop()
                if frame.anchor:
                    self._anchors[frame.anchor] = (frame.node, frame.size, frame.height)
                self._grow(event, frame.size, frame.height)

    def _fail(self, code: str, event: Any, message: str, hint: str | None = None, notes: tuple[Note, ...] = ()) -> None:
        self.failed = True
        self._errors += 1
        if self._errors > MAX_ERRORS:
            raise _Stop
        self.report.add(code, self._where(event), message, path=self._next_path(), hint=hint, notes=notes)

    def _where(self, event: Any) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _next_path(self) -> str:
        if not self._stack:
            return ""
        frame = self._stack[-1]
        if isinstance(frame.node, Seq):
            return join(frame.node.path, len(frame.node.items))
        return join(frame.node.path, str(frame.key.value)) if frame.key else frame.node.path

    def _refuse_tag(self, event: Any) -> None:
        if event.tag is not None:
            self._fail("HCD006", event, f"tag {show(str(event.tag))} is not allowed", "write the plain value")

    def _scalar(self, event: ScalarEvent) -> Scalar:
        start, end = event.start_mark, event.end_mark
        assert start is not None and end is not None
        same_line = end.line == start.line
        width = end.column - start.column if same_line else 1
        value: Value = event.value
        if not event.style:  # plain; libyaml's events have ""
            value = self._resolve(event)
        node = Scalar(self._where(event), max(1, width), self._next_path(), value)
        if event.anchor:
            self._anchors[event.anchor] = (node, 1, 1)
        return node

    def _resolve(self, event: ScalarEvent) -> Value:
        text = event.value
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            if len(text) > 40:
                self._fail("HCD007", event, f"integer {show(text)[1:]} does not fit in 64 bits")
                return 0
            digits = text.lstrip("+-")
            base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
            number = int(text, base)
            if not -(1 << 63) <= number < 1 << 63:
                self._fail("HCD007", event, f"integer {text} does not fit in 64 bits")
                return 0
            return number
        if _FLOAT.fullmatch(text):
            real = float(text)
            if real in (float("inf"), float("-inf")):
                self._fail("HCD007", event, f"number {show(text)} is too large")
                return 0
            return real
        if _NOT_FINITE.fullmatch(text):
            self._fail("HCD007", event, f"{text} is not a finite number", "leave the key out if the value is unknown")
            return 0
        return str(text)

    def _open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self._fail("HCD004", event, f"nested more than {MAX_DEPTH} levels deep")
            raise _Stop
        if self._stack and isinstance(self._stack[-1].node, Map) and self._stack[-1].key is None:
            self._fail("HCD006", event, "a key must be plain text, not a list or a mapping")
            raise _Stop
        place, path = self._where(event), self._next_path()
        node: Map | Seq = Map(place, 1, path) if isinstance(event, MappingStartEvent) else Seq(place, 1, path)
        self._place_value(node, event, 0, 0)
        if event.anchor:
            self._anchors[event.anchor] = None  # known, but not complete: an alias to it now would be a cycle
        self._stack.append(_Frame(node, event.anchor))

    def _alias(self, event: AliasEvent) -> None:
        if event.anchor not in self._anchors:
            self._fail("HCD003", event, f"alias *{show(str(event.anchor))[1:-1]} has no anchor before it")
            raise _Stop
        target = self._anchors[event.anchor]
        if target is None:
            self._fail("HCD006", event, f"alias *{event.anchor} stands inside its own anchor")
            raise _Stop
        node, size, height = target
        self._place_value(node, event, size, height)

    def _place_value(self, node: Node, event: Any, size: int, height: int) -> None:
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        if isinstance(frame.node, Seq):
            frame.node.items.append(node)
        elif frame.key is None and not frame.skip_value:
            self._take_key(frame, frame.node, node, event)
        else:
            if frame.key is not None and not frame.skip_value:
                frame.node.items[str(frame.key.value)] = node
            frame.key, frame.skip_value = None, False
        if size:
            self._grow(event, size, height)

    def _take_key(self, frame: _Frame, owner: Map, node: Node, event: Any) -> None:
        if not isinstance(node, Scalar):
            self._fail("HCD006", event, "a key must be plain text, not a list or a mapping")
            raise _Stop
        value = node.value
        # A key such as 8 or true is text here: mappings are keyed by names, never by numbers.
        key = event.value if isinstance(event, ScalarEvent) else str(value)
        node = Scalar(node.place, node.width, join(owner.path, key), key)
        frame.key = node
        if key == "<<" and isinstance(event, ScalarEvent) and not event.style:
            self._fail("HCD006", event, "merge keys are not part of YAML 1.2", "use 'extends' to inherit from a file")
            frame.skip_value = True
        elif key in owner.keys:
            first = owner.keys[key].place
            frame.skip_value = True
            self._fail(
                "HCD005",
                event,
                f"duplicate key {show(key)} (first at line {first.line})",
                notes=(Note(first, "the first one is here"),),
            )
        else:
            owner.keys[key] = node

    def _grow(self, event: Any, size: int, height: int) -> None:
        if not self._stack:
            return
        frame = self._stack[-1]
        frame.size += size
        frame.height = max(frame.height, height + 1)
        if sum(f.size for f in self._stack) > MAX_NODES:
            self._fail("HCD004", event, f"more than {MAX_NODES} values (aliases expanded)")
            raise _Stop
        if len(self._stack) + height > MAX_DEPTH:
            self._fail("HCD004", event, f"nested more than {MAX_DEPTH} levels deep (aliases expanded)")
            raise _Stop


def _place_of(text: str, offset: int, file: str) -> Place:
    before = text[:offset]
    lines = re.split("\r\n|[\n\r\x85\u2028\u2029]", before)
    return Place(file, len(lines), len(lines[-1]) + 1)
