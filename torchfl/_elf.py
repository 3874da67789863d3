"""What a shared library says of itself, read from the file without loading it.

Contract: `read` gives the dynamic section of a 64-bit little-endian ELF file, and None for every other file, damaged
ones too. Nothing is executed.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from pathlib import Path

_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_NEEDED, _DT_SONAME = 1, 14


@dataclass
class Library:
    """Names as the dynamic linker uses them."""

    soname: str = ""
    needed: list[str] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    undefined: set[str] = field(default_factory=set)


def read(path: str | Path) -> Library | None:
    """The library at `path`; None if it cannot be read as one."""
    try:
        info = Path(path).stat()
        return _read(str(path), info.st_mtime_ns, info.st_size)
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _read(path: str, changed: int, size: int) -> Library | None:
    content = Path(path).read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        return _parse(content)
    except (struct.error, IndexError, ValueError):
        return None


def _parse(content: bytes) -> Library:
    offset = struct.unpack_from("<Q", content, 0x28)[0]
    entry_size, count = struct.unpack_from("<HH", content, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, offset + i * entry_size) for i in range(count)]
    found = Library()
    for _, kind, _, _, start, size, link, _, _, entry in sections:
        if kind not in (_SHT_DYNAMIC, _SHT_DYNSYM) or not entry:
            continue
        strings = sections[link]

        def text(at: int, begin: int = strings[4]) -> str:
            return content[begin + at : content.index(b"\0", begin + at)].decode(errors="replace")

        for at in range(start, start + size, entry):
            if kind == _SHT_DYNAMIC:
                tag, value = struct.unpack_from("<qQ", content, at)
                if tag == _DT_NEEDED:
                    found.needed.append(text(value))
                elif tag == _DT_SONAME:
                    found.soname = text(value)
                continue
            name, _, _, section = struct.unpack_from("<IBBH", content, at)
            if name:
                (found.defined if section else found.undefined).add(text(name))
    return found
