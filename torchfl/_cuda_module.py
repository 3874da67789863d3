"""`torch.cuda` for scripts written for CUDA: a device module under that name.

Contract: functions that a device module has are those of `torch.<chip>`. What CUDA has beyond is one of three kinds:
with a counterpart (`_COUNTERPARTS` and the methods here); a hint without effect on results, which does nothing and
says so once in the log (`_HINTS`); and what has no meaning on another chip, which raises NotImplementedError when it is
used, never when it is imported. `torch.cuda.<part>` modules offer the same under their names; `torch.cuda.amp` is
PyTorch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torchfl._device_module import DeviceModule, DeviceProperties
from torchfl._native import log

if TYPE_CHECKING:
    from torchfl._engine import LoadedChip

#: Names of CUDA's -> those of a device module.
_COUNTERPARTS = {
    "memory_cached": "memory_reserved",
    "max_memory_cached": "max_memory_reserved",
    "reset_max_memory_allocated": "reset_peak_memory_stats",
    "reset_max_memory_cached": "reset_peak_memory_stats",
}

#: They tell tools something, or tune; leaving them out changes no result.
_HINTS = frozenset(
    (
        *("nvtx.range_push", "nvtx.range_pop", "nvtx.range_start", "nvtx.range_end", "nvtx.mark"),
        *("profiler.start", "profiler.stop", "ipc_collect", "set_sync_debug_mode"),
    )
)

#: Modules below torch.cuda, and those of them whose functions torch.cuda has itself.
_SAME = ("memory", "random", "streams")
_PARTS = (*_SAME, "nvtx", "profiler", "graphs", "nccl", "tunable", "jiterator", "gds")

_TENSOR_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


#: What CUDA says of a device and no descriptor or adapter of ours does.
_UNKNOWN_PROPERTIES = frozenset(
    (
        *("warp_size", "max_threads_per_block", "max_threads_per_multi_processor", "regs_per_multiprocessor"),
        *("shared_memory_per_block", "shared_memory_per_block_optin", "shared_memory_per_multiprocessor"),
        *("memory_clock_rate", "memory_bus_width", "uuid", "pci_bus_id", "pci_device_id", "pci_domain_id"),
    )
)


class CudaDeviceProperties(DeviceProperties):
    """With CUDA's names for what is known of the chip, in CUDA's units; the clock is in kHz. For major and minor see
    `CudaModule.get_device_capability`. What has no meaning on the chip, or is not known, is no attribute."""

    def __init__(self, facts: dict[str, Any], capability: tuple[int, int], lowered: dict[str, Any]) -> None:
        super().__init__(facts)
        self.major, self.minor = capability
        self.clock_rate *= 1000
        self.is_integrated = int(self.unified_memory)
        self.is_multi_gpu_board = 0
        self.gcnArchName = self.name  # as PyTorch has it with CUDA: only ROCm's devices have an architecture there
        cache = lowered["memory"].get("on_chip_cache", {}).get("size")
        if cache:
            self.L2_cache_size: int = cache

    def __getattr__(self, name: str) -> Any:
        if name in _UNKNOWN_PROPERTIES or name == "L2_cache_size":
            known = ", ".join(sorted(vars(self)))
            raise AttributeError(
                f"{name} is not known of {self.name}, which stands in for CUDA here (torchfl as_cuda): neither its "
                f"descriptor nor its adapter says it. Known are {known}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count})"
        )


class CudaModule(DeviceModule):
    """`torch.cuda`, meaning the devices of one chip. `stock`: PyTorch's own, which says what names there are."""

    def __init__(self, engine: ModuleType, chip: LoadedChip, lowered: dict[str, Any], stock: ModuleType) -> None:
        super().__init__(engine, chip, lowered)
        self.__name__ = "torch.cuda"
        self.__doc__ = f"The devices of {chip.name} under CUDA's names"
        self.__path__ = stock.__path__
        self.__spec__ = stock.__spec__
        self._stock = stock
        parts = {name: _Part(self, name, _of(stock, name), vars(self).get(name)) for name in _PARTS if _of(stock, name)}
        self.amp = stock.amp
        self.OutOfMemoryError = torch.OutOfMemoryError
        self.AcceleratorError = torch.AcceleratorError
        self.has_half, self.has_magma = True, False
        vars(self).update(parts)
        vars(self).update({name: _tensor_type(name, dtype) for name, dtype in _TENSOR_TYPES.items()})

    # What differs from a device module -----------------------------------------------------------------------------

    def get_device_properties(self, device: Any = None) -> CudaDeviceProperties:
        facts = self._engine.properties(self._index(device))
        return CudaDeviceProperties(facts, self.get_device_capability(), self._lowered)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:  # type: ignore[override]
        """Scripts read from it which dtypes are worth using: (8, 0) where the chip computes in bfloat16, else (7, 0)
        where it does in float16, else (6, 0). It names no generation of anyone's silicon."""
        dtypes = self._lowered["dtypes"]
        return (8, 0) if "bfloat16" in dtypes else (7, 0) if "float16" in dtypes else (6, 0)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return super().is_bf16_supported()

    # CUDA's own, with a counterpart --------------------------------------------------------------------------------

    def is_current_stream_capturing(self) -> bool:
        return False

    def is_tf32_supported(self) -> bool:
        return False

    def get_arch_list(self) -> list[str]:
        return []

    def get_gencode_flags(self) -> str:
        return ""

    def get_sync_debug_mode(self) -> int:
        return 0

    def get_allocator_backend(self) -> str:
        return "native"

    def clock_rate(self, device: Any = None) -> int:
        """MHz."""
        return self.get_device_properties(device).clock_rate // 1000

    def device_memory_used(self, device: Any = None) -> int:
        free, total = self.mem_get_info(device)
        return total - free

    def list_gpu_processes(self, device: Any = None) -> str:
        return f"GPU:{self._index(device) - self._chip.first_index}\nthe chip does not list processes"

    # PyTorch's compiler tells the two apart, and keeps a rule for each.
    def _exchange_device(self, index: int) -> int:
        return super()._exchange_device(index)

    def _maybe_exchange_device(self, index: int) -> int:
        return super()._exchange_device(index)

    def _get_device(self, device: Any) -> torch.device:
        return self._device(device)

    @contextlib.contextmanager
    def _DeviceGuard(self, index: int) -> Iterator[None]:
        before = self._exchange_device(index)
        try:
            yield
        finally:
            self._exchange_device(before)

    # The rest ------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        stock = vars(self).get("_stock")
        if stock is None or name.startswith("__"):
            raise AttributeError(name)
        if name in _COUNTERPARTS:
            return getattr(self, _COUNTERPARTS[name])
        value = _of(stock, name)
        if value is None:
            raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
        return _beyond(f"torch.cuda.{name}", value, name in _HINTS, self._chip.name)


class _Part(ModuleType):
    """`torch.cuda.<name>`: what `own`, the device module's part of that name, or torch.cuda has of it; else as
    torch.cuda answers for what it has not."""

    def __init__(self, cuda: CudaModule, name: str, stock: ModuleType, own: ModuleType | None) -> None:
        super().__init__(f"torch.cuda.{name}", stock.__doc__)
        self._cuda, self._part, self._stock, self._own = cuda, name, stock, own
        self.__spec__ = stock.__spec__

    def __getattr__(self, name: str) -> Any:
        stock = vars(self).get("_stock")
        if stock is None or name.startswith("__"):
            raise AttributeError(name)
        if self._own is not None and hasattr(self._own, name):
            return getattr(self._own, name)
        value = _of(stock, name)
        if self._part in _SAME and (hasattr(type(self._cuda), name) or name in {*vars(self._cuda), *_COUNTERPARTS}):
            return getattr(self._cuda, name)
        if value is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        hint = f"{self._part}.{name}" in _HINTS
        if self._part == "nvtx" and name == "range":
            return _range(self)
        if self._part == "nccl" and name == "is_available":
            return lambda tensors=(): False
        return _beyond(f"{self.__name__}.{name}", value, hint, self._cuda._chip.name)


def _of(module: ModuleType, name: str) -> Any:
    return getattr(module, name, None)


_told: set[str] = set()


def _beyond(name: str, value: Any, hint: bool, chip: str) -> Any:
    """What stands for a function or a class of CUDA's that has no counterpart; other values are as they are."""
    if not callable(value):
        return value

    if hint:

        def nothing(*args: Any, **kwargs: Any) -> None:
            if name not in _told:
                _told.add(name)
                log.warning("%s() has no meaning on %s and does nothing", name, chip)

        return nothing

    class Meaningless:
        """Raises when it is called or instantiated; an import of it, and a check against it, go through."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(
                f"{name} has no meaning on {chip}, which stands in for CUDA here (torchfl as_cuda): there is no such "
                "part of the chip. docs/cuda_scripts.md lists what has a counterpart"
            )

    Meaningless.__name__ = Meaningless.__qualname__ = name.rpartition(".")[2]
    return Meaningless


def _range(nvtx: _Part) -> Any:
    @contextlib.contextmanager
    def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        nvtx.range_push(msg)
        yield

    return range


def _tensor_type(name: str, dtype: torch.dtype) -> type:
    """`torch.cuda.FloatTensor` and its like: makes tensors, and tells which are of its kind."""

    class Type(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.dtype == dtype and value.device.type == "cuda"

    class Made(metaclass=Type):
        def __new__(cls, *args: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], torch.Tensor):
                return args[0].detach().to(device="cuda", dtype=dtype, copy=True)
            if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
                return torch.tensor(args[0], dtype=dtype, device="cuda")
            sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
            return torch.empty(sizes, dtype=dtype, device="cuda")

    Made.__name__ = Made.__qualname__ = name
    Made.__module__ = "torch.cuda"
    return Made


__all__ = ["CudaModule"]
