"""Mixed precision: which operator computes in which dtype under autocast, and training with a gradient scaler."""

import pytest
import torch
from torch.nn import functional as F

from torchfl import _autocast, hcd

LOWER = [torch.float16, torch.bfloat16]


def lowered():
    """Operators that autocast lowers, on float32 inputs."""
    yield "mm", lambda d: torch.ones(4, 4, device=d) @ torch.ones(4, 4, device=d)
    yield "bmm", lambda d: torch.bmm(torch.ones(2, 3, 4, device=d), torch.ones(2, 4, 3, device=d))
    yield "matmul", lambda d: torch.matmul(torch.ones(2, 2, 3, 4, device=d), torch.ones(4, device=d))
    yield "addmm", lambda d: torch.addmm(*(torch.ones(3, 3, device=d) for _ in range(3)))
    yield "linear", lambda d: torch.nn.Linear(4, 3, device=d)(torch.ones(2, 4, device=d))
    yield "conv2d", lambda d: torch.nn.Conv2d(3, 4, 3, device=d)(torch.ones(1, 3, 8, 8, device=d))
    yield "conv_transpose2d", lambda d: torch.nn.ConvTranspose2d(3, 4, 3, device=d)(torch.ones(1, 3, 4, 4, device=d))
    yield "attention", lambda d: F.scaled_dot_product_attention(*(torch.ones(1, 2, 4, 8, device=d) for _ in range(3)))


def kept_in_float32():
    """Operators that autocast computes in float32, on half precision inputs."""
    yield "softmax", lambda x: F.softmax(x, -1)
    yield "log_softmax", lambda x: F.log_softmax(x, -1)
    yield "exp", lambda x: x.exp()
    yield "log", lambda x: x.log()
    yield "pow", lambda x: x.pow(2)
    yield "sum", lambda x: x.sum()
    yield "cumsum", lambda x: x.cumsum(0)
    yield "norm", lambda x: x.norm()
    yield "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])
    yield "mse_loss", lambda x: F.mse_loss(x, x)
    yield "nll_loss", lambda x: F.nll_loss(x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device))
    yield "cross_entropy", lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64, device=x.device))


@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_products_are_lowered(npu, dtype):
    with torch.autocast("npu_v3", dtype=dtype):
        results = {name: call(npu).dtype for name, call in lowered()}
    assert results == dict.fromkeys(results, dtype)


@pytest.mark.parametrize("dtype", LOWER, ids=str)
def test_what_needs_range_stays_in_float32(npu, dtype):
    x = torch.full((4, 4), 0.5, dtype=dtype, device=npu)
    with torch.autocast("npu_v3", dtype=dtype):
        results = {name: call(x).dtype for name, call in kept_in_float32()}
    assert results == dict.fromkeys(results, torch.float32)


def test_mixed_arguments_are_promoted(npu):
    half, single = torch.ones(3, 3, dtype=torch.float16, device=npu), torch.ones(3, 3, device=npu)
    with torch.autocast("npu_v3", dtype=torch.float16):
        assert torch.addcmul(half, single, half).dtype == torch.float32
        assert torch.dot(half[0], half[0]).dtype == torch.float16
        assert torch.cat([half, single]).dtype == torch.float32
        assert (half + single).dtype == torch.float32
        assert torch.stack([half, half]).dtype == torch.float16


def test_autocast_leaves_alone_what_it_does_not_concern(npu):
    single = torch.ones(3, 3, device=npu)
    with torch.autocast("npu_v3", dtype=torch.float16):
        assert (single + single).dtype == torch.float32
        assert single.relu().dtype == torch.float32
        assert (single.double() @ single.double()).dtype == torch.float64
        assert (torch.ones(3, 3) @ torch.ones(3, 3)).dtype == torch.float32  # on the CPU
        with torch.autocast("npu_v3", enabled=False):
            assert (single @ single).dtype == torch.float32
        assert (single @ single).dtype == torch.float16
    assert (single @ single).dtype == torch.float32
    with torch.autocast("npu_v3"):
        assert (single @ single).dtype == torch.get_autocast_dtype("npu_v3")


def test_a_dtype_that_the_chip_does_not_lower_to_is_refused_or_ignored_with_a_warning(npu):
    with pytest.warns(UserWarning, match="npu_v3"), torch.autocast("npu_v3", dtype=torch.float64):
        assert (torch.ones(3, 3, device=npu) @ torch.ones(3, 3, device=npu)).dtype == torch.float32


def test_the_decorators_of_torch_amp_take_the_device(npu):
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="npu_v3", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="npu_v3")
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(3, device=npu, dtype=torch.float16, requires_grad=True)
    with torch.autocast("npu_v3", dtype=torch.float16):
        y = Double.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and x.grad.dtype == torch.float16


def test_weights_are_cast_once_and_gradients_are_float32(npu):
    layer = torch.nn.Linear(4, 4).to(npu)
    with torch.autocast("npu_v3", dtype=torch.float16):
        y = layer(layer(torch.ones(2, 4, device=npu)))
        loss = F.mse_loss(y, torch.zeros_like(y))
    assert loss.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    expected = torch.nn.Linear(4, 4)
    expected.load_state_dict(layer.state_dict())
    F.mse_loss(expected(expected(torch.ones(2, 4))), torch.zeros(2, 4)).backward()
    torch.testing.assert_close(layer.weight.grad.cpu(), expected.weight.grad, rtol=2e-2, atol=2e-3)


AUTOCAST = """
hcd: 1
chip: {{name: Toy, vendor: Example, version: 1.0.0, device_type: toy}}
compute_units: {{fp16: {{count: 1, peak: 1 TFLOP/s}}, fp32: {{count: 1, peak: 1 TFLOP/s}}}}
tensor:
  supported_dtypes: [float16, float32]
  autocast: {{{lists}}}
ops:
  - {{op: aten::mm, kernel: toy_mm, dtypes: [float16, float32]}}
  - {{op: aten::bmm, kernel: toy_bmm, dtypes: [float32]}}
"""


def lists_of(tmp_path, lists):
    path = tmp_path / "toy.hcd"
    path.write_text(AUTOCAST.format(lists=lists))
    from torchfl._native import engine

    return _autocast.lists(engine().default_autocast_lists(), hcd.load(path).lower())


def test_the_default_lists_are_torch_cudas(npu):
    from torchfl._native import engine

    lists = engine().default_autocast_lists()
    assert {"mm", "bmm", "addmm", "conv2d", "linear", "matmul", "scaled_dot_product_attention"} <= set(
        lists["lower_precision"]
    )
    assert {"exp", "log_softmax.int", "softmax.int", "layer_norm", "mse_loss", "nll_loss"} & set(
        lists["fp32"] + lists["fp32_set_opt_dtype"]
    )
    assert {"addcmul", "dot"} & set(lists["promote"])


def test_a_descriptor_moves_operators_between_the_lists(npu, tmp_path):
    lists = lists_of(tmp_path, "lower_precision: [aten::exp], fp32: [aten::mm], promote: [aten::addmm]")
    assert "exp" in lists["lower_precision"] and "exp" not in lists["fp32"]
    assert "mm" in lists["fp32"] and "mm" not in lists["lower_precision"]
    assert "addmm" in lists["promote"] and "addmm" not in lists["lower_precision"]
    assert "linear" in lists["lower_precision"]  # the rest stays


def test_an_operator_that_the_chip_has_in_float32_only_is_not_lowered(npu, tmp_path):
    lists = lists_of(tmp_path, "fp32: [aten::exp]")
    assert "bmm" not in lists["lower_precision"]
    assert "mm" in lists["lower_precision"]


def step(model, scaler, optimizer, x, target):
    optimizer.zero_grad()
    with torch.autocast("npu_v3", dtype=torch.float16):
        loss = F.cross_entropy(model(x), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def test_a_gradient_scaler_trains(npu):
    torch.manual_seed(0)
    x, target = torch.randn(64, 8), torch.randint(3, (64,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).to(npu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("npu_v3", init_scale=1024.0, growth_interval=5)
    losses = [step(model, scaler, optimizer, x.to(npu), target.to(npu)) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]
    assert scaler.get_scale() == 1024.0 * 2**6  # it doubles after every five good steps


def test_a_step_that_overflows_is_skipped_and_the_scale_backs_off(npu):
    layer = torch.nn.Linear(4, 2).to(npu)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu_v3", init_scale=2.0**8)
    x, target = torch.ones(2, 4, device=npu), torch.zeros(2, dtype=torch.int64, device=npu)
    before = layer.weight.detach().clone()
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(layer(x), target)).backward()
    layer.weight.grad[0, 1] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight.cpu(), before.cpu())
    assert scaler.get_scale() == 2.0**7
    step(layer, scaler, optimizer, x, target)
    assert not torch.equal(layer.weight.cpu(), before.cpu())
    assert scaler.get_scale() == 2.0**7
    layer.weight.grad.fill_(float("nan"))


def test_unscaled_gradients_can_be_clipped(npu):
    layer = torch.nn.Linear(4, 2).to(npu)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu_v3", init_scale=2.0**8)
    scaler.scale(layer(torch.full((2, 4), 100.0, device=npu)).sum()).backward()
    scaler.unscale_(optimizer)
    assert layer.weight.grad.tolist() == [[200.0] * 4] * 2
    norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert norm.item() == pytest.approx((8 * 200**2 + 2 * 2**2) ** 0.5, rel=1e-3)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**8


def test_a_scaler_saves_and_loads_its_state(npu):
    scaler = torch.amp.GradScaler("npu_v3", init_scale=64.0)
    scaler.scale(torch.ones(1, device=npu))
    other = torch.amp.GradScaler("npu_v3")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 64.0
    assert torch.amp.GradScaler("npu_v3", enabled=False).scale(torch.ones(1, device=npu)).item() == 1


def test_autocast_agrees_with_the_cpus_numbers_on_a_small_network(npu):
    torch.manual_seed(0)
    nn = torch.nn
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(8, 5))
    x = torch.randn(4, 3, 8, 8)
    model.eval()
    expected = model(x)
    model.to(npu)
    for dtype in LOWER:
        with torch.autocast("npu_v3", dtype=dtype):
            y = model(x.to(npu))
        assert y.dtype == dtype
        torch.testing.assert_close(y.float().cpu(), expected, rtol=5e-2, atol=5e-2)
