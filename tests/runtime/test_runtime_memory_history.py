"""`torch.<chip>.memory`: recording allocations, snapshots in torch.cuda's form, and who is named when memory runs out."""

import gc
import pickle
import threading

import pytest
import torch
from helpers import OwnProcess, in_threads

MIB = 2**20


def asked_here(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)


@pytest.fixture
def memory(npu):
    """The memory module of a chip whose cache is empty; recording ends with the test."""
    gc.collect()
    torch.npu_v3.synchronize()
    torch.npu_v3.empty_cache()
    yield torch.npu_v3.memory
    torch.npu_v3.memory._record_memory_history(None)


def actions(snapshot, device=0):
    return [event["action"] for event in snapshot["device_traces"][device]]


def named(frames):
    return [frame["name"] for frame in frames]


def test_the_module_has_the_functions_of_the_chips_module(memory):
    import importlib

    assert importlib.import_module("torch.npu_v3.memory") is memory
    for name in ("memory_allocated", "memory_stats", "empty_cache", "memory_summary", "mem_get_info"):
        assert callable(getattr(memory, name))
    assert memory.memory_allocated() == torch.npu_v3.memory_allocated()


def test_events_tell_what_happened_in_order(npu, memory):
    memory._record_memory_history()
    x = asked_here(3 * MIB, npu)
    address = x.untyped_storage().data_ptr()
    del x
    torch.npu_v3.empty_cache()
    events = memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in events] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert [e["size"] for e in events] == [20 * MIB, 3 * MIB, 3 * MIB, 3 * MIB, 20 * MIB]
    assert {e["addr"] for e in events} == {address}
    times = [e["time_us"] for e in events]
    assert times == sorted(times)
    assert {e["stream"] for e in events} == {0}


def test_stacks_lead_to_the_code_that_asked(npu, memory):
    memory._record_memory_history()
    x = asked_here(2 * MIB, npu)
    snapshot = memory._snapshot()
    alloc = next(e for e in snapshot["device_traces"][0] if e["action"] == "alloc")
    assert alloc["frames"][0]["name"] == "asked_here"
    assert alloc["frames"][0]["filename"] == __file__
    assert alloc["frames"][1]["name"] == "test_stacks_lead_to_the_code_that_asked"
    segment = next(e for e in snapshot["device_traces"][0] if e["action"] == "segment_alloc")
    assert segment["frames"] == alloc["frames"]
    block = next(b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == alloc["addr"])
    assert block["state"] == "active_allocated"
    assert named(block["frames"])[0] == "asked_here"
    del x
    freed = [e for e in memory._snapshot()["device_traces"][0] if e["action"] == "free_requested"]
    assert "test_stacks_lead_to_the_code_that_asked" in named(freed[-1]["frames"])


@pytest.mark.parametrize(("context", "alloc", "free"), [("alloc", True, False), (None, False, False)])
def test_context_says_whose_stacks_are_taken(npu, memory, context, alloc, free):
    memory._record_memory_history(context=context)
    x = asked_here(1000, npu)
    del x
    events = {e["action"]: e["frames"] for e in memory._snapshot()["device_traces"][0]}
    assert bool(events["alloc"]) is alloc
    assert bool(events["free_requested"]) is free


def test_state_keeps_what_is_held_and_no_events(npu, memory):
    memory._record_memory_history("state")
    x = asked_here(MIB, npu)
    snapshot = memory._snapshot()
    assert snapshot["device_traces"] == [[] for _ in range(torch.npu_v3.device_count())]
    frames = [b["frames"] for s in snapshot["segments"] for b in s["blocks"] if b["frames"]]
    assert [named(f)[0] for f in frames] == ["asked_here"]
    del x
    assert not [b for s in memory._snapshot()["segments"] for b in s["blocks"] if b["frames"]]


def test_the_oldest_events_go_first(npu, memory):
    memory._record_memory_history(max_entries=3)
    for size in range(1, 6):
        x = asked_here(size * 10_000, npu)
        del x
    events = memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in events] == ["alloc", "free_requested", "free_completed"]
    assert events[0]["size"] == 50_176


def test_turning_it_off_keeps_what_was_recorded_and_on_forgets_it(npu, memory):
    memory._record_memory_history()
    asked_here(1000, npu)
    memory._record_memory_history(None)
    asked_here(1000, npu)
    assert actions(memory._snapshot()).count("alloc") == 1
    memory._record_memory_history()
    assert actions(memory._snapshot()) == []
    assert actions(memory._snapshot()) == ["snapshot"]
    memory._record_memory_history(False, clear_history=True)
    assert actions(memory._snapshot()) == []


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"enabled": "some"}, "enabled='some': it is one of 'all', 'state', None"),
        ({"context": "free"}, "context='free': it is one of 'all', 'alloc', 'state', None"),
        ({"stacks": "cpp"}, "stacks='cpp': it is one of 'python', 'all'"),
        ({"max_entries": 0}, "max_entries must be at least 1"),
    ],
)
def test_what_it_does_not_take_is_refused(memory, given, text):
    with pytest.raises(ValueError, match=text):
        memory._record_memory_history(**given)


def test_a_block_that_another_stream_uses_is_completed_later(npu, memory):
    stream = torch.npu_v3.Stream()
    memory._record_memory_history(context=None)
    x = asked_here(MIB, npu)
    with torch.npu_v3.stream(stream):
        big = torch.randn(512, 512, device=npu)
        for _ in range(20):
            big = big @ big
    x.record_stream(stream)
    address = x.untyped_storage().data_ptr()
    del x
    torch.npu_v3.synchronize()
    asked_here(512, npu)  # looks which blocks have become free
    of_block = [e["action"] for e in memory._snapshot()["device_traces"][0] if e.get("addr") == address]
    of_block = [action for action in of_block if not action.startswith("segment")]
    assert of_block[:3] == ["alloc", "free_requested", "free_completed"]


def test_backward_is_named_by_its_node(npu, memory):
    layer = torch.nn.Linear(64, 64).to(npu)
    x = torch.randn(8, 64, device=npu)
    layer(x).sum().backward()
    memory._record_memory_history()
    layer(x).sum().backward()
    frames = [e["frames"] for e in memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    of_autograd = {f["name"] for stack in frames for f in stack if f["filename"] == "<autograd>"}
    assert "AddmmBackward0" in of_autograd


def test_the_snapshot_is_what_pytorchs_viewers_read(npu, memory, tmp_path):
    from torch.cuda import _memory_viz

    memory._record_memory_history()
    kept = [asked_here(size * MIB, npu) for size in (1, 3, 30)]
    del kept[1]
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert {"segments", "device_traces", "allocator_settings", "external_annotations"} <= snapshot.keys()
    for segment in snapshot["segments"]:
        assert {"device", "address", "total_size", "stream", "segment_type", "segment_pool_id"} <= segment.keys()
        assert segment["allocated_size"] == sum(
            b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"
        )
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    total = sum(s["allocated_size"] for s in snapshot["segments"])
    assert total == torch.npu_v3.memory_allocated()
    assert "total_allocated" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    assert len(_memory_viz.trace_plot(snapshot)) > 1000


def test_replaying_the_events_gives_what_is_allocated(npu, memory):
    before = torch.npu_v3.memory_allocated()
    memory._record_memory_history(context=None)
    kept = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            size = int(torch.randint(1, 200_000, (), generator=generator))
            tensor = asked_here(size, npu)
            if size % 3 == 0:
                kept.append(tensor)

    in_threads(work, 4)
    held = {}
    for event in memory._snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in held
            held[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            assert held.pop(event["addr"]) == event["size"]
    assert len(held) == len(kept)
    assert sum(held.values()) == torch.npu_v3.memory_allocated() - before


def test_a_history_of_all_contexts_in_threads_does_not_stand_still(npu, memory):
    memory._record_memory_history()
    layer = torch.nn.Linear(64, 64).to(npu)

    def work():
        for _ in range(10):
            layer(torch.randn(8, 64).to(npu)).sum().backward()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert actions(memory._snapshot()).count("alloc") > 100


small = OwnProcess("memory_history", NPU_SIM_MEMORY="64")


@small
def test_running_out_of_memory_names_the_biggest_holders():
    import torchfl

    torchfl.load("npu_v3")
    memory = torch.npu_v3.memory
    with pytest.raises(torch.OutOfMemoryError) as plain:
        asked_here(100 * MIB, "npu_v3:0")
    assert "Most is held" not in str(plain.value)
    memory._record_memory_history(context="alloc")
    kept = [asked_here(10 * MIB, "npu_v3:0") for _ in range(3)]
    with pytest.raises(torch.OutOfMemoryError) as reported:
        asked_here(100 * MIB, "npu_v3:0")
    text = str(reported.value)
    assert "Most is held by what was allocated since the memory history is on:" in text
    assert "30.00 MiB in 3 blocks allocated at " in text
    assert "test_runtime_memory_history.py" in text
    assert "in asked_here" in text
    event = memory._snapshot()["device_traces"][0][-1]
    assert event["action"] == "oom"
    assert event["size"] == 100 * MIB
    assert event["frames"][0]["name"] == "asked_here"
    assert 0 < event["device_free"] <= 64 * MIB
    del kept
