"""Scripts written for CUDA: what CUDA's names mean under `torchfl.as_cuda()` and `torchfl run --as-cuda`."""

import copy
import io
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from helpers import ROOT, OwnProcess, environment, heard, run_script
from torch import nn

SCRIPTS = ROOT / "examples" / "cuda_scripts"

named = OwnProcess("as_cuda", TORCHFL_CHIPS="npu_v3")


def _cuda():
    import torchfl

    return torchfl.as_cuda()


@named
def test_a_device_string_means_our_device():
    with _cuda():
        for text in ("cuda", "cuda:0"):
            x = torch.ones(2, device=text)
            assert (x.device.type, x.device.index) == ("cuda", 0)
            assert x.is_cuda and not torch.ones(2).is_cuda
        assert torch.device("cuda", 0) == torch.device("cuda:0") == torch.device("npu_v3:0")
        assert torch.device("cuda").index is None
        assert str(x.device) == "cuda:0" and "device='cuda:0'" in repr(x)
        assert x.type() == "torch.cuda.FloatTensor"
        assert [row["label"] for row in __import__("torchfl").devices()] == ["npu_v3:0"]
        with pytest.raises(RuntimeError, match="cuda:7"):
            torch.ones(1, device="cuda:7")


@named
def test_every_way_to_move_takes_the_name():
    with _cuda():
        x = torch.arange(3.0)
        for y in (
            x.cuda(),
            x.cuda(0),
            x.cuda("cuda:0", non_blocking=True),
            x.to("cuda"),
            x.cuda(device=torch.device("cuda")),
        ):
            assert y.is_cuda and y.tolist() == [0, 1, 2]
        assert y.cuda() is y
        with pytest.raises(RuntimeError, match="must be cuda"):
            x.cuda("cpu")
        layer = nn.Linear(2, 2).cuda()
        assert {p.device.type for p in layer.parameters()} == {"cuda"} and all(p.is_cuda for p in layer.parameters())
        packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]).cuda()
        assert packed.is_cuda
        assert x.untyped_storage().cuda().device.type == "cuda"
        assert copy.deepcopy(layer).weight.is_cuda
        assert torch.cuda.FloatTensor([1, 2]).is_cuda and isinstance(x.cuda(), torch.cuda.FloatTensor)
        assert not isinstance(x, torch.cuda.FloatTensor)
        with torch.device("cuda"):
            assert torch.ones(2).is_cuda
        assert torch.Generator(device="cuda").device.type == "cuda"


@named
def test_torch_cuda_is_the_device_module():
    with _cuda():
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
        assert torch.get_device_module() is torch.cuda is torch.get_device_module("cuda") is sys.modules["torch.cuda"]
        assert torch.accelerator.current_accelerator().type == "cuda"
        assert torch.cuda.get_device_name(0) == "NPU-V3"
        properties = torch.cuda.get_device_properties("cuda:0")
        assert properties.total_memory == 4 << 30 and (properties.major, properties.minor) == (8, 0)
        assert torch.cuda.is_bf16_supported(including_emulation=False)
        torch.cuda.set_device(0)
        with torch.cuda.device(0):
            assert torch.ones(1, device="cuda").is_cuda
        before = torch.cuda.memory_allocated()
        x = torch.ones(1 << 16, device="cuda")
        assert torch.cuda.memory_allocated() - before == 4 << 16 <= torch.cuda.max_memory_allocated()
        assert torch.cuda.memory_reserved() == torch.cuda.memory.memory_reserved() == torch.cuda.memory_cached()
        free, total = torch.cuda.mem_get_info()
        assert 0 < free < total
        del x
        torch.cuda.empty_cache()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda")


@named
def test_properties_are_true_or_absent():
    true = torch.npu_v3.get_device_properties()
    with _cuda():
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.gcnArchName) == ("NPU-V3", "NPU-V3")
        assert properties.multi_processor_count == true.multi_processor_count
        assert properties.clock_rate == true.clock_rate * 1000  # CUDA's is in kHz
        assert torch.cuda.clock_rate() == true.clock_rate
        assert properties.L2_cache_size == 8 << 20 and properties.is_integrated == 0
        assert "major=8" in repr(properties) and "total_memory=4096MB" in repr(properties)
        with pytest.raises(AttributeError, match="warp_size is not known of NPU-V3"):
            _ = properties.warp_size
        assert getattr(properties, "max_threads_per_multi_processor", None) is None
        assert not hasattr(properties, "nonsense")


@named
def test_imports_below_torch_cuda_work():
    with _cuda():
        import torch.cuda.amp
        import torch.cuda.memory
        from torch.cuda import Event, Stream, amp, synchronize
        from torch.cuda.amp import GradScaler, autocast
        from torch.cuda.memory import max_memory_allocated
        from torch.cuda.random import manual_seed_all

        manual_seed_all(1)
        synchronize()
        assert amp.GradScaler is GradScaler and max_memory_allocated() >= 0
        stream, start, end = Stream(), Event(enable_timing=True), Event(enable_timing=True)
        x = torch.ones(256, 256, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            start.record()
            y = x @ x
            end.record()
        torch.cuda.current_stream().wait_stream(stream)
        y.record_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0 and y[0, 0].item() == 256
        with autocast():
            assert nn.Linear(16, 16).cuda()(torch.ones(2, 16, device="cuda")).dtype == torch.float16


@named
def test_amp_scales_and_lowers():
    with _cuda():
        model = nn.Linear(16, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for scaler in (torch.amp.GradScaler("cuda", init_scale=128.0), torch.cuda.amp.GradScaler(init_scale=128.0)):
            assert scaler.is_enabled()
            before = model.weight.clone()
            with torch.amp.autocast(device_type="cuda", dtype=torch.float16):
                loss = model(torch.ones(3, 16, device="cuda"))
                assert loss.dtype == torch.float16 and torch.is_autocast_enabled("cuda")
            scaler.scale(loss.float().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            assert not torch.equal(before, model.weight)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert model(torch.ones(3, 16, device="cuda")).dtype == torch.bfloat16


@named
def test_seeds_and_generator_states():
    with _cuda():
        draws = []
        for seed in (torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all):
            seed(5)
            draws.append(torch.rand(4, device="cuda").tolist())
        assert draws[0] == draws[1] == draws[2]
        state = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(first, torch.rand(4, device="cuda"))
        state = torch.cuda.get_rng_state()
        with torch.random.fork_rng():
            torch.rand(4, device="cuda")
        assert torch.equal(state, torch.cuda.get_rng_state())

        def noisy(x):
            return nn.functional.dropout(x * 2)

        x = torch.ones(64, device="cuda", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(noisy, x, use_reentrant=False)
        y.sum().backward()
        assert torch.equal(x.grad * 1, y.detach())


@named
def test_a_checkpoint_is_tagged_and_mapped_as_cudas():
    import torchfl

    file = io.BytesIO()
    with _cuda():
        torch.save({"w": torch.ones(2, device="cuda")}, file)

        def load(**options):
            file.seek(0)
            return torch.load(file, **options)["w"].device

        assert load().type == load(map_location="cuda").type == load(map_location="cuda:0").type == "cuda"
        assert load(map_location={"cuda:0": "cpu"}).type == "cpu"
        assert load(map_location=lambda storage, location: storage).type == "cpu"
        assert load(map_location="npu_v3:0").type == "cuda"
    assert load(map_location="npu_v3:0").type == "npu_v3"
    assert load(map_location="cpu").type == "cpu"
    with pytest.raises(RuntimeError, match="CUDA"):
        load()
    assert torchfl.chips()


@named
def test_torchscript_compiles_what_it_did():
    with _cuda():

        @torch.jit.script
        def made(x: torch.Tensor) -> torch.Tensor:
            where = torch.device("cuda")
            return torch.zeros(2, device="cuda") + torch.ones(2, device=x.device) + torch.ones(2, device=where)

        assert made(torch.ones(1, device="cuda")).tolist() == [2, 2]
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).cuda().eval()
        x = torch.randn(1, 1, 8, 8, device="cuda")
        scripted = torch.jit.script(model)
        torch.testing.assert_close(scripted(x), model(x))
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(model, x), file)
        file.seek(0)
        torch.testing.assert_close(torch.jit.load(file, map_location="cuda")(x), model(x))


@named
def test_switches_of_cudas_libraries_are_taken():
    with _cuda():
        cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
        before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32 = True, True, False, True
        assert cudnn.benchmark and cudnn.deterministic and cuda.matmul.allow_tf32
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32 = before
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            q = torch.ones(1, 1, 4, 8, device="cuda")
            assert torch.nn.functional.scaled_dot_product_attention(q, q, q).is_cuda
        x = torch.ones(2).pin_memory()
        assert x.is_pinned() and torch.ones(2, pin_memory=True).is_pinned()


@named
def test_what_has_no_meaning_says_so():
    with _cuda():
        said = heard()
        with torch.cuda.nvtx.range("step"):
            torch.cuda.nvtx.mark("here")
            torch.cuda.nvtx.mark("here")
        assert len([line for line in said if "nvtx.mark() has no meaning on NPU-V3" in line]) == 1
        graph = torch.cuda.CUDAGraph
        for use in (
            graph,
            lambda: torch.cuda.graph(None),
            lambda: torch.cuda.make_graphed_callables(abs, ()),
            torch.cuda.cudart,
        ):
            with pytest.raises(NotImplementedError, match=r"torch\.cuda\.\w+ has no meaning on NPU-V3"):
                use()
        assert not isinstance(1, graph)
        assert not torch.cuda.is_current_stream_capturing()
        with pytest.raises(AttributeError, match="no_such_thing"):
            torch.cuda.no_such_thing  # noqa: B018
        store = torch.distributed.HashStore()
        with pytest.raises(RuntimeError, match="NCCL"):
            torch.distributed.init_process_group("nccl", rank=0, world_size=1, store=store)


@named
def test_dlpack_does_not_pass_our_memory_off_as_cudas():
    from torch.utils.dlpack import DLDeviceType

    with _cuda():
        x = torch.arange(4.0, device="cuda")
        assert x.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
        assert torch.ones(1).__dlpack_device__()[0] == DLDeviceType.kDLCPU
        y = torch.from_dlpack(x)
        y[0] = 7
        assert y.is_cuda and x.tolist() == [7, 1, 2, 3]


@named
def test_a_tensor_for_another_process_is_not_shared_as_cudas():
    """It goes, or fails, as it does under the chip's name."""
    from multiprocessing.reduction import ForkingPickler

    def sent(x):
        try:
            return len(bytes(ForkingPickler.dumps(x))) > 0
        except RuntimeError as error:
            return str(error)

    x = torch.ones(2, device="npu_v3:0")
    under_its_name = sent(x)
    with _cuda():
        assert sent(x) == under_its_name
        assert sent(torch.nn.Parameter(x)) == under_its_name


@named
def test_optimizers_step_the_way_they_do_on_cuda():
    with _cuda():
        for options in ({"fused": True}, {"foreach": True}, {}):
            torch.manual_seed(0)
            ours, theirs = nn.Linear(8, 3).cuda(), nn.Linear(8, 3)
            theirs.load_state_dict(ours.state_dict())
            pair = [(m, torch.optim.AdamW(m.parameters(), lr=0.1, **options)) for m in (ours, theirs)]
            for model, optimizer in pair:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.linspace(-1, 1, 16).view(2, 8).to(model.weight.device)).square().sum().backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            torch.testing.assert_close(ours.weight.cpu(), theirs.weight)


@named
def test_blocks_nest_and_leave_nothing():
    stock, method = torch.cuda, torch.Tensor.__dict__.get("cuda")
    with _cuda() as outer:
        with _cuda():
            pass
        assert torch.ones(1, device="cuda").is_cuda
        kept = torch.ones(2, device="cuda")
        outer.close()
        assert str(kept.device) == "npu_v3:0" and (kept + 1).tolist() == [2, 2]
    assert torch.cuda is stock is sys.modules["torch.cuda"] and torch.Tensor.__dict__.get("cuda") is method
    assert not torch.cuda.is_available() and not torch.ones(1, device="npu_v3:0").is_cuda
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="block"), _cuda():
        raise RuntimeError("block")
    assert torch.cuda is stock


@named
def test_a_torch_with_cuda_of_its_own_is_not_hidden():
    import torchfl

    stock = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        with pytest.raises(torchfl.LoadError, match="CUDA devices of its own"):
            torchfl.as_cuda()
        with torchfl.as_cuda(force=True):
            assert torch.cuda.get_device_name() == "NPU-V3"
    finally:
        torch.cuda.is_available = stock


def test_the_ablest_chip_is_taken_where_none_is_named():
    ran = run_script(
        "import torch, torchfl; torchfl.as_cuda(); print(torch.cuda.get_device_name(), len(torchfl.chips()))"
    )
    assert ran.out == "NPU-V3 1\n", ran.err


def test_cuda_means_the_first_of_unlike_chips_and_prints_the_others():
    ran = run_script(
        """
        import torch, torchfl
        torchfl.init("npu_v3", "npu_v2", "fpga_mm")
        torchfl.as_cuda()
        print(torch.cuda.device_count(), torch.cuda.get_device_name())
        for name in ("npu_v3", "npu", "fpga_mm"):
            x = torch.ones(2, device=name)
            print(x.device, x.to("cuda").device, torch.ones(1, device=str(x.device)).device == x.device)
        """.replace("\n        ", "\n")
    )
    assert ran.out.splitlines() == ["1 NPU-V3", "cuda:0 cuda:0 True", "cuda:1 cuda:0 True", "cuda:2 cuda:0 True"], ran


# ------------------------------------------------------------------------------------------------ whole scripts

WORKERS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

# At import, before anything of the main block: in a spawned worker as well.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HERE = torch.zeros(1).to(DEVICE) if __name__ == "__mp_main__" else None


class Ours(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        # What a worker may always ask; a spawned one may use the device too.
        where = HERE.device.type if HERE is not None else DEVICE.type
        return {"x": torch.full((2,), float(i)), "where": where, "count": torch.cuda.device_count()}


if __name__ == "__main__":
    for context in ("fork", "spawn"):
        seen = []
        loader = DataLoader(Ours(), batch_size=2, num_workers=2, pin_memory=True, persistent_workers=True, multiprocessing_context=context)
        for _ in range(2):
            for batch in loader:
                assert batch["x"].is_pinned()
                seen.append(batch["x"].to("cuda", non_blocking=True).sum().item())
                assert batch["where"] == ["cuda"] * 2 and batch["count"].tolist() == [1, 1], batch
        print(context, seen == [2.0, 10.0, 18.0, 26.0] * 2)
"""


def test_workers_of_a_cuda_script_have_the_names_too(tmp_path):
    """Case 37."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    assert _run(script, cuda=True).splitlines()[-2:] == ["fork True", "spawn True"]


@pytest.mark.slow
def test_a_spawned_worker_has_a_chip_that_was_named_by_its_file(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            import torch.multiprocessing as mp

            def work(i, out):
                out.put(str(torch.ones(2, device="alone:0").sum().item()))

            if __name__ == "__main__":
                import torchfl
                import sys
                torchfl.load(sys.argv[1])
                context = mp.get_context("spawn")
                out = context.Queue()
                process = context.Process(target=work, args=(0, out))
                process.start()
                print(out.get(timeout=60))
                process.join()
            """
        )
    )
    descriptor = tmp_path / "alone.yaml"
    from torchfl._paths import shipped_chips

    shipped = shipped_chips()["npu_v3"]
    text = re.sub(r"device_type: *npu_v3\b", "device_type: alone", shipped.read_text())
    text = re.sub(r"library: *(\S+\.so)", lambda m: f"library: {shipped.parent / m[1]}", text)
    descriptor.write_text(text)
    ran = subprocess.run(
        [sys.executable, str(script), str(descriptor)], env=environment(), capture_output=True, text=True, timeout=100
    )
    assert ran.stdout.splitlines()[-1:] == ["2.0"], ran.stderr


def _run(script, *args, cuda):
    launcher = ["-m", "torchfl.cli", "run", "--as-cuda", "--chip", "npu_v3"] if cuda else []
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, str(script), *args],
        env=environment(TORCHFL_AUTOLOAD="1" if cuda else "0"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _losses(text):
    return [float(value) for value in re.findall(r"(?:loss|accuracy) ([0-9.]+)", text)]


#: script -> arguments of a first run, which saves a checkpoint, and of a second one, which goes on from it
RUNS = {
    "mlp.py": ["--epochs 2 --workers 1 --save", "--epochs 3 --workers 0 --resume"],
    "cnn_digits.py": ["--epochs 2 --workers 1 --save", "--epochs 1 --workers 0 --resume"],
    "char_transformer.py": ["--steps 12 --checkpoint", "--steps 12 --workers 0 --checkpoint"],
}

ALL_ON_CPU = """
import runpy, sys
for line in sys.stdin.read().splitlines():
    print("run", flush=True)
    sys.argv = line.split()
    sys.path[0] = sys.argv[0].rpartition("/")[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """The numbers that each script prints in its two runs."""
    folder = tmp_path_factory.mktemp("cpu")
    lines = [f"{SCRIPTS / name} --device cpu {args} {folder / name}.pt" for name, both in RUNS.items() for args in both]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALL_ON_CPU],
        input="\n".join(lines),
        env=environment(TORCHFL_AUTOLOAD="0"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    printed = [_losses(text) for text in ran.stdout.split("run\n")[1:]]
    return {name: [printed[2 * i], printed[2 * i + 1]] for i, name in enumerate(RUNS)}


@pytest.mark.parametrize(
    "script, extra, runs",
    [
        ("mlp.py", ["--amp"], 2),
        ("cnn_digits.py", [], 1),
        ("char_transformer.py", [], 1),
        pytest.param("cnn_digits.py", ["--amp"], 2, marks=pytest.mark.slow),
        pytest.param("char_transformer.py", ["--dtype", "float16"], 2, marks=pytest.mark.slow),
    ],
)
def test_an_example_reaches_the_result_of_the_cpu(tmp_path, on_cpu, script, extra, runs):
    """Trained, saved, and gone on with from the file: the same numbers, to what mixed precision allows."""
    for args, expected in list(zip(RUNS[script], on_cpu[script], strict=True))[:runs]:
        printed = _losses(_run(SCRIPTS / script, *extra, *args.split(), str(tmp_path / "kept.pt"), cuda=True))
        assert len(printed) >= 2
        assert printed == pytest.approx(expected, rel=0.02, abs=2e-3 if not extra else 2e-2)


@pytest.mark.parametrize(
    "script",
    ["mlp.py", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn_digits.py", "char_transformer.py"))],
)
def test_an_example_compiles_to_the_same_result(tmp_path, on_cpu, script):
    pytest.importorskip("torchfl.compile")
    args = RUNS[script][0].split()
    printed = _losses(_run(SCRIPTS / script, "--compile", *args, str(tmp_path / "kept.pt"), cuda=True))
    assert printed == pytest.approx(on_cpu[script][0], rel=0.02, abs=2e-3)


def test_the_examples_know_nothing_of_us():
    for script in SCRIPTS.glob("*.py"):
        assert not re.search(r"torch_?fl|npu", script.read_text()), script
