"""How problems are told: the text, the JSON, the catalogue and the page made from it."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchfl import hcd
from torchfl.hcd import diagnostics
from torchfl.hcd.codes import CATALOGUE, GROUPS
from torchfl.hcd.diagnostics import MAX_DIAGNOSTICS, Diagnostic, did_you_mean

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BASE = "hcd: 1\nchip: {name: A, vendor: B, device_type: c}\ntensor: {supported_dtypes: [float16]}\n"

GOLDEN = """\
child.hcd:4:3: error[HCD011]: memory.on_chip_cahce: unknown key
  on_chip_cahce: {size: 8 MiB}
  ^~~~~~~~~~~~~
hint: did you mean 'on_chip_cache'?
child.hcd:5:30: error[HCD022]: compute_units.fp16.peak: '-25.6 TFLOP/s' is not positive
compute_units: {fp16: {peak: -25.6 TFLOP/s}}
                             ^~~~~~~~~~~~~
hint: leave the key out if the value is unknown
base.hcd:4:39: error[HCD056]: constraints.memory_alignment_bytes: 100 is not a power of two
constraints: {memory_alignment_bytes: 100}
                                      ^~~
hint: the nearest are 64 and 128
note: child.hcd:2:1: inherited by this file"""


def test_golden_text(write, monkeypatch):
    path = write(
        "hcd: 1\nextends: base.hcd\nmemory:\n  on_chip_cahce: {size: 8 MiB}\n"
        "compute_units: {fp16: {peak: -25.6 TFLOP/s}}\n",
        "child.hcd",
    )
    write(BASE + "constraints: {memory_alignment_bytes: 100}\n", "base.hcd")
    monkeypatch.chdir(path.parent)
    found = hcd.validate("child.hcd")
    assert "\n".join(map(str, found)) == GOLDEN
    with pytest.raises(hcd.DescriptorError) as caught:
        hcd.load("child.hcd")
    assert str(caught.value) == GOLDEN
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.diagnostics == found


def test_json(write):
    path = write(BASE + "memroy: {}\n")
    (found,) = hcd.validate(path)
    assert json.loads(json.dumps(found.to_json())) == {
        "code": "HCD011",
        "title": "unknown key",
        "severity": "error",
        "file": str(path),
        "line": 4,
        "col": 1,
        "path": "memroy",
        "message": "unknown key",
        "hint": "did you mean 'memory'?",
        "source": "memroy: {}",
        "notes": [],
    }


def test_the_caret_stands_under_wide_characters_and_tabs():
    wide = Diagnostic("HCD011", "error", "a", 1, 4, "", "m", source="\u82af\u7247: x", width=1)
    assert wide.render().split("\n")[2] == "     ^"
    tab = Diagnostic("HCD011", "error", "a", 1, 2, "", "m", source="\tkey: x", width=3)
    assert tab.render().split("\n")[2] == "\t^~~"


def test_a_long_line_is_cut_around_the_caret():
    source = "x" * 1000 + "KEY" + "y" * 1000
    text, caret = Diagnostic("HCD011", "error", "a", 1, 1001, "", "m", source=source, width=3).render().split("\n")[1:]
    assert len(text) < 200 and text[caret.index("^") :].startswith("KEY")


def test_control_sequences_do_not_reach_the_terminal(write):
    path = write(BASE.encode() + b'"\\e[31mred\\u202e": 1\n')
    (found,) = hcd.validate(path)
    assert found.code == "HCD011"
    assert "\x1b" not in found.render() and "\u202e" not in found.render()
    raw = write(BASE.encode() + "\u202ered: 1\n".encode(), "raw.hcd")
    assert "\u202e" not in hcd.validate(raw)[0].render()


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing.hcd", tmp_path, "\0", ""):
        (found,) = hcd.validate(path)
        assert (found.code, found.line, found.col) == ("HCD001", 1, 1)
        with pytest.raises(hcd.DescriptorError):
            hcd.load(path)


def test_a_file_that_is_too_large(write):
    (found,) = hcd.validate(write(BASE + "#" * (1 << 20)))
    assert found.code == "HCD004"


def test_problems_without_end_are_cut(write):
    path = write(BASE + "instructions: [" + ", ".join(["1"] * 1000) + "]\n")
    found = hcd.validate(path)
    assert len(found) == MAX_DIAGNOSTICS + 1 and sum(d.code == "HCD009" for d in found) == 1


def test_did_you_mean():
    assert did_you_mean("kernal", ["kernel", "paths"]) == "did you mean 'kernel'?"
    assert did_you_mean("KERNEL", ["kernel", "paths"]) == "did you mean 'kernel'?"
    assert did_you_mean("zzz", ["a", "b"]) == "allowed: a, b"
    assert did_you_mean("zzz", [str(i) for i in range(100)]) is None


def test_all_problems_come_in_one_pass(write):
    path = write(
        "hcd: 1\nchip: {name: A, vendor: 7, device_type: c}\ntensor: {supported_dtypes: [float16], max_rank: 0}\n"
        "memory: {on_chip_cache: {size: 8}}\nconstraints: {memory_alignment_bytes: 3}\n"
        "ops:\n  - {op: aten::conv2d, kernel: k, where: {strid: 1}}\n"
    )
    assert [(d.code, d.line) for d in hcd.validate(path)] == [
        ("HCD013", 2),
        ("HCD015", 3),
        ("HCD020", 4),
        ("HCD056", 5),
        ("HCD063", 7),
    ]


def test_the_catalogue():
    for code, entry in CATALOGUE.items():
        assert re.fullmatch(r"HCD\d{3}", code) and any(code.startswith(p) for p in GROUPS)
        assert entry.title and entry.explanation.endswith(".")
    assert list(CATALOGUE) == sorted(CATALOGUE)


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "diagnostics.md").read_text()
    assert page == diagnostics.markdown(), "run: python -m torchfl.hcd.diagnostics > docs/diagnostics.md"


def test_the_command_that_makes_the_page():
    done = subprocess.run(
        [sys.executable, "-m", "torchfl.hcd.diagnostics"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == diagnostics.markdown() and done.stderr == ""
