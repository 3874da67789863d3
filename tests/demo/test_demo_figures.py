"""From counters to the report and its page, on made-up measurements: no device, no torch."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from torchfl import pages
from torchfl.demo import figures, page
from torchfl.demo.watch import Counts, Crossing, Step

ADD = ("aten::add.Tensor", "native", "npu_v3_add", "")
MUL = ("aten::mul_.Tensor", "native", "npu_v3_mul", "")
SORT = ("aten::sort", "cpu", "cpu", "npu_v3 has no kernel for aten::sort")
HISTORY = {
    "steps": [1, 10, 20],
    "losses": [2.3, 0.9, 0.6],
    "device": "npu_v3:0",
    "amp": "float16",
    "epochs": 2,
    "batch_size": 64,
    "seed": 0,
    "train_images": 640,
    "test_images": 100,
    "parameters": 23_500_000,
    "train_seconds": 4.0,
    "images_per_second": 320.0,
    "test_accuracy": 0.98,
}
MACHINE = {"chip": "NPU-V3", "script": "examples/resnet50_digits.py", "host": "<b>a & b</b>"}


def transfers(to_device: int = 2, to_host: int = 1, to_host_bytes: int = 4) -> dict[str, int]:
    return {
        "to_device_copies": to_device,
        "to_device_bytes": 16896,
        "to_host_copies": to_host,
        "to_host_bytes": to_host_bytes,
    }


def step(index: int, kind: str = "plain", cpu: int = 0, crossings: list[Crossing] | None = None, **moved: int) -> Step:
    calls = {ADD: 30, MUL: 10} | ({SORT: cpu} if cpu else {})
    spent = 0.001 if kind == "timed" else 0.0
    counts = Counts(calls, dict.fromkeys(calls, spent), dict.fromkeys(calls, 0) | {SORT: 64}, transfers(**moved))
    return Step(index, kind, 0.2, counts, crossings or [])


def audited(index: int, extra: int = 0) -> Step:
    found = [
        Crossing("batch", "to device", "aten::_to_copy", 16384, 1, "script.py:8", "images = images.to(device)"),
        Crossing("batch", "to device", "aten::_to_copy", 512, 1, "script.py:9", "labels = labels.to(device)"),
        Crossing("scalar", "to host", "aten::_local_scalar_dense", 4, 1, "script.py:12", "scaler.step(optimizer)"),
    ]
    found += [Crossing("other", "to host", "aten::sort", 64, 1, "script.py:13", "x.sort()")] * extra
    return step(index, "audited", crossings=found)


def report(steps: list[Step], history: dict[str, Any] = HISTORY) -> dict[str, Any]:
    return figures.summarise(steps, figures.total(steps), history, 6.5, MACHINE)


def clean_run() -> list[Step]:
    return [audited(i) if i == 14 else step(i, "timed" if i in (15, 16) else "plain") for i in range(2, 21)]


def test_a_clean_run_has_no_fallback_and_no_extra_copy() -> None:
    out = report(clean_run())
    assert out["test_accuracy"] == 0.98
    assert out["steady_step_cpu_fallbacks"] == 0
    assert out["steady_step_host_copies"] == 0
    assert out["seconds"] == 6.5
    assert out["images_per_second"] == pytest.approx(64 / 0.2)
    assert out["fallbacks"] == []
    assert json.loads(json.dumps(out)) == out


def test_what_happens_in_the_warm_up_does_not_count() -> None:
    steps = clean_run()
    steps[0] = step(2, cpu=5, to_device=300, to_host=7, to_host_bytes=4000)
    out = report(steps)
    assert (out["steady_step_cpu_fallbacks"], out["steady_step_host_copies"]) == (0, 0)
    assert out["fallbacks"] == [{"op": SORT[0], "reason": SORT[3], "calls": 5, "host_bytes": 64}]


def test_the_worst_steady_step_counts() -> None:
    steps = clean_run()
    steps[-1] = step(20, cpu=2)
    steps[-2] = step(19, to_device=5)
    out = report(steps)
    assert (out["steady_step_cpu_fallbacks"], out["steady_step_host_copies"]) == (2, 3)


def test_a_tensor_that_goes_to_the_host_is_no_number() -> None:
    steps = clean_run()
    steps[-1] = step(20, to_host=2, to_host_bytes=4096)
    assert report(steps)["steady_step_host_copies"] == 2


def test_numbers_that_the_script_reads_are_free() -> None:
    steps = clean_run()
    steps[-1] = step(20, to_host=3, to_host_bytes=16)
    assert report(steps)["steady_step_host_copies"] == 0


def test_an_audited_step_counts_exactly() -> None:
    steps = clean_run()
    steps[12] = audited(14, extra=2)
    assert report(steps)["steady_step_host_copies"] == 2


def test_time_by_operator_joins_forms_and_paths_stay_apart() -> None:
    timed = figures.total([step(5, "timed", cpu=1), step(6, "timed", cpu=1)])
    rows = figures.by_operator(timed, 2)
    assert {(row["op"], row["path"]) for row in rows} == {("add", "native"), ("mul", "native"), ("sort", "cpu")}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert next(row for row in rows if row["op"] == "mul")["ms"] == pytest.approx(1.0)
    assert next(row for row in rows if row["op"] == "mul")["calls"] == 10


def test_shares_by_path() -> None:
    rows = figures.by_path(figures.total([step(2, cpu=10)]), Counts())
    assert [(row["path"], row["calls"]) for row in rows] == [("native", 40), ("cpu", 10)]
    assert rows[0]["calls_share"] == pytest.approx(0.8)
    assert rows[0]["seconds_share"] == 0


def test_a_very_short_run_still_has_a_report() -> None:
    history = HISTORY | {"steps": [1], "losses": [2.3], "epochs": 1}
    for steps in ([], [step(2)], [step(2), step(3)]):
        out = report(steps, history)
        assert out["steady_step_cpu_fallbacks"] == 0
        assert "too short" in page.render(out)


def test_counters_that_did_not_grow_are_left_out() -> None:
    before = Counts({ADD: 3, SORT: 1}, {ADD: 1.0, SORT: 0.5}, {ADD: 0, SORT: 8}, transfers())
    after = Counts({ADD: 5, SORT: 1}, {ADD: 1.5, SORT: 0.5}, {ADD: 0, SORT: 8}, transfers(to_device=4))
    grown = after - before
    assert grown.calls == {ADD: 2}
    assert grown.seconds == {ADD: 0.5}
    assert grown.transfers["to_device_copies"] == 2
    assert grown.calls_on("cpu") == 0


class WellFormed(HTMLParser):
    """Fails on tags that are not closed in order."""

    VOID = {"meta", "br", "hr", "img", "input", "link"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        # Table rows and list items may stay open in HTML, but ours do not.
        assert self.open and self.open[-1] == tag, f"</{tag}> closes <{self.open[-1] if self.open else ''}>"
        self.open.pop()


@pytest.mark.parametrize("with_fallbacks", [False, True])
def test_the_page_is_whole_and_fetches_nothing(with_fallbacks: bool) -> None:
    steps = clean_run()
    if with_fallbacks:
        steps[-1] = step(20, cpu=2)
    html = page.render(report(steps))
    parser = WellFormed()
    parser.feed(html)
    assert parser.open == []
    assert parser.links == []
    assert "script" not in parser.seen
    assert "98.0%" in html
    assert ("None. Every operator" in html) != with_fallbacks
    assert (SORT[3] in html) == with_fallbacks
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in html, "values are text, not markup"
    for number in re.findall(r'(?:\bx|y|width|height|cx|cy)="([^"]*)"', html):
        assert re.fullmatch(r"\d+(\.\d+)?", number), number


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3, 3, [3]), (1, 176, [50, 100, 150])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert page.ticks(low, high) == expected


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (1, "100%"), (0.00001, "<0.1%"), (0.99999, ">99.9%"), (0.123, "12.3%")]
)
def test_percentages_never_hide_something(share: float, text: str) -> None:
    assert pages.percent(share) == text


def test_sizes() -> None:
    assert [pages.size(n) for n in (8, 2048, 3 << 20, 5 << 30)] == ["8 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
