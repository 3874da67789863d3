"""Every descriptor in bad/ gives exactly the diagnostics that its first line expects: code, line and column.

# expect: HCD012 7:3, HCD013 parents/wrong.hcd:4:31
"""

import re
from pathlib import Path

import pytest

from torchfl import hcd
from torchfl.hcd.codes import CATALOGUE

HERE = Path(__file__).parent
BAD = sorted(p.name for p in (HERE / "bad").iterdir() if p.is_file())
EXPECTATION = re.compile(r"(HCD\d{3}) (?:(\S+?):)?(\d+):(\d+)")


def expected(name):
    first = (HERE / "bad" / name).read_bytes().split(b"\n", 1)[0].decode()
    assert first.startswith("# expect: ")
    found = [(code, file or name, int(line), int(col)) for code, file, line, col in EXPECTATION.findall(first)]
    assert found and len(found) == first.count("HCD")
    return found


def test_there_are_enough():
    assert len(BAD) >= 45


@pytest.mark.parametrize("name", BAD)
def test_bad(name, monkeypatch):
    monkeypatch.chdir(HERE / "bad")
    found = hcd.validate(name, env={"HOME": "/root"})
    assert sorted((d.code, d.file, d.line, d.col) for d in found) == sorted(expected(name))
    assert any(d.severity == "error" for d in found)
    with pytest.raises(hcd.DescriptorError) as caught:
        hcd.load(name, env={"HOME": "/root"})
    assert caught.value.diagnostics == found


@pytest.mark.parametrize("name", BAD)
def test_rendering_has_the_promised_shape(name, monkeypatch):
    monkeypatch.chdir(HERE / "bad")
    for d in hcd.validate(name, env={}):
        lines = d.render().split("\n")
        where = f"{d.path}: " if d.path else ""
        assert lines[0] == f"{d.file}:{d.line}:{d.col}: {d.severity}[{d.code}]: {where}{d.message}"
        if d.source.strip():
            assert lines[2].strip("\t ").startswith("^")
        assert all(line.startswith(("hint: ", "note: ")) for line in lines[3 if d.source.strip() else 1 :])
        assert "\x1b" not in d.render() and "\x00" not in d.render()


def test_every_code_is_exercised():
    """By a file of bad/, or by a test that names it: no code without an example."""
    used = {code for name in BAD for code, *_ in expected(name)}
    tests = "".join(p.read_text() for p in HERE.glob("test_*.py"))
    assert [c for c in CATALOGUE if c not in used and f'"{c}"' not in tests] == []
