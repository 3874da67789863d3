"""docs/benchmarks.md from saved runs.

    python benchmarks/report.py                            # from out/bench/*.json
    python benchmarks/report.py FOLDER --output PAGE.md

Contract: reads what the benchmarks print with --json, one file a run, named after the benchmark (dispatch.json,
models-resnet50.json, ...); `models-*.json` are put together, and of a workload that several hold the latest file wins.
A part that was not run is said so on the page. Nothing is measured here, and nothing is left out: a goal that is
missed and a comparison that is lost stand first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAVED = ROOT / "out" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"
#: The runs that a page is made of, beside those of models.
PARTS = ("dispatch", "paths", "memory", "compiled", "overhead", "imports", "bringup")
MODES = {"infer": "inference", "train": "training step"}


@dataclass(frozen=True)
class Goal:
    """A speedup that a workload is to show: time of `peer` / time of the best of `ours`, at least `least`."""

    model: str
    mode: str
    ours: tuple[str, ...]
    peer: str
    least: float


_OPENCL = ("opencl eager", "opencl compiled")
GOALS = (
    Goal("resnet50", "infer", ("host compiled",), "eager fp32", 1.4),
    Goal("resnet50", "infer", ("host_bf16 compiled",), "eager fp32", 2.7),
    Goal("resnet50", "infer", ("host eager",), "eager fp32", 1.0),
    Goal("resnet50", "infer", ("host_bf16 eager",), "eager bf16", 1.0),
    Goal("resnet50", "infer", ("host compiled",), "inductor fp32", 1.0),
    Goal("resnet50", "infer", ("host_bf16 compiled",), "inductor bf16", 1.0),
    Goal("minilm", "infer", ("host compiled",), "eager fp32", 1.05),
    Goal("minilm", "infer", ("host_bf16 compiled",), "eager fp32", 1.9),
    Goal("minilm", "infer", ("host compiled",), "inductor fp32", 1.0),
    Goal("minilm", "infer", ("host_bf16 compiled",), "inductor bf16", 1.0),
    *(
        Goal("resnet18", mode, _OPENCL, peer, 1.0)
        for mode in ("infer", "train")
        for peer in ("tinygrad torch opencl", "tinygrad opencl")
    ),
)


def table(head: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> list[str]:
    """Lines of a Markdown table; `numbers`: columns that are set to the right."""
    rule = ["---:" if i in numbers else "---" for i in range(len(head))]
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *cells)]


def load(folder: Path) -> dict[str, Any]:
    """The runs by name; those of models are one, `models`."""
    runs: dict[str, Any] = {}
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    workloads: dict[tuple[str, str], Any] = {}
    facts: dict[str, Any] = {}
    for path in found:
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            print(f"{path}: left out, it is no finished run ({error})", file=sys.stderr)
            continue
        if path.stem.startswith("models"):
            facts = {key: run[key] for key in ("machine", "threads", "date")}
            for workload in run["workloads"]:
                workloads[workload["model"], workload["mode"]] = {**workload, **facts, "smoke": run["smoke"]}
        else:
            runs[path.stem] = run
    if workloads:
        runs["models"] = {**facts, "workloads": list(workloads.values())}
    return runs


def named(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in workload["rows"]}


def ran(row: dict[str, Any] | None) -> bool:
    return row is not None and "unavailable" not in row


def ratio_text(value: dict[str, Any]) -> str:
    return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def goals(runs: dict[str, Any]) -> Iterator[list[str]]:
    """Rows of the table of goals: what, wanted, measured, verdict."""
    workloads = {(w["model"], w["mode"]): w for w in runs.get("models", {}).get("workloads", [])}
    for goal in GOALS:
        what = f"{goal.model}, {MODES[goal.mode]}: {' or '.join(goal.ours)} against {goal.peer}"
        wanted = f"{goal.least:g} times or more"
        workload = workloads.get((goal.model, goal.mode))
        rows = named(workload) if workload else {}
        ours = [rows[name] for name in goal.ours if ran(rows.get(name))]
        if not workload or goal.peer not in rows or not (ours or any(name in rows for name in goal.ours)):
            yield [what, wanted, "not run", ""]
        elif not ran(rows[goal.peer]):
            yield [what, wanted, f"{goal.peer} is not available: {rows[goal.peer]['unavailable']}", ""]
        elif not ours:
            yield [what, wanted, f"failed: {rows[goal.ours[0]]['unavailable']}", "**missed**"]
        else:
            best = max((row["speedup"][goal.peer] for row in ours), key=lambda value: value["median"])
            yield [what, wanted, ratio_text(best), "held" if best["median"] >= goal.least else "**missed**"]
    dispatch = runs.get("dispatch", {})
    for name, limit in dispatch.get("limits", {}).items():
        value = dispatch[name]
        yield [f"dispatch: {name}", f"{limit:g} or less", f"{value:.3g}", "held" if value <= limit else "**missed**"]
    few = dispatch.get("small_operators")
    if few:
        what = f"small operators on {few['device']} against stock PyTorch, median of {len(few['operators'])}"
        verdict = "held" if few["within_limit"] else "**missed**"
        yield [what, f"{few['limit']:g} or less", f"{few['median_ratio']:.2f}", verdict]
    if "paths" in runs:
        verdict = "held" if runs["paths"]["within_limits"] else "**missed**"
        value = f"{runs['paths']['mean_regret']:.2%}, worst {runs['paths']['worst_regret']:.2%}"
        yield ["choice of paths: mean regret", "2 % or less, worst 15 %", value, verdict]
    if "memory" in runs:
        share = runs["memory"]["mapped_of_naive"]
        verdict = "held" if share < 0.01 and runs["memory"]["right"] else "**missed**"
        yield ["unified memory: bytes copied, of naive's", "below 1 %", f"{share:.2%}", verdict]
    if "overhead" in runs:
        run = runs["overhead"]
        verdict = "held" if run["overhead"]["median"] <= run["limit"] else "**missed**"
        what = "compiled training step of ResNet-50 on the simulated NPU, over its kernels alone"
        yield [what, f"{run['limit']:g} or less", ratio_text(run["overhead"]), verdict]
    for row in runs.get("imports", []):
        if row["limit"]:
            verdict = "held" if row["milliseconds"] <= row["limit"] else "**missed**"
            yield [row["name"], f"{row['limit']} ms or less", f"{row['milliseconds']:.1f}", verdict]
    for chip, most in runs.get("bringup", {}).get("limits", {}).items():
        sizes = runs["bringup"]["chips"]
        if chip in sizes:
            size = sizes[chip]["adapter_size"]
            verdict = "held" if size <= most else "**missed**"
            yield [f"lines of the adapter of {chip}, kernels included", f"{most} or less", str(size), verdict]


def lost(workloads: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Comparisons with a peer of the same precision, and of the same way, that the peer wins."""
    for workload in workloads:
        rows = named(workload)
        for ours in workload["rows"]:
            if not ours["ours"] or not ran(ours):
                continue
            for peer, value in ours["speedup"].items():
                other = rows[peer]
                if other["ours"] or other["precision"] != ours["precision"] or other["compiled"] != ours["compiled"]:
                    continue
                if value["median"] < 1:
                    yield [f"{workload['model']}, {MODES[workload['mode']]}", ours["name"], peer, ratio_text(value)]


def workload_lines(workload: dict[str, Any]) -> Iterator[str]:
    yield f"### {workload['model']}, {MODES[workload['mode']]}"
    yield ""
    busy = "; the machine was busy" if workload.get("noisy") else ""
    small = " **Small networks (--smoke): says nothing about speed.**" if workload.get("smoke") else ""
    yield f"{workload['what']}; {workload['threads']} threads, {workload['rounds']} rounds{busy}.{small}"
    yield ""
    rows = []
    for row in workload["rows"]:
        if not ran(row):
            rows.append([row["name"], "not available", "", "", "", row["unavailable"]])
            continue
        base = row["speedup"].get("eager fp32")
        notes = [] if row["right"] else ["**wrong result**"]
        if row.get("cpu_calls"):
            notes.append(f"{row['cpu_calls']} operator calls on the CPU: {', '.join(row['cpu_ops'])}")
        spread = f"{row['ms']['low']:.2f} to {row['ms']['high']:.2f}"
        faster = "1" if row["name"] == "eager fp32" else ratio_text(base) if base else ""
        name = f"**{row['name']}**" if row["ours"] else row["name"]
        rows.append([name, f"{row['ms']['median']:.2f}", spread, faster, f"{row['error']:.1e}", "; ".join(notes)])
    yield from table(["", "ms", "quartiles", "times stock eager", "error", ""], rows, (1, 2, 3, 4))
    yield ""
    ours = [row for row in workload["rows"] if row["ours"] and ran(row)]
    peers = [row["name"] for row in workload["rows"] if not row["ours"] and ran(row)]
    if ours and peers:
        yield "Time of the peer divided by ours, within a round (above 1: we are faster):"
        yield ""
        head = ["", *(row["name"] for row in ours)]
        cells = [[peer, *(ratio_text(row["speedup"][peer]) if peer in row["speedup"] else "" for row in ours)]
                 for peer in peers]  # fmt: skip
        yield from table(head, cells, tuple(range(1, len(head))))
        yield ""


def dispatch_lines(run: dict[str, Any]) -> Iterator[str]:
    yield "## What a call costs"
    yield ""
    yield "`benchmarks/dispatch.py`, on the simulated NPU-V3; microseconds for one call."
    yield ""
    rows = [[name, f"{v['median']:.3f}", f"{v['low']:.3f} to {v['high']:.3f}"] for name, v in run["times_us"].items()]
    yield from table(["", "median", "quartiles"], rows, (1, 2))
    yield ""


def small_lines(few: dict[str, Any]) -> Iterator[str]:
    yield f"## Small operators on {few['device']}"
    yield ""
    yield "`benchmarks/small.py`: [16, 16] float32, eager, microseconds for one call."
    yield ""
    rows = [
        [name, f"{row['cpu_us']:.2f}", f"{row['device_us']:.2f}", ratio_text(row["ratio"]), ", ".join(row["paths"])]
        for name, row in few["operators"].items()
    ]
    yield from table(["operator", "stock CPU", few["device"], "device / CPU", "path"], rows, (1, 2, 3))
    yield ""


def other_lines(runs: dict[str, Any]) -> Iterator[str]:
    if "dispatch" in runs:
        yield from dispatch_lines(runs["dispatch"])
    few = runs.get("dispatch", {}).get("small_operators") or runs.get("small", {}).get("small_operators")
    if few:
        yield from small_lines(few)
    if "paths" in runs:
        run = runs["paths"]
        yield "## Choice of paths"
        yield ""
        regret = f"the mean regret is {run['mean_regret']:.2%}, the worst {run['worst_regret']:.2%}"
        yield f"`benchmarks/paths.py`: {run['shapes']} shapes on NPU-V3, by the chip's own clock. The best path was"
        yield f"taken for {run['top1']:.1%}; {regret}."
        yield ""
    if "memory" in runs:
        yield "## Unified memory"
        yield ""
        yield "`benchmarks/memory.py`: ResNet-18, batch by batch from host memory, on X1."
        yield ""
        mib = 1 << 20
        rows = [
            [r["strategy"], f"{r['seconds'] * 1e3:.1f}", f"{r['bytes'] / mib:.2f}", f"{r['setup_bytes'] / mib:.1f}",
             f"{r['device_peak'] / mib:.1f}"]
            for r in runs["memory"]["rows"]
        ]  # fmt: skip
        yield from table(["", "ms a batch", "MiB copied", "MiB before", "device MiB"], rows, (1, 2, 3, 4))
        yield ""
    if "compiled" in runs:
        yield "## Compiled on the simulated NPU"
        yield ""
        yield "`benchmarks/compiled.py`: compiled over eager on the same device."
        yield ""
        rows = [
            [r["model"], f"{r['dtype']}, {r['batch']}", f"{r['eager_ms']:.1f}", f"{r['compiled_ms']:.1f}",
             ratio_text(r["ratio"]), f"{r['error']:.1e}"]
            for r in runs["compiled"]["rows"]
        ]  # fmt: skip
        yield from table(
            ["", "dtype, batch", "eager ms", "compiled ms", "compiled / eager", "error"], rows, (2, 3, 4, 5)
        )
        yield ""
    if "imports" in runs:
        yield "## Importing"
        yield ""
        yield "`benchmarks/imports.py`: milliseconds, in processes of their own."
        yield ""
        rows = [[r["name"], f"{r['milliseconds']:.1f}", f"{r['low']:.1f} to {r['high']:.1f}", str(r["limit"] or "")]
                for r in runs["imports"]]  # fmt: skip
        yield from table(["", "median", "quartiles", "limit"], rows, (1, 2, 3))
        yield ""
    if "bringup" in runs:
        yield from bringup_lines(runs["bringup"])


def bringup_lines(run: dict[str, Any]) -> Iterator[str]:
    yield "## Lines of a chip"
    yield ""
    yield "`benchmarks/bringup.py`: lines of code, without blank lines and comments; in parentheses all lines."
    yield ""
    layers = list(next(iter(run["chips"].values()))["lines"])
    rows = []
    for name, chip in run["chips"].items():
        cells = [f"{chip['lines'][key]} ({chip['all'][key]})" if chip["all"][key] else "" for key in layers]
        rows.append([name, *cells, str(run["limits"].get(name, ""))])
    yield from table(["chip", *layers, "limit of adapter and kernels"], rows, tuple(range(1, len(layers) + 2)))
    yield ""


METHOD = """\
Every benchmark measures what it compares alternately, in many short rounds, in changing order. A comparison is made
within a round, where both sides met the same machine; the figure is the median over the rounds, with the quartiles in
parentheses. Whole models: each contestant is a process of its own with the same network, the same inputs and as many
threads; all but the one whose turn it is are stopped. Inputs lie where the contestant computes; a call ends when its
result has been computed. Weights are random from one seed (MiniLM's are real). `error` is the largest difference from
the CPU in double precision, as a share of the largest value: of the output, or of the losses of three training steps.
bf16 of stock PyTorch and inductor is a network converted whole (training: autocast), images channels last; of
OpenVINO its own setting; of host_bf16 its descriptor's choice for convolutions and products, with the network and all
tensors unchanged in float32. Inductor freezes weights where it infers. What lost or could not run stays in the
tables."""


def page(runs: dict[str, Any]) -> str:
    models = runs.get("models", {"workloads": []})
    lines = ["# How fast is it, and against what?", ""]
    lines += ["<!-- Made by benchmarks/report.py from saved runs; `make bench` measures and writes it. -->", ""]
    lines += ["Figures of one machine, to be compared with each other and not with other machines'.", ""]
    lines += ["```bash", "make bench        # installs the peers, measures (hours), and writes this page", "```", ""]
    lines += ["## Machine and versions", ""]
    machine = next((run["machine"] for run in (models, *runs.values()) if "machine" in run), {})
    versions: dict[str, str] = {}
    for workload in models["workloads"]:
        for row in workload["rows"]:
            versions.update(row.get("versions", {}))
    facts = [["processor", f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores"]]
    facts += [["system", machine.get("system", "?")], ["Python", machine.get("python", "?")]]
    facts += [[name, version] for name, version in sorted(versions.items())]
    if "date" in models:
        facts.append(["measured", models["date"]])
    lines += [*table(["", ""], facts), "", "## Method", "", METHOD, "", "## Goals", ""]
    lines += [*table(["what", "wanted", "measured", ""], list(goals(runs))), ""]
    rows = list(lost(models["workloads"]))
    lines += ["## Lost", ""]
    if rows:
        lines += ["Time of the peer divided by ours, where the peer of the same precision and kind is faster:", ""]
        lines += [*table(["workload", "ours", "peer", "peer / ours"], rows, (3,)), ""]
    elif models["workloads"]:
        lines += ["No comparison with a peer of the same precision and kind (eager, compiled) is lost.", ""]
    else:
        lines += ["Whole models were not run.", ""]
    lines += ["## Whole models", ""]
    missing = [name for name in ("models", *PARTS) if name not in runs]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    for workload in models["workloads"]:
        lines += workload_lines(workload)
    lines += other_lines(runs)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=SAVED)
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    runs = load(options.folder)
    if not runs:
        print(f"{options.folder}: no saved runs (*.json); `make bench` makes them", file=sys.stderr)
        return 1
    options.output.write_text(page(runs), encoding="utf-8")
    print(f"{options.output}: written from {', '.join(sorted(runs))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
