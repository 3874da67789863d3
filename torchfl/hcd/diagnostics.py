"""What can be wrong with a descriptor, and how it is told.

Contract: every problem the reader reports has a code of `CATALOGUE`; the catalogue is the only place where a code's
title and explanation are written, and `docs/diagnostics.md` is generated from it:

    python -m torchfl.hcd.diagnostics > docs/diagnostics.md

A `Diagnostic` is a value (no reference to nodes or models) and renders as text or as plain data for JSON.
Text from the file is escaped before it is shown, so a hostile file cannot send control sequences to a terminal.
"""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torchfl.hcd.codes import CATALOGUE, GROUPS

Severity = Literal["error", "warning"]

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_SOURCE_WIDTH = 160

#: After one of these the value at the same place means nothing, so nothing further is said about it.
_SPOILING = frozenset({"HCD006", "HCD007", "HCD030"})

#: Enough for any file written in good faith; more would only cost time.
MAX_DIAGNOSTICS = 200


class Place(NamedTuple):
    """A position in a file; `line` and `col` count from 1, `col` in characters."""

    file: str
    line: int
    col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


#: Where a resolved value was written, as `Descriptor.origins` gives it.
Origin = Place


class Note(NamedTuple):
    """A further place that explains a diagnostic, such as where an inherited value was written."""

    place: Place
    message: str


@dataclass(frozen=True)
class Diagnostic:
    """One problem. `path` is the dotted path as the author wrote it ('' when the whole file is meant)."""

    code: str
    severity: Severity
    file: str
    line: int
    col: int
    path: str
    message: str
    hint: str | None = None
    notes: tuple[Note, ...] = ()
    source: str = ""
    width: int = 1

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    def render(self) -> str:
        """`file:line:col: error[HCDnnn]: path: message`, the source line, a caret, then `hint:` and `note:` lines."""
        where = f"{escape(self.path)}: " if self.path else ""
        lines = [
            f"{escape(self.file)}:{self.line}:{self.col}: {self.severity}[{self.code}]: {where}{escape(self.message)}"
        ]
        lines += _excerpt(self.source, self.col, self.width)
        if self.hint:
            lines.append(f"hint: {escape(self.hint)}")
        for note in self.notes:
            lines.append(f"note: {escape(str(note.place))}: {escape(note.message)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "title": CATALOGUE[self.code].title,
            "severity": self.severity,
            "file": self.file,
            "line": self.line,
            "col": self.col,
            "path": self.path,
            "message": self.message,
            "hint": self.hint,
            "source": self.source,
            "notes": [
                {"file": n.place.file, "line": n.place.line, "col": n.place.col, "message": n.message}
                for n in self.notes
            ],
        }


class DescriptorError(ValueError):
    """A descriptor that cannot be used. `diagnostics` holds every problem found, errors and warnings."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics: list[Diagnostic] = list(diagnostics)
        super().__init__("\n".join(d.render() for d in self.diagnostics))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.diagnostics,))


class Report:
    """Collects diagnostics of one load, with the text of the files read so that source lines can be shown."""

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}
        self._seen: set[tuple[str, str, int, int, str]] = set()
        self._found: list[Diagnostic] = []
        self._spoiled: set[Place] = set()
        #: Set when a parent could not be read: what is missing may well be in it.
        self.incomplete = False
        #: Set once so many problems were found that looking for more is pointless.
        self.full = False

    @property
    def files(self) -> list[str]:
        """The files read, in order."""
        return list(self._sources)

    def add_source(self, file: str, text: str) -> None:
        self._sources[file] = _LINE_BREAK.split(text)

    def add(
        self,
        code: str,
        place: Place,
        message: str,
        *,
        path: str = "",
        hint: str | None = None,
        notes: Iterable[Note] = (),
        width: int = 1,
    ) -> None:
        """Record one problem; the same one twice (an entry shared by several operators) counts once."""
        key = (code, place.file, place.line, place.col, message)
        if key in self._seen or self.full or (place in self._spoiled and code not in _SPOILING):
            return
        if code in _SPOILING:
            self._spoiled.add(place)
        if len(self._found) == MAX_DIAGNOSTICS:
            self.full = True
            code, message, hint, notes = (
                "HCD009",
                f"more than {MAX_DIAGNOSTICS} problems; the rest is left out",
                None,
                (),
            )
        self._seen.add(key)
        lines = self._sources.get(place.file, [])
        source = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
        severity: Severity = CATALOGUE[code].severity
        self._found.append(
            Diagnostic(code, severity, *place, shorten(path, 100), message, hint, tuple(notes), source, width)
        )

    def sorted(self) -> list[Diagnostic]:
        """All problems, file by file in the order the files were read, then by position."""
        order = {file: i for i, file in enumerate(self._sources)}
        return sorted(self._found, key=lambda d: (order.get(d.file, -1), d.line, d.col, d.code))

    @property
    def has_errors(self) -> bool:
        return any(d.is_error for d in self._found)


def escape(text: str) -> str:
    """`text` with control and format characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def show(value: object, limit: int = 60) -> str:
    """A value from the file as it is quoted in a message: short, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return shorten(text, limit)


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str | None:
    """A hint that names the closest of `known` (with `prefix`), or all of them when they are few, or nothing."""
    names = sorted(set(known))
    folded = {n.lower(): n for n in names}
    close = difflib.get_close_matches(word[:100].lower(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean '{prefix}{folded[close[0]]}'?"
    return allowed(names) if 0 < len(names) <= 24 else None


def allowed(names: Iterable[str]) -> str:
    return "allowed: " + ", ".join(names)


def _excerpt(source: str, col: int, width: int) -> list[str]:
    if not source.strip():
        return []
    start = 0
    if len(source) > _SOURCE_WIDTH:
        start = max(0, min(col - 1 - _SOURCE_WIDTH // 2, len(source) - _SOURCE_WIDTH))
    shown = source[start : start + _SOURCE_WIDTH]
    before = shown[: max(0, col - 1 - start)]
    # A tab stays a tab and a wide character takes two cells, so that the caret stands under the right one.
    pad = "".join("\t" if c == "\t" else " " * _cells(c) for c in before)
    marked = shown[len(before) : len(before) + max(1, width)]
    cells = max(1, sum(_cells(c) for c in marked))
    text = "".join(c if c == "\t" or c.isprintable() else "?" for c in shown)
    return [text, pad + "^" + "~" * (cells - 1)]


def _cells(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def short_path(path: str) -> str:
    """How a file is named in diagnostics: as it was given, with redundant parts removed."""
    return os.path.normpath(path) if path else path


def markdown() -> str:
    """The text of docs/diagnostics.md."""
    out = [
        "# Diagnostics of the descriptor reader",
        "",
        "<!-- Generated: python -m torchfl.hcd.diagnostics > docs/diagnostics.md -->",
        "",
        "Every problem in a descriptor is reported in one pass, as",
        "",
        "```text",
        "file:line:col: error[HCDnnn]: path: message",
        "the line of the file",
        "    ^~~~~",
        "hint: what to write instead",
        "note: file:line:col: where an inherited or first value was written",
        "```",
        "",
        "A file with an error is refused; a warning lets it load. How a descriptor is written:"
        " [descriptor.md](descriptor.md).",
    ]
    for prefix, heading in GROUPS.items():
        out += ["", f"## {heading}"]
        for code, entry in CATALOGUE.items():
            if code.startswith(prefix):
                out += ["", f"### {code}: {entry.title}", "", f"*{entry.severity.capitalize()}.* {entry.explanation}"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
