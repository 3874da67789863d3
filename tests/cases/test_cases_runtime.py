"""Cases 35 to 48: random numbers, saving, data loading, memory, faults. Case 42 (processes that train together) is not
here."""

import copy
import gc
import io
import itertools

import pytest
import torch
from cases_support import CHIPS, EveryChip
from helpers import in_forked_child
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

case = EveryChip("runtime")
fresh = EveryChip("before_first_use")
small = EveryChip("little_memory", chip_env={"npu_v3": {"NPU_SIM_MEMORY": "64"}, "fpga_mm": {"FPGA_MM_MEMORY": "64"}})
failing = EveryChip(
    "failing", chip_env={"npu_v3": {"NPU_SIM_FAULT": "kernel:npu_v3_matmul:2"}, "fpga_mm": {"FPGA_MM_FAULT": "fail:12"}}
)
two = EveryChip(
    "losing",
    chip_env={
        "npu_v3": {"NPU_SIM_DEVICES": "2", "NPU_SIM_FAULT": "lost:npu_v3_unary:3:0"},
        "fpga_mm": {"FPGA_MM_CARDS": "2", "FPGA_MM_FAULT": "lost:14"},
    },
)


def module_of(d):
    return getattr(torch, str(d).partition(":")[0])


@case
def test_case_35_dropout_follows_the_seed_checkpointing_and_fork_rng(d):
    x = torch.ones(400, device=d)

    def drop():
        return F.dropout(x, 0.5).cpu()

    torch.manual_seed(5)
    first, second = drop(), drop()
    assert not torch.equal(first, second) and set(first.tolist()) == {0.0, 2.0}
    torch.manual_seed(5)
    assert torch.equal(drop(), first) and torch.equal(drop(), second)
    torch.manual_seed(5)
    with torch.random.fork_rng(device_type=d.type):
        drop()
        drop()
    assert torch.equal(drop(), first)
    for reentrant in (True, False):
        leaf = torch.ones(400, device=d, requires_grad=True)
        torch.manual_seed(5)
        out = checkpoint(lambda t: F.dropout(t, 0.5), leaf, use_reentrant=reentrant, preserve_rng_state=True)
        drop()  # between the forward and its second run
        out.sum().backward()
        assert torch.equal(leaf.grad.cpu(), out.detach().cpu()) and torch.equal(out.detach().cpu(), first)


@case
def test_case_36_saving_and_loading_with_every_kind_of_map(d):
    base = torch.arange(12.0, device=d).view(3, 4)
    net = torch.nn.Linear(3, 2).to(d)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(4, 3, device=d)).sum().backward()
    optimizer.step()
    saved = {
        "tensor": base, "strided": base.t()[1:, ::2], "twins": (base[0], base[1:]), "net": net.state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2, device=d)), "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    file = io.BytesIO()
    torch.save(saved, file)
    label = str(d)
    for where, expected in (
        (None, label), ("cpu", "cpu"), (label, label), (d, label), ({label: "cpu"}, "cpu"), ({"cpu": label}, label),
        (lambda storage, place: storage, "cpu"), (lambda storage, place: storage.to(device=torch.device(label)), label),
        (torch.device("cpu"), "cpu"),
    ):  # fmt: skip
        file.seek(0)
        loaded = torch.load(file, map_location=where, weights_only=False)
        assert str(loaded["tensor"].device) == expected, where
        assert torch.equal(loaded["strided"].cpu(), base.t()[1:, ::2].cpu())
        assert loaded["strided"].stride() == saved["strided"].stride()
        loaded["twins"][0].fill_(-1)
        assert loaded["tensor"][0].tolist() == [-1] * 4  # still one storage
        assert isinstance(loaded["parameter"], torch.nn.Parameter) and str(loaded["parameter"].device) == expected
        fresh_net = torch.nn.Linear(3, 2).to(expected)
        fresh_net.load_state_dict(loaded["net"])
        assert torch.equal(fresh_net.weight.cpu(), net.weight.cpu())
        again = torch.optim.AdamW(fresh_net.parameters())
        again.load_state_dict(loaded["optimizer"])
        assert again.state[fresh_net.weight]["exp_avg"].device == fresh_net.weight.device
    file.seek(0)
    assert torch.load(file, weights_only=True)["tensor"].device == d
    other = next(chip for chip in CHIPS if not label.startswith(chip))
    file.seek(0)
    with pytest.raises(RuntimeError, match="other_chip"):
        torch.load(file, map_location="other_chip:0")
    import torchfl

    torchfl.load(other)
    file.seek(0)
    moved = torch.load(file, map_location=f"{other}:0", weights_only=False)
    assert torchfl.explain("aten::relu", moved["tensor"])["device"] == f"{other}:0"
    assert torch.equal(moved["strided"].cpu(), base.t()[1:, ::2].cpu())


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "nested": {"label": i, "pair": (torch.tensor(i), "name")}}


@case
def test_case_37_data_loaders_with_pinning_nesting_and_persistent_workers(d):
    for context in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            Items(),
            batch_size=4,
            num_workers=2,
            pin_memory=True,
            persistent_workers=True,
            multiprocessing_context=context,
        )
        for _ in range(2):
            seen = []
            for batch in loader:
                assert batch["x"].is_pinned() and batch["nested"]["pair"][0].is_pinned()
                x = batch["x"].to(d, non_blocking=True)
                seen += x[:, 0].tolist()
                assert batch["nested"]["label"].tolist() == x[:, 1].cpu().to(torch.int64).tolist()
                assert batch["nested"]["pair"][1][0] == "name"
            assert seen == list(range(10))
        del loader


@fresh
def test_case_38_forking_before_use_is_harmless_and_after_it_a_clear_error(d):
    module = module_of(d)
    assert module.is_available() and module.device_count() == 1 and torch.accelerator.device_count() == 1
    assert not module.is_initialized()
    worked = in_forked_child(lambda: str((torch.ones(3, device=d) + 1).tolist()))
    assert worked == "[2.0, 2.0, 2.0]"
    torch.ones(3, device=d)

    def use():
        try:
            torch.ones(3, device=d)
        except RuntimeError as error:
            return f"RuntimeError {error}"
        return "it worked"

    said = in_forked_child(use)
    assert said.startswith("RuntimeError") and "fork" in said and "spawn" in said and str(d).split(":")[0] in said
    assert in_forked_child(lambda: f"{module.is_available()} {module.device_count()}") == "True 1"
    assert (torch.ones(3, device=d) + 1).tolist() == [2, 2, 2]


@case
def test_case_39_reserved_memory_stays_flat(d):
    module = module_of(d)
    gc.collect()
    levels = []
    for i in range(60):
        held = [torch.empty(1000 * (1 + (i + k) % 7), device=d) for k in range(20)]
        held[3] = held[3] + 1
        del held
        module.empty_cache()
        levels.append((module.memory_reserved(), module.memory_allocated()))
    assert len(set(levels[5:])) == 1, levels
    for _ in range(3):
        for i in range(60):
            held = [torch.empty(1000 * (1 + (i + k) % 7), device=d) for k in range(20)]
            del held
        levels.append((module.memory_reserved(), module.memory_allocated()))
    assert len(set(levels[-2:])) == 1


@fresh
def test_case_40_peaks_can_be_reset_at_any_time(d):
    module = module_of(d)
    module.reset_peak_memory_stats()
    module.reset_accumulated_memory_stats()
    torch.accelerator.reset_peak_memory_stats()
    held = torch.empty(1 << 20, dtype=torch.uint8, device=d)
    torch.empty(1 << 22, dtype=torch.uint8, device=d)
    before = module.memory_allocated()
    assert module.max_memory_allocated() >= before + (1 << 22)
    module.reset_peak_memory_stats()
    assert module.memory_allocated() == before == module.max_memory_allocated() and before >= 1 << 20
    del held
    assert module.memory_allocated() <= before - (1 << 20)


@case
def test_case_41_a_tensor_made_on_the_inputs_device_inside_a_compiled_function(d):
    import torchfl

    compiled = torch.compile(lambda x: x + torch.tensor([1], device=x.device), backend="aot_eager")
    for shape in ((3,), (2, 3)):
        x = torch.ones(shape, device=d)
        assert compiled(x).device == d and torch.equal(compiled(x).cpu(), torch.full(shape, 2.0))
    assert all("meta" not in row["reason"] for row in torchfl.stats())
    meta = torch.ones(3, device="meta")
    assert (meta + meta).device.type == "meta"
    with pytest.raises(RuntimeError, match=r"same device|meta"):
        torch.ones(3, device=d) + meta


@case
def test_case_43_conjugate_and_negative_bits_survive_every_copy(d):
    x = torch.tensor([1 + 2j, -3j, 0.5])
    for host in (x.conj(), x.imag, x.conj().imag, x.conj() * 1):
        assert torch.equal(host.to(d).resolve_conj().resolve_neg().cpu(), host.resolve_conj().resolve_neg())
    on = x.to(d)
    for lazily in (
        lambda t: t.conj(),
        lambda t: t.conj().imag,
        lambda t: torch._neg_view(t),
        lambda t: t.conj().mT if t.dim() > 1 else t.conj(),
    ):
        want = lazily(x)
        got = lazily(on)
        assert got.is_conj() == want.is_conj() and got.is_neg() == want.is_neg()
        for copied in (
            got.cpu(),
            got.clone().cpu(),
            torch.empty_like(got).copy_(got).cpu(),
            (got + 0).cpu(),
            copy.deepcopy(got).cpu(),
        ):
            assert torch.equal(copied.resolve_conj().resolve_neg(), want.resolve_conj().resolve_neg())
    target = torch.zeros(3, dtype=torch.complex64, device=d)
    target.conj().copy_(x)
    assert torch.equal(target.cpu(), x.conj().resolve_conj())


@case
def test_case_44_a_tensor_of_scalars_on_either_side(d):
    for a, b in itertools.product(("cpu", d), repeat=2):
        t0, t1 = torch.tensor(1.5, device=a), torch.tensor(2.5, device=b)
        assert torch.tensor([t0, t1]).tolist() == [1.5, 2.5]
        assert torch.tensor([t0, t1], device=d).tolist() == [1.5, 2.5]
        assert torch.tensor([[int(t0), t1]]).tolist() == [[1, 2.5]]
    assert torch.as_tensor([torch.tensor(3, device=d), 4]).tolist() == [3, 4]


@case
def test_case_45_properties_tell_the_truth_and_the_current_device_stays(d):
    module = module_of(d)
    told = module.get_device_properties(d)
    free, total = module.mem_get_info(d)
    assert told.name and told.total_memory == total >= 1 << 30 and 0 < free <= total
    assert module.get_device_name(0) == told.name
    held = torch.empty(64 << 20, dtype=torch.uint8, device=d)
    assert module.mem_get_info(d)[0] <= free - (63 << 20)
    del held
    before = module.current_device()
    (torch.ones(3, device=d) + 1).sum().item()
    torch.linalg.svdvals(torch.eye(3, device=d))
    assert module.current_device() == before == torch.accelerator.current_device_index()


@case
def test_case_46_a_small_training_step_has_a_budget_of_host_copies(d):
    import torchfl

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    ).to(d)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    x, y = torch.randn(32, 8).to(d), torch.randn(32, 4).to(d)

    def step():
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    before = torchfl.transfers()
    torchfl.reset_stats()
    step()
    after = torchfl.transfers()
    copies = sum(after[k] - before[k] for k in after if k.endswith("_copies") and "peer" not in k)
    fallbacks = {row["op"]: row["calls"] for row in torchfl.stats() if row["path"] == "cpu"}
    assert sum(fallbacks.values()) == 0, fallbacks
    assert copies <= 8, copies


@small
def test_case_47_out_of_memory_says_what_is_there_and_less_still_works(d):
    module = module_of(d)
    held = torch.empty(30 << 20, dtype=torch.uint8, device=d)
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(60 << 20, dtype=torch.uint8, device=d)
    text = str(error.value)
    for said in (str(d).split(":")[0], "60.00 MiB", "64.00 MiB", "free", "allocated", "cached"):
        assert said in text, (said, text)
    assert module.memory_stats()["num_ooms"] == 1
    assert torch.full((20 << 20,), 7, dtype=torch.uint8, device=d)[-1].item() == 7
    del held
    assert torch.full((50 << 20,), 7, dtype=torch.uint8, device=d)[-1].item() == 7


@failing
def test_case_48_one_failing_kernel_does_not_poison_later_calls(d):
    failures, good = [], 0
    x = torch.eye(4).to(d)
    for _ in range(30):
        try:
            y = x @ x
            assert torch.equal(y.cpu(), torch.eye(4))
            good += 1
        except RuntimeError as error:
            assert not isinstance(error, (NotImplementedError, torch.OutOfMemoryError))
            failures.append(str(error))
    assert len(failures) == 1 and good == 29, failures
    assert str(d).split(":")[0] in failures[0] and "SDK code" in failures[0]


@two
def test_case_48_a_lost_device_says_so_and_the_other_goes_on(d):
    name = str(d).partition(":")[0]
    d1 = torch.device(f"{name}:1")
    failures = []
    for _ in range(12):
        try:
            x = torch.tensor([1.0, -2.0], device=d)
            assert torch.relu(-x).tolist() == [0, 2]
            module_of(d).synchronize(0)
        except RuntimeError as error:
            failures.append(str(error))
    assert failures and all(f"{name}:0" in text and "lost" in text for text in failures[1:]), failures
    with pytest.raises(RuntimeError, match="lost"):
        torch.ones(2, device=d)
    torch.accelerator.set_device_index(1)
    assert (torch.ones(2, device=d1) + 1).tolist() == [2, 2]  # its own count of commands is far from a fault
