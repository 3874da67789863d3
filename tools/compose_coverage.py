"""Which share of `op_db` can be composed from instructions, and which operators stand in the way.

For each entry that takes float32: the calls that forward and backward of its first samples make below autograd, each
composed for a chip that has all instructions and the kernels in `KERNELS`, run by `torchfl.compose.reference`, and
compared with what PyTorch computed. An entry is covered if all its calls are, with right values.

    python tools/compose_coverage.py [--json FILE] [--samples N] [--ops REGEX] [--dtype float32] [-v]
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchfl.compose import reference
from torchfl.compose.trace import NotComposable, _functional, compose, full_arguments, schema_of

KERNELS = [
    "convolution",
    "convolution_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "avg_pool2d",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
]
FREE = [
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_permuted",
    "resize_",
    "resize_as_",
    "set_",
    "item",
    "_local_scalar_dense",
    "is_same_size",
    "sym_size",
    "sym_numel",
    "sym_stride",
    "sym_storage_offset",
    "_has_compatible_shallow_copy_type",
    "lift",
    "lift_fresh",
    "record_stream",
    "is_pinned",
    "_pin_memory",
    "dense_dim",
    "sparse_dim",
    "_linalg_check_errors",
]
RANDOM = [
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "randint",
    "randint_like",
    "randperm",
    "normal",
    "normal_",
    "uniform",
    "uniform_",
    "bernoulli",
    "bernoulli_",
    "native_dropout",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "random_",
    "multinomial",
    "rrelu_with_noise",
    "rrelu_with_noise_functional",
    "normal_functional",
    "_fused_dropout",
]


class Chip:
    """All instructions, and a few kernels."""

    max_rank = 8

    def native(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return op.namespace == "aten" and op._schema.name.removeprefix("aten::") in KERNELS

    def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        return True


class Collect(TorchDispatchMode):
    """Keeps each call with copies of its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[Any, list[Any], Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        info = schema_of(func)
        name = func._schema.name.split("::")[1]
        if info.view or info.metadata or name in FREE:
            return func(*args, **kwargs)
        given = copy_of(full_arguments(func, args, kwargs))
        key = (func, signature(given))
        result = func(*args, **kwargs)
        if key not in self.calls:
            self.calls[key] = (func, given, copy_of(result))
        return result


def copy_of(x: Any) -> Any:
    if isinstance(x, Tensor):
        if x.layout != torch.strided or x.is_nested:
            return x
        fresh = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if 0 not in x.stride() else None
        return x.detach().clone() if fresh is None else fresh.copy_(x.detach().resolve_conj().resolve_neg())
    return type(x)(copy_of(e) for e in x) if type(x) in (list, tuple) else x


def signature(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (x.dtype, tuple(x.shape), tuple(x.stride()) if x.layout == torch.strided else x.layout)
    return tuple(map(signature, x)) if isinstance(x, (list, tuple)) else repr(x)


def leaves(x: Any) -> list[Any]:
    return [e for y in x for e in leaves(y)] if isinstance(x, (list, tuple)) else [x]


def calls_of(op: Any, dtype: torch.dtype, samples: int) -> list[tuple[Any, list[Any], Any]]:
    collect = Collect()
    grad = op.supports_autograd and dtype in op.backward_dtypes
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if i == samples:
            break
        with collect:
            made = [t for t in leaves([op(sample.input, *sample.args, **sample.kwargs)]) if isinstance(t, Tensor)]
            wanted = [t for t in leaves([sample.input, *sample.args, *sample.kwargs.values()])
                      if isinstance(t, Tensor) and t.requires_grad]  # fmt: skip
            made = [t for t in made if t.requires_grad]
            if grad and wanted and made:
                torch.autograd.grad(made, wanted, [torch.ones_like(t) for t in made], allow_unused=True)
    return list(collect.calls.values())


def check(op: Any, given: list[Any], result: Any, chip: Chip) -> str:
    """Why the call is not composed, or not right; empty if it is."""
    tensors = [t for t in leaves(given) if isinstance(t, Tensor)]
    if any(t.layout != torch.strided or t.is_nested or t.is_quantized for t in tensors):
        return "not strided"
    name = op._schema.name.split("::")[1]
    if chip.native(op, given, {}):
        return ""
    info = schema_of(op)
    written = [given[i] for i in info.writes]
    used, args = op, given
    if info.writes:
        functional = _functional(op)
        if functional is not None:
            accepted = {a.name for a in functional._schema.arguments}
            args = [v for n, v in zip(info.names, given, strict=True) if n in accepted]
            used = functional
            info = schema_of(used)
    try:
        positional, keyword = [], {}
        for a, v in zip(used._schema.arguments, args, strict=True):
            if a.kwarg_only:
                keyword[a.name] = v
            else:
                positional.append(v)
        program = compose(used, positional, keyword, chip)
        if name in RANDOM:
            return ""
        after = copy_of(args)
        got = reference.run(type(program).from_dict(json.loads(json.dumps(program.to_dict()))), after)
    except NotComposable as error:
        return f"{error}"
    except Exception as error:
        return f"{op} wrong: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    want: list[Any] = [t for t in leaves([result])] if result is not None else []
    if info.writes and not program.outputs:
        got, want = [], []
        del written
    try:
        for g, w in zip(got, want, strict=True):
            if isinstance(w, Tensor) and g is not None and w.numel() + g.numel():
                close(g, w)
            elif isinstance(w, bool) and g is not None:
                assert bool(g) == w, "another truth value"
    except (AssertionError, ValueError) as error:
        return f"{op} wrong values: {' '.join(str(error).split())[:150]}"
    return ""


def close(got: Tensor, want: Tensor) -> None:
    exact = not (want.dtype.is_floating_point or want.dtype.is_complex)
    half = want.dtype in (torch.float16, torch.bfloat16)
    scale = float(want.abs().nan_to_num(0, 0, 0).max()) if want.numel() and not exact else 1.0
    rtol, atol = (0.0, 0.0) if exact else (1e-2, 1e-2 * max(scale, 1e-3)) if half else (1e-4, 1e-5 * max(scale, 0.1))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--ops", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("-v", action="store_true", help="each entry that is not covered")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    dtype = getattr(torch, options.dtype)
    chip = Chip()
    table: dict[str, list[str]] = {}
    known: dict[Any, str] = {}

    def too_long(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    for op in op_db:
        key = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        if dtype not in op.dtypes or not re.search(options.ops, key):
            continue
        reasons: list[str] = []
        signal.alarm(60)
        try:
            for func, given, result in calls_of(op, dtype, options.samples):
                call = (func, signature(given))
                if call not in known:
                    known[call] = check(func, given, result, chip)
                if known[call]:
                    reasons.append(f"{func}: {known[call]}")
        except TimeoutError:
            reasons.append("took more than a minute")
        except Exception as error:
            reasons.append(f"could not run: {type(error).__name__}: {str(error)[:80]}")
        finally:
            signal.alarm(0)
        table[key] = reasons
        if options.v and reasons:
            print(key, *(f"\n    {r}" for r in reasons), flush=True)
    covered = sum(not r for r in table.values())
    hindering = collections.Counter(o for r in table.values() for o in {x.split(": ")[0] for x in r})
    print(f"{covered} of {len(table)} entries covered: {covered / max(len(table), 1):.1%}")
    for name, count in hindering.most_common():
        print(f"{count:4} {name}")
    if options.json:
        options.json.write_text(json.dumps({"covered": covered, "entries": table}, indent=1))


if __name__ == "__main__":
    main()
