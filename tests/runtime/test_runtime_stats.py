"""The rows of `torchfl.stats`: copies and transfers are among them, and what a reset leaves."""

import pytest
import torch
from helpers import OwnProcess

import torchfl


def rows(call):
    """(op, path, target) -> (calls, bytes) of what `call` does."""
    torchfl.reset_stats()
    call()
    return {(r["op"], r["path"], r["target"]): (r["calls"], r["host_bytes"]) for r in torchfl.stats()}


def test_transfers_are_rows_with_their_bytes(npu):
    host = torch.arange(6.0).view(2, 3)
    x = host.to(npu)
    assert rows(lambda: host.to(npu)) == {("aten::copy_", "transfer", "host to device"): (1, 24)}
    assert rows(lambda: host.t().to(npu)) == {("aten::copy_", "transfer", "host to device"): (1, 24)}
    assert rows(lambda: x.cpu()) == {("aten::copy_", "transfer", "device to host"): (1, 24)}
    assert rows(lambda: x.half().cpu())["aten::copy_", "transfer", "device to host"] == (1, 12)
    assert rows(lambda: [x[0, 1].item(), float(x[1, 1])]) == {
        ("aten::_local_scalar_dense", "transfer", "device to host"): (2, 8)
    }


def test_copies_on_the_device_are_rows_without(npu):
    x = torch.arange(6.0).view(2, 3).to(npu)
    for target, call in {
        "copy": lambda: x.clone(),
        "copy_nd": lambda: x.t().contiguous(),
    }.items():
        assert rows(call) == {("aten::copy_", "native", target): (1, 0)}
    assert rows(lambda: x.to(torch.float16)) == {("aten::copy_", "native", "copy_nd"): (1, 0)}
    assert rows(lambda: x.fill_(x[0, 0])) == {("aten::fill_", "native", "copy_nd"): (1, 0)}
    assert rows(lambda: [torch.empty(0).to(npu), x.copy_(x)]) == {}, "nothing moved"


def test_a_copy_that_the_chip_has_not_is_told_and_strict_mode_refuses_it(npu):
    x = torch.arange(6.0).view(2, 3).to(npu)
    to = torch.float8_e4m3fn
    torchfl.reset_stats()
    assert torch.equal(x.to(to).cpu().float(), x.cpu())
    (row,) = [r for r in torchfl.stats() if r["path"] == "cpu"]
    assert row["op"] == "aten::copy_" and row["host_bytes"] == 24 + 6 and "copy_nd" in row["reason"]
    with torchfl.strict(), pytest.raises(torchfl.UnsupportedOpError, match="strict mode forbids"):
        x.to(to)
    with torchfl.strict():
        assert x.cpu().shape == (2, 3), "what the caller moves is no fallback"


def test_what_the_cpu_route_moves_is_its_own_row_alone(npu):
    x = torch.eye(4).to(npu)
    seen = rows(lambda: torch.linalg.eigvals(x))
    assert seen == {("aten::_linalg_eigvals", "cpu", "cpu"): (1, 64 + 32)}


def test_a_reset_begins_anew_and_the_whole_is_kept(npu):
    engine = torchfl._native.engine()

    def adds(**options):
        found = [r for r in engine.stats(**options) if r["op"] == "aten::add.Tensor" and r["path"] == "native"]
        return sum(r["calls"] for r in found)

    x = torch.ones(3, device=npu)
    before = adds(whole=True)
    torchfl.reset_stats()
    _ = x + x
    assert adds() == 1 and adds(whole=True) == before + 1
    torchfl.reset_stats()
    assert adds() == 0 and adds(whole=True) == before + 1
    assert engine.stats(off_chip=True) == []


def test_timing_counts_a_transfer(npu):
    x = torch.ones(1 << 16).to(npu)
    torchfl.reset_stats()
    with torchfl.timing():
        x.cpu()
        x.clone()
        x.sum().item()
    assert all(row["seconds"] > 0 for row in torchfl.stats())
    assert len(torchfl.stats()) == 4


two = OwnProcess("stats-two-devices", NPU_SIM_DEVICES="2")


@two
def test_between_two_devices() -> None:
    import torchfl

    torchfl.load("npu_v3")
    x = torch.ones(4, device="npu_v3:0")
    torchfl.reset_stats()
    assert x.to("npu_v3:1").cpu().tolist() == [1] * 4
    (row,) = [r for r in torchfl.stats() if r["target"] == "device to device"]
    assert (row["op"], row["path"], row["device"], row["calls"]) == ("aten::copy_", "transfer", "npu_v3:1", 1)
