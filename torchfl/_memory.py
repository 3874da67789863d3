"""`torch.<chip>.memory`: recording who holds a chip's memory, and snapshots of it, as `torch.cuda.memory` has them.

Contract: a snapshot is plain data in the form that `torch.cuda.memory._snapshot` documents, with devices counted as the
chip's module counts them, so that PyTorch's own viewers (pytorch.org/memory_viz, torch.cuda._memory_viz) and
`torchfl memory` read it. Recording costs only while it is on; `context` says whose Python stacks are taken.
"""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl._device_module import DeviceModule

#: What torch.cuda.memory has as functions, and the chip's module as methods.
_FUNCTIONS = (
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
)


class MemoryModule(ModuleType):
    """The functions of `torch.<chip>.memory`. `device` is a local index, a string, a torch.device or None."""

    def __init__(self, module: DeviceModule) -> None:
        super().__init__(f"{module.__name__}.memory", f"Memory of {module.__doc__}")
        self._module = module
        self._engine = module._engine
        for name in _FUNCTIONS:
            setattr(self, name, getattr(module, name))

    def _devices(self, device: Any) -> list[int]:
        """PyTorch's indices: of one device, or for None of all of this chip."""
        if device is not None:
            return [self._module._index(device)]
        return [self._module._chip.first_index + i for i in range(self._module._chip.count)]

    def _record_memory_history(
        self,
        enabled: str | bool | None = "all",
        context: str | None = "all",
        stacks: str = "python",
        max_entries: int = sys.maxsize,
        device: Any = None,
        clear_history: bool = False,
    ) -> None:
        """Turn the recording of allocations on or off, as `torch.cuda.memory._record_memory_history` does.

        enabled: "all" keeps every event, "state" only what is held now, None (or False) turns it off and keeps what
        was recorded. context: "all" takes stacks of allocations and of frees, "alloc" and "state" of allocations, None
        takes none. stacks: "python", or "all" with C++ frames, whose names take long to look up. max_entries: events
        for each device, the oldest go first. device: one device; None: all of this chip. Turning it on forgets what
        was recorded. Raises ValueError for any other value.
        """
        enabled = {True: "all", False: None}.get(enabled, enabled) if isinstance(enabled, bool) else enabled
        _check("enabled", enabled, ("all", "state", None))
        _check("context", context, ("all", "alloc", "state", None))
        _check("stacks", stacks, ("python", "all"))
        if max_entries < 1:
            raise ValueError(f"max_entries must be at least 1, not {max_entries}")
        for index in self._devices(device):
            if clear_history:
                self._engine.clear_memory_history(index)
            if enabled is None:
                self._engine.stop_recording_memory(index)
                continue
            self._engine.record_memory(
                index,
                events=enabled == "all",
                alloc_stacks=context is not None,
                free_stacks=context == "all",
                cpp_stacks=stacks == "all",
                max_entries=min(max_entries, sys.maxsize),
            )

    def _snapshot(self, device: Any = None) -> dict[str, Any]:
        """What is held now and what was recorded; of one device, or of all of this chip.

        Keys: `segments`, each with its `blocks` and their `frames` where they were recorded; `device_traces`, a list of
        events for each device, the oldest first; `allocator_settings`; `external_annotations`, which is empty.
        """
        first, count = self._module._chip.first_index, self._module._chip.count
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for index in self._devices(device):
            held = self._engine.held_memory_frames(index)
            for segment in self._engine.memory_snapshot(index):
                segments.append(_completed(segment, index - first, held))
            traces[index - first] = self._engine.memory_trace(index)
            self._engine.note_memory_snapshot(index)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": {"expandable_segments": False, "roundup_power2_divisions": {}},
            "external_annotations": [],
            "device_names": [f"{self._module._chip.device_type}:{i}" for i in range(count)],
        }

    def _dump_snapshot(self, filename: str = "dump_snapshot.pickle") -> None:
        """Writes `_snapshot()` for pytorch.org/memory_viz and `torchfl memory`."""
        snapshot = self._snapshot()
        with open(filename, "wb") as file:
            pickle.dump(snapshot, file)


def _check(name: str, value: object, legal: tuple[object, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{name}={value!r}: it is one of {', '.join(map(repr, legal))}")


def _completed(segment: dict[str, Any], device: int, held: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """A segment with the keys that torch.cuda's has."""
    blocks = [{**block, "frames": held.get(block["address"], [])} for block in segment["blocks"]]
    allocated = [b for b in blocks if b["state"] == "active_allocated"]
    return {
        **segment,
        "device": device,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "allocated_size": sum(b["size"] for b in allocated),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in allocated),
        "frames": [],
        "blocks": blocks,
    }


__all__ = ["MemoryModule"]
