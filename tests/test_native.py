"""Everything below PyTorch, built without it, and its own test programs (core, ABI, simulated SDK, adapters)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def test_core_abi_sdk_and_adapters_build_without_torch_and_pass_their_tests() -> None:
    build = ROOT / "build" / "native-tests"
    configure = [
        str(BIN / "cmake"), "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}",
        f"-DPython_EXECUTABLE={sys.executable}", "-DTORCHFL_WITH_TORCH=OFF", "-DTORCHFL_TESTS=ON", "-DNPU_BUILD_TESTS=ON",
    ]  # fmt: skip
    subprocess.run(configure, check=True, capture_output=True, text=True)
    built = subprocess.run([str(BIN / "cmake"), "--build", str(build)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-6000:] + built.stderr[-2000:]
    warnings = [line for line in built.stdout.splitlines() if "warning:" in line]
    assert warnings == [], "the build is free of warnings:\n" + "\n".join(warnings)
    tested = subprocess.run(
        [str(BIN / "ctest"), "--test-dir", str(build), "--output-on-failure"], capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout[-8000:]
    assert "100% tests passed" in tested.stdout
