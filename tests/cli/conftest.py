"""How the tests of the command line call it.

`cli` runs a command in this process, for what needs neither torch nor an engine. `torchfl` runs a real process. `batch`
runs several commands in one. What needs the engine fails without it: nothing is skipped.
"""

import pytest
from cli_support import Result, process, processes


@pytest.fixture(scope="session")
def cli():
    from typer.testing import CliRunner

    from torchfl.cli.app import app

    def run(*args):
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(a) for a in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def torchfl(tmp_path):
    def run(*args, cwd=tmp_path, env=None):
        return process(*args, cwd=cwd, env=env)

    return run


@pytest.fixture(scope="session")
def batch(tmp_path_factory):
    def run(commands, cwd=None):
        folder = tmp_path_factory.mktemp("batch")
        return processes(folder, commands, cwd or folder)

    return run
