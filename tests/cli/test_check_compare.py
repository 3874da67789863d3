"""What `torchfl check` takes for right: tight where the CPU is exact, as loose as the CPU where it is not."""

import pytest
import torch

from torchfl.check import knowledge
from torchfl.check.compare import Measure, differences

F32, F16 = torch.float32, torch.float16


def judge(got, same, wide=None, dtype=F32, **measure):
    return differences(got, same, wide, Measure(dtype, **measure))


@pytest.mark.parametrize(
    ("dtype", "off", "right"), [(F32, 1e-6, True), (F32, 4e-6, False), (F16, 1e-3, True), (F16, 4e-3, False)]
)
def test_how_far_an_elementwise_value_may_be_off(dtype, off, right):
    wide = torch.linspace(1, 2, 7, dtype=torch.float64)
    got = (wide * (1 + off)).to(dtype)
    wrong = judge(got, wide.to(dtype), wide, dtype)
    assert (wrong is None) is right, wrong


def test_small_values_are_held_to_their_own_size():
    wide = torch.tensor([1e-6, 1.0], dtype=torch.float64)
    assert judge(torch.tensor([1.5e-6, 1.0]), wide.float(), wide)


def test_a_sum_may_lose_what_its_terms_lose():
    wide = torch.tensor([0.5], dtype=torch.float64)
    got = torch.tensor([0.5 + 4e-6])
    assert judge(got, wide.float(), wide)
    assert judge(got, wide.float(), wide, accumulated=100, largest=1.0) is None


def test_where_terms_cancel_the_cpu_says_how_much_is_lost():
    wide = torch.tensor([1e-4, 0.0], dtype=torch.float64)
    got = torch.tensor([1e-4, 3e-6])
    assert judge(got, wide.float(), wide, accumulated=100, largest=1.0)
    assert judge(got, torch.tensor([1e-4 + 1e-6, 0.0]), wide, accumulated=100, largest=1.0) is None


def test_the_cpu_itself_is_the_measure_of_what_is_ill_conditioned():
    wide = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    cpu = (wide * 1.001).float()
    assert judge((wide * 0.998).float(), cpu, wide) is None
    assert judge((wide * 0.98).float(), cpu, wide)


def test_either_side_of_a_step_is_right():
    wide, cpu = torch.tensor([2.0, 5.0, 7.0, 1.0]).double(), torch.tensor([1.0, 5.0, 7.0, 1.0])
    assert judge(torch.tensor([2.0, 5.0, 7.0, 1.0]), cpu, wide) is None
    assert judge(torch.tensor([1.0, 5.0, 7.0, 1.0]), cpu, wide) is None
    assert judge(torch.tensor([1.0, 4.0, 7.0, 1.0]), cpu, wide)


def test_infinities_and_nans_are_values():
    nan, inf = float("nan"), float("inf")
    assert judge(torch.tensor([nan, inf]), torch.tensor([nan, inf])) is None
    assert judge(torch.tensor([0.0, inf]), torch.tensor([nan, inf]))
    assert judge(torch.tensor([nan, -inf]), torch.tensor([nan, inf]))
    wide = torch.tensor([1e6], dtype=torch.float64)
    assert judge(torch.tensor([inf], dtype=F16), torch.tensor([inf], dtype=F16), wide, F16) is None


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (torch.ones(3), "shape [3], expected [2]"),
        (torch.ones(2, dtype=F16), "dtype float16, expected float32"),
        ((torch.ones(2), torch.ones(2)), "2 results, expected 1"),
        (1.0, "float, expected a tensor"),
        (torch.tensor([1.0, 2.0]), "1 of 2 values wrong in float32[2]: 2 at [1], expected 1"),
    ],
)
def test_it_says_what_was_expected(got, text):
    assert text in judge(got, torch.ones(2))


def test_integers_and_numbers_are_exact():
    assert judge(torch.tensor([1, 2]), torch.tensor([1, 2])) is None
    assert "3 at [1], expected 2" in judge(torch.tensor([1, 3]), torch.tensor([1, 2]))
    assert judge(True, False) == "True, expected False"
    assert judge(float("nan"), float("nan")) is None


def test_factors_are_compared_by_what_is_unique():
    matrix = torch.randn(4, 3, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    values, product = knowledge.rebuilt("linalg.svd", (-u, s, -vh))
    assert torch.allclose(product, matrix) and torch.equal(values, s)
    q, r = torch.linalg.qr(matrix)
    assert torch.allclose(knowledge.rebuilt("qr", (-q, -r))[0], matrix)
    assert knowledge.rebuilt("geqrf", (q, r)) is None


def test_patterns_are_of_entries_that_exist():
    from torchfl.check import entries

    names = {op.name for op in entries.all_entries().values()}
    for table in ("RANDOM", "UNDEFINED", "FACTORED", "INDICES", "TIES", "SERIES", "ELSEWHERE"):
        assert any(knowledge.is_one_of(getattr(knowledge, table), name) for name in names), table
    assert {name for name, _ in knowledge.NEVER} | {name for name, _ in knowledge.CPU_ARGUMENTS} <= names
    assert set(knowledge.RANGES) <= names
