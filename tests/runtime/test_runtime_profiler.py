"""The profilers: `torch.profiler` with our devices' activity, and `torchfl.profiler`, whose rows say path and reason."""

import collections
import itertools
import json
import threading

import pytest
import torch
from helpers import OwnProcess, run_script
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import torchfl

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def events_of(prof, tmp_path):
    file = tmp_path / "trace.json"
    prof.export_chrome_trace(str(file))
    return json.loads(file.read_text())["traceEvents"]


def by_category(events):
    rows = collections.defaultdict(list)
    for event in events:
        rows[event.get("cat", event["ph"])].append(event)
    return rows


@pytest.fixture
def work(npu):
    """A product, a gelu and an operator of the CPU, whose signatures are decided."""
    x = torch.randn(32, 32, device=npu)

    def run():
        y = x @ x
        torch.nn.functional.gelu(y)
        torch.linalg.svdvals(y[:4, :4])
        return y

    run()
    torch.npu_v3.synchronize()
    return run


# ------------------------------------------------------------------------------------------ torch.profiler


def test_the_device_is_one_of_the_activities_that_pytorch_can_record(npu):
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()


def test_kernels_and_copies_have_times_of_the_device(work, tmp_path):
    with profile(activities=BOTH) as prof:
        y = work()
        host = y.cpu()
        host.to(y.device)
    rows = by_category(events_of(prof, tmp_path))
    kernels = {event["name"]: event for event in rows["kernel"]}
    assert "npu_v3_matmul" in kernels
    assert "npu_v3_gelu" in kernels
    assert {"Memcpy DtoH", "Memcpy HtoD"} <= {event["name"] for event in rows["gpu_memcpy"]}
    moved = [e for e in rows["gpu_memcpy"] if e["name"] == "Memcpy HtoD"]
    assert moved[-1]["args"]["bytes"] == str(32 * 32 * 4)
    for event in rows["kernel"] + rows["gpu_memcpy"]:
        assert event["pid"] == 0
        assert event["tid"] == 0
        assert event["dur"] > 0
        assert event["args"]["clock"] == "placed"  # the simulation's clock stands between pieces of work


def test_durations_are_those_that_events_measure(npu, tmp_path):
    x = torch.randn(512, 512, device=npu)
    x @ x
    begin, end = torch.npu_v3.Event(enable_timing=True), torch.npu_v3.Event(enable_timing=True)
    begin.record()
    x @ x
    end.record()
    end.synchronize()
    with profile(activities=BOTH) as prof:
        x @ x
    kernel = by_category(events_of(prof, tmp_path))["kernel"]
    assert len(kernel) == 1
    assert kernel[0]["dur"] == pytest.approx(1e3 * begin.elapsed_time(end), rel=0.01)


def test_work_of_one_stream_follows_each_other_and_begins_when_it_was_submitted(work, tmp_path):
    with profile(activities=BOTH) as prof:
        for _ in range(5):
            work()
    rows = by_category(events_of(prof, tmp_path))
    device = sorted(rows["kernel"] + rows["gpu_memcpy"], key=lambda e: e["ts"])
    for first, second in itertools.pairwise(device):
        assert first["ts"] + first["dur"] <= second["ts"] + 0.002
    starts = {e["id"]: e for e in rows["ac2g"] if e["ph"] == "s"}
    ends = [e for e in rows["ac2g"] if e["ph"] == "f"]
    assert ends
    for end in ends:
        assert starts[end["id"]]["ts"] <= end["ts"]


def test_streams_and_devices_are_rows_of_their_own(npu, tmp_path):
    x = torch.randn(64, 64, device=npu)
    stream = torch.npu_v3.Stream()
    torch.npu_v3.synchronize()
    with profile(activities=BOTH) as prof:
        x @ x
        with torch.npu_v3.stream(stream):
            x @ x
        torch.npu_v3.synchronize()
    events = events_of(prof, tmp_path)
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert [e["tid"] for e in kernels] == [0, stream.stream_id]
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name" and e["pid"] == 0]
    assert names == ["npu_v3:0"]
    threads = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == 0}
    assert threads == {"stream 0", f"stream {stream.stream_id}"}
    labels = [e["args"]["labels"] for e in events if e["ph"] == "M" and e["name"] == "process_labels"]
    assert not [label for label in labels if label.startswith("GPU")]


def test_a_kernel_belongs_to_the_operator_that_launched_it(work):
    with profile(activities=BOTH) as prof:
        work()
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::mm"].self_device_time_total == pytest.approx(rows["npu_v3_matmul"].self_device_time_total)
    assert rows["aten::gelu"].self_device_time_total == pytest.approx(rows["npu_v3_gelu"].self_device_time_total)
    assert rows["aten::matmul"].device_time_total >= rows["aten::mm"].self_device_time_total
    table = prof.key_averages().table(sort_by="self_npu_v3_time_total".replace("npu_v3", "device"))
    assert "Self NPU_V3" in table


def test_backward_is_seen_on_autograds_thread(npu, tmp_path):
    layer = torch.nn.Linear(32, 32).to(npu)
    x = torch.randn(16, 32, device=npu)
    layer(x).sum().backward()
    with profile(activities=BOTH) as prof:
        layer(x).sum().backward()
    rows = by_category(events_of(prof, tmp_path))
    threads = {e["tid"] for e in rows["privateuse1_runtime"] if e["args"].get("path") == "native"}
    assert len(threads) == 2
    of_backward = [e for e in prof.events() if e.name == "AddmmBackward0"]
    assert of_backward
    assert of_backward[0].device_time_total > 0


def test_the_path_and_the_reason_stand_in_the_trace(work, tmp_path):
    with profile(activities=BOTH) as prof:
        work()
    calls = by_category(events_of(prof, tmp_path))["privateuse1_runtime"]
    native = [e for e in calls if e["name"] == "native npu_v3_matmul"]
    assert native[0]["args"]["op"] == "aten::mm"
    on_cpu = [e for e in calls if e["args"].get("path") == "cpu"]
    assert on_cpu[0]["args"]["op"] == "aten::_linalg_svd"
    assert "npu_v3 has no kernel" in on_cpu[0]["args"]["reason"]
    assert int(on_cpu[0]["args"]["host bytes"]) > 0


def test_memory_is_told_of_the_device(npu):
    x = torch.randn(256, 256, device=npu)
    x + x
    with profile(activities=BOTH, profile_memory=True) as prof, record_function("part"):
        y = x + x
        z = torch.empty(1000, dtype=torch.uint8, device=npu)
        del y
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::add"].device_memory_usage == 256 * 256 * 4
    assert rows["aten::empty"].self_device_memory_usage == 1024
    assert rows["part"].device_memory_usage == 1024  # what was freed is taken off
    changes = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert [e.nbytes() for e in changes if e.device_type() == torch._C._autograd.DeviceType.PrivateUse1] == [
        262144,
        1024,
        -262144,
    ]
    del z


def test_memory_is_told_where_only_the_cpu_is_recorded(npu):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        x = torch.empty(4096, dtype=torch.uint8, device=npu)
    assert {row.key: row for row in prof.key_averages()}["aten::empty"].self_device_memory_usage == 4096
    del x


def test_a_schedule_records_its_active_steps_alone(npu):
    x = torch.randn(16, 16, device=npu)
    x @ x
    seen = []

    def ready(prof):
        seen.append([e.name for e in prof.events() if e.name == "npu_v3_matmul"])

    with profile(
        activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready
    ) as prof:
        for _ in range(8):
            x @ x
            prof.step()
    assert [len(names) for names in seen] == [2, 2]


def test_shapes_and_stacks_are_recorded(npu):
    x = torch.randn(8, 16, device=npu)
    with record_function("once"):  # PyTorch imports a module in the first one, which breaks its own stacks
        x @ x.t()
    with profile(activities=BOTH, record_shapes=True, with_stack=True) as prof:
        x @ x.t()
    shapes = {tuple(map(tuple, row.input_shapes[:2])) for row in prof.key_averages(True) if row.key == "aten::mm"}
    assert shapes == {((8, 16), (16, 8))}
    assert [e for e in prof.events() if "test_shapes_and_stacks_are_recorded" in e.name]


def test_nothing_is_recorded_once_a_profile_has_ended(work):
    c = torchfl._native.engine()
    assert c.set_timing(False) is False
    with profile(activities=BOTH):
        work()
    before = torch.npu_v3.memory_stats()["allocation.all.allocated"]
    with torchfl.profiler.profile() as prof:
        pass
    work()
    assert prof.calls == []
    assert torch.npu_v3.memory_stats()["allocation.all.allocated"] > before


# ------------------------------------------------------------------------------------------ torchfl.profiler


def rows_by_op(prof):
    return {row["op"]: row for row in prof.rows()}


def test_rows_say_path_kernel_reason_and_times(work):
    with torchfl.profiler.profile() as prof:
        work()
        work()
        torch.npu_v3.synchronize()
    rows = rows_by_op(prof)
    product = rows["aten::mm"]
    assert (product["path"], product["kernel"], product["device"], product["calls"]) == (
        "native",
        "npu_v3_matmul",
        "npu_v3:0",
        2,
    )
    assert product["device_time_total"] > 0
    assert product["cpu_time_total"] >= product["self_cpu_time_total"] > product["dispatch_time_total"] > 0
    svd = rows["aten::_linalg_svd"]
    assert svd["path"] == "cpu"
    assert "no kernel for aten::_linalg_svd" in svd["reason"]
    assert svd["host_bytes"] > 0
    assert sum(row["self_cpu_percent"] for row in prof.rows()) == pytest.approx(100)
    assert sum(row["device_percent"] for row in prof.rows()) == pytest.approx(100)
    json.dumps(prof.rows())


def test_device_time_is_that_of_events(npu):
    x = torch.randn(512, 512, device=npu)
    x @ x
    begin, end = torch.npu_v3.Event(enable_timing=True), torch.npu_v3.Event(enable_timing=True)
    begin.record()
    x @ x
    end.record()
    end.synchronize()
    with torchfl.profiler.profile() as prof:
        x @ x
    assert rows_by_op(prof)["aten::mm"]["device_time_total"] == pytest.approx(1e3 * begin.elapsed_time(end), rel=0.01)
    assert prof.clocks == ["placed"]


def test_the_table_of_the_walkthrough(work):
    with torchfl.profiler.profile() as prof:
        work()
    table = prof.key_averages().table(sort_by="self_cpu_time_total")
    lines = table.splitlines()
    headings = "Name Path Kernel Calls Self CPU Self CPU % CPU total Dispatch Device Device % Host bytes On Reason"
    assert " ".join(lines[1].split()) == headings
    values = [row.self_cpu_time_total for row in prof.key_averages()]
    assert values == sorted(values, reverse=True)
    assert "npu_v3_matmul" in table
    assert "Dispatch overhead: " in table
    assert lines[-1].startswith("PROFILER: ")
    by_device = prof.key_averages().table(sort_by="self_device_time_total", row_limit=1)
    assert "more rows" in by_device
    with pytest.raises(ValueError, match="sort_by='speed': rows are sorted by one of self_cpu_time_total"):
        prof.key_averages().table(sort_by="speed")


def test_the_verdict_counts_what_left_the_chip(npu):
    x = torch.randn(4, 4, device=npu)
    torch.linalg.svdvals(x)
    with torchfl.profiler.profile() as prof:
        x + x
        torch.linalg.svdvals(x)
        x * x
        x - x
    assert prof.summary()["calls"] == 4
    assert prof.summary()["cpu_share"] == 0.25
    assert prof.verdict().startswith("PROFILER: 25% ops falling back to CPU (aten::_linalg_svd); dispatch overhead ")
    with torchfl.profiler.profile() as idle:
        torch.ones(4)
    assert idle.verdict() == "PROFILER: no operator reached a device of Torch-FL"
    assert idle.key_averages().table()


def test_dispatch_is_a_small_share_of_large_work(npu):
    x = torch.randn(2048, 2048, device=npu)
    x @ x
    small = torch.randn(4, 4, device=npu)
    small + small
    with torchfl.profiler.profile() as large:
        x @ x
        torch.npu_v3.synchronize()
    with torchfl.profiler.profile() as tiny:
        for _ in range(20):
            small + small
    assert large.dispatch_share < 0.05
    assert tiny.dispatch_share > 0.2
    assert 0 < tiny.dispatch_seconds < tiny.seconds


def test_operators_that_pytorch_takes_apart_are_counted_without_time(npu):
    x = torch.randn(4, 8, device=npu)
    torch.baddbmm(x[None], x[None, :, :4], x[None])
    with torchfl.profiler.profile() as prof:
        torch.ops.aten.linalg_vector_norm.default(x)
        torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device=npu))
    composite = [row for row in prof.rows() if row["path"] == "composite"]
    assert all(row["device_time_total"] == 0 and row["self_cpu_time_total"] == 0 for row in composite)
    assert prof.summary()["calls"] > 0


def test_start_and_stop_and_what_is_refused(npu):
    x = torch.randn(4, 4, device=npu)
    prof = torchfl.profiler.profile()
    with pytest.raises(RuntimeError, match="does not record"):
        prof.stop()
    prof.start()
    with pytest.raises(RuntimeError, match="records already"):
        prof.start()
    x + x
    prof.stop()
    assert [call.op for call in prof.calls] == ["aten::add.Tensor"]
    prof.start()
    prof.stop()
    assert prof.rows() == []
    with pytest.raises(ValueError, match=r"use torch\.profiler"):
        prof.key_averages(group_by_input_shape=True)


def test_profiles_nest_in_each_other_and_in_torch_profiler(work):
    with profile(activities=BOTH) as outer, torchfl.profiler.profile() as middle:
        work()
        with torchfl.profiler.profile() as inner:
            work()
    counted = [row for row in outer.key_averages() if row.key == "npu_v3_matmul"]
    assert counted[0].count == 2
    assert rows_by_op(middle)["aten::mm"]["calls"] == 2
    assert rows_by_op(inner)["aten::mm"]["calls"] == 1


def test_threads_are_seen_each_with_its_calls(npu):
    x = torch.randn(32, 32, device=npu)
    x @ x
    torch.npu_v3.synchronize()

    def work():
        for _ in range(50):
            x @ x

    threads = [threading.Thread(target=work) for _ in range(4)]
    with torchfl.profiler.profile() as prof:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    products = [call for call in prof.calls if call.op == "aten::mm"]
    assert len(products) == 200
    assert set(collections.Counter(call.thread for call in products).values()) == {50}
    row = rows_by_op(prof)["aten::mm"]
    assert row["calls"] == 200
    kernels = [a for a in prof.activities if a.kind == "kernel"]
    assert len(kernels) == 200
    assert {a.call for a in kernels} == {call.id for call in products}


def test_backward_runs_on_another_thread_and_is_seen(npu):
    layer = torch.nn.Linear(32, 32).to(npu)
    x = torch.randn(16, 32, device=npu)
    layer(x).sum().backward()
    with torchfl.profiler.profile() as prof:
        layer(x).sum().backward()
    assert len({call.thread for call in prof.calls}) == 2
    assert rows_by_op(prof)["aten::mm"]["calls"] >= 1


def test_the_trace_is_for_perfetto(work, tmp_path):
    with torchfl.profiler.profile() as prof:
        work()
    file = tmp_path / "trace.json"
    prof.export_chrome_trace(file)
    trace = json.loads(file.read_text())
    events = trace["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"host", "npu_v3:0", "stream 0"} <= names
    spans = [e for e in events if e["ph"] == "X"]
    assert {"kernel", "native", "cpu", "copy"} <= {e["cat"] for e in spans}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    arrows = collections.Counter(e["id"] for e in events if e["ph"] in "sf")
    assert arrows
    assert set(arrows.values()) == {2}
    prof.export_json(tmp_path / "rows.json")
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["rows"] == prof.rows()
    assert written["cpu_calls"] == 1


on_fpga = OwnProcess("fpga_profiler")


@on_fpga
def test_a_chip_without_events_is_timed_by_the_host():
    torchfl.load("fpga_mm")
    device = torch.device("fpga_mm:0")
    x = torch.randn(64, 64).to(device)
    x @ x
    with torchfl.profiler.profile() as prof:
        x @ x
    assert prof.clocks == ["host"]
    assert any(a.duration > 0 for a in prof.activities)
    assert "by the host's clock" in prof.key_averages().table()
    with profile(activities=BOTH) as theirs:
        x @ x
    assert [e for e in theirs.events() if e.device_type == torch._C._autograd.DeviceType.PrivateUse1]


def test_a_lost_device_leaves_its_work_without_a_time():
    code = """
import torch, torchfl
torchfl.load("npu_v3")
x = torch.randn(64, 64).to("npu_v3:0")
x.relu()
prof = torchfl.profiler.profile().start()
try:
    for _ in range(20):
        x.relu()
    torch.npu_v3.synchronize()
except RuntimeError as error:
    print("timed out" in str(error) or "lost" in str(error))
prof.stop()
known = [a.duration >= 0 for a in prof.activities if a.kind == "kernel"]
print(known[-1], len(prof.key_averages().table()) > 0)
"""
    ran = run_script(code, env={"NPU_SIM_FAULT": "hang:npu_v3_unary:8", "NPU_SIM_TIMEOUT_MS": "300"})
    assert ran.out.split() == ["True", "False", "True"], ran.err


def test_a_failure_that_only_the_profiler_waited_for_reaches_the_user():
    code = """
import torch, torchfl
torchfl.load("npu_v3")
x = torch.randn(64, 64).to("npu_v3:0")
prof = torchfl.profiler.profile().start()
x.relu()
prof.stop()
try:
    torch.npu_v3.synchronize()
except RuntimeError as error:
    print("injected" in str(error))
"""
    ran = run_script(code, env={"NPU_SIM_FAULT": "async:npu_v3_unary:1"})
    assert ran.out.split() == ["True"], ran.err


def test_the_older_profiler_has_device_times_of_operators(npu):
    x = torch.randn(1024, 1024, device=npu)  # it counts whole microseconds
    x @ x
    with torch.autograd.profiler.profile(use_device="npu_v3") as prof:
        x @ x
        torch.npu_v3.synchronize()
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::mm"].self_device_time_total > 0
    assert rows["aten::matmul"].device_time_total >= rows["aten::mm"].device_time_total


profiled_as_cuda = OwnProcess("profiled_as_cuda", TORCHFL_CHIPS="npu_v3")


@profiled_as_cuda
def test_a_profile_of_cuda_has_device_rows_though_it_is_the_first():
    """Kineto hears of our profiler with the first profile of its state, which is not that of CUDA."""
    with torchfl.as_cuda():
        x = torch.randn(1024, 1024, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            x @ x
            torch.cuda.synchronize()
        on_device = [
            event.name for event in prof.events() if event.device_type == torch.autograd.DeviceType.PrivateUse1
        ]
        assert any(name.startswith("npu_v3_matmul") for name in on_device)
        rows = {row.key: row for row in prof.key_averages()}
        assert rows["aten::mm"].device_time_total > 0


@profiled_as_cuda
def test_the_older_profiler_has_device_times_of_cuda():
    stock = torch.autograd.profiler.profile.config
    with torchfl.as_cuda():
        x = torch.randn(1024, 1024, device="cuda")
        x @ x
        with torch.autograd.profiler.profile(use_device="cuda") as prof:
            x @ x
            torch.cuda.synchronize()
        assert {row.key: row for row in prof.key_averages()}["aten::mm"].self_device_time_total > 0
    assert torch.autograd.profiler.profile.config is stock
