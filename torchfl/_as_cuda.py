"""CUDA's names for our devices: what `torchfl run --as-cuda` and `torchfl.as_cuda()` switch on.

Contract: "cuda" and "cuda:<i>" are read as the device type of this process wherever PyTorch reads a device, and the
type is printed as "cuda", both in the import tables that csrc/aten/device_names.cpp points; no factory and no operator
is patched, so TorchScript compiles what it did. `torch.cuda` is the device module of the first chip under that name
(_cuda_module.py). What no name reaches is set on the Python classes: `Tensor.cuda()`, `Tensor.is_cuda`,
`ProfilerActivity.CUDA`, the state of a profile, the copies of `DataParallel`. `torch.backends.cuda.is_built()` stays
false, since PyTorch's own code takes functions from a CUDA build by it. All of it is taken back on exit.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from torchfl import _children, _device_name, _profiled_name, _registry
from torchfl._patches import Patches
from torchfl.errors import LoadError

_patches = Patches()
_open: list[AsCuda] = []  # those that have not ended


class AsCuda:
    """What `as_cuda()` returns: in a `with` statement CUDA's names end with the block."""

    def __enter__(self) -> AsCuda:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take CUDA's names back. Twice is once."""
        if self in _open:
            _open.remove(self)
            if not _open:
                _patches.undo()


def as_cuda(*, force: bool = False) -> AsCuda:
    """From here on "cuda" means our devices: in device strings, `.cuda()`, `torch.cuda`, autocast, GradScaler,
    `map_location`, and in what PyTorch prints. If no chip is loaded, loads those of TORCHFL_CHIPS, else the shipped
    chip that declares the most operators. Call it before the code that is written for CUDA is imported, or use
    `with torchfl.as_cuda():`.

    The devices are those of the first chip. Child processes do the same. See docs/cuda_scripts.md.

    Raises LoadError if there is no device, or if this PyTorch has CUDA devices of its own and `force` is not given.
    """
    import torch

    from torchfl import _engine

    if not _open:
        if not force and torch.cuda.is_available():
            raise LoadError(
                "this PyTorch has CUDA devices of its own, and 'cuda' means them; "
                "torchfl.as_cuda(force=True), or `torchfl run --as-cuda --force`, hides them behind Torch-FL's"
            )
        if not _engine.chips():
            _load_one(_engine)
        try:
            _engage(torch, _engine)
        except BaseException:
            _patches.undo()
            raise
    _open.append(AsCuda())
    return _open[-1]


def _load_one(engine: Any) -> None:
    """The chips that someone has named; else, since a script for CUDA takes its devices to be alike and able, the one
    shipped chip that declares the most operators and instructions."""
    sources = _registry.chips()
    if any(source.named for source in sources):
        engine.init()
        return
    from torchfl.hcd import kept

    able = {source.chip: kept.lowered(source.path, lambda warning: None) for source in sources}
    reasons = ""
    for chip in sorted(able, key=lambda chip: -len(able[chip]["ops"]) - len(able[chip]["instructions"])):
        try:
            engine.load(chip)
            return
        except (LoadError, engine.engine().LoadError) as error:
            reasons += f"\n  {chip}: {error}"
    raise LoadError(f"as_cuda: no chip can be used here; `torchfl doctor` says more{reasons}")


def _engage(torch: Any, engine: Any) -> None:
    from torchfl import _cuda_copies, _device_module, _stock_faults
    from torchfl._cuda_module import CudaModule

    c = engine.engine()
    chip = engine.chips()[0]
    _device_module.make_known(c, "cuda", 0, chip.count)
    _patches.on_undo(lambda: c.remove_device_name("cuda"))
    reason = c.show_device_name("cuda")
    _patches.on_undo(lambda: _device_name.show_again(c))
    if reason:
        raise LoadError(f"CUDA's names cannot be translated: {reason}")

    stock = torch.cuda
    module = CudaModule(c, chip, engine.lowered_of(chip), stock)
    _device_module.attach(_patches, "cuda", module)
    _patches.item(_device_module._modules, "cuda", module)

    _patches.attribute(torch.Tensor, "cuda", _tensor_cuda)
    _patches.attribute(torch.Tensor, "is_cuda", property(_is_cuda))
    for function in _cuda_copies.ALL:
        _patches.attribute(torch._C, function.__name__, function)
    _profiled_name.install(_patches, "cuda")
    # By the type's name a PyTorch without the fault would say that the memory is CUDA's.
    _patches.attribute(torch.Tensor, "__dlpack_device__", _stock_faults.dlpack_device(torch.Tensor.__dlpack_device__))
    _send_as_ours(c)
    _patches.item(os.environ, _children.AS_CUDA, "1")


def end() -> None:
    """Take CUDA's names back, whoever has switched them on."""
    _open.clear()
    _patches.undo()


def _tensor_cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """cuda(device=None, non_blocking=False, memory_format=torch.preserve_format) -> Tensor"""
    import torch

    # Without an index it is the current device, as in `to`; torch.compile follows this function.
    target = torch.device("cuda") if device is None else torch.device(device)
    if target.type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    options = {} if memory_format is None else {"memory_format": memory_format}
    return self.to(target, non_blocking=non_blocking, **options)


def _send_as_ours(engine: Any) -> None:
    """By the type's name torch.multiprocessing would share a tensor's memory as CUDA does."""
    import functools
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401  (registers how tensors and storages are sent)

    def under_true_names(reducer: Any) -> Any:
        @functools.wraps(reducer)
        def reduce(value: Any) -> Any:
            engine.true_device_names(True)
            try:
                return reducer(value)
            finally:
                engine.true_device_names(False)

        return reduce

    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reducer in list(reducers.items()):
        if kind.__module__.partition(".")[0] == "torch":
            _patches.item(reducers, kind, under_true_names(reducer))


def _is_cuda(self: Any) -> bool:
    """Is True if the Tensor is stored on the device that "cuda" means, False otherwise."""
    return bool(self.device.type == "cuda")
