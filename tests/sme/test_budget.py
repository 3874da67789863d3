"""`fallback.budget`: what may leave the chip in a step, and what is said when more does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Variant = Callable[..., dict[str, Any]]

_DESCRIPTOR = """
fallback: {{default: cpu, budget: {budget}}}
ops:
  - {{op: aten::tanh, kernel: npu_v3_tanh, dtypes: [float16]}}
  - {{op: aten::exp, kernel: npu_v3_exp, dtypes: [float16]}}
"""
_TRAIN = """
layer = torch.nn.Linear(4, 4, device="cpu").to(D)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
def train(*calls):
    for call, times in calls:
        for _ in range(times):
            call(torch.ones(64, device=D))
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
warned = lambda: [x for x in lines if "in one step" in x]
"""


def test_one_warning_names_the_operators_and_what_to_do(variant: Variant) -> None:
    answer = variant(
        _DESCRIPTOR.format(budget="{calls: 3}"),
        _TRAIN
        + """
train((torch.tanh, 50))               # before the first mark: building
before = len(warned())
train((torch.tanh, 3))                # as many as are allowed
within = len(warned())
train((torch.tanh, 1), (torch.exp, 4))
train((torch.tanh, 9))
say(before=before, within=within, warned=warned())
""",
    )
    assert (answer["before"], answer["within"]) == (0, 0)
    (text,) = answer["warned"]
    first, *rows = text.splitlines()
    assert first.startswith("5 calls and ") and "left variant:0 in one step" in first
    assert "variant.yaml" in first and "allows 3 calls" in first
    assert "aten::exp (cpu): 4 calls, 2.0 KiB: float32 is not a dtype of npu_v3_exp (float16)" in rows[0]
    assert "aten::tanh (cpu): 1 call" in rows[1]
    assert "torchfl explain" in rows[-1] and "raise fallback.budget" in rows[-1]


def test_bytes_count_too_and_transfers_of_the_caller_do_not(variant: Variant) -> None:
    answer = variant(
        _DESCRIPTOR.format(budget="{bytes: 1 KiB}"),
        _TRAIN
        + """
torchfl.step()
for _ in range(20):
    torch.ones(4096).to(D).cpu()
torchfl.step()
own = len(warned())
torch.ones(64, device=D).tanh()       # 256 bytes to the host, as many back
torchfl.step()
within = len(warned())
torch.ones(4096, device=D).tanh()
torchfl.reset_stats()                 # what a script resets does not hide it
torchfl.step()
say(own=own, within=within, warned=warned())
""",
    )
    assert (answer["own"], answer["within"]) == (0, 0)
    (text,) = answer["warned"]
    assert text.startswith("1 call and 32.0 KiB left variant:0") and "allows 1.0 KiB" in text


def test_strict_raises(variant: Variant) -> None:
    """Strict mode lets nothing leave for the CPU; what left before it, or by a declared substitute, is over the budget."""
    answer = variant(
        _DESCRIPTOR.format(budget="{calls: 0}"),
        _TRAIN
        + """
torchfl.step()
raised = []
for _ in range(2):
    torch.ones(4, device=D).tanh()
    try:
        with torchfl.strict():
            optimizer.step()
    except torchfl.UnsupportedOpError as error:
        raised.append([type(error).__name__, str(error)])
with torchfl.strict():
    optimizer.step()                  # the next step is a new one
say(raised=raised, warned=warned())
""",
    )
    assert [kind for kind, _ in answer["raised"]] == ["BudgetError"] * 2
    assert "aten::tanh" in answer["raised"][0][1]
    assert answer["warned"] == []


def test_without_a_budget_there_is_no_hook(variant: Variant) -> None:
    answer = variant(
        "fallback: {default: cpu}",
        """
        from torch.optim import optimizer
        torchfl.step()
        say(hooks=len(optimizer._global_optimizer_post_hooks))
        """,
    )
    assert answer["hooks"] == 0


def test_the_heaviest_three_are_named() -> None:
    from torchfl._budget import Budget, Left

    left = [Left(f"aten::op{n}", "cpu", f"reason {n}", n, 1000 - n) for n in range(1, 6)]
    by_calls = Budget(2, None, "chip.yaml").text("chip:0", left).splitlines()
    assert [line.split()[0] for line in by_calls[1:4]] == ["aten::op5", "aten::op4", "aten::op3"]
    assert "and 2 more" in by_calls[4]
    by_bytes = Budget(None, 10, "chip.yaml").text("chip:0", left).splitlines()
    assert [line.split()[0] for line in by_bytes[1:4]] == ["aten::op1", "aten::op2", "aten::op3"]
    assert Budget(15, 5000, "").exceeded(left) is False
    assert Budget(14, 5000, "").exceeded(left) and Budget(None, 4000, "").exceeded(left)
