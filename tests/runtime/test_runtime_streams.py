"""Streams and events: work is really ordered by them, and memory that several streams use is kept long enough."""

import threading

import pytest
import torch
from helpers import OwnProcess, heard, in_threads

import torchfl

N = 512  # a product of this size keeps a stream of the simulated chip busy for milliseconds


def slow(x, times=6):
    """A chain of products that gives x back: the identity, the long way round."""
    eye = torch.eye(x.shape[0], device=x.device)
    for _ in range(times):
        x = x @ eye
    return x


def test_a_stream_is_asynchronous_and_can_be_asked(npu):
    side = torch.npu_v3.Stream()
    with torch.npu_v3.stream(side):
        result = slow(torch.ones(N, N, device=npu), 20)
        busy = not side.query()
    side.synchronize()
    assert busy, "the host waited for every product"
    assert side.query()
    assert result.cpu().unique().tolist() == [1.0]


def test_an_event_orders_one_stream_after_another(npu):
    main, side = torch.npu_v3.current_stream(), torch.npu_v3.Stream()
    for i in range(5):
        x = torch.full((N, N), float(i), device=npu)
        ready = torch.npu_v3.Event()
        ready.record(main)
        with torch.npu_v3.stream(side):
            side.wait_event(ready)
            y = slow(x)
            done = side.record_event()
        main.wait_event(done)
        z = y + 1
        assert z.cpu().unique().tolist() == [i + 1.0]


def test_a_stream_waits_for_a_stream(npu):
    main, side = torch.npu_v3.current_stream(), torch.npu_v3.Stream()
    x = slow(torch.full((N, N), 3.0, device=npu))
    side.wait_stream(main)
    with torch.npu_v3.stream(side):
        y = slow(x * 2)
    main.wait_stream(side)
    assert (y + 1).cpu().unique().tolist() == [7.0]


def test_without_waiting_streams_really_run_beside_each_other(npu):
    """Otherwise the tests above would hold for a backend that ignores streams."""
    side = torch.npu_v3.Stream()
    one = torch.ones(8, device=npu)
    torch.npu_v3.synchronize()
    with torch.npu_v3.stream(side):
        slow(torch.ones(N, N, device=npu), 40)
    assert (one + 1).tolist() == [2.0] * 8  # waits for the default stream only
    assert not side.query()
    side.synchronize()


def test_a_stream_made_current_from_the_generic_class(npu):
    side = torch.Stream(device=npu)
    with side:
        assert torch.accelerator.current_stream() == side
        y = slow(torch.ones(N, N, device=npu))
    side.synchronize()
    assert torch.accelerator.current_stream() != side
    assert y.cpu().unique().tolist() == [1.0]


def test_the_current_stream_is_each_threads_own(npu):
    side = torch.npu_v3.Stream()
    seen = []
    with torch.npu_v3.stream(side):
        thread = threading.Thread(target=lambda: seen.append(torch.npu_v3.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.npu_v3.default_stream()]


def test_streams_share_a_pool_and_stay_usable(npu):
    """As with torch.cuda: making thousands of them makes no more than some of the chip's."""
    streams = [torch.npu_v3.Stream() for _ in range(200)]
    assert len({s.stream_id for s in streams}) <= 64
    results = []
    for i, stream in enumerate(streams):
        with torch.npu_v3.stream(stream):
            results.append(torch.full((3,), float(i), device=npu) + 1)
    torch.npu_v3.synchronize()
    assert [r[0].item() for r in results] == [i + 1.0 for i in range(200)]


def test_an_event_knows_whether_it_has_passed(npu):
    event = torch.npu_v3.Event()
    assert event.query()  # nothing was recorded
    slow(torch.ones(N, N, device=npu), 20)
    event.record()
    passed_at_once = event.query()
    event.synchronize()
    assert not passed_at_once
    assert event.query()


def test_elapsed_time_is_device_time_in_milliseconds(npu):
    """A product of 1024^3 is 2^31 operations; the data sheet says 25.6 TFLOP/s in float16, so at least 0.08 ms."""
    x = torch.ones(1024, 1024, dtype=torch.float16, device=npu)
    marks = [torch.npu_v3.Event(enable_timing=True) for _ in range(3)]
    marks[0].record()
    y = x @ x
    marks[1].record()
    y = y + 1
    marks[2].record()
    torch.npu_v3.synchronize()
    product, addition = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    assert 0.08 < product < 1
    assert 0 < addition < product
    assert marks[0].elapsed_time(marks[2]) == pytest.approx(product + addition)
    generic = [torch.Event(npu, enable_timing=True) for _ in range(2)]
    generic[0].record()
    generic[1].record()
    generic[1].synchronize()
    assert generic[0].elapsed_time(generic[1]) >= 0


def test_elapsed_time_needs_two_recorded_events_with_timing(npu):
    recorded = torch.npu_v3.Event(enable_timing=True)
    recorded.record()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        recorded.elapsed_time(torch.npu_v3.Event(enable_timing=True))
    without = torch.npu_v3.Event()
    without.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        without.elapsed_time(recorded)


def test_elapsed_time_of_events_of_two_chips_is_refused(npu):
    """One chip's adapter knows nothing of another's events."""
    torchfl.load("x1")
    first_of = {row["chip"]: row["index"] for row in reversed(torchfl.devices())}
    marks = []
    for device in (first_of["NPU-V3"], first_of["X1-Edge"]):
        marks.append(torch.Event(torch.device(npu.type, device), enable_timing=True))
        marks[-1].record(torch.accelerator.current_stream(device))
        torch.accelerator.synchronize(device)
    for first, second in (marks, marks[::-1]):
        with pytest.raises(RuntimeError, match="recorded on different devices"):
            first.elapsed_time(second)


def test_an_event_may_be_recorded_again(npu):
    event = torch.npu_v3.Event()
    event.record()
    slow(torch.ones(N, N, device=npu), 20)
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()  # the second mark has passed, which stands behind the work
    torch.npu_v3.current_stream().synchronize()
    assert torch.npu_v3.current_stream().query()


def test_memory_freed_on_another_stream_is_not_given_away_while_that_stream_uses_it(npu):
    side = torch.npu_v3.Stream()
    for _ in range(10):
        x = torch.full((N, N), 1.0, device=npu)
        side.wait_stream(torch.npu_v3.current_stream())
        with torch.npu_v3.stream(side):
            y = slow(x, 4)
            total = y + x
        x.record_stream(side)
        del x
        torch.full((N, N), -7.0, device=npu)  # would be given the memory of x
        torch.npu_v3.current_stream().wait_stream(side)
        assert total.cpu().unique().tolist() == [2.0]


def test_recording_a_stream_of_the_allocation_itself_is_harmless(npu):
    x = torch.ones(8, device=npu)
    x.record_stream(torch.npu_v3.current_stream())
    x[2:4].record_stream(torch.npu_v3.Stream())
    torch.empty(0, device=npu).record_stream(torch.npu_v3.Stream())
    assert x.sum().item() == 8


def test_memory_comes_back_after_the_other_stream_has_passed(npu):
    torch.npu_v3.synchronize()
    before = torch.npu_v3.memory_allocated()
    side = torch.npu_v3.Stream()
    x = torch.empty(1 << 20, device=npu)
    x.record_stream(side)
    del x
    torch.npu_v3.synchronize()
    torch.empty(1, device=npu)  # the allocator looks when it is next asked
    assert torch.npu_v3.memory_stats()["active_bytes.all.current"] <= before + 512


def test_a_copy_on_a_side_stream_is_ordered_there(npu):
    side = torch.npu_v3.Stream()
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    with torch.npu_v3.stream(side):
        x = host.to(npu, non_blocking=True)
        y = x * 2
        assert y.cpu().tolist() == (host * 2).tolist()


def test_backward_runs_on_the_stream_of_its_forward(npu):
    side = torch.npu_v3.Stream()
    w = torch.ones(N, N, device=npu, requires_grad=True)
    side.wait_stream(torch.npu_v3.current_stream())
    with torch.npu_v3.stream(side):
        loss = slow(w).sum()
    torch.npu_v3.current_stream().wait_stream(side)
    loss.backward()
    assert w.grad.cpu().unique().tolist() == [1.0]


def test_streams_and_events_say_what_they_are(npu):
    assert "npu_v3" in repr(torch.npu_v3.Stream())
    event = torch.npu_v3.Event()
    assert "npu_v3" in repr(event)
    assert isinstance(event, torch.npu_v3.Event) and isinstance(event, torch.Event)
    assert not isinstance(torch.Event("cpu"), torch.npu_v3.Event)
    assert torch.npu_v3.default_stream() == torch.npu_v3.default_stream()
    assert hash(torch.npu_v3.default_stream()) == hash(torch.npu_v3.default_stream())
    with pytest.raises((RuntimeError, ValueError)):
        torch.npu_v3.Stream("cpu")


def test_two_threads_compute_at_the_same_time(npu):
    results, failures = {}, []

    def work(number):
        try:
            with torch.npu_v3.stream(torch.npu_v3.Stream()) if number % 2 else torch.npu_v3.stream(None):
                x = torch.full((64, 64), float(number), device=npu)
                for _ in range(60):
                    x = (x @ torch.eye(64, device=npu)).relu() + 1
                    x = x[1:].clone().new_full((64, 64), float(x[3, 3])) - 1
                results[number] = x.cpu().unique().tolist()
        except Exception as error:
            failures.append(error)

    in_threads(work, 4)
    assert failures == []
    assert results == {n: [float(n)] for n in range(4)}


def test_backward_in_several_threads(npu):
    grads, failures = {}, []

    def work(number):
        try:
            torch.manual_seed(number)
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
            layer = torch.nn.Linear(8, 4)
            expected = torch.autograd.grad(layer(x).tanh().sum(), layer.weight)[0]
            layer.to(npu)
            for _ in range(10):
                layer.zero_grad()
                layer(x.to(npu)).tanh().sum().backward()
            grads[number] = (layer.weight.grad.cpu() - expected).abs().max().item()
        except Exception as error:
            failures.append(error)

    in_threads(work, 3)
    assert failures == []
    assert max(grads.values()) < 1e-4 and len(grads) == 3


quiet = OwnProcess("quiet")


@quiet
def test_a_thousand_calls_of_an_unsupported_operator_log_one_line():
    """Case 29."""
    import torchfl

    lines = heard()
    torchfl.load("npu_v3")
    x = torch.eye(3).to("npu_v3:0")
    for _ in range(1000):
        torch.linalg.svdvals(x)
    named = [line for line in lines if "svd" in line]
    assert len(named) == 1
    assert "npu_v3:0" in named[0] and "CPU" in named[0]
    row = next(r for r in torchfl.stats() if r["op"].startswith("aten::_linalg_svd"))
    assert row["calls"] == 1000 and row["path"] == "cpu" and row["reason"] in named[0]


@quiet
def test_the_log_says_the_same_again_for_another_reason_only():

    lines = heard()
    for shape in ((3,), (4,), (2, 5)):
        torch.rand(shape, dtype=torch.float64, device="npu_v3:0").exp()
        torch.rand(shape, device="npu_v3:0").lgamma()
    assert len([line for line in lines if "aten::exp" in line]) <= 1
    assert [line for line in lines if "lgamma" in line] == []
