"""`torchfl explain`: which path an operator call takes on a device, and why each better one is not taken; or, for a
script, which paths a whole run took.

Contract: for an operator nothing is computed, and no tensor is made but small index tensors; the answer is the engine's
own decision, the one that the call itself would get. For a script see torchfl/cli/routes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from torchfl.cli.console import Command, console, note, out, out_json, table


class ExplainCommand(Command):
    """Ends the options at a script's name: what follows is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, _ended(args))


def _ended(args: list[str]) -> list[str]:
    i = 0
    while i < len(args) and args[i] != "--":
        arg = args[i]
        if not arg.startswith("-"):
            return [*args[:i], "--", *args[i:]] if _is_script(arg, args[:i]) else args
        flag = arg in ("--json", "--help", "-h") or "=" in arg or (not arg.startswith("--") and len(arg) > 2)
        i += 1 if flag else 2
    return args


def _is_script(name: str, options: list[str]) -> bool:
    """A file; where a device is named, only what looks like a script: a file may be called like an operator."""
    return name.endswith(".py") or (Path(name).is_file() and not {"--device", "-d"} & set(options))


def explain(
    op: Annotated[
        str, typer.Argument(metavar="OP|SCRIPT", help="An operator (aten::conv2d, add, aten::add.Tensor), or a script.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.", show_default=False)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", "-d", metavar="DEVICE", help="npu_v3, npu_v3:1, or a descriptor or folder."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="DTYPE", help="Of the tensors; repeated, one for each in turn. Default float32."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="N,N", help="Of a tensor; repeated, one for each in turn. Without: small ones."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any argument by name: stride=2, dim=[0,1], index=int64[8]."),
    ] = None,
    chip: Annotated[
        list[str] | None,
        typer.Option("--chip", "-c", metavar="CHIP", help="For a script: load this chip. May be repeated."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a script: write its routes as a page, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead.")] = False,
) -> None:
    """Say which path a call takes on a device, and why each better one is not taken; or which a script's calls took.

    \b
    An operator: nothing is computed. Tensors that are not given are made to fit the first one, and shown. An operator
    that PyTorch takes apart is explained by its parts. Exit status 1 if the call would be refused.

    \b
    A script: it runs unmodified, as under `torchfl run`, with each operator timed; its routes are printed afterwards,
    by time. The exit status is the script's. --json gives one object on stdout (the script's own output goes to
    stderr): script, arguments, status, ended, chips, wall_seconds; calls, seconds, host_bytes of all operators;
    `paths`, each with path, calls, calls_share, seconds, seconds_share, host_bytes; and `rows`, each with op, device,
    path, target, reason and the same figures.

    \b
    Examples:
      torchfl explain aten::add --device npu_v3 --dtype float32 --shape 4,4
      torchfl explain conv2d --device npu_v3 --shape 1,3,32,32 --shape 8,3,3,3 --arg stride=3
      torchfl explain aten::linear --device npu_v3 --dtype complex64 --shape 8,16
      torchfl explain softmax --device npu_v3 --dtype float16 --arg dim=1 --json
      torchfl explain --chip npu_v3 --html routes.html train.py --epochs 1
    """
    given = {"--device": device, "--dtype": dtype, "--shape": shape, "--arg": arg}
    if _is_script(op, [name for name, value in given.items() if value]):
        for name, value in given.items():
            if value:
                raise typer.BadParameter("is for an operator; a script's own options follow its name", param_hint=name)
        from torchfl.cli.routes import explain_script

        _tell_of_options_behind(op, arguments or [])
        explain_script([op, *(arguments or [])], chip or [], html, as_json)
        return
    for name, of_script in {"ARGS": arguments, "--chip": chip, "--html": html}.items():
        if of_script:
            raise typer.BadParameter(f"is for a script, and {op} is no file", param_hint=name)
    if device is None:
        raise typer.BadParameter("name the device to ask about", param_hint="--device")
    _explain_operator(op, device, dtype, shape, arg, as_json)


#: The options that explain takes with a script.
_OF_SCRIPTS = frozenset({"--chip", "-c", "--html", "--json"})


def _tell_of_options_behind(script: str, arguments: list[str]) -> None:
    behind = [name for name in dict.fromkeys(a.partition("=")[0] for a in arguments) if name in _OF_SCRIPTS]
    if behind:
        note(
            f"note: {', '.join(behind)} behind {script} went to the script; an option of `torchfl explain` stands "
            "before the script's name"
        )


def _explain_operator(
    op: str, device: str, dtype: list[str] | None, shape: list[str] | None, arg: list[str] | None, as_json: bool
) -> None:
    from torchfl.cli import arguments

    label = _load(device)
    dtypes = [arguments.parse_dtype(text) for text in dtype or ["float32"]]
    shapes = [arguments.parse_shape(text) for text in shape or []]
    name = op if "::" in op else f"aten::{op}"
    answers, call = _answers(arguments.calls(name, shapes, dtypes, arguments.parse_args(arg or [])), label)
    refused = any(answer["path"] == "error" for answer in answers)
    if as_json:
        first = {key: answers[0][key] for key in ("path", "target", "reason")} if len(answers) == 1 else {}
        out_json({"op": name, "device": label, "call": call.text, **first, "operators": answers})
    else:
        _print(label, call, answers)
    if refused:
        raise typer.Exit(1)


def _load(device: str) -> str:
    """Load the chip of a device; returns the device's label. "npu_v3:1" is an index of a chip, a path is its first."""
    import torchfl
    from torchfl.cli.chips import descriptor_of
    from torchfl.errors import LoadError

    name, _, index = device.rpartition(":")
    if not (name and index.isdigit()):
        name, index = device, "0"
    descriptor = descriptor_of(name)
    chip = torchfl.load(descriptor)
    if int(index) >= chip.count:
        raise LoadError(f"{device}: {chip.name} has {chip.count} device(s): {', '.join(chip.labels) or 'none'}")
    return chip.labels[int(index)]


def _answers(calls: list[Any], label: str) -> tuple[list[dict[str, Any]], Any]:
    """The engine's answers for the first of `calls` that is accepted."""
    from torchfl.cli import arguments

    refusals = []
    for call in calls:
        itself = (call.function, tuple(call.args), call.kwargs)
        try:
            seen = _reached(*itself) or [itself]
            answers = [answer for operator in seen for answer in _ask(operator, label, 0)]
            return answers or _ask(itself, label, _DEEPEST), call
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            refusals.append(f"  {call.text}: {error}")
    raise arguments.ArgumentsError("these arguments are refused:\n" + "\n".join(refusals))


#: How often a part may be made of parts.
_DEEPEST = 4


def _reached(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool = False) -> list[Any]:
    from torchfl.cli import arguments

    try:
        return arguments.reached(function, args, kwargs, inside=inside)
    except NotImplementedError:
        return [(function, args, kwargs)]  # no rule for its result's shape, which the engine may not need


def _ask(operator: Any, label: str, depth: int) -> list[dict[str, Any]]:
    """The engine's answer for an operator, or, where PyTorch makes it of others on this device, for those."""
    from torchfl._explain import explain as ask
    from torchfl.cli import arguments

    function, args, kwargs = operator
    kinds = [str(argument.type) for argument in function._schema.arguments]
    placed = tuple(_place(value, kind, label) for value, kind in zip(args, kinds, strict=False))
    named = {name: _place(value, "", label) for name, value in kwargs.items()}
    overload = "" if function._overloadname == "default" else f".{function._overloadname}"
    answer = ask(f"{function._schema.name}{overload}", placed, named, label)
    same = answer["op"].partition(".")[0] == function._schema.name.rstrip("_")
    if answer["path"] == "composite" and same and depth < _DEEPEST and arguments.composite_key(function) is not None:
        inner = _reached(function, args, kwargs, inside=True)
        return [part for entry in inner for part in _ask(entry, label, depth + 1)]
    return [answer]


_OPTIONALS = "List[Optional[Tensor]]"


def _place(value: Any, kind: str, label: str) -> Any:
    """An argument as the backend would see it: a number where the schema says Tensor as the tensor that PyTorch makes
    of it, `device` as the device asked about. A meta tensor stands for one on the device; in a list of optional tensors
    (the indices of `aten::index`), which the engine takes as it is, it is made there."""
    import torch

    if isinstance(value, torch.Tensor) and kind == _OPTIONALS:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=label)
    if isinstance(value, torch.device):
        return torch.device(label)
    if isinstance(value, list | tuple):
        return [_place(item, kind if kind == _OPTIONALS else "", label) for item in value]
    return torch.tensor(value) if kind == "Tensor" and isinstance(value, int | float) else value


def _print(label: str, call: Any, answers: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    out(f"{call.text} on {label}")
    for i, answer in enumerate(answers):
        if answer in answers[:i]:
            continue
        if answer["path"] == "composite":
            out(f"\n{answer['op']} has no path of its own: it is a view, or PyTorch makes it of other operators")
            continue
        times = answers.count(answer)
        target = f": {answer['target']}" if answer["target"] not in ("", answer["path"]) else ""
        out(f"\n{answer['op']} takes the {answer['path']} path{target}{f' ({times} times)' if times > 1 else ''}")
        if answer["transforms"]:
            out(f"before: {'; '.join(answer['transforms'])}")
        rows = table("", "path", "kernel", "why")
        for attempt in answer["attempts"]:
            place = f" (line {attempt['line']})" if attempt["line"] and not attempt["taken"] else ""
            texts = (attempt["reason"], attempt["why"], attempt["cost"])
            why = "; ".join(dict.fromkeys(text for text in texts if text)) + place
            cells = ["taken" if attempt["taken"] else "no", attempt["path"], attempt["target"], why]
            rows.add_row(*(escape(cell) for cell in cells))
        if len(answer["attempts"]) > 1:
            console().print(rows)


explain.command_options = {"cls": ExplainCommand}  # type: ignore[attr-defined]
