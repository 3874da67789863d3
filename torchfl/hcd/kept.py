"""Descriptors that were read before: what the engine needs of one, without reading YAML again.

Contract: `lowered(path)` gives what `load(path).lower()` gives. It is kept on disk with a digest of every file that was
read for it (the descriptor and its parents), the environment variables that they name, and the version of the reader;
if any differs, or something was worth a warning, the descriptor is read anew. Reading one takes a tenth of a second,
most of it for pydantic and YAML, which a process that only uses chips then never imports. No failure of the disk is an
error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl.hcd.diagnostics import Diagnostic

#: Descriptors kept; the ones used longest ago go first.
MOST_FILES = 32

_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")


def lowered(path: str | Path, warn: Callable[[Diagnostic], object]) -> dict[str, Any]:
    """The descriptor at `path`, lowered. `warn` gets each of its warnings.

    Raises torchfl.DescriptorError as `load` does.
    """
    from torchfl._paths import cache_dir

    at = os.path.normpath(Path(path).absolute())
    folder = cache_dir("descriptors")
    file = folder / (hashlib.sha256(at.encode()).hexdigest()[:32] + ".json") if folder is not None else None
    if file is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            kept = json.loads(file.read_bytes())
            if kept["state"] == _state(kept["files"], kept["variables"]):
                os.utime(file)
                return dict(kept["lowered"])
    from torchfl.hcd.reader import load

    descriptor = load(path)
    result = descriptor.lower()
    for warning in descriptor.warnings:
        warn(warning)
    if file is not None and not descriptor.warnings:
        files = sorted(descriptor.files.values())
        with contextlib.suppress(OSError):
            texts = "".join(Path(name).read_text(errors="replace") for name in files)
            variables = sorted(set(_NAMED.findall(texts)))
            kept = {"files": files, "variables": variables, "state": _state(files, variables), "lowered": result}
            _write(file, json.dumps(kept, separators=(",", ":")))
    return result


def _state(files: list[str], variables: list[str]) -> str:
    """A digest of all that the result depends on."""
    from torchfl import __version__

    state = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        about = path.stat()
        state.update(f"{path.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    for name in files:
        state.update(f"{name}\n".encode())
        state.update(hashlib.sha256(Path(name).read_bytes()).digest())
    for name in variables:
        state.update(f"{name}={os.environ.get(name)!r}\n".encode())
    return state.hexdigest()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".", suffix=".tmp", delete=False) as temporary:
        temporary.write(text)
    os.replace(temporary.name, file)  # noqa: PTH105
    for old in sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
        old.unlink(missing_ok=True)
