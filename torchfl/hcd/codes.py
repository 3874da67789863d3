"""The catalogue of diagnostic codes: one entry a code, with severity, title and an explanation that says what to do.

Contract: a code, once released, keeps its meaning; a retired code is never used again. The tens group the codes
(`GROUPS`), and gaps are left for later ones. `docs/diagnostics.md` is generated from here (see diagnostics.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Entry(NamedTuple):
    severity: Literal["error", "warning"]
    title: str
    explanation: str


def _error(title: str, explanation: str) -> Entry:
    return Entry("error", title, explanation)


def _warning(title: str, explanation: str) -> Entry:
    return Entry("warning", title, explanation)


GROUPS: dict[str, str] = {
    "HCD00": "The file and its YAML",
    "HCD01": "Keys and values",
    "HCD02": "Quantities",
    "HCD03": "Inheritance",
    "HCD04": "Environment variables",
    "HCD05": "Consistency of the chip",
    "HCD06": "Operators",
    "HCD08": "Legacy forms",
}

CATALOGUE: dict[str, Entry] = {
    "HCD001": _error(
        "the file cannot be read",
        "It does not exist, is a directory, or may not be opened. The message carries the system's reason.",
    ),
    "HCD002": _error(
        "the file is not plain UTF-8 text",
        "A descriptor is UTF-8 without control characters (tab and line breaks apart). The position is that of the"
        " first byte or character that does not fit; UTF-16 files and binary files end up here.",
    ),
    "HCD003": _error(
        "YAML syntax error",
        "The text is not well-formed YAML. Usual causes: a missing space after a colon, a tab used for indentation,"
        " a bracket that is not closed, a value with `: ` in it that needs quotes.",
    ),
    "HCD004": _error(
        "the file is too large or too deep",
        "Limits: 1 MiB of text, 32 levels of nesting, 50000 values after aliases are expanded. A chip needs a small"
        " fraction of this; the limits keep a hostile file from exhausting memory.",
    ),
    "HCD005": _error(
        "duplicate key",
        "The same key stands twice in one mapping. YAML libraries often keep the last one silently, so one of the two"
        " values would be lost; the note says where the first one is.",
    ),
    "HCD006": _error(
        "YAML feature that descriptors do not use",
        "Tags (`!name`), merge keys (`<<`), keys that are not plain text, an alias inside its own anchor and several"
        " documents in one file are refused. Use `extends` to share values between files.",
    ),
    "HCD007": _error(
        "number that is not finite or too large",
        "NaN and infinity describe no hardware, and integers must fit in 64 bits.",
    ),
    "HCD008": _error(
        "the file holds no descriptor",
        "A descriptor is one mapping at the top level; this file is empty, or holds a list or a single value.",
    ),
    "HCD009": _error(
        "too many problems",
        "Reading stopped at 200 problems. Most of them probably have one cause: start with the first.",
    ),
    "HCD010": _error(
        "descriptor format missing or not supported",
        "A descriptor starts with `hcd: 1`. A larger number was written for a newer release of Torch-FL: update the"
        " package. Without the key only the two legacy forms are recognised, by their sections.",
    ),
    "HCD011": _error(
        "unknown key",
        "The section has no such key; nothing is ignored silently, because a misspelt limit would not protect"
        " anything. Data of your own goes under a top-level key that starts with `x-`, such as `x-acme`.",
    ),
    "HCD012": _error("missing key", "The section needs this key. The message names it."),
    "HCD013": _error(
        "value of the wrong type",
        "For instance text where a number is needed. Numbers in quotes are text. Only `true` and `false` are"
        " booleans; `yes`, `no`, `on` and `off` are text.",
    ),
    "HCD014": _error("value that is not one of the allowed ones", "The hint lists what is allowed, or the closest."),
    "HCD015": _error("value out of range", "A count of zero, a negative limit, an empty list, a share above 1."),
    "HCD016": _error(
        "malformed text",
        "The value must follow a pattern, which the message names: versions are `1.2.3`, device types are lower-case"
        " letters, digits and underscores (with an optional `:variant`) and do not start with `cpu` or `cuda`, which"
        " PyTorch keeps for itself.",
    ),
    "HCD017": _error("the same value twice in one list", "Each entry of the list may be given once."),
    "HCD020": _error(
        "quantity without a unit, or with an unknown one",
        "Every quantity with a dimension carries its unit: `25.6 TFLOP/s`, `8 MiB`, `128 GB/s`, `4 us`. A bare number"
        " is refused because it would have to be guessed.",
    ),
    "HCD021": _error(
        "unit of another dimension",
        "The unit exists but measures something else: a size needs bytes, a bandwidth bytes per second.",
    ),
    "HCD022": _error("negative or zero quantity", "Rates, sizes, bandwidths, times and energies are positive."),
    "HCD023": _error(
        "quantity that its field cannot hold",
        "Sizes are whole numbers of bytes, and every value must fit in 64 bits of its base unit"
        " (B, B/s, op/s, Hz, mW, fJ, ps) and must not vanish when rounded to it.",
    ),
    "HCD030": _error(
        "the parent cannot be used",
        "`extends` names one file by a path relative to the file it stands in, or a shipped chip. The parent is"
        " missing, unreadable or has errors of its own (which are reported too).",
    ),
    "HCD031": _error("inheritance cycle", "The chain of `extends` comes back to a file that it started from."),
    "HCD032": _error(
        "deletes something that is not there",
        "`key: null` and `delete: true` remove what a parent gave. The parent has nothing of that name, so this is"
        " probably a misspelling.",
    ),
    "HCD033": _error(
        "child and parent differ in kind",
        "A mapping can only be merged with a mapping, and a list replaces only a list. Delete the inherited value"
        " with `null` in a file between, or write the same kind.",
    ),
    "HCD034": _error("inheritance chain too long", "More than 16 files extend each other."),
    "HCD040": _error(
        "environment variable that is not set",
        "Set the variable, or give a default: `${NAME:-default}`. Variables are expanded in path fields only.",
    ),
    "HCD041": _error(
        "malformed variable reference", "Write `${NAME}` or `${NAME:-default}`; a literal dollar is `$$`."
    ),
    "HCD042": _warning(
        "variable in a field that is not a path",
        "`${NAME}` is expanded in `extends` and in the path fields of `adapter` only. Here it is taken as text.",
    ),
    "HCD050": _error(
        "default_layout is supported by no compute unit",
        "`tensor.default_layout` is how memory is laid out when nothing else is asked for, so at least one unit has to"
        " compute in it: add it to that unit's `supported_layouts`, or choose another default.",
    ),
    "HCD051": _error(
        "dtype without a compute unit",
        "`tensor.supported_dtypes` lists what the chip computes in. float16 needs the unit `fp16`, bfloat16 `bf16` or"
        " `fp16`, float32 `fp32` or `tf32`, float64 `fp64`, int8 and uint8 `int8` or `uint8`, float8 types `fp8`,"
        " complex types the unit of their parts. Other integers and bool need none: any unit moves and compares them.",
    ),
    "HCD052": _error(
        "operator dtype that the chip does not support",
        "An entry of `ops` or `fusions` lists a dtype that is not in `tensor.supported_dtypes`. Integers and bool may"
        " be named freely for arguments such as indices (`dtypes: {index: [int64]}`).",
    ),
    "HCD053": _error(
        "operator layout that no unit supports",
        "An entry of `ops` lists a layout that is in no unit's `supported_layouts`.",
    ),
    "HCD056": _error(
        "alignment is not a power of two",
        "Allocators align addresses to powers of two only: 64, 128, 256, 512 and so on.",
    ),
    "HCD057": _error(
        "attention unit contradicts the rest",
        "Its `max_sequence_length` exceeds `constraints.max_sequence_length`, or limits are given for a unit with"
        " `enabled: false`.",
    ),
    "HCD058": _error(
        "bfloat16 is both native and emulated",
        "Listing bfloat16 in `tensor.supported_dtypes` says that the chip has bfloat16 arithmetic. With"
        " `constraints.bfloat16_emulation: true` it is computed in float16: then list float16 only.",
    ),
    "HCD059": _error(
        "reference to something that the descriptor does not have",
        "For instance a cost that names a memory level or a compute unit which is not declared.",
    ),
    "HCD060": _error(
        "malformed operator name",
        "An operator is named `namespace::name`, or `namespace::name.overload` for one overload, as in `aten::add`"
        " and `aten::add.Tensor`.",
    ),
    "HCD061": _error(
        "unknown operator",
        "PyTorch 2.13 has no operator, or no overload, of that name. Names in other namespaces than `aten` are not"
        " checked.",
    ),
    "HCD062": _error(
        "an operator needs one kernel or several paths",
        "Each entry of `ops` has either `kernel` or `paths` with at least one kernel.",
    ),
    "HCD063": _error(
        "condition on something that the operator does not have",
        "A name in `where` is neither an argument of the operator (as it reaches the chip) nor a quantity derived from"
        " its arguments, such as K of a matrix product or kernel_size of a convolution.",
    ),
    "HCD064": _error(
        "condition that makes no sense",
        "An empty list, a minimum above the maximum, no predicate at all, text compared by size, a condition on the"
        " value of a tensor.",
    ),
    "HCD065": _error(
        "unknown placeholder in a kernel name",
        "Only `{op}` (the operator's name without namespace) and `{target}` (the operator that reaches the chip) are"
        " replaced.",
    ),
    "HCD066": _warning(
        "operator that never reaches a chip",
        "PyTorch takes this operator apart before any chip sees it, so the entry has no effect. Declare the operators"
        " it consists of.",
    ),
    "HCD067": _error("the same path twice", "Two paths of one entry name the same kernel; the second is unreachable."),
    "HCD068": _error("unknown instruction", "The instruction set is fixed; docs/instructions.md lists it."),
    "HCD069": _error(
        "int8_as without its dtype",
        "`int8_as: uint8` hands int8 tensors to a kernel that takes uint8, so `uint8` has to be among the entry's own"
        " `dtypes`.",
    ),
    "HCD080": _warning(
        "legacy file without `hcd:`",
        "The file has the shape of the first origin document and is read as that document means it. Add `hcd: 1` and"
        " write quantities with their units to make it canonical.",
    ),
    "HCD081": _warning(
        "legacy key with its unit in the name",
        "Read as the origin documents mean it: `peak_gflops` in TFLOP/s, `peak_gops` in TOP/s, `size_kb` in KiB,"
        " `total_gb` in GiB, `bandwidth_gbps` and `bandwidth_gb_per_s` in GB/s. The message says what was understood.",
    ),
    "HCD082": _warning("legacy dtype name", "Write `float16`, not `torch.float16`."),
    "HCD083": _warning(
        "legacy device file",
        "The file has the shape of the second origin document (device_type, capabilities, supported_ops,"
        " fallback_policy) and is read as that document means it.",
    ),
    "HCD084": _warning("legacy variable reference", "Write `${NAME}`, not `$NAME`."),
}
