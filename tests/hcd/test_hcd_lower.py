"""The plain data for the engine: its shape as documented in lower.py, and the rows that operators become."""

import json
import re
from pathlib import Path

import pytest

from torchfl import hcd
from torchfl.hcd import lower as lower_module

HERE = Path(__file__).parent
BASE = "hcd: 1\nchip: {name: A, vendor: B, device_type: c}\ntensor: {supported_dtypes: [float16, int8]}\n"


def rows(write, text):
    return hcd.load(write(BASE + text)).lower()["ops"]


def test_keys_are_those_that_are_documented():
    lowered = hcd.load(HERE / "good" / "full.hcd", env={}).lower()
    for key in (*lowered, *lowered["ops"][0]):
        assert re.search(rf"\b{key}\b", lower_module.__doc__), key
    assert lowered == json.loads(json.dumps(lowered))


def test_full():
    lowered = hcd.load(HERE / "good" / "full.hcd", env={}).lower()
    assert (lowered["device_type"], lowered["variant"], lowered["version"]) == ("full", "one", "1.2.0-rc.1")
    assert lowered["adapter_library"] == str(HERE / "good" / "lib" / "libuba_full.so")
    assert lowered["sdk"] is None
    assert lowered["adapter"]["runtime"] == "/opt/full/libfull.so"
    assert (lowered["alignment"], lowered["max_rank"], lowered["max_batch"], lowered["max_seq"]) == (256, 6, 512, 8192)
    assert (lowered["memory_bytes"], lowered["unified"]) == (4 << 30, True)
    assert lowered["memory"]["on_chip_cache"] == {
        "size": 8 << 20,
        "bandwidth": 256 * 10**9,
        "latency_ps": 12_500,
        "energy_per_byte_fj": 500,
    }
    assert lowered["attention"] == {
        "enabled": True,
        "max_sequence_length": 8192,
        "supported_heads": [1, 2, 4, 8, 16],
        "beyond": "compose",
    }
    assert lowered["layouts"] == ["NCHW", "NHWC", "NHCW"] and lowered["default_layout"] == "NHCW"
    assert lowered["compute_units"]["float16"] == {
        "unit": "fp16",
        "count": 256,
        "peak": 25_600_000_000_000,
        "layouts": ["NCHW", "NHWC", "NHCW"],
        "clock": None,
        "energy_fj": None,
        "tile": [],
    }
    assert lowered["compute_units"]["complex64"]["unit"] == "fp32"
    assert lowered["autocast"] == {
        "dtype": "float16",
        "lower_precision": ["aten::mm", "aten::conv2d", "aten::linear"],
        "fp32": ["aten::softmax", "aten::layer_norm"],
        "promote": ["aten::cat"],
    }
    assert lowered["fallback"] == {
        "default": "compose",
        "ops": {"aten::_softmax": "custom_softmax", "aten::bmm": "error", "aten::cumsum": "cpu"},
        "declared": {"aten::_softmax": "aten::softmax", "aten::bmm": "aten::bmm", "aten::cumsum": "aten::cumsum"},
        "budget": {"calls": 0, "bytes": 1 << 20},
    }
    assert lowered["power"] == {"cap_mw": 15_000, "idle_mw": 800}
    assert lowered["overheads"]["launch_ps"] == 4_000_000
    assert lowered["overheads"]["host_to_device_bandwidth"] == 8 * 10**9
    assert [(row["op"], row["kernel"]) for row in lowered["instructions"]] == [
        ("uba::vadd", "vadd"), ("uba::vmul", "vmul"), ("uba::vexp", "vexp"), ("uba::reduce_sum", "reduce_sum")
    ]  # fmt: skip
    assert lowered["fusions"][0]["ops"] == ["aten::conv2d", "aten::relu"]


def test_unknown_is_none_never_zero(write):
    lowered = hcd.load(write(BASE)).lower()
    assert lowered["memory_bytes"] is None and lowered["max_rank"] is None and lowered["attention"] is None
    assert lowered["memory"] == {} and lowered["compute_units"] == {}
    assert set(lowered["overheads"].values()) == {None} and set(lowered["power"].values()) == {None}
    assert lowered["alignment"] == 64 and lowered["layouts"] == []


def test_one_row_per_operator_that_is_reached_and_per_path(write):
    found = rows(write, "ops:\n  - op: aten::matmul\n    paths: [{kernel: a}, {kernel: b}]\n")
    assert [(r["op"], r["kernel"], r["path"]) for r in found] == [
        ("aten::mm", "a", 0),
        ("aten::mm", "b", 1),
        ("aten::bmm", "a", 0),
        ("aten::bmm", "b", 1),
    ]
    assert {r["declared"] for r in found} == {"aten::matmul"}


def test_placeholders(write):
    found = rows(write, "ops:\n  - {op: [aten::add, aten::mul_, aten::linear], kernel: 'k_{op}_{target}'}\n")
    assert [r["kernel"] for r in found] == ["k_add_add", "k_mul_mul", "k_linear_addmm", "k_linear_mm"]


def test_overloads(write):
    found = rows(
        write,
        "ops:\n  - {op: aten::add.Tensor, kernel: a}\n  - {op: aten::add_.Scalar, kernel: b}\n"
        "  - {op: aten::softmax.int, kernel: c}\n  - {op: aten::relu.default, kernel: d}\n",
    )
    assert [(r["op"], r["overload"]) for r in found] == [
        ("aten::add", "Tensor"),
        ("aten::add", "Scalar"),
        ("aten::_softmax", None),
        ("aten::relu", ""),
    ]


def test_dtypes(write):
    found = rows(
        write,
        "ops:\n  - {op: aten::add, kernel: a}\n  - {op: aten::mul, kernel: b, dtypes: [int8]}\n"
        "  - {op: aten::embedding, kernel: c, dtypes: {weight: [float16], indices: [int64, int32]}}\n"
        "  - {op: aten::linear, kernel: d, dtypes: {'*': [float16], mat1: [int8]}}\n",
    )
    assert [r["dtypes"] for r in found] == [
        {"*": ["float16", "int8"]},
        {"*": ["int8"]},
        {"*": ["float16", "int8"], "weight": ["float16"], "indices": ["int64", "int32"]},
        {"*": ["float16"], "mat1": ["int8"]},
        {"*": ["float16"]},  # mm has no mat1
    ]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("2", [("equals", [2])]),
        ("[1, 2]", [("in", [1, 2])]),
        ("{in: [1, 2], max: 1}", [("in", [1, 2]), ("max", [1])]),
        ("{min: 1, max: 3}", [("min", [1]), ("max", [3])]),
        ("{multiple_of: 16}", [("multiple_of", [16])]),
        ("{equals: 0}", [("equals", [0])]),
        ("{not: 3}", [("not", [3])]),
        ("{not: [3, 4]}", [("not", [3, 4])]),
    ],
)
def test_conditions(write, predicate, expected):
    (row,) = rows(write, f"ops:\n  - {{op: aten::convolution, kernel: k, where: {{stride: {predicate}}}, why: w}}\n")
    assert [(c["name"], c["op"], c["values"], c["why"]) for c in row["where"]] == [
        ("stride", op, values, "w") for op, values in expected
    ]


@pytest.mark.parametrize(
    ("name", "rank", "transposed"), [("conv1d", 3, 0), ("conv2d", 4, 0), ("conv3d", 5, 0), ("conv_transpose2d", 4, 1)]
)
def test_a_special_convolution_serves_only_its_own_case(write, name, rank, transposed):
    (row,) = rows(write, f"ops:\n  - {{op: aten::{name}, kernel: k, where: {{groups: 1}}}}\n")
    assert row["op"] == "aten::convolution_overrideable"
    assert [(c["name"], c["op"], c["values"]) for c in row["where"]] == [
        ("rank", "equals", [rank]),
        ("transposed", "equals", [transposed]),
        ("groups", "equals", [1]),
    ]


def test_booleans_and_text_in_conditions(write):
    found = rows(
        write,
        "ops:\n  - {op: aten::max_pool2d, kernel: k, where: {ceil_mode: false, contiguous: true}}\n"
        "  - {op: aten::gelu, kernel: g, where: {approximate: [none, tanh]}}\n",
    )
    assert [(c["name"], c["values"]) for c in found[0]["where"]] == [("ceil_mode", [0]), ("contiguous", [1])]
    assert type(found[0]["where"][0]["values"][0]) is int
    assert found[1]["where"][0]["values"] == ["none", "tanh"]


def test_a_path_adds_to_the_conditions_of_its_entry(write):
    (row,) = rows(
        write,
        "ops:\n  - op: aten::mm\n    where: {K: {multiple_of: 16}}\n    why: outer\n"
        "    cost: {launch: 4 us, efficiency: 0.5}\n"
        "    paths:\n      - {kernel: k, where: {M: {min: 8, why: inner}}, cost: {launch: 1 us}, dtypes: [int8]}\n",
    )
    assert [(c["name"], c["why"]) for c in row["where"]] == [("K", "outer"), ("M", "inner")]
    assert row["cost"] == {"launch_ps": 1_000_000, "efficiency": 0.5}
    assert row["dtypes"] == {"*": ["int8"]} and row["line"] == 10


def test_lowering_is_deterministic():
    one = hcd.load(HERE / "good" / "full.hcd", env={}).lower()
    two = hcd.load(HERE / "good" / "full.hcd", env={}).lower()
    assert json.dumps(one) == json.dumps(two)
