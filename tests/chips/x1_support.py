"""The second origin document's device folder, built as the document says, and a program run with it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers import ROOT, Ran, environment

FILES = Path(__file__).parent / "walkthrough_x1"
#: The document's files by the start of their SHA-256.
DIGESTS = {"main.py": "63bb45a19c896e1e", "x1_device.yaml": "a84a195b222fe137", "x1_wrapper.cpp": "a9fb649a82b19b7c"}
BUILD = Path(sys.executable).parent / "torchfl-build"


def sdk() -> Path:
    from torchfl._paths import sdk_dir

    return sdk_dir("x1")


def variables(**changes: str) -> dict[str, str]:
    """What `torchfl sdk-env x1` sets, as far as the device file names it."""
    return {"X1_LIB_PATH": str(sdk() / "lib"), "X1_INCLUDE_PATH": str(sdk() / "include"), **changes}


def build(source: Path, folder: Path, name: str, *more: str) -> Path:
    """Builds a wrapper module by the document's own line into `folder`, unless these very sources were before."""
    import torch

    runtime = sdk() / "lib" / "x1_runtime.so"
    digest = hashlib.sha256(f"{torch.__version__} {more}".encode())
    for path in (source, sdk() / "include" / "x1_runtime.h", ROOT / "torchfl" / "cli" / "toolchain.py"):
        digest.update(path.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / "built"
        if not (built.exists() and built.read_text() == digest.hexdigest() and list(folder.glob(f"{name}.*.so"))):
            if source.parent != folder:
                shutil.copy(source, folder)
            command = [BUILD, "--name", name, "--sources", source.name, "--link", str(runtime), *more]
            ran = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
            assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
            built.write_text(digest.hexdigest())
    return next(iter(folder.glob(f"{name}.*.so")))


def device_folder(folder: Path, module: Path, text: str | None = None) -> Path:
    """A folder for TORCHFL_DEVICE_DIR: a device file (the document's), and a wrapper module."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x1_device.yaml").write_text(text if text is not None else (FILES / "x1_device.yaml").read_text())
    shutil.copy(module, folder)
    return folder


def run(code: str, folder: Path | None, *, timeout: float = 200, **env: str) -> Ran:
    """Runs Python code with `folder` as TORCHFL_DEVICE_DIR."""
    if folder is not None:
        env = {"TORCHFL_DEVICE_DIR": str(folder), **env}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(**variables(**env)), capture_output=True, text=True, timeout=timeout
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def told(ran: Ran) -> dict[str, object]:
    """What a program printed as its last line, in JSON."""
    assert ran.code == 0, ran.out[-2000:] + ran.err[-4000:]
    answer: dict[str, object] = json.loads(ran.out.splitlines()[-1])
    return answer


def log_lines(err: str) -> list[str]:
    """The lines of the log, without what the descriptor's legacy forms are told as."""
    lines = err.splitlines()
    noise = re.compile(r"HCD0|^\s*\^|^hint: |^\s*[a-z_]+: |^\s*- ")
    return [line for line in lines if line and not noise.search(line)]
