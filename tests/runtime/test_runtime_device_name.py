"""A name of one's own for the device type: `TORCHFL_DEVICE_NAME`, `torchfl.init(device_name=...)`."""

import pytest
import torch
from helpers import OwnProcess, run_script

named = OwnProcess("device_name", TORCHFL_DEVICE_NAME="mydev")


def _chips():
    import torchfl

    return torchfl.init("npu_v3", "npu_v2")


@named
def test_the_type_has_the_name_and_every_device_an_index():
    _chips()
    assert torch._C._get_privateuse1_backend_name() == "mydev"
    x = torch.ones(1, device="mydev")
    assert str(x.device) == "mydev:0"
    assert torch.accelerator.current_accelerator().type == "mydev"
    assert torch.mydev.device_count() == torch.accelerator.device_count() == 2
    assert torch.mydev.memory_allocated(1) == torch.npu.memory_allocated() != torch.mydev.memory_allocated(0)
    assert torch.get_device_module("mydev") is torch.mydev
    with pytest.raises(RuntimeError):
        torch.ones(1, device="mydev:2")


@named
def test_the_chips_names_go_on_working():
    _chips()
    assert torch.device("npu_v3:0") == torch.device("mydev", 0) and torch.device("npu:0") == torch.device("mydev:1")
    assert torch.ones(1, device="npu").device.index == 1
    assert torch.npu_v3.device_count() == torch.npu.device_count() == 1
    assert torch.npu.Stream().device.index == 1


@named
def test_methods_and_functions_have_it():
    _chips()
    x = torch.ones(2).mydev()
    assert x.is_mydev and not torch.ones(2).is_mydev
    layer = torch.nn.Linear(16, 2).mydev()
    with torch.autocast("mydev", dtype=torch.float16):
        assert layer(torch.ones(2, 16, device="mydev")).dtype == torch.float16
    torch.manual_seed(3)
    first = torch.rand(4, device="mydev:1")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="npu"))
    state = torch.mydev.get_rng_state(1)
    assert torch.equal(state, torch.npu.get_rng_state())
    with torch.random.fork_rng(device_type="mydev"):
        torch.rand(2, device="mydev:1")
    assert torch.equal(state, torch.mydev.get_rng_state(1))
    torch.mydev.set_device(1)
    assert torch.ones(1, device="mydev").device.index == 1
    torch.mydev.set_device(0)
    stream = torch.mydev.Stream(device="mydev:1")
    with stream:
        assert torch.mydev.current_stream(1) == stream
    torch.mydev.synchronize(1)
    assert torch.mydev.memory_allocated(0) == torch.npu_v3.memory_allocated()


@named
def test_another_name_comes_too_late():
    import torchfl

    _chips()
    torchfl.init(device_name="mydev")
    with pytest.raises(torchfl.LoadError, match=r"'other'.*named 'mydev' already.*TORCHFL_DEVICE_NAME=other"):
        torchfl.init(device_name="other")


@named
def test_a_chip_of_the_same_name_is_refused():
    import tempfile
    from pathlib import Path

    import torchfl
    from torchfl._paths import shipped_chips

    _chips()
    source = shipped_chips()["fpga_mm"]
    text = source.read_text().replace("device_type: fpga_mm", "device_type: mydev")
    text = text.replace("library: lib", f"library: {source.parent}/lib")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mydev.yaml"
        path.write_text(text)
        with pytest.raises(torchfl.LoadError, match="'mydev' is the name of the device type"):
            torchfl.load(path)
    assert torch.ones(1, device="mydev").device.index == 0


SAVE = """
import sys, torch, torchfl
torchfl.init("npu_v3", "npu_v2")
torch.save([torch.ones(2, device="npu_v3:0"), torch.full((2,), 5.0, device="npu:0")], sys.argv[1])
"""
LOAD = """
import sys, torch, torchfl
torchfl.init("fpga_mm", "npu_v2", "npu_v3")
first, second = torch.load(sys.argv[1])
print(first.device, second.device, second.tolist(), torch.load(sys.argv[1], map_location="{name}:2")[0].device)
"""


@pytest.mark.parametrize("saved, loaded", [("mydev", ""), pytest.param("", "other_dev1", marks=pytest.mark.slow)])
def test_a_file_saved_under_one_name_loads_under_another(tmp_path, saved, loaded):
    file = str(tmp_path / "saved.pt")
    ran = run_script(SAVE, file, env={"TORCHFL_DEVICE_NAME": saved})
    assert ran.code == 0, ran.err
    name = loaded or "fpga_mm"
    ran = run_script(LOAD.format(name=name), file, env={"TORCHFL_DEVICE_NAME": loaded})
    assert ran.out == f"{name}:2 {name}:1 [5.0, 5.0] {name}:2\n", ran.err


def test_init_takes_the_name_and_goes_before_the_environment():
    ran = run_script(
        "import torchfl, torch; torchfl.init('npu_v3', device_name='mine'); print(torch.ones(1, device='mine').device)",
        env={"TORCHFL_DEVICE_NAME": "theirs"},
    )
    assert ran.out == "mine:0\n", ran.err


def test_names_that_cannot_be_one_are_refused_with_the_reason():
    ran = run_script(
        """
import torch, torchfl
for name in ("cuda1", "cpu_x", "cuda", "Mine", "9a", "a-b", "", "a:0", "meta", "xpu", "privateuseone", "nn", "relu", "half"):
    try:
        torchfl.init("npu_v3", device_name=name)
        print(name, "TAKEN")
    except torchfl.LoadError as error:
        print(error)
print(torchfl.init("npu_v3", device_name="dev2")[0].labels, torch.ones(1, device="dev2:0").device)
"""
    )
    *lines, last = ran.out.splitlines()
    assert last == "['npu_v3:0'] dev2:0", ran
    reasons = [
        *["torch.load takes"] * 3,
        "write 'mine'",
        *["letters, digits and underscores"] * 4,
        *["PyTorch's own"] * 6,
    ]
    assert len(lines) == len(reasons)
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line, line
    assert "--as-cuda" in lines[2]


def test_a_chip_that_cannot_be_loaded_names_nothing(tmp_path):
    bad = tmp_path / "bad.yaml"
    from torchfl._paths import shipped_chips

    bad.write_text(shipped_chips()["npu_v3"].read_text().replace("device_type: npu_v3", "device_type: bad"))
    (tmp_path / "libuba_npu_v3.so").write_text("no library")
    ran = run_script(
        """
import sys, torch, torchfl
from torchfl._native import engine
try:
    torchfl.load(sys.argv[1])
except (torchfl.LoadError, engine().LoadError):
    print(torch._C._get_privateuse1_backend_name())
torchfl.load("npu_v3")
print(torch.ones(1, device="npu_v3").device)
""",
        str(bad),
    )
    assert ran.out == "privateuseone\nnpu_v3:0\n", ran.err


def test_the_environments_name_is_checked_too():
    ran = run_script("import torchfl; torchfl.init('npu_v3')", env={"TORCHFL_DEVICE_NAME": "cuda7"})
    assert ran.code == 1 and "TORCHFL_DEVICE_NAME='cuda7'" in ran.err.splitlines()[-1]


def test_a_test_suite_for_another_name_runs():
    """PyTorch's own machinery for device-generic tests takes the name."""
    ran = run_script(
        """
import torch, torchfl
torchfl.init("npu_v3")
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, run_tests

class TestTheirs(TestCase):
    def test_sum(self, device):
        self.assertEqual(torch.ones(3, device=device).sum().item(), 3)
        self.assertEqual(torch.device(device).type, "theirs")

instantiate_device_type_tests(TestTheirs, globals(), only_for="theirs")
run_tests()
""",
        env={"TORCHFL_DEVICE_NAME": "theirs"},
    )
    assert ran.code == 0 and "Ran 1 test" in ran.err, ran.err
