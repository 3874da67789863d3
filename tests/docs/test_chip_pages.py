"""docs/chips: made from the descriptors, current, and with all that a descriptor says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from torchfl import hcd
from torchfl.pages import chip

ROOT = Path(__file__).resolve().parents[2]
CHIPS = chip.shipped(ROOT / "chips")
EVERYTHING = """
hcd: 1
chip: {name: All, vendor: Somebody, version: 1.2.3, device_type: all_of_it, description: Has one of each}
compute_units:
  fp16: {count: 4, peak: 1.5 TFLOP/s, clock: 1 GHz}
  attention: {max_sequence_length: 4096, supported_heads: [2, 4]}
memory: {on_chip_cache: {size: 2 MiB}, off_chip_memory: {size: 3 GiB, bandwidth: 7 GB/s, latency: 90 ns}}
tensor: {supported_dtypes: [float16], max_rank: 5, on_unsupported_dtype: error}
constraints: {max_batch_size: 77}
power: {cap: 12 W}
ops:
  - {op: [aten::add, aten::sub], kernel: "k_{op}", dtypes: [float16], where: {alpha: 1}, why: no factor}
  - op: aten::mm
    paths:
      - {kernel: k_small, where: {K: {max: 64, multiple_of: 8, why: it is small}}}
      - {kernel: k_large}
  - {op: aten::conv2d, kernel: k_conv, where: {transposed: false}}
instructions: [vadd, {op: vmul, kernel: "i_{op}"}]
fusions: [{name: mm_relu, ops: [aten::mm, aten::relu], kernel: k_mm_relu}]
fallback: {default: cpu, ops: {"aten::softmax": k_softmax}}
overheads: {launch: 3 us}
provenance: {source: a | data sheet}
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chip_pages", ROOT / "tools" / "chip_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current(tool: ModuleType) -> None:
    outdated = [path.name for path in tool.outdated(tool.pages())]
    assert not outdated, f"{outdated} differ from what the descriptors say: run `make pages`"


@pytest.mark.parametrize("name", CHIPS)
def test_a_page_names_every_operator_instruction_and_chain(name: str) -> None:
    descriptor = hcd.load(CHIPS[name])
    text = chip.render(descriptor)
    model = descriptor.model
    for op in [*(o.op for o in model.ops), *(i.op for i in model.instructions or [])]:
        assert f"`{op}`" in text, op
    for dtype in model.tensor.supported_dtypes:
        assert dtype in text
    for fusion in model.fusions or []:
        assert f"`{fusion.kernel}`" in text
    assert str(ROOT) not in text


def test_all_that_a_descriptor_says_is_on_its_page(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "all.yaml"
    path.parent.mkdir()
    path.write_text(EVERYTHING, encoding="utf-8")
    text = chip.render(hcd.load(path))
    for wanted in (
        "# All", "Has one of each.", "| device | `all_of_it` |", "| version | 1.2.3 |", "are refused", "| dimensions | at most 5 |",
        "| fp16 | 4 | 1.5 TFLOP/s | clock: 1 GHz |", "| on-chip cache | 2 MiB | unknown |", "| memory | 3 GiB | 7 GB/s | latency: 90 ns",
        "| max batch size | 77 |", "| attention: supported heads | 2, 4 |", "| power, cap | 12 W |",
        "| `aten::add`, `aten::sub` | `k_{op}` | float16 | alpha is 1; no factor |",
        "| `aten::mm` | `k_small`, `k_large` | all of the chip's | k_small: K is at most 64 and is a multiple of 8 (it is small) |",
        "| `aten::conv2d` | `k_conv` | all of the chip's | transposed is false |", "| `vadd` | `{op}` |", "| `vmul` | `i_{op}` |", "| `aten::mm`, `aten::relu` | `k_mm_relu` |",
        "What has no kernel runs on the CPU.", "| `aten::softmax` | `k_softmax` |", "| launch | 3 us |", "| source | a \\| data sheet |",
        "edit mine/all.yaml",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "bfloat16 emulation" not in text and "{%" not in text


def test_a_page_that_is_out_of_date_is_told(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone.md").write_text("of a chip that is no more")
    (tmp_path / "kept.md").write_text("text")
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    wanted = {tmp_path / "kept.md": "text", tmp_path / "new.md": "text"}
    assert [path.name for path in tool.outdated(wanted)] == ["new.md", "gone.md"]
