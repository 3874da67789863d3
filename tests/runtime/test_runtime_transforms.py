"""PyTorch's ways of transforming programs, on a device: TorchScript, export, vmap, torch.func, checkpointing, hooks,
benchmarks, deterministic mode. `torch.compile` has tests of its own."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchfl


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.head(x.flatten(1))


@pytest.fixture
def pair(npu):
    torch.manual_seed(0)
    host = Net().eval()
    return host, copy.deepcopy(host).to(npu), torch.randn(2, 3, 6, 6)


def close(got, want):
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["trace", "script"])
def test_torchscript_runs_trains_saves_and_loads(npu, pair, how):
    host, ours, x = pair
    compiled = torch.jit.trace(ours, x.to(npu)) if how == "trace" else torch.jit.script(ours)
    for _ in range(3):  # the profiling executor changes its mind after the first runs
        close(compiled(x.to(npu)), host(x))
    compiled(x.to(npu)).square().sum().backward()
    host(x).square().sum().backward()
    close(compiled.conv.weight.grad, host.conv.weight.grad)
    frozen = torch.jit.freeze(compiled)
    close(frozen(x.to(npu)), host(x))
    file = io.BytesIO()
    torch.jit.save(compiled, file)
    for where in ("cpu", "npu_v3:0", npu):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=where)
        close(loaded(x.to(where)), host(x))
        assert str(loaded.head.weight.device) == str(where)


def test_torchscript_with_control_flow_and_device_names(npu):
    @torch.jit.script
    def steps(x: torch.Tensor, n: int) -> torch.Tensor:
        total = torch.zeros(x.size(0), device=x.device)
        for i in range(n):
            if bool((x > i).any()):
                total = total + (x * i).sum(1)
        return total

    x = torch.randn(4, 3).abs() * 3
    close(steps(x.to(npu), 4), steps(x, 4))

    def make(n: int) -> torch.Tensor:
        return torch.ones(n, device="npu_v3:0") + 1

    assert torch.jit.script(make)(3).device == npu


def test_export_and_run_elsewhere(npu, pair):
    host, ours, x = pair
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(ours, (x.to(npu),), dynamic_shapes={"x": {0: batch}})
    close(program.module()(x.to(npu)), host(x))
    close(program.module()(torch.cat([x, x, x]).to(npu)), host(torch.cat([x, x, x])))
    decomposed = program.run_decompositions()
    close(decomposed.module()(x.to(npu)), host(x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    close(torch.export.load(file).module()(x.to(npu)), host(x))


def test_vmap_and_torch_func(npu, pair):
    host, ours, x = pair
    w, batch = torch.randn(4, 3), torch.randn(5, 4)
    for run in (
        lambda a, b: torch.vmap(lambda row: torch.tanh(row @ b).sum())(a),
        lambda a, b: torch.func.grad(lambda t: torch.tanh(a @ t).square().sum())(b),
        lambda a, b: torch.vmap(torch.func.grad(lambda row, t: (row @ t).exp().sum()), in_dims=(0, None))(a, b),
        lambda a, b: torch.func.jacrev(lambda t: torch.sin(a @ t).sum(0))(b),
        lambda a, b: torch.func.jacfwd(lambda t: torch.sin(a @ t).sum(0))(b),
        lambda a, b: torch.func.hessian(lambda t: (a @ t).tanh().sum())(b),
        lambda a, b: torch.func.vjp(lambda t: a @ t, b)[1](torch.ones_like(a @ b))[0],
        lambda a, b: torch.func.jvp(lambda t: (a @ t).softmax(1), (b,), (torch.ones_like(b),))[1],
        lambda a, b: torch.func.functionalize(lambda t: t.clone().add_(1).view(-1)[::2])(b),
        lambda a, b: torch.vmap(lambda row: torch.cumsum(row, 0)[row.argmax()])(a),
        lambda a, b: torch.vmap(lambda i: b[i % 4], randomness="error")(torch.arange(5, device=b.device)),
    ):
        close(run(batch.to(npu), w.to(npu)), run(batch, w))

    def per_sample(net, inputs):
        parameters = {k: v.detach() for k, v in net.named_parameters()}
        buffers = dict(net.named_buffers())

        def loss(values, one):
            return torch.func.functional_call(net, (values, buffers), (one[None],)).square().sum()

        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)

    for (name, got), want in zip(per_sample(ours, x.to(npu)).items(), per_sample(host, x).values(), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3, msg=name)
    torch.manual_seed(3)
    drawn = torch.vmap(lambda row: row + torch.rand(4, device=npu), randomness="different")(batch.to(npu))
    assert len({tuple(row) for row in (drawn - batch.to(npu)).cpu().round(decimals=4).tolist()}) == 5


def test_forward_mode_and_gradient_checks(npu):
    x = torch.randn(3, 4, dtype=torch.float64)

    def run(t):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(t, torch.ones_like(t))
            return torch.autograd.forward_ad.unpack_dual((dual.sin() * dual).sum(1)).tangent

    close(run(x.to(npu)), run(x))
    assert torch.autograd.gradcheck(lambda t: (t @ t.t()).tanh(), x.to(npu).requires_grad_())
    assert torch.autograd.gradgradcheck(lambda t: (t * t).exp().sum(), x[:1].to(npu).requires_grad_())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients_and_drops_what_it_saved(npu, reentrant):
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(6))).to(npu)
    x = torch.randn(256, 64, device=npu, requires_grad=True)

    def run(how):
        layers.zero_grad()
        x.grad = None
        torch.manual_seed(5)
        torch.npu_v3.reset_peak_memory_stats()
        before = torch.npu_v3.memory_allocated()
        out = how()
        held = torch.npu_v3.memory_allocated() - before
        out.square().mean().backward()
        return held, x.grad.clone(), layers[0][0].weight.grad.clone()

    plain = run(lambda: layers(x))
    cheap = run(lambda: checkpoint(layers, x, use_reentrant=reentrant))
    parts = run(lambda: checkpoint_sequential(layers, 3, x, use_reentrant=reentrant))
    for other in (cheap, parts):
        assert other[0] < plain[0] / 2
        for got, want in zip(other[1:], plain[1:], strict=True):
            torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-5, atol=1e-6)


def test_hooks_of_modules_tensors_and_saved_tensors(npu, pair):
    _, ours, x = pair
    seen = []
    handles = [
        ours.conv.register_forward_pre_hook(lambda m, args: seen.append(("before", args[0].device))),
        ours.conv.register_forward_hook(lambda m, args, out: seen.append(("after", out.device))),
        ours.head.register_full_backward_hook(lambda m, gi, go: seen.append(("backward", go[0].device))),
        ours.head.weight.register_post_accumulate_grad_hook(lambda p: seen.append(("grad", p.grad.device))),
    ]
    ours(x.to(npu)).sum().backward()
    assert [name for name, _ in seen] == ["before", "after", "grad", "backward"]
    assert {device for _, device in seen} == {npu}
    for handle in handles:
        handle.remove()
    packed = []

    def pack(t):
        packed.append(t.device)
        return t.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(npu)):
        loss = ours(x.to(npu)).square().sum()
    loss.backward()
    assert packed and set(packed) == {npu}
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        again = ours(x.to(npu)).square().sum()
    again.backward()


def test_the_benchmark_timer_and_parametrizations(npu):
    from torch.utils import benchmark

    x = torch.randn(32, 32, device=npu)
    measured = benchmark.Timer("x @ x", globals={"x": x}).timeit(20)
    assert measured.median > 0 and measured.number_per_run == 20
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).to(npu)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).to(npu)
    for module in (layer, spectral):
        module(torch.ones(2, 4, device=npu)).sum().backward()
        assert all(p.grad is not None for p in module.parameters())
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    averaged.update_parameters(layer)
    assert next(averaged.parameters()).device == npu


def test_deterministic_mode_fills_what_was_not_written_and_gives_the_same_bits(npu):
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.empty(7, device=npu).isnan().all().item()
        assert torch.empty_strided((2, 3), (1, 2), device=npu).isnan().all().item()
        assert (torch.empty(5, dtype=torch.int32, device=npu) == torch.iinfo(torch.int32).max).all().item()
        assert torch.empty(3, dtype=torch.bool, device=npu).all().item()
        assert torch.ones(2, device=npu).resize_(4)[2:].isnan().all().item()
        x, index = torch.randn(500, 4, device=npu), torch.randint(9, (500,), device=npu)
        runs = [torch.zeros(9, 4, device=npu).index_add_(0, index, x).cpu() for _ in range(2)]
        assert torch.equal(*runs)
        torch.utils.deterministic.fill_uninitialized_memory = False
        assert torch.empty(7, device=npu).shape == (7,)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


def test_meta_and_fake_tensors_never_reach_a_kernel(npu):
    from torch._subclasses.fake_tensor import FakeTensorMode

    torchfl.reset_stats()
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(3, 4, device=npu))
        y = F.gelu(x @ x.t()).sum(1)
        assert y.device == npu and y.shape == (3,)
    assert not [row for row in torchfl.stats() if row["op"] in ("aten::gelu", "aten::mm")]
    with torch.device("meta"):
        net = nn.Linear(3, 2)
    net.to_empty(device=npu)
    assert net.weight.device == npu
