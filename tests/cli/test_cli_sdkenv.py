"""`torchfl sdk-env`: what a shell makes of it."""

import os
import subprocess

import pytest

from torchfl.cli.sdkenv import Shell, _lines


def test_a_shell_evaluates_it(torchfl, tmp_path):
    result = torchfl("sdk-env", "npu")
    assert result.code == 0 and not result.err
    assert all(line.startswith("export ") for line in result.out.splitlines())
    script = f'{result.out}\nls "$NPU_SDK_ROOT/include" && npu-smi info && echo "[$LD_LIBRARY_PATH]"'
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    ran = subprocess.run(["sh", "-euc", script], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "npu_v3_sdk.h" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith("/lib]")  # no empty entry: that would be the working directory


def test_a_path_with_blanks_and_quotes(tmp_path):
    root = tmp_path / 'it\'s a "path" $HOME'
    script = (
        "\n".join(_lines({"NPU_SDK_ROOT": str(root)}, root, Shell.sh))
        + '\nprintf "%s|%s" "$NPU_SDK_ROOT" "$LD_LIBRARY_PATH"'
    )
    env = {**os.environ, "LD_LIBRARY_PATH": "/before"}
    ran = subprocess.run(["sh", "-euc", script], env=env, capture_output=True, text=True)
    assert ran.stdout == f"{root}|{root}/lib:/before"


def test_fish(tmp_path):
    lines = _lines({"NPU_SDK_ROOT": f"{tmp_path}/it's"}, tmp_path / "it's", Shell.fish)
    assert lines[0] == f"set -gx NPU_SDK_ROOT '{tmp_path}/it\\'s'" and all(
        line.startswith("set -gx ") for line in lines
    )


def test_json(torchfl):
    data = torchfl("sdk-env", "npu", "--json").json()
    own = {"NPU_SDK_ROOT", "NPU_LIB_PATH", "NPU_INCLUDE_PATH"}
    assert set(data) == {*own, "LD_LIBRARY_PATH", "PATH"} and data["PATH"].endswith("/bin")


def test_an_unknown_sdk_leaves_stdout_empty(torchfl):
    result = torchfl("sdk-env", "nosuch")
    assert result.code == 1 and not result.out and "no simulated SDK 'nosuch'" in result.err


@pytest.mark.parametrize("shell", ["csh", ""])
def test_an_unknown_shell(cli, shell):
    assert cli("sdk-env", "npu", "--shell", shell).code == 2
