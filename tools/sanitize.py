"""Build everything below PyTorch without torch, under AddressSanitizer and UBSan, and run its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    bin_dir = Path(sys.executable).parent
    build = ROOT / "build" / "sanitize"
    configure = [
        str(bin_dir / "cmake"), "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={bin_dir / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}",
        "-DTORCHFL_WITH_TORCH=OFF", "-DTORCHFL_SANITIZE=ON", "-DTORCHFL_TESTS=ON", "-DNPU_BUILD_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    ]  # fmt: skip
    for command in (
        configure,
        [str(bin_dir / "cmake"), "--build", str(build)],
        [str(bin_dir / "ctest"), "--test-dir", str(build), "--output-on-failure"],
    ):
        code = subprocess.run(command).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
