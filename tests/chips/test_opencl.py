"""The OpenCL chip on whatever device is here (PoCL in CI): memory behind addresses that only compute, views and offsets, programs
as one kernel, the cache on disk, forks, and errors that say what to do."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import environment, in_threads, run_script
from opencl_support import OUT_OF_MEMORY, Adapter, missing
from torch.nn import functional as F

import torchfl
from torchfl._paths import shipped_chips

DEVICE = "opencl:0"


@pytest.fixture(scope="module", autouse=True)
def chip() -> None:
    if missing():
        pytest.skip(missing())
    torchfl.load("opencl")


def on_chip(function, *tensors, tolerance=1e-6):
    """What the function gives on the device alone is what it gives on the CPU."""
    want = function(*tensors)
    with torchfl.strict():
        got = function(*(t.to(DEVICE) for t in tensors))
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)


X = torch.linspace(-3, 3, 7 * 9 * 13).sin().mul(2).view(7, 9, 13)


@pytest.mark.parametrize("function", [
    lambda x: x[3:] + x[:4],
    lambda x: x.flatten()[1:].exp(),
    lambda x: x.transpose(0, 2) * 2 + x.transpose(0, 2),
    lambda x: x[::2, 1:, ::3] - x[0, 1:, ::3],
    lambda x: x.permute(2, 0, 1).contiguous(),
    lambda x: x[0, 0].expand(5, 13) + x[:5, 0],
    lambda x: x[:, :1] * x[:1],
    lambda x: x[:0] + 1,
    lambda x: x[:0].sum() + x[1, 1, 1],
    lambda x: x.sum() * x[0, 0, 0],
    lambda x: x.clone().mul_(2).add_(x),
    lambda x: (x > 0) & (x < 1),
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x.half().float() + x.bfloat16().float(),
    lambda x: x.double().sin().float(),
    lambda x: (x * 50).to(torch.int16) // 7,
    lambda x: x.flip(0, 2).cumsum(1),
    lambda x: x.sort(dim=1, stable=True)[0],
    lambda x: x.argmax(2),
    lambda x: x.view(7, -1).mean(1),
])  # fmt: skip
def test_views_offsets_and_shapes(function) -> None:
    on_chip(function, X, tolerance=1e-5)


def test_writing_to_a_view_leaves_its_neighbours_alone() -> None:
    x = torch.zeros(10, 10, device=DEVICE)
    x[2:4, 3:5] = 1.0
    x[:, 9].add_(2)
    want = torch.zeros(10, 10)
    want[2:4, 3:5] = 1.0
    want[:, 9] += 2
    assert torch.equal(x.cpu(), want)


@pytest.mark.parametrize("n", [1, 7, 9, 511, 1033, 1040, 4097])
def test_the_last_elements_of_a_line(n: int) -> None:
    on_chip(lambda x: torch.where(x > 0, x.sigmoid(), x) * x, torch.linspace(-2, 2, n))


def kernels_of(op: str, *args: torch.Tensor) -> list[str]:
    answer = torchfl.explain(op, *args, device=DEVICE)
    assert answer["path"] == "composed", answer
    return list(answer["steps"])


def test_an_elementwise_program_is_one_kernel() -> None:
    torch.zeros(1, device=DEVICE)  # a device that is not open yet cannot say what it fuses
    (step,) = kernels_of("aten::mish", torch.empty(4, 4, device="meta"))
    assert step.startswith("[") and step.endswith("]") and step.count(" ") >= 3
    on_chip(F.mish, X)
    on_chip(F.softplus, X)


def test_a_program_of_several_shapes_is_right() -> None:
    on_chip(lambda x: F.instance_norm(x), X, tolerance=1e-4)
    on_chip(lambda x: torch.nn.functional.normalize(x, dim=1), X, tolerance=1e-5)
    on_chip(lambda x: torch.var(x, dim=(0, 2)), X, tolerance=1e-5)


def test_a_training_step_of_many_tensors() -> None:
    def trained(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(X[0, :, :8].to(device)).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    for got, want in zip(trained(DEVICE), trained("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_two_threads_with_the_same_kernels() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((1000,), float(seed), device=DEVICE)
        for _ in range(100):
            x = x * 2 - seed
        if not torch.equal(x.cpu(), torch.full((1000,), float(seed))):
            wrong.append(seed)

    in_threads(work, (1, 2))
    assert not wrong


def test_two_threads_with_operators_of_many_kernels_on_one_stream() -> None:
    """A product packs its factors in the stream's scratch memory, which grows: neither thread may meet the other's."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in range(64, 512, 16):
            a = torch.full((n, n + seed), float(seed), device=DEVICE)
            if not torch.mm(a, a.t()).cpu().eq((n + seed) * seed * seed).all():
                wrong.append(n)

    in_threads(work, (1, 2))
    assert not wrong


def test_streams_and_events() -> None:
    module = torch.get_device_module("opencl")
    side, start, end = (
        torch.Stream(DEVICE),
        torch.Event(DEVICE, enable_timing=True),
        torch.Event(DEVICE, enable_timing=True),
    )
    x = torch.ones(1 << 18, device=DEVICE)
    start.record(torch.accelerator.current_stream(DEVICE))  # the current device may be another chip's
    with side:
        side.wait_event(start)
        y = x * 3
        end.record(side)
    torch.accelerator.current_stream(DEVICE).wait_event(end)
    assert (y + 1).cpu().eq(4).all()
    module.synchronize()
    assert start.elapsed_time(end) >= 0


# ------------------------------------------------------------------------------------------------ errors


def test_too_much_memory_is_an_error_and_less_works() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE)
    assert torch.ones(5, device=DEVICE).sum().item() == 5


def test_no_memory_says_how_much_there_is() -> None:
    adapter = Adapter().open()
    made = ctypes.c_void_p()
    assert adapter.call("alloc", ctypes.c_uint64(1 << 60), ctypes.pointer(made)) == OUT_OF_MEMORY
    assert "OpenCL has no 1152921504606846976 bytes" in adapter.said and "are in use" in adapter.said


def test_an_address_that_is_none_is_refused() -> None:
    adapter = Adapter().open()
    assert adapter.call("fill", ctypes.c_void_p(), ctypes.c_void_p(4096), ctypes.c_uint64(4), ctypes.c_int32(0)) != 0
    assert "no address of the device's memory" in adapter.said


def test_a_closed_device_is_explained_as_an_open_one() -> None:
    code = "import torch, torchfl\ntorchfl.load('opencl')\nx = torch.empty(8, 8, device='meta')\n"
    ran = run_script(code + "print(torchfl.explain('aten::hardswish', x, device='opencl:0')['steps'])")
    assert "[vadd vmax vmin mul vdiv]" in ran.out, ran.err


def test_a_kernel_that_cannot_be_built_shows_the_compilers_words(tmp_path: Path) -> None:
    code = "import torch, torchfl\ntorchfl.load('opencl')\nx = torch.ones(3, device='opencl:0')\nprint((x + x).cpu())"
    ran = run_script(code, env={"TORCHFL_OPENCL_OPTIONS": "-Dk=1", "TORCHFL_CACHE_DIR": str(tmp_path)})
    assert ran.code != 0
    assert "cannot be built for" in ran.err and "the compiler says" in ran.err and "error" in ran.err


def test_without_the_loader_the_error_says_what_to_install(tmp_path: Path) -> None:
    ran = run_script(
        "import torchfl\ntorchfl.load('opencl')", env={"TORCHFL_OPENCL_LIBRARY": str(tmp_path / "none.so")}
    )
    assert ran.code != 0 and "apt install ocl-icd-libopencl1" in ran.err


def test_without_a_driver_there_is_no_device_and_the_log_says_why(tmp_path: Path) -> None:
    code = "import torchfl\ntorchfl.load('opencl')"
    ran = run_script(code, env={"OCL_ICD_VENDORS": str(tmp_path)})
    assert "pocl-opencl-icd" in ran.err + ran.out, (ran.out, ran.err)


# ------------------------------------------------------------------------------------------------ processes


def test_counting_devices_starts_no_thread_and_a_child_can_use_them() -> None:
    code = """
import os, threading, torchfl, torch
torchfl.load("opencl")
assert torch.get_device_module("opencl").device_count() >= 1
assert "pocl" not in open("/proc/self/maps").read()
child = os.fork()
if child == 0:
    x = torch.ones(4, device="opencl:0")
    os._exit(0 if (x + x).sum().item() == 8 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("fine")
"""
    ran = run_script(code)
    assert "fine" in ran.out, ran.err


PROGRAM = """
import torch, torchfl
torchfl.load("opencl")
x = torch.arange(8.0, device="opencl:0")
print((torch.atan2(x, x + 1) + x).sum().item())
"""


def cached(folder: Path) -> list[Path]:
    return sorted((folder / "opencl").iterdir())


def test_the_cache_is_shared_by_processes_survives_damage_and_stays_small(tmp_path: Path) -> None:
    env = environment(TORCHFL_CACHE_DIR=str(tmp_path))
    both = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    outs = {process.communicate(timeout=100)[0] for process in both}
    assert len(outs) == 1 and all(process.returncode == 0 for process in both)
    files = cached(tmp_path)
    assert files and not [f for f in files if f.name.startswith(".new")]
    before = {f: f.read_bytes() for f in files}
    for f in files:
        f.write_bytes(f.read_bytes()[: f.stat().st_size // 2])
    ran = run_script(PROGRAM, env={"TORCHFL_CACHE_DIR": str(tmp_path)})
    assert ran.out.encode() in outs, ran.err
    assert cached(tmp_path) == files
    assert all(f.stat().st_size > len(before[f]) // 2 + 1 for f in files)  # built again, and kept
    ran = run_script(
        PROGRAM.replace("atan2", "pow"), env={"TORCHFL_CACHE_DIR": str(tmp_path), "TORCHFL_OPENCL_CACHE_MIB": "0"}
    )
    assert ran.code == 0 and not cached(tmp_path)


def test_the_chip_is_loaded_on_request_only() -> None:
    assert "opencl" in shipped_chips() and "opencl" not in shipped_chips(on_request=False)


def test_the_adapter_is_small_and_its_lines_too() -> None:
    root = Path(__file__).resolve().parents[2]
    lines = {f: f.read_text().splitlines() for name in ("chips/opencl", "kit") for f in (root / name).iterdir()}
    own = [len(text) for f, text in lines.items() if f.parent.name == "opencl" and f.suffix != ".md"]
    assert sum(own) <= 900
    code = {".cpp", ".h", ".cl"}
    assert max(len(line) for f, text in lines.items() if f.suffix in code for line in text) <= 120
