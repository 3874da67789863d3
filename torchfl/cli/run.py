"""`torchfl run`: an unmodified PyTorch script, on chips that are loaded before it starts.

Contract: the script sees what `python script.py args` would show it: `__name__`, `sys.argv`, `sys.path[0]`, its exit
status, its traceback (without this file's frames). Whatever stands behind the script's name is the script's.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from torchfl.cli.chips import load_all
from torchfl.cli.console import Command, fail


class RunCommand(Command):
    """Ends the options where Python would: at the script's name, or behind `-m module`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, _ended(args))


def load_chips(chips: list[str]) -> list[Any]:
    """The chips for a script; ends the command, with the reasons, if there is none."""
    loaded, refused = load_all(chips)
    if not loaded:
        reasons = "".join(f"\n  {name}: {why}" for name, why in refused.items())
        fail(f"error: no chip can be used here; `torchfl doctor` says more{reasons}")
    return loaded


def _ended(args: list[str]) -> list[str]:
    i = 0
    while i < len(args):
        arg = args[i]
        if arg in ("-m", "--module"):
            return [*args[: i + 2], "--", *args[i + 2 :]]
        if arg == "--":
            return args
        if not arg.startswith("-") or arg == "-":
            return [*args[:i], "--", *args[i:]]
        i += 2 if arg in ("-c", "--chip") else 1
    return args


def run(
    script: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its own arguments.")
    ] = None,
    chip: Annotated[
        list[str] | None,
        typer.Option(
            "--chip", "-c", metavar="CHIP", help="Load this chip: name, descriptor or folder. May be repeated."
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option("--module", "-m", metavar="MODULE", help="Run a module instead, as python -m does.")
    ] = None,
    as_cuda: Annotated[
        bool, typer.Option("--as-cuda", help="For a script written for CUDA: 'cuda' means the first chip's devices.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --as-cuda, also where PyTorch has CUDA devices of its own.")
    ] = False,
) -> None:
    """Run a PyTorch script with the chips loaded; the script needs no change but the name of its device.

    \b
    Without --chip: the chips in TORCHFL_CHIPS, else every shipped one that can be loaded; with --as-cuda, else the
    one that declares the most operators.
    TORCH_FL_DEBUG=1 prints which kernel serves each operator. The exit status is the script's.

    \b
    Examples:
      torchfl run train.py --device npu_v3:0
      torchfl run --chip mychip/mychip.yaml mychip/tests/smoke.py
      torchfl run --chip npu_v2 --chip npu_v3 compare.py
      torchfl run --chip npu_v3 -m timeit "import torch; torch.ones(4, device='npu_v3')"
      torchfl run --as-cuda --chip npu_v3 train_on_cuda.py
    """
    args = script or []
    if module is None and not args:
        raise typer.BadParameter("name a script, or a module with -m", param_hint="SCRIPT")
    if module is None and not Path(args[0]).exists():
        fail(f"error: {args[0]}: there is no such file", 2)
    if chip or not as_cuda:
        load_chips(chip or [])
    if as_cuda:
        import torchfl

        torchfl.as_cuda(force=force)
    status = execute(module, args)
    if status:
        raise typer.Exit(status)


def execute(module: str | None, args: list[str]) -> int:
    """Runs it. Returns the status for what ended in an exception; SystemExit goes through to the interpreter."""
    before = sys.argv
    try:
        if module is not None:
            sys.argv = [module, *args]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = args
            sys.path.insert(0, str(Path(args[0]).resolve().parent))
            runpy.run_path(args[0], run_name="__main__")
    except KeyboardInterrupt as error:
        _show(error)
        return 130
    except Exception as error:
        if module is not None and isinstance(error, ImportError) and _within(error.__traceback__) is None:
            fail(f"error: {error}")  # the module itself was not found
        _show(error)
        return 1
    finally:
        sys.argv = before
    return 0


def _show(error: BaseException) -> None:
    """As the interpreter would, through the script's own hook if it has set one."""
    trace = _within(error.__traceback__)
    if sys.excepthook is not sys.__excepthook__ and not sys.excepthook.__module__.startswith("typer"):
        sys.excepthook(type(error), error, trace)
    else:
        traceback.print_exception(type(error), error, trace)


def _within(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that lies in the script."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        trace = trace.tb_next
    return trace


run.command_options = {"cls": RunCommand}  # type: ignore[attr-defined]
