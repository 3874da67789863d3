"""`torchfl.explain`: from a name a user knows to the engine's answer for the operator that reaches the backend."""

from __future__ import annotations

import contextlib
from typing import Any

from torchfl._native import engine


def overloads(op: str) -> list[tuple[str, str]]:
    """(base name, overload) of every operator `op` can mean, most specific first: itself, or its parts."""
    import torch

    from torchfl.hcd import opnames

    name, _, overload = op.removeprefix("aten::").partition(".")
    bases = [base.removeprefix("aten::") for base in opnames.resolve(f"aten::{name}")]
    if name.endswith("_") and hasattr(torch.ops.aten, name):
        bases.insert(0, name)  # asked for in place: that form may be decided otherwise
    found = []
    for base in bases:
        packet = getattr(torch.ops.aten, base, None)
        if packet is None:
            continue
        names = ["" if o == "default" else o for o in packet.overloads()]
        if overload:
            names = [o for o in names if o == ("" if overload == "default" else overload)]
        # Functional forms first, and Tensor before Scalar: that is what a call of this name reaches.
        found += [(base, o) for o in sorted(names, key=lambda o: ("out" in o, o not in ("Tensor", ""), o))]
    return found


def explain(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str | None) -> dict[str, Any]:
    c = engine()
    index = _index_of(device, args)
    # An open device says more than its descriptor does: whether it takes programs whole, say. One that cannot be opened
    # is explained by its descriptor.
    with contextlib.suppress(RuntimeError):
        c.properties(index)
    if op.startswith("torchfl::"):  # a chain of the descriptor's fusions
        chain: dict[str, Any] = c.explain(op, "", args, kwargs, index)
        return chain
    errors = []
    for base, overload in overloads(op):
        try:
            asked: tuple[str, str, tuple[Any, ...], dict[str, Any]] = (f"aten::{base}", overload, args, kwargs)
            if base == "_scaled_dot_product_fused_attention_overrideable":
                asked = _whole_attention(args, kwargs)
            answer: dict[str, Any] = c.explain(*asked, index)
            return answer
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if str(error).startswith("no operator"):
                continue  # a form that exists for TorchScript numbers only
            errors.append(f"{base}{'.' + overload if overload else ''}: {str(error).splitlines()[0]}")
    if not errors:
        raise ValueError(f"no operator {op!r}")
    raise ValueError(f"no form of {op} takes these arguments:\n  " + "\n  ".join(errors))


def _whole_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str, tuple[Any, ...], dict[str, Any]]:
    """What scaled_dot_product_attention asks for the whole by (csrc/aten/whole_attention.h)."""
    import torch

    schema = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._schema
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    given.setdefault("attn_bias", given.pop("attn_mask", None))
    values = tuple(given.get(argument.name, argument.default_value) for argument in schema.arguments)
    return "torchfl::_scaled_dot_product_fused_attention", "", values, {}


def _index_of(device: str | None, args: tuple[Any, ...]) -> int:
    import torch

    if device is not None:
        index = torch.device(device).index
        return index if index is not None else engine().current_device()
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.device.type == torch._C._get_privateuse1_backend_name():
            return arg.device.index
    return engine().current_device()
