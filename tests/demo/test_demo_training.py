"""The training script itself, and what a steady step of it costs on the simulated NPU."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")


def test_the_script_is_plain_pytorch(script: Path) -> None:
    """Only the device's name may tell it from a script for the CPU."""
    imported = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "rich", "sklearn", "torch"}


def test_the_model_is_resnet50(example: ModuleType) -> None:
    model = example.ResNet(channels=3, classes=1000)
    # The published network has 25,557,032 parameters; its stem is 7x7 and ours is 3x3.
    assert sum(p.numel() for p in model.parameters()) == 25_557_032 - 64 * 3 * (49 - 9)
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == 53
    assert all(bool((m.bn3.weight == 0).all()) for m in model.modules() if isinstance(m, example.Bottleneck))


def test_the_split_is_fixed_and_disjoint(example: ModuleType) -> None:
    train, test = example.digits(0)
    again, _ = example.digits(0)
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(train.tensors[0], again.tensors[0])
    assert train.tensors[0].shape == (1437, 1, 8, 8)
    assert (train.tensors[0].amin(), train.tensors[0].amax()) == (0, 1)


def test_it_trains_on_the_cpu(example: ModuleType, tmp_path: Path) -> None:
    """Three steps of a small network of the same kind; the whole one takes minutes here."""
    small = example.ResNet
    history = tmp_path / "history.json"
    example.ResNet = lambda: small(blocks=(1, 1, 1, 1))
    try:
        example.main(
            ["--epochs", "1", "--batch-size", "16", "--limit", "50", "--log-every", "1", "--history", str(history)]
        )
    finally:
        example.ResNet = small
    out = json.loads(history.read_text(encoding="utf-8"))
    assert out["steps"] == [1, 2, 3]
    assert all(0 < loss < 10 for loss in out["losses"])
    assert 0 <= out["test_accuracy"] <= 1
    assert out["amp"] == "off"


def test_too_few_images_are_said_so(example: ModuleType) -> None:
    with pytest.raises(SystemExit, match="do not fill a batch"):
        example.main(["--limit", "8"])


# A process of its own: it has one out-of-tree device type, and counters that other tests would add to.
WATCHED = """
    import json, sys
    from pathlib import Path
    import torchfl
    from torchfl import _engine
    from torchfl.demo import figures
    from torchfl.demo.__main__ import run_script
    from torchfl.demo.watch import Watch

    script, out = Path(sys.argv[1]), Path(sys.argv[2])
    torchfl.load("npu_v3")
    arguments = ["--device", "npu_v3:0", "--epochs", "2", "--batch-size", "16", "--limit", "112", "--log-every", "5"]
    with Watch(_engine, script, audited=[9], timed=[11]) as watch:
        run_script(script, [*arguments, "--history", str(out)])
    history = json.loads(out.read_text())
    report = figures.summarise(watch.steps, watch.total, history, 1.0, {"chip": "NPU-V3"})
    report["fallbacks_by_step"] = [[step.index, step.counts.calls_on("cpu")] for step in watch.steps]
    out.write_text(json.dumps(report))
"""


@pytest.fixture(scope="module")
def watched(script: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Fourteen steps on the simulated NPU, watched as the demo does."""
    from torchfl._paths import shipped_chips
    from torchfl.errors import LoadError

    try:
        chips = shipped_chips()
    except LoadError as error:
        pytest.skip(str(error))
    if "npu_v3" not in chips:
        pytest.skip("npu_v3 is not built")
    out = tmp_path_factory.mktemp("demo") / "out.json"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WATCHED), str(script), str(out)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return result


def test_a_steady_step_never_falls_back(watched: dict[str, Any]) -> None:
    assert watched["steps"]["steady"] >= 4
    assert watched["steady_step_cpu_fallbacks"] == 0, watched["fallbacks"]


def test_a_steady_step_copies_the_batch_and_numbers_only(watched: dict[str, Any]) -> None:
    assert watched["steady_step_host_copies"] == 0, watched["crossings"]


def test_the_audit_names_every_copy_of_a_step(watched: dict[str, Any]) -> None:
    found = [(row["kind"], row["bytes"]) for row in watched["crossings"]]
    assert found[:2] == [("batch", 16 * 64 * 4), ("batch", 16 * 8)]
    assert [kind for kind, _ in found[2:]] == ["scalar"]  # the scaler asks whether a gradient was infinite
    assert all(row["line"].startswith("resnet50_digits.py:") for row in watched["crossings"])
    assert watched["crossings"][0]["source"].startswith("images, labels = images.to(device)")


def test_time_is_told_by_operator(watched: dict[str, Any]) -> None:
    assert watched["steps"]["timed"] == 1
    longest = watched["operators"][0]
    assert longest["ms"] > 0 and longest["path"] == "native"
    assert any(row["op"].startswith("convolution") for row in watched["operators"])


def test_nothing_of_the_whole_run_falls_back(watched: dict[str, Any]) -> None:
    assert watched["fallbacks"] == []
