"""The vocabulary of descriptors: dtypes, compute units and which dtypes each serves, layouts.

Contract: every list of such names in the package comes from here. Names are PyTorch's for dtypes (without `torch.`)
and the usual short ones for compute units.
"""

from __future__ import annotations

import re

DTYPES: tuple[str, ...] = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
)

#: Spellings met elsewhere, for hints.
DTYPE_SYNONYMS: dict[str, str] = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "char": "int8",
    "byte": "uint8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "boolean": "bool",
}

#: compute unit -> the dtype it is named after
UNIT_DTYPE: dict[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "bool": "bool",
}

#: dtype -> the units that compute in it, best first. A dtype that is not a key needs no unit of its own: every unit
#: moves, compares and indexes with integers and bool.
SERVED_BY: dict[str, tuple[str, ...]] = {
    "float64": ("fp64",),
    "float32": ("fp32", "tf32"),
    "bfloat16": ("bf16", "fp16"),
    "float16": ("fp16",),
    "float8_e4m3fn": ("fp8",),
    "float8_e5m2": ("fp8",),
    "int8": ("int8", "uint8"),
    "uint8": ("uint8", "int8"),
    "complex32": ("fp16",),
    "complex64": ("fp32", "tf32"),
    "complex128": ("fp64",),
}

#: Dtypes that an operator may take for indices and masks without the chip computing in them.
INDEX_DTYPES: frozenset[str] = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool"})

FLOATING: frozenset[str] = frozenset(d for d in DTYPES if "float" in d or "complex" in d)

LAYOUT = re.compile(r"[NCDHW]{2,5}")


def is_layout(name: str) -> bool:
    """A permutation of some of the letters N C D H W, such as NCHW, NHCW, NDHWC or NC."""
    return bool(LAYOUT.fullmatch(name)) and len(set(name)) == len(name)
