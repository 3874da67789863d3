"""The caching allocator as users see it: torch.cuda's statistics, limits, and what happens at the end of memory."""

import gc

import pytest
import torch
from helpers import OwnProcess

MIB = 2**20


@pytest.fixture
def fresh(npu):
    """The device with nothing cached; what other tests hold stays allocated."""
    gc.collect()
    torch.npu_v3.synchronize()
    torch.npu_v3.empty_cache()
    torch.npu_v3.reset_peak_memory_stats()
    return npu


def test_statistics_have_the_names_of_torch_cuda(npu):
    torch.ones(1, device=npu)
    stats = torch.npu_v3.memory_stats()
    for kind in ("allocation", "segment", "active", "inactive_split"):
        for what in ("current", "peak", "allocated", "freed"):
            assert stats[f"{kind}.all.{what}"] >= 0
    for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
        for what in ("current", "peak", "allocated", "freed"):
            assert stats[f"{kind}.all.{what}"] >= 0
    for name in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams"):
        assert stats[name] >= 0
    nested = torch.npu_v3.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]


def test_allocated_memory_follows_the_tensors(fresh):
    before = torch.npu_v3.memory_allocated()
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=fresh)
    assert torch.npu_v3.memory_allocated() - before == 3 * MIB
    y = x[5:]
    z = x.view(3, MIB)
    assert torch.npu_v3.memory_allocated() - before == 3 * MIB
    del x, y
    assert torch.npu_v3.memory_allocated() - before == 3 * MIB
    del z
    assert torch.npu_v3.memory_allocated() == before
    assert torch.npu_v3.memory_reserved() >= 3 * MIB
    torch.npu_v3.empty_cache()
    assert torch.npu_v3.memory_reserved() < 3 * MIB + before + 2 * MIB


def test_requested_and_rounded_bytes_are_told_apart(fresh):
    before = torch.npu_v3.memory_stats()
    x = torch.empty(1000, dtype=torch.uint8, device=fresh)
    after = torch.npu_v3.memory_stats()
    assert after["requested_bytes.all.current"] - before["requested_bytes.all.current"] == 1000
    assert after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 1024
    assert after["allocation.all.current"] - before["allocation.all.current"] == 1
    del x


def test_an_empty_tensor_needs_no_memory(fresh):
    before = torch.npu_v3.memory_stats()["allocation.all.allocated"]
    torch.empty(0, device=fresh)
    torch.empty(3, 0, 5, device=fresh).clone()
    assert torch.npu_v3.memory_stats()["allocation.all.allocated"] == before


def test_peaks_can_be_reset_and_live_counters_stay(fresh):
    """Case 40."""
    before = torch.npu_v3.memory_allocated()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device=fresh)
    del x
    assert torch.npu_v3.max_memory_allocated() - before == 4 * MIB
    kept = torch.empty(MIB, dtype=torch.uint8, device=fresh)
    torch.npu_v3.reset_peak_memory_stats()
    assert torch.npu_v3.memory_allocated() - before == MIB
    assert torch.npu_v3.max_memory_allocated() == torch.npu_v3.memory_allocated()
    assert torch.npu_v3.max_memory_reserved() == torch.npu_v3.memory_reserved()
    allocated = torch.npu_v3.memory_stats()["allocated_bytes.all.allocated"]
    assert allocated >= 5 * MIB
    torch.npu_v3.reset_accumulated_memory_stats()
    stats = torch.npu_v3.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    assert stats["num_alloc_retries"] == stats["num_ooms"] == 0
    assert torch.npu_v3.memory_allocated() - before == MIB
    del kept


def test_reserved_memory_stays_flat_in_a_loop_with_empty_cache(fresh):
    """Case 39."""
    seen = set()
    free = set()
    for i in range(30):
        x = [torch.empty((i % 3 + 1) * MIB, dtype=torch.uint8, device=fresh), torch.ones(100, device=fresh)]
        del x
        torch.npu_v3.empty_cache()
        seen.add(torch.npu_v3.memory_reserved())
        free.add(torch.npu_v3.mem_get_info()[0])
    assert len(seen) == 1 and len(free) == 1


def test_reserved_memory_stays_flat_in_a_loop_without_empty_cache(fresh):
    seen = []
    for _ in range(30):
        x = torch.empty(5 * MIB, dtype=torch.uint8, device=fresh)
        y = x.clone()
        del x, y
        seen.append(torch.npu_v3.memory_reserved())
    assert seen[0] == seen[-1]


def test_free_memory_is_what_the_sdk_counts(fresh):
    free, total = torch.npu_v3.mem_get_info()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device=fresh)
    assert torch.npu_v3.mem_get_info() == (free - 64 * MIB, total)
    del x
    assert torch.npu_v3.mem_get_info()[0] == free - 64 * MIB  # cached
    torch.npu_v3.empty_cache()
    assert torch.npu_v3.mem_get_info()[0] == free


def test_a_snapshot_shows_every_segment_and_block(fresh):
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=fresh)
    segments = torch.npu_v3.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == torch.npu_v3.memory_reserved()
    active = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
    assert sum(b["size"] for b in active) == torch.npu_v3.memory_allocated()
    assert x.data_ptr() in [b["address"] for b in active]
    for s in segments:
        assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
        assert s["segment_type"] in ("small", "large")


def test_the_summary_names_the_numbers(fresh):
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=fresh)
    text = torch.npu_v3.memory_summary()
    assert "npu_v3:0" in text and f"{torch.npu_v3.memory_allocated():,}" in text
    assert len(torch.npu_v3.memory_summary(abbreviated=True)) < len(text)
    del x


def test_a_memory_fraction_limits_this_process_and_can_be_lifted(fresh):
    total = torch.npu_v3.mem_get_info()[1]
    assert torch.npu_v3.get_per_process_memory_fraction() == 1.0
    torch.npu_v3.set_per_process_memory_fraction((torch.npu_v3.memory_reserved() + 16 * MIB) / total)
    try:
        torch.empty(8 * MIB, dtype=torch.uint8, device=fresh)
        with pytest.raises(torch.OutOfMemoryError, match="memory fraction"):
            torch.empty(64 * MIB, dtype=torch.uint8, device=fresh)
        torch.empty(8 * MIB, dtype=torch.uint8, device=fresh)
    finally:
        torch.npu_v3.set_per_process_memory_fraction(1.0)
    torch.empty(64 * MIB, dtype=torch.uint8, device=fresh)
    torch.npu_v3.empty_cache()
    torch.npu_v3.set_per_process_memory_fraction(0.0)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 * MIB, dtype=torch.uint8, device=fresh)
    finally:
        torch.npu_v3.set_per_process_memory_fraction(1.0)
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match="fraction"):
            torch.npu_v3.set_per_process_memory_fraction(bad)


def test_an_impossible_size_is_out_of_memory_and_not_a_crash(fresh):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2**50, dtype=torch.uint8, device=fresh)
    assert torch.ones(3, device=fresh).sum().item() == 3


def test_a_size_beyond_all_numbers_is_refused_as_on_the_cpu(fresh):
    x = torch.ones(4, device=fresh)
    for call in (
        lambda: torch.empty(2**62, dtype=torch.float32, device=fresh),
        lambda: torch.empty(2**40, 2**40, dtype=torch.uint8, device=fresh),
        lambda: torch.empty_strided((2**32, 2), (2**31, 1), dtype=torch.float64, device=fresh),
        lambda: x.resize_(2**62),
        lambda: torch.empty(0, device=fresh).set_(x.untyped_storage(), 2**61, (2**61,), (4,)),
    ):
        with pytest.raises(RuntimeError, match="overflow"):
            call()
    assert torch.empty(0, 2**40, device=fresh).numel() == 0
    assert x.untyped_storage().nbytes() == 16


def test_small_tensors_do_not_take_a_segment_each(fresh):
    before = torch.npu_v3.memory_stats()["num_device_alloc"]
    kept = [torch.empty(8, device=fresh) for _ in range(1000)]
    assert torch.npu_v3.memory_stats()["num_device_alloc"] - before <= 3
    assert len({t.data_ptr() for t in kept}) == 1000
    assert {t.data_ptr() % 256 for t in kept} == {0}


def test_freed_memory_is_used_again_in_stream_order(fresh):
    x = torch.full((1000,), 1.0, device=fresh)
    address = x.data_ptr()
    y = x + 1
    del x
    z = torch.full((1000,), 5.0, device=fresh)
    assert z.data_ptr() == address
    assert y.unique().tolist() == [2.0]


small = OwnProcess("small_memory", NPU_SIM_MEMORY="64")


@small
def test_nothing_is_allocated_before_the_first_tensor_and_resetting_peaks_is_harmless():
    """Case 40."""
    import torchfl

    torchfl.load("npu_v3")
    torch.npu_v3.reset_peak_memory_stats()
    torch.npu_v3.reset_accumulated_memory_stats()
    torch.npu_v3.empty_cache()
    assert torch.npu_v3.memory_allocated() == torch.npu_v3.max_memory_allocated() == 0
    assert torch.npu_v3.memory_reserved() == 0
    assert torch.npu_v3.memory_snapshot() == []
    assert not torch.npu_v3.is_initialized()
    assert "npu_v3:0" in torch.npu_v3.memory_summary()
    assert not torch.npu_v3.is_initialized()


@small
def test_cached_blocks_are_freed_before_memory_is_said_to_be_out():
    """Case 47."""
    cached = [torch.empty(10 * MIB, dtype=torch.uint8, device="npu_v3:0") for _ in range(5)]
    del cached
    assert torch.npu_v3.memory_reserved() >= 50 * MIB
    x = torch.ones(40 * MIB, dtype=torch.uint8, device="npu_v3:0")
    assert torch.npu_v3.memory_stats()["num_alloc_retries"] == 1
    assert torch.npu_v3.memory_stats()["num_ooms"] == 0
    assert torch.npu_v3.memory_reserved() == 40 * MIB
    assert x[-1].item() == 1


@small
def test_out_of_memory_says_what_is_used_cached_and_free_and_smaller_still_works():
    """Case 47."""
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device="npu_v3:0")
    part = torch.empty(MIB // 2, device="npu_v3:0")
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(50 * MIB, dtype=torch.uint8, device="npu_v3:0")
    text = str(error.value)
    for said in ("npu_v3:0", "out of memory", "50.00 MiB", "64.00 MiB", "free", "allocated", "cached", "SDK code 3"):
        assert said in text, said
    assert "\n" not in text.strip()
    assert isinstance(error.value, RuntimeError)
    assert torch.npu_v3.memory_stats()["num_ooms"] == 1
    smaller = torch.ones(20 * MIB, dtype=torch.uint8, device="npu_v3:0")
    assert smaller[-1].item() == 1
    del kept, part, smaller


@small
def test_an_operator_that_runs_out_of_memory_leaves_its_arguments_alone():
    """Cases 47 and 48."""
    torch.npu_v3.empty_cache()
    x = torch.ones(10 * MIB, dtype=torch.float32, device="npu_v3:0")
    for call in (lambda: x + x, lambda: x.clone(), lambda: x.to(torch.int64), lambda: torch.cat([x, x])):
        with pytest.raises(torch.OutOfMemoryError):
            call()
    assert x.sum().item() == 10 * MIB
    assert x.add_(1)[-1].item() == 2


@small
def test_a_training_step_that_did_not_fit_can_be_repeated_smaller():
    def step(batch):
        layer = torch.nn.Linear(1024, 1024, device="npu_v3:0")
        layer(torch.ones(batch, 1024, device="npu_v3:0")).relu().sum().backward()
        return layer.weight.grad.shape

    with pytest.raises(torch.OutOfMemoryError):
        step(8192)
    gc.collect()
    assert step(256) == (1024, 1024)


@small
def test_memory_that_a_gap_splits_is_found_again_when_neighbours_are_freed():
    gc.collect()
    torch.npu_v3.empty_cache()
    kept = [torch.empty(5 * MIB, dtype=torch.uint8, device="npu_v3:0") for _ in range(10)]
    del kept[::2]
    torch.empty(9 * MIB, dtype=torch.uint8, device="npu_v3:0")
    kept.clear()
    assert torch.empty(60 * MIB, dtype=torch.uint8, device="npu_v3:0").numel() == 60 * MIB


@small
def test_memory_that_waits_for_another_stream_is_waited_for_before_giving_up():
    gc.collect()
    torch.npu_v3.empty_cache()
    side = torch.npu_v3.Stream()
    y = torch.empty(1700, 1700, device="npu_v3:0")
    x = torch.ones(1700, 1700, device="npu_v3:0")
    side.wait_stream(torch.npu_v3.current_stream())
    with torch.npu_v3.stream(side):
        torch.mm(x, x, out=y)
    x.record_stream(side)
    del x
    rest = torch.npu_v3.mem_get_info()[0] + 8 * MIB  # more than is free until `x` is
    z = torch.ones(rest, dtype=torch.uint8, device="npu_v3:0")
    assert z[-1].item() == 1 and y[0, 0].item() == 1700
