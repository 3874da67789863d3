"""Who takes part in benchmarks/models.py, and the environment that each needs.

Contract: a contestant is a way to run a workload: an engine, a precision, eager or compiled, and perhaps a device.
Peers that torch does not bring are installed at their first use, each into a virtual environment of its own in the
user's cache folder, with the versions that stand here; it sees the torch that all others use. What cannot be had is not
left out: `environment` raises Unavailable, and the table shows the reason.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class Unavailable(Exception):
    """A contestant cannot run a workload here; the text says why."""


@dataclass(frozen=True)
class Contestant:
    """`engine` is the class of benchmarks/worker.py that runs it; `peer` names its environment, "" for this one."""

    name: str
    engine: str
    precision: str = "fp32"
    compiled: bool = False
    device: str = ""  # of Torch-FL: chip, or chip:index
    peer: str = ""

    @property
    def ours(self) -> bool:
        return bool(self.device)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ours": self.ours}


#: What is installed for a peer: exact versions, so that figures of two runs are of the same software.
REQUIREMENTS = {
    "onnxruntime": ("onnxruntime==1.32.0", "numpy==2.4.6"),
    "openvino": ("openvino==2026.4.1", "numpy==2.4.6"),
    "tinygrad": ("tinygrad==0.14.0", "numpy==2.4.6"),
}
PEERS = (
    Contestant("eager fp32", "Stock"),
    Contestant("eager bf16", "Stock", "bf16"),
    Contestant("inductor fp32", "Stock", "fp32", True),
    Contestant("inductor bf16", "Stock", "bf16", True),
    Contestant("onnxruntime fp32", "OnnxRuntime", "fp32", True, peer="onnxruntime"),
    Contestant("openvino fp32", "OpenVino", "fp32", True, peer="openvino"),
    Contestant("openvino bf16", "OpenVino", "bf16", True, peer="openvino"),
    Contestant("tinygrad opencl", "Tinygrad", "fp32", True, peer="tinygrad"),
    Contestant("tinygrad torch opencl", "TinygradTorch", peer="tinygrad"),
)
#: Take ONNX files.
ONNX_ENGINES = ("OnnxRuntime", "OpenVino", "Tinygrad")
#: What the reference leaves in the folder of a workload for the others.
INPUTS, REFERENCE, STATE, ONNX = "inputs.npz", "reference-{mode}.npy", "state.npz", "model.onnx"
NO_ONNX = "model.onnx.failed"  # why there is none
#: Training steps whose losses are the result of a training.
STEPS = 3


def of_device(device: str) -> list[Contestant]:
    """Eager and compiled on a device of Torch-FL. A chip whose name ends in a precision computes in it."""
    chip = device.partition(":")[0]
    precision = "bf16" if chip.endswith("bf16") else "fp32"
    return [
        Contestant(f"{device} {way}", "Ours", precision, way == "compiled", device) for way in ("eager", "compiled")
    ]


def onnx_of(folder: Path) -> Path:
    """The network as the reference exported it. Raises Unavailable with the reason where it could not."""
    if not (folder / ONNX).exists():
        why = (folder / NO_ONNX).read_text(encoding="utf-8") if (folder / NO_ONNX).exists() else "it was not tried"
        raise Unavailable(f"the network could not be exported to ONNX: {why}")
    return folder / ONNX


def folder_of(peer: str) -> Path:
    """The virtual environment of a peer: another one for other versions or another interpreter."""
    from torchfl._paths import cache_dir

    root = cache_dir("peers")
    if root is None:
        raise Unavailable("TORCHFL_CACHE_DIR is empty: there is no folder to install peers into")
    key = "\n".join([sys.version, sysconfig.get_path("purelib"), *REQUIREMENTS[peer]])
    return root / f"{peer}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def environment(peer: str, install: bool, say: Callable[[str], None]) -> Path:
    """The interpreter of a peer's environment, which is made if `install` allows it. Raises Unavailable."""
    folder = folder_of(peer)
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists():
        return python
    if not install:
        raise Unavailable(f"{' '.join(REQUIREMENTS[peer])} is not installed, and --no-install was given")
    shutil.rmtree(folder, ignore_errors=True)
    say(f"installing {REQUIREMENTS[peer][0]}")
    venv.create(folder, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "-q"]
    try:
        ran = subprocess.run([*command, *REQUIREMENTS[peer]], capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{REQUIREMENTS[peer][0]} could not be installed within 15 minutes") from None
    if ran.returncode != 0:
        words = [line for line in ran.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{REQUIREMENTS[peer][0]} could not be installed: {words[-1] if words else 'pip failed'}")
    # Behind its own packages come those of this interpreter: one torch for all.
    inside = Path(subprocess.check_output([str(python), "-c", "import sysconfig as s; print(s.get_path('purelib'))"],
                                          text=True).strip())  # fmt: skip
    (inside / "benchmark.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    done.write_text("\n".join(REQUIREMENTS[peer]), encoding="utf-8")
    return python
