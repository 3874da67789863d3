"""The canonical descriptor, `hcd: 1`, as pydantic models: which keys there are and what each value is.

Contract: a model is immutable and holds plain values in base units (see units.py); an absent value is None, which
means unknown and never zero. Rules between fields are not here but in check.py; both legacy forms are rewritten to
this shape by legacy.py before they get here. docs/descriptor.md explains every section.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from torchfl.hcd import fields as f
from torchfl.hcd.diagnostics import show

FORMAT = 1


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:
        if not isinstance(value, dict | BaseModel):
            raise f.problem("HCD013", f"expected a mapping with keys, got {show(value)}")
        return value


def _need_list(value: Any) -> Any:
    if not isinstance(value, list):
        raise f.problem("HCD013", f"expected a list, got {show(value)}")
    if not value:
        raise f.problem("HCD015", "the list is empty", "leave the key out if there is nothing to list")
    return value


_LIST = BeforeValidator(_need_list)
_UNIQUE = AfterValidator(f.unique)

DTypes = Annotated[list[f.DType], _LIST, _UNIQUE, Field(min_length=1)]
Layouts = Annotated[list[f.Layout], _LIST, _UNIQUE, Field(min_length=1)]
OpNames = Annotated[list[f.OpName], _LIST, _UNIQUE, Field(min_length=1)]


def _dtypes_by_argument(value: Any) -> Any:
    return {"*": value} if not isinstance(value, dict) else value


#: A list of dtypes for all arguments, or a mapping from argument names (and "*" for the others) to lists.
OpDTypes = Annotated[
    dict[str, DTypes], BeforeValidator(_dtypes_by_argument, json_schema_input_type=dict[str, DTypes] | DTypes)
]


class Chip(Section):
    """What the chip is called."""

    name: f.Text
    vendor: f.Text
    device_type: f.DeviceType
    version: f.Version | None = None
    description: f.Text | None = None
    features: Annotated[list[f.Text], _LIST, _UNIQUE] | None = None


class Adapter(Section):
    """How the chip is reached. Paths are absolute or relative to the file they stand in; variables are expanded."""

    library: f.Path | None = None
    sdk: f.Path | None = None
    runtime: f.Path | None = None
    header: f.Path | None = None
    kernels: f.Path | None = None
    style: Literal["c", "aten", "pybind"] | None = None
    driver_version: f.Version | None = None


class ComputeUnit(Section):
    """Arithmetic units for one dtype. `peak` is the dense rate of the whole chip, a multiply-add counted as two."""

    count: f.Count | None = None
    peak: f.Rate | None = None
    supported_layouts: Layouts | None = None
    clock: f.Frequency | None = None
    energy: f.Energy | None = None
    tile: Annotated[list[f.Count], _LIST] | None = None
    description: f.Text | None = None


class Attention(Section):
    """A unit for whole attention operators; its limits are hard."""

    enabled: bool = True
    max_sequence_length: f.Count | None = None
    supported_heads: Annotated[list[f.Count], _LIST, _UNIQUE] | None = None
    beyond: Literal["error", "compose"] = "error"


class ComputeUnits(Section):
    fp64: ComputeUnit | None = None
    fp32: ComputeUnit | None = None
    tf32: ComputeUnit | None = None
    bf16: ComputeUnit | None = None
    fp16: ComputeUnit | None = None
    fp8: ComputeUnit | None = None
    int64: ComputeUnit | None = None
    int32: ComputeUnit | None = None
    int16: ComputeUnit | None = None
    int8: ComputeUnit | None = None
    uint8: ComputeUnit | None = None
    int4: ComputeUnit | None = None
    bool_: ComputeUnit | None = Field(None, alias="bool")
    attention: Attention | None = None

    def units(self) -> dict[str, ComputeUnit]:
        """The arithmetic units that the chip has, by name."""
        named = {name.rstrip("_"): getattr(self, name) for name in type(self).model_fields if name != "attention"}
        return {name: unit for name, unit in named.items() if unit is not None}


class MemoryLevel(Section):
    size: f.Bytes | None = None
    bandwidth: f.Bandwidth | None = None
    latency: f.Time | None = None
    energy_per_byte: f.Energy | None = None


class OffChipMemory(MemoryLevel):
    unified: bool = False
    host_memory: Literal["map", "lazy", "copy"] | None = None


class Memory(Section):
    on_chip_cache: MemoryLevel | None = None
    off_chip_memory: OffChipMemory | None = None


class Autocast(Section):
    """What `torch.autocast` does on this chip: which operators run in `dtype`, in float32, in the widest dtype."""

    dtype: f.DType | None = None
    lower_precision: OpNames | None = None
    fp32: OpNames | None = None
    promote: OpNames | None = None


class ComputeAs(Section):
    """Dtypes that convolutions, matrix products and linear layers round their operands to: a choice of speed over
    precision that the descriptor makes for everybody, as autocast does for one region."""

    float32: Literal["bfloat16", "float16"] | None = None


class Tensor(Section):
    supported_dtypes: DTypes
    max_rank: f.Count | None = None
    default_layout: f.Layout = "NCHW"
    on_unsupported_dtype: Literal["cpu", "cast", "error"] = "cpu"
    autocast: Autocast | None = None
    compute_as: ComputeAs | None = None
    compiled_layout: Literal["NHWC"] | None = None


class Constraints(Section):
    """Hard limits: a call beyond them is refused or goes elsewhere, never tried."""

    max_batch_size: f.Count | None = None
    max_sequence_length: f.Count | None = None
    memory_alignment_bytes: f.Count | None = None
    max_elements: f.Count | None = None
    max_threads_per_block: f.Count | None = None
    bfloat16_emulation: bool = False


class Power(Section):
    cap: f.Power | None = None
    idle: f.Power | None = None


class Cost(Section):
    """What is known of a kernel's time and energy. `reuse` names a memory level, `unit` a compute unit; `tile_start` is
    what each tile of the result costs besides its arithmetic."""

    tile: Annotated[list[f.Count], _LIST] | None = None
    reuse: f.Name | None = None
    prefetch: f.Name | None = None
    unit: f.Name | None = None
    launch: f.Time | None = None
    tile_start: f.Time | None = None
    efficiency: f.Share | None = None
    overlap: f.Share | None = None
    energy: f.Energy | None = None


def _predicate(value: Any) -> Any:
    if isinstance(value, list):
        return {"in": value}
    return value if isinstance(value, dict) else {"equals": value}


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


NotIn = Annotated[list[f.Atom], _LIST, BeforeValidator(_listed, json_schema_input_type=list[f.Atom] | f.Atom)]


class Predicate(Section):
    """A condition on one value; several keys must all hold. For a value that is a list, every element must hold it."""

    in_: Annotated[list[f.Atom], _LIST, _UNIQUE] | None = Field(None, alias="in")
    min: f.Atom | None = None
    max: f.Atom | None = None
    multiple_of: f.Count | None = None
    equals: f.Atom | None = None
    not_: NotIn | None = Field(None, alias="not")
    why: f.Text | None = None


Where = dict[
    str,
    Annotated[
        Predicate,
        BeforeValidator(_predicate, json_schema_input_type=Predicate | list[f.Atom] | f.Atom),
    ],
]


class Conditions(Section):
    """When a kernel may be used."""

    dtypes: OpDTypes | None = None
    int8_as: Literal["uint8"] | None = None
    layouts: Layouts | None = None
    where: Annotated[Where, BeforeValidator(lambda v: _need_mapping(v))] | None = None
    why: f.Text | None = None
    cost: Cost | None = None


def _need_mapping(value: Any) -> Any:
    if not isinstance(value, dict):
        raise f.problem("HCD013", f"expected a mapping from names to conditions, got {show(value)}")
    return value


class OpPath(Conditions):
    """One of several kernels for an operator; what it leaves out, the entry gives."""

    kernel: f.Kernel


class Op(Conditions):
    """An operator that the chip has. A list of operators in the file has become one entry each by now."""

    op: f.OpName = Field(
        json_schema_extra={"type": ["string", "array"], "items": {"type": "string"}, "minItems": 1},
    )
    kernel: f.Kernel | None = None
    paths: Annotated[list[OpPath], _LIST] | None = None


class Instruction(Conditions):
    """A basic instruction that the chip has: its name alone, or with its kernel and conditions."""

    op: f.Name = Field(
        json_schema_extra={"type": ["string", "array"], "items": {"type": "string"}, "minItems": 1},
    )
    kernel: f.Kernel = "{op}"


class Fusion(Conditions):
    """Operators that one kernel computes together when they follow each other."""

    name: f.Name
    ops: Annotated[list[f.OpName], _LIST]
    kernel: f.Kernel


class Budget(Section):
    """How much may leave the chip in one step before it is reported."""

    calls: f.Natural | None = None
    bytes: f.Bytes | None = None


class Fallback(Section):
    default: Literal["compose", "cpu", "error"] = "compose"
    ops: Annotated[dict[str, f.Kernel], BeforeValidator(_need_mapping)] = Field(default_factory=dict)
    budget: Budget | None = None


class Overheads(Section):
    """Fixed costs, for the cost model."""

    launch: f.Time | None = None
    dispatch: f.Time | None = None
    synchronize: f.Time | None = None
    cpu_call: f.Time | None = None
    copy_latency: f.Time | None = None
    host_to_device_bandwidth: f.Bandwidth | None = None
    device_to_host_bandwidth: f.Bandwidth | None = None


class Provenance(Section):
    """Where the figures come from."""

    source: f.Text | None = None
    url: f.Text | None = None
    date: f.Text | None = None
    author: f.Text | None = None
    license: f.Text | None = None
    measured_on: f.Text | None = None
    notes: f.Text | None = None


_Instruction = Annotated[
    Instruction,
    BeforeValidator(lambda v: {"op": v} if isinstance(v, str) else v, json_schema_input_type=Instruction | f.Name),
]


class Hcd(Section):
    """A whole descriptor."""

    hcd: Literal[1]
    extends: f.Path | None = None
    chip: Chip
    adapter: Adapter | None = None
    compute_units: ComputeUnits = Field(default_factory=lambda: ComputeUnits.model_validate({}))
    memory: Memory = Field(default_factory=Memory)
    tensor: Tensor
    constraints: Constraints = Field(default_factory=Constraints)
    power: Power | None = None
    ops: Annotated[list[Op], BeforeValidator(lambda v: _maybe_empty_list(v))] = Field(default_factory=list)
    instructions: Annotated[list[_Instruction], _LIST] | None = None
    fusions: Annotated[list[Fusion], _LIST] | None = None
    fallback: Fallback = Field(default_factory=Fallback)
    overheads: Overheads | None = None
    provenance: Provenance | None = None


def _maybe_empty_list(value: Any) -> Any:
    return value if value == [] else _need_list(value)
