"""What `import torch` runs, by the entry point `torch.backends`: from then on the names of installed chips work.

Contract: `start` registers names only, in a few milliseconds; no chip is opened and no engine loaded before a name is
used: in a device string, as `torch.<name>`, in a file that `torch.load` reads, or by asking `torch.accelerator` which
accelerator there is. Then all chips are loaded as `torchfl.init()` would. Nothing that is wrong here may break
`import torch`: it costs the names, and one line in the log. `TORCHFL_AUTOLOAD=0` turns it off, as
`TORCH_DEVICE_BACKEND_AUTOLOAD=0` does for every backend. In a process that was started to take CUDA's names
(`TORCHFL_AS_CUDA=1`: children of one that does) they are switched on at once.

Imports the standard library only, as it is imported with torch everywhere.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import Any

SWITCH = "TORCHFL_AUTOLOAD"

log = logging.getLogger("torchfl")

_names: dict[str, str] = {}  # name of a device type -> its descriptor; "" for one that all chips share
_failed: set[str] = set()
_lock = threading.RLock()
_resolving = False  # what is asked for on the way is not for us
_patches: Any = None
_kept: list[Any] = []  # what native code holds pointers to

#: Why the names cannot be used, if something went wrong.
_trouble = ""

#: Set while the engine itself imports torch: then there is nothing to wait for.
engine_is_coming = False


def start() -> None:
    """The entry point. Never raises."""
    global _trouble
    try:
        _trouble = _start()
    except Exception as error:
        _trouble = f"{type(error).__name__}: {error}"
    if _trouble:
        log.warning("devices are not available by import torch alone: %s (`torchfl doctor`)", _trouble.split("\n")[0])


def _start() -> str:
    """Returns why the names cannot be used; "" if they can, or should not."""
    if os.environ.get(SWITCH, "1") == "0" or _patches is not None:
        return ""
    from torchfl._children import AS_CUDA

    if os.environ.get(AS_CUDA) == "1":
        from torchfl import _as_cuda, _native

        _native.check_torch_version()
        _as_cuda.as_cuda()
        return ""
    if engine_is_coming:
        return ""
    import torch

    from torchfl._native import mismatch

    return mismatch(torch.__version__) or _watch(torch, names())


def names() -> dict[str, str]:
    """Device types of the chips that `torchfl.init()` would load, as their descriptors state them, with those."""
    from torchfl import _device_name, _registry

    found: dict[str, str] = {}
    for source in _registry.chips(say=False):
        name = _registry.stated_type(source.path)
        if name:
            found.setdefault(name, source.chip)
    chosen = _device_name.requested()
    if chosen is not None:
        found[chosen] = ""
    return found


def _watch(torch: Any, chips: dict[str, str]) -> str:
    """Have `resolve` called when one of the names is used. Returns why that cannot be."""
    global _patches
    if torch.xpu._is_compiled():
        chips.pop("xpu", None)  # such a build keeps it
    if not chips:
        return ""
    import ctypes

    from torchfl._patches import Patches
    from torchfl._paths import native_root

    library = ctypes.CDLL(str(native_root() / "_names.so"))
    callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(lambda text: resolve(text.decode()))
    library.torchfl_watch_names.restype = ctypes.c_char_p
    library.torchfl_watch_names.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    patches = Patches()
    reason = library.torchfl_watch_names("".join(f"{name}\n" for name in chips).encode(), callback)
    if reason:
        return str(reason.decode())
    _kept.extend((library, callback))
    patches.on_undo(library.torchfl_unwatch_names)

    stock = vars(torch)["__getattr__"]

    def __getattr__(name: str) -> Any:
        if name in _names and resolve(name) and name in vars(torch):
            return vars(torch)[name]
        return stock(name)

    patches.attribute(torch, "__getattr__", __getattr__)

    if torch._C._accelerator_getAccelerator() is None:
        for function in [name for name in dir(torch._C) if name.startswith("_accelerator_")]:
            patches.attribute(torch._C, function, _wanted(getattr(torch._C, function)))

    def restore(storage: Any, location: str) -> Any:
        if location.partition(":")[0] not in _names or not resolve(location):
            return None
        return torch.serialization.default_restore_location(storage, location)

    registry = torch.serialization._package_registry
    torch.serialization.register_package(18, lambda storage: None, restore)
    ours = next(entry for entry in registry if entry[2] is restore)
    patches.on_undo(lambda: registry.remove(ours))
    _names.update(chips)
    _patches = patches
    return ""


def _wanted(stock: Any) -> Any:
    """A function of `torch.accelerator`'s: who calls it wants to use the accelerator."""

    @functools.wraps(stock)
    def function(*args: Any, **kwargs: Any) -> Any:
        if _names:
            resolve(next(iter(_names)))
        return stock(*args, **kwargs)

    return function


def unwatch() -> None:
    """From here on names are those of the chips that were loaded."""
    global _patches
    patches, _patches = _patches, None
    _names.clear()
    if patches is not None:
        patches.undo()


def resolve(text: str) -> int | None:
    """Load the chips, for the first use of a name. Returns the address of the engine's parser of device strings, or
    None if the name means nothing here; then the log says why."""
    global _resolving
    from torchfl import _device_name

    with _lock:  # another thread waits, and finds the chips loaded
        name = text.partition(":")[0]
        if name in _failed or _resolving or name == _device_name.current():
            return None  # the last is another backend's device type
        _resolving = True
        chip = _names.get(name, "")
        try:
            import torchfl
            from torchfl._native import engine

            torchfl.init()
            if chip and all(loaded.device_type != name for loaded in torchfl.chips()):
                torchfl.load(chip)
            return int(engine().device_parser())
        except Exception as error:
            _failed.add(name)
            log.warning("'%s' is not usable here: %s", text, error)
            return None
        finally:
            _resolving = False


def state() -> tuple[str, list[str]]:
    """For `torchfl doctor`, once torch is imported: what stands in the way of the names, if anything, and the names."""
    from importlib.metadata import entry_points

    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0 turns it off", []
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD turns it off", []
    if not any(entry.value == f"{__name__}:start" for entry in entry_points(group="torch.backends")):
        return "this installation has no entry point 'torch.backends': reinstall flagos-torchfl", []
    return _trouble, sorted(_names)
