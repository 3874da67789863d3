"""Which chips this process is to have, when nobody names them in code.

Contract: `chips()` gives the sources in the order in which they are loaded, without reading a descriptor, and imports
neither torch nor native code. The parent's chips stand alone in a process that was started by one with chips. Else:

1. descriptors in the folders of `TORCHFL_DEVICE_DIR` (several: separated as in PATH; a file stands for itself);
2. the chips named in `TORCHFL_CHIPS`; or, if it is not set,
   those of installed distributions (entry points `torchfl.chips`), and the shipped ones.

Of one device type the first is taken. Shipped chips are simulations: where `TORCHFL_DEVICE_DIR` is set and holds no
descriptor they do not stand in for the device that somebody wanted. A source that somebody named must be loadable.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchfl import _children
from torchfl._paths import shipped_chips

FOLDERS = "TORCHFL_DEVICE_DIR"
CHIPS = "TORCHFL_CHIPS"
GROUP = "torchfl.chips"
SUFFIXES = (".yaml", ".yml", ".hcd")

log = logging.getLogger("torchfl")


@dataclass(frozen=True)
class Source:
    """Where a chip comes from. `named`: somebody wants this one, so that it is an error if it cannot be loaded."""

    chip: str  # path of a descriptor, or a shipped chip's name
    origin: str  # "TORCHFL_DEVICE_DIR", "TORCHFL_CHIPS", "the parent process", "flagos-x1 1.0", "shipped"
    named: bool = True

    @property
    def path(self) -> Path:
        path = Path(self.chip)
        return path if path.suffix or path.exists() else shipped_chips().get(self.chip, path)


def chips(say: bool = True) -> list[Source]:
    """The sources, in order. `say`: what is strange about the folders goes to the log."""
    parents = _children.chips()
    if parents and not os.environ.get(CHIPS):
        return [Source(chip, "the parent process") for chip in parents]
    found, empty = _of_folders(say)
    named = [name.strip() for name in os.environ.get(CHIPS, "").split(",") if name.strip()]
    if named:
        return found + [Source(name, CHIPS) for name in named]
    found += _installed(say)
    if not (empty and not found):
        found += [Source(str(path), "shipped", named=False) for path in shipped_chips(on_request=False).values()]
    return found


def folders() -> list[Path]:
    """The folders (and files) of TORCHFL_DEVICE_DIR."""
    return [Path(entry).expanduser() for entry in os.environ.get(FOLDERS, "").split(os.pathsep) if entry]


def _of_folders(say: bool) -> tuple[list[Source], bool]:
    """What the folders hold, and whether there are folders, and all are empty."""
    found: list[Source] = []
    for folder in folders():
        here = descriptors_in(folder)
        found += [Source(os.path.normpath(path.absolute()), FOLDERS) for path in here]
        if not here and say:
            what = "" if folder.is_dir() else f" ({'not a folder' if folder.exists() else 'there is no such folder'})"
            log.warning("No device YAML found in %s%s: check %s", folder, what, FOLDERS)
    return found, bool(folders()) and not found


def descriptors_in(folder: Path) -> list[Path]:
    """The descriptors in a folder, by name; other YAML files (compose files, say) are passed over."""
    if folder.is_file():
        return [folder]
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError:
        return []
    return [path for path in files if _is_descriptor(path)]


_KEYS = re.compile(r"^(hcd|chip|device_type|extends|compute_units|supported_ops|capabilities)\s*:", re.MULTILINE)


def _is_descriptor(path: Path) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return True  # to be told as the file that cannot be read
    if path.suffix == ".hcd" or _KEYS.search(text):
        return True
    log.info("%s is passed over: it has none of a descriptor's keys", path)
    return False


def _installed(say: bool) -> list[Source]:
    """Chips of installed distributions: entry points that are a descriptor's path, a folder, several of these, or a
    function that returns them. A module stands for its folder."""
    from importlib.metadata import entry_points

    found: list[Source] = []
    for entry in entry_points(group=GROUP):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        try:
            for path in _paths(entry.load()):
                found += [Source(str(file), origin, named=False) for file in descriptors_in(path)]
        except Exception as error:
            if say:
                log.warning(
                    "the chips of %s are not available: its entry point %s (%s) failed: %s: %s",
                    *(origin, entry.name, entry.value, type(error).__name__, error),
                )
    return found


def _paths(value: Any) -> Iterator[Path]:
    if callable(value):
        value = value()
    if hasattr(value, "__spec__"):  # a module
        yield Path(str(value.__file__)).parent
    elif isinstance(value, (str, os.PathLike)):
        path = Path(value)
        if not path.is_absolute():
            raise ValueError(f"'{path}' is relative, and to what is not known")
        yield path
    elif isinstance(value, Iterable):
        for one in value:
            yield from _paths(one)
    else:
        raise TypeError(f"a {type(value).__name__} is no path")


_TYPE = re.compile(r"\bdevice_type\s*:\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)")
_PARENT = re.compile(r"^extends\s*:\s*[\"']?([^\"'\s$]+)", re.MULTILINE)


def stated_type(path: Path, depth: int = 4) -> str:
    """What a descriptor, or its parent, writes as `device_type`, up to a colon. A hint: loading reads it properly."""
    try:
        text = re.sub(r"(^|\s)#.*", "", path.read_text())
    except (OSError, ValueError):
        return ""
    stated = _TYPE.search(text)
    if stated:
        return stated.group(1)
    parent = _PARENT.search(text)
    return stated_type(path.parent / parent.group(1), depth - 1) if parent and depth else ""
