"""Inheritance: what is merged and how, where each value comes from, and what goes wrong."""

from pathlib import Path

import pytest

from torchfl import hcd
from torchfl.errors import LoadError

HERE = Path(__file__).parent
CHIP = "chip: {name: Base, vendor: Example, device_type: base}\n"
TENSOR = "tensor: {supported_dtypes: [float16]}\n"
BASE = "hcd: 1\n" + CHIP + TENSOR


@pytest.fixture
def child():
    return hcd.load(HERE / "good" / "child.hcd")


def test_merge(child):
    chip = child.model
    assert (chip.chip.name, chip.chip.vendor, chip.chip.version) == ("Child", "Example", "2.0.0")
    assert chip.compute_units.fp16.count == 128  # inherited beside what the child changes
    assert chip.compute_units.fp16.peak == 51_200_000_000_000
    assert chip.compute_units.int8 is None  # deleted by null
    assert chip.tensor.supported_dtypes == ["float16"]  # a plain list replaces
    assert chip.tensor.max_rank == 5


def test_named_lists_merge_by_name(child):
    ops = {op.op: op for op in child.model.ops}
    assert list(ops) == ["aten::add", "aten::sub", "aten::conv2d", "aten::mm", "aten::tanh"]
    assert ops["aten::add"].dtypes == {"*": ["float16"]} and ops["aten::add"].kernel == "base_{op}"
    assert ops["aten::sub"].dtypes is None  # one operator of a group is overridden alone
    where = ops["aten::conv2d"].where
    assert list(where) == ["stride"] and where["stride"].max == 2 and where["stride"].in_ is None
    paths = ops["aten::mm"].paths
    assert [p.kernel for p in paths] == ["mm_slow", "mm_fast", "mm_new"]
    assert paths[1].cost.launch == 1_000_000 and paths[1].cost.tile == [16, 16, 16]
    assert paths[1].where["K"].multiple_of == 16


def test_origins(child):
    def origin(path):
        place = child.origins[path]
        return Path(place.file).relative_to(HERE / "good").as_posix(), place.line, place.col

    assert origin("chip.name") == ("child.hcd", 3, 14)
    assert origin("chip.vendor") == ("parent/base.hcd", 2, 28)
    assert origin("compute_units.fp16.peak") == ("child.hcd", 5, 16)
    assert origin("compute_units.fp16.count") == ("parent/base.hcd", 5, 17)
    assert origin("ops[0].kernel") == ("parent/base.hcd", 10, 13)
    assert origin("ops[0].dtypes") == ("child.hcd", 10, 13)
    assert origin("ops[3].paths[1].cost.launch") == ("child.hcd", 15, 42)
    assert origin("ops[4].kernel") == ("child.hcd", 18, 30)
    assert "compute_units.int8" not in child.origins


def test_every_value_has_an_origin():
    for name in ("full.hcd", "child.hcd", "npu_v3.hcd"):
        descriptor = hcd.load(HERE / "good" / name)

        def visit(value, path, origins=descriptor.origins):
            if isinstance(value, dict):
                for key, inner in value.items():
                    visit(inner, f"{path}.{key}" if path else key)
            elif value is not None and path:
                assert path in origins, path

        data = descriptor.model.model_dump(
            by_alias=True, exclude_unset=True, exclude={"ops", "fusions", "fallback", "extends"}
        )
        visit(data, "")


def test_a_relative_library_is_found_beside_the_file_that_names_it(child, monkeypatch, tmp_path):
    assert child.lower()["adapter_library"] == str(HERE / "good" / "parent" / "libuba_base.so")
    monkeypatch.chdir(HERE)
    descriptor = hcd.load("good/child.hcd")
    monkeypatch.chdir(tmp_path)  # the working directory of later plays no part
    assert descriptor.lower()["adapter_library"] == str(HERE / "good" / "parent" / "libuba_base.so")


def test_the_second_documents_example():
    env = {"X1_LIB_PATH": "/l", "X1_INCLUDE_PATH": "/i"}
    descriptor = hcd.load(HERE / "good" / "x1_v2_device.yaml", env=env)
    assert descriptor.model.adapter.driver_version == "2.0.0"
    assert descriptor.model.compute_units.fp16.peak == 15_600_000_000_000
    assert descriptor.model.adapter.runtime == "/l/x1_runtime.so"
    assert len(descriptor.model.ops) == 3


def test_a_canonical_child_of_a_legacy_parent(write):
    write((HERE / "good" / "npu_v2.hcd").read_bytes(), "v2.hcd")
    path = write("hcd: 1\nextends: v2.hcd\ncompute_units: {fp16: {peak: 20 TFLOP/s}}\n", "v2b.hcd")
    assert hcd.load(path).model.compute_units.fp16.peak == 20 * 10**12


def test_paths_replace_an_inherited_kernel_and_the_other_way_round(write):
    write(
        BASE + "ops:\n  - {op: aten::mm, kernel: k}\n  - {op: aten::bmm, paths: [{kernel: a}, {kernel: b}]}\n", "b.hcd"
    )
    path = write(
        "hcd: 1\nextends: b.hcd\nops:\n  - {op: aten::mm, paths: [{kernel: x}]}\n  - {op: aten::bmm, kernel: y}\n"
    )
    mm, bmm = hcd.load(path).model.ops
    assert mm.kernel is None and mm.paths[0].kernel == "x"
    assert bmm.kernel == "y" and bmm.paths is None


def test_several_entries_of_one_operator_are_replaced_together(write):
    write(
        BASE + "ops:\n  - {op: aten::mm, kernel: a}\n  - {op: aten::mm, kernel: b}\n  - {op: aten::add, kernel: c}\n",
        "b.hcd",
    )
    path = write("hcd: 1\nextends: b.hcd\nops:\n  - {op: aten::mm, kernel: z}\n")
    assert [op.kernel for op in hcd.load(path).model.ops] == ["c", "z"]


def test_a_chain(write):
    write(BASE, "a.hcd")
    write("hcd: 1\nextends: a.hcd\nchip: {name: B}\nconstraints: {max_batch_size: 1}\n", "b.hcd")
    path = write("hcd: 1\nextends: sub/../b.hcd\nconstraints: {max_sequence_length: 2}\n", "c.hcd")
    (path.parent / "sub").mkdir()
    chip = hcd.load(path).model
    assert chip.chip.name == "B"
    assert (chip.constraints.max_batch_size, chip.constraints.max_sequence_length) == (1, 2)


def test_a_file_that_extends_itself(write):
    path = write("hcd: 1\nextends: self.hcd\n", "self.hcd")
    (found,) = hcd.validate(path)
    assert (found.code, found.line, found.col) == ("HCD031", 2, 10)
    assert found.message == f"inheritance cycle: {path} -> {path}"


def test_a_chain_that_is_too_long(write):
    for i in range(20):
        write(f"hcd: 1\nextends: {i + 1}.hcd\n", f"{i}.hcd")
    path = write(BASE, "20.hcd").parent / "0.hcd"
    assert {d.code for d in hcd.validate(path)} == {"HCD034"}


def test_an_inherited_value_is_pointed_at_with_a_note(write):
    write(BASE.replace("float16", "flot16"), "base.hcd")
    path = write("hcd: 1\nextends: base.hcd\nchip: {name: Child}\n", "child.hcd")
    (found,) = hcd.validate(path)
    assert (found.code, Path(found.file).name, found.line, found.col) == ("HCD014", "base.hcd", 3, 29)
    (note,) = found.notes
    assert (Path(note.place.file).name, note.place.line, note.place.col) == ("child.hcd", 2, 1)


def test_the_free_area_is_inherited_and_may_change_shape(write):
    write(BASE + "x-acme: {a: {b: 1}, c: 2}\n", "base.hcd")
    path = write("hcd: 1\nextends: base.hcd\nx-acme: {a: [1], d: 3}\n", "child.hcd")
    assert hcd.load(path).extensions == {"x-acme": {"a": [1], "c": 2, "d": 3}}


def test_a_shipped_chip_is_a_parent_by_its_name(write, tmp_path, monkeypatch):
    shipped = tmp_path / "elsewhere" / "base" / "base.yaml"
    shipped.parent.mkdir(parents=True)
    shipped.write_text(BASE + "adapter: {library: libuba_base.so}\n")
    monkeypatch.setattr("torchfl._paths.shipped_chips", lambda: {"base": shipped})
    descriptor = hcd.load(write("hcd: 1\nextends: base\nchip: {name: Mine}\n"))
    assert (descriptor.model.chip.name, descriptor.model.chip.device_type) == ("Mine", "base")
    assert descriptor.resolve_file(descriptor.origins["chip.vendor"].file) == str(shipped)
    assert descriptor.lower()["adapter_library"] == str(shipped.parent / "libuba_base.so")


def test_a_file_goes_before_a_shipped_chip_of_its_name(write, tmp_path, monkeypatch):
    monkeypatch.setattr("torchfl._paths.shipped_chips", lambda: {"base": tmp_path / "none.yaml"})
    child = Path(write("hcd: 1\nextends: base\n"))
    (child.parent / "base").write_text(BASE)
    assert hcd.load(child).model.chip.name == "Base"


def test_neither_a_file_nor_a_shipped_chip(write, monkeypatch):
    def not_built():
        raise LoadError("not built")

    monkeypatch.setattr("torchfl._paths.shipped_chips", not_built)
    problems = hcd.validate(write("hcd: 1\nextends: nosuch\n"))
    assert "HCD030" in [problem.code for problem in problems]
