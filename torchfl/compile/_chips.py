"""The chips whose tensors take part in a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph


def chips_of(graph: Graph) -> list[dict[str, Any]]:
    """Their descriptors as the engine has them (torchfl/hcd/lower.py), for graphs of Dynamo's and of AOTAutograd's."""
    from torchfl import _engine

    kind = torch._C._get_privateuse1_backend_name()
    values = [node.meta.get("example_value", node.meta.get("val")) for node in graph.nodes]
    devices = {
        value.device.index or 0 for value in values if isinstance(value, torch.Tensor) and value.device.type == kind
    }
    return [
        _engine._lowered[device_type]
        for device_type, chip in _engine._loaded.items()
        if devices & set(range(chip.first_index, chip.first_index + chip.count))
    ]
