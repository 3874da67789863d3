"""`torchfl new`: names, what is written, how small it is. That it builds and runs: test_cli_chip.py."""

import re

import pytest

from torchfl import hcd

STYLES = {"c": "uba_mychip.c", "aten": "uba_mychip.cpp"}


def code_lines(file):
    """Lines that are neither blank nor comment."""
    text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.S)
    comment = "#" if file.suffix == ".yaml" else "//"
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith(comment)]


@pytest.mark.parametrize("style", STYLES)
def test_the_folder(cli, tmp_path, style):
    folder = tmp_path / "mychip"
    result = cli("new", "mychip", "--dir", folder, "--style", style)
    assert result.code == 0 and f"torchfl build {folder}" in result.out
    files = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    assert files == sorted(["README.md", "mychip.yaml", "tests/smoke.py", STYLES[style]])
    assert not any("{{" in (folder / f).read_text() for f in files)
    assert hcd.validate(folder / "mychip.yaml") == []
    assert cli("validate", folder).code == 0


@pytest.mark.parametrize("style", STYLES)
def test_at_most_80_lines_to_the_first_operator(cli, tmp_path, style):
    cli("new", "mychip", "--dir", tmp_path / "m", "--style", style)
    adapter, descriptor = code_lines(tmp_path / "m" / STYLES[style]), code_lines(tmp_path / "m" / "mychip.yaml")
    assert len(adapter) > 10 and len(adapter) + len(descriptor) <= 80


def test_lines_keep_to_the_width_of_the_project(cli, tmp_path):
    cli("new", "a_chip_with_a_long_name", "--dir", tmp_path / "m")
    for file in (tmp_path / "m").rglob("*.*"):
        assert all(len(line) <= 120 for line in file.read_text().splitlines()), file


@pytest.mark.parametrize(
    "name", ["cpu", "cpu2", "cuda_like", "meta", "privateuseone", "Chip", "3d", "my-chip", "a/b", "é", "a b", ""]
)
def test_names_that_cannot_be(cli, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = cli("new", name)
    assert result.code == 2 and "Invalid value for NAME" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(cli, tmp_path):
    folder = tmp_path / "mychip"
    folder.mkdir()
    (folder / "mychip.yaml").write_text("mine")
    (folder / "notes.txt").write_text("mine too")
    result = cli("new", "mychip", "--dir", folder)
    assert result.code == 1 and "--force" in result.err and not result.out
    assert (folder / "mychip.yaml").read_text() == "mine"
    assert cli("new", "mychip", "--dir", folder, "--force").code == 0
    assert (folder / "mychip.yaml").read_text() != "mine" and (folder / "notes.txt").read_text() == "mine too"


def test_an_empty_folder_will_do(cli, tmp_path):
    (tmp_path / "m").mkdir()
    assert cli("new", "mychip", "--dir", tmp_path / "m").code == 0


def test_a_file_in_the_way(cli, tmp_path):
    (tmp_path / "m").write_text("")
    result = cli("new", "mychip", "--dir", tmp_path / "m", "--force")
    assert result.code == 1 and "is no folder" in result.err
