"""From `torchfl new` to a tensor on one's own chip, before a line is changed; and of chips that lack something.

Needs the native part, and fails without it.
"""

import pytest


@pytest.fixture(scope="module")
def chip_c(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    for command in (["new", "mychip", "--dir", folder / "mychip"], ["build", folder / "mychip"]):
        made = cli(*command)
        assert made.code == 0, made.err
    return folder


def test_a_new_chip_passes_its_smoke_test(torchfl, chip_c):
    result = torchfl("run", "--chip", "mychip/mychip.yaml", "mychip/tests/smoke.py", cwd=chip_c)
    assert result.code == 0, result.err
    assert result.out.endswith("mychip: all right\n")
    native = [line for line in result.out.splitlines() if line.startswith("aten::add") and " native " in line]
    assert native
    assert "one argument is a number, or differs from the result" in result.err  # why a kernel refused reaches the log


def test_a_new_aten_chip_passes_its_smoke_test(cli, torchfl, tmp_path):
    assert cli("new", "mychip2", "--style", "aten", "--dir", tmp_path / "mychip2").code == 0
    built = cli("build", tmp_path / "mychip2")
    assert built.code == 0, built.err
    result = torchfl("run", "--chip", "mychip2", "mychip2/tests/smoke.py")
    assert result.code == 0, result.err
    assert result.out.endswith("mychip2: all right\n")


def test_what_the_commands_say_of_it(batch, chip_c):
    results = batch(
        {
            "devices": ["devices", "--chip", "mychip", "--json"],
            "explain": ["explain", "aten::add", "--device", "mychip", "--json"],
            "lacking": ["explain", "aten::mm", "--device", "mychip:0", "--json"],
        },
        cwd=chip_c,
    )
    (row,) = results["devices"].json()
    assert row["device"] == "mychip:0" and row["unified_memory"] and row["sdk_version"] is None
    assert row["memory_bytes"] is None and row["utilization"] is None
    assert results["explain"].json()["path"] == "native" and results["explain"].json()["target"] == "mychip_add"
    assert results["lacking"].json()["path"] == "cpu"


def test_a_chip_that_was_not_built(cli, torchfl, tmp_path):
    cli("new", "mychip", "--dir", tmp_path / "mychip")
    result = torchfl("devices", "--chip", "mychip")
    assert result.code == 1 and not result.out
    assert result.err.startswith("error: ") and "libuba_mychip.so does not exist" in result.err
    assert "Traceback" not in result.err


def test_the_doctor_knows_a_good_chip_from_a_crashing_one(cli, torchfl, chip_c, tmp_path):
    for name, source in {
        "crashing": "#include <signal.h>\n__attribute__((constructor)) static void start(void) { raise(SIGSEGV); }\n",
        "lacking": "",
        "foreign": "int nothing_of_ours;\n",
    }.items():
        cli("new", name, "--dir", tmp_path / name)
        adapter = tmp_path / name / f"uba_{name}.c"
        text = adapter.read_text()
        if name == "lacking":  # a kernel under another name than the descriptor's
            text = text.replace('"lacking_add"', '"lacking_sum"')
        adapter.write_text(source if name == "foreign" else source + text)
        assert cli("build", tmp_path / name).code == 0
    cli("new", "unbuilt", "--dir", tmp_path / "unbuilt")
    (tmp_path / "broken.yaml").write_text("hcd: 1\nchip: {nam: X}\n")
    chips = ["crashing", str(chip_c / "mychip"), "lacking", "foreign", "unbuilt", "broken.yaml", "nosuch"]
    result = torchfl("doctor", *(word for chip in chips for word in ("--chip", chip)), "--json")
    assert result.code == 1, result.err
    data = result.json()
    assert data["ok"] is False
    found = {chip: [f for f in data["findings"] if f["chip"] == chip] for chip in chips}
    bad = {chip: [f for f in rows if f["status"] == "fail"] for chip, rows in found.items()}
    assert not bad[str(chip_c / "mychip")]
    good = {f["check"]: f["detail"] for f in found[str(chip_c / "mychip")]}
    assert good["addition"] == "right on mychip:0, by the native path"
    assert "crashed (SIGSEGV) while loading the adapter" in bad["crashing"][0]["detail"]
    assert "lacking_add" in bad["lacking"][0]["detail"] and bad["lacking"][0]["check"] == "kernels"
    assert "uba_query" in bad["foreign"][0]["detail"]
    assert "libuba_unbuilt.so does not exist" in bad["unbuilt"][0]["detail"]
    assert "torchfl build" in bad["unbuilt"][0]["fix"]
    assert "error[HCD" in bad["broken.yaml"][0]["detail"]
    assert "no chip 'nosuch'" in bad["nosuch"][0]["detail"]
    assert all(f["fix"] for rows in bad.values() for f in rows)
