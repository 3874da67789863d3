"""Composed operators in the long run: many shapes keep little, the next process traces nothing, processes share a folder."""

from __future__ import annotations

import json
from pathlib import Path

from helpers import ROOT, run_script

_LOAD = """
import json, os, sys
import torch, torchfl
import torch.nn.functional as F
sys.path.insert(0, sys.argv[1])
import composed
torchfl.load("npu_v3")
D = "npu_v3:0"
"""
BENCHMARKS = str(ROOT / "benchmarks")

_SHAPES = """
from torchfl._native import engine
base = torch.linspace(-3, 3, 10000).to(D)
expected = F.mish(base.cpu())
traces = composed.Traces()
most = {"plans": 0, "programs": 0}
wrong = 0
for n in range(10000):
    rows, columns = n // 100 + 1, n % 100 + 1
    out = F.mish(base[: rows * columns].view(rows, columns))
    sizes = engine().cache_sizes()
    most = {key: max(most[key], sizes[key]) for key in most}
    if n % 499 == 0:
        wrong += not torch.allclose(out.cpu().flatten(), expected[: rows * columns], rtol=1e-5, atol=1e-6)
print(json.dumps({"traces": traces.count, "wrong": wrong, **most}))
"""


def test_ten_thousand_shapes_keep_little() -> None:
    ran = run_script(_LOAD + _SHAPES, BENCHMARKS, env={"TORCHFL_CACHE_DIR": ""})
    assert ran.code == 0, ran.err
    seen = json.loads(ran.out.splitlines()[-1])
    assert seen["wrong"] == 0
    assert seen["traces"] <= 4, "one for each set of dimensions of size 1"
    assert seen["programs"] <= 16
    assert seen["plans"] <= 4096


_TRACE = """
traces = composed.Traces()
torchfl.reset_stats()
for call in composed.operators().values():
    call(torch.ones(8, 12, device=D))
composed_now = sum(row["calls"] for row in torchfl.stats() if row["path"] == "composed")
print(json.dumps({"traces": traces.count, "composed": composed_now}))
"""


def test_the_next_process_traces_nothing(tmp_path: Path) -> None:
    first, second = (run_script(_LOAD + _TRACE, BENCHMARKS, env={"TORCHFL_CACHE_DIR": str(tmp_path)}) for _ in range(2))
    assert first.code == 0 and second.code == 0, first.err + second.err
    before, after = json.loads(first.out.splitlines()[-1]), json.loads(second.out.splitlines()[-1])
    assert before["traces"] >= 10 and after["traces"] == 0
    assert before["composed"] == after["composed"] >= 10


_FORK = """
read, write = os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # all begin when the last one is there
        try:
            x = torch.linspace(-2, 2, 96).view(8, 12)
            traces = composed.Traces()
            for name, call in composed.operators().items():
                torch.testing.assert_close(call(x.to(D)).cpu(), call(x), rtol=1e-4, atol=1e-5)
            os.write(1, f"traces {traces.count}\\n".encode())
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\\n".encode())
            os._exit(1)
    children.append(child)
os.close(read)
os.close(write)
print("status", [os.waitpid(child, 0)[1] for child in children])
"""


def test_four_processes_trace_into_one_folder(tmp_path: Path) -> None:
    env = {"TORCHFL_CACHE_DIR": str(tmp_path)}
    ran = run_script(_LOAD + _FORK, BENCHMARKS, env=env)
    assert ran.code == 0 and "status [0, 0, 0, 0]" in ran.out, ran.out + ran.err
    counts = [int(line.split()[1]) for line in ran.out.splitlines() if line.startswith("traces")]
    assert len(counts) == 4 and sum(counts) >= 10
    assert not list(tmp_path.rglob("*.tmp")), "nothing half-written is left"
    kept = list((tmp_path / "programs").rglob("*.json"))
    assert len(kept) >= 10
    for file in kept:
        assert json.loads(file.read_text())["programs"]
    after = run_script(_LOAD + _TRACE, BENCHMARKS, env=env)
    assert after.code == 0 and json.loads(after.out.splitlines()[-1])["traces"] == 0, after.err
