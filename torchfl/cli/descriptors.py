"""`torchfl validate`, `show`, `page` and `schema`: what can be done with a descriptor alone.

Contract: neither torch nor native code is imported; nothing is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchfl.cli.chips import descriptor_of
from torchfl.cli.console import note, out, out_json, plural

if TYPE_CHECKING:
    from torchfl.hcd import Descriptor, Diagnostic


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Descriptors, or folders that hold one.")],
    strict: Annotated[bool, typer.Option("--strict", help="Count a warning as a problem.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of files without a problem.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object with all problems instead.")] = False,
) -> None:
    """Check descriptors. All problems are told in one pass, each with file, line, column and what to write instead.

    \b
    Exit status: 0 all files can be used, 1 at least one cannot, 2 wrong usage.
    What each code means: docs/diagnostics.md.

    \b
    Examples:
      torchfl validate mychip/mychip.yaml
      torchfl validate chips/*/*.yaml --strict
      torchfl validate mychip.yaml --json
      flagos-hcd-validate npu_v3.hcd
    """
    from torchfl import hcd

    found: dict[str, list[Diagnostic]] = {}
    for file in files:
        path = str(descriptor_of(file)) if Path(file).is_dir() else file
        found[path] = hcd.validate(path)
    bad = {path for path, problems in found.items() if any(strict or p.is_error for p in problems)}
    if as_json:
        listed = [problem.to_json() for problems in found.values() for problem in problems]
        out_json({"ok": not bad, "files": [{"file": f, "ok": f not in bad} for f in found], "problems": listed})
    else:
        for path, problems in found.items():
            for problem in problems:
                out(problem.render())
            if not problems and not quiet:
                out(f"{path}: ok")
        _summary([p for problems in found.values() for p in problems])
    if bad:
        raise typer.Exit(1)


def _summary(problems: list[Diagnostic]) -> None:
    errors = sum(p.is_error for p in problems)
    if problems:
        note(f"{plural(errors, 'error')}, {plural(len(problems) - errors, 'warning')}")


def show(
    chip: Annotated[str, typer.Argument(metavar="CHIP", help="A descriptor, a folder, or a shipped chip's name.")],
    origins: Annotated[bool, typer.Option("--origins", help="Say behind each value where it was written.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print base units (bytes, operations/s, ...) and origins instead.")
    ] = False,
) -> None:
    """Print a descriptor as it is after inheritance, variables, units and defaults.

    \b
    The output is YAML, and a descriptor again: it has no parent any more, and no legacy form.

    \b
    Examples:
      torchfl show npu_v3
      torchfl show mychip/mychip.yaml --origins
      torchfl show npu_v3 --json
    """
    from torchfl import hcd
    from torchfl.cli import show as text

    descriptor = hcd.load(descriptor_of(chip))
    for warning in descriptor.warnings:
        note(warning.render())
    if as_json:
        out_json(_as_json(descriptor))
    else:
        out("\n".join(text.lines(descriptor, origins=origins)))


def _as_json(descriptor: Descriptor) -> dict[str, Any]:
    from torchfl.hcd import units

    return {
        "file": descriptor.path,
        "descriptor": {
            **descriptor.model.model_dump(by_alias=True, exclude_none=True, exclude={"extends"}),
            **descriptor.extensions,
        },
        "units": units.BASE,
        "origins": {
            at: {"file": descriptor.resolve_file(place.file), "line": place.line, "col": place.col}
            for at, place in descriptor.origins.items()
        },
        "warnings": [warning.to_json() for warning in descriptor.warnings],
    }


def page(
    chip: Annotated[str, typer.Argument(metavar="CHIP", help="A descriptor, a folder, or a shipped chip's name.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")] = None,
) -> None:
    """Print a chip's page for its documentation, made from its descriptor: Markdown.

    \b
    Units, memory, limits, operators and kernels with their conditions, instructions, fusions, and where it is
    known from. Those of the shipped chips are in docs/chips.

    \b
    Examples:
      torchfl page npu_v3
      torchfl page mychip --output mychip/CHIP.md
    """
    from torchfl import hcd
    from torchfl.pages import chip as pages

    descriptor = hcd.load(descriptor_of(chip))
    for warning in descriptor.warnings:
        note(warning.render())
    text = pages.render(descriptor)
    if output is None:
        out(text.rstrip("\n"))
    else:
        output.write_text(text, encoding="utf-8")
        note(f"{output}: written")


def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")] = None,
) -> None:
    """Print the JSON Schema of descriptors, for editors: completion, hover text, red lines while you type.

    \b
    Examples:
      torchfl schema --output hcd.schema.json
      torchfl schema | head -5

    \b
    In VS Code with the YAML extension, begin the descriptor with
      # yaml-language-server: $schema=hcd.schema.json
    """
    import json

    from torchfl import hcd

    text = json.dumps(hcd.json_schema(), indent=2, ensure_ascii=False)
    if output is None:
        out(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")
        note(f"{output}: written")
