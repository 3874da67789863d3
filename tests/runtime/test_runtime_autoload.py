"""`import torch` alone: names of installed chips work, nothing is opened before, and nothing can break the import."""

import os
import subprocess
import sys
import textwrap

import pytest
from helpers import environment, run_script


def _python(code, tmp_path=None, **env):
    """Runs code; `tmp_path` goes before everything on the path, for packages that stand in for others."""
    kept = environment(**env)
    if tmp_path is not None:
        kept["PYTHONPATH"] = os.pathsep.join([str(tmp_path), kept["PYTHONPATH"]])
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=kept, capture_output=True, text=True, timeout=100
    )
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


def test_a_name_works_by_import_torch_alone():
    """Each use is the first one, in a child of a process that has imported torch and nothing else."""
    status, lines, err = _python(
        """
        import os, sys, torch
        assert not {"torchfl._C", "torchfl._engine", "yaml", "pydantic"} & set(sys.modules)

        def state():
            import torchfl
            ours = [c.device_type for c in torchfl.chips()]
            return ours == ["npu_v3"] and torch._C._has_torch_fl and "torchfl" not in torch.__getattr__.__module__

        for use in (
            "torch.ones(2, device='npu_v3:0').device",
            "torch.ones(2).to('npu_v3').device",
            "torch.device('npu_v3')",
            "torch.npu_v3.device_count()",
            "torch.get_device_module('npu_v3:0').get_device_name()",
            "torch.Generator(device='npu_v3').device",
        ):
            child = os.fork()
            if child == 0:
                print(eval(use), state(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        """,
        TORCHFL_CHIPS="npu_v3",
    )
    assert status == 0, err
    assert lines == [f"{text} True" for text in ("npu_v3:0", "npu_v3:0", "npu_v3", "1", "NPU-V3", "npu_v3:0")], err


@pytest.mark.slow
def test_all_shipped_chips_are_known_and_loaded_as_init_does():
    said = {}
    for order in (
        "import torch; torch.device('npu_v3:0')",
        "import torch, torchfl; torchfl.init()",
        "import torchfl; torchfl.init(); import torch",
    ):
        code, lines, err = _python(
            f"{order}\nimport torchfl; print([(c.device_type, c.first_index) for c in torchfl.chips()])\n"
            "import torch; print(torch.npu.device_count(), torch.fpga_mm.device_count(), torch.device('npu_v3:0'), torch.__getattr__)"
        )
        said[order] = [lines[0], lines[1].rpartition(" at ")[0]]
        assert code == 0, err
    assert len(set(map(str, said.values()))) == 1, said


def test_a_saved_tensor_brings_its_chip(tmp_path):
    file = str(tmp_path / "x.pt")
    saved = run_script("import sys, torch; torch.save(torch.ones(2, device='npu_v3:0'), sys.argv[1])", file)
    assert saved.code == 0, saved.err
    ran = run_script(
        "import sys, torch; x = torch.load(sys.argv[1]); print(x.tolist(), torch.npu_v3.get_device_name())", file
    )
    assert ran.out == "[1.0, 1.0] NPU-V3\n", ran.err


def test_the_import_costs_less_than_50_ms():
    """Of processor time, so that what else the machine does counts little. Median of three, the first of which imports;
    the search for entry points is paid by every process anyway."""
    _code, lines, err = _python(
        """
        import sys, time, torch
        times = []
        for _ in range(3):
            for name in [name for name in sys.modules if name.startswith("torchfl")]:
                del sys.modules[name]
            begin = time.process_time()
            from torchfl import _autoload
            _autoload.start()
            times.append(time.process_time() - begin)
            assert sorted(_autoload._names) == ["fpga_mm", "npu", "npu_v3"]
            _autoload.unwatch()
        print(sorted(times)[1])
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert lines, err
    assert float(lines[0]) < 0.05


def test_it_can_be_turned_off():
    for switch in ("TORCHFL_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        _code, lines, err = _python(
            """
            import sys, torch
            print(hasattr(torch, "npu_v3"), "torchfl._names" in sys.modules)
            try:
                torch.device("npu_v3:0")
            except RuntimeError as error:
                print(error)
            import torchfl
            torchfl.init("npu_v3")
            print(torch.device("npu_v3:0"))
            """,
            **{switch: "0"},
        )
        assert lines == ["False False", "Invalid device string: 'npu_v3:0'", "npu_v3:0"] and not err, (lines, err)


def test_other_texts_are_parsed_as_before():
    _code, lines, err = _python(
        """
        import sys, torch
        print(torch.device("cpu"), torch.device("cuda:1"), torch.device("meta"))
        for text in ("npu_v33", "npu_v4:0", "", "npu_v3x:0", "fpga"):
            try:
                print(torch.device(text))
            except RuntimeError as error:
                pass
        for name in ("npu_v4", "no_such_thing", "__wrapped__"):
            assert not hasattr(torch, name)
        print("torchfl._engine" in sys.modules)
        """
    )
    assert lines == ["cpu cuda:1 meta", "fpga", "False"], err


def test_a_fork_after_the_import_is_harmless():
    _code, lines, err = _python(
        """
        import os, torch
        child = os.fork()
        if child == 0:
            print(torch.ones(2, device="npu_v3:0").sum().item(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(torch.ones(2, device="npu_v3:0").sum().item())
        """
    )
    assert lines == ["2.0", "2.0"], err


# -------------------------------------------------------------------------- whatever is wrong, torch is imported

AFTER = "\nimport torch\nprint(torch.ones(2).sum().item())\n"


def _survives(says, code=AFTER, tmp_path=None, **env):
    """torch is imported and computes; our one line in the log holds `says`."""
    status, lines, err = _python(code, tmp_path, **env)
    assert status == 0 and lines[-1] == "2.0", err
    ours = [line for line in err.splitlines() if line.strip()]
    assert len(ours) == 1 and says in ours[0], err


def test_a_wrong_torch_is_one_line_with_both_versions():
    """Case 32."""
    code = """
        import importlib.metadata, sys
        import torchfl._build_info
        torchfl._build_info.TORCH_VERSION = "2.9.1+cpu"
        import torch
        assert "_names.so" not in open("/proc/self/maps").read() and "torchfl._C" not in sys.modules
        print(torch.ones(2).sum().item())
        """
    _survives("built for torch 2.9.1+cpu, but torch 2.13", code)


def test_errors_of_any_kind_are_swallowed():
    code = """
        import sys
        from torchfl import _autoload
        for error in (OSError("none"), ImportError("half of it"), KeyError(1), AssertionError(), SyntaxError("x"), MemoryError()):
            def fail(*args):
                raise error
            _autoload.names = fail
            _autoload.start()
            import torch
        print(torch.ones(2).sum().item())
        """
    status, lines, err = _python(code)
    assert status == 0 and lines == ["2.0"], err
    ours = [line.partition("alone: ")[2].partition(":")[0] for line in err.splitlines()]
    # The first of them in the import itself as well.
    assert ours == ["OSError", "OSError", "ImportError", "KeyError", "AssertionError", "SyntaxError", "MemoryError"], (
        err
    )


@pytest.mark.slow
def test_a_native_part_that_is_missing_is_one_line():
    code = """
        import torchfl._paths, torchfl.errors
        def gone():
            raise torchfl.errors.LoadError("the native part is not built")
        torchfl._paths.native_root = gone
        import torch
        print(torch.ones(2).sum().item())
        """
    _survives("not built", code)


def test_a_name_that_cannot_be_is_one_line():
    _survives("'cuda9' cannot name", TORCHFL_DEVICE_NAME="cuda9")


def test_a_broken_chip_is_told_when_it_is_asked_for(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("hcd: 1\nchip: {name: Bad, device_type: bad}\nadapter: {library: missing.so}\nnonsense: 1\n")
    code = """
        import torch
        for _ in range(2):
            try:
                torch.device("bad:0")
            except RuntimeError as error:
                assert "device type at start of device string: bad" in str(error), error
        print(torch.ones(2).sum().item())
        """
    status, lines, err = _python(code, TORCHFL_CHIPS=str(bad))
    assert status == 0 and lines == ["2.0"], err
    assert err.count("'bad:0' is not usable here") == 1 and "nonsense" in err


def test_a_chips_file_that_is_not_there_breaks_nothing():
    code, lines, err = _python(AFTER, TORCHFL_CHIPS="/no/such/chip.yaml,nonsense")
    assert code == 0 and lines == ["2.0"] and not err


def test_as_cuda_without_a_chip_is_one_line():
    _survives("chip.yaml", TORCHFL_AS_CUDA="1", TORCHFL_CHIPS="/no/such/chip.yaml")


def _other_backend(folder):
    package = folder / "other_backend"
    package.mkdir()
    (package / "__init__.py").write_text(
        "def start():\n    import torch\n    torch.utils.rename_privateuse1_backend('other')\n"
    )
    about = folder / "other_backend-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-backend\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nother = other_backend:start\n")


def test_two_backends_are_a_clear_error_and_torch_survives(tmp_path):
    """Case 30: whichever comes first, `import torch` works; ours says who holds the device type."""
    _other_backend(tmp_path)
    code = """
        import torch
        print(torch._C._get_privateuse1_backend_name())
        for text in ("npu_v3:0", "other:0"):
            try:
                print(torch.device(text))
            except RuntimeError as error:
                print("refused", text)
        import torchfl
        try:
            torchfl.load("npu_v3")
        except torchfl.LoadError as error:
            print("'other'" in str(error), "uninstall" in str(error))
        print(torch.ones(2).sum().item())
        """
    status, lines, err = _python(code, tmp_path)
    assert status == 0 and lines == ["other", "refused npu_v3:0", "other:0", "True True", "2.0"], err
    assert err.count("already holds the one out-of-tree device type") == 1


def test_a_backend_with_the_name_of_one_of_our_chips_keeps_it(tmp_path):
    _other_backend(tmp_path)
    start = tmp_path / "other_backend" / "__init__.py"
    start.write_text(start.read_text().replace("'other'", "'npu'"))
    code = """
        import sys, torch
        print(torch.device("npu:0"), "torchfl._engine" in sys.modules)
        import torchfl
        try:
            torchfl.load("npu_v2")
        except torchfl.LoadError as error:
            print("another PyTorch backend, 'npu'" in str(error))
        """
    status, lines, err = _python(code, tmp_path)
    assert status == 0 and lines == ["npu:0 False", "True"] and not err, err


def test_cuda_can_be_asked_for_by_the_environment():
    _code, lines, err = _python(
        "import torch; print(torch.cuda.is_available(), torch.ones(2).cuda().device)",
        TORCHFL_AS_CUDA="1",
        TORCHFL_CHIPS="npu_v3",
    )
    assert lines == ["True cuda:0"], err


def test_asking_for_the_accelerator_loads_the_chips():
    """Programs that name no device ask which one there is."""
    code = """
import torch
x = torch.ones(2) + 1
assert not hasattr(torch._C, "_has_torch_fl")
device = torch.accelerator.current_accelerator()
assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
print(device, (x.to(device) * 2).tolist(), torch.accelerator.current_device_index())
"""
    ran = run_script(code, env={"TORCHFL_CHIPS": "npu_v3"})
    assert ran.code == 0 and ran.out == "npu_v3 [4.0, 4.0] 0\n", ran
    none = run_script(
        "import torch; print(torch.accelerator.current_accelerator(), torch.accelerator.is_available())",
        env={"TORCHFL_CHIPS": "/nowhere/chip.yaml"},
    )
    assert none.code == 0 and none.out == "None False\n", none


def test_every_function_of_the_accelerator_may_be_the_first():
    for line in (
        "torch.accelerator.synchronize()", "torch.accelerator.current_device_index()", "torch.accelerator.empty_cache()",
        "torch.accelerator.memory_allocated()", "torch.accelerator.current_stream()",
    ):  # fmt: skip
        ran = run_script(f"import torch\n{line}\nprint(torch.ones(1).to(0).device)", env={"TORCHFL_CHIPS": "npu_v3"})
        assert ran.code == 0 and ran.out == "npu_v3:0\n", (line, ran)


def test_workers_draw_different_numbers_without_a_line_for_it():
    """A worker's seed is set before it has a device."""
    code = """
import torch

class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.rand(1, device="npu_v3:0").cpu()

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Drawn(), num_workers=2)
    print(len({round(x.item(), 6) for x in loader}))
"""
    ran = run_script(code, env={"TORCHFL_CHIPS": "npu_v3"})
    assert ran.code == 0 and ran.out == "4\n", ran
