"""Descriptors kept lowered for the next process: the same data, and never of a file that has changed."""

import json
import os
import shutil
from pathlib import Path

import pytest

from torchfl import hcd
from torchfl._paths import shipped_chips
from torchfl.hcd import kept, reader

CHIPS = Path(__file__).resolve().parents[2] / "chips"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Copies of two chips, one of which extends a file beside it; and a count of descriptors really read."""
    monkeypatch.setenv("TORCHFL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("npu_v3", "npu_v2"):
        shutil.copytree(CHIPS / name, tmp_path / name)
    (tmp_path / "child.yaml").write_text(
        "hcd: 1\nextends: npu_v3/npu_v3.yaml\nchip: {name: Child, device_type: child}\n"
        'adapter: {library: "${CHILD_LIBRARY:-a.so}"}\n'
    )
    return tmp_path


def _refuse(warning):
    pytest.fail(str(warning))


@pytest.fixture
def reads(monkeypatch):
    seen = []
    load = reader.load

    def counting(path):
        seen.append(path)
        return load(path)

    monkeypatch.setattr(reader, "load", counting)
    return seen


@pytest.mark.parametrize("name", ["npu_v3/npu_v3.yaml", "npu_v2/npu_v2.yaml", "child.yaml"])
def test_the_data_is_what_reading_gives(folder, reads, name):
    expected = hcd.load(folder / name).lower()
    reads.clear()
    assert kept.lowered(folder / name, _refuse) == expected
    assert kept.lowered(folder / name, _refuse) == expected
    assert len(reads) == 1


def test_a_change_of_the_file_or_of_its_parent_is_seen(folder, reads):
    child, parent = folder / "child.yaml", folder / "npu_v3" / "npu_v3.yaml"
    assert kept.lowered(child, _refuse)["name"] == "Child"
    child.write_text(child.read_text().replace("name: Child", "name: Other"))
    assert kept.lowered(child, _refuse)["name"] == "Other"
    before = kept.lowered(child, _refuse)["memory_bytes"]
    parent.write_text(parent.read_text().replace("size: 4 GiB", "size: 2 GiB"))
    assert kept.lowered(child, _refuse)["memory_bytes"] * 2 == before
    assert len(reads) == 3


def test_a_variable_that_the_file_names_counts(folder, monkeypatch):
    child = folder / "child.yaml"
    assert kept.lowered(child, _refuse)["adapter_library"].endswith("a.so")
    monkeypatch.setenv("CHILD_LIBRARY", "b.so")
    assert kept.lowered(child, _refuse)["adapter_library"].endswith("b.so")
    monkeypatch.delenv("CHILD_LIBRARY")
    assert kept.lowered(child, _refuse)["adapter_library"].endswith("a.so")


def test_errors_are_raised_each_time_and_warnings_told_each_time(folder, reads):
    bad = folder / "bad.yaml"
    bad.write_text("hcd: 1\nnonsense: 1\n")
    for _ in range(2):
        with pytest.raises(hcd.DescriptorError):
            kept.lowered(bad, _refuse)
    warned = folder / "warned.yaml"
    text = (folder / "child.yaml").read_text().replace("name: Child", 'name: "${NOT_A_PATH}"')
    warned.write_text(text)
    said = []
    for _ in range(2):
        kept.lowered(warned, said.append)
    assert len(said) == 2 and len(reads) == 4


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"state": 1}'])
def test_a_file_of_the_cache_that_is_damaged_is_as_good_as_none(folder, reads, damage):
    child = folder / "child.yaml"
    expected = kept.lowered(child, _refuse)
    [file] = (folder / "cache" / "descriptors").iterdir()
    file.write_text(damage)
    assert kept.lowered(child, _refuse) == expected and len(reads) == 2
    assert json.loads(file.read_text())["lowered"] == expected
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no temporary file is left"


def test_those_used_longest_ago_go_first(folder, reads, monkeypatch):
    monkeypatch.setattr(kept, "MOST_FILES", 2)
    files = [folder / f"child{i}.yaml" for i in range(3)]
    for i, file in enumerate(files):
        file.write_text((folder / "child.yaml").read_text())
        kept.lowered(file, _refuse)
        if i == 1:
            for entry in (folder / "cache" / "descriptors").iterdir():
                os.utime(entry, (1, 1))  # long ago, both
            kept.lowered(files[0], _refuse)  # but this one is used again
    assert len(list((folder / "cache" / "descriptors").iterdir())) == 2 and len(reads) == 3
    kept.lowered(files[0], _refuse)
    assert len(reads) == 3
    kept.lowered(files[1], _refuse)
    assert len(reads) == 4


def test_it_can_be_turned_off_or_have_nowhere_to_go(folder, reads, monkeypatch):
    child = folder / "child.yaml"
    (folder / "plain").write_text("")
    for where in ("", str(folder / "plain" / "below")):
        monkeypatch.setenv("TORCHFL_CACHE_DIR", where)
        reads.clear()
        for _ in range(2):
            assert kept.lowered(child, _refuse)["name"] == "Child"
        assert len(reads) == 2


@pytest.mark.parametrize("name", shipped_chips())
def test_what_is_shipped_is_kept_beside_it(monkeypatch, reads, name):
    path = shipped_chips()[name]
    expected = hcd.load(path).lower()
    monkeypatch.setenv("TORCHFL_CACHE_DIR", "")
    reads.clear()
    assert kept.lowered(path, _refuse) == expected
    assert not reads, "its record is of another reader: install again (cmake --install)"


def test_a_record_beside_moves_with_its_chips(folder, reads, monkeypatch):
    monkeypatch.setenv("TORCHFL_CACHE_DIR", "")
    chips = folder / "built" / "chips"
    for name in ("npu_v3", "child"):
        (chips / name).mkdir(parents=True)
    shutil.copy(folder / "npu_v3" / "npu_v3.yaml", chips / "npu_v3")
    child = chips / "child" / "child.yaml"
    child.write_text((folder / "child.yaml").read_text().replace("extends: npu_v3", "extends: ../npu_v3"))
    record = kept.keep_beside(child)
    assert record is not None and str(folder) not in record.read_text()
    assert record.stat().st_mode == child.stat().st_mode
    installed = folder / "installed"
    chips.rename(installed)
    child = installed / "child" / "child.yaml"
    expected = hcd.load(child).lower()
    reads.clear()
    assert kept.lowered(child, _refuse) == expected and not reads
    assert Path(expected["adapter_library"]).parent == child.parent

    other = installed / "other"  # a copy in the folder of the chips: its own paths are others
    shutil.copytree(child.parent, other)
    assert kept.lowered(other / "child.yaml", _refuse)["adapter_library"].startswith(str(other)) and len(reads) == 1
    monkeypatch.setenv("CHILD_LIBRARY", "b.so")
    assert kept.lowered(child, _refuse)["adapter_library"].endswith("b.so") and len(reads) == 2
    monkeypatch.delenv("CHILD_LIBRARY")
    parent = installed / "npu_v3" / "npu_v3.yaml"
    parent.write_text(parent.read_text().replace("size: 4 GiB", "size: 2 GiB"))
    assert kept.lowered(child, _refuse)["memory_bytes"] * 2 == expected["memory_bytes"] and len(reads) == 3


def test_nothing_is_kept_beside_what_was_warned_of_or_lies_elsewhere(folder):
    warned = folder / "chip" / "warned.yaml"
    warned.parent.mkdir()
    text = (folder / "child.yaml").read_text().replace("extends: npu_v3", "extends: ../npu_v3")
    warned.write_text(text.replace("name: Child", 'name: "${NOT_A_PATH}"'))
    assert kept.keep_beside(warned) is None
    far = folder / "far" / "chips" / "chip" / "far.yaml"
    far.parent.mkdir(parents=True)
    far.write_text(text.replace("../npu_v3", "../../../npu_v3"))
    assert kept.keep_beside(far) is None
    assert not list(folder.rglob("*.lowered.json"))
