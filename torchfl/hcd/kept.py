"""Descriptors that were read before: what the engine needs of one, without reading YAML again.

Contract: `lowered(path)` gives what `load(path).lower()` gives. That is kept in two places: beside each shipped
descriptor, written when the package is installed (`keep_beside`), and for all others in the user's cache. A record has
a digest of every file that was read for it (the descriptor and its parents), of the environment variables that they
name, and of the reader itself; if any differs, or something was worth a warning, the descriptor is read anew. Reading
one takes a tenth of a second, most of it for pydantic and YAML, which a process that only uses chips then never
imports. No failure of the disk is an error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl.hcd.diagnostics import Diagnostic
    from torchfl.hcd.reader import Descriptor

#: Descriptors kept in the cache; the ones used longest ago go first.
MOST_FILES = 32

_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")

#: In a record beside a descriptor it stands for the folder that holds the chips' folders, which is another one where
#: the package is used than where it was built. No JSON text has this character.
_CHIPS = "\x1f"


def lowered(path: str | Path, warn: Callable[[Diagnostic], object]) -> dict[str, Any]:
    """The descriptor at `path`, lowered. `warn` gets each of its warnings.

    Raises torchfl.DescriptorError as `load` does.
    """
    from torchfl._paths import cache_dir

    at = os.path.normpath(Path(path).absolute())
    beside = _beside(at)
    shipped = _find(beside, at, _in_json(beside.parent.parent))
    if shipped is not None:
        return shipped
    folder = cache_dir("descriptors")
    file = folder / (hashlib.sha256(at.encode()).hexdigest()[:32] + ".json") if folder is not None else None
    if file is not None:
        known = _find(file, at)
        if known is not None:
            with contextlib.suppress(OSError):
                os.utime(file)
            return known
    from torchfl.hcd.reader import load

    descriptor = load(path)
    result = descriptor.lower()
    for warning in descriptor.warnings:
        warn(warning)
    if file is not None and not descriptor.warnings:
        with contextlib.suppress(OSError):
            _write(file, _record(at, descriptor, result))
            _forget_oldest(file.parent)
    return result


def keep_beside(path: str | Path) -> Path | None:
    """Writes the record of a descriptor beside it, for all who will use it there: <chips>/<chip>/<name>.yaml and the
    records beside may move as a whole. None, and nothing is written, if it has warnings, or depends on files that are
    not below the folder of the chips.

    Raises torchfl.DescriptorError as `load` does.
    """
    from torchfl.hcd.reader import load

    at = os.path.normpath(Path(path).absolute())
    descriptor = load(at)
    chips = Path(at).parent.parent
    if descriptor.warnings or not all(Path(name).is_relative_to(chips) for name in descriptor.files.values()):
        return None
    text = _record(at, descriptor, descriptor.lower())
    _write(_beside(at), text.replace(_in_json(chips), _CHIPS))
    shutil.copymode(at, _beside(at))
    return _beside(at)


def _beside(at: str) -> Path:
    return Path(at).with_suffix(".lowered.json")


def _in_json(path: Path) -> str:
    return json.dumps(str(path))[1:-1]


def _record(at: str, descriptor: Descriptor, result: dict[str, Any]) -> str:
    files = sorted(descriptor.files.values())
    texts = "".join(Path(name).read_text(errors="replace") for name in files)
    variables = sorted(set(_NAMED.findall(texts)))
    record = {
        "descriptor": at,
        "files": files,
        "variables": variables,
        "state": _state(files, variables),
        "lowered": result,
    }
    return json.dumps(record, separators=(",", ":"))


def _find(file: Path, at: str, chips: str = "") -> dict[str, Any] | None:
    """What the record in `file` has of the descriptor at `at`, if that is still as it was."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        record = json.loads(file.read_text().replace(_CHIPS, chips))
        # A record that was copied with its descriptor may speak of the one that it was copied from.
        if record["descriptor"] == at and record["state"] == _state(record["files"], record["variables"]):
            return dict(record["lowered"])
    return None


def _state(files: list[str], variables: list[str]) -> str:
    """A digest of all that the result depends on."""
    state = hashlib.sha256(_reader().encode())
    for name in files:
        state.update(hashlib.sha256(Path(name).read_bytes()).digest())
    for name in variables:
        state.update(f"{name}={os.environ.get(name)!r}\n".encode())
    return state.hexdigest()


@functools.cache
def _reader() -> str:
    """A digest of the version of the package and of what reads descriptors."""
    from torchfl import __version__

    reader = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in (".py", ".json"):
            reader.update(f"{path.name}\n".encode())
            reader.update(hashlib.sha256(path.read_bytes()).digest())
    return reader.hexdigest()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", suffix=".tmp", delete=False) as temporary:
        temporary.write(text)
    os.replace(temporary.name, file)  # noqa: PTH105


def _forget_oldest(folder: Path) -> None:
    for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
        old.unlink(missing_ok=True)
