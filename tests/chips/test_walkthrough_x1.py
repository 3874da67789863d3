"""The second origin document's walkthrough, chapter 3, runs as it stands: device file, wrapper, build line, program.

The wrapper has one function, the convolution; x1_add, x1_mul and custom_softmax_x1, which the device file names too, do
not exist in it. So every convolution that the device file allows must be native `x1_conv2d`, and everything else must
run on the CPU, be counted there, and be right.
"""

import hashlib
import shutil

import pytest
from helpers import ROOT, run_script
from test_walkthrough_npu_v3 import build as build_npu
from x1_support import DIGESTS, FILES, build, device_folder, log_lines, run, told, variables

MAIN = (FILES / "main.py").read_text()

#: Runs main.py, then says what the process knows.
PROGRAM = """
import json, runpy, sys
ran = runpy.run_path(sys.argv[1], run_name="__main__")
import torch, torchfl
x, model, y = ran["input_tensor"], ran["model"], ran["output"]
rows = torchfl.stats()
with torch.no_grad():
    expected = model.cpu()(x.cpu())
chip = torchfl.chips()[0]
print(json.dumps({
    "stats": rows, "error": (y.cpu() - expected).abs().max().item(), "device": str(y.device), "type": y.device.type,
    "accelerator": str(torch.accelerator.current_accelerator()), "name": chip.name, "labels": chip.labels,
    "profiled": [[r["op"], r["path"], r["kernel"]] for r in ran["prof"].rows()]}))
"""


@pytest.fixture(scope="session")
def module():
    return build(FILES / "x1_wrapper.cpp", ROOT / "build" / "walkthrough" / "x1", "x1_wrapper")


@pytest.fixture(scope="session")
def folder(module, tmp_path_factory):
    return device_folder(tmp_path_factory.mktemp("x1_device_dir"), module)


@pytest.fixture(scope="session")
def verbatim(folder):
    ran = run(PROGRAM.replace("sys.argv[1]", repr(str(FILES / "main.py"))), folder)
    answer = told(ran)
    return {"printed": ran.out.splitlines()[:-1], "err": ran.err, **answer}


def test_the_files_are_those_of_the_document():
    assert {name: hashlib.sha256((FILES / name).read_bytes()).hexdigest()[:16] for name in DIGESTS} == DIGESTS


def test_it_prints_what_its_comments_say(verbatim):
    assert verbatim["printed"][:3] == ["XPU available: True", "False", "Output shape: torch.Size([1, 64, 111, 111])"]


def test_its_table_shows_the_convolution_as_native(verbatim):
    row = next(line for line in verbatim["printed"] if line.startswith("aten::conv"))
    assert row.split()[1:3] == ["native", "x1_conv2d"]
    assert ["aten::convolution", "native", "x1_conv2d"] in verbatim["profiled"]


def test_no_convolution_runs_elsewhere(verbatim):
    rows = [r for r in verbatim["stats"] if "conv" in r["op"]]
    assert [(r["path"], r["target"], r["calls"]) for r in rows] == [("native", "x1_conv2d", 2)]


def test_its_result_is_the_cpus(verbatim):
    assert verbatim["error"] < 1e-4


def test_the_device_is_called_as_the_device_file_says(verbatim):
    assert (verbatim["device"], verbatim["type"], verbatim["accelerator"]) == ("xpu:0", "xpu", "xpu")
    assert (verbatim["name"], verbatim["labels"]) == ("X1-Edge", ["xpu:0"])


def test_a_fallback_that_does_not_exist_is_one_warning(verbatim):
    lines = [line for line in log_lines(verbatim["err"]) if "custom_softmax_x1" in line]
    assert len(lines) == 1 and "has a function of that name" in lines[0] and "go to the CPU" in lines[0]


def test_kernels_that_do_not_exist_are_one_warning(verbatim):
    lines = [line for line in log_lines(verbatim["err"]) if "x1_add" in line]
    assert len(lines) == 1 and "x1_add, x1_mul" in lines[0] and "x1_conv2d" not in lines[0]


# ------------------------------------------------------------------------------------------- more of the same program


CALLS = """
import json
import torchfl
torchfl.init()
import torch
import torch.nn.functional as F

told = {}
torch.manual_seed(0)

def case(name, x, w, b, **how):
    torchfl.reset_stats()
    expected = F.conv2d(x.float(), w.float(), None if b is None else b.float(), **how)
    before = [x.clone(), w.clone()]
    X, W = x.to("xpu"), w.to("xpu")
    B = None if b is None else b.to("xpu")
    y = F.conv2d(X, W, B, **how)
    rows = [r for r in torchfl.stats() if "conv" in r["op"]]
    told[name] = {
        "rows": [[r["path"], r["target"], r["reason"]] for r in rows], "dtype": str(y.dtype),
        "error": (y.cpu().float() - expected).abs().max().item(), "contiguous": y.is_contiguous(),
        "unchanged": torch.equal(X.cpu(), before[0]) and torch.equal(W.cpu(), before[1]),
    }

x, w, b = torch.randn(2, 4, 9, 11), torch.randn(8, 4, 3, 3), torch.randn(8)
case("plain", x, w, b)
case("no bias", x, w, None)
case("stride 2", x, w, b, stride=2)
case("stride 2 and 1", x, w, b, stride=(2, 1))
case("padding 2", x, w, b, padding=(1, 2))
case("same", x, w, b, padding="same")
case("groups 2", x, torch.randn(8, 2, 3, 3), b, groups=2)
case("groups 4", x, torch.randn(8, 1, 3, 3), b, groups=4)
case("channels last", x.to(memory_format=torch.channels_last), w, b)
case("a slice", x[:, :, 1:8, 2:9], w, b)
case("stride 3", x, w, b, stride=3)
case("padding 3", x, w, b, padding=3)
try:  # which the device file does not exclude, and the SDK refuses
    F.conv2d(x.to("xpu"), w.to("xpu"), dilation=2)
except RuntimeError as error:
    told["dilation 2"] = str(error)
case("float64", x.double(), w.double(), b.double())
case("one image", x[0], w, b)

torchfl.reset_stats()
y = F.conv_transpose2d(x.to("xpu"), torch.randn(4, 2, 3, 3).to("xpu"))
told["transposed"] = [[r["path"], r["reason"]] for r in torchfl.stats() if "conv" in r["op"]]
torchfl.reset_stats()
s = torch.softmax(x.to("xpu"), 1)
told["softmax"] = [(s.cpu() - torch.softmax(x, 1)).abs().max().item(), *sorted({r["path"] for r in torchfl.stats()})]

# In a network that learns: the function is below autograd.
net = torch.nn.Conv2d(4, 8, 3)
twin = torch.nn.Conv2d(4, 8, 3)
twin.load_state_dict(net.state_dict())
twin.to("xpu")
for model, data in ((net, x), (twin, x.to("xpu"))):
    model(data).square().mean().backward()
told["gradient"] = (net.weight.grad - twin.weight.grad.cpu()).abs().max().item()
told["explain"] = torchfl.explain("aten::conv2d", torch.empty(1, 3, 8, 8, device="meta"),
                                  torch.empty(4, 3, 3, 3, device="meta"),
                                  None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, device="xpu")
with torch.no_grad():
    compiled = torch.compile(twin, backend="eager")
    told["compiled"] = (compiled(x.to("xpu")).cpu() - net(x)).abs().max().item()
try:
    with torchfl.strict():
        torch.bmm(x[0].to("xpu"), x[0].to("xpu").transpose(1, 2))
except torchfl.UnsupportedOpError as error:
    told["strict"] = str(error)
print(json.dumps(told))
"""


@pytest.fixture(scope="session")
def calls(folder):
    ran = run(CALLS, folder)
    return {"err": ran.err, **told(ran)}


NATIVE = ["plain", "no bias", "stride 2", "stride 2 and 1", "padding 2", "same", "groups 2", "groups 4"]
NATIVE += ["channels last", "a slice", "one image"]
ELSEWHERE = {"stride 3": "stride", "padding 3": "padding", "float64": "float64"}


@pytest.mark.parametrize("name", NATIVE)
def test_a_convolution_that_the_device_file_allows_is_native(calls, name):
    case = calls[name]
    assert [row[:2] for row in case["rows"]] == [["native", "x1_conv2d"]]
    assert case["error"] < 1e-4 and case["unchanged"] and case["dtype"] == "torch.float32"


@pytest.mark.parametrize("name", ELSEWHERE)
def test_one_that_it_does_not_allow_runs_on_the_cpu_and_says_why(calls, name):
    case = calls[name]
    assert [row[0] for row in case["rows"]] == ["cpu"]
    assert ELSEWHERE[name] in case["rows"][0][2]
    assert case["error"] < 1e-4


def test_what_the_sdk_refuses_is_an_error_though_the_wrapper_does_not_look(calls):
    assert "its kernel x1_conv2d returned float32[0, 0, 0, 0], expected float32[2, 8, 5, 7]" in calls["dilation 2"]
    assert "Has the SDK refused the call?" in calls["dilation 2"] and "constraints" in calls["dilation 2"]


def test_a_transposed_convolution_is_another_operator(calls):
    assert calls["transposed"][0][0] == "cpu" and "transposed" in calls["transposed"][0][1]


def test_a_softmax_without_its_fallback_is_right(calls):
    assert calls["softmax"][0] < 1e-6 and "cpu" in calls["softmax"]


def test_gradients_are_the_cpus(calls):
    assert calls["gradient"] < 1e-4


def test_it_is_explained(calls):
    assert (calls["explain"]["path"], calls["explain"]["target"]) == ("native", "x1_conv2d")


def test_a_compiled_model_is_right(calls):
    assert calls["compiled"] < 1e-4


def test_strict_mode_names_operator_and_device(calls):
    assert "aten::bmm" in calls["strict"] and "'xpu:x1'" in calls["strict"] and "Suggested fix" in calls["strict"]


# ------------------------------------------------------------------------------------------- the document's own list


OWN_LIST = '["float16", "int8"]'


@pytest.fixture(scope="session")
def own_list(module, tmp_path_factory):
    text = (FILES / "x1_device.yaml").read_text()
    assert text.count('dtype_support: ["float32", "float16", "int8"]') == 1
    text = text.replace('dtype_support: ["float32", "float16", "int8"]', f"dtype_support: {OWN_LIST}")
    return device_folder(tmp_path_factory.mktemp("x1_own_list"), module, text)


def test_with_the_documents_own_dtypes_it_runs_and_the_log_says_what_was_done(own_list):
    ran = run(MAIN, own_list)
    assert ran.code == 0, ran.err[-3000:]
    assert ran.out.splitlines()[:3] == [
        "XPU available: True", "False", "Output shape: torch.Size([1, 64, 111, 111])",
    ]  # fmt: skip
    lines = [line for line in log_lines(ran.err) if line.startswith("aten::convolution")]
    assert len(lines) == 1, ran.err
    assert "runs on the CPU: float32 is not a dtype of x1_conv2d (float16, int8)" in lines[0]
    row = next(line for line in ran.out.splitlines() if line.startswith("aten::convolution"))
    assert row.split()[1] == "cpu"


def test_a_wrapper_that_reads_another_dtype_is_told_so(own_list):
    code = """
import torchfl; torchfl.init()
import torch
x, w = torch.randn(1, 3, 8, 8).half().to("xpu"), torch.randn(4, 3, 3, 3).half().to("xpu")
try:
    torch.nn.functional.conv2d(x, w)
except RuntimeError as error:
    print(error)
"""
    text = run(code, own_list).out
    assert "aten::conv2d on xpu:0 (X1-Edge): x1_conv2d" in text
    assert "reads float32 and was given float16" in text and "dtype_support of aten::conv2d" in text


# ------------------------------------------------------------------------------------------- both documents at once


BOTH = """
import json, runpy, sys
folder, main = sys.argv[1:]
sys.path.insert(0, folder)
sys.argv = ["run_resnet50.py", folder + "/npu_v3.hcd"]
runpy.run_path(folder + "/run_resnet50.py", run_name="__main__")
runpy.run_path(main, run_name="__main__")
import torch, torchfl
a = torch.randn(4, 8).half()
there = a.to("npu_v3:0")
back = there.to("xpu").to("npu_v3:0")
added = there + back
rows = torchfl.stats()
print(json.dumps({
    "devices": [str(there.device), str(there.to("xpu").device)], "sum": torch.equal(added.cpu(), a + a),
    "native": sorted({r["target"] for r in rows if r["path"] == "native"}),
    "counts": [torch.npu_v3.device_count(), torch.xpu.device_count()],
    "adapters": [c.adapter for c in torchfl.chips() if c.device_type in ("npu_v3", "xpu")],
}))
"""


def test_both_walkthroughs_in_one_process(folder):
    npu = build_npu(ROOT / "build" / "walkthrough" / "npu_v3")
    env = variables(TORCHFL_DEVICE_DIR=str(folder))
    ran = run_script(BOTH, str(npu), str(FILES / "main.py"), env=env)
    answer = told(ran)
    assert ran.out.splitlines()[:8] == [
        "True", "0", "1", "torch.Size([32, 1000])", "npu_v3:0",
        "XPU available: True", "False", "Output shape: torch.Size([1, 64, 111, 111])",
    ]  # fmt: skip
    assert answer["sum"] and answer["counts"] == [1, 1] and answer["devices"] == ["npu_v3:0", "npu_v3:1"]
    assert {"x1_conv2d", "aten::add.Tensor"} <= set(answer["native"])
    assert str(npu) in answer["adapters"][0] and str(folder) in answer["adapters"][1]


def test_moving_the_folder_and_the_sdk_takes_an_environment_variable_only(module, tmp_path):
    """As in a container, where the vendor's library lies somewhere else than where the wrapper was built."""
    from x1_support import sdk

    text = (FILES / "x1_device.yaml").read_text().replace("$X1_LIB_PATH", "$LIB_PATH")
    libraries = tmp_path / "usr" / "lib"
    libraries.mkdir(parents=True)
    shutil.copy(sdk() / "lib" / "x1_runtime.so", libraries)
    moved = device_folder(tmp_path / "opt" / "devices", module, text)
    code = MAIN + "\nprint(open('/proc/self/maps').read().count('usr/lib/x1_runtime.so'), flush=True)"
    ran = run(code, moved, LIB_PATH=str(libraries), X1_LIB_PATH="/nowhere")
    assert ran.code == 0, ran.err[-3000:]
    assert "Output shape: torch.Size([1, 64, 111, 111])" in ran.out
    assert int(ran.out.splitlines()[-1]) > 0
