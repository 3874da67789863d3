"""`torchfl explain`: which path an operator call takes on a device, and why each better one is not taken.

Contract: nothing is computed, and no tensor is made but small index tensors. The answer is the engine's own decision,
the one that the call itself would get.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchfl.cli.console import console, out, out_json, table


def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="The operator: aten::conv2d, add, aten::add.Tensor.")],
    device: Annotated[
        str, typer.Option("--device", "-d", metavar="DEVICE", help="npu_v3, npu_v3:1, or a descriptor or folder.")
    ],
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead.")] = False,
) -> None:
    """Say which path a call takes on a device, and why each better one is not taken. Computes nothing.

    \b
    Tensors that are not given are made to fit the first one, and shown. An operator that PyTorch takes apart is
    explained by its parts. Exit status 1 if the call would be refused.

    \b
    Examples:
      torchfl explain aten::add --device npu_v3 --dtype float32 --shape 4,4
      torchfl explain conv2d --device npu_v3 --shape 1,3,32,32 --shape 8,3,3,3 --arg stride=3
      torchfl explain aten::linear --device npu_v3 --dtype complex64 --shape 8,16
      torchfl explain softmax --device npu_v3 --dtype float16 --arg dim=1 --json
    """
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
            why = "; ".join(dict.fromkeys(text for text in (attempt["reason"], attempt["why"]) if text)) + place
            cells = ["taken" if attempt["taken"] else "no", attempt["path"], attempt["target"], why]
            rows.add_row(*(escape(cell) for cell in cells))
        if len(answer["attempts"]) > 1:
            console().print(rows)
