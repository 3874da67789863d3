"""Copies that overlap with compute: how much of a pipeline's time that hides, on the device's clock, and that what it
gives is right however often it runs. The clock is the simulation's own, so the shares are the same on every machine."""

import torch

BATCHES = 8


def event(module, stream):
    mark = module.Event(enable_timing=True)
    mark.record(stream)
    return mark


def serial(module, hosts, weight):
    """One stream: copy, compute, copy, compute."""
    stream = module.current_stream()
    begin = event(module, stream)
    results = [host.to(weight.device, non_blocking=True) @ weight for host in hosts]
    end = event(module, stream)
    end.synchronize()
    return results, begin.elapsed_time(end)


def pipelined(module, hosts, weight, copies, compute):
    """The next batch is copied while this one is computed."""
    stream = module.current_stream()
    begin = event(module, stream)
    copies.wait_stream(stream)
    compute.wait_stream(stream)
    results = []
    for host in hosts:
        with module.stream(copies):
            there = host.to(weight.device, non_blocking=True)
            arrived = copies.record_event()
        with module.stream(compute):
            compute.wait_event(arrived)
            there.record_stream(compute)
            results.append(there @ weight)
    stream.wait_stream(copies)
    stream.wait_stream(compute)
    for result in results:
        result.record_stream(stream)
    end = event(module, stream)
    end.synchronize()
    return results, begin.elapsed_time(end)


def inputs(npu, rows, width):
    torch.manual_seed(0)
    hosts = [torch.randn(rows, width).half().pin_memory() for _ in range(BATCHES)]
    weight = (torch.randn(width, width) / width**0.5).half()
    want = [(host.double() @ weight.double()).float() for host in hosts]
    return hosts, weight.to(npu), want


def test_a_pipeline_of_two_streams_hides_copies_behind_compute(npu):
    module = torch.npu_v3
    # Batches whose copy takes about as long as their product.
    hosts, weight, want = inputs(npu, 1024, 1024)
    copies, compute = module.Stream(), module.Stream()
    serial(module, hosts, weight)
    one, alone = serial(module, hosts, weight)
    shares = []
    for _ in range(3):
        other, together = pipelined(module, hosts, weight, copies, compute)
        shares.append(together / alone)
        for a, b, right in zip(one, other, want, strict=True):
            assert torch.equal(a.cpu(), b.cpu())
            torch.testing.assert_close(b.cpu().float(), right, rtol=2e-3, atol=2e-3)
    assert sorted(shares)[1] <= 0.7, shares


def test_a_pipeline_is_right_a_thousand_times_in_a_row(npu):
    module = torch.npu_v3
    hosts, weight, want = inputs(npu, 16, 32)
    copies, compute = module.Stream(), module.Stream()
    back = [torch.empty(16, 32, dtype=torch.half).pin_memory() for _ in hosts]
    for i in range(1000):
        hosts[i % BATCHES].fill_(i % 7)  # no copy of it is on its way: the last round has been waited for
        want[i % BATCHES] = (hosts[i % BATCHES].double() @ weight.cpu().double()).float()
        results, _ = pipelined(module, hosts, weight, copies, compute)
        for host, result in zip(back, results, strict=True):
            host.copy_(result, non_blocking=True)
        del results
        module.synchronize()
        for host, right in zip(back, want, strict=True):
            torch.testing.assert_close(host.float(), right, rtol=5e-3, atol=5e-3)
