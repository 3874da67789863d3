"""Loading chips, and asking the engine what it does.

Contract: `load` is the whole way from a descriptor to usable devices; `load_hcd` and `load_uba` are its two halves.
Loading a chip twice is harmless. Nothing is opened on a device before it is used.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchfl import _autocast, _budget, hcd
from torchfl._native import engine
from torchfl._paths import shipped_chips
from torchfl.errors import LoadError


@dataclass
class LoadedChip:
    """A chip of this process: its devices are `device_type:0` ... `device_type:count-1`."""

    name: str
    device_type: str
    count: int
    first_index: int
    descriptor: str
    adapter: str
    adapter_version: str
    sdk_version: str
    abi: str
    missing_kernels: list[str] = field(default_factory=list)

    @property
    def labels(self) -> list[str]:
        return [f"{self.device_type}:{i}" for i in range(self.count)]


_descriptors: dict[str, hcd.Descriptor] = {}  # by device type, in the order they were read
_loaded: dict[str, LoadedChip] = {}
_lowered: dict[str, dict[str, Any]] = {}  # by device type


def load_hcd(path: str | Path) -> hcd.Descriptor:
    """Read and check a descriptor, and keep it for `load_uba`.

    Raises torchfl.DescriptorError with every problem found, each with file, line and column.
    """
    descriptor = hcd.load(path)
    for warning in descriptor.warnings:
        _native_log().warning("%s", warning)
    _descriptors[descriptor.lower()["device_type"]] = descriptor
    return descriptor


def load_uba(device_type: str, path: str | Path | None = None) -> LoadedChip:
    """Load the adapter of a chip whose descriptor was read, and make its devices usable.

    `path` is the adapter library; without it the descriptor's `adapter.library` is taken, else `uba_<device_type>*.so`
    or `libuba_<device_type>*.so` beside the descriptor or on `sys.path`.

    Raises torchfl.LoadError if there is no such library, or it is refused.
    """
    if device_type in _loaded:
        return _loaded[device_type]
    descriptor = _descriptors.get(device_type)
    if descriptor is None:
        known = ", ".join(_descriptors) or "none"
        raise LoadError(
            f"no descriptor for device type '{device_type}' was read (read: {known}): call load_hcd() first"
        )
    lowered = descriptor.lower()
    library = _find_library(device_type, lowered, path)
    return _activate(lowered, library, _style_of(library, lowered), descriptor)


def load(chip: str | Path) -> LoadedChip:
    """Load a chip: a shipped one by name ("npu_v3"), or the path of a descriptor."""
    path = Path(chip)
    if not (path.suffix or path.exists()):
        shipped = shipped_chips()
        if str(chip) not in shipped:
            raise LoadError(
                f"no chip '{chip}': it is neither a file nor one of the shipped chips ({', '.join(shipped) or 'none'})"
            )
        path = shipped[str(chip)]
    descriptor = load_hcd(path)
    return load_uba(descriptor.lower()["device_type"])


def init(*chips_to_load: str | Path) -> list[LoadedChip]:
    """Load chips: those given, else those named in TORCHFL_CHIPS (separated by commas), else every shipped one whose
    adapter can be loaded here. Returns all loaded chips. Calling it again is harmless."""
    import os

    wanted: list[str | Path] = list(chips_to_load)
    explicit = bool(wanted)
    if not wanted and os.environ.get("TORCHFL_CHIPS"):
        wanted = [name.strip() for name in os.environ["TORCHFL_CHIPS"].split(",") if name.strip()]
        explicit = True
    if not explicit and _loaded:
        return chips()
    for chip in wanted or list(shipped_chips(on_request=False).values()):
        try:
            load(chip)
        except (LoadError, engine().LoadError) as error:
            if explicit:
                raise
            _native_log().info("%s is not usable here: %s", chip, error)
    return chips()


def chips() -> list[LoadedChip]:
    """The chips of this process, in the order they were loaded."""
    return list(_loaded.values())


def devices() -> list[dict[str, Any]]:
    """One row for each device of each loaded chip: label, chip, name, memory in bytes, and what it reports of itself.
    Opens the devices."""
    c = engine()
    return [{"index": i, **c.properties(i)} for i in range(c.device_count())]


def shutdown() -> None:
    """Undo the patch of PyTorch's device parser, so that only names which stock PyTorch accepts are left, and the look
    at the heads of nn.MultiheadAttention. Tensors and devices stay valid."""
    from torchfl import _attention, _processes, _safetensors, _stock_faults
    from torchfl import compile as _compile

    engine().disengage_names()
    _attention.remove()
    _compile.remove()
    _stock_faults.remove()
    _processes.remove()
    _safetensors.remove()


def stats() -> list[dict[str, Any]]:
    """What ran where since the process began or `reset_stats`: one row for each (device, op, path, target, reason) with
    `calls`, `host_bytes` (moved across the host boundary by it) and `seconds` (only of calls under `timing`).

    `path` is native, composed, composite, custom or cpu; and transfer for what the caller itself copies between host
    and devices (`.to()`, `.cpu()`, `.item()`), with the direction as `target`."""
    rows: list[dict[str, Any]] = engine().stats()
    return sorted(rows, key=lambda row: -row["calls"])


def transfers() -> dict[str, int]:
    """Copies and bytes across the host boundary, and between devices, since the process began."""
    return dict(engine().transfers())


def reset_stats() -> None:
    """Set every counter of `stats` to zero."""
    engine().reset_stats()


def step() -> None:
    """Mark the end of a step, for `fallback.budget` of the descriptors: call it once for each batch of an inference
    loop. In training every `torch.optim.Optimizer.step` does. Raises `BudgetError` in strict mode, if more left a chip
    since the last mark than its budget allows; otherwise one warning a process says so."""
    _budget.mark()


@contextlib.contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Inside, a call that would leave the chip for the CPU raises `UnsupportedOpError` instead, in every thread.
    `TORCHFL_STRICT=1` does the same for a whole process."""
    c = engine()
    before = c.set_strict(on)
    try:
        yield
    finally:
        c.set_strict(before)


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Inside, `stats` also sums wall time: every operator waits for the device before and after, so nothing overlaps
    and the whole is slower than without."""
    c = engine()
    before = c.set_timing(True)
    try:
        yield
    finally:
        c.set_timing(before)


def explain(op: str, *args: Any, device: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """Which path a call would take, and why each better one is not taken. Runs nothing.

    `op` is an operator as users or PyTorch name it ("aten::add", "aten::add.Tensor"); tensors may be on "meta", and
    then stand for tensors on `device`. Returns op, device, path, target, reason, transforms and attempts.
    """
    from torchfl._explain import explain as run

    return run(op, args, kwargs, device)


def register_fallback(op: str, function: Callable[..., Any] | None, device: str | None = None) -> None:
    """Run `op` ("aten::foo", "aten::foo.Tensor") by `function` where no kernel of the chip takes a call, on `device`
    ("npu_v3": all devices of the chip, "npu_v3:0": one; None: every device). It goes before `fallback.ops`; None takes
    it back.

    `function` gets the arguments of the operator's functional form and returns new tensors of the dtypes and shapes
    that PyTorch's operator gives, on the device or on the CPU; the in-place and `out=` forms write them here. Returning
    NotImplemented leaves the call to the next path. It runs below autograd: tensors need no gradient there.

    Raises ValueError if PyTorch takes the operator apart before a chip sees it, if it is a view, or if it moves or
    fills memory, which the engine does itself. What `function` raises, the caller gets.
    """
    from torchfl import _fallbacks

    c = engine()
    if device is None:
        indices = [-1]
    elif device in _loaded:
        chip = _loaded[device]
        indices = list(range(chip.first_index, chip.first_index + chip.count))
    else:
        import torch

        index = torch.device(device).index
        indices = [c.current_device() if index is None else index]
    _fallbacks.install(c)
    _fallbacks.register(c, op, function, indices)


# ---------------------------------------------------------------------------------------------- the parts of loading


def _native_log() -> Any:
    from torchfl._native import log

    return log


def _find_library(device_type: str, lowered: dict[str, Any], path: str | Path | None) -> Path:
    if path is not None or lowered["adapter_library"]:
        library = Path(path if path is not None else lowered["adapter_library"]).absolute()
        if not library.is_file():
            raise LoadError(
                f"{device_type}: the adapter {library} does not exist; build it, or correct adapter.library"
            )
        return library
    folders = [Path(lowered["descriptor"]).parent]
    # The working directory is never searched: whoever can write there could run code here.
    folders += [Path(entry) for entry in sys.path if entry and Path(entry).is_absolute() and Path(entry).is_dir()]
    for folder in folders:
        found = sorted(folder.glob(f"uba_{device_type}*.so")) + sorted(folder.glob(f"libuba_{device_type}*.so"))
        if found:
            return found[0].absolute()
    looked = "\n  ".join(str(folder) for folder in folders)
    raise LoadError(f"{device_type}: no uba_{device_type}*.so or libuba_{device_type}*.so in\n  {looked}")


def _style_of(library: Path, lowered: dict[str, Any]) -> str:
    """ "c" or "aten", by the entry point that the library exports (its name is in the string table)."""
    content = library.read_bytes()
    if b"\0uba_query\0" in content:
        return "c"
    if b"\0torch_fl_register_" + lowered["device_type"].encode() + b"\0" in content:
        return "aten"
    return str(lowered["adapter"]["style"] or "c")  # the loader says what is missing


def _activate(lowered: dict[str, Any], library: Path, style: str, descriptor: hcd.Descriptor) -> LoadedChip:
    import torch

    # They need torch, which reading a descriptor must not import.
    from torchfl import _attention, _compose, _device_module, _fallbacks, _processes, _safetensors, _stock_faults
    from torchfl import compile as _compile

    c = engine()
    device_type = lowered["device_type"]
    first_chip = c.device_count() == 0 and not _loaded
    if first_chip:
        taken = torch._C._get_privateuse1_backend_name()
        if taken not in ("privateuseone", device_type):
            raise LoadError(
                f"another PyTorch backend, '{taken}', already holds the one out-of-tree device type of this process: "
                "uninstall it, or start a process in which only Torch-FL is loaded"
            )
    info = c.add_chip(lowered, str(library), style)
    chip = LoadedChip(
        name=info["name"],
        device_type=device_type,
        count=info["count"],
        first_index=info["first_index"],
        descriptor=lowered["descriptor"],
        adapter=info["adapter"] if style == "c" else str(library),
        adapter_version=info["adapter_version"],
        sdk_version=info["sdk_version"],
        abi=info["abi"],
        missing_kernels=info["missing_kernels"],
    )
    if chip.missing_kernels:
        _native_log().warning(
            "%s: the descriptor names kernels that %s does not have, so those rows are passed over: %s",
            chip.name,
            library.name,
            ", ".join(sorted(set(chip.missing_kernels))),
        )
    if first_chip:
        atexit.register(c.finish_autograd)
        torch.utils.rename_privateuse1_backend(device_type)
        _autocast.install(c, descriptor)
        _compose.install(c, _lowered)
        _fallbacks.install(c)
    _lowered[device_type] = lowered
    _budget.install(c, _native_log().warning, device_type, lowered)
    unit = lowered["attention"]
    if unit and unit["enabled"] and unit["beyond"] == "error":
        _attention.install()
    _device_module.register(c, chip, lowered, is_first=first_chip)
    _stock_faults.install(torch._C._get_privateuse1_backend_name())
    _processes.install(c)
    _safetensors.install()
    torch._C._has_torch_fl = True
    _loaded[device_type] = chip
    _compile.install()
    return chip
