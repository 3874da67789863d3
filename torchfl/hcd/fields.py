"""Field types of the model: quantities, counts, names, each with its own diagnostics.

Contract: a value that does not fit raises a pydantic error whose type is a diagnostic code and whose context holds a
hint; reader.py turns it into a diagnostic at the value's place. Each type carries the JSON Schema that editors see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from torchfl.hcd import terms, units
from torchfl.hcd.diagnostics import did_you_mean, show

_VERSION = r"^\d{1,9}(\.\d{1,9}){0,3}([-+.][0-9A-Za-z.+-]{1,40})?$"
_DEVICE_TYPE = r"^[a-z_][a-z0-9_]{0,62}(:[A-Za-z0-9_.-]{1,62})?$"
_NAME = r"^[A-Za-z_][A-Za-z0-9_.:-]{0,127}$"
_KERNEL = r"^[A-Za-z_{][A-Za-z0-9_{}.:]{0,127}$"


def problem(code: str, message: str, hint: str | None = None, item: int | None = None) -> PydanticCustomError:
    """An error that reader.py reports under `code`, at the `item` of a list if given."""
    context = {"message": message, "hint": hint, "item": item}
    return PydanticCustomError(code, "{message}", context)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _quantity(dimension: units.Dimension) -> Any:
    def check(value: Any) -> int:
        if _is_number(value):
            example = f"write it with its unit, such as '{units.EXAMPLES[dimension]}'"
            raise problem("HCD020", f"{value:g} has no unit", example)
        if not isinstance(value, str):
            raise problem("HCD013", f"expected a quantity such as '{units.EXAMPLES[dimension]}', got {show(value)}")
        try:
            return units.parse(value, dimension)
        except units.UnitError as error:
            raise problem(error.code, error.message, error.hint) from None

    suffixes = "|".join(re.escape(n).replace("/", "\\/") for n in sorted(units.names(dimension), key=len, reverse=True))
    schema = {
        "type": "string",
        "pattern": rf"^\s*\+?[0-9.]+([eE][-+]?[0-9]+)?\s*({suffixes})\s*$".replace("\\/", "/"),
        "examples": [units.EXAMPLES[dimension]],
    }
    return Annotated[int, PlainValidator(check), WithJsonSchema(schema)]


def _integer(least: int, what: str) -> Any:
    def check(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e9 is how people write a billion
        if isinstance(value, bool) or not isinstance(value, int):
            hint = "remove the quotes" if isinstance(value, str) and value.strip().isdigit() else None
            raise problem("HCD013", f"expected a whole number, got {show(value)}", hint)
        if value < least:
            raise problem("HCD015", f"{value} is not {what}")
        if value >= 1 << 63:
            raise problem("HCD007", f"{show(value)} does not fit in 64 bits")
        return value

    return Annotated[int, PlainValidator(check), WithJsonSchema({"type": "integer", "minimum": least})]


def _share(value: Any) -> float:
    if not _is_number(value):
        raise problem("HCD013", f"expected a number from 0 to 1, got {show(value)}")
    if not 0 <= value <= 1:
        raise problem("HCD015", f"{show(value)} is not between 0 and 1")
    return float(value)


def _pattern(pattern: str, what: str, extra: Callable[[str], None] | None = None) -> Any:
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        if not isinstance(value, str):
            hint = f"put it in quotes: '{value}'" if _is_number(value) else None
            raise problem("HCD013", f"expected text, got {show(value)}", hint)
        if not compiled.search(value) or value.endswith("\n"):
            raise problem("HCD016", f"{show(value)} is not {what}")
        if extra:
            extra(value)
        return value

    return Annotated[str, PlainValidator(check), WithJsonSchema({"type": "string", "pattern": pattern})]


def _free_device_type(value: str) -> None:
    if value.startswith(("cpu", "cuda")):
        raise problem("HCD016", f"device type {show(value)} starts with a name that PyTorch keeps for itself")
    if value.partition(":")[0] in {"meta", "privateuseone", "privateuse1"}:
        raise problem("HCD016", f"device type {show(value)} is a name that PyTorch keeps for itself")


def _dtype(value: Any) -> str:
    if not isinstance(value, str):
        raise problem("HCD013", f"expected a dtype name, got {show(value)}")
    if value in terms.DTYPES:
        return value
    bare = value.removeprefix("torch.")
    hint = None
    if bare in terms.DTYPES:
        hint = f"write '{bare}', without 'torch.'"
    elif bare.lower() in terms.DTYPE_SYNONYMS:
        hint = f"did you mean '{terms.DTYPE_SYNONYMS[bare.lower()]}'?"
    raise problem("HCD014", f"unknown dtype {show(value)}", hint or did_you_mean(bare, terms.DTYPES))


def _layout(value: Any) -> str:
    if not isinstance(value, str):
        raise problem("HCD013", f"expected a layout name, got {show(value)}")
    if not terms.is_layout(value):
        hint = "a layout is an order of some of the letters N, C, D, H, W, such as NCHW or NHWC"
        if value in ("channels_last", "torch.channels_last"):
            hint = "did you mean 'NHWC'?"
        elif terms.is_layout(value.upper()):
            hint = f"did you mean '{value.upper()}'?"
        raise problem("HCD014", f"unknown layout {show(value)}", hint)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        hint = f"put it in quotes: '{value}'" if _is_number(value) else None
        raise problem("HCD013", f"expected text, got {show(value)}", hint)
    if not value.strip():
        raise problem("HCD015", "the text is empty")
    return value


def _op_name(value: Any) -> str:
    if not isinstance(value, str):
        if value == []:
            raise problem("HCD015", "the list is empty", "name at least one operator")
        raise problem("HCD013", f"expected an operator name or a list of them, got {show(value)}")
    return value


def _path_text(value: Any) -> str:
    if not isinstance(value, str):
        raise problem("HCD013", f"expected a path, got {show(value)}")
    return value


def _scalar(value: Any) -> bool | int | float | str:
    if isinstance(value, bool | int | float | str):
        return value
    raise problem("HCD013", f"expected a number, a boolean or text, got {show(value)}")


def unique(values: list[Any]) -> list[Any]:
    """Refuses a list that names something twice."""
    seen: set[tuple[type, Any]] = set()
    for i, value in enumerate(values):
        if (type(value), value) in seen:  # the type, since 1 == True
            raise problem("HCD017", f"{show(value)} is listed twice", item=i)
        seen.add((type(value), value))
    return values


if TYPE_CHECKING:
    # What a checker needs to know of the fields: the Python type that comes out.
    Rate: TypeAlias = int
    Bytes: TypeAlias = int
    Bandwidth: TypeAlias = int
    Frequency: TypeAlias = int
    Power: TypeAlias = int
    Energy: TypeAlias = int
    Time: TypeAlias = int
    Count: TypeAlias = int
    Natural: TypeAlias = int
    Share: TypeAlias = float
    Version: TypeAlias = str
    DeviceType: TypeAlias = str
    Name: TypeAlias = str
    Kernel: TypeAlias = str
    Text: TypeAlias = str
    Path: TypeAlias = str
    OpName: TypeAlias = str
    DType: TypeAlias = str
    Layout: TypeAlias = str
    Atom: TypeAlias = bool | int | float | str
else:
    Rate = _quantity("rate")
    Bytes = _quantity("bytes")
    Bandwidth = _quantity("bandwidth")
    Frequency = _quantity("frequency")
    Power = _quantity("power")
    Energy = _quantity("energy")
    Time = _quantity("time")
    Count = _integer(1, "a positive number")
    Natural = _integer(0, "zero or more")
    Share = Annotated[float, PlainValidator(_share), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
    Version = _pattern(_VERSION, "a version such as 1.2.0")
    DeviceType = _pattern(_DEVICE_TYPE, "a device type such as npu_v3 or xpu:x1", _free_device_type)
    Name = _pattern(_NAME, "a name of letters, digits and underscores")
    Kernel = _pattern(_KERNEL, "a kernel name of letters, digits and underscores")
    Text = Annotated[str, PlainValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
    Path = Annotated[str, PlainValidator(_path_text), WithJsonSchema({"type": "string"})]
    OpName = Annotated[str, PlainValidator(_op_name), WithJsonSchema({"type": "string", "minLength": 1})]
    DType = Annotated[str, PlainValidator(_dtype), WithJsonSchema({"type": "string", "enum": list(terms.DTYPES)})]
    Layout = Annotated[str, PlainValidator(_layout), WithJsonSchema({"type": "string", "pattern": "^[NCDHW]{2,5}$"})]
    Atom = Annotated[
        bool | int | float | str, PlainValidator(_scalar), WithJsonSchema({"type": ["boolean", "number", "string"]})
    ]
