"""`torchfl memory`: a script's run or a snapshot as text, as one object, and as a page."""

import json
import pickle
import xml.etree.ElementTree as ET

import pytest
from cli_support import process

from torchfl.pages import memory as page

MIB = 2**20

SCRIPT = """
import sys, torch
def first():
    return torch.ones(4, 1024, 1024, dtype=torch.uint8, device="npu_v3:0")
def second():
    return torch.ones(2, 1024, 1024, dtype=torch.uint8, device="npu_v3:0")
a = first()
b = [second() for _ in range(3)]
del b
print("says", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


def frame(name, line=1, file="/home/me/train.py"):
    return {"filename": file, "line": line, "name": name}


def event(action, at, address, size, *frames):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": list(frames)}


def segment(address, size, *blocks):
    rows = [
        {"address": a, "size": s, "requested_size": s, "state": state, "frames": frames}
        for a, s, state, frames in blocks
    ]
    held = sum(row["size"] for row in rows if row["state"] == "active_allocated")
    return {"device": 0, "address": address, "total_size": size, "allocated_size": held, "stream": 0, "blocks": rows}


# ------------------------------------------------------------------------------------------ the report


def test_the_peak_is_found_with_what_was_held_then():
    trace = [
        event("segment_alloc", 0, 1000, 100),
        event("alloc", 1, 1000, 30, frame("f"), frame("main", 9)),
        event("alloc", 2_000_001, 1030, 50, frame("g", 2)),
        event("free_requested", 3_000_000, 1000, 30),
        event("free_completed", 3_000_000, 1000, 30),
        event("alloc", 4_000_000, 1000, 20, frame("g", 2)),
        event("free_requested", 5_000_000, 1030, 50),
    ]
    of = page.of_device(trace, [segment(1000, 100, (1000, 20, "active_allocated", [frame("g", 2)]))])
    assert (of["peak"]["allocated"], of["peak"]["reserved"], of["peak"]["block_count"]) == (80, 100, 2)
    assert of["peak"]["seconds"] == pytest.approx(2.000001)
    assert of["peak"]["places"] == [
        {"place": "/home/me/train.py:2 in g", "bytes": 50, "blocks": 1},
        {"place": "/home/me/train.py:1 in f", "bytes": 30, "blocks": 1},
    ]
    big = of["peak"]["blocks"][0]
    assert (big["size"], big["since"], big["until"]) == (50, pytest.approx(2.000001), 5.0)
    assert of["peak"]["blocks"][1]["stack"] == ["/home/me/train.py:1 in f", "/home/me/train.py:9 in main"]
    assert of["peak"]["segments"] == [
        {
            "address": 1000,
            "size": 100,
            "blocks": [
                {"offset": 0, "size": 30, "place": "/home/me/train.py:1 in f"},
                {"offset": 30, "size": 50, "place": "/home/me/train.py:2 in g"},
            ],
        }
    ]
    assert (of["allocated"], of["reserved"], of["blocks_held"]) == (20, 100, 1)
    assert of["events"] == {"segment_alloc": 1, "alloc": 3, "free_requested": 2, "free_completed": 1}
    # Each moment's places come to what is allocated.
    assert all(sum(point["by_place"]) == point["allocated"] for point in of["timeline"])
    assert max(point["allocated"] for point in of["timeline"]) == 80


def test_what_was_held_before_the_first_event_is_counted():
    trace = [
        event("free_requested", 10, 1000, 40),
        event("alloc", 20, 1000, 10, frame("f")),
        event("segment_free", 30, 5000, 64),
    ]
    of = page.of_device(
        trace,
        [segment(1000, 100, (1000, 10, "active_allocated", [frame("f")]), (1040, 25, "active_allocated", []))],
    )
    assert of["peak"]["allocated"] == 65
    assert of["peak"]["reserved"] == 164
    assert of["peak"]["places"][0] == {"place": page.BEFORE, "bytes": 65, "blocks": 2}
    assert of["timeline"][0]["allocated"] == 65
    assert of["timeline"][-1]["allocated"] == 35


def test_places_are_in_the_users_code():
    torch_file = "/x/site-packages/torch/nn/modules/linear.py"
    assert page.place_of([frame("forward", 5, torch_file), frame("step", 7)]) == "/home/me/train.py:7 in step"
    assert page.place_of([frame("forward", 5, torch_file)]) == f"{torch_file}:5 in forward"
    assert page.place_of([frame("AddmmBackward0", 0, "<autograd>")]) == "backward: AddmmBackward0"
    native = [frame("malloc", 0, "??"), frame("allocate", 3, "/src/allocator.cpp")]
    assert page.place_of([*native, frame("step", 7)]) == "/home/me/train.py:7 in step"
    assert page.place_of([*native, frame("<module>", 1, "<stdin>")]) == "<stdin>:1 in <module>"
    assert page.place_of([]) == page.UNKNOWN


def test_a_long_trace_is_drawn_in_few_points_and_keeps_its_peak():
    trace = []
    for i in range(20_000):
        trace.append(event("alloc", 2 * i, 512 * i, 512, frame("f")))
        if i != 12_345:
            trace.append(event("free_requested", 2 * i + 1, 512 * i, 512))
    of = page.of_device(trace, [])
    assert len(of["timeline"]) <= page.COLUMNS + 2
    assert max(p["allocated"] for p in of["timeline"]) == of["peak"]["allocated"] == 1024


def svg_of(html):
    begin = html.index("<svg viewBox")
    return ET.fromstring(html[begin : html.index("</svg>", begin) + 6])


def test_the_page_draws_what_the_report_says_and_escapes_it():
    trace = [
        event("segment_alloc", 0, 0, 8 * MIB),
        event("alloc", 10, 0, 2 * MIB, frame("<evil>&")),
        event("alloc", 1_000_000, 2 * MIB, 4 * MIB, frame("g", 3)),
        {**event("oom", 2_000_000, 0, 1 << 33, frame("h")), "device_free": 5 * MIB},
    ]
    whole = {"source": "<b>.py", "status": 0, "ended": "It ended well.", "devices": []}
    whole["devices"] = page.report({"segments": [], "device_traces": [trace], "device_names": ["npu_v3:0"]})
    html = page.render(whole)
    assert "<evil>" not in html
    assert "<b>.py" not in html
    assert "npu_v3:0" in html
    assert "http" not in html.replace("http-equiv", "")
    assert "<script" not in html
    chart = svg_of(html)
    paths = [e for e in chart.iter() if e.tag.endswith("path")]
    assert [p.get("class") for p in paths] == ["held", "m0", "m1"]
    texts = [e.text for e in chart.iter() if e.tag.endswith("text")]
    assert "peak 6.0 MiB" in texts
    assert "8.0 MiB" in texts
    assert len([e for e in chart.iter() if e.get("class") == "oom"]) == 1
    for path in paths:
        numbers = [tuple(map(float, p.split(","))) for p in path.get("d").strip("MZ").split("L")]
        assert all(0 <= x <= 1060 and 0 <= y <= 300 for x, y in numbers)


def test_a_page_without_events_or_devices_says_so():
    held = segment(0, 100, (0, 60, "active_allocated", [frame("f")]))
    whole = {"source": "s.pickle", "status": 0, "ended": "", "devices": []}
    assert "No device of Torch-FL held memory." in page.render(whole)
    whole["devices"] = page.report({"segments": [held], "device_traces": [[]]})
    assert "No events were recorded" in page.render(whole)


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    (folder / "script.py").write_text(SCRIPT)
    args = ("memory", "--chip", "npu_v3", "--snapshot", "kept.pickle", "script.py", "3", "--json")
    return folder, process(*args, cwd=folder)


def test_a_script_runs_and_its_peak_is_told(ran):
    folder, result = ran
    assert result.code == 3
    assert "says ['3', '--json']" in result.out
    assert "npu_v3:0: peak 10.0 MiB in 4 blocks after " in result.out
    assert "in second" in result.out
    assert "script.py:6 in second" in result.out.replace("\n", "")
    html = (folder / "script.memory.html").read_text()
    assert "It ended with status 3." in html
    assert "script.py:4 in first" in html
    assert "wrote script.memory.html" in result.err


def test_the_snapshot_of_a_script_gives_the_same(ran, tmp_path):
    folder, _ = ran
    result = process("memory", "--json", folder / "kept.pickle", cwd=tmp_path)
    assert result.code == 0, result.err
    [device] = result.json()["devices"]
    assert device["device"] == "npu_v3:0"
    assert device["peak"]["allocated"] == 10 * MIB
    assert {row["place"].rpartition(" in ")[2]: row["bytes"] for row in device["peak"]["places"]} == {
        "second": 6 * MIB,
        "first": 4 * MIB,
    }
    assert device["events"]["alloc"] == 4
    assert not list(tmp_path.iterdir())


class Harmful:
    def __reduce__(self):
        return (print, ("code ran",))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (pickle.dumps(Harmful()), "it wants builtins.print, and a snapshot is plain data"),
        (pickle.dumps([1, 2]), "it has no `segments` and `device_traces`"),
        (b"no pickle", "no snapshot of memory"),
    ],
    ids=["code", "other", "none"],
)
def test_a_file_that_is_no_snapshot_is_refused(tmp_path, content, text):
    (tmp_path / "bad.pickle").write_bytes(content)
    result = process("memory", "bad.pickle", cwd=tmp_path)
    assert result.code == 1
    assert text in result.err
    assert "code ran" not in result.out


def test_wrong_usage_is_said(tmp_path):
    assert process("memory", "absent.py", cwd=tmp_path).code == 2
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    result = process("memory", "--chip", "npu_v3", "s.pickle", cwd=tmp_path)
    assert result.code == 2
    assert "is a snapshot" in result.err
    result = process("memory", "--html", "no/such/page.html", "s.pickle", cwd=tmp_path)
    assert result.code == 2
    assert "there is no such folder" in result.err


def test_json_of_a_script_is_alone_on_stdout(tmp_path):
    (tmp_path / "s.py").write_text(SCRIPT)
    result = process("memory", "--json", "-c", "npu_v3", "s.py", "0", cwd=tmp_path)
    assert result.code == 0, result.err
    assert json.loads(result.out)["devices"][0]["peak"]["allocated"] == 10 * MIB
    assert "says ['0']" in result.err
    assert not (tmp_path / "s.memory.html").exists()
