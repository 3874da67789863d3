"""The instruction set: schemas that PyTorch's parser takes, references that obey them, and its page."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import ROOT

from torchfl.compose import _references as ref
from torchfl.compose.instructions import INSTRUCTIONS, by_family, page, register_library

VECTORS = [i for i in INSTRUCTIONS.values() if i.family.startswith("vector") or i.family == "compare"]


def test_the_set_is_about_as_large_as_documented() -> None:
    assert 80 <= len(INSTRUCTIONS) <= 115
    assert 18 <= len(by_family()) <= 22


def test_schemas_parse_and_name_their_instruction() -> None:
    register_library()
    for name in INSTRUCTIONS:
        schema = getattr(torch.ops.uba, name).default._schema
        assert schema.name == f"uba::{name}"
        assert [a.name for a in schema.arguments] == INSTRUCTIONS[name].positions


def test_tensors_come_first() -> None:
    for instruction in INSTRUCTIONS.values():
        kinds = ["Tensor" in part for part in instruction.schema.split("(", 1)[1].split(")")[0].split(", ")]
        assert kinds == sorted(kinds, reverse=True), instruction.schema


@pytest.mark.parametrize("name", [i.name for i in VECTORS])
def test_vector_references_keep_sizes_and_dtype(name: str) -> None:
    instruction = INSTRUCTIONS[name]
    for dtype_name in instruction.allowed:
        dtype = getattr(torch, dtype_name)
        operands = [torch.ones(2, 3).to(dtype) for _ in instruction.positions]
        made = instruction.reference(*operands)
        assert made.shape == (2, 3)
        assert made.dtype == (torch.bool if instruction.result == "bool" else dtype)


@pytest.mark.parametrize("name", [i.name for i in VECTORS if len(i.positions) == 2])
def test_an_immediate_stands_for_either_operand(name: str) -> None:
    instruction = INSTRUCTIONS[name]
    x = torch.tensor([1, 2, 3]).to(getattr(torch, instruction.allowed[-1]))
    two = torch.full_like(x, 2)
    assert torch.equal(instruction.reference(x, 2), instruction.reference(x, two))
    assert torch.equal(instruction.reference(2, x), instruction.reference(two, x))


def test_nan_in_maximum_and_comparison() -> None:
    nan = torch.tensor([math.nan, 1.0])
    one = torch.tensor([1.0, math.nan])
    assert ref.maximum(nan, one).isnan().all() and ref.minimum(nan, one).isnan().all()
    assert ref.ne(nan, one).all() and not ref.le(nan, one).any()


def test_shifts_beyond_the_width() -> None:
    x = torch.tensor([1, -4], dtype=torch.int32)
    assert ref.shift_left(x, 32).tolist() == [0, 0]
    assert ref.shift_right(x, 40).tolist() == [0, -1]


def test_philox_agrees_with_its_published_vectors() -> None:
    lanes = ref.philox(torch.tensor([0]), 0)[0].tolist()
    assert [hex(v) for v in lanes] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_uniform_numbers_continue_where_an_offset_says() -> None:
    whole = ref.random_uniform([64], 7, 3, torch.float32)
    assert torch.equal(whole[32:], ref.random_uniform([32], 7, 3 + 8, torch.float32))
    assert whole.min() >= 0 and whole.max() < 1
    many = ref.random_uniform([1 << 16], 1, 0, torch.float16)
    assert many.max() < 1 and abs(float(many.float().mean()) - 0.5) < 0.01


def test_half_sums_accumulate_wider() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.float16)
    assert float(ref.reduce_sum(x, [0], False)) == 4096
    assert float(ref.cumsum(x, 0)[-1]) == 4096


def test_scatter_lets_the_last_win() -> None:
    x, index = torch.zeros(3), torch.tensor([1, 1])
    assert ref.scatter(x, index, torch.tensor([5.0, 6.0]), 0).tolist() == [0, 6, 0]
    assert ref.scatter_add(x, index, torch.tensor([5.0, 6.0]), 0).tolist() == [0, 11, 0]


def test_the_page_is_generated() -> None:
    text = (ROOT / "docs" / "instructions.md").read_text(encoding="utf-8")
    assert text == page(), "run: python -m torchfl.compose.instructions"
