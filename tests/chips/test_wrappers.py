"""Kernels that are functions of a pybind module: what they are given, what becomes of what they return or raise, and
how each is told of. The functions are in toy/toy_wrapper.cpp."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, environment
from x1_support import build, log_lines, run, told

TOY = Path(__file__).parent / "toy"

CODE = """
import json, threading
import torchfl
torchfl.init()
import torch

answers = {}

def case(name, call):
    torchfl.reset_stats()
    try:
        value = call()
        values = [v.cpu().tolist() for v in value] if isinstance(value, (tuple, list)) else value.cpu().tolist()
        answer = {"value": values}
    except Exception as error:
        answer = {"raised": type(error).__name__, "text": str(error), "cause": type(error.__cause__).__name__}
    answer["rows"] = [[r["op"], r["path"], r["target"], r["reason"]] for r in torchfl.stats() if r["path"] != "transfer"]
    answers[name] = answer

A = torch.arange(12.0).view(3, 4) - 4
B = A.flip(0) / 2
a, b = A.to("toy"), B.to("toy")
case("add", lambda: a + b)
case("alpha", lambda: torch.add(a, b, alpha=3))
case("broadcast", lambda: a + b[0])
case("column", lambda: a[:, :1] + b[0])
case("number", lambda: a + 2)
case("number first", lambda: 2 * a)
case("transposed", lambda: a.t() + b.t())
case("mixed order", lambda: a.view(4, 3) + b.t())
case("stepped", lambda: a[:, ::2] + b[:, ::2])
case("in place", lambda: a.clone().add_(b))
case("in place on a slice", lambda: (lambda t: (t[:, 1:3].add_(b[:, 1:3]), t)[1])(a.clone()))
case("out", lambda: torch.add(a, b, out=torch.empty(3, 4, device="toy")))
case("onto itself", lambda: a + a)
case("empty", lambda: a[:0] + b[:0])
case("sub", lambda: a - b)
case("sub alpha", lambda: torch.sub(a, b, alpha=2))
case("where", lambda: torch.where((A > 0).to("toy"), a, b[0]))
case("exp", lambda: torch.exp(a))
case("itself", lambda: (lambda y: (y.add_(b), a)[1])(torch.abs(a)))
case("max", lambda: torch.max(a, 1))
case("matmul", lambda: a @ b.t())
case("batched", lambda: torch.matmul(a.view(1, 3, 4), b.view(1, 4, 3)))
case("softmax", lambda: torch.softmax(a, -1))
case("erfinv", lambda: torch.erfinv(a / 10))
case("lgamma", lambda: torch.lgamma(a.abs() + 1))
case("relu int8", lambda: torch.relu(A.to(torch.int8).to("toy")))
X, W = torch.randn(1, 3, 5, 6), torch.randn(2, 3, 3, 3)
for name in ("ceil", "floor", "round", "sin", "cos", "tan", "neg", "erf"):
    case(name, lambda: getattr(torch, name)(a))
case("min", lambda: torch.min(a, 1))
case("conv2d", lambda: torch.nn.functional.conv2d(X.to("toy"), W.to("toy")))
with torchfl.strict():
    case("strict", lambda: a + b)
    case("strict softmax", lambda: torch.softmax(a, -1))

answers["explain"] = torchfl.explain("aten::add", a, b)
with torchfl.profiler.profile() as prof:
    a + b
answers["profiled"] = [[r["op"], r["path"], r["kernel"], r["calls"]] for r in prof.rows()]
answers["kernels"] = [x.name for x in prof.activities if x.kind == "kernel"]

# From several threads at once, and in a backward pass, which runs on a thread of autograd's.
w = B.clone().to("toy").requires_grad_()
(a * w).sum().backward()
answers["gradient"] = torch.equal(w.grad.cpu(), A)
wrong = []
def work(n):
    for i in range(50):
        if not torch.equal((a + b * n).cpu(), A + B * n):
            wrong.append(n)
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
answers["threads"] = wrong
answers["unchanged"] = torch.equal(a.cpu(), A) and torch.equal(b.cpu(), B)

# Sharing memory with the CPU tensor it came from, which a function that only reads must not end.
P = torch.randn(1 << 16)
p = P.to("toy")
before = torchfl.transfers()
p * p
after = torchfl.transfers()
answers["separated"] = after.get("separations", 0) - before.get("separations", 0)
print(json.dumps(answers))
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    module = build(TOY / "toy_wrapper.cpp", ROOT / "build" / "wrappers" / "toy", "toy_wrapper")
    folder = tmp_path_factory.mktemp("toy_device_dir")
    shutil.copy(module, folder)
    for name in ("toy.yaml", "toy_functions.py"):
        shutil.copy(TOY / name, folder)
    return folder


@pytest.fixture(scope="session")
def toy(folder):
    ran = run(CODE, folder)
    return {"err": ran.err, **told(ran)}


def expected():
    import torch

    a = torch.arange(12.0).view(3, 4) - 4
    b = a.flip(0) / 2
    sliced = a.clone()
    sliced[:, 1:3].add_(b[:, 1:3])
    return {
        "add": a + b, "alpha": torch.add(a, b, alpha=3), "broadcast": a + b[0], "column": a[:, :1] + b[0],
        "number": a + 2, "number first": 2 * a, "transposed": a.t() + b.t(), "mixed order": a.view(4, 3) + b.t(),
        "stepped": a[:, ::2] + b[:, ::2], "in place": a + b, "in place on a slice": sliced, "out": a + b,
        "onto itself": a + a, "empty": a[:0], "sub": a - b, "where": torch.where(a > 0, a, b[0]), "exp": a.exp(),
        "matmul": a @ b.t(), "batched": torch.matmul(a.view(1, 3, 4), b.view(1, 4, 3)),
        "relu int8": a.to(torch.int8).relu(),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(expected()))
def test_a_function_serves_every_form_of_its_operator(toy, name):
    import torch

    value = torch.tensor(toy[name]["value"])
    torch.testing.assert_close(value.float().view(expected()[name].shape), expected()[name].float())
    paths = [row for row in toy[name]["rows"] if row[2].startswith("toy_")]
    assert paths and all(row[1] == "native" for row in paths)
    assert not any(row[1] == "cpu" for row in toy[name]["rows"])


def test_an_argument_that_the_function_has_no_parameter_for_is_the_next_paths(toy):
    (row,) = toy["sub alpha"]["rows"]
    assert row[1] == "cpu" and "toy_sub takes 2 arguments, and alpha is not at its default" in row[3]
    import torch

    a = torch.arange(12.0).view(3, 4) - 4
    assert toy["sub alpha"]["value"] == torch.sub(a, a.flip(0) / 2, alpha=2).tolist()


def test_several_results(toy):
    import torch

    a = torch.arange(12.0).view(3, 4) - 4
    assert toy["max"]["value"] == [v.tolist() for v in torch.max(a, 1)]
    assert [row[1:3] for row in toy["max"]["rows"]] == [["native", "toy_max"]]


def test_a_function_that_returns_its_argument_gives_a_new_tensor(toy):
    import torch

    assert toy["itself"]["value"] == (torch.arange(12.0).view(3, 4) - 4).tolist()


def test_a_function_as_a_fallback_is_the_custom_path(toy):
    import torch

    a = torch.arange(12.0).view(3, 4) - 4
    torch.testing.assert_close(torch.tensor(toy["softmax"]["value"]), a.softmax(-1))
    assert [row[1:3] for row in toy["softmax"]["rows"]] == [["custom", "toy_softmax"]]
    torch.testing.assert_close(torch.tensor(toy["erfinv"]["value"]), torch.erfinv(a / 10))
    assert [row[1:3] for row in toy["erfinv"]["rows"] if "erfinv" in row[0]] == [["custom", "toy_functions:erfinv"]]


def test_a_fallback_that_does_not_exist_is_told_of_and_goes_the_default_way(toy):
    assert [row[1] for row in toy["lgamma"]["rows"] if "lgamma" in row[0]] == ["cpu"]
    assert len([line for line in log_lines(toy["err"]) if "toy_is_not_there for aten::lgamma" in line]) == 1


WRONG = {
    "ceil": "aten::ceil on toy:0: its kernel toy_ceil returned float32[1, 2], expected float32[3, 4]",
    "floor": "aten::floor on toy:0: its kernel toy_floor returned int64[3, 4], expected float32[3, 4]",
    "round": "aten::round on toy:0: its kernel toy_round returned no tensor, expected float32[3, 4]",
    "min": "returned <class 'torch.Tensor'>, expected a tuple of 2",
    "neg": "calls aten::neg on that device itself, which would never end",
    "conv2d": "Tensor layout mismatch: expected NCHW, got NHWC: return result.permute({0, 3, 1, 2})",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_is_an_error_that_says_what_was_expected(toy, name):
    assert toy[name]["raised"] in ("RuntimeError", "TypeError") and WRONG[name] in toy[name]["text"]


def test_what_a_function_raises_names_operator_device_chip_and_function(toy):
    sin, cos = toy["sin"], toy["cos"]
    assert sin["raised"] == "RuntimeError" == sin["cause"]
    assert sin["text"].startswith("aten::sin on toy:0 (TOY): toy_sin of toy_wrapper.")
    assert sin["text"].endswith("raised RuntimeError: SDK error 7: queue full")
    assert "the third number is odd" in cos["text"] and "Exception raised from" not in cos["text"]


def test_not_implemented_means_the_next_path(toy):
    assert [row[1] for row in toy["tan"]["rows"]] == ["cpu"] and "only on Sundays" in toy["tan"]["rows"][0][3]


def test_parameters_that_the_operator_does_not_have_are_an_error(toy):
    text = toy["erf"]["text"]
    assert toy["erf"]["raised"] == "TypeError" and "does not take the operator's arguments" in text
    assert "It was given (Tensor), and takes (arg0: torch.Tensor, arg1: typing.SupportsInt" in text


def test_it_stays_on_the_chip(toy):
    assert toy["strict"]["rows"][0][1] == "native" and toy["strict softmax"]["rows"][0][1] == "custom"


def test_explain_and_the_profiler_name_the_function(toy):
    assert (toy["explain"]["path"], toy["explain"]["target"]) == ("native", "toy_add")
    assert ["aten::add.Tensor", "native", "toy_add", 1] in toy["profiled"] or [
        "aten::add", "native", "toy_add", 1,
    ] in toy["profiled"]  # fmt: skip
    assert toy["kernels"] == ["toy_add"]


def test_threads_and_autograd(toy):
    assert toy["gradient"] and toy["threads"] == [] and toy["unchanged"]


def test_reading_shared_memory_does_not_end_the_sharing(toy):
    assert toy["separated"] == 0


def test_a_module_for_another_python_is_passed_over_with_a_warning(folder, tmp_path):
    shutil.copy(folder / "toy.yaml", tmp_path)
    module = next(folder.glob("toy_wrapper*.so"))
    shutil.copy(module, tmp_path / "toy_wrapper.cpython-38-x86_64-linux-gnu.so")
    ran = run("import torchfl, torch; torchfl.init()", tmp_path)
    assert ran.code == 0
    assert "built for another Python" in ran.err and "torchfl-build" in ran.err


def test_no_module_at_all_is_told_with_the_command_that_makes_one(folder, tmp_path):
    shutil.copy(folder / "toy.yaml", tmp_path)
    ran = run("import torch, torchfl; torchfl.init(); print((torch.ones(2).to('toy') + 1).tolist())", tmp_path)
    assert ran.out == "[2.0, 2.0]\n"
    assert f"there is no wrapper module in {tmp_path}" in ran.err and "torchfl-build --name toy_wrapper" in ran.err


def test_adapter_library_names_the_module(folder, tmp_path):
    text = (folder / "toy.yaml").read_text()
    module = next(folder.glob("toy_wrapper*.so"))
    (tmp_path / "toy.yaml").write_text(text.replace("{style: pybind}", f"{{style: pybind, library: {module}}}"))
    code = """
import torch, torchfl
torchfl.init()
torch.ones(2).to("toy") + torch.ones(2).to("toy")
print([r["target"] for r in torchfl.stats() if "add" in r["op"]], torchfl.chips()[0].adapter)
"""
    assert run(code, tmp_path).out == f"['toy_add'] {module}\n"


def test_the_scaffold_builds_and_passes_its_own_test(tmp_path):
    def command(*args, **env):
        ran = subprocess.run(
            [sys.executable, "-m", "torchfl.cli", *args], cwd=tmp_path, env=environment(**env), capture_output=True,
            text=True, timeout=200,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    assert "mychip_wrapper.cpp" in command("new", "mychip", "--style", "pybind")
    assert "built" in command("build", "mychip")
    assert "nothing to do" in command("build", "mychip")
    assert "mychip: all right" in command("run", "--chip", "mychip", "mychip/tests/smoke.py")
