"""`torchfl.shutdown()`: nothing of ours is left in PyTorch, the CPU works as before, and `init` makes all work again."""

import os
import sys

import pytest
import torch
from helpers import OwnProcess, run_script

#: What PyTorch itself keeps of a device type once it was named.
NAME = "npu_v3"


def _state():
    """Everything that other code could see of us: attributes of PyTorch's modules and classes, hooks, rules."""
    import torch._inductor.compile_fx  # changes much of torch by itself, when something first needs it
    import torch.nn.utils.rnn
    from torch.optim import optimizer
    from torch.profiler import ProfilerActivity
    from torch.utils import backend_registration

    owners = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "Module": torch.nn.Module,
        "PackedSequence": torch.nn.utils.rnn.PackedSequence,
        "_StorageBase": torch.storage._StorageBase,
        "UntypedStorage": torch.UntypedStorage,
        "TypedStorage": torch.TypedStorage,
        "functional": torch.nn.functional,
        "cuda": torch.cuda,
        "cuda.memory": torch.cuda.memory,
        "backends.cuda": torch.backends.cuda,
        "backends.cudnn": torch.backends.cudnn,
        "accelerator": torch.accelerator,
        "serialization": torch.serialization,
        "amp": torch.amp,
        "random": torch.random,
        "_C": torch._C,
        "DataLoader": torch.utils.data.DataLoader,
        "reductions": torch.multiprocessing.reductions,
        "backend_registration": backend_registration,
        "ProfilerActivity": ProfilerActivity,
        "Optimizer": torch.optim.Optimizer,
    }
    seen = {f"{of}.{name}": value for of, owner in owners.items() for name, value in vars(owner).items()}
    seen.update({f"sys.modules {name}": module for name, module in sys.modules.items() if name.startswith("torch.")})
    seen.update({f"rule {i}": rule for i, rule in enumerate(torch.serialization._package_registry)})
    hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    seen.update({f"hook {i} {key}": hook for i, held in enumerate(hooks) for key, hook in held.items()})
    seen.update({f"environment {name}": value for name, value in os.environ.items()})
    return seen


def _changes(before, after):
    """What is new, gone or another object, without what importing more of PyTorch brings, and without the type's name."""
    keys = set(before) | set(after)
    changed = {key for key in keys if before.get(key, keys) is not after.get(key, keys)}
    kept_by_pytorch = {
        "torch.privateuseone",
        "sys.modules torch.privateuseone",
        *(f"ProfilerActivity.{name}" for name in (NAME.upper(), "__str__", "__repr__", "name")),
        "backend_registration._privateuse1_backend_name",
    }
    imported = {key for key in changed if key not in before and _is_imported(after[key])}
    return {key for key in changed if not key.startswith("environment ")} - kept_by_pytorch - imported | {
        key for key in changed if key.startswith("environment ") and before.get(key) != after.get(key)
    }


def _is_imported(value):
    return type(value) is type(torch) and value.__name__.startswith(("torch.", "sympy")) and value.__spec__ is not None


stopped = OwnProcess("shutdown_state", TORCHFL_AUTOLOAD="0", TORCHFL_CHIPS="npu_v3,npu_v2")
_before = {}


def _busy():
    """Use all that patches something."""
    import torchfl
    from torchfl import _autoload

    os.environ["TORCHFL_AUTOLOAD"] = "1"
    _autoload.start()
    os.environ["TORCHFL_AUTOLOAD"] = "0"
    assert torch.npu_v3.is_available()  # loaded by its name
    assert len(torchfl.chips()) == 2 and torch._C._has_torch_fl
    x = torch.ones(2, device="npu_v3:0")
    torchfl.as_cuda()
    layer = torch.nn.Linear(2, 2).cuda()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert x.is_cuda and x.cuda() is x
    return x


@stopped
def test_the_patches_are_seen_by_this_test():
    before = _state()
    _before.update(before)
    _busy()
    changed = _changes(before, _state())
    for key in (
        "torch.npu",
        "torch.cuda",
        "Tensor.npu_v3",
        "Tensor.cuda",
        "Tensor.is_npu_v3",
        "Module.npu_v3",
        "functional._mha_shape_check",
        "sys.modules torch.cuda",
        "environment TORCHFL_AS_CUDA",
        "_C._has_torch_fl",
        "_C._scatter",
    ):
        assert key in changed, key


@stopped
def test_shutdown_leaves_nothing_of_it():
    import torchfl

    x = torch.ones(2, device="npu_v3:0")
    torchfl.shutdown()
    left = _changes(_before, _state())
    assert left == set(), left
    assert torchfl.chips() == []
    assert (x + 1).tolist() == [2, 2], "tensors stay valid"
    torchfl.shutdown()


@stopped
def test_names_are_refused_as_before():
    for text, error in (("npu_v3:0", RuntimeError), ("npu", RuntimeError), ("cuda", AssertionError)):
        with pytest.raises(error):
            torch.ones(1, device=text)
    for module in ("npu_v3", "npu", "fpga_mm"):
        with pytest.raises(AttributeError):
            getattr(torch, module)
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert torch.privateuseone.device_count() == 0
    with pytest.raises(AttributeError, match="shut down"):
        torch.privateuseone.synchronize()


@stopped
def test_the_cpu_works_as_before():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`torch.jit.script`")
        torch.manual_seed(3)
        assert not torch.accelerator.is_available() and not torch.cuda.is_available()
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        optimizer = torch.optim.AdamW(model.parameters())
        loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, num_workers=1)
        for batch in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(batch).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        attention = torch.nn.MultiheadAttention(12, 12)
        assert attention(*[torch.ones(2, 1, 12)] * 3)[0].shape == (2, 1, 12)
        with torch.random.fork_rng():
            torch.rand(2)
        assert torch.jit.script(model)(torch.ones(1, 4)).shape == (1, 8)
        assert torch.nn.utils.rnn.pack_sequence([torch.ones(2)]).data.tolist() == [1, 1]


@stopped
def test_init_makes_all_work_again():
    import torchfl

    for _ in range(2):
        chips = torchfl.init()
        assert [chip.first_index for chip in chips] == [0, 1]
        assert torch.npu_v3.device_count() == 1 and torch.ones(2).npu_v3().device.index == 0
        assert torch.ones(2, device="npu:0").device.index == 1
        with torchfl.as_cuda():
            assert torch.ones(2).cuda().is_cuda
        x = torch.ones(2, device="npu_v3", requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [2, 2]
        torchfl.shutdown()
    left = _changes(_before, _state())
    assert left == set(), left


def test_shutdown_without_anything_loaded_is_harmless():
    ran = run_script(
        "import torchfl; torchfl.shutdown(); import torch; torchfl.shutdown(); print(torch.ones(1).item())"
    )
    assert ran.out == "1.0\n", ran.err


def test_the_environment_of_children_is_as_it_was():
    ran = run_script(
        "import os, torchfl; a = dict(os.environ); torchfl.load('npu_v3'); torchfl.as_cuda(); b = dict(os.environ); "
        "torchfl.shutdown(); print(sorted(set(b) - set(a)), dict(os.environ) == a)"
    )
    assert ran.out == "['TORCHFL_AS_CUDA', 'TORCHFL_PARENTS_CHIPS'] True\n", ran.err
