"""Watching a training, with an engine that is made up: which steps are measured, and whose line moved what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchfl.demo import __main__ as demo  # noqa: E402
from torchfl.demo.watch import Watch  # noqa: E402


class FakeEngine:
    """One operator call a look; while `leaking`, each look at the transfers finds one more copy to the host."""

    def __init__(self) -> None:
        self.looks = 0
        self.copies = 0
        self.leaking = False
        self.timed: list[str] = []

    def stats(self) -> list[dict[str, Any]]:
        self.looks += 1
        row = {"op": "aten::add", "path": "native", "target": "k", "reason": "", "seconds": 0.0, "host_bytes": 0}
        idle = row | {"op": "aten::mul", "calls": 7}
        return [row | {"calls": self.looks, "device": "x:0"}, row | {"calls": self.looks, "device": "x:1"}, idle]

    def transfers(self) -> dict[str, int]:
        self.copies += self.leaking
        return {
            "to_device_copies": 0,
            "to_device_bytes": 0,
            "to_host_copies": self.copies,
            "to_host_bytes": 4 * self.copies,
        }

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        self.timed.append("on")
        try:
            yield
        finally:
            self.timed.append("off")


def train(steps: int, engine: FakeEngine) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, steps + 1):
        engine.leaking = step == 3
        loss = (weight * weight).sum()
        loss.backward()
        loss.item()
        engine.leaking = False
        optimizer.step()


def test_steps_are_measured_between_updates() -> None:
    engine = FakeEngine()
    with Watch(engine, Path(__file__), timed=[4]) as watch:
        train(5, engine)
    train(2, engine)  # afterwards nobody watches
    assert [(step.index, step.kind) for step in watch.steps] == [(2, "plain"), (3, "plain"), (4, "timed"), (5, "plain")]
    assert engine.timed == ["on", "off"]
    assert all(step.counts.calls == {("aten::add", "native", "k", ""): 2} for step in watch.steps), "devices are summed"
    assert watch.total.calls == {("aten::add", "native", "k", ""): 12}


def test_an_audit_names_lines_of_the_script() -> None:
    engine = FakeEngine()
    with Watch(engine, Path(__file__), audited=[3]) as watch:
        train(4, engine)
    audited = next(step for step in watch.steps if step.kind == "audited")
    assert all(not step.crossings for step in watch.steps if step is not audited)
    by_op = {crossing.op: crossing for crossing in audited.crossings}
    assert by_op["aten::sum"].source == "loss = (weight * weight).sum()"
    assert by_op["aten::sum"].kind == "other"
    assert by_op["aten::mul"].source == "loss.backward()", "backward runs below the line that asked for it"
    assert by_op["aten::_local_scalar_dense"].kind == "scalar"
    assert by_op["aten::_local_scalar_dense"].source == "loss.item()"
    assert by_op["aten::_local_scalar_dense"].line.startswith("test_demo_watch.py:")


def test_a_failing_script_leaves_nothing_behind() -> None:
    engine = FakeEngine()
    with pytest.raises(RuntimeError, match="boom"), Watch(engine, Path(__file__), timed=[2, 3]):
        train(1, engine)
        raise RuntimeError("boom")
    assert engine.timed == ["on", "off"]
    looks = engine.looks
    train(2, engine)
    assert engine.looks == looks


def test_scripts_run_as_main_and_arguments_are_restored(tmp_path: Path) -> None:
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pathlib\nassert __name__ == '__main__'\npathlib.Path(sys.argv[1]).write_text(str(sys.argv[2:]))\n"
    )
    before = list(sys.argv), list(sys.path)
    demo.run_script(script, [str(tmp_path / "out"), "--epochs", "1"])
    assert (tmp_path / "out").read_text() == "['--epochs', '1']"
    assert (list(sys.argv), list(sys.path)) == before


def test_a_missing_script_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--script", str(tmp_path / "none.py"), "--out", str(tmp_path / "out")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
