"""Which chips there are when nobody names them in code: folders, the environment, installed distributions; and
`torchfl.init()` before `import torch`."""

import json
import os
import shutil
from pathlib import Path

import pytest
from x1_support import device_folder, log_lines, run, told

from test_walkthrough_x1 import folder as x1_folder  # noqa: F401
from test_walkthrough_x1 import module as x1_module  # noqa: F401
from test_wrappers import TOY
from test_wrappers import folder as toy_folder  # noqa: F401

module, folder = x1_module, x1_folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with the descriptor alone, which is quick to load."""
    folder = tmp_path_factory.mktemp("toy_alone")
    shutil.copy(TOY / "toy.yaml", folder)
    return folder


def renamed(toy: Path, folder: Path, device_type: str, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = (toy / "toy.yaml").read_text().replace("device_type: toy", f"device_type: {device_type}")
    (folder / f"{device_type}.yaml").write_text(text.replace("name: TOY", f"name: {name}"))
    return folder


STATE = """
import json, sys
import torchfl
{before}
import torch
{after}
print(json.dumps({{
    "chips": [[c.name, c.device_type, c.first_index, c.count] for c in torchfl.chips()],
    "type": torch._C._get_privateuse1_backend_name(), "accelerator": str(torch.accelerator.current_accelerator()),
    "count": torch.accelerator.device_count(), "live": torch._C._has_torch_fl,
    "sum": (torch.ones(2, device="toy") + 1).tolist(), "mods": sorted(m for m in sys.modules if m == "torch.toy"),
    "hook": [type(f).__name__ for f in sys.meta_path if type(f).__name__ == "_After" and f.name == "torch"],
}}))
"""


def test_init_before_torch_and_after_it_give_the_same_state(toy):
    before = told(run(STATE.format(before="torchfl.init(); torchfl.init()", after="torchfl.init()"), toy))
    after = told(run(STATE.format(before="", after="torchfl.init()"), toy))
    assert before == after
    assert before["chips"][0] == ["TOY", "toy", 0, 1] and before["live"] and not before["hook"]


def test_init_before_torch_imports_no_torch_and_says_what_is_to_be(toy):
    code = """
import sys, json
import torchfl
planned = torchfl.init()
print(json.dumps([["torch" in sys.modules, "torchfl._C" in sys.modules],
                  [[c.name, c.device_type, c.descriptor] for c in planned][0],
                  hasattr(__import__("torch"), "toy"), [c.device_type for c in torchfl.chips()][0]]))
"""
    imported, first, has, loaded = told(run(code, toy))
    assert imported == [False, False]
    assert first == ["TOY", "toy", str(toy / "toy.yaml")]
    assert has and loaded == "toy"


def test_asking_for_the_chips_loads_them(toy):
    code = "import torchfl; torchfl.init(); print(torchfl.chips()[0].labels, torchfl.devices()[0]['label'])"
    assert run(code, toy).out == "['toy:0'] toy:0\n"


def test_naming_chips_works_before_torch_too(toy):
    code = f"""
import torchfl
print([c.device_type for c in torchfl.init({str(toy / "toy.yaml")!r})])
import torch
print([c.device_type for c in torchfl.chips()])
"""
    assert run(code, None).out == "['toy']\n['toy']\n"


def test_what_is_wrong_with_a_descriptor_is_raised_where_init_stands(toy, tmp_path):
    (tmp_path / "bad.yaml").write_text((toy / "toy.yaml").read_text().replace("supported_dtypes", "supported_dtype"))
    code = """
import sys, torchfl
try:
    torchfl.init()
except torchfl.DescriptorError as error:
    print("torch" in sys.modules, error)
import torch  # nothing is left over
print(torchfl.chips())
"""
    ran = run(code, tmp_path)
    assert ran.out.startswith("False ") and "did you mean 'supported_dtypes'" in ran.out, ran.out
    assert ran.out.endswith("[]\n") and ran.code == 0


def test_a_failure_after_import_torch_is_in_the_log_and_torch_is_there(toy, tmp_path):
    """What can only be seen once a module is loaded."""
    shutil.copy(toy / "toy.yaml", tmp_path)
    import sysconfig

    (tmp_path / f"toy_wrapper{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"\x7fELF nothing else")
    (tmp_path / "toy.yaml").write_text(
        (toy / "toy.yaml").read_text().replace(
            "{style: pybind}", f"{{style: pybind, library: toy_wrapper{sysconfig.get_config_var('EXT_SUFFIX')}}}"
        )
    )  # fmt: skip
    ran = run("import torchfl; torchfl.init(); import torch; print(torch.ones(2).sum().item())", tmp_path)
    assert ran.code == 0 and ran.out == "2.0\n", ran.err
    assert "toy_wrapper" in ran.err


def test_the_first_of_a_device_type_is_taken_and_the_others_are_told_of(toy, tmp_path):
    renamed(toy, tmp_path / "a", "xpu:one", "ONE")
    renamed(toy, tmp_path / "b", "xpu:two", "TWO")
    shutil.move(tmp_path / "b" / "xpu:two.yaml", tmp_path / "b" / "two.yaml")
    code = """
import logging, torch
logging.basicConfig(level=logging.INFO)
import torchfl
print([c.name for c in torchfl.init() if c.device_type == "xpu"])
torchfl.init()
"""
    ran = run(code, None, TORCHFL_DEVICE_DIR=os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert ran.out == "['ONE']\n"
    lines = [line for line in ran.err.splitlines() if "two.yaml" in line and "passed over" in line]
    assert lines and "device type 'xpu' is that of ONE" in lines[0]


def test_files_that_are_no_descriptors_are_left_alone(toy, tmp_path):
    shutil.copy(toy / "toy.yaml", tmp_path)
    (tmp_path / "compose.yaml").write_text("services:\n  web: {image: x}\n")
    (tmp_path / "notes.txt").write_text("chip:")
    assert run("import torchfl, torch; print(torchfl.init()[0].name)", tmp_path).out == "TOY\n"


def test_folders_go_before_the_named_chips(toy):
    code = "import torch, torchfl; print([c.device_type for c in torchfl.init()])"
    assert run(code, toy, TORCHFL_CHIPS="npu_v2").out == "['toy', 'npu_v2']\n"


@pytest.mark.parametrize("value", ["FOLDER", "str(FOLDER / 'toy.yaml')", "[FOLDER]", "lambda: [FOLDER]"])
def test_an_installed_distribution_brings_its_chip(toy, tmp_path, value):
    package, info = tmp_path / "toychips", tmp_path / "toychips-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    shutil.copy(toy / "toy.yaml", package)
    (package / "__init__.py").write_text(f"import pathlib\nFOLDER = pathlib.Path(__file__).parent\nCHIPS = {value}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toychips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchfl.chips]\ntoy = toychips:CHIPS\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import torch, torchfl
print([c.device_type for c in torchfl.init()][0], torchfl._registry.chips()[0].origin)
"""
    ran = run("import torchfl._registry\n" + code, None)
    assert ran.out == "toy toychips 1.0\n", ran.err


def test_an_entry_point_that_fails_costs_a_warning(tmp_path):
    info = tmp_path / "toychips-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toychips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchfl.chips]\ntoy = not_there_at_all\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torchfl; print(len(torchfl.init()) > 0)"
    ran = run(code, None)
    assert ran.out == "True\n" and "the chips of toychips 1.0 are not available" in ran.err


WORKERS = """
import sys
{init}

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        import torch
        return (torch.full((2,), float(i)).to("toy") + 1).cpu()

if __name__ == "__main__":
    import torch
    from torch.utils.data import DataLoader
    x = torch.ones(2)
    if sys.argv[1] == "spawn":
        x = x.to("toy")
    loader = DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.sum().item() for batch in loader], x.sum().item())
"""


@pytest.mark.parametrize(("method", "init"), [
    ("spawn", "import torchfl; torchfl.init()"), ("fork", "import torchfl; torchfl.init()"), ("spawn", ""),
])  # fmt: skip
def test_a_worker_that_calls_nothing_knows_the_chip_of_the_folder(toy, tmp_path, method, init):
    script = tmp_path / "script.py"
    script.write_text(WORKERS.format(init=init))
    code = f"import runpy, sys; sys.argv = ['script.py', {method!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
    if method == "spawn":  # the child imports the script again: it must be the main module
        import subprocess
        import sys

        from helpers import environment
        from x1_support import variables

        ran = subprocess.run(
            [sys.executable, script, method], env=environment(**variables(TORCHFL_DEVICE_DIR=str(toy))),
            capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert ran.stdout == "[6.0, 14.0] 2.0\n"
        return
    ran = run(code, toy)
    assert ran.code == 0, ran.err[-3000:]
    assert ran.out == "[6.0, 14.0] 2.0\n"


def test_a_script_with_two_chips_and_a_default_device(folder):  # noqa: F811
    code = """
import json, torchfl
torchfl.init()
import torch
answers = {}
torchfl.set_default_device("xpu")
answers["made"] = [str(torch.zeros(2).device), str(torch.accelerator.current_device_index())]
n = torch.ones(2, device="npu_v3")
answers["beside"] = [str(n.device.index), torch.equal(n.to("xpu").cpu(), torch.ones(2, device="cpu"))]
answers["back"] = torch.equal(n.to("xpu").to("npu_v3:0").cpu(), torch.ones(2, device="cpu"))
torchfl.set_default_device("npu_v3:0")
answers["other"] = [torch.zeros(2).device.index == n.device.index, torch.accelerator.current_device_index() == n.device.index]
torchfl.set_default_device(None)
answers["none"] = str(torch.zeros(2).device)
for wrong in ("cuda", "xpu:7", "nonsense"):
    try:
        torchfl.set_default_device(wrong)
    except torchfl.LoadError as error:
        answers[wrong] = str(error)
print(json.dumps(answers))
"""
    answers = told(run(code, folder, TORCHFL_CHIPS="npu_v3"))
    assert answers["made"] == ["xpu:0", "0"]
    assert answers["beside"] == ["1", True] and answers["back"] and answers["other"] == [True, True]
    assert answers["none"] == "cpu"
    for wrong in ("cuda", "xpu:7", "nonsense"):
        assert "there are: xpu:0, npu_v3:0, cpu" in answers[wrong]


def test_devices_and_doctor_know_the_folder(toy):
    import subprocess
    import sys

    from helpers import environment

    env = environment(TORCHFL_DEVICE_DIR=str(toy), TORCHFL_CHIPS="npu_v2")
    command = [sys.executable, "-m", "torchfl.cli"]
    listed = subprocess.run([*command, "devices", "--json"], env=env, capture_output=True, text=True, timeout=100)
    assert [row["device"] for row in json.loads(listed.stdout)] == ["toy:0", "npu_v2:0"], listed.stderr
    said = subprocess.run([*command, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=200)
    found = json.loads(said.stdout)["findings"]
    assert [f["detail"] for f in found if f["check"] == "TORCHFL_DEVICE_DIR"] == [f"{toy}: toy.yaml"]
    assert any(f["check"] == "adapter" and f["status"] == "fail" and "no wrapper module" in f["detail"] for f in found)
    env["TORCHFL_DEVICE_DIR"] = str(toy / "nowhere")
    said = subprocess.run([*command, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=200)
    (finding,) = [f for f in json.loads(said.stdout)["findings"] if f["check"] == "TORCHFL_DEVICE_DIR"]
    assert finding["status"] == "fail" and "No device YAML found in" in finding["detail"]


__all__ = ["device_folder", "log_lines"]
