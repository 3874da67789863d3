"""Custom fallbacks: functions that stand for an operator which the chip itself has no kernel for.

Contract: the engine decides when one runs (docs/routing.md) and calls `_call` under the GIL, with the arguments of the
operator's functional form. A function gets them as a kernel of torch.library does: arguments that end the list at their
default are left out, keyword-only ones go by name. It returns what the operator returns, on the device or on the CPU,
or NotImplemented to have the next path. Modules are imported at the first call that needs them; one that lies beside
the chip's descriptor goes before all others of its name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchfl.errors import LoadError
from torchfl.hcd import opnames

#: The name in `fallback.ops` that stands for the bridge.
BRIDGE = "onnxruntime"

_registered: dict[tuple[str, int], Callable[..., Any]] = {}  # (operator, device index or -1) -> function
_found: dict[tuple[str, str], Callable[..., Any]] = {}  # (folder, "package.module:function") -> function


def install(engine: ModuleType) -> None:
    """Have `engine` call functions."""
    engine.set_call_custom(_call)


def register(engine: ModuleType, op: str, function: Callable[..., Any] | None, indices: Sequence[int]) -> None:
    """`function` for the operator that `op` means to a backend, on the devices `indices`; None takes it back."""
    if function is not None and not callable(function):
        raise TypeError(f"register_fallback: {op} needs a function, got {type(function).__name__}")
    name = op if "::" in op else f"aten::{op}"
    targets = opnames.resolve_exactly(name)
    if len(targets) > 1:
        raise ValueError(
            f"{name} never reaches a chip: PyTorch makes other operators of it, which take other arguments. Register a "
            f"function for one of them: {', '.join(targets)}"
        )
    for target in targets:
        for index in indices:
            label = f"{function.__module__}:{_name_of(function)}" if function is not None else ""
            engine.register_custom(target, index, label)
            if function is None:
                _registered.pop((target, index), None)
            else:
                _registered[target, index] = function


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _call(route: str, name: str, overload: str, args: list[Any], index: int) -> Any:
    op = getattr(getattr(torch.ops.aten, name.partition("::")[2]), overload or "default")
    function = _function(route, name, overload, index)
    if function is None:
        from torchfl import _onnx_bridge

        return _onnx_bridge.run(op, args)
    positional, keywords = split(op, args)
    return function(*positional, **keywords)


def split(op: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments in schema order, as a call of `op` writes them."""
    declared = [a for a in op._schema.arguments if not a.is_out]
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument, value in zip(declared, args, strict=True):
        if not argument.kwarg_only:
            positional.append(value)
        elif not _at_default(argument, value):
            keywords[argument.name] = value
    while positional and _at_default(declared[len(positional) - 1], positional[-1]):
        positional.pop()
    return positional, keywords


def _at_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, torch.Tensor):
        return False
    default = argument.default_value
    return bool(type(value) is type(default) and value == default)


def _function(route: str, name: str, overload: str, index: int) -> Callable[..., Any] | None:
    """None: the bridge."""
    for op in (f"{name}.{overload or 'default'}", name):
        for key in ((op, index), (op, -1)):
            if key in _registered:
                return _registered[key]
    if route == BRIDGE:
        return None
    folder = _folder_of(index)
    if (folder, route) not in _found:
        _found[folder, route] = _import(route, name, Path(folder))
    return _found[folder, route]


def _folder_of(index: int) -> str:
    """Where the descriptor of a device's chip lies."""
    from torchfl._engine import chips

    mine = (chip for chip in chips() if chip.first_index <= index < chip.first_index + chip.count)
    return str(Path(next(mine).descriptor).parent)


def _module_at(path: Path) -> ModuleType:
    """A file as a module of its own, whatever else is called so."""
    spec = importlib.util.spec_from_file_location(f"torchfl_beside_descriptor_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import(route: str, name: str, folder: Path) -> Callable[..., Any]:
    module_name, _, attributes = route.partition(":")
    who = f"fallback.ops names '{route}' for {name}"
    beside = folder / f"{module_name}.py"
    try:
        value: Any = _module_at(beside) if beside.is_file() else importlib.import_module(module_name)
    except ImportError as error:
        raise LoadError(
            f"{who}, but module '{module_name}' cannot be imported ({error}): correct the name, install it, put its "
            "folder on PYTHONPATH, or the file beside the descriptor"
        ) from error
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            raise LoadError(f"{who}, but '{module_name}' has no '{attributes}': it is written package.module:function")
        value = getattr(value, attribute)
    if not callable(value):
        raise LoadError(f"{who}, but that is a {type(value).__name__} and cannot be called")
    function: Callable[..., Any] = value
    return function
