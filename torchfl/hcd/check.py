"""Rules between the values of a descriptor.

Contract: `check(...)` adds diagnostics and changes nothing. `root` is the tree that `hcd` was made from, so every rule
can point at the line that breaks it. `set_aside` holds the locations of values that were wrong in themselves, `touched`
the written paths of what they were part of: a rule that depends on one of them is left out, since it would only repeat
the complaint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from torchfl.hcd import opnames, terms
from torchfl.hcd.diagnostics import Note, Report, did_you_mean, show
from torchfl.hcd.extends import inherited_note
from torchfl.hcd.model import Conditions, Fusion, Hcd, Instruction, Op, Predicate
from torchfl.hcd.nodes import Map, Node, Scalar, Seq

Loc = tuple[str | int, ...]

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}|[{}]")
_ORDERED = ("min", "max", "multiple_of")


def check(hcd: Hcd, root: Map, file: str, report: Report, set_aside: set[Loc], touched: set[str]) -> None:
    _Check(hcd, root, file, report, set_aside, touched).run()


@functools.lru_cache(maxsize=256)
def _closest(base: str) -> str | None:
    """The hint for an unknown operator. Cached: a search through all names takes milliseconds."""
    return did_you_mean(base, opnames.user_names(), "aten::")


class _Check:
    def __init__(self, hcd: Hcd, root: Map, file: str, report: Report, set_aside: set[Loc], touched: set[str]) -> None:
        self.hcd = hcd
        self.root = root
        self.file = file
        self.report = report
        self.set_aside = set_aside
        self.touched = touched
        self._above = {s[:n] for s in set_aside for n in range(len(s) + 1)}
        self.units = hcd.compute_units.units()
        self.layouts = [layout for unit in self.units.values() for layout in unit.supported_layouts or []]

    def run(self) -> None:
        self._layouts()
        self._dtypes()
        self._constraints()
        self._attention()
        self._autocast()
        self._compute_as()
        for i, op in enumerate(self.hcd.ops):
            if self.report.full:
                return
            self._op(op, ("ops", i))
        for i, instruction in enumerate(self.hcd.instructions or []):
            if self.report.full:
                return
            self._instruction(instruction, ("instructions", i))
        for i, fusion in enumerate(self.hcd.fusions or []):
            at: Loc = ("fusions", i)
            for j, name in enumerate(fusion.ops):
                self._op_name(name, (*at, "ops", j))
            self._chain_names(fusion, at)
            self._conditions(fusion, at, [])
            self._kernel_name(fusion.kernel, (*at, "kernel"), ())
        for name in self.hcd.fallback.ops:
            if self.report.full:
                return
            self._op_name(name, ("fallback", "ops", name), key=True)

    # -- reporting

    def _tell(
        self, code: str, loc: Loc, message: str, hint: str | None = None, also: Iterable[Note] = (), key: bool = False
    ) -> None:
        node = self._node(loc, key)
        notes = [*also, *inherited_note(self.file, self.root, node.place)]
        self.report.add(code, node.place, message, path=node.path, hint=hint, notes=notes, width=node.width)

    def _node(self, loc: Loc, key: bool = False) -> Node:
        """The node at `loc`, or the nearest above it; its key when `key` is set or the node is a whole section."""
        node: Node = self.root
        name: Scalar | None = None
        for step in loc:
            if isinstance(node, Map) and isinstance(step, str) and step in node.items:
                name, node = node.keys[step], node.items[step]
            elif isinstance(node, Seq) and isinstance(step, int) and step < len(node.items):
                name, node = None, node.items[step]
            elif not isinstance(step, str) or not isinstance(node, Seq):
                break
        return name if name is not None and (key or isinstance(node, Map)) else node

    def _sound(self, *prefixes: Loc) -> bool:
        """Whether nothing under these locations was set aside."""
        return not any(p in self._above or p[:n] in self.set_aside for p in prefixes for n in range(len(p)))

    # -- the chip

    def _layouts(self) -> None:
        default = self.hcd.tensor.default_layout
        if not self.layouts or default in self.layouts or not self._sound(("compute_units",), ("tensor",)):
            return
        hint = "supported: " + ", ".join(dict.fromkeys(self.layouts))
        unit = next(name for name, u in self.units.items() if u.supported_layouts)
        place = self._node(("compute_units", unit, "supported_layouts"), key=True).place
        note = Note(place, "the layouts of a unit are listed here")
        given = self._node(("tensor",))
        loc: Loc = ("tensor", "default_layout")
        if given.path and not self._has(loc):
            note = Note(place, "no default_layout is given, so it is NCHW; the layouts of a unit are listed here")
        self._tell("HCD050", loc, f"no compute unit supports the layout '{default}'", hint, [note])

    def _has(self, loc: Loc) -> bool:
        node: Node = self.root
        for step in loc:
            if not isinstance(node, Map) or step not in node.items:
                return False
            node = node.items[str(step)]
        return True

    def _dtypes(self) -> None:
        if not self.units or not self._sound(("compute_units",), ("tensor", "supported_dtypes")):
            return
        for i, dtype in enumerate(self.hcd.tensor.supported_dtypes):
            wanted = terms.SERVED_BY.get(dtype, ())
            if wanted and not set(wanted) & set(self.units):
                hint = f"declare the unit '{wanted[0]}'" + (f" or '{wanted[1]}'" if len(wanted) > 1 else "")
                hint += "; the chip has " + ", ".join(self.units)
                self._tell("HCD051", ("tensor", "supported_dtypes", i), f"no compute unit computes in {dtype}", hint)

    def _constraints(self) -> None:
        limits = self.hcd.constraints
        alignment = limits.memory_alignment_bytes
        if alignment is not None and alignment & (alignment - 1):
            below, above = 1 << (alignment.bit_length() - 1), 1 << alignment.bit_length()
            loc: Loc = ("constraints", "memory_alignment_bytes")
            self._tell("HCD056", loc, f"{alignment} is not a power of two", f"the nearest are {below} and {above}")
        dtypes = self.hcd.tensor.supported_dtypes
        if limits.bfloat16_emulation and "bfloat16" in dtypes and self._sound(("tensor", "supported_dtypes")):
            listed = self._node(("tensor", "supported_dtypes", dtypes.index("bfloat16")))
            message = "bfloat16 is emulated, but supported_dtypes lists it as native"
            note = Note(listed.place, "bfloat16 is listed here")
            hint = "list float16 only, or set bfloat16_emulation: false"
            self._tell("HCD058", ("constraints", "bfloat16_emulation"), message, hint, [note])

    def _attention(self) -> None:
        unit, limits = self.hcd.compute_units.attention, self.hcd.constraints
        if unit is None:
            return
        here: Loc = ("compute_units", "attention")
        longest, limit = unit.max_sequence_length, limits.max_sequence_length
        if longest is not None and limit is not None and longest > limit:
            place = self._node(("constraints", "max_sequence_length")).place
            note = Note(place, f"the limit of the whole chip is {limit}")
            message = f"{longest} exceeds constraints.max_sequence_length ({limit})"
            self._tell("HCD057", (*here, "max_sequence_length"), message, also=[note])
        if not unit.enabled and (longest is not None or unit.supported_heads is not None):
            message = "the attention unit is not enabled, but has limits"
            self._tell("HCD057", (*here, "enabled"), message, "remove the limits, or set enabled: true")

    def _autocast(self) -> None:
        autocast = self.hcd.tensor.autocast
        if autocast is None:
            return
        here: Loc = ("tensor", "autocast")
        dtype = autocast.dtype
        if dtype is not None and self._sound(("tensor", "supported_dtypes")):
            if dtype not in ("float16", "bfloat16"):
                self._tell("HCD014", (*here, "dtype"), f"autocast to {dtype} is not possible", "float16 or bfloat16")
            elif dtype not in self.hcd.tensor.supported_dtypes:
                message = f"{dtype} is not in tensor.supported_dtypes"
                self._tell("HCD052", (*here, "dtype"), message)
        seen: dict[str, str] = {}
        for listing in ("lower_precision", "fp32", "promote"):
            for i, name in enumerate(getattr(autocast, listing) or []):
                self._op_name(name, (*here, listing, i))
                if name in seen:
                    self._tell("HCD017", (*here, listing, i), f"{show(name)} is also listed under '{seen[name]}'")
                seen[name] = listing

    def _compute_as(self) -> None:
        rounded = self.hcd.tensor.compute_as
        if rounded is None or rounded.float32 is None or not self._sound(("tensor", "supported_dtypes")):
            return
        for dtype in ("float32", rounded.float32):
            if dtype not in self.hcd.tensor.supported_dtypes:
                message = f"{dtype} is not in tensor.supported_dtypes"
                self._tell("HCD052", ("tensor", "compute_as", "float32"), message)

    # -- operators

    def _op_name(self, name: str, loc: Loc, key: bool = False) -> opnames.OpName | None:
        parsed = opnames.parse(name)
        if parsed is None:
            bare = "aten::" + re.sub(r"^(torch|aten)\W+(ops\.aten\.|nn\.functional\.)?", "", name[:200])
            hint = f"did you mean '{bare}'?" if opnames.parse(bare) else "such as aten::add or aten::add.Tensor"
            self._tell("HCD060", loc, f"{show(name)} is not an operator name", hint, key=key)
            return None
        if not opnames.known(parsed):
            if parsed.overload is not None and opnames.known(parsed._replace(overload=None)):
                hint = did_you_mean(parsed.overload, opnames.overloads(parsed.base)) or "leave the overload out"
                message = f"{parsed.name} has no overload '{parsed.overload}'"
            else:
                hint = _closest(parsed.base) or "names outside aten are not checked"
                message = f"PyTorch has no operator {show(parsed.name)}"
            self._tell("HCD061", loc, message, hint, key=key)
            return None
        return parsed

    def _op(self, op: Op, at: Loc) -> None:
        parsed = self._op_name(op.op, (*at, "op"))
        targets = [] if parsed is None else list(opnames.resolve(op.op))
        composite = [t for t in targets if opnames.is_composite(t)]
        if composite:
            message = f"{composite[0]} is taken apart by PyTorch before it reaches a chip"
            other = opnames.becomes(composite[0].removeprefix("aten::"))
            hint = f"declare {other}, which it becomes" if other else "declare the operators it consists of"
            self._tell("HCD066", (*at, "op"), message, hint)
        if (op.kernel is None) == (op.paths is None):
            if op.kernel is None:
                self._tell("HCD062", at, f"{op.op} has no kernel", "give 'kernel', or 'paths' with several")
            else:
                self._tell("HCD062", (*at, "paths"), f"{op.op} has both 'kernel' and 'paths'", "keep one", key=True)
        self._conditions(op, at, targets)
        if op.kernel is not None:
            self._kernel_name(op.kernel, (*at, "kernel"), ("op", "target"))
        seen: dict[str, int] = {}
        for i, path in enumerate(op.paths or []):
            here: Loc = (*at, "paths", i)
            self._kernel_name(path.kernel, (*here, "kernel"), ("op", "target"))
            self._conditions(path, here, targets)
            if path.kernel in seen and path.where is None and path.dtypes is None and path.layouts is None:
                self._tell("HCD067", (*here, "kernel"), f"{show(path.kernel)} is already a path of {op.op}")
            seen[path.kernel] = i

    def _instruction(self, entry: Instruction, at: Loc) -> None:
        known = opnames.instructions()
        if entry.op not in known:
            hint = did_you_mean(entry.op, known) or "docs/instructions.md lists them"
            self._tell("HCD068", (*at, "op"), f"there is no instruction {show(entry.op)}", hint)
            return
        self._conditions(entry, at, [f"{opnames.INSTRUCTION}::{entry.op}"])
        self._kernel_name(entry.kernel, (*at, "kernel"), ("op",))

    def _kernel_name(self, kernel: str, loc: Loc, known: tuple[str, ...]) -> None:
        for match in _PLACEHOLDER.finditer(kernel):
            if match.group(1) not in known:
                hint = "known: " + ", ".join(f"{{{k}}}" for k in known) if known else "fusions have no placeholders"
                self._tell("HCD065", loc, f"unknown placeholder '{match.group()}'", hint)

    def _conditions(self, entry: Conditions, at: Loc, targets: list[str]) -> None:
        if entry.dtypes is not None:
            self._op_dtypes(entry.dtypes, (*at, "dtypes"), targets)
        if entry.int8_as is not None and not any(entry.int8_as in names for names in (entry.dtypes or {}).values()):
            hint = f"add dtypes: [{entry.int8_as}]"
            self._tell("HCD069", (*at, "int8_as"), f"{entry.int8_as} is not in this entry's dtypes", hint)
        if self.layouts and self._sound(("compute_units",)):
            for i, layout in enumerate(entry.layouts or []):
                if layout not in self.layouts:
                    hint = "supported: " + ", ".join(dict.fromkeys(self.layouts))
                    self._tell("HCD053", (*at, "layouts", i), f"no compute unit supports the layout '{layout}'", hint)
        for name, predicate in (entry.where or {}).items():
            self._where(name, predicate, (*at, "where", name), targets)
        self._cost(entry, (*at, "cost"))

    def _chain_names(self, fusion: Fusion, at: Loc) -> None:
        if not all(opnames.arguments(target) for name in fusion.ops for target in opnames.resolve(name)):
            return  # an operator that nobody knows has been told of
        known = opnames.chain_arguments(fusion.ops)
        named = [("where", name) for name in fusion.where or {}]
        named += [("dtypes", name) for name in fusion.dtypes or {} if name != "*"]
        for section, name in named:
            if name not in known:
                message = f"the chain has no argument '{name}'"
                self._tell("HCD063", (*at, section, name), message, did_you_mean(name, known), key=True)

    def _op_dtypes(self, dtypes: dict[str, list[str]], at: Loc, targets: list[str]) -> None:
        supported = self.hcd.tensor.supported_dtypes
        for argument, names in dtypes.items():
            if argument != "*":
                types = [opnames.arguments(t) for t in targets]
                known = {a for t in types for a, kind in t.items() if kind.startswith("t")}
                if known and argument not in known:
                    message = f"no tensor argument '{argument}' in {' and '.join(targets)}"
                    self._tell("HCD063", (*at, argument), message, did_you_mean(argument, {*known, "*"}), key=True)
            for i, dtype in enumerate(names):
                if dtype in supported or not self._sound(("tensor", "supported_dtypes")):
                    continue
                if dtype in terms.INDEX_DTYPES and argument != "*":
                    continue
                listed = self._node(("tensor", "supported_dtypes"), key=True).place
                message = f"{dtype} is not in tensor.supported_dtypes"
                hint = "supported: " + ", ".join(supported)
                self._tell("HCD052", (*at, argument, i), message, hint, [Note(listed, "the supported ones are here")])

    def _where(self, name: str, predicate: Predicate, at: Loc, targets: list[str]) -> None:
        known = [{**opnames.arguments(t), **dict.fromkeys(opnames.derived(t), "n")} for t in targets]
        checked = [k for t, k in zip(targets, known, strict=True) if t.startswith("aten::")]
        lacking = [t for t, k in zip(targets, known, strict=True) if t.startswith("aten::") and name not in k]
        if lacking:
            common = set.intersection(*({n for n, kind in k.items() if kind != "t"} for k in checked))
            hint = did_you_mean(name, common) or "known: " + ", ".join(sorted(common))
            if name in opnames.DERIVED:
                hint = f"'{name}' is not derived for this operator; known: " + ", ".join(sorted(common))
            self._tell("HCD063", at, f"{lacking[0]} has no argument '{name}'", hint, key=True)
            return
        kinds = {k[name] for k in checked}
        if any(kind.startswith("t") for kind in kinds):
            self._tensor_condition(name, predicate, at)
            return
        self._predicate(name, predicate, at, kinds)

    def _tensor_condition(self, name: str, predicate: Predicate, at: Loc) -> None:
        words = [predicate.equals, *(predicate.in_ or []), *(predicate.not_ or [])]
        given = [w for w in words if w is not None]
        odd = any(getattr(predicate, o) is not None for o in _ORDERED) or not given
        if odd or any(w not in ("present", "absent") for w in given):
            hint = "only 'present' and 'absent' can be asked of a tensor; its dtype goes under 'dtypes'"
            self._tell("HCD064", at, f"'{name}' is a tensor: its value cannot be a condition", hint, key=True)

    def _predicate(self, name: str, predicate: Predicate, at: Loc, kinds: set[str]) -> None:
        given = predicate.model_dump(exclude_none=True, exclude={"why"})
        if not given and self._node(at).path in self.touched:
            return
        if not given:
            hint = "allowed: in, min, max, multiple_of, equals, not"
            self._tell("HCD064", at, "the condition says nothing", hint, key=True)
            return
        low, high = predicate.min, predicate.max
        for bound, value in (("min", low), ("max", high)):
            if isinstance(value, bool | str):
                self._tell("HCD064", (*at, bound), f"{show(value)} cannot be compared by size", "give a number")
                return
        if low is not None and high is not None and low > high:  # type: ignore[operator]
            self._tell("HCD064", (*at, "min"), f"the minimum {low} is above the maximum {high}")
        flag = name in opnames.DERIVED_FLAGS or (bool(kinds) and all(k.startswith("b") for k in kinds))
        number = bool(kinds) and all(k.startswith("n") for k in kinds) and not flag
        if flag and any(getattr(predicate, o) is not None for o in _ORDERED):
            self._tell("HCD064", at, f"'{name}' is true or false", f"write '{name}: true' or '{name}: false'", key=True)
            return
        for value in (predicate.equals, *(predicate.in_ or []), *(predicate.not_ or [])):
            if value is None:
                continue
            if flag and not isinstance(value, bool):
                self._tell("HCD064", at, f"'{name}' is true or false, not {show(value)}", key=True)
            elif number and (isinstance(value, bool | str)):
                self._tell("HCD064", at, f"'{name}' is a number, not {show(value)}", key=True)

    def _cost(self, entry: Conditions, at: Loc) -> None:
        cost = entry.cost
        if cost is None:
            return
        levels = [n for n in ("on_chip_cache", "off_chip_memory") if getattr(self.hcd.memory, n) is not None]
        if cost.reuse is not None and cost.reuse not in levels and self._sound(("memory",)):
            hint = did_you_mean(cost.reuse, levels) or "the chip declares no memory"
            self._tell("HCD059", (*at, "reuse"), f"the chip has no memory level {show(cost.reuse)}", hint)
        if cost.unit is not None and cost.unit not in self.units and self._sound(("compute_units",)):
            hint = did_you_mean(cost.unit, self.units) or "the chip declares no compute unit"
            self._tell("HCD059", (*at, "unit"), f"the chip has no compute unit {show(cost.unit)}", hint)
