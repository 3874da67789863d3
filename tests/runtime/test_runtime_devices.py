"""Two devices in one process, unlike chips in one process, and processes made by fork."""

import pytest
import torch
from helpers import OwnProcess, in_forked_child

two = OwnProcess("two_devices", NPU_SIM_DEVICES="2")


def load():
    import torchfl

    torchfl.load("npu_v3")
    return torch.device("npu_v3:0"), torch.device("npu_v3:1")


@two
def test_asking_what_there_is_opens_nothing_and_survives_a_fork():
    """Case 38."""
    load()

    def ask():
        return f"{torch.npu_v3.is_available()} {torch.npu_v3.device_count()} {torch.npu_v3.current_device()}"

    assert ask() == "True 2 0"
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
    torch.manual_seed(3)
    assert not torch.npu_v3.is_initialized()

    def child():
        return f"{ask()} {torch.ones(3, device='npu_v3:1').sum().item()} {torch.npu_v3._is_in_bad_fork()}"

    assert in_forked_child(child) == "True 2 0 3.0 False"
    assert not torch.npu_v3.is_initialized()


@two
def test_statistics_of_an_idle_device_open_nothing():
    """Case 40."""
    load()
    for index in (0, 1):
        torch.npu_v3.reset_peak_memory_stats(index)
        torch.npu_v3.reset_accumulated_memory_stats(index)
        assert torch.npu_v3.max_memory_allocated(index) == 0
        torch.npu_v3.synchronize(index)
    assert not torch.npu_v3.is_initialized()


@two
def test_there_are_two_devices_each_with_its_name():
    d0, d1 = load()
    assert torch.npu_v3.device_count() == 2
    assert str(torch.ones(1, device="npu_v3:1").device) == "npu_v3:1"
    assert d0 != d1
    with pytest.raises(RuntimeError, match=r"npu_v3:2.*2 device"):
        torch.device("npu_v3:2")
    serials = {torch.npu_v3.get_device_properties(i).serial for i in (0, 1)}
    assert len(serials) == 2
    assert torch.npu_v3.can_device_access_peer(0, 1) is True


@two
def test_copies_between_devices_of_every_dtype_and_view():
    """Case 23."""
    d0, d1 = load()
    host = torch.arange(24)
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8, torch.complex64):
        x = host.to(dtype)
        for source in (x, x.view(4, 6).t(), x.view(4, 6)[1:, ::2], x[5:], x[:0], x[3], x[:3].view(3, 1).expand(3, 2)):
            y = source.to(d0).to(d1)
            assert y.device == d1 and y.dtype == dtype and torch.equal(y.cpu(), source)
            target = torch.zeros(source.shape, dtype=dtype, device=d1)
            assert torch.equal(target.copy_(source.to(d0)).cpu(), source)
            assert torch.equal(y.to(d0).cpu(), source)
    assert torch.equal(host.to(d0).to(d1, torch.float16).cpu(), host.half())
    base = torch.zeros(4, 6, device=d1)
    base[1:, ::2].copy_(torch.ones(3, 3, device=d0))
    assert base.sum().item() == 9 and base[1].tolist() == [1, 0] * 3


@two
def test_a_copy_between_devices_waits_for_what_makes_its_source():
    d0, d1 = load()
    for i in range(5):
        x = torch.full((512, 512), float(i), device=d0)
        for _ in range(4):
            x = x @ torch.eye(512, device=d0)
        y = x.to(d1, non_blocking=True) + 1
        x.fill_(-1)
        assert y.cpu().unique().tolist() == [i + 1.0]


@two
def test_an_operator_runs_where_its_arguments_are_and_leaves_the_current_device():
    """Cases 45 and Part 1, 8."""
    d0, d1 = load()
    x = torch.randn(4, 4, device=d1, requires_grad=True)
    a = torch.ones(4, 4).to(d1)
    operations = {
        "native": lambda: a + a,
        "in place": lambda: a.clone().mul_(2),
        "on the CPU": lambda: torch.lgamma(a),
        "composite": lambda: torch.nn.functional.layer_norm(a, (4,)),
        "factory": lambda: torch.zeros_like(a),
        "factory by name": lambda: torch.rand(4, 4, device="npu_v3:1"),
        "view": lambda: a.t()[1:],
        "copy": lambda: torch.ones(4, 4).to(d1),
        "across": lambda: a.to(d0).to(d1),
        "indexing": lambda: a[torch.tensor([0, 1])],
        "concatenation": lambda: torch.cat([a, a]),
        "product": lambda: a @ a,
        "gradient": lambda: torch.autograd.grad((x * x).sum(), x)[0],
        "foreach": lambda: torch._foreach_add([a, a], 1)[0],
    }
    for current in (0, 1):
        torch.npu_v3.set_device(current)
        for name, operation in operations.items():
            assert operation().device == d1, name
            assert torch.npu_v3.current_device() == current, name
        assert a.sum().item() == 16 and torch.npu_v3.current_device() == current
        assert repr(a) and torch.npu_v3.current_device() == current
        x.grad = None
        (x * x).sum().backward()
        assert x.grad.device == d1 and torch.npu_v3.current_device() == current
        with pytest.raises(RuntimeError):
            a + torch.ones(4, 4, device=d0)
        assert torch.npu_v3.current_device() == current
    torch.npu_v3.set_device(0)


@two
def test_the_current_device_decides_where_an_unnumbered_name_is():
    d0, d1 = load()
    with torch.npu_v3.device(1):
        assert torch.ones(1, device="npu_v3").device == d1
        assert torch.npu_v3.current_device() == 1
        assert torch.ones(1).npu_v3().device == d1
        with torch.npu_v3.device(0):
            assert torch.ones(1, device="npu_v3").device == d0
        assert torch.npu_v3.current_device() == 1
    assert torch.npu_v3.current_device() == 0
    with pytest.raises(ZeroDivisionError), torch.npu_v3.device(1):
        raise ZeroDivisionError
    assert torch.npu_v3.current_device() == 0
    with torch.npu_v3.device_of(torch.ones(1, device=d1)):
        assert torch.npu_v3.current_device() == 1
    with torch.accelerator.device_index(1):
        assert torch.npu_v3.current_device() == 1
    torch.accelerator.set_device_index(1)
    assert torch.npu_v3.current_device() == 1
    torch.npu_v3.set_device("npu_v3:0")
    assert torch.npu_v3.current_device() == 0


@two
def test_the_current_device_is_each_threads_own():
    import threading

    load()
    seen = []
    with torch.npu_v3.device(1):
        thread = threading.Thread(target=lambda: seen.append(torch.npu_v3.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


@two
def test_one_operator_on_two_devices_is_refused_naming_both():
    d0, d1 = load()
    x, y = torch.ones(2, 2, device=d0), torch.ones(2, 2, device=d1)
    host = torch.ones(2, 2)
    for call in (
        lambda: x + y,
        lambda: x @ y,
        lambda: x.add_(y),
        lambda: torch.cat([x, y]),
        lambda: torch.where(x > 0, x, y),
        lambda: torch.lgamma(x, out=y),
        lambda: torch.nn.functional.linear(x, y),
        lambda: torch.stack([x, y]),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        assert "npu_v3:0" in str(error.value) and "npu_v3:1" in str(error.value)
    for call in (lambda: x + host, lambda: host + x, lambda: x @ host, lambda: torch.cat([x, host])):
        with pytest.raises(RuntimeError) as error:
            call()
        assert "npu_v3:0" in str(error.value) and "cpu" in str(error.value)
    assert (x + torch.tensor(2.0)).tolist() == [[3, 3], [3, 3]]  # a number on the CPU is welcome
    assert (x.cpu() + 0).device.type == "cpu"


@two
def test_each_device_has_its_own_memory_statistics():
    d0, d1 = load()
    before = torch.npu_v3.memory_allocated(0), torch.npu_v3.memory_allocated(1)
    x = torch.empty(1 << 20, dtype=torch.uint8, device=d1)
    assert torch.npu_v3.memory_allocated(0) == before[0]
    assert torch.npu_v3.memory_allocated(1) == before[1] + (1 << 20)
    assert torch.npu_v3.memory_allocated() == before[0]
    with torch.npu_v3.device(1):
        assert torch.npu_v3.memory_allocated() == before[1] + (1 << 20)
        del x
    assert torch.npu_v3.memory_allocated(d1) == before[1]
    torch.npu_v3.set_per_process_memory_fraction(0.001, 1)
    with pytest.raises(torch.OutOfMemoryError, match="npu_v3:1"):
        torch.empty(1 << 26, device=d1)
    assert torch.empty(1 << 26, device=d0).numel() == 1 << 26
    torch.npu_v3.set_per_process_memory_fraction(1.0, 1)


@two
def test_each_device_has_its_own_random_numbers():
    d0, d1 = load()
    torch.npu_v3.manual_seed_all(5)
    a, b = torch.rand(4, device=d0), torch.rand(4, device=d1)
    assert a.tolist() == b.tolist()
    assert torch.rand(4, device=d0).tolist() != a.tolist()
    states = torch.npu_v3.get_rng_state_all()
    c = torch.rand(4, device=d1)
    torch.npu_v3.set_rng_state_all(states)
    assert torch.rand(4, device=d1).tolist() == c.tolist()
    with torch.npu_v3.device(1):
        torch.npu_v3.manual_seed(5)
    assert torch.rand(4, device=d1).tolist() == b.tolist()
    torch.npu_v3.seed_all()
    assert torch.npu_v3.default_generators[0].initial_seed() == torch.npu_v3.default_generators[1].initial_seed()
    with torch.random.fork_rng(device_type="npu_v3"):
        inside = torch.rand(4, device=d1)
    assert torch.rand(4, device=d1).tolist() == inside.tolist()


@two
def test_events_order_work_of_two_devices():
    d0, d1 = load()
    s1 = torch.npu_v3.current_stream(1)
    for i in range(5):
        x = torch.full((512, 512), float(i), device=d0)
        for _ in range(3):
            x = x @ torch.eye(512, device=d0)
        mark = torch.npu_v3.current_stream(0).record_event()
        s1.wait_event(mark)
        y = torch.ones(8, device=d1)
        s1.synchronize()
        assert mark.query()
        assert y.sum().item() == 8
    with torch.npu_v3.stream(torch.npu_v3.Stream(1)):
        assert torch.npu_v3.current_stream(1) != torch.npu_v3.default_stream(1)
        assert torch.npu_v3.current_stream(0) == torch.npu_v3.default_stream(0)
        assert torch.npu_v3.current_device() == 1
    assert torch.npu_v3.current_device() == 0


@two
def test_gradients_cross_devices():
    d0, d1 = load()
    w0 = torch.ones(3, device=d0, requires_grad=True)
    w1 = torch.full((3,), 2.0, device=d1, requires_grad=True)
    ((w0 * 3).to(d1) * w1).sum().backward()
    assert w0.grad.device == d0 and w0.grad.tolist() == [6.0] * 3
    assert w1.grad.device == d1 and w1.grad.tolist() == [3.0] * 3
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3).to(d0), torch.nn.Linear(3, 3).to(d1)])
    layers[1](layers[0](torch.ones(2, 3, device=d0)).to(d1)).sum().backward()
    assert layers[0].weight.grad.device == d0


@two
def test_saved_tensors_return_to_their_device_or_where_the_map_says():
    """Case 36."""
    import io

    _, d1 = load()
    file = io.BytesIO()
    torch.save({"x": torch.arange(3.0, device=d1)}, file)
    for where, expected in (
        (None, "npu_v3:1"), ("cpu", "cpu"), ("npu_v3:0", "npu_v3:0"), ({"npu_v3:1": "npu_v3:0"}, "npu_v3:0"),
        (torch.device("npu_v3:0"), "npu_v3:0"), (lambda storage, place: storage, "cpu"),
    ):  # fmt: skip
        file.seek(0)
        loaded = torch.load(file, map_location=where)["x"]
        assert str(loaded.device) == expected and loaded.tolist() == [0, 1, 2]


@two
def test_a_process_forked_after_use_gets_a_clear_error_and_the_parent_goes_on():
    """Case 38."""
    load()
    x = torch.ones(3, device="npu_v3:0")

    def use(call):
        def child():
            try:
                call()
            except RuntimeError as error:
                return "RuntimeError: " + str(error)
            return "it worked"

        return in_forked_child(child)

    for call in (
        lambda: torch.ones(3, device="npu_v3:0"),
        lambda: torch.ones(3, device="npu_v3:1"),
        lambda: x + 1,
        lambda: x.cpu(),
        lambda: torch.npu_v3.synchronize(),
    ):
        said = use(call)
        assert said.startswith("RuntimeError") and "fork" in said and "spawn" in said and "npu_v3" in said, said
    asked = in_forked_child(
        lambda: f"{torch.npu_v3._is_in_bad_fork()} {torch.npu_v3.is_available()} {torch.npu_v3.device_count()}"
    )
    assert asked == "True True 2"
    assert in_forked_child(lambda: str(torch.ones(3).sum().item())) == "3.0"

    def drop():
        nonlocal x
        del x
        return "freed"

    assert in_forked_child(drop) == "freed"
    assert torch.npu_v3._is_in_bad_fork() is False
    assert torch.ones(3, device="npu_v3:0").add(1).tolist() == [2, 2, 2]


unlike = OwnProcess("unlike_chips", NPU_SIM_DEVICES="2")


@unlike
def test_unlike_chips_live_in_one_process_under_their_own_names():
    import torchfl

    first, second = torchfl.load("npu_v3"), torchfl.load("npu_v2")
    assert (first.first_index, second.first_index) == (0, 2)
    assert [c.name for c in torchfl.chips()] == ["NPU-V3", "NPU-V2"]
    x, y = torch.arange(4.0, device="npu_v3:1"), torch.arange(4.0, device="npu:1")
    assert x.device == torch.device("npu_v3:1")
    assert y.device == torch.device("npu:1")
    assert x.device != y.device and y.device.index == 3
    assert torch.npu.device_count() == torch.npu_v3.device_count() == 2
    assert torch.device(str(y.device)) == y.device  # PyTorch prints its own name for it, which it must read again
    assert torch.ones(1, device=str(y.device)).device == y.device
    assert (y + 1).tolist() == [1, 2, 3, 4]
    assert (y + 1).device == torch.device("npu:1")
    with pytest.raises(RuntimeError, match=r"'npu:2'.*2 device"):
        torch.device("npu:2")


@unlike
def test_tensors_copy_between_unlike_chips():
    import torchfl

    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    for dtype in (torch.float16, torch.float32, torch.int64, torch.float64, torch.complex64, torch.bool):
        host = torch.arange(24).to(dtype)
        for source in (host, host.view(4, 6).t(), host[3:], host.view(4, 6)[:, ::2], host[:0]):
            there = source.to("npu_v3:0").to("npu:0")
            assert there.device == torch.device("npu:0") and torch.equal(there.cpu(), source)
            assert torch.equal(there.to("npu_v3:1").cpu(), source)
    x = torch.ones(3, device="npu_v3:0", requires_grad=True)
    (x.to("npu:0") * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and x.grad.device == torch.device("npu_v3:0")


@unlike
def test_each_chips_module_minds_its_own_devices():
    import torchfl

    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    assert torch.npu_v3.current_device() == 0 and torch.npu.current_device() == 0
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        assert torch.ones(1, device="npu").device == torch.device("npu:1")
        assert torch.npu_v3.current_device() == 0
    torch.npu.set_device(1)
    assert torch.npu.current_device() == 1
    torch.npu_v3.set_device(0)
    assert torch.ones(1, device="npu_v3").device == torch.device("npu_v3:0")
    before = torch.npu.memory_allocated("npu:0"), torch.npu_v3.memory_allocated("npu_v3:0")
    kept = torch.empty(1 << 20, dtype=torch.uint8, device="npu:0")
    assert torch.npu.memory_allocated(0) - before[0] == 1 << 20
    assert torch.npu_v3.memory_allocated(0) == before[1]
    del kept
    assert torch.npu.get_device_properties("npu:0").name
    torch.npu.manual_seed_all(3)
    assert torch.rand(2, device="npu:0").tolist() == torch.rand(2, device="npu:1").tolist()
    stream = torch.npu.Stream(0)
    assert stream.device == torch.device("npu:0")
    with torch.npu.stream(stream):
        assert torch.npu.current_stream(0) == stream
        assert torch.ones(3, device="npu:0").sum().item() == 3
    torch.npu.synchronize()
    for wrong in ("npu_v3:0", "cpu"):
        with pytest.raises((RuntimeError, ValueError)):
            torch.npu.synchronize(wrong)


@unlike
def test_an_operator_on_two_chips_is_refused_naming_both():
    import torchfl

    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, device="npu_v3:0") + torch.ones(2, device="npu:0")
    assert "npu_v3:0" in str(error.value) and "npu:0" in str(error.value)


@unlike
def test_the_smaller_chips_limits_hold_for_it_alone():
    """NPU-V2 takes tensors of five dimensions; what exceeds them runs otherwise and is right."""
    import torchfl

    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    torchfl.reset_stats()
    x = torch.ones(1, 2, 1, 2, 1, 2).permute(5, 3, 1, 0, 2, 4)
    for where in ("npu_v3:0", "npu:0"):
        assert (x.to(where) + x.to(where)).sum().item() == 16
    paths = {row["device"]: row["path"] for row in torchfl.stats() if row["op"] == "aten::add.Tensor"}
    assert paths == {"npu_v3:0": "native", "npu:0": "composed"}  # on fewer dimensions


@unlike
def test_saved_tensors_move_between_unlike_chips():
    """Case 36."""
    import io

    import torchfl

    torchfl.load("npu_v3"), torchfl.load("npu_v2")
    file = io.BytesIO()
    torch.save(torch.arange(3.0, device="npu:1"), file)
    for where, expected in (
        (None, "npu:1"), ("npu_v3:1", "npu_v3:1"), ("cpu", "cpu"), ("npu:0", "npu:0"),
        ({"npu:1": "npu_v3:0"}, "npu_v3:0"),
    ):  # fmt: skip
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded.device == torch.device(expected), where
        assert loaded.tolist() == [0, 1, 2]


poorer_first = OwnProcess("poorer_first")


@poorer_first
def test_a_chip_composes_whatever_was_loaded_before_it():
    """Whichever chip comes first may have no instructions at all."""
    import os
    import tempfile
    from pathlib import Path

    import torchfl
    from torchfl._paths import shipped_chips

    with tempfile.TemporaryDirectory() as folder:
        poor = Path(folder).resolve() / "poor.yaml"
        parent = os.path.relpath(shipped_chips()["npu_v2"].resolve(), poor.parent)
        poor.write_text(f"hcd: 1\nextends: {parent}\ninstructions: null\n")
        torchfl.load(poor)
    torchfl.load("npu_v3")
    x = torch.tensor([-1.0, 0.5, 2.0])
    for device, path in (("npu:0", "cpu"), ("npu_v3:0", "composed")):
        torchfl.reset_stats()
        torch.testing.assert_close(torch.nn.functional.mish(x.to(device)).cpu(), torch.nn.functional.mish(x))
        assert {row["path"] for row in torchfl.stats() if row["op"] == "aten::mish"} == {path}
