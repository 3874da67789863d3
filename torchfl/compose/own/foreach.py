"""Operators over lists of tensors, and fused optimisers, as one program for the whole list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._elements import over_elements
from torchfl.compose.own._register import own
from torchfl.compose.trace import OWN

_aten = torch.ops.aten


def _base(name: str) -> Callable[..., Any] | None:
    """What the operator does to one element of its lists."""
    special: dict[str, Callable[..., Any]] = {
        "zero": lambda x: torch.zeros_like(x),
        "copy": lambda x, src, non_blocking=False: src.to(x.dtype),
        "maximum": lambda x, o: torch.maximum(x, o) if isinstance(o, Tensor) else torch.clamp_min(x, o),
        "minimum": lambda x, o: torch.minimum(x, o) if isinstance(o, Tensor) else torch.clamp_max(x, o),
        "clamp_min": torch.clamp_min,
        "clamp_max": torch.clamp_max,
        "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
        "max": torch.amax,
        "clone": lambda x, memory_format=None: x.clone(),
    }
    return special.get(name) or getattr(torch, name, None)


def _one_by_one(op: Any, name: str) -> Callable[..., Any]:
    writes = name.endswith("_")
    arguments = [a.name for a in op._schema.arguments]
    f = _base(name.rstrip("_"))
    assert f is not None

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(arguments, args, strict=False)) | kwargs
        given.pop("non_blocking", None)
        count = len(args[0])
        keywords: dict[str, str] = {}  # the name that the operator for one tensor has for it
        for argument in given:
            if argument in ("alpha", "dtype"):
                keywords[argument] = argument
            elif argument in ("value", "scalars") and len(given) > 3:
                keywords[argument] = "value"
        tables = [
            list(x) if isinstance(x, (list, tuple)) or _is_scalars(n, x) else [x] * count for n, x in given.items()
        ]

        def one(*row: Any) -> Any:
            mine = [x for n, x in zip(given, row, strict=True) if n not in keywords]
            named = {keywords[n]: x for n, x in zip(given, row, strict=True) if n in keywords}
            made = f(*mine, **named)
            if not writes:
                return made
            row[0].copy_(made)
            return None

        made = over_elements(one, tables)
        return None if writes else made

    return run


def _is_scalars(name: str, x: Any) -> bool:
    return isinstance(x, Tensor) and name == "scalars"


def _register() -> None:
    for packet_name in dir(_aten):
        if not packet_name.startswith("_foreach_"):
            continue
        name = packet_name.removeprefix("_foreach_")
        packet = getattr(_aten, packet_name)
        if _base(name.rstrip("_")) is None:
            continue
        for overload in packet.overloads():
            if "out" in overload:
                continue
            op = getattr(packet, overload)
            OWN[op] = _one_by_one(op, name)


# dir() of the namespace lists only operators that were looked up; the whole list comes from the dispatcher.
for _schema in torch._C._jit_get_all_schemas():
    if _schema.name.startswith("aten::_foreach_"):
        getattr(_aten, _schema.name.removeprefix("aten::"), None)
_register()


@own("_foreach_norm.Scalar")
def foreach_norm(tensors: list[Tensor], ord: Any = 2, dtype: Any = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(x, ord, dtype=dtype) for x in tensors]


def _keep(found_inf: Tensor | None, target: Tensor, new: Tensor) -> None:
    """Writes unless a gradient was found to be infinite."""
    target.copy_(new if found_inf is None else torch.where(found_inf == 1, target, new))


def _adam(decoupled: bool) -> Callable[..., None]:
    def run(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
            max_exp_avg_sqs: list[Tensor], state_steps: list[Tensor], *, lr: Any, beta1: Any, beta2: Any,
            weight_decay: Any, eps: Any, amsgrad: bool, maximize: bool, grad_scale: Tensor | None = None,
            found_inf: Tensor | None = None) -> None:  # fmt: skip
        def one(p: Tensor, grad: Tensor, avg: Tensor, square: Tensor, top: Any, count: Tensor) -> None:
            wide = torch.float32 if p.dtype.itemsize == 2 else p.dtype
            g = grad.to(wide)
            if grad_scale is not None:
                g = g / grad_scale
                _keep(found_inf, grad, g.to(grad.dtype))
            g = -g if maximize else g
            x, m, v = (t.to(wide) for t in (p, avg, square))
            x, g = (x * (1 - lr * weight_decay), g) if decoupled else (x, g + x * weight_decay)
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + (g * g) * (1 - beta2)
            step = count.to(wide)
            correction1 = 1 - torch.pow(torch.full_like(step, 1.0) * beta1, step)
            correction2 = 1 - torch.pow(torch.full_like(step, 1.0) * beta2, step)
            most = v
            if amsgrad:
                most = torch.maximum(top.to(wide), v)
                _keep(found_inf, top, most.to(p.dtype))
            denominator = torch.sqrt(most) / torch.sqrt(correction2) + eps
            _keep(found_inf, p, (x - (lr / correction1) * m / denominator).to(p.dtype))
            _keep(found_inf, avg, m.to(p.dtype))
            _keep(found_inf, square, v.to(p.dtype))

        tops = max_exp_avg_sqs if amsgrad else [None] * len(params)
        over_elements(one, [params, grads, exp_avgs, exp_avg_sqs, tops, state_steps])

    return run


own("_fused_adam_", "_fused_adam_.tensor_lr")(_adam(decoupled=False))
own("_fused_adamw_", "_fused_adamw_.tensor_lr")(_adam(decoupled=True))


@own("_fused_sgd_", "_fused_sgd_.tensor_lr")
def fused_sgd(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], *, weight_decay: Any, momentum: Any,
              lr: Any, dampening: Any, nesterov: bool, maximize: bool, is_first_step: bool,
              grad_scale: Tensor | None = None, found_inf: Tensor | None = None) -> None:  # fmt: skip
    def one(p: Tensor, grad: Tensor, buffer: Any) -> None:
        wide = torch.float32 if p.dtype.itemsize == 2 else p.dtype
        g = grad.to(wide)
        if grad_scale is not None:
            g = g / grad_scale
            _keep(found_inf, grad, g.to(grad.dtype))
        g = -g if maximize else g
        x = p.to(wide)
        g = g + x * weight_decay
        if buffer is not None:
            b = g if is_first_step else buffer.to(wide) * momentum + g * (1 - dampening)
            _keep(found_inf, buffer, b.to(p.dtype))
            g = g + b * momentum if nesterov else b
        _keep(found_inf, p, (x - g * lr).to(p.dtype))

    over_elements(one, [params, grads, buffers or [None] * len(params)])


@own("_amp_foreach_non_finite_check_and_unscale_")
def unscale(tensors: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    found: Tensor | None = None
    for t in tensors:
        bad = torch.logical_not(torch.all(torch.abs(t) < float("inf")))
        found = bad if found is None else torch.logical_or(found, bad)
        t.copy_((t.to(torch.float32) * inv_scale if t.dtype.itemsize == 2 else t * inv_scale).to(t.dtype))
    if found is not None:
        found_inf.copy_(torch.where(found, torch.ones_like(found_inf), found_inf))


@own("_amp_update_scale_")
def update_scale(scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: Any, backoff: Any, interval: int) -> Tensor:
    bad = found_inf != 0
    successes = tracker + 1
    full = successes == interval
    grown = torch.where(full, scale * growth, scale)
    grown = torch.where(torch.abs(grown) < float("inf"), grown, scale)
    scale.copy_(torch.where(bad, scale * backoff, grown))
    tracker.copy_(torch.where(bad | full, torch.zeros_like(tracker), successes))
    return scale
