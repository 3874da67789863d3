"""docs/cli.md and docs/adapter.md keep up with the commands; their shell snippets are run by tests/docs."""

import re
import subprocess
import textwrap

import pytest
from cli_support import ROOT
from test_cli_help import COMMANDS

CLI = (ROOT / "docs" / "cli.md").read_text()
ADAPTER = (ROOT / "docs" / "adapter.md").read_text()
MY_SDK = """
#include <stdint.h>
enum { MY_EXP, MY_LOG, MY_NEG };
int my_relu(void *, void *, void *, const void *, const int64_t *, const int64_t *, const int64_t *, int32_t);
int my_unary(void *, void *, int, void *, const void *, const int64_t *, int32_t);
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_on_the_page(cli, command):
    section = CLI.split(f"\n## torchfl {command}\n")[1].split("\n## ")[0]
    assert f"torchfl {command}" in section.split("```bash")[1]
    for option in re.findall(r"^│\s+\*?\s*(--[a-z-]+)", cli(command, "--help").out, re.M):
        if option not in ("--help", "--json"):
            assert option in section, option


def test_the_c_of_the_page_compiles(tmp_path):
    (tmp_path / "my_sdk.h").write_text(MY_SDK)
    blocks = [textwrap.dedent(text) for text in re.findall(r"^ *```c\n(.*?)^ *```", ADAPTER, re.M | re.S)]
    assert len(blocks) == 2
    for block in blocks:
        flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
        folders = ["-I", tmp_path, "-I", ROOT / "include"]
        command = ["cc", *flags, *folders, "-fsyntax-only", "-x", "c", "-"]
        ran = subprocess.run(command, input=block, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


def test_every_status_and_kind_is_explained():
    header = (ROOT / "include" / "torchfl" / "uba.h").read_text()
    words = re.findall(r"#define (UBA_(?:OK|NOT_\w+|OUT_\w+|INVALID_\w+|FAILED|DEVICE_LOST)) ", header)
    assert len(words) == 7
    for word in words:
        assert f"`{word}`" in ADAPTER


def test_required_functions_are_named():
    header = (ROOT / "include" / "torchfl" / "uba.h").read_text()
    for name in re.findall(r"\[required\](?:[^;]*?)\(\*(\w+)\)", header):
        assert f"`{name}`" in ADAPTER, name
