"""JSON Schema of the canonical descriptor, for editors: completion, hover text, red lines while typing.

Contract: `json_schema()` returns a JSON Schema (draft 2020-12) that accepts every canonical file the reader accepts,
parents' halves and children included. It cannot express units' spelling in every detail, variables, operator names or
the rules between fields; `torchfl validate` does.
"""

from __future__ import annotations

from typing import Any

from torchfl.hcd.extends import NAMED_LISTS
from torchfl.hcd.model import Hcd

SCHEMA_ID = "https://flagos.io/schemas/hcd-1.json"

#: The models whose required keys a parent may give, by where they stand.
_INHERITABLE = {"chip": "Chip", "tensor": "Tensor"}
_ENTRIES = {"ops": "Op", "instructions": "Instruction", "fusions": "Fusion", "paths": "OpPath"}


def json_schema() -> dict[str, Any]:
    """The schema as plain data. What is required is required only of files without `extends`."""
    schema = Hcd.model_json_schema(by_alias=True, mode="validation")
    definitions: dict[str, Any] = schema["$defs"]
    alone: dict[str, Any] = {}
    for section, name in _INHERITABLE.items():
        alone[section] = {"required": definitions[name].pop("required")}
    alone["fusions"] = {"items": {"required": definitions["Fusion"]["required"]}}
    for part in (schema, *definitions.values()):
        _allow_null(part)
    for where, name in _ENTRIES.items():
        definitions[name]["required"] = [NAMED_LISTS[where]]
        definitions[name]["properties"]["delete"] = {"const": True, "description": "Remove the inherited entry."}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$id"] = SCHEMA_ID
    schema["title"] = "Hardware Capability Descriptor, format 1"
    schema["properties"]["hcd"] = {"const": 1, "description": "The descriptor format."}
    schema["patternProperties"] = {"^x-": {}}
    schema["required"] = ["hcd"]
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {"required": sorted(_INHERITABLE), "properties": alone}
    return schema


def _allow_null(part: dict[str, Any]) -> None:
    """`key: null` deletes an inherited value, so it may stand under every key; also below, where maps are written in
    place."""
    properties: dict[str, Any] = part.get("properties", {})
    for key, value in properties.items():
        properties[key] = _nullable(value)
    if isinstance(part.get("additionalProperties"), dict):
        part["additionalProperties"] = _nullable(part["additionalProperties"])


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    for option in (schema, *schema.get("anyOf", [])):
        _allow_null(option)
    if any(option.get("type") == "null" for option in schema.get("anyOf", [])):
        return schema
    notes: dict[str, Any] = {k: schema.pop(k) for k in ("title", "description", "default") if k in schema}
    return {**notes, "anyOf": [schema, {"type": "null"}]}
