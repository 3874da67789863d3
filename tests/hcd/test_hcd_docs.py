"""What docs/descriptor.md shows is true: its descriptors load, its lists are those of the model."""

import re
from pathlib import Path

import pytest

from torchfl import hcd
from torchfl.hcd import model, opnames, reader, terms, units

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "descriptor.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.M | re.S)
MINIMAL, FULL, CHILD = (text for language, text in BLOCKS if language == "yaml")


def test_minimal(write):
    assert hcd.load(write(MINIMAL)).warnings == []


def test_full_and_child(write):
    full = hcd.load(write(FULL, "npu_v3.hcd"), env={})
    assert full.warnings == []
    assert {r["kernel"] for r in full.lower()["ops"]} >= {"npu_v3_add", "npu_v3_sub", "npu_v3_mul", "npu_v3_nll"}
    text = CHILD.replace("int8: null", "uint8: {}")  # the parent lists int8, which needs a unit
    child = hcd.load(write(text, "npu_v3b.hcd"), env={})
    ops = {op.op: op for op in child.model.ops}
    assert ops["aten::add"].dtypes == {"*": ["float16"]} and "aten::nll_loss" not in ops


def test_the_python_snippet(write, monkeypatch, capsys):
    monkeypatch.chdir(write(MINIMAL.replace("vendor", "vendr"), "mychip.hcd").parent)
    (code,) = (text for language, text in BLOCKS if language == "python")
    exec(compile(code, "descriptor.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "mychip.hcd:2:20: error[HCD011]: chip.vendr: unknown key\n" in printed
    assert "hint: did you mean 'vendor'?" in printed


@pytest.mark.parametrize("section", [n for n in reader._names(model.Hcd) if n != "hcd"])
def test_every_key_is_on_the_page(section):
    assert f"| `{section}` |" in PAGE
    for name in reader._names_at((section,)) or []:
        assert re.search(rf"\b{name}\b", PAGE), f"{section}.{name}"


@pytest.mark.parametrize(
    "cls",
    [
        model.ComputeUnit,
        model.Attention,
        model.OffChipMemory,
        model.Autocast,
        model.Cost,
        model.Op,
        model.Fusion,
        model.Predicate,
        model.Budget,
    ],
)
def test_every_inner_key_is_on_the_page(cls):
    for name in reader._names(cls):
        assert re.search(rf"\b{name}\b", PAGE), name


def test_every_term_is_on_the_page():
    for word in (*terms.DTYPES, *terms.UNIT_DTYPE, *opnames.DERIVED):
        assert re.search(rf"\b{word}\b", PAGE), word
    shown = set(re.findall(r"[A-Za-z/]+", " ".join(re.findall(r"`([^`]+)`", PAGE.split("## Quantities")[1]))))
    for name in units.UNITS:
        plain = re.sub(r"^[kMGTPE](?=(FLOP|OP|MAC))", "", name)
        bare = plain if "bit" in plain else plain.removesuffix("/s") if plain.endswith("B/s") else plain
        if name.isascii():
            assert bare in shown, name
