"""From what a user types for a chip to descriptors and loaded chips.

Contract: a chip is named by a shipped chip's name, a descriptor file, or a folder that holds one. `descriptor_of` opens
nothing; `load_all` loads adapters, and so imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchfl._registry import SUFFIXES, stated_type
from torchfl.errors import LoadError

if TYPE_CHECKING:
    from torchfl._engine import LoadedChip
    from torchfl._registry import Source


def shipped(on_request: bool = True) -> dict[str, Path]:
    """Descriptors of the shipped chips by name, with or without those that are loaded only where they are named; empty
    if the native part is not built."""
    from torchfl._paths import shipped_chips

    try:
        return shipped_chips(on_request)
    except LoadError:
        return {}


def descriptor_of(chip: str) -> Path:
    """The descriptor file meant by `chip`.

    Raises LoadError if it is neither a file, nor a folder with a descriptor, nor a shipped chip's name.
    """
    path = Path(chip)
    if path.is_dir():
        return in_folder(path)
    if path.exists() or path.suffix in SUFFIXES or "/" in chip:
        return path  # a missing file is the descriptor reader's to report
    known = shipped()
    if chip not in known:
        names = ", ".join(known) or "none: the native part is not built"
        raise LoadError(f"no chip '{chip}': neither a file, a folder nor a shipped chip (shipped: {names})")
    return known[chip]


def in_folder(folder: Path) -> Path:
    """The descriptor in a chip's folder: the one named like it, else the only one."""
    for suffix in SUFFIXES:
        named = folder / f"{folder.absolute().name}{suffix}"
        if named.is_file():
            return named
    found = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        raise LoadError(f"{folder}: no descriptor (*.yaml, *.hcd) in this folder; `torchfl new NAME` makes one")
    raise LoadError(f"{folder}: several descriptors ({', '.join(p.name for p in found)}); name the one you mean")


def load_all(chips: list[str]) -> tuple[list[LoadedChip], dict[str, str]]:
    """Load the chips named; without names those that `torchfl.init()` loads.

    Returns the loaded chips, and the reason for each that nobody asked for and that could not be. A chip that was asked
    for, by name or in the environment, and cannot be loaded raises.
    """
    import torchfl
    from torchfl._registry import chips as sources

    if chips:
        for descriptor in [descriptor_of(chip) for chip in chips]:  # all names first, as loading takes seconds
            torchfl.load(descriptor)
        return torchfl.chips(), {}
    refused: dict[str, str] = {}
    for source in sources():
        if any(loaded.device_type == stated_type(source.path) for loaded in torchfl.chips()):
            continue
        try:
            torchfl.load(source.path)
        except Exception as error:
            from torchfl.cli.console import expected

            text = expected(error)
            if text is None or source.named:
                raise
            refused[name_of(source)] = text.removeprefix("error: ")
    return torchfl.chips(), refused


def name_of(source: Source) -> str:
    """What the commands call a chip: a shipped one by its folder, another as it was named, or by its file."""
    from torchfl._paths import shipped_chips

    return next((name for name, path in shipped_chips().items() if path == source.path), source.chip)


def bytes_text(count: Any) -> str:
    """A number of bytes as people say it; "?" for unknown (0 or None)."""
    if not count:
        return "?"
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"
