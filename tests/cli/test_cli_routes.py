"""`torchfl explain script.py`: the routes of a whole run, whatever ends it."""

import re

import pytest

SCRIPT = """
import sys
import torch
import torch.nn.functional as F

print("argv", sys.argv[1:], __name__)
x = torch.linspace(-1, 1, 16).view(4, 4).to("npu_v3:0")
for _ in range(5):
    y = F.mish(x @ x + x)
torch.linalg.eigvals(x)
y.t().contiguous()
print("sum", round(y.sum().item(), 3))
y.cpu()
END
"""


@pytest.fixture
def script(tmp_path):
    def write(end=""):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.replace("END", end))
        return path

    return write


def row(report, op, path):
    (found,) = [r for r in report["rows"] if r["op"].partition(".")[0] == op and r["path"] == path]
    return found


def test_the_routes_of_a_run(torchfl, script, tmp_path):
    page = tmp_path / "routes.html"
    result = torchfl("explain", "--chip", "npu_v3", "--html", page, script(), "--device", "x", "--json")
    assert result.code == 0, result.err
    assert "argv ['--device', 'x', '--json'] __main__" in result.out, "what follows the script is the script's"
    table = result.out.split("Routes of ")[1]
    for text in (
        "aten::mm",
        "aten::mish",
        "program",
        "aten::_linalg_eigvals",
        "has no kernel for",
        "device to host",
        "time",
    ):
        assert text in table, text
    for path in ("native", "composed", "cpu", "transfer"):
        assert re.search(rf"^{path}: +[\d,]+ calls? \([\d.<>]+%\), [\d.]+ ms", table, re.M), path
    html = page.read_text()
    assert html.startswith("<!doctype html>") and "prefers-color-scheme: dark" in html
    assert "aten::_linalg_eigvals" in html and "<svg" in html
    assert "http" not in html and "<script" not in html


def test_json_is_one_object_with_the_figures(torchfl, script):
    result = torchfl("explain", "-c", "npu_v3", "--json", script())
    report = result.json()
    assert "sum" in result.err and "argv []" in result.err, "the script's own output goes elsewhere"
    assert report["status"] == result.code == 0 and report["chips"] == ["NPU-V3"]
    assert row(report, "aten::mm", "native")["calls"] == 5
    assert row(report, "aten::mish", "composed")["calls"] == 5
    assert row(report, "aten::_linalg_eigvals", "cpu")["reason"]
    assert row(report, "aten::copy_", "native")["target"] == "copy_nd"
    item = row(report, "aten::_local_scalar_dense", "transfer")
    assert item["target"] == "device to host" and item["host_bytes"] == 4
    assert {
        r["target"]: r["host_bytes"] for r in report["rows"] if r["op"] == "aten::copy_" and r["path"] == "transfer"
    } == {
        "host to device": 64,
        "device to host": 64,
    }
    for key in ("calls", "seconds", "host_bytes"):
        assert sum(r[key] for r in report["rows"]) == pytest.approx(report[key])
        assert sum(p[key] for p in report["paths"]) == pytest.approx(report[key])
    for key in ("calls_share", "seconds_share"):
        assert sum(r[key] for r in report["rows"]) == pytest.approx(1)
        assert sum(p[key] for p in report["paths"]) == pytest.approx(1)
    times = [r["seconds"] for r in report["rows"]]
    assert times == sorted(times, reverse=True) and times[0] > 0
    assert report["wall_seconds"] > report["seconds"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no more')", 1, "no more"),
        ("import torchfl; torchfl.reset_stats()", 0, ""),
    ],
)
def test_whatever_ends_the_script_the_routes_are_printed(torchfl, script, end, code, said):
    result = torchfl("explain", "--chip", "npu_v3", script(end))
    assert result.code == code
    assert said in result.err
    assert ("train.py" in result.err) == (code == 1 and "wrong" in said), "the traceback is the script's"
    assert "aten::mm" in result.out.split("Routes of ")[1]


def test_a_script_that_uses_no_device(torchfl, tmp_path):
    (tmp_path / "plain").write_text("print(1 + 1)")
    result = torchfl("explain", "--chip", "npu_v3", "--html", "page.html", "plain")
    assert result.code == 0 and "No operator" in result.out
    assert "No operator" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["nosuch.py"], "nosuch.py: there is no such file"),
        (["--dtype", "float16", "x.py"], "a script's own options follow its name"),
        (["--html", "no/such/page.html", "x.py"], "there is no such folder"),
        (["-d", "npu_v3", "add", "more"], "is for a script"),
        (["--html", "page.html", "-d", "npu_v3", "add"], "is for a script"),
        (["add"], "name the device"),
    ],
)
def test_wrong_usage(cli, tmp_path, monkeypatch, args, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    result = cli("explain", *args)
    assert result.code == 2 and text in " ".join(result.err.replace("│", " ").split())


def test_an_option_behind_the_script_is_told_of(torchfl, script):
    result = torchfl("explain", "--chip", "npu_v3", script(), "--html=x.html", "--json", "--epochs", "1")
    assert result.code == 0, result.err
    (line,) = [line for line in result.err.splitlines() if line.startswith("note: ")]
    assert "--html, --json behind" in line and "went to the script" in line
    assert "note: " not in torchfl("explain", "--chip", "npu_v3", script(), "--epochs", "1").err


def test_the_routes_come_after_the_scripts_threads(torchfl, script):
    end = """
import threading, time, concurrent.futures

def later(again=True):
    time.sleep(0.5)
    torch.ones(3, device="npu_v3:0").exp()
    print("a thread has ended")
    if again:
        threading.Thread(target=later, args=(False,)).start()

pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(later, False)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=later).start()
sys.exit(3)
"""
    result = torchfl("explain", "--chip", "npu_v3", script(end))
    assert result.code == 3
    said, table = result.out.split("Routes of ")
    assert said.count("a thread has ended") == 3
    assert re.search(r"aten::exp.* 3 ", table)
