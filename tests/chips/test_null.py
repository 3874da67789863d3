"""The chip that has everything and computes nothing: what the engine decides when every path is open."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers import ROOT, OwnProcess, environment, heard

_record = Path(tempfile.mkdtemp(prefix="torchfl-null-")) / "record"
null = OwnProcess("null")
recorded = OwnProcess("null_recorded", NULL_RECORD=str(_record))


def device():
    import torch

    import torchfl

    torchfl.load("null")
    return torch.device("null:0")


@null
def test_every_row_of_the_descriptor_has_its_kernel() -> None:
    lines = heard()
    device()
    assert lines == []


@null
def test_contiguous_calls_are_taken_by_the_kernels_of_their_rows() -> None:
    import torch
    from torch.nn import functional as F

    import torchfl

    d = device()
    x, image, index = (torch.ones(*s).to(d) for s in [(4, 4), (1, 3, 8, 8), (2,)])
    weight, index = torch.ones(8, 3, 3, 3).to(d), index.long()
    calls = {
        "add": lambda: x + x,
        "mul": lambda: x * 2,
        "mm": lambda: x @ x,
        "addmm": lambda: torch.addmm(x, x, x),
        "relu": lambda: F.relu(x),
        "gelu": lambda: F.gelu(x),
        "tanh": lambda: x.tanh(),
        "_softmax": lambda: F.softmax(x, -1),
        "sum": lambda: x.sum(1),
        "native_layer_norm": lambda: F.layer_norm(x, (4,)),
        "convolution": lambda: F.conv2d(image, weight),
        "max_pool2d_with_indices": lambda: F.max_pool2d(image, 2),
        "where": lambda: torch.where(x.bool(), x, x),
        "index_select": lambda: x.index_select(0, index),
        "embedding": lambda: F.embedding(index, x),
        "gather": lambda: x.gather(0, torch.ones(1, 1).to(d).long()),
        "sort": lambda: x.sort(),
        "topk": lambda: x.topk(2),
        "cumsum": lambda: x.cumsum(0),
        "max": lambda: x.max(1),
        "_linalg_svd": lambda: torch.linalg.svd(x),
        "_fft_r2c": lambda: torch.fft.fft(x),
    }
    for name, call in calls.items():
        for dtype in (torch.float32, torch.float64):
            torchfl.reset_stats()
            x, image, weight = (t.to(dtype) for t in (x, image, weight))
            torchfl.reset_stats()
            call()
            rows = torchfl.stats()
            assert [(r["path"], r["target"]) for r in rows if r["target"] == f"null_{name}"] == [
                ("native", f"null_{name}")
            ], rows
            assert not [r for r in rows if r["path"] == "cpu"], rows


@null
def test_bytes_are_copied_and_kernels_leave_memory_as_it_was() -> None:
    import torch

    d = device()
    x = torch.arange(6.0)
    y = x.to(d)
    assert torch.equal(y.cpu(), x)
    torch.add(y, 1, out=y)
    assert torch.equal(y.cpu(), x)


@null
def test_a_training_step_touches_nothing_else() -> None:
    import torch

    import torchfl

    d = device()
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(
        d
    )
    optimizer = torch.optim.AdamW(net.parameters())
    torchfl.reset_stats()
    net(torch.ones(3, 4).to(d)).square().mean().backward()
    optimizer.step()
    assert {r["path"] for r in torchfl.stats()} <= {"native", "composed", "composite", "transfer"}


@recorded
def test_the_record_tells_each_kernel_call() -> None:
    import torch

    x = torch.ones(4, 2).to(device())
    before = len(_record_lines())
    torch.addmm(x[0], torch.ones(4, 3).to(x.device), torch.ones(3, 2).to(x.device))
    (x.unsqueeze(0) > 1).sum()
    assert _record_lines()[before:] == [
        "null_addmm aten::addmm 3[2] 3[4,3] 3[3,2] -> 3[4,2]",
        "null_gt aten::gt 3[1,4,2] -> 10[1,4,2]",
        "null_sum aten::sum 10[1,4,2] -> 9[]",
    ]


def _record_lines() -> list[str]:
    import os

    return Path(os.environ["NULL_RECORD"]).read_text().splitlines()


def test_explain_names_the_kernel() -> None:
    command = [sys.executable, "-m", "torchfl.cli", "explain", "aten::conv2d", "--device", "null", "--json"]
    command += ["--shape", "1,3,32,32", "--shape", "8,3,3,3"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["path"], answer["target"]) == ("native", "null_convolution")


def test_it_is_loaded_only_by_name() -> None:
    from torchfl._paths import shipped_chips

    assert "null" in shipped_chips()
    assert "null" not in shipped_chips(on_request=False)


def test_the_adapter_stays_small() -> None:
    lines = (ROOT / "chips" / "null" / "uba_null.c").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120


@pytest.fixture(scope="module", autouse=True)
def _tidy():
    yield
    _record.unlink(missing_ok=True)
    _record.parent.rmdir()
