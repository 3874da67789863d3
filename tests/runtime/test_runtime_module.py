"""`torch.npu_v3` and `torch.accelerator`: every function does what its namesake of `torch.cuda` does."""

import contextlib
import inspect

import pytest
import torch

from torchfl._device_module import DeviceModule

MIB = 2**20


def test_the_module_can_be_imported_and_says_what_it_is(npu):
    import importlib

    assert importlib.import_module("torch.npu_v3") is torch.npu_v3
    assert torch.get_device_module("npu_v3") is torch.npu_v3
    assert torch.get_device_module(npu) is torch.npu_v3
    assert "NPU-V3" in torch.npu_v3.__doc__


def test_functions_that_pytorch_calls_by_name_are_all_there(npu):
    wanted = [
        "is_available", "device_count", "current_device", "set_device", "device", "_is_in_bad_fork", "manual_seed",
        "manual_seed_all", "get_rng_state", "set_rng_state", "is_initialized", "_lazy_init", "synchronize", "Stream",
        "Event", "current_stream", "set_stream", "stream", "default_stream", "get_amp_supported_dtype",
        "get_device_properties", "get_device_name", "memory_stats", "memory_allocated", "max_memory_allocated",
        "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
        "empty_cache", "mem_get_info", "memory_summary", "memory_snapshot", "set_per_process_memory_fraction",
        "initial_seed", "seed", "seed_all", "default_generators", "is_bf16_supported", "_exchange_device",
        "_maybe_exchange_device", "device_of", "can_device_access_peer", "get_device_capability", "get_rng_state_all",
        "set_rng_state_all", "init", "memory_stats_as_nested_dict", "get_per_process_memory_fraction", "utilization",
        "temperature", "power_draw",
    ]  # fmt: skip
    assert [name for name in wanted if not hasattr(torch.npu_v3, name)] == []


def test_public_functions_are_documented_or_namesakes_of_torch_cuda(npu):
    own = [n for n, f in vars(DeviceModule).items() if inspect.isfunction(f) and not n.startswith("_")]
    undocumented = [n for n in own if not inspect.getdoc(getattr(DeviceModule, n)) and not hasattr(torch.cuda, n)]
    assert undocumented == []


def test_it_counts_and_names_its_devices(npu):
    assert torch.npu_v3.is_available() is True
    assert torch.npu_v3.device_count() == 1
    assert torch.npu_v3.current_device() == 0
    assert torch.npu_v3.get_device_name() == torch.npu_v3.get_device_name(0) == "NPU-V3"


@pytest.mark.parametrize("form", [0, "npu_v3", "npu_v3:0", "device", None])
def test_a_device_argument_may_have_any_form(npu, form):
    form = npu if form == "device" else form
    assert torch.npu_v3.get_device_properties(form).name == "NPU-V3"
    torch.npu_v3.synchronize(form)
    assert torch.npu_v3.mem_get_info(form)[1] > 0


@pytest.mark.parametrize("form", [1, "npu_v3:1", "cpu", "cuda:0"])
def test_a_device_argument_that_is_none_of_ours_is_refused(npu, form):
    for function in (torch.npu_v3.get_device_properties, torch.npu_v3.set_device, torch.npu_v3.synchronize):
        with pytest.raises((RuntimeError, ValueError), match="npu_v3"):
            function(form)
    assert torch.npu_v3.current_device() == 0


def test_properties_tell_what_the_sdk_says(npu):
    """Case 45."""
    p = torch.npu_v3.get_device_properties(npu)
    assert p.name == "NPU-V3"
    assert p.total_memory == 4096 * MIB == torch.npu_v3.mem_get_info(npu)[1]
    assert p.multi_processor_count == 256  # the fp16 units of the data sheet
    assert p.clock_rate == 1000
    assert p.alignment == 256
    assert p.unified_memory is False
    assert "NPU-V3" in repr(p) and "4096MB" in repr(p)


def test_sensors_read_plausibly(npu):
    assert 0 <= torch.npu_v3.utilization(npu) <= 100
    assert 20 < torch.npu_v3.temperature(npu) < 100
    assert 8000 <= torch.npu_v3.power_draw() <= 60000


def test_peer_access_is_between_two_devices(npu):
    assert torch.npu_v3.can_device_access_peer(0, 0) is False


def test_dtype_support_is_the_descriptors(npu):
    supported = torch.npu_v3.get_device_capability()["supported_dtypes"]
    assert {torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64, torch.bool} <= supported
    assert torch.complex64 not in supported
    assert torch.npu_v3.is_bf16_supported() is True
    assert torch.npu_v3.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_set_device_and_the_device_context(npu):
    torch.npu_v3.set_device(0)
    with torch.npu_v3.device(0) as entered:
        assert entered.idx == 0
        assert torch.npu_v3.current_device() == 0
    with torch.npu_v3.device("npu_v3:0"), torch.npu_v3.device(npu), torch.npu_v3.device_of(torch.ones(1, device=npu)):
        assert torch.npu_v3.current_device() == 0
    with torch.npu_v3.device_of(torch.ones(1)):  # not a tensor of ours: nothing happens, as in torch.cuda
        assert torch.npu_v3.current_device() == 0


def test_a_negative_index_leaves_the_device_as_it_is(npu):
    torch.npu_v3.set_device(-1)
    assert torch.npu_v3.current_device() == 0
    assert torch.npu_v3._maybe_exchange_device(-1) in (-1, 0)
    with torch.npu_v3.device(-1):
        assert torch.npu_v3.current_device() == 0


def test_it_is_initialised_once_a_device_was_used(npu):
    torch.ones(1, device=npu)
    torch.npu_v3.init()
    torch.npu_v3._lazy_init()
    assert torch.npu_v3.is_initialized() is True
    assert torch.npu_v3._is_in_bad_fork() is False


def test_streams_of_the_module(npu):
    default = torch.npu_v3.default_stream()
    assert torch.npu_v3.current_stream() == default
    side = torch.npu_v3.Stream()
    assert isinstance(side, torch.Stream)
    assert side.device == npu
    assert side != default
    with torch.npu_v3.stream(side):
        assert torch.npu_v3.current_stream() == side
        assert torch.npu_v3.current_stream("npu_v3:0") == side
        with torch.npu_v3.stream(None):
            assert torch.npu_v3.current_stream() == side
    assert torch.npu_v3.current_stream() == default
    torch.npu_v3.set_stream(side)
    assert torch.accelerator.current_stream() == side
    torch.npu_v3.set_stream(default)
    assert torch.npu_v3.Stream(npu, priority=-1).device == npu


def test_the_accelerator_api_is_ours(npu):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "npu_v3"
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_stream() == torch.npu_v3.current_stream()
    capability = torch.accelerator.get_device_capability(npu)
    assert torch.float16 in capability["supported_dtypes"]
    assert torch.accelerator.get_memory_info()[1] == 4096 * MIB


def test_the_accelerators_memory_functions_agree_with_the_modules(npu):
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=npu)
    assert torch.accelerator.memory_allocated() == torch.npu_v3.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.npu_v3.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.npu_v3.max_memory_allocated()
    assert torch.accelerator.max_memory_reserved() == torch.npu_v3.max_memory_reserved()
    assert torch.accelerator.memory_stats()["allocation.all.current"] >= 1
    del x
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()


def test_a_generator_can_be_made_for_the_device(npu):
    generator = torch.Generator(device="npu_v3:0")
    assert generator.device == npu
    generator.manual_seed(3)
    a = torch.randn(4, generator=generator, device=npu)
    generator.manual_seed(3)
    assert torch.equal(torch.randn(4, generator=generator, device=npu), a)


def test_exchange_device_returns_the_previous_one(npu):
    assert torch.npu_v3._exchange_device(0) == 0


def test_autocast_knows_the_device(npu):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("npu_v3", dtype=torch.float16))
        assert torch.is_autocast_enabled("npu_v3")
    assert not torch.is_autocast_enabled("npu_v3")


def test_names_are_listed_for_completion(npu):
    names = dir(torch.npu_v3)
    assert {"Stream", "Event", "memory_allocated", "memory", "manual_seed_all", "synchronize"} <= set(names)
    assert not [name for name in names if name.startswith("_")]
    assert torch.npu_v3.clock_rate() == 1000
    held = torch.empty(1 << 22, dtype=torch.uint8, device=npu)
    assert torch.npu_v3.device_memory_used() >= held.numel()
