"""Where the installed pieces lie: extension, chips, simulated SDKs, headers.

Contract: works for a wheel and for an editable install alike, without importing the extension. CMake installs into
the folder that holds the extension; CMakeLists.txt knows the same names.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path

from torchfl.errors import LoadError


@functools.cache
def native_root() -> Path:
    """The folder that CMake installed into."""
    spec = importlib.util.find_spec("torchfl._build_info")
    if spec is None or spec.origin is None:
        raise LoadError(
            "Torch-FL's native part is not built. In a checkout run `make venv`; else reinstall flagos-torchfl."
        )
    return Path(spec.origin).parent


def get_include() -> str:
    """Folder to compile adapters against: it holds `torchfl/uba.h` and `torchfl/uba_aten.h`."""
    return str(native_root() / "_include")


def chips_dir() -> Path:
    """Folder of the shipped chips, one folder each."""
    return native_root() / "_chips"


def sdk_dir(name: str) -> Path:
    """Root of a simulated SDK (`include/`, `lib/`, `bin/`)."""
    root = native_root() / "_sdk" / name
    if not root.is_dir():
        known = sorted(p.name for p in root.parent.glob("*")) if root.parent.is_dir() else []
        raise LoadError(f"no simulated SDK '{name}'; there are: {', '.join(known) or 'none'}")
    return root


def cache_dir(kind: str) -> Path | None:
    """Where results of one kind are kept for the next process: in `TORCHFL_CACHE_DIR`, else in `torchfl` in the user's
    cache folder. None if nowhere: an empty value turns it off."""
    named = os.environ.get("TORCHFL_CACHE_DIR")
    if named is not None:
        return Path(named) / kind if named else None
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "torchfl" / kind


#: Shipped chips that are loaded only where they are named: what null gives are no results, and the devices of x1 are
#: called xpu, which libraries look for on their own; to look for OpenCL devices takes time and starts threads; host is
#: what is there already.
ON_REQUEST = frozenset({"host", "host_bf16", "null", "opencl", "x1"})


def shipped_chips(on_request: bool = True) -> dict[str, Path]:
    """Descriptor of every shipped chip by name, with or without those that are loaded only where they are named."""
    found = {}
    if chips_dir().is_dir():
        for folder in sorted(chips_dir().iterdir()):
            descriptor = folder / f"{folder.name}.yaml"
            if descriptor.is_file() and (on_request or folder.name not in ON_REQUEST):
                found[folder.name] = descriptor
    return found
