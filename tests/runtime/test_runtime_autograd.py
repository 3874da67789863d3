"""Autograd and optimizers on the device: gradients are the CPU's, and a training step stays where it is."""

import copy
import warnings

import pytest
import torch
from torch.nn import functional as F


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def gradients(model, x, target):
    model.zero_grad()
    F.cross_entropy(model(x), target).backward()
    return [p.grad.cpu() for p in model.parameters()]


def test_gradients_are_those_of_the_cpu(npu):
    model = mlp()
    x, target = torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = gradients(model, x, target)
    for ours, host in zip(gradients(model.to(npu), x.to(npu), target.to(npu)), expected, strict=True):
        torch.testing.assert_close(ours, host, rtol=1e-4, atol=1e-5)


def test_a_linear_layer_takes_strided_activations_and_gradients(npu):
    """Case 9."""
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(4, 5, 2)

    def run(layer, x):
        x = x.detach().requires_grad_()
        y = layer(x.permute(2, 1, 0))
        y.transpose(0, 1).backward(torch.ones(3, 2, 5, device=x.device).permute(2, 1, 0))
        return y, x.grad, layer.weight.grad.clone()

    expected = run(copy.deepcopy(layer), x)
    for ours, host in zip(run(layer.to(npu), x.to(npu)), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), host, rtol=1e-4, atol=1e-4)


def test_views_and_writes_in_place_are_tracked(npu):
    def run(device):
        x = torch.arange(6.0, device=device, requires_grad=True)
        y = x * 2
        y[1:3] = x[4:] * x[:2]
        y.view(2, 3)[1].mul_(3)
        y.sum().backward()
        return x.grad.tolist()

    assert run(npu) == run("cpu")


def test_a_tensor_changed_after_it_was_saved_is_noticed(npu):
    x = torch.ones(3, device=npu, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


def test_hooks_see_tensors_of_the_device(npu):
    seen = []
    layer = torch.nn.Linear(2, 2).to(npu)
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(grad_out[0].device))
    layer.weight.register_hook(lambda grad: seen.append(grad.device))
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.device))
    layer(torch.ones(1, 2, device=npu)).sum().backward()
    assert seen == [npu] * 3


def test_second_derivatives_and_functional_transforms(npu):
    x = torch.tensor([1.0, 2.0], device=npu, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12]
    assert torch.func.grad(lambda t: (t * t).sum())(x.detach()).tolist() == [2, 4]
    rows = torch.func.vmap(lambda t: t * t.sum())(torch.ones(3, 2, device=npu))
    assert rows.device == npu and rows.tolist() == [[2, 2]] * 3
    jacobian = torch.func.jacrev(lambda t: t * t)(x.detach())
    assert jacobian.tolist() == [[2, 0], [0, 4]]


def test_gradient_check_by_finite_differences(npu):
    x = torch.randn(3, 3, dtype=torch.float64, device=npu, requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, device=npu, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: torch.tanh(x @ w), (x, w))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_an_optimizer_takes_the_steps_it_takes_on_the_cpu(npu, name, foreach):
    def train(device):
        model = mlp().to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05, foreach=foreach)
        x = torch.linspace(-1, 1, 48).view(6, 8).to(device)
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    for ours, host in zip(train(npu), train("cpu"), strict=True):
        torch.testing.assert_close(ours, host, rtol=2e-3, atol=2e-4)


def test_a_training_step_stays_on_the_device(npu):
    """Case 46. After the first step nothing but the number that the script reads crosses the host boundary."""
    import torchfl

    model = mlp().to(npu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, target = torch.randn(6, 8, device=npu), torch.tensor([0, 1, 2, 3, 0, 1], device=npu)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    step()
    torchfl.reset_stats()
    before = torchfl._engine.transfers()
    step()
    after = torchfl._engine.transfers()
    assert [row["op"] for row in torchfl.stats() if row["path"] == "cpu"] == []
    assert after["to_host_copies"] - before["to_host_copies"] <= 1
    assert after["to_device_copies"] - before["to_device_copies"] == 0


def test_gradients_can_be_clipped_accumulated_and_detached(npu):
    w = torch.full((4,), 3.0, device=npu, requires_grad=True)
    for _ in range(2):
        (w * w).sum().backward()
    assert w.grad.tolist() == [12] * 4
    assert torch.nn.utils.clip_grad_norm_([w], 1.0).item() == pytest.approx(24)
    assert w.grad.norm().item() == pytest.approx(1, rel=1e-3)
    torch.nn.utils.clip_grad_value_([w], 0.1)
    assert w.grad.tolist() == pytest.approx([0.1] * 4)
    assert not w.detach().requires_grad
    with torch.no_grad():
        w.sub_(1)
    assert w.tolist() == [2] * 4
    with torch.inference_mode():
        assert (w + 1).tolist() == [3] * 4


def test_batch_norm_keeps_its_running_statistics_on_the_device(npu):
    norm, ours = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3).to(npu)
    x = torch.randn(4, 3, 5, 5)
    for _ in range(3):
        norm(x), ours(x.to(npu))
    torch.testing.assert_close(ours.running_mean.cpu(), norm.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var.cpu(), norm.running_var, rtol=1e-4, atol=1e-5)
    assert ours.num_batches_tracked.item() == 3
    torch.testing.assert_close(ours.eval()(x.to(npu)).cpu(), norm.eval()(x), rtol=1e-4, atol=1e-4)


def test_anomaly_detection_names_the_forward_operator(npu):
    x = torch.tensor([-1.0], device=npu, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="SqrtBackward0"), torch.autograd.detect_anomaly():
            torch.sqrt(x).sum().backward()


def test_saved_tensors_can_be_kept_on_the_host(npu):
    x = torch.arange(4.0, device=npu, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="npu_v3"):
        y = (x * x).exp()
    y.sum().backward()
    expected = torch.arange(4.0, requires_grad=True)
    (expected * expected).exp().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-3)
