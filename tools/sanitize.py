"""Run what is C and C++ here under AddressSanitizer (and, below PyTorch, UBSan).

    python tools/sanitize.py           everything below PyTorch, built without torch, with its tests
    python tools/sanitize.py --soak    the whole engine inside a Python that trains (tests/soak/soak.py)

PyTorch itself is not instrumented, so leaks are not looked for in the second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
#: The editable install's finder would offer the uninstrumented build first.
_RUN = """
import runpy, sys
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, sys.argv.pop(1))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def configure(build: Path, *options: str) -> list[str]:
    return [
        str(BIN / "cmake"), "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options,
    ]  # fmt: skip


def run(*commands: list[str], env: dict[str, str] | None = None) -> int:
    for command in commands:
        code = subprocess.run(command, env=env).returncode
        if code != 0:
            return code
    return 0


def below_pytorch() -> int:
    build = ROOT / "build" / "sanitize"
    return run(
        configure(
            build, "-DTORCHFL_WITH_TORCH=OFF", "-DTORCHFL_SANITIZE=ON", "-DTORCHFL_TESTS=ON", "-DNPU_BUILD_TESTS=ON"
        ),
        [str(BIN / "cmake"), "--build", str(build)],
        [str(BIN / "ctest"), "--test-dir", str(build), "--output-on-failure"],
    )


def soak(steps: int) -> int:
    build = ROOT / "build" / "sanitize-torch"
    flags = "-fsanitize=address -fno-omit-frame-pointer"
    site = build / "site"
    code = run(
        configure(build, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"),
        [str(BIN / "cmake"), "--build", str(build)],
        [str(BIN / "cmake"), "--install", str(build), "--prefix", str(site)],
    )
    if code != 0:
        return code
    shutil.copytree(ROOT / "torchfl", site / "torchfl", dirs_exist_ok=True)
    # The C++ runtime too: the sanitizer looks for what it wraps of it when it starts, and Python is not linked to it.
    runtime = ":".join(
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    )
    env = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
        "NPU_SIM_DEVICES": "2",
    }
    start = [sys.executable, "-c", _RUN, str(site), str(ROOT / "tests" / "soak" / "soak.py")]
    return run(
        [*start, "train", "--steps", str(steps), "--shapes", "4"], [*start, "threads", "--seconds", "10"], env=env
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    given = parser.parse_args()
    return soak(given.steps) if given.soak else below_pytorch()


if __name__ == "__main__":
    raise SystemExit(main())
