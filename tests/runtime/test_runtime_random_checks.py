"""What PyTorch's CPU refuses of a call that draws: the device refuses it too, in the same words, and draws nothing."""

import pytest
import torch

import torchfl


def new(device, dtype=torch.float32):
    return torch.empty(8, device=device, dtype=dtype)


BYTE, HALF = torch.uint8, torch.float16
NAN, INF = float("nan"), float("inf")

REFUSED = {
    "uniform_, bounds the wrong way round": lambda d: new(d).uniform_(3, 1),
    "uniform_, an infinite bound": lambda d: new(d).uniform_(-INF, 1),
    "uniform_, no number": lambda d: new(d).uniform_(NAN, 1),
    "uniform_, a range beyond the dtype": lambda d: new(d).uniform_(-3e38, 3e38),
    "uniform_, a bound beyond the dtype": lambda d: new(d, HALF).uniform_(-1e5, 1),
    "uniform_ of nothing": lambda d: torch.empty(0, device=d).uniform_(3, 1),
    "normal_": lambda d: new(d).normal_(0, -1),
    "normal_, no number": lambda d: new(d).normal_(0, NAN),
    "normal_ of nothing": lambda d: torch.empty(0, device=d).normal_(0, -1),
    "normal, two numbers": lambda d: torch.normal(0.0, -1.0, (8,), device=d),
    "normal, means in a tensor": lambda d: torch.normal(torch.zeros(8, device=d), -1.0),
    "normal, out": lambda d: torch.normal(torch.zeros(8, device=d), -1.0, out=new(d)),
    "normal, two numbers, out": lambda d: torch.normal(0.0, -1.0, (8,), out=new(d)),
    "bernoulli_": lambda d: new(d).bernoulli_(2.0),
    "bernoulli_, no number": lambda d: new(d).bernoulli_(NAN),
    "bernoulli": lambda d: torch.bernoulli(new(d), -0.5),
    "dropout": lambda d: torch.dropout(new(d), 2.0, True),
    "native_dropout": lambda d: torch.native_dropout(new(d), 2.0, True),
    "exponential_": lambda d: new(d).exponential_(-1),
    "geometric_": lambda d: new(d).geometric_(0),
    "geometric_, always": lambda d: new(d).geometric_(1),
    "cauchy_": lambda d: new(d).cauchy_(0, 0),
    "cauchy_ of integers": lambda d: new(d, torch.int64).cauchy_(),
    "log_normal_": lambda d: new(d).log_normal_(0, -1),
    "random_, bounds the wrong way round": lambda d: new(d).random_(5, 2),
    "random_, no bound above zero": lambda d: new(d).random_(0),
    "random_ beyond the dtype": lambda d: new(d, BYTE).random_(0, 300),
    "random_ below the dtype": lambda d: new(d, BYTE).random_(-1, 3),
    "random_, one bound, beyond the dtype": lambda d: new(d, BYTE).random_(300),
    "random_ from beyond the dtype": lambda d: new(d, BYTE).random_(300, None),
    "random_ of bools": lambda d: new(d, torch.bool).random_(0, 3),
    "random_ beyond half precision": lambda d: new(d, HALF).random_(0, 70000),
    "randint": lambda d: torch.randint(0, 300, (8,), dtype=BYTE, device=d),
    "randint, bounds the wrong way round": lambda d: torch.randint(5, 2, (8,), device=d),
    "randint_like": lambda d: torch.randint_like(new(d, BYTE), 300),
    "randint, out": lambda d: torch.randint(0, 300, (8,), out=new(d, BYTE)),
    "randperm": lambda d: torch.randperm(300, dtype=BYTE, device=d),
    "randperm, out": lambda d: torch.randperm(300, out=new(d, BYTE)),
    "randperm in half precision": lambda d: torch.randperm(3000, dtype=HALF, device=d),
    "randperm of bools": lambda d: torch.randperm(8, dtype=torch.bool, device=d),
    "multinomial, none": lambda d: torch.multinomial(torch.ones(4, device=d), 0),
    "multinomial, more than there are": lambda d: torch.multinomial(torch.ones(4, device=d), 9),
    "multinomial of integers": lambda d: torch.multinomial(torch.ones(4, device=d, dtype=torch.int64), 2),
}


def refusal(call):
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        call()
    return type(caught.value), str(caught.value).split("\n")[0]


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_numbers_are_refused_as_on_the_cpu_and_nothing_is_drawn(npu, call):
    torch.manual_seed(3)
    expected = torch.rand(4, device=npu).tolist()
    torch.manual_seed(3)
    assert refusal(lambda: call(npu)) == refusal(lambda: call("cpu"))
    assert torch.rand(4, device=npu).tolist() == expected


TAKEN = {
    "uniform_": (lambda d: new(d).uniform_(1, 3), lambda d: new(d).uniform_(3, 1)),
    "normal_": (lambda d: new(d).normal_(0, 1), lambda d: new(d).normal_(0, -1)),
    "bernoulli_": (lambda d: new(d).bernoulli_(0.5), lambda d: new(d).bernoulli_(1.5)),
    "exponential_": (lambda d: new(d).exponential_(2), lambda d: new(d).exponential_(-2)),
    "random_": (lambda d: new(d, BYTE).random_(0, 256), lambda d: new(d, BYTE).random_(0, 257)),
    "randint": (
        lambda d: torch.randint(2, 5, (8,), device=d),
        lambda d: torch.randint(5, 2, (8,), device=d),
    ),
    "native_dropout": (
        lambda d: torch.native_dropout(new(d), 0.5, True),
        lambda d: torch.native_dropout(new(d), 1.5, True),
    ),
}


@pytest.mark.parametrize(("good", "bad"), TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("bad_first", [True, False])
def test_a_refusal_does_not_send_later_calls_elsewhere(npu, good, bad, bad_first):
    if not bad_first:
        good(npu)
    for _ in range(2):
        refusal(lambda: bad(npu))
        with torchfl.strict():
            good(npu)


OVERLAPPING = {
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "exponential_": lambda x: x.exponential_(),
    "cauchy_": lambda x: x.cauchy_(),
    "log_normal_": lambda x: x.log_normal_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "bernoulli_, probabilities in a tensor": lambda x: x.bernoulli_(torch.ones(8, device=x.device)),
    "random_": lambda x: x.random_(),
    "random_ to": lambda x: x.random_(3),
    "random_ from to": lambda x: x.random_(1, 3),
    "randn, out": lambda x: torch.randn(8, out=x),
    "rand, out": lambda x: torch.rand(8, out=x),
    "dropout_": lambda x: torch.dropout_(x, 0.5, True),
}


@pytest.mark.parametrize("call", OVERLAPPING.values(), ids=OVERLAPPING)
def test_no_memory_is_drawn_for_twice(npu, call):
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        call(torch.zeros(1, device=npu).expand(8))


WITH_GENERATOR = {
    "uniform_": lambda d, g: new(d).uniform_(generator=g),
    "normal_": lambda d, g: new(d).normal_(generator=g),
    "random_": lambda d, g: new(d).random_(generator=g),
    "bernoulli_": lambda d, g: new(d).bernoulli_(0.5, generator=g),
    "randn": lambda d, g: torch.randn(8, device=d, generator=g),
    "randint": lambda d, g: torch.randint(4, (8,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(8, device=d, generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(4, device=d), 2, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.ones(4, device=d), generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(8, device=d), torch.ones(8, device=d), generator=g),
}


@pytest.mark.parametrize("call", WITH_GENERATOR.values(), ids=WITH_GENERATOR)
def test_a_generator_of_the_other_side_is_refused_in_pytorchs_words(npu, call):
    name = npu.type
    text = "Expected a '{}' device type for generator but found '{}'"
    with pytest.raises(RuntimeError, match=text.format(name, "cpu")):
        call(npu, torch.Generator())
    with pytest.raises(RuntimeError, match=text.format("cpu", name)):
        call("cpu", torch.Generator(npu))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(HALF, 0, 65504), (HALF, -65504, -60001), (torch.bfloat16, 0, 1023), (torch.float32, 0, (1 << 26) - 1)],
)
@pytest.mark.filterwarnings("ignore:.*out of bounds")  # PyTorch's own: the dtype has not all of these numbers
def test_a_number_that_is_rounded_stays_within_the_bounds(npu, dtype, low, high):
    for drawn in (
        torch.empty(50000, dtype=dtype, device=npu).random_(low, high),
        torch.randint(low, high, (50000,), dtype=dtype, device=npu),
    ):
        assert low <= drawn.double().min().item() and drawn.double().max().item() < high
