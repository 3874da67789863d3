"""Whole models: Torch-FL's devices beside what users would pick instead, in one run.

    python benchmarks/models.py --device host --device host_bf16             # all models and peers: hours
    python benchmarks/models.py --model resnet50 --mode infer --device host --peer "inductor*" --peer "eager*"
    python benchmarks/models.py --list                                       # models, peers, and what they need
    python benchmarks/models.py --smoke --device x1 --peer "eager fp32"      # small networks, seconds

Contract: each contestant runs in a process of its own (benchmarks/worker.py), with the same network, the same inputs
and as many threads; all but the one whose turn it is are stopped. In every round each contestant has a turn, in
changing order (benchmarks/rounds.py); a comparison is made within a round, and its median over the rounds is the
figure, with its quartiles. `speedup` over a peer is the peer's time divided by the contestant's. Results are compared
with the CPU's in double precision before anything is timed. Peers are installed at their first use
(benchmarks/contestants.py); what could not run stands in the table with the reason. tinygrad's package lacks its
PyTorch backend: TINYGRAD_SOURCE may name a checkout of it that has extra/torch_backend.

A workload is a model and a mode: infer, or train (one step). Exit status 1: a result of a device of ours is wrong, or
it could not run. A run that is interrupted prints what was measured, with status 130.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import contestants
import rounds
from contestants import Contestant, Unavailable

HERE = Path(__file__).resolve().parent
#: By name; workloads.py, which builds them, needs torch.
MODELS = ("resnet50", "resnet18", "minilm", "vit", "llama-prefill", "llama-decode")
INFERENCE_ONLY = ("llama-decode",)  # one token of many: nobody trains on it
MODES = ("infer", "train")
#: Of the largest value of the reference.
TOLERANCE = {"fp32": 2e-3, "bf16": 1e-1}


class Worker:
    """The process of one contestant: started, then stopped but for its turns."""

    def __init__(self, contestant: Contestant, python: str, spec: dict[str, Any], patience: float) -> None:
        self.contestant, self.patience = contestant, patience
        self.failure = ""
        threads = str(spec["threads"])
        env = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
            # PoCL has had two names for it.
            **dict.fromkeys(("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"), threads),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (closed by `close`)
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=env,
            bufsize=0,
        )
        self._pending = b""
        try:
            self.ready = self.answer()
        except Unavailable:
            self.close()
            raise
        if "failed" in self.ready:
            self.close()
            raise Unavailable(self.ready["failed"])

    def answer(self) -> dict[str, Any]:
        """The next line that the process writes. Raises Unavailable if it ends, or takes longer than is waited."""
        assert self.process.stdout is not None
        until = time.monotonic() + self.patience
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Unavailable(f"it took longer than {self.patience:.0f} s (--patience)")
            piece = self.process.stdout.read(65536)
            if not piece:
                raise Unavailable(f"its process ended: {self._last_words()}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().splitlines() if line.strip()]
        status = self.process.wait(timeout=10)
        return f"status {status}" + (f", {lines[-1][:200]}" if lines else "")

    def turn(self, command: str = "go") -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"{command}\n".encode())
            return self.answer()
        except OSError:
            raise Unavailable(f"its process ended: {self._last_words()}") from None
        finally:
            self.pause()

    def burst(self) -> float:
        """Microseconds of one call. Who fails gets no further turn."""
        if not self.failure:
            try:
                return float(self.turn()["seconds"]) * 1e6
            except Unavailable as error:
                self.failure = str(error)
                self.close()
        return float("nan")

    def pause(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                stream.close()


def entry(contestant: Contestant, **values: Any) -> dict[str, Any]:
    return {**contestant.as_dict(), **values}


class Comparison:
    """One workload, all contestants."""

    def __init__(self, options: argparse.Namespace, name: str, mode: str, say: Callable[[str], None]) -> None:
        self.options, self.name, self.mode, self.say = options, name, mode, say
        self.missing: list[dict[str, Any]] = []

    def spec(self, contestant: Contestant, folder: str) -> dict[str, Any]:
        return {
            "engine": contestant.engine,
            "precision": contestant.precision,
            "compiled": contestant.compiled,
            "device": contestant.device,
            "workload": self.name,
            "mode": self.mode,
            "small": self.options.smoke,
            "threads": self.options.threads,
            "folder": folder,
            "onnx": self.mode == "infer"
            and any(c.engine in contestants.ONNX_ENGINES for c in self.options.contestants),
        }

    def start(self, contestant: Contestant, folder: str) -> Worker:
        python = sys.executable
        if contestant.peer:
            python = str(contestants.environment(contestant.peer, self.options.install, self.say))
        self.say(f"{self.name} {self.mode}: starting {contestant.name}")
        return Worker(contestant, python, self.spec(contestant, folder), self.options.patience)

    def measure(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            reference = self.start(Contestant("reference", "Reference"), folder)
            what = reference.ready["what"]
            reference.close()
            running: dict[str, Worker] = {}
            for contestant in self.options.contestants:
                try:
                    worker = self.start(contestant, folder)
                except Unavailable as error:
                    self.missing.append(entry(contestant, unavailable=str(error)))
                    continue
                stack.callback(worker.close)
                worker.pause()
                running[contestant.name] = worker
            if not running:
                return {"model": self.name, "mode": self.mode, "what": what, "rows": self.missing, "rounds": 0}
            a_round = sum(w.ready["seconds"] * w.ready["calls"] for w in running.values())
            # Two turns each warm up.
            turns = min(self.options.rounds, max(3, int(self.options.seconds / max(a_round, 1e-9)) - 2))
            if self.options.smoke:
                turns = self.options.rounds
            self.say(f"{self.name} {self.mode}: {turns} rounds of {a_round:.1f} s")
            measured = rounds.run({name: w.burst for name, w in running.items()}, turns, bursts=1)
            rows = [self.row(worker, measured, running) for worker in running.values()]
        return {
            "model": self.name,
            "mode": self.mode,
            "what": what,
            "rounds": turns,
            "noise": measured.noise,
            "load": measured.load,
            "noisy": measured.noisy,
            "rows": rows + self.missing,
        }

    def row(self, worker: Worker, measured: rounds.Rounds, running: dict[str, Worker]) -> dict[str, Any]:
        contestant, ready = worker.contestant, worker.ready
        if worker.failure:
            return entry(contestant, unavailable=worker.failure)
        try:
            last = worker.turn("end")
        except Unavailable:
            last = {}
        others = {
            name: measured.ratio(name, contestant.name).as_dict()
            for name, other in running.items()
            if name != contestant.name and not other.failure
        }
        return entry(
            contestant,
            ms={k: v / 1e3 if k != "rounds" and k != "spread" else v
                for k, v in measured.time(contestant.name).as_dict().items()},
            rounds_ms=[us / 1e3 for us in measured.times[contestant.name]],
            speedup=others,
            error=ready["error"],
            right=ready["error"] <= TOLERANCE[contestant.precision],
            setup_seconds=ready["setup_seconds"],
            calls=ready["calls"],
            versions=ready["versions"],
            **last,
        )  # fmt: skip


def good(workloads: list[dict[str, Any]]) -> bool:
    """Every contestant of ours ran, and rightly."""
    rows = [row for workload in workloads for row in workload["rows"] if row["ours"]]
    return all("unavailable" not in row and row["right"] for row in rows)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields say(text), which shows what is being done: on standard error, as it changes."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet, highlight=False)
    if console.is_terminal and not quiet:
        with console.status("starting") as status:
            yield lambda text: status.update(text)
    else:
        yield lambda text: console.print(text, markup=False)


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for workload in figures["workloads"]:
        ours = [row["name"] for row in workload["rows"] if row["ours"] and "unavailable" not in row]
        title = f"{workload['what']}, {workload['mode']}; {workload['rounds']} rounds"
        table = Table(title=title, title_justify="left")
        for column in ("contestant", "ms", "quartiles", *(f"{name} is faster by" for name in ours), "error"):
            table.add_column(column, justify="left" if column == "contestant" else "right")
        for row in workload["rows"]:
            if "unavailable" in row:
                table.add_row(row["name"], "not available", row["unavailable"])
                continue
            by = {r["name"]: r["speedup"] for r in workload["rows"] if "speedup" in r}
            cells = [times_text(by[name].get(row["name"])) for name in ours]
            error = f"{row['error']:.1e}" + ("" if row["right"] else " [red]wrong")
            spread = f"{row['ms']['low']:.2f} to {row['ms']['high']:.2f}"
            table.add_row(row["name"], f"{row['ms']['median']:.2f}", spread, *cells, error)
        console.print(table)
    if any(workload.get("noisy") for workload in figures["workloads"]):
        console.print("[yellow]The machine was busy: trust the ratios, which compare neighbours in time, more.")


def times_text(ratio: dict[str, Any] | None) -> str:
    return "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", action="append", default=[], help="of Torch-FL: host, host_bf16, opencl, npu_v3, ..."
    )
    parser.add_argument("--model", action="append", help=f"name or pattern; default: all ({', '.join(MODELS)})")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: both")
    parser.add_argument("--peer", action="append", help="name or pattern, 'none' for none; default: all (see --list)")
    parser.add_argument("--way", choices=("eager", "compiled"), action="append", help="of the devices; default: both")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--seconds", type=float, default=180, help="a workload's rounds end about then, after 3 or more"
    )
    parser.add_argument(
        "--patience", type=float, default=900, help="seconds for a contestant to get ready, or for a turn"
    )
    parser.add_argument("--threads", type=int, default=rounds.cores())
    parser.add_argument("--no-install", dest="install", action="store_false", help="install no peers")
    parser.add_argument("--smoke", action="store_true", help="small networks and 3 rounds: says nothing about speed")
    parser.add_argument("--list", action="store_true", help="print models and peers, and run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rounds = min(options.rounds, 3)
    options.models = chosen(parser, options.model, MODELS)
    peers = chosen(parser, options.peer, tuple(p.name for p in contestants.PEERS))
    ways = options.way or ["eager", "compiled"]
    options.contestants = [p for p in contestants.PEERS if p.name in peers]
    for device in options.device:
        options.contestants += [
            c for c in contestants.of_device(device) if ("compiled" if c.compiled else "eager") in ways
        ]
    return options


def chosen(parser: argparse.ArgumentParser, patterns: list[str] | None, known: tuple[str, ...]) -> list[str]:
    if patterns is None:
        return list(known)
    if patterns == ["none"]:
        return []
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            parser.error(f"'{pattern}' names none of: {', '.join(known)}")
    return [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def wanted(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The workloads: model and mode."""
    modes = options.mode or MODES
    return [(name, mode) for name in options.models for mode in MODES
            if mode in modes and not (mode == "train" and name in INFERENCE_ONLY)]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        for name in MODELS:
            print(f"model  {name}: {', '.join(MODES[:1] if name in INFERENCE_ONLY else MODES)}")
        for peer in contestants.PEERS:
            print(f"peer   {peer.name}: {' '.join(contestants.REQUIREMENTS[peer.peer]) if peer.peer else 'torch'}")
        return 0
    if not options.contestants:
        print("nobody takes part: name a --device or a --peer", file=sys.stderr)
        return 2
    workloads: list[dict[str, Any]] = []
    stopped = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress(quiet=False) as say:
        try:
            for name, mode in wanted(options):
                workloads.append(Comparison(options, name, mode, say).measure())
        except Unavailable as error:
            print(f"{name}, {mode}: the reference could not be computed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:  # what was measured until then took long
            print(f"stopped at {name}, {mode}; {len(workloads)} measured before", file=sys.stderr)
            stopped = True
    figures = {
        "machine": rounds.machine(),
        "threads": options.threads,
        "smoke": options.smoke,
        "date": time.strftime("%Y-%m-%d"),
        "workloads": workloads,
        "right": good(workloads),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)
    return 130 if stopped else 0 if figures["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
