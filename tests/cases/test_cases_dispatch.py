"""Cases 26 to 34: how a call finds its path, and what it says when that is not the first one."""

import warnings

import pytest
import torch
from cases_support import CHIPS, EveryChip, same
from helpers import heard, run_script
from own_backward import Square
from torch.nn import functional as F

case = EveryChip("dispatch")
refusing = EveryChip(
    "refusing", chip_env={"npu_v3": {"NPU_SIM_INDEX_LIMIT": "100"}, "fpga_mm": {"FPGA_MM_INDEX_LIMIT": "100"}}
)
quiet = EveryChip("quiet_case")


@case
def test_case_26_indices_on_the_device_on_the_cpu_and_none(d):
    torch.manual_seed(0)
    host = torch.randn(4, 5, 6)
    rows, columns = torch.tensor([3, 0, 3]), torch.tensor([[1], [3]])
    mask = torch.tensor([True, False, True, True])
    for where in ("cpu", d):
        x, r, c, m = host.to(d), rows.to(where), columns.to(where), mask.to(where)
        assert torch.equal(x[:, r].cpu(), host[:, rows])
        assert torch.equal(x[r].cpu(), host[rows])
        assert torch.equal(x[None, r, :, None].cpu(), host[None, rows, :, None])
        assert torch.equal(x[c, :, r].cpu(), host[columns, :, rows])
        assert torch.equal(x[m].cpu(), host[mask]) and torch.equal(x[m, 1:3].cpu(), host[mask, 1:3])
        assert torch.equal(torch.ops.aten.index.Tensor(x, [None, r, None]).cpu(), host[:, rows])
        for index, plain in (
            ((slice(None), r), (slice(None), rows)),
            ((m,), (mask,)),
            ((r, 2), (rows, 2)),
            ((Ellipsis, r), (Ellipsis, rows)),
        ):
            for value in (7.0, torch.tensor(8.0), torch.tensor(9.0, device=d)):
                y, want = host.to(d), host.clone()
                y[index] = value
                want[plain] = float(value)
                assert torch.equal(y.cpu(), want), (index, value)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):  # late, as on CUDA
        host.to(d)[torch.tensor([4], device=d)].cpu()


@case
def test_case_27_operators_in_place_do_not_re_enter_themselves(d):
    x = torch.arange(4.0, device=d)
    kept = x
    x.mul_(2.0)
    x *= torch.tensor(0.5, device=d)
    x += 1
    x.div_(torch.full((4,), 2.0, device=d)).clamp_(max=1.5)
    assert kept is x and x.tolist() == [0.5, 1.0, 1.5, 1.5]
    q = torch.ones(3, 3, device=d)
    q *= 0.25
    assert q.sum().item() == 2.25
    half = torch.ones(3, dtype=torch.float16, device=d).mul_(3).add_(1)
    assert half.tolist() == [4, 4, 4]
    double = torch.full((3,), 2.0, dtype=torch.float64, device=d).pow_(3).sub_(1)
    assert double.tolist() == [7, 7, 7]
    z = torch.full((3,), 0.5, device=d)
    z.lgamma_().digamma_()  # by the CPU where a chip has no program for it
    torch.testing.assert_close(z.cpu(), torch.full((3,), 0.5).lgamma_().digamma_(), rtol=1e-4, atol=1e-4)
    w = torch.eye(3, device=d)
    w.t_().masked_fill_(w.bool(), 4.0).index_fill_(0, torch.tensor([1], device=d), 9.0)
    assert w.tolist() == [[4, 0, 0], [9, 9, 9], [0, 0, 4]]


@refusing
def test_case_28_a_kernel_that_refuses_at_run_time_leaves_the_call_to_the_next_path(d):
    import torchfl

    lines = heard()
    small, large = torch.arange(40.0), torch.arange(400.0)
    kernel_takes = F.relu(small.to(d))
    assert torch.equal(kernel_takes.cpu(), small)
    for _ in range(3):
        assert torch.equal(F.relu(large.to(d) - 200).cpu(), F.relu(large - 200))
    rows = [row for row in torchfl.stats() if row["op"].startswith("aten::relu")]
    native = [row for row in rows if row["path"] == "native"]
    other = [row for row in rows if row["path"] != "native"]
    assert sum(row["calls"] for row in native) == 1 and sum(row["calls"] for row in other) == 3
    assert all("index holds 100" in row["reason"] for row in other)
    said = [line for line in lines if "aten::relu" in line]
    assert len(said) == 1 and "index holds 100" in said[0]
    assert torchfl.explain("aten::relu", small.to(d))["path"] == "native"


@quiet
def test_case_29_a_thousand_calls_of_an_unsupported_operator_warn_once(d):
    import torchfl

    lines = heard()
    x = torch.eye(3).to(d)
    # The host chip has all of PyTorch's CPU kernels that write to given memory: another operator is the one it lacks.
    lacking, named_by = (
        (x.normal_, "normal_") if d.type == "host" else (lambda: torch.linalg.eigvalsh(x), "_linalg_eigh")
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1000):
            lacking()
    named = [line for line in lines if named_by in line]
    assert len(named) == 1 and str(d.type) in named[0] and "CPU" in named[0]
    assert caught == []
    row = next(r for r in torchfl.stats() if r["op"].startswith(f"aten::{named_by}"))
    assert row["calls"] == 1000 and row["path"] == "cpu" and row["reason"] in named[0]


@pytest.mark.parametrize("chip", CHIPS)
def test_case_30_two_backends_are_a_clear_error_and_torch_survives(chip):
    code = """
    import sys, torch, torchfl
    torch.utils.rename_privateuse1_backend("other")
    try:
        torchfl.load(sys.argv[1])
    except torchfl.LoadError as error:
        assert "'other'" in str(error) and "uninstall" in str(error), error
        print("refused", torch.ones(2).sum().item(), torch.device("other:0"))
    """
    ran = run_script("\n".join(line[4:] for line in code.splitlines()), chip)
    assert ran.code == 0 and ran.out == "refused 2.0 other:0\n", ran


@case
def test_case_31_generators_pinned_memory_and_copies_back_right_after_the_start(d):
    generator = torch.Generator(device=d)
    assert generator.device == d
    generator.manual_seed(3)
    first = torch.rand(4, generator=generator, device=d)
    assert torch.equal(torch.rand(4, generator=generator.manual_seed(3), device=d).cpu(), first.cpu())
    assert torch.ones(3).pin_memory().is_pinned() and torch.empty(3, pin_memory=True).is_pinned()
    host = torch.arange(5.0, device=d).to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    assert host.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("chip", CHIPS)
def test_case_31_each_as_the_first_thing_that_a_process_does(chip):
    starts = {
        "generator": "print(torch.rand(2, generator=torch.Generator(device=d).manual_seed(1), device=d).device)",
        "pinned": "x = torch.ones(2).pin_memory(); print(x.is_pinned() and x.to(d, non_blocking=True).device)",
        "back": "print(torch.ones(2, device=d).to('cpu', non_blocking=True) is not None and d)",
        "seed": "torch.manual_seed(1); print(d)",
    }
    for name, line in starts.items():
        ran = run_script(f"import torch, torchfl\ntorchfl.load('{chip}')\nd = torch.device('{chip}:0')\n{line}")
        assert ran.code == 0 and ran.out == f"{chip}:0\n", (name, ran)


@pytest.mark.parametrize("chip", CHIPS)
def test_case_32_another_torch_minor_is_one_line_before_any_library_is_opened(chip):
    code = f"""
import torch
torch.__version__ = "2.99.1+cpu"
import torchfl
try:
    torchfl.load("{chip}")
except torchfl.VersionError as error:
    text = str(error)
    assert "2.99" in text and "2.13" in text and "\\n" not in text, text
    opened = [line for line in open("/proc/self/maps") if "torchfl" in line or "uba_" in line]
    assert not opened, opened
    print("refused", torch.ones(2).sum().item())
"""
    ran = run_script(
        code, env={"TORCHFL_AUTOLOAD": "0"}
    )  # `import torch` itself looks before the version is changed here
    assert ran.code == 0 and ran.out == "refused 2.0\n", ran


@case
def test_case_33_an_operator_with_a_backward_of_its_own_compiled(d):
    def run(x, weight):
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        out = Square.apply(F.layer_norm(x @ weight, (4,)))
        out.sum().backward()
        return out.detach(), x.grad, weight.grad

    x, weight = torch.randn(3, 5), torch.randn(5, 4)
    same(run, x, weight, d=d, tolerance=1e-4)
    eager = run(x.to(d), weight.to(d))
    compiled = torch.compile(lambda x, w: Square.apply(F.layer_norm(x @ w, (4,))), backend="aot_eager")
    xs, ws = x.to(d).requires_grad_(), weight.to(d).requires_grad_()
    out = compiled(xs, ws)
    out.sum().backward()
    for got, want in zip((out.detach(), xs.grad, ws.grad), eager, strict=True):
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-4, atol=1e-5)


@case
def test_case_34_a_model_goes_to_the_cpu_and_back_after_a_forward_with_grad(d):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    ).to(d)
    x = torch.randn(6, 4)
    first = net(x.to(d))
    first.sum().backward()
    grads = [p.grad.cpu() for p in net.parameters()]
    net.cpu()
    assert all(p.device.type == "cpu" and p.grad.device.type == "cpu" for p in net.parameters())
    net.to(d)
    assert all(p.device == d and p.grad.device == d for p in net.parameters())
    assert all(torch.equal(p.grad.cpu(), g) for p, g in zip(net.parameters(), grads, strict=True))
    net.zero_grad()
    net.eval()
    assert net(x.to(d)).shape == (6, 2)
    net.train()
    net(x.to(d)).sum().backward()
    for p, g in zip(net.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad.cpu(), g, rtol=1e-4, atol=1e-5)
