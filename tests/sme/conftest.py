"""Fixtures of the tests of decisions: chips that extend the shipped one, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, run_script

sys.path.append(str(ROOT / "tests" / "ops"))  # its recipes and its look at what ran

_START = """
import json, logging, sys
import torch, torchfl
import torch.nn.functional as F
lines = []
class Collect(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("torchfl").addHandler(Collect())
logging.getLogger("torchfl").propagate = False
torchfl.load(sys.argv[1])
D = sys.argv[2] + ":0"
def ran(op, call):
    torchfl.reset_stats()
    result = call()
    rows = [[r["path"], r["target"], r["reason"], r["calls"]] for r in torchfl.stats() if r["op"].split(".")[0] == op]
    return result, rows
def say(**values):
    print("ANSWER" + json.dumps(values))
"""


@pytest.fixture(scope="session", autouse=True)
def _loaded_before_any_backward(npu: object) -> None:
    """PyTorch's autograd makes a queue for each device that there is when it first runs; later ones get none."""


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`variant(yaml, code)`: loads a chip that is the shipped NPU-V3 with `yaml` on top, under a name of its own, and
    runs `code` with it in a new process. `alone`: on nothing, but with the same adapter. Returns what the code passed
    to `say`, and `stderr`."""
    from torchfl import hcd
    from torchfl._paths import shipped_chips

    shipped = shipped_chips()["npu_v3"]
    library = hcd.load(shipped).lower()["adapter_library"]

    def run(text: str, code: str, device_type: str = "variant", alone: bool = False, **env: str) -> dict[str, Any]:
        descriptor = tmp_path / f"{device_type}.yaml"
        parent = os.path.relpath(shipped, tmp_path)
        head = f"extends: {parent}\nchip: {{device_type: {device_type}}}\n"
        if alone:
            head = f"chip: {{name: {device_type}, vendor: Tests, device_type: {device_type}}}\n"
        head = f"hcd: 1\n{head}adapter: {{library: {library}}}\n"
        # What has no kernel goes to the CPU: these tests are about kernels, and those about programs say so.
        own = textwrap.dedent(text)
        descriptor.write_text(head + ("" if "fallback:" in own else "fallback: {default: cpu}\n") + own)
        done = run_script(_START + textwrap.dedent(code), str(descriptor), device_type, env=env)
        answers = [line.removeprefix("ANSWER") for line in done.out.splitlines() if line.startswith("ANSWER")]
        assert done.code == 0 and answers, f"exit status {done.code}\n{done.out}\n{done.err}"
        return {**json.loads(answers[-1]), "stderr": done.err}

    return run
