"""Descriptors that differ from the shipped one in one point: what they say is what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Variant = Callable[..., dict[str, Any]]


def test_dtypes_of_a_row(variant: Variant) -> None:
    """What a row does not list goes elsewhere, and the reason is told once."""
    answer = variant(
        """
        ops:
          - {op: aten::add, kernel: npu_v3_add, dtypes: [float16]}
        """,
        """
        half, single = torch.ones(3, dtype=torch.float16, device=D), torch.ones(3, device=D)
        _, native = ran("aten::add", lambda: half + half)
        out, cpu = ran("aten::add", lambda: [single + single, single + single, single + 1][0])
        _, mixed = ran("aten::add", lambda: half + single)
        say(native=native, cpu=cpu, mixed=mixed, value=out.tolist(), lines=[x for x in lines if "aten::add" in x])
        """,
    )
    assert answer["native"] == [["native", "npu_v3_add", "", 1]]
    assert answer["cpu"] == [["cpu", "cpu", "float32 is not a dtype of npu_v3_add (float16)", 3]]
    assert answer["mixed"][0][0] == "cpu"
    assert answer["value"] == [2, 2, 2]
    assert len(answer["lines"]) == 1


def test_refusal_at_run_time_takes_the_next_path(variant: Variant) -> None:
    """Case 28: `npu_v3_mean` does not take integers, which nobody told the engine. Right value, one line, once tried."""
    answer = variant(
        """
        ops:
          - op: aten::sum
            dtypes: [int64, float32]
            paths: [{kernel: npu_v3_mean}, {kernel: npu_v3_sum}]
          - op: aten::prod
            dtypes: [int64]
            kernel: npu_v3_mean
        """,
        """
        x = torch.arange(5, device=D)
        value, rows = ran("aten::sum", lambda: [x.sum().item() for _ in range(3)])
        explained = torchfl.explain("aten::sum", x)
        product, prods = ran("aten::prod", lambda: [(x + 1).prod().item() for _ in range(3)])
        said = [x for x in lines if "aten::prod" in x]
        say(value=value, rows=rows, product=product, prods=prods, said=said, explained=explained["target"])
        """,
    )
    assert answer["value"] == [10, 10, 10]
    assert answer["rows"] == [["native", "npu_v3_sum", "", 3]]
    assert answer["product"] == [120, 120, 120]
    ((path, _, reason, calls),) = answer["prods"]
    assert (path, calls) == ("cpu", 3)
    assert "npu_v3_reduce" in reason, "the reason is the SDK's own"
    assert len(answer["said"]) == 1
    assert reason in answer["said"][0]


def test_a_kernel_that_the_adapter_lacks(variant: Variant) -> None:
    answer = variant(
        """
        ops:
          - {op: aten::exp, kernel: npu_v3_no_such, dtypes: [float32]}
        """,
        """
        out, rows = ran("aten::exp", lambda: torch.zeros(2, device=D).exp().tolist())
        say(out=out, rows=rows, warned=[x for x in lines if "npu_v3_no_such" in x])
        """,
    )
    assert answer["out"] == [1, 1]
    assert answer["rows"] == [["cpu", "cpu", "the adapter has no kernel npu_v3_no_such", 1]]
    assert answer["warned"]


def test_conditions_on_numbers(variant: Variant) -> None:
    """A number that a condition names is part of the decision, each time."""
    answer = variant(
        """
        ops:
          - op: aten::add
            kernel: npu_v3_add
            dtypes: [float32]
            where: {alpha: {equals: 1, why: the adder has no multiplier}}
          - {op: aten::leaky_relu, kernel: npu_v3_leaky_relu, dtypes: [float32], where: {negative_slope: {max: 0.5}}}
        """,
        """
        x = torch.ones(3, device=D)
        paths = []
        for alpha in (1, 2, 1, 3, 1.0):
            out, rows = ran("aten::add", lambda: torch.add(x, x, alpha=alpha))
            paths.append([rows[0][0], rows[0][2], out[0].item()])
        slopes = [ran("aten::leaky_relu", lambda: F.leaky_relu(-x, s))[1][0][0] for s in (0.25, 0.75, 0.25)]
        say(paths=paths, slopes=slopes)
        """,
    )
    why = "alpha is {}, npu_v3_add takes only 1 (the adder has no multiplier)"
    assert answer["paths"] == [
        ["native", "", 2],
        ["cpu", why.format(2), 3],
        ["native", "", 2],
        ["cpu", why.format(3), 4],
        ["native", "", 2],
    ]
    assert answer["slopes"] == ["native", "cpu", "native"]


def test_conditions_on_shapes_and_offsets(variant: Variant) -> None:
    """Derived quantities: every one that a condition may name is part of what a decision is remembered by."""
    answer = variant(
        """
        ops:
          - {op: aten::exp, kernel: npu_v3_exp, dtypes: [float32], where: {offset: {max: 0}}}
          - {op: aten::neg, kernel: npu_v3_neg, dtypes: [float32], where: {numel: {multiple_of: 4}}}
          - {op: aten::abs, kernel: npu_v3_abs, dtypes: [float32], where: {contiguous: true}}
          - {op: aten::sqrt, kernel: npu_v3_sqrt, dtypes: [float32], where: {rank: {min: 2}}}
          - op: aten::mm.default
            paths:
              - {kernel: npu_v3_matmul, where: {K: {multiple_of: 16}, M: {max: 64}}}
              - {kernel: npu_v3_matmul_tiled, delete: true}
              - {kernel: npu_v3_matmul_pipelined, delete: true}
        """,
        """
        x = torch.arange(256.0, device=D)
        path = lambda op, call: ran(op, call)[1][0][0]
        offsets = [path("aten::exp", lambda v=v: v.exp()) for v in (x[:64], x[64:128], x[:64], x[128:192], x[1:65])]
        counts = [path("aten::neg", lambda n=n: x[:n].neg()) for n in (4, 5, 8)]
        forms = [path("aten::abs", lambda v=v: v.abs()) for v in (x, x[::2], x.view(16, 16).t())]
        ranks = [path("aten::sqrt", lambda v=v: v.sqrt()) for v in (x, x.view(16, 16))]
        products = [path("aten::mm", lambda m=m, k=k: torch.ones(m, k, device=D) @ torch.ones(k, 3, device=D))
                    for m, k in ((4, 16), (4, 17), (65, 16), (64, 32))]
        say(offsets=offsets, counts=counts, forms=forms, ranks=ranks, products=products)
        """,
    )
    assert answer["offsets"] == ["native", "cpu", "native", "cpu", "cpu"]
    assert answer["counts"] == ["native", "cpu", "native"]
    assert answer["forms"] == ["native", "composite", "composite"]  # abs by way of abs.out, and that on the CPU
    assert answer["ranks"] == ["cpu", "native"]
    assert answer["products"] == ["native", "native", "cpu", "native"]  # K = 17 is padded; M = 65 is too much


def test_layouts(variant: Variant) -> None:
    """A layout that a kernel lists is passed on; another one is converted, to NCHW where it lists that."""
    answer = variant(
        """
        ops:
          - {op: aten::max_pool2d, kernel: npu_v3_max_pool, dtypes: [float32], layouts: [NHWC]}
          - {op: aten::avg_pool2d, kernel: npu_v3_avg_pool, dtypes: [float32], layouts: [NCHW]}
        """,
        """
        x = torch.arange(2 * 3 * 4 * 4.0).sin().view(2, 3, 4, 4)
        plain, last = x.to(D), x.to(D).contiguous(memory_format=torch.channels_last)
        got, rows = [], []
        for function, op in ((F.max_pool2d, "aten::max_pool2d_with_indices"), (F.avg_pool2d, "aten::avg_pool2d")):
            for value in (plain, last):
                out, seen = ran(op, lambda: function(value, 2))
                got.append(torch.allclose(out.cpu(), function(x, 2)))
                rows.append(seen[0][:3])
        transforms = torchfl.explain("aten::avg_pool2d", last, [2, 2])["transforms"]
        say(got=got, rows=rows, transforms=transforms)
        """,
    )
    assert answer["got"] == [True] * 4
    assert answer["rows"] == [
        ["native", "npu_v3_max_pool", "self laid out as NHWC; the result laid out as NHWC"],
        ["native", "npu_v3_max_pool", ""],
        ["native", "npu_v3_avg_pool", ""],
        ["native", "npu_v3_avg_pool", "self made contiguous; the result made contiguous"],
    ]
    assert answer["transforms"] == ["self as float32, NCHW"]


def test_limits_of_the_chip(variant: Variant) -> None:
    answer = variant(
        """
        tensor: {max_rank: 3}
        constraints: {max_batch_size: 4}
        """,
        """
        ranks = [ran("aten::add", lambda r=r: torch.ones((1,) * r, device=D) + 1)[1][0] for r in (3, 4)]
        batches = [ran("aten::native_batch_norm", lambda b=b: F.batch_norm(torch.rand(b, 2, device=D), None, None, training=True))[1][0]
                   for b in (4, 5)]
        say(ranks=ranks, batches=batches)
        """,
    )
    assert [row[0] for row in answer["ranks"]] == ["native", "cpu"]
    assert answer["ranks"][1][2] == "rank 4 is more than variant takes (3)"
    assert answer["batches"][0][0] == "native"
    assert answer["batches"][1][2] == "batch size 5 is more than variant takes (4)"


def test_fallback_can_be_an_error(variant: Variant) -> None:
    """`error` for one operator, `cpu` for the rest."""
    answer = variant(
        """
        ops:
          - {op: aten::exp, delete: true}
        fallback: {default: cpu, ops: {"aten::exp": error}}
        """,
        """
        x = torch.zeros(2, device=D)
        try:
            x.exp()
            error = "none"
        except NotImplementedError as raised:
            error = str(raised).splitlines()[0]
        say(error=error, log=x.log1p().tolist(), other=ran("aten::i0", lambda: torch.i0(x))[1][0][0])
        """,
    )
    assert "aten::exp" in answer["error"]
    assert answer["log"] == [0, 0]
    assert answer["other"] == "cpu"


def test_unsupported_dtype_can_be_an_error(variant: Variant) -> None:
    answer = variant(
        """
        tensor: {on_unsupported_dtype: error}
        fallback: {default: compose}
        """,
        """
        x = torch.ones(2, dtype=torch.complex64).to(D)
        try:
            x.exp()
            error = "none"
        except NotImplementedError as raised:
            error = str(raised).splitlines()[0]
        say(error=error, single=torch.zeros(2, device=D).exp().tolist())
        """,
    )
    assert "complex64" in answer["error"]
    assert answer["single"] == [1, 1]


def test_debug_lines(variant: Variant) -> None:
    """TORCH_FL_DEBUG prints one line for each new decision, in the words of the descriptor."""
    answer = variant(
        "",
        """
        x, w = torch.ones(1, 3, 8, 8, dtype=torch.float16, device=D), torch.ones(4, 3, 3, 3, dtype=torch.float16, device=D)
        for _ in range(3):
            F.conv2d(x, w)
            F.conv2d(x.contiguous(memory_format=torch.channels_last), w)
            F.conv2d(x, w, stride=3)
            x[0, 0] @ x[0, 1]
        say(done=True)
        """,
        TORCH_FL_DEBUG="1",
    )
    lines = [line for line in answer["stderr"].splitlines() if line.startswith("[SME]")]
    assert lines.count("[SME] Mapping aten::conv2d -> npu_v3_conv2d (layout=NCHW, dtype=fp16)") == 1
    assert lines.count("[SME] Mapping aten::conv2d -> npu_v3_conv2d (layout=NHWC, dtype=fp16)") == 1
    assert sum("-> npu_v3_matmul" in line for line in lines) == 1
    fallbacks = [line for line in lines if line.startswith("[SME] Fallback to CPU: aten::convolution")]
    assert len(fallbacks) == 1
    assert "stride is 3" in fallbacks[0]


def test_no_debug_lines_without_the_variable(variant: Variant) -> None:
    answer = variant("", "say(sum=(torch.ones(2, device=D) + 1).sum().item())")
    assert answer["sum"] == 4
    assert "[SME]" not in answer["stderr"]


def test_one_line_for_each_reason(variant: Variant) -> None:
    """Case 29: two reasons of one operator are two lines, however often each occurs."""
    answer = variant(
        "",
        """
        for n in range(50):
            x = torch.ones(1, 3, 9 + n % 3, 9, device=D)
            F.conv2d(x, torch.ones(3, 3, 3, 3, device=D), stride=3)
            F.conv2d(x, torch.ones(3, 1, 3, 3, device=D), groups=3)
        say(lines=[x for x in lines if "convolution" in x])
        """,
    )
    assert len(answer["lines"]) == 2
    assert any("stride is 3" in line for line in answer["lines"])
    assert any("groups is 3" in line for line in answer["lines"])
