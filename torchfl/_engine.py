"""Loading chips, and asking the engine what it does.

Contract: `load` is the whole way from a descriptor to usable devices; `load_hcd` and `load_uba` are its two halves.
Loading a chip twice is harmless. Nothing is opened on a device before it is used.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchfl import _autoload, _before_torch, _budget, _children, _device_name, _registry, _wrappers, hcd
from torchfl._native import engine, log
from torchfl._patches import engine_patches
from torchfl._paths import shipped_chips
from torchfl.errors import LoadError

if TYPE_CHECKING:
    from torchfl._before_torch import PlannedChip


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


_read: dict[str, dict[str, Any]] = {}  # descriptors, lowered, by device type, in the order they were read
_loaded: dict[str, LoadedChip] = {}
_lowered: dict[str, dict[str, Any]] = {}  # by device type
_read_before: dict[Path, dict[str, Any]] = {}  # by file: of chips that were planned and are not loaded yet
_parked: dict[str, LoadedChip] = {}  # loaded before `shutdown`; PyTorch keeps their indices


def load_hcd(path: str | Path) -> hcd.Descriptor:
    """Read and check a descriptor, and keep it for `load_uba`.

    Raises torchfl.DescriptorError with every problem found, each with file, line and column.
    """
    descriptor = hcd.load(path)
    for warning in descriptor.warnings:
        log.warning("%s", warning)
    lowered = descriptor.lower()
    _read[lowered["device_type"]] = lowered
    return descriptor


def load_uba(device_type: str, path: str | Path | None = None) -> LoadedChip:
    """Load the adapter of a chip whose descriptor was read, and make its devices usable.

    `path` is the adapter library; without it the descriptor's `adapter.library` is taken, else `uba_<device_type>*.so`
    or `libuba_<device_type>*.so` beside the descriptor or on `sys.path`.

    Raises torchfl.LoadError if there is no such library, it is refused, or the chip is there through another one.
    """
    _resume()
    if device_type in _loaded:
        there = _loaded[device_type]
        if path is not None and Path(path).resolve() != Path(there.adapter).resolve():
            raise LoadError(
                f"{device_type}: the chip is loaded already, through {there.adapter}; load {path} first, before "
                "anything else asks PyTorch for a device, or in a process of its own"
            )
        return there
    lowered = _read.get(device_type)
    if lowered is None:
        known = ", ".join(_read) or "none"
        raise LoadError(
            f"no descriptor for device type '{device_type}' was read (read: {known}): call load_hcd() first"
        )
    library, style = _adapter_of(device_type, lowered, path)
    return _activate(lowered, library, style)


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
    return _load_file(path)


def _load_file(path: Path) -> LoadedChip:
    lowered = _lowered_file(path)
    _read_before.pop(path, None)
    _read[lowered["device_type"]] = lowered
    return load_uba(lowered["device_type"])


def _lowered_file(path: Path) -> dict[str, Any]:
    """Read, unless it was before; its warnings go to the log once."""
    if path not in _read_before:
        from torchfl.hcd import kept

        _read_before[path] = kept.lowered(path, lambda warning: log.warning("%s", warning))
    return _read_before[path]


def descriptor_for(source: _registry.Source) -> dict[str, Any]:
    """The descriptor of a chip that is to be loaded by `load_sources`."""
    return _lowered_file(source.path)


def init(*chips_to_load: str | Path, device_name: str | None = None) -> list[LoadedChip] | list[PlannedChip]:
    """Load chips: those given; else those whose descriptors lie in the folders of TORCHFL_DEVICE_DIR, and then those
    named in TORCHFL_CHIPS (separated by commas), or, if that is not set, those of installed distributions (entry points
    `torchfl.chips`) and the shipped ones that can be loaded here. Of one device type the first is loaded. Calling it
    again is harmless. Returns all loaded chips.

    Before `import torch` it imports no torch: it reads and checks the descriptors, raises for what is wrong with them,
    and has the chips loaded as soon as torch is imported. Then it returns the chips that are to be, with `name`,
    `device_type` and `descriptor`.

    `device_name` (or TORCHFL_DEVICE_NAME) is what PyTorch calls the device type, instead of the first chip's name: for
    code that was written for another name. Raises LoadError if it cannot be that, or comes too late.
    """
    _device_name.request(device_name)
    wanted = [_registry.Source(str(chip), "the call") for chip in chips_to_load] or _registry.chips()
    if not _before_torch.is_time():
        return _before_torch.plan(wanted)
    planned = _before_torch.take()
    if _loaded:  # what nobody has named does not join chips that somebody chose
        wanted = [source for source in wanted if source.named]
    load_sources([*planned, *wanted])
    return chips()


def load_sources(sources: list[_registry.Source]) -> None:
    """Load chips, the first of each device type. Raises for one that somebody named; others are told of in the log."""
    for source in sources:
        try:
            if source.origin == "the call":
                load(source.chip)
                continue
            lowered = descriptor_for(source)
            here = _loaded.get(lowered["device_type"])
            if here is None:
                _load_file(source.path)
            elif here.descriptor != lowered["descriptor"]:
                log.info(
                    "%s (%s) is passed over: device type '%s' is that of %s (%s) already",
                    *(source.path, source.origin, here.device_type, here.name, here.descriptor),
                )
        except (LoadError, hcd.DescriptorError, engine().LoadError) as error:
            if source.named:
                raise
            log.info("%s is not usable here: %s", source.chip, error)


def chips() -> list[LoadedChip]:
    """The chips of this process, in the order they were loaded. What `init` has put off until `import torch` is loaded
    for it."""
    if planned := _before_torch.take():
        load_sources(planned)
    return list(_loaded.values())


def devices() -> list[dict[str, Any]]:
    """One row for each device of each loaded chip: label, chip, name, memory in bytes, and what it reports of itself.
    Opens the devices."""
    c = engine()
    return [{"index": i, **c.properties(i)} for i in range(c.device_count())]


def shutdown() -> None:
    """Take back everything that was changed in PyTorch: names, modules, methods, hooks, `as_cuda`, loading on demand.
    What runs on the CPU then runs as before. Tensors and devices stay valid, and `init` or `load` makes all work again.

    PyTorch itself keeps that there is a device type and the operators registered for it. Its name is hidden, so that it
    is printed and read as "privateuseone" again, and a module that has no device is left under that name.
    """
    from torchfl import _as_cuda

    _as_cuda.end()
    _autoload.unwatch()
    engine_patches.undo()
    _parked.update(_loaded)
    _loaded.clear()
    _children.forget()
    if _parked:
        from torchfl import _no_device

        _no_device.install(engine())


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


def _adapter_of(device_type: str, lowered: dict[str, Any], path: str | Path | None) -> tuple[Path, str]:
    """The library to open, and how: a vendor's one if pybind modules hold the kernels, else an adapter."""
    if lowered["adapter"]["style"] == "pybind" and path is None and not _has_adapter(device_type, lowered):
        return Path(lowered["adapter"]["runtime"] or ""), "pybind"
    library = _find_library(device_type, lowered, path)
    return library, _style_of(library, lowered)


def _has_adapter(device_type: str, lowered: dict[str, Any]) -> bool:
    """Whether a chip whose descriptor is of the pybind style has an adapter all the same."""
    if lowered["adapter_library"]:
        return not _wrappers.is_module(Path(lowered["adapter_library"]))
    folder = Path(lowered["descriptor"]).parent
    return any(True for pattern in ("uba_", "libuba_") for _ in folder.glob(f"{pattern}{device_type}*.so"))


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


def _activate(lowered: dict[str, Any], library: Path, style: str) -> LoadedChip:
    type_name = _device_name.current() if _loaded else _device_name.choose(lowered["device_type"], lowered["variant"])
    c = engine()
    wrappers: dict[str, dict[str, Any]] = {}
    if style == "pybind":
        c.set_wrapper_errors(_wrappers.told)
        wrappers, modules = _wrappers.load(lowered)
        lowered = _wrappers.known_fallbacks(lowered, wrappers)
    chip = _add(c, lowered, library, style, wrappers)
    if style == "pybind":
        chip.adapter = os.pathsep.join(map(str, modules))
    _attach(chip, lowered, type_name)
    return chip


def _attach(chip: LoadedChip, lowered: dict[str, Any], type_name: str) -> None:
    """Make PyTorch know the chip: names, module, hooks. All that is undone by `shutdown`."""
    import torch

    # They need torch, which reading a descriptor must not import.
    from torchfl import (
        _attention,
        _autocast,
        _compose,
        _device_module,
        _exports,
        _fallbacks,
        _no_device,
        _processes,
        _profiled_name,
        _safetensors,
        _stock_faults,
    )
    from torchfl import compile as _compile

    c = engine()
    device_type = chip.device_type
    is_first = not _loaded
    if is_first:
        _device_name.give(type_name)
        _autoload.unwatch()
        _no_device.patches.undo()
        engine_patches.attribute(torch._C, "_has_torch_fl", True)
        engine_patches.on_undo(c.disengage_names)
        _compose.install(c, _lowered)
        _fallbacks.install(c)
        atexit.unregister(c.finish_autograd)
        atexit.register(c.finish_autograd)
    _lowered[device_type] = lowered
    _autocast.install(c, lowered, chip.first_index, chip.count)
    _budget.install(c, log.warning, device_type, lowered)
    unit = lowered["attention"]
    if unit and unit["enabled"] and unit["beyond"] == "error":
        _attention.install()
    _device_module.register(c, chip, lowered, type_name, is_first=is_first)
    if is_first:
        _device_name.show(c, device_type)
        if _device_name.shown():
            _profiled_name.install(engine_patches, _device_name.shown())
    _loaded[device_type] = chip
    if chip.count > 0:
        _stock_faults.install(engine_patches)
        if lowered["host_memory"] != "copy" or os.environ.get("TORCHFL_HOST_MEMORY"):
            _exports.install(c, engine_patches)
    if is_first:
        _processes.install(c, engine_patches)
        _safetensors.install()
        engine_patches.on_undo(_safetensors.remove)
        _compile.install()
        engine_patches.on_undo(_compile.remove)
    _children.remember(chip.descriptor for chip in _loaded.values())


def _add(
    c: ModuleType, lowered: dict[str, Any], library: Path, style: str, wrappers: dict[str, dict[str, Any]]
) -> LoadedChip:
    """Open the adapter and count its devices, for good."""
    import torch

    info = c.add_chip(lowered, str(library) if library.name else "", style, wrappers)
    chip = LoadedChip(
        name=info["name"],
        device_type=lowered["device_type"],
        count=info["count"],
        first_index=info["first_index"],
        descriptor=lowered["descriptor"],
        adapter=info["adapter"] if style == "c" else str(library),
        adapter_version=info["adapter_version"],
        sdk_version=info["sdk_version"],
        abi=info["abi"],
        missing_kernels=info["missing_kernels"],
    )
    for index in range(chip.first_index, chip.first_index + chip.count):
        # As on CUDA, a seed that was set before there was a device is the device's, too.
        c.default_generator(index).manual_seed(torch.initial_seed())
    if chip.missing_kernels:
        log.warning(
            "%s: the descriptor names kernels that %s, so those rows are passed over: %s",
            chip.name,
            "no wrapper module has" if style == "pybind" else f"{library.name} does not have",
            ", ".join(sorted(set(chip.missing_kernels))),
        )
    return chip


def _resume() -> None:
    """Give the chips that were there before `shutdown` back their names, in their order: PyTorch kept their indices."""
    parked = sorted(_parked.values(), key=lambda chip: chip.first_index)
    _parked.clear()
    for chip in parked:
        lowered = _lowered[chip.device_type]
        _attach(chip, lowered, _device_name.choose(chip.device_type, lowered["variant"]))


def lowered_of(chip: LoadedChip) -> dict[str, Any]:
    """The descriptor of a loaded chip as the engine has it."""
    return _lowered[chip.device_type]
