"""`torchfl new`: a chip's folder that builds and passes its own smoke test before a line is changed.

Contract: writes into one new folder only; an existing one is left alone unless --force is given, and then only the
files of the template are replaced. The templates are in torchfl/templates, one folder a style.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from torchfl.cli.build import Style
from torchfl.cli.console import fail, out

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_TEMPLATES = Path(__file__).parent.parent / "templates"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The chip's device type: small letters, digits, _.")],
    folder: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="The folder; by default NAME.")] = None,
    style: Annotated[
        Style,
        typer.Option(
            help="c: plain C on uba.h, without PyTorch. aten: C++ handlers on PyTorch's tensors. pybind: C++ functions "
            "on PyTorch's tensors, in a Python module."
        ),
    ] = Style.c,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
) -> None:
    """Begin with a chip of your own: descriptor, adapter, README and a smoke test.

    \b
    The adapter keeps its memory on the host, so it runs without any SDK; comments say where your SDK's calls go.
    What to do then: docs/adapter.md.

    \b
    Examples:
      torchfl new mychip
      torchfl build mychip
      torchfl run --chip mychip mychip/tests/smoke.py
      torchfl new mychip --style aten --dir chips/mychip
      torchfl new mychip --style pybind
    """
    from torchfl.hcd import fields

    if not _NAME.fullmatch(name):
        raise typer.BadParameter(
            f"'{name}' is no device type: small letters, digits and underscores, a letter first", param_hint="NAME"
        )
    try:
        fields._free_device_type(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    target = folder or Path(name)
    if target.exists() and not target.is_dir():
        fail(f"error: {target} is there already, and is no folder")
    if target.exists() and any(target.iterdir()) and not force:
        fail(f"error: {target} is there already; choose another --dir, or --force to write into it")
    for template in sorted((_TEMPLATES / style.value).rglob("*.j2")):
        relative = template.relative_to(_TEMPLATES / style.value).with_suffix("")
        file = target / str(relative).replace("NAME", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_render(template, name), encoding="utf-8")
        out(str(file))
    out(f"\nnext:\n  torchfl build {target}\n  torchfl run --chip {target} {target / 'tests' / 'smoke.py'}")


def _render(template: Path, name: str) -> str:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    text = template.read_text(encoding="utf-8")
    return environment.from_string(text).render(name=name, title=name.replace("_", " ").strip().upper() or name)
