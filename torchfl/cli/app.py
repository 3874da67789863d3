"""The `torchfl` application: which commands there are, and in which order they are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from torchfl.cli import build, check, descriptors, devices, doctor, explain, memory, new, run, sdkenv
from torchfl.cli.console import Command, out

app = typer.Typer(
    name="torchfl",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from torchfl import __version__

        out(f"torchfl {__version__}")
        raise typer.Exit()


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Any AI chip runs stock PyTorch from one YAML file and a tiny adapter.

    \b
    Start here:
      torchfl doctor                      is everything in place?
      torchfl devices                     which devices are there?
      torchfl run train.py                run a script on them
      torchfl new mychip                  begin with a chip of your own
    """


#: (function, panel of the help page). A command's name is its function's, its help the docstring.
_COMMANDS: list[tuple[Callable[..., Any], str]] = [
    (descriptors.validate, "Descriptors"),
    (descriptors.show, "Descriptors"),
    (descriptors.page, "Descriptors"),
    (descriptors.schema, "Descriptors"),
    (new.new, "Chips"),
    (build.build, "Chips"),
    (sdkenv.sdk_env, "Chips"),
    (devices.devices, "Running"),
    (run.run, "Running"),
    (explain.explain, "Running"),
    (memory.memory, "Running"),
    (check.check, "Chips"),
    (doctor.doctor, "Running"),
]


def _add(to: typer.Typer, function: Callable[..., Any], panel: str | None) -> None:
    options = getattr(function, "command_options", {})
    to.command(cls=options.get("cls", Command), rich_help_panel=panel, context_settings=options.get("context"))(
        function
    )


for _function, _panel in _COMMANDS:
    _add(app, _function, _panel)


def single(function: Callable[..., Any]) -> typer.Typer:
    """An application that is one of the commands alone."""
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )
    _add(alone, function, None)
    return alone
