"""The host CPU as a chip: shared memory, packed weights that follow their parameter, fused chains, and its bfloat16 variant."""

from __future__ import annotations

import copy
import io
import json

from helpers import OwnProcess, in_threads, run_script

chip = OwnProcess("host", timeout=200)
rounding = OwnProcess("host_bf16", timeout=200, TORCHFL_HOST_ROUND="1")
unrounded = OwnProcess("host_bf16_unrounded", timeout=200, TORCHFL_HOST_ROUND="0", TORCHFL_LOG="2")


def device(name="host"):
    import torch

    import torchfl

    torchfl.load(name)
    torch.manual_seed(0)
    return torch.device("host:0")


def block():
    """A residual block of images, and a classifier: a convolution and a norm by turns."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
            self.second, self.norm2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
            self.head = nn.Linear(16 * 64, 48)
            for norm in (self.norm, self.norm2):
                norm.running_mean.uniform_(-0.2, 0.2)
                norm.running_var.uniform_(0.5, 2)

        def forward(self, x):
            y = self.norm(self.first(x)).relu()
            y = (self.norm2(self.second(y)) + y).relu()
            return self.head(nn.functional.max_pool2d(y, 2).view(len(x), -1)).relu(), y

    return Block().eval()


def close(ours, theirs, tolerance=1e-5):
    import torch

    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)


def paths():
    import torchfl

    return {row["op"]: (row["path"], row["target"]) for row in torchfl.stats() if row["calls"]}


@chip
def test_tensors_are_shared_both_ways_until_one_side_is_written():
    import torch

    import torchfl

    d = device()
    address = torch._C._data_address
    before = torchfl.transfers()
    x = torch.arange(1000.0)
    there = x.to(d)
    back = there.cpu()
    assert address(there) == address(x) == address(back)
    after = torchfl.transfers()
    assert after["to_device_bytes"] == before["to_device_bytes"] and after["to_host_bytes"] == before["to_host_bytes"]
    x.zero_()
    assert there.sum().item() == 499500 == back.sum().item()
    there.add_(1)
    assert there.sum().item() == 500500 and back.sum().item() == 499500 and address(there) != address(back)


@chip
def test_results_are_those_of_the_cpu_for_small_large_strided_and_empty_tensors():
    import torch
    from torch.nn import functional as F

    d = device()
    functions = [
        lambda a, b: a + b, lambda a, b: torch.sub(a, b, alpha=2), lambda a, b: a * 2.5, lambda a, b: 1 / (a.abs() + 1),
        lambda a, b: torch.maximum(a, b), lambda a, b: a.relu(), lambda a, b: a < b, lambda a, b: a.sum(), lambda a, b: a.mean(-1),
        lambda a, b: a.softmax(-1), lambda a, b: F.gelu(a.nan_to_num(posinf=3, neginf=-3)), lambda a, b: a.exp(), lambda a, b: torch.cat([a, b]),
        lambda a, b: a.tanh(), lambda a, b: torch.where(a > 0, a, b), lambda a, b: a.clone().mul_(b), lambda a, b: a.sum(0, True),
    ]  # fmt: skip
    wide = torch.randn(300, 70)
    samples = [
        torch.randn(3, 5), wide, wide.t(), wide[:7, 1:60:3], wide[2:, 5:], torch.randn(0, 4), torch.randn(1).expand(4, 6),
        torch.randn(4, 8)[:, 3:], torch.tensor([[float("nan"), -0.0, float("inf"), -float("inf"), 1.0]]),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), torch.randn(()).view(1, 1)[0],
    ]  # fmt: skip
    for sample in samples:
        other = torch.randn_like(sample)
        if 0 in sample.stride():
            there = sample[:1, :1].contiguous().to(d).expand(sample.shape)
        else:
            there = torch.empty_strided(sample.shape, sample.stride(), device=d).copy_(sample)
        ours = (there, other.to(d))
        for function in functions:
            result, expected = function(*ours), function(sample, other)
            close(result, expected, 2e-6)
            assert result.stride() == expected.stride(), (sample.shape, result.stride(), expected.stride())
    for n, k, m in ((8, 8, 8), (1, 5, 3), (64, 70, 80), (0, 4, 4), (4, 0, 4)):
        a, b, c = torch.randn(n, k), torch.randn(k, m), torch.randn(m)
        close(a.to(d) @ b.to(d), a @ b)
        close(F.linear(a.to(d), b.t().contiguous().to(d), c.to(d)), F.linear(a, b.t(), c))
        close(torch.addmm(c.to(d), a.to(d), b.to(d), beta=0.5, alpha=2), torch.addmm(c, a, b, beta=0.5, alpha=2))
        close(a.t().contiguous().to(d).t() @ b.to(d), a @ b)
    x, w = torch.randn(6, 16), torch.randn(16)
    close(F.layer_norm(x.to(d), (16,), w.to(d)), F.layer_norm(x, (16,), w))
    assert torch.equal((torch.arange(6).to(d) * 3 - 7).cpu(), torch.arange(6) * 3 - 7)
    assert not [op for op, (path, _) in paths().items() if path == "cpu"], paths()


@chip
def test_compiled_chains_run_fused_and_give_what_the_operators_give():
    import torch

    import torchfl

    d = device()
    model, x = block(), torch.randn(4, 3, 16, 16)
    ours = copy.deepcopy(model).to(d)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(ours)
        unfused = torch.compile(ours, backend="torchfl", options={"fusions": False})
        torchfl.reset_stats()
        for run in (ours, compiled, unfused, compiled):
            for result, right in zip(run(x.to(d)), expected, strict=True):
                close(result, right)
                assert result.stride() == right.stride()  # the order of memory inside is nobody's business
        kernels = {target for _, target in paths().values()}
        assert {"host_conv_norm_relu", "host_conv_norm_add_relu", "host_conv"} <= kernels, kernels
        image = compiled(x.to(d))[1]
        file = io.BytesIO()
        torch.save(image, file)
        file.seek(0)
        again = torch.load(file)
        assert torch.equal(again.cpu(), image.cpu()) and again.stride() == image.stride()
        assert str(image.cpu()) == str(again.cpu())
    assert not [op for op, (path, _) in paths().items() if path == "cpu"], paths()


@chip
def test_a_residual_is_overwritten_only_where_nobody_sees_it():
    import torch
    from torch import nn

    d = device()
    conv, norm = nn.Conv2d(8, 8, 1).to(d), nn.BatchNorm2d(8).to(d).eval()

    @torch.compile
    def tail(x, kept):
        return (norm(conv(x)) + kept).relu()

    @torch.compile
    def both(x):
        kept = x * 2
        return (norm(conv(x)) + kept).relu(), kept

    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    here = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    ours, kept = x.to(d), here.to(d)
    with torch.no_grad():
        for _ in range(3):
            tail(ours, kept)
            assert torch.equal(kept.cpu(), here) and torch.equal(ours.cpu(), x)
            assert torch.equal(both(ours)[1].cpu(), x * 2)
        expected = (norm.cpu()(conv.cpu()(x)) + here).relu()
        norm.to(d), conv.to(d)
        close(tail(ours, kept), expected)
        close(tail(x.to(d), here.to(d)), expected)
        assert torch.equal(here, kept.cpu())  # shared with the host, which must not see it either


@chip
def test_a_packed_weight_follows_its_parameter():
    import torch

    d = device()
    model = block()
    ours = copy.deepcopy(model).to(d)
    compiled = torch.compile(ours)
    x = torch.randn(64, 3, 16, 16)

    def same():
        with torch.no_grad():
            for _ in range(2):
                close(compiled(x.to(d))[0], model(x)[0], 1e-4)
                close(ours(x.to(d))[0], model(x)[0], 1e-4)

    def change(function):
        for target in (model, ours):
            with torch.no_grad():
                function(target)
        same()

    same()
    change(lambda m: m.first.weight.mul_(1.5))
    change(lambda m: m.head.weight.data.add_(0.01))
    change(lambda m: m.second.weight.data.copy_(torch.ones(16, 16, 3, 3) / 50))
    change(lambda m: m.norm.running_mean.add_(0.3))
    change(lambda m: m.norm2.weight.data.fill_(0.7))
    change(lambda m: m.second.bias.zero_())
    for target in (model, ours):
        optimizer = torch.optim.SGD(target.parameters(), lr=0.1)
        target(x.to(next(target.parameters()).device))[0].square().mean().backward()
        optimizer.step()
    same()
    other = block()
    model.load_state_dict(other.state_dict())
    ours.load_state_dict(other.state_dict())
    same()


@chip
def test_training_gives_the_gradients_of_the_cpu():
    import torch

    d = device()
    model, x = block().train(), torch.randn(8, 3, 16, 16)
    for compiled in (False, True):
        ours = copy.deepcopy(model).to(d)
        run = torch.compile(ours) if compiled else ours
        theirs = copy.deepcopy(model)
        theirs(x)[0].square().mean().backward()
        run(x.to(d))[0].square().mean().backward()
        for (name, parameter), right in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert parameter.grad is not None, name
            close(parameter.grad, right.grad, 1e-4)
        close(ours.norm.running_mean, theirs.norm.running_mean)


@chip
def test_attention_and_linear_layers_run_fused():
    import torch
    from torch import nn
    from torch.nn import functional as F

    import torchfl

    d = device()

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.up, self.down = (nn.Linear(64, n) for n in (64, 64, 64, 128, 64))
            self.down = nn.Linear(128, 64)
            self.norm = nn.LayerNorm(64)

        def forward(self, x, mask=None):
            q, k, v = (f(x).view(2, 40, 4, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(x.shape)
            return self.norm(y + self.down(F.gelu(self.up(x))))

    model, x = Layer().eval(), torch.randn(2, 40, 64)
    mask = torch.zeros(2, 1, 1, 40)
    mask[1, :, :, 30:] = torch.finfo(torch.float32).min
    ours = copy.deepcopy(model).to(d)
    compiled = torch.compile(ours)
    torchfl.reset_stats()
    with torch.no_grad():
        for given in (None, mask):
            on_device = given if given is None else given.to(d)
            close(compiled(x.to(d), on_device), model(x, given))
            close(ours(x.to(d), on_device), model(x, given))
    kernels = {target for _, target in paths().values()}
    assert {"host_attention", "host_linear_gelu", "host_linear"} <= kernels, kernels
    assert not {"host_bmm", "host__softmax"} & kernels, kernels


@chip
def test_attention_is_one_kernel_wherever_it_can_be():
    """In eager mode as well; what the kernel does not take is made of products and a softmax."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    import torchfl

    d = device()
    q, k, v = torch.randn(2, 40, 4, 16).transpose(1, 2), torch.randn(2, 4, 50, 16), torch.randn(2, 4, 50, 16)
    nothing = torch.zeros(2, 1, 40, 50)
    nothing[0, :, 3], nothing[1, :, :, 20:] = -torch.inf, -torch.inf
    whole = [
        ((q, k, v), {}),
        ((q, k, v, torch.randn(40, 50)), {"scale": 0.3}),
        ((q, k, v, nothing), {}),  # a row that looks at nothing
        ((q, k, v, nothing == 0), {}),
        ((q, k, v), {"is_causal": True}),
        ((q[..., ::2], k[..., :8], v[..., :8]), {}),
    ]
    apart = [
        ((q, k, v[..., :8]), {}),
        ((q[0], k[0], v[0]), {}),
        ((q[:, :, :0], k, v), {}),
        ((q.double(), k.double(), v.double()), {}),
        ((torch.randn(2, 8, 40, 16), k, v), {"enable_gqa": True}),
    ]
    for calls, wanted in ((whole, True), (apart, False)):
        for args, options in calls:
            torchfl.reset_stats()
            ours = attention(*(arg.to(d) for arg in args), **options)
            close(ours, attention(*args, **options))
            assert ("host_attention" in {target for _, target in paths().values()}) is wanted, (options, paths())
    ours, theirs = q.clone().to(d).requires_grad_(), q.clone().requires_grad_()
    attention(ours, k.to(d), v.to(d)).square().sum().backward()
    attention(theirs, k, v).square().sum().backward()
    close(ours.grad, theirs.grad)
    close(
        torch.func.vmap(lambda one: attention(one, k.to(d), v.to(d)))(torch.stack([q, q]).to(d))[1], attention(q, k, v)
    )
    # A compiled graph reckons with the layout of the result.
    flat = torch.compile(lambda q: attention(q, k.to(d), v.to(d)).transpose(1, 2).reshape(2, 40, -1), dynamic=False)
    row = q.to(d)[:1]
    third = torch.randn(2, 40, 4, 3, 16).to(d)[:, :, :, 1].transpose(1, 2)
    with torch.no_grad():
        for query in (q.to(d), q.to(d).contiguous(), row.expand(2, -1, -1, -1), third):
            close(flat(query), attention(query.cpu(), k, v).transpose(1, 2).reshape(2, 40, -1))
    told = torchfl.explain("aten::scaled_dot_product_attention", q.to(d), k.to(d), v.to(d), attn_mask=nothing.to(d))
    assert (told["path"], told["target"]) == ("native", "host_attention")
    told = torchfl.explain("aten::scaled_dot_product_attention", q.to(d), k.to(d), v[..., :8].to(d))
    assert told["path"] != "cpu", told


@chip
def test_two_threads_compute_at_once():
    import torch

    d = device()
    x = torch.randn(64, 64)
    expected, wrong = (x @ x).relu().softmax(-1).sum(0), []

    def work(_):
        ours = x.to(d)
        for _ in range(200):
            result = (ours @ ours).relu().softmax(-1).sum(0).cpu()
            if not torch.allclose(result, expected, atol=1e-5):
                wrong.append(result)

    in_threads(work, 2)
    assert not wrong


@rounding
def test_the_bfloat16_variant_rounds_products_and_nothing_else():
    import torch

    import torchfl
    from torchfl import _engine

    d = device("host_bf16")
    assert _engine._lowered["host"]["compute_as"] == {"float32": "bfloat16"}
    model, x = block(), torch.randn(64, 3, 16, 16)
    ours = copy.deepcopy(model).to(d)
    compiled = torch.compile(ours)
    torchfl.reset_stats()
    with torch.no_grad():
        expected = model(x)
        for run in (ours, compiled, compiled):
            for result, right in zip(run(x.to(d)), expected, strict=True):
                assert result.dtype == torch.float32 and result.stride() == right.stride()
                difference = (result.cpu() - right).abs().max() / right.abs().max()
                assert 1e-5 < difference < 2e-2, difference
        ours.second.weight.mul_(2), model.second.weight.mul_(2)
        close(compiled(x.to(d))[0], model(x)[0], 3e-2)
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    kernels = {target for _, target in paths().values()}
    assert {"host_conv_bf16", "host_linear_bf16"} <= kernels, kernels
    assert not [op for op, (path, _) in paths().items() if path == "cpu"], paths()
    torch.testing.assert_close((x.to(d) * 1.1).cpu(), x * 1.1, rtol=0, atol=0)
    answer = torchfl.explain(
        "aten::addmm", *(torch.empty(s, device="meta") for s in ((64,), (64, 64), (64, 64))), device="host"
    )
    assert "bf16" in json.dumps(answer), answer


@rounding
def test_a_rounded_product_and_a_whole_summand_give_what_their_sum_gives():
    """A layer of a transformer: the summand that its norm gave is float32, the product is not."""
    import torch
    from torch import nn

    d = device("host_bf16")

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)

        def forward(self, x):
            x = self.norm(x)
            return self.norm(self.down(torch.nn.functional.gelu(self.up(x))) + x)

    model, x = Layer(), torch.randn(64, 64)
    ours = copy.deepcopy(model).to(d)
    with torch.no_grad():
        result = torch.compile(ours)(x.to(d))
        assert result.dtype == torch.float32
        close(result, model(x), 3e-2)


@unrounded
def test_where_bfloat16_is_slower_the_variant_is_exact_and_says_so():
    import torch

    import torchfl

    d = device("host_bf16")
    assert torchfl.devices()[0]["product_dtypes"] == ["float32"]
    model, x = block(), torch.randn(64, 3, 16, 16)
    ours = copy.deepcopy(model).to(d)
    with torch.no_grad():
        for run in (ours, torch.compile(ours)):
            close(run(x.to(d))[0], model(x)[0])


def test_the_log_says_that_the_variant_does_not_round():
    code = "import torch, torchfl\ntorchfl.load('host_bf16')\ntorch.ones(2, device='host')"
    told = "products in bfloat16 are slower than in float32 on this device"
    for choice, says in (("0", True), ("1", False)):
        ran = run_script(code, env={"TORCHFL_HOST_ROUND": choice})
        assert ran.code == 0 and (told in ran.err) is says, ran.err


@chip
def test_small_calls_are_those_of_the_cpu():
    """Loops of the adapter's own, up to their limits and at the ends of what floats can hold."""
    import torch
    from torch.nn import functional as F

    d = device()
    ends = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 88.7, 88.73, 89.5, -87.4, -103.5, -110])
    for x in (ends, torch.linspace(-20, 20, 4096).view(64, 64), torch.randn(5, 13), torch.randn(0, 3), torch.randn(())):
        for f in (torch.exp, torch.sigmoid, torch.relu, lambda x: x.gt(0.1), lambda x: x.ne(x)):
            torch.testing.assert_close(f(x.to(d)).cpu(), f(x), rtol=1e-6, atol=1e-38, equal_nan=True)
        close(torch.softmax(x.to(d), -1), torch.softmax(x, -1))
        close(x.to(d).sum(), x.sum(), 1e-3)
        assert torch.zeros_like(x.to(d)).cpu().equal(torch.zeros_like(x))
    for m, k, n in ((16, 16, 16), (3, 5, 17), (1, 8, 40), (7, 1, 1), (33, 7, 16)):
        a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        for left in (a, a.t().contiguous().t()):
            for right in (b, b.t().contiguous().t()):
                close(left.to(d) @ right.to(d), a @ b)
                close(torch.addmm(bias.to(d), left.to(d), right.to(d)), torch.addmm(bias, a, b))
    table, rows = torch.randn(7, 5), torch.tensor([[0, 6], [2, 2]])
    assert F.embedding(rows.to(d), table.to(d)).cpu().equal(F.embedding(rows, table))
    for outside in (7, -1):
        try:
            F.embedding(torch.tensor([outside]).to(d), table.to(d))
        except IndexError as error:
            assert "index out of range" in str(error)
        else:
            raise AssertionError(outside)
    # What is lent to PyTorch in inference mode is lent again outside of it.
    with torch.inference_mode():
        inside = [torch.sort(torch.randn(3, 4).double().to(d))[0] for _ in range(20)]
    for _ in range(20):
        assert torch.cumsum(torch.ones(4, dtype=torch.float64, device=d), 0).cpu().tolist() == [1, 2, 3, 4]
    assert all(part.cpu().diff(dim=-1).ge(0).all() for part in inside)


def test_the_chip_is_there_only_when_it_is_named():
    from torchfl._paths import shipped_chips

    assert {"host", "host_bf16"} <= set(shipped_chips()) - set(shipped_chips(on_request=False))
