"""devices, explain, doctor and run on the shipped chips. Needs the native part, and fails without it."""

import sys
from pathlib import Path

import pytest

EXPLAIN = {
    "add": ["aten::add", "--device", "npu_v3", "--dtype", "float32", "--shape", "4,4"],
    "add_complex": ["add", "-d", "npu_v3:0", "--dtype", "complex64"],
    "number": ["mul", "-d", "npu_v3", "--arg", "other=2"],
    "conv": ["aten::conv2d", "-d", "npu_v3", "--shape", "1,3,32,32", "--shape", "8,3,3,3", "--arg", "stride=3"],
    "linear": ["linear", "-d", "npu_v3", "--dtype", "float16", "--shape", "8,16"],
    "loss": ["cross_entropy_loss", "-d", "npu_v3", "--shape", "8,10"],
    "norm": ["batch_norm", "-d", "npu_v3", "--shape", "2,3,8,8"],
    "embedding": ["embedding", "-d", "npu_v3", "--shape", "100,16"],
    "list": ["cat", "-d", "npu_v3", "--shape", "2,3", "--shape", "4,3"],
    "index": ["index_select", "-d", "npu_v3", "--arg", "index=int32[2]", "--arg", "dim=0"],
    "optionals": ["aten::index", "-d", "npu_v3", "--shape", "4,4", "--shape", "2"],
    "unknown": ["aten::conv22d", "-d", "npu_v3"],
    "no_overload": ["aten::add.Nosuch", "-d", "npu_v3"],
    "no_argument": ["add", "-d", "npu_v3", "--arg", "alfa=2"],
    "no_guess": ["aten::_fft_c2c", "-d", "npu_v3"],
    "misfit": ["add", "-d", "npu_v3", "--shape", "2,3", "--shape", "4,5"],
    "bad_shape": ["add", "-d", "npu_v3", "--shape", "two"],
    "bad_dtype": ["add", "-d", "npu_v3", "--dtype", "float23"],
    "bad_arg": ["add", "-d", "npu_v3", "--arg", "alpha"],
    "no_device": ["add", "-d", "npu_v3:7"],
    "no_chip": ["add", "-d", "npu_v9"],
}


@pytest.fixture(scope="module")
def said(batch):
    commands = {"devices": ["devices"], "devices_json": ["devices", "--json"]}
    commands |= {name: ["explain", *args] for name, args in EXPLAIN.items()}
    commands |= {f"{name}_json": ["explain", *args, "--json"] for name, args in EXPLAIN.items()}
    return batch(commands)


# ---------------------------------------------------------------------------------------------- devices


def test_devices(said):
    result = said["devices"]
    assert result.code == 0
    assert all(word in result.out for word in ("device", "chip", "SDK", "npu_v3:0", "NPU-V3", "1.2.", "GiB"))
    rows = said["devices_json"].json()
    row = next(r for r in rows if r["device"] == "npu_v3:0")
    assert row["chip"] == "NPU-V3" and row["memory_bytes"] > 1 << 30 and row["abi"].startswith("1.")
    assert Path(row["adapter"]).is_absolute() and Path(row["descriptor"]).is_absolute()
    assert 0 <= row["utilization"] <= 1


def test_two_simulated_devices_of_the_chip_that_the_environment_names(torchfl):
    result = torchfl("devices", "--json", env={"NPU_SIM_DEVICES": "2", "TORCHFL_CHIPS": "npu_v3"})
    assert [r["device"] for r in result.json()] == ["npu_v3:0", "npu_v3:1"]


def test_no_device_is_an_error(torchfl):
    result = torchfl("devices", "--chip", "npu_v3", env={"NPU_SIM_DEVICES": "0"})
    assert result.code == 1 and "doctor" in result.err and "Traceback" not in result.err


# ---------------------------------------------------------------------------------------------- explain


def test_a_native_call(said):
    assert said["add"].code == 0
    assert "aten::add.Tensor(self=float32[4,4], other=float32[4,4]) on npu_v3:0" in said["add"].out
    data = said["add_json"].json()
    assert data["device"] == "npu_v3:0" and data["path"] == "native" and data["target"] == "npu_v3_add"


def test_why_a_better_path_is_not_taken(said):
    data = said["add_complex_json"].json()
    assert data["path"] != "native"
    native = data["operators"][0]["attempts"][0]
    assert native["path"] == "native" and not native["taken"] and "complex64" in native["reason"]
    assert "complex64 is not a dtype of npu_v3_add" in said["add_complex"].out
    assert "stride is 3" in said["conv"].out and "steps by 1, 2 or 4" in said["conv"].out


def test_operators_that_pytorch_takes_apart(said):
    assert [o["op"] for o in said["loss_json"].json()["operators"]] == ["aten::_log_softmax", "aten::nll_loss_forward"]
    assert said["linear_json"].json()["operators"][-1]["path"] == "native"
    assert "target" not in said["loss_json"].json()  # there is no one answer
    assert said["embedding_json"].json()["operators"][0]["op"] in ("aten::index_select", "aten::embedding")


def test_arguments_are_made_to_fit_and_shown(said):
    assert "weight=float16[16,16]" in said["linear"].out
    assert "target=int64[8]" in said["loss"].out
    assert "running_mean=float32[3]" in said["norm"].out
    assert "index=int32[2]" in said["index"].out and "dim=0" in said["index"].out
    assert "[float32[2,3], float32[4,3]]" in said["list"].out
    assert "indices=[int64[2]]" in said["optionals"].out
    assert "other=2" in said["number"].out and said["number_json"].json()["path"] == "native"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unknown", "no operator 'aten::conv22d'; did you mean 'aten::conv2d'?"),
        ("no_overload", "add has no overload 'Nosuch'; it has"),
        ("no_argument", "no form has an argument alfa"),
        ("no_guess", "cannot tell how to call aten::_fft_c2c"),
        ("misfit", "these arguments are refused:"),
        ("bad_shape", "--shape two: write sizes with commas"),
        ("bad_dtype", "'float23' is no dtype"),
        ("bad_arg", "--arg alpha: write NAME=VALUE"),
        ("no_device", "npu_v3:7: NPU-V3 has 1 device(s): npu_v3:0"),
        ("no_chip", "no chip 'npu_v9'"),
    ],
)
def test_explain_says_what_is_wrong(said, name, text):
    for result in (said[name], said[f"{name}_json"]):
        assert result.code == 1 and not result.out and result.err.startswith("error: ")
        assert text in result.err


def test_forms_are_listed_when_there_is_no_guess(said):
    assert "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor" in said["no_argument"].err


# ---------------------------------------------------------------------------------------------- doctor


def test_the_doctor_finds_nothing_wrong(torchfl):
    result = torchfl("doctor")
    assert result.code == 0, result.out
    assert "fail" not in result.out and result.err == "everything is in place\n"
    for words in (
        "Python: 3.",
        "PyTorch: 2.",
        "npu_v3: descriptor: NPU-V3",
        "SDK 1.2.",
        "right on npu_v3:0, by the native path",
    ):
        assert words in result.out


def test_the_doctor_names_a_wrong_torch(cli, monkeypatch):
    from torchfl.cli import doctor

    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.1")
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # what is imported goes before what is installed
    monkeypatch.setattr(doctor, "_probe", lambda chips: pytest.fail("nothing may be loaded then"))
    result = cli("doctor", "--json")
    (wrong,) = (f for f in result.json()["findings"] if f["status"] == "fail")
    assert result.code == 1 and wrong["check"] == "PyTorch"
    assert "2.13" in wrong["detail"] and "2.9.1" in wrong["detail"] and "pip install" in wrong["fix"]


def test_the_doctor_without_torch_or_native_part(cli, monkeypatch):
    from importlib import metadata

    from torchfl import _paths
    from torchfl.errors import LoadError

    def missing(*_):
        raise metadata.PackageNotFoundError("torch")

    def unbuilt():
        raise LoadError("Torch-FL's native part is not built.")

    monkeypatch.setattr("importlib.metadata.version", missing)
    monkeypatch.setattr(_paths, "native_root", unbuilt)
    result = cli("doctor")
    assert result.code == 1 and "2 problems found" in result.err
    assert "PyTorch: not installed" in result.out and "native part is not built" in result.out
    assert result.out.count("fix: ") == 2


# ---------------------------------------------------------------------------------------------- run

SCRIPT = """
import sys, torch
x = torch.ones(4, device="npu_v3:0") + 1
print(__name__, sys.argv, sys.path[0], x.device, x.sum().item())
raise SystemExit(int(sys.argv[-1]))
"""


def test_a_script_sees_what_python_would_show_it(torchfl, tmp_path):
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "s.py").write_text(SCRIPT)
    result = torchfl(
        "run", "--chip", "npu_v3", "scripts/s.py", "--chip", "x", "-m", "--help", "7", env={"TORCH_FL_DEBUG": "1"}
    )
    assert result.code == 7, result.err
    argv = ["scripts/s.py", "--chip", "x", "-m", "--help", "7"]
    assert result.out == f"__main__ {argv} {folder} npu_v3:0 8.0\n"
    assert "[SME] Mapping aten::add" in result.err


def test_a_module(torchfl, tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "mod.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    result = torchfl("run", "--chip=npu_v3", "-m", "pack.mod", "-c", "x", "--json")
    assert (result.code, result.out) == (0, "__main__ pack ['-c', 'x', '--json']\n"), result.err


def test_a_traceback_is_the_scripts_own(torchfl, tmp_path):
    (tmp_path / "s.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    result = torchfl("run", "-c", "npu_v3", "s.py")
    assert result.code == 1
    lines = result.err.splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "ZeroDivisionError: division by zero"
    assert [line for line in lines if line.startswith("  File")] == [
        '  File "s.py", line 4, in <module>',
        '  File "s.py", line 2, in f',
    ]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["none.py"], 2, "none.py: there is no such file"),
        (["-m", "nosuch_module"], 1, "error: No module named nosuch_module"),
        (["--chip", "npu_v9", "-m", "this"], 1, "error: no chip 'npu_v9'"),
    ],
)
def test_what_cannot_be_run(torchfl, args, code, text):
    result = torchfl("run", *args, env={"TORCHFL_CHIPS": "npu_v3"})
    assert result.code == code and text in result.err and "Traceback" not in result.err and not result.out
