"""How the tests of the command line run it: in real processes, one for each command or one for many."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CHIPS = ROOT / "chips"
BAD = ROOT / "tests" / "hcd" / "bad"
GOOD = ROOT / "tests" / "hcd" / "good"


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self):
        return json.loads(self.out)


def process(*args, cwd, env=None, module="torchfl.cli", timeout=120):
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    full = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100", **(env or {})}
    full = {k: v for k, v in full.items() if v is not None}
    command = [sys.executable, "-m", module, *map(str, args)]
    ran = subprocess.run(command, cwd=cwd, env=full, capture_output=True, text=True, timeout=timeout)
    return Result(ran.returncode, ran.stdout, ran.stderr)


_BATCH = """
import json, sys
from typer.testing import CliRunner
from torchfl.cli.app import app
results = []
for args in json.load(open(sys.argv[1])):
    result = CliRunner().invoke(app, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    results.append([result.exit_code, result.stdout, result.stderr])
json.dump(results, open(sys.argv[2], "w"))
"""


def processes(folder, commands, cwd):
    """Runs {name: arguments} in one process, for importing torch takes seconds; gives {name: Result}."""
    (folder / "in.json").write_text(json.dumps([[str(a) for a in args] for args in commands.values()]))
    (folder / "batch.py").write_text(_BATCH)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    command = [sys.executable, str(folder / "batch.py"), str(folder / "in.json"), str(folder / "out.json")]
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = json.loads((folder / "out.json").read_text())
    return {name: Result(*result) for name, result in zip(commands, results, strict=True)}
