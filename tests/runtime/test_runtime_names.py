"""Device names: what parses, what is refused and how, and that every place which takes a device takes ours."""

import pickle

import pytest
import torch


@pytest.mark.parametrize("text", ["npu_v3:0", "npu_v3"])
def test_a_device_string_with_digits_in_its_type_parses(npu, text):
    assert torch.device(text).type == "npu_v3"
    assert torch.ones(2, device=text).device == npu


def test_the_printed_name_parses_back(npu):
    assert str(torch.device("npu_v3:0")) == "npu_v3:0"
    assert torch.device(str(torch.ones(1, device=npu).device)) == npu
    assert repr(npu) == "device(type='npu_v3', index=0)"


def test_a_device_is_built_from_type_and_index(npu):
    assert torch.device("npu_v3", 0) == npu
    assert torch.device(type="npu_v3", index=0) == npu


def test_a_missing_index_is_the_current_device(npu):
    assert torch.device("npu_v3").index is None
    assert torch.zeros(1, device="npu_v3").device.index == torch.npu_v3.current_device()


@pytest.mark.parametrize("index", ["x", "", "-1", "01", "0 ", "0:0", "1.0", "4294967296"])
def test_a_malformed_device_string_is_refused_with_its_text(npu, index):
    text = f"npu_v3:{index}"
    with pytest.raises(RuntimeError, match="Invalid device string") as error:
        torch.device(text)
    assert text in str(error.value)


def test_an_index_beyond_the_devices_is_refused_with_their_number(npu):
    with pytest.raises(RuntimeError, match=r"'npu_v3:99'.*1 device"):
        torch.ones(1, device="npu_v3:99")
    with pytest.raises(RuntimeError, match="99"):
        torch.ones(1, device=torch.device("npu_v3", 99))


@pytest.mark.parametrize("text", ["npu_v4:0", "npu_v33:0", "NPU_V3:0", ""])
def test_another_name_is_left_to_pytorch_which_refuses_it(npu, text):
    with pytest.raises(RuntimeError):
        torch.device(text)


def test_pytorchs_own_devices_are_parsed_as_before(npu):
    assert torch.device("cpu").type == "cpu"
    assert torch.device("cuda:1") == torch.device("cuda", 1)
    assert torch.device("meta").type == "meta"


def test_every_way_to_move_a_tensor_takes_the_name(npu):
    x = torch.arange(3.0)
    moved = [
        x.to("npu_v3:0"),
        x.to(npu),
        x.npu_v3(),
        x.to(torch.ones(1, device=npu)),
        x.to(device="npu_v3", dtype=torch.float16),
    ]
    moved += [torch.tensor([0.0, 1.0, 2.0], device="npu_v3:0"), torch.as_tensor(x, device="npu_v3")]
    for y in moved:
        assert y.device == npu
        assert y.tolist() == [0.0, 1.0, 2.0]
    assert moved[0].is_npu_v3 and not x.is_npu_v3
    assert moved[0].to(npu) is moved[0]


def test_a_module_moves_by_name_and_by_method(npu):
    layer = torch.nn.Linear(2, 3)
    assert {p.device for p in layer.to("npu_v3:0").parameters()} == {npu}
    assert {p.device.type for p in layer.cpu().parameters()} == {"cpu"}
    assert {p.device for p in layer.npu_v3().parameters()} == {npu}


def test_a_default_device_and_a_device_context_apply_to_factories(npu):
    with npu:
        assert torch.ones(2).device == npu
        assert torch.arange(3).device == npu
        assert torch.tensor([1, 2]).device == npu
        assert torch.randn(2).device == npu
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("npu_v3:0")
    try:
        assert torch.zeros(2).device == npu
        assert torch.nn.Linear(2, 2).weight.device == npu
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_a_device_survives_pickling_and_is_hashable(npu):
    assert pickle.loads(pickle.dumps(npu)) == npu
    assert len({npu, torch.device("npu_v3:0"), torch.device("npu_v3", 0)}) == 1


def test_the_engine_is_live_and_named(npu):
    assert torch._C._has_torch_fl is True
    assert torch._C._get_privateuse1_backend_name() == "npu_v3"
    assert torch.utils.backend_registration._get_custom_mod_func("is_available")() is True


def test_int64_tensors_really_live_on_the_device(npu):
    """Case 20."""
    assert torch.ones(3, dtype=torch.int64).to(npu).device == npu
    assert torch.ones(3, dtype=torch.int64, device=npu).sum().device == npu


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_new_makes_a_tensor_on_the_same_device(npu, dtype):
    """Case 21."""
    t = torch.ones(2, dtype=dtype, device=npu)
    for made in (
        t.new(3).fill_(0),
        t.new_zeros(3),
        t.new_full((3,), 0),
        t.new_tensor([0, 0, 0]),
        t.new_empty(3).zero_(),
    ):
        assert made.device == npu
        assert made.dtype == dtype
        assert made.tolist() == [0, 0, 0]
    assert t.new([0, 1, 1]).device == npu
    assert t.new().numel() == 0
