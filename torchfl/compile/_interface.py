"""What Dynamo asks of a device: PyTorch's DeviceInterface for ours, in the words of its device module.

Contract: every answer comes from `torch.<name>`; nothing is opened by asking for counts.
"""

from __future__ import annotations

from typing import Any


def make(base: Any, torch: Any, name: str) -> Any:
    def module() -> Any:
        return getattr(torch, name)

    class Interface(base):
        device = torch.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            @staticmethod
            def set_device(device: int) -> None:
                torch.accelerator.set_device_index(device)

            @staticmethod
            def current_device() -> int:
                return int(torch.accelerator.current_device_index())

            @staticmethod
            def get_device_properties(device: Any = None) -> Any:
                return module().get_device_properties(device)

        @staticmethod
        def current_device() -> int:
            return int(torch.accelerator.current_device_index())

        @staticmethod
        def set_device(device: Any) -> None:
            torch.accelerator.set_device_index(device)

        @staticmethod
        def exchange_device(device: int) -> int:
            before = int(torch.accelerator.current_device_index())
            if device >= 0:
                torch.accelerator.set_device_index(device)
            return before

        maybe_exchange_device = exchange_device

        @staticmethod
        def device_count() -> int:
            from torchfl._native import engine

            return int(engine().device_count())

        @staticmethod
        def is_available() -> bool:
            return Interface.device_count() > 0

        @staticmethod
        def current_stream() -> Any:
            return torch.accelerator.current_stream()

        @staticmethod
        def set_stream(stream: Any) -> None:
            torch.accelerator.set_stream(stream)

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            torch.accelerator.set_stream(
                torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
            )

        @staticmethod
        def stream(stream: Any) -> Any:
            return stream  # a torch.Stream is its own context manager

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return int(torch.accelerator.current_stream(device_idx).stream_id)

        @staticmethod
        def synchronize(device: Any = None) -> None:
            torch.accelerator.synchronize(device)

        @staticmethod
        def get_compute_capability(device: Any = None) -> str:
            return ""

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return torch.bfloat16 in module().get_amp_supported_dtype()

        @staticmethod
        def memory_allocated(device: Any = None) -> int:
            return int(module().memory_allocated(device))

        @staticmethod
        def is_triton_capable(device: Any = None) -> bool:
            return False

    return Interface
