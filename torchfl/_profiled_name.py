"""Profiles of devices that are called as a device type of PyTorch's own: "cuda" under `as_cuda`, "xpu" of a chip.

Contract: by such a name PyTorch chooses the activity and the state of its own type, in which Kineto is not told of our
devices' profiler. `install` has them mean ours; `patches` takes it back.
"""

from __future__ import annotations

import functools
from typing import Any

from torchfl._patches import Patches


def install(patches: Patches, name: str) -> None:
    """For devices called `name`. Nothing to do where PyTorch's profiler knows no type of that name."""
    from torch.autograd.profiler import profile
    from torch.profiler import ProfilerActivity

    activity = name.upper()
    if not hasattr(ProfilerActivity, activity):
        return
    patches.attribute(ProfilerActivity, activity, ProfilerActivity.PrivateUse1)
    patches.attribute(profile, "config", _config(profile.config, name))


def _config(stock: Any, name: str) -> Any:
    from torch.autograd import ProfilerState

    ours = {
        ProfilerState.KINETO: ProfilerState.KINETO_PRIVATEUSE1,
        ProfilerState.KINETO_GPU_FALLBACK: ProfilerState.KINETO_PRIVATEUSE1_FALLBACK,
    }

    @functools.wraps(stock)
    def config(self: Any, create_trace_id: bool = False) -> Any:
        if self.use_device == name:
            self.profiler_kind = ours.get(self.profiler_kind, self.profiler_kind)
        return stock(self, create_trace_id)

    return config
