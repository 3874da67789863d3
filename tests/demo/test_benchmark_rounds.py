"""The statistics of benchmarks/rounds.py. No test here depends on how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def test_summary_is_median_and_quartiles(rounds: ModuleType) -> None:
    out = rounds.summary([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (out.low, out.median, out.high, out.rounds) == (2.0, 3.0, 4.0, 5)
    assert out.spread == pytest.approx(2 / 3)
    assert out.as_dict()["median"] == 3.0


def test_summary_of_one_value_has_no_spread(rounds: ModuleType) -> None:
    assert rounds.summary([2.0]).spread == 0


def test_summary_of_nothing_is_an_error(rounds: ModuleType) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        rounds.summary([])


def test_a_difference_near_zero_has_no_relative_spread(rounds: ModuleType) -> None:
    assert rounds.summary([0.0, 0.0]).spread == float("inf")


def test_comparisons_are_made_within_a_round(rounds: ModuleType) -> None:
    """A machine that slows down by half between two rounds does not change what is compared."""
    out = rounds.Rounds({"a": [1.0, 2.0, 4.0], "b": [2.0, 4.0, 8.0]}, [1.0, 2.0, 4.0])
    assert (out.ratio("a", "b").low, out.ratio("a", "b").median, out.ratio("a", "b").high) == (0.5, 0.5, 0.5)
    assert out.difference("b", "a").median == 2.0
    assert out.time("a").median == 2.0


def test_noise_is_seen_in_the_fixed_work(rounds: ModuleType) -> None:
    assert rounds.Rounds({}, [1.0, 1.5, 2.0, 2.5]).noisy
    assert not rounds.Rounds({}, [1.0, 1.01, 1.0, 1.02]).noisy


def test_others_that_want_the_cores_are_noise_too(rounds: ModuleType) -> None:
    quiet = [1.0, 1.0, 1.0]
    assert rounds.Rounds({}, quiet, load=1.5).noisy
    assert not rounds.Rounds({}, quiet, load=0.1).noisy


def test_every_variant_is_measured_once_a_round_after_a_warm_up(rounds: ModuleType) -> None:
    order: list[str] = []

    def variant(name: str, value: float):
        def measure() -> float:
            order.append(name)
            return value

        return measure

    out = rounds.run({"a": variant("a", 1.0), "b": variant("b", 2.0), "c": variant("c", 3.0)}, 4, bursts=1)
    assert order[:6] == ["a", "a", "b", "b", "c", "c"]
    turns = [tuple(order[6 + 3 * i : 9 + 3 * i]) for i in range(4)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 2, "the order changes"
    assert out.times == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0] * 4}
    assert len(out.calibration) == 4


def test_the_best_burst_of_a_round_counts(rounds: ModuleType) -> None:
    times = iter([9.0, 9.0, 5.0, 3.0, 4.0, 2.0, 8.0, 6.0])
    assert rounds.run({"a": lambda: next(times)}, 2, bursts=3).times == {"a": [3.0, 2.0]}


def test_the_machine_is_named(rounds: ModuleType) -> None:
    facts = rounds.machine()
    assert facts["processor"] and facts["cores"] >= 1


@pytest.mark.slow
def test_the_dispatch_benchmark_prints_one_json_object() -> None:
    """Compiles the handwritten kernel (about a minute, once), then a few short rounds. Says nothing about speed."""
    torch = pytest.importorskip("torch")
    from torchfl._paths import shipped_chips
    from torchfl.errors import LoadError

    try:
        chips = shipped_chips()
    except LoadError as error:
        pytest.skip(str(error))
    if "npu_v3" not in chips:
        pytest.skip("npu_v3 is not built")
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "dispatch.py"
    command = [sys.executable, str(script), "--json", "--rounds", "3", "--calls", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {*figures["limits"], "latency_us", "many_shapes"} <= figures.keys()
    assert {"native_over_cpu", "composed_gelu_over_native_add", "first_trace_ms"} <= figures["limits"].keys()
    assert figures["traces_next_process"] == 0
    assert figures["many_shapes"]["traces"] == 0 and figures["many_shapes"]["most_plans"] <= 4096
    assert isinstance(figures["noisy"], bool)
    assert figures["machine"]["torch"] == torch.__version__
    assert all(value["rounds"] == 3 and value["median"] > 0 for value in figures["times_us"].values())
