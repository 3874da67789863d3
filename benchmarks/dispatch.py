"""What a call costs: Torch-FL's generic route against stock PyTorch and against code written by hand.

    python benchmarks/dispatch.py            # a table
    python benchmarks/dispatch.py --json     # the same as one JSON object

Figures, those of the first group each a median over interleaved rounds (benchmarks/rounds.py):

native_over_cpu          a 4-element float32 add, submitted back to back from Python: npu_v3 / stock CPU
native_over_handwritten  the same add, called from C++: our route minus a handwritten kernel (handwritten.cpp), in us
fallback_over_stock      a 4-element int16 add on the same chip with a descriptor that sends it to the CPU:
                         our CPU route / at::native::cpu_fallback
composed_gelu_over_native_add
                         a 4-element float32 gelu, composed, on the same chip without its kernel for it / the native add

Those of composed operators (benchmarks/composed.py) are taken in processes of their own:

first_trace_ms           median first call of ten composed operators in a process without a cache on disk
traces_next_process      how many of them are traced in the next process, with the cache: none
new_shape_us             the call of an elementwise operator in a shape that is new
many_shapes              what 10,000 shapes of it leave behind: plans, programs, and MiB over the second half

small_operators (benchmarks/small.py, a process of its own): some two dozen operators on [16, 16] tensors of `--small`,
a device that is the CPU itself, against stock PyTorch.

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

import composed
import rounds as measuring
import small

HERE = Path(__file__).resolve().parent
LIMITS = {
    "native_over_cpu": 1.0,
    "native_over_handwritten": 0.15,
    "fallback_over_stock": 0.7,
    "composed_gelu_over_native_add": 3.0,
    "first_trace_ms": 12.0,
    "traces_next_process": 0,
    "new_shape_us": 50.0,
}
#: Measured once, in processes of their own.
APART = ("first_trace_ms", "traces_next_process", "new_shape_us")
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
    own = f"ops: [{{op: aten::add, kernel: {chip}_add, dtypes: [float32]}}]\n"
    return load_variant(chip, "uncomposing", "fallback: {default: cpu}\n" + own)


def load_without_gelu(chip: str) -> str:
    """The same chip with a descriptor whose gelu is for float16 alone: any other is composed. Returns its device."""
    return load_variant(chip, "gelu", f"ops: [{{op: aten::gelu, kernel: {chip}_gelu, dtypes: [float16]}}]\n")


def load_variant(chip: str, suffix: str, text: str) -> str:
    """The shipped chip with `text` on top of its descriptor, under a name of its own. Returns its device."""
    import torchfl
    from torchfl._engine import shipped_chips

    name = f"{chip}_{suffix}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(
            f"hcd: 1\nextends: {os.path.relpath(shipped_chips()[chip], folder)}\n"
            f"chip: {{name: {name}, device_type: {name}}}\n{text}"
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
    without_gelu = load_without_gelu(chip)
    device = torch.device(device_name)
    handwritten = compile_handwritten()
    add, gelu, synchronize = torch.add, torch.nn.functional.gelu, torch.accelerator.synchronize

    a_cpu, b_cpu = torch.rand(4), torch.rand(4)
    a, b = a_cpu.to(device), b_cpu.to(device)
    absent = [torch.arange(4, dtype=torch.int16).to(elsewhere) for _ in range(2)]
    bare = a_cpu.to(without_gelu)
    large = [torch.arange(LARGE).to(torch.int16).to(elsewhere) for _ in range(2)]

    torchfl.reset_stats()
    torch.testing.assert_close(gelu(bare).cpu(), gelu(a_cpu))
    if not any(row["op"] == "aten::gelu" and row["path"] == "composed" for row in torchfl.stats()):
        raise SystemExit(f"aten::gelu was expected on the path composed: {torchfl.stats()}")
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

    # As many commands as the loop of adds gives the chip: with a full queue the host would wait, and that be measured.
    gelus = max(calls // len(torchfl.explain("aten::gelu", bare)["steps"]), 1)

    def gelu_loop(x: torch.Tensor) -> float:
        for _ in repeat(None, 100):
            gelu(x)
        synchronize(x.device)
        began = time.perf_counter()
        for _ in repeat(None, gelus):
            gelu(x)
        spent = time.perf_counter() - began
        synchronize(x.device)
        return spent / gelus * 1e6

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
            "python gelu, composed": lambda: gelu_loop(bare),
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


def report(result: measuring.Rounds, facts: dict[str, Any], apart: dict[str, Any]) -> dict[str, Any]:
    """The figures, and all that they come from. `apart`: those of benchmarks/composed.py."""
    comparisons = {
        "native_over_cpu": result.ratio("python add, npu_v3", "python add, cpu"),
        "native_over_handwritten": result.difference("c++ add, npu_v3", "c++ add, handwritten"),
        "fallback_over_stock": result.ratio("cpu route, 4 elements", "stock fallback, 4 elements"),
        "composed_gelu_over_native_add": result.ratio("python gelu, composed", "python add, npu_v3"),
        "native_over_handwritten_lean": result.difference("c++ add, npu_v3", "c++ add, handwritten, lean"),
        "fallback_over_stock_1m": result.ratio("cpu route, 1M elements", "stock fallback, 1M elements"),
    }
    out: dict[str, Any] = {name: apart[name] if name in APART else comparisons[name].median for name in LIMITS}
    out["many_shapes"] = apart["many_shapes"]
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
    for name in APART:
        verdict = "[green]holds" if figures[name] <= LIMITS[name] else "[red]exceeded"
        table.add_row(name, f"{figures[name]:.3g}", "", f"{LIMITS[name]:g}", verdict)
    console.print(table)
    many = figures["many_shapes"]
    console.print(
        f"{many['shapes']:,} shapes of one operator: at most {many['most_plans']:,} plans and {many['most_programs']:,}"
        f" programs kept, {many['traces']} traces, {many['growth_mib']:.2f} MiB more over the second half\n"
    )
    times = Table(title="Microseconds for one call", title_justify="left")
    for column, justify in (("what", "left"), ("median", "right"), ("quartiles", "right")):
        times.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, value in figures["times_us"].items():
        times.add_row(name, f"{value['median']:.3f}", f"{value['low']:.3f} to {value['high']:.3f}")
    console.print(times)
    if figures["small_operators"]:
        console.print(small.table(figures["small_operators"]))
    machine = figures["machine"]
    console.print(f"{machine['processor']}, {machine['cores']} cores; torch {machine['torch']}")
    if figures["noisy"]:
        console.print(
            f"[yellow]The machine was busy: {figures['load']:.1f} processes for each core as it began, and fixed work "
            f"varied by {figures['noise']:.0%}. Comparisons within a round still hold better than single times."
        )


def print_small(figures: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"machine": measuring.machine(), "small_operators": figures}, indent=2))
    elif figures:
        from rich.console import Console

        Console(highlight=False).print(small.table(figures))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure what a call costs on npu_v3, and on a device that is the CPU."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--device", default="npu_v3:0")
    parser.add_argument(
        "--small", metavar="DEVICE", default="host", help="of the small operators, or none (default: host)"
    )
    parser.add_argument("--only-small", action="store_true", help="measure the small operators alone")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000, help="calls of one loop (default: 2000)")
    options = parser.parse_args(arguments)
    few = None if options.small == "none" else small.in_process(options.small, options.rounds, options.calls // 4)
    if options.only_small:
        print_small(few, options.json)
        return 0
    apart = composed.measure(options.device)  # first: while nothing else of ours runs
    figures = report(*measure(options.device, options.rounds, options.calls), apart)
    figures["small_operators"] = few
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
