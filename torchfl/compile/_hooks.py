"""Telling PyTorch's compiler of our devices, when it is imported.

Contract: `install` imports nothing of PyTorch's compiler, which costs seconds. A finder at the head of sys.meta_path
waits for the three modules concerned; each is prepared right after it has run. What is changed in a module of PyTorch's
is one function of Inductor's, and `remove` puts it back.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def install() -> None:
    for name, prepare in _PREPARE.items():
        module = sys.modules.get(name)
        if module is not None and hasattr(module, _DONE[name]):
            prepare(module)
        elif not any(isinstance(finder, _After) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, _After(name, prepare))


def remove() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _After)]
    module: Any = sys.modules.get("torch._inductor.compile_fx")
    if module is not None and hasattr(module.compile_fx, "_torchfl_before"):
        module.compile_fx = module.compile_fx._torchfl_before


class _After(importlib.abc.MetaPathFinder):
    """Calls `prepare` after one module was executed, and then has done its work."""

    def __init__(self, name: str, prepare: Callable[[ModuleType], None]) -> None:
        self.name, self.prepare = name, prepare

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.prepare(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _register_backend(registry: Any) -> None:
    from torchfl.compile import backend

    if "torchfl" not in registry._COMPILER_FNS:
        registry._BACKENDS.pop("torchfl", None)  # as an entry point that was not loaded yet
        registry.register_backend(compiler_fn=backend, name="torchfl")


def _register_device(device_interface: Any) -> None:
    import torch

    from torchfl.compile._interface import make

    name = torch._C._get_privateuse1_backend_name()
    interface = make(device_interface.DeviceInterface, torch, name)
    device_interface.register_interface_for_device(name, interface)
    for index in range(interface.device_count()):
        device_interface.register_interface_for_device(f"{name}:{index}", interface)


def _redirect_inductor(compile_fx: Any) -> None:
    """Inductor writes kernels for CPUs and for GPUs that Triton knows. A graph with a tensor of our devices goes to
    `backend`, whatever Inductor was asked for; every other graph stays with Inductor."""
    before = compile_fx.compile_fx
    if hasattr(before, "_torchfl_before"):
        return

    @functools.wraps(before)
    def redirected(model_: Any, example_inputs_: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(model_, example_inputs_):
            return before(model_, example_inputs_, *args, **kwargs)
        from torchfl.compile import backend

        return backend(model_, example_inputs_)

    redirected._torchfl_before = before  # type: ignore[attr-defined]
    compile_fx.compile_fx = redirected


def _is_ours(graph: Any, example_inputs: Sequence[Any]) -> bool:
    import torch

    name = torch._C._get_privateuse1_backend_name()

    def ours(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(ours(item) for item in value)
        return (isinstance(value, torch.Tensor) and value.device.type == name) or (
            isinstance(value, torch.device) and value.type == name
        )

    if ours(list(example_inputs)):
        return True
    nodes = graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else []
    for node in nodes:
        if ours(node.meta.get("example_value")) or ours(node.meta.get("val")) or ours(list(node.kwargs.values())):
            return True
        if any(isinstance(arg, str) and torch.device(arg).type == name for arg in node.args if _is_device(arg, name)):
            return True
    return False


def _is_device(arg: Any, name: str) -> bool:
    return isinstance(arg, str) and arg.partition(":")[0] == name


_PREPARE: dict[str, Callable[[Any], None]] = {
    "torch._dynamo.backends.registry": _register_backend,
    "torch._dynamo.device_interface": _register_device,
    "torch._inductor.compile_fx": _redirect_inductor,
}
#: A module that is still being imported does not have this yet.
_DONE = {
    "torch._dynamo.backends.registry": "list_backends",
    "torch._dynamo.device_interface": "init_device_reg",
    "torch._inductor.compile_fx": "compile_fx",
}
