"""torch.compile on our device, by our backend and by the default one: forward, backward, sizes, writes, aliases."""

from __future__ import annotations

import copy

import pytest
import torch
from compile_support import DEVICE, close, log_lines, same_as_cpu
from own_backward import Square
from torch import nn
from torch.nn import functional as F

import torchfl


def rows(*sizes: int, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator).requires_grad_(grad)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8 * 4 * 4, 16)
        self.second = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.second(F.gelu(self.first(x.flatten(1))))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_forward_and_backward(backend, training):
    torch.manual_seed(0)
    same_as_cpu(Small().train(training), rows(2, 3, 8, 8, grad=True), backend=backend)


def test_without_gradients(backend):
    torch.manual_seed(0)
    model = Small().eval()
    with torch.no_grad():
        same_as_cpu(model, rows(2, 3, 8, 8), backend=backend)
    with torch.inference_mode():
        ours = copy.deepcopy(model).to(DEVICE)
        result = torch.compile(ours, backend=backend)(rows(2, 3, 8, 8).to(DEVICE))
        assert result.is_inference()


def test_case_33_an_operator_with_its_own_backward(backend):
    x = rows(4, 5)
    eager = x.to(DEVICE).requires_grad_()
    Square.apply(eager).sum().backward()
    compiled = x.to(DEVICE).requires_grad_()
    torch.compile(lambda t: Square.apply(t).sin().sum(), backend=backend)(compiled).backward()
    want = x.double().requires_grad_()
    Square.apply(want).sin().sum().backward()
    close(compiled.grad, want.grad)
    close(eager.grad, 3 * x)


def test_case_33_a_custom_operator(backend):
    @torch.library.custom_op("torchfl_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type != "meta"
        return x * x * x

    @cube.register_fake
    def _(x):
        return torch.empty_like(x)

    cube.register_autograd(
        lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    same_as_cpu(lambda x: cube(x).cos(), rows(3, 4, grad=True), backend=backend)


def test_case_41_a_tensor_made_inside(backend):
    same_as_cpu(lambda x: x + torch.tensor([1], device=x.device), rows(3), backend=backend)
    same_as_cpu(
        lambda x: x * torch.arange(3, device=x.device) + torch.ones(3, device=x.device), rows(3), backend=backend
    )


def test_devices_are_crossed_inside(backend):
    def crossing(x, host):
        there = (x * 2).cpu() + host
        return there.to(x.device) * x, there

    x, host = rows(4, 4), rows(4, 4)
    got = torch.compile(crossing, backend=backend)(x.to(DEVICE), host)
    assert got[0].device.type == "npu_v3" and got[1].device.type == "cpu"
    close(got, crossing(x.double(), host.double()))


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_that_change(backend, dynamic):
    def function(x, y):
        n = x.shape[0]
        return (x.view(-1) + y.reshape(-1)).relu().view(n, -1) * n, x.t().contiguous()[:, : n // 2], x.sum(0) / (n + 1)

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for n in (2, 5, 8, 5, 3, 2):
        x, y = rows(n, n + 1, grad=True), rows(n, n + 1)
        ours = x.detach().to(DEVICE).requires_grad_()
        got, want = compiled(ours, y.to(DEVICE)), function(x.double(), y.double())
        close(got, want)
        got[0].sum().backward()
        want[0].sum().backward()
        close(ours.grad, x.grad)


def test_a_marked_dimension_compiles_once(backend):
    count = torch._dynamo.utils.counters
    count.clear()
    compiled = torch.compile(lambda x: (x @ x.t()).softmax(-1), backend=backend)
    for n in (4, 6, 9):
        x = rows(n, 3)
        ours = x.to(DEVICE)
        torch._dynamo.mark_dynamic(ours, 0)
        close(compiled(ours), (x.double() @ x.double().t()).softmax(-1))
    assert count["stats"]["unique_graphs"] == 1


def test_written_inputs(backend):
    def writes(x, y):
        x.mul_(2)
        y[1:].add_(x[:-1])
        return x + y

    same_as_cpu(writes, rows(4, 3), rows(4, 3), backend=backend)


def test_versions_grow_with_writes(backend):
    compiled = torch.compile(lambda x: x.add_(1), backend=backend)
    x = torch.zeros(3, device=DEVICE)
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    product = (w * x).sum()
    compiled(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_results_that_alias(backend):
    def aliases(x):
        y = x * 2
        return x.view(-1), y, y[1:], y.t()

    compiled = torch.compile(aliases, backend=backend)
    for _ in range(3):
        x = rows(3, 4).to(DEVICE)
        flat, y, tail, turned = compiled(x)
        flat[0] = 7
        y[1, 2] = 9
        assert x[0, 0].item() == 7 and tail[0, 2].item() == 9 and turned[2, 1].item() == 9


def test_equal_results_are_two_tensors():
    a, b = torch.compile(lambda x: (x + 1, x + 1), backend="torchfl")(torch.zeros(3, device=DEVICE))
    a[0] = 5
    assert b.tolist() == [1, 1, 1]


def test_a_users_operator_is_called_as_often_as_written():
    calls = []

    @torch.library.custom_op("torchfl_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    @counted.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = torch.compile(lambda x: counted(x) * counted(x), backend="torchfl")
    assert compiled(torch.zeros(2, device=DEVICE)).tolist() == [2, 2] and len(calls) == 2


def test_the_results_of_one_run_survive_the_next(backend):
    compiled = torch.compile(lambda x: ((x * 2).relu() + 1, x.sin().cos()), backend=backend)
    inputs = [rows(n + 20)[:16] for n in range(8)]
    results = [compiled(x.to(DEVICE)) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        close(result, ((x.double() * 2).relu() + 1, x.double().sin().cos()))


def test_inputs_with_gaps(backend):
    base = rows(6, 8)
    same_as_cpu(lambda x, y: (x @ y).relu() + x.sum(), base[::2, ::2].t(), base[1::2, 1::2].t().t(), backend=backend)


def test_dropout_follows_the_seed_and_backward_has_its_mask(backend):
    layer = nn.Dropout(0.4)
    compiled = torch.compile(layer, backend=backend)
    x = torch.ones(64, 64, device=DEVICE, requires_grad=True)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        x.grad = None
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())  # of ones: the mask itself
        masks.append(y.detach().cpu())
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    torch.manual_seed(1)
    assert torch.equal(layer(x).detach().cpu(), masks[0])  # eager draws the same
    assert 0.3 < (masks[0] == 0).float().mean() < 0.5


def test_checkpointing_draws_the_same_again(backend):
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU()).to(DEVICE)
    x = rows(16, 8).to(DEVICE).requires_grad_()
    grads = []
    for function in (torch.compile(lambda x: checkpoint(block, x, use_reentrant=False), backend=backend), block):
        torch.manual_seed(1)
        (grad,) = torch.autograd.grad(function(x).sum(), x)
        grads.append(grad.cpu())
    torch.testing.assert_close(*grads)


def test_what_depends_on_data_breaks_the_graph(backend):
    def function(x):
        if x.sum() > 0:
            return x[x > 0] * 2
        return x.nonzero()

    compiled = torch.compile(function, backend=backend)
    for sign in (1, -1):
        x = sign * torch.tensor([1.0, -0.5, 3.0])
        close(compiled(x.to(DEVICE)), function(x.double()))


def test_sizes_from_data_inside_a_graph():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: x.nonzero().sum(0) + x.sum().int().item(), backend="torchfl")
        x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        assert compiled(x.to(DEVICE)).tolist() == [5, 5]


def test_gradients_that_are_none(backend):
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3)}).to(DEVICE)
    compiled = torch.compile(lambda x: model["used"](x), backend=backend)
    compiled(rows(2, 3).to(DEVICE)).sum().backward()
    assert model["used"].weight.grad is not None and model["unused"].weight.grad is None


def test_double_backward_is_refused_as_ever(backend):
    compiled = torch.compile(lambda x: (x * x * x).sum(), backend=backend)
    x = rows(3).to(DEVICE).requires_grad_()
    (grad,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_a_graph_may_be_walked_twice(backend):
    compiled = torch.compile(lambda x: (x.sin() * x).sum(), backend=backend)
    x = rows(5).to(DEVICE).requires_grad_()
    y = compiled(x)
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_lists_views_and_numbers(backend):
    def function(x, scale):
        a, b, c = x.split(2)
        parts = torch.stack([a, b * scale, c.flip(0)]).unbind(1)
        top = x.topk(2, dim=1)
        return torch.cat(parts, 1).clamp(min=-scale), top.values, top.indices, x.max(1).indices, x.var(0, correction=0)

    same_as_cpu(function, rows(6, 5), 1.5, backend=backend)


def test_optimizer_steps(backend):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    ours = copy.deepcopy(reference).float().to(DEVICE)
    compiled = torch.compile(ours, backend=backend)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (reference, ours)]
    for step in range(5):
        x = rows(6, 4 + step)[:, :4]
        for model, optimizer, given in zip((reference, compiled), optimizers, (x.double(), x.to(DEVICE)), strict=True):
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()
    close(list(ours.parameters()), list(reference.parameters()))


def test_autocast_inside(backend):
    torch.manual_seed(0)
    model = nn.Linear(16, 16)

    def under_autocast(x):
        with torch.autocast("npu_v3", dtype=torch.float16):
            return ours(x).relu()

    ours = copy.deepcopy(model).to(DEVICE)
    x = rows(4, 16)
    got = torch.compile(under_autocast, backend=backend)(x.to(DEVICE))
    assert got.dtype == torch.float16
    close(got, model.double()(x.double()).relu(), torch.float16)


def test_strict_mode_holds_inside():
    compiled = torch.compile(lambda x: torch.linalg.eigvals(x + 1), backend="torchfl")
    x = torch.eye(3, device=DEVICE)
    compiled(x)
    with torchfl.strict(), pytest.raises(torchfl.UnsupportedOpError, match="linalg_eig"):
        compiled(x)


def test_steps_are_counted_like_eager_calls():
    compiled = torch.compile(lambda x: torch.relu(x @ x) * 2, backend="torchfl")
    x = rows(4, 4).to(DEVICE)
    compiled(x)
    torchfl.reset_stats()
    compiled(x)
    counted = {row["op"]: (row["path"], row["calls"]) for row in torchfl.stats() if row["calls"]}
    assert counted["aten::mm"] == ("native", 1) and counted["aten::relu"] == ("native", 1)


def test_memory_is_planned_and_shared():
    compiled = torch.compile(lambda x: x.sin().cos().exp().tanh().sigmoid(), backend="torchfl")
    x = rows(256, 256).to(DEVICE)
    first = compiled(x).cpu()
    for _ in range(3):
        assert torch.equal(compiled(x).cpu(), first)
    memory = torchfl.compile.programs()[-1]["memory"]
    assert memory["planned_runs"] == 3 and memory["runs"] == 4
    assert 0 < memory["planned_bytes"] <= memory["separate_bytes"] / 2


def test_memory_that_another_stream_uses_is_not_shared():
    other = torch.Stream(DEVICE)

    @torch.library.custom_op("torchfl_tests::lend", mutates_args=())
    def lend(x: torch.Tensor) -> torch.Tensor:
        other.wait_stream(torch.accelerator.current_stream())
        with other:
            late = x
            for _ in range(20):
                late = late * 1
            result = late + x  # reads x long after the caller has given it back
        x.record_stream(other)
        lent.append(result)
        return x * 2

    @lend.register_fake
    def _(x):
        return torch.empty_like(x)

    lent: list[torch.Tensor] = []
    compiled = torch.compile(lambda x: lend(x.sin()).cos().exp().cos().exp(), backend="torchfl")
    for n in range(6):
        x = rows(200, 200) + n
        close(compiled(x.to(DEVICE)), (x.double().sin() * 2).cos().exp().cos().exp())
        torch.accelerator.synchronize()
        close(lent.pop(), 2 * x.double().sin())


def test_sizes_that_never_come_again_are_not_planned():
    compiled = torch.compile(lambda x: x.sin().cos().exp(), backend="torchfl", dynamic=True)
    for n in range(3, 9):
        compiled(torch.zeros(n, n, device=DEVICE))
    memory = torchfl.compile.programs()[-1]["memory"]
    assert memory["runs"] == 6 and memory["planned_runs"] == 0
    for _ in range(3):  # the second is noted, the third planned
        compiled(torch.zeros(5, 5, device=DEVICE))
    assert torchfl.compile.programs()[-1]["memory"]["planned_runs"] == 2


def test_memory_stays_flat():
    torch.manual_seed(0)
    model = Small().to(DEVICE)
    compiled = torch.compile(model, backend="torchfl")
    x = rows(2, 3, 8, 8).to(DEVICE)

    def reserved() -> int:
        for _ in range(20):
            compiled(x).sum().backward()
        return torch.npu_v3.memory_allocated(0)

    assert reserved() == reserved()


def test_a_graph_that_is_no_program_runs_as_it_is():
    def branches(x):
        return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))

    with log_lines() as lines:
        x = torch.ones(3)
        assert torch.compile(branches, backend="torchfl")(x.to(DEVICE)).tolist() == [2, 2, 2]
    assert lines == [
        "torch.compile: a graph (inference) runs operator by operator: it holds another graph, true_graph_0"
    ]


def test_an_error_of_the_user_stays_pytorchs():
    with pytest.raises(Exception, match=r"shapes|size"):
        torch.compile(lambda x: x @ torch.ones(5, 2, device=x.device), backend="torchfl")(rows(2, 3).to(DEVICE))


def test_options():
    with pytest.raises(Exception, match="no option fuse; known: fusions"):
        torch.compile(lambda x: x + 1, backend="torchfl", options={"fuse": True})(torch.ones(2, device=DEVICE))


def test_graphs_of_the_cpu_stay_inductors(monkeypatch):
    from torch._inductor import compile_fx

    from torchfl.compile import _hooks, _lower

    seen = []
    _hooks.remove()
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **_: seen.append(graph) or graph.forward)
    _hooks.install()
    before = _lower._count  # of programs ever made: those of other tests go when they like
    assert torch.compile(lambda t: t.sin() + 1)(torch.zeros(3)).tolist() == [1, 1, 1]
    assert len(seen) == 1 and _lower._count == before
    assert torch.compile(lambda t: t.cos() + 1)(torch.zeros(3, device=DEVICE)).tolist() == [2, 2, 2]
    made = torch.compile(lambda t: torch.zeros(3, device=DEVICE).cos() + t)
    assert made(torch.ones(3).sum().item()).tolist() == [4, 4, 4]
    assert len(seen) == 1 and _lower._count == before + 2
    monkeypatch.undo()
    _hooks.install()


@pytest.mark.slow
def test_inductor_still_compiles_for_the_cpu():
    x = torch.linspace(-1, 1, 5)
    torch.testing.assert_close(torch.compile(lambda t: t.sin() + 1)(x), x.sin() + 1)


def test_two_threads_share_a_program():
    from concurrent.futures import ThreadPoolExecutor

    compiled = torch.compile(lambda x: (x @ x).softmax(-1).cumsum(0), backend="torchfl")
    inputs = [rows(16, 16) + n for n in range(8)]
    compiled(inputs[0].to(DEVICE))

    def work(x):
        given = x.to(DEVICE)
        for _ in range(20):
            result = compiled(given)
        return result.cpu()

    with ThreadPoolExecutor(4) as pool:
        for x, got in zip(inputs, pool.map(work, inputs), strict=True):
            close(got, (x.double() @ x.double()).softmax(-1).cumsum(0))


@pytest.mark.slow
def test_models_are_faster_than_eager():
    import json
    import subprocess
    import sys
    from pathlib import Path

    script = Path(__file__).parents[2] / "benchmarks" / "compiled.py"
    ran = subprocess.run([sys.executable, str(script), "--json"], capture_output=True, text=True)
    rows = json.loads(ran.stdout)["rows"]
    assert all(row["within_tolerance"] and row["ratio"]["median"] < 1 for row in rows), rows
    assert ran.returncode == 0
