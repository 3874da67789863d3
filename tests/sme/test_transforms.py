"""What is done to a call's tensors so that a kernel takes them: layouts, padding, casts; each told, each right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Variant = Callable[..., dict[str, Any]]

ONLY_GENERIC = """
              - {kernel: npu_v3_matmul_tiled, delete: true}
              - {kernel: npu_v3_matmul_pipelined, delete: true}
"""


def test_a_layout_is_made_for_the_kernel_and_undone_after_it(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - {op: aten::conv2d, kernel: npu_v3_conv2d, dtypes: [float32], layouts: [NHCW, NHWC]}
          - {op: aten::max_pool2d, kernel: npu_v3_max_pool, dtypes: [float32], layouts: [NHWC]}
        """,
        """
        torch.manual_seed(0)
        x, w, b = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3), torch.randn(5)
        out, rows = ran("aten::convolution", lambda: F.conv2d(x.to(D), w.to(D), b.to(D), padding=1))
        want = F.conv2d(x.double(), w.double(), b.double(), padding=1)
        pooled, pools = ran("aten::max_pool2d_with_indices", lambda: F.max_pool2d(x.to(D), 2, return_indices=True))
        value, places = F.max_pool2d(x, 2, return_indices=True)
        say(error=(out.cpu() - want).abs().max().item(), strides=[out.stride() == want.stride()], rows=rows,
            pools=pools, pooled=[torch.equal(pooled[0].cpu(), value), torch.equal(pooled[1].cpu(), places),
            pooled[0].stride() == value.stride()])
        """,
    )
    assert answer["error"] < 1e-5
    assert answer["strides"] == [True], "the caller sees the strides that PyTorch promises"
    assert answer["rows"] == [["native", "npu_v3_conv2d", "input laid out as NHCW; the result laid out as NHCW", 1]]
    assert answer["pools"][0][:3] == ["native", "npu_v3_max_pool", "self laid out as NHWC; the result laid out as NHWC"]
    assert answer["pooled"] == [True, True, True]


def test_products_are_padded_and_sliced_back(variant: Variant) -> None:
    answer = variant(
        f"""
        ops:
          - op: [aten::mm.default, aten::bmm.default, aten::addmm.default, aten::baddbmm.default]
            paths:
              - kernel: npu_v3_matmul
                where: {{K: {{multiple_of: 16}}, N: {{multiple_of: 8}}, M: {{multiple_of: 4}}}}
{ONLY_GENERIC}
        """,
        """
        torch.manual_seed(1)
        r = torch.randn
        cases = {
            "mm": (torch.mm, [r(5, 17), r(17, 3)]),
            "transposed": (lambda a, b: a @ b.t(), [r(5, 17), r(3, 17)]),
            "bmm": (torch.bmm, [r(3, 5, 17), r(3, 17, 3)]),
            "addmm": (torch.addmm, [r(3), r(5, 17), r(17, 3)]),
            "addmm column": (torch.addmm, [r(5, 1), r(5, 17), r(17, 3)]),
            "addmm one": (torch.addmm, [r(1), r(5, 17), r(17, 1)]),
            "baddbmm": (torch.baddbmm, [r(3, 1, 3), r(3, 5, 17), r(3, 17, 3)]),
            "zero rows": (torch.mm, [r(0, 17), r(17, 3)]),
            "infinite": (torch.mm, [r(5, 17) + float("inf"), r(17, 3)]),
            "fits": (torch.mm, [r(4, 16), r(16, 8)]),
        }
        errors, reasons = {}, {}
        for name, (function, args) in cases.items():
            op = {"transposed": "mm", "zero rows": "mm", "infinite": "mm", "fits": "mm"}.get(name, name.split()[0])
            out, rows = ran("aten::" + op, lambda: function(*[a.to(D) for a in args]))
            want = function(*[a.double() for a in args])
            assert out.shape == want.shape and out.is_contiguous(), name
            errors[name] = torch.nan_to_num(out.cpu() - want, 0).abs().max().item() if want.numel() else 0.0
            reasons[name] = [row[:3] for row in rows]
        out = torch.full((8, 10), 7.0, device=D)
        torch.mm(cases["mm"][1][0].to(D), cases["mm"][1][1].to(D), out=out[1:6, 2:5])
        inside = out.cpu()[1:6, 2:5] - torch.mm(*cases["mm"][1])
        out[1:6, 2:5] = 7
        a = r(5, 17).to(D).requires_grad_()
        (a @ r(17, 3).to(D)).sum().backward()
        say(errors=errors, reasons=reasons, inside=inside.abs().max().item(), outside=(out == 7).all().item(),
            grad=list(a.grad.shape))
        """,
    )
    assert max(answer["errors"].values()) < 1e-4, answer["errors"]
    padded = "K padded from 17 to 32; N padded from 3 to 8; M padded from 5 to 8"
    assert answer["reasons"]["mm"] == [["native", "npu_v3_matmul", padded]]
    assert answer["reasons"]["fits"] == [["native", "npu_v3_matmul", ""]]
    assert all(row[0] == "native" for rows in answer["reasons"].values() for row in rows)
    assert answer["inside"] < 1e-5
    assert answer["outside"], "nothing but the result is written"


def test_channels_of_a_convolution_are_padded(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - op: aten::conv2d
            kernel: npu_v3_conv2d
            dtypes: [float32]
            where: {in_channels: {multiple_of: 4}, out_channels: {multiple_of: 8}}
        """,
        """
        torch.manual_seed(0)
        got = []
        for groups, last in ((1, False), (1, True), (3, False)):
            x, w, b = torch.randn(2, 3, 8, 8), torch.randn(6, 3 // groups, 3, 3), torch.randn(6)
            if last:
                x = x.contiguous(memory_format=torch.channels_last)
            out, rows = ran("aten::convolution",
                            lambda: F.conv2d(x.to(D), w.to(D), b.to(D), padding=1, groups=groups))
            want = F.conv2d(x.double(), w.double(), b.double(), padding=1, groups=groups)
            got.append([rows[0][0], rows[0][2], (out.cpu() - want).abs().max().item() < 1e-5, out.shape == want.shape])
        say(got=got)
        """,
    )
    padded = "in_channels padded from 3 to 4; out_channels padded from 6 to 8"
    assert answer["got"][0] == ["native", padded, True, True]
    assert answer["got"][1] == ["native", padded, True, True]
    assert answer["got"][2][0] != "native", "a channel that is added would belong to a group"
    assert answer["got"][2][2:] == [True, True]


def test_dtypes_are_cast_where_the_descriptor_says_so(variant: Variant) -> None:
    answer = variant(
        """
        tensor: {on_unsupported_dtype: cast}
        ops:
          - {op: [aten::add, aten::exp], kernel: "npu_v3_{op}", dtypes: [float16, float32]}
          - {op: aten::softmax, kernel: npu_v3_softmax, dtypes: [float16, float32]}
        """,
        """
        x = torch.linspace(-2, 2, 12, dtype=torch.float64).view(3, 4)
        got = {}
        for name, dtype in (("double", torch.float64), ("bfloat16", torch.bfloat16), ("half", torch.float16)):
            value = x.to(dtype)
            out, rows = ran("aten::exp", lambda: value.to(D).exp())
            got[name] = [rows[0][:3], str(out.dtype), (out.cpu() - value.exp()).abs().max().item() < 0.04]
        summed, sums = ran("aten::_softmax", lambda: torch.softmax(x.to(D), 1))
        got["softmax"] = [sums[0][:3], str(summed.dtype), torch.allclose(summed.cpu(), torch.softmax(x, 1), atol=1e-6)]
        into = torch.empty(3, 4, dtype=torch.float64, device=D)
        torch.add(x.to(D), x.to(D), out=into)
        got["out"] = torch.allclose(into.cpu(), x + x, atol=1e-6)
        value = x.to(D)
        value.add_(1)
        got["in place"] = torch.allclose(value.cpu(), x + 1, atol=1e-6)
        said = [line for line in lines if "aten::exp" in line]
        say(said=said, **got)
        """,
    )
    assert answer["double"] == [["native", "npu_v3_exp", "float64 computed in float32"], "torch.float64", True]
    assert answer["bfloat16"] == [["native", "npu_v3_exp", "bfloat16 computed in float32"], "torch.bfloat16", True]
    assert answer["half"] == [["native", "npu_v3_exp", ""], "torch.float16", True]
    assert answer["softmax"] == [["native", "npu_v3_softmax", "float64 computed in float32"], "torch.float64", True]
    assert answer["out"] is True
    assert answer["in place"] is True


def test_emulated_bfloat16_is_computed_in_float16_and_truncated(variant: Variant) -> None:
    answer = variant(
        """
        compute_units: {fp16: {count: 1}}
        memory: {off_chip_memory: {size: 1 GiB}}
        tensor: {supported_dtypes: [float16]}
        constraints: {memory_alignment_bytes: 256, bfloat16_emulation: true}
        ops:
          - {op: [aten::add, aten::mul], kernel: "npu_v3_{op}"}
        """,
        """
        torch.manual_seed(0)
        a, b = torch.randn(1000).bfloat16(), torch.randn(1000).bfloat16()
        out, rows = ran("aten::add", lambda: a.to(D) + b.to(D))
        half = (a.half() + b.half()).float()
        truncated = (half.view(torch.int32) & ~0xFFFF).view(torch.float32)
        large = torch.tensor([70000.0, 300.0, -70000.0], dtype=torch.bfloat16)
        product = (large.to(D) * large.to(D)).float().cpu()
        say(rows=rows, dtype=str(out.dtype), equal=torch.equal(out.float().cpu(), truncated), product=product.tolist())
        """,
        alone=True,
    )
    assert answer["rows"][0][:3] == ["native", "npu_v3_add", "bfloat16 computed in float16"]
    assert answer["dtype"] == "torch.bfloat16"
    assert answer["equal"] is True
    assert answer["product"] == [float("inf")] * 3, "float16 ends at 65504: that is what emulation means"


def test_default_layout_of_new_tensors(variant: Variant) -> None:
    answer = variant(
        """
        tensor: {default_layout: NHWC}
        """,
        """
        new = torch.randn(2, 3, 4, 5, device=D)
        strides = [new.stride(), torch.zeros_like(new).stride(), torch.ones(2, 3, device=D).stride(),
                   torch.empty(2, 3, 4, 5, device=D, memory_format=torch.contiguous_format).stride(),
                   torch.randn(2, 3, 4, 5).to(D).stride()]
        w = torch.randn(6, 3, 3, 3)
        out = F.conv2d(new, w.to(D))
        right = torch.allclose(out.cpu(), F.conv2d(new.cpu(), w), atol=1e-5)
        say(strides=strides, out=out.is_contiguous(memory_format=torch.channels_last), right=right)
        """,
    )
    last, row = [60, 1, 15, 3], [60, 20, 5, 1]
    assert answer["strides"] == [last, last, [3, 1], row, row], "what is asked for, or moved as it is, keeps its layout"
    assert answer["out"] is True
    assert answer["right"] is True


def test_a_layout_that_is_asked_for_and_lacking_is_an_error(variant: Variant) -> None:
    answer = variant(
        """
        compute_units:
          fp16: {supported_layouts: [NCHW, NHCW]}
          bf16: {supported_layouts: [NCHW]}
          fp32: {supported_layouts: [NCHW]}
        """,
        """
        x = torch.ones(1, 2, 3, 3, device=D)
        said = []
        for ask in (lambda: x.to(memory_format=torch.channels_last),
                    lambda: x.contiguous(memory_format=torch.channels_last),
                    lambda: torch.empty(1, 2, 3, 3, device=D, memory_format=torch.channels_last),
                    lambda: torch.nn.Conv2d(2, 2, 3).to(D).to(memory_format=torch.channels_last)):
            try:
                ask()
                said.append("nothing")
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
        say(said=said, later=F.conv2d(x, x).shape)
        """,
    )
    assert answer["said"] == ["Layout channels_last not supported on NPU-V3 (supported: NCHW, NHCW)"] * 4
    assert answer["later"] == [1, 1, 1, 1]


def test_stand_ins_are_kept_until_something_is_written(variant: Variant) -> None:
    """A weight is converted once; any write ends that, `.data` and views included; so does the end of the tensor."""
    answer = variant(
        """
        tensor: {on_unsupported_dtype: cast}
        ops:
          - op: [aten::mm.default, aten::addmm.default]
            paths:
              - {kernel: npu_v3_matmul, dtypes: [float32], where: {N: {multiple_of: 8}}}
              - {kernel: npu_v3_matmul_tiled, delete: true}
              - {kernel: npu_v3_matmul_pipelined, delete: true}
        """,
        """
        torch.manual_seed(0)
        layer = torch.nn.Linear(6, 5, bias=False).to(D)
        weight = layer.weight
        x = torch.randn(3, 6)
        xd = x.to(D)
        def right():
            return torch.allclose(layer(xd).detach().cpu(), x @ weight.detach().cpu().t(), atol=1e-5)
        answers = {}
        with torch.no_grad():
            answers["first"] = right() and right()
            allocated = torch.accelerator.memory_allocated()
            for _ in range(5):
                layer(xd)
            answers["steady"] = torch.accelerator.memory_allocated() == allocated
            weight.add_(1); answers["in place"] = right()
            weight.data.mul_(2); answers["data"] = right()
            weight[0].zero_(); answers["view"] = right()
            weight.t()[1:, 2].fill_(3); answers["strided view"] = right()
            weight.copy_(torch.randn(5, 6)); answers["copy"] = right()
            torch.mul(weight, 2, out=weight); answers["out"] = right()
            layer.load_state_dict({"weight": torch.randn(5, 6)}); answers["load"] = right()
            torch._foreach_mul_([weight], 0.5); answers["foreach"] = right()
            torch.from_dlpack(weight.detach()).add_(1); answers["dlpack"] = right()
            alias = torch.from_dlpack(weight.detach()[1:])
            answers["alias"] = torch.allclose((xd @ alias.t()).cpu(), x @ alias.cpu().t(), atol=1e-5)
            weight.mul_(3); alias.sub_(1)
            answers["both"] = torch.allclose((xd @ alias.t()).cpu(), x @ weight[1:].cpu().t(), atol=1e-5) and right()
            weight.normal_(); answers["random"] = right()
            torch.sort(weight, out=(weight, torch.empty(5, 6, dtype=torch.int64, device=D))); answers["several"] = right()
        loss = layer(xd).sum()
        loss.backward()
        torch.optim.SGD([weight], lr=0.1).step(); answers["optimizer"] = right()
        torch.optim.AdamW([weight], lr=0.1).step(); answers["adamw"] = right()
        weight.data = torch.randn(5, 6, device=D); answers["another storage"] = right()
        with torch.inference_mode():
            answers["inference"] = torch.allclose(layer(xd).cpu(), x @ weight.cpu().t(), atol=1e-5)
        def fresh():
            w = torch.randn(6, 5)
            return torch.allclose((xd @ w.to(D)).cpu(), x @ w, atol=1e-5)
        answers["others at the same address"] = all(fresh() for _ in range(50))
        del layer, weight, loss
        torch.accelerator.empty_cache()
        answers["empty"] = torch.accelerator.memory_allocated() < 100000
        say(**answers)
        """,
    )
    answer.pop("stderr")
    assert answer == dict.fromkeys(answer, True)


def test_int8_with_a_zero_point(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - {op: [aten::maximum, aten::lt, aten::clamp_min], kernel: "npu_v3_{op}", dtypes: [uint8], int8_as: uint8}
        """,
        """
        a, b = torch.arange(-128, 128).to(torch.int8), torch.arange(127, -129, -1).to(torch.int8)
        out, rows = ran("aten::maximum", lambda: torch.maximum(a.to(D), b.to(D)))
        _, plain = ran("aten::maximum", lambda: torch.maximum(a.view(torch.uint8).to(D), b.view(torch.uint8).to(D)))
        strided = torch.maximum(a.view(16, 16).t().to(D), b.view(16, 16).to(D)[:, 3:4])
        right = [torch.equal(out.cpu(), torch.maximum(a, b)),
                 torch.equal(strided.cpu(), torch.maximum(a.view(16, 16).t(), b.view(16, 16)[:, 3:4])),
                 torch.equal((a.to(D) < 0).cpu(), a < 0), torch.equal(a.to(D).clamp_min(3).cpu(), a.clamp_min(3)),
                 torch.equal(torch.maximum(a.to(D), torch.tensor(-3, dtype=torch.int8)).cpu(), a.clamp_min(-3))]
        say(rows=[rows[0][:3], plain[0][:3]], right=right, dtype=str(out.dtype))
        """,
    )
    assert answer["rows"] == [
        ["native", "npu_v3_maximum", "int8 as uint8 with zero point 128"],
        ["native", "npu_v3_maximum", ""],
    ]
    assert answer["right"] == [True] * 5
    assert answer["dtype"] == "torch.int8"
