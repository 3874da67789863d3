"""Programs on disk, so that an operator is traced once, not once a process.

Contract: a key names all that a program depends on; a file holds the programs of one key. Files are replaced whole
(`os.replace`), so readers in other processes see an old or a new one, never half of one. A file that cannot be read, is
of another format or another key is as good as absent. No failure of the disk is ever an error: it costs a trace.

The folder is `TORCHFL_CACHE_DIR`, else `torchfl` in the user's cache folder; an empty value turns the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchfl._paths import cache_dir
from torchfl.compose.program import FORMAT, Program

MOST_BYTES = 64 << 20
_CHECK_EVERY = 64  # writes between looks at the size of the folder


def default_folder() -> Path | None:
    """Where programs are kept; None if nowhere."""
    return cache_dir("programs")


class ProgramCache:
    """`fingerprint` tells all of the target and of the versions of torch and this package that programs depend on."""

    def __init__(self, fingerprint: str, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.fingerprint = fingerprint
        self.most_bytes = most_bytes
        self.hits = self.misses = self.writes = 0
        with contextlib.suppress(RuntimeError, OSError):  # no home folder
            folder = folder or default_folder()
        self.folder = folder

    def _key(self, op: str, signature: str) -> str:
        return "\n".join([str(FORMAT), self.fingerprint, op, signature])

    def _path(self, key: str) -> Path | None:
        if self.folder is None:
            return None
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / (name[2:] + ".json")

    def _read(self, path: Path, key: str) -> list[Program]:
        try:
            data = json.loads(path.read_bytes())
            if data["key"] != key:
                return []
            return [Program.from_dict(d) for d in data["programs"]]
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return []

    def get(self, op: str, signature: str) -> list[Program]:
        """The programs kept for the call; they differ in the values of the numbers that they depend on."""
        key = self._key(op, signature)
        path = self._path(key)
        found = self._read(path, key) if path is not None else []
        if found:
            self.hits += 1
            with contextlib.suppress(OSError):
                os.utime(path)  # type: ignore[arg-type]  # the oldest go first
        else:
            self.misses += 1
        return found

    def put(self, op: str, signature: str, programs: list[Program]) -> None:
        """Keeps these programs for the call, in place of what was kept."""
        key = self._key(op, signature)
        path = self._path(key)
        if path is None:
            return
        text = json.dumps({"key": key, "programs": [p.to_dict() for p in programs]}, separators=(",", ":"))
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
                temporary = file.name
                file.write(text)
            os.replace(temporary, path)  # noqa: PTH105
        except OSError:
            if temporary:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
            return
        self.writes += 1
        if self.writes % _CHECK_EVERY == 1:
            self.trim()

    def trim(self) -> None:
        """Removes the files used longest ago until three quarters of the allowed size are left."""
        files = list(self._files())
        total = sum(size for _, size, _ in files)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(files, key=lambda f: f[0]):
            if total <= self.most_bytes * 3 // 4:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                state = path.stat()
                yield state.st_mtime, state.st_size, path


def fingerprint(target_text: str) -> str:
    """All that programs of a target depend on. `target_text`: its instructions with their dtypes, its kernels with
    their conditions, its rank. The composer's own files count too: after a change in them no old program answers."""
    import torch

    import torchfl

    here = Path(__file__).parent
    state = hashlib.sha256()
    for path in sorted([*here.glob("*.py"), *here.glob("own/*.py")]):
        with contextlib.suppress(OSError):
            about = path.stat()
            state.update(f"{path.name} {about.st_size} {about.st_mtime_ns}".encode())
    return f"{target_text}|torch {torch.__version__}|torchfl {torchfl.__version__} {state.hexdigest()[:16]}"
