"""Unified memory: tensors that share the host's memory with a device, copy-on-write (csrc/aten/unified.h).

Two chips: x1 maps host memory and never moves it; npu_v3, asked to be lazy, moves it when it is first used.
"""

import ctypes
import gc
import threading
import weakref

import numpy as np
import torch
from helpers import OwnProcess, in_threads, run_script

maps = OwnProcess("unified_map")
lazy = OwnProcess("unified_lazy", TORCHFL_HOST_MEMORY="lazy")


def _x1():
    import torchfl

    return torchfl.load("x1")


def _npu():
    import torchfl

    return torchfl.load("npu_v3")


class Moved:
    """What moved, was shared and was separated inside a `with`, in bytes."""

    def __enter__(self):
        import torchfl

        self.before = torchfl.transfers()
        return self

    def __exit__(self, *exc):
        import torchfl

        after = torchfl.transfers()
        since = {key: after[key] - self.before[key] for key in after}
        self.bytes = since["to_device_bytes"] + since["to_host_bytes"]
        self.shared = since["shared_bytes"]
        self.separated = since["separated_bytes"]


# ------------------------------------------------------------------------------------------------ a chip that maps


@maps
def test_a_model_moves_without_a_byte():
    _x1()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 8))
    size = sum(t.nbytes for t in model.state_dict().values())
    x = torch.randn(4, 64)
    wanted = model.eval()(x)
    with Moved() as moved:
        model.to("xpu")
    assert (moved.bytes, moved.shared) == (0, size)
    assert next(model.parameters()).device.type == "xpu"
    assert torch.allclose(model(x.to("xpu")).cpu(), wanted, atol=1e-5)
    assert torch.xpu.memory_allocated() < size  # what the model computed, not what it is


@maps
def test_either_side_may_be_written():
    _x1()
    for write in (
        lambda t: t.add_(1),
        lambda t: t[3].zero_(),
        lambda t: t.fill_(7),
        lambda t: t.copy_(torch.ones(8, 8)),
    ):
        x = torch.randn(8, 8)
        before = x.clone()
        y = x.to("xpu")
        write(x)
        assert torch.equal(y.cpu(), before)
        x = before.clone()
        y = x.to("xpu")
        write(y)
        expected = before.clone()
        write(expected)
        assert torch.equal(x, before) and torch.equal(y.cpu(), expected)


@maps
def test_a_view_belongs_to_its_side():
    _x1()
    x = torch.arange(12.0).view(3, 4)
    before, row = x.clone(), x[1]
    y = x.to("xpu")
    column = y[:, 2]
    row.zero_()
    assert torch.equal(y.cpu(), before)
    column.fill_(-1)
    assert torch.equal(x[0], before[0])
    assert (y.cpu()[:, 2] == -1).all() and torch.equal(y.cpu()[:, :2], before[:, :2])
    y.t().mul_(2)
    assert (column.cpu() == -2).all()


@maps
def test_several_share_and_each_separates_alone():
    _x1()
    x = torch.randn(100)
    first, second = x.to("xpu"), x.to("xpu")
    before = x.clone()
    first.neg_()
    assert torch.equal(second.cpu(), before) and torch.equal(x, before) and torch.equal(first.cpu(), -before)
    x.zero_()
    assert torch.equal(second.cpu(), before)


@maps
def test_the_last_owner_keeps_the_memory():
    import torchfl

    _x1()
    y = torch.randn(1000).to("xpu")  # the CPU tensor is gone
    address = torchfl._C.data_address(y)
    with Moved() as moved:
        y.add_(1)
    assert (moved.bytes, moved.separated) == (0, 0) and torchfl._C.data_address(y) == address
    x = torch.randn(1000)
    address = x.data_ptr()
    y = x.to("xpu")
    del y
    x.add_(1)
    torch.xpu.synchronize()
    x.add_(1)
    assert moved.separated == 0 or x.data_ptr() != address


@maps
def test_back_on_the_host_it_is_shared_again():
    _x1()
    x = torch.randn(50, 50)
    y = x.to("xpu")
    with Moved() as moved:
        back = y.cpu()
    assert (moved.bytes, moved.shared) == (0, x.nbytes)
    back.zero_()
    assert torch.equal(y.cpu(), x)
    again = y.cpu()
    y.zero_()
    assert torch.equal(again, x)


@maps
def test_memory_that_others_may_write_is_copied():
    import torchfl

    _x1()
    torchfl.reset_stats()

    def stays(x, write):
        before = x.clone()
        with Moved() as moved:
            y = x.to("xpu")
        assert (moved.bytes, moved.shared) == (x.nbytes, 0)
        write()
        assert not torch.equal(x, before) and torch.equal(y.cpu(), before)

    a = np.ones(5, np.float32)
    stays(torch.from_numpy(a), lambda: a.fill(2))
    x = torch.ones(5)
    array = x.numpy()
    stays(x, lambda: array.fill(2))
    x = torch.ones(5)
    capsule = torch.from_dlpack(x)
    stays(x, lambda: capsule.fill_(2))
    x = torch.ones(5)
    view = np.from_dlpack(x)
    with Moved() as moved:
        x.to("xpu")
    assert moved.shared == 0, view
    x = torch.ones(5).share_memory_()
    stays(x, lambda: x.fill_(2))
    buffer = bytearray(20)
    x = torch.frombuffer(buffer, dtype=torch.float32)
    stays(x, lambda: x.fill_(2))
    reasons = {row["reason"] for row in torchfl.stats() if row["target"] == "host to device"}
    assert any("handed out" in r for r in reasons) and any("not PyTorch's own" in r for r in reasons)


@maps
def test_handed_out_afterwards_it_is_separate():
    _x1()
    x = torch.ones(5)
    y = x.to("xpu")
    x.numpy()[:] = 3
    assert x[0] == 3 and (y.cpu() == 1).all()
    x = torch.ones(5)
    y = x.to("xpu")
    torch.from_dlpack(x).fill_(3)
    assert x[0] == 3 and (y.cpu() == 1).all()
    x = torch.ones(5)
    y = x.to("xpu")
    torch.from_dlpack(y).fill_(3)  # the device's side
    assert x[0] == 1 and (y.cpu() == 3).all()
    x = torch.ones(5)
    y = x.to("xpu")
    ctypes.memset(y.data_ptr(), 0, 4)  # the address that PyTorch gives is one to write to
    assert x[0] == 1 and y.cpu()[0] == 0


@maps
def test_dtypes():
    _x1()
    for dtype in (torch.float32, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64):
        x = torch.randn(3, 5).mul(3).to(dtype)
        y = x.to("xpu")
        assert y.dtype == dtype and torch.equal(y.cpu(), x), dtype
        assert torch.equal(y.t().contiguous().cpu(), x.t()), dtype


@maps
def test_unusual_tensors():
    _x1()
    for x in (
        torch.empty(0, 3),
        torch.tensor(5.0),
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(4, 6)[1:],
        torch.randn(3).expand(4, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch._neg_view(torch.randn(3)),
        torch.tensor([0, 2, 1], dtype=torch.uint8).view(torch.bool),
        torch.zeros(3).requires_grad_(),
    ):
        y = x.to("xpu")
        assert torch.equal(y.cpu(), x.cpu()) and y.shape == x.shape
        if x.is_contiguous() or x.dim() == 4:
            assert y.stride() == x.stride()
    half = torch.randn(8).to("xpu", torch.float16)
    assert half.dtype == torch.float16 and half.device.type == "xpu"
    x = torch.randn(2, 3, 4, 4)
    assert x.to("xpu", memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)
    pinned = torch.randn(8).pin_memory()
    y = pinned.to("xpu", non_blocking=True)
    before = pinned.clone()
    pinned.zero_()
    torch.xpu.synchronize()
    assert torch.equal(y.cpu(), before)


@maps
def test_gradients_pass_and_steps_leave_the_original():
    _x1()
    x = torch.randn(6, requires_grad=True)
    (x.to("xpu") * 2).sum().backward()
    assert torch.equal(x.grad, torch.full((6,), 2.0))
    layer = torch.nn.Linear(6, 3)
    original = {name: value.clone() for name, value in layer.state_dict().items()}
    kept = layer.state_dict()  # shares the parameters' storages
    kept = {name: value.detach() for name, value in kept.items()}
    on_chip = torch.nn.Linear(6, 3)
    on_chip.load_state_dict(kept)
    on_chip.to("xpu")
    optimizer = torch.optim.SGD(on_chip.parameters(), lr=0.5)
    on_chip(torch.randn(4, 6).to("xpu")).sum().backward()
    optimizer.step()
    assert all(torch.equal(original[name], value) for name, value in layer.state_dict().items())
    assert not torch.equal(on_chip.weight.cpu(), layer.weight)


@maps
def test_storages_that_change_their_size():
    _x1()
    x = torch.arange(4.0)
    y = x.to("xpu")
    y.resize_(8)
    assert torch.equal(y[:4].cpu(), torch.arange(4.0))
    y.zero_()
    assert torch.equal(x, torch.arange(4.0))
    x = torch.arange(4.0)
    y = x.to("xpu")
    x.resize_(8).fill_(9)
    assert torch.equal(y.cpu(), torch.arange(4.0))


@maps
def test_an_address_that_was_given_out_stays_the_tensors():
    """By DLPack or data_ptr: it is neither shared again nor moved away from under its user."""
    _x1()
    y = torch.ones(8).to("xpu")
    alias = torch.from_dlpack(y)
    back = y.cpu()
    alias.fill_(3)
    assert (back == 1).all() and (y.cpu() == 3).all()
    y.fill_(5)
    assert (alias.cpu() == 5).all()
    y = torch.ones(8).to("xpu")
    address = y.data_ptr()
    y.cpu()
    y.fill_(5)
    assert y.data_ptr() == address


@maps
def test_loaded_and_pinned_tensors_are_shared():
    import io

    _x1()
    file = io.BytesIO()
    torch.save({"w": torch.randn(100)}, file)
    file.seek(0)
    loaded = torch.load(file)["w"]
    with Moved() as moved:
        y = loaded.to("xpu")
    assert (moved.bytes, moved.shared) == (0, 400)
    loaded.zero_()
    assert y.cpu().any()
    file.seek(0)
    loaded = torch.load(file)["w"]
    array = loaded.numpy()
    y = loaded.to("xpu")
    array[:] = 0
    assert y.cpu().any()
    pinned = torch.randn(100).pin_memory()
    with Moved() as moved:
        pinned.to("xpu", non_blocking=True)
    assert (moved.bytes, moved.shared) == (0, 400)
    array = pinned.numpy()
    y = pinned.to("xpu")
    array[:] = 0
    assert y.cpu().any()


@maps
def test_odd_bools_do_not_reach_the_host():
    _x1()
    bytes_ = torch.zeros(4, dtype=torch.uint8).to("xpu")
    bools = bytes_.view(torch.bool)
    bytes_.fill_(7)
    assert torch.equal(bools.cpu(), torch.ones(4, dtype=torch.bool))


@maps
def test_a_copy_to_another_chip_has_read_its_source_when_it_returns():
    import torchfl

    _x1()
    torchfl.load("npu_v3")
    busy = torch.randn(500, 500).to("npu_v3:0")
    for size in (7, 1000, 200_000):
        y = torch.full((size,), 3, dtype=torch.int32).to("xpu")
        y.add_(0)
        busy @ busy
        there = y.to("npu_v3:0")
        y.fill_(0)
        assert (there.cpu() == 3).all(), size


@maps
def test_tied_parameters_stay_tied():
    _x1()
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    with Moved() as moved:
        model.to("xpu")
    assert model[0].weight is model[1].weight and model[0].weight.device.type == "xpu"
    assert len(list(model.parameters())) == 1 and moved.bytes == 0
    model.cpu()
    assert model[0].weight is model[1].weight and model[0].weight.device.type == "cpu"


@lazy
def test_parameters_stay_the_objects_that_they_were():
    """As on CUDA: an optimizer that was made before `.to` trains the model."""
    _npu()
    model = torch.nn.Linear(4, 2)
    model.weight.tag = "mine"
    before = [p for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(3, 4)).sum().backward()
    grad = model.weight.grad.clone()
    start = model.weight.detach().clone()
    model.to("npu_v3:0")
    assert all(p is q for p, q in zip(model.parameters(), before, strict=True))
    assert model.weight.device.type == "npu_v3" and model.weight.is_leaf and model.weight.requires_grad
    assert model.weight.tag == "mine" and torch.equal(model.weight.grad.cpu(), grad)
    optimizer.step()
    assert torch.allclose(model.weight.cpu(), start - 0.1 * grad, atol=1e-6)
    # A graph from before the move cannot run backward, as on CUDA, and harms nobody.
    model = torch.nn.Linear(4, 2)
    loss = model(torch.ones(3, 4)).sum()
    model.to("npu_v3:0")
    for _ in range(2):
        model(torch.ones(3, 4, device="npu_v3:0")).sum().backward()
    assert torch.equal(model.bias.grad.cpu(), torch.full((2,), 6.0))
    try:
        loss.backward()
    except RuntimeError as error:
        assert "only change the device/dtype before running forward" in str(error)
    else:
        raise AssertionError("the gradient went nowhere")
    # Something refers to it weakly: it is replaced.
    model = torch.nn.Linear(4, 2)
    reference = weakref.ref(model.weight)
    model.to("npu_v3:0")
    assert model.weight.device.type == "npu_v3" and reference() is not model.weight


@maps
def test_a_profile_without_arguments_has_the_chip():
    _x1()
    x = torch.randn(64, 64).to("xpu")
    with torch.profiler.profile() as profile:
        torch.relu(x)
        torch.xpu.synchronize()
    assert any(event.device_type == torch.autograd.DeviceType.PrivateUse1 for event in profile.events())


@maps
def test_the_cpu_computes_where_it_lies():
    """What the chip does not have moves nothing either way."""
    _x1()
    x = torch.randn(30, 30).to("xpu")
    with Moved() as moved:
        y = torch.linalg.svdvals(x)
        y = torch.cumsum(y, 0).erfinv_()
    assert moved.bytes == 0 and y.device.type == "xpu"
    x = torch.randn(9)
    y = x.to("xpu")
    before = x.clone()
    torch.special.zeta(y.abs() + 2, 3.0, out=y)
    assert torch.equal(x, before) and torch.allclose(y.cpu(), torch.special.zeta(before.abs() + 2, 3.0))


@maps
def test_memory_comes_back():
    _x1()

    def free():
        gc.collect()
        torch.xpu.synchronize()
        torch.xpu.empty_cache()
        return torch.xpu.mem_get_info()[0]

    start = free()
    for size in range(1, 200):
        batch = torch.randn(size, 1000)
        on_chip = batch.to("xpu")
        on_chip.mul(2)
    assert torch.xpu.mem_get_info()[0] < start
    del batch, on_chip
    assert free() == start


@maps
def test_threads_share_one_tensor():
    _x1()
    failures = []

    def work(x, wanted):
        for _ in range(100):
            y = x.to("xpu")
            if not torch.equal(y.cpu(), wanted):
                failures.append("shared")
            y.add_(1)
            if not torch.equal(y.cpu(), wanted + 1):
                failures.append("written")
            if not torch.equal(x, wanted):
                failures.append("original")

    x = torch.randn(64, 64)
    threads = [threading.Thread(target=work, args=(x, x.clone())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, set(failures)


def test_memory_that_only_waits_is_given_up_when_it_runs_out():
    """Dropped tensors, and what the allocator keeps, make room for others to be mapped or allocated."""
    ran = run_script(
        """
import torch, torchfl
torchfl.load("x1")
torch.zeros(1).to("xpu")
for i in range(100):
    x = torch.ones(1 << 20)
    y = x.to("xpu")
    del x, y
for i in range(100):
    y = torch.empty(1 << 20, device="xpu")
    x = torch.ones(1 << 20).to("xpu")
    del x, y
cached = [torch.empty(1 << 22, device="xpu") for _ in range(3)]
del cached
before = torchfl.transfers()["to_device_bytes"]
x = torch.ones(1 << 21).to("xpu")
assert torchfl.transfers()["to_device_bytes"] == before
held = [torch.ones(1 << 22).to("xpu") for _ in range(3)]
try:
    torch.empty(1 << 24, device="xpu")
except torch.OutOfMemoryError as error:
    print("bytes of the host's memory are mapped besides" in str(error))
""",
        env={"X1_SIM_MEMORY": "64"},
    )
    assert ran.out.strip() == "True", ran.out + ran.err


def test_a_first_use_that_fails_can_be_tried_again():
    """And leaves the tensor shared: the next who asks for its address to write gets one of its own."""
    program = """
import torch, torchfl
torchfl.load("npu_v3")
x = torch.ones(1000)
y = x.to("npu_v3:0")
try:
    print((y + 1).sum().item())
except RuntimeError as error:
    print("failed")
"""
    faulty = {"TORCHFL_HOST_MEMORY": "lazy", "NPU_SIM_FAULT": "async:npu_memcpy_async:1"}
    ran = run_script(program + "print((y + 1).sum().item())", env=faulty)
    assert ran.out.split() == ["failed", "2000.0"], ran.out + ran.err
    ran = run_script(program + "where = torchfl._C.data_address(x)\nprint(y.data_ptr() != where)", env=faulty)
    assert ran.out.split() == ["failed", "True"], ran.out + ran.err


def test_strategies_of_one_chip():
    """The same program with each strategy, and a word that is none."""
    program = """
import torch, torchfl
torchfl.load("x1")
x = torch.randn(256, 256)
before = torchfl.transfers()["to_device_bytes"]
y = x.to("xpu")
moved = torchfl.transfers()["to_device_bytes"] - before
z = y + y
used = torchfl.transfers()["to_device_bytes"] - before
assert torch.equal(z.cpu(), x + x)
z = y * y
print(moved, used, torchfl.transfers()["to_device_bytes"] - before)
"""
    size = 256 * 256 * 4
    for strategy, wanted in {"map": (0, 0, 0), "lazy": (0, size, size), "copy": (size, size, size)}.items():
        ran = run_script(program, env={"TORCHFL_HOST_MEMORY": strategy})
        assert ran.out.split() == [str(n) for n in wanted], (strategy, ran.out, ran.err)
    ran = run_script(program, env={"TORCHFL_HOST_MEMORY": "magic"})
    assert ran.code != 0 and "TORCHFL_HOST_MEMORY is 'magic': it may be map" in ran.err


# ------------------------------------------------------------------------------- a chip with memory of its own, lazily


@lazy
def test_it_moves_once_when_it_is_first_used():
    _npu()
    x = torch.randn(64, 64)
    with Moved() as moved:
        y = x.to("npu_v3:0")
    assert (moved.bytes, moved.shared) == (0, x.nbytes)
    with Moved() as moved:
        z = y + 1
    assert moved.bytes == x.nbytes
    with Moved() as moved:
        w = (y * 2) @ y.t()
    assert moved.bytes == 0
    assert torch.equal(z.cpu(), x + 1) and torch.allclose(w.cpu(), (x * 2) @ x.t(), atol=1e-3)


@lazy
def test_what_is_never_used_never_moves():
    _npu()
    x = torch.randn(64, 64)
    with Moved() as moved:
        back = x.to("npu_v3:0").cpu()
    assert moved.bytes == 0 and torch.equal(back, x)


@lazy
def test_a_change_before_the_first_use():
    _npu()
    x = torch.randn(16)
    before = x.clone()
    y = x.to("npu_v3:0")
    x.zero_()
    assert torch.equal((y + 0).cpu(), before)
    x = before.clone()
    y = x.to("npu_v3:0")
    y.add_(1)
    assert torch.equal(x, before) and torch.equal(y.cpu(), before + 1)
    x = before.clone()
    view = x.to("npu_v3:0")[4:9]
    view.mul_(3)
    assert torch.equal(view.cpu(), before[4:9] * 3) and torch.equal(x, before)


@lazy
def test_every_way_to_an_address_moves_it():
    """Reductions, copies, views, concatenation, indexing, matrix products, saving, and another chip's copy."""
    import io

    import torchfl

    _npu()
    torchfl.load("npu_v2")
    x = torch.randn(8, 8)

    def fresh():
        return x.clone().to("npu_v3:0")

    assert torch.allclose(fresh().sum().cpu(), x.sum(), atol=1e-4)
    assert torch.equal(fresh().clone().cpu(), x)
    assert torch.equal(fresh().t().contiguous().cpu(), x.t())
    assert torch.equal(torch.cat([fresh(), fresh()]).cpu(), torch.cat([x, x]))
    assert torch.equal(fresh()[torch.tensor([1, 5]).to("npu_v3:0")].cpu(), x[[1, 5]])
    assert torch.allclose((fresh() @ fresh()).cpu(), x @ x, atol=1e-4)
    assert torch.allclose(torch.softmax(fresh(), 1).cpu(), torch.softmax(x, 1), atol=1e-5)
    assert torch.equal(fresh().to("npu:0").cpu(), x)
    assert fresh()[2, 3].item() == x[2, 3].item()
    assert torch.equal(torch.where(fresh() > 0, fresh(), 0).cpu(), torch.where(x > 0, x, 0))
    file = io.BytesIO()
    torch.save(fresh(), file)
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu"), x)
    y = torch.zeros(8, 8, device="npu_v3:0")
    y.copy_(fresh())
    assert torch.equal(y.cpu(), x)
    assert torch.equal(fresh().resize_(4, 4).cpu(), x.flatten()[:16].view(4, 4))


@lazy
def test_threads_use_it_for_the_first_time_at_once():
    _npu()
    failures = []
    for _ in range(30):
        x = torch.randn(128, 128)
        y = x.to("npu_v3:0")
        wanted = x + 1
        barrier = threading.Barrier(4)

        def work(_, y=y, wanted=wanted, barrier=barrier):
            barrier.wait()
            if not torch.equal((y + 1).cpu(), wanted):
                failures.append(1)

        in_threads(work, 4)
    assert not failures
