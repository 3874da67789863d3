"""What a descriptor claims and the rest of it denies: caught where it can be, and explained where it only costs time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Variant = Callable[..., dict[str, Any]]


def test_more_heads_than_the_attention_unit_has(variant: Variant) -> None:
    """Hard limits are no preference: the error names the chip, the number asked for and those that there are."""
    answer = variant(
        """
        compute_units:
          attention: {enabled: true, max_sequence_length: 128, supported_heads: [1, 2, 4, 8], beyond: error}
        """,
        """
        def attend(heads, length=16):
            q = torch.ones(1, heads, length, 8, dtype=torch.float16, device=D)
            try:
                return list(F.scaled_dot_product_attention(q, q, q).shape)
            except Exception as error:
                return [type(error).__name__, str(error)]
        q = torch.empty(1, 12, 16, 8, dtype=torch.float16, device="meta")
        asked = torchfl.explain("aten::scaled_dot_product_attention", q, q, q, device=D)
        say(eight=attend(8), twelve=attend(12), long=attend(8, 256), asked=[asked["path"], asked["reason"]])
        """,
    )
    assert answer["eight"] == [1, 8, 16, 8]
    kind, text = answer["twelve"]
    assert kind == "NotImplementedError"
    assert "num_heads=12" in text and "NPU-V3" in text and "1, 2, 4, 8" in text
    assert answer["asked"][0] == "error" and "num_heads=12" in answer["asked"][1]
    kind, text = answer["long"]
    assert kind == "NotImplementedError" and "256" in text and "128" in text


_CAST_ONLY = """
compute_units: {fp16: {count: 256, peak: 25.6 TFLOP/s}, fp32: {count: 256, peak: 6.4 TFLOP/s}}
memory: {off_chip_memory: {size: 4 GiB, bandwidth: 128 GB/s}}
tensor: {max_rank: 6, supported_dtypes: [float16, bfloat16, float32], default_layout: NCHW}
constraints: {memory_alignment_bytes: 256}
ops:
  - {op: aten::add, kernel: npu_v3_add, dtypes: [float16, float32]}
  - {op: aten::gelu, kernel: npu_v3_gelu, dtypes: [float16, float32]}
  - {op: aten::mm, kernel: npu_v3_matmul, dtypes: [float16, float32]}
instructions:
  - {op: [vadd, vmul, verf, matmul], kernel: "npu_v3_{op}", dtypes: [float16, float32]}
  - {op: vcast, kernel: npu_v3_vcast, dtypes: [float16, bfloat16, float32]}
fallback: {default: FALLBACK}
"""
_ASK = """
x = torch.ones(4, 4, dtype=torch.bfloat16, device=D)
native = {}
for op, call in {"aten::add": lambda: x + x, "aten::gelu": lambda: F.gelu(x), "aten::mm": lambda: x @ x}.items():
    out, rows = ran(op, call)
    explained = torchfl.explain(op, *([x, x] if op != "aten::gelu" else [x]))
    native[op] = [[row[0] for row in rows], rows[0][2], explained["path"], str(out.dtype), out[0, 0].item()]
cast = x.float() + x.half()
say(native=native, cast=cast[0, 0].item())
"""


@pytest.mark.parametrize("fallback", ["cpu", "compose"])
def test_a_dtype_that_is_only_cast_is_not_native(variant: Variant, fallback: str) -> None:
    """No unit and no row computes in bfloat16. It can be stored and cast, and that is all that is claimed."""
    answer = variant(_CAST_ONLY.replace("FALLBACK", fallback), _ASK, alone=True)
    for op, (paths, reason, explained, dtype, value) in answer["native"].items():
        assert paths == [explained], op
        assert explained in ("cpu", "composed"), f"{op} is claimed as {explained}"
        assert "bfloat16" in reason, op
        assert dtype == "torch.bfloat16" and value == pytest.approx({"aten::gelu": 0.84}.get(op, value), abs=0.01)
    if fallback == "cpu":
        assert {explained for _, _, explained, _, _ in answer["native"].values()} == {"cpu"}
    assert answer["cast"] == 2.0


_PRODUCTS = """
chosen = {}
sizes = (768, 1024, 1280, 1536)
for m in sizes:
    for n in sizes:
        for k in sizes:
            x, y = (torch.empty(s, dtype=torch.float16, device="meta") for s in ((m, k), (k, n)))
            answer = torchfl.explain("aten::mm", x, y, device=D)
            chosen[f"{m} {k} {n}"] = [answer["target"], {a["target"]: a["cost"] for a in answer["attempts"]}]
say(chosen=chosen)
"""


def test_a_cache_that_is_declared_half_its_size(variant: Variant) -> None:
    """Only the choice among right kernels suffers: it differs for some shape, and explain shows by which figures."""
    true = variant("", _PRODUCTS, device_type="truthful")["chosen"]
    half = variant("memory: {on_chip_cache: {size: 4 MiB}}", _PRODUCTS, device_type="halved")["chosen"]
    differing = [shape for shape in true if true[shape][0] != half[shape][0]]
    assert differing, "the size of the cache never decides"
    for shape in differing:
        m, k, n = map(int, shape.split())
        (kernel, costs), (other, other_costs) = true[shape], half[shape]
        assert costs[kernel].split(" = ")[0] != other_costs[kernel].split(" = ")[0], "the figures tell of the change"
        assert set(costs) == set(other_costs) and {kernel, other} <= set(costs)
        for name, size, told in (("npu_v3_matmul_tiled", 8, costs), ("npu_v3_matmul_tiled", 4, other_costs)):
            factors = (m * k + k * n) * 2 / (1 << 20)
            fits = "fit in the cache of" if factors <= size else "are more than the cache of"
            assert f"both factors ({factors:.4g} MiB) {fits} {size} MiB" in told[name], told[name]
