"""Telling PyTorch's compiler of our devices, when it is imported.

Contract: `install` imports nothing of PyTorch's compiler, which costs seconds: the three modules concerned are prepared
right after they have run. What is changed in a module of PyTorch's is one function of Inductor's, and `remove` puts it
back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torchfl._when_imported import forget, when_imported


def install() -> None:
    for name, (prepare, last_name) in _PREPARE.items():
        when_imported(name, prepare, last_name)


def remove() -> None:
    forget(*_PREPARE)
    module: Any = sys.modules.get("torch._inductor.compile_fx")
    if module is not None and hasattr(module.compile_fx, "_torchfl_before"):
        module.compile_fx = module.compile_fx._torchfl_before


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


#: Module -> what to do with it, and a name that it has only once it has run.
_PREPARE: dict[str, tuple[Callable[[Any], None], str]] = {
    "torch._dynamo.backends.registry": (_register_backend, "list_backends"),
    "torch._dynamo.device_interface": (_register_device, "init_device_reg"),
    "torch._inductor.compile_fx": (_redirect_inductor, "compile_fx"),
}
