"""Three unlike chips in one process: models split over them, random numbers that they agree on, errors that name them."""

import pytest
import torch
from helpers import OwnProcess
from torch import nn
from torch.nn import functional as F

unlike = OwnProcess("three_chips", timeout=200)
CHIPS = ("npu_v3:0", "npu:0", "fpga_mm:0")


def load():
    import torchfl

    return [torchfl.load(chip) for chip in ("npu_v3", "npu_v2", "fpga_mm")]


class Split(nn.Module):
    """Each stage on a device of its own, one weight shared by the first and the last."""

    def __init__(self, devices) -> None:
        super().__init__()
        self.devices = devices
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).to(
            devices[0]
        )
        self.middle = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU()).to(devices[1])
        self.last = nn.Linear(32, 10).to(devices[2])
        self.scale = nn.Parameter(torch.ones(1, device=devices[0]))

    def forward(self, x):
        x = self.first(x.to(self.devices[0])) * self.scale
        x = self.middle(x.to(self.devices[1]))
        x = x.to(self.devices[2])
        return self.last(x) * self.scale.to(self.devices[2])


@unlike
def test_a_model_split_over_three_chips_trains_as_on_the_cpu():
    load()
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)

    def train(devices):
        torch.manual_seed(0)
        net = Split(("cpu",) * 3)
        if devices != ("cpu",) * 3:
            state = net.state_dict()
            net = Split(tuple(torch.device(d) for d in devices))
            net.load_state_dict(state)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(60):
            part = slice(step * 32 % 1024, step * 32 % 1024 + 32)
            loss = F.cross_entropy(net(images[part]), labels[part].to(net.devices[2]))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            losses.append(loss.item())
        return net, losses

    want_net, want = train(("cpu",) * 3)
    net, got = train(CHIPS)
    assert [str(p.device) for p in (net.first[0].weight, net.middle[0].weight, net.last.weight)] == [
        str(torch.device(d)) for d in CHIPS
    ]
    assert got[-1] < 0.5 * got[0], (got, want)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        right = (net(images[1024:]).argmax(1).cpu() == want_net(images[1024:]).argmax(1)).float().mean().item()
    assert right > 0.97


@unlike
def test_saved_by_one_chip_and_loaded_by_another():
    import io

    load()
    net = Split(tuple(torch.device(d) for d in CHIPS))
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    there = torch.load(file)
    assert [str(there[k].device) for k in ("first.0.weight", "middle.0.weight", "last.weight")] == [
        str(torch.device(d)) for d in CHIPS
    ]
    file.seek(0)
    moved = torch.load(file, map_location={"npu_v3:0": "fpga_mm:0", "npu:0": "npu_v3:0", "fpga_mm:0": "cpu"})
    assert moved["first.0.weight"].device == torch.device("fpga_mm:0")
    assert moved["middle.0.weight"].device == torch.device("npu_v3:0")
    assert moved["last.weight"].device == torch.device("cpu")
    for name, value in net.state_dict().items():
        assert torch.equal(moved[name].cpu(), value.cpu())


@unlike
def test_the_same_seed_gives_the_same_numbers_on_every_chip_that_composes_them():
    load()
    import torchfl

    draws = {
        "rand": lambda d: torch.rand(1000, device=d), "randint": lambda d: torch.randint(50, (1000,), device=d),
        "dropout": lambda d: F.dropout(torch.ones(1000, device=d), 0.3), "randn": lambda d: torch.randn(999, device=d),
        "bernoulli": lambda d: torch.bernoulli(torch.full((1000,), 0.4, device=d)),
        "uniform_": lambda d: torch.empty(7, 5, device=d).uniform_(-2, 3), "randperm": lambda d: torch.randperm(64, device=d),
    }  # fmt: skip
    for name, draw in draws.items():
        results, paths, states = [], [], []
        for device in ("npu_v3:0", "npu:0"):
            torch.manual_seed(11)
            torch.rand(3, device=device)  # so that the second call is looked at, too
            torchfl.reset_stats()
            results.append(draw(device).cpu())
            states.append(getattr(torch, device.split(":")[0]).get_rng_state())
            paths.append({row["path"] for row in torchfl.stats() if row["path"] in ("cpu", "composed", "native")})
        assert "cpu" not in paths[0] | paths[1], (name, paths)
        # Chips differ in the last bits of a logarithm or a cosine.
        torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5, msg=name)
        if name != "randn":
            assert torch.equal(results[0], results[1]), name
        assert torch.equal(*states) and states[0].numel() == 16  # both drew as often
    torch.fpga_mm.set_rng_state(states[0])  # a state is a seed and an offset, whatever the chip
    assert torch.fpga_mm.initial_seed() == 11


@unlike
def test_philox_is_the_reference():
    """Two tickets: the seed of a call is Philox of the generator's seed at its offset, which grows by four."""
    load()
    from torchfl.compose._references import philox, random_uniform

    for calls in range(3):
        torch.manual_seed(2**40 + 5)
        for _ in range(calls):
            torch.rand(1, device="npu_v3:0")
        got = torch.rand(10, device="npu_v3:0").cpu()
        lanes = philox(torch.tensor([4 * calls]), 2**40 + 5).flatten().tolist()
        seed = (lanes[0] & 0xFFFFFFFF) | (lanes[1] & 0xFFFFFFFF) << 32
        assert torch.equal(got, random_uniform([10], seed, 0, torch.float32))
        generator = torch.npu_v3.default_generators[0]
        assert generator.get_offset() == 4 * (calls + 1)
        generator.set_offset(4 * calls)
        assert torch.equal(torch.rand(10, device="npu_v3:0").cpu(), got)
    with pytest.raises((RuntimeError, ValueError), match="multiple of 4"):
        generator.set_offset(3)
    with pytest.raises((RuntimeError, TypeError), match="wrong size"):
        generator.set_state(torch.get_rng_state())


late = OwnProcess("late_chips", timeout=200)


@late
def test_chips_that_are_loaded_after_a_backward_run_backward_too():
    """PyTorch counts devices at the first backward of a process."""
    import torchfl

    torch.ones(2, requires_grad=True).sum().backward()
    for chip in ("npu_v3", "fpga_mm", "npu_v2"):
        loaded = torchfl.load(chip)
        x = torch.ones(3, device=f"{loaded.device_type}:0", requires_grad=True)
        (x * 2).exp().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2 * torch.e**2), rtol=1e-4, atol=1e-4)
    y = torch.ones(3, device="npu_v3:0", requires_grad=True)
    (y.to("fpga_mm:0") * 3).to("npu:0").sum().backward()
    assert y.grad.tolist() == [3, 3, 3]


@unlike
def test_operators_on_two_chips_name_both():
    load()
    tensors = [torch.ones(2, 2, device=d) for d in CHIPS]
    for i, j in ((0, 1), (1, 2), (2, 0)):
        for run in (
            lambda a, b: a + b,
            lambda a, b: a @ b,
            lambda a, b: F.linear(a, b),
            lambda a, b: torch.cat([a, b]),
        ):
            with pytest.raises(RuntimeError) as error:
                run(tensors[i], tensors[j])
            assert CHIPS[i] in str(error.value) and CHIPS[j] in str(error.value), error.value
    assert (tensors[0] + torch.tensor(2.0, device="cpu")).sum().item() == 12


second = OwnProcess("autocast_of_unlike_chips")


@second
def test_each_chip_has_its_own_autocast_lists_and_takes_over_an_earlier_seed():
    """The card multiplies in float32 only, so there autocast leaves products alone, whichever chip was loaded first."""
    import torchfl

    torch.manual_seed(5)
    torchfl.load("fpga_mm"), torchfl.load("npu_v3")
    assert torch.npu_v3.initial_seed() == torch.fpga_mm.initial_seed() == 5
    ours, card = (torch.randn(4, 4).to(d) for d in ("npu_v3:0", "fpga_mm:0"))
    with torch.autocast("npu_v3", dtype=torch.float16):
        assert (ours @ ours).dtype == torch.float16
        assert (card @ card).dtype == torch.float32
        assert ours.half().exp().dtype == torch.float32


@second
def test_integers_reach_the_ends_of_their_range_and_bad_ranges_are_refused():
    d = torch.device("npu_v3:0")
    for dtype in (torch.uint8, torch.int8, torch.bool):
        drawn = torch.zeros(1 << 18, dtype=dtype, device=d).random_().cpu()
        most = 1 if dtype == torch.bool else torch.iinfo(dtype).max
        assert drawn.max().item() == most
    wide = torch.randint(-(2**62), 2**62 + 5, (300,), device=d)
    assert wide.min().item() < 0 < wide.max().item()
    for call in (lambda: torch.randint(5, 5, (2,), device=d), lambda: torch.zeros(2, device=d).random_(0)):
        with pytest.raises(RuntimeError, match="to be less than"):
            call()
    assert torch.randint(5, 6, (2,), device=d).tolist() == [5, 5]
