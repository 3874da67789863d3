"""Saving, loading, copying and pickling what lives on the device, and feeding it from a DataLoader."""

import copy
import io
import pickle

import pytest
import torch


def through_a_file(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


VALUES = {
    "plain": lambda d: torch.arange(6.0, device=d),
    "half": lambda d: torch.arange(6.0, device=d).half(),
    "bfloat16": lambda d: torch.arange(6.0, device=d).bfloat16(),
    "int64": lambda d: torch.arange(6, device=d),
    "bool": lambda d: torch.arange(6, device=d) > 2,
    "complex": lambda d: torch.arange(6.0, device=d).to(torch.complex64) * 1j,
    "conjugate": lambda d: (torch.arange(6.0, device=d).to(torch.complex64) * 1j).conj(),
    "strided": lambda d: torch.arange(6.0, device=d).view(2, 3).t(),
    "with an offset": lambda d: torch.arange(6.0, device=d)[2:],
    "empty": lambda d: torch.empty(0, 3, device=d),
    "scalar": lambda d: torch.tensor(2.5, device=d),
    "parameter": lambda d: torch.nn.Parameter(torch.ones(2, device=d)),
    "buffer": lambda d: torch.nn.Buffer(torch.ones(2, device=d)),
    "requires grad": lambda d: torch.ones(2, device=d, requires_grad=True),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("how", ["torch", "pickle", "deepcopy"])
def test_a_tensor_comes_back_as_it_was_on_its_device(npu, name, how):
    """Case 36."""
    x = VALUES[name](npu)
    if how == "torch":
        y = through_a_file(x)
    else:
        y = pickle.loads(pickle.dumps(x)) if how == "pickle" else copy.deepcopy(x)
    assert type(y) is type(x) and y.device == npu
    assert (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())
    assert y.requires_grad == x.requires_grad
    assert y.cpu().tolist() == x.cpu().tolist()
    assert x.numel() == 0 or y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "where",
    ["cpu", torch.device("cpu"), {"npu_v3:0": "cpu"}, lambda storage, place: storage],
    ids=["string", "device", "dict", "function"],
)
def test_a_map_location_brings_it_to_the_host(npu, where):
    """Case 36."""
    x = through_a_file({"x": torch.arange(3.0, device=npu)}, map_location=where)["x"]
    assert x.device.type == "cpu" and x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "where",
    ["npu_v3:0", "npu_v3", "device", {"cpu": "npu_v3:0"}, lambda storage, place: storage.npu_v3()],
    ids=["string", "without index", "device", "dict", "function"],
)
def test_a_map_location_brings_it_to_the_device(npu, where):
    """Case 36."""
    where = npu if isinstance(where, str) and where == "device" else where
    x = through_a_file({"x": torch.arange(3.0)}, map_location=where)["x"]
    assert x.device == npu and x.tolist() == [0, 1, 2]


def test_a_map_location_without_such_a_device_is_refused(npu):
    file = io.BytesIO()
    torch.save(torch.ones(1), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="npu_v3"):
        torch.load(file, map_location="npu_v3:7")


def test_two_views_of_one_storage_still_share_it_after_loading(npu):
    """Case 36."""
    base = torch.arange(6.0, device=npu)
    a, b = through_a_file((base[:4], base[2:]))
    a[3] = 9
    assert b.tolist() == [2, 9, 4, 5]
    a, b = pickle.loads(pickle.dumps((base[:4], base[2:])))
    assert a.tolist() == [0, 1, 2, 3] and b.tolist() == [2, 3, 4, 5]


def test_a_model_and_its_optimizer_go_on_after_a_restart(npu):
    """Case 36."""

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to(npu)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optimizer, steps):
        for i in range(steps):
            optimizer.zero_grad()
            model(torch.full((3, 4), float(i), device=npu) + torch.arange(4.0, device=npu)).square().sum().backward()
            optimizer.step()

    model, optimizer = make()
    train(model, optimizer, 2)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert {v.device for v in saved["model"].values()} == {npu}
    train(model, optimizer, 2)
    other, its_optimizer = make()
    other.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    train(other, its_optimizer, 2)
    for p, q in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(q.cpu(), p.cpu(), rtol=1e-4, atol=1e-5)
    on_host = through_a_file(model.state_dict(), map_location="cpu")
    assert {v.device.type for v in on_host.values()} == {"cpu"}
    model.cpu().load_state_dict(on_host)


def test_a_whole_module_is_saved_and_loaded(npu):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).to(npu)
    other = through_a_file(model, weights_only=False)
    assert {p.device for p in other.parameters()} == {npu}
    x = torch.ones(1, 2, device=npu)
    assert other(x).tolist() == model(x).tolist()
    moved = through_a_file(model, weights_only=False, map_location="cpu")
    torch.testing.assert_close(moved(x.cpu()), model(x).cpu(), rtol=1e-4, atol=1e-5)
    assert copy.deepcopy(model)(x).tolist() == model(x).tolist()


def test_a_model_moves_to_the_host_and_back_with_its_gradients(npu):
    """Case 34."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(npu)
    x = torch.ones(2, 4)
    model(x.to(npu)).sum().backward()
    before = model[0].weight.grad.tolist()
    model.cpu()
    assert model[0].weight.grad.device.type == "cpu" and model[0].weight.grad.tolist() == before
    expected = model(x)
    model.to(npu)
    assert model[0].weight.grad.device == npu
    torch.testing.assert_close(model(x.to(npu)).cpu(), expected, rtol=1e-4, atol=1e-5)
    model.half()
    assert model(x.to(npu).half()).dtype == torch.float16


def test_a_memory_mapped_file_loads_to_the_device(npu, tmp_path):
    torch.save({"x": torch.arange(5.0)}, tmp_path / "x.pt")
    x = torch.load(tmp_path / "x.pt", mmap=True, map_location="npu_v3:0")["x"]
    assert x.device == npu and x.tolist() == [0, 1, 2, 3, 4]


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "nested": {"y": i, "z": [torch.tensor(i), f"item {i}"]}}


@pytest.mark.parametrize(
    "options", [{}, {"persistent_workers": True, "prefetch_factor": 1}], ids=["plain", "persistent"]
)
def test_a_data_loader_with_pinned_memory_and_worker_processes_feeds_the_device(npu, options):
    """Case 37. The workers are forked after the device was used; they hold host tensors only."""
    torch.ones(1, device=npu)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, pin_memory=True, num_workers=2, **options)
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch["x"].is_pinned() and batch["nested"]["y"].is_pinned() and batch["nested"]["z"][0].is_pinned()
            x = batch["x"].to(npu, non_blocking=True)
            seen += (x[:, 0] * 2).tolist()
            assert batch["nested"]["z"][1][0].startswith("item")
        assert seen == [2.0 * i for i in range(16)]


def test_a_data_loader_without_workers_pins_too(npu):
    """Case 37."""
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, pin_memory=True)
    assert [batch["x"].to(npu, non_blocking=True).sum().item() for batch in loader] == [84.0, 276.0]
