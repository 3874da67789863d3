"""What the command line says of itself."""

import pytest

COMMANDS = [
    "validate",
    "show",
    "page",
    "schema",
    "devices",
    "new",
    "build",
    "run",
    "explain",
    "memory",
    "doctor",
    "check",
    "sdk-env",
]
WITH_JSON = ["validate", "show", "devices", "build", "explain", "memory", "doctor", "check", "sdk-env"]


def test_every_command_is_listed(cli):
    page = cli("--help").out
    for command in COMMANDS:
        assert f" {command} " in page


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_one_a_line(cli, command):
    result = cli(command, "--help")
    assert result.code == 0 and not result.err
    examples = result.out.split("Examples:")[1].split("╭")[0]
    assert any(f"torchfl {command} " in line for line in examples.splitlines())


@pytest.mark.parametrize("command", WITH_JSON)
def test_what_a_program_reads_has_json(cli, command):
    assert "--json" in cli(command, "--help").out


def test_version(cli):
    import torchfl

    assert cli("--version").out == f"torchfl {torchfl.__version__}\n"


@pytest.mark.parametrize("args", [["nosuch"], ["validate"], ["show"], ["explain"], ["run"], ["new"], ["sdk-env"]])
def test_wrong_usage_is_status_2_and_says_so_on_stderr(cli, args):
    result = cli(*args)
    assert result.code == 2 and not result.out and "Usage:" in result.err


def test_the_aliases_are_the_commands(capsys, monkeypatch, tmp_path):
    import sys

    from torchfl.cli import build_main, validate_main

    for entry, name in ((validate_main, "flagos-hcd-validate"), (build_main, "torchfl-build")):
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as left:
            entry()
        assert not left.value.code
        assert f"Usage: {name} " in capsys.readouterr().out
