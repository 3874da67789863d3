"""The descriptor as plain data for the engine, which is C++ and knows no Python models.

Contract: `lower(descriptor)` returns dicts, lists, strings, integers, floats, booleans and None only; the same file
gives the same data. None means unknown. Quantities are integers: bytes, bytes/s, operations/s, Hz, and where the name
ends so, `_ps` picoseconds, `_fj` femtojoules, `_mw` milliwatts.

    name, vendor, version     text; version is "" when not given
    device_type, variant      "xpu:x1" gives "xpu" and "x1"; variant is None for a plain name
    adapter_library           absolute path, or None: then the adapter is looked for beside the descriptor
    sdk                       text or None
    adapter                   {"style": "c"|"aten"|"pybind"|None, "runtime", "header", "kernels": absolute path or None,
                              "driver_version": text or None}
    descriptor                absolute path of the file
    alignment                 bytes; DEFAULT_ALIGNMENT when the descriptor says nothing
    max_rank, max_batch, max_seq, max_elements    int or None
    bfloat16_emulation        bool
    memory_bytes              size of the off-chip memory or None; unified: bool
    max_threads               of a work-group, or None
    host_memory               how tensors of the host reach the chip: "copy", "lazy", "map", or "auto" (map, if it can)
    dtypes                    names, as in tensor.supported_dtypes
    layouts                   all that some unit supports, in order of mention; [] when no unit says
    default_layout, on_unsupported_dtype    text
    compute_as                {"float32": "bfloat16"}: what products and convolutions round operands to; {} as a rule
    compiled_layout           "NHWC": how images lie between the operators of a compiled graph; or None: as traced
    attention                 None, or {"enabled", "max_sequence_length", "supported_heads" (list or None), "beyond"}
    ops                       one row per operator that reaches the backend and per path, in declared order:
        op          "aten::mm", without overload        overload   text, or None for all
        declared    the name in the file                kernel     text, placeholders replaced
        dtypes      {"*": [...], argument: [...]}; "*" is always there and is the chip's dtypes when not given
        int8_as     "uint8": int8 is handed over with 128 added, and given back without; or None
        layouts     list; [] means any                  where      list of conditions, all must hold:
                        {"name", "op": "in"|"min"|"max"|"multiple_of"|"equals"|"not", "values": [number or text],
                         "why": text}   booleans are 1 and 0; "not" means none of the values; what the declared name
                        implies comes first (aten::conv2d: rank equals 4, transposed equals 0)
        why         text, "" when not given             cost       see _cost; {} when not given
        path        index among the paths of the entry  file, line absolute path and line it was written at
    fusions                   like ops, one row for each chain that the names resolve to: "name", "ops" (as written),
                              "chain" ("aten::relu", "aten::add.Tensor") instead of path; op and overload are None
    instructions              like ops: op is "uba::vadd", declared "vadd", overload None, path 0
    fallback                  {"default", "ops": {resolved operator: route}, "declared": {resolved operator: name in
                              the file}, "budget": {"calls", "bytes"}}; operators with their overload, where the file
                              names one that is the same there
    autocast                  {"dtype", "lower_precision", "fp32", "promote"}; lists of names as written: autocast
                              acts where users call, before an operator is resolved
    compute_units             {dtype: {"unit", "count", "peak", "layouts", "clock", "energy_fj", "tile"}}
                              each supported dtype, with the unit that serves it; "layouts" is [] when not given
    memory                    {"on_chip_cache" / "off_chip_memory": {"size", "bandwidth", "latency_ps",
                              "energy_per_byte_fj"}}; only levels that are declared
    overheads                 {"launch_ps", "dispatch_ps", "synchronize_ps", "cpu_call_ps", "copy_latency_ps",
                              "host_to_device_bandwidth", "device_to_host_bandwidth"}; None each when not given
    power                     {"cap_mw", "idle_mw"}
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchfl.hcd import model, opnames, terms

if TYPE_CHECKING:
    from torchfl.hcd.reader import Descriptor

#: Enough for the vector loads of any host; what an adapter needs beyond it, its descriptor says.
DEFAULT_ALIGNMENT = 64


def lower(descriptor: Descriptor) -> dict[str, Any]:
    hcd = descriptor.model
    device_type, _, variant = hcd.chip.device_type.partition(":")
    limits, memory = hcd.constraints, hcd.memory
    off_chip = memory.off_chip_memory
    adapter = hcd.adapter or model.Adapter()
    return {
        "name": hcd.chip.name,
        "vendor": hcd.chip.vendor,
        "version": hcd.chip.version or "",
        "device_type": device_type,
        "variant": variant or None,
        "descriptor": descriptor.path,
        "adapter_library": _absolute(descriptor, "library"),
        "sdk": adapter.sdk or None,
        "adapter": {
            "style": adapter.style,
            "runtime": _absolute(descriptor, "runtime"),
            "header": _absolute(descriptor, "header"),
            "kernels": _absolute(descriptor, "kernels"),
            "driver_version": adapter.driver_version,
        },
        "alignment": limits.memory_alignment_bytes or DEFAULT_ALIGNMENT,
        "max_rank": hcd.tensor.max_rank,
        "max_batch": limits.max_batch_size,
        "max_seq": limits.max_sequence_length,
        "max_elements": limits.max_elements,
        "bfloat16_emulation": limits.bfloat16_emulation,
        "memory_bytes": off_chip.size if off_chip else None,
        "max_threads": limits.max_threads_per_block,
        "unified": bool(off_chip and off_chip.unified),
        "host_memory": _host_memory(off_chip, adapter),
        "dtypes": list(hcd.tensor.supported_dtypes),
        "layouts": _layouts(hcd),
        "default_layout": hcd.tensor.default_layout,
        "on_unsupported_dtype": hcd.tensor.on_unsupported_dtype,
        "compute_as": (hcd.tensor.compute_as or model.ComputeAs()).model_dump(exclude_none=True),
        "compiled_layout": hcd.tensor.compiled_layout,
        "attention": hcd.compute_units.attention.model_dump() if hcd.compute_units.attention else None,
        "ops": [row for i, op in enumerate(hcd.ops) for row in _op_rows(descriptor, op, i)],
        "fusions": [row for i, fusion in enumerate(hcd.fusions or []) for row in _fusions(descriptor, fusion, i)],
        "instructions": [_instruction_row(descriptor, entry, i) for i, entry in enumerate(hcd.instructions or [])],
        "fallback": {
            "default": hcd.fallback.default,
            "ops": {
                target: route for name, route in hcd.fallback.ops.items() for target in opnames.resolve_exactly(name)
            },
            "declared": {target: name for name in hcd.fallback.ops for target in opnames.resolve_exactly(name)},
            "budget": (hcd.fallback.budget or model.Budget()).model_dump(),
        },
        "autocast": _autocast(hcd),
        "compute_units": _units(hcd),
        "memory": _memory(memory),
        "overheads": _overheads(hcd.overheads or model.Overheads()),
        "power": _power(hcd.power or model.Power()),
    }


def _host_memory(off_chip: model.OffChipMemory | None, adapter: model.Adapter) -> str:
    """How tensors of the host reach the chip. A chip without an adapter library works on the host's memory."""
    if off_chip and off_chip.host_memory:
        return off_chip.host_memory
    return "auto" if (off_chip and off_chip.unified) or adapter.style == "pybind" else "copy"


def _absolute(descriptor: Descriptor, field: str) -> str | None:
    """A path field of the adapter: relative to the file that gives it, which may be a parent."""
    value = getattr(descriptor.model.adapter, field, None)
    if not value:
        return None
    origin = descriptor.origins[f"adapter.{field}"]
    return os.path.normpath(Path(descriptor.resolve_file(origin.file)).parent / str(value))


def _layouts(hcd: model.Hcd) -> list[str]:
    listed = [layout for unit in hcd.compute_units.units().values() for layout in unit.supported_layouts or []]
    return list(dict.fromkeys(listed))


def _op_rows(descriptor: Descriptor, op: model.Op, index: int) -> Iterable[dict[str, Any]]:
    parsed = opnames.parse(op.op)
    assert parsed is not None  # check.py has seen to it
    overload = None if opnames.is_renamed(parsed) or parsed.overload is None else parsed.overload
    bare = opnames.functional(parsed.base) if parsed.namespace == "aten" else parsed.base
    for target in opnames.resolve(op.op):
        paths: list[model.Op | model.OpPath] = list(op.paths) if op.paths else [op]
        for i, path in enumerate(paths):
            own = path is not op
            at = f"ops[{index}].paths[{i}]" if own else f"ops[{index}]"
            kernel = str(path.kernel).replace("{op}", bare).replace("{target}", target.partition("::")[2])
            yield {
                "op": target,
                "overload": "" if overload == "default" else overload,
                "declared": op.op,
                "kernel": kernel,
                "dtypes": _dtypes(path.dtypes or op.dtypes, descriptor.model, opnames.arguments(target)),
                "int8_as": path.int8_as or op.int8_as,
                "layouts": list(path.layouts or op.layouts or []),
                "where": _implied(op.op) + _where(op) + (_where(path) if own else []),
                "why": path.why or op.why or "",
                "cost": {**_cost(op.cost), **(_cost(path.cost) if own else {})},
                "path": i,
                "file": descriptor.resolve_file(descriptor.origins[at].file),
                "line": descriptor.origins[at].line,
            }


def _instruction_row(descriptor: Descriptor, entry: model.Instruction, index: int) -> dict[str, Any]:
    target = f"{opnames.INSTRUCTION}::{entry.op}"
    return {
        "op": target,
        "overload": None,
        "declared": entry.op,
        "kernel": str(entry.kernel).replace("{op}", entry.op),
        "path": 0,
        **_conditions(descriptor, entry, f"instructions[{index}]", opnames.arguments(target)),
    }


def _fusions(descriptor: Descriptor, fusion: model.Fusion, index: int) -> Iterable[dict[str, Any]]:
    """One row for each chain of operators that the names can reach the backend as."""
    conditions = _conditions(descriptor, fusion, f"fusions[{index}]")
    conditions["where"] = _implied(fusion.ops[0]) + conditions["where"]
    for chain in itertools.product(*(opnames.resolve_exactly(name) for name in fusion.ops)):
        yield {
            "name": fusion.name,
            "ops": list(fusion.ops),
            "chain": [target.removesuffix(".default") for target in chain],
            "op": None,  # the engine defines the operator
            "overload": None,
            "declared": fusion.name,
            "kernel": fusion.kernel,
            **conditions,
        }


def _conditions(descriptor: Descriptor, entry: model.Conditions, at: str, known: Iterable[str] = ()) -> dict[str, Any]:
    """When the kernel of an entry without paths may be used, what it costs, and where that is written."""
    return {
        "dtypes": _dtypes(entry.dtypes, descriptor.model, known),
        "int8_as": entry.int8_as,
        "layouts": list(entry.layouts or []),
        "where": _where(entry),
        "why": entry.why or "",
        "cost": _cost(entry.cost),
        "file": descriptor.resolve_file(descriptor.origins[at].file),
        "line": descriptor.origins[at].line,
    }


def _dtypes(dtypes: dict[str, list[str]] | None, hcd: model.Hcd, known: Iterable[str] = ()) -> dict[str, list[str]]:
    """An entry may reach several operators, so it may name arguments that only one of them (`known`) has."""
    given = {a: list(names) for a, names in (dtypes or {}).items() if a == "*" or not known or a in known}
    return {"*": given.pop("*", list(hcd.tensor.supported_dtypes)), **given}


def _implied(declared: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "op": "equals", "values": [value], "why": why} for name, value, why in opnames.implied(declared)
    ]


def _where(entry: model.Conditions) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, predicate in (entry.where or {}).items():
        for op, value in predicate.model_dump(by_alias=True, exclude_none=True, exclude={"why"}).items():
            values = value if isinstance(value, list) else [value]
            values = [int(v) if isinstance(v, bool) else v for v in values]
            rows.append({"name": name, "op": op, "values": values, "why": predicate.why or entry.why or ""})
    return rows


def _cost(cost: model.Cost | None) -> dict[str, Any]:
    """Only what is given: tile (list), reuse, prefetch, unit (text), launch_ps, tile_start_ps, energy_fj (int),
    efficiency, overlap (from 0 to 1)."""
    if cost is None:
        return {}
    renamed = {"launch": "launch_ps", "tile_start": "tile_start_ps", "energy": "energy_fj"}
    return {renamed.get(k, k): v for k, v in cost.model_dump(exclude_none=True).items()}


def _autocast(hcd: model.Hcd) -> dict[str, Any]:
    autocast = hcd.tensor.autocast or model.Autocast()
    lists = {name: list(getattr(autocast, name) or []) for name in ("lower_precision", "fp32", "promote")}
    return {"dtype": autocast.dtype, **lists}


def _units(hcd: model.Hcd) -> dict[str, Any]:
    units = hcd.compute_units.units()
    out: dict[str, Any] = {}
    for dtype in terms.DTYPES:
        named = [name for name, of in terms.UNIT_DTYPE.items() if of == dtype]
        serving = [name for name in (*terms.SERVED_BY.get(dtype, ()), *named) if name in units]
        if serving and (dtype in hcd.tensor.supported_dtypes or set(named) & set(units)):
            unit = units[serving[0]]
            out[dtype] = {
                "unit": serving[0],
                "count": unit.count,
                "peak": unit.peak,
                "layouts": list(unit.supported_layouts or []),
                "clock": unit.clock,
                "energy_fj": unit.energy,
                "tile": list(unit.tile or []),
            }
    return out


def _memory(memory: model.Memory) -> dict[str, Any]:
    levels = {"on_chip_cache": memory.on_chip_cache, "off_chip_memory": memory.off_chip_memory}
    return {
        name: {
            "size": level.size,
            "bandwidth": level.bandwidth,
            "latency_ps": level.latency,
            "energy_per_byte_fj": level.energy_per_byte,
        }
        for name, level in levels.items()
        if level is not None
    }


def _overheads(overheads: model.Overheads) -> dict[str, Any]:
    return {k if k.endswith("bandwidth") else f"{k}_ps": v for k, v in overheads.model_dump().items()}


def _power(power: model.Power) -> dict[str, Any]:
    return {"cap_mw": power.cap, "idle_mw": power.idle}
