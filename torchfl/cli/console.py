"""What all commands share: how results, errors and JSON are written.

Contract: `out` writes results to stdout, `note` and `fail` to stderr. Errors that a user can cause end a command with
their own text and exit status 1, never with a traceback; every other exception is a bug and shows itself as one.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Width of tables when the output is no terminal: wide enough that nothing is cut for a program that reads it.
_FILE_WIDTH = 160


class Command(TyperCommand):
    """A command whose expected errors are one readable text on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            text = expected(error)
            if text is None:
                raise
            fail(text)


def expected(error: BaseException) -> str | None:
    """The text for an error that a user can cause; None for all others."""
    from torchfl.errors import LoadError

    hcd_error = getattr(sys.modules.get("torchfl.hcd.diagnostics"), "DescriptorError", None)
    engine_error = getattr(sys.modules.get("torchfl._C"), "LoadError", None)
    if hcd_error is not None and isinstance(error, hcd_error):
        return str(error)  # each line says already that it is an error, and where
    if getattr(error, "complete", False):
        return str(error)
    if isinstance(error, LoadError) or (engine_error is not None and isinstance(error, engine_error)):
        return f"error: {error}"
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and error.filename is not None:
        return f"error: {error.filename}: {error.strerror}"
    return None


def out(text: str = "") -> None:
    typer.echo(text)


def note(text: str) -> None:
    typer.echo(text, err=True)


def fail(text: str, code: int = 1) -> NoReturn:
    """Say what went wrong, and end the command."""
    note(text)
    raise typer.Exit(code)


def out_json(data: Any) -> None:
    out(json.dumps(data, indent=2, ensure_ascii=False))


def console() -> Console:
    from rich.console import Console

    # Looked up anew each time: a test or a caller may have put another file in stdout's place.
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False)


def table(*columns: str, **options: Any) -> Table:
    """An empty table; what is put into it is taken literally, markup is not read."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)
    for column in columns:
        made.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    return made


_NUMBERS = {"memory", "busy", "power", "temperature", "calls", "share", "time", "host bytes", "bytes", "blocks"}


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
