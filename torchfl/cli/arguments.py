"""Example arguments for an operator, from a few shapes: what `torchfl explain` calls it with.

Contract: `calls` gives the calls that the named operator can mean, likeliest first, each with meta tensors (no memory,
no computation) and a text that shows what was assumed. What the user gives with `--arg` always wins. An argument that
has no default and cannot be guessed makes that form impossible; if no form is left, ArgumentsError lists the forms.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from torchfl.errors import LoadError


class ArgumentsError(LoadError):
    """The arguments given do not make a call."""


@dataclass
class Call:
    """One call: `function` is a torch OpOverload."""

    function: Any
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    text: str = ""


#: Where PyTorch asks for the device's type on the way to an operator, so that meta tensors would lead elsewhere.
_ON_A_DEVICE = {"dropout": "native_dropout"}


class _Unknown(Exception):
    """This argument has no default, and there is no guess."""


def parse_shape(text: str) -> list[int]:
    """ "2,3" as [2, 3]; "" or "scalar" as []."""
    if text.strip() in ("", "scalar", "[]", "()"):
        return []
    words = re.split(r"\s*[,x]\s*", text.strip().strip("[]()").rstrip(","))
    if not all(word.isdigit() for word in words):
        raise ArgumentsError(f"--shape {text}: write sizes with commas between them, such as 4,4")
    return [int(word) for word in words]


def parse_dtype(text: str) -> Any:
    """A torch.dtype by its name."""
    import torch

    dtype = getattr(torch, text.strip().removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentsError(f"'{text}' is no dtype; such are float32, float16, bfloat16, int8, int64, bool")
    return dtype


def parse_args(given: list[str]) -> dict[str, str]:
    """["stride=2"] as {"stride": "2"}."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise ArgumentsError(f"--arg {text}: write NAME=VALUE, such as --arg stride=2")
        found[name.strip()] = value.strip()
    return found


def calls(name: str, shapes: list[list[int]], dtypes: list[Any], given: dict[str, str]) -> list[Call]:
    """The calls that operator `name` ("aten::add", "aten::add.Tensor") can mean with these tensors and arguments."""
    import torch

    namespace, _, rest = name.rpartition("::")
    base, _, overload = rest.partition(".")
    base = _ON_A_DEVICE.get(base, base)
    packet = getattr(getattr(torch.ops, namespace or "aten"), base, None)
    if packet is None or not hasattr(packet, "overloads"):
        raise ArgumentsError(f"no operator '{name}'{_similar(base)}")
    names = [o for o in packet.overloads() if not overload or o == overload]
    if not names:
        raise ArgumentsError(f"{base} has no overload '{overload}'; it has {', '.join(packet.overloads())}")
    forms = sorted((getattr(packet, o) for o in names), key=lambda f: _unlikely(f, len(shapes)))
    found = [call for form in forms if (call := _fill(form, shapes, dtypes, given)) is not None]
    if not found:
        listed = "\n".join(
            f"  {form._schema}" for form in forms if "Tensor" in str(form._schema) and "out" not in form._overloadname
        )
        unknown = sorted(set(given) - {a.name for form in forms for a in form._schema.arguments})
        hint = f"; no form has an argument {', '.join(unknown)}" if unknown else ""
        raise ArgumentsError(
            f"cannot tell how to call aten::{base}{hint}: give one --shape for each tensor, and --arg NAME=VALUE for "
            f"what else has no default. Its forms:\n{listed}"
        )
    return found


def _similar(base: str) -> str:
    from torchfl.hcd import opnames
    from torchfl.hcd.diagnostics import did_you_mean

    hint = did_you_mean(base, opnames.user_names(), "aten::")
    return f"; {hint}" if hint else ""


def _unlikely(form: Any, tensors: int) -> tuple[Any, ...]:
    """Sort key: what a call of the plain name reaches comes first."""
    schema = form._schema
    wants = sum(str(a.type) in ("Tensor", "List[Tensor]") for a in schema.arguments)
    scalar = any(str(a.type) == "number" and not a.has_default_value() for a in schema.arguments)
    dimnames = "Dimname" in str(schema) or "generator" in form._overloadname
    return (
        "out" in form._overloadname,
        dimnames,
        wants < tensors,
        scalar,
        form._overloadname not in ("default", "Tensor"),
        len(schema.arguments),
    )


def _fill(form: Any, shapes: list[list[int]], dtypes: list[Any], given: dict[str, str]) -> Call | None:
    schema = form._schema
    if any(a.is_out for a in schema.arguments) or not set(given) <= {a.name for a in schema.arguments}:
        return None
    tensors = _Tensors(form, shapes, dtypes)
    call = Call(form)
    shown = []
    for argument in schema.arguments:
        named = argument.name in given
        try:
            if named:
                value = _from_text(given[argument.name], argument, tensors)
            elif tensors.wants(argument):
                value = tensors.take(argument)
            elif argument.has_default_value():
                value = argument.default_value
            else:
                value = _guess(argument, tensors)
        except _Unknown:
            return None
        if argument.kwarg_only:
            call.kwargs[argument.name] = value
        else:
            call.args.append(value)
        if named or not argument.has_default_value() or _is_tensor(value):
            shown.append(f"{argument.name}={describe(value)}")
    if tensors.left():
        return None  # more shapes were given than this form has tensors
    overload = "" if form._overloadname == "default" else f".{form._overloadname}"
    call.text = f"{schema.name}{overload}({', '.join(shown)})"
    return call


# ---------------------------------------------------------------------------------------------- tensors


class _Tensors:
    """Deals the given shapes to the tensor arguments in order, then invents what is missing."""

    def __init__(self, form: Any, shapes: list[list[int]], dtypes: list[Any]) -> None:
        self.base = form._schema.name.removeprefix("aten::").rstrip("_")
        self.shapes = shapes
        self.dtypes = dtypes
        self.used = 0
        self.first: list[int] = shapes[0] if shapes else self._usual()

    def _usual(self) -> list[int]:
        dimensions = re.search("([123])d", self.base)
        if dimensions or self.base.startswith(("conv", "_conv", "batch_norm", "native_batch_norm", "group_norm")):
            return [2, 4, *[8] * (int(dimensions.group(1)) if dimensions else 2)]
        return [4, 4]

    def left(self) -> bool:
        return self.used < len(self.shapes)

    def wants(self, argument: Any) -> bool:
        kind = str(argument.type)
        if kind in ("Tensor", "List[Tensor]") or (
            kind == "List[Optional[Tensor]]" and not argument.has_default_value()
        ):
            return True
        return kind in ("Optional[Tensor]", "List[Optional[Tensor]]") and (
            self.left() or argument.name in self._needed()
        )

    def _needed(self) -> tuple[str, ...]:
        return ("running_mean", "running_var") if "batch_norm" in self.base else ()

    def take(self, argument: Any) -> Any:
        dtype = self._dtype(argument.name)
        if "List" in str(argument.type):
            rest = self.shapes[self.used :]
            self.used = len(self.shapes)
            return [self._make(shape, dtype) for shape in rest or self._invent_list(argument.name)]
        if self.left():
            shape = self.shapes[self.used]
            self.used += 1
            return self._make(shape, dtype)
        return self._make(self._invent(argument.name), dtype)

    def _make(self, shape: list[int], dtype: Any = None) -> Any:
        import torch

        at = min(max(self.used - 1, 0), len(self.dtypes) - 1)
        return torch.empty(shape, dtype=dtype or self.dtypes[at], device="meta")

    def _dtype(self, name: str) -> Any:
        """Dtypes that follow from what the argument is."""
        import torch

        if name in ("mask", "condition"):
            return torch.bool
        if name in ("index", "indices", "target"):
            return torch.int64
        return None

    def _invent_list(self, name: str) -> list[list[int]]:
        return [[2]] if name == "indices" else [self.first, self.first]

    def _invent(self, name: str) -> list[int]:
        """A shape that goes with the first one, by what operators of this kind take."""
        first = self.first
        last = first[-1] if first else 1
        channels = first[1] if len(first) > 1 else last
        if name == "weight" and re.match(r"_?conv_transpose|_?conv", self.base):
            return [channels, channels, *[3] * max(1, len(first) - 2)]
        if name == "weight" and self.base == "linear":
            return [last, last]
        if (
            name in ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd")
            and "norm" in self.base
        ):
            return [last] if "layer" in self.base or "rms" in self.base else [channels]
        if name in ("mat2", "other", "tensor2", "batch2", "vec2", "vec", "mat1", "batch1") and self._is_product():
            if name in ("mat1", "batch1") or len(first) < 2:
                return first
            return [last] if name == "vec" else [*first[:-2], last, last]
        if name in ("index", "target") and self.base.startswith(("nll_loss", "cross_entropy")):
            return [first[0]] if len(first) > 1 else []
        if name == "index" and self.base.startswith("index_"):
            return [last]
        if name == "indices":
            return [8]
        return first

    def spatial(self, name: str) -> int:
        """How many elements a list has that may be given as one number: a convolution's, one for each dimension."""
        windows = ("stride", "padding", "dilation", "output_padding", "kernel_size")
        return max(1, len(self.first) - 2) if name in windows and "conv" in self.base else 1

    def _is_product(self) -> bool:
        words = ("mm", "bmm", "matmul", "addmm", "baddbmm", "mv", "addmv", "linalg_matmul")
        return self.base in words


# ---------------------------------------------------------------------------------------------- other arguments


def _guess(argument: Any, tensors: _Tensors) -> Any:
    """A usual value for an argument that has no default."""
    kind = str(argument.type)
    if kind.startswith("Optional"):
        return None
    rank = len(tensors.first)
    values: dict[str, Any] = {
        "dim": -1,
        "dim0": 0,
        "dim1": -1,
        "dims": list(range(rank))[::-1],
        "half_to_float": False,
        "kernel_size": [2],
        "stride": [1],
        "padding": [0],
        "dilation": [1],
        "transposed": False,
        "output_padding": [0],
        "output_size": [1, 1],
        "groups": 1,
        "num_groups": 1,
        "normalized_shape": tensors.first[-1:],
        "training": True,
        "train": True,
        "cudnn_enabled": False,
        "momentum": 0.1,
        "eps": 1e-5,
        "p": 0.5,
        "threshold": 0.0,
        "negative_slope": 0.01,
        "k": 1,
        "value": 0,
        "size": tensors.first,
        "shape": tensors.first,
        "end": 8,
        "repeats": [2] * rank,
        "diagonal": 0,
        "lambd": 0.5,
        "fill_value": 1,
        "shifts": [1],
        "pad": [1, 1],
        "dtype": None,
        "correction": 1,
    }
    if argument.name in values:
        value = values[argument.name]
        wants_list = kind.startswith("List")
        if wants_list and not isinstance(value, list):
            value = [value]
        if wants_list and len(value) == 1:
            value = value * (argument.N or tensors.spatial(argument.name))
        if not wants_list and isinstance(value, list):
            raise _Unknown
        return value
    if kind == "number":
        return 2
    raise _Unknown


def _from_text(text: str, argument: Any, tensors: _Tensors) -> Any:
    """The value that a user wrote: a literal, true/false/none, a dtype, or a tensor as float32[4,4]."""
    import torch

    tensor = re.fullmatch(r"(?:torch\.)?([a-z]+\d*\w*)?\[([\d\s,]*)\]", text)
    kind = str(argument.type)
    if tensor is not None and "Tensor" in kind and "List" not in kind:
        dtype = parse_dtype(tensor.group(1)) if tensor.group(1) else tensors.dtypes[0]
        return torch.empty(parse_shape(tensor.group(2)), dtype=dtype, device="meta")
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    named = getattr(torch, text.removeprefix("torch."), None)
    if isinstance(named, torch.dtype | torch.memory_format):
        return named
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    if isinstance(value, tuple):
        value = list(value)
    if kind.startswith(("List", "Optional[List")) and isinstance(value, int | float) and "Tensor" not in kind:
        value = [value] * (argument.N or tensors.spatial(argument.name))
    return value


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) or (isinstance(value, list) and any(_is_tensor(v) for v in value))


def describe(value: Any) -> str:
    """A value as it is shown: a tensor as float32[4,4]."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    return str(value).removeprefix("torch.")


Operator = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an OpOverload and its arguments


def reached(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, inside: bool = False) -> list[Operator]:
    """The operators that a backend sees when `function` is called: found by calling it with meta tensors, which
    computes nothing. `inside` looks into an operator that PyTorch makes of others when a backend lacks it.

    Views and bare allocations are left out, they run nothing. Raises what PyTorch raises if the arguments do not fit.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Operator] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func, tuple(args), dict(kwargs or {})))
            return func(*args, **(kwargs or {}))

    with Record():
        if inside:
            function._op_dk(composite_key(function), *args, **kwargs)
        else:
            function(*args, **kwargs)
    return [entry for entry in seen if not _runs_nothing(entry[0])]


def _runs_nothing(function: Any) -> bool:
    returns = function._schema.returns
    view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return view or re.match(r"aten::(new_)?empty(_like|_strided)?$", function._schema.name) is not None


def composite_key(function: Any) -> Any:
    """The key under which PyTorch makes `function` of other operators on a backend without it; None if it does not."""
    import torch

    keys = torch._C.DispatchKey
    for key in (keys.CompositeExplicitAutograd, keys.CompositeExplicitAutogradNonFunctional):
        if function.has_kernel_for_dispatch_key(key):
            return key
    return None
