"""Random numbers of the device: seeds, states, dropout, and what replays them."""

import threading

import pytest
import torch
from helpers import OwnProcess
from torch.utils.checkpoint import checkpoint

import torchfl


def draw(npu, count=6):
    return torch.rand(count, device=npu).tolist()


def test_manual_seed_decides_what_the_device_draws(npu):
    """Case 35."""
    torch.manual_seed(7)
    first = draw(npu)
    second = draw(npu)
    torch.manual_seed(7)
    assert draw(npu) == first
    assert first != second
    torch.npu_v3.manual_seed(7)
    assert draw(npu) == first
    torch.npu_v3.manual_seed_all(8)
    assert draw(npu) != first


def test_the_devices_numbers_and_the_hosts_do_not_disturb_each_other(npu):
    torch.manual_seed(7)
    host, ours = torch.rand(3).tolist(), draw(npu)
    torch.manual_seed(7)
    draw(npu)
    draw(npu)
    assert torch.rand(3).tolist() == host
    torch.manual_seed(7)
    torch.rand(100)
    assert draw(npu) == ours


RANDOM = {
    "rand": lambda d: torch.rand(4, device=d),
    "rand in half": lambda d: torch.rand(4, device=d, dtype=torch.float16),
    "randn": lambda d: torch.randn(4, device=d),
    "randn_like": lambda d: torch.randn_like(torch.ones(4, device=d)),
    "randint": lambda d: torch.randint(100, (4,), device=d),
    "randperm": lambda d: torch.randperm(16, device=d),
    "normal": lambda d: torch.normal(torch.zeros(4, device=d), torch.ones(4, device=d)),
    "normal_": lambda d: torch.empty(4, device=d).normal_(2, 3),
    "uniform_": lambda d: torch.empty(4, device=d).uniform_(-1, 1),
    "exponential_": lambda d: torch.empty(4, device=d).exponential_(),
    "random_": lambda d: torch.empty(8, device=d, dtype=torch.int64).random_(99),
    "bernoulli": lambda d: torch.bernoulli(torch.full((64,), 0.5, device=d)),
    "bernoulli_": lambda d: torch.empty(64, device=d).bernoulli_(0.3),
    "geometric_": lambda d: torch.empty(64, device=d).geometric_(0.3),
    "log_normal_": lambda d: torch.empty(4, device=d).log_normal_(),
    "cauchy_": lambda d: torch.empty(4, device=d).cauchy_(),
    "multinomial": lambda d: torch.multinomial(torch.ones(64, device=d), 8),
    "multinomial with replacement": lambda d: torch.multinomial(torch.ones(64, device=d), 8, replacement=True),
    "poisson": lambda d: torch.poisson(torch.full((64,), 3.0, device=d)),
    "rrelu": lambda d: torch.nn.functional.rrelu(torch.full((64,), -1.0, device=d), training=True),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(64, device=d), 0.5),
    "initialisation": lambda d: torch.nn.init.kaiming_normal_(torch.empty(3, 3, device=d)),
}


@pytest.mark.parametrize("operator", RANDOM.values(), ids=RANDOM)
def test_every_random_operator_follows_the_seed_and_moves_on(npu, operator):
    """Case 35."""
    torch.manual_seed(11)
    first, second = operator(npu), operator(npu)
    torch.manual_seed(11)
    again = operator(npu)
    assert first.device == npu
    assert again.tolist() == first.tolist()
    assert second.tolist() != first.tolist()


def from_seed(npu, operator, count=3):
    torch.manual_seed(11)
    return [operator(npu).tolist() for _ in range(count)]


@pytest.mark.parametrize("operator", RANDOM.values(), ids=RANDOM)
def test_a_thread_draws_what_another_would(npu, operator):
    """Case 35. What a thread has decided already must not show in the numbers: it starts without any plan."""
    here = from_seed(npu, operator)
    there = []
    thread = threading.Thread(target=lambda: there.extend(from_seed(npu, operator)))
    thread.start()
    thread.join()
    assert there == here


def test_a_first_call_draws_what_later_ones_do(npu):
    """Sizes that no other test has: composing, and finding out that a kernel refuses, must draw nothing."""
    for size in (37, 38):
        for name, operator in {
            "dropout": lambda n: torch.nn.functional.dropout(torch.ones(n, device=npu), 0.5),
            "multinomial": lambda n: torch.multinomial(torch.ones(n, device=npu), 5),
            "randperm": lambda n: torch.randperm(n, device=npu),
            "randn": lambda n: torch.randn(n, device=npu),
            "exponential_": lambda n: torch.empty(n, device=npu).exponential_(),
        }.items():
            runs = []
            for _ in range(3):
                torch.manual_seed(23)
                runs.append((operator(size).tolist(), operator(size).tolist(), draw(npu)))
            assert runs[0] == runs[1] == runs[2], name


@pytest.mark.parametrize("operator", [RANDOM["dropout"], RANDOM["randn"], RANDOM["bernoulli"], RANDOM["randint"],
                                      RANDOM["exponential_"], RANDOM["multinomial"]])  # fmt: skip
def test_random_operators_run_on_the_chip(npu, operator):
    operator(npu)
    with torchfl.strict():
        operator(npu)


def test_a_state_can_be_taken_and_put_back(npu):
    torch.manual_seed(3)
    draw(npu)
    state = torch.npu_v3.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    first = draw(npu)
    torch.npu_v3.set_rng_state(state)
    assert draw(npu) == first
    states = torch.npu_v3.get_rng_state_all()
    assert len(states) == torch.npu_v3.device_count()
    second = draw(npu)
    torch.npu_v3.set_rng_state_all(states)
    assert draw(npu) == second
    torch.npu_v3.set_rng_state(state.clone(), npu)
    assert draw(npu) == first


def test_seeds_can_be_read_and_be_new(npu):
    torch.npu_v3.manual_seed(42)
    assert torch.npu_v3.initial_seed() == 42
    torch.npu_v3.seed()
    assert torch.npu_v3.initial_seed() != 42
    assert torch.npu_v3.default_generators[0].device == npu


def test_normal_numbers_have_the_right_moments(npu):
    torch.manual_seed(0)
    x = torch.randn(20000, device=npu)
    assert abs(x.mean().item()) < 0.03 and abs(x.std().item() - 1) < 0.03


def test_dropout_is_reproducible_and_its_backward_uses_the_same_mask(npu):
    """Case 35."""
    x = torch.ones(64, device=npu, requires_grad=True)
    torch.manual_seed(5)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    assert 0 < (y == 0).sum().item() < 64
    torch.manual_seed(5)
    assert torch.nn.functional.dropout(x, 0.25).tolist() == y.tolist()
    assert torch.nn.functional.dropout(x, 0.25, training=False).tolist() == [1.0] * 64


def test_fork_rng_gives_the_numbers_back(npu):
    """Case 35."""
    torch.manual_seed(5)
    with torch.random.fork_rng(device_type="npu_v3"):
        inside = draw(npu)
        torch.manual_seed(99)
        draw(npu)
    assert draw(npu) == inside
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[npu], device_type="npu_v3"):
        draw(npu)
    assert draw(npu) == inside


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_replays_dropout_with_the_same_mask(npu, use_reentrant):
    """Case 35."""
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5)).to(npu)
    x = torch.ones(4, 16, device=npu, requires_grad=True)

    def gradients(run):
        layer.zero_grad()
        x.grad = None
        torch.manual_seed(1)
        y = run(x)
        (y * y).sum().backward()
        return y.tolist(), x.grad.tolist(), layer[0].weight.grad.tolist(), draw(npu, 2)

    plain = gradients(layer)
    replayed = gradients(lambda x: checkpoint(layer, x, use_reentrant=use_reentrant, preserve_rng_state=True))
    assert replayed == plain


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_draws_the_mask_again_where_it_is_needed(npu, use_reentrant):
    """Case 35. The forward does not keep the mask, so the gradient shows the one that autograd's thread draws."""

    def run(x):
        return torch.nn.functional.dropout(x, 0.5) * x.exp()

    def gradient(call):
        x = torch.zeros(256, device=npu, requires_grad=True)
        torch.manual_seed(4)
        y = call(x + 1)
        y.sum().backward()
        return y.tolist(), x.grad.tolist(), draw(npu, 2)

    plain = gradient(run)
    for _ in range(2):
        assert gradient(lambda x: checkpoint(run, x, use_reentrant=use_reentrant)) == plain
    other = gradient(lambda x: checkpoint(run, x, use_reentrant=use_reentrant, preserve_rng_state=False))
    assert other[0] == plain[0] and other[1] != plain[1]


def test_a_generator_of_another_device_is_refused(npu):
    with pytest.raises(RuntimeError, match="Expected a 'npu_v3' device type for generator"):
        torch.rand(3, device=npu, generator=torch.Generator())


def test_generators_of_the_device_are_independent_and_clonable(npu):
    a, b = torch.Generator(device=npu), torch.Generator(device=npu)
    a.manual_seed(1)
    b.manual_seed(1)
    assert torch.rand(3, device=npu, generator=a).tolist() == torch.rand(3, device=npu, generator=b).tolist()
    state = a.get_state()
    first = torch.rand(3, device=npu, generator=a).tolist()
    a.set_state(state)
    assert torch.rand(3, device=npu, generator=a).tolist() == first
    torch.manual_seed(2)
    expected = draw(npu)
    torch.manual_seed(2)
    torch.rand(3, device=npu, generator=a)
    assert draw(npu) == expected
    c = a.clone_state()
    assert torch.rand(3, device=npu, generator=c).tolist() == torch.rand(3, device=npu, generator=a).tolist()


unlike = OwnProcess("random_on_unlike_chips", NPU_SIM_DEVICES="2")


@unlike
def test_every_chip_follows_the_seed_and_checkpointing():
    """PyTorch knows one device type: it asks the first chip's module for what any device of it draws."""
    torchfl.load("npu_v3"), torchfl.load("npu_v2")

    def run(x):
        return torch.nn.functional.dropout(x, 0.5) * x.exp()

    for name in ("npu_v3:1", "npu:0", "npu:1"):
        device = torch.device(name)
        torch.manual_seed(5)
        first = draw(device)
        torch.manual_seed(5)
        assert draw(device) == first
        with torch.random.fork_rng(devices=[device], device_type="npu_v3"):
            inside = draw(device)
        assert draw(device) == inside
        for use_reentrant in (False, True):
            seen = []
            for call in (run, lambda x, r=use_reentrant: checkpoint(run, x, use_reentrant=r)):
                x = torch.zeros(64, device=device, requires_grad=True)
                torch.manual_seed(4)
                call(x + 1).sum().backward()
                seen.append(x.grad.tolist())
            assert seen[0] == seen[1]


@unlike
def test_each_chips_module_seeds_and_keeps_its_own():
    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    torch.manual_seed(1)
    expected = draw(torch.device("npu_v3:0"))
    torch.manual_seed(1)
    torch.npu.manual_seed_all(9)
    assert draw(torch.device("npu_v3:0")) == expected
    state = torch.npu.get_rng_state("npu:1")
    there = draw(torch.device("npu:1"))
    torch.npu.set_rng_state(state, 1)
    assert draw(torch.device("npu:1")) == there
