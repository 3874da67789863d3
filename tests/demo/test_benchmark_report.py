"""The other benchmarks' small runs, and the page that is made from saved ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Bench = Callable[[str], ModuleType]
SCRIPTS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if "ArgumentParser" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_explains_itself(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout or script.stem in ("all", "report")


def value(median: float) -> dict[str, float]:
    return {"median": median, "low": median * 0.9, "high": median * 1.1, "rounds": 5, "spread": 0.2}


def row(name: str, ms: float, others: dict[str, float], **more: Any) -> dict[str, Any]:
    own = {"ours": name.startswith(("host", "opencl")), "precision": "bf16" if "bf16" in name else "fp32"}
    own["compiled"] = not name.endswith("eager") and not name.startswith("eager")
    return {"name": name, **own, "ms": value(ms), "speedup": {k: value(v / ms) for k, v in others.items() if k != name},
            "error": 1e-6, "right": True, "versions": {"torch": "2"}, **more}  # fmt: skip


def saved(folder: Path, name: str, times: dict[str, float], model: str = "resnet50", missing: str = "") -> None:
    rows = [row(who, ms, times) for who, ms in times.items()]
    if missing:
        unavailable = {"name": missing, "ours": False, "precision": "fp32", "compiled": False}
        rows.append({**unavailable, "unavailable": "no | wheel"})
    workload = {"model": model, "mode": "infer", "what": "a network", "rounds": 5, "noisy": False, "rows": rows}
    run = {"machine": {"processor": "P", "cores": 2, "system": "S", "python": "3"}, "threads": 2, "date": "2026-01-01"}
    (folder / name).write_text(json.dumps({**run, "smoke": False, "workloads": [workload]}))


def test_goals_held_missed_and_not_run_are_told(bench: Bench, tmp_path: Path) -> None:
    report = bench("report")
    saved(
        tmp_path,
        "models-a.json",
        {"eager fp32": 280.0, "inductor fp32": 190.0, "host compiled": 200.0, "host eager": 300.0},
    )
    text = report.page(report.load(tmp_path))
    assert (
        "| resnet50, inference: host compiled against eager fp32 | 1.4 times or more | 1.40 (1.26 to 1.54) | held |"
        in text
    )
    assert "host compiled against inductor fp32 | 1 times or more | 0.95 (0.85 to 1.04) | **missed** |" in text
    assert "host_bf16 compiled against eager fp32 | 2.7 times or more | not run |  |" in text
    assert "Not run: dispatch, paths, memory" in text


def test_what_is_lost_is_listed_against_peers_of_the_same_kind(bench: Bench, tmp_path: Path) -> None:
    report = bench("report")
    times = {"eager fp32": 100.0, "eager bf16": 10.0, "inductor fp32": 50.0, "host eager": 120.0, "host compiled": 40.0}
    saved(tmp_path, "models-a.json", times)
    rows = list(report.lost(report.load(tmp_path)["models"]["workloads"]))
    assert [(ours, peer) for _, ours, peer, _ in rows] == [("host eager", "eager fp32")]
    assert "| resnet50, inference | host eager | eager fp32 | 0.83" in report.page(report.load(tmp_path))


def test_who_could_not_run_stays_with_the_reason(bench: Bench, tmp_path: Path) -> None:
    report = bench("report")
    saved(tmp_path, "models-a.json", {"opencl eager": 5.0}, "resnet18", missing="tinygrad torch opencl")
    text = report.page(report.load(tmp_path))
    assert "| tinygrad torch opencl | not available |  |  |  | no \\| wheel |" in text
    assert "tinygrad torch opencl is not available: no \\| wheel" in text


def test_saved_runs_are_put_together_the_latest_first(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench("report")
    saved(tmp_path, "models-z.json", {"eager fp32": 1.0})
    saved(tmp_path, "models-a.json", {"eager fp32": 2.0})
    saved(tmp_path, "models-b.json", {"eager fp32": 3.0}, model="vit")
    os.utime(tmp_path / "models-z.json", (1, 1))
    (tmp_path / "paths.json").write_text("")
    found = report.load(tmp_path)
    assert {w["model"]: w["rows"][0]["ms"]["median"] for w in found["models"]["workloads"]} == {
        "resnet50": 2.0,
        "vit": 3.0,
    }
    assert "paths.json: left out" in capsys.readouterr().err and "paths" not in found
    assert report.main([str(tmp_path), "--output", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# How fast")
    (tmp_path / "none").mkdir()
    assert report.main([str(tmp_path / "none"), "--output", str(tmp_path / "none.md")]) == 1


def test_lines_are_counted_by_layer(bench: Bench, tmp_path: Path) -> None:
    bringup = bench("bringup")
    chip = tmp_path / "chips" / "some"
    (chip / "tests").mkdir(parents=True)
    (tmp_path / "tests" / "chips").mkdir(parents=True)
    files = {
        "some.yaml": "# a comment\nhcd: 1\n\nchip: {}  # behind\n",
        "check.yaml": "unsupported:\n",
        "a.c": '/* one\n   two */\n\nint x; // three\nchar *s = "/* no comment";\n// four\nint y; /* five\nsix */ int z;\n',
        "k.cl": "kernel void k() {}\n",
        "CMakeLists.txt": "# x\nadd()\n",
        "README.md": "text\n",
        "tests/smoke.c": "int main;\n",
    }
    for name, text in files.items():
        (chip / name).write_text(text)
    (tmp_path / "tests" / "chips" / "test_some_more.py").write_text('"""Doc."""\n\n# no\nx = 1\n')
    figures = bringup.measure(tmp_path)
    assert figures["chips"]["some"]["lines"] == {
        "descriptor": 2, "adapter": 4, "kernels": 1, "tests": 3, "build": 1, "known gaps": 1
    }  # fmt: skip
    assert figures["chips"]["some"]["all"]["adapter"] == 8 and figures["chips"]["some"]["adapter_size"] == 5
    assert figures["within_limits"]


def test_the_shipped_chips_are_measured_against_their_limits(bench: Bench) -> None:
    figures = bench("bringup").measure()
    sizes = {name: chip["adapter_size"] for name, chip in figures["chips"].items()}
    assert figures["chips"]["npu_v3"]["files"]["adapter"] == ["chips/npu_v3/uba_npu_v3.c"] and sizes["npu_v3"] > 100
    over = [name for name, most in figures["limits"].items() if sizes.get(name, 0) > most]
    assert figures["within_limits"] == (not over)
    verdicts = {line[0]: line[3] for line in bench("report").goals({"bringup": figures})}
    for name in over:
        assert verdicts[f"lines of the adapter of {name}, kernels included"] == "**missed**"


def test_small_operators_are_compared_and_their_paths_told() -> None:
    pytest.importorskip("torch")
    from torchfl._paths import shipped_chips
    from torchfl.errors import LoadError

    try:
        shipped_chips()["x1"]
    except (LoadError, KeyError) as error:
        pytest.skip(str(error))
    script = ROOT / "benchmarks" / "dispatch.py"
    command = [sys.executable, str(script), "--only-small", "--small", "x1", "--rounds", "3", "--calls", "8", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["small_operators"]
    assert figures["operators"]["add"]["paths"] == ["native"] and figures["operators"]["view"]["paths"] == []
    assert all(r["ratio"]["rounds"] == 3 and r["cpu_us"] > 0 for r in figures["operators"].values())
    assert figures["worst_ratio"] >= figures["median_ratio"] > 0


def test_a_part_that_fails_keeps_what_was_saved_before(bench: Bench, tmp_path: Path) -> None:
    everything = bench("all")
    names = [part.name for part in everything.parts(False)]
    assert len(set(names)) == len(names) and {n for n in names if not n.startswith("models-")} == set(
        everything.report.PARTS
    )
    assert [n.removeprefix("models-") for n in names if n.startswith("models-")] == list(bench("models").MODELS)
    (tmp_path / "bad.json").write_text('{"kept": true}')
    assert not everything.run(everything.Part("bad", ("nosuch.py",), 0), tmp_path)
    assert "nosuch.py" in (tmp_path / "bad.log").read_text() and (tmp_path / "bad.json").read_text() == '{"kept": true}'
    assert everything.run(everything.Part("bringup", ("bringup.py",), 0), tmp_path)
    assert json.loads((tmp_path / "bringup.json").read_text())["chips"]
