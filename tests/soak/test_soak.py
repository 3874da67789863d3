"""Long runs, short here and long in `make test-full`: memory stays flat, threads agree with the CPU. See soak.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import environment


def soak(*arguments: str, timeout: float, **env: str) -> dict:
    script = str(Path(__file__).with_name("soak.py"))
    ran = subprocess.run(
        [sys.executable, script, *arguments], env=environment(**env), capture_output=True, text=True, timeout=timeout
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    return json.loads(ran.stdout)


def test_training_with_allocations_that_vary_keeps_memory_flat():
    result = soak("train", "--steps", "200", "--shapes", "6", timeout=200)
    assert result["reserved_after"] <= result["reserved_before"] + (4 << 20)


def test_eight_threads_on_two_devices_agree_with_the_cpu():
    result = soak("threads", "--seconds", "4", timeout=100, NPU_SIM_DEVICES="2")
    assert result["devices"] == 2 and min(result["rounds"]) > 0 and result["wrong"] == []


@pytest.mark.slow
def test_thousands_of_steps_keep_memory_flat():
    # Plans of all forty sizes, and of all that is done beside them, have been made after some 3,000.
    result = soak("train", "--steps", "8000", "--shapes", "40", timeout=1500)
    assert result["loss"] < 0.8  # it has learned


@pytest.mark.slow
def test_eight_threads_for_a_minute():
    result = soak("threads", "--seconds", "60", timeout=200, NPU_SIM_DEVICES="2")
    assert min(result["rounds"]) > 20
