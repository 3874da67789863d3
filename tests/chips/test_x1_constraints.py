"""Two thousand random convolutions on a chip whose driver does not survive what it cannot do.

The X1's runtime runs in its unforgiving mode: one call outside the limits of its convolution unit, or one operand that
it does not reach, ends the process.
"""

from __future__ import annotations

import json
import random

from helpers import run_script

COUNT = 2000

SCRIPT = """
import json, sys
import torch
import torchfl
from torch.nn import functional as F

torchfl.load("x1")
calls = json.loads(sys.stdin.read() if len(sys.argv) < 2 else open(sys.argv[1]).read())
generator = torch.Generator().manual_seed(3)
wrong = []
for number, call in enumerate(calls):
    function = getattr(F, call["op"])
    dtype = getattr(torch, call["dtype"])
    x = torch.randn(call["x"], generator=generator).to(dtype)
    w = torch.randn(call["w"], generator=generator).to(dtype)
    b = torch.randn(call["bias"], generator=generator).to(dtype) if call["bias"] else None
    options = call["options"]
    ours = [None if t is None else t.to("xpu:0") for t in (x, w, b)]
    if call["layout"] == "nhwc":
        ours[0] = ours[0].contiguous(memory_format=torch.channels_last)
    elif call["layout"] == "strided":
        ours[0] = ours[0].transpose(-1, -2).contiguous().transpose(-1, -2)
    torchfl.reset_stats()
    got = function(*ours, **options)
    ran = [(row["path"], row["target"]) for row in torchfl.stats() if "convolution" in row["op"]]
    want = function(x.double(), w.double(), None if b is None else b.double(), **options)
    limit = 2e-6 if dtype == torch.float32 else 2e-3
    off = (got.cpu().double() - want).abs().max().item() / max(want.abs().max().item(), 1) if want.numel() else 0
    right = got.shape == want.shape and got.dtype == dtype and off <= limit
    native = ran == [("native", "x1_conv2d")]
    if not right or native != call["native"] or len(ran) != 1:
        wrong.append({**call, "ran": ran, "off": off})
print(json.dumps({"calls": number + 1, "wrong": wrong}))
"""


def some_call(draw: random.Random) -> dict[str, object]:
    """A convolution that PyTorch takes, and whether the chip's descriptor says that the chip does."""
    spatial = draw.choice((1, 2, 2, 2))
    transposed = draw.random() < 0.05
    odd = draw.choice((None, None, None, "groups", "stride", "padding", "dilation"))  # what may be beyond the limits
    groups = draw.choice((1, 2, 4, 3, 8) if odd == "groups" else (1, 2, 4))
    stride = [draw.choice((1, 3, 5) if odd == "stride" else (1, 2, 4)) for _ in range(spatial)]
    padding = [draw.choice((0, 2, 3) if odd == "padding" else (0, 1, 2)) for _ in range(spatial)]
    if transposed:
        padding = [0] * spatial
    dilation = [draw.choice((1, 2)) if odd == "dilation" else 1 for _ in range(spatial)]
    kernel = [draw.choice((1, 2, 3, 5)) for _ in range(spatial)]
    size = [draw.randint(d * (k - 1) + 1, 12) for d, k in zip(dilation, kernel, strict=True)]
    channels, filters = groups * draw.randint(1, 5), groups * draw.randint(1, 5)
    weight = [channels, filters // groups] if transposed else [filters, channels // groups]
    holds = (
        not transposed
        and {*stride} <= {1, 2, 4}
        and {*padding} <= {0, 1, 2}
        and {*dilation} == {1}
        and groups in (1, 2, 4)
    )
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return {
        "op": f"conv{'_transpose' if transposed else ''}{spatial}d",
        "x": [draw.randint(1, 3), channels, *size],
        "w": [*weight, *kernel],
        "bias": draw.choice((0, filters)),
        "dtype": draw.choice(("float32", "float32", "float16")),
        "layout": draw.choice(("nchw", "nhwc", "strided")) if spatial == 2 else "nchw",
        "options": options,
        "native": holds,
    }


def test_no_random_convolution_brings_the_driver_down(tmp_path) -> None:
    draw = random.Random(20)
    calls = [some_call(draw) for _ in range(COUNT)]
    natively = sum(bool(call["native"]) for call in calls)
    assert COUNT * 0.5 < natively < COUNT * 0.9, natively
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    ran = run_script(
        SCRIPT,
        str(tmp_path / "calls.json"),
        env={"X1_SIM_UNFORGIVING": "1"},
        timeout=400,
    )
    assert ran.code == 0, f"ended with {ran.code}\n{ran.err[-3000:]}"
    result = json.loads(ran.out)
    assert result["calls"] == COUNT
    assert not result["wrong"], json.dumps(result["wrong"][:5], indent=1)
