"""`torch.<chip>`: the device module of one chip, as `torch.cuda` users know it.

Contract: each module counts and addresses only its own chip's devices, by local index; PyTorch's own index is
`first_index + local`. `is_available`, `device_count` and `current_device` open nothing (fork safety).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torchfl import _device_name
from torchfl._device_name import UNNAMED
from torchfl._memory import MemoryModule
from torchfl._patches import Patches, engine_patches
from torchfl.errors import LoadError

if TYPE_CHECKING:
    from torchfl._engine import LoadedChip


class DeviceProperties:
    """What a device says of itself; attributes as `torch.cuda.get_device_properties` names them where they exist."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.name: str = facts["name"]
        self.total_memory: int = facts["total_memory"]
        self.multi_processor_count: int = facts["compute_units"]
        self.clock_rate: int = facts["clock_mhz"]
        self.alignment: int = facts["alignment"]
        self.serial: str = facts["serial"]
        self.unified_memory: bool = facts["host_accessible"]

    def __repr__(self) -> str:
        return (
            f"DeviceProperties(name='{self.name}', total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, clock_rate={self.clock_rate}MHz)"
        )


class DeviceModule(ModuleType):
    """The functions of `torch.<device_type>`. `device` is a local index, a string, a torch.device or None."""

    def __init__(self, engine: ModuleType, chip: LoadedChip, lowered: dict[str, Any]) -> None:
        super().__init__(f"torch.{chip.device_type}", f"{chip.name}: devices {', '.join(chip.labels)}")
        self._engine = engine
        self._chip = chip
        self._lowered = lowered
        self._fractions: dict[int, float] = {}  # of memory, by PyTorch's index
        self._entered = threading.local()  # index: the device of the innermost `with torch.<chip>.device(...)`
        module = self

        class OnOurDevices(type):
            """Of a class of ours: PyTorch's own objects of its first base are instances, if they are on our devices."""

            def __instancecheck__(cls, value: Any) -> bool:
                theirs: Any = cls.__mro__[1]
                return isinstance(value, theirs) and bool(value.device.type == module._torch_type)

        class Stream(torch.Stream, metaclass=OnOurDevices):
            """A queue of work on one device of this chip."""

            def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
                if kwargs:  # rebuilt from its id, as torch does internally
                    return super().__new__(cls, priority=priority, **kwargs)
                return super().__new__(cls, device=module._device(device), priority=priority)

        class Event(torch.Event, metaclass=OnOurDevices):
            """A mark in a stream; with `enable_timing`, two of them measure device time in milliseconds."""

            # What it makes is a plain torch.Event, since `elapsed_time` takes no subclass of it.
            def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Any:
                return torch.Event(
                    module._torch_type, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
                )

        class device(contextlib.AbstractContextManager["device"]):
            """Makes a device current inside a `with` block."""

            def __init__(self, device: Any) -> None:
                self.idx = module._any_index(device)
                self.prev_idx = -1

            def __enter__(self) -> Any:
                self.prev_idx = module._engine.exchange_device(self.idx)
                self.outer, module._entered.index = getattr(module._entered, "index", None), self.idx
                return self

            def __exit__(self, *exc: object) -> None:
                module._entered.index = self.outer
                module._engine.exchange_device(self.prev_idx)

        class device_of(device):
            """Makes the device of a tensor current inside a `with` block; a tensor that is not on this chip changes
            nothing."""

            def __init__(self, tensor: torch.Tensor) -> None:
                ours = tensor.device.type == module._torch_type and module._owns(tensor.device.index)
                self.idx = tensor.device.index if ours else -1
                self.prev_idx = -1

        self.Stream, self.Event, self.device, self.device_of = Stream, Event, device, device_of
        self.memory = MemoryModule(self)

    def __getattr__(self, name: str) -> Any:
        """Where PyTorch has a module of this name (torch.xpu), its own code expects every part of that one."""
        stock = vars(self).get("_stock")
        if stock is None or name.startswith("__") or not hasattr(stock, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(stock, name)

    def __dir__(self) -> list[str]:
        """What belongs to users: the functions are the class's, and `dir` of a module shows those of the instance."""
        return sorted(name for name in {*dir(type(self)), *vars(self)} if not name.startswith("_"))

    # ------------------------------------------------------------------ devices

    @property
    def _torch_type(self) -> str:
        """The type of our devices as PyTorch prints it now."""
        return torch._C._get_privateuse1_backend_name()

    def _index(self, device: Any = None) -> int:
        """PyTorch's index of a device given in any form; None is the current one."""
        chip = self._chip
        if device is None:
            current: int = self._engine.current_device()
            return current if self._owns(current) else chip.first_index
        if isinstance(device, int):
            if device < 0:
                return self._index(None)
            if device >= chip.count:
                raise RuntimeError(f"{chip.device_type}:{device}: this chip has {chip.count} device(s)")
            return chip.first_index + device
        parsed = torch.device(device)
        if parsed.type != self._torch_type or (parsed.index is not None and not self._owns(parsed.index)):
            raise ValueError(f"{device} is not a device of {chip.name} ({', '.join(chip.labels)})")
        return self._index(None) if parsed.index is None else parsed.index

    def _device(self, device: Any = None) -> torch.device:
        return torch.device(self._torch_type, self._index(device))

    def _owns(self, index: int) -> bool:
        return self._chip.first_index <= index < self._chip.first_index + self._chip.count

    def _any_index(self, device: Any = None) -> int:
        """PyTorch's own code asks the module of the type for any device of it, another chip's too, by PyTorch's index:
        checkpointing does for the generators' states."""
        if isinstance(device, str):
            device = torch.device(device)
        if isinstance(device, torch.device) and device.type == self._torch_type and device.index is not None:
            return device.index
        if self._chip.device_type == self._torch_type:
            current: int = self._engine.current_device()
            if isinstance(device, int) and self._chip.count <= device < self._engine.device_count():
                return device
            if device is None and current == getattr(self._entered, "index", None):
                return current
        return self._index(device)

    def _is_compiled(self) -> bool:
        """Whether torch._C has functions of PyTorch's own for this type: it asks that of torch.xpu and torch.cuda."""
        return False

    def is_available(self) -> bool:
        return self._chip.count > 0

    def device_count(self) -> int:
        return self._chip.count

    def current_device(self) -> int:
        return self._index(None) - self._chip.first_index

    def set_device(self, device: Any) -> None:
        self._engine.set_device(self._index(device))

    def _exchange_device(self, index: int) -> int:
        previous: int = self._engine.exchange_device(index)
        return previous

    _maybe_exchange_device = _exchange_device

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        return DeviceProperties(self._engine.properties(self._index(device)))

    def get_device_name(self, device: Any = None) -> str:
        return self.get_device_properties(device).name

    def get_device_capability(self, device: Any = None) -> dict[str, Any]:
        """The descriptor's dtypes: what this chip computes in."""
        return {"supported_dtypes": {getattr(torch, name) for name in self._lowered["dtypes"]}}

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """Whether memory moves between the two without passing through the host: yes, between any two of one chip."""
        return self._index(device) != self._index(peer_device)

    def _telemetry(self, name: str, device: Any) -> float:
        """A reading of the device's sensors; NaN where the chip has none of it."""
        facts = self._engine.properties(self._index(device))
        value = float(facts.get("telemetry", {}).get(name, -1))
        return value if value >= 0 else float("nan")

    def utilization(self, device: Any = None) -> float:
        """Share of the time since the previous reading in which the device computed, in percent."""
        return 100 * self._telemetry("utilization", device)

    def temperature(self, device: Any = None) -> float:
        """Degrees Celsius."""
        return self._telemetry("temperature", device)

    def power_draw(self, device: Any = None) -> float:
        """Milliwatts, as torch.cuda counts."""
        return 1000 * self._telemetry("power", device)

    def clock_rate(self, device: Any = None) -> int:
        """Megahertz; 0 if the device does not say."""
        return self.get_device_properties(device).clock_rate

    def device_memory_used(self, device: Any = None) -> int:
        """Bytes of the device's memory that are taken, by this and other processes."""
        free, total = self.mem_get_info(device)
        return total - free

    def is_bf16_supported(self) -> bool:
        return "bfloat16" in self._lowered["dtypes"]

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """What `torch.autocast` may lower to here."""
        return [getattr(torch, name) for name in ("float16", "bfloat16") if name in self._lowered["dtypes"]]

    # ------------------------------------------------------------------ life

    def init(self) -> None:
        """Nothing to do: a device is opened when it is first used."""

    _lazy_init = init

    def is_initialized(self) -> bool:
        return bool(self._engine.any_opened()) and not self._is_in_bad_fork()

    @property
    def _initialized(self) -> bool:
        """What PyTorch's checkpointing asks: without it, no state of the generator is kept for the second run."""
        return self.is_initialized()

    def _is_in_bad_fork(self) -> bool:
        return bool(self._engine.forked_after_use())

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work on all streams of a device."""
        self._engine.synchronize(self._index(device))

    # ------------------------------------------------------------------ streams

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(self._device(device))

    def default_stream(self, device: Any = None) -> torch.Stream:
        target = self._device(device)
        return torch.Stream(stream_id=0, device_index=target.index, device_type=_device_type_number())

    def set_stream(self, stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    @contextlib.contextmanager
    def stream(self, stream: torch.Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        with stream:
            yield

    # ------------------------------------------------------------------ random numbers

    def _generator(self, device: Any = None) -> torch.Generator:
        generator: torch.Generator = self._engine.default_generator(self._any_index(device))
        return generator

    def _indices(self) -> range:
        return range(self._chip.count)

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        return tuple(self._generator(i) for i in self._indices())

    def manual_seed(self, seed: int) -> None:
        self._generator().manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed all devices of this chip; `torch.manual_seed` comes here in the module of the first chip, which is that
        of PyTorch's device type, and means the devices of all chips."""
        of_type = self._chip.first_index == 0
        for i in range(self._engine.device_count()) if of_type else self._indices():
            self._generator(i).manual_seed(int(seed))

    def seed(self) -> None:
        self._generator().seed()

    def seed_all(self) -> None:
        """Give all devices one new, random seed."""
        self.manual_seed_all(self._generator(0).seed())

    def initial_seed(self) -> int:
        return self._generator().initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self._generator(device).get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        self._generator(device).set_state(new_state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state(i) for i in self._indices()]

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        for i, state in enumerate(new_states):
            self.set_rng_state(state, i)

    # ------------------------------------------------------------------ memory

    def memory_stats(self, device: Any = None) -> dict[str, Any]:
        return dict(torch.accelerator.memory_stats(self._device(device)))

    def memory_stats_as_nested_dict(self, device: Any = None) -> dict[str, Any]:
        """`memory_stats`, with a dict for each part of the dotted names."""
        nested: dict[str, Any] = {}
        for name, value in self.memory_stats(device).items():
            *path, last = name.split(".")
            inner = nested
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return nested

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        """Of pinned memory, which all devices share; the names are explained in `torch.cuda.host_memory_stats`."""
        return dict(self._engine.host_memory_stats())

    def host_memory_stats(self) -> dict[str, Any]:
        """`host_memory_stats_as_nested_dict`, with dotted names."""
        flat: dict[str, Any] = {}
        for name, value in self.host_memory_stats_as_nested_dict().items():
            flat.update(
                {f"{name}.{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
            )
        return dict(sorted(flat.items()))

    def reset_accumulated_host_memory_stats(self) -> None:
        self._engine.reset_accumulated_host_memory_stats()

    def reset_peak_host_memory_stats(self) -> None:
        self._engine.reset_peak_host_memory_stats()

    def _bytes(self, kind: str, which: str, device: Any) -> int:
        return int(self.memory_stats(device).get(f"{kind}_bytes.all.{which}", 0))

    def memory_allocated(self, device: Any = None) -> int:
        return self._bytes("allocated", "current", device)

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._bytes("allocated", "peak", device)

    def memory_reserved(self, device: Any = None) -> int:
        return self._bytes("reserved", "current", device)

    def max_memory_reserved(self, device: Any = None) -> int:
        return self._bytes("reserved", "peak", device)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        torch.accelerator.reset_peak_memory_stats(self._device(device))

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        torch.accelerator.reset_accumulated_memory_stats(self._device(device))

    def empty_cache(self) -> None:
        """Give cached memory that no tensor uses back to the chip."""
        for i in self._indices():
            self._engine.empty_cache(self._index(i))

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(free, total) bytes of the device, as its SDK counts."""
        free, total = torch.accelerator.get_memory_info(self._device(device))
        return int(free), int(total)

    def memory_snapshot(self, device: Any = None) -> list[dict[str, Any]]:
        """One row for each segment, with its blocks, as `torch.cuda.memory_snapshot` shapes them."""
        rows: list[dict[str, Any]] = self._engine.memory_snapshot(self._index(device))
        return rows

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        index = self._index(device)
        total = self._engine.properties(index)["total_memory"]
        # The engine takes 0 for "no limit".
        self._engine.set_memory_limit(index, 0 if fraction == 1 else max(int(total * fraction), 1))
        self._fractions[index] = float(fraction)

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return self._fractions.get(self._index(device), 1.0)

    def memory_summary(self, device: Any = None, abbreviated: bool = False) -> str:
        """A table of what is allocated and cached."""
        stats = self.memory_stats(device)
        lines = [f"{self._chip.device_type}:{self._index(device) - self._chip.first_index} ({self._chip.name})"]
        kinds = ("allocated", "reserved", "active") if abbreviated else ("requested", "allocated", "active", "reserved")
        lines.append(f"{'bytes':<12}{'current':>16}{'peak':>16}{'allocated':>16}{'freed':>16}")
        for kind in kinds:
            values = [stats.get(f"{kind}_bytes.all.{which}", 0) for which in ("current", "peak", "allocated", "freed")]
            lines.append(f"{kind:<12}" + "".join(f"{value:>16,}" for value in values))
        lines.append(f"retries {stats.get('num_alloc_retries', 0)}, out of memory {stats.get('num_ooms', 0)}")
        return "\n".join(lines)


def _device_type_number() -> int:
    return int(torch._C._autograd.DeviceType.PrivateUse1) if hasattr(torch._C._autograd, "DeviceType") else 20


class _AllChips:
    """Stands for a chip where the device type has a name of its own, which means the devices of every chip."""

    first_index = 0

    def __init__(self, engine: ModuleType, name: str) -> None:
        self._engine = engine
        self.name = self.device_type = name

    @property
    def count(self) -> int:
        return int(self._engine.device_count())

    @property
    def labels(self) -> list[str]:
        return [f"{self.device_type}:{i}" for i in range(self.count)]


_modules: dict[str, DeviceModule] = {}  # by the name in front of the colon


def _register_locations(engine: ModuleType) -> None:
    """Have saved tensors name their device as its chip does ("npu:1"), so that they come back to that chip whatever
    else is loaded and whatever the device type is called. PyTorch's own rule counts all devices under the first chip's
    name, and refuses the others'. A process that prints another name for our devices saves that one."""

    def tag(storage: Any) -> str | None:
        if storage.device.type != torch._C._get_privateuse1_backend_name():
            return None
        other_name = engine.shown_device_name() not in ("", _device_name.shown())
        return str(storage.device) if other_name else str(engine.label(storage.device.index))

    def restore(storage: Any, location: str) -> Any:
        name, _, index = location.partition(":")
        if name == UNNAMED:  # saved after a shutdown
            target = torch.device(torch._C._get_privateuse1_backend_name(), int(index or 0))
        elif name in _modules:
            target = torch.device(location)
        else:
            return None
        here = torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage)
        return here.to(target).untyped_storage()

    registry = torch.serialization._package_registry
    torch.serialization.register_package(19, tag, restore)  # before PyTorch's rules for accelerators, from 20 on
    ours = next(entry for entry in registry if entry[1] is tag)
    engine_patches.on_undo(lambda: registry.remove(ours))


def make_known(engine: ModuleType, name: str, first_index: int, count: int) -> None:
    """Have PyTorch read "<name>" and "<name>:<i>". Raises LoadError where that cannot be done."""
    reason = engine.add_device_name(name, first_index, count)
    if reason:
        raise LoadError(
            f"the device name '{name}' cannot be used: {reason}. Give the chip a device_type of letters and underscores"
            f", or use '{torch._C._get_privateuse1_backend_name()}:{first_index}', which is the same device"
        )


def attach(patches: Patches, name: str, module: ModuleType) -> None:
    """Make `module` be `torch.<name>`, and the modules in it `torch.<name>.<part>`."""
    patches.on_undo(torch.get_device_module.cache_clear)
    stock = sys.modules.get(f"torch.{name}")
    patches.attribute(torch, name, module)
    patches.item(sys.modules, f"torch.{name}", module)
    for part, value in vars(module).items():
        if isinstance(value, ModuleType) and value.__name__.startswith("torch."):
            patches.item(sys.modules, f"torch.{name}.{part}", value)
    if stock is not None and not isinstance(stock, DeviceModule):
        vars(module).setdefault("_stock", stock)
    torch.get_device_module.cache_clear()


def register(
    engine: ModuleType, chip: LoadedChip, lowered: dict[str, Any], type_name: str, *, is_first: bool
) -> DeviceModule:
    """Make the chip's names usable: `torch.<device_type>` and "<device_type>:<i>". With the first chip come those of
    the device type, if it has a name of its own, and the methods that PyTorch offers every backend
    (`tensor.<type_name>()`)."""
    name = chip.device_type
    if name == type_name and not is_first:
        raise LoadError(f"{chip.name}: '{name}' is the name of the device type already; choose another device_name")
    make_known(engine, name, chip.first_index, chip.count)
    module = _modules[name] = DeviceModule(engine, chip, lowered)
    attach(engine_patches, name, module)
    if is_first:
        if name != type_name:
            make_known(engine, type_name, 0, chip.count)
            _modules[type_name] = DeviceModule(engine, _AllChips(engine, type_name), lowered)  # type: ignore[arg-type]
            attach(engine_patches, type_name, _modules[type_name])
        engine_patches.additions(
            [
                torch.Tensor,
                torch.nn.Module,
                torch.nn.utils.rnn.PackedSequence,
                torch.storage._StorageBase,
                torch.TypedStorage,
            ],
            functools.partial(torch.utils.generate_methods_for_privateuse1_backend, for_storage=True),
        )
        _register_locations(engine)
        engine_patches.on_undo(_modules.clear)
    return module


__all__ = ["DeviceModule", "DeviceProperties", "attach", "make_known", "register"]
