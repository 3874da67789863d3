"""`torchfl check`: what it runs, finds and says. Needs the native part, and fails without it.

Faults are injected by a chip of our own, whose kernels are wrong, crash or hang, so that each kind is seen to be found.
"""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from cli_support import CHIPS, ROOT


@pytest.fixture(scope="module")
def shipped(batch, tmp_path_factory):
    """A few entries of the shipped chip, as JSON, page and JUnit."""
    folder = tmp_path_factory.mktemp("check")
    names = [
        word
        for name in ("add", "softmax", "linalg.svd", "rand_like", "jiterator_unary", "empty")
        for word in ("--ops", name)
    ]
    files = ["--html", folder / "page.html", "--junit", folder / "junit.xml"]
    results = batch(
        {
            "json": ["check", "npu_v3", *names, "--json", *files],
            "text": ["check", "npu_v3", *names],
            "strict": ["check", "npu_v3", "--ops", "linalg.svd", "--strict", "--json", "--dtype", "float32"],
            "none": ["check", "npu_v3", "--ops", "nosuch"],
            "dtype": ["check", "npu_v3", "--dtype", "float23"],
            "chip": ["check", "npu_v9"],
        }
    )
    return results, folder


def test_the_json_says_what_ran_where(shipped):
    results, _ = shipped
    data = results["json"].json()
    assert data["chip"] == "NPU-V3" and data["device"] == "npu_v3:0" and data["torch"].startswith("2.")
    paths = {entry["name"]: entry["path"] for entry in data["entries"]}
    assert paths["add"] == paths["softmax"] == "native", paths
    assert paths["linalg.svd"] == "cpu"
    assert data["summary"]["entries"] == len(data["entries"]) == sum(list(data["summary"].values())[1:])
    add = next(entry for entry in data["entries"] if entry["name"] == "add")
    for dtype in ("float32", "float16"):
        for direction in ("forward", "backward"):
            run = add["dtypes"][dtype][direction]
            assert run["ok"] and run["path"] == "native" and not run["error"] and run["samples"] >= 6
        assert "aten::add npu_v3_add" in add["dtypes"][dtype]["forward"]["kernels"]
    assert "linalg.svd" in {name for row in data["reasons"] for name in row["entries"]}
    assert not [row for row in data["unproven"] if row["op"].startswith("aten::add.")]


def test_weaker_comparisons_are_named(shipped):
    entries = {entry["name"]: entry for entry in shipped[0]["json"].json()["entries"]}
    assert "random" in entries["rand_like"]["dtypes"]["float32"]["forward"]["weak"][0]
    assert "undefined" in entries["empty"]["dtypes"]["float32"]["forward"]["weak"][0]
    assert "not unique" in entries["linalg.svd"]["dtypes"]["float32"]["forward"]["weak"][0]


def test_the_page_and_the_junit_file(shipped):
    _, folder = shipped
    page = (folder / "page.html").read_text()
    assert 'class="cell native"' in page and 'class="cell cpu"' in page and "_linalg_svd" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    suite = ElementTree.parse(folder / "junit.xml").getroot().find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) >= 10 and suite.get("failures") == "0"


def test_the_text(shipped):
    result = shipped[0]["text"]
    assert result.code == 0, result.out
    assert "why they left the chip" in result.out and "native" in result.out and "linalg.svd" in result.out


def test_strict_counts_what_left_the_chip(shipped):
    result = shipped[0]["strict"]
    assert result.code == 1 and result.json()["summary"]["cpu"] == 1 and result.json()["summary"]["failed"] == 0


@pytest.mark.parametrize(("name", "text"), [("none", "no entry of op_db"), ("dtype", "'float23' is none of")])
def test_wrong_usage_is_status_2(shipped, name, text):
    result = shipped[0][name]
    assert result.code == 2 and not result.out and text in result.err.replace("\n", " ")


def test_a_chip_that_is_not_there(shipped):
    assert shipped[0]["chip"].code == 1 and "no chip 'npu_v9'" in shipped[0]["chip"].err


def test_the_help_and_the_page_know_every_option(cli):
    text = cli("check", "--help").out
    assert "torchfl check npu_v3 --strict --json" in text
    section = (ROOT / "docs" / "cli.md").read_text().split("\n## torchfl check\n")[1].split("\n## ")[0]
    options = set(re.findall(r"^│\s+(--[a-z-]+)", text, re.M)) - {"--help", "--json"}
    assert {"--strict", "--ops", "--dtype", "--samples", "--html", "--junit"} <= options
    assert not [option for option in options if option not in section]


# ----------------------------------------------------------------------------------------------- faults


@pytest.fixture(scope="module")
def faulty(cli, tmp_path_factory):
    """A chip whose addition is what a test makes of it: replaces the one line of the template's kernel."""
    folder = tmp_path_factory.mktemp("faulty")

    def make(name, statement):
        assert cli("new", name, "--dir", folder / name).code == 0
        source = folder / name / f"uba_{name}.c"
        text = source.read_text()
        body = text.index("{", text.index("static uba_status add(")) + 1
        source.write_text(
            "#include <stdlib.h>\n#include <unistd.h>\n" + text[:body] + f"\n  {statement}\n" + text[body:]
        )
        built = cli("build", folder / name)
        assert built.code == 0, built.err
        return folder / name

    return make


def check(torchfl, folder, *args):
    result = torchfl("check", folder, "--ops", "add", "--ops", "positive", "--dtype", "float32", "--json", *args)
    assert result.out, result.err
    data = result.json()
    return result, data, {entry["name"]: entry for entry in data["entries"]}


def test_a_crash_is_a_finding_and_not_the_end(torchfl, faulty):
    result, data, entries = check(torchfl, faulty("crashing", "abort();"))
    assert result.code == 1 and data["summary"]["failed"] == 1 and entries["positive"]["path"] != "failed"
    run = entries["add"]["dtypes"]["float32"]["forward"]
    assert "crashed (SIGABRT): forward of sample" in run["error"]


def test_a_hang_is_cut_off(torchfl, faulty):
    result, _, entries = check(torchfl, faulty("hanging", "for (;;) pause();"), "--timeout", "3")
    assert result.code == 1
    assert "took longer than 3 s: forward of sample" in entries["add"]["dtypes"]["float32"]["forward"]["error"]


def test_the_gap_list(torchfl, faulty):
    folder = faulty("gaps", "abort();")
    (folder / "check.yaml").write_text(
        "xfail: {add: the adder is broken, 'posit.*': none}\nunsupported: {nosuch: none}\n"
    )
    result, data, entries = check(torchfl, folder)
    assert result.code == 0, result.err
    assert data["xfailed"] == ["add"] and data["xpassed"] == ["positive"] and data["unused_gaps"] == ["nosuch"]
    assert entries["add"]["path"] == "failed" and entries["add"]["xfail"] == "the adder is broken"
    (folder / "check.yaml").write_text("unsupported: {add: the adder is broken}\n")
    result, data, entries = check(torchfl, folder)
    assert result.code == 0 and entries["add"]["path"] == "unsupported" and data["summary"]["unsupported"] == 1
    (folder / "check.yaml").write_text("unsuported: {add: the adder is broken}\n")
    result = torchfl("check", folder, "--ops", "add")
    assert result.code == 1 and "there is no key 'unsuported'" in result.err and "Traceback" not in result.err


def test_the_shipped_gap_lists_are_read():
    from torchfl.check import gaps

    for name in ("npu_v2", "npu_v3"):
        assert gaps.load(CHIPS / name / f"{name}.yaml").why_unsupported("sparse.sampled_addmm")
    assert json.dumps(gaps.load(CHIPS / "nosuch.yaml").xfail) == "{}"
