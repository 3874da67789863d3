"""Training steps on the device follow those on the CPU, and stay on the chip."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops_support import DEVICE, agree, watch
from torch import nn


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def _data(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(16, 1, 12, 12, generator=generator), torch.randint(0, 10, (16,), generator=generator))
        for _ in range(steps)
    ]


Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, foreach=False),
    "adam_single": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw_single": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def _train(model: nn.Module, make: Optimizer, device: Any, data: Any) -> tuple[list[float], nn.Module]:
    model = copy.deepcopy(model).to(device)
    optimizer = make(model.parameters())
    losses = []
    for x, y in data:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_follows_the_cpu(name: str) -> None:
    """Twenty steps in float32: losses, weights and running statistics."""
    torch.manual_seed(0)
    model, data = _cnn(), _data(20)
    right, right_model = _train(model, OPTIMIZERS[name], "cpu", data)
    got, got_model = _train(model, OPTIMIZERS[name], DEVICE, data)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(right), rtol=5e-3, atol=5e-3)
    for (key, mine), other in zip(got_model.state_dict().items(), right_model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine.cpu(), other, rtol=0.05, atol=0.02, msg=lambda m, k=key: f"{k}: {m}")
    assert right[0] != right[-1]


def test_step_stays_on_the_chip() -> None:
    """Case 46: a step of the CNN with AdamW (foreach) makes no fallback, and copies nothing but the batch and the loss."""
    torch.manual_seed(0)
    import torchfl._engine as engine

    model = _cnn().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    batches = [(x.to(DEVICE), y.to(DEVICE)) for x, y in _data(4)]
    for x, y in batches[:3]:
        step(x, y)
    before = engine.transfers()
    with watch() as rows:
        step(*batches[3])
        torch.npu_v3.synchronize()
    after = engine.transfers()
    assert rows.count("cpu") == 0, rows.elsewhere()
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert not {n: v for n, v in moved.items() if "host" in n or "device_" in n}, moved


def test_mlp_step_budget() -> None:
    """Case 46: a small MLP, forward, backward and AdamW: no fallback."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    x, y = torch.randn(8, 20).to(DEVICE), torch.randn(8, 1).to(DEVICE)
    for n in range(3):
        with watch() as rows:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        budget = {"mse_loss": 1, "mse_loss_backward": 1}  # the descriptor maps no mean squared error
        others = [r for r in rows if r["path"] == "cpu" and r["op"].removeprefix("aten::").split(".")[0] not in budget]
        assert not others, f"step {n}: {rows.elsewhere()}"


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layer(norm_first: bool) -> None:
    """An encoder layer, forward and backward, with a padding mask and a causal one."""

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
        x, padding = torch.randn(3, 6, 16), torch.zeros(3, 6, dtype=torch.bool)
        padding[1, 4:] = True
        causal = nn.Transformer.generate_square_subsequent_mask(6)
        layer = layer.to(device)
        x, padding, causal = x.to(device).requires_grad_(), padding.to(device), causal.to(device)
        y = layer(x, src_mask=causal.isinf(), src_key_padding_mask=padding)
        (y * y.detach().cos()).sum().backward()
        layer.eval()
        with torch.no_grad():
            z = layer(x, src_key_padding_mask=padding)
        return y, x.grad, z[0], [p.grad for p in layer.parameters()]

    agree(program, ulps=500)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", ["plain", "mask", "bool_mask", "causal", "heads"])
def test_attention(form: str, dtype: torch.dtype) -> None:
    """scaled_dot_product_attention in every form that models call it in."""

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
        kwargs: dict[str, Any] = {}
        if form == "mask":
            kwargs["attn_mask"] = torch.randn(5, 5).to(device, dtype)
        if form == "bool_mask":
            kwargs["attn_mask"] = (torch.arange(25).view(5, 5) % 3 != 0).to(device)
        if form == "causal":
            kwargs["is_causal"] = True
        if form == "heads":
            k, v, kwargs["enable_gqa"] = k[:, :2], v[:, :2], True
        q, k, v = (t.to(device, dtype).requires_grad_() for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, **kwargs)
        y.sum().backward()
        return y, q.grad, k.grad, v.grad

    # The probabilities, and their gradient, are themselves rounded to half precision, and gradients cancel.
    agree(program, ulps=1000 if dtype == torch.float32 else 60, further=0 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers(kind: str) -> None:
    def program(device: Any) -> Any:
        torch.manual_seed(0)
        layer = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](5, 6, num_layers=2, batch_first=True)
        x = torch.randn(3, 4, 5)
        layer, x = layer.to(device), x.to(device).requires_grad_()
        y, _ = layer(x)
        y.pow(2).sum().backward()
        return y, x.grad, [p.grad for p in layer.parameters()]

    agree(program, ulps=200)


def test_half_input_meets_single_weights() -> None:
    """Convolution, linear and norms compute in the dtype of their input, whatever their parameters have, and give it
    back; on the chip and on the CPU route."""
    torch.manual_seed(0)
    layers: list[tuple[nn.Module, torch.Tensor]] = [
        (nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)),
        (nn.Conv2d(3, 4, 3, stride=3), torch.randn(2, 3, 9, 9)),
        (nn.Linear(6, 5), torch.randn(4, 6)),
        (nn.Linear(6, 5, bias=False), torch.randn(2, 3, 6)),
        (nn.BatchNorm2d(3), torch.randn(2, 3, 6, 6)),
        (nn.LayerNorm(6), torch.randn(4, 6)),
        (nn.LayerNorm(4), torch.randn(4, 6).t()),
        (nn.GroupNorm(2, 4), torch.randn(2, 4, 5, 5)),
    ]
    for layer, x in layers:
        right = layer(x)
        for dtype, tolerance in ((torch.float16, 5e-3), (torch.bfloat16, 4e-2)):
            if isinstance(layer, nn.BatchNorm2d):
                layer = copy.deepcopy(layer)
            got = copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE, dtype))
            assert got.dtype == dtype, f"{layer} made {got.dtype} of {dtype}"
            torch.testing.assert_close(
                got.float().cpu(), right, rtol=tolerance, atol=tolerance, msg=lambda m, n=layer: f"{n}: {m}"
            )


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_strided_half_tensors(dtype: torch.dtype, affine: bool) -> None:
    """Layer norm forward and backward where input and gradient have strides of their own: no error, right values."""
    torch.manual_seed(0)
    x, g = torch.randn(4, 6, 5), torch.randn(4, 6, 5)
    for norm, dims in (
        (nn.LayerNorm(6, elementwise_affine=affine), (0, 2, 1)),
        (nn.GroupNorm(2, 4, affine=affine), (1, 0, 2)),
    ):
        results = []
        for device, kind in (("cpu", torch.float32), (DEVICE, dtype)):
            layer = copy.deepcopy(norm).to(device)
            a = x.to(device, kind, copy=True).requires_grad_()
            y = layer(a.permute(dims))
            y.backward(g.to(device, kind).permute(dims))
            results.append((y.detach().float().cpu(), a.grad.float().cpu()))
        tolerance = 1e-2 if dtype == torch.float16 else 6e-2
        for right, got in zip(*results, strict=True):
            torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


def test_model_moves_back_and_forth() -> None:
    """Case 34."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(5, 4)
    right = model(x)
    for device in (DEVICE, "cpu", DEVICE):
        model = model.to(device)
        y = model(x.to(device))
        y.sum().backward()
        torch.testing.assert_close(y.cpu(), right, rtol=1e-5, atol=1e-5)
        model.zero_grad()


def test_double_backward() -> None:
    def program(device: Any) -> Any:
        x = torch.linspace(-1, 1, 6, dtype=torch.float32).view(2, 3).to(device).requires_grad_()
        y = (x.tanh() * x.sigmoid() + F.softplus(x) * x.exp()).sum() + F.layer_norm(x, (3,)).pow(3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        g.pow(2).sum().backward()
        return g, x.grad

    agree(program, ulps=500)
