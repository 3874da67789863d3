"""`torchfl check`: conformance of a chip, by PyTorch's own operator list and its descriptor, with proof of the path.

Contract: this process imports neither torch nor native code; what runs operators are worker processes (torchfl.check).
Exit status 0: all right; 1: an entry failed, or, with --strict, one that is no known gap ran on the CPU; 2: usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchfl.cli.console import console, fail, note, out, out_json, plural, table

if TYPE_CHECKING:
    from torchfl.check import Options, Result


def check(
    chip: Annotated[str, typer.Argument(metavar="CHIP", help="A shipped chip's name, a descriptor or its folder.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Status 1 also if an entry that is no known gap ran on the CPU.")
    ] = False,
    ops: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only entries of this name: glob or regular expression. May be repeated."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="DTYPE", help="Of the samples; may be repeated. Default: float32 and float16."),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="PyTorch's first N samples of each entry, beside hard inputs.")
    ] = 3,
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes at a time.")] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="For one entry in one dtype; more is a failure.")
    ] = 60.0,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a matrix of all entries as a page.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, for CI.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead.")] = False,
) -> None:
    """Run PyTorch's own operator list on a chip, against the CPU, and say which path each entry took.

    \b
    Each entry of op_db runs forward and backward, on PyTorch's samples and on hard inputs made of them (strided,
    offset, zero-size, 0-dim, broadcast), and is counted by the worst path it took: native, composed, custom, cpu,
    unsupported, failed. Each row of the descriptor must be seen to run. Known gaps stand in check.yaml beside the
    descriptor.

    \b
    Examples:
      torchfl check npu_v3
      torchfl check npu_v3 --strict --json
      torchfl check mychip/mychip.yaml --ops "nn.functional.*" --dtype float16
      torchfl check npu_v3 --ops softmax --ops "linalg.*" --html matrix.html
    """
    from torchfl.check import Options
    from torchfl.cli.chips import descriptor_of

    for name in dtype or []:
        if name not in _DTYPES:
            raise typer.BadParameter(f"'{name}' is none of {', '.join(_DTYPES)}", param_hint="--dtype")
    for file in (html, junit):
        if file is not None and not file.absolute().parent.is_dir():
            fail(f"error: {file.parent}: there is no such folder")
    descriptor = descriptor_of(chip)
    options = Options(samples=samples, jobs=jobs, timeout=timeout, ops=ops or [])
    options.dtypes = list(dict.fromkeys(dtype or options.dtypes))
    result = _run(descriptor, options)
    if html is not None:
        from torchfl.check.html import page

        html.write_text(page(result))
    if junit is not None:
        from torchfl.check.junit import document

        junit.write_text(document(result, strict))
    if as_json:
        out_json(result.to_dict())
    else:
        _print(result)
    if not result.passed(strict):
        raise typer.Exit(1)


#: What op_db knows.
_DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128", "complex32"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)


def _run(descriptor: Path, options: Options) -> Result:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from torchfl import check as checking
    from torchfl import hcd

    hcd.load(descriptor)  # what is wrong with it is said here, line by line
    shown = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        try:
            return checking.check(descriptor, options, progress)
        except checking.NothingMeant as error:
            raise typer.BadParameter(str(error), param_hint="--ops") from None


# ------------------------------------------------------------------------------------------------- text


_MOST = 20


def _print(result: Result) -> None:
    from rich.markup import escape

    summary = result.summary()
    size = "1 entry" if summary["entries"] == 1 else f"{summary['entries']} entries"
    out(f"{result.chip} ({result.device}), PyTorch {result.torch}: {size} of op_db, {result.seconds:.0f} s")
    counts = table("path", "entries", "share")
    for path, count in list(summary.items())[1:]:
        counts.add_row(path, str(count), f"{count / max(1, summary['entries']):.1%}")
    console().print(counts)
    for title, entries in (("failed", result.failures()), ("failed as expected", result.xfailed())):
        if entries:
            rows = table(title, "dtype", "direction", "what was wrong")
            for entry in entries:
                for i, (dtype, direction, run) in enumerate(r for r in entry.runs() if not r[2]["ok"]):
                    rows.add_row(*(escape(c) for c in (entry.name if not i else "", dtype, direction, run["error"])))
            console().print(rows)
    _print_reasons(result)
    unproven = result.unproven()
    if unproven:
        rows = table("unproven row", "dtype", "kernel", "what happened instead")
        for row in unproven[:_MOST]:
            rows.add_row(
                *(escape(c) for c in (f"{row['op']} (line {row['line']})", row["dtype"], row["kernel"], row["reason"]))
            )
        console().print(rows)
        _rest(len(unproven) - _MOST, "row")
    for entry in result.xpassed():
        note(f"{entry.name} is listed as xfail in {result.gaps}, and passes: remove it")
    for pattern in result.unused:
        note(f"{pattern} in {result.gaps} describes no entry: remove it")


def _print_reasons(result: Result) -> None:
    from rich.markup import escape

    reasons = result.reasons()
    if not reasons:
        return
    rows = table("entries", "why they left the chip", "such as")
    for row in reasons[:_MOST]:
        names = row["entries"]
        rows.add_row(
            *(
                escape(c)
                for c in (str(len(names)), row["reason"], ", ".join(names[:3]) + (", ..." if names[3:] else ""))
            )
        )
    console().print(rows)
    _rest(len(reasons) - _MOST, "reason")


def _rest(more: int, noun: str) -> None:
    if more > 0:
        out(f"{plural(more, f'more {noun}')}: see --json or --html")
