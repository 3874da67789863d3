"""Writes torchfl/hcd/opnames.json: PyTorch's operators with their overloads and arguments, so that descriptors can be
checked where torch is not installed.

    python tools/gen_opnames.py            # writes the file
    python tools/gen_opnames.py --check    # fails if the file differs from what the installed torch says

The file maps the bare name of each aten operator to
    "a": {argument name: type letters}   union over overloads; see TYPES; out arguments are left out
    "o": [overload names]                "" is the default overload
    "c": 1                               only if PyTorch always takes the operator apart before a backend sees it
In-place variants (`add_`) are entries of their own. "uba::vadd" and so on are the chips' instructions
(torchfl/compose/instructions.py), which have no overloads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from torchfl.compose.instructions import INSTRUCTIONS

TARGET = Path(__file__).parent.parent / "torchfl" / "hcd" / "opnames.json"

#: JIT type -> letter: t tensor(s), n number(s), b boolean(s), s text, d dtype, x anything else; ? may be None.
TYPES = {
    "Tensor": "t",
    "int": "n",
    "SymInt": "n",
    "float": "n",
    "number": "n",
    "Scalar": "n",
    "bool": "b",
    "str": "s",
    "ScalarType": "d",
}


def letter(arg_type: Any) -> str:
    text = str(arg_type)
    optional = text.startswith("Optional[")
    inner = text.removeprefix("Optional[").rstrip("]").replace("List[", "").replace("Optional[", "")
    return TYPES.get(inner, "x") + ("?" if optional else "")


def collect() -> dict[str, dict[str, Any]]:
    ops: dict[str, dict[str, Any]] = {}
    composite: dict[str, bool] = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if namespace != "aten":
            continue
        full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        try:
            implicit = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        except RuntimeError:
            continue  # known to TorchScript only
        entry = ops.setdefault(name, {"a": {}, "o": []})
        entry["o"].append(schema.overload_name)
        for arg in schema.arguments:
            if not arg.is_out:
                entry["a"].setdefault(arg.name, letter(arg.real_type))
        if not any(arg.is_out for arg in schema.arguments):  # out forms are generated around the functional one
            composite[name] = composite.get(name, True) and implicit
    for name, entry in ops.items():
        entry["o"] = sorted(set(entry["o"]))
        if composite.get(name):
            entry["c"] = 1
    for name, instruction in INSTRUCTIONS.items():
        schema = torch._C.parse_schema(f"uba::{instruction.schema}")
        ops[f"uba::{name}"] = {"a": {arg.name: letter(arg.real_type) for arg in schema.arguments}, "o": [""]}
    return dict(sorted(ops.items()))


def text() -> str:
    lines = [f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}" for name, entry in collect().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text():
            print(f"{TARGET} is not what torch {torch.__version__} says; run tools/gen_opnames.py", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
