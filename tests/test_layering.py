"""The layers of the source tree: each part may include or import only what lies below it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch/|ATen/|c10/|caffe2/|pybind11/|Python\.h)")
CODE = {".c", ".cc", ".cpp", ".h", ".hpp"}


def sources(*folders: str) -> list[Path]:
    found = [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in CODE]
    assert found, folders
    return found


def includes(path: Path) -> list[str]:
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sources("csrc/core", "include", "sdk"), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_below_the_pytorch_side_includes_torch(path: Path) -> None:
    if path.name.startswith("uba_aten"):
        return  # for adapters that are written against ATen
    assert [name for name in includes(path) if TORCH.match(name)] == []


@pytest.mark.parametrize("path", sources("chips"), ids=lambda p: str(p.relative_to(ROOT)))
def test_adapters_see_the_abi_their_sdk_and_the_standard_library_only(path: Path) -> None:
    own = {p.name for p in path.parent.rglob("*.h")} | {f"{p.stem}.inc" for p in path.parent.glob("*.cl")}
    sdk_headers = {p.name for p in (ROOT / "sdk").rglob("include/*.h")} | {"CL/cl.h"}
    for name in includes(path):
        standard = name.removeprefix("sys/").count("/") == 0 and (name.endswith(".h") or "." not in name)
        if path.parent.name == "host" and TORCH.match(name):
            continue  # the chip whose SDK is PyTorch's CPU library
        assert (
            name in {"torchfl/uba.h", "torchfl/uba_aten.h", "torchfl/uba_aten_call.h", "kit/kit.h"}
            or name in sdk_headers | own
            or standard
        ), name


@pytest.mark.parametrize("path", sources("kit"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_kit_sees_the_abi_and_the_standard_library_only(path: Path) -> None:
    own = {p.name for p in path.parent.glob("*.h")} | {p.with_suffix(".inc").name for p in path.parent.glob("*.cl")}
    for name in includes(path):
        standard = "/" not in name and (name == "unistd.h" or "." not in name)
        assert name == "torchfl/uba.h" or name in own or standard, name


def test_the_kit_knows_no_sdk() -> None:
    names = re.compile(r"\b(cl_\w+|cl[A-Z]\w+|CL_\w+|__(?:kernel|global|local)|cu[A-Z]\w+|hip[A-Z]\w+)\b")
    for path in sorted((ROOT / "kit").iterdir()):
        assert names.findall(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize("path", sources("sdk"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_sdks_know_nothing_of_torchfl(path: Path) -> None:
    text = path.read_text(encoding="utf-8").lower()
    assert "torchfl" not in text and "uba_" not in text and "torch-fl" not in text


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def test_the_descriptor_reader_imports_no_torch() -> None:
    for path in sorted((ROOT / "torchfl" / "hcd").rglob("*.py")):
        assert "torch" not in imported_modules(path), path


def test_importing_the_package_imports_neither_torch_nor_native_code() -> None:
    code = (
        "import sys, torchfl, torchfl.hcd; torchfl.hcd.load; print('torch' in sys.modules, 'torchfl._C' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_few_compilations_include_torch_headers() -> None:
    # Each costs half a minute. Files are compiled several at a time.
    text = (ROOT / "csrc" / "aten" / "CMakeLists.txt").read_text(encoding="utf-8")
    batch = re.search(r"UNITY_BUILD_BATCH_SIZE (\d+)", text)
    assert batch is not None
    assert len([*(ROOT / "csrc" / "aten").glob("*.cpp")]) <= 12 * int(batch.group(1))


def test_the_adapter_of_npu_v3_stays_small() -> None:
    lines = (ROOT / "chips" / "npu_v3" / "uba_npu_v3.c").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 450  # with the whole instruction set; see also tests/chips


def test_the_abi_header_stays_small() -> None:
    assert len((ROOT / "include" / "torchfl" / "uba.h").read_text(encoding="utf-8").splitlines()) <= 400
