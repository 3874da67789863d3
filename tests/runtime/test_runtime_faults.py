"""Faults of the SDK, injected: each is a clear Python exception, and none reaches further than it has to.

Every test has a device of its own, so that what one breaks no other needs.
"""

import pytest
import torch
from helpers import OwnProcess

KERNEL, ASYNC, HANG, LOST, OOM_ONCE, COPY, BACKWARD, ASYNC_COPY, HEALTHY = range(9)

faults = OwnProcess(
    "faults",
    NPU_SIM_DEVICES="9",
    NPU_SIM_TIMEOUT_MS="300",
    NPU_SIM_FAULT=",".join(
        [
            f"kernel:npu_v3_binary:2:{KERNEL}",
            f"kernel:npu_v3_matmul:1:{KERNEL}",
            f"async:npu_v3_unary:1:{ASYNC}",
            f"hang:npu_v3_unary:1:{HANG}",
            f"lost:npu_v3_unary:1:{LOST}",
            f"oom:2:{OOM_ONCE}",
            f"kernel:npu_memcpy_async:2:{COPY}",
            f"kernel:npu_v3_copy_nd:1:{COPY}",
            f"kernel:npu_v3_fill_nd:3:{COPY}",
            f"kernel:npu_v3_unary:1:{BACKWARD}",
            f"async:npu_memcpy_async:2:{ASYNC_COPY}",
        ]
    ),
)


def on(index):
    import torchfl

    torchfl.load("npu_v3")
    return torch.device("npu_v3", index)


@faults
def test_a_kernel_that_fails_raises_with_the_sdks_code_and_text_and_the_next_call_works():
    """Case 48."""
    x = torch.ones(4, device=on(KERNEL))
    assert (x + x).tolist() == [2] * 4
    with pytest.raises(RuntimeError) as error:
        x + x
    text = str(error.value)
    for said in (f"npu_v3:{KERNEL}", "npu_v3_add", "the kernel failed", "SDK code 6"):
        assert said in text, said
    assert not isinstance(error.value, (NotImplementedError, torch.OutOfMemoryError))
    assert (x + x).tolist() == [2] * 4
    torch.npu_v3.synchronize(KERNEL)


@faults
def test_a_kernel_that_fails_is_not_silently_done_by_another_path():
    """Only "not supported" means: try the next path."""
    import torchfl

    x = torch.ones(4, 4, device=on(KERNEL))
    torchfl.reset_stats()
    with pytest.raises(RuntimeError, match="SDK code 6"):
        x @ x
    assert [row for row in torchfl.stats() if row["path"] == "cpu" and row["device"] == f"npu_v3:{KERNEL}"] == []
    assert (x @ x)[0, 0].item() == 4


@faults
def test_work_that_fails_later_surfaces_at_the_next_synchronise():
    x = torch.ones(4, device=on(ASYNC))
    y = x.exp()
    with pytest.raises(RuntimeError) as error:
        torch.npu_v3.synchronize(ASYNC)
    assert f"npu_v3:{ASYNC}" in str(error.value) and "SDK code 6" in str(error.value)
    torch.npu_v3.synchronize(ASYNC)  # it was told once
    del y
    assert torch.ones(4, device=on(ASYNC)).exp().tolist() == pytest.approx([2.718281828] * 4)


@faults
def test_a_copy_that_fails_later_surfaces_when_the_value_is_read():
    first = torch.ones(4).to(on(ASYNC_COPY))
    second = torch.full((4,), 2.0).to(on(ASYNC_COPY))
    with pytest.raises(RuntimeError, match=r"failed while it ran.*SDK code 6"):
        second.tolist()
    assert first.tolist() == [1] * 4


@faults
def test_memory_that_is_short_once_is_asked_for_again():
    """Case 47: the first refusal makes the allocator give back what it has cached and try again."""
    kept = torch.ones(1, device=on(OOM_ONCE))
    big = torch.ones(1 << 20, device=on(OOM_ONCE))
    assert big.sum().item() == 1 << 20 and kept.item() == 1
    stats = torch.npu_v3.memory_stats(OOM_ONCE)
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)


@faults
def test_copies_and_fills_that_fail_raise_and_can_be_repeated():
    device = on(COPY)
    x = torch.arange(6.0).to(device)
    with pytest.raises(RuntimeError, match=r"copy failed.*SDK code 6"):
        x.cpu()
    assert x.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="SDK code 6"):
        x.view(2, 3).t().contiguous()
    assert x.view(2, 3).t().contiguous().tolist() == [[0, 3], [1, 4], [2, 5]]
    failed = 0
    for value in range(4):
        try:
            x.fill_(value)
        except RuntimeError as error:
            assert "SDK code 6" in str(error)
            failed += 1
    assert failed == 1 and x.tolist() == [3] * 6


@faults
def test_a_failure_in_backward_raises_from_backward():
    x = torch.ones(4, device=on(BACKWARD), requires_grad=True)
    loss = (x * 2).sum()
    squared = torch.autograd.grad(loss, x)[0]
    assert squared.tolist() == [2] * 4

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad.exp()

    with pytest.raises(RuntimeError, match="SDK code 6"):
        Fails.apply(x).sum().backward()
    assert x.grad is None
    Fails.apply(x).sum().backward()
    assert x.grad.tolist() == pytest.approx([2.718281828] * 4)


def poisoned(index, call):
    with pytest.raises(RuntimeError) as error:
        call()
    text = str(error.value)
    assert f"npu_v3:{index}" in text and "lost" in text, text
    return text


@faults
def test_a_hung_device_is_given_up_with_a_message_that_says_so():
    """Case 48."""
    x = torch.ones(4, device=on(HANG))
    x.exp()
    text = poisoned(HANG, lambda: torch.npu_v3.synchronize(HANG))
    assert "no progress" in text and "SDK code 7" in text
    again = poisoned(HANG, lambda: x + 1)
    assert "earlier" in again and "no progress" in again
    for call in (lambda: x.cpu(), lambda: torch.ones(3, device=on(HANG)), lambda: torch.npu_v3.synchronize(HANG)):
        poisoned(HANG, call)


@faults
def test_a_lost_device_is_given_up_with_a_message_that_says_so():
    """Case 48."""
    x = torch.ones(4, device=on(LOST))
    text = poisoned(LOST, lambda: x.exp())
    assert "UBA_DEVICE_LOST" in text and "npu_v3_exp" in text
    assert "new process" in text  # what to do
    for call in (lambda: x + 1, lambda: x.tolist(), lambda: x.to("cpu"), lambda: x.zero_()):
        poisoned(LOST, call)


@faults
def test_tensors_of_a_lost_device_can_be_dropped():
    tensors = []
    on(KERNEL)
    with pytest.raises(RuntimeError, match="lost"):
        tensors.append(torch.ones(1, device=on(LOST)))
    tensors.clear()
    import gc

    gc.collect()


@faults
def test_other_devices_go_on_after_one_was_lost():
    """Case 48."""
    for index in (HEALTHY, KERNEL, ASYNC):
        x = torch.full((64, 64), 2.0, device=on(index))
        assert (x @ x).sum().item() == 64 * 64 * 256
    layer = torch.nn.Linear(4, 4).to(on(HEALTHY))
    layer(torch.ones(2, 4, device=on(HEALTHY))).sum().backward()
    assert layer.weight.grad.tolist() == [[2.0] * 4] * 4
    for lost in (HANG, LOST):
        poisoned(lost, lambda lost=lost: torch.ones(1, device=on(HEALTHY)).to(on(lost)))
    assert torch.ones(2, device=on(HEALTHY)).to(on(KERNEL)).tolist() == [1, 1]


@faults
def test_asking_about_a_lost_device_stays_harmless():
    on(LOST)
    assert torch.npu_v3.device_count() == 9
    assert torch.npu_v3.is_available()
    assert torch.npu_v3.memory_allocated(LOST) >= 0
    torch.npu_v3.memory_summary(LOST)
    torch.npu_v3.reset_peak_memory_stats(LOST)
    torch.npu_v3.empty_cache()
    with torch.npu_v3.device(LOST):
        assert torch.npu_v3.current_device() == LOST
    assert torch.npu_v3.current_device() == 0
    stream = torch.npu_v3.default_stream(LOST)
    assert stream.device.index == LOST


never_opened = OwnProcess("never_opened", NPU_SIM_DEVICES="0")


@never_opened
def test_a_chip_without_devices_loads_and_says_that_there_are_none():
    import torchfl

    chip = torchfl.load("npu_v3")
    assert chip.count == 0 and chip.labels == []
    assert torch.npu_v3.is_available() is False
    assert torch.npu_v3.device_count() == 0
    with pytest.raises(RuntimeError, match="npu_v3"):
        torch.ones(1, device="npu_v3:0")
    with pytest.raises(RuntimeError, match="npu_v3"):
        torch.ones(1, device="npu_v3")
    with pytest.raises(RuntimeError, match="npu_v3"):
        torch.npu_v3.get_device_name()
    torch.npu_v3.manual_seed_all(1)
    torch.npu_v3.empty_cache()
    torch.manual_seed(1)
    assert torch.ones(3).sum().item() == 3
