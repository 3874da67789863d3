"""Tensors that leave the process or change hands: DLPack, other processes, safetensors, pickles, pinned memory."""

import copy
import gc
import pickle
import subprocess
import sys

import pytest
import torch
from helpers import environment

import torchfl


def test_dlpack_shares_memory_both_ways_whatever_the_view(npu):
    base = torch.arange(24.0, device=npu).view(4, 6)
    for view in (base, base[1:, ::2], base.t(), base[2], base[3, 5]):
        assert view.__dlpack_device__() == (12, npu.index)
        for handed in (
            torch.from_dlpack(view), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(view)),
            torch.from_dlpack(view, device=npu), torch.from_dlpack(view, copy=False),
        ):  # fmt: skip
            assert handed.device == npu and handed.stride() == view.stride() and torch.equal(handed.cpu(), view.cpu())
            handed.add_(1)
            assert torch.equal(handed.cpu(), view.cpu())
    apart = torch.from_dlpack(base, copy=True)
    apart.zero_()
    assert base.sum().item() != 0
    assert torch.from_dlpack(base, device="cpu").device.type == "cpu"
    assert torch.from_dlpack(torch.ones(2)).device.type == "cpu"
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device=npu, requires_grad=True))


def test_a_dlpack_alias_keeps_the_memory_and_computes_at_any_offset(npu):
    whole = torch.randn(50, 33, device=npu)
    want = whole.cpu()[3:, 1:].clone()
    handed = torch.from_dlpack(whole[3:, 1:])
    del whole
    gc.collect()
    torch.empty(50, 33, device=npu).fill_(-1)
    torch.testing.assert_close((handed @ handed.t()).cpu(), want @ want.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.nn.functional.gelu(handed).cpu(), torch.nn.functional.gelu(want))
    assert handed.record_stream(torch.npu_v3.Stream()) is None


def test_pickles_and_deep_copies_of_tensors_modules_and_optimizers(npu):
    base = torch.arange(6.0, device=npu)
    one, two = pickle.loads(pickle.dumps((base[:3], base[2:])))
    assert one.device == npu and one.tolist() == [0, 1, 2] and two.tolist() == [2, 3, 4, 5]
    net = torch.nn.Linear(3, 2).to(npu)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    net(torch.ones(1, 3, device=npu)).sum().backward()
    optimizer.step()
    for made in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert torch.equal(made.weight.cpu(), net.weight.cpu()) and made.weight.device == npu
        with torch.no_grad():
            made.weight.zero_()
        assert net.weight.abs().sum().item() > 0
    assert pickle.loads(pickle.dumps(optimizer.state_dict()))["state"][0]["momentum_buffer"].device == npu
    assert net.share_memory() is net and net.weight.is_shared()


def test_safetensors_save_and_load_to_the_device(npu, tmp_path):
    from safetensors.torch import load_file, load_model, save_file, save_model

    values = {
        "a": torch.randn(3, 4, device=npu), "half": torch.ones(2, dtype=torch.float16, device=npu),
        "flags": torch.tensor([True, False], device=npu), "none": torch.empty(0, 3, device=npu),
    }  # fmt: skip
    save_file(values, tmp_path / "x.safetensors")
    for where in ("cpu", "npu_v3:0"):
        loaded = load_file(tmp_path / "x.safetensors", device=where)
        for name, value in values.items():
            assert str(loaded[name].device) == where and torch.equal(loaded[name].cpu(), value.cpu())
    net = torch.nn.Linear(3, 2).to(npu)
    save_model(net, str(tmp_path / "net.safetensors"))
    other = torch.nn.Linear(3, 2).to(npu)
    load_model(other, str(tmp_path / "net.safetensors"), device="npu_v3:0")
    assert torch.equal(other.weight.cpu(), net.weight.cpu())


CHILD = """
import torch, torch.multiprocessing as mp

def child(inbox, outbox):
    given = inbox.get()
    assert given["a"].untyped_storage().data_ptr() == given["b"].untyped_storage().data_ptr()
    given["a"].add_(1)
    outbox.put({"device": str(given["a"].device), "b": given["b"].cpu().tolist(), "back": given["a"] * 2, "host": given["host"]})
    inbox.get(timeout=60)  # until it has arrived, as torch.multiprocessing asks for all tensors

if __name__ == "__main__":
    import torchfl
    torchfl.load("npu_v3")
    base = torch.arange(6.0, device="npu_v3:0")
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(inbox, outbox))
    process.start()
    inbox.put({"a": base[:3], "b": base[1:], "host": torch.ones(2), "p": torch.nn.Parameter(base.clone())})
    got = outbox.get(timeout=60)
    inbox.put("arrived")
    process.join()
    print(got["device"], got["b"], got["back"].device, got["back"].tolist(), got["host"].tolist(), base.tolist())
"""


def test_tensors_travel_between_processes_by_value(tmp_path):
    script = tmp_path / "child_script.py"
    script.write_text(CHILD)
    done = subprocess.run([sys.executable, str(script)], env=environment(), capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == (
        "npu_v3:0 [2.0, 3.0, 3.0, 4.0, 5.0] npu_v3:0 [2.0, 4.0, 6.0] [1.0, 1.0] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"
    ), done


def test_pinned_memory_is_kept_for_the_next_request_and_given_back_when_asked(npu):
    module = torch.npu_v3
    gc.collect()
    torch.accelerator.empty_host_cache()
    module.reset_accumulated_host_memory_stats()
    before = module.host_memory_stats()
    first = torch.empty(5000, pin_memory=True)  # 20,000 bytes: a block of 32 KiB
    address = first.data_ptr()
    assert first.is_pinned() and first[10:].is_pinned() and address % 4096 == 0
    held = module.host_memory_stats()
    assert held["active_bytes.current"] - before["active_bytes.current"] == 32768
    assert held["allocations.current"] - before["allocations.current"] == 1
    del first
    cached = module.host_memory_stats()
    assert cached["active_requests.current"] == before["active_requests.current"]
    assert cached["allocated_bytes.current"] == held["allocated_bytes.current"]
    again = torch.empty(6000, pin_memory=True)
    assert again.data_ptr() == address and module.host_memory_stats()["num_host_alloc"] == 1
    del again
    torch.accelerator.empty_host_cache()
    assert module.host_memory_stats()["allocated_bytes.current"] == before["allocated_bytes.current"]
    assert module.host_memory_stats()["num_host_free"] == 1
    assert not torch.empty(5000).is_pinned() and torch.empty(0, pin_memory=True).numel() == 0
    with pytest.raises((RuntimeError, MemoryError)):
        torch.empty(1 << 60, dtype=torch.uint8, pin_memory=True)


def test_a_pinned_source_is_not_reused_while_its_copy_is_on_its_way(npu):
    for i in range(200):
        source = torch.full((20000,), float(i), pin_memory=True)
        there = source.to(npu, non_blocking=True)
        del source
        torch.empty(20000, pin_memory=True).fill_(-1)  # would be the same block, were it free
        assert there[-1].item() == i


def test_numpy_goes_through_the_host(npu):
    import numpy

    x = torch.arange(6.0, device=npu).view(2, 3)
    assert numpy.array_equal(x.cpu().numpy(), [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(TypeError, match=r"can't convert .* to numpy"):
        x.numpy()
    assert x.numpy(force=True).shape == (2, 3)
    assert torch.from_numpy(numpy.eye(2)).to(npu).dtype == torch.float64
    assert torchfl.transfers()["to_host_copies"] > 0
