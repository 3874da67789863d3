"""Whatever bytes a file holds, the reader answers with diagnostics: never another exception, and in bounded time."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchfl import hcd
from torchfl.hcd.codes import CATALOGUE
from torchfl.hcd.diagnostics import Report
from torchfl.hcd.nodes import parse

HERE = Path(__file__).parent
BASE = "hcd: 1\nchip: {name: A, vendor: B, device_type: c}\ntensor: {supported_dtypes: [float16]}\n"
SEEDS = [
    (HERE / "good" / n).read_bytes() for n in ("full.hcd", "npu_v3.hcd", "x1_device.yaml", "child.hcd", "numbers.hcd")
]
TOKENS = [
    *("{", "}", "[", "]", ":", "- ", "? ", "&a ", "*a", "!!int ", "|\n", ">", "'", '"', "#", "%YAML 1.2\n", "---\n"),
    *("...\n", "\n", "\t", "  ", "<<: ", "null", "~", "true", ".nan", ".inf", "-1", "0", "1e9", "1e999", "9" * 30),
    *("${X}", "$", "hcd: 1\n", "extends: a.hcd\n", "ops:\n", "delete: true\n", "op: ", "\u82af", "\ufeff", "\u2028"),
    *("8 MiB", "-3 TFLOP/s", "aten::add", "where: ", "dtypes: ", "compute_units: ", "memory: ", "supported_ops: "),
]

fast = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def check(folder, data):
    path = folder / "hostile.hcd"
    path.write_bytes(data)
    found = hcd.validate(path, env={})
    for d in found:
        assert d.code in CATALOGUE and d.line >= 1 and d.col >= 1 and d.file
        d.render()
        d.to_json()
    try:
        hcd.load(path, env={}).lower()
        assert not any(d.is_error for d in found)
    except hcd.DescriptorError as error:
        assert error.diagnostics == found and any(d.is_error for d in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@fast
@given(data=st.binary(max_size=300))
def test_random_bytes(folder, data):
    check(folder, data)


@fast
@given(text=st.lists(st.sampled_from(TOKENS) | st.text(max_size=5), max_size=40).map("".join))
def test_random_yaml(folder, text):
    check(folder, text.encode("utf-8", "surrogatepass"))


@fast
@given(text=st.lists(st.sampled_from(TOKENS) | st.text(max_size=5), max_size=15).map("".join))
def test_random_yaml_in_a_descriptor(folder, text):
    check(folder, BASE.encode() + text.encode("utf-8", "surrogatepass"))


@st.composite
def mutations(draw):
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 40))
        piece = draw(st.sampled_from([t.encode() for t in TOKENS]) | st.binary(max_size=4))
        action = draw(st.sampled_from(["insert", "replace", "delete", "double"]))
        if action == "insert":
            data[at:at] = piece
        elif action == "replace":
            data[at : at + length] = piece
        elif action == "delete":
            del data[at : at + length]
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


@fast
@given(data=mutations())
def test_mutated_descriptors(folder, data):
    check(folder, data)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "x", "8 MiB", "aten::add"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "kernel", "where", "in", "fp16", "dtypes", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SECTIONS = (
    *("chip", "adapter", "compute_units", "memory", "tensor", "constraints", "power", "ops", "instructions", "fusions"),
    *("fallback", "overheads", "extends", "provenance", "capabilities", "supported_ops", "fallback_policy"),
    *("device_type", "runtime_so", "compute", "hcd", "x-a"),
)


@fast
@given(document=st.dictionaries(st.sampled_from(SECTIONS), VALUES, max_size=5), canonical=st.booleans())
def test_well_formed_nonsense(folder, document, canonical):
    import json

    if canonical:
        document = {"hcd": 1, **document}
    check(folder, json.dumps(document).encode())


@pytest.mark.parametrize(
    "text",
    [
        BASE + "x-a: " + "[" * 50_000,
        BASE + "x-a: " + "{a: " * 50_000,
        BASE + "x-a: " + "[" * 31 + "]" * 31,
        BASE + "x-a: [" + "1, " * 60_000 + "1]\n",
        BASE + "ops:\n" + "  - {op: aten::nothing_such, kernel: k}\n" * 3_000,
        BASE + "ops:\n  - {op: [" + "aten::add, " * 10_000 + "], kernel: k, where: {" + "a: 1, " * 5_000 + "}}\n",
        BASE + "x-a: &a [1]\nx-b: &b [*a, *a]\n" + "".join(f"x-{i}: &b [*b, *b]\n" for i in range(60)),
        BASE + "".join(f"k{i}: 1\n" for i in range(5_000)),
        BASE + "? " * 100_000,
        BASE + "x-a: '" + "\n" * 100_000,
    ],
    ids=lambda text: text[len(BASE) :][:20],
)
def test_large_input_is_answered_quickly(folder, text):
    started = time.monotonic()
    path = folder / "large.hcd"
    path.write_bytes(text.encode()[: 1 << 20])
    found = hcd.validate(path)
    assert time.monotonic() - started < 20
    assert all(d.code in CATALOGUE for d in found)


def test_nothing_is_constructed(folder):
    marker = folder / "made"
    text = f"hcd: !!python/object/apply:os.system ['touch {marker}']\n"
    check(folder, text.encode())
    assert not marker.exists()


def test_depth_through_aliases_is_counted():
    text = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [[[[[*a{i - 1}]]]]]\n" for i in range(1, 10))
    report = Report()
    assert parse(text.encode(), "f", report) is None
    assert [d.code for d in report.sorted()] == ["HCD004"]


def test_windows_line_ends_and_a_byte_order_mark(folder):
    path = folder / "dos.hcd"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode() + b"memroy: {}\r\n")
    (found,) = hcd.validate(path)
    assert (found.code, found.line, found.col) == ("HCD011", 4, 1)


def test_utf16_is_refused_with_a_place(folder):
    path = folder / "utf16.hcd"
    path.write_bytes(BASE.encode("utf-16"))
    (found,) = hcd.validate(path)
    assert (found.code, found.line, found.col) == ("HCD002", 1, 1)


def test_a_group_of_operators_is_bounded(folder):
    text = BASE + "ops:\n  - {op: [" + "aten::add, " * 900 + "], kernel: k, dtypes: [" + "float16, " * 900 + "]}\n"
    path = folder / "group.hcd"
    path.write_text(text)
    assert [d.code for d in hcd.validate(path)] == ["HCD004"]
