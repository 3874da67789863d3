"""`torchfl.UnsupportedOpError` says what is missing and what would help; what it suggests, helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers import run_script

Variant = Callable[..., dict[str, Any]]

_TRY = """
        def attempt(call):
            try:
                return call().cpu().tolist()
            except torchfl.UnsupportedOpError as error:
                return str(error)
"""


def test_the_text_of_the_document_and_its_suggestion(tmp_path: Path) -> None:
    """Second origin document, section 4.4, third layer."""
    from torchfl import hcd
    from torchfl._paths import shipped_chips

    library = hcd.load(shipped_chips()["npu_v3"]).lower()["adapter_library"]
    descriptor = tmp_path / "x1.yaml"
    descriptor.write_text(
        f"""
hcd: 1
chip: {{name: X1-Edge, vendor: SparkAI, version: "1.0", device_type: "xpu:x1"}}
adapter: {{library: {library}}}
tensor: {{supported_dtypes: [float16, float32]}}
constraints: {{memory_alignment_bytes: 256}}
ops:
  - {{op: aten::bmm, kernel: npu_v3_matmul, dtypes: [float16]}}
fallback: {{default: error}}
"""
    )
    done = run_script(
        """
import sys, torch, torchfl
torchfl.load("npu_v3")  # PyTorch does not let the first one be called xpu
torchfl.load(sys.argv[1])
y = torch.ones(2, 3, 3).to("xpu")
try:
    torch.bmm(y, y)
except NotImplementedError as error:
    print(type(error).__module__, type(error).__name__, error, sep="|")
    dtype = getattr(torch, str(error).rpartition("torch.")[2].rstrip("."))
    print((torch.bmm(y.to(dtype), y.to(dtype)).float().cpu() == 3).all().item(), torchfl.stats()[0]["path"])
""",
        str(descriptor),
    )
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "torchfl.errors|UnsupportedOpError|Op 'aten::bmm' not supported on device 'xpu:x1' with dtype 'float32'. "
        "Available dtypes: ['float16']. Suggested fix: cast input to torch.float16.",
        "True native",
    ]


def test_the_widest_dtype_that_really_helps_is_suggested(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - op: aten::exp
            paths:
              - {kernel: npu_v3_exp, dtypes: [float32], where: {numel: {max: 2}}}
              - {kernel: npu_v3_exp, dtypes: [bfloat16]}
        fallback: {default: error}
        """,
        _TRY
        + """
        x, small = torch.zeros(9, dtype=torch.float64, device=D), torch.zeros(2, dtype=torch.float64, device=D)
        texts = [attempt(x.exp), attempt(small.exp)]
        fixed = [attempt(t.to(getattr(torch, text.rpartition("torch.")[2].rstrip("."))).exp)
                 for t, text in zip((x, small), texts)]
        say(texts=texts, fixed=fixed)
        """,
    )
    casts = [re.search(r"cast input to torch\.(\w+)\.$", text) for text in answer["texts"]]
    assert [cast.group(1) for cast in casts if cast] == ["bfloat16", "float32"]
    assert answer["fixed"] == [[1.0] * 9, [1.0] * 2]


def test_a_cast_never_drops_the_imaginary_part(variant: Variant) -> None:
    answer = variant(
        "fallback: {default: error}",
        _TRY + "\n        say(text=attempt(torch.ones(2, dtype=torch.complex64).to(D).exp))\n",
    )
    assert "with dtype 'complex64'" in answer["text"]
    assert "Suggested fix: call it on the CPU (.cpu())" in answer["text"]


def test_contiguous_is_suggested_where_it_helps(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - {op: aten::exp, kernel: npu_v3_exp, where: {contiguous: {equals: true, why: rows are read in one go}}}
        fallback: {default: error}
        """,
        _TRY
        + """
        x = torch.zeros(2, 3, device=D).t()
        say(text=attempt(x.exp), fixed=attempt(x.contiguous().exp))
        """,
    )
    assert "contiguous" in answer["text"]
    assert answer["text"].endswith("Suggested fix: call .contiguous() on its inputs.")
    assert answer["fixed"] == [[1.0] * 2] * 3


def test_strict_mode_suggests_the_same(npu: Any) -> None:
    import torch

    import torchfl

    x = torch.ones(3, 3, dtype=torch.float64, device=npu)
    try:
        with torchfl.strict():
            torch.linalg.eigh(x)
        raise AssertionError("strict mode let it run on the CPU")
    except torchfl.UnsupportedOpError as error:
        text = str(error)
    assert "Op 'aten::_linalg_eigh' not supported on device 'npu_v3:0' with dtype 'float64'" in text
    assert "call it on the CPU (.cpu())" in text
    assert torch.linalg.eigh(x.cpu())[0].shape == (3,)
