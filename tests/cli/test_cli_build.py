"""`torchfl build`: what is compiled when, and what a failure says. No engine is needed for it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time

import pytest
from cli_support import CHIPS

VENDOR = "int vendor_twice(int x) { return 2 * x; }\n"
MODULE = """
#include <Python.h>
#include "vendor.h"
#define INIT(name) PyInit_##name
#define INIT_OF(name) INIT(name)
static PyObject* twice(PyObject*, PyObject* x) { return PyLong_FromLong(vendor_twice((int)PyLong_AsLong(x))); }
static PyMethodDef methods[] = {{"twice", twice, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", "", -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC INIT_OF(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""


@pytest.fixture
def chip(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("new", "mychip").code == 0
    return tmp_path / "mychip"


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A vendor's library without a soname, as the second origin document has one, its header, and a user of both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "vendor.c").write_text(VENDOR)
    (tmp_path / "vendor" / "vendor.h").write_text('extern "C" int vendor_twice(int);\n')
    library = tmp_path / "vendor" / "vendor_runtime.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "vendor" / "vendor.c"], check=True)
    (tmp_path / "m.cpp").write_text(MODULE)
    return library


def touch(file):
    later = time.time_ns() + 10**9
    os.utime(file, ns=(later, later))


def test_a_folder_is_built_once(cli, chip):
    first = cli("build", "mychip", "--json")
    assert first.code == 0, first.err
    assert first.json() == {"library": "mychip/libuba_mychip.so", "compiled": ["mychip/uba_mychip.c"], "linked": True}
    assert cli("build", "mychip", "--json").json()["linked"] is False
    assert cli("build", "mychip").out == "mychip/libuba_mychip.so: nothing to do\n"


def test_only_what_changed_is_built_again(cli, chip):
    (chip / "more.h").write_text("#define MORE 1\n")
    (chip / "src").mkdir()
    (chip / "src" / "more.c").write_text(
        '#include "../more.h"\nint uba_more(void);\nint uba_more(void) { return MORE; }\n'
    )
    assert len(cli("build", "mychip", "--json").json()["compiled"]) == 2
    touch(chip / "more.h")  # a header
    assert cli("build", "mychip", "--json").json()["compiled"] == ["mychip/src/more.c"]
    touch(chip / "uba_mychip.c")  # a source
    assert cli("build", "mychip", "--json").json()["compiled"] == ["mychip/uba_mychip.c"]
    assert len(cli("build", "mychip", "--json", "--std", "gnu11").json()["compiled"]) == 2  # a flag
    (chip / "libuba_mychip.so").unlink()
    again = cli("build", "mychip", "--json", "--std", "gnu11").json()
    assert again["compiled"] == [] and again["linked"]
    (chip / "src" / "more.c").unlink()
    gone = cli("build", "mychip", "--json", "--std", "gnu11").json()
    assert gone["linked"] and not gone["compiled"]


def test_verbose_prints_the_commands(cli, chip):
    lines = cli("build", "mychip", "-v").err.splitlines()
    assert len(lines) == 2 and "-c mychip/uba_mychip.c" in lines[0] and "-shared" in lines[1]
    assert "torchfl" not in lines[1].replace("libuba", "")  # an adapter links nothing of ours


def test_the_working_directory_does_not_matter(cli, chip, monkeypatch):
    monkeypatch.chdir(chip)
    assert cli("build").out.startswith("libuba_mychip.so: built (1 file compiled")
    assert (chip / "libuba_mychip.so").is_file()


def test_a_loaded_library_is_replaced_not_overwritten(cli, chip):
    cli("build", "mychip")
    before = (chip / "libuba_mychip.so").stat().st_ino
    with (chip / "libuba_mychip.so").open("rb") as held:
        content = held.read()
        touch(chip / "uba_mychip.c")
        cli("build", "mychip")
        held.seek(0)
        assert held.read() == content
    assert (chip / "libuba_mychip.so").stat().st_ino != before


def test_the_sdk_comes_from_the_descriptor(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "my sdk"
    (root / "lib").mkdir(parents=True)
    (root / "include").mkdir()
    (root / "include" / "vendor.h").write_text("int vendor_twice(int);\n")
    (root / "v.c").write_text(VENDOR)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", root / "lib" / "libvendor.so", root / "v.c"], check=True)
    cli("new", "mychip")
    descriptor = tmp_path / "mychip" / "mychip.yaml"
    descriptor.write_text(descriptor.read_text().replace("style: c", 'style: c, sdk: "${MYSDK_ROOT}"'))
    adapter = tmp_path / "mychip" / "uba_mychip.c"
    text = adapter.read_text().replace("#include <stdlib.h>", "#include <stdlib.h>\n#include <vendor.h>")
    adapter.write_text(text.replace("*count = 1;", "*count = vendor_twice(1);"))
    unset = cli("build", "mychip")
    assert unset.code == 1 and "MYSDK_ROOT" in unset.err and "mychip.yaml:" in unset.err
    monkeypatch.setenv("MYSDK_ROOT", str(tmp_path / "elsewhere"))
    assert "elsewhere is not a folder" in cli("build", "mychip").err
    monkeypatch.setenv("MYSDK_ROOT", str(root))
    assert cli("build", "mychip").code == 0
    shown = subprocess.run(["readelf", "-d", tmp_path / "mychip" / "libuba_mychip.so"], capture_output=True, text=True)
    assert "libvendor.so" in shown.stdout and str(root / "lib") in shown.stdout


def test_the_shipped_adapter_builds_from_its_folder(cli, torchfl, tmp_path):
    shutil.copytree(CHIPS / "npu_v3", tmp_path / "npu_v3", ignore=shutil.ignore_patterns("*.so", "build"))
    root = torchfl("sdk-env", "npu", "--json").json()["NPU_SDK_ROOT"]
    result = torchfl("build", "npu_v3", env={"NPU_SDK_ROOT": root})
    assert result.code == 0, result.err
    assert (tmp_path / "npu_v3" / "libuba_npu_v3.so").is_file()


# ---------------------------------------------------------------------------------------------- torchfl-build's flags


def test_an_extension_that_python_imports(cli, vendor, tmp_path):
    flags = ["--name", "m", "--sources", "m.cpp", "--link", vendor, "--include", "vendor"]
    result = cli("build", *flags)
    assert result.code == 0, result.err
    file = tmp_path / ("m" + sysconfig.get_config_var("EXT_SUFFIX"))
    assert file.is_file() and cli("build", *flags).out == f"{file.name}: nothing to do\n"
    code = "import torch, m; print(m.twice(21))"
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.stdout == "42\n", ran.stderr


def test_a_changed_library_is_linked_again(cli, vendor):
    flags = ["--name", "m", "--sources", "m.cpp", "--link", vendor, "--include", "vendor", "--json"]
    assert cli("build", *flags).json()["linked"]
    touch(vendor)
    again = cli("build", *flags).json()
    assert again["linked"] and not again["compiled"]


def test_a_c_source_becomes_a_plain_library(cli, vendor, tmp_path):
    result = cli("build", "--name", "plain", "--sources", "vendor/vendor.c", "--output", "vendor")
    assert result.code == 0 and (tmp_path / "vendor" / "plain.so").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        ["--name", "m"],
        ["--sources", "m.cpp"],
        [".", "--name", "m", "--sources", "m.cpp"],
        ["--name", "m-1", "--sources", "m.cpp"],
        ["none"],
        ["--style", "rust"],
    ],
)
def test_wrong_usage(cli, vendor, flags):
    assert cli("build", *flags).code == 2


# ---------------------------------------------------------------------------------------------- what a failure says


def fails(cli, *flags):
    result = cli("build", *flags)
    assert result.code == 1 and not result.out and "Traceback" not in result.err
    return result.err


def test_a_missing_header(cli, chip):
    (chip / "uba_mychip.c").write_text('\n#include "my_sdk.h"\n')
    err = fails(cli, "mychip")
    assert "error: mychip/uba_mychip.c:2: the header my_sdk.h was not found\nfix: name its folder with --include" in err


def test_a_missing_header_of_a_simulated_sdk(cli, torchfl, chip):
    (chip / "uba_mychip.c").write_text('#include "npu_v3_sdk.h"\n')
    assert 'eval "$(torchfl sdk-env npu)"' in torchfl("build", "mychip").err


def test_an_undefined_symbol(cli, chip):
    text = (chip / "uba_mychip.c").read_text()
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "free(ptr);" in row)
    (chip / "uba_mychip.c").write_text(
        "void my_sdk_free(void *);" + text.replace("  free(ptr);", "  my_sdk_free(ptr);")
    )
    err = fails(cli, "mychip")
    assert f"uba_mychip.c:{line}: no library or source given defines my_sdk_free" in err
    assert "fix: name the library that has it with --link" in err
    assert not (chip / "libuba_mychip.so").exists()


def test_an_undefined_symbol_in_an_extension(cli, vendor):
    err = fails(cli, "--name", "m", "--sources", "m.cpp", "--include", "vendor")
    assert "m.cpp:6: no library or source given defines vendor_twice" in err and "Py" not in err.split("error:")[-1]


def test_a_missing_library(cli, chip):
    assert "the library nosuch was not found" in fails(cli, "mychip", "--link", "nosuch")
    assert "--link vendor/none.so: there is no such file" in fails(cli, "mychip", "--link", "vendor/none.so")


def test_an_error_in_the_source_is_the_compilers_own(cli, chip):
    with (chip / "uba_mychip.c").open("a") as file:
        file.write("int broken(void) { return undeclared; }\n")
    err = fails(cli, "mychip")
    assert "undeclared" in err and "error: mychip/uba_mychip.c: cc failed" in err


def test_nothing_to_compile(cli, chip):
    (chip / "uba_mychip.c").unlink()
    assert "no source (*.c, *.cpp)" in fails(cli, "mychip")
    assert "none.c: there is no such file" in fails(cli, "--name", "x", "--sources", "none.c")
    (chip / "x.rs").write_text("")
    assert "do not know how to compile" in fails(cli, "--name", "x", "--sources", "mychip/x.rs")


def test_no_compiler(cli, chip, monkeypatch):
    monkeypatch.setenv("CC", "nosuch-cc")
    assert "'nosuch-cc' of $CC was not found" in fails(cli, "mychip")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert "no C compiler was found" in fails(cli, "mychip")


def test_a_bad_descriptor(cli, chip):
    (chip / "mychip.yaml").write_text("hcd: 1\n")
    assert "error[HCD012]" in fails(cli, "mychip")
