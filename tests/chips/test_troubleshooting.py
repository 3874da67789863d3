"""Each row of the second origin document's table of problems, and each of its pitfalls, is provoked: what the user reads
must lead to the fix. docs/troubleshooting.md lists the same."""

import shutil
import subprocess

import pytest
from helpers import environment
from test_walkthrough_x1 import FILES, MAIN, folder, module  # noqa: F401
from x1_support import BUILD, device_folder, log_lines, run, sdk, told, variables

YAML = (FILES / "x1_device.yaml").read_text()


# ------------------------------------------------------------------ torch.xpu.is_available() is False


@pytest.mark.parametrize("what", ["empty", "missing", "other files"])
def test_no_device_file(tmp_path, what):
    place = tmp_path / "devices"
    if what != "missing":
        place.mkdir()
    if what == "other files":
        (place / "notes.txt").write_text("nothing")
    code = """
import torchfl
planned = torchfl.init()
import torch
print(planned, torch.xpu.is_available(), torchfl.chips(), torch.xpu.device_count.__module__, torch._C._has_torch_fl
      if hasattr(torch._C, "_has_torch_fl") else None)
"""
    ran = run(code, place)
    assert ran.code == 0
    assert ran.out.startswith("[] False [] torch.xpu"), ran.out + ran.err
    lines = [line for line in ran.err.splitlines() if f"No device YAML found in {place}" in line]
    assert len(lines) == 1 and "check TORCHFL_DEVICE_DIR" in lines[0]


# ------------------------------------------------------------------ dlopen failed


NEWER = """
#include <Python.h>
extern "C" {
#include "x1_runtime.h"
}
static PyObject* start(PyObject*, PyObject*) { return PyLong_FromLong(x1_init_v2(0)); }
static PyMethodDef methods[] = {{"x1_conv2d", start, METH_VARARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", "", -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_newer_wrapper() { return PyModule_Create(&module); }
"""


def torchfl_build(cwd, *args):
    return subprocess.run(
        [BUILD, *args], cwd=cwd, env=environment(**variables()), capture_output=True, text=True, timeout=100
    )


@pytest.fixture(scope="session")
def newer(tmp_path_factory):
    """A wrapper that needs what version 1.2 of the SDK calls x1_init_v2."""
    place = tmp_path_factory.mktemp("newer")
    (place / "newer_wrapper.cpp").write_text(NEWER)
    (place / "x1_device.yaml").write_text(YAML)
    runtime = str(sdk() / "lib" / "x1_runtime.so")
    built = torchfl_build(place, "--name", "newer_wrapper", "--sources", "newer_wrapper.cpp", "--link", runtime)
    assert built.returncode == 0, built.stderr
    return place


@pytest.mark.parametrize("first", ["torchfl", "torch"])
def test_a_runtime_of_another_version(newer, first):
    code = f"""
import {first}
import torchfl
try:
    torchfl.init()
except torchfl.LoadError as error:
    print(error)
"""
    old = str(sdk() / "lib" / "1.1")
    text = run(code, newer, X1_LIB_PATH=old).out
    assert "failed to load x1_runtime.so: undefined symbol: x1_init_v2" in text, text
    assert f"{old}/x1_runtime.so" in text and "(it has x1_init)" in text
    assert "the descriptor was written for version 1.2.0" in text
    assert f"nm -D {old}/x1_runtime.so | grep x1_init" in text
    # The hint is true: what it tells to run shows the difference, and pointing at the right version mends it.
    shown = subprocess.run(f"nm -D {old}/x1_runtime.so | grep x1_init", shell=True, capture_output=True, text=True)
    assert "x1_init" in shown.stdout and "x1_init_v2" not in shown.stdout
    assert run("import torchfl; print(torchfl.init()[0].name); import torch", newer).out == "X1-Edge\n"


def test_the_same_is_told_when_it_is_built(newer):
    old = str(sdk() / "lib" / "1.1" / "x1_runtime.so")
    include = str(sdk() / "include")
    args = ["--name", "older", "--sources", "newer_wrapper.cpp", "--link", old, "--include", include]
    built = torchfl_build(newer, *args)
    assert built.returncode == 1
    assert "no library or source given defines x1_init_v2" in built.stderr and "fix: " in built.stderr
    assert not list(newer.glob("older*.so"))


@pytest.mark.parametrize("value", ["/nowhere", None])
def test_a_runtime_that_is_not_there(newer, value):
    code = "import torchfl\ntry:\n    torchfl.init()\nexcept Exception as error:\n    print(type(error).__name__, error)"
    text = run(code, newer, X1_LIB_PATH=value).out if value else run(
        "import os; os.environ.pop('X1_LIB_PATH'); " + code.replace("\n", "\n"), newer
    ).out  # fmt: skip
    if value:
        assert text.startswith("LoadError X1-Edge: failed to load x1_runtime.so: /nowhere/x1_runtime.so does not exist")
        assert "Correct runtime_so in" in text
    else:
        assert "environment variable X1_LIB_PATH is not set" in text and "set it" in text


# ------------------------------------------------------------------ all results are zero


def test_a_layout_that_the_kernel_does_not_take_is_changed_and_told_of(module, tmp_path):  # noqa: F811
    text = YAML.replace('    impl: "x1_conv2d"\n', '    impl: "x1_conv2d"\n    layouts: ["NHWC"]\n')
    place = device_folder(tmp_path / "nhwc", module, text)
    code = """
import json, logging
logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
import torchfl; torchfl.init()
import torch
x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
for _ in range(2):
    y = torch.nn.functional.conv2d(x.to("xpu"), w.to("xpu"))
rows = [[r["path"], r["target"]] for r in torchfl.stats() if "conv" in r["op"]]
print(json.dumps([(y.cpu() - torch.nn.functional.conv2d(x, w)).abs().max().item(), rows]))
"""
    ran = run(code, place)
    error, rows = told(ran)
    assert error < 1e-4 and rows == [["native", "x1_conv2d"]]
    lines = [line for line in ran.err.splitlines() if "Tensor layout mismatch" in line]
    assert len(lines) == 1 and lines[0].startswith("INFO: Tensor layout mismatch: expected NHWC, got NCHW: 'input' of")
    assert "for x1_conv2d" in lines[0] and "channels_last" in lines[0]


# ------------------------------------------------------------------ slower than expected


def test_most_operators_on_the_cpu(folder):  # noqa: F811
    code = """
import torchfl; torchfl.init()
import torch
x = torch.randn(1, 3, 8, 8).to("xpu")
w = torch.randn(4, 3, 3, 3).to("xpu")
for _ in range(2):
    with torchfl.profiler.profile() as prof:
        for _ in range(2):
            y = torch.nn.functional.conv2d(x, w)
            for function in (torch.relu, torch.exp, torch.tanh, torch.sigmoid):
                y = function(y)
    table = prof.key_averages().table()
print(table.splitlines()[-1])
"""
    ran = run(code, folder)
    last = ran.out.splitlines()[-1]
    assert last.startswith("PROFILER: 80% ops falling back to CPU (aten::"), ran.out
    assert "which rows the descriptor's ops could take: torchfl explain" in last
    assert len([line for line in log_lines(ran.err) if line.startswith("PROFILER: 80% ops falling back to CPU")]) == 1


# ------------------------------------------------------------------ an operator that nothing runs


def test_the_error_of_an_unsupported_operator_is_the_documents(module, tmp_path):  # noqa: F811
    text = YAML.replace("fallback_policy:\n  default: \"cpu\"", "fallback_policy:\n  default: \"error\"").replace(
        'supported_ops:\n', 'supported_ops:\n  - name: "aten::bmm"\n    impl: "x1_conv2d"\n    dtype_support: ["float16"]\n'
    )  # fmt: skip
    place = device_folder(tmp_path / "bmm", module, text)
    code = """
import torchfl; torchfl.init()
import torch
a = torch.randn(2, 3, 3).to("xpu")
try:
    torch.bmm(a, a)
except torchfl.UnsupportedOpError as error:
    print(error)
"""
    text = run(code, place).out
    assert text == (
        "Op 'aten::bmm' not supported on device 'xpu:x1' with dtype 'float32'. Available dtypes: ['float16']. "
        "Suggested fix: cast input to torch.float16.\n"
    )


# ------------------------------------------------------------------ pitfalls, 5.3


def test_1_a_compiled_model_still_takes_the_chips_kernel(folder):  # noqa: F811
    code = """
import json
import torchfl; torchfl.init()
import torch
import torch._dynamo
torch._dynamo.config.suppress_errors = True
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
x = torch.randn(1, 3, 8, 8)
with torch.no_grad():
    expected = model(x)
    model.to("xpu")
    answers = []
    for options in ({}, {"fullgraph": True}):
        torch._dynamo.reset()
        torchfl.reset_stats()
        y = torch.compile(model, backend="torchfl", **options)(x.to("xpu"))
        answers.append([(y.cpu() - expected).abs().max().item(),
                        sorted({r["target"] for r in torchfl.stats() if "conv" in r["op"]})])
print(json.dumps(answers))
"""
    for error, targets in told(run(code, folder)):
        assert error < 1e-5 and targets == ["x1_conv2d"]


def test_6_a_device_file_that_extends_another(module, tmp_path):  # noqa: F811
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "x1_v1_device.yaml").write_text(YAML)
    shutil.copy(module, tmp_path / "v1")
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "x1_v2_device.yaml").write_text(
        'extends: "../v1/x1_v1_device.yaml"\ndriver_version: "2.0.0"\ncompute:\n  peak_tflops_fp16: 15.6\n'
    )
    ran = run(MAIN, tmp_path / "v2")
    assert ran.code == 0, ran.err[-3000:]
    row = next(line for line in ran.out.splitlines() if line.startswith("aten::conv"))
    assert row.split()[1:3] == ["native", "x1_conv2d"]


