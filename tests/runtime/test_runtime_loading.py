"""Loading a chip from Python: what is refused, how it is said, and that the process goes on and can load a good one."""

import os
import shutil
import subprocess

import pytest
from helpers import ROOT, OwnProcess, run_script

DESCRIPTOR = """
hcd: 1
chip: {{name: Toy, vendor: Example, version: 1.0.0, device_type: {device_type}}}
adapter: {{library: {library}, style: c}}
compute_units: {{int32: {{count: 1, peak: 1 TOP/s}}}}
memory: {{off_chip_memory: {{size: 1 GiB, bandwidth: 1 GB/s, unified: true}}}}
tensor: {{supported_dtypes: [int32]}}
constraints: {{memory_alignment_bytes: 64}}
ops: [{{op: aten::neg, kernel: add_tag, dtypes: [int32]}}]
"""

#: What is wrong with each library, and what the error must say. The sources are those of the ABI's own tests.
REFUSED = {
    "WITHOUT_ALLOC": ["device->alloc", "required"],
    "WITHOUT_ALL": ["device->alloc", "device->copy", "name", "required"],
    "BAD_MAJOR": ["ABI 2.0", "1.", "upgrade"],
    "BAD_API_NEWER": ["ABI", "newer", "upgrade"],
    "BAD_NO_QUERY": ["uba_query", "not an adapter"],
    "BAD_NULL_QUERY": ["uba_query refused"],
    "BAD_UNDEFINED_SYMBOL": ["undefined symbol", "vendor_function_of_another_sdk"],
    "BAD_KERNEL_TWICE": ["two kernels", "copy_in"],
    "BAD_COUNT_STATUS": ["device_count failed", "the driver is not running", "SDK code 9"],
}


@pytest.fixture(scope="module")
def chips(tmp_path_factory):
    """A folder with one descriptor for each library of REFUSED, built here, and for the good one."""
    folder = tmp_path_factory.mktemp("refused")
    folder.chmod(0o755)
    sources = ROOT / "tests" / "abi" / "adapter_source.c"
    building = []
    for name in ("GOOD", *REFUSED):
        command = ["cc", "-shared", "-fPIC", "-O0", "-w", f"-D{name}", f"-I{ROOT / 'include'}", str(sources)]
        building.append(subprocess.Popen([*command, "-o", str(folder / f"{name}.so")]))
    assert [process.wait() for process in building] == [0] * len(building)
    for name in ("GOOD", *REFUSED):
        describe(folder, name, f"{name}.so")
    return folder


def describe(folder, name, library):
    path = folder / f"{name}.yaml"
    path.write_text(DESCRIPTOR.format(device_type="toy", library=library))
    return path


@pytest.fixture(scope="module")
def refusals(chips):
    """Tries every descriptor of the folder in one process, and a good one after them: {name: [type, text]}."""
    import json

    other = chips / "WRONG_MACHINE.so"
    content = bytearray((chips / "GOOD.so").read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine: aarch64
    other.write_bytes(content)
    shutil.copy(chips / "GOOD.so", chips / "WORLD_WRITABLE.so")
    (chips / "WORLD_WRITABLE.so").chmod(0o777)
    (chips / "CUT_OFF.so").write_bytes((chips / "GOOD.so").read_bytes()[:3000])
    (chips / "TEXT.so").write_text("not a library\n")
    (chips / "EMPTY.so").write_bytes(b"")
    os.mkfifo(chips / "FIFO.so")
    (chips / "DIRECTORY.so").mkdir(exist_ok=True)
    for name in ("WRONG_MACHINE", "WORLD_WRITABLE", "CUT_OFF", "TEXT", "EMPTY", "FIFO", "DIRECTORY", "MISSING"):
        describe(chips, name, f"{name}.so")
    code = """
import json, sys, torch, torchfl
from pathlib import Path
from torchfl._native import engine
said = {}
for path in sorted(Path(sys.argv[1]).glob("*.yaml"), key=lambda p: p.stem == "GOOD"):
    try:
        torchfl.load(path)
        said[path.stem] = ["loaded", torch._C._get_privateuse1_backend_name()]
    except (torchfl.LoadError, engine().LoadError) as error:
        said[path.stem] = ["LoadError", str(error)]
    except Exception as error:
        said[path.stem] = [type(error).__name__, str(error)]
    assert path.stem == "GOOD" or torchfl.chips() == []
x = torch.arange(4, dtype=torch.int32, device="toy:0")
said["computed"] = [str(x.device), x.neg().tolist()]
print(json.dumps(said))
"""
    ran = run_script(code, str(chips))
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize("name", REFUSED)
def test_a_library_that_breaks_the_contract_is_refused_by_name_and_reason(refusals, name):
    kind, text = refusals[name]
    assert kind == "LoadError", text
    assert "\n" not in text.strip()
    for said in REFUSED[name]:
        assert said in text
    assert name in text or name == "BAD_COUNT_STATUS"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MISSING", "does not exist"),
        ("WRONG_MACHINE", "aarch64"),
        ("WORLD_WRITABLE", "chmod o-w"),
        ("CUT_OFF", "cut off"),
        ("TEXT", "not a shared library"),
        ("EMPTY", "not a shared library"),
        ("FIFO", "FIFO.so"),
        ("DIRECTORY", "DIRECTORY.so"),
    ],
)
def test_a_file_that_must_not_be_loaded_is_refused_before_its_code_runs(refusals, name, said):
    kind, text = refusals[name]
    assert kind == "LoadError", text
    assert said in text
    assert "\n" not in text.strip()


def test_after_every_refusal_the_process_loads_a_good_adapter_and_computes(refusals):
    assert refusals["GOOD"] == ["loaded", "toy"]
    assert refusals["computed"] == ["toy:0", [5, 6, 7, 8]]  # the toy's kernel adds its tag


def test_an_unknown_chip_is_refused_with_what_there_is():
    import torchfl

    with pytest.raises(torchfl.LoadError, match="npu_v9") as error:
        torchfl.load("npu_v9")
    assert "npu_v3" in str(error.value)


def test_an_adapter_without_a_descriptor_is_refused():
    import torchfl

    with pytest.raises(torchfl.LoadError, match="load_hcd"):
        torchfl.load_uba("nothing_of_that_name")


def test_loading_twice_is_harmless(npu):
    import torchfl

    assert torchfl.load("npu_v3") is torchfl.load("npu_v3")
    assert len([c for c in torchfl.chips() if c.device_type == "npu_v3"]) == 1


def test_another_adapter_for_a_chip_that_is_there_is_refused(npu):
    import torchfl

    (there,) = (chip for chip in torchfl.chips() if chip.device_type == "npu_v3")
    assert torchfl.load_uba("npu_v3", there.adapter) is there
    with pytest.raises(torchfl.LoadError, match=r"loaded already, through .*libuba_npu_v3"):
        torchfl.load_uba("npu_v3", there.adapter + ".other")


def test_the_devices_are_listed(npu):
    import torchfl

    row = next(r for r in torchfl.devices() if r["label"] == "npu_v3:0")
    assert row["chip"] == "NPU-V3" and row["total_memory"] == 4096 * 2**20 and row["index"] == 0


alone = OwnProcess("alone")


@alone
def test_another_backend_that_holds_the_device_type_is_named():
    """Case 30."""
    import torch

    import torchfl

    torch.utils.rename_privateuse1_backend("other")
    with pytest.raises(torchfl.LoadError, match="'other'"):
        torchfl.load("npu_v3")
    assert torch.ones(3).sum().item() == 3


renamed = OwnProcess("shutdown")


@renamed
def test_shutdown_takes_the_device_names_back_and_tensors_stay_valid():
    import torch

    import torchfl

    torchfl.load("npu_v3")
    x = torch.ones(3, device="npu_v3:0")
    torchfl.shutdown()
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.device("npu_v3:0")
    assert (x + 1).tolist() == [2, 2, 2]
    assert torch.ones(2, device=x.device).sum().item() == 2
    torchfl.shutdown()


def test_importing_torch_first_or_last_makes_no_difference():
    for order in ("torch, torchfl", "torchfl, torch"):
        ran = run_script(
            f"import {order}; torchfl.load('npu_v3'); print(torch.ones(2, device='npu_v3:0').sum().item())"
        )
        assert ran.out == "2.0\n", ran.err


def test_the_other_package_name_is_the_same_package():
    ran = run_script("import torch_fl, torchfl; print(torch_fl.load is torchfl.load, torch_fl.chips is torchfl.chips)")
    assert ran.out == "True True\n", ran.err
