"""Environment variables: expanded after parsing, in path fields only."""

import pytest

from torchfl import hcd

BASE = "hcd: 1\nchip: {name: A, vendor: B, device_type: c}\ntensor: {supported_dtypes: [float16]}\n"


def sdk(write, text, env):
    return hcd.load(write(BASE + f"adapter: {{sdk: '{text}'}}\n"), env=env).model.adapter.sdk


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("/opt/sdk", {}, "/opt/sdk"),
        ("${SDK}/lib", {"SDK": "/a"}, "/a/lib"),
        ("${A}${B}", {"A": "1", "B": "2"}, "12"),
        ("${SDK:-/opt}/lib", {}, "/opt/lib"),
        ("${SDK:-/opt}/lib", {"SDK": ""}, "/opt/lib"),
        ("${SDK:-/opt}/lib", {"SDK": "/a"}, "/a/lib"),
        ("${SDK:-}", {}, ""),
        ("${SDK}", {"SDK": ""}, ""),
        ("a$$b", {}, "a$b"),
        ("$${SDK}", {}, "${SDK}"),
        ("${SDK}", {"SDK": "${OTHER}"}, "${OTHER}"),  # a value is not expanded again
        ("${SDK}", {"SDK": "x, name: [evil]\n"}, "x, name: [evil]\n"),  # and cannot change the structure
    ],
)
def test_expansion(write, text, env, value):
    assert sdk(write, text, env) == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("${SDK}", "HCD040"),
        ("$SDK", "HCD041"),
        ("${}", "HCD041"),
        ("${9}", "HCD041"),
        ("${SDK", "HCD041"),
        ("${SDK-x}", "HCD041"),
        ("end$", "HCD041"),
    ],
)
def test_refused(write, text, code):
    (found,) = hcd.validate(write(BASE + f"adapter: {{sdk: '{text}'}}\n"), env={})
    assert (found.code, found.line, found.col, found.path) == (code, 4, 16, "adapter.sdk")


def test_the_process_environment_is_the_default(write, monkeypatch):
    path = write(BASE + "adapter: {sdk: '${TORCHFL_TEST_SDK}'}\n")
    monkeypatch.setenv("TORCHFL_TEST_SDK", "/from/env")
    assert hcd.load(path).model.adapter.sdk == "/from/env"
    monkeypatch.delenv("TORCHFL_TEST_SDK")
    assert [d.code for d in hcd.validate(path)] == ["HCD040"]


def test_extends_is_a_path_too(write):
    write(BASE, "parents/base.hcd")
    path = write("hcd: 1\nextends: '${WHERE}/base.hcd'\n")
    assert hcd.load(path, env={"WHERE": "parents"}).model.chip.name == "A"
    assert "HCD040" in [d.code for d in hcd.validate(path, env={})]


def test_only_paths_are_expanded(write):
    path = write(BASE.replace("name: A", 'name: "${NAME}"') + 'x-a: {b: "${NAME}"}\n')
    descriptor = hcd.load(path, env={"NAME": "Z"})
    assert descriptor.model.chip.name == "${NAME}"
    assert [(w.code, w.path) for w in descriptor.warnings] == [("HCD042", "chip.name")]


def test_a_parents_variable_deleted_by_the_child_is_not_needed(write):
    write(BASE + "adapter: {sdk: '${SDK}', library: liba.so}\n", "base.hcd")
    path = write("hcd: 1\nextends: base.hcd\nadapter: {sdk: null}\n")
    assert hcd.load(path, env={}).model.adapter.sdk is None


def test_legacy_bare_variables(write):
    text = 'device_type: x\nvendor: V\nchip_model: C\nruntime_so: "$LIB/a.so"\ncapabilities: {dtypes: [float32]}\n'
    descriptor = hcd.load(write(text, "x.yaml"), env={"LIB": "/usr/lib"})
    assert descriptor.lower()["adapter"]["runtime"] == "/usr/lib/a.so"
    assert "HCD084" in [w.code for w in descriptor.warnings]
