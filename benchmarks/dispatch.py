"""What a call costs: Torch-FL's generic route against stock PyTorch and against code written by hand.

    python benchmarks/dispatch.py            # a table
    python benchmarks/dispatch.py --json     # the same as one JSON object

Three figures, each a median over interleaved rounds (benchmarks/rounds.py):

native_over_cpu          a 4-element float32 add, submitted back to back from Python: npu_v3 / stock CPU
native_over_handwritten  the same add, called from C++: our route minus a handwritten kernel (handwritten.cpp), in us
fallback_over_stock      a 4-element int16 add on the same chip with a descriptor that sends it to the CPU:
                         our CPU route / at::native::cpu_fallback

The handwritten kernel is compiled at the first run (about a minute) into build/benchmarks and kept there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rounds as measuring

HERE = Path(__file__).resolve().parent
LIMITS = {"native_over_cpu": 1.0, "native_over_handwritten": 0.15, "fallback_over_stock": 0.7}
LARGE = 1 << 20


def compile_handwritten() -> Any:
    """The extension beside this file, compiled against the SDK that the engine runs on."""

    from torch.utils import cpp_extension

    from torchfl._paths import sdk_dir

    sdk = sdk_dir("npu")
    folder = HERE.parent / "build" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    # The build tool may lie beside the interpreter without that folder being on the path.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return cpp_extension.load(
        name="torchfl_handwritten",
        sources=[str(HERE / "handwritten.cpp")],
        extra_include_paths=[str(sdk / "include")],
        extra_cflags=["-O2"],
        extra_ldflags=[f"-L{sdk / 'lib'}", "-lnpu", f"-Wl,-rpath,{sdk / 'lib'}"],
        build_directory=str(folder),
    )


def load_uncomposing(chip: str) -> str:
    """The same chip with a descriptor that has its add for float32 alone and composes nothing. Returns its device."""
    import torchfl
    from torchfl._engine import shipped_chips

    name = f"{chip}_uncomposing"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(
            f"hcd: 1\nextends: {os.path.relpath(shipped_chips()[chip], folder)}\n"
            f"chip: {{name: {name}, device_type: {name}}}\nfallback: {{default: cpu}}\n"
            f"ops: [{{op: aten::add, kernel: {chip}_add, dtypes: [float32]}}]\n"
        )
        torchfl.load(path)
    return f"{name}:0"


def measure(device_name: str, turns: int, calls: int) -> tuple[measuring.Rounds, dict[str, Any]]:
    """All variants in one run. Returns the rounds and facts about the paths that were really taken."""
    import torch

    import torchfl

    chip = device_name.split(":")[0]
    torchfl.load(chip)
    elsewhere = load_uncomposing(chip)
    device = torch.device(device_name)
    handwritten = compile_handwritten()
    add, synchronize = torch.add, torch.accelerator.synchronize

    a_cpu, b_cpu = torch.rand(4), torch.rand(4)
    a, b = a_cpu.to(device), b_cpu.to(device)
    absent = [torch.arange(4, dtype=torch.int16).to(elsewhere) for _ in range(2)]
    large = [torch.arange(LARGE).to(torch.int16).to(elsewhere) for _ in range(2)]

    expected = a_cpu + b_cpu
    for name in ("add", "add_lean"):
        assert torch.equal(getattr(torch.ops.bench, name)(a, b, 1).cpu(), expected), name
    assert torch.equal(handwritten.stock_add(*absent).cpu(), (absent[0] + absent[1]).cpu())
    torchfl.reset_stats()
    add(a, b), add(*absent)
    taken = {row["op"]: row for row in torchfl.stats() if row["op"].startswith("aten::add")}
    paths = sorted({row["path"] for row in torchfl.stats() if row["op"].startswith("aten::add")})
    if paths != ["cpu", "native"]:
        raise SystemExit(
            f"these adds were expected on the paths native (float32) and cpu (int16), not on {paths}: {taken}"
        )

    def python_loop(x: torch.Tensor, y: torch.Tensor) -> float:
        for _ in repeat(None, 100):
            add(x, y)
        synchronize(device)
        began = time.perf_counter()
        for _ in repeat(None, calls):
            add(x, y)
        spent = time.perf_counter() - began
        synchronize(device)
        return spent / calls * 1e6

    def latency(x: torch.Tensor, y: torch.Tensor) -> float:
        count = calls // 4
        synchronize(device)
        began = time.perf_counter()
        for _ in repeat(None, count):
            add(x, y)
            synchronize(device)
        return (time.perf_counter() - began) / count * 1e6

    def cpp(function: Any, *arguments: Any, count: int = calls) -> float:
        function(*arguments, max(count // 20, 1))
        synchronize(device)
        spent: float = function(*arguments, count)
        synchronize(device)
        return spent

    few = max(calls // 200, 3)
    result = measuring.run(
        {
            "python add, cpu": lambda: python_loop(a_cpu, b_cpu),
            "python add, npu_v3": lambda: python_loop(a, b),
            "python add, npu_v3, synchronised": lambda: latency(a, b),
            "c++ add, cpu": lambda: cpp(handwritten.loop_aten, a_cpu, b_cpu),
            "c++ add, npu_v3": lambda: cpp(handwritten.loop_aten, a, b),
            "c++ add, handwritten": lambda: cpp(handwritten.loop_bench, "add", a, b),
            "c++ add, handwritten, lean": lambda: cpp(handwritten.loop_bench, "add_lean", a, b),
            "cpu route, 4 elements": lambda: cpp(handwritten.loop_aten, *absent, count=calls // 4),
            "stock fallback, 4 elements": lambda: cpp(handwritten.loop_stock, *absent, count=calls // 4),
            "cpu route, 1M elements": lambda: cpp(handwritten.loop_aten, *large, count=few),
            "stock fallback, 1M elements": lambda: cpp(handwritten.loop_stock, *large, count=few),
        },
        turns,
    )
    facts = {
        **measuring.machine(),
        "torch": torch.__version__,
        "torchfl": torchfl.__version__,
        "threads": torch.get_num_threads(),
    }
    return result, facts


def report(result: measuring.Rounds, facts: dict[str, Any]) -> dict[str, Any]:
    """The three figures, and all that they come from."""
    comparisons = {
        "native_over_cpu": result.ratio("python add, npu_v3", "python add, cpu"),
        "native_over_handwritten": result.difference("c++ add, npu_v3", "c++ add, handwritten"),
        "fallback_over_stock": result.ratio("cpu route, 4 elements", "stock fallback, 4 elements"),
        "native_over_handwritten_lean": result.difference("c++ add, npu_v3", "c++ add, handwritten, lean"),
        "fallback_over_stock_1m": result.ratio("cpu route, 1M elements", "stock fallback, 1M elements"),
    }
    out: dict[str, Any] = {name: comparisons[name].median for name in LIMITS}
    out["latency_us"] = result.time("python add, npu_v3, synchronised").median
    out["limits"] = LIMITS
    out["within_limits"] = all(out[name] <= limit for name, limit in LIMITS.items())
    out["comparisons"] = {name: value.as_dict() for name, value in comparisons.items()}
    out["times_us"] = {name: result.time(name).as_dict() for name in result.times}
    out["noise"] = result.noise
    out["load"] = result.load
    out["noisy"] = result.noisy
    out["machine"] = facts
    return out


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Figures", title_justify="left")
    for column, justify in (
        ("figure", "left"),
        ("median", "right"),
        ("quartiles", "right"),
        ("limit", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, value in figures["comparisons"].items():
        limit = LIMITS.get(name)
        unit = " us" if "handwritten" in name else ""
        verdict = "" if limit is None else "[green]holds" if value["median"] <= limit else "[red]exceeded"
        table.add_row(
            name,
            f"{value['median']:.3f}{unit}",
            f"{value['low']:.3f} to {value['high']:.3f}",
            "" if limit is None else f"{limit:g}{unit}",
            verdict,
        )
    console.print(table)
    times = Table(title="Microseconds for one call", title_justify="left")
    for column, justify in (("what", "left"), ("median", "right"), ("quartiles", "right")):
        times.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, value in figures["times_us"].items():
        times.add_row(name, f"{value['median']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
    console.print(times)
    machine = figures["machine"]
    console.print(f"{machine['processor']}, {machine['cores']} cores; torch {machine['torch']}")
    if figures["noisy"]:
        console.print(
            f"[yellow]The machine was busy: {figures['load']:.1f} processes for each core as it began, and fixed work "
            f"varied by {figures['noise']:.0%}. Comparisons within a round still hold better than single times."
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure what a call costs on npu_v3.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--device", default="npu_v3:0")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000, help="calls of one loop (default: 2000)")
    options = parser.parse_args(arguments)
    figures = report(*measure(options.device, options.rounds, options.calls))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
