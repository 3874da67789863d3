"""validate, show, schema: without torch, at once, and what is shown can be read again."""

import json
import os
import resource
import subprocess
import sys

import pytest
from cli_support import BAD, CHIPS, GOOD, ROOT

from torchfl import hcd
from torchfl.cli.show import quantity
from torchfl.hcd import units

V3 = CHIPS / "npu_v3" / "npu_v3.yaml"
GOODS = [V3, CHIPS / "npu_v2" / "npu_v2.yaml", *sorted(p for p in GOOD.iterdir() if p.is_file())]


# ---------------------------------------------------------------------------------------------- validate


def test_a_good_file(cli):
    result = cli("validate", V3)
    assert (result.code, result.out, result.err) == (0, f"{V3}: ok\n", "")
    assert cli("validate", V3, "--quiet").out == ""


def test_a_folder_stands_for_its_descriptor(cli):
    assert cli("validate", CHIPS / "npu_v3").out == f"{V3}: ok\n"


@pytest.mark.parametrize(
    "file", ["043_negative_peak.hcd", "023_unknown_key.hcd", "004_invalid_utf8.hcd", "050_parent_missing.hcd"]
)
def test_problems_are_printed_as_they_are_rendered(cli, file):
    result = cli("validate", BAD / file)
    assert result.code == 1
    assert result.out == "".join(p.render() + "\n" for p in hcd.validate(BAD / file))
    assert "error" in result.err


def test_all_files_are_checked(cli):
    result = cli("validate", BAD / "043_negative_peak.hcd", V3, BAD / "023_unknown_key.hcd")
    assert result.code == 1 and "HCD022" in result.out and f"{V3}: ok" in result.out and "HCD011" in result.out


def test_a_missing_file(cli, tmp_path):
    result = cli("validate", tmp_path / "none.yaml")
    assert result.code == 1 and "none.yaml:1:1: error[HCD00" in result.out


def test_a_warning_is_a_problem_only_if_asked(cli):
    legacy = GOOD / "npu_v3.hcd"
    result = cli("validate", legacy)
    assert result.code == 0 and "warning[" in result.out and "0 errors" in result.err
    assert cli("validate", legacy, "--strict").code == 1


def test_validate_json(cli):
    result = cli("validate", BAD / "043_negative_peak.hcd", V3, "--json")
    data = result.json()
    assert result.code == 1 and data["ok"] is False and not result.err
    assert [f["ok"] for f in data["files"]] == [False, True]
    problem = data["problems"][0]
    assert problem["code"] == "HCD022" and problem["line"] > 0 and problem["severity"] == "error"
    assert cli("validate", V3, "--json").json()["ok"] is True


def test_a_hostile_name_sends_no_control_sequence(cli, tmp_path):
    file = tmp_path / "a\x1b[31m.yaml"
    file.write_text("hcd: 1\n")
    assert "\x1b" not in cli("validate", file).out


def test_validate_answers_at_once_and_imports_no_torch(tmp_path):
    code = (
        "import sys, torchfl.cli as c; sys.argv = ['torchfl', 'validate', sys.argv[1]]\n"
        "try: c.main()\nexcept SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules and 'rich.table' not in sys.modules"
    )
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", code, str(V3)], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert ran.returncode == 0, ran.stderr
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.5  # processor time: what else runs on the machine does not count


# ---------------------------------------------------------------------------------------------- show


@pytest.mark.parametrize("file", GOODS, ids=lambda p: p.name)
def test_what_is_shown_is_the_same_descriptor(cli, file, tmp_path, monkeypatch):
    for name in ("NPU_SDK_ROOT", "X1_LIB_PATH", "X1_INCLUDE_PATH"):
        monkeypatch.setenv(name, "/opt/vendor")
    result = cli("show", file)
    assert result.code == 0
    again = tmp_path / "again.yaml"
    again.write_text(result.out)
    one, two = hcd.load(file), hcd.load(again)
    assert two.warnings == []
    assert two.model.model_dump(exclude={"extends"}) == one.model.model_dump(exclude={"extends"})
    assert two.extensions == one.extensions


def test_origins_name_file_line_and_column(cli, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = cli("show", "chips/npu_v3", "--origins").out.splitlines()
    name = next(line for line in lines if line.startswith("  name: NPU-V3"))
    place = name.split("# ")[1]
    file, line, col = place.split(":")
    assert file == "chips/npu_v3/npu_v3.yaml"
    assert V3.read_text().splitlines()[int(line) - 1][int(col) - 1 :].startswith("NPU-V3")
    assert cli("show", "chips/npu_v3", "--origins").out == "\n".join(lines) + "\n"


def test_an_inherited_value_comes_from_the_parent(cli, monkeypatch):
    monkeypatch.chdir(GOOD)
    text = cli("show", "child.hcd", "--origins").out
    assert "# parent/base.hcd:" in text and "# child.hcd:" in text and "# default" in text


def test_origins_of_a_shown_file_leave_it_readable(cli, tmp_path):
    file = tmp_path / "again.yaml"
    file.write_text(cli("show", V3, "--origins").out)
    assert hcd.load(file).model == hcd.load(V3).model


def test_show_json_has_base_units_and_origins(cli):
    data = cli("show", V3, "--json").json()
    assert data["descriptor"]["memory"]["on_chip_cache"]["size"] == 8 << 20 and data["units"]["bytes"] == "B"
    assert data["origins"]["chip.name"]["file"] == str(V3)
    assert data["warnings"] == []


def test_show_of_a_bad_file_is_its_problems(cli):
    result = cli("show", BAD / "043_negative_peak.hcd")
    assert result.code == 1 and not result.out and result.err.startswith(str(BAD)) and "HCD022" in result.err


def test_show_of_nothing_names_what_there_is(cli):
    result = cli("show", "nosuch")
    assert result.code == 1 and result.err.startswith("error: no chip 'nosuch'") and "npu_v3" in result.err


def test_a_folder_must_hold_one_descriptor(cli, tmp_path):
    assert "no descriptor" in cli("show", tmp_path).err
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text("hcd: 1\n")
    assert "several descriptors (a.yaml, b.yaml)" in cli("show", tmp_path).err


@pytest.mark.parametrize(
    ("value", "dimension", "owner", "text"),
    [
        (25_600_000_000_000, "rate", "fp16", "25.6 TFLOP/s"),
        (51_200_000_000_000, "rate", "int8", "51.2 TOP/s"),
        (8 << 20, "bytes", "", "8 MiB"),
        (1000, "bytes", "", "1 kB"),
        (128 * 10**9, "bandwidth", "", "128 GB/s"),
        (15_000, "power", "", "15 W"),
        (100_000, "time", "", "100 ns"),
        (1, "time", "", "1 ps"),
        (800, "energy", "", "800 fJ"),
        (123_456_789_123, "frequency", "", "123456789.123 kHz"),
        (7, "rate", "fp32", "7 FLOP/s"),
    ],
)
def test_quantities_in_the_unit_that_says_them_best(value, dimension, owner, text):
    assert quantity(value, dimension, owner) == text
    assert units.parse(text, dimension) == value


# ---------------------------------------------------------------------------------------------- schema


def test_schema(cli, tmp_path):
    assert json.loads(cli("schema").out) == hcd.json_schema()
    file = tmp_path / "hcd.json"
    result = cli("schema", "--output", file)
    assert result.code == 0 and not result.out and str(file) in result.err
    assert json.loads(file.read_text()) == hcd.json_schema()


def test_a_file_that_cannot_be_written(cli, tmp_path):
    result = cli("schema", "-o", tmp_path / "none" / "x.json")
    assert result.code == 1 and result.err.startswith("error: ") and "No such file" in result.err


def test_a_page_is_made_of_the_descriptor_alone(cli, tmp_path):
    from torchfl import hcd
    from torchfl.pages import chip

    path = ROOT / "chips" / "x1" / "x1.yaml"
    assert cli("page", path).out == chip.render(hcd.load(path))
    written = cli("page", path, "-o", tmp_path / "x1.md")
    assert not written.out and "written" in written.err
    assert (tmp_path / "x1.md").read_text() == cli("page", ROOT / "chips" / "x1").out


def test_a_page_of_a_bad_file_is_its_problems(cli):
    result = cli("page", ROOT / "tests" / "hcd" / "bad" / "043_negative_peak.hcd")
    assert result.code == 1 and not result.out and "error[HCD022]" in result.err
