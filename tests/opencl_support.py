"""The OpenCL adapter called as the host calls it, by ctypes: one instruction at a time, without the engine.

Contract: `Adapter().open()` opens the first OpenCL device. `run(name, args, outputs)` takes CPU tensors (of any strides), numbers
and lists, calls the kernel of that name and gives its outputs as CPU tensors with the layout of those given.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import tempfile
from ctypes import (
    POINTER,
    Structure,
    Union,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import torch

from torchfl._paths import chips_dir

CODES = {
    torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 4, torch.int8: 5, torch.uint8: 6,
    torch.int16: 7, torch.int32: 8, torch.int64: 9, torch.bool: 10,
}  # fmt: skip
NOT_SUPPORTED, OUT_OF_MEMORY = 1, 2


class Header(Structure):
    _fields_ = [("struct_size", c_uint16), ("major", c_uint16), ("minor", c_uint16), ("reserved", c_uint16)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("byte_offset", c_uint64), ("sizes", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("dtype", c_int32), ("rank", c_int32),
    ]  # fmt: skip


class Payload(Union):
    _fields_ = [("i", c_int64), ("d", c_double), ("tensor", POINTER(Tensor)), ("ints", POINTER(c_int64))]


class Value(Structure):
    _fields_ = [("kind", c_uint32), ("count", c_uint32), ("v", Payload)]


class Call(Structure):
    _fields_ = [
        ("header", Header), ("op", c_char_p), ("args", POINTER(Value)), ("outputs", POINTER(Tensor)),
        ("arg_count", c_int32), ("output_count", c_int32), ("stream", c_void_p),
    ]  # fmt: skip


class Kernel(Structure):
    _fields_ = [
        ("name", c_char_p), ("run", ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(Call), c_int64)), ("tag", c_int64)
    ]  # fmt: skip


class DeviceApi(Structure):
    _fields_ = [("header", Header)] + [
        (name, c_void_p) for name in ("properties", "alloc", "free", "copy", "fill", "synchronize", "copy_nd", "fill_nd")
    ]  # fmt: skip


class Table(Structure):
    _fields_ = [
        ("header", Header), ("name", c_char_p), ("version", c_char_p), ("sdk_version", c_char_p),
        ("device_count", ctypes.CFUNCTYPE(c_int32, POINTER(c_int32))),
        ("open", ctypes.CFUNCTYPE(c_int32, c_int32, POINTER(c_void_p))),
        ("close", ctypes.CFUNCTYPE(c_int32, c_void_p)), ("device", POINTER(DeviceApi)),
        ("kernels", POINTER(Kernel)), ("kernel_count", c_int64),
    ]  # fmt: skip


class Host(Structure):
    _fields_ = [
        ("header", Header), ("set_error", ctypes.CFUNCTYPE(None, c_int64, c_char_p)),
        ("log", ctypes.CFUNCTYPE(None, c_int32, c_char_p)),
    ]  # fmt: skip


LIBRARY = chips_dir() / "opencl" / "libuba_opencl.so"


def own_library() -> Any:
    """A copy for each caller: a library tells the host that asked it last, and the engine's must stay the engine."""
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(shutil.copy(LIBRARY, folder))


@functools.cache
def missing() -> str:
    """Why there is no OpenCL here; "" if there is."""
    if not LIBRARY.exists():
        return "built without OpenCL's headers: chips/opencl was left out"
    adapter, count = Adapter(), c_int32()
    if adapter.table.device_count(ctypes.byref(count)) != 0:
        return adapter.said
    return "" if count.value else "there is no OpenCL device"


class Adapter:
    """`open` opens the first device; without it devices can be counted only."""

    def __init__(self) -> None:
        self.said = ""

        def keep(code: int, text: bytes) -> None:
            self.said = f"{text.decode()} ({code})"

        self.host = Host(Header(ctypes.sizeof(Host), 1, 2, 0), Host._fields_[1][1](keep), Host._fields_[2][1](print))
        query = own_library().uba_query
        query.restype = POINTER(Table)
        found = query(c_uint32(1 << 16 | 2), ctypes.byref(self.host))
        assert found, self.said
        self.table = found.contents
        self.kernels = {k.name.decode(): k for k in self.table.kernels[: self.table.kernel_count]}
        self.device = c_void_p()

    def open(self) -> Adapter:
        self.check(self.table.open(0, ctypes.byref(self.device)))
        return self

    def check(self, status: int) -> None:
        assert status == 0, (status, self.said)

    def call(self, name: str, *args: Any) -> int:
        function = ctypes.CFUNCTYPE(c_int32, *map(type, (self.device, *args)))(
            getattr(self.table.device.contents, name)
        )
        return int(function(self.device, *args))

    def alloc(self, size: int) -> c_void_p:
        made = c_void_p()
        self.check(self.call("alloc", c_uint64(size), ctypes.pointer(made)))
        return made

    def put(self, t: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
        """A view of a copy on the device, and what was copied: the whole storage, so that strides and offset stay."""
        whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
        size = max(whole.untyped_storage().nbytes(), 8)
        memory = self.alloc(size)
        if whole.numel():
            n = c_uint64(whole.untyped_storage().nbytes())
            self.check(self.call("copy", c_void_p(), memory, c_void_p(whole.data_ptr()), n, c_int32(1)))
            self.check(self.call("synchronize", c_void_p()))
        sizes, strides = ((c_int64 * 8)(*v) for v in (t.shape, t.stride()))
        offset = t.storage_offset() * t.element_size()
        return Tensor(memory, offset, sizes, strides, CODES[t.dtype], t.dim()), t

    def value(self, v: Any) -> Value:
        if isinstance(v, torch.dtype):
            return Value(3, 1, Payload(i=CODES[v]))
        if isinstance(v, torch.Tensor):
            tensor, _ = self.put(v)
            self.owned.append(tensor)
            return Value(1, 1, Payload(tensor=ctypes.pointer(tensor)))
        if isinstance(v, (list, tuple)):
            return Value(5, len(v), Payload(ints=(c_int64 * max(len(v), 1))(*v)))
        return Value(4, 1, Payload(d=v)) if isinstance(v, float) else Value(3, 1, Payload(i=int(v)))

    def run(self, name: str, args: list[Any], outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.owned: list[Tensor] = []
        values = (Value * len(args))(*(self.value(a) for a in args))
        made = [self.put(out)[0] for out in outputs]
        views = (Tensor * len(made))(*made)
        call = Call(Header(ctypes.sizeof(Call), 1, 2, 0), name.encode(), values, views, len(args), len(made), None)
        kernel = self.kernels[name]
        self.check(kernel.run(self.device, ctypes.byref(call), kernel.tag))
        for out, view in zip(outputs, made, strict=True):
            whole = torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())
            n = c_uint64(whole.untyped_storage().nbytes())
            if n.value:
                self.check(
                    self.call("copy", c_void_p(), c_void_p(whole.data_ptr()), c_void_p(view.data), n, c_int32(2))
                )
        self.check(self.call("synchronize", c_void_p()))
        for tensor in (*self.owned, *made):
            self.check(self.call("free", c_void_p(tensor.data)))
        return outputs
