"""The first origin document's walkthrough, chapter 4, runs as it stands: descriptor, adapter, build script and program.

The adapter has one kernel, the addition of two contiguous float16 tensors of one shape. So every such addition must be
mapped to it, and everything else must run on the CPU, be counted there, and be right.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, environment, run_script

FILES = Path(__file__).parent / "walkthrough_npu_v3"
#: The document's files by the start of their SHA-256.
DIGESTS = {
    "setup.py": "785ec365f33052d8",
    "uba_npu_v3.cpp": "41d2e4146261f376",
    "run_resnet50.py": "6d7f38d954d93447",
    "npu_v3.hcd": "3cb6a8d2dd51e50d",
}


def build(folder):
    """Builds the adapter by its own setup.py, unless these very sources were built there before."""
    import torch

    from torchfl._paths import get_include, sdk_dir

    digest = hashlib.sha256(torch.__version__.encode())
    for path in [*(FILES / name for name in DIGESTS), *sorted(Path(get_include()).rglob("*.h"))]:
        digest.update(path.read_bytes())
    digest.update((sdk_dir("npu") / "include" / "npu_v3_sdk.h").read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in DIGESTS:
            shutil.copy(FILES / name, folder)
        built = folder / "built"
        if not (built.exists() and built.read_text() == digest.hexdigest() and list(folder.glob("uba_npu_v3*.so"))):
            for old in folder.glob("uba_npu_v3*.so"):
                old.unlink()
            command = [sys.executable, "setup.py", "build_ext", "--inplace"]
            env = environment(NPU_SDK_ROOT=str(sdk_dir("npu")), MAX_JOBS="2")
            ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
            assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
            built.write_text(digest.hexdigest())
    return folder


@pytest.fixture(scope="session")
def walkthrough():
    return build(ROOT / "build" / "walkthrough" / "npu_v3")


PROGRAM = """
import json, runpy, sys
folder = sys.argv[1]
sys.path.insert(0, folder)
sys.argv = ["run_resnet50.py", folder + "/npu_v3.hcd"]
ran = runpy.run_path(folder + "/run_resnet50.py", run_name="__main__")

import torch, torchfl
rows = torchfl.stats()
model, x, y = ran["model"], ran["x"], ran["y"]
with torch.no_grad():
    expected = model.cpu()(x[:2].cpu().float()).logits
ours = y[:2].cpu().float()
print("JSON" + json.dumps({
    "stats": rows, "dtype": str(y.dtype),
    "error": (ours - expected).abs().max().item(), "size": expected.abs().max().item(),
    "weights": str(model.resnet.embedder.embedder.convolution.weight.dtype), "chip": torchfl.chips()[0].__dict__}))
"""


@pytest.fixture(scope="session")
def verbatim(walkthrough):
    """What the program of the document prints, and what this process then knows about it."""
    ran = run_script(PROGRAM, str(walkthrough), env={"TORCH_FL_DEBUG": "1"}, timeout=300)
    assert ran.code == 0, ran.err[-4000:]
    printed, _, told = ran.out.partition("JSON")
    return {"printed": printed.splitlines(), "err": ran.err, **json.loads(told)}


def test_the_files_are_those_of_the_document():
    """They may not be adapted to us: only what a user fills in may differ, and nothing here does."""
    assert {name: hashlib.sha256((FILES / name).read_bytes()).hexdigest()[:16] for name in DIGESTS} == DIGESTS


def test_it_prints_what_its_comments_say(verbatim):
    """It runs on a machine without CUDA, on 1 device."""
    assert verbatim["printed"] == ["True", "0", "1", "torch.Size([32, 1000])", "npu_v3:0"]


def test_the_descriptor_of_the_document_is_read_with_warnings_for_its_legacy_forms(verbatim):
    assert "warning" in verbatim["err"].lower() or "peak_gflops" in verbatim["err"]
    assert verbatim["chip"]["name"] == "NPU-V3" and verbatim["chip"]["count"] == 1


def test_every_addition_is_mapped_to_the_adapter(verbatim):
    additions = [r for r in verbatim["stats"] if r["op"].split(".")[0] in ("aten::add", "aten::add_")]
    assert {r["path"] for r in additions} == {"native"}
    assert {r["target"] for r in additions} == {"aten::add.Tensor"}
    assert sum(r["calls"] for r in additions) == 16  # one for each block of ResNet-50
    assert re.search(r"\[SME\] Mapping aten::add\S* -> aten::add\.Tensor \(layout=\w+, dtype=fp16\)", verbatim["err"])


def test_the_rest_runs_on_the_cpu_and_is_counted(verbatim):
    calls = {}
    for row in verbatim["stats"]:
        if row["path"] == "cpu":
            assert row["reason"], row
            name = row["op"].split(".")[0].removeprefix("aten::")
            calls[name] = calls.get(name, 0) + row["calls"]
    assert sum(n for name, n in calls.items() if "convolution" in name) == 53
    assert sum(n for name, n in calls.items() if "batch_norm" in name) == 53
    assert sum(n for name, n in calls.items() if "relu" in name) == 49
    assert calls["addmm"] == 1
    natives = {r["op"] for r in verbatim["stats"] if r["path"] == "native" and r["target"] == "aten::add.Tensor"}
    assert natives <= {"aten::add.Tensor", "aten::add_.Tensor"}


def test_the_log_says_each_detour_once(verbatim):
    lines = [line for line in verbatim["err"].splitlines() if "runs on the CPU" in line]
    assert len([line for line in lines if line.startswith("aten::convolution")]) == 1
    assert len(set(lines)) == len(lines)


def test_float16_input_and_float32_weights_meet_in_the_inputs_dtype(verbatim):
    assert verbatim["weights"] == "torch.float32"
    assert verbatim["dtype"] == "torch.float16"


def test_its_logits_are_the_cpus_within_the_tolerance_of_float16(verbatim):
    assert verbatim["error"] <= 2e-2 * max(verbatim["size"], 1)


SMALLER = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import torch_fl, torchfl
torch_fl.load_hcd(sys.argv[1] + "/npu_v3.hcd")
torch_fl.load_uba("npu_v3")
from transformers import ResNetConfig, ResNetForImageClassification

told = {}
D = "npu_v3:0"

def paths(name, call):
    torchfl.reset_stats()
    result = call()
    told[name] = {"rows": [[r["op"], r["path"], r["target"], r["reason"], r["calls"]] for r in torchfl.stats()
                           if "add" in r["op"].split(".")[0] and "addmm" not in r["op"]],
                  "value": result.float().cpu().tolist(), "dtype": str(result.dtype), "device": str(result.device)}

def half(*size):
    return (torch.arange(torch.Size(size).numel()).view(size) / 4).half()

a, b = half(3, 4), half(3, 4) * 2 + 1
A, B = a.to(D), b.to(D)
paths("plain", lambda: A + B)
paths("in place", lambda: A.clone().add_(B))
paths("out", lambda: torch.add(A, B, out=torch.empty(3, 4, dtype=torch.float16, device=D)))
paths("augmented", lambda: torch.ops.aten.add.Tensor(A, B))
paths("alpha", lambda: torch.add(A, B, alpha=2))
paths("alpha in place", lambda: A.clone().add_(B, alpha=2))
paths("broadcast", lambda: A + B[0])
paths("broadcast column", lambda: A + B[:, :1])
paths("number", lambda: A + 2)
paths("bfloat16", lambda: A.bfloat16() + B.bfloat16())
paths("float32", lambda: A.float() + B.float())
paths("mixed", lambda: A + B.float())
paths("int8", lambda: A.to(torch.int8) + B.to(torch.int8))
paths("transposed", lambda: A.t() + B.t())
paths("transposed and not", lambda: A.view(4, 3) + B.t())
paths("stepped", lambda: A[:, ::2] + B[:, ::2])
paths("offset", lambda: A[1:] + B[:-1])
paths("empty", lambda: A[:0] + B[:0])
paths("scalar tensors", lambda: A[0, 1] + B[0, 1])
paths("onto itself", lambda: A + A)
told["unchanged"] = [A.tolist() == a.tolist(), B.tolist() == b.tolist()]

torch.manual_seed(0)
config = ResNetConfig(num_labels=10, embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 2, 1, 1])
model = ResNetForImageClassification(config).eval()
x = torch.randn(4, 3, 64, 64)
with torch.no_grad():
    expected = model(x).logits
    model.to(D)
    torchfl.reset_stats()
    for _ in range(3):
        y = model(x.half().to(D)).logits
told["model"] = {"error": (y.float().cpu() - expected).abs().max().item(), "size": expected.abs().max().item(),
                 "rows": [[r["op"], r["path"], r["target"], r["calls"]] for r in torchfl.stats()]}
print(json.dumps(told))
"""


@pytest.fixture(scope="session")
def smaller(walkthrough):
    ran = run_script(SMALLER, str(walkthrough))
    assert ran.code == 0, ran.err[-4000:]
    return json.loads(ran.out)


def expected_values():
    import torch

    def half(*size):
        return (torch.arange(torch.Size(size).numel()).view(size) / 4).half()

    a, b = half(3, 4), half(3, 4) * 2 + 1
    return {
        "plain": a + b, "in place": a + b, "out": a + b, "augmented": a + b, "alpha": torch.add(a, b, alpha=2),
        "alpha in place": torch.add(a, b, alpha=2), "broadcast": a + b[0], "broadcast column": a + b[:, :1],
        "number": a + 2, "bfloat16": a.bfloat16() + b.bfloat16(), "float32": a.float() + b.float(),
        "mixed": a + b.float(), "int8": a.to(torch.int8) + b.to(torch.int8), "transposed": a.t() + b.t(),
        "transposed and not": a.view(4, 3) + b.t(), "stepped": a[:, ::2] + b[:, ::2], "offset": a[1:] + b[:-1],
        "empty": a[:0] + b[:0], "scalar tensors": a[0, 1] + b[0, 1], "onto itself": a + a,
    }  # fmt: skip


CASES = list(expected_values())
MAPPED = ["plain", "in place", "out", "augmented", "onto itself"]
ELSEWHERE = ["alpha", "alpha in place", "broadcast", "broadcast column", "bfloat16", "float32", "mixed", "int8"]


@pytest.mark.parametrize("name", CASES)
def test_every_form_of_an_addition_is_right(smaller, name):
    expected = expected_values()[name]
    assert smaller[name]["value"] == expected.float().tolist()
    assert smaller[name]["dtype"] == str(expected.dtype)
    assert smaller[name]["device"] == "npu_v3:0"


@pytest.mark.parametrize("name", MAPPED)
def test_the_additions_that_the_handler_was_written_for_are_mapped(smaller, name):
    assert [(path, target, calls) for _, path, target, _, calls in smaller[name]["rows"]] == [
        ("native", "aten::add.Tensor", 1)
    ]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_addition_that_it_was_not_written_for_takes_the_cpu_with_a_reason(smaller, name):
    rows = smaller[name]["rows"]
    assert [path for _, path, *_ in rows] == ["cpu"]
    assert rows[0][3]


def test_no_addition_changes_its_arguments(smaller):
    assert smaller["unchanged"] == [True, True]


def test_a_smaller_network_is_right_and_maps_all_its_additions(smaller):
    model = smaller["model"]
    assert model["error"] <= 2e-2 * max(model["size"], 1)
    additions = [row for row in model["rows"] if row[0].split(".")[0] in ("aten::add", "aten::add_")]
    assert {(path, target) for _, path, target, _ in additions} == {("native", "aten::add.Tensor")}
    assert sum(row[3] for row in additions) == 3 * 5
